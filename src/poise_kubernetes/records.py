"""The fields of Kubernetes objects that Poise reads: a few of Nodes and Pods. All other fields are ignored.

Amounts are whole numbers: milli-CPU under `cpu`, bytes under `memory`, and a count under every other name.
"""

import contextlib
import functools
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import datetime
from decimal import Decimal, InvalidOperation
from math import ceil

import msgspec

from poise.drivers.kubernetes.objects import Known, Owner, Record
from poise.units import SECOND

HOST = "kubernetes.io/hostname"
ZONE = "topology.kubernetes.io/zone"
OUT_OF_SERVICE = "node.kubernetes.io/out-of-service"

DEVICES = ("nvidia.com/gpu", "amd.com/gpu", "gpu.intel.com/i915", "gpu.intel.com/xe")
DEVICE_GROUPS = ("nvidia.com/mig-", "huawei.com/Ascend")
DRIVERS = ("gpu.", "npu.", "tpu.")
"""Names of extended resources that are accelerators, prefixes of such names, and those of drivers of accelerators."""

MOST = 2**63 - 1
"""Largest amount; the API server cuts larger ones down to it, too."""

ENDED = ("Succeeded", "Failed")

REFUSALS = (
    "OutOf",
    "NodeAffinity",
    "NodePorts",
    "UnexpectedAdmission",
    "Taint",
    "NodeShutdown",
    "InsufficientNode",
)
"""How the reasons begin with which a kubelet refuses a Pod that was placed on it."""

NEVER_BEGINS = ("InvalidImageName", "ErrImageNeverPull")
BEGINS_LATE = ("ErrImagePull", "ImagePullBackOff", "ImageInspectError", "RegistryUnavailable", "Create", "RunContainer")
"""How the reasons begin for which a kubelet does not start a container: it will never start, or only if somebody
changes something, such as an image in a registry.
"""

ROOT = "runAsNonRoot"
"""Part of the reason for which a kubelet never starts an image: it runs as root, and must not."""

LACKS_ROOM = ("insufficient ", "too many pods")
LACKS_NO_ROOM = ("nodes are available", "persistentvolumeclaim")
"""Parts of the messages of kube-scheduler, in lower case: a node has too little room; and the reasons of all nodes.
Other schedulers have other messages. With them, a Pod counts as waiting for room.
"""

_SUFFIXES: dict[str, int | Decimal] = {
    "": 1,
    "n": Decimal("1e-9"),
    "u": Decimal("1e-6"),
    "m": Decimal("1e-3"),
    "k": 10**3,
    "M": 10**6,
    "G": 10**9,
    "T": 10**12,
    "P": 10**15,
    "E": 10**18,
    "Ki": 2**10,
    "Mi": 2**20,
    "Gi": 2**30,
    "Ti": 2**40,
    "Pi": 2**50,
    "Ei": 2**60,
}


class Condition(Record, frozen=True):
    type: str = ""
    status: str = ""
    reason: str = ""
    message: str = ""


class Taint(Record, frozen=True):
    key: str = ""
    value: str = ""
    effect: str = ""

    def __str__(self) -> str:
        return f"{self.key}={self.value}:{self.effect}" if self.value else f"{self.key}:{self.effect}"


class NodeSpec(Record, frozen=True):
    unschedulable: bool = False
    taints: tuple[Taint, ...] | None = None


class NodeStatus(Record, frozen=True):
    allocatable: dict[str, str | int] | None = None
    conditions: tuple[Condition, ...] | None = None


class NodeObject(Known, frozen=True):
    spec: NodeSpec = NodeSpec()
    status: NodeStatus = NodeStatus()

    @property
    def ready(self) -> bool:
        return any(one.type == "Ready" and one.status == "True" for one in self.status.conditions or ())

    @property
    def out_of_service(self) -> bool:
        """Whether an administrator has declared the node gone, so that nothing runs there."""
        return any(taint.key == OUT_OF_SERVICE for taint in self.spec.taints or ())


class Resources(Record, frozen=True):
    requests: dict[str, str | int] | None = None
    limits: dict[str, str | int] | None = None


class Port(Record, frozen=True):
    host_port: int = 0
    protocol: str = "TCP"


