"""Pods of others that Poise places, in virtual time: the real control plane and placer, and a small API server."""

from collections.abc import Iterator
from typing import Any

import pytest

from drivers.kubernetes_api import node
from drivers.kubernetes_scheduled import Scheduled
from poise.drivers.kubernetes.objects import Meta
from poise.engine.network import DOWN
from poise.model.messages import Beat, FromAgent
from poise_kubernetes.placing import ATTEMPT, GAVE_UP, HOME, TOO_FEW
from poise_kubernetes.records import PodObject, PodSpec, PodStatus
from poise_kubernetes.scheduling import outcome_of


@pytest.fixture
def world() -> Iterator[Scheduled]:
    made = Scheduled()
    yield made
    made.close()


def test_a_pod_gets_a_node_by_one_write_and_its_job_ends_with_it(world: Scheduled) -> None:
    world.pod("one")
    world.run(5)
    assert set(world.on()) == {"one"}
    assert world.writes == 1
    assert world.jobs() == {"ml.one": "running"}
    world.end("one")
    world.run(5)
    assert world.jobs() == {"ml.one": "done"}


def test_another_poise_with_the_same_scheduler_name_is_noticed(world: Scheduled) -> None:
    world.pod("one", "100")
    world.run(5)
    assert world.placer.rival == ""
    world.api.patch("pods", "one", {"metadata": {"annotations": {HOME: "another"}}, "spec": {"nodeName": "a"}}, "ml")
    world.run(2)
    assert world.placer.rival == "another"


def test_a_pod_of_another_scheduler_is_left_alone_and_its_room_respected(world: Scheduled) -> None:
    world.theirs("theirs", "a", "3")
    world.api.put("pods", "waits", "team", spec={"schedulerName": "another", "containers": []})
    world.run(2)
    world.pod("large", "3")
    world.run(5)
    assert world.on() == {"theirs": "a", "large": "b"}
    world.pod("next", "2")
    world.run(5)
    assert "next" not in world.on()
    world.api.remove("pods", "theirs", "team")
    world.run(5)
    assert world.on()["next"] == "a"


def test_the_room_that_another_scheduler_has_made_by_preemption_is_left_to_it(world: Scheduled) -> None:
    for name in "ab":
        world.theirs(f"victim-{name}", name, "4")
    world.run(2)
    container = {"name": "main", "resources": {"requests": {"cpu": "4"}}}
    spec = {"schedulerName": "another", "priority": 1000, "containers": [container]}
    world.api.put("pods", "preempts", "team", spec=spec, status={"nominatedNodeName": "a"})
    world.api.remove("pods", "victim-a", "team")
    world.pod("one")
    world.run(10)
    assert "one" not in world.on()
    world.api.remove("pods", "preempts", "team")
    world.run(5)
    assert world.on()["one"] == "a"


def test_what_a_pod_requests_as_a_whole_counts_instead_of_its_containers(world: Scheduled) -> None:
    for number in range(3):
        world.pod(f"p{number}", "100m", resources={"requests": {"cpu": "3"}})
    world.run(5)
    assert sorted(world.on().values()) == ["a", "b"]


def test_a_gang_is_bound_whole_or_not_at_all(world: Scheduled) -> None:
    world.theirs("theirs", "a", "3")
    world.gang("train", 3, "2")
    world.run(20)
    assert set(world.on()) == {"theirs"}, "two of three would fit"
    world.api.remove("pods", "theirs", "team")
    world.run(5)
    assert len([name for name in world.on() if name.startswith("train")]) == 3


def test_a_gang_waits_for_all_its_pods(world: Scheduled) -> None:
    labels = {"scheduling.x-k8s.io/pod-group": "g"}
    world.groups = {"/apis/scheduling.x-k8s.io/v1alpha1/namespaces/ml/podgroups/g": {"spec": {"minMember": 2}}}
    world.pod("g-0", labels=labels)
    world.run(10)
    assert world.on() == {}
    assert [of.why for of in world.placer.waiting()] == ["its group waits for 1 more of 2 Pods"]
    world.pod("g-1", labels=labels)
    world.run(5)
    assert set(world.on()) == {"g-0", "g-1"}
    world.pod("g-2", labels=labels)
    world.run(5)
    assert set(world.on()) == {"g-0", "g-1", "g-2"}, "one beyond its least is placed as it comes"


