"""Alibaba's 2023 trace of a cluster with shared GPUs (openb): a list of pods, and a list of nodes.

Pods: `name,cpu_milli,memory_mib,num_gpu,gpu_milli,gpu_spec,qos,pod_phase,creation_time,deletion_time,scheduled_time`;
nodes: `sn,cpu_milli,memory_mib,gpu,model`. The run time of a pod is from its scheduling to its deletion; for a pod that
was never scheduled, it is its waiting time. The trace does not say what a pod did, so its class is its resource
request.

Source: Weng et al., "Beware of Fragmentation", USENIX ATC 2023; github.com/hkust-adsl/kubernetes-scheduler-simulator,
data/csv (Apache-2.0), also in github.com/alibaba/clusterdata, cluster-trace-gpu-v2023.
"""

from pathlib import Path

from poise.model.jobs import Priority
from poise.model.resources import WHOLE, Device, Node, Wants
from poise.model.workload import Workload
from poise_lab.traces.making import Maker, Said
from poise_lab.traces.options import Options
from poise_lab.traces.rows import BadRow, Row, Tally, fault, short, table

PODS = (
    "name", "cpu_milli", "memory_mib", "num_gpu", "gpu_milli", "gpu_spec", "qos", "creation_time", "deletion_time",
    "scheduled_time",
)  # fmt: skip
NODES = ("sn", "cpu_milli", "memory_mib", "gpu", "model")
MIB = 2**20
GIB = 2**30

MEMORY = {"V100M16": 16 * GIB, "V100M32": 32 * GIB, "P100": 16 * GIB, "T4": 16 * GIB, "A10": 24 * GIB}
"""Device memory in bytes, by model, from the model's name or data sheet; the models G2 and G3 were not published."""

PRIORITIES = {"LS": Priority.HIGH, "Guaranteed": Priority.HIGH, "Burstable": Priority.MEDIUM, "BE": Priority.LOW}
"""Priorities by class of service: latency-sensitive, guaranteed, burstable, best effort."""


def read(path: Path, options: Options) -> Workload:
    """Read the pods. Raises `SpecError` if the file has another format."""
    maker = Maker("openb", path, options)
    for row in table(path, maker.tally, PODS):
        try:
            maker.add(_said(row))
        except BadRow as why:
            maker.tally.bad(row.line, why)
    return maker.workload()


def read_nodes(path: Path) -> tuple[Node, ...]:
    """Read the fleet from a list of nodes. Raises `SpecError` for any invalid row: an incomplete fleet is useless."""
    tally = Tally(path, strict=True)
    nodes: dict[str, Node] = {}
    for row in table(path, tally, NODES):
        try:
            node = _node(row)
        except BadRow as why:
            tally.bad(row.line, why)
            continue
        if node.name in nodes:
            raise fault("a node is there twice", path, row.line, field="sn", have=node.name)
        nodes[node.name] = node
    return tuple(nodes.values())


def _said(row: Row) -> Said:
    gpus, milli = row.whole("num_gpu", most=64), row.whole("gpu_milli", most=WHOLE)
    if bool(gpus) != bool(milli):
        raise BadRow(
            "devices without a share of them, or the reverse", "gpu_milli", "above 0 with `num_gpu`", str(milli)
        )
    qos, created = row.text("qos"), row.number("creation_time")
    if qos not in PRIORITIES:
        raise BadRow("the class of service is not known", "qos", ", ".join(PRIORITIES), short(qos))
    started = row.number("scheduled_time") if row.text("scheduled_time") else created
    ended = row.number("deletion_time")
    if ended < started:
        raise BadRow("it was deleted before it was scheduled", "deletion_time", f"{started:g} or more", f"{ended:g}")
    models = tuple(sorted(filter(None, row.text("gpu_spec").split("|"))))
    cpu = row.whole("cpu_milli", most=10**7)
    kind = f"{cpu} milli-CPU, {gpus} x {milli}"
    return Said(
        at=created,
        seconds=ended - started,
        gpus=gpus,
        share=milli or WHOLE,
        cpu=cpu,
        memory=row.whole("memory_mib", most=10**9) * MIB,
        wants=Wants(models=models),
        kind=kind,
        priority=PRIORITIES[qos],
    )


def _node(row: Row) -> Node:
    model, count = row.text("model"), row.whole("gpu", most=64)
    if count and not model:
        raise BadRow("devices of no model", "model", "a model", "")
    return Node(
        name=row.text("sn"),
        incarnation="1",
        cpu=row.whole("cpu_milli", most=2**40),
        memory=row.whole("memory_mib", most=10**9) * MIB,
        devices=tuple(Device(index=index, model=model, memory=MEMORY.get(model, 0)) for index in range(count)),
    )
