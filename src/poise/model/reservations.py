"""Reservations: nodes or devices that are kept for a tenant, or for maintenance, in windows of time.

A *window* is one stretch of a reservation. Its times are seconds since 1970; the ledger converts them to instants of
the log. A firm reservation is kept: work that may not have ended by then is not placed, and preemptible work that is
still there is preempted with its grace. A soft one preempts nothing.
"""

from collections.abc import Sequence
from datetime import UTC, datetime
from functools import lru_cache
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec

from poise.errors import SpecError
from poise.model.decisions import Spot
from poise.model.document import Findings, shown
from poise.model.fields import MAX_DURATION, Quantity, parse_or_raise
from poise.model.recurring import DEFAULT_ZONE
from poise.model.rrule import (
    ALWAYS_UTC,
    DAY_SECONDS,
    EXAMPLE,
    MAX_DAYS,
    Shifts,
    in_utc,
    parse_rrule,
    parse_time,
    starts,
)
from poise.model.spec import check_name
from poise.units import SECOND, format_duration, parse_duration

if TYPE_CHECKING:
    from poise.model.fleet import Ints

MAX_RESERVATIONS = 10_000
MAX_COUNT = 100_000
OPEN_END = 10**12
"""Length in seconds of a maintenance without an end: it lasts until it is cancelled."""

LEAST_LENGTH = 1


class Reservation(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, cache_hash=True):
    """A reservation as accepted. `tenant` is empty for maintenance.

    `first` is the earliest start on the clock of the time zone `zone`, in seconds; `shifts` are the offsets of that
    zone. With a `rule`, an RRULE of iCalendar, it recurs from then on, except at `without` (seconds since 1970). Each
    window has the same `length` in seconds. It takes the named `nodes`, or `count` nodes, or a number of `devices`; of
    this device `model`, if set. A window in which nothing of the tenant runs for `release_after` seconds is released
    (0: never).
    """

    id: str
    name: str
    first: int
    length: int
    tenant: str = ""
    nodes: tuple[str, ...] = ()
    count: int = 0
    devices: int = 0
    model: str = ""
    firm: bool = True
    rule: str = ""
    zone: str = DEFAULT_ZONE
    shifts: Shifts = ALWAYS_UTC
    without: tuple[int, ...] = ()
    release_after: int = 0

    @property
    def called(self) -> str:
        return self.name or self.id

    def begins(self) -> "Ints":
        """Return the starts of all windows in seconds since 1970, in order. Read-only, and computed once."""
        return starts_of(self)

    def wants(self) -> str:
        """Describe the resources for people: `2 nodes with H100`, `n1, n2`, `4 devices`."""
        if self.nodes:
            return ", ".join(self.nodes)
        amount, what = (self.devices, "device") if self.devices else (self.count, "node")
        of = f" {'of' if self.devices else 'with'} {self.model}" if self.model else ""
        return f"{amount} {what}{'' if amount == 1 else 's'}{of}"


@lru_cache(maxsize=2 * MAX_RESERVATIONS)
def starts_of(kept: Reservation) -> "Ints":
    """Return the starts of all windows in seconds since 1970."""
    import numpy as np

    rule = parse_rrule(kept.rule, "every") if kept.rule else None
    local = starts(rule, kept.first, "every") if rule is not None else np.array([kept.first], np.int64)
    found = in_utc(rule, local, kept.shifts)
    if kept.without:
        found = found[~np.isin(found, kept.without)]
    found.setflags(write=False)
    return found


class Window(NamedTuple):
    """A window that has not ended, at instants of the log. `begins_at` is its start in seconds since 1970, which
    identifies it; `told` describes it without its tenant.
    """

    reservation: str
    tenant: str
    firm: bool
    begin: int
    end: int
    begins_at: int
    spots: tuple[Spot, ...]
    told: str


def time_text(seconds: float) -> str:
    """Return a time as text: `2026-12-01T20:00Z`."""
    at = datetime.fromtimestamp(int(seconds), UTC)
    return f"{at:%Y-%m-%dT%H:%M}{f':{at:%S}' if at.second else ''}Z"


# --- as written ------------------------------------------------------------------------------------------------------


class ReservationSpec(msgspec.Struct, forbid_unknown_fields=True, rename={"begins": "from", "length": "for"}):
    """One reservation, as written."""

    name: str
    begins: str = ""
    length: Quantity = 0
    tenant: str = ""
    maintenance: bool = False
    nodes: int | list[str] = 0
    devices: int = 0
    model: str = ""
    every: str = ""
    time_zone: str = DEFAULT_ZONE
    without: list[str] = []
    soft: bool = False
    release_after: Quantity = 0


