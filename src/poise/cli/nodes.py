"""`poise nodes` and `poise drain`."""

import click

from poise.cli import offline
from poise.cli.home import connected, current_home, running, supervised
from poise.cli.render import print_json, print_table, say, status_text
from poise.model.reports import DeviceReport
from poise.units import format_bytes, format_cpu


@click.command()
@click.option("--json", "as_json", is_flag=True, help="Print one JSON value.")
def nodes(as_json: bool) -> int:
    """List nodes: what each has, what is taken, what its devices are."""
    home = current_home()
    up = running(home) or supervised(home)
    found = connected(home).nodes() if up else offline.nodes(home)
    if as_json:
        print_json(found)
        return 0
    if not up:
        say("poise: no control plane is running; this is what the log says, or this machine as it would join")
    print_table(
        ("NODE", "STATUS", "CPU", "MEMORY", "RUNNING", "QUEUED", "DEVICES"),
        [
            (
                node.name,
                status_text(node.status),
                f"{format_cpu(node.cpu_used)}/{format_cpu(node.cpu)}",
                f"{format_bytes(node.memory_used)}/{format_bytes(node.memory)}",
                str(node.running),
                str(node.queued),
                ", ".join(map(_device_text, node.devices)) or f"none ({node.labels.get('no-devices', 'none found')})",
            )
            for node in found
        ],
        right=("RUNNING", "QUEUED"),
    )
    return 0


def _device_text(device: DeviceReport) -> str:
    held = f" ({device.held_by})" if device.held_by else ""
    return f"{device.index}: {device.model} {format_bytes(device.memory)}{held}"


@click.command()
@click.option("--undo", is_flag=True, help="Open the node again.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON value.")
@click.argument("node")
def drain(node: str, undo: bool, as_json: bool) -> int:
    """Close NODE to new work; what runs there goes on to its end."""
    client = connected(current_home())
    client.drain(node, on=not undo)
    if as_json:
        print_json({"node": node, "drained": not undo})
    else:
        say(f"{node} is open again" if undo else f"{node} takes no new work; `poise drain --undo {node}` opens it")
    return 0
