"""A user's program, run by tests/system/test_functions.py as `python program.py ACT`; prints one JSON value."""

import asyncio
import hashlib
import json
import os
import signal
import sys
import threading
import time
from pathlib import Path

import poise


class Point:
    def __init__(self, x: int) -> None:
        self.x = x


class OwnError(Exception):
    pass


@poise.task
def square(value: int) -> int:
    return value * value


@poise.task
def add(*values: int) -> int:
    return sum(values)


@poise.task
def total(values: dict[str, list[int]]) -> int:
    return sum(sum(each) for each in values.values())


@poise.task
def fail(value: int) -> None:
    raise OwnError(f"no {value}")


@poise.task
def moved(point: Point) -> Point:
    return Point(point.x + 1)


@poise.task
def who() -> int:
    return os.getpid()


@poise.task
def nap(seconds: float) -> int:
    time.sleep(seconds)
    return os.getpid()


@poise.task
def die_once(mark: str) -> str:
    path = Path(mark)
    if not path.exists():
        path.touch()
        os.kill(os.getpid(), signal.SIGKILL)
    return "alive"


@poise.task
def die() -> None:
    os._exit(3)


@poise.task(retries=2)
def third_time(mark: str) -> int:
    path = Path(mark)
    tries = len(path.read_text()) if path.exists() else 0
    path.write_text("x" * (tries + 1))
    if tries < 2:
        raise OwnError(f"try {tries}")
    return tries


@poise.task
def blob(size: int) -> bytes:
    return b"x" * size


@poise.task
def size(data: bytes) -> int:
    return len(data)


@poise.task
def shape(array: object) -> tuple[int, ...]:
    return tuple(array.shape)  # type: ignore[attr-defined]


@poise.task
def stops(value: int) -> int:
    raise StopIteration


class MuteError(Exception):
    def __str__(self) -> str:
        raise ValueError("\ud800")


@poise.task
def mute() -> None:
    raise MuteError


@poise.task
def tenth(value: int) -> int:
    if value == 10:
        raise OwnError("ten")
    return value


@poise.task(workers=2, cpu="0.5")
def member(value: str) -> list[object]:
    return [value, poise.rank(), poise.world_size()]


@poise.task(workers=2, cpu="0.5")
def failing_member() -> None:
    if poise.rank() == 1:
        raise OwnError("rank 1")


@poise.task(time_limit="300ms")
def slow(value: int) -> int:
    while value == 3:
        time.sleep(0.01)
    return value


@poise.task(hang="2s", retries=1)
def still(folder: str) -> int:
    tries = len(list(Path(folder).glob("still*")))
    Path(folder, f"still{tries}").touch()
    time.sleep(3600 * (not tries))
    for _ in range(30):  # longer than `hang`, with progress
        time.sleep(0.1)
        poise.step()
    return tries


@poise.task(workers=2, cpu="0.5", time_limit="1s")
def slow_member() -> None:
    time.sleep(3600 * (poise.rank() == 1))


def act_limits(folder: str) -> object:
    found: dict[str, object] = {"still": still.submit(folder).result()}
    for name, call in (("call", slow.submit(3)), ("gang", slow_member.submit())):
        try:
            found[name] = call.result()
        except poise.CallLost as error:
            found[name] = str(error)
    given = slow.map(range(6), chunk=6)
    before = [next(given) for _ in range(3)]
    try:
        next(given)
    except poise.CallLost as error:
        found["map"] = [before, error.__notes__]
    return found | {"after": slow.submit(4).result()}


def hashed() -> str:
    return hashlib.sha256(os.environ["HF_TOKEN"].encode()).hexdigest()


def act_secret() -> object:
    given = {"HF_TOKEN": os.environ["HF_TOKEN"]}
    calls, gang = poise.task(secrets=given), poise.task(secrets=given, workers=2, cpu="0.5")
    return [calls(hashed).submit().result(), gang(hashed).submit().result()]


def act_values() -> object:
    numpy = __import__("numpy")
    return {
        "square": square.submit(7).result(),
        "local": square(7),
        "tuple": moved.submit(Point(1)).result().x,
        "files": size.submit(blob.submit(300_000)).result(),
        "array": list(shape.submit(numpy.zeros((30, 50))).result()),
        "lambda": poise.task(lambda value: value + 1).submit(2).result(),
        "text": square.options(cpu="0.5").submit(3).result(),
    }