def test_pods_of_an_earlier_run_that_are_being_deleted_do_not_count_for_a_gang(world: Scheduled) -> None:
    world.gang("train", 2)
    world.run(5)
    for name in world.names():
        world.end(name)
        world.api.patch("pods", name, {"metadata": {"deletionTimestamp": "2026-01-01T00:00:00Z"}}, "ml")
    world.run(5)
    labels = world.api.get("pods", "train-0", "ml")["metadata"]["labels"]
    world.pod("again-0", labels=labels)
    world.run(5)
    assert "again-0" not in world.on()
    world.pod("again-1", labels=labels)
    world.run(5)
    assert {"again-0", "again-1"} <= set(world.on())


def test_pods_of_a_pod_group_of_kubernetes_wait_until_it_exists(world: Scheduled) -> None:
    for number in range(2):
        world.pod(f"g-{number}", schedulingGroup={"podGroupName": "g"})
    world.run(10)
    assert world.on() == {}
    assert [of.why for of in world.placer.waiting()] == ["the size of its group is not known yet"]
    path = "/apis/scheduling.k8s.io/v1beta1/namespaces/ml/podgroups/g"
    world.groups[path] = {"spec": {"schedulingPolicy": {"gang": {"minCount": 3}}}}
    world.run(5)
    assert [of.why for of in world.placer.waiting()] == ["its group waits for 1 more of 3 Pods"]
    world.pod("g-2", schedulingGroup={"podGroupName": "g"})
    world.run(5)
    assert set(world.on()) == {"g-0", "g-1", "g-2"}
    world.groups[path.replace("/g", "/b")] = {"spec": {"schedulingPolicy": {"basic": {}}}}
    world.pod("b-0", schedulingGroup={"podGroupName": "b"})
    world.run(5)
    assert "b-0" in world.on(), "its Pods start one by one"


@pytest.mark.parametrize(("policy", "placed"), [("LeaderReady", {"l-0"}), ("LeaderCreated", set())])
def test_a_leader_whose_workers_are_created_once_it_is_ready_starts_without_them(
    policy: str, placed: set[str], world: Scheduled
) -> None:
    name = "leaderworkerset.sigs.k8s.io/name"
    labels, size = {name: "l"}, {"leaderworkerset.sigs.k8s.io/size": "2"}
    path = "/apis/leaderworkerset.x-k8s.io/v1/namespaces/ml/leaderworkersets/l"
    world.groups[path] = {"spec": {"leaderWorkerTemplate": {"size": 2}, "startupPolicy": policy}}
    world.pod("l-0", labels=labels, annotations=size)
    world.run(6)
    assert set(world.on()) == placed
    world.pod("l-0-1", labels=labels, annotations=size)
    world.run(5)
    assert set(world.on()) == {"l-0", "l-0-1"}


def _term(key: str, operator: str, *values: str) -> dict[str, Any]:
    terms = [{"matchExpressions": [{"key": key, "operator": operator, "values": list(values)}]}]
    required = {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": terms}}
    return {"affinity": {"nodeAffinity": required}}


TAINT = {"taints": [{"key": "gpu", "value": "yes", "effect": "NoSchedule"}]}

FILTERS: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "a selector": ({"nodeSelector": {"disk": "ssd"}}, {"metadata": {"labels": {"disk": "ssd"}}}),
    "an affinity": (_term("cores", "Gt", "8"), {"metadata": {"labels": {"cores": "16"}}}),
    "a device": ({"devices": {"amd.com/gpu": "1"}}, node(devices={"amd.com/gpu": "2"})),
    "another amount": ({"devices": {"example.com/foo": "1"}}, node(devices={"example.com/foo": "1"})),
}


@pytest.mark.parametrize("filter", FILTERS)
def test_a_pod_goes_only_where_the_node_is_what_it_asks_for(filter: str, world: Scheduled) -> None:
    asks, has = FILTERS[filter]
    world.pod("one", **asks)
    world.run(5)
    assert world.on() == {}
    world.api.patch("nodes", "b", has)
    world.run(5)
    assert world.on() == {"one": "b"}


def test_any_amount_that_the_api_server_takes_is_one_of_a_job(world: Scheduled) -> None:
    amounts = ("0", "0.1", "100m", "1n", "1e-1"), ("0", "128m", "512", "1e3", "1Ki")
    for number, (cpu, memory) in enumerate(zip(*amounts, strict=True)):
        world.pod(f"p{number}", cpu, devices={"memory": memory})
    world.pod("endless", "100m", activeDeadlineSeconds=2**31 - 1)
    world.run(10)
    assert len(world.on()) == 6, [of.why for of in world.placer.waiting()]


