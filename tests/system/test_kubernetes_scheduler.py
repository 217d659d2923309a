"""Poise as a scheduler of Kubernetes: Pods of others are bound by a real control plane.

Each test runs with a small API server that behaves on the wire as the real one, and with the real one of 1.20 where it
was built. Pods are processes here in both cases: this machine runs no containers.
"""

from collections.abc import Iterator, Mapping
from typing import Any

import pytest

from poise.drivers.lock import holder
from system.kubernetes_cluster import SPACE
from system.living import Living, kill, until
from system.onkubernetes import NODES, SERVERS, Cluster, OnCluster, cluster_of

GROUP = "scheduling.x-k8s.io/pod-group"
LEAST = "pod-group.scheduling.sigs.k8s.io/min-available"


class AsScheduler(OnCluster):
    """A cluster, and a home that schedules Pods there with the rights of `deploy/kubernetes/scheduler` alone."""

    def __init__(self, living: Living, cluster: Cluster) -> None:
        super().__init__(living, cluster)
        if self.small is not None:
            kubelets = self.kubelets.values()
            self.small.output = lambda uid: next(filter(None, (kubelet.output(uid) for kubelet in kubelets)), b"")

    def create(
        self,
        name: str,
        run: str = "true",
        cpu: str = "1",
        where: str = "",
        group: str = "",
        claim: str = "",
        volume: str = "",
        selector: Mapping[str, str] | None = None,
        **metadata: Any,
    ) -> None:
        """A Pod that Poise places, or that another scheduler has placed on a node; or one of a PodGroup, or with a
        ResourceClaim, a PersistentVolumeClaim, or a selector of nodes.
        """
        held = {"requests": {"cpu": cpu}}
        container = {"name": "main", "image": "x", "command": ["sh", "-c", run], "resources": held}
        spec: dict[str, Any] = {"containers": [container], "restartPolicy": "Never", "terminationGracePeriodSeconds": 1}
        spec |= {"schedulingGroup": {"podGroupName": group}} if group else {}
        spec |= {"resourceClaims": [{"name": "device", "resourceClaimName": claim}]} if claim else {}
        spec |= {"volumes": [{"name": "data", "persistentVolumeClaim": {"claimName": volume}}]} if volume else {}
        spec |= {"nodeSelector": dict(selector)} if selector else {}
        spec |= {"nodeName": where} if where else {"schedulerName": "poise"}
        body = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name, **metadata}, "spec": spec}
        self.api.create(f"/api/v1/namespaces/{SPACE}/pods", body)

    def create_gang(self, name: str, count: int, cpu: str) -> list[str]:
        """The Pods of a gang: of a PodGroup of Kubernetes itself where it is served (1.36), else with labels."""
        names = [f"{name}-{number}" for number in range(count)]
        if self.small is not None:
            policy = {"gang": {"minCount": count}}
            self.small.put("podgroups", name, SPACE, spec={"schedulingPolicy": policy})
        for one in names:
            if self.small is not None:
                self.create(one, cpu=cpu, group=name)
            else:
                self.create(one, cpu=cpu, labels={GROUP: name, LEAST: str(count)})
        return names

    def pods(self) -> dict[str, dict[str, Any]]:
        found = self.api.get(f"/api/v1/namespaces/{SPACE}/pods")["items"]
        return {one["metadata"]["name"]: one for one in found}

    def until_ended(self, *names: str) -> None:
        def over() -> bool:
            return all(self.pods()[name]["status"].get("phase") == "Succeeded" for name in names)

        until(over, f"{names} have run", self.messages)

    def delete(self, *names: str) -> None:
        for name in names:
            self.api.delete(f"/api/v1/namespaces/{SPACE}/pods/{name}", {"gracePeriodSeconds": 0})

    def events(self, pod: str) -> list[dict[str, Any]]:
        found = self.api.get(f"/api/v1/namespaces/{SPACE}/events")["items"]
        return [one for one in found if one["involvedObject"]["name"] == pod and one["source"]["component"] == "poise"]

    def messages(self) -> str:
        waits = self.living.poise("ls", "--all").text
        return f"{self.living.messages()[-4000:]}\n{waits}\n{self.pods()}"


@pytest.fixture(scope="module", params=SERVERS)
def on(request: pytest.FixtureRequest) -> Iterator[AsScheduler]:
    with cluster_of(request.param, schedules=True) as cluster:
        yield from _living(cluster)


def _living(cluster: Cluster) -> Iterator[AsScheduler]:
    living = Living()
    try:
        on = AsScheduler(living, cluster)
        try:
            on.up("kubernetes:scheduler=poise")
            yield on
            assert living.poise("down", "--cancel").code == 0
            until(lambda: not living.processes(), "nothing is left", living.processes)
        finally:
            on.end()
    finally:
        living.destroy()


