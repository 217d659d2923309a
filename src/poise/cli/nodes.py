"""`poise nodes` and `poise drain`."""

import contextlib
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING

import click

from poise.cli import output
from poise.cli.moments import asks_now, at_moment
from poise.cli.output import Column, Shown
from poise.cli.render import print_json, say, status_text
from poise.client import current_home
from poise.config import Home
from poise.control.start import connected
from poise.decoding import json_decoder
from poise.errors import located
from poise.model.load import Load, Upkeep
from poise.model.reports.nodes import DeviceReport, Drained, NodeReport, report_of
from poise.model.resources import SUBSTRATE
from poise.units import format_bytes, format_cpu, format_rate

if TYPE_CHECKING:
    from poise.model.fleetfile import DeclaredFleet


@click.command()
@click.option(
    "--fleet",
    "fleet_file",
    type=click.Path(path_type=Path),
    metavar="FILE",
    help="Show the nodes that FILE declares, without starting anything.",
)
@at_moment
@output.rows
def nodes(fleet_file: Path | None, at: str | None, form: str, watch: bool) -> int:
    """List nodes: their resources, used amounts, load and devices, with --json also the abilities of devices."""
    if fleet_file is not None:
        if watch or at is not None:
            other = "--watch" if watch else "--at"
            raise click.UsageError(f"what a file declares does not change: `--fleet` and `{other}` exclude each other")
        declared = [report_of(node) for node in read_fleet(fleet_file).nodes]
        return output.show(lambda: _shown(declared), form, watch)
    home = current_home()
    if asks_now(home, at, watch=watch, otherwise=", or this machine before it joins"):
        client = connected(home)
        return output.show(lambda: _shown(client.nodes()), form, watch)
    from poise.cli import offline

    found = offline.nodes(home, at)
    return output.show(lambda: _shown(found), form, watch)


def read_fleet(path: Path) -> "DeclaredFleet":
    """Compile a fleet file. Raises `SpecError`."""
    from poise.drivers.yamlfile import load_kind, place_in_file
    from poise.model.fleetfile import compile_fleet

    with located(place_in_file(path)):
        return compile_fleet(load_kind(path, "fleet"))


def declared_fleet(home: Home) -> "DeclaredFleet | None":
    """Return the home's declared fleet; None without one, or if the file is damaged."""
    if not home.fleet.exists():
        return None
    import msgspec

    from poise.model.fleetfile import DeclaredFleet

    with contextlib.suppress(FileNotFoundError, msgspec.MsgspecError):  # a damaged file can be replaced
        return json_decoder(DeclaredFleet).decode(home.fleet.read_bytes())
    return None


def _shown(found: list[NodeReport]) -> Shown:
    return Shown(
        found,
        [node.name for node in found],
        [
            Column("NODE", [node.name for node in found]),
            Column("STATUS", [status_text(node.status) for node in found]),
            Column("WHY", [node.unfit for node in found], bare=True),
            Column("LOAD", [node.level or "-" for node in found]),
            Column("BUSY", [_busy(node.load) for node in found], only="wide", moving=True),
            Column("FAILURES", [f"{node.failures / 10:.0f} %" for node in found], right=True, only="wide"),
            Column("CPU", [f"{format_cpu(node.cpu_used)}/{format_cpu(node.cpu)}" for node in found]),
            Column("MEMORY", [f"{format_bytes(node.memory_used)}/{format_bytes(node.memory)}" for node in found]),
            Column("NETWORK", [format_rate(node.network) if node.network else "" for node in found], bare=True),
            Column("CLUSTER", [node.labels.get(SUBSTRATE, "") for node in found], bare=True),
            Column("PLACE", ["/".join(part for part in (node.zone, node.rack) if part) for node in found], bare=True),
            Column("RUNNING", [str(node.running) for node in found], right=True),
            Column("QUEUED", [str(node.queued) for node in found], right=True),
            Column("MODEL", [node.model or "-" for node in found], only="wide"),
            Column("DEVICES", [_devices_text(node) for node in found]),
            Column("IMAGES", [str(node.images or "") for node in found], bare=True, right=True, only="wide"),
            Column("AGENT", [_upkeep(node.upkeep) for node in found], only="wide", moving=True),
            Column("LABELS", [_labels(node) for node in found], only="wide"),
        ],
        nothing="poise: no node has joined yet",
    )


