"""Compare policies: run the same workload, fleet and world under each policy.

Each trial reads its files itself, so that trials can run in separate processes and share nothing.
"""

import os
import signal
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from multiprocessing import active_children, get_context
from multiprocessing.sharedctypes import SynchronizedArray
from pathlib import Path
from typing import NamedTuple

import msgspec

from poise.decoding import msgpack_decoder
from poise.drivers.nemeses import known_nemeses
from poise.drivers.plugins import FIELD, choose, tried
from poise.drivers.yamlfile import load_kind, place_in_file
from poise.engine.scenario import Nemesis
from poise.errors import ErrorRecord, Fault, PoiseError, SpecError, located
from poise.kernel.controller import Settings
from poise.model.fleet import model_of
from poise.model.fleetfile import DeclaredFleet, compile_fleet
from poise.model.tenants import declared_class
from poise.model.workload import Arrival, Steady, Truth, Workload
from poise.model.worldfile import PLAIN, World, check_nodes, compile_world
from poise.policy.suites import ClusterPolicy
from poise.units import SECOND
from poise_lab.engine.happenings import left_out
from poise_lab.remade import Remade
from poise_lab.traces.formats import read_trace
from poise_lab.traces.options import Options
from poise_lab.traces.poiselog import is_log
from poise_lab.traces.speeds import by_class, row_of
from poise_lab.trial import Result, simulate
from poise_lab.what_if import recorded_in

SPANS = 6000
"""Number of attempts shown on a page, for all trials together."""

TELL_EVERY = 0.2
"""Interval between two progress updates, in seconds."""


class Asked(msgspec.Struct, frozen=True, kw_only=True):
    """The request for a comparison: what to try, in which world, with which nemeses (`faults`, by name or file).
    `fleet` is a fleet file, or a state directory or log of Poise that contains the nodes; None means that the `trace`
    is such a log. `format` is the trace format (empty: detect it). `until` and `every` are in nanoseconds (0: to the
    end; at every event). `spans` is the number of attempts to keep. `field` is the flag that named the policies, for
    errors.
    """

    trace: Path
    fleet: Path | None
    world: Path | None = None
    faults: tuple[str, ...] = ()
    options: Options = Options()
    format: str = ""
    seed: int = 0
    until: int = 0
    every: int = 0
    spans: int = 0
    field: str = FIELD


class Failure(msgspec.Struct, frozen=True, kw_only=True):
    """A trial that failed, and its error. `exit_code` is the exit code of the command."""

    policy: str
    error: ErrorRecord
    exit_code: int


class Comparison(msgspec.Struct, frozen=True, kw_only=True):
    """Result of a comparison. `devices` counts the fleet's devices by model. `skipped` counts the trace entries that
    were left out, by reason. `notes` are remarks for the reader. `failed` lists the trials without a result.
    """

    trace: str
    fleet: str
    nodes: int
    devices: dict[str, int]
    world: str
    faults: tuple[str, ...]
    information: str
    load: float
    seed: int
    skipped: dict[str, int]
    notes: tuple[str, ...]
    trials: tuple[Result, ...]
    failed: tuple[Failure, ...] = ()


class Far(NamedTuple):
    """Progress of a trial: the number of ended jobs, the total number, and the seconds since its beginning."""

    over: int
    jobs: int
    seconds: float


Watch = Callable[[int, Far], None]
"""Receives the number of a trial and its progress."""