class Container(Record, frozen=True):
    name: str = ""
    resources: Resources = Resources()
    restart_policy: str = ""
    ports: tuple[Port, ...] | None = None


class Toleration(Record, frozen=True):
    key: str = ""
    operator: str = ""
    value: str = ""
    effect: str = ""

    def tolerates(self, taint: Taint) -> bool:
        if self.effect and self.effect != taint.effect:
            return False
        if not self.key:
            return self.operator == "Exists"
        return self.key == taint.key and (self.operator == "Exists" or self.value == taint.value)


class Expression(Record, frozen=True):
    key: str = ""
    operator: str = ""
    values: tuple[str, ...] | None = None

    def holds(self, labels: Mapping[str, str]) -> bool:
        value, values = labels.get(self.key), self.values or ()
        match self.operator:
            case "In":
                return value is not None and value in values
            case "NotIn":
                return value is None or value not in values
            case "Exists":
                return value is not None
            case "DoesNotExist":
                return value is None
            case "Gt" | "Lt" if value is not None and values and _is_number(value) and _is_number(values[0]):
                return int(value) > int(values[0]) if self.operator == "Gt" else int(value) < int(values[0])
        return False


class Term(Record, frozen=True):
    match_expressions: tuple[Expression, ...] | None = None
    match_fields: tuple[Expression, ...] | None = None

    def holds(self, node: NodeObject) -> bool:
        """Whether the term matches a node. An empty term matches none."""
        expressions, fields = self.match_expressions or (), self.match_fields or ()
        labels = node.metadata.labels or {}
        return bool(expressions or fields) and (
            all(one.holds(labels) for one in expressions)
            and all(one.holds({"metadata.name": node.metadata.name}) for one in fields)
        )


class Selector(Record, frozen=True):
    node_selector_terms: tuple[Term, ...] = ()

    def holds(self, node: NodeObject) -> bool:
        return any(term.holds(node) for term in self.node_selector_terms)

    def words(self) -> Iterator[str]:
        """Yield text that differs for selectors that differ."""
        for term in self.node_selector_terms:
            for one in (*(term.match_expressions or ()), *(term.match_fields or ())):
                yield f"{one.key} {one.operator} {','.join(one.values or ())}"
            yield "or"


class NodeAffinity(Record, frozen=True):
    required: Selector | None = msgspec.field(default=None, name="requiredDuringSchedulingIgnoredDuringExecution")


class Present(Record, frozen=True):
    """A field of which only the presence matters."""


class PodAffinity(Record, frozen=True):
    """Affinity between Pods, or anti-affinity."""

    required: tuple[Present, ...] | None = msgspec.field(
        default=None, name="requiredDuringSchedulingIgnoredDuringExecution"
    )


class Affinity(Record, frozen=True):
    node_affinity: NodeAffinity | None = None
    pod_affinity: PodAffinity | None = None
    pod_anti_affinity: PodAffinity | None = None


class Spread(Record, frozen=True):
    when_unsatisfiable: str = ""


class SchedulingGroup(Record, frozen=True):
    pod_group_name: str = ""


class PodClaim(Record, frozen=True):
    """A claim of devices: of a ResourceClaim by its name, or of one that is created for the Pod from a template."""

    name: str = ""
    resource_claim_name: str = ""


class VolumeClaimOf(Record, frozen=True):
    claim_name: str = ""


class PodVolume(Record, frozen=True):
    """A volume of a Pod. It is of a named PersistentVolumeClaim, or of an `ephemeral` one that is created for it."""

    name: str = ""
    persistent_volume_claim: VolumeClaimOf | None = None
    ephemeral: Present | None = None


class PodSpec(Record, frozen=True):
    node_name: str = ""
    containers: tuple[Container, ...] = ()
    resources: Resources = Resources()
    init_containers: tuple[Container, ...] | None = None
    overhead: dict[str, str | int] | None = None
    priority: int | None = None
    preemption_policy: str = ""
    node_selector: dict[str, str] | None = None
    affinity: Affinity | None = None
    tolerations: tuple[Toleration, ...] | None = None
    topology_spread_constraints: tuple[Spread, ...] | None = None
    scheduler_name: str = ""
    scheduling_group: SchedulingGroup | None = None
    scheduling_gates: tuple[Present, ...] | None = None
    resource_claims: tuple[PodClaim, ...] | None = None
    volumes: tuple[PodVolume, ...] | None = None
    active_deadline_seconds: int | None = None
    termination_grace_period_seconds: int | None = None


