"""Pods that Poise places as the scheduler of a cluster: which of them start together, and what each needs of its node.

Pure: no input or output, no clock. A group is a gang: Pods of a PodGroup, Pods with the label of a pod group, a JobSet,
a group of a LeaderWorkerSet, or an Indexed Job that runs all its Pods at once. Every other Pod is a group of its own.
The size of a gang is the number of Pods that must start together; further Pods of it are placed one by one.

A gang has one shape in Poise. If its Pods differ, a place for one of them is large enough for any of them.
"""

import hashlib
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from poise.drivers.kubernetes.objects import Owner
from poise_kubernetes.claims import NOTHING, Wanted
from poise_kubernetes.records import NodeObject, PodObject, Selector, admits, device_of, is_device, requested
from poise_kubernetes.volumes import NOTHING as NO_VOLUMES
from poise_kubernetes.volumes import Mounted

NAME = "pod-group.scheduling.sigs.k8s.io/name"
"""Label of the first gang plug-in: the name of the group; the next label has the number that starts together."""

LABELS = ("scheduling.x-k8s.io/pod-group", "pod-group.scheduling.sigs.k8s.io", NAME)
LEAST = ("pod-group.scheduling.sigs.k8s.io/min-available", "scheduling.x-k8s.io/min-available")
"""Label or annotation with the number of Pods that start together."""

POD_GROUPS = "/apis/scheduling.k8s.io/"
POD_GROUP_VERSIONS = ("v1beta1", "v1alpha3", "v1alpha2")
"""The group of Kubernetes' own PodGroup, and its versions, the latest first. A Pod names its PodGroup in
`spec.schedulingGroup`.
"""

JOB_SET = "jobset.sigs.k8s.io/jobset-name"
LEADER_SET, LEADER_GROUP = "leaderworkerset.sigs.k8s.io/name", "leaderworkerset.sigs.k8s.io/group-index"
LEADER_SIZE = "leaderworkerset.sigs.k8s.io/size"
INDEX = "batch.kubernetes.io/job-completion-index"

BOOKED = ("cpu", "memory")
"""Amounts that the ledger of Poise counts itself, beside those of accelerators."""

ADMITS = "admits"

FOR_A_WHILE = ("node.kubernetes.io/not-ready", "node.kubernetes.io/unreachable")
"""Taints that the API server lets every Pod tolerate for a while, as long as they evict."""

_PLAIN = re.compile(r"[^A-Za-z0-9]+")
_SIZE = re.compile(r"[0-9]{1,9}")


class Group(NamedTuple):
    """A gang, or a Pod on its own. `key` is unique, `name` the name of its job. `least` Pods start together; 0: the
    cluster must be asked at the path `asks`, and until then nobody knows. With both, its answer may be another size.
    """

    key: str
    name: str
    members: tuple[PodObject, ...]
    least: int
    asks: str = ""


class Needs(NamedTuple):
    """What a place must have for each of these Pods: milli-CPU, bytes, accelerators named `device`, the other `amounts`
    of its node, ports of its node, the Pods whose selectors and tolerations must admit the node, what each claims, and
    the selectors of the nodes that can mount its volumes.
    """

    cpu: int
    memory: int
    device: str
    number: int
    amounts: tuple[tuple[str, int], ...]
    ports: frozenset[str]
    pods: tuple[PodObject, ...]
    claims: tuple[Wanted, ...] = ()
    volumes: tuple[Selector, ...] = ()

    @property
    def label(self) -> str:
        """The label of the Poise nodes that may hold such Pods now."""
        words = [*self._words()]
        text = "-".join(filter(None, (_PLAIN.sub("-", word).strip("-") for word in words)))[:36].strip("-")
        return f"{ADMITS}.{text or 'any'}-{_digest(repr(words))[:8]}"

    def _words(self) -> Iterable[str]:
        for pod in self.pods:
            spec = pod.spec
            yield from (f"{key}={value}" for key, value in sorted((spec.node_selector or {}).items()))
            affinity = spec.affinity.node_affinity if spec.affinity else None
            yield from affinity.required.words() if affinity and affinity.required else ()
            for of in spec.tolerations or ():
                if of.key not in FOR_A_WHILE or of.effect != "NoExecute":
                    yield f"tolerates {of.key}={of.value} {of.effect} {of.operator}"
        yield self.device
        yield from (f"{name}:{amount}" for name, amount in self.amounts)
        yield from sorted(self.ports)
        yield from (word for one in self.claims for word in one.words)
        for selector in self.volumes:
            yield from ("volume", *selector.words())

    def refuses(self, node: NodeObject, size: Mapping[str, int], free: Mapping[str, int], ports: Iterable[str]) -> str:
        """Return why one such Pod cannot be on the node now, as far as the ledger does not see it; empty if it can."""
        if any(not pod.may_run_on(node) for pod in self.pods):
            if len(self.pods) > 1:
                return "the node does not suit each Pod of the group, by selectors, affinity or tolerations"
            taken = admits(node, self.pods[0].spec.tolerations or ())
            return "its selectors and affinity exclude the node" if taken else "it does not tolerate the node's taints"
        if not all(selector.holds(node) for selector in self.volumes):
            return "its volumes cannot be mounted on the node"
        if self.device and device_of(size) != self.device:
            return f"the node has no {self.device}"
        for name, amount in (("pods", 1), *self.amounts):
            if amount > free.get(name, 0):
                return f"{name}: {amount} requested, {max(0, free.get(name, 0))} free"
        if used := sorted(self.ports.intersection(ports)):
            return f"port {used[0]} of the node is in use"
        return ""

    def resources(self, pods: int) -> dict[str, Any]:
        """Return the `resources` of a job file for so many of these Pods."""
        found: dict[str, Any] = {"cpu": f"{self.cpu}m", "memory": f"{self.memory}B", "label": {self.label: "yes"}}
        found |= {"gpu": self.number} if self.number else {}
        return found | ({"spread": "node"} if self.ports and pods > 1 else {})


