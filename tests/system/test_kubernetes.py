"""Poise on Kubernetes: pilots in Pods, with real agents and commands.

Each test runs with a small API server that behaves on the wire as the real one, and with the real one of 1.20 where it
was built. Pods are processes here in both cases: this machine runs no containers.
"""

from collections.abc import Iterator
from typing import Any

import pytest
from drivers.kubernetes_api import Dropped

from poise.drivers.lock import holder
from poise_kubernetes import manifests
from system.kubernetes_cluster import SPACE
from system.living import Living, kill, until
from system.onkubernetes import NODES, SERVERS, Cluster, OnCluster, cluster_of

WAITS = "until [ -e {} ]; do sleep 0.1; done; echo epoch $POISE_EPOCH"


class OnKubernetes(OnCluster):
    """A cluster, and a home whose nodes are Pods there."""

    def pods(self, ours: bool = True) -> list[dict[str, Any]]:
        found = self.api.get(f"/api/v1/namespaces/{SPACE}/pods")["items"]
        return [one for one in found if (manifests.MANAGED in (one["metadata"].get("labels") or {})) == ours]

    def pod_of(self, node: str) -> str:
        """The name of the Pod that this node of Poise is."""
        return next(of.labels["allocation"] for of in self.living.client().nodes() if of.name == node)

    def delete(self, name: str, **options: int) -> None:
        self.api.delete(f"/api/v1/namespaces/{SPACE}/pods/{name}", options)

    def messages(self) -> str:
        logs = [path.read_text(errors="replace")[-1500:] for path in self.living.root.glob("m/*/*/container.log")]
        return "\n".join([self.living.messages()[-4000:], *logs, str(self.pods())])


@pytest.fixture(scope="module", params=SERVERS)
def on(request: pytest.FixtureRequest) -> Iterator[OnKubernetes]:
    with cluster_of(request.param) as cluster:
        yield from _living(cluster)


def _living(cluster: Cluster) -> Iterator[OnKubernetes]:
    living = Living()
    try:
        on = OnKubernetes(living, cluster)
        try:
            on.up("kubernetes:image=poise:test,priority=poise,idle=600s,grace=20s")
            yield on
            assert living.poise("down", "--cancel").code == 0
            until(lambda: not on.pods(), "all pods have gone", on.messages)
            until(lambda: not living.processes(), "nothing is left", living.processes)
        finally:
            on.end()
    finally:
        living.destroy()


def test_work_that_waits_gets_a_pod_and_its_token_is_in_the_secret_alone(on: OnKubernetes) -> None:
    assert on.pods() == [], "nothing waits"
    job = on.submit("echo $POISE_JOB", expect="1s")
    assert on.living.poise("wait", job).code == 0, on.messages()
    assert on.living.client().job(job).tasks[0].node in NODES
    [one] = on.pods()
    assert (on.living.home.root / "kubernetes" / "token").read_text() not in str(one)
    [check] = [of for of in on.living.poise("doctor", "--json").value["checks"] if of["name"] == "Kubernetes"]
    assert check["status"] == "ok"


def test_a_pod_is_used_by_all_work_that_fits_and_no_task_writes_to_the_api(on: OnKubernetes) -> None:
    before = [(one["metadata"]["name"], one["metadata"]["annotations"]) for one in on.pods()]
    jobs = [on.submit("true", expect="0.01s") for _ in range(30)]
    assert [on.living.poise("wait", job).code for job in jobs] == [0] * 30
    assert [(one["metadata"]["name"], one["metadata"]["annotations"]) for one in on.pods()] == before


def test_doctor_tells_the_version_the_rights_and_the_room(on: OnKubernetes) -> None:
    done = on.living.poise("doctor", "--on", "kubernetes", "--json")
    assert done.code == 0, done.err
    found = {check["name"]: check["text"] for check in done.value["checks"]}
    assert "is v1.20" in found["API server"]
    assert found["rights to secrets"] == f"create, get, patch, delete in {SPACE}"
    assert found["nodes"].startswith("3 of 3 can be used")


