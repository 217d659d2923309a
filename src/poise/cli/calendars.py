"""The flag of commands that use the announced events of a calendar."""

import time
from pathlib import Path
from typing import TYPE_CHECKING

import click

if TYPE_CHECKING:
    from poise.model.calendar import CalendarEvent

CALENDAR = click.option(
    "--calendar",
    type=click.Path(path_type=Path),
    metavar="FILE",
    help="Calendar with announced events: YAML, or iCalendar (.ics).",
)


def events_of(calendar: Path | None) -> "tuple[CalendarEvent, ...]":
    """Return the events of a calendar file that count now; nothing without a file. Raises `SpecError`."""
    from poise.drivers.calendars import read_calendar

    return read_calendar(calendar, time.time()) if calendar is not None else ()


__all__ = ["CALENDAR", "events_of"]
