"""A world in memory for tests: a real controller, ledger and policy; the test controls clock, log and nodes.

    world = World().nodes(4, gpus=8).job("other", gpu=8).round().job("train", workers=4, gpu=8).round()
    assert world.codes("train")[0] == "GANG_INCOMPLETE"

Every step returns the world, so that steps can be chained. Time passes only in `after`. Nodes are scripted: a node
holds the attempts that it is sent, and reports an end when the test calls `finish`. With `check`, the ledger checks all
its invariants after every change.
"""

from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, ClassVar

import msgspec

from poise.drivers.calendar import around, shifts
from poise.errors import PoiseError, StoreFull
from poise.kernel.controller import Controller, Settings, with_latest_policy
from poise.kernel.explain import reasons
from poise.kernel.ledger import JobState, Ledger, TaskState, UnitState, attempt_of, job_status
from poise.kernel.messages import (
    Append,
    AppendFailed,
    Cancel,
    CancelReservation,
    ChangeJob,
    Checkpoint,
    Decide,
    Decided,
    Drain,
    Durable,
    Effect,
    FromCallWorker,
    FromJobCaller,
    FromNode,
    Gone,
    Hang,
    HangCaller,
    HangCalls,
    HoldJob,
    HoldSchedule,
    Message,
    Recovered,
    RemoveJobs,
    RemoveSchedule,
    Reply,
    Request,
    Reserve,
    RetryJob,
    SayCaller,
    SayWorker,
    Send,
    SetBudgets,
    SetQuota,
    SetShares,
    Submit,
    TryRecover,
)
from poise.model.budgets import compile_budgets
from poise.model.calls import FromCaller, FromWorker, Result, Results
from poise.model.changing import as_job, fields_in
from poise.model.decisions import Plan, Reason
from poise.model.events import Event
from poise.model.job_fields import ResourcesSpec
from poise.model.jobs import Ending, Outcome
from poise.model.messages import (
    Attempt,
    Beat,
    Desired,
    DeviceFault,
    Ended,
    FromAgent,
    Hello,
    Launch,
    Report,
    Running,
    Sized,
    Told,
)
from poise.model.reservations import Zones, compile_reservations
from poise.model.resources import Device, Node
from poise.model.sharefile import compile_shares
from poise.model.spec import QuotaSpec, compile_quota, compile_spec
from poise.model.tenants import DEFAULT, HOME, Bearer, Role
from poise.model.times import Times
from poise.model.training import Orders, Training
from poise.policy.suites import ClusterPolicy, policy_named
from poise.units import MILLISECOND, MINUTE, SECOND, parse_bytes, parse_cpu, parse_duration

WALL = 1_700_000_000.0
"""The world's wall clock at its start; nothing may depend on real time."""


def node(
    name: str = "n1",
    *,
    cpu: float = 2,
    memory: str | int = "8GiB",
    gpus: int = 0,
    gpu_memory: str | int | Sequence[str | int] = "80GiB",
    incarnation: str = "1",
    grows: bool = False,
) -> Node:
    """Create a node; `gpu_memory` is one amount for all devices, or one for each."""
    amounts = [gpu_memory] * gpus if isinstance(gpu_memory, str | int) else gpu_memory
    return Node(
        name=name,
        incarnation=incarnation,
        grows=grows,
        cpu=parse_cpu(cpu),
        memory=parse_bytes(memory),
        devices=tuple(
            Device(index=index, memory=parse_bytes(amount), uuid=f"{name}-{index}")
            for index, amount in enumerate(amounts)
        ),
    )


def replay(events: Iterable[Event]) -> Ledger:
    """Rebuild the ledger from a log."""
    ledger = Ledger()
    for event in events:
        ledger.apply(event)
    return ledger