def test_a_pod_whose_job_is_refused_says_why(world: Scheduled) -> None:
    world.pod("huge", devices={"memory": "1E"})
    world.run(5)
    [waiting] = world.placer.waiting()
    assert waiting.why.startswith("the control plane refuses its job: resources.memory: the quantity is absurd")


def test_what_the_api_server_refuses_to_write_is_why_a_pod_or_a_task_waits(world: Scheduled) -> None:
    world.run(2)
    world.fault = lambda what: "refused"
    world.pod("one")
    world.job(name="task", image="x")
    world.run(20)
    found = {(tuple(of.metadata.name for of in one.pods), one.job): one.why for one in world.placer.waiting()}
    assert set(found) == {(("one",), "j2"), ((), "j1")}
    assert found[("one",), "j2"] in {f"it cannot be bound to {name}: refused" for name in "ab"}
    assert found[(), "j1"] in {f"its Pod cannot be created on {name}: refused" for name in "ab"}
    world.fault = lambda what: ""
    world.run(60)
    assert not world.placer.waiting()


NO_SIZES: dict[str, dict[str, Any]] = {
    "a word": {"labels": {"leaderworkerset.sigs.k8s.io/size": "four"}},
    "too many digits": {"annotations": {"scheduling.x-k8s.io/min-available": "9" * 5000}},
}


@pytest.mark.parametrize("size", NO_SIZES)
def test_a_size_of_a_gang_that_is_no_number_counts_as_not_stated(size: str, world: Scheduled) -> None:
    fields = NO_SIZES[size]
    world.pod("one", **{**fields, "labels": {"scheduling.x-k8s.io/pod-group": "g", **fields.get("labels", {})}})
    world.run(6)
    assert set(world.on()) == {"one"}


def test_an_affinity_to_more_than_a_number_of_64_bits_matches_no_node(world: Scheduled) -> None:
    world.api.patch("nodes", "a", {"metadata": {"labels": {"cores": "16"}}})
    for name, number in (("many", "9" * 5000), ("few", "8")):
        world.pod(name, **_term("cores", "Gt", number))
    world.run(5)
    assert world.on() == {"few": "a"}


REQUIRED = {"requiredDuringSchedulingIgnoredDuringExecution": [{"topologyKey": "kubernetes.io/hostname"}]}
PREFERRED = {"preferredDuringSchedulingIgnoredDuringExecution": [{"weight": 1}]}
RULES: dict[str, tuple[str, dict[str, Any]]] = {
    "anti-affinity": ("its required affinity", {"affinity": {"podAntiAffinity": REQUIRED}}),
    "affinity": ("its required affinity", {"affinity": {"podAffinity": REQUIRED}}),
    "spread": ("its topology spread", {"topologySpreadConstraints": [{"whenUnsatisfiable": "DoNotSchedule"}]}),
    "preferred anti-affinity": ("", {"affinity": {"podAntiAffinity": PREFERRED}}),
    "preferred spread": ("", {"topologySpreadConstraints": [{"whenUnsatisfiable": "ScheduleAnyway"}]}),
}


@pytest.mark.parametrize("rule", RULES)
def test_a_pod_with_a_rule_that_is_not_known_waits_if_the_rule_is_required(rule: str, world: Scheduled) -> None:
    why, fields = RULES[rule]
    world.pod("one", **fields)
    world.run(5)
    assert set(world.on()) == (set() if why else {"one"})
    told = [f"Poise does not support {why}"] if why else []
    assert [of.why[: len(told[0])] for of in world.placer.waiting()] == told


def test_a_taint_keeps_pods_off_unless_they_tolerate_it(world: Scheduled) -> None:
    for name in "ab":
        world.api.patch("nodes", name, {"spec": TAINT})
    world.pod("plain")
    world.pod("tolerant", tolerations=[{"key": "gpu", "operator": "Exists"}])
    world.run(5)
    assert set(world.on()) == {"tolerant"}
    assert world.placer.refusals("j1") == ["a, b: it does not tolerate the node's taints"]


def test_pods_that_tolerate_a_taint_of_kubernetes_are_of_another_kind(world: Scheduled) -> None:
    pressure = "node.kubernetes.io/disk-pressure"
    for name in "ab":
        world.api.patch("nodes", name, {"spec": {"taints": [{"key": pressure, "effect": "NoSchedule"}]}})
    world.pod("plain")
    world.run(2)
    world.pod("tolerant", tolerations=[{"key": pressure, "operator": "Exists"}])
    world.run(5)
    assert set(world.on()) == {"tolerant"}


