"""Run one trial: a workload on a fleet under a policy. Returns the result of every job and all measures."""

import gc
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

import msgspec

from poise.engine.scenario import Nemesis
from poise.engine.twin import FOREVER, Observe, Twin
from poise.errors import PoiseError
from poise.kernel.controller import Settings
from poise.kernel.explain import reasons
from poise.kernel.ledger import JobState, Ledger
from poise.kernel.messages import SetShares
from poise.model.events import Event
from poise.model.fleet import model_of, processor_of
from poise.model.history import Span
from poise.model.jobs import Unit
from poise.model.power import POWER, PowerModel
from poise.model.resources import Node, Shape, Wants
from poise.model.share_tree import ShareTree
from poise.model.workload import Arrival, Seats, Truth, Workload
from poise.model.worldfile import PLAIN, World
from poise.model.worlds import Row
from poise.policy.feasible import can_do
from poise.policy.suites import ClusterPolicy
from poise.units import SECOND
from poise_lab.engine.happenings import AWAY, Happenings, in_world, interference
from poise_lab.measures import Alone, Curves, JobResult, Measures, Recorder, unpacked

Told = Callable[[int, int], None]
"""Receives the progress: the number of ended jobs, and nanoseconds since the beginning."""

LEAST = 1e-9
"""Minimum run time in seconds, to avoid division by zero."""

COLLECTS_EVERY = 50_000
"""Number of new objects that triggers a garbage collection. Python's default of 700 suits programs with few objects; a
trial creates hundreds per job, and reference counting frees nearly all of them.
"""

TELL_EVERY = 1024
"""Number of steps between two progress reports."""


class Result(msgspec.Struct, frozen=True, kw_only=True):
    """A finished trial. `packed` contains the result of every job. `spans` contains the longest attempts and
    `forgotten` counts the others; both are empty unless requested. `refused` counts refused submissions by reason, with
    the details of the first; `later` counts jobs that had not arrived when the trial ended. `stuck` says why the first
    waiting job waits, if the trial ended because nothing started or ended any more.
    """

    policy: str
    packed: tuple[bytes, ...]
    rounds: int
    measures: Measures
    curves: Curves
    spans: tuple[Span, ...] = ()
    forgotten: int = 0
    refused: dict[str, int] = {}
    later: int = 0
    stuck: str = ""

    @property
    def jobs(self) -> Sequence[JobResult]:
        """Return the result of every job, in order of submission."""
        return unpacked(self.packed)

    @property
    def completions(self) -> list[float]:
        """Return the seconds from submission to end of the jobs that ended."""
        return [job.completion / SECOND for job in self.jobs if job.ended >= 0]


def remarks(trial: Result) -> Iterator[str]:
    """Yield remarks that a reader of a trial's figures needs."""
    for reason, count in trial.refused.items():
        yield f"{count:,} jobs refused under {trial.policy}: {reason}"
    if trial.later:
        yield f"{trial.later:,} jobs of the trace had not arrived when the trial under {trial.policy} ended"
    if trial.measures.unfinished:
        why = f": nothing has begun or ended for a week of the trace; {trial.stuck}" if trial.stuck else ""
        yield f"{trial.measures.unfinished:,} jobs have not ended under {trial.policy}{why}"


@contextmanager
def _few_collections() -> Iterator[None]:
    """Collect garbage less often within the context, and exclude the existing objects. Then collect all that it has
    made: a process that runs thousands of trials grew by 0.3 MB with each.
    """
    before = gc.get_threshold()
    gc.freeze()
    gc.set_threshold(COLLECTS_EVERY, *before[1:])
    try:
        yield
    finally:
        gc.set_threshold(*before)
        gc.collect()
        gc.unfreeze()


@_few_collections()
def simulate(
    workload: Workload,
    nodes: Sequence[Node],
    policy: ClusterPolicy,
    settings: Settings | None = None,
    *,
    until: int = 0,
    world: World = PLAIN,
    nemeses: Sequence[Nemesis] = (),
    shares: ShareTree | None = None,
    spans: int = 0,
    tell: Told | None = None,
    observe: Observe = lambda event: None,
    begin: Callable[[Twin], None] = lambda twin: None,
) -> Result:
    """Run the workload to its end, or until `until` nanoseconds from the beginning, in a `world` with the faults of
    `nemeses` and the fleet divided by `shares`. The trial also ends if nothing has started or ended for a week, nothing
    runs, and nothing will arrive or return: waiting jobs would wait forever, and the figures exclude that week. The
    `spans` longest attempts are kept. `tell` receives the progress at intervals, `observe` every event, and `begin` the
    twin before the first event.
    """
    settings = settings or Settings()
    settings = msgspec.structs.replace(settings, throughputs=settings.throughputs | workload.throughputs)
    alone = _ByItself(nodes)

    def leave(job: JobState) -> Alone:
        times = alone.times(job, twin.truth)
        for unit in job.units:
            twin.forget(unit.id)
        return times

    recorder = Recorder(alone=leave, power=_power_in(world), spans=spans)

    def take(event: Event) -> None:
        recorder.take(event)
        observe(event)

    twin = Twin(policy, settings, observe=take, waste=recorder.waste, interference=interference(world.sharing))
    recorder.begin(twin.ledger, twin.began)
    begin(twin)
    jobs = len(workload.arrivals)
    have_come = stuck = False

    def coming() -> Iterator[Arrival]:
        nonlocal have_come
        yield from workload.arrivals
        have_come = True

    def over(patience: int) -> bool:
        return have_come and recorder.still_for(twin.began + twin.now) > patience + settings.every

    happenings = Happenings(twin, nodes, world, nemeses, settings.seed, over=over)
    workload = in_world(workload, world)
    twin.add_nodes(happenings.present())
    if shares is not None:
        twin.ask(lambda request: SetShares(request, shares), 0)
    twin.arrive_in_turn(coming())
    steps = 0

    def watch() -> bool:
        nonlocal steps, stuck
        recorder.look()
        steps += 1
        if tell is not None and steps % TELL_EVERY == 0:
            tell(recorder.over, twin.now)
        if over(AWAY) and not happenings.awaited and twin.now - happenings.returned > AWAY + settings.every:
            stuck = bool(twin.ledger.queues.first(1))
        return recorder.over + len(twin.refused) < jobs and not stuck

    if twin.run(until or None, watch=watch):  # nothing else will happen
        stuck = bool(twin.ledger.queues.first(1))
    at = twin.began + twin.now
    recorder.finish(at - recorder.still_for(at) if stuck else at)
    return Result(
        policy=policy.name,
        packed=tuple(recorder.packed),
        rounds=twin.rounds,
        measures=recorder.measures(rounds=twin.rounds, refused=len(twin.refused)),
        curves=recorder.curves(),
        spans=recorder.spans(),
        forgotten=recorder.forgotten() if spans else 0,
        refused=_refused(twin.refused),
        later=jobs - len(recorder.packed) - len(twin.refused),
        stuck=_waits(twin.ledger) if stuck else "",
    )


