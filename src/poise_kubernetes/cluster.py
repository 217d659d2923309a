"""Kubernetes as a substrate: each running Pod of this home is a machine.

Poise creates Pods when work waits, on nodes that have room beside everyone else's Pods. It gives them back when nothing
runs in them, or when others need their room. Pod names are derived from their nodes, and the API server has the only
list of them, so a crash between a creation and its answer creates nothing twice. A requested Pod that is not in the
list yet counts as present.

Poise reads a copy of all Nodes and Pods (`watching`). While the API server does not answer, the copy stays: Pods
continue to run, and no Pod is created or given up.
"""

import contextlib
import logging
import socket
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple, TypeVar
from urllib.parse import quote

import msgspec

from poise.decoding import convert, json_decoder
from poise.drivers.delays import Delay, Delays
from poise.drivers.kubernetes.api import Api, Away, Refused
from poise.drivers.kubernetes.credentials import Access, find_access
from poise.drivers.kubernetes.watching import Watched
from poise.errors import Fault
from poise.model.document import some
from poise.model.reports.demand import Demand, DemandReport, Opening, Quote
from poise.model.reports.status import Request
from poise.model.resources import ALLOCATED, Device, Node
from poise.ports import Contact, Machine, Pilot
from poise.units import SECOND
from poise_kubernetes import manifests
from poise_kubernetes.choosing import WORTH, Room, Unmet, slots_for, slots_on_new_nodes, wanted, why_not
from poise_kubernetes.claims import NO_CHANGES, DeviceChanges, Devices, Found
from poise_kubernetes.manifests import GRANT, ORDERS, Orders, digest
from poise_kubernetes.offers import PILOT_MEMORY, Grant, labels_of, offered, published
from poise_kubernetes.owner import ensure_owner
from poise_kubernetes.published import DEVICES, Published
from poise_kubernetes.records import (
    NodeObject,
    PodObject,
    amounts,
    device_of,
    most_added,
    requested,
    taint_against,
)
from poise_kubernetes.settings import Settings

STALE_SECONDS = 420.0
"""Maximum age of the copy for decisions: longer than a watch lasts."""

SETTLED_SECONDS = 1.0
"""Wait before a Pod is created for new work, which may still fit into existing Pods."""

ASKED_SECONDS = 30.0
"""How long a requested Pod counts as present, whether or not the copy shows it."""

PENDING_SECONDS = 60.0
"""Timeout for scheduling: a Pod that no scheduler has placed by then is removed, since others took the room."""

BEGIN_SECONDS = 600.0
"""Startup timeout, counted from when the Pod was first seen; it includes the image pull. The Pod is removed
after it.
"""

IMAGE_SECONDS = 60.0
"""Startup timeout of a Pod whose image its node cannot pull: nodes retry a pull after 10 s, 20 s and 40 s."""

LENT_SECONDS = 5.0
"""Idle time after which a Pod is given back if others need its room."""

SMALLER_SECONDS = 1.0
"""Wait after a refused Pod before one of half its size is tried."""

SHORT_GRACE = 5
"""A Pod deleted with a shorter grace period than this, in seconds, counts as removed: no work is moved off it."""

PAUSES = (15.0, 60.0, 300.0, 900.0)
"""Seconds for which a node that refused a Pod gets no other one, growing with each refusal."""

FEW = 3
"""Names of nodes for each reason why they are not used."""

END_SECONDS = 20.0
LOOK_SECONDS = 0.1

START_GUESS = 20.0
"""Assumed time until a Pod runs, in seconds, before any has started."""

NEW_GUESS = 180.0
"""The same for a Pod that waits for a node of an autoscaler."""

POD, NEW = "pod", "new node"
"""Kinds of machines whose delays are learned: Pods on a known node, and those that wait for a new one."""

ALL_ENDED = "status.phase!=Succeeded,status.phase!=Failed"

_log = logging.getLogger("poise.kubernetes")
_to_orders, _to_grant = json_decoder(Orders), json_decoder(Grant)

T = TypeVar("T")


class _Avoided(NamedTuple):
    """A node, or a gang, that gets no Pod before `until`, and the number and the reason of its failures."""

    until: float
    times: int
    why: str


class _Own(NamedTuple):
    """A Pod of this home, the amounts it holds, and its latest orders."""

    pod: PodObject
    grant: Grant
    orders: Orders | None

    @property
    def is_removed(self) -> bool:
        grace = self.pod.metadata.deletion_grace_period_seconds
        return self.pod.metadata.deletion_timestamp is not None and (grace is None or grace < SHORT_GRACE)

    @property
    def is_evicted(self) -> bool:
        return self.pod.metadata.deletion_timestamp is not None

    @property
    def has_ended(self) -> bool:
        return _has_ended(self.pod)

    @property
    def runs(self) -> bool:
        return self.pod.status.phase == "Running" and not (self.is_removed or self.has_ended)


