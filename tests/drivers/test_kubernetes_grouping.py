"""Pods that start together, and what a place for one of them needs."""

from typing import Any

import msgspec

from poise_kubernetes.grouping import groups, least_in, name_of, needs_of, priority_of
from poise_kubernetes.records import PodObject

COMPLETION = {"batch.kubernetes.io/job-completion-index": "0"}


def pod(name: str, owner: str = "", cpu: str = "1", **fields: Any) -> PodObject:
    metadata: dict[str, Any] = {"name": name, "namespace": "ml", "uid": name}
    metadata |= {of: fields.pop(of) for of in ("labels", "annotations") if of in fields}
    if owner:
        metadata["ownerReferences"] = [{"kind": "Job", "name": owner, "controller": True}]
    container = {"resources": {"requests": {"cpu": cpu, **fields.pop("devices", {})}}}
    return msgspec.convert({"metadata": metadata, "spec": {"containers": [container], **fields}}, PodObject)


def sizes(*pods: PodObject, **least: int) -> list[tuple[str, int, int]]:
    return [(group.name, len(group.members), group.least) for group in groups(pods, least)]


def test_pods_without_a_group_are_each_their_own() -> None:
    assert sizes(pod("a"), pod("b", owner="job")) == [("ml.a", 1, 1), ("ml.b", 1, 1)], "a Job is no gang"


def test_each_usual_label_makes_a_gang_and_tells_its_size_if_it_can() -> None:
    least = {"pod-group.scheduling.sigs.k8s.io/min-available": "2"}
    for label in ("scheduling.x-k8s.io/pod-group", "pod-group.scheduling.sigs.k8s.io/name"):
        found = [pod(name, labels={label: "g"} | least) for name in "abc"]
        assert sizes(*found) == [("ml.g", 3, 2)]
    leader = {"leaderworkerset.sigs.k8s.io/name": "l", "leaderworkerset.sigs.k8s.io/group-index": "1"}
    size = {"leaderworkerset.sigs.k8s.io/size": "4"}
    assert sizes(pod("a", labels=leader, annotations=size)) == [("ml.l-1", 1, 4)]


def test_a_size_that_no_pod_tells_is_asked_of_its_object() -> None:
    group, job_set = {"scheduling.x-k8s.io/pod-group": "g"}, {"jobset.sigs.k8s.io/jobset-name": "s"}
    for made, path in (
        (pod("a", labels=group), "scheduling.x-k8s.io/v1alpha1/namespaces/ml/podgroups/g"),
        (
            pod("a", labels=group, schedulingGroup={"podGroupName": "k"}),
            "scheduling.k8s.io/v1beta1/namespaces/ml/podgroups/k",
        ),
        (pod("a", labels=job_set), "jobset.x-k8s.io/v1alpha2/namespaces/ml/jobsets/s"),
        (pod("a", owner="j", annotations=COMPLETION), "batch/v1/namespaces/ml/jobs/j"),
    ):
        [found] = groups([made], {})
        assert (found.least, found.asks) == (0, f"/apis/{path}")
        assert groups([made], {found.asks: 5})[0].least == 5


def test_the_size_is_read_from_what_the_object_says() -> None:
    assert least_in({"spec": {"minMember": 3}}) == 3
    assert least_in({"spec": {"schedulingPolicy": {"gang": {"minCount": 3}}}}) == 3
    assert least_in({"spec": {"schedulingPolicy": {"basic": {}}}}) == 1
    leaders = {"leaderWorkerTemplate": {"size": 4}}
    assert least_in({"spec": leaders}) == 4
    assert least_in({"spec": {**leaders, "startupPolicy": "LeaderReady"}}) == 1, "workers wait for their leader"
    job = {"replicas": 2, "template": {"spec": {"parallelism": 4}}}
    assert least_in({"spec": {"replicatedJobs": [job, {}]}}) == 9
    after = {"dependsOn": [{"name": "a", "status": "Complete"}]}
    assert least_in({"spec": {"replicatedJobs": [job, after]}}) == 8, "it is created once the first is complete"
    order = {"startupPolicy": {"startupPolicyOrder": "InOrder"}}
    assert least_in({"spec": {"replicatedJobs": [{}, job], **order}}) == 1, "the second waits for the first"
    short = {"template": {"spec": {"parallelism": 4, "completions": 2}}}
    assert least_in({"spec": {"replicatedJobs": [short]}}) == 2
    assert least_in({"spec": {"parallelism": 4, "completions": 4}}) == 4
    assert least_in({"spec": {"parallelism": 4, "completions": 100}}) == 1, "its Pods need not run at once"


def test_a_place_for_pods_that_differ_is_large_enough_for_any_of_them() -> None:
    leader, worker = pod("a", cpu="4"), pod("b", devices={"nvidia.com/gpu": "2", "example.com/foo": "1"})
    needs = needs_of([leader, worker])
    assert (needs.cpu, needs.device, needs.number) == (4000, "nvidia.com/gpu", 2)
    assert needs.amounts == (("example.com/foo", 1),)
    assert needs.label != needs_of([leader]).label


def test_names_of_jobs_are_valid_and_differ_however_long_they_are() -> None:
    long = [name_of(f"ml/{'x' * 70}{number}") for number in range(2)]
    assert len(set(long)) == 2
    assert all(len(name) <= 63 for name in long)


def test_a_priority_is_a_class() -> None:
    values = (-10, 0, 1000, 2_000_000_000)
    assert [priority_of(pod("a", priority=value)) for value in values] == ["low", "medium", "high", "urgent"]
