"""A home and its control planes: the real host and controller, on a simulated disk and simulated ports.

The holder of the lock is restarted when it ends, as by the supervisor; a control plane that has lost the lock must end.
A process may die wherever it uses a port: `die_in` counts down these uses, so that it can die between any two steps of
a commit.
"""

import contextlib
from collections.abc import Callable, Iterator
from random import Random
from typing import Any, NoReturn

import msgspec

from poise.engine.disk import SimulatedDisk, SimulatedStore
from poise.engine.host import Answer, Host, load_ledger
from poise.engine.network import End
from poise.engine.timeline import WALL, Killed, Process, SimulatedClock, Timeline
from poise.errors import Conflict, PoiseError, StoreDamaged
from poise.kernel import messages
from poise.kernel.controller import Controller, Settings, with_latest_policy
from poise.kernel.ledger import Ledger
from poise.model.decisions import Place, Plan, Preempt, Resize, Spot, Why
from poise.model.messages import Hello
from poise.model.views import Snapshot
from poise.policy.suites import ClusterPolicy, decide_safely, policy_named
from poise.ports import NodePort
from poise.units import MILLISECOND, SECOND

RESTART_AFTER = SECOND // 10
PERSON_COMES_AFTER = 20 * SECOND
BUDGET = 1 * SECOND


