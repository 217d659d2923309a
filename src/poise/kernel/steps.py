"""Detect hung training by the steps that it reports, if its job sets no `hang`.

The user has not set this limit, so it must not end a live attempt. An attempt has hung if its step stands still **and**
it uses no CPU, for longer than `LEAST`, than `STEPS` usual steps, and than `LONGEST` times its longest pause so far. An
evaluation, a compilation or a restore uses CPU, whether the script announces it or not. So does an endless loop, which
only a `hang` in the job finds.

A report with a `step_time` of 0 announces a time without steps. If it says `evaluating`, the evaluation is compared
with earlier ones, and the first one has no limit. Otherwise there is no limit, and there is none once all work is done.

Time is counted between checks, so that a suspended machine does not count its sleep as silence of the attempt.
"""

from collections.abc import Iterator, Mapping
from typing import Literal

import msgspec

from poise.model.messages import Attempt, Told
from poise.model.progress import ALL
from poise.units import SECOND, format_duration

LEAST = 300 * SECOND
"""Work without CPU may be a call to another machine. This is half of the 10 minutes after which PyTorch aborts NCCL."""

STEPS = 20
"""Number of usual steps for which training may stand still"""

LONGEST = 3
"""... and multiple of its longest pause so far."""

MEASURE_AFTER = 10 * SECOND
"""CPU time is measured only after a standstill of this duration, because it takes a walk over `/proc`."""

ALIVE = 50
"""Work that uses more than 1/50 of one CPU is alive; threads that only watch use less."""

MOST_BETWEEN_LOOKS = 2 * SECOND

Doing = Literal["steps", "evaluation", "nothing"]


class Watched(msgspec.Struct):
    """An attempt that reports its steps. Times in nanoseconds: `still` since its last report of something new, `idle`
    since it last used CPU, as far as measured. `used` is the CPU time at the beginning of `idle`.
    """

    step: int
    step_time: int
    doing: Doing = "steps"
    still: int = 0
    idle: int = 0
    used: int = -1
    longest_pause: int = 0
    longest_evaluation: int = 0

    @property
    def limit(self) -> int:
        """Maximum idle time; 0: no limit."""
        if self.doing == "steps":
            return max(LEAST, STEPS * self.step_time, LONGEST * self.longest_pause)
        if self.doing == "evaluation" and self.longest_evaluation:
            return max(LEAST, LONGEST * self.longest_evaluation)
        return 0

    def turn_to(self, doing: Doing) -> None:
        """Record a report of something new, which ends the previous activity."""
        if self.doing == "steps":
            self.longest_pause = max(self.longest_pause, self.still)
        elif self.doing == "evaluation":
            self.longest_evaluation = max(self.longest_evaluation, self.still)
        self.doing, self.still, self.idle, self.used = doing, 0, 0, -1

    def pass_by(self, passed: int, used: int) -> None:
        """Record elapsed time. `used` is the total CPU time of the attempt so far, -1 if not measured."""
        self.still += passed
        self.idle += passed
        if used >= 0 and (self.used < 0 or ALIVE * (used - self.used) > self.idle):
            self.idle = 0 if self.used >= 0 else self.idle
            self.used = used


class Steps:
    """Attempts that report their steps. Call `heard` with every report, and `hung` repeatedly."""

    def __init__(self) -> None:
        self._watched: dict[Attempt, Watched] = {}
        self._looked = 0

    def heard(self, told: Told) -> None:
        """Record a report of an attempt."""
        training = told.training
        if training is None:
            return
        if training.progress == ALL:
            self.forget(told.attempt)
            return
        known = self._watched.get(told.attempt)
        if not training.step_time:
            doing: Doing = "evaluation" if training.evaluating else "nothing"
            if known is not None and known.doing != doing:
                known.turn_to(doing)
        elif known is None:
            self._watched[told.attempt] = Watched(training.step, training.step_time)
        else:
            if known.doing != "steps" or known.step != training.step:
                known.turn_to("steps")
            known.step, known.step_time = training.step, training.step_time

    def forget(self, attempt: Attempt) -> None:
        """Remove an attempt that has ended, or was ordered to."""
        self._watched.pop(attempt, None)

    def standing_still(self) -> list[Attempt]:
        """Return attempts whose CPU time `hung` needs."""
        return [attempt for attempt, one in self._watched.items() if one.limit and one.still >= MEASURE_AFTER]

    def hung(self, now: int, used: Mapping[Attempt, int]) -> Iterator[tuple[Attempt, str]]:
        """Yield attempts that have hung by now, each once, with a description. `used` is their CPU time so far, in
        nanoseconds. An attempt without a value counts as idle.
        """
        passed, self._looked = min(now - self._looked, MOST_BETWEEN_LOOKS) if self._looked else 0, now
        for attempt, one in list(self._watched.items()):
            one.pass_by(passed, used.get(attempt, -1))
            if one.limit and one.idle >= one.limit:
                del self._watched[attempt]
                yield attempt, f"{_seen(one)}, and no CPU used for {format_duration(one.idle)}"


def _seen(one: Watched) -> str:
    still = format_duration(one.still)
    if one.doing == "evaluation":
        longest = format_duration(one.longest_evaluation)
        return f"an evaluation for {still} after step {one.step}; the longest one took {longest}"
    return f"no step for {still} after step {one.step}; one took {format_duration(one.step_time)}"
