"""Reads Poise's own log as a trace: a state directory, its log.db, or the output of `poise replay --export`.

Jobs arrive again as they were submitted, with their units and the fields that their users set, also later with `poise
set`. The run time of a unit is that of its last attempt, on the device model of that attempt. If a class has run on
several models, the medians give its speed on each; on other models, the throughputs of the fleet do. A job that depends
on others arrives when these had ended, and a job on hold when its user released it. The trace leaves out and counts
jobs that had not ended with the log, were cancelled earlier, or were submitted before the log begins, and workers that
serve calls.
"""

from collections.abc import Mapping
from pathlib import Path
from statistics import median
from typing import NamedTuple

import msgspec

from poise.drivers.logfile import open_log
from poise.model.changing import changed
from poise.model.events import (
    Event,
    Finished,
    JobCancelled,
    JobChanged,
    JobHeld,
    JobsCancelled,
    JobSubmitted,
    NodeJoined,
    Placed,
    decode_event,
)
from poise.model.fleet import model_under
from poise.model.jobs import Job, Outcome, Unit
from poise.model.resources import Node
from poise.model.tenants import RULE, declared_class
from poise.model.workload import Arrival, Steady, Truth, Workload
from poise.units import SECOND
from poise_lab.traces.making import Maker
from poise_lab.traces.options import Options
from poise_lab.traces.speeds import Table, by_class, row_of

LOG = "log.db"
LASTING: tuple[Outcome, ...] = ("done", "failed", "oom", "signal", "hung", "timeout", "unstartable")
"""Outcomes of attempts that show the run time of a unit: attempts that were stopped, returned or lost do not."""


class _Run(NamedTuple):
    """The run of a unit: its duration, device model, number of tasks, outcome and end."""

    seconds: float
    model: str
    tasks: int
    outcome: Outcome
    ended: int


NEVER = _Run(0.0, "", 1, "done", 0)
"""Stands for the run of a unit that was skipped, because a unit that it needs had failed; it is skipped again."""


class _Reader:
    """Processes the events of a log."""

    def __init__(self) -> None:
        self.jobs: dict[str, JobSubmitted] = {}
        self.runs: dict[str, _Run] = {}
        self.cancelled: set[str] = set()
        self.released: dict[str, int] = {}  # only before anything of the job had started
        self.specs: dict[str, Unit] = {}  # units with other fields at their last start than at their submission
        self._changed: dict[str, Unit] = {}
        self._nodes: dict[str, Node] = {}
        self._placed: dict[str, Placed] = {}
        self._unit_of: dict[str, str] = {}

    def take(self, event: Event) -> None:
        match event:
            case NodeJoined():
                self._nodes[event.node.name] = event.node
            case JobSubmitted():
                self.jobs[event.job.id] = event
                for unit in event.job.units:
                    for task in unit.tasks:
                        self._unit_of[f"{event.job.id}.{task.name}"] = f"{event.job.id}.{unit.name}"
            case JobHeld(on=False, budget="") if event.job in self.jobs:
                units = self.jobs[event.job].job.units
                if not any(f"{event.job}.{unit.name}" in self._placed for unit in units):
                    self.released[event.job] = event.at
            case JobChanged() if event.job in self.jobs and not event.by.startswith(RULE):
                for unit in self.jobs[event.job].job.units:
                    if (name := f"{event.job}.{unit.name}") in event.units:
                        self._changed[name] = changed(
                            self._changed.get(name, unit), event.like, event.paths, at_rest=True
                        )
            case JobCancelled():
                self.cancelled.add(event.job)
            case JobsCancelled():
                self.cancelled.update(event.jobs)
            case Placed():
                self._placed[event.unit] = event
                if event.unit in self._changed:
                    self.specs[event.unit] = self._changed[event.unit]
            case Finished() if event.ending.outcome in LASTING:
                self._ended(event)

    def end_of(self, job_id: str) -> int:
        """Return the instant at which the last unit of a job ended, according to the log."""
        job = self.jobs.get(job_id)
        units = job.job.units if job is not None else ()
        return max((self.runs[key].ended for unit in units if (key := f"{job_id}.{unit.name}") in self.runs), default=0)

    def _ended(self, event: Finished) -> None:
        unit = self._unit_of.get(event.task)
        placed = self._placed.get(unit or "")
        if unit is None or placed is None or placed.epoch != event.epoch:
            return
        spot = placed.spots[0]
        node = self._nodes.get(spot.node)
        model = model_under(node, spot.devices) if node is not None else ""
        run = _Run(event.ending.run / SECOND, model, len(placed.spots), event.ending.outcome, event.at)
        known = self.runs.get(unit)
        if known is not None and known.outcome != "done" and run.outcome == "done" and known.ended < run.ended:
            known = None  # the unit was retried, and succeeded
        # The run time of a gang is that of its slowest task.
        self.runs[unit] = run if known is None or run.seconds >= known.seconds else known


