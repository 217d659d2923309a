"""Reports of nodes and their devices."""

from collections.abc import Mapping
from typing import Literal

import msgspec

from poise.model.catalogue import per_watt
from poise.model.figures import sources_of
from poise.model.load import Load, Upkeep
from poise.model.resources import Link, Node


class DeviceReport(msgspec.Struct, frozen=True, kw_only=True):
    """An accelerator: its capabilities, and its current holder. Units as in `Device`; `per_watt` is peak operations per
    joule by precision. `sources` has the source of each known figure (`rates.fp16`): `declared`, `measured`, `driver`
    or `catalogue`. `cordoned` is the reason why it accepts no work; empty if it does.
    """

    index: int
    kind: str
    model: str
    memory: int
    held_by: str
    backend: str = ""
    rates: dict[str, int] = {}
    bandwidth: int = 0
    ops: tuple[str, ...] = ()
    socket: int = 0
    price: int = 0
    power: int = 0
    per_watt: dict[str, int] = {}
    uuid: str = ""
    sources: dict[str, str] = {}
    cordoned: str = ""


class NodeReport(msgspec.Struct, frozen=True, kw_only=True):
    """A node: its resources and their use. CPU is in milli-CPU, memory in bytes; the rest is as in `Node`.

    `level` is low, medium or high, and `load` the measurements behind it; empty and None if the node has not reported.
    `failures` is the smoothed share of failed attempts there, in thousandths. `upkeep` is the resource use of the agent
    itself. `unfit` is the reason why the node can start no work. `images` is the number of names and digests of
    container images that it has.
    """

    name: str
    status: str
    cpu: int
    cpu_used: int
    memory: int
    memory_used: int
    running: int
    queued: int
    devices: tuple[DeviceReport, ...]
    labels: dict[str, str]
    level: str = ""
    load: Load | None = None
    zone: str = ""
    rack: str = ""
    network: int = 0
    latency: int = 0
    links: tuple[Link, ...] = ()
    model: str = ""
    rates: dict[str, int] = {}
    bandwidth: int = 0
    sources: dict[str, str] = {}
    network_used: int = 0
    failures: int = 0
    upkeep: Upkeep | None = None
    unfit: str = ""
    images: int = 0


class Drained(msgspec.Struct, frozen=True, omit_defaults=True):
    """A node, or a device of a node (`n1:0`), that was closed or opened. For a node that is being drained, `moves` is
    the number of its tasks that continue elsewhere once there is room. `stays` is the number of tasks that run there to
    their end.
    """

    node: str
    moves: int = 0
    stays: int = 0


def report_of(node: Node, *, held_by: Mapping[int, str] | None = None) -> NodeReport:
    """Return the report of a node on which nothing runs. `held_by` maps the index of a device to its holder."""
    holders = held_by or {}
    return NodeReport(
        name=node.name,
        status="up",
        cpu=node.cpu,
        cpu_used=0,
        memory=node.memory,
        memory_used=0,
        running=0,
        queued=0,
        devices=tuple(
            DeviceReport(
                index=device.index,
                kind=device.kind,
                model=device.model,
                memory=device.memory,
                held_by=holders.get(device.index, ""),
                backend=device.backend,
                rates=device.rates,
                bandwidth=device.bandwidth,
                ops=device.ops,
                socket=device.socket,
                price=device.price,
                power=device.power,
                per_watt=per_watt(device),
                uuid=device.uuid,
                sources=sources_of(device),
            )
            for device in node.devices
        ),
        labels=node.labels,
        zone=node.zone,
        rack=node.rack,
        network=node.network,
        latency=node.latency,
        links=node.links,
        model=node.model,
        rates=node.rates,
        bandwidth=node.bandwidth,
        sources=sources_of(node),
    )


class Check(msgspec.Struct, frozen=True):
    """A check of `poise doctor`: the finding, and a hint to type if something is wrong."""

    name: str
    status: Literal["ok", "warn", "fail"]
    text: str
    hint: str = ""


class CheckReport(msgspec.Struct, frozen=True, kw_only=True):
    """The findings of `poise doctor`; `well` is true if no check failed."""

    well: bool
    checks: tuple[Check, ...]