class World:
    """One control plane and its nodes. `policy` is a name or a policy. Rounds run when something happens, at the time
    that the last plan named, and at each `poll` (ns) if one is set.
    """

    check_each: ClassVar[int] = 1
    """A world with `check` checks the invariants each time the ledger has changed this many times."""

    def __init__(
        self, policy: str | ClusterPolicy = "poise", *, check: bool = True, poll: int = 0, **settings: Any
    ) -> None:
        self._policy = policy_named(policy) if isinstance(policy, str) else policy
        self.now = SECOND
        self.check = check
        self.ahead = 0.0
        self.controller = Controller(Ledger(), Settings(policy=self._policy.name, poll=poll, **settings), around)
        self.log: list[Event] = []
        self.durable = 0
        self.slow_disk = False
        self.full_disk = False
        self.plans: list[Plan] = []
        self.sent: list[Send] = []
        self.hung: list[str] = []
        self.replies: list[Reply] = []
        self.results: list[Result] = []
        self.told_callers: list[SayCaller] = []
        self.told_workers: list[SayWorker] = []
        self.hung_callers: list[HangCaller | HangCalls] = []
        self.known: dict[str, Node] = {}
        self.connected: set[str] = set()
        self.held: dict[str, dict[Attempt, Launch]] = {}
        self.started: dict[Attempt, int] = {}
        self.shrinks: dict[Attempt, int] = {}
        self.orders: dict[Attempt, Orders] = {}
        self._requests = 0
        self._serials = 0
        self._seen: tuple[Ledger, int] | None = None
        self._changes = 0
        self._perform(self.controller.begin(self.now, boot="boot", boottime=self.now, wall=WALL))

    @property
    def wall(self) -> float:
        """The wall clock, in seconds since 1970; tests set it `ahead` by a number of seconds."""
        return WALL + (self.now - SECOND) / SECOND + self.ahead

    @property
    def ledger(self) -> Ledger:
        return self.controller.ledger

    # --- setup -------------------------------------------------------------------------------------------------------

    def nodes(self, count: int, **offers: Any) -> "World":
        """Join nodes `n1` …; `offers` are arguments of `node`."""
        for number in range(1, count + 1):
            self.join(node(f"n{number}", **offers))
        return self

    def join(self, joining: Node) -> "World":
        """Connect a node, which reports its attempts: none, if its incarnation is new."""
        known = self.known.get(joining.name)
        if known is None or known.incarnation != joining.incarnation:
            self.held[joining.name] = {}
        self.known[joining.name] = joining
        return self.connect(joining.name)

    def job(self, name: str = "", **fields: Any) -> "World":
        """Submit a job of `tenant`. `cpu`, `memory`, `gpu`, `gpu_memory` … are its resources; all else are fields of
        the job file.
        """
        tenant = fields.pop("tenant", DEFAULT)
        return self.submit(_spec(name, fields), tenant=tenant)

    def graph(self, name: str = "", *, tasks: Mapping[str, Mapping[str, Any]], **fields: Any) -> "World":
        """Submit a graph of tasks, each with the fields that `job` takes."""
        made = {task: _spec("", dict(of)) for task, of in tasks.items()}
        tenant = fields.pop("tenant", DEFAULT)
        return self.submit({"kind": "graph", "tasks": made, **_spec(name, fields, run=False)}, tenant=tenant)

    def submit(self, document: Any, key: str = "", user: str = "", tenant: str = DEFAULT) -> "World":
        """Submit a parsed file. Raises the error if it is refused; the answer is in `replies`."""
        compiled = self.controller.prepare(document, WALL, self.now, tenant)
        bearer = HOME if tenant == DEFAULT else Bearer(tenant, Role.SUBMITTER)
        return self.ask(Submit(self.request(), compiled, key, user, bearer=bearer))

    # --- progress ----------------------------------------------------------------------------------------------------

    def round(self) -> "World":
        """Run one scheduling round now, whether or not one is due."""
        view = self.controller.snapshot(self.now)
        plan = self._policy.decide(view)
        self.plans.append(plan)
        return self.say(Decided(plan, view))

    def plan(self) -> Plan:
        """Return the policy's plan for the current state."""
        return self._policy.decide(self.controller.snapshot(self.now))

    def after(self, duration: str | int = 0) -> "World":
        """Let time pass: connected nodes send heartbeats, and the controller runs its rounds when due. Until the last
        minute, nodes send heartbeats as rarely as idle nodes.
        """
        end = self.now + (parse_duration(duration) if isinstance(duration, str) else duration)
        while True:
            every = Times().heartbeat_idle if end - self.now > MINUTE else SECOND
            for name in sorted(self.connected):
                self.say(FromNode(name, Beat(every=every)))
            self.tick()
            if self.now >= end:
                return self
            wakeup = self.controller.wakeup() or end
            self.now = min(end, max(self.now + MILLISECOND, min(wakeup, self.now + every)))

    def tick(self) -> "World":
        self._perform(self.controller.tick(self.now, wall=self.wall))
        return self

    def start(self, *tasks: str) -> "World":
        """Report these tasks as running, from their nodes."""
        for name in tasks:
            attempt, at = self._attempt(name)
            self.started.setdefault(attempt, self.now)
            self._report(at, running=(Running(attempt=attempt, pid=1),))
        return self

    def resizes(self, *tasks: str) -> "World":
        """Report that these tasks follow the orders of their gang; `orders` has the latest orders of each."""
        for name in tasks:
            attempt, at = self._attempt(name)
            self.hear(
                at,
                Report(serial=self._serial(), told=(Told(attempt=attempt, training=Training(step=1, resizes=True)),)),
            )
        return self

    def sized(self, task: str, used: int, *, short: bool = False) -> "World":
        """Report that the memory limit of a task was lowered as ordered (`shrinks`); or, if it is `short`, that the
        task uses nearly all of its lowered limit.
        """
        attempt, at = self._attempt(task)
        launch = self.held[at][attempt]
        if not short:
            shape = msgspec.structs.replace(launch.shape, memory=self.shrinks.pop(attempt))
            launch = self.held[at][attempt] = msgspec.structs.replace(launch, shape=shape)
        sized = Sized(attempt=attempt, memory=launch.shape.memory, used=used, short=short)
        return self.hear(at, Report(serial=self._serial(), sized=(sized,)))

    def finish(self, *tasks: str, outcome: Outcome = "done", run: str | int = "1s", **ending: Any) -> "World":
        """Report from their nodes that the latest attempts of these tasks have ended."""
        nanoseconds = parse_duration(run) if isinstance(run, str) else run
        for name in tasks:
            attempt, at = self._attempt(name)
            self.end(at, attempt, Ending(outcome=outcome, run=nanoseconds, **ending))
        return self

    def finish_all(self, **ending: Any) -> "World":
        """End all attempts on all nodes, and let time pass, until no work is left."""
        for _ in range(10_000):
            attempts = [attempt for of_node in self.held.values() for attempt in of_node]
            if not attempts and not self.ledger.queues.pending:
                return self
            for attempt in sorted(attempts):
                if attempt in self._holder(attempt):
                    self.finish(attempt.task, **ending)
            self.after("1s")
        raise AssertionError("the world does not come to rest")

    def settle(self) -> "World":
        """Run rounds until one changes nothing."""
        for _ in range(100):
            before = self.ledger.revision
            self.round()
            if self.ledger.revision == before:
                return self
        raise AssertionError("rounds go on for ever")

    # --- calls -------------------------------------------------------------------------------------------------------

    def caller(self, job: str, message: FromCaller) -> "World":
        """Send a message as the caller of a job; answers are in `told_callers` and `results`."""
        return self.say(FromJobCaller(self.state(job).id, message, self.state(job).tenant))

    def worker(self, task: str, message: FromWorker) -> "World":
        """Send a message as a worker's task (`job.task`); messages to workers are in `told_workers`."""
        return self.say(FromCallWorker(self._attempt(task)[0], message))

    # --- requests and failures ---------------------------------------------------------------------------------------

    def cancel(self, job: str, bearer: Bearer = HOME) -> "World":
        return self.ask(Cancel(self.request(), job, bearer))

    def hold(self, job: str, on: bool = True, bearer: Bearer = HOME) -> "World":
        return self.ask(HoldJob(self.request(), job, on, bearer))

    def change(self, job: str, bearer: Bearer = HOME, **fields: Any) -> "World":
        """Change fields of a job, given as for `job`."""
        spec = _spec("", fields, run=False)
        compiled = compile_spec(as_job(spec), wall=WALL)
        return self.ask(ChangeJob(self.request(), job, compiled, fields_in(spec), bearer))

    def retry(self, job: str, bearer: Bearer = HOME) -> "World":
        return self.ask(RetryJob(self.request(), job, bearer))

    def remove(self, *jobs: str, bearer: Bearer = HOME) -> "World":
        return self.ask(RemoveJobs(self.request(), jobs, bearer))

    def hold_schedule(self, name: str, on: bool = True, bearer: Bearer = HOME) -> "World":
        return self.ask(HoldSchedule(self.request(), name, on, bearer))

    def remove_schedule(self, name: str, bearer: Bearer = HOME) -> "World":
        return self.ask(RemoveSchedule(self.request(), name, bearer))

    def drain(self, name: str, on: bool = True, *, moves: bool = False) -> "World":
        return self.ask(Drain(self.request(), name, on, moves=moves))

    def fault(self, name: str, *faults: DeviceFault) -> "World":
        """Report failed devices of a node."""
        return self.hear(name, Report(serial=self._serial(), faults=faults))

    def quota(self, tenant: str, *, none: bool = False, **bounds: Any) -> "World":
        """Set the quota of a tenant: `cpu`, `memory`, `gpu`; with `none`, remove it."""
        quota = None if none else compile_quota(QuotaSpec(**bounds))
        return self.ask(SetQuota(self.request(), tenant, quota))

    def shares(self, *shares: dict[str, Any], **fields: Any) -> "World":
        """Set the shares of the fleet; without arguments, remove them."""
        tree = compile_shares({"kind": "shares", "shares": list(shares), **fields}) if shares else None
        return self.ask(SetShares(self.request(), tree))

    def budgets(self, *budgets: dict[str, Any], **fields: Any) -> "World":
        """Set all budgets, with the fields of a file of budgets."""
        asked = compile_budgets({"kind": "budgets", "budgets": list(budgets), **fields}, Zones(self.wall, shifts))
        return self.ask(SetBudgets(self.request(), asked))

    def reserve(self, name: str, *, bearer: Bearer = HOME, **fields: Any) -> "World":
        """Reserve places, with the fields of a reservations file (`begins` for `from`, `length` for `for`)."""
        fields = {{"begins": "from", "length": "for"}.get(field, field): value for field, value in fields.items()}
        document = {"kind": "reservations", "reservations": [{"name": name, **fields}]}
        wanted = compile_reservations(document, Zones(self.wall, shifts))
        return self.ask(Reserve(self.request(), wanted, bearer))

    def unreserve(self, name: str, bearer: Bearer = HOME) -> "World":
        """Cancel a reservation."""
        return self.ask(CancelReservation(self.request(), name, bearer))

    def disconnect(self, name: str) -> "World":
        self.connected.discard(name)
        return self.say(Gone(name))

    def connect(self, name: str, ended: Sequence[Ended] = ()) -> "World":
        """Connect a node, which reports the attempts that it holds."""
        self.connected.add(name)
        holds = self.held[name]
        running = tuple(Running(attempt=attempt, pid=1) for attempt in holds if attempt in self.started)
        queued = tuple(attempt for attempt in holds if attempt not in self.started)
        hello = Hello(node=self.known[name], queued=queued, running=running, ended=tuple(ended))
        return self.hear(name, hello)

    def lose(self, name: str) -> "World":
        """Disconnect a node until the controller declares it lost."""
        self.disconnect(name)
        return self.after(self.controller.settings.dead_after + SECOND)

    def end(self, name: str, attempt: Attempt, ending: Ending) -> "World":
        """Report that an attempt has ended, whatever state the ledger has for it."""
        self.held[name].pop(attempt, None)
        return self._report(name, ended=(Ended(attempt=attempt, ending=ending),))

    def hear(self, name: str, message: FromAgent) -> "World":
        return self.say(FromNode(name, message))

    def say(self, message: Message) -> "World":
        """Pass a message to the controller."""
        self._perform(self.controller.handle(message, self.now))
        return self

    def sync(self) -> "World":
        """Make the log durable, as when a slow disk catches up."""
        self.durable = len(self.log)
        return self.say(Durable(self.durable))

    def fail_disk(self) -> "World":
        """Fill the disk: drop what is not durable, and restore the controller from the rest."""
        self.full_disk = True
        del self.log[self.durable :]
        return self.say(AppendFailed(replay(self.log), StoreFull("the disk of the log is full")))

    def restart(self, *, from_checkpoint: bool = False, **settings: Any) -> "World":
        """Kill the control plane and restart it from the durable log; all nodes reconnect.

        With `from_checkpoint` it starts from the current state, which must be durable, instead of the whole log.
        `settings` are changed settings.
        """
        del self.log[self.durable :]
        ledger = Ledger.decode(self.ledger.encode()) if from_checkpoint else replay(self.log)
        changed = msgspec.structs.replace(self.controller.settings, **settings)
        self.controller = Controller(ledger, with_latest_policy(changed, ledger.leader.began), around)
        self._perform(self.controller.begin(self.now, boot="boot", boottime=self.now, wall=self.wall))
        for name in sorted(self.connected):
            self.connect(name)
        return self

    # --- state -------------------------------------------------------------------------------------------------------

    def state(self, name: str) -> JobState:
        """Return a job by id or name: the tenant `default`'s, else the latest with that name."""
        job = self.ledger.jobs.find(name)
        if job is None:
            job = next((job for job in reversed(self.ledger.jobs.values()) if job.name == name), None)
        if job is None:
            raise KeyError(name)
        return job

    def status(self, name: str) -> str:
        """Return the status of a job, or of a unit (`job.unit`)."""
        job, _, unit = name.partition(".")
        return self.unit(name).status if unit else job_status(self.state(job))

    def unit(self, name: str) -> UnitState:
        """Return a unit (`job.unit`), or the only unit of a job."""
        job, _, unit = name.partition(".")
        found = self.ledger.jobs.unit(f"{self.state(job).id}.{unit or 'main'}")
        if found is None:
            raise KeyError(name)
        return found

    def task(self, name: str) -> tuple[UnitState, TaskState]:
        """Return a task (`job.task`), or the only task of a job."""
        job, _, task = name.partition(".")
        found = self.ledger.jobs.task(f"{self.state(job).id}.{task or 'main'}")
        if found is None:
            raise KeyError(name)
        return found

    def where(self, name: str) -> list[str]:
        """Return the nodes of a unit's active attempts."""
        return [task.node for task in self.unit(name).tasks if task.active]

    def reasons(self, name: str) -> list[Reason]:
        """Return every reason why a unit waits."""
        unit = self.unit(name)
        return reasons(self.ledger, self.ledger.jobs[unit.job], unit, self.now)

    def codes(self, name: str) -> list[str]:
        return [reason.code for reason in self.reasons(name)]

    # --- internals ---------------------------------------------------------------------------------------------------

    def _perform(self, effects: Sequence[Effect]) -> None:
        waiting = deque(effects)
        while waiting:
            effect = waiting.popleft()
            match effect:
                case Append():
                    waiting.extend(self._append(effect))
                case Decide():
                    plan = self._policy.decide(effect.view)
                    self.plans.append(plan)
                    waiting.extend(self.controller.handle(Decided(plan, effect.view), self.now))
                case Send():
                    self.sent.append(effect)
                    waiting.extend(self._deliver(effect))
                case Hang():
                    self.hung.append(effect.node)
                    self.connected.discard(effect.node)
                    waiting.extend(self.controller.handle(Gone(effect.node), self.now))
                case SayCaller():
                    self.results.extend(effect.message.results if isinstance(effect.message, Results) else ())
                    self.told_callers.append(effect)
                case SayWorker():
                    self.told_workers.append(effect)
                case HangCaller() | HangCalls():
                    self.hung_callers.append(effect)
                case Reply():
                    self.replies.append(effect)
                case TryRecover():
                    if not self.full_disk:
                        waiting.extend(self.controller.handle(Recovered(), self.now))
                case Checkpoint():
                    pass
        if self.check:
            self._check()

    def _check(self) -> None:
        """Check all invariants if the ledger has changed since the last call, at each `check_each`th change."""
        if self._seen is None or self._seen[0] is not self.ledger or self._seen[1] != self.ledger.revision:
            self._seen = self.ledger, self.ledger.revision
            self._changes += 1
            if self._changes % self.check_each == 0:
                self.ledger.check()

    def _append(self, append: Append) -> Sequence[Effect]:
        if append.expected != len(self.log):
            raise AssertionError(f"appended after {append.expected}, the log has {len(self.log)}")
        self.log.extend(append.events)
        if self.full_disk:
            del self.log[self.durable :]
            failed = AppendFailed(replay(self.log), StoreFull("the disk of the log is full"))
            return self.controller.handle(failed, self.now)
        if self.slow_disk:
            return ()
        self.durable = len(self.log)
        return self.controller.handle(Durable(self.durable), self.now)

    def _deliver(self, send: Send) -> Sequence[Effect]:
        """Deliver a message to a scripted node: it holds new attempts, and ends at once those that it must stop."""
        if send.node not in self.connected or not isinstance(send.message, Desired):
            return ()
        holds, desired = self.held[send.node], send.message
        stops = [*desired.stops, *(attempt for attempt in desired.recalls if attempt not in self.started)]
        if desired.complete:
            wanted = {*desired.keep, *(launch.attempt for launch in desired.launches)}
            stops += [attempt for attempt in holds if attempt not in wanted]
        ended = []
        for attempt in stops:
            if holds.pop(attempt, None) is not None:
                outcome: Outcome = "stopped" if attempt in self.started else "returned"
                run = self.now - self.started.get(attempt, self.now)
                ended.append(Ended(attempt=attempt, ending=Ending(outcome=outcome, run=run)))
        holds.update((launch.attempt, launch) for launch in desired.launches)
        for limited in desired.limited:
            launch = holds[limited.attempt]
            if 0 < limited.memory < launch.shape.memory:
                self.shrinks[limited.attempt] = limited.memory
                continue
            shape = msgspec.structs.replace(launch.shape, memory=limited.memory or launch.shape.memory)
            holds[limited.attempt] = msgspec.structs.replace(launch, time_limit=limited.time_limit, shape=shape)
        self.orders.update((launch.attempt, launch.orders) for launch in desired.launches if launch.founded)
        self.orders.update((ordered.attempt, ordered.orders) for ordered in desired.orders)
        if not ended:
            return ()
        report = Report(serial=self._serial(), ended=tuple(ended))
        return self.controller.handle(FromNode(send.node, report), self.now)

    def _report(self, name: str, running: tuple[Running, ...] = (), ended: tuple[Ended, ...] = ()) -> "World":
        return self.hear(name, Report(serial=self._serial(), running=running, ended=ended))

    def _attempt(self, name: str) -> tuple[Attempt, str]:
        unit, task = self.task(name)
        index = next(index for index, other in enumerate(unit.tasks) if other is task)
        return attempt_of(unit, index), task.node

    def _holder(self, attempt: Attempt) -> dict[Attempt, Launch]:
        return next((of_node for of_node in self.held.values() if attempt in of_node), {})

    def ask(self, message: Request) -> "World":
        """Make a request, with a number from `request`. Raises the error if it is refused."""
        self.say(message)
        for reply in self.replies:
            if reply.request == message.request and reply.error is not None:
                raise reply.error
        return self

    def error(self) -> PoiseError | None:
        """Return the error of the latest reply."""
        return self.replies[-1].error if self.replies else None

    def request(self) -> int:
        """Return the number of a new request."""
        self._requests += 1
        return self._requests

    def _serial(self) -> int:
        self._serials += 1
        return self._serials


_RESOURCES = tuple(field.encode_name for field in msgspec.structs.fields(ResourcesSpec))


def _spec(name: str, fields: dict[str, Any], *, run: bool = True) -> dict[str, Any]:
    resources = {field: fields[field] for field in _RESOURCES if field in fields}
    rest = {field: value for field, value in fields.items() if field not in _RESOURCES}
    document: dict[str, Any] = {"run": "true"} if run else {}
    document |= {"name": name} if name else {}
    document |= {"resources": resources} if resources else {}
    return document | rest


__all__ = ["WALL", "World", "node", "replay"]