class KubernetesCluster:
    """The Pods of one home. Watch threads keep `nodes`, `pods` and `own` up to date; `ticks` is a monotonic clock."""

    def __init__(
        self,
        api: Api,
        home: str,
        settings: Settings,
        nodes: Watched[NodeObject],
        pods: Watched[PodObject],
        own: Watched[PodObject],
        ticks: Callable[[], float] = time.monotonic,
        delays: Delays | None = None,
        published: Callable[[], DeviceChanges | None] = lambda: None,
    ) -> None:
        self._api, self._home, self._settings, self._ticks = api, home, settings, ticks
        self._watched = (nodes, pods, own)
        self._news_of_devices, self._devices = published, Devices()
        self._extended: dict[str, dict[str, tuple[list[Found], int]]] = {}  # by node name, if there are any
        self._space = f"/api/v1/namespaces/{quote(settings.namespace)}"
        self._owner: dict[str, str] = {}
        self._told = ""  # digest of the contact in the Secret
        self._asked: dict[str, tuple[float, Grant]] = {}  # Pods by name, and until when each counts as present
        self._orders: dict[str, Orders] = {}  # latest orders, by uid
        self._seen: dict[str, float] = {}  # when each Pod was first seen, by uid
        self._deleted: dict[str, float] = {}  # time of the delete request, by uid
        self._avoided: dict[str, _Avoided] = {}
        self._nodes: dict[str, NodeObject] = {}
        self._others: list[PodObject] = []
        self._waiting: list[PodObject] = []  # those of `_others` that wait only for room
        self._needs: dict[str, tuple[PodObject, dict[str, int]]] = {}  # by uid; recomputed on change
        self._sizes: dict[str, tuple[NodeObject, dict[str, int]]] = {}  # by node name; recomputed on change
        self._offers: dict[str, Node] = {}  # the Poise node that a Pod would be, by node name; recomputed on change
        self._used: dict[str, dict[str, int]] = {}  # by node, the amounts that all Pods hold
        self._own: dict[str, _Own] = {}  # by uid
        self._settled: float | None = None  # when work began to wait
        self._idle: dict[str, float] = {}  # when each idle Pod became idle
        self._unwanted: set[str] = set()
        self._unmet: list[Unmet] = []
        self._why = ""  # the reason why no Pod can be created
        self._extra: dict[str, int] = {}  # what the cluster adds to a Pod: the overhead of a runtime, more containers
        self._cap: dict[str, int] = {}  # the largest Pod that the API server may accept, after it refused a larger one
        self._again_at = 0.0
        self._not_begun = 0  # how often Pods were not asked for because none could begin
        self._in_vain: dict[str, _Avoided] = {}  # gangs, by key, that got only some of their Pods
        self._busy: Mapping[str, int] = {}
        self._delays = delays or Delays()
        self._starting: set[str] = set()  # uids of Pods that were seen before they ran

    # --- state --------------------------------------------------------------------------------------------------------

    def address(self) -> str:
        """Return the address that this machine uses to reach the API server; nothing is sent."""
        access = self._api.access
        with contextlib.closing(socket.socket(socket.AF_INET, socket.SOCK_DGRAM)) as probe:
            try:
                probe.connect((access.host, access.port))
                return str(probe.getsockname()[0])
            except OSError:
                return socket.getfqdn()

    def machines(self) -> list[Machine]:
        """Return the machines as of the last `want`; Pods that have started since appear in the next round."""
        marks = {_mark(pod): pod for pod in self._waiting}
        found = []
        for uid, one in self._own.items():
            node = self._nodes.get(one.pod.spec.node_name)
            if not one.runs or self._is_deleted(uid) or node is None or node.out_of_service:
                continue
            free = self._free(node)
            fits = {mark: 1 for mark, pod in marks.items() if pod.may_run_on(node)}
            size = dict(free)
            for name, amount in self._needs_of(one.pod).items():
                size[name] = size.get(name, 0) + amount
            found.append(Machine(uid, node.metadata.name, size | fits, free | fits, leaving=self._leaves(uid, one)))
        return found

    def pilots(self) -> list[Pilot]:
        there = {machine.id for machine in self.machines()}
        return [Pilot(one.orders.node, uid) for uid, one in self._own.items() if one.orders and uid in there]

    def waiting(self) -> list[Mapping[str, float]]:
        """Return the needs of other Pods that no node has room for and that may preempt ours. Other Pods get only idle
        room: those of lower priority, and those whose PriorityClass never preempts.
        """
        mine = max((one.pod.priority for one in self._own.values()), default=0)
        above = (pod for pod in self._waiting if pod.priority > mine and pod.preempts)
        return [self._needs_of(pod) | {_mark(pod): 1} for pod in above]

    def _leaves(self, uid: str, one: _Own) -> bool:
        """Whether running work must move away: the Pod is evicted, its node is cordoned, or the Pod is unwanted."""
        node = self._nodes.get(one.pod.spec.node_name)
        return one.is_evicted or uid in self._unwanted or (node is not None and node.spec.unschedulable)

    def _free(self, node: NodeObject) -> dict[str, int]:
        """Return the amounts of a node that no Pod holds."""
        used = self._used.get(node.metadata.name, {})
        return {name: amount - used.get(name, 0) for name, amount in self._size(node).items()}

    def _size(self, node: NodeObject) -> dict[str, int]:
        return self._sizes[node.metadata.name][1]

    def _needs_of(self, pod: PodObject) -> dict[str, int]:
        return self._needs[pod.metadata.uid][1]

    def _is_deleted(self, uid: str) -> bool:
        """Whether a delete request was sent, even if the copy does not show it yet."""
        return self._ticks() - self._deleted.get(uid, -ASKED_SECONDS) < ASKED_SECONDS

    def _look(self) -> None:
        """Take a snapshot of the watched objects for this round."""
        now = self._ticks()
        nodes, pods, own = self._watched
        self._nodes = {node.metadata.name: node for node in nodes.items()}
        sizes, self._sizes = self._sizes, {}
        changed = self._devices.take(self._news_of_devices() or NO_CHANGES)
        self._extended.update((name, self._devices.extended(name)) for name in changed)
        for name, node in self._nodes.items():
            size = sizes.get(name)
            if size is None or size[0] is not node or name in changed:
                extended = self._extended.get(name, {})
                size = node, _size_of(node) | {of: len(found) for of, (found, _) in extended.items()}
                self._offers.pop(name, None)
            self._sizes[name] = size
        self._own = {}
        for pod in own.items():
            uid = pod.metadata.uid
            self._seen.setdefault(uid, now)
            given = _decoded(pod, ORDERS, _to_orders)
            if uid not in self._orders and given is not None:
                self._orders[uid] = given
            grant = _decoded(pod, GRANT, _to_grant)
            self._own[uid] = _Own(pod, grant or Grant(pod.spec.node_name, 0, 0), self._orders.get(uid))
            if grant is not None:
                self._learn_extra(pod, grant)
            if not self._own[uid].runs:
                self._starting.add(uid)
            elif uid in self._starting:
                self._starting.discard(uid)
                self._delays.add(_kind_of(self._own[uid].grant.node)[0], now - self._seen[uid])
        names = {one.pod.metadata.name for one in self._own.values()}
        self._others = [pod for pod in pods.items() if not pod.ended and not self._is_ours(pod)]
        self._waiting = sorted((pod for pod in self._others if _waits(pod)), key=lambda pod: -pod.priority)
        self._count()
        self._asked = {
            name: asked for name, asked in self._asked.items() if name not in names and asked[0] > now
        }  # listed, or expired
        for known in (self._orders, self._seen, self._deleted, self._idle):
            for uid in known.keys() - self._own.keys():
                del known[uid]
        for name in self._offers.keys() - self._nodes.keys():
            del self._offers[name]
        for name in self._avoided.keys() - self._nodes.keys() - {""}:
            if self._avoided[name].until < now:
                del self._avoided[name]
        self._unwanted &= self._own.keys()
        self._starting &= self._own.keys()

    def _count(self) -> None:
        """Sum what all Pods hold of each node, including our Pods that are about to be placed there."""
        before, self._needs, self._used = self._needs, {}, {}
        placed = [(pod, pod.spec.node_name or pod.status.nominated_node_name) for pod in self._others]
        placed += [(one.pod, one.pod.spec.node_name or one.grant.node) for one in self._own.values()]
        for pod, node in placed:
            known = before.get(pod.metadata.uid)
            if known is None or known[0] is not pod:
                known = pod, requested(pod)
            self._needs[pod.metadata.uid] = known
            if node and not pod.ended:
                used = self._used.setdefault(node, {})
                for name, amount in known[1].items():
                    used[name] = used.get(name, 0) + amount

        for name, extended in self._extended.items():
            used = self._used.setdefault(name, {})
            for of, (_, held) in extended.items():
                used[of] = used.get(of, 0) + held

    def _is_ours(self, pod: PodObject) -> bool:
        found = pod.metadata.labels or {}
        ours = found.get(manifests.MANAGED) == "poise" and found.get(manifests.HOME) == self._home
        return ours and pod.metadata.namespace == self._settings.namespace

    def _away(self) -> str:
        """Return why the API server is not usable now; empty if it is."""
        return next((f"its API server does not answer: {one.why}" for one in self._watched if one.is_away), "")

    def _age(self) -> float:
        return max(one.age() for one in self._watched)

    # --- requests -----------------------------------------------------------------------------------------------------

    def quote(self, work: Sequence[Demand]) -> list[Quote]:
        if not work:
            return []
        if not self._nodes:
            self._look()
        paused = bool(self._away()) or self._ticks() < self._again_at
        most, waiting = (0, 0) if paused else (max(0, self._left()), self._may_wait())
        why = self._away() or self._why
        there, rooms = self._there(self._busy), self._rooms()
        soon = max([self._delay_of(POD), *(delay for room, delay, begins in there if begins and room.offered.name)])
        later = max([self._delay_of(""), *(delay for room, delay, begins in there if begins and not room.offered.name)])
        found = []
        for one in work:
            openings = [
                Opening(slots=slots, delay=delay.expected, late=delay.late, asked=True)
                for room, delay, _ in there
                if (slots := slots_for(one, [room], 1))
            ]
            more = slots_on_new_nodes(one, rooms, min(most, waiting))
            for slots, delay in ((slots_for(one, rooms, most), soon), (more, later)):
                if slots:
                    openings.append(Opening(slots=slots, delay=delay.expected, late=delay.late))
            reason = "" if openings else why or why_not(one, rooms, most)
            found.append(Quote(key=one.key, openings=tuple(openings), why=reason))
        return found

    def _delay_of(self, node: str, waited: float = 0.0) -> Delay:
        """Return the delay of a Pod on a node; empty: on a node that an autoscaler adds."""
        return self._delays.of(*_kind_of(node), waited)

    def want(self, demand: DemandReport) -> list[Request]:
        self._busy = demand.busy
        self._look()
        if (age := self._age()) > STALE_SECONDS:
            why = f": {found}" if (found := self._away()) else ""
            return [Request(text=f"the API server has said nothing for {age:.0f} s; nothing is created{why}")]
        self._tidy()
        self._mark_idle(demand.busy)
        self._create(demand)
        return self._requests() if demand.waits else []

    def _tidy(self) -> None:
        """Remove Pods that have ended or do not start."""
        now = self._ticks()
        for uid, one in self._own.items():
            pod, age = one.pod, now - self._seen[uid]
            if one.has_ended:
                if _has_failed(pod) and not one.is_evicted:
                    self._avoid(one.grant.node, _ending(pod))
                self._delete(one)
            elif one.is_evicted:
                continue
            elif not pod.spec.node_name and age > _pending_limit(one):
                self._avoid(one.grant.node, f"it was not placed: {pod.unschedulable or 'no scheduler has answered'}")
                self._delays.give_up(*_kind_of(one.grant.node), age)
                self._delete(one)
            elif pod.spec.node_name and not one.runs and (age > BEGIN_SECONDS or pod.cannot_begin(age > IMAGE_SECONDS)):
                self._avoid(one.grant.node, f"it did not begin: {pod.waits_for or 'its node says nothing'}")
                self._delays.give_up(*_kind_of(one.grant.node), age)
                self._delete(one)
                self._pause_if_none_begins(pod)
            elif one.runs and uid in self._unwanted and now - self._idle.get(uid, now) > self._settings.idle + 60:
                self._delete(one)  # its node never joined, or it would have been released
            if one.runs and pod.ready:
                self._avoided.pop(one.grant.node, None)
                self._not_begun = 0

    def _pause_if_none_begins(self, pod: PodObject) -> None:
        """Ask for no Pods for a while if this one could not begin for a reason that concerns all nodes: an image that
        nodes cannot pull, as far as no other Pod runs it.
        """
        if not pod.cannot_begin(True) or self._ticks() < self._again_at or any(of.runs for of in self._own.values()):
            return
        pause = PAUSES[min(self._not_begun, len(PAUSES) - 1)]
        self._not_begun += 1
        self._pause(f"no pod begins: {pod.waits_for}", pause)

    def _avoid(self, node: str, why: str) -> None:
        times = self._avoided[node].times if node in self._avoided else 0
        pause = PAUSES[min(times, len(PAUSES) - 1)]
        self._avoided[node] = _Avoided(self._ticks() + pause, times + 1, why)
        where = f"a pod on {node}" if node else "a pod for a new node"
        _log.warning("%s: %s; there is no other for %g s", where, why, pause)

    def _mark_idle(self, busy: Mapping[str, int]) -> None:
        """Mark Pods that have been idle for too long as unwanted; earlier if others need their room, or if waiting work
        fits into no Pod. Their nodes are then drained, so that no work arrives while they are given back.
        """
        short = any(not one.hopeless for one in self._unmet)
        now = self._ticks()
        for uid, one in self._own.items():
            if one.orders is None or one.orders.node in busy or not one.runs:
                self._idle.pop(uid, None)
                continue
            since = self._idle.setdefault(uid, now)
            node = self._nodes.get(one.pod.spec.node_name)
            needed = short or (node is not None and any(self._would_fit(pod, node, one.pod) for pod in self._waiting))
            if now - since > (min(LENT_SECONDS, self._settings.idle) if needed else self._settings.idle):
                self._unwanted.add(uid)

    def _would_fit(self, pod: PodObject, node: NodeObject, without: PodObject) -> bool:
        """Whether a Pod would fit on a node without one of ours, and does not fit with it."""
        needs, free, held = self._needs_of(pod), self._free(node), self._needs_of(without)
        then = {name: amount + held.get(name, 0) for name, amount in free.items()}
        return _fits(needs, then) and not _fits(needs, free) and pod.may_run_on(node)

    def _create(self, demand: DemandReport) -> None:
        now = self._ticks()
        if not demand.waits:
            self._settled, self._unmet, self._cap, self._in_vain = None, [], {}, {}
            return
        if self._settled is None:
            self._settled = now
        if now - self._settled < SETTLED_SECONDS or now < self._again_at:
            return
        standing, waiting = self._standing(demand.busy), self._may_wait()
        held = [work for work in demand.waits if (vain := self._in_vain.get(work.key)) is not None and vain.until > now]
        waits = [work for work in demand.waits if work not in held]
        grants, unmet = wanted(waits, self._rooms(), standing, self._left(), waiting)
        if self._cap and not grants and self._why:  # the smallest Pod is refused too
            self._cap = {}
            for work in (one.demand for one in unmet if one.demand.together > 1):
                times = self._in_vain[work.key].times if work.key in self._in_vain else 0
                until = now + PAUSES[min(times, len(PAUSES) - 1)]
                self._in_vain[work.key] = _Avoided(until, times + 1, self._why)
            self._pause(self._why)
            return
        unmet += [Unmet(work, self._in_vain[work.key].why, True) for work in held]
        for one in unmet if unmet != self._unmet else ():
            _log.info("no pod for %s: %s", _count(one.demand.tasks, "task"), one.why)
        self._unmet = unmet
        for grant in grants:
            if not self._ask(grant):
                return

    def _may_wait(self) -> int:
        """Return how many more Pods may wait for nodes that do not exist yet."""
        now, avoided = self._ticks(), self._avoided.get("")
        if avoided is not None and avoided.until > now:
            return 0
        there = sum(not one.grant.node and not one.pod.spec.node_name for one in self._own.values())
        asked = sum(not grant.node for _, grant in self._asked.values())
        return max(0, self._settings.waiting - there - asked)

    def _left(self) -> int:
        """Return how many more Pods may be created."""
        there = sum(not (one.has_ended or one.is_removed) for one in self._own.values())
        return self._settings.pods - there - len(self._asked)

    def _standing(self, busy: Mapping[str, int]) -> list[Room]:
        """Return the amounts of Pods that start, are idle, or soon will be: waiting work will fit there."""
        return [room for room, delay, begins in self._there(busy) if begins or delay.expected <= WORTH * SECOND]

    def _there(self, busy: Mapping[str, int]) -> list[tuple[Room, Delay, bool]]:
        """Return the amounts of the Pods that are there or requested, the delay until they are free, and whether they
        have yet to begin.
        """
        now = self._ticks()
        found = []
        for until, grant in self._asked.values():
            delay = self._delay_of(grant.node, now - (until - ASKED_SECONDS))
            found.append((grant.node, grant, delay, True))
        for uid, one in self._own.items():
            if one.has_ended or self._is_deleted(uid) or self._leaves(uid, one):
                continue
            begins = one.orders is None
            left = busy.get(one.orders.node, 0) if one.orders is not None else 0
            delay = self._delay_of(one.grant.node, now - self._seen[uid]) if begins else Delay(left, left)
            found.append((one.pod.spec.node_name or one.grant.node, one.grant, delay, begins))
        return [
            (Room(grant.amounts(), grant.amounts(), self._offered(node, grant)), delay, begins)
            for node, grant, delay, begins in found
        ]

    def _offered(self, node: str, grant: Grant) -> Node:
        """Return the node that a Pod is or will be; for a Pod that waits for a new node, only its devices are known."""
        if node in self._nodes:
            return self._node(node)
        devices = (Device(index=0),) if grant.number else ()
        return Node(name=node, incarnation="", cpu=0, memory=0, devices=devices)

    def _node(self, name: str) -> Node:
        """Return the node that a Pod there would be."""
        if (known := self._offers.get(name)) is None:
            node = self._nodes[name]
            found, _ = self._extended.get(name, {}).get(device_of(self._size(node)), ((), 0))
            known = offered(node, *(published(one.product, one.place, one.memory) for one in found[:1]))
            self._offers[name] = known
        return known

    def _rooms(self) -> list[Room]:
        """Return the nodes that may get a Pod, minus the room that other Pods wait for."""
        now, free = self._ticks(), {}
        for name, node in self._nodes.items():
            if (avoided := self._avoided.get(name)) is not None and avoided.until > now:
                continue
            if not self._why_unused(node):
                free[name] = self._free(node)
        for _, grant in self._asked.values():
            if (left := free.get(grant.node)) is not None:
                _take(left, grant.amounts() | {"pods": 1})
        too_large: set[tuple[tuple[str, int], ...]] = set()  # most waiting Pods request the same
        for pod in self._waiting:
            needs = self._needs_of(pod)
            if (key := tuple(sorted(needs.items()))) in too_large:
                continue
            fit = (left for name, left in free.items() if _fits(needs, left) and pod.may_run_on(self._nodes[name]))
            theirs = next(fit, None)
            if theirs is not None:
                _take(theirs, needs)
            elif not any(_fits(needs, left) for left in free.values()):
                too_large.add(key)
        tolerations = manifests.tolerations(self._settings, "")
        return [
            Room(
                self._for_tasks(left) | {of: min(amount, left.get(of, 0)) for of, amount in self._cap.items()},
                self._for_tasks(self._size(self._nodes[name])),
                self._node(name),
                for_devices=taint_against(self._nodes[name], tolerations) is not None,
            )
            for name, left in sorted(free.items())
            if left.get("pods", 1) > 0
        ]

    def _for_tasks(self, amounts: Mapping[str, int]) -> dict[str, int]:
        """Return the amounts without those that the cluster adds to a Pod."""
        return dict(amounts) | {name: amounts.get(name, 0) - more for name, more in self._extra.items()}

    def _learn_extra(self, pod: PodObject, grant: Grant) -> bool:
        """Note what the cluster has added to a Pod; return whether that is more than was known."""
        before, self._extra = self._extra, most_added(self._extra, pod, grant.amounts())
        return self._extra != before

    def _why_unused(self, node: NodeObject) -> str:
        return manifests.why_unused(node, device_of(self._size(node)), self._settings)

    def _ask(self, grant: Grant) -> bool:
        """Create a Pod and return whether more may be created. If the answer is lost, count the Pod as created until
        the next list of Pods.
        """
        used = {one.pod.metadata.name for one in self._own.values()} | self._asked.keys()
        number = next(of for of in range(len(used) + 1) if manifests.pod_name(self._home, grant.node, of) not in used)
        try:
            owner = self._owned()
            body = manifests.pod(self._home, owner, grant, number, self._settings)
            self._asked[body["metadata"]["name"]] = self._ticks() + ASKED_SECONDS, grant
            made = convert(self._api.create(f"{self._space}/pods", body), PodObject)
            if self._learn_extra(made, grant):  # it may not fit: the next one leaves room for what is added
                _log.info("the cluster adds to each pod: %s", self._extra)
                self._asked.pop(body["metadata"]["name"])
                self._api.delete(
                    f"{self._space}/pods/{made.metadata.name}", {"preconditions": {"uid": made.metadata.uid}}
                )
                return False
        except (Away, msgspec.ValidationError) as error:
            self._pause(f"the API server does not answer: {error}")
            return False
        except Refused as refused:
            if refused.status == 409 and refused.reason == "AlreadyExists":
                return True
            self._asked.pop(manifests.pod_name(self._home, grant.node, number), None)
            if refused.status == 403:  # a quota or a limit of the namespace: a smaller Pod may be accepted
                self._cap = _half_of(grant)
            pause = SMALLER_SECONDS if refused.status == 403 else PAUSES[0]
            self._pause(f"the API server refuses a pod: {refused}", max(refused.after, pause))
            return False
        self._why = ""
        _log.info("asked for a pod on %s: %s", grant.node, grant)
        return True

    def _pause(self, why: str, seconds: float = PAUSES[0]) -> None:
        self._again_at, self._why = self._ticks() + seconds, why
        _log.warning("%s; tried again %g s later", why, seconds)

    def _requests(self) -> list[Request]:
        """Report what the waiting work cannot get, or not yet."""
        found = [
            Request(text=f"no pod for {_count(one.demand.tasks, 'task')}: {one.why}", refused=one.hopeless)
            for one in self._unmet
        ]
        if any(one.hopeless for one in self._unmet) and (unused := self._unused()):
            found.append(Request(text=f"nodes that Poise does not use: {unused}", refused=True))
        if self._ticks() < self._again_at and self._why:
            found.append(Request(text=self._why, refused=True))
        for name, avoided in sorted(self._avoided.items()):
            if avoided.until > self._ticks():
                where = f"on {name}" if name else "for a new node"
                found.append(Request(text=f"no pod {where} for a while: {avoided.why}", refused=True))
        for one in self._own.values():
            if one.pod.status.phase == "Pending" and not one.is_evicted:
                where = one.pod.spec.node_name or one.grant.node or "a new node"
                if one.pod.spec.node_name:
                    why = one.pod.waits_for or "its node prepares it"
                else:
                    why = one.pod.unschedulable or "no scheduler has placed it yet"
                found.append(Request(text=f"pod {one.pod.metadata.name} on {where}: {why}"))
        return found

    def _unused(self) -> str:
        """Return the nodes on which no Pod may be created, and why."""
        found: dict[str, list[str]] = {}
        for name, node in sorted(self._nodes.items()):
            if why := self._why_unused(node):
                found.setdefault(why, []).append(name)
        return "; ".join(f"{some(names, FEW)} {why}" for why, names in sorted(found.items()))

    # --- pilots -------------------------------------------------------------------------------------------------------

    def start(self, machine: Machine, node: str, contact: Contact) -> None:
        self._tell_secret(contact)
        pod = self._own[machine.id].pod
        known = labels_of(self._nodes[pod.spec.node_name]) | {ALLOCATED: pod.metadata.name}
        grace = pod.spec.termination_grace_period_seconds
        grace = self._settings.grace if grace is None else grace
        self._order(machine.id, Orders(node=node, contact=digest(contact), labels=known, grace=grace))

    def has_begun(self, pilot: Pilot) -> bool:
        """A Pod holds its resources from the moment it has a node."""
        return True

    def tell(self, pilot: Pilot, contact: Contact) -> None:
        self._tell_secret(contact)
        self._change(pilot, lambda orders: msgspec.structs.replace(orders, contact=digest(contact)))

    def restart(self, pilot: Pilot) -> None:
        self._change(pilot, lambda orders: msgspec.structs.replace(orders, restarts=orders.restarts + 1))

    def answering(self, pilots: Sequence[Pilot]) -> list[Pilot]:
        """Return the pilots whose Pods are ready; the readiness probe runs continuously."""
        own = self._now()
        return [pilot for pilot in pilots if (pod := own.get(pilot.machine)) is not None and pod.ready]

    def release(self, pilots: Sequence[Pilot]) -> list[Pilot]:
        """Raises `Fault` if the API server does not answer."""
        if pilots and self._watched[2].is_away:
            raise self._not_left("it does not answer")
        for pilot in pilots:
            self._change(pilot, lambda orders: msgspec.structs.replace(orders, released=orders.released + 1))
        until = time.monotonic() + END_SECONDS
        while True:
            own = self._now()
            ended = [pilot for pilot in pilots if pilot.machine not in own or _has_ended(own[pilot.machine])]
            if len(ended) == len(pilots) or time.monotonic() > until:
                break
            time.sleep(LOOK_SECONDS)
        for pilot in ended:
            if pilot.machine in self._own:
                self._delete(self._own.pop(pilot.machine))
        return ended

    def remove(self, pilot: Pilot) -> None:
        """Delete the Pod; its node kills the commands. A node that is away does so when it returns."""
        if (one := self._own.pop(pilot.machine, None)) is not None:
            self._delete(one, 1)

    def sweep(self, machines: Sequence[Machine]) -> bool:
        """Nothing outlives a Pod."""
        return True

    def stop(self) -> None:
        """Delete the Pods, and the Secret that owns all of them. Raises `Fault` if the Secret remains."""
        self._look()
        for one in self._own.values():
            self._delete(one)
        try:
            self._api.delete(f"{self._space}/secrets/{manifests.home_name(self._home)}")
        except Away as away:
            raise self._not_left(str(away)) from None
        except Refused as refused:
            if refused.status != 404:
                raise self._not_left(str(refused)) from None

    def _not_left(self, why: str) -> Fault:
        access, secret = self._api.access, manifests.home_name(self._home)
        return Fault(
            f"the Secret {secret} and its Pods are still in namespace {self._settings.namespace}",
            code="E214",
            field="--on",
            have=f"the API server {access.host}:{access.port}: {why}",
            hint=f"`kubectl delete secret -n {self._settings.namespace} {secret}` deletes all of them",
        )

    def _now(self) -> dict[str, PodObject]:
        return {pod.metadata.uid: pod for pod in self._watched[2].items()}

    def _change(self, pilot: Pilot, change: Callable[[Orders], Orders]) -> None:
        if (orders := self._orders.get(pilot.machine)) is not None and (after := change(orders)) != orders:
            self._order(pilot.machine, after)

    def _order(self, uid: str, orders: Orders) -> None:
        """Write orders into the annotation of a Pod. If the server does not answer, the next round retries."""
        one = self._own.get(uid)
        if one is None:
            return
        text = msgspec.json.encode(orders).decode()
        body = {"metadata": {"uid": uid, "annotations": {ORDERS: text}}}
        try:
            self._api.patch(f"{self._space}/pods/{one.pod.metadata.name}", body)
        except (Away, Refused) as error:
            _log.warning("pod %s: %s", one.pod.metadata.name, error)
            return
        self._orders[uid] = orders
        self._own[uid] = one._replace(orders=orders)

    def _delete(self, one: _Own, grace: int | None = None) -> None:
        uid = one.pod.metadata.uid
        if self._is_deleted(uid):
            return
        self._deleted[uid] = self._ticks()
        body: dict[str, Any] = {"preconditions": {"uid": uid}}
        if grace is not None:
            body["gracePeriodSeconds"] = grace
        try:
            self._api.delete(f"{self._space}/pods/{one.pod.metadata.name}", body)
        except Refused as refused:
            if refused.status not in (404, 409):  # otherwise it is already gone
                _log.warning("pod %s: %s", one.pod.metadata.name, refused)
        except Away as away:
            _log.warning("pod %s: %s", one.pod.metadata.name, away)
            self._deleted.pop(uid, None)

    # --- the object that owns the Pods --------------------------------------------------------------------------------

    def _owned(self) -> dict[str, str]:
        """Return the reference to this home's Secret; create it if it does not exist. It is read each time: if somebody
        has deleted it, the cluster would at once collect each Pod that it owns.
        """
        owner = ensure_owner(self._api, self._settings.namespace, self._home)
        if owner != self._owner:
            self._owner, self._told = owner, ""
        return owner

    def _tell_secret(self, contact: Contact) -> None:
        if digest(contact) == self._told:
            return
        body = {"stringData": {"contact": msgspec.json.encode(contact).decode()}}
        try:
            self._api.patch(f"{self._space}/secrets/{self._owned()['name']}", body)
            self._told = digest(contact)
        except (Away, Refused) as error:
            _log.warning("the address of the control plane could not be told: %s", error)