class ReservationsSpec(msgspec.Struct, forbid_unknown_fields=True):
    """A file of reservations, as written."""

    kind: str
    reservations: list[ReservationSpec]


class Zones(NamedTuple):
    """The clock for reading reservations: the current time in seconds since 1970, and a function that returns the
    offsets of a time zone from a time on. The function raises SpecError for an unknown zone.
    """

    now: float
    shifts: Any


def compile_reservations(document: Any, zones: Zones) -> tuple[Reservation, ...]:
    """Compile a parsed file; the reservations have no ids yet. Raises `SpecError` with every error in it."""
    found = Findings()
    spec = found.convert(document, ReservationsSpec)
    made: list[Reservation] = []
    if spec is not None:
        if spec.kind != "reservations":
            what = "this file has no reservations"
            found.add(SpecError(what, field="kind", need="reservations", have=spec.kind))
        if len(spec.reservations) > MAX_RESERVATIONS:
            what, need = "there are too many reservations", f"at most {MAX_RESERVATIONS}"
            found.add(SpecError(what, field="reservations", need=need, have=str(len(spec.reservations))))
        seen: set[tuple[str, str]] = set()
        for place, one in enumerate(spec.reservations[:MAX_RESERVATIONS]):
            at = f"reservations[{place}]"
            if (one.tenant, one.name) in seen:
                what, hint = f"the name `{one.name}` is used twice", f"name: {one.name[:60]}-2"
                found.add(SpecError(what, code="E107", field=f"{at}.name", hint=hint))
            seen.add((one.tenant, one.name))
            compiled = found.get(None, _compile, one, at, zones)
            if compiled is not None:
                made.append(compiled)
    found.check(_example)
    return tuple(made)


def _example(field: str) -> str:
    return {
        "kind": "kind: reservations",
        "name": "name: nightly",
        "from": "from: 2026-12-01T20:00",
        "for": "for: 8h",
        "tenant": "tenant: research",
        "nodes": "nodes: 2",
        "devices": "devices: 4",
        "every": f"every: {EXAMPLE}",
        "time_zone": "time_zone: Europe/Zurich",
        "release_after": "release_after: 15m",
    }.get(field.rpartition(".")[2], "{name: nightly, tenant: research, nodes: 2, from: 2026-12-01T20:00, for: 8h}")


def _compile(spec: ReservationSpec, at: str, zones: Zones) -> Reservation:
    check_name(spec.name, f"{at}.name")
    if bool(spec.tenant) == spec.maintenance:
        have = "both" if spec.tenant else "neither"
        what = "a reservation is for a tenant or for maintenance"
        raise SpecError(what, field=f"{at}.tenant", need="`tenant` or `maintenance: true`", have=have)
    if spec.tenant:
        check_name(spec.tenant, f"{at}.tenant")
    nodes, count = _nodes(spec, at)
    if spec.maintenance and spec.soft:
        raise SpecError("maintenance is always firm", field=f"{at}.soft", hint="soft: false")
    shifts = zones.shifts(spec.time_zone, zones.now, f"{at}.time_zone")
    first = read_start(spec.begins, f"{at}.from", zones, spec.time_zone, shifts)
    length = parse_or_raise(parse_duration, spec.length, f"{at}.for", MAX_DURATION) // SECOND
    length = OPEN_END if spec.maintenance and not length else length
    if length < LEAST_LENGTH:
        what = "the reservation has no length"
        raise SpecError(what, code="E103", field=f"{at}.for", need="at least 1s", have=shown(spec.length))
    release = parse_or_raise(parse_duration, spec.release_after, f"{at}.release_after", MAX_DURATION) // SECOND
    made = Reservation(
        id="",
        name=spec.name,
        first=first,
        length=length,
        tenant=spec.tenant,
        nodes=nodes,
        count=count,
        devices=spec.devices,
        model=spec.model,
        firm=not spec.soft,
        rule=spec.every.strip().upper().removeprefix("RRULE:"),
        zone=spec.time_zone,
        shifts=shifts,
        without=tuple(without_of(text, f"{at}.without", shifts) for text in spec.without),
        release_after=release,
    )
    return _with_sound_windows(made, at, zones.now)


