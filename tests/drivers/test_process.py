"""Keepers as an executor: real keepers, real commands, agents and keepers that die."""

import asyncio
import contextlib
import json
import os
import signal
import subprocess
import sys
import time
import zlib
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from poise.agent.__main__ import STILL_RUNS
from poise.drivers import process
from poise.drivers.gangs import Gangs
from poise.drivers.keeper import family, start_ticks
from poise.drivers.places import log_paths
from poise.drivers.process import Keepers, end_orphans, mark_of, set_mark, visible
from poise.drivers.system import probe_cgroups
from poise.errors import SpecError
from poise.model.jobs import Ending
from poise.model.messages import Attempt, Ended, Launch, Running, Sized
from poise.model.resources import Device, Shape
from poise.ports import Executor, Observation

SECOND = 1_000_000_000


class Fleet:
    """Keepers, and what they have said."""

    def __init__(self, folder: Path, **options: Any) -> None:
        self.keepers = Keepers(folder / "keepers", options.pop("logs", folder / "logs"), **options)
        self.keepers.on_change = self._on_change
        self.fitness: list[str] = []
        self.keepers.on_fitness = self.fitness.append
        self.sized: list[Sized] = []
        self.keepers.on_sized = self.sized.append
        self.running: dict[str, Running] = {}
        self.ended: dict[str, Ending] = {}
        self.order: list[str] = []
        self.seen = Observation((), ())

    def _on_change(self, running: Sequence[Running], ended: Sequence[Ended]) -> None:
        self.running |= {one.attempt.task: one for one in running}
        for one in ended:
            assert one.attempt.task not in self.ended, "told twice"
            self.ended[one.attempt.task] = one.ending
            self.order.append(one.attempt.task)

    def start(self, slot: int, task: str, script: str, cpus: tuple[int, ...] = (), **fields: Any) -> None:
        self.keepers.start(slot, launch(task, script, **fields), cpus)

    async def until(self, condition: Callable[[], bool], seconds: float = 30.0) -> None:
        until = time.monotonic() + seconds
        while not condition():
            assert time.monotonic() < until, "it did not happen in time"
            await asyncio.sleep(0.003)

    async def until_ended(self, *tasks: str) -> list[str]:
        await self.until(lambda: all(task in self.ended for task in tasks))
        return [self.ended[task].outcome for task in tasks]

    async def until_running(self, *tasks: str) -> list[int]:
        await self.until(lambda: all(task in self.running for task in tasks))
        return [self.running[task].pid for task in tasks]

    def keeper_of(self, pid: int) -> int:
        """The keeper that a command is a child of."""
        return int(Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2].split()[1])


def launch(task: str, script: str, **fields: Any) -> Launch:
    given: dict[str, Any] = {"argv": ("/bin/sh", "-c", script), "shape": Shape(), "slots": 2} | fields
    return Launch(attempt=Attempt(task, given.pop("epoch", 1)), **given)


@contextlib.asynccontextmanager
async def fleet(folder: Path, **options: Any) -> AsyncIterator[Fleet]:
    one = Fleet(folder, **options)
    one.seen = await one.keepers.open()
    try:
        yield one
    finally:
        await one.keepers.close()


def run(folder: Path, story: Callable[[], Awaitable[None]]) -> None:
    """Runs a story, and ends whatever it has left."""
    try:
        asyncio.run(asyncio.wait_for(story(), 60))
    finally:
        for pid in keepers_of(folder):
            for one in [pid, *family(pid)]:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(one, signal.SIGKILL)


def keepers_of(folder: Path) -> list[int]:
    wanted = b"\0" + os.fsencode(folder / "keepers") + b"\0slot-"
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        with contextlib.suppress(OSError):
            if wanted in path.read_bytes():
                found.append(int(path.parent.name))
    return found


def alive(pid: int) -> bool:
    with contextlib.suppress(OSError):
        return Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2].split()[0] not in (b"Z", b"X")
    return False


def test_two_slots_run_at_once_and_each_in_order(tmp_path: Path) -> None:
    async def story() -> None:
        async with fleet(tmp_path) as one:
            executor: Executor = one.keepers
            gate = tmp_path / "gate"
            executor.start(0, launch("j1.a", f"until test -e {gate}; do sleep 0.02; done; echo a"), ())
            one.start(0, "j1.b", "exit 3")
            one.start(1, "j1.c", "echo c >&2")
            await one.until_ended("j1.c")
            await one.until_running("j1.a")
            gate.touch()
            assert await one.until_ended("j1.a", "j1.b", "j1.c") == ["done", "failed", "done"]
            assert one.order == ["j1.c", "j1.a", "j1.b"]
            assert one.ended["j1.b"].code == 3
            assert log_paths(tmp_path / "logs", Attempt("j1.a", 1))[0].read_text() == "a\n"
            assert log_paths(tmp_path / "logs", Attempt("j1.c", 1))[1].read_text() == "c\n"

    run(tmp_path, story)