def test_pods_that_name_poise_run_and_are_jobs(on: AsScheduler) -> None:
    names = [f"one-{number}" for number in range(8)]
    for name in names:
        on.create(name)
    on.until_ended(*names)
    jobs = {job.name: job.status for job in on.living.client().jobs(statuses=("done", "running", "pending"))}
    until(lambda: on.living.client().job(f"{SPACE}.one-0").status == "done", "its job has ended", on.messages)
    assert {f"{SPACE}.{name}" for name in names} <= jobs.keys()


def test_a_pod_that_fits_nowhere_is_told_why_by_an_event_and_by_poise(on: AsScheduler) -> None:
    on.create("large", cpu="64")
    until(lambda: on.events("large"), "it was told", on.messages)
    [event] = on.events("large")
    assert event["reason"] == "FailedScheduling"
    assert "64" in event["message"]
    assert f"`poise explain {SPACE}.large`" in event["message"]
    assert "64" in on.living.poise("explain", f"{SPACE}.large").text
    assert "64" in on.living.poise("why-not", f"{SPACE}.large", "n1").text
    on.create("choosy", selector={"disk": "ssd"})
    until(lambda: on.events("choosy"), "it was told", on.messages)
    why = on.living.poise("why-not", f"{SPACE}.choosy", "n1")
    assert "its selectors and affinity exclude the node" in why.err
    on.delete("choosy", "large")
    until(lambda: on.living.client().job(f"{SPACE}.large").status == "cancelled", "its job has gone", on.messages)


def test_cancelling_the_job_of_a_pod_that_waits_deletes_the_pod_and_an_event_says_so(on: AsScheduler) -> None:
    on.create("unwanted", cpu="64")
    until(lambda: on.events("unwanted"), "it waits", on.messages)
    assert on.living.poise("cancel", f"{SPACE}.unwanted").code == 0
    until(lambda: "unwanted" not in on.pods(), "its Pod has gone", on.messages)
    assert any("was cancelled in Poise" in event["message"] for event in on.events("unwanted"))


def test_a_gang_is_bound_once_all_of_it_has_room(on: AsScheduler) -> None:
    on.create("theirs", "sleep 1000", "2", where="n1")
    names = on.create_gang("gang", 3, cpu="2")
    until(lambda: on.events("gang-0"), "it was told", on.messages)
    told = on.living.poise("explain", f"{SPACE}.gang-1", "--json")
    assert told.value["name"] == f"{SPACE}.gang", told.err
    assert "n1" in on.living.poise("why-not", f"{SPACE}.gang-1", "n1").text
    on.create("lone", labels={GROUP: "gan", LEAST: "2"})
    until(lambda: on.events("lone"), "it was told", on.messages)
    told = on.living.poise("explain", f"{SPACE}.lone")
    assert f"`{SPACE}.lone` has no job yet" in told.err, "the name of its group is how that of another begins"
    assert "waits for 1 more of 2 Pods" in told.err
    assert "more of 2 Pods" not in on.living.poise("explain", f"{SPACE}.gang").err, "it concerns another one"
    on.delete("lone")
    unknown = on.living.poise("explain", f"{SPACE}.gang-9")
    assert unknown.code != 0
    assert "has no job yet" not in unknown.err
    assert not any(on.pods()[name]["spec"].get("nodeName") for name in names)
    on.delete("theirs")
    on.until_ended(*names)


def test_a_pod_goes_to_the_devices_that_it_claims(on: AsScheduler) -> None:
    if on.small is None:
        pytest.skip("Kubernetes 1.20 does not serve `resource.k8s.io/v1`")
    devices = [{"name": "npu-0", "attributes": {"model": {"string": "X1"}}}]
    pool = {"name": NODES[1], "generation": 1, "resourceSliceCount": 1}
    on.small.put(
        "resourceslices",
        "x",
        spec={"driver": "npu.example.org", "pool": pool, "nodeName": NODES[1], "devices": devices},
    )
    on.small.put("deviceclasses", "npu", spec={"selectors": [{"cel": {"expression": "device.driver != ''"}}]})
    exactly = {"deviceClassName": "npu", "allocationMode": "ExactCount", "count": 1}
    on.create("claims", claim="one")
    until(lambda: "`one` does not exist" in str(on.events("claims")), "it was told", on.messages)
    on.small.put("resourceclaims", "one", SPACE, spec={"devices": {"requests": [{"name": "npu", "exactly": exactly}]}})
    on.until_ended("claims")
    assert on.pods()["claims"]["spec"]["nodeName"] == NODES[1]
    status = on.small.get("resourceclaims", "one", SPACE)["status"]
    assert [of["device"] for of in status["allocation"]["devices"]["results"]] == ["npu-0"]
    assert [of["name"] for of in status["reservedFor"]] == ["claims"]
    found = on.living.poise("doctor", "--on", "kubernetes:scheduler=poise", "--json").value["checks"]
    assert {"rights to resourceclaims", "rights to resourceclaims/status"} <= {check["name"] for check in found}


