"""Places Pods of others on the nodes of a cluster, as its scheduler: each node is a node of Poise, each Pod a task.

The control plane decides, and this module carries out its decisions. A Pod that waits becomes a job; a gang becomes one
job for all its Pods. Each placed Pod is bound by one write, which also stores the attempt in an annotation, so that
another process finds it. Nothing else is stored. A gang is bound once all its places are there. If a member cannot be
bound any more, the Pods of the gang that were bound are deleted, and their controllers create others.

Once a gang has begun, its Pods belong to their controllers: a Pod that fails does not end the others, and its
replacement gets its place. Poise deletes a Pod that runs only if its job is cancelled, or if its gang has had too few
Pods for `PATIENCE` while others of it wait.

A node offers the resources that the Pods of others do not use. For requirements that the ledger does not count (other
amounts, ports, selectors, taints), the node has one label for each kind of waiting Pod. This module has no input or
output, and no clock; it acts through `Doors`.

The cost of a change does not depend on the size of the cluster: only objects that the change may affect are noted and
checked. Objects that wait for a point in time are checked each `SWEEP`, and all nodes for each new kind of Pod.
"""

import contextlib
import hashlib
import heapq
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Literal, NamedTuple, Protocol

import msgspec

from poise.decoding import json_decoder
from poise.drivers.kubernetes.watching import Changes
from poise.kernel.node import (
    Changed,
    Connected,
    Disconnected,
    Effect,
    Fitness,
    Forget,
    Hang,
    Message,
    NodeMachine,
    Say,
    Start,
    Stop,
)
from poise.model.document import some
from poise.model.fields import MAX_DURATION
from poise.model.jobs import Ending, Outcome
from poise.model.messages import Attempt, Desired, Ended, FromAgent, Launch, Running, ToAgent
from poise.model.resources import ALLOCATED, CONTAINERS, SUBSTRATE, Device, Node, contained
from poise.model.times import Times
from poise.units import SECOND
from poise_kubernetes.claims import NO_CHANGES, DeviceChanges, Devices, Granted
from poise_kubernetes.copies import Pods, Room
from poise_kubernetes.grouping import (
    POD_GROUPS,
    Group,
    Needs,
    group_of,
    is_held,
    key_of,
    name_of,
    needs_of,
    oldest_first,
    priority_of,
)
from poise_kubernetes.manifests import TASK
from poise_kubernetes.offers import device_at, labels_of, published
from poise_kubernetes.records import (
    NodeObject,
    PodObject,
    Terminated,
    Toleration,
    admits,
    amounts,
    device_of,
    most_added,
    requested,
    requested_by,
)
from poise_kubernetes.volumes import VolumeChanges, VolumeClaim, Volumes

HOME = "poise-scheduler/home"
ATTEMPT = "poise-scheduler/attempt"
"""Annotations that a binding writes: the home that placed the Pod, and the launch of its attempt."""

RUN = "poise-pods"
"""First word of the command of a job for Pods; then come the key of its group and that of the job."""

NO_IMAGE = "nodes of this cluster run containers: name an image, `--image python:3.12`"

SETTLED = 2 * SECOND
"""A gang of unknown size is complete if no Pod of it was created for this long."""

ASK_AGAIN = 2 * SECOND
"""Interval of questions to the cluster for the size of a gang, until there is an answer."""

PATIENCE = 300 * SECOND
"""A gang that has had too few Pods for this long, while others of it wait, is given back."""

TOO_FEW = f"its group had too few Pods for {PATIENCE // SECOND} s and no room for more, so Poise deletes them"
GAVE_UP = "another Pod of its group was deleted or ended before all were bound, so Poise deletes the others"
"""Reasons why Pods of a gang are deleted, for their Events."""

KEPT = 600 * SECOND
"""A place of a gang is kept for this long for a Pod that replaces another; a Job waits six minutes at most."""

UNKNOWN = 30 * SECOND
"""An attempt for no Pods that are known here is handed back after this long."""

AVOIDED = 30 * SECOND
"""A node that has refused a Pod gets no such Pod for this long."""

TASKS = "tasks"
"""In place of the label of a kind of Pods: tasks with an image, on a node with too little room for what is added to
them.
"""

BEGIN = 300 * SECOND
"""A task whose container its kubelet cannot start is given up after this long."""

SWEEP = SECOND
"""Interval between checks of objects that wait for a point in time."""

DOUBT = 90 * SECOND
"""For this long after a node was lost or came back, jobs without a place may have ended there before their launch
arrived here. When this process has started, or has cancelled a job that it did not know, a cancellation that is still
under way may end the next job with the same key. Meanwhile jobs without a place are submitted again each `ASK_ANEW`, at
most `ASKED_AT_ONCE` in a sweep.
"""

ASK_ANEW = 15 * SECOND
ASKED_AT_ONCE = 50

CHECKED = 2 * SECOND
"""Interval between checks whether jobs of Pods that wait have ended, as after `poise cancel`. No node hears of that."""

DELETE_AGAIN = 10 * SECOND
"""Interval of requests to delete the Pod of a task that has ended."""

KIND = 600 * SECOND
"""Nodes keep the label of a kind of Pod for this long after the last such Pod. Each change of the label is a message
from each node, so Pods that arrive one after another must not change it.
"""

FEW = 3
"""Names of nodes in a reason."""

