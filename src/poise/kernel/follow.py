"""Attempts of tasks in a log: the place, the start and the end of each.

    class Ends(Following):
        def on_end(self, attempt: Seen) -> None:
            print(attempt.task, attempt.outcome)

The ledger itself reads the log, so the attempts cannot differ from it. Attempts that hold resources in the first state
are followed from there. Only open attempts are stored; a subclass records what it needs of the others.
"""

from collections.abc import Iterable, Iterator

import msgspec

from poise.kernel.ledger import CAUSES, Ledger, TaskState, UnitState
from poise.model.decisions import Spot, Why
from poise.model.events import (
    DeadlinesMissed,
    Event,
    Finished,
    JobCancelled,
    JobsCancelled,
    Placed,
    Preempted,
    Resized,
    Resumed,
    Started,
    Suspended,
    UnitsCancelled,
)
from poise.model.resources import WHOLE, Shape


class Seen(msgspec.Struct, gc=False):
    """An attempt, with instants of the log (0: not yet). `ready` is when its unit could be placed, `asked` when it was
    asked to end. `first` marks one attempt of each placement of a unit; `queued`: placed behind similar work. `counts`
    is the useful part of its run, once it is over; `cpu` and `device` are as in `Ending`. `power` in milliwatts and
    `price` in micro-dollars per hour are those of its part of its devices; `model` is that of the first device. `away`
    has the times in which it was suspended, and held only its memory (an end of 0: it still is).
    """

    task: str
    unit: str
    job: str
    tenant: str
    kind: str
    priority: str
    artifact: str
    epoch: int
    first: bool
    queued: bool
    node: str
    devices: tuple[int, ...]
    shape: Shape
    ready: int
    placed: int
    why: Why | None
    started: int = 0
    asked: int = 0
    ended: int = 0
    outcome: str = ""
    note: str = ""
    cpu: int = 0
    device: int = 0
    counts: int = 0
    power: int = 0
    price: int = 0
    user: str = ""
    project: str = ""
    model: str = ""
    away: tuple[tuple[int, int], ...] = ()

    def holding(self, now: int) -> Iterator[tuple[int, int]]:
        """Yield the times, until `now` at most, in which it held its resources: from its start if it was queued, else
        from its placement.
        """
        begin, end = self.started if self.queued else self.placed, min(self.ended or now, now)
        for gone, back in self.away:
            yield begin, min(gone, end)
            begin = back or end
        yield begin, end