class Waiting(Record, frozen=True):
    reason: str = ""
    message: str = ""


class Terminated(Record, frozen=True):
    exit_code: int = 0
    reason: str = ""
    started_at: str | None = None
    finished_at: str | None = None


class ContainerState(Record, frozen=True):
    waiting: Waiting | None = None
    terminated: Terminated | None = None


class ContainerStatus(Record, frozen=True):
    name: str = ""
    state: ContainerState = ContainerState()
    resources: Resources | None = None
    allocated_resources: dict[str, str | int] | None = None


class PodStatus(Record, frozen=True):
    phase: str = ""
    reason: str = ""
    message: str = ""
    nominated_node_name: str = ""
    conditions: tuple[Condition, ...] | None = None
    container_statuses: tuple[ContainerStatus, ...] | None = None
    resource_claim_statuses: tuple[PodClaim, ...] | None = None


class PodObject(Known, frozen=True):
    spec: PodSpec = PodSpec()
    status: PodStatus = PodStatus()

    @property
    def ended(self) -> bool:
        return self.status.phase in ENDED

    @property
    def ready(self) -> bool:
        return any(one.type == "Ready" and one.status == "True" for one in self.status.conditions or ())

    @property
    def unschedulable(self) -> str:
        """Why a scheduler has found no node for it; empty if it has, or has not tried."""
        for one in self.status.conditions or ():
            if one.type == "PodScheduled" and one.status == "False":
                return one.message or one.reason or "no reason is given"
        return ""

    @property
    def waits_for_room(self) -> bool:
        """Whether a scheduler has found no node for it, and free resources would help. They do not help a Pod with
        scheduling gates, or a Pod that all nodes refuse for another reason, such as a missing volume.
        """
        why = self.unschedulable.lower()
        if not why or self.spec.node_name or self.spec.scheduling_gates:
            return False
        if any(word in why for word in LACKS_ROOM):
            return True
        return not any(word in why for word in LACKS_NO_ROOM)

    @property
    def preempts(self) -> bool:
        """Whether a scheduler may preempt other Pods for it."""
        return self.spec.preemption_policy != "Never"

    @property
    def waits_for(self) -> str:
        """Why its container does not run yet, as reported by its node."""
        for one in self.status.container_statuses or ():
            if one.state.waiting is not None:
                waiting = one.state.waiting
                return f"{waiting.reason}: {waiting.message}" if waiting.message else waiting.reason
        return ""

    def cannot_begin(self, is_late: bool) -> bool:
        """Whether its node cannot start its container: never, or, once it `is_late`, not without a change elsewhere."""
        why = self.waits_for
        return why.startswith(NEVER_BEGINS) or ROOT in why or (is_late and why.startswith(BEGINS_LATE))

    @property
    def priority(self) -> int:
        return self.spec.priority or 0

    @property
    def pod_group(self) -> str:
        """The name of its PodGroup of Kubernetes itself; empty if it is in none."""
        return self.spec.scheduling_group.pod_group_name if self.spec.scheduling_group else ""

    @property
    def key(self) -> str:
        """Its namespace and its name."""
        return f"{self.metadata.namespace}/{self.metadata.name}"

    @property
    def controller(self) -> Owner | None:
        """The object that creates another Pod in its place."""
        return next((one for one in self.metadata.owner_references or () if one.controller), None)

    @property
    def exit_code(self) -> int:
        """The first exit code of its containers that is not 0; 0 if there is none."""
        states = (one.state.terminated for one in self.status.container_statuses or ())
        return next((one.exit_code for one in states if one is not None and one.exit_code), 0)

    def end_of(self, container: str) -> Terminated | None:
        """Return how this container ended; None if it has not. A Pod runs on after its only container has ended if
        another program has added a container, such as the proxy of a service mesh.
        """
        ends = (one.state.terminated for one in self.status.container_statuses or () if one.name == container)
        return next(ends, None)

    @property
    def ran(self) -> int:
        """How long its container ran, in nanoseconds; 0 if that is unknown."""
        for one in self.status.container_statuses or ():
            over = one.state.terminated
            if over is not None and over.started_at and over.finished_at:
                with contextlib.suppress(ValueError):
                    took = datetime.fromisoformat(over.finished_at) - datetime.fromisoformat(over.started_at)
                    return max(0, round(took.total_seconds() * SECOND))
        return 0

    @property
    def killed_by(self) -> str:
        """The reason in one word why its container ended, if its node names one."""
        states = (one.state.terminated for one in self.status.container_statuses or ())
        return next((one.reason for one in states if one is not None), "")

    @property
    def refused(self) -> bool:
        """Whether its node refused it before any container began."""
        reason = self.status.reason
        began = any(one.state.terminated for one in self.status.container_statuses or ())
        return self.status.phase == "Failed" and not began and reason.startswith(REFUSALS)

    @property
    def is_deleted(self) -> bool:
        return self.metadata.deletion_timestamp is not None

    @property
    def volume_claims(self) -> tuple[tuple[str, str], ...]:
        """The namespaces and names of its PersistentVolumeClaims."""
        found = []
        for one in self.spec.volumes or ():
            if one.persistent_volume_claim is not None:
                found.append((self.metadata.namespace, one.persistent_volume_claim.claim_name))
            elif one.ephemeral is not None:
                found.append((self.metadata.namespace, f"{self.metadata.name}-{one.name}"))
        return tuple(found)

    @property
    def ports(self) -> frozenset[str]:
        """The ports of its node that it needs, each with its protocol."""
        found = [port for container in self.spec.containers if container.ports for port in container.ports]
        return frozenset([f"{port.protocol}:{port.host_port}" for port in found if port.host_port])

    @property
    def needs_others(self) -> bool:
        """Whether its placement depends on other Pods, so that the node alone does not decide whether it may
        run there.
        """
        affinity = self.spec.affinity
        others = affinity is not None and (affinity.pod_affinity or affinity.pod_anti_affinity)
        return bool(others or self.spec.topology_spread_constraints)

    @property
    def unsupported(self) -> str:
        """The first requirement of the Pod that Poise does not support, in words; empty if there is none."""
        affinity = self.spec.affinity or Affinity()
        if any(one is not None and one.required for one in (affinity.pod_affinity, affinity.pod_anti_affinity)):
            return "its required affinity or anti-affinity between Pods"
        if any(one.when_unsatisfiable == "DoNotSchedule" for one in self.spec.topology_spread_constraints or ()):
            return "its topology spread constraint with `DoNotSchedule`"
        return ""

    def may_run_on(self, node: NodeObject) -> bool:
        """Whether its selectors and tolerations allow the node, whatever is free."""
        labels = node.metadata.labels or {}
        if any(labels.get(key) != value for key, value in (self.spec.node_selector or {}).items()):
            return False
        affinity = self.spec.affinity.node_affinity if self.spec.affinity else None
        if affinity and affinity.required and not affinity.required.holds(node):
            return False
        return admits(node, self.spec.tolerations or ())