def test_a_pod_that_is_evicted_moves_its_work_in_time(on: OnKubernetes) -> None:
    job = on.submit("[ $POISE_EPOCH = 2 ] || exec sleep 1000; echo moved", expect="5s")
    node = on.until_running(job)
    pod = on.pod_of(node)
    on.delete(pod)
    assert on.living.poise("wait", job).code == 0, on.messages()
    assert on.living.poise("logs", job).text == "moved\n"
    until(lambda: pod not in {one["metadata"]["name"] for one in on.pods()}, "the pod has gone", on.messages)
    assert on.living.tasks() == []


def test_work_of_a_pod_that_is_deleted_by_force_runs_again_and_nothing_of_it_goes_on(on: OnKubernetes) -> None:
    job = on.submit("[ $POISE_EPOCH = 2 ] || exec sleep 1000; echo again", expect="5s")
    node = on.until_running(job)
    on.delete(on.pod_of(node), gracePeriodSeconds=0)
    assert on.living.poise("wait", job).code == 0, on.messages()
    assert on.living.poise("logs", job).text == "again\n"
    until(lambda: on.living.tasks() == [], "the first one has been ended", on.living.processes)


def test_a_keeper_that_is_killed_creates_nothing_twice_and_work_goes_on(on: OnKubernetes) -> None:
    released = on.living.work / "keeper"
    job = on.submit(WAITS.format(released), expect="5s")
    on.until_running(job)
    known = {one["metadata"]["uid"] for one in on.pods()}
    lock = on.living.home.root / "kubernetes" / "lock"
    before = holder(lock)
    kill(before)
    until(lambda: holder(lock) not in (0, before), "there is another keeper", on.messages)
    second = on.submit("true", expect="1s", resources={"cpu": 2})
    assert on.living.poise("wait", second).code == 0, on.messages()
    released.touch()
    assert on.living.poise("wait", job).code == 0
    assert on.living.poise("logs", job).text == "epoch 1\n"
    assert known <= {one["metadata"]["uid"] for one in on.pods()}


def test_running_work_does_not_notice_that_the_api_server_is_away(on: OnKubernetes) -> None:
    released = on.living.work / "away"
    job = on.submit(WAITS.format(released), expect="5s")
    on.until_running(job)
    if on.real is not None:
        on.real.kill("kube-apiserver")
    else:
        assert on.small is not None
        on.small.fault = _away
        on.small.cut()
    released.touch()
    assert on.living.poise("wait", job).code == 0
    assert on.living.poise("logs", job).text == "epoch 1\n"
    if on.real is not None:
        on.real.start_server()
    else:
        assert on.small is not None
        on.small.fault = lambda method, path: None
    after = on.submit("true", expect="1s", resources={"cpu": 2})
    assert on.living.poise("wait", after).code == 0, on.messages()


def _away(method: str, path: str) -> None:
    raise Dropped


def test_idle_pods_give_way_to_pods_of_others(on: OnKubernetes) -> None:
    job = on.submit("true", expect="1s", resources={"cpu": 2}, workers=3)
    assert on.living.poise("wait", job).code == 0, on.messages()
    container = {"name": "main", "image": "x", "command": ["sleep", "1000"], "resources": {"requests": {"cpu": "2"}}}
    theirs = {"metadata": {"name": "theirs"}, "spec": {"containers": [container], "terminationGracePeriodSeconds": 1}}
    on.api.create(f"/api/v1/namespaces/{SPACE}/pods", theirs)

    def runs() -> bool:
        return bool(on.api.get(f"/api/v1/namespaces/{SPACE}/pods/theirs")["status"].get("phase") == "Running")

    until(runs, "it has got a node", on.messages)
    waits = on.submit("true", expect="1s", resources={"cpu": 2})
    assert on.living.poise("wait", waits).code == 0, on.messages()
    on.delete("theirs")
    until(lambda: not on.pods(ours=False), "it has gone", on.messages)


def test_work_that_no_node_can_hold_is_told_by_explain(on: OnKubernetes) -> None:
    job = on.submit("true", resources={"cpu": 64})
    text = "no pod for 1 task: no node that Poise may use is large enough: 64 CPU"
    until(lambda: text in on.living.poise("explain", job).err, "the keeper has looked", on.messages)
    assert on.living.poise("cancel", job).code == 0
