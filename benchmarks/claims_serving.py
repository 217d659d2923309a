"""Check claims of multiplied serving performance: one documented workload per claim, in the twin and, smaller, live.

    python benchmarks/claims_serving.py [--live [--rows NAME;…]] [--only NAME,…] [--rates TOTALS.csv] [--seed 1]
        [--json]

Claimed: (i) the mean response falls from 412 ms (round robin) or 389 ms (random) to 203 ms, and replicas are 89 % busy
instead of 63 and 58 %. (ii) From a static allocation to autoscaling, batching and routing together: 98 % busy instead
of 37 %, a P99 of 0.45 s instead of 1.2 s, and 11.7 requests/s per dollar an hour instead of 4.2. The claims state no
load, sizes or devices, so they are defined here: a request takes 145 ms in the mean on the fastest device, sizes are
log-normal and unknown to all policies, and a replica serves one request at a time unless it batches. All rows of a
workload get the same requests.

*closed-equal*: four equal devices, 12 clients with a think time of two services, sizes with a squared coefficient of
variation of 4. *closed-unequal*: speeds of 1, 1, 0.5 and 0.5, 16 clients with a think time of four services, sizes of
1. *open-equal*, *open-unequal* (1, 0.8, 0.4, 0.25): the same sizes as Poisson arrivals, at 63 and 38 % of the total
capacity. *saturated*: speeds of 1, 0.8, 0.4 and 0.22, 14 clients with a think time of half a service, equal sizes.
`service`: the replicas of `poise serve`, which share one queue, and may batch. A batch of b takes (2 + 1.8 b) / 3.8 of
one request. *partition*: four equal devices and four models with 60, 20, 15 and 5 % of the requests; either each device
holds one model and does not batch, or all devices hold all models and batch; Poisson arrivals at a load of 0.9 on the
busiest device. *day*: a day of ServeGen's m-large, at 0.3 % of its rate and 14 times the duration, with enough replicas
for a load of 0.7 in the busiest window, at round robin without batching, against `service` with as many replicas, or
with 1..N replicas chosen by a scaler (30 s to start). Every device costs $0.36 an hour, so that the first row of
*saturated* has about 4.2 requests/s per dollar an hour.

`--live` runs *closed-equal* with a front (`poise serve` with upstreams) before four servers that sleep for the duration
of a request, and *saturated* with such a front and with `poise serve` on four replicas that sleep for the duration of a
batch: real sockets, real processes, the clients' own draws, 500 requests each. It also prints the twin's figures for
the same requests, and their error.
"""

import argparse
import asyncio
import contextlib
import csv
import json
import os
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from math import ceil
from pathlib import Path
from random import Random
from statistics import fmean
from typing import Any, NamedTuple

import aiohttp
import msgspec
import yaml
from harness import Figure, say

from poise.model.scaling import ScaleRules
from poise.model.servers import Server, Serving, Speed
from poise.model.serving import Limits
from poise.model.serving_upstreams import Front, compile_upstreams
from poise.policy.replicas import scaler_named
from poise.units import DAY, HOUR, MILLISECOND, SECOND
from poise_lab.engine.serving import FrontTwin, Load, Open, Request, ServiceTwin, Story, Trial
from poise_lab.rehearsal import Figures, figures
from poise_lab.traces.loads import Wanted, asking, load_of, parse
from poise_serve.policy.route import router_named

MEAN = 145
"""Mean milliseconds of a request on the fastest device."""

ROUTERS = ("random", "round-robin", "weighted", "least-outstanding", "power-of-two", "expected-delay")
PRICE = 0.36
MANY, WARM = 20_000, 1000
LIVE, LIVE_WARM = 500, 50
SHARES = (0.60, 0.20, 0.15, 0.05)
BUSIEST = 0.9
SCALE = 0.003
SLOWER = 14
"""Slowdown factor: a request of *day* takes two seconds."""

OBJECTIVE = 8 * SECOND
"""Objective of *day*: four requests one after the other."""

RATES = Path(__file__).parents[2] / "shared" / "data" / "servegen-alibaba" / "total_rate_10min.csv"
COLUMN = "m-large"

Rows = dict[str, Figures]


class Loop(NamedTuple):
    """Speeds of the devices, and the load in the notation of `poise rehearse`."""

    speeds: tuple[float, ...]
    asks: str