def row_of(job: JobResult, makespan: int) -> Row:
    """Return a job as a row for a comparison; `makespan` is the end of a job that has not ended."""
    ready = job.submitted + job.begin
    end = job.ended if job.ended >= 0 else makespan
    return Row(
        time=max(0, end - ready),
        wait=max(0, (job.started if job.started >= 0 else end) - ready),
        late=int(bool(job.deadline) and (job.outcome != "done" or job.begin + job.completion > job.deadline)),
        preempted=job.preempted,
        service=job.service,
        ended=int(job.ended >= 0),
    )


def _refused(refused: Sequence[tuple[Arrival, PoiseError]]) -> dict[str, int]:
    """Count refusals by reason, with the need and the finding of the first."""
    counts = Counter(error.record.message for _, error in refused)
    first = {error.record.message: error.record for _, error in reversed(refused)}
    return {
        f"{why} (the first: {first[why].need}; {first[why].have})" if first[why].need else why: counts[why]
        for why in sorted(counts)
    }


def _waits(ledger: Ledger) -> str:
    """Return why the first waiting unit waits."""
    unit = ledger.queues.first(1)[0]
    why = "; ".join(reason.sentence() for reason in reasons(ledger, ledger.jobs[unit.job], unit, ledger.now))
    return f"{unit.id} waits: {why or 'the policy gives no reason'}"


def _power_in(world: World) -> PowerModel:
    said = {name: value for name in PowerModel.__struct_fields__ if (value := getattr(world, name)) is not None}
    return msgspec.structs.replace(POWER, **said)


class _ByItself:
    """Computes how long jobs take alone on the fleet, with all tasks of a unit next to each other."""

    def __init__(self, nodes: Sequence[Node]) -> None:
        self._processors = {model.called: model for model in map(processor_of, nodes)}
        self._devices = {model.called: model for node in nodes for model in map(model_of, node.devices)}
        called = [model.called for node in nodes for model in (processor_of(node), *map(model_of, node.devices))]
        self._count = Counter(called)
        self._models: dict[tuple[Wants, int, bool], list[str]] = {}

    def times(self, job: JobState, truth: Callable[[str], Truth]) -> Alone:
        """Return the time along the longest dependency chain; 0 if a part cannot run on this fleet."""
        ends: dict[str, tuple[float, float]] = {}
        for unit in job.units:
            spec = unit.spec
            needs = [ends[name] for name in spec.needs if name in ends]
            fastest, even = self._seconds(spec, truth(unit.id))
            begins = (max((need[which] for need in needs), default=0.0) for which in (0, 1))
            ends[spec.name] = next(begins) + fastest, next(begins) + even
        longest = [max(end[which] for end in ends.values()) for which in (0, 1)]
        return Alone(*(round(seconds * SECOND) if seconds < FOREVER else 0 for seconds in longest))

    def _seconds(self, spec: Unit, truth: Truth) -> tuple[float, float]:
        """Return the seconds on the fastest devices, and at the mean speed of all suitable devices, with the best shape
        for each.
        """
        fastest = even = float(FOREVER)
        for shape in (spec.shape, *(variant.shape for variant in spec.variants)):
            times: dict[str, float] = {}
            for model in self._able(shape):
                seats = Seats((model,) * len(spec.tasks))
                left = truth.pace.left(0.0, seats)
                times[model] = left - truth.pace.left(truth.until, seats) if truth.until < 1.0 else left
            if times:
                fastest = min(fastest, *times.values())
                speed = sum(self._count[model] / max(time, LEAST) for model, time in times.items())
                even = min(even, sum(self._count[model] for model in times) / speed if speed else FOREVER)
        return fastest, even

    def _able(self, shape: Shape) -> list[str]:
        """Return the device models that can run work of this shape."""
        key = shape.wants, shape.gpu_memory, bool(shape.gpus)
        if key not in self._models:
            known = self._devices if shape.gpus else self._processors
            self._models[key] = [
                name
                for name, model in known.items()
                if not shape.gpus or (can_do(model, shape.wants) and model.memory >= shape.gpu_memory)
            ]
        return self._models[key]
