"""Measure how fast Poise binds Pods as a scheduler of a real API server, beside kube-scheduler of the same source.

    python benchmarks/kubernetes.py [--nodes 100] [--pods 2000] [--rounds 3] [--hollow] [--json]

`make kubernetes-parts` builds kube-apiserver and kube-scheduler 1.20.2. The nodes are bare Node objects of 64 CPUs, and
no kubelet runs. With `--hollow`, each node is one of kubemark: the code of a kubelet, which pretends to run containers.
All Pods are there before a scheduler starts; the rate counts from its first binding to its last.

* *plain*: each Pod for itself.
* *gangs*: gangs of 1 to 100 Pods. kube-scheduler knows no gangs.
* *time to bind*: `SETTLE` seconds later, Pods come one by one, `OFFERED` a second; from the request that creates a Pod
  until a watch shows its node.
* *writes*: requests to the API server for each Pod, other than reads, from the server's own counts. They include those
  of kubelets, so they are left out with `--hollow`.
"""

import argparse
import itertools
import re
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple

from harness import Figure, absent, percentile, program, rate, ratio, say

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "tests"))

SPACE = "/api/v1/namespaces/poise/pods"
SIZES = (1, 2, 3, 5, 8, 13, 20, 50, 100)
CREATORS = 8
OFFERED = 50.0
LATER = 300
"""Pods created one by one, and how many of them a second; kube-scheduler also keeps up with that."""

SETTLE = 3.0
"""Both schedulers have then read all nodes. Poise also binds while most of 1,000 nodes are still to be read."""

PATIENCE = 300.0
GROUP = "pod-group.scheduling.sigs.k8s.io/name"
LEAST = "pod-group.scheduling.sigs.k8s.io/min-available"
WRITES = re.compile(r'^apiserver_request_total\{(?=[^}]*verb="(?:POST|PATCH|PUT|DELETE)")[^}]*\} (\S+)$', re.MULTILINE)


CPU, HOLLOW_CPU = "1", "50m"
"""The request of each Pod. A node of kubemark has one CPU."""


def pods(count: int, scheduler: str, cpu: str, gangs: bool = False, name: str = "pod") -> Iterator[dict[str, Any]]:
    """Manifests of Pods, alone or in gangs."""
    left = count
    for number, size in enumerate(itertools.cycle(SIZES if gangs else (1,))):
        if left <= 0:
            return
        size = min(size, left)
        left -= size
        for member in range(size):
            labels = {GROUP: f"gang-{number}", LEAST: str(size)} if gangs else {}
            container = {"name": "main", "image": "x", "resources": {"requests": {"cpu": cpu, "memory": "64Mi"}}}
            yield {
                "metadata": {"name": f"{name}-{number}-{member}", "labels": labels},
                "spec": {"schedulerName": scheduler, "containers": [container]},
            }


class Cluster:
    """A real API server with nodes: bare ones, or `hollow` ones of kubemark."""

    def __init__(self, cluster: Any, nodes: int, hollow: bool) -> None:
        from system.living import until

        from poise.drivers.kubernetes.api import Api

        self.real, self.access = cluster, cluster.access("admin")
        self.cpu = HOLLOW_CPU if hollow else CPU
        self.api = Api(self.access)
        for number in range(nodes):
            if hollow:
                cluster.start_hollow(f"node-{number}")
            else:
                self._create_bare(f"node-{number}")
        if hollow:
            until(lambda: self._ready() == nodes, "all nodes are ready", cluster.messages)

    def _ready(self) -> int:
        nodes = self.api.get("/api/v1/nodes")["items"]
        conditions = [one for node in nodes for one in node["status"].get("conditions", ())]
        return sum(one["type"] == "Ready" and one["status"] == "True" for one in conditions)

    def _create_bare(self, name: str) -> None:
        self.api.create("/api/v1/nodes", {"metadata": {"name": name, "labels": {"kubernetes.io/hostname": name}}})
        amounts = {"cpu": "64", "memory": "256Gi", "pods": "110"}
        ready = {"type": "Ready", "status": "True"}
        status = {"allocatable": amounts, "capacity": amounts, "conditions": [ready]}
        self.api.patch(f"/api/v1/nodes/{name}/status", {"status": status})

    def create(self, manifests: list[dict[str, Any]]) -> None:
        from poise.drivers.kubernetes.api import Api

        def some(part: list[dict[str, Any]]) -> None:
            api = Api(self.access)
            for one in part:
                api.create(SPACE, one)

        with ThreadPoolExecutor(CREATORS) as threads:
            list(threads.map(some, [manifests[place::CREATORS] for place in range(CREATORS)]))

    def clear(self) -> None:
        self.api.delete(SPACE, {"gracePeriodSeconds": 0})

    def times_to_bind(self, scheduler: str) -> list[float]:
        """Create Pods one by one for a scheduler that runs, and return the milliseconds until each has a node."""
        from poise.drivers.kubernetes.api import Api
        from poise.drivers.kubernetes.watching import Watched
        from poise_kubernetes.records import PodObject

        created, took = dict[str, float](), dict[str, float]()

        def offer() -> None:
            begun = time.perf_counter()
            for number, one in enumerate(pods(LATER, scheduler, self.cpu, name="later")):
                time.sleep(max(0.0, begun + number / OFFERED - time.perf_counter()))
                created[one["metadata"]["name"]] = time.perf_counter()
                self.api.create(SPACE, one)

        def changed() -> None:
            now = time.perf_counter()
            for (_, name), pod in copy.news().items():
                if pod is not None and pod.spec.node_name and name in created:
                    took.setdefault(name, 1000 * (now - created[name]))

        time.sleep(SETTLE)
        copy = Watched(Api(self.access), SPACE, PodObject, changed=changed)
        copy.list()
        copy.start()
        deadline = time.perf_counter() + PATIENCE
        try:
            with ThreadPoolExecutor(1) as thread:
                offering = thread.submit(offer)
                while len(took) < LATER:
                    if time.perf_counter() > deadline:
                        raise TimeoutError(f"{len(took)} of {LATER} Pods are bound after {PATIENCE:g} s")
                    time.sleep(0.1)
                offering.result()
        finally:
            copy.stop()
        return [*took.values()]

    def writes(self) -> float:
        return sum(map(float, WRITES.findall(self.api.raw("/metrics", {}).decode())))

    def bound(self, count: int, start: Callable[[], object]) -> float:
        """Start a scheduler, and return the seconds from the first binding to the last."""
        from poise.drivers.kubernetes.api import Api
        from poise.drivers.kubernetes.watching import Watched
        from poise_kubernetes.records import PodObject

        copy = Watched(Api(self.access), SPACE, PodObject)
        copy.list()
        copy.start()
        start()
        first, now = 0.0, time.perf_counter()
        deadline = now + PATIENCE
        try:
            while (done := sum(bool(pod.spec.node_name) for pod in copy.items())) < count:
                now = time.perf_counter()
                first = first or (now if done else 0.0)
                if now > deadline:
                    raise TimeoutError(f"{done} of {count} Pods are bound after {PATIENCE:g} s")
                time.sleep(0.01)
        finally:
            copy.stop()
        return time.perf_counter() - (first or now)


