"""Pods that are refused, evicted, lost or never begin. The API server is a small one, and time passes as tests say."""

import base64
from collections.abc import Iterator
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any

import msgspec
import pytest

from drivers.kubernetes_api import Dropped, Refusal, kubernetes_api, node, pod
from drivers.kubernetes_world import CONTACT, HOME, NOTHING, World, until, waits
from poise.drivers.kubernetes.api import Api, Refused
from poise.drivers.kubernetes.credentials import find_access
from poise.errors import Fault, InputError
from poise.model.messages import Attempt, Launch
from poise.model.reports.demand import DemandReport
from poise.model.reports.nodes import Check
from poise.model.resources import Shape
from poise.ports import Contact
from poise.units import SECOND
from poise_kubernetes import manifests
from poise_kubernetes.checkup import checks
from poise_kubernetes.cluster import (
    ASKED_SECONDS,
    BEGIN_SECONDS,
    LENT_SECONDS,
    NEW_GUESS,
    PAUSES,
    PENDING_SECONDS,
    START_GUESS,
    open_cluster,
)
from poise_kubernetes.security import create_task
from poise_kubernetes.settings import Settings, parse_settings

PODS, SECURITY = "/api/v1/namespaces/ml/pods", "pod-security.kubernetes.io"


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    with kubernetes_api() as api:
        for name in ("a", "b"):
            api.put("nodes", name, **node())
            api.patch("nodes", name, {"metadata": {"labels": {"kubernetes.io/hostname": name}}})
        world = World(api, tmp_path)
        yield world
        world.close()


def test_one_pod_is_created_however_long_it_waits(world: World) -> None:
    world.api.binds = False
    world.want(waits(), PENDING_SECONDS - 5)
    [one] = world.pods()
    assert [method for method, path in world.api.calls if path.endswith("/pods")].count("POST") == 1
    assert one["metadata"]["name"] == manifests.pod_name(HOME, "a", 0)
    [owner] = one["metadata"]["ownerReferences"]
    assert owner["uid"] == world.api.get("secrets", manifests.home_name(HOME), "ml")["metadata"]["uid"]


def test_an_answer_that_is_lost_creates_nothing_twice_before_and_after_a_crash(world: World) -> None:
    def lost(method: str, path: str) -> None:
        if method == "POST" and "/pods" in path:
            raise Dropped

    world.api.after = lost
    world.want(waits())
    world.api.after = lambda method, path: None
    world.want(waits(), ASKED_SECONDS)
    world.keeper()
    world.want(waits(), ASKED_SECONDS)
    assert len(world.pods()) == 1


def test_two_keepers_that_know_nothing_of_each_other_create_one_pod(world: World) -> None:
    world.want(waits(), 1)
    first, second = world.cluster, world.keeper()
    world.now += 2
    for cluster in (first, second):  # neither has seen what the other does
        cluster.want(waits())
        world.now += 2
        cluster.want(waits())
    assert len(world.pods()) == 1


def test_a_pod_is_a_machine_when_it_runs_and_its_token_is_in_the_secret_alone(world: World) -> None:
    world.want(waits(2))
    assert world.cluster.machines() == [], "it does not run yet"
    [pilot] = world.begin()
    assert pilot.node == "a"
    [one] = world.pods()
    assert "the-token" not in str(one)
    content = world.api.get("secrets", manifests.home_name(HOME), "ml")["data"]["contact"]
    assert msgspec.json.decode(base64.b64decode(content), type=Contact) == CONTACT
    world.keeper()
    world.want(NOTHING, 1)
    assert world.cluster.pilots() == [pilot], "the next keeper finds it with its orders"
    moved = Contact("10.0.0.2:7718#" + "a" * 64, "another")
    world.cluster.tell(pilot, moved)
    assert world.orders(one["metadata"]["name"]).contact == manifests.digest(moved)


def test_a_pilot_knows_the_grace_period_that_the_cluster_gives_its_pod(world: World) -> None:
    world.keeper(grace=90)
    world.want(waits(4), 5)
    world.begin()
    assert [world.orders(one["metadata"]["name"]).grace for one in world.pods()] == [90]
    world.api.mutate = lambda pod: pod["spec"].update(terminationGracePeriodSeconds=25)
    world.want(waits(4, {pilot.node: 10**12 for pilot in world.cluster.pilots()}), 5)
    world.begin()
    assert sorted(world.orders(one["metadata"]["name"]).grace for one in world.pods()) == [25, 90]


