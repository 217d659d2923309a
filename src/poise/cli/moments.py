"""Times in flags: `14:30`, `2026-11-27 14:30`, `5m` (ago), or for `--at` also a revision of the log."""

import re
import time
from collections.abc import Callable
from datetime import datetime, timedelta
from datetime import time as clock_time
from typing import TYPE_CHECKING, Any, TypeVar

import click

from poise.cli.render import LOGGED, say
from poise.control.start import may_be_asked
from poise.errors import SpecError
from poise.units import SECOND, duration_meant, parse_duration

if TYPE_CHECKING:  # the log imports the ledger
    from poise.config import Home
    from poise.drivers.past import Moment, Past

Read = TypeVar("Read")
Function = TypeVar("Function", bound=Callable[..., Any])

_CLOCK = re.compile(r"[0-9]{1,2}:[0-9]{2}(?::[0-9]{2})?")
_DATE = re.compile(r"[0-9]{4}-[0-9]{2}-[0-9]{2}")
_REVISION = re.compile(r"[1-9][0-9]{0,17}")


def at_moment(function: Function) -> Function:
    """Add `--at`; the command gets `at`, None for the current state."""
    option = click.option(
        "--at",
        metavar="MOMENT",
        help="Show the state at this moment, from the log: 14:30, 2026-12-01T12:00:00Z, 2h (two hours ago), or a "
        "revision.",
    )
    return option(function)


def asks_now(home: "Home", at: str | None, *, watch: bool = False, otherwise: str = "") -> bool:
    """Return whether to query a control plane. If the log answers instead of one, print a note."""
    if at is not None:
        if watch:
            raise click.UsageError("a past moment does not change: `--at` and `--watch` exclude each other")
        return False
    if watch or may_be_asked(home):
        return True
    say(f"{LOGGED}{otherwise}")
    return False


def time_of(text: str, field: str) -> float:
    """Return the seconds since 1970 of `14:30` (the latest such time), of a date and time (default zone: local), or of
    `5m` ago. Raises `SpecError`, which names the field.
    """
    if _CLOCK.fullmatch(text):
        return _latest(_read(clock_time.fromisoformat, f"0{text}" if text[1] == ":" else text, field))
    if _DATE.match(text):
        return max(0.0, _read(datetime.fromisoformat, text, field).timestamp())
    return time.time() - _read(parse_duration, text, field) / SECOND


def then(home: "Home", at: str) -> "Past":
    """Return the state at the moment that `--at` names, from the home's log; print that moment. Raises `SpecError`,
    `NotFound`, and `Conflict` if the bearer may not read the log.
    """
    from contextlib import closing

    from poise.cli.offline import refuse_guest
    from poise.drivers.logfile import has_log, read_home
    from poise.drivers.past import state_at, time_text
    from poise.errors import NotFound
    from poise.model.events import decode_event

    moment = _moment(at)
    refuse_guest(home, "a past moment", "leave out `--at`")
    if not has_log(home):
        hint = "`poise run -- echo hello`, or POISE_HOME"
        raise NotFound("there is no log", field=str(home.root), hint=hint)
    with closing(read_home(home, decode_event)) as log:
        past = state_at(log, moment)
    say(f"poise: as of {time_text(past.wall)}, revision {past.ledger.revision}")
    return past


def _moment(at: str) -> "Moment":
    from poise.drivers.past import Moment

    if _REVISION.fullmatch(at):
        return Moment(revision=int(at))
    wall = time_of(at, "--at")
    if wall > time.time():
        raise SpecError("this moment is still to come", field="--at", have=at, hint="`poise eta` forecasts")
    return Moment(wall)


def _latest(clock: clock_time) -> float:
    """Return the latest time up to now with this local time of day."""
    now = datetime.now().astimezone()
    today = now.replace(hour=clock.hour, minute=clock.minute, second=clock.second, microsecond=0, tzinfo=None)
    return (today if today.timestamp() <= now.timestamp() else today - timedelta(days=1)).timestamp()


def _read(read: Callable[[str], Read], text: str, field: str) -> Read:
    try:
        return read(text)
    except ValueError:
        need = "14:30, 2026-12-01T12:00:00Z, or 5m (five minutes ago)"
        meant = duration_meant(text)
        hint = f"{field} {meant}" if meant else ""
        raise SpecError(
            "the time cannot be read", code="E103", field=field, have=text[:80], need=need, hint=hint
        ) from None
