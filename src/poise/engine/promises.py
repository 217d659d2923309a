"""The judge: checks at every step that the promises of Poise hold.

It trusts neither the controller nor the ledger that decides. It observes the attempts that executors really run, the
durable events in the log, and the replies to clients; from the log it keeps its own records, in the simplest way that
works. The names of the promises are those of `docs/explanation/promises.md`.
"""

from collections.abc import Iterable
from typing import NamedTuple
from zlib import crc32

from poise.errors import PoiseError
from poise.kernel.explain import reasons
from poise.kernel.find import find
from poise.kernel.ledger import JobState, Ledger, UnitState, attempt_of, is_loss, orders_of
from poise.kernel.visible import Sight
from poise.model.decisions import Spot
from poise.model.events import (
    DeadlinesMissed,
    DeviceCordoned,
    DeviceDrained,
    Event,
    Finished,
    JobCancelled,
    JobsCancelled,
    JobSubmitted,
    NodeDrained,
    NodeForgotten,
    Placed,
    Preempted,
    QuotaSet,
    Resized,
    Started,
    TrainingTold,
    UnitsCancelled,
    encode_event,
)
from poise.model.jobs import Ending, Retry, Unit
from poise.model.messages import Attempt, Launch
from poise.model.quotas import Amounts, Quota, asked
from poise.model.resources import WHOLE, Node
from poise.model.tenants import Bearer, Role
from poise.model.training import Orders
from poise.policy.feasible import NAMED
from poise.units import SECOND

DEEP_EVERY = 100
"""Durable events between two checks of all invariants of the ledger; the other checks run at each event."""


STOPPED_WITHIN = 25 * SECOND
"""Limit for stopping an attempt: its grace (10 s), and the time in which a node that was cut off learns of the stop
once it is connected again.
"""

ABOUT_NODES = frozenset(
    (
        "CPU_BUSY",
        "MEMORY_BUSY",
        "GPU_BUSY",
        "CPU_TOO_SMALL",
        "MEMORY_TOO_SMALL",
        "GPU_TOO_FEW",
        "NODE_DRAINED",
        "NODE_LOST",
        "NODE_SHRUNK",
        "NODE_ENDS",
        "NODE_RESERVED",
        "DEVICES_RESERVED",
        "GANG_INCOMPLETE",
        "SPREAD",
        "TOGETHER",
        "NO_SUCH_DEVICE",
        "OTHER_NODE",
    )
)
"""Reasons that refer to a node. A unit that waits for these alone must name a reason for each node."""


class Violation(AssertionError):
    """A promise was broken. `promise` is its name, S1 to L4, or `internal` for an unexpected error."""

    def __init__(self, promise: str, what: str) -> None:
        super().__init__(f"{promise}: {what}")
        self.promise = promise


class Holding(NamedTuple):
    """Tasks and resources of a unit since its last placement, according to the log: its unfinished tasks with the epoch
    in which each was started, the endings of the others, and the resources of each task. `leaving` maps tasks that must
    leave the gang to the instant of that order.
    """

    active: dict[str, int]
    endings: list[tuple[int, int, str]]
    amounts: Amounts
    leaving: dict[str, int]


class Tried(NamedTuple):
    """Attempts of a unit: failures, the instant before which it must not be retried, and losses that do not count as
    failures.
    """

    times: int = 0
    not_before: int = 0
    lost: int = 0

    def again(self, retry: Retry, outcome: str, at: int) -> "Tried":
        """Return the record after one more attempt, which ended at an instant."""
        if outcome == "lost":
            return Tried(self.times, 0, self.lost + 1) if retry.losses else Tried(self.times + 1, 0, self.lost)
        return Tried(self.times + 1, at + retry.delay(self.times + 1), self.lost)


