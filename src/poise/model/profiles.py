"""What has been learned of a class of tasks from its finished attempts."""

import msgspec

from poise.units import SECOND

ALPHA = 0.2
"""Weight of the newest run in the exponentially weighted mean (RFC 6298 uses 1/8 for the same purpose; 1/5 follows faster)."""

DEFAULT_RUN = 1 * SECOND


class Profile(msgspec.Struct):
    """Run time in nanoseconds (exponentially weighted mean and mean deviation) and peak memory in bytes of a class."""

    count: int = 0
    mean: int = 0
    deviation: int = 0
    peak: int = 0

    def observe(self, run: int, peak: int) -> None:
        """Take in one finished run (the update of RFC 6298, section 2)."""
        if self.count == 0:
            self.mean, self.deviation = run, run // 2
        else:
            error = run - self.mean
            self.deviation += int(ALPHA * (abs(error) - self.deviation))
            self.mean += int(ALPHA * error)
        self.count += 1
        self.peak = max(self.peak, peak)


def expected_run(profile: Profile | None, declared: int) -> int:
    """Nanoseconds a run is expected to take: from history, else as declared, else one second."""
    if profile is not None and profile.count:
        return profile.mean
    return declared or DEFAULT_RUN
