"""Symptoms, recoveries and repairs, read from the events of the log.

    reader = Symptoms()
    for revision, event in log:
        reading = reader.read(revision, event)

Each event is read once. Facts that an event omits (the rack of a node, the program of a task, the node of an attempt)
come from earlier events. They are stored in a state of bounded size that can be saved.
"""

from collections.abc import Iterable, Iterator

import msgspec

from poise.model.device_codes import known
from poise.model.events import (
    Began,
    DeadlinesMissed,
    DeviceCordoned,
    DeviceDrained,
    Event,
    Finished,
    IncidentTold,
    JobSubmitted,
    Lagging,
    NodeDrained,
    NodeForgotten,
    NodeJoined,
    NodeLost,
    NodeSuspected,
    NodeTrusted,
    NodeUnfit,
    Noticed,
    Placed,
    PolicyFailed,
    Preempted,
    Resized,
    StopAsked,
    Straggling,
)
from poise.model.incidents import Element, ElementKind, Symptom, SymptomKind
from poise.model.jobs import Job, Outcome
from poise.model.resources import Node
from poise.units import format_duration

MOST_JOBS = 10_000
"""Maximum number of jobs whose programs and users are stored; the oldest are removed first."""

OF_OUTCOME: dict[Outcome, SymptomKind] = {
    "failed": "attempt-failed",
    "signal": "attempt-failed",
    "killed": "attempt-killed",
    "oom": "out-of-memory",
    "hung": "hung",
    "lost": "attempt-lost",
    "unstartable": "unstartable",
}
"""Outcomes that are symptoms. Reaching a time limit is none, because the user has set the limit."""

CONTROL, STORE, CLOCK, NETWORK = Element("control plane"), Element("store"), Element("clock"), Element("network")


class Healthy(msgspec.Struct, frozen=True, array_like=True):
    """A successful attempt: evidence that these elements are healthy."""

    at: int
    elements: tuple[Element, ...]


class Ended(msgspec.Struct, frozen=True, array_like=True):
    """Symptoms of a subject have ended: those of one `kind`, or all."""

    at: int
    revision: int
    subject: str
    text: str
    kind: str = ""


class Acted(msgspec.Struct, frozen=True, array_like=True):
    """Poise or an operator took an action on `subject`."""

    at: int
    revision: int
    subject: str
    text: str


Reading = Symptom | Healthy | Ended | Acted | IncidentTold


class _Job(msgspec.Struct, array_like=True):
    """A job. `units` has, by unit, its program and the names of its tasks; `left` counts unfinished tasks. `due` has
    the deadlines not missed yet, by unit.
    """

    tenant: str
    user: str
    units: dict[str, tuple[str, tuple[str, ...]]]
    left: int
    due: dict[str, int] = {}


class _Place(msgspec.Struct, frozen=True, array_like=True):
    node: str
    devices: tuple[int, ...]
    unit: str


class Facts(msgspec.Struct):
    """The state between two events."""

    nodes: dict[str, tuple[str, str, int]] = {}
    """Zone, rack and number of devices, by node."""
    absent: dict[str, int] = {}
    """Lost nodes, with the instant."""
    drained: list[str] = []
    jobs: dict[str, _Job] = {}
    places: dict[str, _Place] = {}
    """Place of each current attempt, by task."""
    hit: dict[str, tuple[Element, ...]] = {}
    """Elements on which an attempt of a job was lost or failed, by job."""
    stop_asked: bool = True
    """Whether the control plane was stopped as requested, or has not begun yet."""


