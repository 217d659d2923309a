"""Attempts on the nodes: how they are launched, stopped and ended, and what a node should hold."""

from collections.abc import Callable, Iterable

from poise.kernel.changing import memory_wish
from poise.kernel.controller.cadence import Cadence
from poise.kernel.controller.contacts import Contacts
from poise.kernel.controller.outbox import Outbox
from poise.kernel.controller.settings import Settings
from poise.kernel.controller.tellings import Tellings, is_current
from poise.kernel.dispatch import Dispatch
from poise.kernel.ledger import Ledger, UnitState, attempt_of, orders_of
from poise.kernel.messages import Locked
from poise.kernel.spans import root_of, run_of
from poise.kernel.watch import Watch
from poise.model.events import Event, Finished, JobHeld, Started
from poise.model.jobs import Ending, limits_of
from poise.model.messages import Attempt, Desired, Ended, Hello, Launch, Limited, Ordered, Running
from poise.model.profiles import ENOUGH_RUNS
from poise.model.traces import TRACEPARENT
from poise.model.training import DEVICE_MEMORY, LIBRARY_THREADS, PHASE, THREADS
from poise.units import SECOND

RECALL_AFTER = 2 * SECOND
"""An attempt still queued on a node after this time is recalled: the forecast was wrong."""