def test_a_node_that_refuses_a_pod_gets_no_other_for_a_while_and_another_node_does(world: World) -> None:
    world.want(waits())
    [first] = world.pods()
    world.change(first["metadata"]["name"], phase="Failed", reason="OutOfcpu", message="too little cpu")
    unmet = world.want(waits(), 3)
    [second] = world.pods()
    assert second["spec"]["nodeName"] == "b"
    assert any("no pod on a for a while: it failed: OutOfcpu: too little cpu" in one.text for one in unmet)
    world.api.remove("pods", second["metadata"]["name"], "ml")
    world.api.put("nodes", "b", **node(ready=False))
    world.want(waits(), PAUSES[0] + 3)
    assert [one["spec"]["nodeName"] for one in world.pods()] == ["a"]


def test_a_pod_that_is_not_placed_or_does_not_begin_is_removed(world: World) -> None:
    world.api.binds = False
    world.want(waits(), PENDING_SECONDS + 10)
    [one] = world.pods()
    assert one["metadata"]["name"] == manifests.pod_name(HOME, "b", 0), "the other node is tried"
    world.api.binds = True
    world.api.put("nodes", "b", **node())
    world.change(one["metadata"]["name"], containerStatuses=[{"state": {"waiting": {"reason": "ImagePullBackOff"}}}])
    unmet = world.want(waits(), 5)
    assert any("ImagePullBackOff" in request.text for request in unmet)
    world.want(waits(), BEGIN_SECONDS)
    assert one["metadata"]["uid"] not in {of["metadata"]["uid"] for of in world.pods() if _stays(of)}


def test_a_pod_that_cannot_begin_lets_go_soon_and_the_next_one_is_asked_for_later_and_later(world: World) -> None:
    """Both nodes have room, and the image is wrong for both."""
    begun = world.now
    asked, told, rounds = list[float](), 0, 0
    while len(asked) < 4:
        unmet, rounds = world.want(waits(), 5), rounds + 1
        for one in world.pods():
            if not one["status"].get("containerStatuses"):
                asked.append(world.now - begun)
                reason = {"reason": "ErrImagePull", "message": "no such image"}
                world.change(one["metadata"]["name"], containerStatuses=[{"state": {"waiting": reason}}])
            elif not _stays(one):
                world.api.remove("pods", one["metadata"]["name"], "ml")
        told += any("ErrImagePull: no such image" in one.text for one in unmet)
        assert len(world.pods()) <= 1
    pauses = [after - before for before, after in pairwise(asked)]
    assert told >= rounds - len(asked)
    assert pauses == sorted(pauses), "each pause is as long as the one before, or longer"
    assert pauses[0] < 60 + 30
    assert 300 < pauses[-1] < 400


def test_a_pod_whose_image_has_no_valid_name_lets_go_at_once(world: World) -> None:
    world.want(waits())
    [one] = world.pods()
    reason = {"reason": "InvalidImageName", "message": "couldn't parse it"}
    world.change(one["metadata"]["name"], containerStatuses=[{"state": {"waiting": reason}}])
    unmet = world.want(waits(), 3)
    assert not [of for of in world.pods() if _stays(of)]
    assert any("no pod begins: InvalidImageName: couldn't parse it" in of.text for of in unmet)


def test_an_image_that_one_node_cannot_pull_concerns_that_node_alone(world: World) -> None:
    world.want(waits(4), 5)
    world.begin()
    [busy] = [pilot.node for pilot in world.cluster.pilots()]
    more = waits(4, {busy: 10**12})
    world.want(more, 5)
    second = next(one for one in world.pods() if one["status"]["phase"] == "Pending")
    reason = {"reason": "ImagePullBackOff", "message": "its network is broken"}
    world.change(second["metadata"]["name"], containerStatuses=[{"state": {"waiting": reason}}])
    unmet = world.want(more, 65)
    assert second["metadata"]["uid"] not in {one["metadata"]["uid"] for one in world.pods() if _stays(one)}
    assert any(f"no pod on {second['spec']['nodeName']} for a while" in one.text for one in unmet)
    assert not any("no pod begins" in one.text for one in unmet)


def test_the_room_that_a_scheduler_has_made_for_others_is_left_to_them(world: World) -> None:
    """Room for the Pod was made on `b`: other Pods there are ending, or have ended."""
    theirs = pod(cpu="4", schedulerName="other")
    world.api.put("pods", "theirs", "team", **theirs)
    status = {"phase": "Pending", "nominatedNodeName": "b", "conditions": [_unschedulable()]}
    world.api.patch("pods", "theirs", {"status": status}, "team")
    unmet = world.want(waits(8), 5)
    assert [one["spec"]["nodeName"] for one in world.pods()] == ["a"], unmet
    world.begin()
    world.want(waits(8), LENT_SECONDS + 3)
    assert all(_stays(one) for one in world.pods()), "what is idle elsewhere would not help"