LOOPS = {
    "closed-equal": Loop((1, 1, 1, 1), f"clients:clients=12,think={2 * MEAN}ms,variation=4"),
    "closed-unequal": Loop((1, 1, 0.5, 0.5), f"clients:clients=16,think={4 * MEAN}ms,variation=1"),
    "open-equal": Loop((1, 1, 1, 1), f"poisson:rate={0.63 * 4 / MEAN * 1000:.3f},variation=4"),
    "open-unequal": Loop((1, 0.8, 0.4, 0.25), f"poisson:rate={0.38 * 2.45 / MEAN * 1000:.3f},variation=4"),
    "saturated": Loop((1, 0.8, 0.4, 0.22), f"clients:clients=14,think={MEAN / 2}ms"),
}


def takes(size: int, speed: float = 1.0) -> float:
    """Return the milliseconds of a batch."""
    return MEAN * (2 + 1.8 * size) / 3.8 / speed


def serving(speeds: Sequence[float], *, batching: bool, start: int = 0) -> Serving:
    """Return the replicas; a straight line needs two points."""
    servers = []
    for number, speed in enumerate(speeds):
        sizes = (1, 64) if batching else (1,)
        step = tuple((size, takes(size, speed) * MILLISECOND) for size in sizes)
        servers.append(Server(name=f"d{number}", speed=Speed(step=step), slots=0 if batching else 1, price=PRICE))
    return Serving(servers=tuple(servers), start=start)


def upstreams(speeds: Sequence[float], ports: Sequence[int] = ()) -> dict[str, Any]:
    """Return upstreams with a high limit, so that every choice of the router stands."""
    servers = [
        {"name": f"d{number}", "url": f"127.0.0.1:{ports[number] if ports else 1}", "weight": speed, "limit": 10_000}
        for number, speed in enumerate(speeds)
    ]
    return {"kind": "upstreams", "upstreams": servers, "timeout": "24h", "ejection": {"slower": 0}}


def front(speeds: Sequence[float]) -> Front:
    return compile_upstreams(upstreams(speeds))


def drawn(text: str, many: int, seed: int) -> Callable[[], Load]:
    return lambda: load_of(parse(f"{text},requests={many}"), seed)


def told(trial: Trial, warm: int = WARM, objective: int = SECOND) -> Figures:
    return figures(trial, trial.run(), objective, warm)


def unlimited(batch: int) -> Limits:
    """Return limits under which no request is refused."""
    return Limits(timeout=HOUR, queue=10**6, batch=batch)


# --- in the twin -----------------------------------------------------------------------------------------------------


def loop(name: str, seed: int, many: int = MANY, warm: int = WARM) -> Rows:
    speeds, asks = LOOPS[name]
    load = drawn(asks, many, seed)
    alone = serving(speeds, batching=False)
    rows = {router: told(FrontTwin(front(speeds), alone, load(), router_named(router)), warm) for router in ROUTERS}
    for batch in (1, 64) if name == "saturated" else (1,):
        twin = ServiceTwin(unlimited(batch), serving(speeds, batching=True), load(), replicas=len(speeds))
        rows[f"service, {'one by one' if batch == 1 else 'batches'}"] = told(twin, warm)
    return rows


def partition(seed: int) -> Rows:
    """Return the figures of four models on four devices, for all four together."""
    rate = BUSIEST / SHARES[0] / MEAN * 1000
    whole = list(drawn(f"poisson:rate={rate:.3f}", MANY, seed)().begin())
    models = Random(f"{seed} models").choices(range(len(SHARES)), SHARES, k=len(whole))
    parts = []
    for model in range(len(SHARES)):
        own = [request for request, of in zip(whole, models, strict=True) if of == model]
        parts.append(ServiceTwin(unlimited(1), serving([1.0], batching=True), Open(own)))
    rows = {"a model a device, no batches": together(parts)}
    for batch in (1, 64):
        twin = ServiceTwin(unlimited(batch), serving([1.0] * 4, batching=True), Open(whole), replicas=4)
        rows[f"service, all models everywhere, {'one by one' if batch == 1 else 'batches'}"] = told(twin)
    return rows


def together(parts: Sequence[ServiceTwin]) -> Figures:
    """Combine trials into one, which ends when the last one does."""
    stories: list[Story] = sorted((story for part in parts for story in part.run()), key=lambda story: story.over)
    last = max(parts, key=lambda part: part.now)
    for number, part in enumerate(parts):
        for place in part.places:
            place.paid = place.ready = last.now
            place.server = Server(name=f"d{number}", speed=place.server.speed, price=place.server.price)
    last.places = [place for part in parts for place in part.places]
    return figures(last, stories, SECOND, WARM)