class Round(NamedTuple):
    """Seconds from the first binding to the last, writes for each Pod, and milliseconds until later Pods had a node."""

    seconds: float
    writes: float
    later: list[float]


def ours(cluster: Cluster, count: int, gangs: bool) -> Round:
    from system.living import Living, free_port

    living = Living()
    living.variables["KUBECONFIG"] = str(cluster.real.kubeconfig("own", "user"))
    cluster.create(list(pods(count, "poise", cluster.cpu, gangs)))
    before = cluster.writes()
    try:
        on = ("up", "--port", "0", "--on", "kubernetes:scheduler=poise", "--listen", f"127.0.0.1:{free_port()}")
        seconds = cluster.bound(count, lambda: living.poise(*on))
        writes = (cluster.writes() - before) / count
        return Round(seconds, writes, [] if gangs else cluster.times_to_bind("poise"))
    finally:
        living.poise("down", "--leave")
        living.destroy()
        cluster.clear()


def theirs(cluster: Cluster, count: int) -> Round:
    cluster.create(list(pods(count, "default-scheduler", cluster.cpu)))
    before = cluster.writes()
    try:
        seconds = cluster.bound(count, cluster.real.start_scheduler)
        return Round(seconds, (cluster.writes() - before) / count, cluster.times_to_bind("default-scheduler"))
    finally:
        cluster.real.kill("kube-scheduler")
        cluster.clear()


def measure(nodes: int, count: int, rounds: int, hollow: bool) -> list[Figure]:
    from system.kubernetes_cluster import ETCD, PARTS, kubernetes

    more = ("kubemark",) if hollow else ()
    if not ETCD.exists() or not all((PARTS / name).exists() for name in ("kube-apiserver", *more)):
        return [absent("Pods bound", "`make servers kubernetes-parts` builds the API server and kubemark")]
    has_theirs = (PARTS / "kube-scheduler").exists()
    plain, gangs, other = list[Round](), list[Round](), list[Round]()
    with kubernetes(*more, schedules=True) as real:
        cluster = Cluster(real, nodes, hollow)
        for number in range(rounds):
            plain.append(ours(cluster, count, gangs=False))
            gangs.append(ours(cluster, count, gangs=True))
            if has_theirs:
                other.append(theirs(cluster, count))
            said = f", kube-scheduler {count / other[-1].seconds:.0f}/s" if has_theirs else ""
            rates = f"plain {count / plain[-1].seconds:.0f}/s, gangs {count / gangs[-1].seconds:.0f}/s"
            say(f"round {number + 1}: {rates}{said}")
    found = [
        rate("plain Pods", count, [one.seconds for one in plain]),
        rate("Pods in gangs of 1 to 100", count, [one.seconds for one in gangs], limit=300.0),
        *times("time to bind", plain),
    ]
    if not hollow:
        found.append(Figure(name="writes for each Pod", unit="", values=[one.writes for one in plain], limit=2.0))
    if not has_theirs:
        return [*found, absent("kube-scheduler", "`make kubernetes-parts` builds it")]
    return [
        *found,
        rate("kube-scheduler, plain Pods", count, [one.seconds for one in other]),
        *times("kube-scheduler, time to bind", other),
        ratio(
            "time, Poise / kube-scheduler", [one.seconds for one in plain], [one.seconds for one in other], limit=1.0
        ),
    ]


def times(name: str, found: list[Round]) -> list[Figure]:
    return [
        Figure(name=f"{name}, P{percent}", unit="ms", values=[percentile(one.later, percent) for one in found])
        for percent in (50, 99)
    ]


def main() -> int:
    parser = argparse.ArgumentParser(description="Pods bound a second, by Poise and by kube-scheduler")
    parser.add_argument("--nodes", type=int, default=100)
    parser.add_argument("--pods", type=int, default=2000)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--hollow", action="store_true")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    return program(lambda: measure(options.nodes, options.pods, options.rounds, options.hollow), as_json=options.json)


if __name__ == "__main__":
    sys.exit(main())