def test_a_node_with_less_memory_than_a_pilot_needs_gets_none(world: World) -> None:
    for name in ("a", "b"):
        world.api.put("pods", f"on-{name}", "team", **pod(cpu="1", memory="7936Mi", nodeName=name))
    world.want(waits(), 5)
    assert [one["metadata"]["name"] for one in world.pods()] != []
    for one in world.pods():
        world.api.remove("pods", one["metadata"]["name"], "ml")
    for name in ("a", "b"):
        world.api.put("pods", f"on-{name}", "team", **pod(cpu="1", memory="8000Mi", nodeName=name))
    unmet = world.want(waits(), 40)
    assert world.pods() == []
    assert any("others hold the room" in one.text for one in unmet)


def test_the_room_of_others_is_counted_and_what_they_wait_for_is_left_to_them(world: World) -> None:
    world.api.put("pods", "theirs", "team", **pod(cpu="3", nodeName="a"))
    world.api.put("pods", "large", "team", **pod(cpu="4"))  # it is bound to b
    world.want(waits(4))
    assert [(one["spec"]["nodeName"], _cpu(one)) for one in world.pods()] == [("a", "1000m")]
    world.api.binds = False
    world.api.remove("pods", "large", "team")
    unschedulable = {"conditions": [{"type": "PodScheduled", "status": "False", "message": "no room"}]}
    world.api.put("pods", "next", "team", status=unschedulable, **pod(cpu="3"))
    world.want(waits(4), 5)
    assert [_cpu(one) for one in world.pods()] == ["1000m", "1000m"], "3 of 4 CPUs of b are for the one that waits"


def test_an_idle_pod_is_given_back_and_at_once_if_others_need_its_room(world: World) -> None:
    world.want(waits(4))
    [pilot] = world.begin()
    world.want(DemandReport(waits=(), busy={pilot.node: SECOND}), 200)
    assert [machine.leaving for machine in world.cluster.machines()] == [False]
    world.want(NOTHING, 50)
    assert [machine.leaving for machine in world.cluster.machines()] == [False]
    world.want(NOTHING, 15)
    assert [machine.leaving for machine in world.cluster.machines()] == [True]
    world.keeper()
    world.api.binds = False
    world.api.put("pods", "theirs", "team", **pod(cpu="2", nodeSelector={"kubernetes.io/hostname": "a"}))
    world.api.patch("pods", "theirs", {"status": {"conditions": [_unschedulable()]}}, "team")
    world.want(NOTHING, LENT_SECONDS + 3)
    assert [machine.leaving for machine in world.cluster.machines()] == [True]


def test_idle_pods_that_are_too_small_give_way_to_larger_ones(world: World) -> None:
    world.want(waits(2, cpu=3000))
    assert len(world.begin()) == 2
    gang = waits(2, cpu=4000, together=2)
    unmet = world.want(gang, LENT_SECONDS + 3)
    assert any("others hold the room" in one.text for one in unmet)
    assert [machine.leaving for machine in world.cluster.machines()] == [True, True]
    for pilot in world.cluster.pilots():
        world.api.remove("pods", world.cluster._own[pilot.machine].pod.metadata.name, "ml")
    world.want(gang)
    assert [_cpu(one) for one in world.pods()] == ["4000m", "4000m"]


def test_pods_with_a_higher_priority_ask_for_what_is_busy_and_others_do_not(world: World) -> None:
    world.want(waits(4))
    world.begin()
    world.api.binds = False
    for name, priority in (("urgent", 100), ("usual", 0)):
        world.api.put("pods", name, "team", **pod(cpu="3", priority=priority))
        world.api.patch("pods", name, {"status": {"conditions": [_unschedulable()]}}, "team")
    world.want(NOTHING, 1)
    [request] = world.cluster.waiting()
    assert (request["cpu"], request["pod team/urgent"]) == (3000, 1)
    [machine] = world.cluster.machines()
    assert machine.size["cpu"] >= 3000 > machine.free["cpu"]
    assert machine.size["pod team/urgent"] == 1