class SimulatedDecider:
    """The `Decider` port: a policy that takes virtual time, and that raises, loops or returns invalid plans during such
    a fault.
    """

    def __init__(self, policy: Callable[[], ClusterPolicy], process: Process, home: "SimulatedHome") -> None:
        self._policy = policy
        self._process = process
        self._home = home

    def decide(self, view: Snapshot, answer: Callable[[Plan], None], /) -> None:
        cost, fault = self._home.random.randrange(MILLISECOND // 10, 5 * MILLISECOND), self._home.policy_fault
        if fault in ("raise", "loop"):
            plan = msgspec.structs.replace(decide_safely(view), failed=f"POLICY_FAILED: {fault}")
            cost = BUDGET if fault == "loop" else cost
        elif fault == "lie":
            plan = self._lie(view)
        elif fault == "slow":
            plan, cost = self._policy().decide(view), 10 * SECOND
        else:
            plan = self._policy().decide(view)
        self._process.call_later(cost / SECOND, answer, plan)

    def _lie(self, view: Snapshot) -> Plan:
        """Return an invalid plan: duplicates, partial gangs, unknown units, and a revision that never existed."""
        random, why = self._home.random, Why(policy="liar")
        nodes = [node.name for node in view.fleet.nodes] or ["nowhere"]
        decisions: list[Place | Preempt | Resize] = []
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
        decisions += [
            Resize(
                unit=resident.unit,
                cause="grow",
                why=why,
                leaves=tuple(random.sample(range(resident.most), random.randint(0, resident.most))),
                joins=tuple(Spot(random.choice(nodes), resident.devices) for _ in range(random.randint(0, 2))),
            )
            for resident in view.elastic
            if resident.resizes
        ]
        return Plan(base=random.randrange(view.revision + 10), policy="liar", decisions=tuple(decisions))

    def close(self) -> None:
        """Do nothing: there is no process to stop."""


class _Door:
    """A channel at which the process may die."""

    def __init__(self, control: "SimulatedControl", end: End) -> None:
        self._control = control
        self._end = end

    def send(self, message: Any) -> None:
        self._control.pass_door()
        self._end.send(message)

    def close(self) -> None:
        self._end.close()


class SimulatedControl:
    """One control plane, from its start to its end."""

    def __init__(self, home: "SimulatedHome") -> None:
        self.process = Process(home.timeline, "control plane", wall_off=home.wall_off)
        self.process.on_kill = self._gone
        self.host: Host | None = None
        self.die_in = 0
        self._home = home
        self._channels: list[End] = []

    def _policy(self) -> ClusterPolicy:
        """Return the current policy."""
        if self.host is None:
            raise AssertionError("nobody asks for a plan before there is a host")
        return policy_named(self.host.ledger.leader.policy)

    def start(self) -> None:
        """Open the log and start. Raises StoreDamaged where the log is damaged."""
        home = self._home
        was_damaged = home.disk.damaged
        store = SimulatedStore(home.disk, self.process, home.told, self.pass_door)
        ledger = load_ledger(store)
        if was_damaged:
            raise AssertionError("a flipped bit was not found when the log was opened")
        boot, boottime = f"boot {home.boot}", home.timeline.now
        start = ledger.leader.resume_at(boot, boottime, WALL + boottime / SECOND + home.wall_off)
        self.process.start()
        self.host = Host(
            Controller(ledger, with_latest_policy(home.settings, ledger.leader.began)),
            store,
            SimulatedClock(self.process, start - boottime),
            SimulatedDecider(self._policy, self.process, home),
            self.process,
            tell=home.told,
            holds=lambda: home.control is self,
            leave=self._leave,
            guard=self._or_die,
        )
        home.took(ledger)
        self.host.begin(boot=boot, boottime=boottime)

    def accept(self, channel: End) -> bool:
        """Accept a node's connection as the API does: its hello names the node."""
        if self.host is None:
            return False
        port: NodePort = self.host
        door, node, number = _Door(self, channel), "", port.accepted()
        self._channels.append(channel)

        def hear(message: Any) -> None:
            nonlocal node
            if isinstance(message, Hello):
                try:
                    counts = port.connect(message.node, number, door)
                except Conflict:
                    counts = False
                if not counts:
                    channel.close()
                    return
                node = message.node.name
            if node:
                port.hear(node, door, message)

        def closed() -> None:
            if node:
                port.disconnect(node, door)

        channel.on_message, channel.on_close = hear, closed
        return True

    def ask(self, make: Callable[[int], messages.Message], answer: Answer) -> bool:
        """Post a request. Return False if no control plane answers."""
        if self.host is None or self.process.paused_until > self.process.timeline.now:
            return False

        def reply(given: messages.Reply) -> None:
            self.pass_door()
            answer(given)

        self.host.ask(make, reply)
        return True

    def pass_door(self) -> None:
        """Count a use of a port, and die there if the count ends. Called before each message to the outside and each
        write.
        """
        if self.die_in:
            self.die_in -= 1
            if not self.die_in:
                raise Killed

    def _leave(self, error: PoiseError) -> NoReturn:
        self._home.told(f"leaves: {error}")
        raise Killed

    @contextlib.contextmanager
    def _or_die(self) -> Iterator[None]:
        """End the process if its log turns out to be damaged, as after any error that it cannot repair; the next start
        reports it.
        """
        try:
            yield
        except StoreDamaged as error:
            self._home.told(f"ends: {error}")
            raise Killed from error

    def _gone(self) -> None:
        self.host = None
        for channel in self._channels:
            channel.close()
        self._channels.clear()
        self._home.ended(self)


class SimulatedHome:
    """State that outlives every control plane: the log's disk, the lock, the clock of the machine, and the supervisor.

    `control` took the lock last, and `living` are all that live; `told` receives their messages to people, `took` the
    ledger with which a control plane opens the log.
    """

    def __init__(
        self,
        timeline: Timeline,
        disk: SimulatedDisk,
        settings: Settings,
        random: Random,
        *,
        told: Callable[[str], None],
        took: Callable[[Ledger], None],
    ) -> None:
        self.timeline = timeline
        self.disk = disk
        self.settings = settings
        self.random = random
        self.told = told
        self.took = took
        self.boot = 1
        self.wall_off = 0.0
        self.policy_fault = ""
        self.control = SimulatedControl(self)
        self.living: list[SimulatedControl] = []
        self._kept_off = 0

    @property
    def host(self) -> Host | None:
        """The host of the control plane that clients and machines reach here."""
        return self.control.host

    def start(self) -> None:
        """Start a control plane, as a supervisor would, where none holds the lock."""
        if self.host is None and not self._kept_off:
            self._start()

    def lose_lock(self) -> None:
        """Remove the lock's file: another control plane takes the lock while the one that held it lives."""
        self._start()

    def _start(self) -> None:
        """Start a control plane. Where the log is damaged, a person restores its copy later."""
        self.control = SimulatedControl(self)
        self.living.append(self.control)
        try:
            self.control.start()
        except StoreDamaged as error:
            self.told(f"refused to start: {error}")
            self.living.remove(self.control)
            self.timeline.call_in(PERSON_COMES_AFTER, self._restored)

    def keep_off(self, on: bool) -> None:
        """Prevent starts while `on`, and end all control planes. Such faults may overlap."""
        self._kept_off += 1 if on else -1
        if on:
            self.kill()
        else:
            self.start()

    def kill(self) -> None:
        """Kill all control planes of this home."""
        for control in list(self.living):
            control.process.kill()

    def set_clock(self, by: float) -> None:
        """Move the wall clock of the machine by this many seconds."""
        self.wall_off += by
        for control in self.living:
            control.process.wall_off = self.wall_off

    def ended(self, control: SimulatedControl) -> None:
        self.living.remove(control)
        self.timeline.call_in(RESTART_AFTER, self.start)

    def _restored(self) -> None:
        self.disk.restore()
        self.start()