def compare(asked: Asked, policies: Sequence[str], watch: Watch = lambda number, far: None) -> Comparison:
    """Try each policy: a single one in this process, several in parallel processes. Raises `PoiseError` for unreadable
    input and if all trials fail; if only some fail, the others continue.
    """
    for name in policies:
        tried(choose(name, asked.field))  # fail before the long work begins
    asked = msgspec.structs.replace(asked, spans=asked.spans // len(policies))
    loaded = load(asked)
    workload, fleet = loaded.workload, loaded.fleet
    if len(policies) == 1:
        tell = _told(len(workload.arrivals), lambda far: watch(0, far))
        trials, failed = [_trial(asked, loaded, tried(choose(policies[0], asked.field)), tell)], list[Failure]()
    else:
        trials, failed = _side_by_side(asked, policies, watch)
    devices: dict[str, int] = {}
    for node in fleet.nodes:
        for device in node.devices:
            name = device.model or device.kind
            devices[name] = devices.get(name, 0) + 1
    return Comparison(
        trace=workload.name,
        fleet=fleet.name,
        nodes=len(fleet.nodes),
        devices=dict(sorted(devices.items())),
        information=asked.options.information,
        load=asked.options.load,
        seed=asked.seed,
        skipped=dict(sorted(workload.skipped.items())),
        world=loaded.world.name,
        faults=tuple(nemesis.name for nemesis in loaded.nemeses),
        notes=tuple(_notes(loaded)),
        trials=tuple(trials),
        failed=tuple(failed),
    )


class Loaded(NamedTuple):
    """The content of the input files."""

    workload: Workload
    fleet: DeclaredFleet
    world: World
    nemeses: tuple[Nemesis, ...]


def _fleet(asked: Asked) -> DeclaredFleet:
    """Return the fleet that a file declares or a log recorded."""
    path = asked.fleet or asked.trace
    if is_log(path):
        known = recorded_in(path)
        throughputs = known.began.throughputs if known.began is not None else {}
        return DeclaredFleet(name="its own nodes", nodes=tuple(known.nodes.values()), throughputs=throughputs)
    if asked.fleet is None:
        what = "a trace that is not a log of Poise needs a fleet"
        raise SpecError(what, code="E104", field="--fleet", have=str(path), hint="--fleet examples/cluster.yaml")
    document = load_kind(asked.fleet, "fleet")
    with located(place_in_file(asked.fleet)):
        return compile_fleet(document)


def load(asked: Asked) -> Loaded:
    """Read the files. Raises `PoiseError` for unreadable input."""
    fleet = _fleet(asked)
    world = PLAIN
    if asked.world is not None:
        document = load_kind(asked.world, "world")
        with located(place_in_file(asked.world)):
            world = compile_world(document)
            check_nodes(world, {node.name for node in fleet.nodes})
    nemeses = tuple(known_nemeses(asked.faults, "--faults").values()) if asked.faults else ()
    widest = max((len(node.devices) for node in fleet.nodes), default=0)
    options = msgspec.structs.replace(
        asked.options, devices_per_node=widest or asked.options.devices_per_node, speeds=fleet.throughputs
    )
    workload = read_trace(asked.trace, options, asked.format)
    if not workload.throughputs:
        workload = with_speeds(workload, fleet.throughputs)
    return Loaded(workload, fleet, world, nemeses)


def _notes(loaded: Loaded) -> Iterator[str]:
    yield from loaded.workload.notes
    missing = left_out(loaded.nemeses)
    if missing:
        yield f"faults that no twin has are left out: {', '.join(missing)}; `poise faults` has them"
    yield from _unknown_speeds(loaded.workload, loaded.fleet)


def _unknown_speeds(workload: Workload, fleet: DeclaredFleet) -> Iterator[str]:
    """Report the device models for which no source gives the speed of a job that could run there. Without the note,
    readers would assume that the speeds are known.
    """
    here = {model_of(device).called for node in fleet.nodes for device in node.devices}
    known: dict[str, set[str]] = {}
    for key in workload.throughputs:
        kind, _, model = key.rpartition("@")
        known.setdefault(kind, set()).add(model)
    jobs, missing = 0, set[str]()
    for arrival in workload.arrivals:
        unknown = set[str]()
        for unit in arrival.units:
            pace = arrival.truths[unit.name].pace
            told = known.get(declared_class(unit.kind), set()) | (
                set(pace.rates) if isinstance(pace, Steady) else set()
            )
            able = here & set(unit.shape.wants.models or here)
            if unit.shape.gpus and (told or len(able) > 1):
                unknown |= able - told
        jobs, missing = jobs + bool(unknown), missing | unknown
    if jobs:
        yield (
            f"nothing tells how fast {jobs:,} of {len(workload.arrivals):,} jobs are on {', '.join(sorted(missing))}: "
            "taken for as fast as on the fastest device"
        )


def with_speeds(workload: Workload, throughputs: Mapping[str, float]) -> Workload:
    """Apply the throughputs of a fleet file, by `class@model`. The run time in a trace then applies to the fastest
    model on which its class has a throughput. A class with a size (`resnet x4`) and no row of its own has the
    throughput of one device times the size; policies see both. Work with its own speeds keeps them.
    """
    table = by_class(throughputs)
    if not table:
        return workload
    told = dict(throughputs)
    rates: dict[str, dict[str, float]] = {}
    for kind in sorted({declared_class(unit.kind) for arrival in workload.arrivals for unit in arrival.units}):
        if row := row_of(table, kind):
            told |= {f"{kind}@{model}": rate for model, rate in row.items()}
            rates[kind] = {model: rate / max(row.values()) for model, rate in row.items()}

    def paced(arrival: Arrival) -> Arrival:
        truths = {
            unit.name: _at_rates(arrival.truths[unit.name], rates.get(declared_class(unit.kind), {}))
            for unit in arrival.units
        }
        return msgspec.structs.replace(arrival, truths=truths)

    arrivals = Remade(len(workload.arrivals), lambda: map(paced, workload.arrivals))
    return msgspec.structs.replace(workload, arrivals=arrivals, throughputs=told)


def _at_rates(truth: Truth, rates: Mapping[str, float]) -> Truth:
    pace = truth.pace
    if not rates or not isinstance(pace, Steady) or pace.rates:
        return truth
    return msgspec.structs.replace(truth, pace=msgspec.structs.replace(pace, rates=rates))


def _trial(asked: Asked, loaded: Loaded, policy: ClusterPolicy, tell: Callable[[int, int], None]) -> Result:
    settings = Settings(seed=asked.seed, every=asked.every, throughputs=loaded.fleet.throughputs)
    return simulate(
        loaded.workload,
        loaded.fleet.nodes,
        policy,
        settings,
        until=asked.until,
        world=loaded.world,
        nemeses=loaded.nemeses,
        spans=asked.spans,
        tell=tell,
    )


def _told(jobs: int, hear: Callable[[Far], None]) -> Callable[[int, int], None]:
    return lambda over, now: hear(Far(over, jobs, now / SECOND))


# --- processes -------------------------------------------------------------------------------------------------------

_far: "list[SynchronizedArray[float]]" = []
"""Shared progress array of a trial process: three numbers per trial."""


def _side_by_side(asked: Asked, policies: Sequence[str], watch: Watch) -> tuple[list[Result], list[Failure]]:
    context = get_context("spawn")
    far = context.Array("d", 3 * len(policies))
    processes, others = min(len(policies), os.cpu_count() or 1), active_children()
    trials: dict[int, Result] = {}
    errors: dict[int, PoiseError] = {}
    with ProcessPoolExecutor(processes, mp_context=context, initializer=_connect, initargs=(far,)) as pool:
        try:
            with _deaf():
                of = {pool.submit(_in_process, asked, name, number): number for number, name in enumerate(policies)}
            waiting = set(of)
            while waiting:
                done, waiting = wait(waiting, timeout=TELL_EVERY, return_when=FIRST_COMPLETED)
                for future in done:
                    try:
                        trials[of[future]] = msgpack_decoder(Result).decode(future.result())
                    except PoiseError as error:
                        errors[of[future]] = error
                for number in range(len(policies)):
                    over, jobs, seconds = far[3 * number : 3 * number + 3]
                    watch(number, Far(int(over), int(jobs), seconds))
        except BrokenProcessPool:
            hint = "fewer policies at once, or `--jobs N`"
            raise Fault("the process of a trial was killed", hint=hint) from None
        except BaseException:
            for process in active_children():
                if process not in others:
                    process.terminate()  # even in the middle of a policy call
            raise
    if not trials:
        raise errors[0]
    failed = [
        Failure(policy=policies[number], error=error.record, exit_code=error.exit_code)
        for number, error in sorted(errors.items())
    ]
    return [trials[number] for number in sorted(trials)], failed


@contextmanager
def _deaf() -> Iterator[None]:
    """Block Ctrl-C in processes that start within the context, even during startup: their parent receives it and
    terminates them.
    """
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _connect(far: "SynchronizedArray[float]") -> None:
    _far.append(far)
    threading.Thread(target=_leave_with, args=(os.getppid(),), daemon=True).start()


def _leave_with(parent: int) -> None:
    """End this process when its parent is gone, even in the middle of a policy call."""
    while os.getppid() == parent:
        time.sleep(TELL_EVERY)
    os._exit(1)


def _in_process(asked: Asked, policy: str, number: int) -> bytes:
    def hear(far: Far) -> None:
        _far[0][3 * number : 3 * number + 3] = list(far)

    loaded = load(asked)
    jobs = len(loaded.workload.arrivals)
    result = _trial(asked, loaded, tried(choose(policy, asked.field)), _told(jobs, hear))
    hear(Far(jobs, jobs, result.measures.makespan / SECOND))
    return msgspec.msgpack.encode(result)
