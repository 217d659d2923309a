"""Read and write events of iCalendar (RFC 5545), as far as reservations need them: times, lengths, recurrences and
their exceptions. Other properties are ignored; events that cannot become reservations are refused with their line.

Cancelled events are left out. A changed occurrence (RECURRENCE-ID) is an event of its own, and an exception of its
series. Times without a zone are on the clock of the calendar (X-WR-TIMEZONE), UTC by default.
"""

import re
from collections.abc import Iterable, Iterator, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any, NamedTuple

from poise.errors import SpecError
from poise.model.recurring import DEFAULT_ZONE
from poise.model.reservations import Zones, utc_of, without_of
from poise.model.rrule import DAY_SECONDS, MAX_DAYS, Shifts, in_utc, parse_rrule, starts_within
from poise.model.windows_zones import WINDOWS_ZONES

MAX_EVENTS = 10_000
WIDTH = 75
"""Maximum octets of a line."""

_DURATION = re.compile(r"\+?P(?:([0-9]+)W)?(?:([0-9]+)D)?(?:T(?:([0-9]+)H)?(?:([0-9]+)M)?(?:([0-9]+)S)?)?")

_LINE = re.compile(r'((?:[^":]|"[^"]*")*):(.*)', re.DOTALL)
_PARAMETER = re.compile(r'(?:[^";]|"[^"]*")+')
_LINE_END = re.compile(r"\r\n|\n|\r")

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


def read_events(text: str, zones: Zones, *, described: bool = False) -> list[dict[str, Any]]:
    """Return the events as entries of a reservations file, with `name`, `from`, `for` and what else they have; if
    `described`, also with their `description`. Raises SpecError.
    """
    events, zone = _components(text)
    changed: dict[str, list[Property]] = {}
    for event in events:
        for of in event.get("RECURRENCE-ID", []):
            if "RANGE" in of.parameters:
                raise _unsupported(of, "RANGE")
            changed.setdefault(_uid(event), []).append(of)
    found: list[dict[str, Any]] = []
    for event in events:
        if any(of.value.upper() == "CANCELLED" for of in event.get("STATUS", [])):
            continue
        found.append(_entry(event, len(found) + 1, changed.get(_uid(event), []), zone, zones))
        if described:
            found[-1]["description"] = _plain(event["DESCRIPTION"][0].value) if "DESCRIPTION" in event else ""
    if not found:
        raise SpecError("the calendar has no event", field="calendar", need="a VEVENT")
    return found