PAUSES = (SECOND // 5, 30 * SECOND)
"""Time between two tries of a write: the first and the longest."""

Written = Literal["bound", "again", "refused", "gone"]
"""Of a write: done; to be repeated, because it may be done or not, or because it was refused and certainly not done; or
impossible, because the Pod is gone or placed elsewhere.
"""

LASTING = "lasting"
"""The incarnation of each node. Kubernetes knows a node by its name alone: if a node is deleted and registers again,
its Pods run on, and Pods that have gone with it are deleted one by one.
"""

TIMES = Times(idle_after=2 * SECOND)
"""A cluster has thousands of nodes, all in this process."""

_to_launch = json_decoder(Launch)


class Asked(NamedTuple):
    """A job to submit: an idempotency key, and the job file. An earlier process may have submitted it already."""

    key: str
    spec: dict[str, Any]


class Doors(Protocol):
    """The ways out. All return at once; the outcomes come through the functions of `Placer` named in each."""

    def dial(self, node: str) -> None:
        """Connect a node to the control plane, and keep it connected: `connected`, `disconnected`, `hear`."""
        ...

    def say(self, node: str, message: FromAgent) -> None: ...
    def hang(self, node: str) -> None: ...
    def leave(self, node: str) -> None:
        """The node has left the cluster, with all that ran there."""
        ...

    def submit(self, asked: Sequence[Asked]) -> None:
        """Submit jobs: `submitted` for each."""
        ...

    def cancel(self, job: str) -> None: ...
    def check(self, jobs: Sequence[str]) -> None:
        """Read which of these jobs have ended: `ended`."""
        ...

    def bind(
        self,
        attempt: Attempt,
        pod: PodObject,
        node: str,
        notes: Mapping[str, str],
        granted: Sequence[Granted],
        unbound: Sequence[VolumeClaim],
    ) -> None:
        """Write the devices of a Pod into its claims, have its `unbound` volumes provisioned, and bind it with these
        annotations: `bound`.
        """
        ...

    def create(self, attempt: Attempt, launch: Launch, node: str, device: str, notes: Mapping[str, str]) -> None:
        """Create a Pod for a task on a node, with accelerators of this name, and these annotations: `bound`, with the
        Pod.
        """
        ...

    def fetch(self, attempt: Attempt, pod: PodObject) -> None:
        """Keep the output of a Pod that has ended: `fetched`."""
        ...

    def delete(self, pod: PodObject, why: str = "") -> None:
        """Delete a Pod; with a reason, write it to an Event of the Pod first."""
        ...

    def ask(self, path: str) -> None:
        """Read how many Pods of a gang start together: `answered`."""
        ...


class _Placed(msgspec.Struct, eq=False):
    """An attempt and its Pod. A `vacant` place has lost its Pod, and waits for another of the gang; `ending` is then
    how the attempt ends if none comes. It is `unused` once the gang is as large as before without it. It `began` once
    its whole gang was bound. A `partial` one was found by this process without all of its gang, so nobody knows whether
    that has begun. `stopping` says why it is given back, and `why` its last write has failed.
    """

    launch: Launch
    node: str
    since: int
    state: Literal["waits", "binds", "bound", "vacant", "ends"] = "waits"
    pod: PodObject | None = None
    stopping: str = ""
    deleted: bool = False
    began: bool = False
    partial: bool = False
    ending: Ending | None = None
    unused: bool = False
    tries: int = 0
    why: str = ""
    again_at: int = 0
    seen: int = 0
    runs: bool = False
    granted: Sequence[Granted] = ()

    @property
    def is_task(self) -> bool:
        """Whether its Pod is created for it, and not somebody else's."""
        return self.launch.argv[0] != RUN

    @property
    def is_being_created(self) -> bool:
        """Whether it is a task whose Pod is being created."""
        return self.is_task and self.state == "binds" and self.pod is None

    @property
    def attempt(self) -> Attempt:
        return self.launch.attempt

    @property
    def is_settled(self) -> bool:
        """Whether only its Pod or the control plane can change this."""
        started = self.runs or not self.is_task
        return self.state == "bound" and self.began and started and not self.stopping and not self.seen

    @property
    def gang(self) -> tuple[str, int]:
        return self.launch.gang or self.attempt.task, self.attempt.epoch

    def ran(self, now: int) -> int:
        """How long its Pod ran, in nanoseconds: as its node says, or else since it was bound."""
        return (self.pod.ran if self.pod is not None else 0) or max(1, now - self.since)

    @property
    def job(self) -> str:
        """The key of its job."""
        return self.launch.argv[-1]


class _Job(msgspec.Struct, eq=False):
    """A submitted job for these Pods, by uid. `id` is empty until it is known. For a job that an earlier process
    submitted, `asked` is false.
    """

    key: str
    uids: tuple[str, ...]
    needs: Needs
    label: str
    since: int
    asked: Asked | None = None
    id: str = ""
    failed: bool = False


class _Kind(msgspec.Struct, eq=False):
    """Needs of some waiting Pods for a node, and the number of their jobs; without jobs, since when there are none."""

    needs: Needs
    jobs: int = 0
    since: int = 0


class _Machine(msgspec.Struct, eq=False):
    """A node. `due` is when its machine must tick at the latest, as the placer has noted it."""

    machine: NodeMachine
    object: NodeObject | None
    size: dict[str, int]
    labels: dict[str, str]
    dialled: bool = False
    connected: bool = False
    why: str = ""
    due: int = 0


class Waiting(NamedTuple):
    """Pods that wait, the job that they wait as (empty: none yet), and the reason, if the control plane does not know
    it. A task whose Pod cannot be created has no Pod.
    """

    pods: tuple[PodObject, ...]
    job: str
    why: str
    since: int


class Placer:
    """The state of one scheduler; `home` tells its bindings from those of others."""

    def __init__(self, home: str, doors: Doors) -> None:
        self._home, self._doors = home, doors
        self._machines: dict[str, _Machine] = {}
        self._due: list[tuple[int, str, Attempt | None]] = []  # a heap: when a node ticks, or a write is repeated
        self._placed: dict[Attempt, _Placed] = {}
        self._by_pod: dict[str, _Placed] = {}
        self._here: dict[str, dict[Attempt, _Placed]] = {}
        self._gangs: dict[tuple[str, int], list[_Placed]] = {}
        self._unsettled: dict[Attempt, _Placed] = {}
        self._vacant: dict[Attempt, _Placed] = {}
        self._jobs: dict[str, _Job] = {}
        self._places: Counter[str] = Counter()  # the number of attempts of each job
        self._covered: dict[str, str] = {}  # the job of each Pod, by uid
        self._kinds: dict[str, _Kind] = {}  # by the label of the nodes
        self._nodes: dict[str, NodeObject] = {}
        self._own, self._others = Pods(), Pods()  # those that chose this scheduler, and all others
        self._pods = self._own.by_uid
        self._devices, self._volumes = Devices(), Volumes()
        self._room = Room()  # what Pods hold that this scheduler has not placed
        self._held: dict[str, tuple[PodObject, dict[str, int], frozenset[str]]] = {}  # amounts and ports of its own
        self._keys: dict[str, str] = {}  # the group of each of its Pods, by uid
        self._groups: dict[str, dict[str, PodObject]] = {}
        self._idle: dict[str, list[Waiting]] = {}  # what waits without a job, by group
        self._paths: dict[str, str] = {}  # what the cluster is asked about a group
        self._asking: dict[str, str] = {}  # the group that a path is about
        self._least: dict[str, int] = {}
        self._asked: dict[str, int] = {}  # what the cluster was asked, and when
        self._settling: dict[str, tuple[int, int]] = {}  # the size of a gang, and since when
        self._short: dict[str, int] = {}  # since when a gang has had too few Pods
        self._full: dict[str, int] = {}  # the largest number of Pods that a gang has had on nodes
        self._again: dict[str, tuple[int, str]] = {}  # Pods whose job was refused, until when they wait, and why
        self._avoided: dict[tuple[str, str], int] = {}
        self._extra: dict[str, int] = {}  # what the cluster adds to the Pod of a task
        self._refused: dict[str, tuple[int, str]] = {}  # nodes that refused a Pod, until when, and why
        self._kept: dict[Attempt, PodObject] = {}  # Pods of ended tasks, until their ends are durable
        self._over_at: dict[str, int] = {}  # Pods whose ends are durable, by uid, and when their deletion was asked for
        self._rounds: dict[str, int] = {}
        self._changed_pods: dict[str, None] = {}  # what the next look has to look at
        self._changed_groups: dict[str, None] = {}
        self._changed_nodes: dict[str, None] = {}
        self._changed_jobs: dict[str, None] = {}
        self._swept: int | None = None
        self._doubted = self._asked_anew = -DOUBT  # when jobs began to be in doubt, and when they were asked about
        self._doubtful: dict[str, None] = {}  # jobs to be asked about
        self._checked = -CHECKED
        self._cancelled: dict[str, int] = {}  # unknown jobs that this process has cancelled, and until when that counts
        self._explicit: frozenset[Attempt] = frozenset()
        self.rival = ""
        """The home of another scheduler of this name, which has bound a Pod that waited here."""

    # --- what there is ------------------------------------------------------------------------------------------------

    def look(
        self,
        nodes: Changes[NodeObject],
        others: Changes[PodObject],
        own: Changes[PodObject],
        now: int,
        devices: DeviceChanges = NO_CHANGES,
        volumes: VolumeChanges | None = None,
    ) -> None:
        """Apply the changes of the cluster since the last call: nodes, Pods of other schedulers that have not ended,
        Pods that name this scheduler, also ended ones, devices that drivers publish, and volumes (None: unknown).
        """
        self._changed_nodes.update(dict.fromkeys(sorted(self._devices.take(devices))))
        self._take(nodes, others, own)
        for uid in sorted(self._volumes.take(volumes)):
            self._remount(uid, now)
        for claim in devices.claims.values():
            if claim is not None and claim.owner is not None:
                self._note_group(claim.owner.uid)
        if self._swept is None:
            self._doubted = now
            self._adopt(now)
        if self._swept is None or now - self._swept >= SWEEP:
            self._swept = now
            self._sweep(now)
        changed, self._changed_pods = self._changed_pods, {}
        for uid in changed:
            if (placed := self._by_pod.get(uid)) is not None:
                self._check(placed, now)
        self._regroup(now)
        self._offer_changed(now)
        if self._vacant:
            self._fill_vacant(now)
        self.tick(now)

    @property
    def is_stirred(self) -> bool:
        """Whether the next check has something to do, even if nothing has changed in the cluster."""
        return bool(self._changed_pods or self._changed_groups or self._changed_nodes or self._changed_jobs)

    def waiting(self) -> list[Waiting]:
        """Return the Pods that wait, as of the last look."""
        found = [one for idle in self._idle.values() for one in idle]
        for job in self._jobs.values():
            pods = tuple(
                pod
                for uid in job.uids
                if uid not in self._by_pod
                and self._covered.get(uid) == job.key
                and (pod := self._pods.get(uid)) is not None
                and self._is_pending(pod)
            )
            if pods:
                found.append(Waiting(pods, job.id, "", job.since))
        for placed in self._unsettled.values():
            if placed.state == "binds" and placed.why:
                what = "its Pod cannot be created on" if placed.pod is None else "it cannot be bound to"
                pods = (placed.pod,) if placed.pod is not None else ()
                job_id = placed.attempt.task.partition(".")[0]
                found.append(Waiting(pods, job_id, f"{what} {placed.node}: {placed.why}", placed.since))
            elif placed.state == "bound" and not placed.runs and placed.pod is not None and placed.pod.waits_for:
                why = f"its Pod does not begin on {placed.node}: {placed.pod.waits_for}"
                found.append(Waiting((), placed.attempt.task.partition(".")[0], why, placed.since))
        return found

    def _take(self, nodes: Changes[NodeObject], others: Changes[PodObject], own: Changes[PodObject]) -> None:
        for (_, name), node in nodes.items():
            if node is None:
                self._nodes.pop(name, None)
            else:
                self._nodes[name] = node
            self._changed_nodes[name] = None
        for uid in self._others.take(others):
            self._count(uid, self._others.by_uid.get(uid))
        for uid in self._own.take(own):
            pod = self._pods.get(uid)
            self._count(uid, pod)
            self._sort_in(uid, pod)
            if pod is not None and pod.spec.node_name and uid in self._covered:
                home = (pod.metadata.annotations or {}).get(HOME, self._home)
                self.rival = home if home != self._home else self.rival
            self._volumes.use(uid, pod)
            self._changed_pods[uid] = None
            if (job := self._covered.get(uid)) is not None:
                self._changed_jobs[job] = None
            if pod is None:
                self._held.pop(uid, None)

    def _count(self, uid: str, pod: PodObject | None) -> None:
        """Count the resources that a Pod holds on its node, unless this scheduler has placed it there."""
        self._changed_nodes.update(dict.fromkeys(self._room.count(uid, None if uid in self._by_pod else pod)))

    def _sort_in(self, uid: str, pod: PodObject | None) -> None:
        """Note the group of a Pod, or that it has left."""
        before, key = self._keys.pop(uid, None), key_of(pod) if pod is not None else None
        if before is not None and before != key:
            self._changed_groups[before] = None
            del self._groups[before][uid]
        if key is not None and pod is not None:
            self._changed_groups[key] = None
            self._keys[uid] = key
            self._groups.setdefault(key, {})[uid] = pod

    def _remount(self, uid: str, now: int) -> None:
        """The volumes of a Pod have changed: if they need other nodes now, or are gone, its job does not count any
        more. A binding that may wait for them is repeated at once.
        """
        self._note_group(uid)
        placed, job = self._by_pod.get(uid), self._jobs.get(self._covered.get(uid, ""))
        if placed is not None and placed.state == "binds":
            self._repeat(placed, now)
        elif job is not None and not self._places[job.key]:
            pods = [pod for one in job.uids if (pod := self._pods.get(one)) is not None]
            if self._needs(pods).label != job.label or any(self._unmet(pod) for pod in pods):
                self._drop(job, cancels=True)

    def _repeat(self, placed: _Placed, now: int) -> None:
        """Repeat a write at once, unless it is under way."""
        if placed.again_at:
            placed.again_at = now
            heapq.heappush(self._due, (now, "", placed.attempt))

    def _needs(self, pods: Sequence[PodObject]) -> Needs:
        return needs_of(pods, self._devices.wanted, self._volumes.of)

    def _sweep(self, now: int) -> None:
        """Check the objects that wait for a point in time."""
        for attempt, placed in list(self._unsettled.items()):
            if self._placed.get(attempt) is not placed or placed.is_settled:
                del self._unsettled[attempt]
                continue
            if placed.pod is not None:
                self._changed_pods[placed.pod.metadata.uid] = None
            if placed.state == "vacant" and now - placed.since > KEPT:
                self._leave(placed)
            if placed.state == "waits" and (gang := self._gangs.get(placed.gang)) is not None:
                self._begin(gang, now)
        self._changed_groups.update(dict.fromkeys([*self._idle, *self._short]))
        self._again = {uid: refused for uid, refused in self._again.items() if refused[0] > now}
        for key, until in list(self._avoided.items()):
            if until <= now:
                del self._avoided[key]
                self._changed_nodes[key[0]] = None
        for name, (until, _) in list(self._refused.items()):
            if until <= now:
                del self._refused[name]
                self._changed_nodes[name] = None
        for uid, at in list(self._over_at.items()):
            pod = self._pods.get(uid)
            if pod is None or pod.is_deleted:
                del self._over_at[uid]
            elif now - at > DELETE_AGAIN:  # the request was lost
                self._over_at[uid] = now
                self._doors.delete(pod)
        self._ask_anew(now)
        self._check_jobs(now)
        for label, kind in list(self._kinds.items()):
            if kind.jobs:
                kind.since = 0
            elif not kind.since:
                kind.since = now
            elif now - kind.since > KIND:
                del self._kinds[label]
                self._changed_nodes.update(dict.fromkeys(self._machines))

    def _ask_anew(self, now: int) -> None:
        """Submit jobs again that may have ended without notice. This has no effect on a job that still exists."""
        if now - self._doubted < DOUBT and now - self._asked_anew >= ASK_ANEW:
            self._asked_anew = now
            self._doubtful.update((key, None) for key, job in self._jobs.items() if job.id and not self._places[key])
        asked: list[Asked] = []
        while self._doubtful and len(asked) < ASKED_AT_ONCE:
            job = self._jobs.get(self._doubtful.popitem()[0])
            if job is not None and job.asked is not None and job.id and not self._places[job.key]:
                asked.append(job.asked)
        if asked:
            self._doors.submit(asked)

    def _check_jobs(self, now: int) -> None:
        """Ask which jobs of waiting Pods have ended."""
        self._cancelled = {job: until for job, until in self._cancelled.items() if until > now}
        if now - self._checked >= CHECKED:
            self._checked = now
            waits = (job for job in self._jobs.values() if job.id and not self._places[job.key])
            if old := [job.id for job in waits if now - job.since >= CHECKED]:
                self._doors.check(old)

    def _holds(self, pod: PodObject) -> tuple[dict[str, int], frozenset[str]]:
        """Return the resources that a Pod holds on its node: amounts and ports. They are computed once."""
        known = self._held.get(pod.metadata.uid)
        if known is None or known[0] is not pod:
            held = {**requested(pod), **self._devices.wanted(pod).counts}
            known = self._held[pod.metadata.uid] = pod, held, pod.ports
        return known[1], known[2]

    def _pair(self, placed: _Placed, pod: PodObject) -> None:
        """An attempt has this Pod."""
        placed.pod = pod
        if placed.is_task:
            self._extra = most_added(self._extra, pod, requested_by(pod, TASK))
        self._by_pod[pod.metadata.uid] = placed
        self._count(pod.metadata.uid, None)
        self._changed_nodes[placed.node] = None

    def _part(self, placed: _Placed) -> None:
        """An attempt has lost its Pod; if the Pod still exists, it counts like a Pod of others."""
        self._devices.give_back(placed.granted)
        placed.granted = ()
        if placed.pod is not None:
            uid = placed.pod.metadata.uid
            self._by_pod.pop(uid, None)
            self._count(uid, self._pods.get(uid))
            if uid not in self._pods:
                self._held.pop(uid, None)
            self._note_group(uid)
        self._changed_nodes[placed.node] = None

    def _note_group(self, uid: str) -> None:
        if (key := self._keys.get(uid)) is not None:
            self._changed_groups[key] = None

    def _adopt(self, now: int) -> None:
        """Take over the Pods that an earlier process of this home has placed. If a log was lost, its attempts are used
        again: the latest Pod of an attempt counts.
        """
        held: dict[str, list[tuple[int, Launch, tuple[int, ...], Running | None]]] = {}
        latest_first = sorted(
            self._pods.values(), key=lambda of: (of.metadata.creation_timestamp, of.key), reverse=True
        )
        for pod in latest_first:
            notes = pod.metadata.annotations or {}
            if notes.get(HOME) != self._home or pod.spec.node_name not in self._nodes:
                continue
            launch = launch_of(pod)
            if launch is None or launch.attempt in self._placed:
                continue
            placed = _Placed(launch, pod.spec.node_name, now, state="bound", pod=pod)
            placed.runs = not placed.is_task or pod.status.phase == "Running"
            self._add(placed)
            running = Running(attempt=launch.attempt, pid=0) if placed.runs else None
            held.setdefault(placed.node, []).append((len(held.get(placed.node, ())), launch, (), running))
        for name, node in self._nodes.items():
            self._machine(name, node).machine.adopt(held.get(name, ()), ())
        for gang in self._gangs.values():
            if not gang[0].is_task:
                self._recover(gang, now)

    def _recover(self, gang: list[_Placed], now: int) -> None:
        """Find the other Pods of a gang that an earlier process has bound in part."""
        first = gang[0]
        bound = [placed.pod for placed in gang if placed.pod is not None]
        left = first.launch.world - len(gang)
        members = self._groups.get(first.launch.argv[1], {}).values()
        pending = [pod for pod in members if self._is_pending(pod)]
        others = sorted(pending, key=lambda of: of.key)[:left]
        pods = [*bound, *others]
        job = self._cover(first.job, pods, now)
        job.id = first.attempt.task.partition(".")[0]
        for placed in gang:
            placed.began, placed.partial = not left, bool(left)

    # --- nodes --------------------------------------------------------------------------------------------------------

    def _machine(self, name: str, node: NodeObject) -> _Machine:
        offer = Node(name=name, incarnation=LASTING, cpu=0, memory=0)
        machine = NodeMachine(offer, (), TIMES, lasting=True)
        known = self._machines[name] = _Machine(machine, node, amounts(node.status.allocatable), labels_of(node))
        return known

    def _offer_changed(self, now: int) -> None:
        changed, self._changed_nodes = self._changed_nodes, {}
        for name in sorted(changed):
            self._offer_one(name, now)

    def _offer_one(self, name: str, now: int) -> None:
        node, held = self._nodes.get(name), list(self._here.get(name, {}).values())
        known = self._machines.get(name)
        if known is None:
            if node is None:
                return
            known = self._machine(name, node)
        elif node is None:
            self._doubted = now
            if not held:
                del self._machines[name]
                self._here.pop(name, None)
                self._doors.leave(name)
                return
        if node is not None and node is not known.object:
            known.size, known.labels = amounts(node.status.allocatable), labels_of(node)
        known.object = node
        self._fit(name, known, now)
        if node is not None:
            offer = self._offer(known, node, held)
            if offer != known.machine.node:
                known.machine.node = offer
                if known.connected:
                    self._feed(name, Connected(), now)
        if not known.dialled:
            known.dialled = True
            self._doors.dial(name)

    def _fit(self, name: str, known: _Machine, now: int) -> None:
        why = _unfit(known.object)
        until, refused = self._refused.get(name, (0, ""))
        if until > now:
            why = why or refused
        if why != known.why:
            known.why = why
            self._feed(name, Fitness(why), now)

    def _offer(self, known: _Machine, node: NodeObject, held: Sequence[_Placed]) -> Node:
        """Return what a node offers beside the Pods of others, and which kinds of waiting Pods it may hold."""
        name, size, (free, ports) = node.metadata.name, self._size(known, node), self._left(known, node)
        others, device = self._used(name, held), device_of(size)
        more = self._spare(held, device)
        added = self._extra if (name, TASKS) in self._avoided else {}
        offer = {
            of: max(0, max(0, size.get(of, 0) - others.get(of, 0)) + amount - added.get(of, 0))
            for of, amount in more.items()
        }
        taken = {index for placed in held for index in placed.launch.devices}
        admitted = {
            label: "yes"
            for label, kind in sorted(self._kinds.items())
            if (name, label) not in self._avoided and not self._refuses(kind.needs, known, node, free, ports)
        }
        tolerated = (Toleration(key=device, operator="Exists"),) if device else ()
        if found := self._devices.on(name, device):
            gone = self._devices.held(name, device, self._own_claims(held)) - taken
            devices = tuple(published(one.product, one.place, one.memory) for one in found if one.place not in gone)
        else:
            devices = _devices(node, size.get(device, 0) + more.get(device, 0), offer.get(device, 0), taken)
        runs = CONTAINERS | {contained(one.kind): "yes" for one in devices}
        containers = runs if admits(node, tolerated) and free.get("pods", 1) > 0 else {}
        return Node(
            name=name,
            incarnation=LASTING,
            cpu=offer["cpu"],
            memory=offer["memory"],
            devices=devices,
            labels={
                **known.labels,
                ALLOCATED: "kubernetes",
                SUBSTRATE: "kubernetes",
                **containers,
                **admitted,
            },  # others may come
        )

    def _spare(self, held: Sequence[_Placed], device: str) -> dict[str, int]:
        """Return what the ledger counts for these places, and their Pods do not request; below 0 if they request more.
        A place of a gang is as large as its largest Pod, each place has at least a thousandth of a CPU, and an unused
        one has no Pod. The cluster adds something to the Pod of a task.
        """
        found = dict.fromkeys(("cpu", "memory", device), 0)
        for placed in held:
            booked = _booked(placed.launch, device)
            if placed.unused or placed.pod is not None:
                requests = self._holds(placed.pod)[0] if placed.pod is not None else {}
            elif placed.is_being_created:
                requests = self._with_extra(booked)
            else:
                continue
            for of, amount in booked.items():
                found[of] += amount - requests.get(of, 0)
        return found

    def _with_extra(self, booked: Mapping[str, int]) -> dict[str, int]:
        """Return what the Pod of a task requests that has these amounts, with all that the cluster adds to it."""
        found = {"pods": 1, **booked}
        _add(found, self._extra)
        return found

    def _left(
        self, known: _Machine, node: NodeObject, without: _Placed | None = None
    ) -> tuple[dict[str, int], frozenset[str]]:
        """Return the free amounts of a node, and the ports that Pods use; the Pod `without` does not count."""
        name = node.metadata.name
        others, ports = self._used(name, self._here.get(name, {}).values()), {*self._room.ports(name)}
        free = {of: amount - others.get(of, 0) for of, amount in self._size(known, node).items()}
        for placed in self._here.get(name, {}).values():
            if placed.pod is not None and placed is not without and placed.state != "vacant":
                held, used = self._holds(placed.pod)
                ports.update(used)
                _add(free, {of: -amount for of, amount in held.items()})
            elif placed.is_being_created:
                held = self._with_extra(_booked(placed.launch, device_of(self._size(known, node))))
                _add(free, {of: -amount for of, amount in held.items()})
        return free, frozenset(ports)

    def _size(self, known: _Machine, node: NodeObject) -> Mapping[str, int]:
        """Return the amounts of a node, and the number of its devices by driver."""
        devices = self._devices.sizes(node.metadata.name)
        return {**known.size, **devices} if devices else known.size

    def _used(self, name: str, held: Iterable[_Placed]) -> Mapping[str, int]:
        """Return the resources that others hold on a node."""
        used, drivers = self._room.used(name), self._devices.sizes(name)
        if not drivers:
            return used
        own = self._own_claims(held)
        return {**used, **{driver: len(self._devices.held(name, driver, own)) for driver in drivers}}

    def _own_claims(self, held: Iterable[_Placed]) -> set[tuple[str, str]]:
        """Return the claims whose devices count as those of Pods placed here."""
        pods = (placed.pod for placed in held if placed.pod is not None and placed.state != "vacant")
        return {claim.key for pod in pods for claim in self._devices.wanted(pod).claims if claim.owner is not None}

    def _refuses(
        self, needs: Needs, known: _Machine, node: NodeObject, free: Mapping[str, int], ports: Iterable[str]
    ) -> str:
        """Return the reason, beyond those that the ledger knows, why such a Pod cannot be on a node now; empty if it
        can.
        """
        why = needs.refuses(node, self._size(known, node), free, ports)
        for one in needs.claims:
            found = self._devices.grant(one.claims, node.metadata.name, known=False)
            why = why or (found if isinstance(found, str) else "")
        return why

    def pod_of(self, attempt: Attempt) -> PodObject | None:
        """Return the Pod of an attempt, if it has one."""
        placed = self._placed.get(attempt)
        return placed.pod if placed is not None else None

    def refusals(self, job: str) -> list[str]:
        """Return why nodes cannot hold the Pods of a job, as far as the ledger does not see it."""
        found: dict[str, list[str]] = {}
        needs = next((one.needs for one in self._jobs.values() if one.id == job), None)
        for name, known in sorted(self._machines.items()):
            if needs is not None and known.object is not None:
                free, ports = self._left(known, known.object)
                why = _unfit(known.object) or self._refuses(needs, known, known.object, free, ports)
                found.setdefault(why, []).append(name)
        return [f"{some(names, FEW)}: {why}" for why, names in found.items() if why]

    # --- the control plane --------------------------------------------------------------------------------------------

    def connected(self, node: str, now: int) -> None:
        if (known := self._machines.get(node)) is not None:
            known.connected = True
            self._feed(node, Connected(), now)

    def disconnected(self, node: str, now: int) -> None:
        if (known := self._machines.get(node)) is not None:
            known.connected = False
            self._doubted = now
            self._feed(node, Disconnected(), now)

    def hear(self, node: str, message: ToAgent, now: int) -> None:
        if node in self._machines:
            self._explicit = frozenset(message.stops) if isinstance(message, Desired) else frozenset()
            self._feed(node, message, now)

    def submitted(self, key: str, job: str, now: int, over: str = "", why: str = "") -> None:
        """A job has this id; empty: it was refused for this reason, and is submitted again later. `over` is the status
        of a job that an earlier process submitted, if it has ended: its Pods still wait, so they get another job.
        """
        known = self._jobs.get(key)
        if known is None:
            if job:
                self._cancel_unknown(job, now)
        elif over and known.id == job:
            self.ended({job: over}, now)
        elif over:
            self._drop(known)
        elif job:
            known.id = job
        else:
            self._again.update(dict.fromkeys(known.uids, (now + PAUSES[1], why)))
            self._drop(known)

    def ended(self, jobs: Mapping[str, str], now: int) -> None:
        """Jobs of Pods that wait have ended, with these statuses; an empty one: the control plane does not know it. If
        a user has cancelled the job, its Pods are deleted, like those of a job that runs. Otherwise they get another
        job.
        """
        for job in [one for one in self._jobs.values() if one.id in jobs and not self._places[one.key]]:
            if jobs[job.id] != "cancelled" or job.id in self._cancelled:
                self._drop(job)
                continue
            for uid in job.uids:
                pod = self._pods.get(uid)
                if pod is not None and self._is_pending(pod):
                    self._doors.delete(pod, f"job {job.id} was cancelled in Poise, which deletes its Pods")

    def _cancel_unknown(self, job: str, now: int) -> None:
        """Cancel a job that this process does not know. Its key may be used again before it has ended."""
        self._doors.cancel(job)
        self._doubted, self._cancelled[job] = now, now + DOUBT

    def answered(self, path: str, least: int) -> None:
        """So many Pods of a gang start together; 0: the cluster does not know. A PodGroup of Kubernetes itself is then
        asked for again: its Pods wait until it exists.
        """
        key = self._asking.get(path)
        if key is not None and (least or not path.startswith(POD_GROUPS)):
            self._least[path] = least
            self._changed_groups[key] = None

    def tick(self, now: int) -> None:
        """Handle the passing of time: heartbeats, and writes that are repeated."""
        due: list[tuple[int, str, Attempt | None]] = []
        while self._due and self._due[0][0] <= now:
            due.append(heapq.heappop(self._due))
        for at, name, attempt in due:
            if attempt is not None:
                placed = self._placed.get(attempt)
                if placed is not None and placed.state == "binds" and placed.again_at == at:
                    placed.again_at = 0
                    self._bind(placed)
            elif (known := self._machines.get(name)) is not None and known.due == at:
                known.due = 0
                wakes = known.machine.wakeup()
                self._perform(name, known.machine.tick(now) if wakes is not None and wakes <= now else (), now)

    def wakeup(self) -> int | None:
        """Return when to tick next if nothing happens before."""
        return self._due[0][0] if self._due else None

    def _feed(self, name: str, message: Message, now: int) -> None:
        self._perform(name, self._machines[name].machine.handle(message, now), now)

    def _note_due(self, name: str) -> None:
        """Note when a node must tick, unless that is later than what is noted already."""
        known = self._machines.get(name)
        due = known.machine.wakeup() if known is not None else None
        if known is not None and due is not None and (not known.due or due < known.due):
            known.due = due
            heapq.heappush(self._due, (due, name, None))

    def _perform(self, name: str, effects: Sequence[Effect], now: int) -> None:
        for effect in effects:
            match effect:
                case Say():
                    self._doors.say(name, effect.message)
                case Hang():
                    self._doors.hang(name)
                case Start():
                    placed = _Placed(effect.launch, name, now)
                    self._add(placed)
                    self._begin(self._gangs[placed.gang], now)
                case Stop():
                    self._stop(effect.attempt, now)
                case Forget():
                    for attempt in effect.attempts:
                        if (pod := self._kept.pop(attempt, None)) is not None:
                            self._doors.delete(pod)
                            self._over_at[pod.metadata.uid] = now
                case _:  # nothing here has a lease, orders or another time limit
                    pass
        self._note_due(name)

    # --- attempts -----------------------------------------------------------------------------------------------------

    def _add(self, placed: _Placed) -> None:
        self._placed[placed.attempt] = self._unsettled[placed.attempt] = placed
        self._here.setdefault(placed.node, {})[placed.attempt] = placed
        self._changed_nodes[placed.node] = None
        if placed.pod is not None:
            self._pair(placed, placed.pod)
        self._gangs.setdefault(placed.gang, []).append(placed)
        self._places[placed.job] += 1

    def _begin(self, gang: list[_Placed], now: int) -> None:
        """Bind a gang once all its places are there."""
        waits = [placed for placed in gang if placed.state == "waits"]
        if not waits or len(gang) < gang[0].launch.world:
            return
        job = self._jobs.get(waits[0].job)
        if waits[0].is_task:
            self._create(waits, now)
            return
        if job is None:
            if now - waits[0].since > UNKNOWN:
                self._cancel_unknown(waits[0].attempt.task.partition(".")[0], now)
                self._end_all(waits, Ending(outcome="returned", note="its Pods are not there"), now)
            return
        taken = {placed.pod.metadata.uid for placed in gang if placed.pod is not None}
        pods = [pod for uid in job.uids if uid not in taken and (pod := self._pods.get(uid)) and self._is_pending(pod)]
        why = "" if len(pods) >= len(waits) else "its Pods are not there"
        pairs = list(zip(sorted(waits, key=lambda of: of.launch.rank), pods, strict=False))
        for placed, pod in pairs:
            why = why or self._refusal(placed, pod, now)
            placed.pod = pod
        if why:
            for placed in waits:
                placed.pod = None  # it was not bound
            self._end_all(waits, Ending(outcome="returned", note=why), now)
            return
        for placed, pod in pairs:
            placed.state = "binds"
            self._pair(placed, pod)
        for placed in waits:
            self._bind(placed)

    def _create(self, waits: Sequence[_Placed], now: int) -> None:
        """Create the Pods of a task, or of all tasks of a gang."""
        if not waits[0].launch.image:
            self._end_all(waits, Ending(outcome="unstartable", note=NO_IMAGE), now)
            return
        for placed in waits:
            if short := self._lacks_for_task(placed, placed.node):
                self._avoided[placed.node, TASKS] = now + AVOIDED
                self._changed_nodes[placed.node] = None
                never = all(self._lacks_for_task(placed, node, empty=True) for node in self._nodes)
                note = f"{short}: {'no node has' if never else f'{placed.node} has not'} enough for its Pod"
                note += ", with what the cluster adds to it"
                self._end_all(waits, Ending(outcome="unstartable" if never else "returned", note=note), now)
                return
        for placed in waits:
            placed.state, placed.seen = "binds", now
            self._bind(placed)

    def _lacks_for_task(self, placed: _Placed, name: str, empty: bool = False) -> str:
        """Return the amount that a node has too little of for the Pod of a task, or would have if it were empty. The
        ledger does not know what the cluster adds to a Pod.
        """
        known = self._machines.get(name)
        if known is None or known.object is None or not self._extra:
            return ""
        size = self._size(known, known.object)
        free = size if empty else self._left(known, known.object)[0]
        needs = self._with_extra(_booked(placed.launch, device_of(size)))
        return next((of for of, amount in needs.items() if amount > max(0, free.get(of, 0))), "")

    def _refusal(self, placed: _Placed, pod: PodObject, now: int) -> str:
        """Why a Pod cannot be bound there, as of the latest copy; empty if it can."""
        known = self._machines[placed.node]
        if known.object is None or _unfit(known.object):
            return _unfit(known.object)
        free, ports = self._left(known, known.object, placed)
        job = self._jobs[placed.job]
        needs = job.needs if job.uids == (pod.metadata.uid,) else needs_of([pod], mounted=self._volumes.of)
        why = self._volumes.of(pod).why or needs.refuses(known.object, self._size(known, known.object), free, ports)
        short = next((of for of, amount in self._holds(pod)[0].items() if amount > max(0, free.get(of, 0))), "")
        if not (why or short) and pod.spec.resource_claims:
            wanted = self._devices.wanted(pod)
            found = wanted.why or self._devices.grant(wanted.claims, placed.node, placed.launch.devices)
            if isinstance(found, str):
                why = found
            else:
                placed.granted = found
                self._devices.lend(found)
        if why or short:
            self._avoided[placed.node, job.label] = now + AVOIDED
            self._changed_nodes[placed.node] = None
        return why or (f"{short} of the node is in use" if short else "")

    def _bind(self, placed: _Placed) -> None:
        launch = msgspec.structs.replace(placed.launch, env={}, secrets={}, folder="")
        notes = {HOME: self._home, ATTEMPT: msgspec.json.encode(launch).decode()}
        if placed.is_task:
            device = device_of(self._machines[placed.node].size) if launch.devices else ""
            self._doors.create(placed.attempt, placed.launch, placed.node, device, notes)
        elif placed.pod is not None:
            unbound = self._volumes.of(placed.pod).waiting
            self._doors.bind(placed.attempt, placed.pod, placed.node, notes, placed.granted, unbound)

    def bound(
        self,
        attempt: Attempt,
        outcome: Written,
        now: int,
        why: str = "",
        after: int = 0,
        pod: PodObject | None = None,
    ) -> None:
        """The outcome of a binding, or of a creation and its Pod. A write to be repeated is repeated `after` so many
        nanoseconds, or a pause.
        """
        placed = self._placed.get(attempt)
        if placed is None or placed.state != "binds":
            if pod is not None:
                self._doors.delete(pod)
            return
        if pod is not None:
            self._pair(placed, pod)
        if outcome == "refused" and placed.stopping:
            if placed.pod is not None:
                self._delete(placed)
            else:
                self._end(placed, Ending(outcome="stopped", note=why), now)
        elif outcome in ("again", "refused"):
            pause = min(PAUSES[1], PAUSES[0] << min(placed.tries, 10))
            placed.tries, placed.why, placed.again_at = placed.tries + 1, why, now + max(after, pause)
            heapq.heappush(self._due, (placed.again_at, "", attempt))
        elif outcome == "bound":
            placed.state, placed.tries, placed.why, placed.since = "bound", 0, "", now
            if placed.pod is not None:
                self._changed_pods[placed.pod.metadata.uid] = None  # it may have ended already
            if placed.stopping:
                self._delete(placed)
                return
            gang = self._gangs[placed.gang]
            if len(gang) == placed.launch.world and all(one.state == "bound" for one in gang):
                for one in gang:
                    one.began, one.partial = True, False
            if not placed.is_task:
                self._feed(placed.node, Changed(running=(Running(attempt=attempt, pid=0),)), now)
        else:
            self._missed(placed, why, now)

    def _missed(self, placed: _Placed, why: str, now: int) -> None:
        """A Pod can never be bound: its gang does not begin, and what was bound of it is given back."""
        if placed.began:
            self._vacate(placed, now)
            self._end_vacant(self._gangs[placed.gang], now)
            return
        self._part(placed)
        gang = list(self._gangs[placed.gang])
        if (job := self._jobs.get(placed.job)) is not None:
            job.failed = True
        self._end(placed, Ending(outcome="unstartable" if not placed.stopping else "stopped", note=why), now)
        for one in gang:
            if one is not placed and not one.stopping:
                self._give_back(one, GAVE_UP, now)

    def _give_back(self, placed: _Placed, why: str, now: int) -> None:
        """Undo a place, whatever has happened there."""
        placed.stopping = why
        self._unsettled[placed.attempt] = placed
        match placed.state:
            case "waits":
                self._end(placed, Ending(outcome="returned"), now)
            case "vacant":
                self._end(placed, placed.ending or Ending(outcome="stopped"), now)
            case "bound":
                self._delete(placed)
            case "binds":
                self._repeat(placed, now)  # the answer decides
            case "ends":
                pass  # its output is being kept

    def _stop(self, attempt: Attempt, now: int) -> None:
        """The control plane gives an attempt up. One that it does not know any more, as after a long silence, goes on
        as the Pod of somebody else.
        """
        placed = self._placed.get(attempt)
        if placed is None:
            return
        why = f"Poise has stopped job {attempt.task.partition('.')[0]}, and deletes its Pods"
        if placed.is_task:
            self._give_back(placed, why, now)
            return
        whole = placed.began or placed.launch.world == 1
        if placed.state == "bound" and (placed.partial or (whole and attempt not in self._explicit)):
            self._end(placed, Ending(outcome="stopped"), now)
        else:
            self._give_back(placed, why, now)

    def _delete(self, placed: _Placed) -> None:
        if placed.pod is not None and not placed.deleted:
            placed.deleted = True
            self._doors.delete(placed.pod, "" if placed.is_task else placed.stopping)

    def _check(self, placed: _Placed, now: int) -> None:
        """Compare an attempt with its Pod."""
        if placed.pod is None or self._placed.get(placed.attempt) is not placed:
            return
        uid = placed.pod.metadata.uid
        pod = self._pods.get(uid)
        if pod is not None:
            placed.pod, placed.seen = pod, 0
        elif placed.seen and now - placed.seen < UNKNOWN:  # it was created just now
            return
        if placed.state == "binds" and pod is None:
            self.bound(placed.attempt, "gone", now, "its Pod was deleted")
        elif placed.state == "binds" and placed.deleted and pod is not None and not pod.is_deleted:
            self._doors.delete(pod, placed.stopping)  # the request was lost
        if placed.state != "bound":
            return
        if placed.is_task:
            self._check_task(placed, pod, now)
        elif pod is None:
            self._over(placed, Ending(outcome="killed", run=placed.ran(now), note="its Pod was deleted"), now)
        elif pod.status.phase == "Succeeded":
            gang = self._gangs[placed.gang]
            self._end(placed, Ending(outcome="done", run=placed.ran(now)), now)
            self._end_vacant(gang, now)
        elif pod.ended:
            note = ": ".join(filter(None, (pod.status.reason, pod.status.message)))
            self._over(placed, Ending(outcome="failed", code=pod.exit_code or 1, run=placed.ran(now), note=note), now)
        elif placed.stopping and placed.deleted and not pod.is_deleted:
            self._doors.delete(pod, placed.stopping)  # the request was lost

    def _check_task(self, placed: _Placed, pod: PodObject | None, now: int) -> None:
        """Compare a task with its Pod. What a kubelet refuses has not begun."""
        if pod is None:
            outcome: Outcome = "stopped" if placed.stopping else "killed"
            deleted = Ending(outcome=outcome, run=placed.ran(now), note="its Pod was deleted")
            self._end(placed, placed.ending or deleted, now)
        elif pod.refused:
            self._refused[placed.node] = now + AVOIDED, f"the kubelet refused a Pod: {pod.status.reason}"
            self._kept[placed.attempt] = pod
            self._fit(placed.node, self._machines[placed.node], now)  # before the attempt is placed again
            self._end(placed, Ending(outcome="returned", note=f"{pod.status.reason}: {pod.status.message}"), now)
        elif pod.ended or pod.end_of(TASK) is not None:
            ending = _ending_of(pod, bool(placed.stopping), placed.ran(now))
            placed.state, placed.ending = "ends", ending if ending.outcome == "done" else placed.ending or ending
            self._kept[placed.attempt] = pod
            self._doors.fetch(placed.attempt, pod)
        elif placed.stopping or placed.deleted:
            if placed.deleted and not pod.is_deleted:
                self._doors.delete(pod)  # the request was lost
        elif pod.status.phase == "Running" and not placed.runs:
            placed.runs = True
            self._feed(placed.node, Changed(running=(Running(attempt=placed.attempt, pid=0),)), now)
        elif not placed.runs and pod.cannot_begin(now - placed.since > BEGIN):
            placed.ending = Ending(outcome="unstartable", note=pod.waits_for)
            self._delete(placed)

    def fetched(self, attempt: Attempt, now: int) -> None:
        """The output of a Pod is kept, as far as there is any."""
        placed = self._placed.get(attempt)
        if placed is not None and placed.ending is not None:
            self._end(placed, placed.ending, now)

    def _over(self, placed: _Placed, ending: Ending, now: int) -> None:
        """A Pod has failed or was deleted. In a gang that has begun, its place waits for the one that is created in
        its stead, as long as others of the gang run.
        """
        if placed.stopping:
            self._end(placed, Ending(outcome="stopped"), now)
            return
        others = [one for one in self._gangs[placed.gang] if one is not placed and one.state != "vacant"]
        if placed.began and others:
            self._vacate(placed, now)
            placed.ending = ending
            return
        gang = list(self._gangs[placed.gang])
        self._end(placed, ending, now)
        for one in gang:
            if one.state == "vacant":
                self._end(one, one.ending or ending, now)
            elif one is not placed and not placed.began:
                self._give_back(one, GAVE_UP, now)

    def _vacate(self, placed: _Placed, now: int) -> None:
        """The place of a gang that runs has lost its Pod."""
        self._part(placed)
        placed.state, placed.pod, placed.since = "vacant", None, now
        self._vacant[placed.attempt] = self._unsettled[placed.attempt] = placed

    def _end_vacant(self, gang: Sequence[_Placed], now: int) -> None:
        """Places that have lost their Pods end with the last Pod of their gang. A Pod that comes later gets another
        place.
        """
        if all(one.state == "vacant" for one in gang):
            for one in list(gang):
                self._end(one, one.ending or Ending(outcome="killed", note="its Pod was deleted"), now)

    def _end_all(self, every: Iterable[_Placed], ending: Ending, now: int) -> None:
        for placed in list(every):
            self._end(placed, ending, now)

    def _end(self, placed: _Placed, ending: Ending, now: int) -> None:
        del self._placed[placed.attempt], self._here[placed.node][placed.attempt]
        self._vacant.pop(placed.attempt, None)
        self._places[placed.job] -= 1
        if not self._places[placed.job]:
            del self._places[placed.job]
        self._part(placed)
        gang = self._gangs[placed.gang]
        gang.remove(placed)
        if not gang:
            del self._gangs[placed.gang]
        job = self._jobs.get(placed.job)
        if job is not None:
            if ending.outcome != "returned" and placed.pod is not None:
                self._covered.pop(placed.pod.metadata.uid, None)
            left = any(one.job == job.key for one in gang)
            if not left and (job.failed or ending.outcome != "returned"):
                self._drop(job, cancels=job.failed)
            self._changed_jobs[job.key] = None
        self._feed(placed.node, Changed(ended=(Ended(attempt=placed.attempt, ending=ending),)), now)

    # --- jobs ---------------------------------------------------------------------------------------------------------

    def _regroup(self, now: int) -> None:
        """Submit a job for Pods that have none, and cancel those whose Pods have gone."""
        doubtful, self._changed_jobs = self._changed_jobs, {}
        for key in doubtful:
            job = self._jobs.get(key)
            if job is not None and not self._is_wanted(job):
                self._drop(job, cancels=True)
        changed, self._changed_groups = self._changed_groups, {}
        found: list[Group] = []
        for key in changed:
            if members := self._groups.get(key):
                found.append(group_of(key, members.values(), self._least))
            else:
                self._forget(key)
        asked: list[Asked] = []
        for group in oldest_first(found):
            self._look_at(group, asked, now)
        if asked:
            self._doors.submit(asked)

    def _is_wanted(self, job: _Job) -> bool:
        """Whether a job has a place, or all its Pods still wait for one."""
        return bool(self._places[job.key]) or all(
            (pod := self._pods.get(uid)) is not None and self._is_pending(pod) for uid in job.uids
        )

    def _forget(self, key: str) -> None:
        """A group has no Pods any more."""
        self._groups.pop(key, None)
        for known in (self._settling, self._short, self._full, self._rounds, self._idle):
            known.pop(key, None)
        if (path := self._paths.pop(key, None)) is not None:
            for told in (self._asking, self._asked, self._least):
                told.pop(path, None)

    def _look_at(self, group: Group, asked: list[Asked], now: int) -> None:
        pending = [pod for pod in group.members if self._is_pending(pod)]
        free = [pod for pod in pending if pod.metadata.uid not in self._covered]
        if group.asks:
            self._paths[group.key], self._asking[group.asks] = group.asks, group.key
        idle = self._jobs_for(group, free, asked, now)
        if idle:
            self._idle[group.key] = idle
        else:
            self._idle.pop(group.key, None)
        bound = [pod for pod in group.members if pod.spec.node_name and not pod.ended and not pod.is_deleted]
        live = len(bound) + sum(pod.status.phase == "Succeeded" for pod in group.members)
        self._give_up_if_short(group, pending, bound, live, now)
        self._full[group.key] = max(live, self._full.get(group.key, 0))
        if live == self._full[group.key]:
            self._leave_vacant(group.key)

    def _jobs_for(self, group: Group, free: list[PodObject], asked: list[Asked], now: int) -> list[Waiting]:
        """Submit jobs for the Pods of a group that have none; return those that cannot have one yet."""
        least = group.least or self._size_of(group, now)
        if not free:
            return []
        if not least:
            return [Waiting(tuple(free), "", "the size of its group is not known yet", now)]
        missing = least - len([pod for pod in group.members if self._is_there(pod)])
        refused: dict[str, list[PodObject]] = {}
        for pod in free:
            if pod.metadata.uid in self._again:
                refused.setdefault(self._again[pod.metadata.uid][1], []).append(pod)
        idle = [Waiting(tuple(of), "", f"the control plane refuses its job: {why}", now) for why, of in refused.items()]
        unmet = ((pod, self._unmet(pod)) for pod in free)
        idle += [Waiting((pod,), "", why, now) for pod, why in unmet if why]
        waits = {pod.metadata.uid for one in idle for pod in one.pods}
        free = [pod for pod in free if pod.metadata.uid not in waits]
        if missing > len(free) > 0:
            if group.asks and group.asks not in self._least:
                self._size_of(group, now)
            why = f"its group waits for {missing - len(free)} more of {least} Pods"
            idle.append(Waiting(tuple(free), "", why, now))
        elif missing > 0 and free:
            first = sorted(free, key=lambda of: of.key)[:missing]
            asked.append(self._asked_for(group, group.name, first, now))
            self._changed_groups[group.key] = None  # it may have more
        else:
            asked.extend(self._asked_for(group, name_of(pod.key), [pod], now) for pod in free)
        return idle

    def _unmet(self, pod: PodObject) -> str:
        """Return why a Pod cannot be placed whatever is free; empty if it can."""
        if pod.unsupported:
            return f"Poise does not support {pod.unsupported}: leave the Pod to kube-scheduler"
        return self._devices.wanted(pod).why or self._volumes.of(pod).why

    def _leave_vacant(self, group: str) -> None:
        """A gang is as large as it was, so the Pods that its vacant places wait for are elsewhere, as after a node was
        drained. The ledger holds these places until the gang ends, so their nodes offer as much more.
        """
        for placed in self._vacant.values():
            if placed.launch.argv[1] == group:
                self._leave(placed)

    def _leave(self, placed: _Placed) -> None:
        if not placed.unused:
            placed.unused = True
            self._changed_nodes[placed.node] = None

    def _give_up_if_short(
        self, group: Group, pending: Sequence[PodObject], bound: Sequence[PodObject], live: int, now: int
    ) -> None:
        """Delete the Pods of a gang that has had too few for long while others of it find no room."""
        uncovered = [pod for pod in pending if pod.metadata.uid not in self._by_pod]
        if not (bound and live < group.least and uncovered):
            self._short.pop(group.key, None)
        elif now - self._short.setdefault(group.key, now) > PATIENCE:
            del self._short[group.key]
            for pod in bound:
                self._doors.delete(pod, TOO_FEW)

    def _size_of(self, group: Group, now: int) -> int:
        """Return the size of a gang that does not name it: what the cluster says, or all that were created."""
        if group.asks not in self._least:
            if now - self._asked.get(group.asks, now - ASK_AGAIN) >= ASK_AGAIN:
                self._asked[group.asks] = now
                self._doors.ask(group.asks)
            return 0
        count, since = self._settling.get(group.key, (0, now))
        if count != len(group.members):
            count, since = len(group.members), now
        self._settling[group.key] = count, since
        return count if now - since >= SETTLED else 0

    def _asked_for(self, group: Group, name: str, pods: Sequence[PodObject], now: int) -> Asked:
        uids = tuple(pod.metadata.uid for pod in pods)
        times = self._rounds[group.key] = self._rounds.get(group.key, 0) + 1
        key = hashlib.sha256(f"{self._home} {uids} {times}".encode()).hexdigest()[:32]
        job = self._cover(key, pods, now)
        needs = job.needs
        first = pods[0]
        spec: dict[str, Any] = {
            "name": name,
            "run": [RUN, group.key, key],
            "sync": False,
            "resources": needs.resources(len(pods)),
            "priority": priority_of(first),
            "class": name_of(f"{first.metadata.namespace}/{owner.name if (owner := first.controller) else 'pods'}"),
            "preemptible": False,
            "retry": {"limit": 0},
        }
        if len(pods) > 1:
            spec["workers"] = len(pods)
        if first.spec.active_deadline_seconds:
            spec["expect"] = f"{min(first.spec.active_deadline_seconds, MAX_DURATION // SECOND)}s"
        job.asked = Asked(key, spec)
        return job.asked

    def _cover(self, key: str, pods: Sequence[PodObject], now: int) -> _Job:
        """Note a job for Pods."""
        needs = self._needs(pods)
        job = self._jobs[key] = _Job(key, tuple(pod.metadata.uid for pod in pods), needs, needs.label, now)
        self._covered.update(dict.fromkeys(job.uids, key))
        if job.label not in self._kinds:
            self._kinds[job.label] = _Kind(needs)
            self._changed_nodes.update(dict.fromkeys([*self._machines, *self._nodes]))
        self._kinds[job.label].jobs += 1
        return job

    def _drop(self, job: _Job, cancels: bool = False) -> None:
        if self._jobs.pop(job.key, None) is not None:
            self._kinds[job.label].jobs -= 1
        for uid in job.uids:
            if self._covered.get(uid) == job.key:
                del self._covered[uid]
            self._note_group(uid)
        if cancels and job.id:
            self._doors.cancel(job.id)

    def _is_pending(self, pod: PodObject) -> bool:
        return not (pod.spec.node_name or pod.ended or pod.is_deleted or is_held(pod))

    def _is_there(self, pod: PodObject) -> bool:
        """Whether a Pod counts for its gang: it runs, it has done its work, or it will be placed."""
        runs = bool(pod.spec.node_name) and pod.status.phase != "Failed" and not pod.is_deleted
        return runs or pod.metadata.uid in self._covered

    def _fill_vacant(self, now: int) -> None:
        """Give the places of Pods that have failed to those that were created in their stead."""
        for placed in list(self._vacant.values()):
            if placed.stopping or placed.unused or placed.job not in self._jobs:
                continue
            for uid, pod in self._groups.get(placed.launch.argv[1], {}).items():
                if not self._is_pending(pod) or uid in self._by_pod:
                    continue
                key = self._covered.get(uid)
                if (key and self._jobs[key].uids != (uid,)) or self._refusal(placed, pod, now):
                    continue
                if key:
                    self._drop(self._jobs[key], cancels=True)
                self._covered[uid] = placed.job
                placed.state = "binds"
                del self._vacant[placed.attempt]
                self._pair(placed, pod)
                self._bind(placed)
                break


def _ending_of(pod: PodObject, stopped: bool, ran: int) -> Ending:
    """Return how a task ended, by the state of its container."""
    if stopped:
        return Ending(outcome="stopped", run=ran)
    if pod.status.phase == "Succeeded":
        return Ending(outcome="done", run=ran)
    over = pod.end_of(TASK) or Terminated(exit_code=pod.exit_code, reason=pod.killed_by)
    note = ": ".join(filter(None, (pod.status.reason, pod.status.message)))
    code = over.exit_code
    if not pod.ended and not code:
        return Ending(outcome="done", run=ran)
    if over.reason == "OOMKilled":
        return Ending(outcome="oom", code=code, run=ran, note=note)
    if pod.status.reason == "DeadlineExceeded":
        return Ending(outcome="timeout", code=code, run=ran, note=note)
    if not code or pod.status.reason:  # evicted, or its node went
        return Ending(outcome="killed", code=code, run=ran, note=note)
    return Ending(outcome="failed", code=code, run=ran, note=note)


def launch_of(pod: PodObject) -> Launch | None:
    """Return the launch of the attempt that a Pod was placed for; None if Poise has not placed it."""
    with contextlib.suppress(msgspec.MsgspecError):
        return _to_launch.decode((pod.metadata.annotations or {}).get(ATTEMPT, ""))
    return None


def _unfit(node: NodeObject | None) -> str:
    if node is None or node.out_of_service:
        return "the node has left the cluster"
    if not node.ready:
        return "Kubernetes says that the node is not ready"
    return "Kubernetes has cordoned the node" if node.spec.unschedulable else ""


def _devices(node: NodeObject, total: int, offered: int, taken: set[int]) -> tuple[Device, ...]:
    """Return the devices of a node: those that are held here, and so many of the others that all are `offered`."""
    free = [index for index in range(total) if index not in taken]
    indices = sorted([*taken, *free[: max(0, offered - len(taken))]])
    return tuple(device_at(node, index) for index in indices)


def _booked(launch: Launch, device: str) -> dict[str, int]:
    """Return the amounts that the ledger counts for an attempt on a node whose accelerators have this name."""
    held = {"cpu": launch.shape.cpu, "memory": launch.shape.memory}
    return held | ({device: len(launch.devices)} if device else {})


def _add(total: dict[str, int], more: Mapping[str, int]) -> None:
    for name, amount in more.items():
        total[name] = total.get(name, 0) + amount