def recognises(path: Path, content: bytes) -> bool:
    """Return whether `path` is a state directory, or the log of one."""
    return (path / LOG).is_file() if path.is_dir() else content.startswith((b"poise log ", b"SQLite format 3\0"))


def is_log(path: Path) -> bool:
    """Like `recognises`, but reads the beginning of the file itself."""
    if path.is_dir():
        return recognises(path, b"")
    try:
        with path.open("rb") as file:
            return recognises(path, file.read(32))
    except OSError:  # the reader of the other format reports the error
        return False


def read(path: Path, options: Options) -> Workload:
    """Read a log. Raises `SpecError` if `path` is not a log, and `StoreDamaged` if it cannot be read."""
    maker = Maker("poise", path, options)
    reader = _Reader()
    with open_log(path / LOG if path.is_dir() else path, decode_event) as recording:
        for event in recording.events:
            reader.take(event)
        if recording.start is not None:
            maker.tally.leave_out("what was submitted before the log begins")
    whole: list[tuple[float, Job]] = []
    for event in reader.jobs.values():
        if reason := _unfit(event.job, reader):
            maker.tally.leave_out(reason)
        else:
            ends = [reader.end_of(job_id) for job_id in event.job.after]
            whole.append((max([event.at, reader.released.get(event.job.id, 0), *ends]) / SECOND, event.job))
    rates, table = _rates(reader), by_class(options.speeds)
    placed = maker.in_order(whole, lambda one: one[0], "`poise ls --all` shows the jobs and their status")
    return maker.of(tuple(_arrival(job, at, reader, rates, table, options) for at, (_, job) in placed))


def _unfit(job: Job, reader: _Reader) -> str:
    """Return why a job is left out; empty if it is used."""
    if job.calls:
        return "it is of workers that serve calls"
    if job.array is not None:
        return "it is an array, of which the log has one part"
    if _has_ended(job, reader):
        return ""
    return "it was cancelled" if job.id in reader.cancelled else "it had not ended"


def _has_ended(job: Job, reader: _Reader) -> bool:
    """Return whether each unit has run, or was skipped because a unit that it needs had failed or was skipped."""
    runs = {unit.name: reader.runs.get(f"{job.id}.{unit.name}") for unit in job.units}
    over = {name for name, run in runs.items() if run is not None}
    vain = {name for name, run in runs.items() if run is not None and run.outcome != "done"}
    while skipped := {unit.name for unit in job.units if unit.name not in over and not vain.isdisjoint(unit.needs)}:
        over |= skipped
        vain |= skipped
    return len(over) == len(runs)


def _arrival(job: Job, at: int, reader: _Reader, rates: Table, table: Table, options: Options) -> Arrival:
    units, truths = [], {}
    for submitted in job.units:
        name = f"{job.id}.{submitted.name}"
        run, unit = reader.runs.get(name, NEVER), reader.specs.get(name, submitted)
        known = _with_row(rates.get(unit.kind, {}), run.model, row_of(table, declared_class(unit.kind)))
        seconds = run.seconds * known.get(run.model, 1.0)
        expect = {"none": 0, "oracle": max(1, round(seconds * SECOND)), "estimated": unit.expect}[options.information]
        units.append(msgspec.structs.replace(unit, expect=expect))
        truths[unit.name] = Truth(
            pace=Steady(seconds, run.tasks, known),
            checkpoint=unit.checkpoint,
            saves=unit.checkpoint > 0,
            restore=unit.restore,
            outcome="done" if run.outcome == "done" else "failed",
        )
    return Arrival(at=at, units=tuple(units), truths=truths, tenant=job.tenant)


def _with_row(rates: Mapping[str, float], ran_on: str, row: Mapping[str, float]) -> Mapping[str, float]:
    """Return the rates with those of the `row` for other models, relative to the best model. The rates of the log stay
    in proportion; without any, the speed on the model of the run is the reference.
    """
    own = rates or {ran_on: 1.0}
    if not row:
        return own
    common = [model for model in own if model in row]
    if not common:
        return rates
    scale = own[common[0]] / row[common[0]]
    merged = {**{model: rate * scale for model, rate in row.items()}, **own}
    best = max(merged.values())
    return {model: rate / best for model, rate in merged.items()}


def _rates(reader: _Reader) -> dict[str, dict[str, float]]:
    """Return, by class and device model, the rate relative to the best model, for classes that ran on several."""
    taken: dict[str, dict[str, list[float]]] = {}
    for event in reader.jobs.values():
        for unit in event.job.units:
            run = reader.runs.get(f"{event.job.id}.{unit.name}")
            if run is not None and unit.kind and run.outcome == "done" and run.seconds > 0:
                taken.setdefault(unit.kind, {}).setdefault(run.model, []).append(run.seconds)
    rates = {}
    for kind, by_model in taken.items():
        medians = {model: median(seconds) for model, seconds in by_model.items()}
        if len(medians) > 1:
            rates[kind] = {model: min(medians.values()) / seconds for model, seconds in medians.items()}
    return rates
