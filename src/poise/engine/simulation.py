"""The fault simulator: a whole fleet in one thread, with the real control plane and node machines, and simulated users,
disk, network and faults.

Phase one: any fault may occur, and no promise may be broken. Phase two: all faults have ended, and all work must
finish. The scenario determines everything: the same scenario gives the same run, step by step, on any machine.
"""

from collections import deque
from collections.abc import Callable
from random import Random
from typing import Any, NamedTuple

import msgspec

from poise.engine.breaking import FAULTS, Undo, nothing
from poise.engine.control import SimulatedHome
from poise.engine.disk import SimulatedDisk
from poise.engine.machine import SimulatedMachine
from poise.engine.network import Network
from poise.engine.people import People
from poise.engine.promises import Judge, Violation
from poise.engine.scenario import TENANTS, Act, Incident, Scenario
from poise.engine.timeline import Timeline
from poise.errors import SpecError
from poise.kernel.controller import Settings
from poise.kernel.fitting import check_all
from poise.kernel.ledger import InvariantBroken, Ledger
from poise.kernel.replay import replay
from poise.model.events import Event, decode_event
from poise.model.jobs import Ending
from poise.model.messages import Launch
from poise.model.record import unseal
from poise.model.resources import Node
from poise.model.training import Orders
from poise.units import MILLISECOND, SECOND

LAST = 30
"""Number of latest moments that are kept to explain how a simulation ended."""

CALM = 10 * SECOND
"""L2: the time after the end of all faults within which the actual state must match the desired state."""

LOOK_EVERY = 5 * SECOND
"""Interval of the check that tenants see only their own jobs."""

MOST_STEPS = 400_000
"""Maximum number of steps; more would be a simulation that loops."""


class Moment(NamedTuple):
    """An event of the simulation; it is formatted only when it is read."""

    at: int
    what: Any

    def __str__(self) -> str:
        what = self.what
        text = _as_text(what) if isinstance(what, msgspec.Struct) and not isinstance(what, Incident) else str(what)
        return f"{self.at / SECOND:10.4f}  {text}"


def _as_text(record: msgspec.Struct) -> str:
    """Return a record as one line."""
    tag = record.__struct_config__.tag or type(record).__name__
    fields = {
        name: value
        for name in record.__struct_fields__
        if name not in ("at", "why", "job", "node") and (value := getattr(record, name)) not in ("", 0, (), None, {})
    }
    for name in ("job", "node"):
        value = getattr(record, name, None)
        if value is not None:
            fields[name] = getattr(value, "id", None) or getattr(value, "name", None) or value
    return f"{tag} " + " ".join(f"{name}={value}" for name, value in fields.items())


