"""Pods of Poise that a real API server refuses, collects or cannot place: quotas, limits, owners and volumes."""

import contextlib
import time
from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Any

import pytest

from poise.drivers.kubernetes.api import Api, Refused
from poise.model.reports.demand import Demand, DemandReport
from poise.model.resources import Shape
from poise_kubernetes import manifests
from poise_kubernetes.checkup import checks
from poise_kubernetes.cluster import KubernetesCluster, open_cluster
from poise_kubernetes.settings import Settings
from system.kubernetes_cluster import kubernetes
from system.living import until

HOME = "0123456789ab"
SHAPE = Shape(cpu=1000, memory=2**28)
WORK = Demand(tasks=8, together=1, cpu=1000, memory=2**28, gpus=0, where="", work=0, longest=0, unknown=8, shape=SHAPE)
WAITS = DemandReport(waits=(WORK,), busy={})
NODES = ("a", "b")
AMOUNTS = {"cpu": "4", "memory": "8Gi", "pods": "110"}


class Space:
    """A namespace of its own, and Poise's view of it."""

    def __init__(self, api: Api, name: str, **settings: Any) -> None:
        self.api, self.name, self._settings = api, name, settings
        self._make("namespaces", {"metadata": {"name": name}})
        self.path = f"/api/v1/namespaces/{name}"
        self._cluster: KubernetesCluster | None = None

    @property
    def cluster(self) -> KubernetesCluster:
        self._cluster = self._cluster or open_cluster(Settings(namespace=self.name, **self._settings), HOME)
        return self._cluster

    def make(self, kind: str, body: dict[str, Any]) -> None:
        self.api.create(f"{self.path}/{kind}", body)

    def cpus(self) -> list[str]:
        return sorted(one["spec"]["containers"][0]["resources"]["requests"]["cpu"] for one in self.pods())

    def pods(self) -> list[dict[str, Any]]:
        """Return the Pods of Poise. No kubelet confirms that deleted ones have ended, so this does."""
        found: list[dict[str, Any]] = self.api.get(f"{self.path}/pods", labelSelector=manifests.selector(HOME))["items"]
        for one in found:
            if "deletionTimestamp" in one["metadata"]:
                with contextlib.suppress(Refused):
                    self.api.delete(f"{self.path}/pods/{one['metadata']['name']}", {"gracePeriodSeconds": 0})
        return found

    def close(self) -> None:
        self.cluster.stop()
        until(lambda: not self.pods(), "no Pod is left", self.pods)

    def prepared(self) -> int:
        """Return the number of Pods that Poise has seen on their nodes."""
        return sum("its node prepares it" in one.text for one in self.cluster.want(WAITS))

    def has(self, cpus: list[str]) -> bool:
        _are_ready(self.api)
        self.cluster.want(WAITS)
        return self.cpus() == cpus

    def _make(self, kind: str, body: dict[str, Any]) -> None:
        self.api.create(f"/api/v1/{kind}", body)


@pytest.fixture(scope="module")
def api() -> Iterator[Api]:
    with kubernetes() as real, pytest.MonkeyPatch.context() as patch:
        api = Api(real.access("admin"))
        for name in NODES:
            api.create("/api/v1/nodes", {"metadata": {"name": name}})
        until(lambda: _are_ready(api), "the nodes are ready")
        patch.setenv("KUBECONFIG", str(real.kubeconfig("own", "admin")))
        yield api


def test_a_quota_gets_pods_that_fit_into_it(api: Api) -> None:
    space = Space(api, "quota")
    space.make("resourcequotas", {"metadata": {"name": "small"}, "spec": {"hard": {"requests.cpu": "3"}}})
    until(lambda: api.get(f"{space.path}/resourcequotas/small").get("status", {}).get("hard"), "it is counted")
    until(lambda: space.has(["1", "2"]), "the quota is used up", space.cpus)
    until(lambda: any("exceeded quota" in one.text for one in space.cluster.want(WAITS)), "the reason is told")
    [check] = [one for one in checks(Settings(namespace="quota")) if one.name == "a pod in quota"]
    assert "exceeded quota: small" in check.text
    space.close()


def test_a_limit_of_containers_gets_pods_below_it(api: Api) -> None:
    space = Space(api, "limits")
    limit = {"type": "Container", "max": {"cpu": "2"}}
    space.make("limitranges", {"metadata": {"name": "small"}, "spec": {"limits": [limit]}})
    until(lambda: space.has(["2", "2", "2", "2"]), "Pods are as large as the limit", space.cpus)
    space.close()


