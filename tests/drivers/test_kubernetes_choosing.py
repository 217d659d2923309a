"""Which Pods are created for what waits, and the reading of Nodes and Pods that it rests on."""

from typing import Any

import msgspec
import pytest

from drivers.kubernetes_api import node, pod
from poise.model.reports.demand import Demand
from poise.model.resources import Node, Shape, Wants, Where
from poise.units import SECOND
from poise_kubernetes.choosing import GUESS, WORTH, Room, wanted
from poise_kubernetes.offers import PILOT_MEMORY, labels_of, offered
from poise_kubernetes.records import NodeObject, PodObject, device_of, left_of, quantity, requested

GIB = 2**30


def work(tasks: int = 1, **fields: Any) -> Demand:
    known: dict[str, Any] = {"together": 1, "cpu": 1000, "memory": 0, "gpus": 0, "where": "", "longest": 0}
    known |= {"unknown": tasks, "tasks": tasks, "work": 0, **fields}
    if "shape" not in known:
        known["shape"] = Shape(cpu=known["cpu"], memory=known["memory"], gpus=known["gpus"])
    return Demand(**known)


def room(name: str, cpu: int = 4, memory: int = 8, gpus: int = 0, size: int = 0, **labels: str) -> Room:
    free = {"cpu": cpu * 1000, "memory": memory * GIB, "pods": 100} | ({"nvidia.com/gpu": gpus} if gpus else {})
    whole = free | {"cpu": (size or cpu) * 1000}
    return Room(free, whole, offered(there(name, {of.replace("__", "/"): v for of, v in labels.items()}, whole)))


def there(name: str, labels: dict[str, str], amounts: dict[str, int]) -> NodeObject:
    allocatable = {of: f"{amount}m" if of == "cpu" else amount for of, amount in amounts.items()}
    fields = {"metadata": {"name": name, "labels": labels}, "status": {"allocatable": allocatable}}
    return msgspec.convert(fields, NodeObject)


def test_one_task_gets_one_pod_of_its_size_and_its_part_of_the_memory() -> None:
    [grant], unmet = wanted([work()], [room("a"), room("b")], [], 16)
    assert (grant.node, grant.cpu, unmet) == ("a", 1000, [])
    assert PILOT_MEMORY < grant.memory <= 2 * GIB + PILOT_MEMORY


