"""Pods of Poise on the code of a real kubelet: nodes of kubemark 1.20, which only pretend to have containers."""

from collections.abc import Iterator
from typing import Any

import pytest

from poise.drivers.kubernetes.api import Api
from poise.model.reports.demand import Demand, DemandReport
from poise.model.resources import Shape
from poise.ports import Contact
from poise_kubernetes import manifests
from poise_kubernetes.cluster import KubernetesCluster, open_cluster
from poise_kubernetes.offers import Grant
from poise_kubernetes.settings import Settings
from system import kubernetes_cluster
from system.kubernetes_cluster import SPACE, kubernetes
from system.living import until

HOME = "0123456789ab"
NODES = ("hollow-1", "hollow-2")
"""Each has one CPU, whatever this machine has."""

SHAPE = Shape(cpu=500, memory=2**28)
GANG = Demand(tasks=3, together=3, cpu=500, memory=2**28, gpus=0, where="", work=0, longest=0, unknown=3, shape=SHAPE)
WAITS = DemandReport(waits=(GANG,), busy={})


class Hollow:
    """A control plane with hollow nodes, and Poise's view of it."""

    def __init__(self, real: kubernetes_cluster.KubernetesCluster, cluster: KubernetesCluster) -> None:
        self.api, self.cluster, self.real = Api(real.access("admin")), cluster, real

    def pods(self) -> dict[str, dict[str, Any]]:
        found = self.api.get(f"/api/v1/namespaces/{SPACE}/pods", labelSelector=manifests.selector(HOME))["items"]
        return {one["metadata"]["name"]: one for one in found}

    def messages(self) -> str:
        return f"{self.pods()}\n{self.real.messages()}"

    def run(self, demand: DemandReport = WAITS) -> set[str]:
        """A round; the nodes of the machines that there are then."""
        self.cluster.want(demand)
        known = {pilot.machine for pilot in self.cluster.pilots()}
        for machine in self.cluster.machines():
            if machine.id not in known:
                self.cluster.start(machine, machine.name, Contact(f"10.0.0.1:7718#{'a' * 64}", "token"))
        return {machine.name for machine in self.cluster.machines()}


@pytest.fixture(scope="module")
def hollow() -> Iterator[Hollow]:
    with kubernetes("kubemark") as real, pytest.MonkeyPatch.context() as patch:
        for name in NODES:
            real.start_hollow(name)
        api = Api(real.access("admin"))
        until(lambda: len(_ready(api)) == len(NODES), "all nodes are ready", real.messages)
        patch.setenv("KUBECONFIG", str(real.kubeconfig("own", "user")))
        yield Hollow(real, open_cluster(Settings(priority="poise", grace=20), HOME))


def test_pods_run_and_have_their_orders(hollow: Hollow) -> None:
    until(lambda: hollow.run() == {*NODES}, "a gang has room", hollow.messages)
    assert sorted(pilot.node for pilot in hollow.cluster.pilots()) == [*NODES]
    for one in hollow.pods().values():
        assert one["status"]["qosClass"] == "Guaranteed"
        assert manifests.ORDERS in one["metadata"]["annotations"]


def test_an_evicted_pod_gets_another_in_its_place(hollow: Hollow) -> None:
    before = next(iter(hollow.pods().values()))["metadata"]
    body = {"apiVersion": "policy/v1beta1", "kind": "Eviction", "metadata": {"name": before["name"]}}
    hollow.api.create(f"/api/v1/namespaces/{SPACE}/pods/{before['name']}/eviction", body)

    def is_replaced() -> bool:
        there = hollow.run() == {*NODES}
        return there and before["uid"] not in {one["metadata"]["uid"] for one in hollow.pods().values()}

    until(is_replaced, "another one runs", hollow.messages)


def test_a_pod_that_the_kubelet_refuses_is_removed_and_its_node_is_avoided(hollow: Hollow) -> None:
    """As when two schedulers place something at the same time."""
    secret = hollow.api.get(f"/api/v1/namespaces/{SPACE}/secrets/{manifests.home_name(HOME)}")
    owner = {"name": secret["metadata"]["name"], "uid": secret["metadata"]["uid"]}
    body = manifests.pod(HOME, owner, Grant(NODES[0], 64000, 2**28), 7, Settings())
    body["spec"]["nodeName"] = NODES[0]
    name = hollow.api.create(f"/api/v1/namespaces/{SPACE}/pods", body)["metadata"]["name"]
    unmet: list[str] = []

    def is_removed() -> bool:
        unmet.extend(request.text for request in hollow.cluster.want(WAITS))
        return name not in hollow.pods()

    until(is_removed, "it is removed", hollow.messages)
    assert any(f"no pod on {NODES[0]} for a while: it failed: OutOfcpu" in text for text in unmet), unmet


def test_nothing_is_left(hollow: Hollow) -> None:
    hollow.cluster.stop()
    until(lambda: not hollow.pods(), "all pods have gone", hollow.messages)
    secrets = hollow.api.get(f"/api/v1/namespaces/{SPACE}/secrets")["items"]
    assert manifests.home_name(HOME) not in {one["metadata"]["name"] for one in secrets}


def _ready(api: Api) -> list[str]:
    return [
        node["metadata"]["name"]
        for node in api.get("/api/v1/nodes")["items"]
        if any(of["type"] == "Ready" and of["status"] == "True" for of in node["status"].get("conditions", ()))
        and not node["spec"].get("taints")
    ]
