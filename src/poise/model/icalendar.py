"""Read and write events of iCalendar (RFC 5545), as far as reservations need them: times, lengths, recurrences and
their exceptions. Other properties are ignored; events that cannot become reservations are refused with their line.
"""

import re
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any, NamedTuple

from poise.errors import SpecError

MAX_EVENTS = 10_000
WIDTH = 75
"""Maximum octets of a line."""

_DURATION = re.compile(r"\+?P(?:([0-9]+)W)?(?:([0-9]+)D)?(?:T(?:([0-9]+)H)?(?:([0-9]+)M)?(?:([0-9]+)S)?)?")


_EXAMPLE = datetime(2000, 1, 1, tzinfo=UTC)


class Property(NamedTuple):
    """A property: its line in the file, name, parameters and value."""

    line: int
    name: str
    parameters: dict[str, str]
    value: str


class Entry(NamedTuple):
    """An event to write: times in the time zone `zone`, `rule` an RRULE, `without` the excluded starts."""

    uid: str
    name: str
    begins: datetime
    ends: datetime
    zone: str
    rule: str = ""
    without: Sequence[datetime] = ()
    description: str = ""


def read_events(text: str, *, described: bool = False) -> list[dict[str, Any]]:
    """Return the events as entries of a reservations file, with `name`, `from`, `for` and what else they have; if
    `described`, also with their `description`. Raises SpecError.
    """
    found: list[dict[str, Any]] = []
    event: dict[str, list[Property]] | None = None
    inner = 0  # components inside an event, such as alarms
    for of in _properties(text):
        if (of.name, of.value.upper()) == ("BEGIN", "VEVENT"):
            event, inner = {}, 0
        elif event is not None and of.name == "BEGIN":
            inner += 1
        elif event is not None and of.name == "END" and inner:
            inner -= 1
        elif event is not None and of.name == "END":
            found.append(_entry(event, len(found) + 1))
            if described:
                found[-1]["description"] = _plain(event["DESCRIPTION"][0].value) if "DESCRIPTION" in event else ""
            event = None
            if len(found) > MAX_EVENTS:
                raise SpecError("there are too many events", field="calendar", need=f"at most {MAX_EVENTS}")
        elif event is not None and not inner:
            event.setdefault(of.name, []).append(of)
    if not found:
        raise SpecError("the calendar has no event", field="calendar", need="a VEVENT")
    return found


def _entry(event: dict[str, list[Property]], number: int) -> dict[str, Any]:
    start = event.get("DTSTART", [None])[0]
    if start is None:
        raise SpecError("an event has no start", field=f"event {number}", need="DTSTART")
    for name in ("RDATE", "RECURRENCE-ID"):
        if name in event:
            what, hint = f"events with {name} are not supported", "remove the event, and reserve it by itself"
            raise SpecError(what, field=_at(event[name][0]), have=event[name][0].value[:80], hint=hint)
    begins, zone = _moment(start, start.value)
    if "DTEND" in event:
        length = _moment(event["DTEND"][0], event["DTEND"][0].value)[0] - begins
    elif "DURATION" in event:
        length = _duration(event["DURATION"][0])
    else:
        length = timedelta(days=1)
    made: dict[str, Any] = {
        "name": _name(event, number),
        "from": f"{begins:%Y-%m-%dT%H:%M:%S}",
        "for": f"{int(length.total_seconds())}s",
        "time_zone": zone,
    }
    if "RRULE" in event:
        made["every"] = event["RRULE"][0].value
    if "EXDATE" in event:
        made["without"] = [_exception(of, one) for of in event["EXDATE"] for one in of.value.split(",")]
    return made


def _properties(text: str) -> Iterator[Property]:
    """Yield the properties, with folded lines joined."""
    folded: list[tuple[int, list[str]]] = []
    for number, line in enumerate(text.splitlines(), start=1):
        if line[:1] in (" ", "\t") and folded:
            folded[-1][1].append(line[1:])
        elif line.strip():
            folded.append((number, [line]))
    lines = [(number, "".join(parts)) for number, parts in folded]
    if not lines or lines[0][1].strip().upper() != "BEGIN:VCALENDAR":
        raise SpecError("this is not an iCalendar file", code="E101", field="calendar", need="BEGIN:VCALENDAR")
    for number, line in lines:
        head, colon, value = line.partition(":")
        if not colon:
            raise SpecError("a line has no value", code="E101", field=f"line {number}", have=line[:80])
        name, *parameters = head.split(";")
        pairs = (parameter.partition("=") for parameter in parameters)
        yield Property(number, name.upper(), {key.upper(): of.strip('"') for key, _, of in pairs}, value.strip())


