"""Pods that Poise places, on the code of a real kubelet: nodes of kubemark 1.20, which pretend to have containers."""

from collections.abc import Iterator
from typing import Any

import pytest

from poise.drivers.kubernetes.api import Api
from system.kubernetes_cluster import SPACE, KubernetesCluster, kubernetes
from system.living import Living, until
from system.substrate import OnSubstrate

NODES = ("hollow-1", "hollow-2")
"""Each has one CPU, whatever this machine has."""


class OnHollow(OnSubstrate):
    def __init__(self, living: Living, real: KubernetesCluster) -> None:
        self.living, self.real, self.api = living, real, Api(real.access("admin"))
        living.variables["KUBECONFIG"] = str(real.kubeconfig("own", "user"))

    def pods(self) -> dict[str, dict[str, Any]]:
        found = self.api.get(f"/api/v1/namespaces/{SPACE}/pods")["items"]
        return {one["metadata"]["name"]: one for one in found}

    def create(self, name: str, **labels: str) -> None:
        container = {"name": "main", "image": "x", "resources": {"requests": {"cpu": "600m"}}}
        body = {
            "metadata": {"name": name, "labels": labels},
            "spec": {"containers": [container], "schedulerName": "poise"},
        }
        self.api.create(f"/api/v1/namespaces/{SPACE}/pods", body)

    def run_on(self, *names: str) -> dict[str, str]:
        """The nodes of these Pods, once all run."""
        until(
            lambda: all(self.pods()[name]["status"].get("phase") == "Running" for name in names),
            f"{names} run",
            self.messages,
        )
        return {name: self.pods()[name]["spec"]["nodeName"] for name in names}

    def messages(self) -> str:
        return f"{self.living.messages()[-4000:]}\n{self.pods()}\n{self.real.messages()}"


@pytest.fixture(scope="module")
def on() -> Iterator[OnHollow]:
    with kubernetes("kubemark", schedules=True) as real:
        living = Living()
        try:
            on = OnHollow(living, real)
            for name in NODES:
                real.start_hollow(name)
            until(lambda: len(_ready(on.api)) == len(NODES), "all nodes are ready", real.messages)
            on.up("kubernetes:scheduler=poise")
            yield on
            assert living.poise("down", "--cancel").code == 0
        finally:
            living.destroy()


def test_a_gang_runs_on_both_nodes_and_a_pod_beyond_them_waits(on: OnHollow) -> None:
    gang = {"pod-group.scheduling.sigs.k8s.io/name": "g", "pod-group.scheduling.sigs.k8s.io/min-available": "2"}
    for name in ("g-0", "g-1"):
        on.create(name, **gang)
    assert set(on.run_on("g-0", "g-1").values()) == {*NODES}
    on.create("more")
    until(lambda: f"{SPACE}.more" in {job.name for job in on.living.client().jobs()}, "it is a job", on.messages)
    assert not on.pods()["more"]["spec"].get("nodeName")
    on.api.delete(f"/api/v1/namespaces/{SPACE}/pods/g-0", {"gracePeriodSeconds": 0})
    on.api.delete(f"/api/v1/namespaces/{SPACE}/pods/g-1", {"gracePeriodSeconds": 0})
    assert on.run_on("more")["more"] in NODES
    on.api.delete(f"/api/v1/namespaces/{SPACE}/pods/more", {"gracePeriodSeconds": 0})


def test_a_task_with_an_image_runs_as_a_pod_and_ends_with_it(on: OnHollow) -> None:
    job = on.living.client().submit({"run": ["x"], "image": "x", "resources": {"cpu": 0.5}, "sync": False})
    assert on.until_running(job) in NODES
    [name] = [of for of in on.pods() if of.startswith("poise-")]
    assert on.living.poise("cancel", job).code == 0
    until(lambda: name not in on.pods(), "its pod has gone", on.messages)
    until(lambda: on.living.client().job(job).status == "cancelled", "its end is known", on.messages)


def _ready(api: Api) -> list[str]:
    return [
        node["metadata"]["name"]
        for node in api.get("/api/v1/nodes")["items"]
        if any(of["type"] == "Ready" and of["status"] == "True" for of in node["status"].get("conditions", ()))
    ]
