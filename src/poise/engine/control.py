"""The control plane as one process: the real host and controller, on a simulated disk and before simulated doors.

It is started again when it ends, as the supervisor does. Where a door is used it may die: `die_in` counts down the
doors it still goes through, so that every instant between two steps of a commit is one at which it can end.
"""

import contextlib
from collections.abc import Callable, Iterator
from random import Random
from typing import Any

import msgspec

from poise.engine.disk import SimulatedDisk, SimulatedStore
from poise.engine.host import Answer, Host, load_ledger
from poise.engine.network import End
from poise.engine.timeline import WALL, Killed, Process, SimulatedClock, Timeline
from poise.errors import StoreDamaged
from poise.kernel import controller as machine
from poise.kernel.controller import Controller, Settings
from poise.model.decisions import Place, Plan, Preempt, Spot, Why
from poise.model.messages import Hello
from poise.model.views import Snapshot
from poise.policy.suites import ClusterPolicy, decide_safely, policy_named
from poise.units import MILLISECOND, SECOND

RESTART_AFTER = SECOND // 10
PERSON_COMES_AFTER = 20 * SECOND
BUDGET = 1 * SECOND


class SimulatedDecider:
    """The `Decider` port: a policy that costs virtual time, and that raises, loops or lies while a fault says so."""

    def __init__(self, policy: ClusterPolicy, process: Process, random: Random) -> None:
        self._policy = policy
        self._process = process
        self._random = random
        self.fault = ""

    def decide(self, view: Snapshot, answer: Callable[[Plan], None], /) -> None:
        cost = self._random.randrange(MILLISECOND // 10, 5 * MILLISECOND)
        if self.fault in ("raise", "loop"):
            plan = msgspec.structs.replace(decide_safely(view), failed=f"POLICY_FAILED: {self.fault}")
            cost = BUDGET if self.fault == "loop" else cost
        elif self.fault == "lie":
            plan = self._lie(view)
        elif self.fault == "slow":
            plan, cost = self._policy.decide(view), 10 * SECOND
        else:
            plan = self._policy.decide(view)
        self._process.call_later(cost / SECOND, answer, plan)

    def _lie(self, view: Snapshot) -> Plan:
        """Everything everywhere at once, halves of gangs, units that are not there; on a base that was never."""
        random, why = self._random, Why(policy="liar")
        nodes = [node.name for node in view.fleet.nodes] or ["nowhere"]
        decisions: list[Place | Preempt] = []
        for candidate in view.candidates:
            for _ in range(random.randint(1, 2)):
                tasks = random.randint(1, candidate.tasks)
                spots = tuple(
                    Spot(random.choice(nodes), tuple(range(candidate.shape.gpus if random.random() < 0.7 else 1)))
                    for _ in range(tasks)
                )
                decisions.append(Place(unit=candidate.unit, spots=spots, why=why, queued=random.random() < 0.2))
        decisions.append(Place(unit="j0.none", spots=(Spot("nowhere"),), why=why))
        decisions += [
            Preempt(unit=resident.unit, cause="yield", why=why, to="j0.none")
            for residents in view.fleet.residents
            for resident in residents[:1]
        ]
        return Plan(base=random.randrange(view.revision + 10), policy="liar", decisions=tuple(decisions))

    def close(self) -> None:
        """Nothing to end."""


class _Door:
    """A channel through which the process may not come alive."""

    def __init__(self, control: "SimulatedControl", end: End) -> None:
        self._control = control
        self._end = end

    def send(self, message: Any) -> None:
        self._control.pass_door()
        self._end.send(message)

    def close(self) -> None:
        self._end.close()


class SimulatedControl:
    """The process, started again and again. `told` is given what it says to people."""

    def __init__(
        self,
        timeline: Timeline,
        disk: SimulatedDisk,
        settings: Settings,
        random: Random,
        *,
        told: Callable[[str], None],
        took: Callable[["SimulatedControl"], None],
    ) -> None:
        self.timeline = timeline
        self.disk = disk
        self.process = Process(timeline, "control plane")
        self.process.on_kill = self._gone
        self.host: Host | None = None
        self.decider: SimulatedDecider | None = None
        self.fault = ""
        self.die_in = 0
        self.boot = 1
        self.kept_off = 0
        self._settings = settings
        self._random = random
        self._told = told
        self._took = took
        self._channels: list[End] = []

    @property
    def up(self) -> bool:
        return self.host is not None and self.process.alive

    def start(self) -> None:
        """Take the log, if it is to be trusted; a person brings back the copy of one that is not."""
        if self.process.alive or self.kept_off:
            return
        self.process.start()
        was_damaged = self.disk.damaged
        try:
            store = SimulatedStore(self.disk, self.process, self._told, self.pass_door)
            ledger = load_ledger(store)
        except StoreDamaged as error:
            self._told(f"refused to start: {error}")
            self.process.alive = False
            self.timeline.call_in(PERSON_COMES_AFTER, self._restored)
            return
        if was_damaged:
            raise AssertionError("a flipped bit was not found when the log was opened")
        boottime = self.timeline.now
        wall = WALL + self.timeline.now / SECOND + self.process.wall_off
        start = ledger.resume_at(f"boot {self.boot}", boottime, wall)
        clock = SimulatedClock(self.process, start - self.timeline.now)
        self.decider = SimulatedDecider(policy_named(self._settings.policy), self.process, self._random)
        self.decider.fault = self.fault
        self.host = Host(
            Controller(ledger, self._settings),
            store,
            clock,
            self.decider,
            self.process,
            tell=self._told,
            guard=self._or_die,
        )
        self._took(self)
        self._guarded(self.host.begin, boot=f"boot {self.boot}", boottime=boottime)

    def accept(self, channel: End) -> bool:
        """As the API does: the hello names the node."""
        if not self.up:
            return False
        door, node, number = _Door(self, channel), "", self.host.accepted() if self.host is not None else 0
        self._channels.append(channel)

        def hear(message: Any) -> None:
            nonlocal node
            host = self.host
            if host is None:
                return
            if isinstance(message, Hello):
                if not host.connect(message.node.name, number, door):
                    channel.close()
                    return
                node = message.node.name
            if node:
                host.hear(node, door, message)

        def closed() -> None:
            if node and self.host is not None:
                self.host.disconnect(node, door)

        channel.on_message, channel.on_close = hear, closed
        return True

    def ask(self, make: Callable[[int], machine.Message], answer: Answer) -> bool:
        """A request that has arrived. False: nobody is there."""
        host = self.host
        if host is None or not self.up or self.process.paused_until > self.timeline.now:
            return False

        def reply(given: machine.Reply) -> None:
            self.pass_door()
            answer(given)

        host.ask(make, reply)
        return True

    def pass_door(self) -> None:
        """Something is about to be told to the outside, or written."""
        if self.die_in:
            self.die_in -= 1
            if not self.die_in:
                raise Killed

    def keep_off(self, on: bool) -> None:
        """While it is kept off nobody starts it again. Faults may overlap."""
        self.kept_off += 1 if on else -1
        if on:
            self.process.kill()
        else:
            self.start()

    @contextlib.contextmanager
    def _or_die(self) -> Iterator[None]:
        """A log that turns out to be damaged ends it, as any error that it cannot mend; the next start says so."""
        try:
            yield
        except StoreDamaged as error:
            self._told(f"ends: {error}")
            raise Killed from error

    def _guarded(self, call: Callable[..., object], **arguments: Any) -> None:
        try:
            call(**arguments)
        except Killed:
            self.process.kill()

    def _gone(self) -> None:
        self.host = None
        self.die_in = 0
        for channel in self._channels:
            channel.close()
        self._channels.clear()
        self.timeline.call_in(RESTART_AFTER, self.start)

    def _restored(self) -> None:
        self.disk.restore()
        self.start()
