"""Trials side by side: the same workload, fleet and world, under one policy after another.

Each trial reads its files itself, so that several run in processes of their own and share nothing.
"""

import os
import re
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
from poise_lab.traces.formats import read_trace
from poise_lab.traces.options import Options
from poise_lab.traces.poiselog import is_log
from poise_lab.trial import Result, simulate
from poise_lab.what_if import recorded_in

SPANS = 6000
"""Attempts that a page shows, of all trials together."""

TELL_EVERY = 0.2
"""Seconds between two looks at how far processes are."""


_SIZE = re.compile(r" x([0-9]+)$")
"""The devices of a job, in the name of its class."""


class Asked(msgspec.Struct, frozen=True, kw_only=True):
    """What is to be tried, in which world, with which nemeses (`faults`, by name or file). `fleet` is a file, or a home
    or a log of Poise, whose nodes it is; None: those of the `trace`, which is such a log then. `format` is that of the
    trace (empty: as found), `until` and `every` in nanoseconds (0: to the end; whenever something happens), `spans` how
    many attempts are remembered. `field` is the flag that named the policies, for errors.
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
    """A trial that came to no end, and why. `exit_code` is what the command line ends with."""

    policy: str
    error: ErrorRecord
    exit_code: int


class Comparison(msgspec.Struct, frozen=True, kw_only=True):
    """What came of it. `devices` counts those of the fleet by model, `skipped` what of the trace was left out; `notes`
    say what else a reader should know. `failed` are the trials of which nothing is known.
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
    """How far a trial is: jobs that are over, of how many, and seconds since its beginning."""

    over: int
    jobs: int
    seconds: float


Watch = Callable[[int, Far], None]
"""Hears how far the trial of this number is."""


def compare(asked: Asked, policies: Sequence[str], watch: Watch = lambda number, far: None) -> Comparison:
    """Try each policy: one here, several in processes side by side. Raises `PoiseError` for what cannot be read, and
    where all trials fail; if only some do, the others go on.
    """
    for name in policies:
        tried(choose(name, asked.field))  # before anything long begins
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
    """The files, read."""

    workload: Workload
    fleet: DeclaredFleet
    world: World
    nemeses: tuple[Nemesis, ...]


def _fleet(asked: Asked) -> DeclaredFleet:
    """As a file declares it, or as a log has recorded it."""
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
    """Read the files. Raises `PoiseError` for what cannot be read."""
    fleet = _fleet(asked)
    world = PLAIN
    if asked.world is not None:
        document = load_kind(asked.world, "world")
        with located(place_in_file(asked.world)):
            world = compile_world(document)
            check_nodes(world, {node.name for node in fleet.nodes})
    nemeses = tuple(known_nemeses(asked.faults, "--faults").values()) if asked.faults else ()
    widest = max((len(node.devices) for node in fleet.nodes), default=0)
    options = msgspec.structs.replace(asked.options, devices_per_node=widest or asked.options.devices_per_node)
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
    """Of models of device on which nobody has said how fast work is, where it could differ: silence would claim it."""
    here = {model_of(device).called for node in fleet.nodes for device in node.devices}
    known: dict[str, set[str]] = {}
    for key in workload.throughputs:
        kind, _, model = key.rpartition("@")
        known.setdefault(kind, set()).add(model)
    jobs, missing = 0, set[str]()
    for arrival in workload.arrivals:
        unknown = set[str]()
        for unit in arrival.units:
            told = known.get(declared_class(unit.kind), set())
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
    """The same work at the speeds of a fleet file, by `class@model`: what a trace gives is then the run time on the
    fastest of the models that its class has a throughput on. A class that is known in several sizes (`resnet x4`) has
    that of one device times so many; policies are told of both. Work that has speeds of its own keeps them.
    """
    table: dict[str, dict[str, float]] = {}
    for key, rate in throughputs.items():
        kind, _, model = key.rpartition("@")
        table.setdefault(kind, {})[model] = rate
    if not table:
        return workload
    told = dict(throughputs)
    rates: dict[str, dict[str, float]] = {}
    for kind in sorted({declared_class(unit.kind) for arrival in workload.arrivals for unit in arrival.units}):
        size = _SIZE.search(kind)
        row = table.get(kind) or (table.get(kind[: size.start()]) if size is not None else None)
        if row:
            times = int(size[1]) if size is not None and kind not in table else 1
            told |= {f"{kind}@{model}": rate * times for model, rate in row.items()}
            rates[kind] = {model: rate / max(row.values()) for model, rate in row.items()}

    def paced(arrival: Arrival) -> Arrival:
        truths = {
            unit.name: _at_rates(arrival.truths[unit.name], rates.get(declared_class(unit.kind), {}))
            for unit in arrival.units
        }
        return msgspec.structs.replace(arrival, truths=truths)

    return msgspec.structs.replace(workload, arrivals=tuple(map(paced, workload.arrivals)), throughputs=told)


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
"""Of a process that runs trials: where it says how far they are, three numbers a trial."""


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
                    process.terminate()  # whatever its policy is at
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
    """Processes that begin within hear no Ctrl-C, not even while they begin: whoever asked for them is told, and ends
    them.
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
    """End this process once nobody waits for it, whatever its policy is at."""
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