def with_own_names(entries: Iterable[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return the entries with unique names: the second `course` becomes `course-2`."""
    taken: dict[str, int] = {}
    made = []
    for entry in entries:
        name = base = str(entry["name"])
        while name in taken:
            taken[base] += 1
            name = f"{base[:57]}-{taken[base]}"
        taken[name] = 1
        made.append(entry | {"name": name})
    return made


def has_begun(entry: dict[str, Any], zones: Zones) -> bool:
    """Return whether an event has begun and will not begin again. The control plane refuses such reservations."""
    shifts = _shifts(entry["time_zone"], zones.now, zones, "time_zone")
    first = int(datetime.fromisoformat(entry["from"]).replace(tzinfo=UTC).timestamp())
    if "every" not in entry:
        return utc_of(first, shifts) < zones.now
    try:
        rule = parse_rrule(entry["every"], "every", must_end=False)
        now = int(zones.now)
        local = starts_within(rule, first, now - DAY_SECONDS, now + MAX_DAYS * DAY_SECONDS, "every")
    except SpecError:
        return False  # the control plane says what is wrong with it
    without = {without_of(text, "without", shifts) for text in entry.get("without", ())}
    return not any(at >= zones.now and at not in without for at in in_utc(rule, local, shifts).tolist())


def _components(text: str) -> tuple[list[dict[str, list[Property]]], str]:
    """Return the properties of each event by name, and the time zone of the calendar."""
    found: list[dict[str, list[Property]]] = []
    zone = DEFAULT_ZONE
    event: dict[str, list[Property]] | None = None
    inner = 0  # components inside an event, such as alarms
    for of in _properties(text):
        if (of.name, of.value.upper()) == ("BEGIN", "VEVENT"):
            event, inner = {}, 0
        elif event is None:
            zone = of.value if of.name == "X-WR-TIMEZONE" else zone
        elif of.name == "BEGIN":
            inner += 1
        elif of.name == "END" and inner:
            inner -= 1
        elif of.name == "END":
            found.append(event)
            event = None
            if len(found) > MAX_EVENTS:
                raise SpecError("there are too many events", field="calendar", need=f"at most {MAX_EVENTS}")
        elif not inner:
            event.setdefault(of.name, []).append(of)
    return found, zone


def _uid(event: dict[str, list[Property]]) -> str:
    return event["UID"][0].value if "UID" in event else ""


def _entry(
    event: dict[str, list[Property]], number: int, changed: Sequence[Property], default: str, zones: Zones
) -> dict[str, Any]:
    """Return an event as an entry; `changed` are the occurrences of its series that have events of their own."""
    start = event.get("DTSTART", [None])[0]
    if start is None:
        raise SpecError("an event has no start", field=f"event {number}", need="DTSTART")
    if "RDATE" in event:
        raise _unsupported(event["RDATE"][0], "RDATE")
    begins, zone = _moment(start, start.value, default)
    if "DTEND" in event:
        end = event["DTEND"][0]
        length = _utc(*_moment(end, end.value, default), zones, _at(end)) - _utc(begins, zone, zones, _at(start))
    elif "DURATION" in event:
        length = int(_duration(event["DURATION"][0]).total_seconds())
    else:
        length = DAY_SECONDS
    made: dict[str, Any] = {
        "name": _name(event, number),
        "from": f"{begins:%Y-%m-%dT%H:%M:%S}",
        "for": f"{length}s",
        "time_zone": zone,
    }
    if "RRULE" in event and "RECURRENCE-ID" not in event:
        made["every"] = event["RRULE"][0].value
        left_out = [(of, one) for of in event.get("EXDATE", []) for one in of.value.split(",")]
        left_out += [(of, of.value) for of in changed]
        if left_out:
            made["without"] = [_exception(of, one, zone, default, zones) for of, one in left_out]
    return made


def _unsupported(of: Property, name: str) -> SpecError:
    what, hint = f"events with {name} are not supported", "remove the event, and reserve it by itself"
    return SpecError(what, field=_at(of), have=of.value[:80], hint=hint)


def _properties(text: str) -> Iterator[Property]:
    """Yield the properties, with folded lines joined."""
    folded: list[tuple[int, list[str]]] = []
    for number, line in enumerate(_LINE_END.split(text.removeprefix("\ufeff")), start=1):
        if line[:1] in (" ", "\t") and folded:
            folded[-1][1].append(line[1:])
        elif line.strip():
            folded.append((number, [line]))
    lines = [(number, "".join(parts)) for number, parts in folded]
    if not lines or lines[0][1].strip().upper() != "BEGIN:VCALENDAR":
        raise SpecError("this is not an iCalendar file", code="E101", field="calendar", need="BEGIN:VCALENDAR")
    for number, line in lines:
        found = _LINE.fullmatch(line)
        head, colon, value = (found[1], ":", found[2]) if found else line.partition(":")  # an odd quote: no parameter
        if not colon:
            raise SpecError("a line has no value", code="E101", field=f"line {number}", have=line[:80])
        name, *parameters = _PARAMETER.findall(head) or [""]
        pairs = (parameter.partition("=") for parameter in parameters)
        yield Property(number, name.upper(), {key.upper(): of.strip('"') for key, _, of in pairs}, value.strip())


def _moment(of: Property, text: str, default: str) -> tuple[datetime, str]:
    """Return a time on the clock of its zone, and the zone. A date is its midnight."""
    try:
        for form in ("%Y%m%dT%H%M%SZ", "%Y%m%dT%H%M%S", "%Y%m%d"):
            if len(text) == len(_EXAMPLE.strftime(form)):
                at = datetime.strptime(text, form).replace(tzinfo=UTC)  # for arithmetic only
                named = of.parameters.get("TZID", default)
                return at, DEFAULT_ZONE if text[-1] == "Z" else WINDOWS_ZONES.get(named, named)
        raise ValueError
    except ValueError:
        need = "20261201T200000Z"
        raise SpecError("the time cannot be read", code="E103", field=_at(of), need=need, have=text[:80]) from None


def _utc(at: datetime, zone: str, zones: Zones, field: str) -> int:
    """Return the seconds since 1970 of a time on the clock of a zone."""
    local = int(at.timestamp())
    return utc_of(local, _shifts(zone, local, zones, field))


def _shifts(zone: str, at: float, zones: Zones, field: str) -> Shifts:
    """Return the offsets of a zone around a time, from the start of a block of years: many times share them."""
    return zones.shifts(zone, max(0, int(at) - int(at) % (MAX_DAYS * DAY_SECONDS)), field)  # type: ignore[no-any-return]


def _exception(of: Property, text: str, zone: str, default: str, zones: Zones) -> str:
    """Return an excluded start of an event in a zone as a reservations file has it."""
    at, own = _moment(of, text, default)
    if own != zone:
        at, own = datetime.fromtimestamp(_utc(at, own, zones, _at(of)), UTC), DEFAULT_ZONE
        return f"{at:%Y%m%dT%H%M%S}Z"
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