class Symptoms:
    """Reads events; `facts` is its state."""

    def __init__(self, facts: Facts | None = None) -> None:
        self.facts = facts if facts is not None else Facts()

    def read(self, revision: int, event: Event) -> Iterator[Reading]:
        """Yield the readings that follow from an event."""
        at, facts = event.at, self.facts
        match event:
            case JobSubmitted():
                self._submitted(at, event.job)
            case Placed():
                yield from self._placed(revision, event)
            case Resized():
                self._resized(event)
            case Finished():
                yield from self._finished(revision, event)
            case NodeJoined():
                node = event.node
                was_absent = facts.absent.pop(node.name, None) is not None
                facts.nodes[node.name] = (node.zone, node.rack, len(node.devices))
                yield Ended(at, revision, node.name, f"node {node.name} is {'back' if was_absent else 'there'}")
            case NodeTrusted():
                yield Ended(at, revision, event.name, f"node {event.name} answers again", "node-silent")
            case NodeForgotten():
                facts.nodes.pop(event.name, None)
                facts.absent.pop(event.name, None)
                yield Ended(at, revision, event.name, f"node {event.name} left the fleet")
            case NodeSuspected():
                text = f"node {event.name} is silent"
                yield Symptom(at, revision, "node-silent", event.name, text, (*self._above(event.name), CONTROL))
            case NodeLost():
                facts.absent[event.name] = at
                if not event.said and event.name not in facts.drained:
                    text = f"node {event.name} is lost"
                    yield Symptom(at, revision, "node-lost", event.name, text, self._above(event.name))
            case NodeUnfit():
                if event.why:
                    text = f"node {event.name} can start nothing: {event.why}"
                    yield Symptom(at, revision, "node-unfit", event.name, text, self._above(event.name))
                else:
                    yield Ended(at, revision, event.name, f"node {event.name} can start work again", "node-unfit")
            case NodeDrained():
                facts.drained = [name for name in facts.drained if name != event.name]
                facts.drained += [event.name] if event.on else []
                yield Acted(at, revision, event.name, f"node {event.name} was {'drained' if event.on else 'opened'}")
            case DeviceCordoned():
                yield from self._device_failed(revision, event)
            case DeviceDrained():
                name = f"{event.node}:{event.device}"
                if not event.on:
                    yield Ended(at, revision, name, f"device {name} was opened", "device-failed")
            case Straggling() | Lagging():
                yield from self._slow(revision, event)
            case Noticed():
                yield from self._noticed(revision, event)
            case DeadlinesMissed():
                yield self._missed(at, revision, event.job, f"deadlines of {event.job} cannot be met")
            case PolicyFailed():
                text = f"policy {event.policy} failed: {event.error}"
                yield Symptom(at, revision, "policy-failed", event.policy, text, (Element("policy", event.policy),))
            case StopAsked():
                facts.stop_asked = True
            case Began():
                if not facts.stop_asked and facts.places:  # an idle control plane exits by itself
                    text = "the control plane was started again without having been stopped"
                    yield Symptom(at, revision, "control-restarted", f"term {event.term}", text, (CONTROL,))
                facts.stop_asked = False
            case Preempted() if event.cause == "move":
                yield Acted(at, revision, event.unit, f"{event.unit} was asked to move")
            case IncidentTold():
                yield event

    # --- work --------------------------------------------------------------------------------------------------------

    def _submitted(self, at: int, job: Job) -> None:
        units = {unit.name: (unit.kind, tuple(task.name for task in unit.tasks)) for unit in job.units}
        left = sum(len(tasks) for _, tasks in units.values())
        due = {unit.name: at + unit.deadline for unit in job.units if unit.deadline}
        self.facts.jobs[job.id] = _Job(job.tenant, job.user, units, left, due)
        while len(self.facts.jobs) > MOST_JOBS:
            oldest = next(iter(self.facts.jobs))
            del self.facts.jobs[oldest]
            self.facts.hit.pop(oldest, None)

    def _placed(self, revision: int, event: Placed) -> Iterator[Reading]:
        job, _, name = event.unit.partition(".")
        known = self.facts.jobs.get(job)
        tasks = known.units.get(name, ("", ()))[1] if known is not None else ()
        for task, spot in zip(tasks, event.spots, strict=False):
            name = f"{job}.{task}"
            before = self.facts.places.get(name)
            if before is not None and before.node in self.facts.absent:  # lost with its node, without a record
                self.facts.hit[job] = self._at(before)
                lost = f"{name} was lost with {before.node}"
                yield Symptom(event.at, revision, "attempt-lost", name, lost, self._at(before))
            self.facts.places[name] = _Place(spot.node, spot.devices, event.unit)
        if event.epoch > 1:
            where = ", ".join(dict.fromkeys(spot.node for spot in event.spots))
            text = f"{event.unit} was placed again, on {where}"
            yield Acted(event.at, revision, event.unit, text)

    def _resized(self, event: Resized) -> None:
        job, _, name = event.unit.partition(".")
        known = self.facts.jobs.get(job)
        tasks = known.units.get(name, ("", ()))[1] if known is not None else ()
        for number, spot in event.joins:
            if number < len(tasks):
                self.facts.places[f"{job}.{tasks[number]}"] = _Place(spot.node, spot.devices, event.unit)

    def _finished(self, revision: int, event: Finished) -> Iterator[Reading]:
        outcome = event.ending.outcome
        place = self.facts.places.pop(event.task, None)
        job = event.task.partition(".")[0]
        known = self.facts.jobs.get(job)
        if outcome == "done":
            yield Healthy(event.at, (*self._at(place), *self._of(job, place)))
            if known is not None:
                unit = place.unit.partition(".")[2] if place is not None else ""
                if (due := known.due.get(unit)) is not None and event.at > due:
                    del known.due[unit]
                    late = format_duration(event.at - due)
                    yield self._missed(event.at, revision, job, f"{event.task} ended {late} after its deadline")
                known.left -= 1
                if not known.left:
                    del self.facts.jobs[job]
                    self.facts.hit.pop(job, None)
            return
        kind = OF_OUTCOME.get(outcome)
        if kind is None:
            return
        where = self._at(place)
        suspects = where if kind == "attempt-lost" else (*where, *self._of(job, place))
        if known is not None:
            self.facts.hit[job] = where
        on = f" on {place.node}" if place is not None else ""
        note = f": {event.ending.note}" if event.ending.note else ""
        code = f" with exit code {event.ending.code}" if outcome == "failed" else ""
        text = f"{event.task}{on} ended {outcome}{code}{note}"
        yield Symptom(event.at, revision, kind, event.task, text, suspects or (Element("job", job),))

    def _missed(self, at: int, revision: int, job: str, text: str) -> Symptom:
        suspects = (Element("job", job), *self.facts.hit.get(job, ()), STORE)
        return Symptom(at, revision, "deadline-missed", job, text, suspects)

    def _slow(self, revision: int, event: Straggling | Lagging) -> Iterator[Reading]:
        place = self.facts.places.get(event.task) or _Place(event.node, (), event.task)
        if isinstance(event, Straggling):
            took, usual = event.ran, event.expected
            text = f"runs for {format_duration(took)}, its like took {format_duration(usual)}"
        else:
            took, usual = event.computes, event.usual
            text = f"computes for {format_duration(took)} a step, the others {format_duration(usual)}"
        told = f"{event.task} on {event.node} {text}"
        yield Symptom(event.at, revision, "straggling", event.task, told, (*self._at(place),))

    def _of(self, job: str, place: _Place | None) -> tuple[Element, ...]:
        """Return the job, its program and its user."""
        known = self.facts.jobs.get(job)
        if known is None:
            return (Element("job", job),)
        unit = place.unit.partition(".")[2] if place is not None else next(iter(known.units))
        program = known.units.get(unit, ("", ()))[0]
        user = f"{known.tenant}/{known.user}" if known.user else known.tenant
        return (
            Element("job", job),
            *((Element("program", program),) if program else ()),
            Element("user", user),
        )

    # --- the fleet ---------------------------------------------------------------------------------------------------

    def _at(self, place: _Place | None) -> tuple[Element, ...]:
        """Return the devices of an attempt, and all elements above them."""
        if place is None:
            return ()
        devices = tuple(Element("device", f"{place.node}:{index}") for index in place.devices)
        return (*devices, *self._above(place.node))

    def _above(self, node: str) -> tuple[Element, ...]:
        """Return the node, its rack, its zone and the network."""
        zone, rack, _ = self.facts.nodes.get(node, ("", "", 0))
        named = f"{zone}/{rack}" if zone else rack
        return (
            Element("node", node),
            *((Element("rack", named),) if rack else ()),
            *((Element("zone", zone),) if zone else ()),
            NETWORK,
        )

    def _device_failed(self, revision: int, event: DeviceCordoned) -> Iterator[Reading]:
        name = f"{event.node}:{event.device}"
        code = known(event.code)
        meaning = event.text or (code.meaning if code is not None else "")
        said = ", ".join(part for part in (event.code, meaning) if part)
        suspects = (Element("device", name), *self._above(event.node))
        text = f"device {name} failed: {said}"
        yield Symptom(event.at, revision, "device-failed", name, text, suspects)
        yield Acted(event.at, revision, name, f"device {name} was closed to new work")

    def _noticed(self, revision: int, event: Noticed) -> Iterator[Reading]:
        if event.over:
            yield Ended(event.at, revision, event.subject, event.text, event.kind)
            return
        suspects: tuple[Element, ...]
        match event.kind:
            case "slow-store" | "store-full":
                suspects = (STORE,)
            case "clock-step":
                suspects = (CLOCK,)
            case "objective-missed":
                suspects = (Element("service", event.subject), *self._replicas(event.jobs))
            case "budget-reached":
                suspects = (Element("budget", event.subject),)
            case "rule-fired" if event.service:
                suspects = (Element("service", event.subject),)
            case "rule-fired" if not event.subject:
                suspects = (CONTROL,)
            case "member-differs":
                suspects = self._at(self.facts.places.get(event.subject))
            case "new-template":
                place = self.facts.places.get(event.subject)
                suspects = (*self._at(place), *self._of(event.subject.partition(".")[0], place))
            case _:
                suspects = self._above(event.subject)
        if suspects:
            yield Symptom(event.at, revision, event.kind, event.subject, event.text, suspects, event.targets)

    def _replicas(self, jobs: Iterable[str]) -> Iterator[Element]:
        """Yield the elements on which the replicas of a service run or have failed, and their program."""
        found: dict[Element, None] = {}
        for job in jobs:
            known = self.facts.jobs.get(job)
            for program, tasks in known.units.values() if known is not None else ():
                for task in tasks:
                    found |= dict.fromkeys(self._at(self.facts.places.get(f"{job}.{task}")))
                found |= {Element("program", program): None} if program else {}
            found |= dict.fromkeys(self.facts.hit.get(job, ()))
        yield from found

    def under(self, element: Element) -> list[str]:
        """Return the nodes below an element that are not lost. All nodes are below the network and the control
        plane.
        """
        facts = self.facts
        match element.kind:
            case "network" | "control plane":
                found = list(facts.nodes)
            case "zone":
                found = [name for name, of in facts.nodes.items() if of[0] == element.name]
            case "rack":
                zone, _, rack = element.name.rpartition("/")
                found = [name for name, of in facts.nodes.items() if of[:2] == (zone, rack)]
            case "node":
                found = [element.name] if element.name in facts.nodes else []
            case _:
                found = []
        return [name for name in found if name not in facts.absent]

    def count(self) -> dict[ElementKind, int]:
        """Return the number of elements of each kind."""
        facts = self.facts
        jobs = facts.jobs.values()
        return {
            "node": len(facts.nodes),
            "device": sum(of[2] for of in facts.nodes.values()),
            "rack": len({of[:2] for of in facts.nodes.values()}),
            "zone": len({of[0] for of in facts.nodes.values()}),
            "job": len(facts.jobs),
            "program": len({program for job in jobs for program, _ in job.units.values()}),
            "budget": 1,
            "user": len({(job.tenant, job.user) for job in jobs}),
        }

    def devices_of(self, node: str) -> int:
        """Return the number of devices of a node."""
        return self.facts.nodes.get(node, ("", "", 0))[2]


def seen(nodes: Iterable[Node]) -> Facts:
    """Return the facts of a fleet whose nodes joined before the log begins."""
    return Facts(nodes={node.name: (node.zone, node.rack, len(node.devices)) for node in nodes})