class Judge:
    """Receives all events of a simulation and raises `Violation`. `digest` is a checksum of all of them, in order."""

    def __init__(self) -> None:
        self.ledger = Ledger()
        self.digest = 0
        self.starts = 0
        self.acknowledged: dict[tuple[str, str], str] = {}
        self._running: dict[str, dict[Attempt, Launch]] = {}
        self._cores: dict[str, dict[int, Attempt]] = {}
        self._nodes: dict[str, Node] = {}
        self._whole: dict[str, Node] = {}
        self._begun: set[Attempt] = set()
        self._ended: dict[Attempt, Ending] = {}
        self._units: dict[str, tuple[Unit, str]] = {}
        self._unit_of: dict[str, str] = {}
        self._held: dict[str, Holding] = {}
        self._resizing: set[str] = set()
        self._ending: set[str] = set()
        self._orders: dict[Attempt, Orders] = {}
        self._told: dict[tuple[str, int, int], dict[Attempt, Orders]] = {}
        self._epochs: dict[str, int] = {}
        self._done: set[str] = set()
        self._done_units: set[str] = set()
        self._tried: dict[str, Tried] = {}
        self._after: dict[str, tuple[str, ...]] = {}
        self._units_of: dict[str, list[str]] = {}
        self._cancelled: dict[str, int] = {}
        self._drained: set[str] = set()
        self._quotas: dict[str, Quota] = {}
        self.closed: set[str] = set()
        self._failed_under: dict[str, set[str]] = {}
        self._keys: dict[tuple[str, str], str] = {}
        self._untold: dict[str, str] = {}
        self._since_deep = 0

    # --- executors ---------------------------------------------------------------------------------------------------

    def started(self, node: str, launch: Launch, cpus: tuple[int, ...]) -> None:
        """Check the start of a command, on its own cores where `cpus` are given."""
        attempt = launch.attempt
        self._note(f"+{node}{attempt}")
        self.starts += 1
        if attempt in self._begun:
            raise Violation("S4", f"{attempt} was started twice")
        self._begun.add(attempt)
        for other, running in self._running.items():
            for copy in running:
                if copy.task == attempt.task and (launch.lease or other == node):
                    raise Violation("S5", f"{attempt} runs on {node} while {copy} runs on {other}")
        here = self._running.setdefault(node, {})
        here[attempt] = launch
        bound = self._cores.setdefault(node, {})
        for core in cpus:
            if core in bound:
                raise Violation("S1", f"core {core} of {node} has {bound[core]}, and is given to {attempt}")
            bound[core] = attempt
        self._fits(node, launch, here.values())

    def ordered(self, launch: Launch, orders: Orders) -> None:
        """Check the orders of a gang's member: each is newer than its last, and consistent with those of the other
        members.
        """
        known = self._orders.get(launch.attempt, launch.orders)
        if orders.generation <= known.generation:
            raise Violation("S2", f"{launch.attempt} was told {known}, and now {orders}")
        self._orders[launch.attempt] = orders
        told = self._told.setdefault((launch.gang, launch.founded, orders.generation), {})
        told[launch.attempt] = orders
        ranks = [of.rank for of in told.values() if of.rank >= 0]
        if len({of.world for of in told.values()}) > 1 or len(set(ranks)) < len(ranks) or orders.rank >= orders.world:
            raise Violation("S2", f"of {launch.gang} in generation {orders.generation} are told {told}")

    def ended(self, node: str, launch: Launch, ending: Ending) -> None:
        """Record the end of a command."""
        self._note(f"-{node}{launch.attempt}{ending.outcome}")
        self._running[node].pop(launch.attempt)
        self._cores[node] = {core: held for core, held in self._cores[node].items() if held != launch.attempt}
        self._ended[launch.attempt] = ending

    def offers(self, node: Node) -> None:
        """Record the actual resources of a machine from now on. Commands that run may use more, but none may start
        then.
        """
        self._whole.setdefault(node.name, node)
        self._nodes[node.name] = node

    def _fits(self, name: str, begins: Launch, running: Iterable[Launch]) -> None:
        """Check that all commands on a node fit. A queued launch was handed over earlier, and starts when the one
        before it ends, even if the machine has shrunk since.
        """
        node, cpu, memory = (self._whole if begins.queued else self._nodes)[name], 0, 0
        taken: dict[int, int] = {}
        caps = {device.index: device.share_cap for device in node.devices}
        for launch in running:
            cpu, memory = cpu + launch.shape.cpu, memory + launch.shape.memory
            for device in launch.devices:
                taken[device] = taken.get(device, 0) + launch.shape.share
                most = WHOLE if launch.shape.share == WHOLE else caps.get(device, WHOLE)
                if taken[device] > most:
                    raise Violation("S1", f"device {device} of {name} is given to more than it can carry")
        if cpu > node.cpu or memory > node.memory:
            raise Violation("S1", f"{name} runs {cpu} of {node.cpu} milli-CPU, {memory} of {node.memory} bytes")

    # --- replies to clients ------------------------------------------------------------------------------------------

    def accepted(self, tenant: str, key: str, job: str) -> None:
        """Check the acknowledgement of a submission: one key is always acknowledged as the same job."""
        known = self.acknowledged.setdefault((tenant, key), job)
        if known != job:
            raise Violation("S3", f"{key} was acknowledged as {known}, and now as {job}")
        self._is_kept(tenant, key, job)

    def cancelled(self, job: str) -> None:
        """Check the acknowledgement of a cancellation: each unit of the job is cancelled, or was over."""
        left = [
            unit for unit in self._units_of[job] if unit not in self._cancelled and not self.ledger.jobs.is_over(unit)
        ]
        if left:
            raise Violation("S3", f"the cancellation of {job} was acknowledged, and the log has none of {left}")

    def drained(self, node: str, on: bool) -> None:
        """Check the acknowledgement that a node is drained, or open again."""
        if (node in self._drained) != on:
            raise Violation(
                "S3", f"{node} was acknowledged as {'drained' if on else 'open'}, and the log says otherwise"
            )

    def bounded(self, tenant: str, quota: Quota | None) -> None:
        """Check the acknowledgement of a quota, or of its removal."""
        if self._quotas.get(tenant) != quota:
            raise Violation("S3", f"{quota} of {tenant} was acknowledged, and the log has {self._quotas.get(tenant)}")

    def configured(self, policy: str) -> None:
        """Check the acknowledgement that this policy is set."""
        if self.ledger.leader.policy != policy:
            raise Violation("S3", f"{policy} was acknowledged, and the log has {self.ledger.leader.policy}")

    def _is_kept(self, tenant: str, key: str, job: str) -> None:
        if job not in self._units_of:
            raise Violation("S3", f"{job} was acknowledged (for {tenant}, {key}), and is not in the durable log")

    # --- durable events ----------------------------------------------------------------------------------------------

    def durable(self, events: Iterable[Event]) -> None:
        """Check and record durable events."""
        for event in events:
            self._note_event(event)
            match event:
                case JobSubmitted():
                    self._submitted(event)
                case Placed():
                    self._placed(event)
                case TrainingTold() if event.training.resizes:
                    self._resizing.add(event.unit)
                case Resized():
                    self._resized(event)
                case Preempted():
                    self._ending.add(event.unit)
                case Started():
                    self._is_begun(event)
                case Finished():
                    self._finished(event)
                case DeviceCordoned():
                    self._cordoned(event)
                case DeviceDrained():
                    if not event.on:
                        self.closed.discard(f"{event.node}:{event.device}")
                case NodeDrained():
                    (self._drained.add if event.on else self._drained.discard)(event.name)
                case NodeForgotten():
                    self._drained.discard(event.name)
                case JobCancelled():
                    self._cancelled.update(dict.fromkeys(self._units_of[event.job], event.at))
                case JobsCancelled():
                    for job in event.jobs:
                        self._cancelled.update(dict.fromkeys(self._units_of[job], event.at))
                case UnitsCancelled():
                    self._cancelled.update(dict.fromkeys(event.units, event.at))
                case DeadlinesMissed():
                    self._cancelled.update((missed.unit, event.at) for missed in event.units)
                case QuotaSet():
                    self._quotas.pop(event.tenant, None)
                    if event.quota is not None:
                        self._quotas[event.tenant] = event.quota
            self.ledger.apply(event)
            self._since_deep += 1
        if self._since_deep >= DEEP_EVERY:
            self.look_deep()

    def _cordoned(self, event: DeviceCordoned) -> None:
        """Record the units on a device that failed: they must never get it again."""
        self.closed.add(f"{event.node}:{event.device}")
        for unit, index in self.ledger.active.on(event.node):
            if event.device in unit.tasks[index].devices:
                self._failed_under.setdefault(unit.id, set()).add(event.id)

    def _submitted(self, event: JobSubmitted) -> None:
        key = (event.job.tenant, event.key)
        known = self._keys.setdefault(key, event.job.id)
        if event.key and known != event.job.id:
            raise Violation("S3", f"{event.key} was submitted once, and is {known} and {event.job.id}")
        self._after[event.job.id] = event.job.after
        self._units_of[event.job.id] = [f"{event.job.id}.{unit.name}" for unit in event.job.units]
        for unit in event.job.units:
            name = f"{event.job.id}.{unit.name}"
            self._units[name] = (unit, event.job.tenant)
            for task in unit.tasks:
                self._unit_of[f"{event.job.id}.{task.name}"] = name

    def _placed(self, event: Placed) -> None:
        unit, tenant = self._units[event.unit]
        if event.epoch != self._epochs.get(event.unit, 0) + 1:
            raise Violation("S4", f"{event.unit} was placed in epoch {event.epoch}, not the next one")
        self._epochs[event.unit] = event.epoch
        count, most = len(event.spots), len(unit.tasks)
        if not (unit.least or most) <= count <= most:
            raise Violation("S2", f"{event.unit} was placed with {count} of its {most} tasks")
        job = event.unit.partition(".")[0]
        self._follows_the_rules(event, job, unit)
        tasks = {f"{job}.{task.name}" for task in unit.tasks[:count]}
        self._held[event.unit] = Holding(dict.fromkeys(tasks, event.epoch), [], asked(unit.shape_of(event.variant)), {})
        self._ending.discard(event.unit)
        self._resizing.discard(event.unit)  # until it reports that again
        self._is_given(event.unit, event.spots, tenant)

    def _resized(self, event: Resized) -> None:
        """Check a resize: members stay or are asked to leave, only absent members join, and the resulting gang is
        valid.
        """
        name, (unit, tenant) = event.unit, self._units[event.unit]
        held, job = self._held[name], event.unit.partition(".")[0]
        if event.epoch != self._epochs[name] + bool(event.joins):
            raise Violation("S4", f"{name} was resized in epoch {event.epoch}, after {self._epochs[name]}")
        self._epochs[name] = event.epoch
        leaves = {f"{job}.{unit.tasks[index].name}" for index in event.leaves}
        joins = {f"{job}.{unit.tasks[index].name}": event.epoch for index, _ in event.joins}
        stay = held.active.keys() - held.leaving.keys() - leaves
        if name not in self._resizing or name in self._ending or held.endings or not stay:
            raise Violation("S2", f"{name} was resized, which cannot be now")
        if not leaves <= held.active.keys() - held.leaving.keys() or joins.keys() & held.active.keys():
            raise Violation("S2", f"of {sorted(held.active)} of {name} leave {leaves}, and {sorted(joins)} join")
        if not unit.least <= len(stay) + len(joins) <= len(unit.tasks):
            raise Violation("S2", f"{name} was resized to {len(stay) + len(joins)} of its tasks")
        drained = sorted(self._drained.intersection(spot.node for _, spot in event.joins))
        if drained or name in self._cancelled:
            raise Violation("rules", f"{name} was given more on {drained}, or though it is cancelled")
        held.active.update(joins)
        held.leaving.update(dict.fromkeys(leaves, event.at))
        if event.joins:  # a gang that only gives room may hold more than a quota that was lowered
            self._is_given(name, [spot for _, spot in event.joins], tenant)

    def _is_given(self, unit: str, spots: Iterable[Spot], tenant: str) -> None:
        """Check new spots of a unit: no device that failed under it, and no more than its tenant's quota."""
        for spot in spots if unit in self._failed_under else ():
            for device in self.ledger.nodes[spot.node].node.devices:
                if device.index in spot.devices and device.uuid in self._failed_under[unit]:
                    raise Violation("S1", f"{unit} is given {device.uuid} again, which failed under it")
        quota = self._quotas.get(tenant)
        if quota is not None:
            total = Amounts()
            for name, held in self._held.items():
                if self._units[name][1] == tenant:
                    total = total.plus(held.amounts, len(held.active))
            if not quota.amounts.holds(total):
                raise Violation("S6", f"{tenant} holds {total} of {quota.amounts} once {unit} is given room")

    def _follows_the_rules(self, event: Placed, job: str, unit: Unit) -> None:
        """Check a placement against the rules of its user and the drains of nodes."""
        name, before = event.unit, self._held.get(event.unit)
        if before is not None and before.active:  # its node was lost
            self._tried[name] = self._tried.get(name, Tried()).again(unit.retry, "lost", event.at)
        tried = self._tried.get(name, Tried())
        needed = [f"{job}.{need}" for need in unit.needs]
        needed += [other for earlier in self._after[job] for other in self._units_of[earlier]]
        undone = [other for other in needed if other not in self._done_units]
        drained = sorted(self._drained.intersection(spot.node for spot in event.spots))
        for broken, what in (
            (undone, f"before {undone} was done"),
            (drained, f"on {drained}, which is drained"),
            (name in self._cancelled, "though it is cancelled"),
            (name in self._done_units, "though it is done"),
            (tried.times > unit.retry.limit, f"though it has failed {tried.times} times of {unit.retry.limit}"),
            (tried.lost > unit.retry.losses, f"though it was lost {tried.lost} times of {unit.retry.losses}"),
            (event.at < tried.not_before, "before its back-off was over"),
        ):
            if broken:
                raise Violation("rules", f"{name} was placed {what}")

    def _settled(self, name: str, held: Holding, at: int) -> None:
        """Record the outcome of a unit once all its tasks have finished."""
        unit = self._units[name][0]
        outcomes = [outcome for _, _, outcome in sorted(held.endings)]
        failed = [outcome for outcome in outcomes if outcome not in ("done", "stopped", "returned")]
        if failed:  # the earliest failure decides; in one report, the first member
            self._tried[name] = self._tried.get(name, Tried()).again(unit.retry, failed[0], at)
        elif set(outcomes) == {"done"}:
            self._done_units.add(name)

    def _is_begun(self, event: Started) -> None:
        """Check that an attempt recorded as running was started, in the current epoch."""
        attempt, held = Attempt(event.task, event.epoch), self._held.get(self._unit_of[event.task])
        if held is None or held.active.get(event.task) != event.epoch:
            raise Violation("S4", f"a start of {attempt} was accepted, which is not the one that counts")
        if not self.has_begun(attempt):
            raise Violation("S4", f"{attempt} is recorded as running, and was never started")

    def has_begun(self, attempt: Attempt) -> bool:
        """Return whether an executor has started the attempt, regardless of the log."""
        return attempt in self._begun

    def _finished(self, event: Finished) -> None:
        unit = self._unit_of[event.task]
        held = self._held.get(unit)
        if held is None or held.active.get(event.task) != event.epoch:
            raise Violation(
                "S4", f"an ending of {event.task}#{event.epoch} was accepted, which is not the one that counts"
            )
        self._is_lost(event)
        del held.active[event.task]
        if event.task in held.leaving:
            del held.leaving[event.task]
        elif not self._goes_on(unit, held, event.ending):
            names = [task.name for task in self._units[unit][0].tasks]
            held.endings.append((event.at, names.index(event.task.partition(".")[2]), event.ending.outcome))
        if not held.active:
            self._settled(unit, held, event.at)
        if event.ending.outcome == "done":
            real = self._ended.get(Attempt(event.task, event.epoch))
            if real is None or real.outcome != "done":
                raise Violation("S4", f"{event.task}#{event.epoch} is recorded as done, and was {real}")
            if event.task in self._done and len(self._units[unit][0].tasks) == 1:
                raise Violation("S4", f"{event.task} was done twice")
            self._done.add(event.task)

    def _is_lost(self, event: Finished) -> None:
        """Check that an attempt declared lost has stopped, unless its node or one of its devices is gone or failed."""
        attempt = Attempt(event.task, event.epoch)
        for name, running in self._running.items():
            node = self.ledger.nodes.get(name)
            is_there = node is not None and node.status == "up" and event.ending.outcome == "lost"
            if is_there and attempt in running and not running[attempt].devices:
                raise Violation("S4", f"{attempt} is given up as lost, and runs on {name}, which is there")

    def _goes_on(self, unit: str, held: Holding, ending: Ending) -> bool:
        """Return whether the gang continues without a member that has ended like this."""
        return (
            unit in self._resizing
            and unit not in self._ending
            and unit not in self._cancelled
            and not held.endings
            and is_loss(ending)
            and len(held.active.keys() - held.leaving.keys()) >= max(1, self._units[unit][0].least)
        )

    def at_rest(self, now: int, calm: int) -> None:
        """Check that attempts that had to stop have stopped, `calm` nanoseconds after the last fault. `now` is on the
        log's clock.
        """
        for held in self._held.values():
            failed = [at for at, _, outcome in held.endings if outcome != "done"]
            if held.active and failed and min(calm, now - min(failed)) > STOPPED_WITHIN:
                raise Violation("S2", f"{sorted(held.active)} go on, though one of their gang has failed")
            for task, since in held.leaving.items():
                if min(calm, now - since) > STOPPED_WITHIN:
                    raise Violation("S2", f"{task} goes on, though it is to leave its gang")
        for node, running in self._running.items():
            for attempt in running:
                at = self._cancelled.get(self._unit_of[attempt.task])
                if at is not None and min(calm, now - at) > STOPPED_WITHIN:
                    raise Violation("rules", f"{attempt} runs on {node}, though it was cancelled")

    def look_deep(self) -> None:
        """Check all invariants of the ledger that the log produces."""
        self._since_deep = 0
        self.ledger.check()

    def taken_up(self, ledger: Ledger) -> None:
        """Check the ledger with which a control plane starts: it equals the replayed log byte for byte, and contains
        all that was acknowledged.
        """
        if ledger.encode() != self.ledger.encode():
            raise Violation("S7", f"what was loaded at revision {ledger.revision} is not what the log makes")
        for (tenant, key), job in self.acknowledged.items():
            self._is_kept(tenant, key, job)
        self.look_deep()

    def look_around(self, ledger: Ledger, tenants: Iterable[str]) -> None:
        """Check that each tenant sees its own jobs in a ledger and no others."""
        for tenant in tenants:
            bearer = Bearer(tenant, Role.SUBMITTER)
            for job in Sight(ledger, bearer).jobs():
                if job.tenant != tenant:
                    raise Violation("S8", f"{tenant} sees {job.id} of {job.tenant}")
            foreign = next((job for job in ledger.jobs.values() if job.tenant != tenant), None)
            if foreign is not None:
                try:
                    find(ledger, foreign.id, bearer=bearer)
                except PoiseError:
                    continue
                raise Violation("S8", f"{tenant} finds {foreign.id} of {foreign.tenant}")

    def has_reasons(self, ledger: Ledger, now: int) -> None:
        """Check that each waiting unit has reasons, and names each node that refuses it. A unit that was just placed,
        or a node that has just joined, may be explained in the next round: a missing reason counts when it is found
        twice.
        """
        untold = {
            unit.id: what
            for job in ledger.jobs.values()
            for unit in job.units
            if unit.status in ("pending", "waiting") and (what := _untold(ledger, job, unit, now))
        }
        for name, what in untold.items():
            if name in self._untold:
                raise Violation("L3", f"{name} waits, and {what}")
        self._untold = untold

    def failed_under(self, unit: str) -> set[str]:
        """Return the devices that failed while a unit held them."""
        return self._failed_under.get(unit, set())

    def held_on(self, node: str) -> set[Attempt]:
        """Return the attempts on a node according to the durable log."""
        return {attempt_of(unit, index) for unit, index in self.ledger.active.on(node)}

    def orders_on(self, node: str) -> dict[Attempt, Orders]:
        """Return the orders that members of elastic gangs on a node should have, according to the durable log."""
        return {
            attempt_of(unit, index): orders
            for unit, here in self.ledger.active.on(node)
            if unit.spec.least and not unit.stopping
            for index, orders in orders_of(unit)
            if index == here
        }

    def _note_event(self, event: Event) -> None:
        self.digest = crc32(encode_event(event), self.digest)

    def _note(self, what: str) -> None:
        self.digest = crc32(what.encode(), self.digest)


def _untold(ledger: Ledger, job: JobState, unit: UnitState, now: int) -> str:
    """Return what the explanation of a waiting unit lacks; empty if it is complete."""
    told = [reason for reason in reasons(ledger, job, unit, now) if reason.code != "NEXT_ROUND"]
    if not told:
        return "no reason is told"
    if {reason.code for reason in told} - ABOUT_NODES or len(ledger.nodes) > NAMED or ledger.leader.fixed:
        return ""  # each unit has one place only
    named, shape = {reason.subject for reason in told}, unit.shape
    for name, state in ledger.nodes.items():
        has_room = len(unit.tasks) > 1 and state.node.cpu - state.used_cpu >= shape.cpu
        if name not in named and not has_room:
            return f"nothing is told of {name}"
    return ""


__all__ = ["Judge", "Violation"]