def _nodes(spec: ReservationSpec, at: str) -> tuple[tuple[str, ...], int]:
    """Return the named nodes, or the number of nodes."""
    nodes, count = (tuple(spec.nodes), 0) if isinstance(spec.nodes, list) else ((), spec.nodes)
    if (bool(nodes) or count != 0) == (spec.devices != 0):
        have = "both" if spec.devices else "neither"
        raise SpecError("a reservation takes nodes or devices", field=f"{at}.nodes", need="one of them", have=have)
    if len(set(nodes)) < len(nodes):
        raise SpecError("a node is named twice", code="E107", field=f"{at}.nodes", have=", ".join(nodes)[:80])
    if spec.maintenance and not nodes:
        raise SpecError("maintenance names its nodes", field=f"{at}.nodes", need="names", hint="nodes: [n1]")
    for name, amount in (("nodes", count), ("devices", spec.devices)):
        if not 0 <= amount <= MAX_COUNT:
            need = f"from 1 to {MAX_COUNT}"
            raise SpecError(
                "the number is out of range", code="E103", field=f"{at}.{name}", need=need, have=shown(amount)
            )
    return nodes, count


def read_start(written: str, field: str, zones: Zones, zone: str, shifts: Shifts) -> int:
    """Return the first start on the clock of a zone with these offsets, in seconds. They begin about now, so an earlier
    time with an offset of its own needs earlier ones.
    """
    text = written.strip()
    if text[:1] == "+":
        soon = int(zones.now) + parse_or_raise(parse_duration, text[1:], field, MAX_DURATION) // SECOND
        return _local(soon, shifts)
    try:
        if len(text) <= 5 and ":" in text:
            today = _local(int(zones.now), shifts) // 86_400 * 86_400
            hour, minute = text.split(":")
            clock = datetime(1970, 1, 1, int(hour), int(minute), tzinfo=UTC)
            local = today + int(clock.timestamp())
            return local if utc_of(local, shifts) > zones.now else local + 86_400
        moment = datetime.fromisoformat(text)
    except ValueError:
        need = "2026-12-01T20:00, 20:00 (the next one), or +2h (from now)"
        raise SpecError("the time cannot be read", code="E103", field=field, have=text[:80], need=need) from None
    if moment.tzinfo is None:
        return int(moment.replace(tzinfo=UTC).timestamp())
    utc = int(moment.timestamp())
    if utc < shifts[0][0]:  # from the start of a block of years, so that many times share the offsets
        shifts = zones.shifts(zone, max(0, utc - utc % (MAX_DAYS * DAY_SECONDS)), field)
    return _local(utc, shifts)


def _local(utc: int, shifts: Shifts) -> int:
    """Return the seconds on the clock of a zone at a time in seconds since 1970."""
    return utc + next((offset for since, offset in reversed(shifts) if since <= utc), shifts[0][1])


def utc_of(local: int, shifts: Shifts) -> int:
    """Return the seconds since 1970 of a time on the clock of a zone."""
    import numpy as np

    return int(in_utc(None, np.array([local], np.int64), shifts)[0])


def without_of(text: str, field: str, shifts: Shifts) -> int:
    """Return a start that a recurrence leaves out, in seconds since 1970."""
    seconds, is_utc = parse_time(text.strip().upper().replace("-", "").replace(":", ""), field)
    return seconds if is_utc else utc_of(seconds, shifts)


def _with_sound_windows(made: Reservation, at: str, now: float) -> Reservation:
    """Return the reservation, if it has windows to come that do not overlap one another. Raises SpecError."""
    import numpy as np

    try:
        begins = made.begins()
    except SpecError as error:
        raise SpecError(
            str(error),
            code=error.record.code,
            field=f"{at}.every",
            need=error.record.need,
            have=error.record.have,
            hint=error.record.hint,
        ) from None
    field = f"{at}.from"
    if not len(begins):
        raise SpecError("the reservation has no window", code="E103", field=f"{at}.every", have=made.rule[:80])
    if begins[-1] < now - 1 or (begins[0] < now - 1 and not made.rule):
        raise SpecError(
            "the reservation begins in the past",
            code="E103",
            field=field,
            need=f"after {time_text(now)}",
            have=time_text(int(begins[-1])),
        )
    if begins[-1] - now > MAX_DURATION // SECOND:
        raise SpecError("the time is too far in the future", code="E103", field=field, need="within ten years")
    gap = int(np.diff(begins).min()) if len(begins) > 1 else made.length
    if gap < made.length:
        raise SpecError(
            "the windows of the reservation overlap",
            code="E103",
            field=f"{at}.for",
            need=f"at most {format_duration(gap * SECOND)}, the shortest time between two starts",
            have=format_duration(made.length * SECOND),
        )
    return made


def spot_names(spots: Sequence[Spot]) -> str:
    """Return places for people: `n1, n2:0, n2:1`."""
    return ", ".join(
        name
        for spot in spots
        for name in ([f"{spot.node}:{of}" for of in spot.devices] if spot.devices else [spot.node])
    )