def test_a_pod_whose_priority_never_preempts_gets_only_idle_room(world: World) -> None:
    world.want(waits(4))
    world.begin()
    world.api.binds = False
    world.api.put("pods", "patient", "team", **pod(cpu="3", priority=100, preemptionPolicy="Never"))
    world.api.patch("pods", "patient", {"status": {"conditions": [_unschedulable()]}}, "team")
    world.want(NOTHING, 1)
    assert world.cluster.waiting() == []
    world.want(NOTHING, LENT_SECONDS + 3)
    assert [machine.leaving for machine in world.cluster.machines()] == [True]


@pytest.mark.parametrize(
    ("message", "spec"),
    [
        ("Scheduling is blocked due to non-empty scheduling gates", {"schedulingGates": [{"name": "queue"}]}),
        ("0/2 nodes are available: 2 node(s) had taint {a: b}, that the pod didn't tolerate.", {}),
        ('persistentvolumeclaim "data" not found', {}),
    ],
)
def test_a_pod_that_room_would_not_help_keeps_none(world: World, message: str, spec: dict[str, Any]) -> None:
    world.want(waits(4))
    world.begin()
    world.api.binds = False
    world.api.put("pods", "waits", "team", **pod(cpu="4", priority=100, **spec))
    condition = _unschedulable() | {"message": message}
    world.api.patch("pods", "waits", {"status": {"conditions": [condition]}}, "team")
    world.want(waits(8), LENT_SECONDS + 3)
    assert world.cluster.waiting() == []
    assert [_cpu(one) for one in world.pods()] == ["4000m", "4000m"], "the other node is free"
    assert [machine.leaving for machine in world.cluster.machines()] == [False]


@pytest.mark.parametrize("how", ["evicted", "cordoned"])
def test_a_pod_that_is_evicted_or_whose_node_is_cordoned_leaves_in_order(world: World, how: str) -> None:
    world.want(waits())
    world.begin()
    [one] = world.pods()
    if how == "evicted":
        world.cluster._api.delete(f"/api/v1/namespaces/ml/pods/{one['metadata']['name']}")
    else:
        world.api.patch("nodes", "a", {"spec": {"unschedulable": True}})
    world.want(waits())
    assert [machine.leaving for machine in world.cluster.machines()] == [True]
    assert [of["spec"]["nodeName"] for of in world.pods() if of is not one][-1] == "b", "another takes its place"


def test_a_pod_that_is_removed_is_no_machine_even_while_its_node_is_away(world: World) -> None:
    world.want(waits())
    [pilot] = world.begin()
    world.cluster.remove(pilot)
    world.want(NOTHING, ASKED_SECONDS + 5)
    assert [one["metadata"]["deletionGracePeriodSeconds"] for one in world.pods()] == [1]
    assert world.cluster.machines() == []


def test_a_node_that_is_gone_or_out_of_service_is_no_machine(world: World) -> None:
    world.want(waits())
    world.begin()
    world.api.patch("nodes", "a", {"spec": {"taints": [{"key": "node.kubernetes.io/out-of-service", "effect": "x"}]}})
    world.want(NOTHING, 1)
    assert world.cluster.machines() == []