def test_a_cordoned_node_gets_nothing(world: Scheduled) -> None:
    world.api.patch("nodes", "a", {"spec": {"unschedulable": True}})
    for number in range(6):
        world.pod(f"p{number}")
    world.run(5)
    assert set(world.on().values()) == {"b"}


def test_a_port_and_an_amount_of_a_node_are_given_once(world: Scheduled) -> None:
    for number in range(3):
        world.pod(f"port-{number}", "100m", ports=[8080])
    world.run(10)
    assert sorted(world.on().values()) == ["a", "b"]
    world.api.patch("nodes", "a", {"status": {"allocatable": {"example.com/foo": "2"}}})
    for number in range(3):
        world.pod(f"foo-{number}", "100m", devices={"example.com/foo": "1"})
    world.run(10)
    assert sum(name.startswith("foo") for name in world.on()) == 2


def test_a_gated_pod_waits_for_its_gate(world: Scheduled) -> None:
    world.pod("held", schedulingGates=[{"name": "quota"}])
    world.run(5)
    assert world.on() == {}
    world.api.patch("pods", "held", {"spec": {"schedulingGates": None}}, "ml")
    world.run(5)
    assert set(world.on()) == {"held"}


def test_a_place_of_a_gang_goes_to_the_pod_that_replaces_one_that_failed(world: Scheduled) -> None:
    world.gang("train", 4, "2")
    world.run(5)
    where = world.on()["train-2"]
    world.end("train-2", "Failed")
    world.pod("other", "2")
    world.run(5)
    assert "other" not in world.on(), "the place is kept"
    labels = world.api.get("pods", "train-0", "ml")["metadata"]["labels"]
    world.pod("train-2b", "2", labels=labels)
    world.run(5)
    assert world.on()["train-2b"] == where
    assert set(world.on()) >= {"train-0", "train-1", "train-3"}, "the others have run on"


def test_the_place_of_a_pod_that_was_replaced_elsewhere_is_free_for_others(world: Scheduled) -> None:
    for name in "ab":
        world.api.patch("nodes", name, {"status": {"allocatable": {"nvidia.com/gpu": "2"}}})
    world.run(2)
    world.gang("train", 3, devices={"nvidia.com/gpu": "1"})
    world.run(5)
    full = next(name for name in "ab" if list(world.on().values()).count(name) == 2)
    leaves = next(name for name, node in world.on().items() if node == full)
    labels = world.api.get("pods", leaves, "ml")["metadata"]["labels"]
    world.api.call("DELETE", ["api", "v1", "namespaces", "ml", "pods", leaves], {}, {})
    world.pod("again", labels=labels, devices={"nvidia.com/gpu": "1"})
    world.run(5)
    assert world.on()["again"] != full, "its place is not free before the Pod has gone"
    world.api.remove("pods", leaves, "ml")
    world.pod("other", devices={"nvidia.com/gpu": "1"})
    world.pod("large", devices={"nvidia.com/gpu": "2"})
    world.run(5)
    assert world.on()["other"] == full
    assert "large" not in world.on()
    for name in set(world.on()) - {"other"}:
        world.end(name)
    world.run(5)
    assert world.on()["large"] != full, "one device is left there"
    assert world.jobs() == {"ml.train": "failed", "ml.again": "done", "ml.other": "running", "ml.large": "running"}


def test_a_place_of_a_gang_that_no_pod_comes_for_is_free_for_others(world: Scheduled) -> None:
    world.gang("train", 4, "2")
    world.run(5)
    world.end("train-2", "Failed")
    world.pod("other", "2")
    world.run(500)
    assert "other" not in world.on()
    world.run(200)
    assert world.on()["other"] == world.on()["train-2"]


def test_what_is_counted_for_a_pod_and_not_requested_is_free_once_it_is_bound(world: Scheduled) -> None:
    labels = {"pod-group.scheduling.sigs.k8s.io/name": "g", "pod-group.scheduling.sigs.k8s.io/min-available": "2"}
    world.pod("leader", "1", labels=labels)
    world.pod("worker", "4", labels=labels)
    world.run(5)
    assert set(world.on()) == {"leader", "worker"}
    for number in range(5):
        world.pod(f"small-{number}", "0", devices={"memory": "0"})
    world.run(5)
    assert len(world.on()) == 7
    for number in range(3):
        world.pod(f"p{number}", "1")
    world.run(5)
    assert {world.on()[f"p{number}"] for number in range(3)} == {world.on()["leader"]}


def test_a_scheduler_that_is_killed_finds_what_it_has_placed(world: Scheduled) -> None:
    world.gang("train", 4, "1")
    world.pod("one")
    world.run(5)
    before = world.on()
    world.kill_placer()
    world.run(10)
    assert world.on() == before
    assert world.jobs() == {"ml.train": "running", "ml.one": "running"}
    assert set(world.bindings.values()) == {1}