def groups(pods: Iterable[PodObject], least_of: Mapping[str, int]) -> list[Group]:
    """Return the groups of these Pods, in the order in which their first Pod was created. `least_of` has the answers to
    what the cluster was asked.
    """
    found: dict[str, list[PodObject]] = {}
    for pod in pods:
        found.setdefault(key_of(pod), []).append(pod)
    return oldest_first(group_of(key, members, least_of) for key, members in found.items())


def oldest_first(found: Iterable[Group]) -> list[Group]:
    """Return groups in the order in which their first Pod was created."""
    return sorted(found, key=lambda of: _age(of.members[0]))


def _age(pod: PodObject) -> tuple[str, str]:
    return pod.metadata.creation_timestamp, pod.key


def needs_of(
    pods: Sequence[PodObject],
    wanted: Callable[[PodObject], Wanted] = lambda pod: NOTHING,
    mounted: Callable[[PodObject], Mounted] = lambda pod: NO_VOLUMES,
) -> Needs:
    """Return what a place for any of these Pods must have. `wanted` and `mounted` return the claims and the volumes of
    a Pod.
    """
    most: dict[str, int] = {}
    distinct: dict[object, PodObject] = {}
    claims: dict[tuple[str, ...], Wanted] = {}
    for pod in pods:
        claimed = wanted(pod)
        if claimed.claims:
            claims.setdefault(claimed.words, claimed)
        for name, amount in {**requested(pod), **claimed.counts}.items():
            most[name] = max(most.get(name, 0), amount)
        spec = pod.spec
        distinct.setdefault((*sorted((spec.node_selector or {}).items()), spec.affinity, spec.tolerations), pod)
    devices = sorted(name for name, amount in most.items() if is_device(name) and amount)
    others = {name: amount for name, amount in most.items() if amount and name not in (*BOOKED, "pods", *devices[:1])}
    return Needs(
        cpu=max(1, most.get("cpu", 0)),
        memory=most.get("memory", 0),
        device=devices[0] if devices else "",
        number=most[devices[0]] if devices else 0,
        amounts=tuple(sorted(others.items())),
        ports=frozenset().union(*(pod.ports for pod in pods)),
        pods=tuple(distinct.values()),
        claims=tuple(claims.values()),
        volumes=tuple(dict.fromkeys(selector for pod in pods for selector in mounted(pod).selectors)),
    )


def is_held(pod: PodObject) -> bool:
    """Whether its gates keep it from being scheduled."""
    return bool(pod.spec.scheduling_gates)


def priority_of(pod: PodObject) -> str:
    """Return the class of a priority: that of the Pods of a cluster itself is `urgent`."""
    value = pod.priority
    return "urgent" if value >= 10**9 else "high" if value > 0 else "low" if value < 0 else "medium"


def name_of(text: str) -> str:
    """Return the name of a job for `NAMESPACE/NAME`: `NAMESPACE.NAME`, shortened if it is too long."""
    plain = text.replace("/", ".")
    return plain if len(plain) <= 63 else f"{plain[:54]}-{_digest(text)[:8]}"