def open_cluster(settings: Settings, home: str, delays: Delays | None = None) -> KubernetesCluster:
    """Connect to a cluster. Raises `Fault` if it does not answer, or does not grant the rights to list what is
    needed.
    """
    access = find_access(settings.context)
    settings = settings._replace(namespace=settings.namespace or access.namespace)
    space = f"/api/v1/namespaces/{quote(settings.namespace)}/pods"
    nodes = Watched(Api(access), "/api/v1/nodes", NodeObject)
    pods = Watched(Api(access), "/api/v1/pods", PodObject, {"fieldSelector": ALL_ENDED})
    own = Watched(Api(access), space, PodObject, {"labelSelector": manifests.selector(home)})
    devices = Published(access, DEVICES, DeviceChanges)
    found: dict[str, Watched[Any] | Published[Any]]
    found = {"nodes": nodes, "pods of all namespaces": pods, "pods of its namespace": own, "devices": devices}
    for what, one in found.items():
        try:
            one.list()
        except (Away, Refused) as error:
            raise no_cluster(access, what, error) from None
    for one in found.values():
        one.start()
    return KubernetesCluster(Api(access), home, settings, nodes, pods, own, delays=delays, published=devices.news)


def no_cluster(access: Access, what: str, error: Away | Refused) -> Fault:
    server = f"{access.host}:{access.port}"
    if isinstance(error, Away):
        text, hint = f"the API server {server} does not answer", "`kubectl get nodes` must work here"
    else:
        text, hint = f"the API server {server} does not list {what}", "`poise doctor --on kubernetes` lists the rights"
    return Fault(
        text, code="E214", field="--on", have=str(error)[:300], hint=f"{hint}; Poise retries until `poise down`"
    )