def test_the_latest_pod_of_an_attempt_counts_after_a_log_was_lost(world: Scheduled) -> None:
    """Attempts of the lost log are numbered again."""
    world.pod("one")
    world.run(5)
    one = world.api.get("pods", "one", "ml")
    old = world.api.put("pods", "an-older-one", "ml", spec=one["spec"], status={"phase": "Running"})
    notes = {"annotations": one["metadata"]["annotations"], "creationTimestamp": "2020-01-01T00:00:00Z"}
    world.api.patch("pods", "an-older-one", {"metadata": old["metadata"] | notes}, "ml")
    world.kill_placer()
    world.run(5)
    world.cancel("j1")
    world.run(2)
    assert set(world.deleted) == {"one"}


def test_a_job_that_is_cancelled_deletes_its_pods(world: Scheduled) -> None:
    world.pod("one")
    world.run(5)
    world.cancel("j1")
    world.run(2)
    assert world.api.get("pods", "one", "ml")["metadata"]["deletionTimestamp"]
    assert world.deleted == {"one": "Poise has stopped job j1, and deletes its Pods"}


def test_a_gang_with_too_few_pods_and_no_room_for_more_is_deleted_with_the_reason(world: Scheduled) -> None:
    world.gang("train", 2, "4")
    world.run(5)
    gone, kept = world.on()["train-1"], world.on()["train-0"]
    labels = world.api.get("pods", "train-0", "ml")["metadata"]["labels"]
    world.api.patch("nodes", gone, {"spec": {"unschedulable": True}})
    world.end("train-1", "Failed")
    world.pod("train-1b", "4", labels=labels)
    world.run(290)
    assert world.on()["train-0"] == kept
    assert not world.deleted
    world.run(30)
    assert world.deleted == {"train-0": TOO_FEW}


def test_what_cannot_be_written_can_be_cancelled(world: Scheduled) -> None:
    world.run(2)
    world.fault = lambda what: "refused" if what in ("bind", "create") else ""
    world.pod("one")
    world.gang("train", 3)
    world.job(name="task", image="x")
    world.run(60)
    assert set(world.jobs().values()) == {"placed"}
    for number in (1, 2, 3):
        world.cancel(f"j{number}")
    world.run(5)
    assert set(world.jobs().values()) == {"cancelled"}
    assert world.names() == []


def test_a_job_that_is_cancelled_while_it_waits_deletes_its_pods(world: Scheduled) -> None:
    world.theirs("theirs", "a", "3")
    world.pod("other", "4")
    world.gang("train", 3, "2")
    world.run(5)
    assert world.jobs() == {"ml.other": "running", "ml.train": "pending"}
    world.cancel("j2")
    world.run(5)
    assert sorted(world.names()) == ["other", "theirs"]
    world.api.remove("pods", "theirs", "team")
    world.run(120)
    assert world.jobs() == {"ml.other": "running", "ml.train": "cancelled"}, "it is not submitted again"


def test_a_waiting_pod_stays_and_gets_another_job_if_no_user_has_cancelled_its_job(world: Scheduled) -> None:
    world.pod("large", "64")
    world.run(5)
    for number, status in enumerate(("failed", ""), start=1):
        world.cancel(f"j{number}")
        world.run(0.1)
        world.placer.ended({f"j{number}": status}, world.now)
        world.run(5)
        assert [job.id for job in world.placer._jobs.values()] == [f"j{number + 1}"]
    world.placer._cancel_unknown("j3", world.now)
    world.run(5)
    assert [job.id for job in world.placer._jobs.values()] == ["j4"]
    assert world.names() == ["large"]


def test_pods_that_run_outlive_a_scheduler_that_was_away_for_long(world: Scheduled) -> None:
    world.gang("train", 2)
    world.pod("one")
    world.run(5)
    world.process.pause(300 * 10**9)
    world.run(320)
    assert len(world.on()) == 3
    assert not [of for of in world.api.all("pods") if "deletionTimestamp" in of["metadata"]]


def test_a_task_with_an_image_gets_a_pod_by_one_write_that_is_removed_when_its_end_is_known(world: Scheduled) -> None:
    world.run(2)
    world.job(name="task", image="python:3.12")
    world.run(5)
    [name] = world.on()
    assert name == "poise-home-j1-main-1", "named by task and epoch"
    one = world.api.get("pods", name, "ml")
    assert one["spec"]["containers"][0]["image"] == "python:3.12"
    assert [of["name"] for of in one["metadata"]["ownerReferences"]] == ["poise-home"]
    assert world.writes == 1
    world.end(name, "Running")
    world.run(2)
    assert world.jobs() == {"task": "running"}
    world.end(name)
    world.run(5)
    assert (world.jobs(), world.on()) == ({"task": "done"}, {})