def day(rates: Path, seed: int) -> Rows:
    with rates.open(newline="") as opened:
        busiest = max(float(row[COLUMN]) for row in list(csv.DictReader(opened))[: 24 * 6])
    slow = [1 / SLOWER] * ceil(busiest * SCALE * MEAN * SLOWER / 1000 / 0.7)
    peak = len(slow)
    asked = asking(str(rates), Wanted(until=DAY, load=SCALE, column=COLUMN), seed)
    turns = FrontTwin(front(slow), serving(slow, batching=False), asked.begin(), router_named("round-robin"))
    rows = {f"round robin over {peak}, one by one": told(turns, objective=OBJECTIVE)}
    limits = Limits(timeout=HOUR, queue=10**6, objective=OBJECTIVE, defer=True)
    fixed = ServiceTwin(limits, serving(slow, batching=True), asked.begin(), replicas=peak)
    rows[f"service, {peak} replicas, batches"] = told(fixed, objective=OBJECTIVE)
    for scaler in ("forecast", "hpa"):
        rules = ScaleRules(least=1, most=peak, latency_p99=OBJECTIVE)
        many = serving(slow, batching=True, start=30 * SECOND)
        twin = ServiceTwin(limits, many, asked.begin(), rules=rules, scaler=scaler_named(scaler))
        rows[f"service, 1..{peak} by {scaler}, batches"] = told(twin, objective=OBJECTIVE)
    return rows


# --- live ------------------------------------------------------------------------------------------------------------

SERVER = """
import asyncio, json, sys
import uvicorn

MEAN, SPEED = float(sys.argv[1]) / 1000, float(sys.argv[2])

class Sleeps:
    def __init__(self):
        self.turn = asyncio.Lock()

    async def __call__(self, scope, receive, send):
        if scope["type"] != "http":
            return
        body, more = b"", scope["method"] == "POST"
        while more:
            message = await receive()
            body += message.get("body", b"")
            more = message.get("more_body", False)
        told = {"object": "list", "data": [{"id": "m", "object": "model"}]}
        if body:
            asked = json.loads(body)
            async with self.turn:
                await asyncio.sleep(asked["seed"] / 1e6 * MEAN / SPEED)
            told = {"id": "x", "object": "text_completion", "choices": []}
        content = json.dumps(told).encode()
        head = [(b"content-type", b"application/json"), (b"content-length", str(len(content)).encode())]
        await send({"type": "http.response.start", "status": 200, "headers": head})
        await send({"type": "http.response.body", "body": content})

uvicorn.run(Sleeps(), fd=int(sys.argv[3]), log_level="error", lifespan="off")
"""

MODEL = """
import os, time
from pathlib import Path

SPEEDS = {speeds}
MEAN = {mean}

class Sleeps:
    def load(self):
        for number, speed in enumerate(SPEEDS):
            try:
                os.close(os.open(Path(__file__).with_name(f"taken-{{number}}"), os.O_CREAT | os.O_EXCL))
            except FileExistsError:
                continue
            self.speed = speed
            return

    def predict(self, batch: list[float]) -> list[float]:
        time.sleep(MEAN / 1000 * (2 + 1.8 * len(batch)) / 3.8 / self.speed)
        return batch
"""


class Live(NamedTuple):
    """Measurements of a live run: milliseconds, and requests a second."""

    mean: float
    p50: float
    p99: float
    per_second: float


