"""One control plane over this machine, a real Slurm and a Kubernetes with a small API server, all at once."""

import signal
from collections.abc import Iterator

import pytest

from poise.model.reports.demand import Prospect
from system.living import Living, free_port, kill, until
from system.onkubernetes import OnCluster, cluster_of
from system.onslurm import OnSlurm
from system.slurm_cluster import slurm

WAITS = "until [ -e {} ]; do sleep 0.1; done; echo epoch $POISE_EPOCH"
KUBERNETES, SLURM = "kubernetes:image=poise:test,idle=600s,grace=20s", "slurm:main,nodes=2,idle=600"


class Hybrid(OnSlurm):
    """A home on all of them."""

    def cluster_of(self, job: str) -> str:
        """The label of the node on which a job runs or ran."""
        name = self.living.client().job(job).tasks[0].node
        return next(node.labels for node in self.living.client().nodes() if node.name == name).get("substrate", "")

    def prospects(self, job: str) -> dict[str, Prospect]:
        """How a job that waits is expected to fare on each of them, once all have said."""

        def told() -> dict[str, Prospect]:
            found = {one.substrate: one for one in self.living.client().explain(job).prospects}
            return found if found.keys() == {"", "kubernetes", "slurm"} else {}

        found: dict[str, Prospect] = until(told, "all clusters are compared", self.messages)
        return found


@pytest.fixture(scope="module")
def on() -> Iterator[Hybrid]:
    with slurm(2) as cluster, cluster_of("small") as kubernetes:
        living = Living()
        try:
            on = Hybrid(cluster, living)
            pods = OnCluster(living, kubernetes)
            try:
                listen = f"127.0.0.1:{free_port()}"
                clusters = ("--on", "local", "--on", KUBERNETES, "--on", SLURM)
                done = living.poise("up", "--port", "0", *clusters, "--listen", listen)
                assert done.code == 0, done.err
                assert "on Kubernetes at image=poise:test,idle=600s,grace=20s and this machine and Slurm at" in done.err
                yield on
                cluster.start_control()
                assert living.poise("down", "--cancel").code == 0
                until(lambda: not living.processes(), "nothing is left", living.processes)
            finally:
                pods.end()
        finally:
            living.destroy()


def test_work_goes_where_it_is_expected_to_end_first_and_ends_on_another_cluster_if_that_is_gone(on: Hybrid) -> None:
    """In one story, since each part needs what the one before it has started."""
    client, released = on.living.client(), on.living.work / "released"
    [here] = until(lambda: client.nodes(), "this machine is a node", on.messages)
    runs = on.submit(WAITS.format(on.living.work / "long"), resources={"cpu": here.cpu / 1000}, expect="2h")
    on.until_running(runs)
    assert on.cluster_of(runs) == ""

    job = on.submit(WAITS.format(released), expect="1m")
    prospects = on.prospects(job)
    assert {name: one.chosen for name, one in prospects.items()} == {"": False, "kubernetes": False, "slurm": True}
    assert prospects["slurm"].end < prospects["kubernetes"].end < prospects[""].end
    node = on.until_running(job)
    assert (node.startswith("slurm-n"), on.cluster_of(job)) == (True, "slurm")
    asked = on.cluster.calls("sbatch")

    there = on.submit("true", expect="1s", resources={"cpu": 1, "label": {"substrate": "kubernetes"}})
    assert on.living.poise("wait", there).code == 0, on.messages()
    assert on.cluster_of(there) == "kubernetes"
    assert on.cluster.calls("sbatch") == asked, "nothing is requested twice"
    shown = on.living.poise("nodes").text
    assert "CLUSTER" in shown
    assert "kubernetes" in shown

    on.cluster.kill("slurmctld")
    for pid, command in on.living.processes().items():
        if "poise_slurm.pilot" in command:
            kill(pid, signal.SIGTERM)  # as Slurm ends them
    until(lambda: client.job(job).tasks[0].epoch == 2, "it has another attempt", on.messages)
    assert on.cluster_of(job) == "kubernetes"
    released.touch()
    assert on.living.poise("wait", job).code == 0, on.messages()
    assert on.living.poise("logs", job).text == "epoch 2\n"
    assert client.job(runs).tasks[0].epoch == 1, "this machine is not disturbed"


def test_a_cluster_is_given_once_and_is_checked_with_the_others(on: Hybrid) -> None:
    done = on.living.poise("up", "--on", "slurm:main", "--on", "slurm:short", "--json")
    assert (done.code, done.error["field"], done.error["have"]) == (1, "--on", "slurm:main, slurm:short")
    done = on.living.poise("up", "--on", "slurm:main", "--json")
    assert (done.code, done.error["have"]) == (1, f"{KUBERNETES}, local, {SLURM}")
    checks = on.living.poise("doctor", "--json").value["checks"]
    assert {"Kubernetes", "Slurm"} <= {check["name"] for check in checks}
    assert "Local" not in {check["name"] for check in checks}
