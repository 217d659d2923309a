"""Question and answer about the probability that a job meets its deadlines."""

from typing import Literal

import msgspec

from poise.model.jobs import Job
from poise.units import format_duration

Unknown = Literal["", "run times", "nodes", "time"]
"""Why there is no probability: its run times are unknown · no node has joined · there was no time."""


class DeadlineQuestion(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A request for the probability that these units (names) of a job meet their deadlines. The job is in the log under
    the id `known`, or it has not been submitted yet. `now` is an instant of the log; simulate for at most `seconds`.
    """

    units: tuple[str, ...]
    now: int
    known: str = ""
    job: Job | None = None
    futures: int = 100
    seconds: float = 2.0


class DeadlineForecast(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The probability that a job meets its deadlines, from simulated `futures`. Durations are nanoseconds from now.

    `due` is the time left to the last of its `deadlines`, `chance` the probability that all of them are met, in
    thousandths (-1: `unknown` has the reason). The work with a deadline is done by `p50` in half of the futures, by
    `p90` in nine tenths; None if too few futures complete it.
    """

    job: str
    deadlines: int
    due: int
    chance: int = -1
    p50: int | None = None
    p90: int | None = None
    futures: int = 0
    unknown: Unknown = ""

    @property
    def percent(self) -> str:
        return f"{self.chance / 10:.0f} %"

    @property
    def ends(self) -> str:
        """Format for people: `P50 end in 21m0s, P90 in 26m0s`."""
        p50, p90 = ("never" if at is None else f"in {format_duration(at)}" for at in (self.p50, self.p90))
        return f"P50 end {p50}, P90 {p90}"

    def sentence(self) -> str:
        """Format for people: `deadline in 30m0s: 93 % likely (P50 end in 21m0s, P90 in 26m0s)`."""
        when = f"in {format_duration(self.due)}" if self.due >= 0 else f"{format_duration(-self.due)} ago"
        what = f"deadline {when}" if self.deadlines == 1 else f"{self.deadlines} deadlines, the last {when}"
        if self.unknown:
            return f"{what}: {_UNKNOWN[self.unknown]}"
        return f"{what}: {self.percent} likely{'' if self.deadlines == 1 else ' that all are met'} ({self.ends})"


_UNKNOWN: dict[Unknown, str] = {
    "run times": "no forecast, since nothing is known of how long it runs; `--expect` tells it",
    "nodes": "no forecast, since no node has joined yet",
    "time": "no forecast, since there was no time to simulate it; `poise eta` takes longer",
}