def act_graph() -> object:
    parts = [square.submit(value) for value in range(5)]
    deep = total.submit({"a": [parts[0], parts[1]], "b": [add.submit(*parts)]})
    bad = add.submit(fail.submit(1), 2)
    try:
        bad.result()
        skipped = ""
    except poise.CallFailed as error:
        skipped = str(error)
    return {"deep": deep.result(), "gather": poise.gather(parts), "skipped": skipped}


def act_failure() -> object:
    import traceback

    try:
        fail.submit(5).result()
    except OwnError as error:
        text = "".join(traceback.format_exception(error))
        return {"message": str(error), "where": "program.py" in text and 'raise OwnError(f"no {value}")' in text}
    return None


def act_deaths(folder: str) -> object:
    found: dict[str, object] = {
        "once": die_once.submit(f"{folder}/died").result(),
        "retries": third_time.submit(f"{folder}/tries").result(),
    }
    try:
        die.submit().result()
    except poise.CallLost as error:
        found["always"] = str(error)
    found["after"] = square.submit(2).result()
    return found


def act_map() -> object:
    mapped = square.map(range(50_000))
    star = add.map(range(3), range(3))
    gen = square.map(iter(range(10)), chunk=3)
    bad = fail.map([1, 2])
    try:
        list(bad)
        note = ""
    except OwnError as error:
        note = "; ".join(error.__notes__)
    return {"sum": sum(mapped), "star": list(star), "chunk": list(gen), "repr": repr(mapped), "note": note}


def act_async() -> object:
    async def work() -> object:
        one = await square.submit(3)
        many = [value async for value in square.map(range(5))]
        client = poise.AsyncClient()
        job = await client.submit({"run": ["true"]})
        report = await client.wait(job)
        return [one, many, report.exit_code]

    return asyncio.run(work())


def act_gang() -> object:
    try:
        failing_member.submit().result()
        why = ""
    except OwnError as error:
        why = str(error)
    return {"members": member.submit("a").result(), "why": why}


def act_warm() -> object:
    return len({who.submit().result() for _ in range(20)})


def act_cancel() -> object:
    blocking = [nap.submit(0.5) for _ in range(4)]
    time.sleep(0.2)
    later = [nap.submit(0.0) for _ in range(50)]
    later[-1].cancel()
    others = [future.result() for future in later[:-1]]
    first = len(poise.gather(blocking))
    return {"cancelled": later[-1].cancelled(), "others": len(others), "first": first}


def act_odd() -> object:
    """What returns strangely is said, and stops neither a loop nor a worker."""
    found: dict[str, object] = {}
    try:
        list(stops.map([1]))
    except RuntimeError as error:
        found["stop"] = str(error)
    try:
        mute.submit().result()
    except Exception as error:
        found["mute"] = type(error).__name__
    mapped = tenth.map(range(20), chunk=20)
    kept: list[int] = []
    try:
        kept.extend(mapped)
    except OwnError:
        found["kept"] = len(kept)
    found["many"] = add.submit(*[square.submit(1) for _ in range(1500)]).result()
    try:
        square.submit({fail.submit(1)}).result()
    except TypeError as error:
        found["set"] = "lists" in str(error)
    if os.fork() == 0:
        sys.exit(0)
    os.wait()
    found["after"] = square.submit(5).result()
    return found


def act_killed() -> object:
    """The control plane is killed while calls are accepted, made and returned."""
    home = Path(os.environ["POISE_HOME"])
    poise.gather([square.submit(value) for value in range(10)])

    def kill() -> None:
        for _ in range(2):
            time.sleep(0.25)
            os.kill(int((home / "lock").read_text().split()[0]), signal.SIGKILL)
            time.sleep(1.0)

    killer = threading.Thread(target=kill)
    killer.start()
    sums = 0
    count = 0
    while killer.is_alive():
        futures = [square.submit(value) for value in range(500)]
        sums += sum(poise.gather(futures))
        count += 1
    return [sums, count * sum(value * value for value in range(500))]


def act_left(folder: str) -> object:
    """Submitted, and nobody waits."""
    touch = poise.task(_touch)
    for number in range(20):
        touch.submit(f"{folder}/left-{number}")
    return None


def _touch(path: str) -> None:
    Path(path).touch()


if __name__ == "__main__":
    sys.stdout.write(json.dumps(globals()[f"act_{sys.argv[1]}"](*sys.argv[2:])) + "\n")