def test_a_kubelet_that_refuses_a_task_costs_no_try_and_its_node_is_avoided(world: Scheduled) -> None:
    world.run(2)
    world.job(name="task", image="x", retry={"limit": 0})
    world.run(2)
    [(name, first)] = world.on().items()
    world.api.patch("pods", name, {"status": {"phase": "Failed", "reason": "OutOfcpu"}}, "ml")
    world.run(5)
    [(name, second)] = [(of, where) for of, where in world.on().items()]
    assert name == "poise-home-j1-main-2"
    assert second != first


def test_the_exit_code_of_a_task_comes_back_and_a_retry_is_another_pod(world: Scheduled) -> None:
    world.run(2)
    world.job(name="task", image="x", retry={"limit": 1, "backoff": "1s"})
    world.run(2)
    for epoch in (1, 2):
        name = f"poise-home-j1-main-{epoch}"
        world.api.patch("pods", name, {"status": {"phase": "Running"}}, "ml")
        world.run(1)
        over = [{"state": {"terminated": {"exitCode": 3, "reason": "Error"}}}]
        world.api.patch("pods", name, {"status": {"phase": "Failed", "containerStatuses": over}}, "ml")
        world.run(4)
    assert world.jobs() == {"task": "failed"}
    assert world.home.host is not None
    ending = world.home.host.ledger.jobs["j1"].units[0].tasks[0].ending
    assert ending is not None and ending.code == 3


def test_no_pod_of_a_task_is_created_twice_though_answers_are_lost_and_the_scheduler_is_killed(
    world: Scheduled,
) -> None:
    world.run(2)
    world.fault = lambda what: world.random.choice(["", "lost", "lost", "away"])
    for number in range(4):
        world.job(name=f"task-{number}", image="x")
    world.run(1)
    world.kill_placer()
    world.run(10)
    assert len(world.on()) == 4
    assert sorted(world.created) == sorted(set(world.created))
    assert set(world.jobs().values()) == {"placed"}, "no kubelet has started them"


@pytest.mark.parametrize(
    ("reason", "message", "least", "most"),
    [
        ("InvalidImageName", "no image x", 0, 5),
        ("CreateContainerConfigError", "container has runAsNonRoot and image will run as root", 0, 5),
        ("ImagePullBackOff", "no image x", 290, 320),
    ],
)
def test_a_task_whose_container_cannot_start_says_why_and_is_given_up(
    reason: str, message: str, least: int, most: int, world: Scheduled
) -> None:
    world.run(2)
    world.job(name="task", image="x", retry={"limit": 0})
    world.run(2)
    [name] = world.on()
    waiting = [{"name": "task", "state": {"waiting": {"reason": reason, "message": message}}}]
    world.api.patch("pods", name, {"status": {"containerStatuses": waiting}}, "ml")
    if least:
        world.run(least)
        [why] = [of.why for of in world.placer.waiting()]
        assert why.endswith(f": {reason}: {message}")
        assert world.jobs() == {"task": "placed"}
    world.run(most - least)
    assert world.api.get("pods", name, "ml")["metadata"]["deletionTimestamp"]
    world.api.remove("pods", name, "ml")
    world.run(2)
    assert world.jobs() == {"task": "failed"}
    assert world.home.host is not None
    ending = world.home.host.ledger.jobs["j1"].units[0].tasks[0].ending
    assert ending is not None and (ending.outcome, ending.note) == ("unstartable", f"{reason}: {message}")


@pytest.mark.parametrize(("code", "status"), [(0, "done"), (3, "failed")])
def test_a_task_ends_with_its_container_though_a_container_that_was_added_runs_on(
    code: int, status: str, world: Scheduled
) -> None:
    world.run(2)
    world.job(name="task", image="x", retry={"limit": 0})
    world.run(2)
    [name] = world.on()
    states = [
        {"name": "task", "state": {"terminated": {"exitCode": code}}},
        {"name": "proxy", "state": {"running": {}}},
    ]
    world.api.patch("pods", name, {"status": {"phase": "Running", "containerStatuses": states}}, "ml")
    world.run(5)
    assert world.jobs() == {"task": status}
    assert world.api.get("pods", name, "ml")["metadata"]["deletionTimestamp"]


