"""kill -9 of the control plane at every step of a commit: what was acknowledged is there, and nothing runs twice."""

import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from many import many

from poise.errors import PoiseError
from system.dying import STEPS
from system.living import PATIENCE, Diary, Living, kill, until

COUNTS = {"before-checkpoint": (1,), "in-checkpoint": (1,), "after-checkpoint": (2,)}
"""At which of its passes a step kills, one control plane after the other."""

EARLY, LATE = 2, 9
"""The same of all other steps: at the start of a term, and in the midst of work. Of few, each step has one of both."""


class Killed:
    """A home whose control plane dies as planned; its agent lives on."""

    def __init__(self, living: Living) -> None:
        self.living = living
        self.messages = living.home.root.parent / "messages"
        self.agent = self._start("-m", "poise.agent", str(living.home.root))

    def _start(self, *arguments: str) -> "subprocess.Popen[bytes]":
        with self.messages.open("ab") as file:
            return subprocess.Popen(
                [sys.executable, *arguments], stdout=file, stderr=file, env=self.living.environment()
            )

    def control(self, *plan: str) -> "subprocess.Popen[bytes]":
        program = [str(Path(__file__).with_name("dying.py")), *plan] if plan else ["-m", "poise.control"]
        return self._start(*program, str(self.living.home.root), "--port", "0")


@pytest.fixture(scope="module")
def killed() -> Iterator[Killed]:
    living = Living()
    killed = Killed(living)
    try:
        yield killed
        kill(killed.agent.pid, 15)
        killed.agent.wait(PATIENCE)
        until(lambda: not living.processes(), "every process has ended", living.processes)
    finally:
        living.destroy()
        killed.agent.wait(PATIENCE)


@pytest.mark.parametrize("step", STEPS)
def test_a_kill_at_this_step_loses_nothing_and_doubles_nothing(killed: Killed, step: str) -> None:
    living = killed.living
    diary = Diary(living.work / step)
    acknowledged: dict[str, str] = {}
    stop = threading.Event()

    def submit() -> None:
        """Goes on submitting, each job under its key until it is acknowledged."""
        client = living.client()
        number = 0
        while not stop.is_set():
            key = f"{step}-{number}"
            try:
                acknowledged[key] = client.submit({"run": diary.command(0.02), "name": key}, key=key)
            except PoiseError:
                stop.wait(0.05)
                continue
            number += 1
            stop.wait(0.05)
        client.close()

    submitter = threading.Thread(target=submit)
    submitter.start()
    try:
        for count in COUNTS.get(step, (EARLY, LATE)[list(STEPS).index(step) % 2 :: many(2, 1)]):
            control = killed.control(step, str(count))
            assert control.wait(PATIENCE) == -9, killed.messages.read_text()[-3000:]
        control = killed.control()
        enough = len(acknowledged) + 3
        until(lambda: len(acknowledged) >= enough, "it accepts jobs again", killed.messages.read_text)
    finally:
        stop.set()
        submitter.join()
    try:
        client = living.client()
        reports = {key: client.wait(job, PATIENCE) for key, job in acknowledged.items()}
        assert {report.status for report in reports.values()} == {"done"}
        assert len({report.id for report in reports.values()}) == len(reports)
        assert [report.name for report in reports.values()] == list(reports)
        for report in reports.values():
            assert [attempt.outcome for attempt in report.tasks[0].attempts] in ([], ["returned"])
        # One that was not acknowledged may have become durable all the same; it is the same job under the same key.
        everything = [job for job in client.jobs(everything=True) if job.name.startswith(f"{step}-")]
        assert len(everything) - len(reports) in (0, 1)
        until(lambda: not living.tasks(), "no command is left", living.tasks)
        diary.check()
        assert sorted(diary.endings()) == sorted(f"{job.id}.main" for job in everything)
    finally:
        control.terminate()
        assert control.wait(PATIENCE) == 0