def test_what_is_stopped_since_it_hangs_has_hung(tmp_path: Path) -> None:
    async def story() -> None:
        async with fleet(tmp_path) as one:
            one.start(0, "j1.a", "sleep 60")
            await one.until(lambda: "j1.a" in one.running)
            one.keepers.stop(Attempt("j1.a", 1), "no step for 1m0s")
            assert await one.until_ended("j1.a") == ["hung"]
            assert one.ended["j1.a"].note == "no step for 1m0s"

    run(tmp_path, story)


def test_a_command_knows_who_it_is(tmp_path: Path) -> None:
    async def story() -> None:
        devices = (Device(index=0, uuid="GPU-a"), Device(index=1, uuid="GPU-b"))
        async with fleet(tmp_path, devices=devices) as one:
            script = 'env; echo "{\\"ok\\": true}" > $POISE_RESULT'
            one.start(
                0,
                "j12.train-mlp[1]",
                script,
                epoch=3,
                submitted=31,
                gang="j12.train-mlp",
                rank=1,
                world=2,
                devices=(1,),
                env={"A": "b"},
            )
            one.start(1, "j12.cut[2]", script, part=2, parts=4)
            assert await one.until_ended("j12.train-mlp[1]", "j12.cut[2]") == ["done", "done"]
            gang = environment_in(tmp_path, Attempt("j12.train-mlp[1]", 3))
            part = environment_in(tmp_path, Attempt("j12.cut[2]", 1))
            folder = Path(gang.pop("POISE_GANG_DIR"))
            assert os.path.isdir(folder)  # noqa: ASYNC240, PTH112 — a test may block
            assert Path(gang.pop("POISE_CHECKPOINTS")).parts[-2:] == ("j12", "j12.train-mlp-1f")
            assert gang.pop("POISE_REPORT") == gang.pop("POISE_RESULT").replace(".json", ".report")
            gang.pop("PWD", None)
            assert gang == {
                "PATH": "/usr/local/bin:/usr/bin:/bin",
                "A": "b",
                "POISE_TASK": "j12.train-mlp[1]",
                "POISE_JOB": "j12",
                "POISE_UNIT": "j12.train-mlp-1f",
                "POISE_EPOCH": "3",
                "POISE_RANK": "1",
                "POISE_WORLD_SIZE": "2",
                "RANK": "1",
                "WORLD_SIZE": "2",
                "LOCAL_RANK": "0",
                "LOCAL_WORLD_SIZE": "1",
                "GROUP_RANK": "1",
                "GROUP_WORLD_SIZE": "2",
                "ROLE_RANK": "1",
                "ROLE_WORLD_SIZE": "2",
                "MASTER_ADDR": "127.0.0.1",
                "MASTER_PORT": "26354",
                "CUDA_VISIBLE_DEVICES": "GPU-b",
                "NVIDIA_VISIBLE_DEVICES": "GPU-b",
                "ROCR_VISIBLE_DEVICES": "",
                "HIP_VISIBLE_DEVICES": "",
                "ASCEND_RT_VISIBLE_DEVICES": "",
            }
            assert (part["POISE_PART"], part["POISE_PARTS"], part["NVIDIA_VISIBLE_DEVICES"]) == ("2", "4", "void")
            assert part["CUDA_VISIBLE_DEVICES"] == ""
            assert "RANK" not in part
            assert json.loads(one.ended["j12.cut[2]"].result) == {"ok": True}

    run(tmp_path, story)


def test_a_gang_meets_in_one_folder_on_all_nodes_until_its_last_member_has_left(tmp_path: Path) -> None:
    gangs = tmp_path / "gangs"

    async def story() -> None:
        async with (
            fleet(tmp_path / "a", node="a", gangs=gangs) as one,
            fleet(tmp_path / "b", node="b", gangs=gangs) as other,
        ):
            for rank, place in enumerate((one, other)):
                name = f"j1.train[{rank}]"
                place.start(0, name, f"echo {rank} > $POISE_GANG_DIR/{rank}", gang="j1.train", rank=rank, world=2)
                assert await place.until_ended(name) == ["done"]
            assert sorted(path.name for path in gangs.glob("j1.train.1/*")) == ["0", "1"]
            one.keepers.forget([Attempt("j1.train[0]", 1)])
            assert list(gangs.glob("j1.train.1/*"))
            other.keepers.forget([Attempt("j1.train[1]", 1)])
            assert list(gangs.glob("*")) == []

    run(tmp_path, story)