def key_of(pod: PodObject) -> str:
    """Return the key of the group of a Pod: one of its own if it is in none."""
    labels, space = pod.metadata.labels or {}, pod.metadata.namespace
    if pod.pod_group:
        return f"{space}/{pod.pod_group}"
    for label in LABELS:
        if name := labels.get(label):
            return f"{space}/{name}"
    if name := labels.get(JOB_SET):
        return f"{space}/{name}"
    if name := labels.get(LEADER_SET):
        return f"{space}/{name}-{labels.get(LEADER_GROUP, '0')}"
    owner = pod.controller
    if owner is not None and owner.kind == "Job" and _said(pod, INDEX):
        return f"{space}/{owner.name}"
    return f"{pod.key} {pod.metadata.uid}"


def group_of(key: str, pods: Iterable[PodObject], least_of: Mapping[str, int]) -> Group:
    """Return the group of these Pods, which all have this key."""
    members = sorted(pods, key=_age)
    first = members[0]
    name = name_of(key.partition(" ")[0])
    if " " in key:
        return Group(key, name, (first,), 1)
    told = 0 if first.pod_group else _told(first)
    asks = "" if told and not _leader_set(first) else _asks(first)
    return Group(key, name, tuple(members), least_of.get(asks, 0) or told, asks)


def _told(pod: PodObject) -> int:
    """Return the size of the gang that a Pod states itself; 0 if it states none, or no number."""
    told = (_said(pod, of) for of in (*LEAST, LEADER_SIZE))
    return next((int(text) for text in told if _SIZE.fullmatch(text)), 0)


def _leader_set(pod: PodObject) -> str:
    """Return the name of the LeaderWorkerSet of a Pod whose gang it determines; empty if there is none."""
    labels = pod.metadata.labels or {}
    others = pod.pod_group or any(labels.get(of) for of in (*LABELS, JOB_SET))
    return "" if others else labels.get(LEADER_SET, "")


def _asks(pod: PodObject) -> str:
    """Return the path of the object that tells the size of the gang."""
    labels, space = pod.metadata.labels or {}, pod.metadata.namespace
    if pod.pod_group:
        return f"{POD_GROUPS}{POD_GROUP_VERSIONS[0]}/namespaces/{space}/podgroups/{pod.pod_group}"
    for label in LABELS:
        if name := labels.get(label):
            return f"/apis/scheduling.x-k8s.io/v1alpha1/namespaces/{space}/podgroups/{name}"
    if name := labels.get(JOB_SET):
        return f"/apis/jobset.x-k8s.io/v1alpha2/namespaces/{space}/jobsets/{name}"
    if name := _leader_set(pod):
        return f"/apis/leaderworkerset.x-k8s.io/v1/namespaces/{space}/leaderworkersets/{name}"
    owner: Owner | None = pod.controller
    return f"/apis/batch/v1/namespaces/{space}/jobs/{owner.name if owner else ''}"


def paths_of(asks: str) -> list[str]:
    """Return the paths at which the object may be that tells the size of a gang: one for each version of its kind."""
    first = POD_GROUPS + POD_GROUP_VERSIONS[0]
    if not asks.startswith(first):
        return [asks]
    return [POD_GROUPS + version + asks.removeprefix(first) for version in POD_GROUP_VERSIONS]


def least_in(answer: Mapping[str, Any]) -> int:
    """Return the size of a gang from its PodGroup, JobSet, LeaderWorkerSet or Job; 1 for Pods that start one by one.
    Jobs of a JobSet that are created only after others of it do not count, nor do workers that are created only once
    their leader is ready.
    """
    spec = answer.get("spec") or {}
    if "leaderWorkerTemplate" in spec:
        return 1 if spec.get("startupPolicy") == "LeaderReady" else int(spec["leaderWorkerTemplate"].get("size", 1))
    if "schedulingPolicy" in spec:
        return int((spec["schedulingPolicy"].get("gang") or {}).get("minCount", 1))
    if "minMember" in spec:
        return int(spec["minMember"])
    if "replicatedJobs" in spec:
        jobs = [one for one in spec["replicatedJobs"] if not one.get("dependsOn")]
        if (spec.get("startupPolicy") or {}).get("startupPolicyOrder") == "InOrder":
            jobs = jobs[:1]
        return sum(int(one.get("replicas", 1)) * _at_once(one.get("template", {}).get("spec", {})) for one in jobs)
    parallelism = int(spec.get("parallelism") or 1)
    return parallelism if parallelism == spec.get("completions") else 1


def _at_once(job: Mapping[str, Any]) -> int:
    """Return how many Pods of a Job run at once."""
    parallelism = int(job.get("parallelism", 1))
    return min(parallelism, int(job.get("completions") or parallelism))


def _said(pod: PodObject, name: str) -> str:
    return (pod.metadata.labels or {}).get(name) or (pod.metadata.annotations or {}).get(name, "")


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()