def admits(node: NodeObject, tolerations: Sequence[Toleration] = ()) -> bool:
    """Whether a Pod with these tolerations may be placed on the node."""
    return not node.spec.unschedulable and taint_against(node, tolerations) is None


def taint_against(node: NodeObject, tolerations: Sequence[Toleration]) -> Taint | None:
    """Return the first taint that keeps a Pod with these tolerations off the node."""
    taints = (taint for taint in node.spec.taints or () if taint.effect in ("NoSchedule", "NoExecute"))
    return next((taint for taint in taints if not any(one.tolerates(taint) for one in tolerations)), None)


def amounts(found: Mapping[str, str | int] | None) -> dict[str, int]:
    """Convert quantities to whole numbers, rounded up. An unreadable quantity counts as 0."""
    return {name: quantity(text, 1000 if name == "cpu" else 1) for name, text in (found or {}).items()}


@functools.lru_cache(maxsize=4096)
def quantity(text: str | int, unit: int = 1) -> int:
    """A quantity in parts of `unit`, rounded up, and at most `MOST`.

    >>> quantity("250m", 1000), quantity("1.5Gi"), quantity("2", 1000), quantity("1e3"), quantity("junk")
    (250, 1610612736, 2000, 1000, 0)
    """
    plain = str(text).strip()
    number, suffix = plain, ""
    for length in (2, 1):
        if plain[-length:] in _SUFFIXES and not plain[-length:].isdigit():
            number, suffix = plain[:-length], plain[-length:]
            break
    try:
        value = Decimal(number)
    except InvalidOperation:
        return 0
    if not value.is_finite():
        return 0
    value = min(max(value, Decimal(-MOST)), Decimal(MOST))  # an exponent may have any number of digits
    return min(ceil(value * _SUFFIXES[suffix] * unit), MOST)