def test_pods_are_released_when_they_end_and_nothing_is_left(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    world.want(waits(8))
    pilots = world.begin()
    assert len(pilots) == 2
    ends = next(one["metadata"]["name"] for one in world.pods() if one["spec"]["nodeName"] == "a")

    def pilot_ends(method: str, path: str) -> None:
        if method == "PATCH" and path.endswith(ends) and world.orders(ends).released:
            world.change(ends, phase="Succeeded")

    world.api.after = pilot_ends
    monkeypatch.setattr("poise_kubernetes.cluster.END_SECONDS", 1.0)
    released = world.cluster.release(pilots)
    assert [pilot.node for pilot in released] == ["a"], "commands run on the other"
    world.want(NOTHING, 1)
    assert [pilot.node for pilot in world.cluster.pilots()] == ["b"]
    world.cluster.stop()
    assert world.api.all("secrets") == []
    assert all(one["metadata"].get("deletionTimestamp") for one in world.pods())


def test_what_cannot_be_deleted_is_told_with_the_command_that_deletes_it(world: World) -> None:
    world.want(waits())
    pilots = world.begin()
    world.api.fault = away
    world.api.cut()
    until(lambda: all(watched.is_away for watched in world.copies), "the watches fail")
    for act in (lambda: world.cluster.release(pilots), world.cluster.stop):
        with pytest.raises(Fault, match=f"the Secret poise-{HOME} and its Pods are still in namespace ml") as left:
            act()
        assert left.value.record.hint == f"`kubectl delete secret -n ml poise-{HOME}` deletes all of them"


def test_a_pod_is_deleted_with_its_pilot_though_a_container_that_was_added_runs_on(world: World) -> None:
    world.want(waits())
    [pilot] = world.begin()
    [one] = world.pods()
    states = [
        {"name": "pilot", "state": {"terminated": {"exitCode": 0}}},
        {"name": "proxy", "state": {"running": {}}},
    ]
    world.change(one["metadata"]["name"], containerStatuses=states)
    world.synchronize()
    assert world.cluster.release([pilot]) == [pilot]
    world.want(NOTHING, 1)
    assert world.cluster.machines() == []
    assert [of["metadata"]["deletionTimestamp"] for of in world.pods()]


def test_while_the_api_server_is_away_nothing_is_given_up(world: World) -> None:
    world.want(waits())
    pilots = world.begin()

    world.api.fault = away
    world.api.cut()
    for _ in range(1000):
        world.now += 1
        unmet = world.cluster.want(waits(5, together=1))
    assert world.cluster.pilots() == pilots
    assert "the API server has said nothing for" in unmet[0].text


def test_rights_that_are_taken_away_are_the_reason(world: World) -> None:
    def forbidden(method: str, path: str) -> None:
        raise Refusal(403, "Forbidden", "no more")

    world.want(waits(), 1)
    world.api.fault = forbidden
    world.api.cut()
    until(lambda: all(watched.is_away for watched in world.copies), "the watches fail")
    [quote] = world.cluster.quote(waits().waits)
    assert quote.why == "its API server does not answer: 403 Forbidden: no more"


def openings(world: World, demand: DemandReport) -> list[tuple[int, int, bool]]:
    """The room that is quoted: tasks at once, delay in seconds, and whether it is requested already."""
    [quote] = world.cluster.quote(demand.waits)
    return [(one.slots, one.delay // SECOND, one.asked) for one in quote.openings]


def test_the_room_that_pods_have_or_could_have_is_quoted_with_the_delay_of_earlier_pods(world: World) -> None:
    assert openings(world, waits(20)) == [(8, START_GUESS, False)], "two nodes of four CPUs"
    world.want(waits(2), 8)
    slots, left, asked = openings(world, waits(20))[0]
    assert (slots, asked, 10 < left < START_GUESS) == (2, True, True)
    [pilot] = world.begin()
    assert openings(world, waits(20))[:1] == [(2, 0, True)]
    busy = DemandReport(waits=(), busy={pilot.node: 600 * SECOND})
    world.want(busy, 1)
    first, new = openings(world, waits(20))
    assert (first, new[2]) == ((2, 600, True), False)
    assert 5 <= new[1] <= 10, "as long as the first Pod took"
    world.api.binds = False
    world.api.fault = away
    world.api.cut()
    until(lambda: all(watched.is_away for watched in world.copies), "the watches fail")
    assert openings(world, waits(20)) == [(2, 600, True)], "no Pod can be created now"


def test_the_reason_is_told_if_no_pod_can_hold_work(world: World) -> None:
    [quote] = world.cluster.quote(waits(cpu=64000).waits)
    assert quote.openings == ()
    assert quote.why.startswith("no node that Poise may use is large enough: 64 CPU")
    gang = waits(20, together=20)
    assert sum(slots for slots, _, _ in openings(world, gang)) < 20
    world.keeper(waiting=3)
    assert openings(world, gang)[-1] == (12, NEW_GUESS, False), "an autoscaler adds nodes as large as these"


def test_a_pod_may_wait_for_a_node_that_an_autoscaler_adds(world: World) -> None:
    for name in ("a", "b"):
        world.api.put("pods", f"theirs-{name}", "team", **pod(cpu="4", nodeName=name))
    world.want(waits(4), 5)
    assert world.pods() == [], "it has to be allowed"
    world.keeper(waiting=1)
    unmet = world.want(waits(40), PENDING_SECONDS + 60)
    [one] = world.pods()
    assert not one["spec"].get("affinity")
    assert any("on a new node: no room" in request.text for request in unmet)
    world.api.put("nodes", "c", **node(cpu="8"))
    world.api.patch("nodes", "c", {"metadata": {"labels": {"topology.kubernetes.io/zone": "eu"}}})
    [pilot] = world.begin()
    assert pilot.node == "c"
    assert world.orders(one["metadata"]["name"]).labels == {"zone": "eu", "allocation": one["metadata"]["name"]}


def test_a_quota_is_told_and_asked_for_again_later(world: World) -> None:
    def full(method: str, path: str) -> None:
        if method == "POST" and path.endswith("/pods"):
            raise Refusal(403, "Forbidden", "exceeded quota: small, requested: cpu=1")

    world.api.fault = full
    unmet = world.want(waits(), PAUSES[0])
    assert any("exceeded quota: small" in one.text and one.refused for one in unmet)
    tried = [method for method, path in world.api.calls if path.endswith("/pods")].count("POST")
    assert tried == 1
    world.api.fault = lambda method, path: None
    world.want(waits(), PAUSES[0])
    assert len(world.pods()) == 1


def test_a_pod_that_a_quota_refuses_is_asked_for_with_fewer_tasks(world: World) -> None:
    """Each node has four CPUs, and the quota of the namespace is three."""
    world.api.put("resourcequotas", "small", "ml", spec={"hard": {"requests.cpu": "3"}})
    world.want(waits(8), 10)
    assert sorted(_cpu(one) for one in world.pods()) == ["1000m", "2000m"]
    tried = [method for method, path in world.api.calls if path.endswith("/pods")].count("POST")
    unmet = world.want(waits(8), 3)
    assert any("exceeded quota: small" in one.text for one in unmet)
    world.want(waits(8), 10)
    assert [method for method, path in world.api.calls if path.endswith("/pods")].count("POST") <= tried + 3
    world.api.put("resourcequotas", "small", "ml", spec={"hard": {"requests.cpu": "5"}})
    world.want(waits(8), PAUSES[0] + 10)
    assert sum(int(_cpu(one)[:-1]) for one in world.pods()) == 5000


@pytest.mark.parametrize("adds", ["overhead", "container"])
def test_a_pod_leaves_room_for_what_the_cluster_adds_to_it(world: World, adds: str) -> None:
    """Nodes have four CPUs: four tasks of one CPU and a quarter for a runtime or a proxy do not fit."""

    def mutate(pod: dict[str, Any]) -> None:
        if adds == "overhead":
            pod["spec"]["overhead"] = {"cpu": "250m"}
        else:
            pod["spec"].setdefault("containers", []).append(
                {"name": "proxy", "resources": {"requests": {"cpu": "250m"}}}
            )

    world.api.mutate = mutate
    world.want(waits(8), 5)
    assert [(_cpu(one), bool(one["spec"].get("nodeName"))) for one in world.pods()] == [("3000m", True)] * 2
    world.keeper()
    world.want(waits(8), 5)
    assert len(world.pods()) == 2, "the next keeper knows it from these Pods"


def test_a_pod_whose_note_was_removed_does_not_count_as_what_the_cluster_adds(world: World) -> None:
    world.want(waits(4))
    [one] = world.pods()
    world.api.patch("pods", one["metadata"]["name"], {"metadata": {"annotations": {manifests.GRANT: None}}}, "ml")
    world.want(waits(4), 3)
    assert sorted(_cpu(of) for of in world.pods()) == ["4000m", "4000m"], "the other node has room for four"


def test_a_pod_that_a_queue_of_the_cluster_holds_back_is_not_removed_soon(world: World) -> None:
    world.api.binds = False
    world.api.mutate = lambda pod: pod["spec"].update(schedulingGates=[{"name": "queue"}])
    world.want(waits(), 5)
    [before] = world.pods()
    world.want(waits(), PENDING_SECONDS + 10)
    assert [one["metadata"]["uid"] for one in world.pods()] == [before["metadata"]["uid"]]


def test_a_gang_beyond_its_quota_is_tried_less_and_less_often_and_other_work_is_not(world: World) -> None:
    world.api.put("resourcequotas", "small", "ml", spec={"hard": {"requests.cpu": "4"}})
    gang = waits(4, cpu=2000, together=4, key="gang")
    unmet = world.want(gang, 400)
    assert any("exceeded quota: small" in one.text for one in unmet)
    tried = [method for method, path in world.api.calls if path.endswith("/pods")].count("POST")
    assert tried <= 6
    for one in world.pods():  # as after it was idle
        world.api.remove("pods", one["metadata"]["name"], "ml")
    both = DemandReport(waits=(*gang.waits, *waits(2, cpu=500, key="other").waits), busy={})
    world.want(both, 30)
    [other] = world.pods()
    assert _cpu(other) == "1000m"
    world.api.remove("pods", other["metadata"]["name"], "ml")
    world.want(NOTHING, 1)
    world.api.put("resourcequotas", "small", "ml", spec={"hard": {"requests.cpu": "8"}})
    world.want(gang, 30)
    assert sorted(_cpu(one) for one in world.pods()) == ["4000m", "4000m"]


def test_a_secret_that_somebody_has_deleted_is_created_again_and_owns_the_next_pods(world: World) -> None:
    world.want(waits())
    world.begin()
    world.api.remove("secrets", manifests.home_name(HOME), "ml")
    for one in world.pods():  # the cluster has collected them
        world.api.remove("pods", one["metadata"]["name"], "ml")
    world.want(waits(), ASKED_SECONDS + 5)
    [one] = world.pods()
    secret = world.api.get("secrets", manifests.home_name(HOME), "ml")
    assert [of["uid"] for of in one["metadata"]["ownerReferences"]] == [secret["metadata"]["uid"]]
    world.begin()
    assert "contact" in world.api.get("secrets", manifests.home_name(HOME), "ml")["data"]


def test_a_node_with_a_taint_is_used_if_the_settings_tolerate_it(world: World) -> None:
    taint = {"key": "sku", "value": "gpu", "effect": "NoSchedule"}
    for name in ("a", "b"):
        world.api.patch("nodes", name, {"spec": {"taints": [taint]}})
    unmet = world.want(waits(), 5)
    assert [one.text for one in unmet] == [
        "no pod for 1 task: no node may get a Pod now",
        "nodes that Poise does not use: a, b with the taint `sku=gpu:NoSchedule`",
    ]
    for tolerate in (("sku", ""), ("sku", "gpu")):
        world.keeper(tolerate=(tolerate,))
        world.want(waits(), 5)
        [one] = world.pods()
        world.api.remove("pods", one["metadata"]["name"], "ml")


def test_a_node_that_does_not_run_linux_gets_no_pod(world: World) -> None:
    world.api.patch("nodes", "a", {"metadata": {"labels": {"kubernetes.io/os": "windows"}}})
    world.want(waits(8), 5)
    assert [one["spec"]["nodeName"] for one in world.pods()] == ["b"]
    unmet = world.want(waits(cpu=64000), 5)
    assert "nodes that Poise does not use: a with the operating system windows" in [one.text for one in unmet]


def test_pods_have_the_labels_annotations_and_account_of_the_settings(world: World) -> None:
    labels = (("kueue.x-k8s.io/queue-name", "team"), ("app.kubernetes.io/managed-by", "somebody"))
    world.keeper(labels=labels, annotations=(("sidecar.istio.io/inject", "false"),), account="trainer")
    world.want(waits())
    [one] = world.pods()
    assert one["metadata"]["labels"]["kueue.x-k8s.io/queue-name"] == "team"
    assert one["metadata"]["labels"]["app.kubernetes.io/managed-by"] == "poise", "the labels of Poise itself stay"
    assert one["metadata"]["annotations"]["sidecar.istio.io/inject"] == "false"
    assert one["spec"]["serviceAccountName"] == "trainer"


def test_checks_name_each_right_that_is_missing(world: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KUBECONFIG", str(tmp_path / "config"))

    def found(**settings: Any) -> dict[str, Check]:
        return {check.name: check for check in checks(Settings(**settings))}

    world.api.put("resourcequotas", "small", "ml", status={"hard": {"pods": "4"}, "used": {"pods": "4"}})
    other = {"services": "1", "requests.storage": "1Gi", "cpu": "4"}
    world.api.put("resourcequotas", "other", "ml", status={"hard": other, "used": other | {"cpu": "1"}})
    well = found(priority="low")
    assert well["quota other"].status == "ok", "it keeps no Pod from being created"
    assert well["API server"].text.endswith("is v1.20-fake")
    assert well["nodes"].text == "2 of 2 can be used: 8 CPU and 16 GiB are free"
    assert (well["quota small"].status, well["priority low"].status) == ("warn", "fail")
    assert well["a pod in ml"].text == "would be accepted"
    assert world.pods() == []
    world.api.put("resourcequotas", "tiny", "ml", spec={"hard": {"requests.cpu": "0"}})
    world.api.patch("nodes", "a", {"spec": {"taints": [{"key": "spot", "effect": "NoSchedule"}]}})
    ill = found()
    assert "would be refused: 403 Forbidden: exceeded quota: tiny" in ill["a pod in ml"].text
    assert ill["nodes"].text == "1 of 2 can be used: 4 CPU and 8 GiB are free; a with the taint `spot:NoSchedule`"
    world.api.denied = {("create", "pods"), ("list", "nodes")}
    assert found()["rights to nodes"].text == "no list of the cluster"
    assert [check.text for check in checks(Settings()) if check.status == "fail"] == [
        "no list of the cluster",
        "no create in ml",
    ]
    with pytest.raises(Fault) as refused:
        open_cluster(Settings(), HOME)
    assert "does not list nodes" in str(refused.value)


def test_checks_of_a_scheduler_try_the_pod_of_a_task(
    world: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("KUBECONFIG", str(tmp_path / "config"))

    def found(**settings: Any) -> dict[str, Check]:
        return {check.name: check for check in checks(Settings(scheduler="poise", **settings))}

    assert found()["a pod in ml"].text == "would be accepted"
    assert found(runtime="kata")["runtime kata"].status == "fail"
    world.api.put("namespaces", "ml", metadata={"name": "ml", "labels": {f"{SECURITY}/enforce": "restricted"}})
    assert "as `restricted`: the image of a task must have a user" in found()["a pod in ml"].text
    world.api.put("resourcequotas", "tiny", "ml", spec={"hard": {"requests.cpu": "0"}})
    assert "would be refused: 403 Forbidden: exceeded quota: tiny" in found()["a pod in ml"].text
    assert world.api.all("pods") == []


def test_a_task_runs_as_its_image_says_unless_its_namespace_is_restricted(world: World) -> None:
    shape = Shape(cpu=100)
    launch = Launch(attempt=Attempt("j1.main", 1), argv=("true",), shape=shape, slots=1, image="x")
    owner = {"name": "poise-home", "uid": "owner"}
    task = partial(manifests.task_pod, HOME, owner, launch, "a", "", {}, Settings(scheduler="poise"))
    api = Api(find_access("", {"KUBECONFIG": str(world.api.kubeconfig(world.folder / "other"))}))
    made, restricted = create_task(api, PODS, task, False)
    assert (restricted, made["spec"].get("securityContext")) == (False, None)
    assert "securityContext" not in made["spec"]["containers"][0]
    world.api.remove("pods", made["metadata"]["name"], "ml")
    world.api.put("namespaces", "ml", metadata={"name": "ml", "labels": {f"{SECURITY}/enforce": "restricted"}})
    made, restricted = create_task(api, PODS, task, False)
    assert restricted and made["spec"]["securityContext"]["runAsNonRoot"]
    world.api.calls.clear()
    with pytest.raises(Refused, match="AlreadyExists"):
        create_task(api, PODS, task, True)
    assert [method for method, _ in world.api.calls] == ["POST"]
    world.want(waits(1))
    assert len(world.pods()) == 2, "pilots always comply"


def test_settings_are_read_and_mistakes_are_told() -> None:
    text = "arn:aws:eks:eu:1:cluster/ml,pods=4,select=pool:gpu,image=r.io/poise:2,idle=2m,priority=low"
    found = parse_settings(text)
    assert (found.context, found.pods, found.select) == ("arn:aws:eks:eu:1:cluster/ml", 4, (("pool", "gpu"),))
    assert (found.image, found.idle, found.priority) == ("r.io/poise:2", 120, "low")
    text = "tolerate=sku:gpu,tolerate=spot,label=queue:team,annotation=note:for: all"
    found = parse_settings(text)
    assert (found.tolerate, found.labels) == ((("sku", "gpu"), ("spot", "")), (("queue", "team"),))
    assert found.annotations == (("note", "for: all"),)
    for wrong in (
        "a,b",
        "tolerate=a=b",
        "label=a",
        "annotation=a",
        "pods=0",
        "select=pool",
        "idle=soon",
        "image=a b",
        "prioritty=x",
        "namespace=A",
    ):
        with pytest.raises(InputError):
            parse_settings(wrong)


def test_settings_that_only_pilots_use_are_refused_beside_a_scheduler() -> None:
    found = parse_settings("scheduler=poise,namespace=ml,priority=low,label=queue:team,account=a,pull=r,runtime=k")
    assert (found.scheduler, found.labels) == ("poise", (("queue", "team"),))
    with pytest.raises(InputError) as refused:
        parse_settings("pods=4,scheduler=poise,select=pool:gpu,image=r.io/poise:2,claim=disk")
    assert "does not use `image`, `pods`, `claim`, `select`" in str(refused.value)
    for setting in ("waiting=1", "idle=60s", "grace=60s", "tolerate=spot"):
        with pytest.raises(InputError):
            parse_settings(f"scheduler=poise,{setting}")


def away(method: str, path: str) -> None:
    raise Dropped


def _stays(one: dict[str, Any]) -> bool:
    return "deletionTimestamp" not in one["metadata"]


def _cpu(one: dict[str, Any]) -> str:
    return str(one["spec"]["containers"][0]["resources"]["requests"]["cpu"])


def _unschedulable() -> dict[str, str]:
    return {"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": "no room"}
