"""Schedules: the times at which a schedule submits a job."""

from datetime import UTC, datetime
from typing import Literal

import msgspec

from poise.errors import SpecError
from poise.model.jobs import Job
from poise.units import format_duration

Overlap = Literal["skip", "allow", "replace"]
"""Action when a job is due while an earlier job of the schedule is unfinished: `skip` submits none · `allow` submits it
anyway · `replace` cancels the earlier one, and submits it.
"""

DEFAULT_ZONE = "UTC"

_ANY_DAY = datetime(2026, 1, 1, tzinfo=UTC)


class Rule(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """An interval of `every` nanoseconds, or the times of the `cron` expression in the time zone `zone`."""

    every: int = 0
    cron: str = ""
    zone: str = DEFAULT_ZONE
    overlap: Overlap = "skip"

    def sentence(self) -> str:
        """Format for people: `every 1h`, `0 3 * * * (UTC)`."""
        return f"every {format_duration(self.every)}" if self.every else f"{self.cron} ({self.zone})"


class Schedule(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A schedule as submitted. Each of its jobs is a copy of `job`, which has no id. The first is due at `due`: an
    instant of the log with `every`, nanoseconds since 1970 with `cron`.
    """

    id: str
    rule: Rule
    job: Job
    due: int
    held: bool = False


def check_cron(text: str, field: str) -> None:
    """Raise SpecError unless the text has the five fields of a cron expression."""
    from cronsim import CronSim, CronSimError  # only if needed: commands import this module at their start

    need = "minute, hour, day of the month, month, day of the week"
    problem = "" if len(text.split()) == 5 else f"{len(text.split())} fields"
    try:
        CronSim(text if not problem else "* * * * *", _ANY_DAY)
    except CronSimError as error:
        problem = str(error).removeprefix("Bad ")
    if problem:
        raise SpecError(
            "the cron expression cannot be read",
            code="E103",
            field=field,
            need=need,
            have=f"{text[:80]}: {problem}",
            hint="cron: '0 3 * * *'",
        )
