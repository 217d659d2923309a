"""What has been learned of a class of tasks from its finished attempts."""

import msgspec

from poise.model.resources import Shape
from poise.units import MILLISECOND, SECOND

ALPHA = 0.2
"""Weight of the newest run in the exponentially weighted mean. RFC 6298 uses 1/8 for the same purpose; 1/5 follows
faster."""

DEFAULT_RUN = 1 * SECOND

BRIEF = 200 * MILLISECOND
"""Runs up to one round of deciding: shorter than the time that passes until the control plane looks again."""

ENOUGH_RUNS = 3
"""Finished runs of a class before its run time is trusted."""


class Profile(msgspec.Struct, frozen=True):
    """Run time in nanoseconds (exponentially weighted mean and mean deviation) and peak memory in bytes of a class.

    `seen` is the revision of the last run; what was not seen for longest is forgotten first.
    """

    count: int = 0
    mean: int = 0
    deviation: int = 0
    peak: int = 0
    seen: int = 0

    def observe(self, run: int, peak: int, seen: int = 0) -> "Profile":
        """With one more finished run (the update of RFC 6298, section 2)."""
        if self.count == 0:
            return Profile(1, run, run // 2, peak, seen)
        error = run - self.mean
        return Profile(
            self.count + 1,
            self.mean + int(ALPHA * error),
            self.deviation + int(ALPHA * (abs(error) - self.deviation)),
            max(self.peak, peak),
            seen,
        )


def expected_run(profile: Profile | None, declared: int) -> int:
    """Nanoseconds a run is expected to take: from history, else as declared, else one second."""
    if profile is not None and profile.count:
        return profile.mean
    return declared or DEFAULT_RUN


def is_brief(profile: Profile | None, shape: Shape, tasks: int) -> bool:
    """Whether a unit is known to end so soon that others of its shape may wait right behind it, and it behind them.

    A gang and a unit with devices never are: they need all their room at once.
    """
    return (
        profile is not None
        and profile.count >= ENOUGH_RUNS
        and profile.mean <= BRIEF
        and tasks == 1
        and shape.gpus == 0
    )
