"""`poise reserve`: nodes and devices that are kept for a tenant, or for maintenance."""

import sys
import time
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from poise.cli import output
from poise.cli.numbers import Whole
from poise.cli.output import Column, Shown
from poise.cli.render import in_turn, print_json, say
from poise.client import current_home
from poise.control.start import connected
from poise.errors import located
from poise.model.recurring import DEFAULT_ZONE
from poise.units import format_duration

if TYPE_CHECKING:  # reports import much else
    from poise.model.reports.tenants import ReservationReport


class Group(click.Group):
    """A group whose first argument may be a name: `poise reserve nightly …` is `poise reserve add nightly …`."""

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        if args and args[0] not in self.commands:
            args = ["add", *args]
        return super().resolve_command(ctx, args)


@click.group(cls=Group, invoke_without_command=True)
@output.rows
@click.pass_context
def reserve(context: click.Context, form: str, watch: bool) -> int:
    """List reservations, or keep nodes or devices for a tenant: `poise reserve NAME --nodes 2 --tenant T --from 20:00
    --for 8h`.
    """
    if context.invoked_subcommand is not None:
        return 0
    client = connected(current_home())
    return output.show(lambda: _listed(client.reservations()), form, watch)


def _wanted(function: Any) -> Any:
    """Add the flags that say what is reserved, for whom."""
    for option in (
        click.option("--release-after", metavar="TIME", help="Release a window that is unused for this long."),
        click.option("--soft", is_flag=True, help="Preempt nothing for it: work of others may make it begin late."),
        click.option("--maintenance", is_flag=True, help="Drain the named nodes for maintenance instead."),
        click.option("--tenant", metavar="TENANT", help="Tenant that the places are kept for."),
        click.option("--model", metavar="MODEL", help="Model of the devices, or of devices of the nodes."),
        click.option("--devices", type=Whole(), metavar="N", help="Number of devices, instead of nodes."),
        click.option("--nodes", metavar="N|NODE,...", help="Number of nodes, or their names."),
    ):
        function = option(function)
    return function


@reserve.command()
@click.argument("name")
@_wanted
@click.option("--from", "begins", required=True, metavar="TIME", help="Start: 2026-12-01T20:00, 20:00, or +2h.")
@click.option("--for", "length", metavar="TIME", help="Length of each window.")
@click.option("--every", metavar="RRULE", help="Recur by a rule of iCalendar: FREQ=WEEKLY;BYDAY=MO;COUNT=10.")
@click.option("--time-zone", default=DEFAULT_ZONE, show_default=True, help="Time zone of --from and --every.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON value.")
def add(
    name: str, begins: str, length: str | None, every: str | None, time_zone: str, as_json: bool, **wanted: Any
) -> int:
    """Reserve nodes or devices as NAME. A firm reservation begins in time: work that may last until then is not placed
    on it, and preemptible work is preempted. The same NAME and tenant replaces a reservation.
    """
    entry = _entry(wanted) | {"name": name, "from": begins, "time_zone": time_zone}
    entry |= {key: value for key, value in (("for", length), ("every", every)) if value is not None}
    return _send([entry], as_json)


@reserve.command()
@click.argument("file", type=click.Path(path_type=Path))
@click.option("--json", "as_json", is_flag=True, help="Print one JSON value.")
def apply(file: Path, as_json: bool) -> int:
    """Make the reservations of a YAML FILE, all or none. Those of other names stay."""
    from poise.drivers.yamlfile import load_kind, place_in_file

    document: dict[str, Any] = load_kind(file, "reservations")
    with located(place_in_file(file)):
        return _told(connected(current_home()).reserve(document), as_json)


@reserve.command("import")
@click.argument("file", type=click.Path(path_type=Path))
@_wanted
@click.option("--until", metavar="DATE", help="End of recurring events that have none: 2027-06-30.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON value.")
def import_(file: Path, until: str | None, as_json: bool, **wanted: Any) -> int:
    """Make a reservation of each event of an iCalendar FILE, all or none. Events that have begun and will not begin
    again are left out, and so are cancelled ones.
    """
    from poise.drivers.calendar import shifts
    from poise.drivers.textfile import read_text
    from poise.model.icalendar import has_begun, read_events, with_own_names
    from poise.model.reservations import Zones

    zones = Zones(time.time(), shifts)
    text = read_text(file, hint="import fewer events at a time")
    with located(lambda _: str(file)):
        events = with_own_names(read_events(text, zones))
    for event in events:
        rule = str(event.get("every", "")).upper()
        if until is not None and rule and "COUNT=" not in rule and "UNTIL=" not in rule:
            event["every"] = f"{rule};UNTIL={until.replace('-', '')}"
    entries = [_entry(wanted) | event for event in events if not has_begun(event, zones)]
    if left_out := len(events) - len(entries):
        what = "1 event that has begun" if left_out == 1 else f"{left_out} events that have begun"
        say(f"poise: {what} and will not begin again: left out")
    return _send(entries, as_json) if entries else 0


@reserve.command()
@click.argument("file", type=click.Path(path_type=Path), required=False)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON value, with the calendar as a text.")
def export(file: Path | None, as_json: bool) -> int:
    """Write all reservations as iCalendar, to FILE or to the output."""
    from poise.model.icalendar import write_events

    found = connected(current_home()).reservations()
    text = write_events([_event(one) for one in found if one.ends], datetime.now(UTC))
    if file is not None:
        output.write_page(file, text, "poise reserve export", opened=f"it has {len(found)} reservations")
    if as_json:
        print_json({"calendar": text})
    elif file is None:
        sys.stdout.write(text)
    return 0


