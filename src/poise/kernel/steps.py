"""Whether training gets on, by the steps that it tells of, where its job does not say how often it gives a sign.

A step that takes long is no hang: evaluating, compiling and restoring stand between two steps. So the limit follows
what was seen: `LEAST`, or many times a usual step, or several times the longest that it has stood still and gone on. It
counts while it says what a step takes: with a `step_time` of 0 it says that it makes none now, and when all of its work
is done none is missed. Silence is counted from look to look, so that a machine which slept does not count its own sleep
as the command's.
"""

from collections.abc import Iterator

import msgspec

from poise.model.jobs import ALL
from poise.model.messages import Attempt, Told
from poise.units import SECOND, format_duration

LEAST = 60 * SECOND
STEPS = 20
"""It may stand still for as long as so many of its usual steps,"""

LONGEST = 3
"""... and for so many times as long as it ever has."""

MOST_BETWEEN_LOOKS = 2 * SECOND


class Watched(msgspec.Struct):
    """An attempt that tells of its steps; it has stood still for `still` nanoseconds, and before for `longest`."""

    step: int
    step_time: int
    still: int = 0
    longest: int = 0

    @property
    def limit(self) -> int:
        return max(LEAST, STEPS * self.step_time, LONGEST * self.longest)


class Steps:
    """Attempts that tell of their steps. Call `heard` with all that is new, then `hung`, again and again."""

    def __init__(self) -> None:
        self._watched: dict[Attempt, Watched] = {}
        self._looked = 0

    def heard(self, told: Told) -> None:
        """It has said this."""
        training = told.training
        if training is None:
            return
        if not training.step_time or training.progress == ALL:
            self.forget(told.attempt)
            return
        known = self._watched.get(told.attempt)
        if known is None:
            self._watched[told.attempt] = Watched(training.step, training.step_time)
        elif known.step != training.step:
            known.step, known.step_time = training.step, training.step_time
            known.longest, known.still = max(known.longest, known.still), 0

    def forget(self, attempt: Attempt) -> None:
        """It has ended, or is told to."""
        self._watched.pop(attempt, None)

    def hung(self, now: int) -> Iterator[tuple[Attempt, str]]:
        """Those that have stood still for too long by now, and what was seen; each once."""
        passed, self._looked = min(now - self._looked, MOST_BETWEEN_LOOKS) if self._looked else 0, now
        for attempt, one in list(self._watched.items()):
            one.still += passed
            if one.still >= one.limit:
                del self._watched[attempt]
                usual = format_duration(one.step_time)
                yield attempt, f"no step for {format_duration(one.still)} after step {one.step}; one took {usual}"
