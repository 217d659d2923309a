"""What `ls`, `show` and `nodes` tell, as records: the command line and the API only draw them.

Times of day are seconds since 1970 (0: not yet), durations are nanoseconds.
"""

from collections.abc import Mapping
from typing import Any

import msgspec

from poise.model.catalogue import per_watt
from poise.model.load import Load
from poise.model.resources import Link, Node


class AttemptReport(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """An earlier attempt and how it ended."""

    epoch: int
    node: str
    outcome: str
    run: int = 0
    note: str = ""


class TaskReport(msgspec.Struct, frozen=True, kw_only=True):
    """One task: what ran where and when, and why it was placed there or still waits."""

    task: str
    name: str
    status: str
    priority: str
    command: tuple[str, ...]
    needs: tuple[str, ...]
    node: str
    devices: tuple[int, ...]
    cpus: tuple[int, ...]
    pid: int
    epoch: int
    wait: int
    run: int
    cpu: int
    started: float
    ended: float
    expected: int
    slack: int
    critical: bool
    outcome: str
    exit_code: int | None
    peak: int
    limit: int
    note: str
    why: str
    reasons: tuple[str, ...]
    attempts: tuple[AttemptReport, ...]
    result: Any


class JobReport(msgspec.Struct, frozen=True, kw_only=True):
    """One job. `exit_code` is what `poise wait` ends with: 0, or the first failed task's; none while unfinished. `note`
    is what the user was told when it was submitted.
    """

    id: str
    name: str
    user: str
    status: str
    exit_code: int | None
    submitted: float
    ended: float
    elapsed: int
    counts: dict[str, int]
    command: str
    critical_path: tuple[str, ...] = ()
    remaining: int = 0
    note: str = ""
    tasks: tuple[TaskReport, ...] = ()


class DeviceReport(msgspec.Struct, frozen=True, kw_only=True):
    """One accelerator: what it can do, and who holds it. Units as in `Device`; `per_watt` is peak operations per joule
    by precision.
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


class NodeReport(msgspec.Struct, frozen=True, kw_only=True):
    """One node: what it has, what is taken. CPU in milli-CPU, memory in bytes; the rest as in `Node`.

    `level` is low, medium or high, `load` what it was made from; empty and none where the node has not said. `failures`
    is the smoothed share of attempts that failed there, in thousandths.
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
    network_used: int = 0
    failures: int = 0


def report_of(node: Node, *, held_by: Mapping[int, str] | None = None) -> NodeReport:
    """What a node offers, with nothing taken of it; `held_by` names who holds a device, by its index."""
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
    )


class StatusReport(msgspec.Struct, frozen=True, kw_only=True):
    """The control plane at a glance. `unfinished` counts jobs, `pending` units that could be placed."""

    version: str
    policy: str
    term: int
    revision: int
    accepting: bool
    unfinished: int
    pending: int
    active: int
    nodes: int


class LogPiece(msgspec.Struct, frozen=True, tag="piece", tag_field="kind"):
    """Bytes that one attempt of a task wrote to one of its streams, `out` or `err`."""

    task: str
    epoch: int
    stream: str
    data: bytes


class LogEnd(msgspec.Struct, frozen=True, tag="end", tag_field="kind"):
    """The job is over (or was not followed): no more comes. `exit_code` is none while it is unfinished."""

    exit_code: int | None


LogLine = LogPiece | LogEnd