@pytest.mark.parametrize("hours", [0, 2])
def test_what_a_gang_left_goes_when_nobody_has_come_for_an_hour(tmp_path: Path, hours: int) -> None:
    member = launch("j1.train[0]", "x", gang="j1.train", world=2)
    folder = Path(Gangs(tmp_path, "a", str).join(member))
    marks = folder.with_name(f".{folder.name}")
    Gangs(tmp_path, "a", str).open([member])  # its agent was started again, and it is still there
    assert (marks / "0.a.here").exists()
    (marks / "0.a.here").rename(marks / "0.a.left")
    os.utime(marks, (time.time() - hours * 3600,) * 2)
    Gangs(tmp_path, "b", str).open([])
    assert folder.is_dir() == (hours == 0)


def test_nodes_that_share_a_folder_of_logs_do_not_write_into_each_others(tmp_path: Path) -> None:
    async def story() -> None:
        shared = tmp_path / "logs"
        async with (
            fleet(tmp_path / "c", node="c", logs=shared) as one,
            fleet(tmp_path / "d", node="d", logs=shared) as other,
        ):
            for number in range(4):
                names = [f"j{number}.a", f"j{number}.b"]
                for place, name in zip((one, other), names, strict=True):
                    place.start(0, name, f"sleep 0.1; echo {name}")
                for place, name in zip((one, other), names, strict=True):
                    assert await place.until_ended(name) == ["done"]
                assert [log_paths(shared, Attempt(name, 1))[0].read_text().strip() for name in names] == names

    run(tmp_path, story)


def environment_in(folder: Path, attempt: Attempt) -> dict[str, str]:
    lines = log_paths(folder / "logs", attempt)[0].read_text().splitlines()
    return dict(line.partition("=")[::2] for line in lines)


def test_programs_are_found_in_the_path_and_folder_of_the_command(tmp_path: Path) -> None:
    async def story() -> None:
        place = tmp_path / "place"
        place.mkdir()
        (place / "tool").write_text("#!/bin/sh\necho found\n")
        (place / "tool").chmod(0o755)
        async with fleet(tmp_path) as one:
            one.start(0, "j1.path", "", argv=("tool",), env={"PATH": str(place)})
            one.start(0, "j1.folder", "", argv=("./tool",), folder=str(place))
            one.start(0, "j1.none", "", argv=("tool",))
            outcomes = await one.until_ended("j1.path", "j1.folder", "j1.none")
            assert outcomes == ["done", "done", "unstartable"]
            assert one.ended["j1.none"].note == "`tool`: command not found"

    run(tmp_path, story)


def test_a_duplicate_start_changes_nothing(tmp_path: Path) -> None:
    async def story() -> None:
        async with fleet(tmp_path) as one:
            for _ in range(3):
                one.start(0, "j1.a", f"echo x >> {tmp_path}/count")
            await one.until_ended("j1.a")
            one.start(0, "j1.a", f"echo x >> {tmp_path}/count")
            one.start(0, "j1.b", "true")
            await one.until_ended("j1.b")
            assert (tmp_path / "count").read_text() == "x\n"

    run(tmp_path, story)


def test_stop_ends_one_and_hands_back_another(tmp_path: Path) -> None:
    async def story() -> None:
        async with fleet(tmp_path) as one:
            one.start(0, "j1.a", "sleep 30", grace=SECOND)
            one.start(0, "j1.b", "true")
            one.keepers.stop(Attempt("j1.b", 1))  # before there is a keeper
            await one.until_running("j1.a")
            one.keepers.stop(Attempt("j1.a", 1))
            assert await one.until_ended("j1.a", "j1.b") == ["stopped", "returned"]

    run(tmp_path, story)