def test_a_task_without_an_image_says_what_it_needs(world: Scheduled) -> None:
    world.run(2)
    world.job(name="task")
    world.run(5)
    assert (world.jobs(), world.on()) == ({"task": "failed"}, {})


@pytest.mark.parametrize("phase", ["Succeeded", "Failed", ""])
def test_a_cancelled_task_ends_with_its_pod(phase: str, world: Scheduled) -> None:
    world.run(2)
    world.job(name="task", image="x")
    world.run(2)
    [name] = world.on()
    world.end(name, "Running")
    world.run(1)
    world.cancel("j1")
    world.run(2)
    assert world.api.get("pods", name, "ml")["metadata"]["deletionTimestamp"]
    if phase:
        world.end(name, phase)
    else:
        world.api.remove("pods", name, "ml")
    world.run(5)
    assert (world.jobs(), world.on()) == ({"task": "cancelled"}, {})


def test_no_pod_of_a_gang_is_bound_before_all_its_places_are_known(world: Scheduled) -> None:
    world.run(2)
    world.network.cut_off("b", DOWN, True)
    world.gang("train", 4, "2")
    world.run(2)
    assert world.jobs() == {"ml.train": "placed"}
    assert world.on() == {}
    world.network.cut_off("b", DOWN, False)
    world.run(20)
    assert len(world.on()) == 4


def test_a_gang_that_loses_a_pod_while_it_is_bound_gives_back_what_was_bound(world: Scheduled) -> None:
    def lose(what: str) -> str:
        if what == "bind" and len(world.on()) == 2:
            for name in set(world.names()) - set(world.on()):
                world.api.remove("pods", name, "ml")
        return ""

    world.run(2)
    world.fault = lose
    world.gang("train", 4, "2")
    world.run(5)
    assert len(world.names()) == 2
    assert world.deleted == dict.fromkeys(world.names(), GAVE_UP)
    assert all("deletionTimestamp" in world.api.get("pods", name, "ml")["metadata"] for name in world.names())
    for name in world.names():
        world.api.remove("pods", name, "ml")
    world.run(5)
    assert world.jobs() == {"ml.train": "cancelled"}


def _said(world: Scheduled) -> list[tuple[str, FromAgent]]:
    """What the nodes say from now on."""
    said: list[tuple[str, FromAgent]] = []
    say = world.say

    def heard(node: str, message: FromAgent) -> None:
        said.append((node, message))
        say(node, message)

    world.say = heard  # type: ignore[method-assign]
    return said


def test_a_pod_of_a_kind_that_was_there_before_concerns_only_its_own_node() -> None:
    world = Scheduled(nodes={f"n{number:02}": node() for number in range(20)})
    try:
        world.pod("first")
        world.run(3)
        world.end("first")
        world.run(30)
        assert world.jobs() == {"ml.first": "done"}
        said = _said(world)
        world.pod("second")
        world.run(3)
        assert {name for name, message in said if not isinstance(message, Beat)} == {world.on()["second"]}
    finally:
        world.close()


def test_pods_whose_job_was_lost_with_a_node_get_another(world: Scheduled) -> None:
    """The control plane has placed a Pod on a node that goes before it hears of it."""
    world.run(2)
    world.pod("one", "3")
    for _ in range(300):
        world.run(0.001)
        if "placed" in world.jobs().values():
            break
    assert not world.placer._placed
    for name in "ab":
        world.wires[name].hang()
        world.api.remove("nodes", name)
        world.api.put("nodes", name, **node())
    world.run(120)
    assert set(world.on()) == {"one"}


@pytest.mark.parametrize("seconds", [0.0, 2.0, 30.0])
def test_pods_run_on_when_their_node_is_deleted_and_registers_again(seconds: float, world: Scheduled) -> None:
    """Its kubelet has created it anew, as after `kubectl delete node`."""
    world.gang("train", 4, "2")
    world.run(5)
    world.api.remove("nodes", "a")
    world.run(seconds)
    world.api.put("nodes", "a", **node())
    world.run(60)
    assert world.jobs() == {"ml.train": "running"}
    assert not [of for of in world.api.all("pods") if "deletionTimestamp" in of["metadata"]]
    for name in world.names():
        world.end(name)
    world.pod("next")
    world.run(5)
    assert world.jobs() == {"ml.train": "done", "ml.next": "running"}


def test_nodes_whose_pods_only_run_send_few_heartbeats(world: Scheduled) -> None:
    for number in range(4):
        world.pod(f"p{number}")
    world.run(60)
    beats = _said(world)
    world.run(60)
    assert 0 < len(beats) <= 2 * 7, "one each 10 s"
    assert set(world.jobs().values()) == {"running"}


