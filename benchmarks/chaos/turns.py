"""A turn: one home of its own, one fault, and what is seen of it. What all rows share."""

import contextlib
import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any, TypeVar

from system.damage import NotHere
from system.living import Living, alive, until

from chaos import TESTS
from poise.errors import PoiseError
from poise.kernel.controller import ROUND
from poise.model.times import Times
from poise.units import SECOND

SLEEP = ["sleep", "86400"]
SMALL = {"run": ["true"], "resources": {"cpu": 0.1}}
ONE_ROUND = (Times().decide + ROUND) / SECOND
"""Seconds of a round at the longest: the wait for it, and the time that a policy of others has for its plan."""

BY_TESTS = "by tests"

Spec = dict[str, Any]

T = TypeVar("T")


class Stage(Living):
    """A home of a turn, and what is taken down once it has been judged."""

    def __init__(self) -> None:
        super().__init__()
        self._used = contextlib.ExitStack()

    def use(self, what: contextlib.AbstractContextManager[T]) -> T:
        return self._used.enter_context(what)

    def destroy(self) -> None:
        self._used.close()
        super().destroy()


@dataclass
class Turn:
    """Seconds, of one fault or of several of a kind; and homes beside that of the stage, to be judged as well."""

    noticed: list[float] = field(default_factory=list)
    recovered: list[float] = field(default_factory=list)
    homes: list[Living] = field(default_factory=list)


@dataclass(frozen=True)
class Case:
    """One way to do the fault of a row; the limits are the targets of its row, in seconds, and `by` the observer.
    `checks` are promises that the turn itself looks at, beside those that are judged after every turn. What is done
    `once` is not repeated: it is long, or nothing of it is timed.
    """

    row: int
    fault: str
    turn: Callable[[Stage], Turn]
    by: str
    notice: float | None = None
    recover: float | None = None
    checks: str = ""
    once: bool = False


class Observer:
    """Follows the events of a home, as `poise events --follow` does, and notes when it has read each."""

    def __init__(self, living: Living) -> None:
        self._living = living
        self._seen: list[tuple[float, dict[str, Any]]] = []
        threading.Thread(target=self._read, daemon=True).start()

    def until(self, kind: str, *, since: float = 0.0, **fields: object) -> tuple[float, dict[str, Any]]:
        """The first event of this kind with these fields that was read `since` then, and when it was read."""
        found: tuple[float, dict[str, Any]] = until(
            lambda: next((seen for seen in self._seen if seen[0] >= since and _is(seen[1], kind, fields)), None),
            f"{kind} {fields}",
            lambda: [event for _, event in self._seen][-10:],
        )
        return found

    def saw(self, kind: str, **fields: object) -> bool:
        """Whether such an event was read by now."""
        return any(_is(event, kind, fields) for _, event in self._seen)

    def _read(self) -> None:
        with contextlib.suppress(PoiseError), self._living.client() as client:  # the home is gone, the turn is over
            for line in client.events(after=0):
                self._seen.append((time.monotonic(), json.loads(line)["event"]))


def _is(event: dict[str, Any], kind: str, fields: dict[str, object]) -> bool:
    return event["type"] == kind and all(event.get(name) == value for name, value in fields.items())


def running(living: Living, spec: Spec) -> tuple[str, int]:
    """A job of one task that runs, and its process."""
    client = living.client()
    job = client.submit(spec)
    until(lambda: client.job(job).status == "running", "it runs", living.messages)
    return job, client.job(job).tasks[0].pid or 0


def untouched(living: Living, job: str, pid: int) -> None:
    """The same process, under the same epoch."""
    task = until(
        lambda: next((task for task in living.client().job(job).tasks if task.status == "running"), None),
        f"{job} runs",
        lambda: living.client().job(job),
    )
    assert (task.pid, task.epoch, task.attempts) == (pid, 1, ()), task
    assert alive(pid)


def replaced(living: Living, what: str, killed: int) -> int:
    """Wait for another process in the place of one that was killed; returns which."""
    found: int = until(lambda: (pid := living.pid(what)) != killed and pid, f"another {what}", living.messages)
    return found


@contextlib.contextmanager
def stopped(pid: int) -> Iterator[None]:
    """The process stands still meanwhile."""
    os.kill(pid, signal.SIGSTOP)
    try:
        yield
    finally:
        os.kill(pid, signal.SIGCONT)


def program(living: Living, *arguments: str, **more: str) -> "subprocess.Popen[bytes]":
    """A Python program on the home; what it says goes where Poise's messages go."""
    living.home.root.mkdir(mode=0o700, exist_ok=True)
    with living.home.messages.open("ab") as messages:
        return subprocess.Popen(
            [sys.executable, *arguments], stdin=subprocess.DEVNULL, stdout=messages, stderr=messages,
            env=living.environment(**more),
        )  # fmt: skip


def tested(row: int, fault: str, *names: str, checks: str = "") -> Case:
    """What tests look at, by their names under `tests/`: it has to be right, and no time is told."""

    def turn(living: Stage) -> Turn:
        command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "-x"]
        command += [str(TESTS / name) for name in names]
        done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=TESTS.parent)
        assert done.returncode == 0, (done.stdout + done.stderr)[-3000:]
        if "skipped" in done.stdout and "passed" not in done.stdout:
            raise NotHere(done.stdout.strip().rpartition("\n")[2])
        return Turn()

    return Case(row, fault, turn, BY_TESTS, checks=checks, once=True)