def _kind_of(node: str) -> tuple[str, float]:
    """Return the kind of a Pod on a node and the guess for its delay; empty: a node that an autoscaler adds."""
    return (POD, START_GUESS) if node else (NEW, NEW_GUESS)


def _size_of(node: NodeObject) -> dict[str, int]:
    return amounts(node.status.allocatable)


def _mark(pod: PodObject) -> str:
    """Name the amount that a node has one of if this Pod may run there."""
    return f"pod {pod.metadata.namespace}/{pod.metadata.name}"


def _waits(pod: PodObject) -> bool:
    """Whether a Pod waits only for room. Pods that depend on other Pods are left to their scheduler, and so are those
    that it has made room for.
    """
    return pod.waits_for_room and not (pod.needs_others or pod.status.nominated_node_name)


def _fits(needs: Mapping[str, int], left: Mapping[str, int]) -> bool:
    return all(amount <= left.get(name, 0) for name, amount in needs.items())


def _take(left: dict[str, int], amounts: Mapping[str, int]) -> None:
    for name, amount in amounts.items():
        if name in left:
            left[name] -= amount


def _pending_limit(one: _Own) -> float:
    """Return for how many seconds a Pod may wait for a scheduler; a queue of the cluster may hold it back for long."""
    return PENDING_SECONDS if one.grant.node and not one.pod.spec.scheduling_gates else BEGIN_SECONDS


