"""Measure how many GPUs Poise and kube-scheduler allocate on a cluster of a trace, as schedulers of a real API server.

    python benchmarks/kubernetes_openb.py [--data ../shared/data/fgd-openb] [--every 8] [--demand 1] [--rounds 3]

`make kubernetes-parts` builds kube-apiserver and kube-scheduler 1.20.2. The nodes are every so many nodes of openb, as
bare Node objects with their CPUs, memory and GPUs (`nvidia.com/gpu`); no kubelet runs. The Pods are drawn from the list
of pods until their demand of GPUs is so many times that of the cluster, and are created one after another, in the same
order for both schedulers. A Pod that asks for a part of a GPU gets a whole one: kube-scheduler knows no parts. A Pod
that names models of GPUs has a node affinity for them. No Pod ends. GPUs are counted once nothing was bound for `REST`.
"""

import argparse
import csv
import gzip
import random
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from harness import Figure, absent, program, say

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "tests"))

SPACE = "/api/v1/namespaces/poise/pods"
GPU, MODEL = "nvidia.com/gpu", "example.org/gpu-model"
REST = 5.0
"""Seconds without a binding after which no more are expected."""

PATIENCE = 300.0

Row = dict[str, str]


def rows(file: Path) -> list[Row]:
    with gzip.open(file, "rt") if file.suffix == ".gz" else file.open() as lines:
        return list(csv.DictReader(lines))


def node(row: Row) -> tuple[dict[str, Any], dict[str, Any]]:
    """The manifest of a node, and its status."""
    labels = {"kubernetes.io/hostname": row["sn"]} | ({MODEL: row["model"]} if row["model"] else {})
    held = {"cpu": f"{row['cpu_milli']}m", "memory": f"{row['memory_mib']}Mi", "pods": "250", GPU: row["gpu"]}
    ready = {"type": "Ready", "status": "True"}
    return {"metadata": {"name": row["sn"], "labels": labels}}, {
        "status": {"allocatable": held, "capacity": held, "conditions": [ready]}
    }


def pod(row: Row, name: str, scheduler: str) -> dict[str, Any]:
    held = {"cpu": f"{row['cpu_milli']}m", "memory": f"{row['memory_mib']}Mi"}
    limits = {GPU: row["num_gpu"]} if int(row["num_gpu"]) else {}
    container = {"name": "main", "image": "x", "resources": {"requests": held | limits, "limits": limits}}
    spec: dict[str, Any] = {"schedulerName": scheduler, "containers": [container]}
    if models := [*filter(None, (row.get("gpu_spec") or "").split("|"))]:
        terms = [{"matchExpressions": [{"key": MODEL, "operator": "In", "values": models}]}]
        required = {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": terms}}
        spec["affinity"] = {"nodeAffinity": required}
    return {"metadata": {"name": name}, "spec": spec}


def drawn(every: Sequence[Row], gpus: float, seed: int) -> Iterator[Row]:
    """Pods in random order until they demand so many GPUs."""
    chance = random.Random(seed)
    while gpus > 0:
        row = chance.choice(every)
        gpus -= int(row["num_gpu"])
        yield row


def allocated(cluster: Any, pods: Sequence[dict[str, Any]], start: Callable[[], object]) -> int:
    """Create Pods for a scheduler that runs, and return the GPUs of those that it has bound."""
    from poise.drivers.kubernetes.api import Api
    from poise.drivers.kubernetes.watching import Watched
    from poise_kubernetes.records import PodObject, requested

    copy, api = Watched(Api(cluster.access("admin")), SPACE, PodObject), Api(cluster.access("admin"))
    copy.list()
    copy.start()
    start()
    try:
        for one in pods:
            api.create(SPACE, one)
        bound, since, deadline = -1, time.perf_counter(), time.perf_counter() + PATIENCE
        while time.perf_counter() - since < REST and time.perf_counter() < deadline:
            now = sum(bool(one.spec.node_name) for one in copy.items())
            if now != bound:
                bound, since = now, time.perf_counter()
            time.sleep(0.2)
        return sum(requested(one).get(GPU, 0) for one in copy.items() if one.spec.node_name)
    finally:
        copy.stop()
        api.delete(SPACE, {"gracePeriodSeconds": 0})


def ours(cluster: Any, chosen: Sequence[Row]) -> int:
    from system.living import Living, free_port

    living = Living()
    living.variables["KUBECONFIG"] = str(cluster.kubeconfig("own", "user"))
    on = ("up", "--port", "0", "--on", "kubernetes:scheduler=poise", "--listen", f"127.0.0.1:{free_port()}")
    pods = [pod(row, f"p{number}", "poise") for number, row in enumerate(chosen)]
    try:
        return allocated(cluster, pods, lambda: living.poise(*on))
    finally:
        living.poise("down", "--leave")
        living.destroy()


def theirs(cluster: Any, chosen: Sequence[Row]) -> int:
    pods = [pod(row, f"p{number}", "default-scheduler") for number, row in enumerate(chosen)]
    try:
        return allocated(cluster, pods, cluster.start_scheduler)
    finally:
        cluster.kill("kube-scheduler")


def measure(data: Path, every: int, demand: float, rounds: int) -> list[Figure]:
    from system.kubernetes_cluster import ETCD, PARTS, kubernetes

    from poise.drivers.kubernetes.api import Api

    if not (PARTS / "kube-scheduler").exists() or not ETCD.exists():
        return [absent("GPUs allocated", "`make servers kubernetes-parts` builds the API server")]
    if not data.exists():
        return [absent("GPUs allocated", f"there is no {data}")]
    nodes = rows(data / "openb_node_list_all_node.csv")[::every]
    total, listed = sum(int(row["gpu"]) for row in nodes), rows(data / "openb_pod_list_default.csv.gz")
    own, other = list[float](), list[float]()
    with kubernetes(schedules=True) as cluster:
        api = Api(cluster.access("admin"))
        for manifest, status in map(node, nodes):
            api.create("/api/v1/nodes", manifest)
            api.patch(f"/api/v1/nodes/{manifest['metadata']['name']}/status", status)
        for seed in range(rounds):
            chosen = [*drawn(listed, demand * total, seed)]
            own.append(100 * ours(cluster, chosen) / total)
            other.append(100 * theirs(cluster, chosen) / total)
            say(f"order {seed}: {len(chosen)} Pods, Poise {own[-1]:.1f} %, kube-scheduler {other[-1]:.1f} %")
    return [
        Figure(name="GPUs allocated, Poise", unit="%", values=own),
        Figure(name="GPUs allocated, kube-scheduler", unit="%", values=other),
        Figure(
            name="GPUs, Poise / kube-scheduler",
            unit="x",
            values=[one / their for one, their in zip(own, other, strict=True)],
            limit=1.0,
            larger=True,
        ),
    ]


def main() -> int:
    parser = argparse.ArgumentParser(description="GPUs allocated on openb, by Poise and by kube-scheduler")
    parser.add_argument("--data", type=Path, default=Path("../shared/data/fgd-openb"))
    parser.add_argument("--every", type=int, default=8)
    parser.add_argument("--demand", type=float, default=1.0)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    return program(lambda: measure(options.data, options.every, options.demand, options.rounds), as_json=options.json)


if __name__ == "__main__":
    sys.exit(main())