def test_a_volume_is_provisioned_for_the_node_of_its_first_pod_which_then_runs_there(on: AsScheduler) -> None:
    meta = {"metadata": {"name": "slow"}}
    mode = {"provisioner": "disks.example.org", "volumeBindingMode": "WaitForFirstConsumer"}
    on.api.create("/apis/storage.k8s.io/v1/storageclasses", meta | mode)
    on.create("stored", volume="data")
    until(lambda: "`data` does not exist" in str(on.events("stored")), "it was told", on.messages)
    sizes = {"accessModes": ["ReadWriteOnce"], "storageClassName": "slow"}
    asks = {"metadata": {"name": "data"}, "spec": sizes | {"resources": {"requests": {"storage": "1Gi"}}}}
    claims = f"/api/v1/namespaces/{SPACE}/persistentvolumeclaims"
    on.api.create(claims, asks)

    def selected() -> str:
        notes = on.api.get(f"{claims}/data")["metadata"].get("annotations") or {}
        return str(notes.get("volume.kubernetes.io/selected-node", ""))

    until(selected, "its node is chosen", on.messages)
    until(lambda: "is being provisioned" in str(on.events("stored")), "it was told", on.messages)
    assert not on.pods()["stored"]["spec"].get("nodeName")
    host = {"key": "kubernetes.io/hostname", "operator": "In", "values": [selected()]}
    volume: dict[str, Any] = sizes | {"capacity": {"storage": "1Gi"}, "hostPath": {"path": "/data"}}
    volume |= {"claimRef": {"namespace": SPACE, "name": "data"}}
    volume |= {"nodeAffinity": {"required": {"nodeSelectorTerms": [{"matchExpressions": [host]}]}}}
    on.api.create("/api/v1/persistentvolumes", {"metadata": {"name": "disk"}, "spec": volume})
    on.api.patch(f"{claims}/data", {"spec": {"volumeName": "disk"}})
    on.api.patch(f"{claims}/data/status", {"status": {"phase": "Bound"}})
    on.until_ended("stored")
    assert on.pods()["stored"]["spec"]["nodeName"] == selected()


def test_a_command_beside_a_pod_is_refused_with_that_of_kubectl(on: AsScheduler) -> None:
    on.create("beside", "sleep 1000")
    until(lambda: on.pods()["beside"]["status"].get("phase") == "Running", "it runs", on.messages)
    until(lambda: on.living.client().job(f"{SPACE}.beside").status == "running", "that is known", on.messages)
    for command in (["exec", f"{SPACE}.beside", "--", "true"], ["get", f"{SPACE}.beside:out.txt"]):
        done = on.living.poise(*command)
        assert done.code != 0
        assert f"-n {SPACE} beside" in done.err
    on.delete("beside")


def test_a_scheduler_that_is_killed_places_nothing_twice_and_knows_what_runs(on: AsScheduler) -> None:
    on.create("before", "sleep 1000")
    until(lambda: on.pods()["before"]["status"].get("phase") == "Running", "it runs", on.messages)
    lock = on.living.home.root / "kubernetes" / "lock"
    first = holder(lock)
    kill(first)
    on.create("after")
    until(lambda: holder(lock) not in (0, first), "there is another one", on.messages)
    on.until_ended("after")
    assert on.living.client().job(f"{SPACE}.before").status == "running"
    on.delete("before")
    until(lambda: on.living.client().job(f"{SPACE}.before").status == "failed", "its end is known", on.messages)


def test_doctor_checks_the_rights_of_a_scheduler(on: AsScheduler) -> None:
    done = on.living.poise("doctor", "--on", "kubernetes:scheduler=poise", "--json")
    assert done.code == 0, done.err
    found = {check["name"]: check["text"] for check in done.value["checks"]}
    assert found["rights to pods/binding"] == "create in all namespaces"


def test_a_task_with_an_image_is_a_pod_whose_exit_code_and_output_come_back(on: AsScheduler) -> None:
    run = ["sh", "-c", "echo $POISE_TASK of $POISE_EPOCH, $COLOUR; exit 3"]
    done = on.living.poise("submit", "--image", "python:3.12", "--cpu", "1", "--env", "COLOUR=red", "--", *run)
    job = done.text.strip()
    assert on.living.poise("wait", job).code == 3, on.messages()
    assert on.living.client().job(job).tasks[0].epoch == 1, "a failure is not repeated unless that is asked for"
    if on.small is not None:  # nodes here have no server that a real API server could ask for it
        assert on.living.poise("logs", job).text == f"{job}.main of 1, red\n"
    until(lambda: not [of for of in on.pods() if of.startswith("poise-")], "its pod was removed", on.messages)


def test_a_gang_of_tasks_with_an_image_runs_on_different_pods(on: AsScheduler) -> None:
    run = ["sh", "-c", "test $POISE_WORLD_SIZE = 3"]
    job = on.living.client().submit({"run": run, "image": "x", "workers": 3, "resources": {"cpu": 2}, "sync": False})
    assert on.living.poise("wait", job).code == 0, on.messages()
    assert {of.node for of in on.living.client().job(job).tasks} == {*NODES}