def requested(pod: PodObject) -> dict[str, int]:
    """Return what a Pod holds of its node: what it requests as a whole; else the sum of its containers, or its largest
    init container if that is more.
    """
    total: dict[str, int] = {"pods": 1}
    statuses = {one.name: one for one in pod.status.container_statuses or ()}
    for container in pod.spec.containers:
        _add(total, _held(container, statuses.get(container.name)))
    largest: dict[str, int] = {}
    beside: dict[str, int] = {}  # init containers that keep running beside the other containers
    for container in pod.spec.init_containers or ():
        own = _of(container.resources)
        if container.restart_policy == "Always":
            _add(total, own)
            _add(beside, own)
            own = {}
        for name in {*own, *beside}:
            largest[name] = max(largest.get(name, 0), own.get(name, 0) + beside.get(name, 0))
    for name, amount in largest.items():
        total[name] = max(total.get(name, 0), amount)
    total |= _of(pod.spec.resources)
    _add(total, amounts(pod.spec.overhead))
    return total


def requested_by(pod: PodObject, container: str) -> dict[str, int]:
    """Return what one container of a Pod requests."""
    return next((_of(one.resources) for one in pod.spec.containers if one.name == container), {})


def most_added(before: Mapping[str, int], pod: PodObject, held: Mapping[str, int]) -> dict[str, int]:
    """Return the most that the cluster adds to a Pod, such as the overhead of a runtime, or another container: what it
    has added `before`, or what this Pod requests beyond `held`, whichever is more.
    """
    more = {name: amount - held.get(name, 0) for name, amount in requested(pod).items() if name != "pods"}
    return dict(before) | {name: amount for name, amount in more.items() if amount > before.get(name, 0)}


def left_of(node: NodeObject, pods: Iterable[PodObject]) -> dict[str, int]:
    """Return the free amounts of a node with these Pods on it."""
    free = amounts(node.status.allocatable)
    for pod in pods:
        for name, amount in requested(pod).items():
            if name in free:
                free[name] -= amount
    return free


def device_of(room: Mapping[str, int]) -> str:
    """Return the name of the most numerous accelerator of a node; empty if it has none."""
    found = {name: count for name, count in room.items() if is_device(name) and count > 0}
    return max(sorted(found), key=lambda name: found[name]) if found else ""


def is_device(name: str) -> bool:
    return name in DEVICES or name.startswith(DEVICE_GROUPS) or (name.startswith(DRIVERS) and "/" not in name)


def _of(resources: Resources) -> dict[str, int]:
    """Return the requests; a limit without a request counts as a request."""
    return amounts(resources.limits) | amounts(resources.requests)


def _held(container: Container, status: ContainerStatus | None) -> dict[str, int]:
    """Return what a container requests, or still holds on its node while that changes in place, whichever is more."""
    found = _of(container.resources)
    for more in (status.allocated_resources, (status.resources or Resources()).requests) if status is not None else ():
        for name, amount in amounts(more).items():
            found[name] = max(found.get(name, 0), amount)
    return found


def _add(total: dict[str, int], more: Mapping[str, int]) -> None:
    for name, amount in more.items():
        total[name] = total.get(name, 0) + amount


def _is_number(text: str) -> bool:
    """Whether it is a number of 64 bits: the API server does not limit the values of an affinity."""
    digits = text.removeprefix("-")
    return digits.isdecimal() and len(digits) < 20 and abs(int(text)) <= MOST
