"""One control plane for two Kubernetes clusters, each with a small API server. Their nodes have the same names."""

from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml
from drivers.kubernetes_api import KubernetesApi, kubernetes_api

from poise.drivers.kubernetes.credentials import find_access
from system.kubelet import Kubelet
from system.kubernetes_cluster import SPACE
from system.living import Living, free_port, until
from system.substrate import OnSubstrate

SETTINGS = "image=poise:test,idle=600s,grace=20s"


class OnTwo(OnSubstrate):
    """A home on two clusters, `east` and `west`. Each has one node `n1` with 2 CPUs."""

    def __init__(self, living: Living, east: KubernetesApi, west: KubernetesApi) -> None:
        self.living = living
        living.variables["KUBECONFIG"] = str(_both(living.root, east, west))
        self.kubelets = []
        for name in ("east", "west"):
            access = find_access(name, {"KUBECONFIG": living.variables["KUBECONFIG"]})
            self.kubelets.append(Kubelet(access, "n1", living.root / name, {}))
            self.kubelets[-1].start()

    def messages(self) -> str:
        return self.living.messages()[-4000:]

    def cluster_of(self, job: str) -> str:
        """Return the label of the node where a job ran."""
        name = self.living.client().job(job).tasks[0].node
        assert name.partition("-")[0] in ("east", "west")
        return next(node.labels["substrate"] for node in self.living.client().nodes() if node.name == name)


def _both(folder: Path, east: KubernetesApi, west: KubernetesApi) -> Path:
    """Write a kubeconfig with a context for each API server."""
    merged: dict[str, list[object]] = {"contexts": [], "clusters": [], "users": []}
    for name, api in (("east", east), ("west", west)):
        own = yaml.safe_load(api.kubeconfig(folder / name, SPACE).read_text())
        merged["clusters"].append({**own["clusters"][0], "name": name})
        merged["users"].append({**own["users"][0], "name": name})
        context = {"cluster": name, "user": name, "namespace": SPACE}
        merged["contexts"].append({"name": name, "context": context})
        (folder / name).unlink()
    file = folder / "both"
    file.write_text(yaml.safe_dump(merged))
    return file


@pytest.fixture(scope="module")
def on() -> Iterator[OnTwo]:
    with kubernetes_api() as east, kubernetes_api() as west:
        living = Living()
        try:
            on = OnTwo(living, east, west)
            try:
                both = [of for name in ("east", "west") for of in ("--on", f"{name}=kubernetes:{name},{SETTINGS}")]
                done = living.poise("up", "--port", "0", *both, "--listen", f"127.0.0.1:{free_port()}")
                assert done.code == 0, done.err
                yield on
                assert living.poise("down", "--cancel").code == 0
                until(lambda: not living.processes(), "nothing is left", living.processes)
            finally:
                for kubelet in on.kubelets:
                    kubelet.stop()
        finally:
            living.destroy()


def test_work_runs_on_the_cluster_that_it_names_and_explain_compares_both(on: OnTwo) -> None:
    client = on.living.client()
    for name in ("east", "west"):
        job = on.submit("true", resources={"cpu": 1, "label": {"substrate": name}})
        assert on.living.poise("wait", job).code == 0, on.messages()
        assert on.cluster_of(job) == name
    job = on.submit("true", resources={"cpu": 64})
    found = until(lambda: {one.substrate for one in client.explain(job).prospects}, "they are compared", on.messages)
    assert {"east", "west"} <= found
    checks = {check["name"] for check in on.living.poise("doctor", "--json").value["checks"]}
    assert {"Kubernetes `east`", "Kubernetes `west`"} <= checks


@pytest.mark.parametrize(
    ("given", "hint"),
    [
        (("kubernetes:east", "kubernetes:west"), "--on NAME=kubernetes:west"),
        (("x=kubernetes:east", "x=kubernetes:west"), "--on NAME=kubernetes:west"),
        (("nodes=kubernetes:east",), "--on NAME=kubernetes:east"),
        (("a_b=kubernetes:east",), "--on NAME=kubernetes:east"),
    ],
)
def test_each_cluster_has_a_name_of_its_own(given: tuple[str, ...], hint: str) -> None:
    living = Living()
    try:
        done = living.poise("up", *(of for one in given for of in ("--on", one)), "--json")
        assert (done.code, done.error["field"]) == (1, "--on")
        assert hint in done.error["hint"]
    finally:
        living.destroy()