def test_a_command_touches_its_own_file_to_say_that_it_gets_on(tmp_path: Path) -> None:
    async def story() -> None:
        async with fleet(tmp_path) as one:
            one.start(0, "j1.x", "sleep 0.1; touch $POISE_PROGRESS; sleep 60", hang=SECOND, grace=SECOND)
            one.start(1, "j1.y", "echo ${POISE_PROGRESS-none}")
            assert await one.until_ended("j1.x", "j1.y") == ["hung", "done"]
            assert one.ended["j1.x"].note.endswith("of CPU used: idle")
            assert log_paths(tmp_path / "logs", Attempt("j1.y", 1))[0].read_text() == "none\n"
            assert not list((tmp_path / "keepers" / "results").iterdir())


def test_what_is_not_renewed_is_lost_at_its_deadline(tmp_path: Path) -> None:
    def ahead(nanoseconds: int) -> int:
        return time.clock_gettime_ns(time.CLOCK_BOOTTIME) + nanoseconds

    async def story() -> None:
        kept, left = Attempt("j1.kept", 1), Attempt("j1.left", 1)
        async with fleet(tmp_path) as first:
            for attempt, slot in ((kept, 0), (left, 1)):
                first.keepers.renew(attempt, ahead(60 * SECOND))
                first.start(slot, attempt.task, "sleep 60")
            await first.until_running("j1.kept", "j1.left")
            first.keepers.renew(left, ahead(SECOND // 2))
            assert await first.until_ended("j1.left") == ["lost"]
            assert first.ended["j1.left"].note == "its lease ran out"
        async with fleet(tmp_path) as second:
            assert [one.launch.attempt for one in second.seen.held] == [kept]
            second.keepers.renew(kept, ahead(0))
            assert await second.until_ended("j1.kept") == ["lost"]

    run(tmp_path, story)


def test_a_new_agent_adopts_what_the_old_one_started(tmp_path: Path) -> None:
    async def story() -> None:
        go = tmp_path / "go"
        script = f"while [ ! -e {go} ]; do sleep 0.01; done; exit 5"
        async with fleet(tmp_path) as first:
            first.start(0, "j1.a", script, gang="j1.a", epoch=2, cpus=(0,))
            first.start(0, "j1.b", "true")
            first.start(1, "j1.c", "exit 4")
            first.start(1, "j1.d", "true")
            (pid,) = await first.until_running("j1.a")
            await first.until_ended("j1.c", "j1.d")
            first.keepers.forget([Attempt("j1.d", 1)])
        async with fleet(tmp_path) as second:
            held = {one.launch.attempt: one for one in second.seen.held}
            assert [(one.attempt, one.ending.code) for one in second.seen.ended] == [(Attempt("j1.c", 1), 4)]
            assert list(held) == [Attempt("j1.a", 2), Attempt("j1.b", 1)]
            adopted = held[Attempt("j1.a", 2)]
            assert adopted.running == Running(attempt=Attempt("j1.a", 2), pid=pid, cpus=(0,))
            assert (adopted.launch, adopted.slot, adopted.cpus) == (
                launch("j1.a", script, gang="j1.a", epoch=2),
                0,
                (0,),
            )
            assert held[Attempt("j1.b", 1)].running is None
            assert alive(pid)
            second.start(0, "j1.a", script, epoch=2)
            go.touch()
            assert await second.until_ended("j1.a", "j1.b") == ["failed", "done"]
            assert second.ended["j1.a"].code == 5

    run(tmp_path, story)


def test_endings_found_by_nobody_are_reported_after_the_keeper_left(tmp_path: Path) -> None:
    async def story() -> None:
        async with fleet(tmp_path) as first:
            first.start(0, "j1.a", "exit 4")
            await first.until_ended("j1.a")
            await first.keepers.close(quit=True)
        assert keepers_of(tmp_path) == []
        async with fleet(tmp_path) as second:
            assert [(one.attempt.task, one.ending.code) for one in second.seen.ended] == [("j1.a", 4)]
            second.start(0, "j1.a", "true")
            second.start(0, "j1.b", "true")
            await second.until_ended("j1.b")
            second.keepers.forget([Attempt("j1.a", 1), Attempt("j1.b", 1)])
            await second.keepers.close(quit=True)
        async with fleet(tmp_path) as third:
            assert third.seen == Observation((), ())
            assert not list((tmp_path / "keepers").glob("slot-*"))

    run(tmp_path, story)


def test_what_a_killed_agent_left_is_dismissed_but_for_what_runs(tmp_path: Path) -> None:
    """On a machine that Ray has lost and found again there may be no agent when Poise is taken down."""

    async def story() -> None:
        home, go = tmp_path / "home", tmp_path / "go"
        async with fleet(home / "node", logs=home / "logs") as killed:
            killed.start(0, "j1.a", f"while [ ! -e {go} ]; do sleep 0.01; done")
            killed.start(1, "j1.b", "true")
            (pid,) = await killed.until_running("j1.a")
            await killed.until_ended("j1.b")
            busy = killed.keeper_of(pid)
        assert len(keepers_of(home / "node")) == 2
        program = [sys.executable, "-m", "poise.agent", str(home), "--name", "n1", "--dismiss"]
        dismissed = await asyncio.create_subprocess_exec(*program)
        assert await dismissed.wait() == STILL_RUNS
        assert keepers_of(home / "node") == [busy] and alive(pid)
        go.touch()
        await killed.until(lambda: keepers_of(home / "node") == [])

    run(tmp_path / "home" / "node", story)


ESCAPED = "env -i setsid sleep 60 & echo $! > {pids}; echo half; sleep 60"
"""A session of its own, an environment that tells nothing, and no parent once the keeper has gone."""


def test_a_killed_keeper_is_noticed_and_buried(tmp_path: Path) -> None:
    async def story() -> None:
        pids = tmp_path / "pids"
        async with fleet(tmp_path) as one:
            one.start(0, "j1.before", "true")
            one.start(0, "j1.a", ESCAPED.format(pids=pids))
            one.start(0, "j1.b", "true")
            (pid,) = await one.until_running("j1.a")
            await one.until(lambda: pids.exists() and pids.read_text() != "")
            os.kill(one.keeper_of(pid), signal.SIGKILL)
            assert await one.until_ended("j1.before", "j1.a", "j1.b") == ["done", "lost", "returned"]
            assert not alive(pid)
            assert not alive(int(pids.read_text()))
            assert log_paths(tmp_path / "logs", Attempt("j1.a", 1))[0].read_text() == "half\n"

    run(tmp_path, story)


def test_a_slot_works_again_after_its_keeper_was_killed(tmp_path: Path) -> None:
    async def story() -> None:
        async with fleet(tmp_path) as one:
            one.start(0, "j1.a", "sleep 60")
            (pid,) = await one.until_running("j1.a")
            os.kill(one.keeper_of(pid), signal.SIGKILL)
            one.start(0, "j1.b", "sleep 0.01; exit 3")  # before it has been noticed
            await one.until_ended("j1.a")
            one.start(0, "j1.c", "true")
            await one.until_ended("j1.b", "j1.c")
            assert one.ended["j1.a"].outcome == "lost"
            assert one.ended["j1.b"].outcome in ("failed", "returned")
            assert one.ended["j1.c"].outcome == "done"
            one.keepers.forget([Attempt("j1.a", 1), Attempt("j1.b", 1), Attempt("j1.c", 1)])
            await one.keepers.close(quit=True)
            assert not list((tmp_path / "keepers").glob("slot-*"))

    run(tmp_path, story)


def test_a_keeper_that_is_killed_as_soon_as_it_has_answered_is_noticed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The connection is lost before whoever made it goes on."""
    whole, killed = process._Slot._on_whole, list[int]()

    def kill_it(slot: process._Slot) -> None:
        whole(slot)
        if not killed:
            killed.append(slot.keeper)
            os.kill(slot.keeper, signal.SIGKILL)
            assert slot._transport is not None
            slot._transport.abort()

    monkeypatch.setattr(process._Slot, "_on_whole", kill_it)

    async def story() -> None:
        async with fleet(tmp_path) as one:
            one.start(0, "j1.a", "sleep 60")
            assert await one.until_ended("j1.a") in (["lost"], ["returned"])
            one.start(0, "j1.b", "true")
            assert await one.until_ended("j1.b") == ["done"]

    run(tmp_path, story)


def test_agent_and_keeper_are_both_killed(tmp_path: Path) -> None:
    async def story() -> None:
        pids = [tmp_path / "a", tmp_path / "c"]
        async with fleet(tmp_path) as first:
            first.start(0, "j1.a", ESCAPED.format(pids=pids[0]))
            first.start(0, "j1.b", "true")
            first.start(1, "j1.c", ESCAPED.format(pids=pids[1]))
            pid, other = await first.until_running("j1.a", "j1.c")
            await first.until(lambda: all(path.exists() and path.read_text() for path in pids))
        escaped, kept = (int(path.read_text()) for path in pids)
        os.kill(first.keeper_of(pid), signal.SIGKILL)
        assert alive(pid) and alive(escaped)
        async with fleet(tmp_path) as second:
            assert [(one.attempt.task, one.ending.outcome) for one in second.seen.ended] == [("j1.a", "lost")]
            assert [one.launch.attempt.task for one in second.seen.held] == ["j1.c"]
            assert not alive(pid) and not alive(escaped)
            assert alive(other) and alive(kept)
        async with fleet(tmp_path) as third:  # it is told again until it is forgotten
            assert [one.attempt.task for one in third.seen.ended] == ["j1.a"]
            third.keepers.forget([Attempt("j1.a", 1)])
            assert not (tmp_path / "keepers" / "slot-0.journal").exists()

    run(tmp_path, story)


def test_a_keeper_that_does_not_answer_a_new_agent_is_ended(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Stopped, it could not keep a lease; and the agent would wait for it for ever."""

    async def story() -> None:
        async with fleet(tmp_path) as first:
            first.start(0, "j1.a", "sleep 60")
            first.start(1, "j1.b", "sleep 60")
            stopped, other = await first.until_running("j1.a", "j1.b")
            os.kill(first.keeper_of(stopped), signal.SIGSTOP)
        monkeypatch.setattr(process, "_START_SECONDS", 2.0)
        async with fleet(tmp_path) as second:
            assert [(one.attempt.task, one.ending.outcome) for one in second.seen.ended] == [("j1.a", "lost")]
            assert [one.launch.attempt.task for one in second.seen.held] == ["j1.b"]
            assert not alive(stopped)
            assert alive(other)

    run(tmp_path, story)


def test_what_bears_the_mark_is_killed_and_named_if_it_does_not_end_in_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    mark, other = mark_of(f"{tmp_path}/slot-0"), mark_of(f"{tmp_path}/slot-1")
    monkeypatch.setattr(process, "_BURY_SECONDS", -1.0)
    with subprocess.Popen(["sleep", "60"]) as child, subprocess.Popen(["sleep", "60"]) as neighbour:
        set_mark(child.pid, mark)
        set_mark(neighbour.pid, other)
        assert end_orphans(f"{tmp_path}/", lambda _: True, mark) == (set(), [child.pid])
        assert child.wait(10) == -signal.SIGKILL
        assert neighbour.poll() is None
        neighbour.kill()


@pytest.mark.root
def test_the_cgroup_of_a_killed_keeper_is_cleared(tmp_path: Path) -> None:
    found = probe_cgroups(f"test-{os.getpid()}")
    if os.getuid() != 0 or not found.writable:
        pytest.skip(f"needs root and a writable memory cgroup: {found.why_not}")

    async def story() -> None:
        async with fleet(tmp_path, cgroups=found) as one:
            one.start(0, "j1.a", "sleep 60", shape=Shape(memory=64 << 20))
            (pid,) = await one.until_running("j1.a")
            assert f"/{Path(found.parent).name}/slot-0." in cgroups_of(pid)
            os.kill(one.keeper_of(pid), signal.SIGKILL)
            assert await one.until_ended("j1.a") == ["lost"]
            assert not alive(pid)
            one.keepers.forget([Attempt("j1.a", 1)])
            await one.keepers.close(quit=True)
        assert not os.path.isdir(found.parent)  # noqa: ASYNC240, PTH112 — a test may block

    run(tmp_path, story)


def cgroups_of(pid: int) -> str:
    return Path(f"/proc/{pid}/cgroup").read_text()


def test_a_reused_pid_is_never_killed(tmp_path: Path) -> None:
    async def story() -> None:
        async with fleet(tmp_path) as first:
            first.start(0, "j1.a", "sleep 60")
            (pid,) = await first.until_running("j1.a")
        keeper = first.keeper_of(pid)
        os.kill(keeper, signal.SIGKILL)
        os.kill(pid, signal.SIGKILL)
        await asyncio.sleep(0.03)  # more than a clock tick
        stranger = await asyncio.create_subprocess_exec("sleep", "60", start_new_session=True)
        journal = tmp_path / "keepers" / "slot-0.journal"
        rewrite(journal, pid, stranger.pid)
        async with fleet(tmp_path) as second:
            assert [one.ending.outcome for one in second.seen.ended] == ["lost"]
            assert alive(stranger.pid)
        stranger.kill()
        await stranger.wait()

    run(tmp_path, story)


def rewrite(journal: Path, old: int, new: int) -> None:
    """Makes the journal speak of another process with the ticks of the old one."""
    lines = [line[9:].replace(b",%d," % old, b",%d," % new) for line in journal.read_bytes().splitlines()]
    journal.write_bytes(b"".join(b"%08x %b\n" % (zlib.crc32(line), line) for line in lines))


def test_a_damaged_journal_still_finds_the_orphan(tmp_path: Path) -> None:
    async def story() -> None:
        async with fleet(tmp_path) as first:
            first.start(0, "j1.a", "sleep 60")
            (pid,) = await first.until_running("j1.a")
        os.kill(first.keeper_of(pid), signal.SIGKILL)
        (tmp_path / "keepers" / "slot-0.journal").write_bytes(b"\x00\xff no journal \n at all")
        async with fleet(tmp_path) as second:
            assert [(one.attempt.task, one.ending.outcome) for one in second.seen.ended] == [("j1.a", "lost")]
            assert not alive(pid)
            second.start(0, "j1.b", "true")
            assert await second.until_ended("j1.b") == ["done"]

    run(tmp_path, story)


def test_a_lowered_memory_limit_is_told_and_stays_when_the_connection_breaks(tmp_path: Path) -> None:
    """Before it, the limit was raised. What is sent again after the break must not raise it once more."""

    async def story() -> None:
        attempt = Attempt("j1.a", 1)
        async with fleet(tmp_path) as one:
            one.start(0, "j1.a", "sleep 60", shape=Shape(memory=256 << 20))
            await one.until_running("j1.a")
            one.keepers.limit(attempt, 50 * SECOND, 512 << 20)

            def lowered(memory: int) -> Callable[[], bool]:
                def ask() -> bool:
                    one.keepers.shrink(attempt, memory)
                    return bool(one.sized) and one.sized[-1].memory == memory and not one.sized[-1].short

                return ask

            await one.until(lowered(128 << 20))
            assert 0 < one.sized[-1].used < 112 << 20
            one.keepers._slots[0]._transport.abort()  # type: ignore[union-attr]
            await one.until(lambda: one.keepers._slots[0].up)
            one.sized.clear()
            await one.until(lowered(128 << 20))
            assert one.keepers.limits[attempt] == (50 * SECOND, 128 << 20), "and its time limit"
            one.keepers.stop(attempt)
            assert await one.until_ended("j1.a") == ["stopped"]
            assert one.ended["j1.a"].limit in (0, 128 << 20)

    run(tmp_path, story)


def test_a_broken_connection_is_made_anew(tmp_path: Path) -> None:
    async def story() -> None:
        async with fleet(tmp_path) as one:
            one.start(0, "j1.a", "sleep 0.15; exit 6")
            await one.until_running("j1.a")
            one.keepers._slots[0]._transport.abort()  # type: ignore[union-attr]
            one.start(0, "j1.b", "true")
            assert await one.until_ended("j1.a", "j1.b") == ["failed", "done"]

    run(tmp_path, story)


def test_idle_keepers_leave_but_for_a_few(tmp_path: Path) -> None:
    async def story() -> None:
        async with fleet(tmp_path, idle_seconds=0.1, spare=1) as one:
            for slot in range(3):
                one.start(slot, f"j1.t{slot}", "true")
            await one.until_ended("j1.t0", "j1.t1", "j1.t2")
            await one.until(lambda: len(keepers_of(tmp_path)) == 1)
            one.start(2, "j1.again", "exit 9")
            await one.until_ended("j1.again")
            assert one.ended["j1.again"].code == 9

    run(tmp_path, story)


def test_a_keeper_that_was_sent_away_is_called_back(tmp_path: Path) -> None:
    async def story() -> None:
        async with fleet(tmp_path) as one:
            for number in range(20):
                one.start(0, f"j1.t{number}", "true")
                assert await one.until_ended(f"j1.t{number}") == ["done"]
                one.keepers._slots[0].dismiss()
                if number % 2:
                    await asyncio.sleep(0.001 * number)
            one.start(0, "j1.last", "exit 9")
            assert await one.until_ended("j1.last") == ["failed"]

    run(tmp_path, story)


def test_thousands_are_started_in_a_batch(tmp_path: Path) -> None:
    async def story() -> None:
        async with fleet(tmp_path) as one:
            for number in range(1000):
                one.start(number % 2, f"j1.t[{number}]", "", argv=("/bin/true",))
            await one.until(lambda: len(one.ended) == 1000)
            assert {ending.outcome for ending in one.ended.values()} == {"done"}
            one.keepers.forget([Attempt(task, 1) for task in one.ended])
        async with fleet(tmp_path) as second:
            assert second.seen == Observation((), ())

    run(tmp_path, story)


def test_without_a_place_for_keepers_everything_is_handed_back(tmp_path: Path) -> None:
    async def story() -> None:
        async with fleet(tmp_path) as one:
            for suffix in ("lock", "sock"):
                (tmp_path / "keepers" / f"slot-0.{suffix}").mkdir()
            one.start(0, "j1.a", "true")
            assert await one.until_ended("j1.a") == ["returned"]
            assert one.fitness == [one.ended["j1.a"].note], "said once, before it is handed back"
            assert "no keeper could be started" in one.fitness[0]
            one.keepers.try_out()
            await one.until(lambda: len(one.fitness) == 2)
            assert one.fitness[1] == one.fitness[0]
            for suffix in ("lock", "sock"):
                (tmp_path / "keepers" / f"slot-0.{suffix}").rmdir()
            one.keepers.try_out()
            await one.until(lambda: one.fitness[-1] == "")
            one.start(0, "j1.b", "true")
            assert await one.until_ended("j1.b") == ["done"]

    run(tmp_path, story)


def test_a_name_that_is_no_name_is_refused(tmp_path: Path) -> None:
    async def story() -> None:
        async with fleet(tmp_path) as one:
            for task in ("j1.a,b", 'j1."', "j1./x", "", "j1.ü"):
                with pytest.raises(SpecError):
                    one.start(0, task, "true")

    run(tmp_path, story)


@pytest.mark.parametrize("task", ["../../etc.passwd", "j1.../x", "..", ".", "j1.", "j\0.x", "j1." + "x" * 300, "j1.ü"])
def test_log_paths_stay_inside(tmp_path: Path, task: str) -> None:
    for path in log_paths(tmp_path, Attempt(task, 1)):
        assert path.parent.parent == tmp_path
        assert path.resolve() == path
        assert len(path.name) < 255


def test_log_paths_tell_odd_names_apart(tmp_path: Path) -> None:
    assert log_paths(tmp_path, Attempt("j1.a/b", 1)) != log_paths(tmp_path, Attempt("j1.a?b", 1))
    assert log_paths(tmp_path, Attempt("j1.a[0]", 2))[0] == tmp_path / "j1" / "a[0].2.out"


def test_devices_are_hidden_by_maker() -> None:
    devices = {
        0: Device(index=0, uuid="GPU-x"),
        1: Device(index=1, backend="rocm", driver_index=0),
        2: Device(index=2, backend="rocm", driver_index=1),
        3: Device(index=3, kind="npu", driver_index=5),
        4: Device(index=4, kind="npu", driver_index=6),
    }
    assert visible((), devices)["CUDA_VISIBLE_DEVICES"] == ""
    assert visible((0, 7), devices)["CUDA_VISIBLE_DEVICES"] == "GPU-x,7"
    assert visible((2,), devices) == {
        "CUDA_VISIBLE_DEVICES": "",
        "NVIDIA_VISIBLE_DEVICES": "void",
        "ROCR_VISIBLE_DEVICES": "1",
        "HIP_VISIBLE_DEVICES": "0",
        "ASCEND_RT_VISIBLE_DEVICES": "",
    }
    assert visible((4, 3), devices)["ASCEND_RT_VISIBLE_DEVICES"] == "5,6"


def test_the_journal_is_read_line_by_line() -> None:
    assert list(process.journal_entries(b"")) == []
    assert list(process.journal_entries(b"\n00000000 [\n\xff\xfe")) == []


def test_ticks_of_nobody_are_zero() -> None:
    assert start_ticks(2**22 + 1) == 0


def test_containers_that_podman_cannot_forget_now_are_forgotten_by_later_calls(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A podman that lists two containers, and cannot remove them the first two times."""
    monkeypatch.setattr(process, "_PODMAN_SECONDS", 0.01)
    podman, calls = tmp_path / "podman", tmp_path / "calls"
    podman.write_text(
        f"#!/bin/sh\ncase $1 in ps) echo a b ;; rm) echo $5 $6 >> {calls}; [ $(wc -l < {calls}) = 3 ] ;; esac\n"
    )
    podman.chmod(0o755)

    async def story() -> None:
        one = Fleet(tmp_path)
        one.keepers.podman = str(podman)
        await one.keepers.open()
        await one.until(lambda: calls.exists() and len(calls.read_text().splitlines()) == 3)
        await asyncio.sleep(0.1)
        await one.keepers.close()

    run(tmp_path, story)
    assert calls.read_text().splitlines() == ["a b"] * 3