def test_many_tasks_get_as_many_pods_as_they_fill_and_no_more_than_allowed() -> None:
    rooms = [room(name) for name in "abcd"]
    grants, _ = wanted([work(10, memory=GIB)], rooms, [], 16)
    assert [grant.cpu for grant in grants] == [4000, 4000, 2000]
    assert all(grant.memory == grant.cpu // 1000 * GIB + PILOT_MEMORY for grant in grants)
    assert len(wanted([work(1000)], rooms, [], 2)[0]) == 2


def test_brief_tasks_do_not_take_the_whole_cluster() -> None:
    """A thousand tasks of a tenth of a second are a hundred seconds of work."""
    brief = work(1000, work=100 * SECOND, unknown=0)
    grants, _ = wanted([brief], [room(f"n{number}") for number in range(100)], [], 100)
    assert sum(grant.cpu for grant in grants) == 100 // WORTH * 1000


def test_what_begins_already_is_not_asked_for_again() -> None:
    grants, _ = wanted([work(4)], [room("a"), room("b")], [room("a", cpu=3)], 16)
    assert [grant.cpu for grant in grants] == [1000]
    assert wanted([work(4)], [room("a")], [room("b")], 16) == ([], [])


def test_a_gang_gets_room_for_all_of_it_or_none() -> None:
    gang = work(6, together=6)
    grants, unmet = wanted([gang], [room("a"), room("b")], [], 16)
    assert (sum(grant.cpu for grant in grants), unmet) == (6000, [])
    grants, [why] = wanted([gang], [room("a", cpu=2, size=4), room("b", cpu=2, size=4)], [], 16)
    assert (grants, why.hopeless) == ([], False)
    assert why.why.startswith("others hold the room: 1 CPU, 256 MiB, 0 GPU for each of 6")
    grants, [why] = wanted([gang], [room("a")], [], 16)
    assert (grants, why.hopeless) == ([], True)
    grants, [why] = wanted([gang, work()], [room("a"), room("b")], [], 1)
    assert [grant.cpu for grant in grants] == [1000], "the gang takes nothing from others where it cannot start"


def test_work_without_accelerators_does_not_ask_for_a_node_that_is_for_accelerators() -> None:
    tainted = room("gpu", cpu=32, gpus=8)._replace(for_devices=True)
    grants, [unmet] = wanted([work()], [tainted], [], 16)
    assert (grants, unmet.hopeless) == ([], True)
    assert unmet.why == "the taints of all nodes keep off Pods that request no GPU"
    [grant], others = wanted([work(gpus=1), work()], [tainted], [], 16)
    assert (grant.number, grant.cpu, others) == (1, 2000, []), "it may join a Pod with accelerators"


def test_work_without_accelerators_leaves_them_to_others() -> None:
    rooms = [room("gpu", cpu=32, gpus=8), room("plain")]
    grants, _ = wanted([work()], rooms, [], 16)
    assert [(grant.node, grant.number) for grant in grants] == [("plain", 0)]
    grants, _ = wanted([work(3, gpus=2)], rooms, [], 16)
    assert [(grant.node, grant.device, grant.number, grant.cpu) for grant in grants] == [
        ("gpu", "nvidia.com/gpu", 6, 3000)
    ]


def test_work_that_no_node_could_hold_says_so() -> None:
    _, [why] = wanted([work(cpu=64000, memory=GIB)], [room("a")], [], 16)
    assert why.hopeless
    assert why.why == "no node that Poise may use is large enough: 64 CPU, 1.2 GiB, 0 GPU"
    _, [why] = wanted([work()], [room("a")], [], 0)
    assert (why.why, why.hopeless) == ("`pods` are all in use", False)


def test_work_gets_pods_only_where_it_may_run() -> None:
    rooms = [room("a", zone="us"), room("b", zone="eu"), room("c", zone="eu")]

    def nodes(**where: Any) -> list[str]:
        tasks = where.pop("tasks", 1)
        asked = work(tasks, together=tasks, shape=Shape(where=Where(**where)))
        return [grant.node for grant in wanted([asked], rooms, [], 16)[0]]

    assert nodes(labels=(("zone", ("eu",)),)) == ["b"]
    assert nodes(nodes=("c",)) == ["c"]
    assert nodes(without=("a", "b")) == ["c"]
    assert nodes(spread="zone", tasks=2) == ["a", "b"]
    assert nodes(together="zone", tasks=8) == ["b", "c"]
    assert nodes(together="zone", tasks=9) == []
    _, [why] = wanted([work(shape=Shape(where=Where(labels=(("zone", ("asia",)),))))], rooms, [], 16)
    assert why.why == "no node that Poise may use is what it asks for: 1 CPU on zone=asia"


def test_the_model_of_a_gpu_is_what_the_labels_of_its_node_say() -> None:
    found: Any = {"nvidia.com__gpu.product": "NVIDIA-H100-80GB-HBM3", "nvidia.com__gpu.memory": "81559"}
    rooms = [room("old", gpus=8), room("new", gpus=8, **found)]
    asked = Shape(gpus=1, wants=Wants(models=("H100",)), gpu_memory=60 * GIB)
    grants, _ = wanted([work(gpus=1, shape=asked)], rooms, [], 16)
    assert [(grant.node, grant.number) for grant in grants] == [("new", 1)]
    grants, [why] = wanted([work(gpus=1, shape=asked)], rooms[:1], [], 16)
    assert (grants, why.hopeless) == ([], True)


def test_labels_of_node_feature_discovery_leave_room_for_all_others() -> None:
    features = {f"feature.node.kubernetes.io/cpu-{number}": "true" for number in range(100)}
    found = labels_of(there("a", features | {"topology.kubernetes.io/zone": "eu-1a"}, {}))
    assert (found["zone"], len(found)) == ("eu-1a", 64)


def test_labels_of_kubernetes_are_known_by_what_is_behind_their_prefix() -> None:
    labels = {"topology.kubernetes.io/zone": "eu-1a", "pool": "gpu", "allocation": "mine", "empty": ""}
    one = there("n", labels, {"cpu": 1000})
    assert labels_of(one) == {"zone": "eu-1a", "pool": "gpu"}
    assert isinstance(offered(one), Node)
    assert offered(one).label("zone") == "eu-1a"


def test_pods_may_wait_for_nodes_that_are_not_there_yet() -> None:
    full = room("a", cpu=0, size=4)
    grants, [why] = wanted([work(6, memory=GIB)], [full], [], 16, waiting=4)
    assert [(grant.node, grant.cpu, grant.memory) for grant in grants] == [("", 4000, 4 * GIB + PILOT_MEMORY)]
    assert why.why.startswith("others hold the room")
    waits = Room({"cpu": 4000, "memory": grants[0].memory}, {}, offered(there("", {}, {})))
    assert wanted([work(4, memory=GIB)], [full], [waits], 16, waiting=3) == ([], []), "it has room there"
    gang = work(6, together=6, memory=GIB)
    assert [grant.cpu for grant in wanted([gang], [full], [], 16, waiting=2)[0]] == [4000, 2000]
    assert wanted([gang], [full], [], 16, waiting=1)[0] == [], "a part of it would wait for ever"
    special = work(shape=Shape(where=Where(labels=(("zone", ("eu",)),))))
    assert wanted([special], [full], [], 16, waiting=4)[0] == []
    gpus = wanted([work(gpus=2)], [full], [], 16, waiting=1)[0]
    assert [(grant.device, grant.number) for grant in gpus] == [("nvidia.com/gpu", 2)]


def test_a_guess_stands_for_run_times_that_nobody_knows() -> None:
    grants, _ = wanted([work(100)], [room("a", cpu=1000, memory=1000)], [], 16)
    assert grants[0].cpu == min(100, 100 * GUESS // WORTH) * 1000


@pytest.mark.parametrize(
    ("text", "amount"),
    [
        ("1", 1),
        ("1Ki", 1024),
        ("129e6", 129_000_000),
        ("1.5Gi", 1610612736),
        ("5E", 5 * 10**18),
        ("12E", 2**63 - 1),
        ("", 0),
        ("NaN", 0),
    ],
)
def test_quantities(text: str, amount: int) -> None:
    assert quantity(text) == amount


def test_a_pod_holds_its_containers_or_its_largest_init_container_and_what_runs_beside_them() -> None:
    def container(cpu: str, **more: Any) -> dict[str, Any]:
        return {"resources": {"requests": {"cpu": cpu}}, **more}

    def held(**spec: Any) -> int:
        return requested(msgspec.convert({"metadata": {"name": "x"}, "spec": spec}, PodObject))["cpu"]

    assert held(containers=[container("1"), container("500m")]) == 1500
    assert held(containers=[container("1")], initContainers=[container("3"), container("2")]) == 3000
    beside = container("1", restartPolicy="Always")
    assert held(containers=[container("1")], initContainers=[beside, container("2")]) == 3000
    assert held(containers=[container("1")], overhead={"cpu": "250m"}) == 1250
    limited = {"resources": {"limits": {"cpu": "2"}}}
    assert held(containers=[limited]) == 2000


@pytest.mark.parametrize("field", ["allocatedResources", "resources"])
def test_a_pod_whose_requests_change_in_place_holds_the_larger_ones_until_that_is_done(field: str) -> None:
    def held(spec: str, status: str) -> int:
        there = {"cpu": status} if field == "allocatedResources" else {"requests": {"cpu": status}}
        fields = {
            "metadata": {"name": "x"},
            "spec": {"containers": [{"name": "main", "resources": {"requests": {"cpu": spec}}}]},
            "status": {"containerStatuses": [{"name": "main", field: there}]},
        }
        return requested(msgspec.convert(fields, PodObject))["cpu"]

    assert (held("1", "3"), held("3", "1")) == (3000, 3000)


def test_selectors_affinity_taints_and_tolerations_say_where_a_pod_may_run() -> None:
    fields = node(devices={"amd.com/gpu": "2"})
    fields["spec"] = {"taints": [{"key": "gpu", "effect": "NoSchedule"}]}
    one = msgspec.convert({"metadata": {"name": "n", "labels": {"zone": "eu", "size": "8"}}, **fields}, NodeObject)

    def may(**spec: Any) -> bool:
        return msgspec.convert({"metadata": {"name": "x"}, **pod(**spec)}, PodObject).may_run_on(one)

    tolerant = {"tolerations": [{"key": "gpu", "operator": "Exists"}]}

    def requires(key: str, operator: str, *values: str, of: str = "matchExpressions") -> dict[str, Any]:
        term = {of: [{"key": key, "operator": operator, "values": list(values)}]}
        wants = {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": [term]}}
        return {"affinity": {"nodeAffinity": wants}}

    assert not may()
    assert may(**tolerant)
    assert may(nodeSelector={"zone": "eu"}, **tolerant)
    assert not may(nodeSelector={"zone": "us"}, **tolerant)
    assert may(**requires("size", "Gt", "4"), **tolerant)
    assert not may(**requires("zone", "NotIn", "eu"), **tolerant)
    assert may(**requires("metadata.name", "In", "n", of="matchFields"), **tolerant)
    assert not may(**requires("metadata.name", "In", "other", of="matchFields"), **tolerant)
    assert device_of(left_of(one, [])) == "amd.com/gpu"