@reserve.command()
@click.argument("name")
@output.forms(*output.TEXT)
def show(name: str, form: str) -> int:
    """Show reservation NAME (or id), and the chance that its places are free when it begins."""
    one = connected(current_home()).reservation(name)
    if form == "json":
        print_json(one)
        return 0
    rows = [
        ("reservation", f"{one.id} {one.name}".strip()),
        ("for", "maintenance" if one.maintenance else one.tenant),
        ("takes", one.wants),
        ("kind", "soft" if one.soft else "firm"),
        ("begins", _moment(one.begins) + (" (begun)" if one.begun else "")),
        ("ends", _moment(one.ends) if one.ends else "when it is cancelled"),
        ("places", ", ".join(one.places)),
        ("recurs", f"{one.every} ({one.time_zone}), {one.windows} to come" if one.every else ""),
        ("elsewhere", f"{one.elsewhere} windows on other places" if one.elsewhere else ""),
        ("lacks", ", ".join(one.lacks)),
        ("unused", f"released after {format_duration(one.release_after)}" if one.release_after else ""),
        ("in time", "" if one.chance is None else f"{one.chance / 10:.0f} % likely ({one.futures} futures)"),
    ]
    for title, text in rows:
        if text:
            click.echo(f"{title:<12} {text}")
    return 0


@reserve.command()
@click.argument("names", nargs=-1, required=True, metavar="NAME...")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON value.")
def cancel(names: tuple[str, ...], as_json: bool) -> int:
    """Cancel every reservation NAME (or id), with all its windows. Running work continues."""
    cancelled = in_turn("cancelled", names, connected(current_home()).cancel_reservation)
    if as_json:
        print_json({"cancelled": cancelled})
    else:
        say(f"cancelled: {', '.join(cancelled)}")
    return 0


def reserve_for_maintenance(node: str, begins: str, length: str | None, as_json: bool) -> int:
    """Reserve a node for maintenance: `poise drain NODE --at TIME`."""
    entry: dict[str, Any] = {"name": f"drain-{node}", "maintenance": True, "nodes": [node], "from": begins}
    return _send([entry | ({"for": length} if length is not None else {})], as_json)


def _entry(wanted: dict[str, Any]) -> dict[str, Any]:
    """Return the fields of a reservations file for flags."""
    entry = {key: value for key, value in wanted.items() if value not in (None, False)}
    if (nodes := entry.get("nodes")) is not None:
        entry["nodes"] = int(nodes) if nodes.lstrip("-").isdecimal() and nodes.isascii() else nodes.split(",")
    return entry


def _send(entries: list[dict[str, Any]], as_json: bool) -> int:
    return _told(connected(current_home()).reserve({"kind": "reservations", "reservations": entries}), as_json)


def _told(accepted: "list[ReservationReport]", as_json: bool) -> int:
    if as_json:
        print_json(accepted)
        return 0
    for one in accepted:
        until = f" to {_moment(one.ends)}" if one.ends else ""
        times = f", {one.windows} times" if one.windows > 1 else ""
        had = "unchanged: " if one.known else ""
        say(f"{had}{one.id} {one.name}: {', '.join(one.places)} from {_moment(one.begins)}{until}{times}")
    return 0


def _listed(found: "list[ReservationReport]") -> Shown:
    return Shown(
        found,
        [one.id for one in found],
        [
            Column("RESERVATION", [one.id for one in found]),
            Column("NAME", [one.name or "-" for one in found]),
            Column("FOR", [_whose(one) for one in found]),
            Column("KIND", ["soft" if one.soft else "firm" if one.name else "-" for one in found]),
            Column("BEGINS", [("now, " if one.begun else "") + _moment(one.begins) for one in found], moving=True),
            Column("ENDS", [_moment(one.ends) if one.ends else "-" for one in found]),
            Column("PLACES", [", ".join(one.places) for one in found]),
            Column("TO COME", [str(one.windows) if one.name else "-" for one in found], right=True),
            Column("EVERY", [one.every for one in found], only="wide"),
            Column("LACKS", [", ".join(one.lacks) for one in found], bare=True),
        ],
        nothing="poise: no reservations; `poise reserve NAME --nodes 1 --tenant T --from 20:00 --for 8h`",
    )


def _whose(one: "ReservationReport") -> str:
    return one.tenant or ("maintenance" if one.maintenance else "-")


def _moment(seconds: float) -> str:
    return f"{datetime.fromtimestamp(seconds, UTC):%Y-%m-%dT%H:%MZ}"


def _event(one: "ReservationReport") -> Any:
    from zoneinfo import ZoneInfo

    from poise.model.icalendar import Entry

    zone = one.time_zone or DEFAULT_ZONE
    within = UTC if zone == DEFAULT_ZONE else ZoneInfo(zone)
    parts = [part for part in one.every.split(";") if part and not part.startswith("COUNT=")]
    if parts and not any(part.startswith("UNTIL=") for part in parts):
        parts.append(f"COUNT={one.windows + len(one.without)}")
    return Entry(
        uid=f"{one.id}@poise",
        name=one.name or "reserved",
        begins=datetime.fromtimestamp(one.begins, within),
        ends=datetime.fromtimestamp(one.ends, within),
        zone=zone,
        rule=";".join(parts),
        without=[datetime.fromtimestamp(at, UTC) for at in one.without],
        description=", ".join(one.places),
    )
