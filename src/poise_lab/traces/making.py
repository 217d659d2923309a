"""Makes arrivals from the jobs of a trace: submission time, duration, number of devices, user, and class.

These rules hold for every format. Jobs are sorted by arrival, with ties in file order; the first arrives at 0. A job
of n devices is one task if a node has n devices, else the necessary number of whole-node tasks.
"""

import math
import random
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import cache
from itertools import islice
from pathlib import Path
from typing import TypeVar

import msgspec

from poise.errors import SpecError
from poise.model.jobs import Outcome, Priority, Task, Unit
from poise.model.resources import ANY_GPU, WHOLE, Shape, Wants
from poise.model.tenants import DEFAULT, class_of_tenant
from poise.model.workload import Arrival, Pace, Steady, Telling, Truth, Workload
from poise.units import SECOND
from poise_lab.remade import Remade
from poise_lab.traces.options import SIGMA, Options
from poise_lab.traces.rows import MAX_SECONDS, BadRow, Tally, fault

UNIT = "main"
COMMAND = ("replayed",)
"""Command of a task of a trace; the twin does not run it."""

MAX_OFFSET = 4e9
"""Maximum seconds from the first arrival to the last: about a hundred years, half of the 64-bit range."""

Job = TypeVar("Job")

_UNFIT = re.compile(r"[^A-Za-z0-9._-]+")


