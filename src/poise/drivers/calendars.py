"""Calendar files: YAML, or iCalendar (`.ics`). The file of a service may name one, relative to its own folder."""

from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from poise.drivers.calendar import shifts
from poise.drivers.textfile import read_text
from poise.drivers.yamlfile import load_kind, place_in_file
from poise.errors import located
from poise.model.calendar import CalendarEvent, compile_calendar, concerning, events_in
from poise.model.reservations import Zones
from poise.model.scaling import DAYS, Announced
from poise.model.servicefile import DeclaredService, compile_service
from poise.units import SECOND


def read_calendar(path: Path, now: float) -> tuple[CalendarEvent, ...]:
    """Return the events of a file that count at `now`, in seconds since 1970. Raises `SpecError`."""
    zones = Zones(now, shifts)
    if path.suffix.lower() != ".ics":
        document = load_kind(path, "calendar")
        with located(place_in_file(path)):
            return compile_calendar(document, zones)
    text = read_text(path)
    with located(lambda _: str(path)):
        return compile_calendar(events_in(text, zones), zones)


def with_calendar(document: dict[str, Any], folder: Path, now: float) -> dict[str, Any]:
    """Return the document of a service file with the events of the calendar that it names, as announced load. Raises
    `SpecError`.
    """
    scaling = document.get("scaling")
    if not isinstance(scaling, dict) or not isinstance(scaling.get("calendar"), str) or not scaling["calendar"]:
        return document
    events = read_calendar(folder / scaling["calendar"], now)
    mine = [_entry(one) for one in concerning(events, "service", str(document.get("name", "")))]
    announced = scaling.get("announced", [])
    scaling = {name: value for name, value in scaling.items() if name != "calendar"}
    if isinstance(announced, list):  # else the compiler says what is wrong with it
        scaling["announced"] = [*announced, *mine]
    return document | {"scaling": scaling}


def load_service(path: Path, now: float) -> DeclaredService:
    """Return the service in a file, with its calendar at `now`. Raises `SpecError` with the places in the file."""
    with located(place_in_file(path)):
        document = load_kind(path, "service")
        return compile_service(with_calendar(document, path.parent, now) if isinstance(document, dict) else document)


def _entry(one: Announced) -> dict[str, Any]:
    """Return announced load as an entry of a service file."""
    at = datetime.fromtimestamp(one.at // SECOND, UTC)
    made: dict[str, Any] = {"at": f"{at:%Y-%m-%dT%H:%M:%SZ}", "lasts": f"{(one.until - one.at) // SECOND}s"}
    if one.rate:
        made["rate"] = one.rate
    elif one.days:
        made["as"] = DAYS[(at.weekday() - one.days) % 7]
    else:
        made["load"] = one.times
    return made | ({"name": one.name} if one.name else {})