def test_a_gang_whose_failed_pod_is_not_replaced_ends_with_the_others(world: Scheduled) -> None:
    world.gang("train", 3)
    world.run(5)
    world.end("train-1", "Failed")
    world.run(5)
    assert world.jobs() == {"ml.train": "running"}
    world.end("train-0")
    world.end("train-2")
    world.run(5)
    assert world.jobs() == {"ml.train": "failed"}


def test_a_binding_whose_answer_was_lost_counts_though_the_pod_has_ended() -> None:
    notes = {HOME: "home", ATTEMPT: "j1.main 1"}
    for phase in ("Pending", "Running", "Succeeded", "Failed"):
        pod = PodObject(metadata=Meta(annotations=notes), spec=PodSpec(node_name="a"), status=PodStatus(phase=phase))
        assert outcome_of(pod, notes, "a") == "bound"
        assert outcome_of(pod, notes, "b") == "gone"
        assert outcome_of(pod, notes | {HOME: "another"}, "a") == "gone"
    assert outcome_of(PodObject(metadata=Meta(), status=PodStatus(phase="Failed")), notes, "a") == "gone"
    assert outcome_of(PodObject(metadata=Meta()), notes, "a") == "refused"


@pytest.mark.parametrize("adds", ["overhead", "container"])
@pytest.mark.parametrize("killed", [False, True])
def test_the_pods_of_tasks_leave_room_for_what_the_cluster_adds_to_them(
    killed: bool, adds: str, world: Scheduled
) -> None:
    """Nodes have four CPUs: four tasks of one CPU and a quarter each for a runtime or a proxy do not fit."""

    def mutate(pod: dict[str, Any]) -> None:
        if adds == "overhead":
            pod["spec"]["overhead"] = {"cpu": "250m"}
        else:
            pod["spec"]["containers"].append({"name": "proxy", "resources": {"requests": {"cpu": "250m"}}})

    world.api.mutate = mutate
    world.run(2)
    world.job(name="first", image="x")
    world.run(2)
    if killed:
        world.kill_placer()
        world.run(2)
    for number in range(6):
        world.job(name=f"task-{number}", image="x")
    world.job(name="large", image="x", resources={"cpu": 4})
    world.run(40)
    assert sorted(world.on().values()) == ["a"] * 3 + ["b"] * 3
    assert len(world.created) == 6, "no Pod is created that its node would refuse"
    assert world.home.host is not None
    large = next(job for job in world.home.host.ledger.jobs.values() if job.name == "large")
    ending = large.units[0].tasks[0].ending
    assert ending is None or ending.note == "cpu: no node has enough for its Pod, with what the cluster adds to it"
    for name in world.names():
        world.end(name)
    world.run(5)
    [where] = world.on().values()
    assert large.units[0].tasks[0].ending is not None, "it fits nowhere, and gets no Pod"
    world.api.mutate = lambda pod: None
    world.pod("theirs", "4")
    world.run(35)
    assert world.on()["theirs"] != where, "a Pod of somebody else may have all of a node"
    assert len(world.created) == 7


def test_the_pod_of_a_task_that_has_ended_is_deleted_though_the_first_request_was_lost(world: Scheduled) -> None:
    """Another container of it runs on, so it holds room until it is deleted."""
    world.run(2)
    world.job(name="task", image="x")
    world.run(2)
    [name] = world.on()
    world.fault = lambda what: "away" if what == "delete" else ""
    over = {"name": "task", "state": {"terminated": {"exitCode": 0}}}
    world.api.patch("pods", name, {"status": {"phase": "Running", "containerStatuses": [over]}}, "ml")
    world.run(20)
    assert world.jobs() == {"task": "done"}
    assert not world.api.get("pods", name, "ml")["metadata"].get("deletionTimestamp")
    world.fault = lambda what: ""
    world.run(20)
    assert world.api.get("pods", name, "ml")["metadata"]["deletionTimestamp"]


def test_a_task_requests_the_accelerators_of_its_node_by_their_name_there(world: Scheduled) -> None:
    world.api.put("nodes", "a", **node(devices={"nvidia.com/gpu": "2"}))
    world.run(2)
    world.job(name="task", image="x", resources={"gpu": 1})
    while not world.on():
        world.run(0.05)
    [one] = world.api.all("pods")
    assert one["spec"]["containers"][0]["resources"]["requests"]["nvidia.com/gpu"] == "1"