def _half_of(grant: Grant) -> dict[str, int]:
    memory = (grant.memory - PILOT_MEMORY) // 2 + PILOT_MEMORY
    devices = {grant.device: grant.number // 2} if grant.device else {}
    return {"cpu": grant.cpu // 2, "memory": memory} | devices


def _decoded(pod: PodObject, name: str, decoder: msgspec.json.Decoder[T]) -> T | None:
    with contextlib.suppress(msgspec.MsgspecError):
        return decoder.decode((pod.metadata.annotations or {}).get(name, ""))
    return None


def _has_ended(pod: PodObject) -> bool:
    """Whether the pilot has ended, even if a container that another program has added to its Pod runs on."""
    return pod.ended or pod.end_of(manifests.PILOT) is not None


def _has_failed(pod: PodObject) -> bool:
    over = pod.end_of(manifests.PILOT)
    return over.exit_code != 0 if over is not None else pod.status.phase == "Failed"


def _ending(pod: PodObject) -> str:
    status = pod.status
    return f"it failed: {status.reason or 'its pilot ended'}{f': {status.message}' if status.message else ''}"


def _count(number: int, what: str) -> str:
    return f"{number} {what}{'' if number == 1 else 's'}"


__all__ = ["KubernetesCluster", "open_cluster"]