def _labels(node: NodeReport) -> str:
    return " ".join(f"{name}={text}" for name, text in node.labels.items() if name != "no-devices")  # shown by DEVICES


def _busy(load: Load | None) -> str:
    """Format a load: `cpu 85 %, load 1.20, memory 40 %, disk 3 %, network 0 %`. The load average is per core."""
    if load is None:
        return "-"
    cpu, memory, disk, network = (f"{part / 10:.0f} %" for part in (load.cpu, load.memory, load.disk, load.network))
    return f"cpu {cpu}, load {load.load1 / 1000:.2f}, memory {memory}, disk {disk}, network {network}"


def _upkeep(upkeep: Upkeep | None) -> str:
    """Format an agent's cost: `42 B/s, 0.3 % CPU` (bytes sent, and share of one core)."""
    return "-" if upkeep is None else f"{upkeep.sent:,} B/s, {upkeep.cpu / 10_000:.1f} % CPU"


def _devices_text(node: NodeReport) -> str:
    """Format devices: `0: T4 16 GB`, `0-6: H100 80 GB, 7: H100 80 GB (j1.train)`. Equal neighbours are merged."""
    runs = [(text, [device.index for device in run]) for text, run in groupby(node.devices, _device_text)]
    texts = [f"{own[0]}-{own[-1]}: {text}" if len(own) > 1 else f"{own[0]}: {text}" for text, own in runs]
    none = "none" if "declared" in node.labels else f"none ({node.labels.get('no-devices', 'none found')})"
    return ", ".join(texts) or none


def _device_text(device: DeviceReport) -> str:
    held = f" ({device.held_by})" if device.held_by else ""
    whole, rest = divmod(device.memory, 10**9)  # data sheets and fleet files use GB, drivers bytes
    memory = f"{whole} GB" if not rest else format_bytes(device.memory)
    cordoned = f" (closed: {device.cordoned})" if device.cordoned else ""
    return f"{device.model or device.kind} {memory}{held}{cordoned}"


@click.command()
@click.option("--move", is_flag=True, help="Move the node's running work elsewhere as soon as there is room.")
@click.option("--undo", is_flag=True, help="Open the node again.")
@click.option("--at", "begins", metavar="TIME", help="Drain for maintenance then: 2026-12-01T20:00, 20:00, or +2h.")
@click.option("--for", "length", metavar="TIME", help="With --at: open the node again after this time.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON value.")
@click.argument("node")
def drain(node: str, move: bool, undo: bool, begins: str | None, length: str | None, as_json: bool) -> int:
    """Close NODE, or a device of it (NODE:0), to new work. Running work continues to its end there; with --move, it
    moves elsewhere. Poise closes a failed device automatically; `--undo` opens it again. With --at, the node is
    reserved for maintenance: work that may last until then is not placed on it.
    """
    if move and undo:
        raise click.UsageError("`--move` and `--undo` exclude each other")
    if length is not None and begins is None:
        raise click.UsageError("`--for` needs `--at`")
    if begins is not None:
        if move or undo:
            raise click.UsageError("`--at` excludes `--move` and `--undo`")
        from poise.cli.reserve import reserve_for_maintenance

        return reserve_for_maintenance(node, begins, length, as_json)
    drained = connected(current_home()).drain(node, on=not undo, moves=move)
    if as_json:
        told = {"node": drained.node, "drained": not undo}
        print_json(told | {"moves": drained.moves, "stays": drained.stays} if move else told)
    elif undo:
        say(f"{drained.node} is open again")
    else:
        says = f"; {_leaving(drained)}" if move else ""
        say(f"{drained.node} takes no new work{says}; `poise drain --undo {drained.node}` opens it")
    return 0


def _leaving(drained: Drained) -> str:
    """Describe a drain: the number of tasks that move once there is room, and of those that run there to their end."""
    moves, stays = drained.moves, drained.stays
    parts = []
    if moves:
        parts.append(f"{moves} {'task goes' if moves == 1 else 'tasks go'} on elsewhere once there is room")
    if stays:
        whose = "" if moves else "task " if stays == 1 else "tasks "
        parts.append(f"{stays} {whose}{'goes on there to its end' if stays == 1 else 'go on there to their end'}")
    return ", ".join(parts) or "nothing runs there"
