"""Pollux's workloads (Qiao et al., OSDI 2021): training jobs, their scaling, and the statistical value of their
batches.

A workload names jobs of six applications. Each application was profiled on nodes of four T4: the step time by placement
and local batch size, and by epoch the two moments of the gradient that determine the value of a larger batch. Work is
counted in steps of the smallest batch. A step of a batch that is `scale` times larger is worth

    gain = (var + sqr) / (var / scale + sqr)

of them (section 3.1 of the paper, with `sqr` and `var` at the smallest batch), so the progress per second is `gain /
step time`. With a *fixed* batch size, a job is a gang of the size that its user requested. An *adaptive* job is
elastic, and uses the best batch for its current placement.

Columns of a workload: `name,time,application,num_replicas,batch_size`, times in seconds. The folder `profiles` lies
beside the folder of the workload, and has a folder for each application: `placements.csv`, `scalability.csv` and a
`validation-BATCH.csv` for each batch. Arrivals keep their instants, because a scheduler that decides once a minute is
reproduced only with them.

Source: github.com/petuum/adaptdl, branch osdi21-artifact, simulator/ (Apache-2.0).
"""

import random
import re
from collections.abc import Iterable, Sequence
from functools import lru_cache
from math import ceil
from pathlib import Path
from typing import NamedTuple

import msgspec
import numpy as np

from poise.model.fleet import Floats
from poise.model.jobs import Task, Unit
from poise.model.progress import Speedups
from poise.model.resources import Shape
from poise.model.workload import Arrival, Seats, Truth, Workload
from poise.units import SECOND
from poise_lab.traces.making import COMMAND, UNIT
from poise_lab.traces.options import SIGMA, Options
from poise_lab.traces.rows import BadRow, Row, Tally, fault, short, table

COLUMNS = ("name", "time", "application", "num_replicas", "batch_size")
PLACEMENTS = ("placement", "local_bsz", "step_time", "sync_time")
SCALABILITY = ("num_nodes", "num_replicas", "local_bsz", "step_time", "sync_time")
VALIDATION = ("progress", "grad_sqr", "grad_var")

MOST_TASKS = 64
PER_NODE = 4
"""The profiles apply to sixteen nodes of four devices."""

SAMPLES = 50
"""Number of batch sizes to try, in geometric steps from the smallest to the largest."""

ALMOST = 1e-8
"""Tolerance for rounding when a batch is rounded up to a whole number."""


class Made(NamedTuple):
    """Properties of an application that are not in the files: its number of epochs, and its largest local batch (0: the
    largest profiled one).
    """

    epochs: int
    largest: int = 0


_VALIDATION = re.compile(r"validation-([0-9]{1,9})\.csv")

APPLICATIONS = {
    "bert": Made(2),
    "cifar10": Made(100),
    "ncf": Made(10),
    "imagenet": Made(90),
    "deepspeech2": Made(80),
    "yolov3": Made(50, 8),
}
"""As in the artifact's `applications.py`."""

ALONE = {"ncf": 32768}
"""Applications that always run on a single device, and their fixed batch size."""


class Batch(NamedTuple):
    """The batch per task, the number of accumulation steps before gradients are exchanged, and the total batch size."""

    local: int
    accumulated: int
    total: int