def _moment(of: Property, text: str) -> tuple[datetime, str]:
    """Return a time on the clock of its zone, and the zone. A date is its midnight."""
    try:
        for form in ("%Y%m%dT%H%M%SZ", "%Y%m%dT%H%M%S", "%Y%m%d"):
            if len(text) == len(_EXAMPLE.strftime(form)):
                at = datetime.strptime(text, form).replace(tzinfo=UTC)  # for arithmetic only
                return at, "UTC" if text[-1] == "Z" else of.parameters.get("TZID", "UTC")
        raise ValueError
    except ValueError:
        need = "20261201T200000Z"
        raise SpecError("the time cannot be read", code="E103", field=_at(of), need=need, have=text[:80]) from None


def _exception(of: Property, text: str) -> str:
    """Return an excluded start as a reservations file has it."""
    at, _ = _moment(of, text)
    return f"{at:%Y%m%dT%H%M%S}{'Z' if text[-1] == 'Z' else ''}"


def _duration(of: Property) -> timedelta:
    found = _DURATION.fullmatch(of.value)
    if found is None or not any(found.groups()):
        raise SpecError("the duration cannot be read", code="E103", field=_at(of), need="PT8H", have=of.value[:80])
    weeks, days, hours, minutes, seconds = (min(10**6, int(part or 0)) for part in found.groups())
    return timedelta(weeks=weeks, days=days, hours=hours, minutes=minutes, seconds=seconds)


def _name(event: dict[str, list[Property]], number: int) -> str:
    """Return the summary as a name, or a name by number."""
    said = event["SUMMARY"][0].value if "SUMMARY" in event else ""
    return re.sub(r"[^A-Za-z0-9._-]+", "-", said).strip("-._")[:63] or f"event-{number}"


def _at(of: Property) -> str:
    return f"line {of.line}: {of.name}"


def write_events(entries: Sequence[Entry], now: datetime) -> str:
    """Return a calendar of these events, as written at a time."""
    lines = ["BEGIN:VCALENDAR", "VERSION:2.0", "PRODID:-//Poise//Poise//EN"]
    for of in entries:
        at = "" if of.zone == "UTC" else f";TZID={of.zone}"
        lines += [
            "BEGIN:VEVENT",
            f"UID:{_escaped(of.uid)}",
            f"DTSTAMP:{now.astimezone(UTC):%Y%m%dT%H%M%SZ}",
            f"DTSTART{at}:{of.begins:%Y%m%dT%H%M%S}{'' if at else 'Z'}",
            f"DTEND{at}:{of.ends:%Y%m%dT%H%M%S}{'' if at else 'Z'}",
            f"SUMMARY:{_escaped(of.name)}",
        ]
        lines += [f"RRULE:{of.rule}"] if of.rule else []
        lines += [f"EXDATE:{at.astimezone(UTC):%Y%m%dT%H%M%SZ}" for at in of.without]
        lines += [f"DESCRIPTION:{_escaped(of.description)}"] if of.description else []
        lines.append("END:VEVENT")
    lines.append("END:VCALENDAR")
    return "".join(f"{folded}\r\n" for line in lines for folded in _folded(line))


def _escaped(text: str) -> str:
    for plain, escaped in (("\\", "\\\\"), (";", "\\;"), (",", "\\,"), ("\n", "\\n")):
        text = text.replace(plain, escaped)
    return text


def _plain(text: str) -> str:
    """Return a text without its escapes."""
    return re.sub(r"\\(.)", lambda found: "\n" if found[1] in "nN" else found[1], text)


def _folded(line: str) -> Iterator[str]:
    """Yield the pieces of a line, none longer than `WIDTH` octets."""
    piece = ""
    for letter in line:
        if len((piece + letter).encode()) > WIDTH:
            yield piece
            piece = " "
        piece += letter
    yield piece