class Said(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """A job of a trace. Times are in seconds, `at` since any origin. `seconds` is the run time on the fastest device.
    It has `tasks` of `gpus` devices each (a `share` of each, in thousandths); `cpu` (milli-CPU) and `memory` (bytes)
    are per task. `rates` are by device model, relative to the best; without a `pace`, progress is steady. `guess` is
    the user's estimate (0: none); `deadline` counts from the arrival. A job with a `least` is elastic: it starts with
    at least that many tasks, `seconds` is the run time with these, and `telling` gives its scaling.
    """

    at: float
    seconds: float
    tasks: int = 1
    least: int = 0
    gpus: int = 1
    share: int = WHOLE
    cpu: int = 0
    memory: int = 0
    wants: Wants = ANY_GPU
    kind: str = ""
    tenant: str = DEFAULT
    rates: Mapping[str, float] = {}
    pace: Pace | None = None
    telling: Telling | None = None
    guess: float = 0.0
    deadline: float = 0.0
    priority: Priority = Priority.MEDIUM
    weight: int = 1000
    outcome: Outcome = "done"


class Maker:
    """Collects the jobs of a trace and makes a workload of them."""

    def __init__(self, name: str, path: Path, options: Options) -> None:
        options.check()
        self.tally = Tally(path, strict=options.strict)
        self.throughputs: dict[str, float] = {}
        self.notes: list[str] = []
        self._name = name
        self._path = path
        self._options = options
        self._said: list[Said] = []

    def add(self, said: Said) -> None:
        """Add a job. Raises `BadRow` if its run time is out of range."""
        if not said.seconds <= MAX_SECONDS:
            raise BadRow("the run time is absurd", need=f"at most {MAX_SECONDS:.0f} s", have=f"{said.seconds:.3g} s")
        self._said.append(said)

    def gang(self, devices: int) -> tuple[int, int]:
        """Return the number of tasks of a job with this many devices, and the devices of each task."""
        width = self._options.devices_per_node
        return (1, devices) if devices <= width else (math.ceil(devices / width), width)

    def workload(self) -> Workload:
        """Return the workload. Raises `SpecError` if it is empty."""
        placed = self.in_order(self._said, lambda said: said.at)
        self._said = []
        return self.of(tuple(self._arrivals(placed)))

    def workload_again(self, jobs: int, say: Callable[[], Iterator[Said]]) -> Workload:
        """Return a workload of `jobs` jobs that `say` yields in order of submission. They are not kept: each reader of
        the arrivals makes them again.
        """
        count = min(jobs, self._options.jobs or jobs)
        first = last = next(say()).at
        for said in islice(say(), count):
            last = said.at
        self._check_span(last - first)

        def arrivals() -> Iterator[Arrival]:
            return self._arrivals((self._offset(said.at - first), said) for said in islice(say(), count))

        return self.of(Remade(count, arrivals))

    def _arrivals(self, placed: Iterable[tuple[int, Said]]) -> Iterator[Arrival]:
        draw = random.Random(self._options.seed)  # noqa: S311 what a seed decides is no secret
        for at, said in placed:
            yield _arrival(said, self._options, at, draw.lognormvariate(0.0, SIGMA))

    def in_order(self, jobs: Sequence[Job], submitted: Callable[[Job], float], hint: str = "") -> list[tuple[int, Job]]:
        """Return the first jobs by submission, up to the requested number, with the arrival of each in nanoseconds.
        Raises `SpecError`, by default with a `hint` for text files, if there are none.
        """
        if not jobs:
            left = ", ".join(f"{count} of: {reason}" for reason, count in sorted(self.tally.counts.items()))
            raise fault(
                "nothing of the trace can be used", self._path, need="one job or more", have=left or "no jobs",
                hint=hint or f"`zcat -f {self._path} | head -3`",
            )  # fmt: skip
        chosen = sorted(jobs, key=submitted)[: self._options.jobs or len(jobs)]
        first = submitted(chosen[0])
        self._check_span(submitted(chosen[-1]) - first)
        return [(self._offset(submitted(one) - first), one) for one in chosen]

    def _offset(self, seconds: float) -> int:
        return round(seconds / self._options.load * SECOND)

    def _check_span(self, seconds: float) -> None:
        if seconds / self._options.load > MAX_OFFSET:
            have = f"{seconds / self._options.load / 86400:.6g} days"
            raise SpecError(
                "the trace lasts too long", code="E103", field="load", need=f"at most {MAX_OFFSET / 86400:.0f} days",
                have=have, hint="`--load 1`, or the right unit of its times",
            )  # fmt: skip

    def of(self, arrivals: Sequence[Arrival]) -> Workload:
        """Return a workload with these arrivals."""
        return Workload(
            name=self._name,
            arrivals=arrivals,
            throughputs=self.throughputs,
            skipped=dict(self.tally.counts),
            notes=tuple(self.notes),
        )


def _arrival(said: Said, options: Options, at: int, noise: float) -> Arrival:
    # A job that declares neither devices nor CPUs gets one CPU, the default of every job.
    cpu = said.cpu or (0 if said.gpus else 1000)
    unit = Unit(
        name=UNIT,
        tasks=_tasks(said.tasks),
        shape=_shape(cpu, said.memory, said.gpus, said.share, said.wants),
        priority=said.priority,
        deadline=round(min(said.deadline, MAX_OFFSET) * SECOND),
        expect=_expected(said, options, noise),
        kind=class_of_tenant(said.kind, said.tenant),
        least=said.least,
        checkpoint=options.checkpoint,
        restore=options.restore,
        weight=said.weight,
    )
    truth = Truth(
        pace=said.pace or Steady(said.seconds, said.tasks, said.rates),
        checkpoint=options.checkpoint,
        saves=options.saves,
        save=options.save,
        restore=options.restore,
        outcome=said.outcome,
        reports=options.information != "none",  # a job that reports progress reveals its run time
        telling=said.telling,
        tells=0,  # the scaling table does not change
    )
    return Arrival(at=at, units=(unit,), truths={UNIT: truth}, tenant=said.tenant)


def _expected(said: Said, options: Options, noise: float) -> int:
    """Return the run time that the user declares, in nanoseconds, by the kind of information; 0 means undeclared."""
    if options.information == "none":
        return 0
    truth = said.seconds
    seconds = truth if options.information == "oracle" else said.guess or truth * noise
    return max(1, round(min(seconds, MAX_OFFSET) * SECOND))


@cache
def _tasks(count: int) -> tuple[Task, ...]:
    if count == 1:
        return (Task(name=UNIT, argv=COMMAND),)
    return tuple(Task(name=f"{UNIT}[{rank}]", argv=COMMAND, rank=rank, world=count) for rank in range(count))


@cache
def _shape(cpu: int, memory: int, gpus: int, share: int, wants: Wants) -> Shape:
    return Shape(cpu=cpu, memory=memory, gpus=gpus, share=share if gpus else WHOLE, wants=wants)


@cache
def named(text: str) -> str:
    """Return a valid tenant or class name for third-party text; `default` if nothing is left.

    >>> named("vc 7/b?")
    'vc-7-b'
    """
    return _UNFIT.sub("-", text).strip("-._")[:63] or DEFAULT