class Simulation:
    """One run of a scenario. `run` raises `Violation`; `moments` holds the latest events."""

    def __init__(self, scenario: Scenario, *, watch: Callable[[Moment], None] | None = None) -> None:
        self.scenario = scenario
        self.timeline = Timeline()
        self.judge = Judge()
        self.moments: deque[Moment] = deque(maxlen=LAST)
        self.met: dict[str, int] = {}
        self._opened: set[str] = set()
        self.lasting: dict[str, list[Any]] = {}
        self._given_up: set[str] = set()
        self._watch = watch
        self._seen = 0
        self._undos: dict[int, Undo] = {}
        self._undone = 0
        random = Random(f"simulation {scenario.seed}")
        self.network = Network(self.timeline, random)
        self.disk = SimulatedDisk()
        self.home = SimulatedHome(
            self.timeline,
            self.disk,
            Settings(
                policy=scenario.policy,
                history=scenario.history,
                checkpoint_every=scenario.checkpoint_every,
                seed=scenario.seed,
            ),
            random,
            told=self.tell,
            took=self._took,
        )
        self.machines = {
            node.name: SimulatedMachine(
                self.timeline, node, self.network, lambda: self.home.control, scenario.seed, self
            )
            for node in scenario.nodes
        }
        self.people = People(self)
        for machine in self.machines.values():
            self.judge.offers(machine.node)
            self.timeline.call_at(random.randrange(SECOND), machine.power_on)
        self.timeline.call_at(0, self.home.start)
        for act in scenario.acts:
            self.timeline.call_at(act.at, self.people.act, act)
        for incident in scenario.incidents:
            self.timeline.call_at(incident.at, self._befall, incident)
        self.timeline.call_at(scenario.heals, self._heal)

    def run(self, until: int | None = None) -> None:
        """Run to the end, or to an instant. Raises `Violation`."""
        scenario = self.scenario
        end = scenario.ends if until is None else min(until, scenario.ends)
        try:
            self._go(min(end, scenario.heals))
            if end > scenario.heals:
                self._finish(end)
        except (Violation, OSError):  # `watch` may raise an OSError
            raise
        except InvariantBroken as error:
            raise Violation("ledger", str(error)) from error
        except Exception as error:
            raise Violation("internal", f"{type(error).__name__}: {error}") from error
        self.judge.look_deep()
        if until is None:
            host = self.home.host
            self.catch_up()
            if host is not None and host.ledger.revision == self.judge.ledger.revision:  # nothing is in flight
                self.judge.taken_up(host.ledger)
            self._decide_again()

    def _decide_again(self) -> None:
        """Check that replaying the log with the same policy gives the same decisions."""
        events = (decode_event(unseal(record)) for record in self.disk.sound(0, self.disk.synced))
        told = replay(list(events))
        if told.difference is not None:
            found = told.difference
            raise Violation("S7", f"decided again, revision {found.revision} is {found.now}, and was {found.recorded}")

    def _go(self, until: int) -> None:
        timeline, disk = self.timeline, self.disk
        looked = timeline.now
        while timeline.step(until):
            if disk.synced != self._seen:
                self.catch_up()
            if timeline.steps > MOST_STEPS:
                raise Violation("L4", f"it goes on for ever: {MOST_STEPS} steps by {timeline.now / SECOND:.1f} s")
            if timeline.now - looked >= LOOK_EVERY:
                looked = timeline.now
                self._look()

    def _look(self) -> None:
        host = self.home.host
        if host is not None:
            self.judge.look_around(host.ledger, TENANTS)

    def _finish(self, end: int) -> None:
        """Check that all work finishes: L1 to L4."""
        timeline = self.timeline
        self._go(timeline.now + 2 * CALM)  # users restore the log and undo their changes
        apart = timeline.now
        idle = timeline.now
        while timeline.now < end:
            self._go(timeline.now + 500 * MILLISECOND)
            host = self.home.host
            if host is None:
                raise Violation("L2", "there is no control plane though nothing is wrong")
            wrong = self._apart()
            if not wrong:
                apart = timeline.now
            elif timeline.now - apart > CALM:
                raise Violation("L2", wrong)
            self.judge.has_reasons(host.ledger, host.clock.now())
            self.judge.at_rest(host.clock.now(), timeline.now - self.scenario.heals)
            self._give_up_what_never_fits(host.ledger)
            for device in sorted(self.judge.closed - self._opened):  # an operator has checked it
                self.people.act(Act(at=0, act="undrain", of=device))
            self._opened = set(self.judge.closed)
            jobs = [job for job in host.ledger.jobs.values() if not job.ended]
            units = [unit for job in jobs for unit in job.units if unit.status in ("active", "pending")]
            now = host.clock.now()
            if not any(unit.status == "pending" and unit.not_before <= now for unit in units) or any(
                unit.status == "active" for unit in units
            ):
                idle = timeline.now
            if not jobs and not self.people.open:
                self._go(timeline.now + CALM)
                wrong = self._apart()
                if wrong:
                    raise Violation("L2", f"all is over, and {wrong}")
                return
            if jobs and timeline.now - idle > CALM:
                raise Violation("L1", f"nothing runs, and {jobs[0].id} waits: {self._why(jobs[0].id)}")
        raise Violation("L4", f"not over by {end / SECOND:.0f} s: {self._left()}")

    def _give_up_what_never_fits(self, ledger: Ledger) -> None:
        """Cancel jobs that can never run, as their users would: a job accepted while no node was known may exceed every
        node, and the only suitable device may have failed under it.
        """
        for job in ledger.jobs.values():
            if job.ended or job.id in self._given_up:
                continue
            fits = not any(unit.status == "pending" and self.judge.failed_under(unit.id) for unit in job.units)
            try:
                check_all([unit.spec for unit in job.units], ledger.columns.fleet(), job.tenant, None)
            except SpecError:
                fits = False
            if not fits:
                self._given_up.add(job.id)
                key = next((key for key, known in self.people.jobs.items() if known == job.id), "")
                self.people.act(Act(at=0, act="cancel", of=key, tenant=job.tenant))

    def _apart(self) -> str:
        """Return the difference between desired and actual state; empty if there is none."""
        host = self.home.host
        for name, machine in self.machines.items():
            wanted = self.judge.held_on(name)
            there = set(machine.executor.copies)
            if machine.machine is not None:
                there |= set(machine.machine.waiting())
            there -= set(machine.executor.evidence)
            gone = wanted - there - set(machine.executor.evidence)
            if gone or there - wanted:
                return f"{name} should hold {sorted(map(str, wanted))}, and holds {sorted(map(str, there))}"
            for attempt, orders in self.judge.orders_on(name).items():
                copy = machine.executor.copies.get(attempt)
                if copy is not None and copy[1].orders != orders:
                    return f"{attempt} on {name} should know {orders}, and knows {copy[1].orders}"
        if host is not None and not host.controller.accepting:
            return "nothing is accepted"
        return ""

    def _why(self, job: str) -> str:
        host = self.home.host
        if host is None:
            return "nobody knows"
        units = [unit for unit in host.ledger.jobs[job].units if not unit.over]
        held = [reason.sentence() for unit in units for reason in host.ledger.queues.held_for(unit)]
        return f"{[(unit.id, unit.status) for unit in units][:3]} {held[:5]}"

    def _left(self) -> str:
        host = self.home.host
        jobs = [] if host is None else [job.id for job in host.ledger.jobs.values() if not job.ended]
        return f"jobs {jobs}, {self.people.open} requests; {self._why(jobs[0]) if jobs else ''}"

    # --- the watcher of the machines ---------------------------------------------------------------------------------

    def started(self, node: str, launch: Launch, cpus: tuple[int, ...]) -> None:
        self.tell(f"{node} runs {launch.attempt}")
        self.judge.started(node, launch, cpus)

    def ended(self, node: str, launch: Launch, ending: Ending) -> None:
        self.tell(f"{node} has ended {launch.attempt}: {ending.outcome} {ending.note}")
        self.judge.ended(node, launch, ending)

    def ordered(self, node: str, launch: Launch, orders: Orders) -> None:
        self.tell(f"{node} tells {launch.attempt}: {orders.rank} of {orders.world} in generation {orders.generation}")
        self.judge.ordered(launch, orders)

    def offers(self, node: Node) -> None:
        self.judge.offers(node)

    def tell(self, what: Any) -> None:
        moment = Moment(self.timeline.now, what)
        self.moments.append(moment)
        if self._watch is not None:
            self._watch(moment)

    def catch_up(self) -> None:
        """Pass new durable events to the judge."""
        disk, start = self.disk, self._seen
        if disk.synced <= start:
            return
        events: list[Event] = [decode_event(unseal(record)) for record in disk.sound(start, disk.synced)]
        self._seen = disk.synced
        for event in events:
            self.tell(event)
        self.judge.durable(events)

    def _took(self, ledger: Ledger) -> None:
        """Check the ledger of a new control plane. Opening the log made all of it durable, so the judge must have the
        same state.
        """
        self.catch_up()
        self.judge.taken_up(ledger)

    # --- faults ------------------------------------------------------------------------------------------------------

    def _befall(self, incident: Incident) -> None:
        begin = FAULTS.get(incident.fault)
        if begin is None:
            raise AssertionError(f"there is no fault `{incident.fault}`")
        undo = begin(self, incident, Random(incident.draw))
        if undo is None:
            return
        self.tell(incident)
        self.met[incident.fault] = self.met.get(incident.fault, 0) + 1
        if undo is nothing:
            return
        number = self._undone = self._undone + 1
        self._undos[number] = undo
        self.timeline.call_at(min(incident.at + incident.lasts, self.scenario.heals), self._end, number, incident)

    def _end(self, number: int, incident: Incident) -> None:
        undo = self._undos.pop(number, None)
        if undo is not None:
            self.tell(f"over: {incident}")
            undo()

    def _heal(self) -> None:
        """End all faults and power all machines on."""
        for number in list(self._undos):
            self._undos.pop(number)()
        self.tell("all faults have ended")
        if self.disk.damaged and self.home.host is None:
            self.disk.restore()
        for machine in self.machines.values():
            machine.power_on()