def test_the_overhead_of_a_runtime_is_left_free(api: Api) -> None:
    runtime = {"metadata": {"name": "kata"}, "handler": "kata", "overhead": {"podFixed": {"cpu": "250m"}}}
    api.create("/apis/node.k8s.io/v1/runtimeclasses", runtime)
    space = Space(api, "overhead", runtime="kata")
    until(lambda: space.has(["3", "3"]), "four CPUs and the overhead do not fit", space.cpus)
    until(lambda: all(one["spec"].get("nodeName") for one in space.pods()), "both have a node", space.pods)
    space.close()


def test_pods_stay_though_the_secret_that_owned_the_former_ones_was_deleted(api: Api) -> None:
    space = Space(api, "owner")
    until(lambda: space.has(["4", "4"]) and space.prepared() == 2, "there are Pods", space.cpus)
    before = {one["metadata"]["uid"] for one in space.pods()}
    api.delete(f"{space.path}/secrets/{manifests.home_name(HOME)}")
    until(lambda: not before & {one["metadata"]["uid"] for one in space.pods()}, "they are collected", space.pods)
    until(lambda: space.has(["4", "4"]), "there are others", space.cpus)
    after = {one["metadata"]["uid"] for one in space.pods()}
    time.sleep(2)  # the collector takes less for an owner that does not exist
    assert {one["metadata"]["uid"] for one in space.pods()} == after
    space.close()


def test_a_pod_that_kube_scheduler_preempts_leaves_in_order(api: Api) -> None:
    api.create("/apis/scheduling.k8s.io/v1/priorityclasses", {"metadata": {"name": "high"}, "value": 1000})
    space = Space(api, "priority")
    until(lambda: space.has(["4", "4"]), "there are Pods", space.cpus)
    until(lambda: all(one["spec"].get("nodeName") for one in space.pods()), "each has a node", space.pods)
    for one in space.pods():
        api.patch(f"{space.path}/pods/{one['metadata']['name']}/status", {"status": {"phase": "Running"}})
    until(lambda: space.cluster.want(WAITS) is not None and len(space.cluster.machines()) == 2, "both run", space.pods)
    container = {"name": "main", "image": "x", "resources": {"requests": {"cpu": "4"}}}
    space.make("pods", {"metadata": {"name": "high"}, "spec": {"containers": [container], "priorityClassName": "high"}})

    def leaving() -> list[bool]:
        _are_ready(api)
        space.cluster.want(DemandReport(waits=(), busy={}))
        return sorted(machine.leaving for machine in space.cluster.machines())

    until(lambda: leaving() == [False, True], "one of them leaves", leaving)
    api.delete(f"{space.path}/pods/high", {"gracePeriodSeconds": 0})
    space.close()


def test_a_pod_whose_volume_does_not_exist_keeps_no_room(api: Api) -> None:
    space = Space(api, "volumes")
    claim = {"name": "data", "persistentVolumeClaim": {"claimName": "missing"}}
    container = {"name": "main", "image": "x", "resources": {"requests": {"cpu": "4"}}}
    spec = {"containers": [container], "volumes": [claim]}
    space.make("pods", {"metadata": {"name": "waits"}, "spec": spec})

    def condition() -> str:
        status = api.get(f"{space.path}/pods/waits")["status"]
        return str(next((of.get("message") for of in status.get("conditions", ()) if of["status"] == "False"), ""))

    until(condition, "its scheduler has tried")
    assert "persistentvolumeclaim" in condition().lower(), condition()
    until(lambda: space.has(["4", "4"]), "both nodes are used", condition)
    space.close()


def test_doctor_tells_that_a_namespace_does_not_exist(api: Api) -> None:
    [check] = [one for one in checks(Settings(namespace="absent")) if one.name == "a pod in absent"]
    assert (check.status, check.hint) == ("fail", "`kubectl create namespace absent`")
    with pytest.raises(Refused):
        api.get("/api/v1/namespaces/absent")


def _are_ready(api: Api) -> bool:
    """Report that the nodes are ready, as a kubelet repeats it; return whether their taints are gone."""
    now = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    ready = [{"type": "Ready", "status": "True", "reason": "KubeletReady", "lastHeartbeatTime": now}]
    for name in NODES:
        status = {"allocatable": AMOUNTS, "capacity": AMOUNTS, "conditions": ready}
        api.patch(f"/api/v1/nodes/{name}/status", {"status": status})
    return not any(one["spec"].get("taints") for one in api.get("/api/v1/nodes")["items"])