async def asked_live(load: Load, url: str, body: Callable[[Request], bytes]) -> Live:
    """Run the clients of a load over HTTP."""
    stories: list[tuple[float, float]] = []
    began = time.perf_counter()
    connector = aiohttp.TCPConnector(limit=0)

    async def client(session: aiohttp.ClientSession, request: Request | None) -> None:
        while request is not None:
            await asyncio.sleep(max(0.0, request.at / SECOND - (time.perf_counter() - began)))
            sent = time.perf_counter()
            async with session.post(url, data=body(request), headers={"content-type": "application/json"}) as answer:
                await answer.read()
                if answer.status != 200:
                    raise RuntimeError(f"{url} answered {answer.status}")
            stories.append((time.perf_counter() - sent, time.perf_counter() - began))
            request = load.after(int((time.perf_counter() - began) * SECOND))

    async with aiohttp.ClientSession(connector=connector) as session:
        await asyncio.gather(*(client(session, request) for request in load.begin()))
    counted = stories[LIVE_WARM:]
    took = sorted(1000 * each for each, _ in counted)
    seconds = counted[-1][1] - stories[LIVE_WARM - 1][1]
    return Live(fmean(took), took[len(took) // 2], took[int(0.99 * len(took))], len(took) / seconds)


@contextlib.contextmanager
def served(arguments: Sequence[str], folder: Path, ready: str) -> Iterator[str]:
    """Run `poise serve`; yield its address once its output contains `ready`."""
    environ = {**os.environ, "POISE_HOME": str(folder / "home")}
    command = [sys.executable, "-m", "poise.cli.main", "serve", *arguments, "--port", "0", "--json"]
    with (folder / "said").open("w") as said:
        process = subprocess.Popen(
            command, cwd=folder, env=environ, stdout=subprocess.PIPE, stderr=said, start_new_session=True
        )
        try:
            assert process.stdout is not None
            url = json.loads(process.stdout.readline() + b"".join(iter(process.stdout.readline, b"}\n")) + b"}")["url"]
            deadline = time.monotonic() + 60
            while ready and ready not in (folder / "said").read_text():
                if time.monotonic() > deadline:
                    raise RuntimeError((folder / "said").read_text()[-2000:])
                time.sleep(0.1)
            yield url
        finally:
            process.terminate()
            process.wait(40)
            subprocess.run([sys.executable, "-m", "poise.cli.main", "down"], env=environ, capture_output=True)


@contextlib.contextmanager
def sleeping(speeds: Sequence[float], folder: Path) -> Iterator[list[int]]:
    """Run servers that sleep; yield their ports."""
    (folder / "server.py").write_text(SERVER)
    processes, ports = [], []
    try:
        for speed in speeds:
            listening = socket.socket()
            listening.bind(("127.0.0.1", 0))
            listening.listen(1024)
            ports.append(listening.getsockname()[1])
            number = listening.fileno()
            processes.append(
                subprocess.Popen(
                    [sys.executable, str(folder / "server.py"), str(MEAN), str(speed), str(number)], pass_fds=[number]
                )
            )
            listening.close()
        yield ports
    finally:
        for process in processes:
            process.kill()
            process.wait()


def live_front(name: str, router: str, seed: int) -> Live:
    speeds, asks = LOOPS[name]
    with tempfile.TemporaryDirectory(prefix="poise-claims-") as made, sleeping(speeds, Path(made)) as ports:
        document = upstreams(speeds, ports) | {"router": router}
        (Path(made) / "front.yaml").write_text(yaml.safe_dump(document))

        def body(request: Request) -> bytes:
            return json.dumps({"model": "m", "prompt": "x", "seed": round(request.size * 1e6)}).encode()

        with served(["front.yaml"], Path(made), "") as url:
            return asyncio.run(asked_live(drawn(asks, LIVE, seed)(), f"{url}/v1/completions", body))


def live_service(name: str, batch: int, seed: int) -> Live:
    speeds, asks = LOOPS[name]
    with tempfile.TemporaryDirectory(prefix="poise-claims-") as made:
        folder = Path(made)
        (folder / "app.py").write_text(MODEL.format(speeds=list(speeds), mean=MEAN))
        flags = [
            "app.py:Sleeps",
            "--replicas",
            str(len(speeds)),
            "--batch",
            str(batch),
            "--timeout",
            "10m",
            "--cpu",
            "0.1",
        ]
        with served(flags, folder, f"{len(speeds)} of {len(speeds)} ready") as url:
            load = drawn(asks, LIVE, seed)()
            return asyncio.run(asked_live(load, f"{url}/predict", lambda request: b"1.0"))


def live(seed: int, only: Sequence[str], rows: Sequence[str]) -> dict[str, tuple[Live, Figures]]:
    """Return the live measurements and the twin's figures for as many requests, by workload and row."""
    found = {}
    for name, routers in (
        ("closed-equal", ("random", "round-robin", "weighted", "expected-delay")),
        ("saturated", ("round-robin", "weighted", "expected-delay")),
    ):
        if only and name not in only:
            continue
        twin = loop(name, seed, LIVE, LIVE_WARM)
        services = {row: 1 if row.endswith("one by one") else 64 for row in twin if row.startswith("service")}
        for row in (*routers, *(services if name == "saturated" else ())):
            if rows and row not in rows:
                continue
            seen = live_service(name, services[row], seed) if row in services else live_front(name, row, seed)
            say(f"live: {name}, {row}: {seen.mean:.4g} ms, P99 {seen.p99:.4g}, {seen.per_second:.4g}/s")
            found[f"{name}, {row}"] = (seen, twin[row])
    return found


# --- as a table ------------------------------------------------------------------------------------------------------


def by_speed(name: str, of: Figures) -> float:
    """Return the fraction of the total capacity that is busy."""
    speeds = LOOPS[name].speeds if name in LOOPS else (1.0,) * len(of.use)
    return sum(use * speed for use, speed in zip(of.use.values(), speeds, strict=False)) / sum(speeds[: len(of.use)])


def table(name: str, rows: Rows) -> str:
    lines = [f"\n{name}" + (f": {LOOPS[name].asks}, speeds {LOOPS[name].speeds}" if name in LOOPS else "")]
    lines.append("| | mean ms | P50 | P99 | busy | by speed | requests/s | for $1 an hour | replica-hours |")
    lines.append("| --- |" + " --- |" * 8)
    for row, of in rows.items():
        cells = [f"{each / 1e6:,.0f}" for each in (of.mean, of.p50, of.p99)]
        cells += [
            f"{of.mean_use:.0%}",
            f"{by_speed(name, of):.0%}",
            f"{of.per_second:.3g}",
            f"{of.per_dollar:.3g}",
            f"{of.hours:.3g}",
        ]
        lines.append(f"| {row} | {' | '.join(cells)} |")
    return "\n".join(lines)


def live_table(found: dict[str, tuple[Live, Figures]]) -> str:
    lines = ["\n| live, and in the twin | mean ms | off | P99 | off | requests/s | off |", "| --- |" + " --- |" * 6]
    for name, (measured, twin) in found.items():
        cells = []
        for ours, theirs in (
            (measured.mean, twin.mean / 1e6), (measured.p99, twin.p99 / 1e6), (measured.per_second, twin.per_second)
        ):  # fmt: skip
            cells += [f"{ours:.4g}, {theirs:.4g}", f"{theirs / ours - 1:+.1%}"]
        lines.append(f"| {name} | {' | '.join(cells)} |")
    return "\n".join(lines)


def measured(names: Sequence[str], rates: Path, seed: int) -> Iterator[tuple[str, Rows]]:
    for name in names:
        say(f"{name} …")
        if name in LOOPS:
            yield name, loop(name, seed)
        elif name == "partition":
            yield name, partition(seed)
        elif rates.exists():
            yield name, day(rates, seed)
        else:
            say(f"{name}: there is no {rates}")


def measure(seed: int = 1, many: int = MANY) -> list[Figure]:
    """Return the claimed ratios for `run_all.py`, in the workloads that reach them."""
    equal, full = loop("closed-equal", seed, many), loop("saturated", seed, many)
    plain, best = full["round-robin"], full["service, batches"]
    ours = equal["service, one by one"]
    return [
        Figure(
            name="closed loop, equal devices: mean, round robin over a service",
            unit="x",
            larger=True,
            values=[equal["round-robin"].mean / ours.mean],
            limit=412 / 203,
        ),
        Figure(
            name="closed loop, equal devices: replicas of a service are busy",
            unit="%",
            larger=True,
            values=[100 * ours.mean_use],
            limit=89,
        ),
        Figure(
            name="saturated, unequal devices: requests/s/$, a service over round robin",
            unit="x",
            larger=True,
            values=[best.per_dollar / plain.per_dollar],
            limit=11.7 / 4.2,
        ),
        Figure(
            name="saturated, unequal devices: P99, round robin over a service",
            unit="x",
            larger=True,
            values=[plain.p99 / best.p99],
            limit=1.2 / 0.45,
        ),
    ]


def measure_live(seed: int = 1) -> list[Figure]:
    """Return the twin's error for `run_all.py`."""
    return [
        Figure(name=f"{name}: mean, the twin off", unit="%", values=[100 * abs(twin.mean / 1e6 / seen.mean - 1)])
        for name, (seen, twin) in live(seed, (), ()).items()
    ]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--live", action="store_true", help="only what is run live, and the twin beside it")
    parser.add_argument("--only", default="", metavar="NAME,…")
    parser.add_argument("--rows", default="", metavar="NAME;…", help="with --live: of these routers and services only")
    parser.add_argument("--rates", type=Path, default=RATES)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--json", action="store_true")
    given = parser.parse_args()
    names = given.only.split(",") if given.only else []
    if given.live:
        found = live(given.seed, names, given.rows.split(";") if given.rows else [])
        value = {name: {"live": one._asdict(), "twin_ms": twin.mean / 1e6} for name, (one, twin) in found.items()}
        print(json.dumps(value) if given.json else live_table(found))
        return 0
    rows = dict(measured(names or [*LOOPS, "partition", "day"], given.rates, given.seed))
    if given.json:
        print(json.dumps(msgspec.to_builtins(rows)))
    else:
        print("\n".join(table(name, of) for name, of in rows.items()))
    return 0


if __name__ == "__main__":
    sys.exit(main())
