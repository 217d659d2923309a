"""The latest attempt of a task, and the record of earlier ones."""

from typing import Literal

import msgspec

from poise.model.jobs import Ending

TaskStatus = Literal["idle", "queued", "running", "recovering", "ended"]

PAST_ATTEMPTS = 8
"""Number of past attempts retained per task; the log has all of them."""

GOES_ON = ("lost", "killed", "signal", "hung", "stopped", "returned", "unstartable")
"""Outcomes of a member after which a resizable gang continues without it; other outcomes are results of the work."""

BY_SIGNAL = 128
"""A shell exits with this plus the number of the signal that ended its command."""


class PastAttempt(msgspec.Struct, frozen=True):
    """An earlier attempt of a task."""

    epoch: int
    node: str
    ending: Ending
    at: int


class TaskState(msgspec.Struct, gc=False):
    """The latest attempt of one task. Times are instants; 0: not yet. `straggles` is the run time of its siblings in
    nanoseconds, if it takes longer than they did. `epoch` is the one in which it was started (0: its unit's). A
    `leaving` task is no longer a member of its gang, and was asked to end.
    """

    status: TaskStatus = "idle"
    node: str = ""
    devices: tuple[int, ...] = ()
    cpus: tuple[int, ...] = ()
    pid: int = 0
    started: int = 0
    ended: int = 0
    ending: Ending | None = None
    past: list[PastAttempt] = []
    straggles: int = 0
    epoch: int = 0
    leaving: bool = False

    @property
    def active(self) -> bool:
        return self.status in ("queued", "running", "recovering")

    def keep(self, epoch: int, ending: Ending, at: int) -> None:
        """Record an attempt that the next one replaces, unless it never began."""
        if ending.outcome != "returned":
            self.past = [*self.past[1 - PAST_ATTEMPTS :], PastAttempt(epoch, self.node, ending, at)]


def is_loss(ending: Ending) -> bool:
    """Return whether a resizable gang continues after this ending of a member, including a shell's exit code for a
    signal.
    """
    return ending.outcome in GOES_ON or (ending.outcome == "failed" and ending.code > BY_SIGNAL)