class Following:
    """Follows a log from the state in `ledger`, which it changes."""

    def __init__(self, ledger: Ledger) -> None:
        self.ledger = ledger
        self.open: dict[str, Seen] = {}
        """Attempts that are not over, by task."""
        for unit in ledger.active.values():
            for index, task in enumerate(unit.tasks):
                if task.active:
                    self._resume(unit, index, task)

    def add(self, event: Event) -> None:
        """Read the next event of the log."""
        ready = 0
        if isinstance(event, Finished):
            self._finish(event)
        elif isinstance(event, Placed):
            self._give_up(event)
            unit = self.ledger.jobs.unit(event.unit)
            ready = max(unit.ready, unit.not_before) if unit is not None else event.at  # without the back-off
        self.ledger.apply(event)
        match event:
            case Placed():
                self._place(event, ready)
            case Started() if event.task in self.open:
                attempt = self.open[event.task]
                attempt.started = attempt.started or event.at
                self.on_start(attempt)
            case Suspended():
                for attempt in self._of_units(event.unit):
                    attempt.away += ((event.at, 0),)
            case Resumed():
                for attempt in self._of_units(event.unit):
                    self._come_back(attempt, event.at)
            case Preempted():
                self._ask(self._of_units(event.unit), event.at)
            case Resized():
                self._resize(event)
            case JobsCancelled():
                self._ask(self._stopping(*event.jobs), event.at)
            case JobCancelled() | UnitsCancelled() | DeadlinesMissed():
                self._ask(self._stopping(event.job), event.at)

    # --- for subclasses ----------------------------------------------------------------------------------------------

    def on_begin(self, attempt: Seen) -> None:
        """Called when an attempt was placed."""

    def on_start(self, attempt: Seen) -> None:
        """Called when an attempt has started."""

    def on_ask(self, attempt: Seen) -> None:
        """Called when an attempt is asked to save its state and end."""

    def on_end(self, attempt: Seen) -> None:
        """Called when an attempt is over, and no longer open."""

    # --- what happens ------------------------------------------------------------------------------------------------

    def _resume(self, unit: UnitState, index: int, task: TaskState) -> None:
        """Follow an attempt that holds resources in the first state."""
        devices = unit.suspended.devices if unit.suspended is not None else task.devices
        attempt = self._seen(unit, index, Spot(task.node, devices), unit.epoch_of(index), unit.why)
        attempt.ready, attempt.placed, attempt.started = unit.ready, unit.placed, task.started
        attempt.first = False
        if unit.stopping or task.leaving:
            attempt.asked = self.ledger.now
        if unit.suspended is not None:
            attempt.away = ((unit.suspended.at, 0),)
        self.open[attempt.task] = attempt
        self.on_begin(attempt)

    def _place(self, event: Placed, ready: int) -> None:
        unit = self.ledger.jobs.unit(event.unit)
        if unit is None:
            return
        for index, spot in enumerate(event.spots):
            self._begin(unit, index, spot, event, ready, first=index == 0)

    def _resize(self, event: Resized) -> None:
        unit = self.ledger.jobs.unit(event.unit)
        if unit is None:
            return
        names = {f"{unit.job}.{unit.spec.tasks[index].name}" for index in event.leaves}
        self._ask((attempt for task, attempt in self.open.items() if task in names), event.at)
        for index, spot in event.joins:
            self._begin(unit, index, spot, event, event.at)

    def _begin(
        self,
        unit: UnitState,
        index: int,
        spot: Spot,
        event: Placed | Resized,
        ready: int,
        *,
        first: bool = False,
    ) -> None:
        attempt = self._seen(unit, index, spot, event.epoch, event.why)
        attempt.ready, attempt.placed, attempt.first = ready, event.at, first
        attempt.queued = isinstance(event, Placed) and event.queued
        self.open[attempt.task] = attempt
        self.on_begin(attempt)

    def _seen(self, unit: UnitState, index: int, spot: Spot, epoch: int, why: Why | None) -> Seen:
        job = self.ledger.jobs[unit.job]
        state = self.ledger.nodes.get(spot.node) if spot.devices else None
        held = [one for one in state.node.devices if one.index in spot.devices] if state is not None else []
        shape = unit.shape_of(unit.variant)
        return Seen(
            task=f"{unit.job}.{unit.spec.tasks[index].name}",
            unit=unit.id,
            job=unit.job,
            tenant=job.tenant,
            kind=unit.spec.kind,
            priority=unit.spec.priority.name.lower(),
            artifact=unit.spec.artifact_of(unit.variant),
            epoch=epoch,
            first=False,
            queued=unit.queued,
            node=spot.node,
            devices=spot.devices,
            shape=shape,
            ready=0,
            placed=0,
            why=why,
            power=sum(device.power for device in held) * shape.share // WHOLE,
            price=sum(device.price for device in held) * shape.share // WHOLE,
            user=job.user,
            project=job.project,
            model=(held[0].model or held[0].kind) if held else "",
        )

    def _give_up(self, event: Placed) -> None:
        """End the attempts on a lost node of a unit that is placed again."""
        unit = self.ledger.jobs.unit(event.unit)
        for task in unit.spec.tasks if unit is not None else ():
            attempt = self.open.pop(f"{event.unit.partition('.')[0]}.{task.name}", None)
            if attempt is not None:
                attempt.ended, attempt.outcome = event.at, "lost"
                attempt.note = f"node {attempt.node} was lost"
                self.on_end(attempt)

    def _come_back(self, attempt: Seen, at: int) -> None:
        """End the time in which an attempt is suspended, if it is."""
        if attempt.away and not attempt.away[-1][1]:
            attempt.away = (*attempt.away[:-1], (attempt.away[-1][0], at))

    def _ask(self, attempts: Iterable[Seen], at: int) -> None:
        for attempt in list(attempts):
            if not attempt.asked:
                attempt.asked = at
                self.on_ask(attempt)

    def _of_units(self, *names: str) -> Iterator[Seen]:
        for name in names:
            unit = self.ledger.jobs.unit(name)
            for task in unit.spec.tasks if unit is not None else ():
                attempt = self.open.get(f"{name.partition('.')[0]}.{task.name}")
                if attempt is not None:
                    yield attempt

    def _stopping(self, *jobs: str) -> Iterator[Seen]:
        """Yield open attempts of units that the ledger is stopping."""
        for name in jobs:
            job = self.ledger.jobs.get(name)
            yield from self._of_units(*(unit.id for unit in (job.units if job is not None else ()) if unit.stopping))

    def _finish(self, event: Finished) -> None:
        """End an attempt before the ledger applies the event, because the ledger drops the cause of a stop."""
        attempt, found, ending = self.open.pop(event.task, None), self.ledger.jobs.task(event.task), event.ending
        if attempt is None or found is None:
            return
        unit, task = found
        attempt.ended, attempt.outcome, attempt.note = event.at, ending.outcome, ending.note
        self._come_back(attempt, event.at)
        attempt.cpu, attempt.device = ending.cpu, ending.device
        if ending.outcome != "returned":
            attempt.started = attempt.started or max(attempt.placed, event.at - ending.run)
        if ending.outcome == "done" or task.leaving:
            attempt.counts = event.at - attempt.started
        elif ending.outcome == "stopped" and unit.stopping in CAUSES and unit.spec.checkpoint:
            attempt.counts = ending.run - ending.run % unit.spec.checkpoint
        self.on_end(attempt)