class LiveAttempts:
    """The part of the controller that sends nodes what they should hold, and takes in how it ended."""

    def __init__(
        self,
        ledger: Ledger,
        settings: Settings,
        watch: Watch,
        contacts: Contacts,
        outbox: Outbox,
        cadence: Cadence,
        tellings: Tellings,
        dispatch: Dispatch,
        *,
        commit: Callable[[Event], None],
    ) -> None:
        self.ledger = ledger
        self._settings = settings
        self._watch = watch
        self._contacts = contacts
        self._outbox = outbox
        self._cadence = cadence
        self._tellings = tellings
        self._dispatch = dispatch
        self._commit = commit
        self._last_recall = 0

    # --- orders to nodes ---------------------------------------------------------------------------------------------

    def launch(self, unit: UnitState, index: int) -> Launch:
        job, spec = self.ledger.jobs[unit.job], unit.spec
        task, state = spec.tasks[index], unit.tasks[index]
        profile = self.ledger.profiles.get(spec.kind)
        shape = unit.shape
        order = dict(orders_of(unit)).get(index) if spec.least else None
        first = unit.tasks[unit.members[0] if spec.least else 0].node
        attempt = attempt_of(unit, index)
        env = _in_phase(unit, job.env | task.env if task.env else job.env)
        if self._settings.traced:
            env = env | {TRACEPARENT: run_of(root_of(job), attempt).text}
        return Launch(
            attempt=attempt,
            argv=spec.variants[unit.variant - 1].argv if unit.variant else task.argv,
            shape=shape,
            slots=self.ledger.nodes[state.node].pools[shape.key()].slots,
            folder=job.folder,
            env=env,
            secrets=job.secrets | spec.secrets if spec.secrets else job.secrets,
            devices=state.devices,
            priority=int(spec.priority),
            kind=spec.kind,
            expect=profile.mean if profile is not None and profile.count >= ENOUGH_RUNS else 0,
            gang=unit.id if len(spec.tasks) > 1 else "",
            first=self._contacts.addresses.get(first, "") if len(spec.tasks) > 1 else "",
            rank=order.rank if order is not None else task.rank,
            world=order.world if order is not None else task.world,
            part=task.part,
            parts=task.parts,
            queued=unit.queued,
            serves=job.calls is not None or bool(spec.serves),
            lease=self._settings.lease if spec.lease == "exclusive" else 0,
            generation=unit.generation,
            founded=unit.placed_in if spec.least else 0,
            submitted=job.submitted,
            tree=job.tree,
            tenant=job.tenant,
            **limits_of(spec),
        )

    def order(self, unit: UnitState) -> None:
        """Send all members of a gang its new membership. Members that must leave are also ordered to end."""
        orders: dict[str, list[Ordered]] = {}
        stops: dict[str, list[Attempt]] = {}
        for index, order in orders_of(unit):
            attempt, node = attempt_of(unit, index), unit.tasks[index].node
            orders.setdefault(node, []).append(Ordered(attempt, order))
            if order.rank < 0:
                stops.setdefault(node, []).append(attempt)
        for node, told in orders.items():
            self._outbox.send(node, Desired(orders=tuple(told), stops=tuple(stops.get(node, ()))))

    def stop(self, unit: UnitState, now: int) -> None:
        """Stop the unit's attempts. Those on a lost node end here: if it comes back, they are fenced."""
        for index, task in enumerate(unit.tasks):
            if not task.active:
                continue
            if task.status == "recovering":
                self.finish(attempt_of(unit, index), Ending(outcome="lost", note=f"node {task.node} was lost"), now)
            else:
                self._outbox.send(task.node, Desired(stops=(attempt_of(unit, index),)))

    def limit(self, names: Iterable[str], *, lower: bool = True) -> None:
        """Send nodes the new limits of attempts of these units. Unless they may `lower` the memory limit, it is the one
        for which the ledger holds the room.
        """
        limited: dict[str, list[Limited]] = {}
        for unit in [self.ledger.jobs.units[name] for name in names]:
            for index, task in enumerate(unit.tasks if unit.status == "active" else ()):
                if task.active:
                    limited.setdefault(task.node, []).append(_limits_of(self.ledger, unit, index, lower=lower))
        for node, attempts in limited.items():
            self._outbox.send(node, Desired(limited=tuple(attempts)))

    def recall_queued(self, now: int) -> None:
        """At intervals, recall attempts that wait on a node behind work that takes longer than expected; elsewhere
        there may be room.
        """
        if now - self._last_recall < RECALL_AFTER:
            return
        self._last_recall = now
        recalls: dict[str, list[Attempt]] = {}
        for unit, task in self.ledger.active.queued_since(now - RECALL_AFTER):
            recalls.setdefault(task.node, []).append(attempt_of(unit, 0))
        for node, attempts in recalls.items():
            self._outbox.send(node, Desired(recalls=tuple(attempts)))

    # --- ends --------------------------------------------------------------------------------------------------------

    def finish(self, attempt: Attempt, ending: Ending, now: int, until: int = 0) -> None:
        """End an attempt. An exclusive one may run until this instant."""
        found = self.ledger.jobs.task(attempt.task)
        was_stopping = bool(found and found[0].stopping)
        if found and found[1] is found[0].first:
            self._tellings.keep_last_word(found[0], now)
        generation = found[0].generation if found else 0
        undecided, waited = self._cadence.undecided, self.ledger.queues.pending
        self._commit(Finished(at=now, task=attempt.task, epoch=attempt.epoch, ending=ending, until=until))
        done = ending.outcome == "done"
        self._cadence.ended(alone=done and not undecided and self.ledger.queues.pending <= waited)
        self._dispatch.ended(attempt, now, blame=ending.outcome not in ("stopped", "returned"))
        if found and found[0].brief and done:
            self._cadence.fire(self._watch.response(now - found[0].ready), now)
        if found and found[0].stopping and not was_stopping:
            self.stop(found[0], now)
        elif found and found[0].generation != generation:  # it continues without one of its members
            self.order(found[0])

    def lose(self, unit: UnitState, index: int, note: str, now: int, *, gone: bool = False) -> None:
        """End an attempt as lost, unless the loss of another gang member has ended it already. Unless it is known to be
        `gone`, an exclusive attempt may run until the end of its lease.
        """
        if unit.tasks[index].active:
            until = 0 if gone else self.lease_end([unit], now)
            self.finish(attempt_of(unit, index), Ending(outcome="lost", note=note), now, until)

    def lose_all(self, name: str, now: int, note: str, *, gone: bool = False) -> None:
        """End all attempts of a node as lost."""
        for unit, index in list(self.ledger.active.on(name)):
            self.lose(unit, index, note, now, gone=gone)

    def lease_end(self, units: Iterable[UnitState], now: int) -> int:
        """Return when attempts that are given up now have ended at the latest, if any is exclusive; else 0."""
        return now + self._settings.lease if any(unit.spec.lease == "exclusive" for unit in units) else 0

    def locked(self, message: Locked, now: int) -> None:
        """Hold the job until a user has fixed its keys and releases it, so that no try is lost or repeated. A job that
        serves calls cannot be held: its worker fails with the reason.
        """
        found = self.ledger.jobs.task(message.attempt.task)
        if self._outbox.full or found is None or not is_current(self.ledger, message.attempt, found[1].node):
            return
        job = self.ledger.jobs[found[0].job]
        if job.calls is not None:
            self.finish(message.attempt, Ending(outcome="unstartable", code=126, note=message.why), now)
            return
        if not job.hold or job.budget:
            self._commit(JobHeld(at=now, job=job.id, on=True, why=message.why))
        self.finish(message.attempt, Ending(outcome="returned", note=message.why), now)

    # --- reports of nodes --------------------------------------------------------------------------------------------

    def take_report(self, name: str, running: Iterable[Running], ended: Iterable[Ended], now: int) -> None:
        """Record which attempts have started and ended."""
        for began in running:
            if is_current(self.ledger, began.attempt, name):
                found = self.ledger.jobs.task(began.attempt.task)
                if found is not None and found[1].status != "running":
                    attempt = began.attempt
                    self._commit(
                        Started(at=now, task=attempt.task, epoch=attempt.epoch, pid=began.pid, cpus=began.cpus)
                    )
        for done in ended:
            if is_current(self.ledger, done.attempt, name):
                self.finish(done.attempt, done.ending, now)

    def desired(self, name: str, hello: Hello, now: int) -> Desired:
        """Return what the node should hold, given what it holds: launches that never arrived, stops, and attempts to
        keep.
        """
        holds = {*hello.queued, *(running.attempt for running in hello.running)}
        for unit, index in list(self.ledger.active.on(name)):  # first: a gang that lost one is stopped, not launched
            attempt, task = attempt_of(unit, index), unit.tasks[index]
            if task.active and task.started and attempt not in holds:
                lost = Ending(outcome="lost", note="its process was gone when the node came back")
                self.finish(attempt, lost, now)
        for attempt in self._without_room(name):
            if attempt not in holds:
                self.finish(attempt, Ending(outcome="returned", note="its node has shrunk"), now)
        no_room = self._without_room(name)
        keep, stops, recalls, launches = [], [], [], []
        orders: list[Ordered] = []
        limited: list[Limited] = []
        drained = self.ledger.nodes[name].drained
        suspended: list[Attempt] = []
        for unit, index in list(self.ledger.active.on(name)):
            attempt = attempt_of(unit, index)
            waits = unit.queued and unit.tasks[index].status == "queued"
            leaves = bool(unit.stopping) or unit.tasks[index].leaving
            if attempt in holds:
                keep.append(attempt)
                orders += [Ordered(attempt, order) for of, order in orders_of(unit) if of == index and unit.generation]
                if unit.limited == unit.placed_in or memory_wish(self.ledger, unit):
                    limited.append(_limits_of(self.ledger, unit, index))
                if unit.suspended is not None:
                    suspended.append(attempt)
                if leaves:
                    stops.append(attempt)
                elif (drained and waits) or attempt in no_room:
                    recalls.append(attempt)
            elif leaves or (drained and waits):
                self.finish(attempt, Ending(outcome="returned", note="stopped before it was launched"), now)
            else:
                launches.append(self.launch(unit, index))
        keep += [launch.attempt for launch in launches]
        return Desired(
            launches=tuple(launches),
            stops=tuple(stops),
            recalls=tuple(recalls),
            keep=tuple(keep),
            complete=True,
            orders=tuple(orders),
            limited=tuple(limited),
            suspends=tuple(suspended),
        )

    def _without_room(self, name: str) -> list[Attempt]:
        """Return unstarted attempts for which a shrunk node has no room, the latest placed first. Running attempts
        continue, whatever the node offers.
        """
        state = self.ledger.nodes[name]
        cpu, memory, network = state.excess
        withdrawn = {device.index for device in state.node.devices if device.withdrawn}
        found: list[Attempt] = []
        latest = sorted(self.ledger.active.on(name), key=lambda entry: (-entry[0].placed, -entry[0].ordinal))
        for unit, index in latest:
            task, fits = unit.tasks[index], max(cpu, memory, network) <= 0
            if task.active and not task.started and not (fits and withdrawn.isdisjoint(task.devices)):
                found.append(attempt_of(unit, index))
                if not unit.queued:
                    shape = unit.shape
                    cpu, memory, network = cpu - shape.cpu, memory - shape.memory, network - shape.network
        return found


def _in_phase(unit: UnitState, env: dict[str, str]) -> dict[str, str]:
    """Return the environment of a task in its phase: the number of threads, and the fraction of device memory that it
    may use (of its reservation, for a share of a device). A number of threads set in the job takes precedence.
    """
    if not unit.spec.phases:
        return env
    asks, threads = unit.spec.in_phase(unit.phase), str(max(1, unit.shape.cpu // 1000))
    part = 1000 if asks is None or unit.shape.gpu_memory else asks.memory
    told = {PHASE: unit.phase, THREADS: threads, DEVICE_MEMORY: f"{part / 1000:g}"}
    return {LIBRARY_THREADS: threads} | env | told


def _limits_of(ledger: Ledger, unit: UnitState, index: int, *, lower: bool = True) -> Limited:
    """Return the limits of an attempt for its node; its smaller memory limit, if it may `lower` that."""
    memory = (memory_wish(ledger, unit) if lower else 0) or unit.spec.shape.memory
    return Limited(attempt_of(unit, index), unit.spec.time_limit, memory)
