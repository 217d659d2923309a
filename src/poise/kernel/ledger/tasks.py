"""The latest attempt of a task, and what is kept of earlier ones."""

from typing import Literal

import msgspec

from poise.model.jobs import Ending

TaskStatus = Literal["idle", "queued", "running", "recovering", "ended"]

PAST_ATTEMPTS = 8
"""Endings kept per task beside the latest one; the log has them all."""

GOES_ON = ("lost", "killed", "signal", "hung", "stopped", "returned", "unstartable")
"""Outcomes of a member that a gang which resizes goes on without; others are the doing of the work itself."""

BY_SIGNAL = 128
"""A shell whose command was ended by a signal ends with this and the signal's number."""


class PastAttempt(msgspec.Struct, frozen=True):
    """An earlier attempt of a task."""

    epoch: int
    node: str
    ending: Ending
    at: int


class TaskState(msgspec.Struct, gc=False):
    """The latest attempt of one task. Times are instants, 0 where it has not happened. `straggles` is what its like
    took in nanoseconds, where it was seen to take longer. `epoch` is the one it was started in (0: its unit's). One
    that is `leaving` belongs to its gang no more, and is asked to end.
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
        """Remember an attempt that the next one replaces, unless it never began."""
        if ending.outcome != "returned":
            self.past = [*self.past[1 - PAST_ATTEMPTS :], PastAttempt(epoch, self.node, ending, at)]


def is_loss(ending: Ending) -> bool:
    """Whether a gang that resizes goes on after such an end of a member: also where a shell tells of a signal."""
    return ending.outcome in GOES_ON or (ending.outcome == "failed" and ending.code > BY_SIGNAL)