class Application:
    """One profiled application. `epochs` float64 (E + 1,): the progress at the end of each epoch, from 0. `steps` maps
    each placement (tasks per node) to the local batch sizes, the step times and the exchange times within them, in
    seconds.
    """

    def __init__(self, name: str, folder: Path) -> None:
        """Read the profile. Raises `SpecError` if a file is missing or invalid."""
        made = APPLICATIONS[name]
        self.name = name
        named = ((path, _VALIDATION.fullmatch(path.name)) for path in folder.glob("validation-*.csv"))
        files = {int(name[1]): path for path, name in named if name is not None}
        validation = {size: _columns(path, VALIDATION) for size, path in files.items()}
        if not validation:
            raise fault(f"there is no profile of `{name}`", folder, need="`validation-BATCH.csv`", have="no such file")
        self.sizes = np.array(sorted(validation), float)
        moments = [(validation[int(size)]["grad_sqr"], validation[int(size)]["grad_var"]) for size in self.sizes]
        self._moments = np.array([[of[: made.epochs] for of in pair] for pair in moments])  # sizes, sqr and var, epochs
        progress = np.array([validation[int(size)]["progress"][: made.epochs] for size in self.sizes])
        self.epochs: Floats = np.concatenate([[0.0], progress.min(axis=0)])
        placements = _columns(folder / "placements.csv", PLACEMENTS)
        self.smallest_local, self.largest_local = int(placements["local_bsz"].min()), int(placements["local_bsz"].max())
        self.largest_local = made.largest or self.largest_local
        self.smallest, self.largest = int(self.sizes[0]), int(self.sizes[-1])
        self.steps = {
            tuple(map(int, str(int(placement)))): _rows(placements, placements["placement"] == placement)
            for placement in np.unique(placements["placement"])
        }
        self._wide = _by_size(self.steps, _columns(folder / "scalability.csv", SCALABILITY))

    @property
    def most(self) -> int:
        """Return the maximum useful number of tasks."""
        return 1 if self.name in ALONE else min(MOST_TASKS, self.largest // self.smallest_local)

    def moments(self, size: float, epoch: int) -> tuple[float, float]:
        """Return `sqr` and `var` of the gradient with a batch of this size, linearly interpolated."""
        return (
            float(np.interp(size, self.sizes, self._moments[:, 0, epoch])),
            float(np.interp(size, self.sizes, self._moments[:, 1, epoch])),
        )

    def step(self, split: tuple[int, ...], local: Floats) -> tuple[Floats, Floats]:
        """Return the seconds of a step, and of the gradient exchange in it, by local batch size, for these tasks per
        node.
        """
        known = self.steps.get(_first_turn(split))
        if known is not None:
            return np.interp(local, known[0], known[1]), np.interp(local, known[0], known[2])
        nodes, tasks = len(split), sum(split)
        grid = sorted(self._wide)
        below = max((of for of in grid if of <= nodes), default=grid[0])
        above = min((of for of in grid if of >= nodes), default=grid[-1])
        part = (nodes - below) / (above - below) if above > below else 0.0
        low, high = self._at(below, tasks / nodes, local), self._at(above, tasks / nodes, local)
        return (1 - part) * low[0] + part * high[0], (1 - part) * low[1] + part * high[1]

    def _at(self, nodes: int, density: float, local: Floats) -> tuple[Floats, Floats]:
        """Return the times for a profiled number of nodes, interpolated by the mean number of tasks per node."""
        of = self._wide[nodes]
        densities = np.array(sorted(of))
        density = float(np.clip(density, densities[0], densities[-1]))
        above = int(np.searchsorted(densities, density))
        below = max(0, above - 1) if densities[above] > density else above
        gap = densities[above] - densities[below]
        part = (density - densities[below]) / gap if gap else 0.0
        times = []
        for which in (1, 2):
            low = np.interp(local, of[densities[below]][0], of[densities[below]][which])
            high = np.interp(local, of[densities[above]][0], of[densities[above]][which])
            times.append((1 - part) * low + part * high)
        return times[0], times[1]

    def fixed(self, size: int, tasks: int) -> Batch:
        """Return how a batch of this size is divided among the tasks."""
        local = ceil(size / tasks - ALMOST)
        accumulated = ceil(local / self.largest_local - ALMOST) - 1
        if tasks == 1 and size > self.smallest:
            accumulated = max(1, accumulated)  # the moments of a gradient cannot be estimated from one batch
        local = ceil(local / (accumulated + 1) - ALMOST)
        local = min(local, self.largest // (tasks * (accumulated + 1)))
        return Batch(local, accumulated, local * tasks * (accumulated + 1))

    def best(self, split: tuple[int, ...], moments: tuple[float, float]) -> tuple[Batch, float]:
        """Return the batch with the most progress per second for these moments of the gradient, and that progress."""
        tasks = sum(split)
        could = _choices(self, split)
        done = _gain(moments, could.scale) / could.seconds
        at = int(done.argmax())
        local, accumulated = int(could.local[at]), int(could.accumulated[at])
        batch = Batch(local, accumulated, tasks * local * (accumulated + 1))
        return self._within(batch, tasks), float(done[at])

    def _within(self, batch: Batch, tasks: int) -> Batch:
        """Limit the effective batch to the largest profiled size."""
        local = min(batch.local, self.largest // (tasks * (batch.accumulated + 1)))
        return Batch(local, batch.accumulated, local * tasks * (batch.accumulated + 1))

    def rate(self, split: tuple[int, ...], batch: Batch, epoch: int) -> float:
        """Return the progress per second."""
        step, exchange = self.step(split, np.array([float(batch.local)]))
        seconds = float(step[0] + batch.accumulated * (step[0] - exchange[0]))
        return float(_gain(self.moments(batch.total, epoch), batch.total / self.smallest)) / seconds


class Choices(NamedTuple):
    """Possible batches of a placement: local sizes, numbers of accumulation steps, total sizes relative to the
    smallest, and the seconds of a step; infinite if the local size was not profiled.
    """

    local: Floats
    accumulated: Floats
    scale: Floats
    seconds: Floats


@lru_cache(maxsize=65_536)
def _choices(application: Application, split: tuple[int, ...]) -> Choices:
    tasks = sum(split)
    least = max(application.smallest, application.smallest_local * tasks)
    share = np.geomspace(least, application.largest, SAMPLES) / tasks
    accumulated = np.ceil(share / application.largest_local - ALMOST) - 1
    if tasks == 1:
        accumulated = np.where(share > application.smallest + ALMOST, np.maximum(accumulated, 1), accumulated)
    local = np.ceil(share / (accumulated + 1) - ALMOST)
    step, exchange = application.step(split, local)
    profiled = (application.smallest_local <= local) & (local <= application.largest_local)
    seconds = np.where(profiled, step + accumulated * (step - exchange), np.inf)
    return Choices(local, accumulated, tasks * local * (accumulated + 1) / application.smallest, seconds)


class Profiled(msgspec.Struct, frozen=True):
    """The pace of a job of a profiled application: with a batch of `size`, or the best one (0). As in the artifact each
    epoch ends on a whole second.
    """

    application: Application
    size: int = 0

    def left(self, progress: float, seats: Seats, /) -> float:
        done, epochs, rates, seconds = self._from(progress, seats)
        at = int(np.searchsorted(epochs, done, "right")) - 1
        if at >= len(rates):
            return 0.0
        return _whole((epochs[at + 1] - done) / rates[at]) + float(seconds[at + 1 :].sum())

    def reached(self, progress: float, seats: Seats, seconds: float, /) -> float:
        done, epochs, rates, _ = self._from(progress, seats)
        at = int(np.searchsorted(epochs, done, "right")) - 1
        left = seconds
        while at < len(rates):
            need = _whole((epochs[at + 1] - done) / rates[at])
            if left < need:
                done = min(done + left * rates[at], float(np.nextafter(epochs[at + 1], 0.0)))
                break
            left -= need
            at += 1
            done = float(epochs[at])
        return done / float(epochs[-1])

    def speedups(self, progress: float, seats: Seats, most: int, /, *, spread: bool) -> Speedups:
        """Return speedups for the moments of the gradient at the current batch. Until the job has run on several nodes,
        assume that it is no slower there, as Pollux's agents do; otherwise it would never try.
        """
        application, epochs = self.application, self.application.epochs
        epoch = min(int(np.searchsorted(epochs, progress * float(epochs[-1]), "right")) - 1, len(epochs) - 2)
        split = seats.split or _close_together(len(seats.models))
        return _speedups(application, epoch, _batches(application, split, self.size)[epoch].total, most, spread=spread)

    def _from(self, progress: float, seats: Seats) -> tuple[float, Floats, Floats, Floats]:
        """Return the work done so far, and for each epoch its end, its progress per second, and its duration."""
        epochs = self.application.epochs
        rates = _rates(self.application, seats.split or _close_together(len(seats.models)), self.size)
        return progress * float(epochs[-1]), epochs, rates, np.round(np.diff(epochs) / rates)


@lru_cache(maxsize=65_536)
def _rates(application: Application, split: tuple[int, ...], size: int) -> Floats:
    """Return the progress per second in each epoch."""
    batches = _batches(application, split, size)
    return np.array([application.rate(split, batch, epoch) for epoch, batch in enumerate(batches)])


@lru_cache(maxsize=65_536)
def _batches(application: Application, split: tuple[int, ...], size: int) -> tuple[Batch, ...]:
    """Return the batch of each epoch. The best batch depends on the moments at the current batch, which depend on the
    batch in turn: two iterations are enough.
    """
    tasks = sum(split)
    batches = []
    batch = application.fixed(size or application.smallest, tasks)
    for epoch in range(len(application.epochs) - 1):
        for _ in range(0 if size else 2):
            batch = application.best(split, application.moments(batch.total, epoch))[0]
        batches.append(batch)
    return tuple(batches)


@lru_cache(maxsize=65_536)
def _speedups(application: Application, epoch: int, size: int, most: int, *, spread: bool) -> Speedups:
    """Return the speedups with 1, 2, ... tasks over one task, each with the best batch for the moments of the gradient
    at a batch of this size. A step is assumed to take no longer on a node of more than four devices.
    """
    scale, seconds = _all_choices(application, most)
    done = (_gain(application.moments(size, epoch), scale) / seconds).max(axis=1)
    told = np.round(1000 * done / done[0]).astype(int).tolist()
    return Speedups(tuple(told[:most]), tuple(told[most:] if spread else told[:most]))


@lru_cache(maxsize=64)
def _all_choices(application: Application, most: int) -> tuple[Floats, Floats]:
    """Return the scales and seconds (2 most, SAMPLES) of placements on one node, then of placements over
    several nodes.
    """
    sizes = range(1, most + 1)
    found = [_choices(application, split) for split in [*((tasks,) for tasks in sizes), *map(_over_nodes, sizes)]]
    return np.array([of.scale for of in found]), np.array([of.seconds for of in found])


@lru_cache(maxsize=64)
def application(name: str, folder: Path) -> Application:
    """Return the application that is profiled in the folder. Raises `SpecError`."""
    return Application(name, folder)


def read(path: Path, options: Options) -> Workload:
    """Read a workload as gangs, with the batch and the number of tasks that their users chose, or as `elastic` jobs.
    `throughputs` is the folder of the profiles if it is elsewhere. Raises `SpecError` if the file has another format.
    """
    options.check()
    tally = Tally(path, strict=options.strict)
    draw = random.Random(options.seed)  # noqa: S311 what a seed decides is no secret
    profiles = options.throughputs or path.absolute().parents[1] / "profiles"
    arrivals = []
    for row in table(path, tally, COLUMNS):
        try:
            arrivals.append(_arrival(row, profiles, options, draw.lognormvariate(0.0, SIGMA)))
        except BadRow as why:
            tally.bad(row.line, why)
    if not arrivals:
        raise fault("nothing of the trace can be used", path, need="one job or more")
    arrivals.sort(key=lambda arrival: arrival.at)
    return Workload(name="pollux", arrivals=tuple(arrivals[: options.jobs or None]), skipped=dict(tally.counts))


def _arrival(row: Row, profiles: Path, options: Options, noise: float) -> Arrival:
    name = row.text("application")
    if name not in APPLICATIONS:
        raise BadRow("the application was not profiled", "application", ", ".join(APPLICATIONS), short(name))
    of = application(name, profiles / name)
    tasks = of.most if options.elastic else row.whole("num_replicas", least=1, most=MOST_TASKS)
    size = ALONE.get(name, 0) if options.elastic else row.whole("batch_size", least=of.smallest, most=of.largest)
    pace = Profiled(of, size)
    names = [f"{UNIT}[{rank}]" if tasks > 1 else UNIT for rank in range(tasks)]
    least = 1 if options.elastic and tasks > 1 else 0
    expect = pace.left(0.0, Seats(("",) * (least or tasks))) * SECOND if options.information != "none" else 0.0
    if options.information == "estimated":
        expect *= noise
    unit = Unit(
        name=UNIT,
        tasks=tuple(Task(name=one, argv=COMMAND, rank=rank, world=tasks) for rank, one in enumerate(names)),
        shape=Shape(cpu=0, gpus=1),
        kind=name if options.elastic else f"{name} x{tasks}",
        least=least,
        expect=round(expect),
        checkpoint=options.checkpoint,
        restore=options.restore,
    )
    truth = Truth(
        pace=pace, start=options.restore, restore=options.restore, save=options.save, saves=options.saves,
        checkpoint=options.checkpoint, telling=pace if least else None,
    )  # fmt: skip
    at = round(row.number("time") / options.load * SECOND)
    return Arrival(at=at, units=(unit,), truths={UNIT: truth}, name=row.text("name"))


def _gain(moments: tuple[float, float], scale: Floats | float) -> Floats:
    """Return the progress of a step with a batch `scale` times the smallest, in steps of the smallest batch."""
    sqr, var = moments
    return np.asarray((var + sqr) / (var / scale + sqr))


def _close_together(tasks: int) -> tuple[int, ...]:
    """Return the placement on as few nodes as possible."""
    whole, rest = divmod(tasks, PER_NODE)
    return (PER_NODE,) * whole + ((rest,) if rest else ())


def _over_nodes(tasks: int) -> tuple[int, ...]:
    """Return the placement on as few nodes as possible, but on at least two."""
    if tasks > PER_NODE:
        return _close_together(tasks)
    return (tasks - tasks // 2, tasks // 2) if tasks > 1 else (1,)


def _first_turn(split: tuple[int, ...]) -> tuple[int, ...]:
    """Normalize the split of a ring of nodes: like the profiles, begin with the smallest rotation."""
    return min(split[at:] + split[:at] for at in range(len(split)))


def _by_size(
    steps: dict[tuple[int, ...], tuple[Floats, Floats, Floats]], wide: dict[str, Floats]
) -> dict[int, dict[float, tuple[Floats, Floats, Floats]]]:
    """Return the means of the profiled `steps` by number of nodes and tasks per node."""
    found: dict[int, dict[float, list[tuple[Floats, Floats, Floats]]]] = {}
    for split, times in steps.items():
        found.setdefault(len(split), {}).setdefault(sum(split) / len(split), []).append(times)
    pairs = sorted(set(zip(wide["num_nodes"].tolist(), wide["num_replicas"].tolist(), strict=True)))
    for nodes, tasks in pairs:
        here = (wide["num_nodes"] == nodes) & (wide["num_replicas"] == tasks)
        found.setdefault(int(nodes), {}).setdefault(tasks / nodes, []).append(_rows(wide, here))
    return {nodes: {of: _mean(times) for of, times in by.items()} for nodes, by in found.items()}


def _mean(times: Sequence[tuple[Floats, Floats, Floats]]) -> tuple[Floats, Floats, Floats]:
    local = times[0][0]
    return (
        local,
        np.mean([np.interp(local, of[0], of[1]) for of in times], axis=0),
        np.mean([np.interp(local, of[0], of[2]) for of in times], axis=0),
    )


def _rows(columns: dict[str, Floats], where: Iterable[bool]) -> tuple[Floats, Floats, Floats]:
    """Return local batch sizes, step times, and the exchange times within them."""
    rows = np.flatnonzero(np.asarray(where))
    rows = rows[np.argsort(columns["local_bsz"][rows], kind="stable")]
    return columns["local_bsz"][rows], columns["step_time"][rows], columns["sync_time"][rows]


def _columns(path: Path, names: Sequence[str]) -> dict[str, Floats]:
    """Return columns of numbers. Every row must be valid: an incomplete profile is useless."""
    tally = Tally(path, strict=True)
    rows: list[list[float]] = []
    for row in table(path, tally, names):
        try:
            rows.append([row.number(name, most=float("inf")) for name in names])
        except BadRow as why:
            tally.bad(row.line, why)
    found = np.array(rows)
    return {name: found[:, at] for at, name in enumerate(names)}


def _whole(seconds: float) -> float:
    return float(np.round(seconds))
