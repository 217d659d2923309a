"""Rehearse a service or a front: run the same requests under each router or scaler, in virtual time.

Measures of a trial: latencies of answered requests (from arrival; nearest rank), the fraction of requests answered in
time (within the objective, else within the timeout), the reasons of the others, the busy fraction of the replicas'
ready time, their paid time, and its cost.
"""

import time
from collections.abc import Iterator, Sequence
from functools import partial
from math import ceil
from pathlib import Path
from statistics import fmean, median
from typing import Any, NamedTuple

import msgspec

from poise.drivers.calendars import load_service, with_calendar
from poise.drivers.yamlfile import is_kind, load_kind, place_in_file
from poise.errors import InputError, SpecError, located
from poise.model.scaling import Announced, after
from poise.model.servers import Measured, Server, Serving, Speed, Table
from poise.model.servicefile import DeclaredService, compile_service
from poise.model.serving_upstreams import Front, compile_upstreams
from poise.model.worldfile import World, compile_world
from poise.policy.replicas import DEFAULT_SCALER, SCALERS, ReplicaPolicy, scaler_named
from poise.units import HOUR, MILLISECOND, SECOND
from poise_lab.engine.serving import ANSWERED, CANCELLED, FrontTwin, Load, ServiceTwin, Story, Trial
from poise_lab.traces.loads import Wanted, asking
from poise_lab.traces.rows import Tally, fault, table
from poise_serve.policy.route import BY_KEY, DEFAULT_ROUTER, ROUTERS, router_named

LEFT_OUT = ("restart", "scaling", "sharing", "stragglers", "telemetry", "power")
"""World settings that apply only to jobs, not to requests."""


class Asked(msgspec.Struct, frozen=True, kw_only=True):
    """The request for a rehearsal: the `file` of a service or of upstreams, the `requests` (a trace, or a generated
    load), and the `world`. `routers` applies to upstreams, `scalers` and `replicas` (`4`, or `1..8`) to a service;
    empty means as in the file. The requests begin at `begins`, in seconds since 1970; if that is None, announced load
    is left out.
    """

    file: Path
    requests: str
    world: Path
    routers: tuple[str, ...] = ()
    scalers: tuple[str, ...] = ()
    replicas: tuple[str, ...] = ()
    wanted: Wanted = Wanted()
    seed: int = 0
    begins: float | None = None


class Figures(msgspec.Struct, frozen=True, kw_only=True):
    """Figures of a trial; durations in nanoseconds. `not_answered` counts requests by reason. `in_time` is the fraction
    answered in time of all requests that the client did not cancel. `use` is per replica; `hours` and `cost` are
    totals. `per_second` is the rate of answers, and `per_dollar` that rate per dollar an hour.
    """

    asked: int
    answered: int
    not_answered: dict[str, int]
    in_time: float
    mean: float
    p50: int
    p95: int
    p99: int
    seconds: float
    per_second: float
    use: dict[str, float]
    mean_use: float
    hours: float
    cost: float
    per_dollar: float


class Rehearsed(msgspec.Struct, frozen=True, kw_only=True):
    """One trial: the router or scaler, the number of replicas, and the times (seconds) and reasons of its changes."""

    router: str = ""
    scaler: str = ""
    replicas: str = ""
    figures: Figures
    scaled: list[tuple[float, str]] = []


class Rehearsal(msgspec.Struct, frozen=True, kw_only=True):
    """All trials. `objective` is the limit for answers in time, in nanoseconds; `notes` are remarks for the reader."""

    file: str
    kind: str
    requests: str
    world: str
    seed: int
    objective: int
    skipped: dict[str, int]
    notes: list[str]
    trials: list[Rehearsed]


def rehearse(asked: Asked) -> Rehearsal:
    """Run the rehearsal. Raises `PoiseError` for unreadable input and for unknown names."""
    world, serving = load_world(asked.world)
    with located(place_in_file(asked.file)):
        if is_kind(asked.file, "upstreams"):
            kind, front = "upstreams", compile_upstreams(load_kind(asked.file, "upstreams"))
            plans, objective, notes = _of_front(front, world, serving, asked)
        else:
            kind, service = "service", load_service(asked.file, _begins(asked))
            plans, objective, notes = _of_service(service, world, serving, asked)
    source = asking(asked.requests, asked.wanted, asked.seed)
    said = [name for name in LEFT_OUT if _says(world, name)]
    if said:
        notes = [*notes, f"the world's {', '.join(said)} is about jobs, and left out"]
    trials = []
    for plan in plans:
        trial = plan.trial(source.begin())
        stories = trial.run()
        if plan.router == BY_KEY and isinstance(trial, FrontTwin) and trial.keyed < len(stories):
            notes = [*notes, _without_keys(len(stories) - trial.keyed, len(stories))]
        trials.append(
            Rehearsed(
                router=plan.router,
                scaler=plan.scaler,
                replicas=plan.replicas,
                figures=figures(trial, stories, objective),
                scaled=[(at / SECOND, line) for at, line in trial.said] if isinstance(trial, ServiceTwin) else [],
            )
        )
    return Rehearsal(
        file=asked.file.name,
        kind=kind,
        requests=source.about,
        world=world.name,
        seed=asked.seed,
        objective=objective,
        skipped=dict(sorted(source.skipped.items())),
        notes=notes,
        trials=trials,
    )


def _without_keys(without: int, count: int) -> str:
    whose = "the requests have no key" if without == count else f"{without:,} of {count:,} requests have no key"
    return f"{whose}, so that `{BY_KEY}` routes them as `{DEFAULT_ROUTER}` does"


def figures(trial: Trial, stories: Sequence[Story], objective: int, warm: int = 0) -> Figures:
    """Return the figures of a finished trial. The first `warm` requests that ended do not count for latencies and
    throughput.
    """
    counted = stories[warm:]
    took = sorted(story.took for story in counted if story.why == ANSWERED)
    missed: dict[str, int] = {}
    for story in counted:
        if story.why != ANSWERED:
            missed[story.why] = missed.get(story.why, 0) + 1
    waited_for = len(counted) - missed.get(CANCELLED, 0)
    seconds = (trial.now - (stories[warm - 1].over if warm else 0)) / SECOND
    use = {place.server.name: place.worked / place.ready for place in trial.places if place.ready}
    ready = sum(place.ready for place in trial.places)
    cost = sum(place.paid / HOUR * place.server.price for place in trial.places)
    per_second = len(took) / seconds if seconds else 0.0
    dollars_an_hour = cost / (trial.now / HOUR) if trial.now else 0.0
    return Figures(
        asked=len(counted),
        answered=len(took),
        not_answered=dict(sorted(missed.items())),
        in_time=sum(one <= objective for one in took) / waited_for if waited_for else 0.0,
        mean=fmean(took) if took else 0.0,
        p50=_rank(took, 50),
        p95=_rank(took, 95),
        p99=_rank(took, 99),
        seconds=seconds,
        per_second=per_second,
        use=use,
        mean_use=sum(place.worked for place in trial.places) / ready if ready else 0.0,
        hours=sum(place.paid for place in trial.places) / HOUR,
        cost=cost,
        per_dollar=per_second / dollars_an_hour if dollars_an_hour else 0.0,
    )


def _rank(ordered: Sequence[int], percent: int) -> int:
    """Return the nearest-rank percentile; 0 if there are no values."""
    return ordered[max(0, ceil(len(ordered) * percent / 100) - 1)] if ordered else 0


# --- trials ----------------------------------------------------------------------------------------------------------


class _Plan(NamedTuple):
    """A trial to run with some load."""

    trial: Any
    router: str = ""
    scaler: str = ""
    replicas: str = ""


def _of_service(
    told: DeclaredService, world: World, serving: Serving, asked: Asked
) -> tuple[list[_Plan], int, list[str]]:
    if asked.routers:
        raise InputError(
            "a service has one queue and no router", field="--routers", have=", ".join(asked.routers),
            hint="`--scalers`, or a file of upstreams",
        )  # fmt: skip
    known = {server.name for server in serving.servers}
    _check_changes(world, known)
    plans, notes = [], []
    if told.announced and asked.begins is None:
        notes.append("announced load is left out: `--begins` says when the requests begin")
    for replicas in asked.replicas or (told.wanted,):
        service = told if not asked.replicas else _with(replicas, asked)
        if service.replicas > len(serving.servers):
            notes.append(f"of {service.wanted} replicas the world has {len(serving.servers)}")
        names = ("",) if service.rules is None else asked.scalers or (service.scaler or DEFAULT_SCALER,)
        for name in names:
            scaler = _named(scaler_named, SCALERS, name, "--scalers") if name else None
            trial = partial(
                service_twin, service, world, serving, scaler, seed=asked.seed, announced=_announced(told, asked)
            )
            plans.append(_Plan(trial, scaler=name, replicas=service.wanted))
    return plans, told.limits.objective or told.limits.timeout, notes


def _begins(asked: Asked) -> float:
    return time.time() if asked.begins is None else asked.begins


def _announced(told: DeclaredService, asked: Asked) -> tuple[Announced, ...]:
    """Return the announced load in nanoseconds after the first request."""
    return () if asked.begins is None else after(told.announced, round(asked.begins * SECOND))


def service_twin(
    service: DeclaredService,
    world: World,
    serving: Serving,
    scaler: ReplicaPolicy | None,
    load: Load,
    *,
    seed: int,
    announced: Sequence[Announced] = (),
) -> ServiceTwin:
    """Return a service of a file in virtual time, with this load and scaler."""
    return ServiceTwin(
        service.limits,
        serving,
        load,
        replicas=service.replicas,
        rules=service.rules,
        window=service.window,
        scaler=scaler,
        announced=announced,
        seed=seed,
        losses=world.losses,
        changes=world.changes,
    )


def _with(replicas: str, asked: Asked) -> DeclaredService:
    """Return the service of the file with a different number of replicas."""
    document = dict(load_kind(asked.file, "service")) | {"replicas": replicas}
    if ".." not in replicas:
        document.pop("scaling", None)
    return compile_service(with_calendar(document, asked.file.parent, _begins(asked)))


def _of_front(front: Front, world: World, serving: Serving, asked: Asked) -> tuple[list[_Plan], int, list[str]]:
    for flag, given in (("--scalers", asked.scalers), ("--replicas", asked.replicas)):
        if given:
            what = "upstreams are as many as the file has"
            raise InputError(what, field=flag, have=", ".join(given), hint="`--routers`, or a file of a service")
    known = {server.name for server in serving.servers}
    missing = [told.name for told in front.upstreams if told.name not in known]
    if missing:
        raise SpecError(
            "the world has no speed for an upstream", code="E105", field="upstreams",
            need="a replica of its name",
            have=", ".join(missing), hint=f"serving: {{replicas: [{{name: {missing[0]}, batch: [[1, 30ms]]}}]}}",
        )  # fmt: skip
    _check_changes(world, {told.name for told in front.upstreams})
    plans = []
    for name in asked.routers or (front.router or DEFAULT_ROUTER,):
        router = _named(router_named, ROUTERS, name, "--routers")

        def trial(load: Load, router: Any = router) -> Trial:
            return FrontTwin(front, serving, load, router, seed=asked.seed, losses=world.losses, changes=world.changes)

        plans.append(_Plan(trial, router=name, replicas=str(len(front.upstreams))))
    return plans, front.objective or front.timeout, []


def _named(find: Any, known: Any, name: str, flag: str) -> Any:
    try:
        return find(name)
    except KeyError:
        what = f"there is no such {flag.strip('-').removesuffix('s')}"
        raise InputError(what, code="E105", field=flag, need=f"one of {', '.join(known)}", have=name) from None


# --- the world -------------------------------------------------------------------------------------------------------


def load_world(path: Path) -> tuple[World, Serving]:
    """Return a world file, with the measured speeds of its replicas. Raises `PoiseError`."""
    document = load_kind(path, "world")
    with located(place_in_file(path)):
        world = compile_world(document)
        if world.serving is None:
            raise SpecError(
                "the world has no speed for replicas", field="serving", need="its replicas", have="nothing",
                hint="serving: {replicas: [{name: h100, count: 4, batch: [[1, 30ms], [8, 44ms]]}]}",
            )  # fmt: skip
    servers = tuple(_measured(server, path) for server in world.serving.servers)
    return world, msgspec.structs.replace(world.serving, servers=servers)


def _check_changes(world: World, names: set[str]) -> None:
    for place, change in enumerate(world.changes):
        if change.node not in names:
            raise SpecError(
                "this replica does not exist", code="E105", field=f"changes[{place}].node",
                need=f"one of {', '.join(sorted(names))}", have=change.node,
            )  # fmt: skip


def _says(world: World, name: str) -> bool:
    if name == "power":
        return any(value is not None for value in (world.idle, world.busy, world.kg_per_kwh))
    return bool(getattr(world, name) != getattr(World(), name))


def _measured(server: Server, world: Path) -> Server:
    told = server.speed.measured
    if told is None:
        return server
    return msgspec.structs.replace(server, speed=_read_measured(world.parent / told.file, told))


def _read_measured(path: Path, told: Measured) -> Speed:
    """Return the speed as medians of measurements: the reading time of a prompt by its length, for single requests, and
    the time per token by batch size. All batch sizes use the same prompt length if they have it, else their shortest.
    """
    tally = Tally(path, strict=True)
    reads: dict[int, list[float]] = {}
    writes: dict[int, dict[int, list[float]]] = {}
    columns = (
        "model", "hardware", "prompt_size", "batch_size", "prompt_time", "token_time", "tensor_parallel"
    )  # fmt: skip
    for row in table(path, tally, columns):
        if (row.text("model"), row.text("hardware")) != (told.model, told.hardware):
            continue
        if row.whole("tensor_parallel") != told.devices:
            continue
        prompt, batch = row.whole("prompt_size", least=1), row.whole("batch_size", least=1)
        if batch == 1:
            reads.setdefault(prompt, []).append(row.number("prompt_time"))
        writes.setdefault(batch, {}).setdefault(prompt, []).append(row.number("token_time"))
    if not reads:
        raise fault(
            "nothing is measured of that", path, need=f"rows of {told.model} on {told.devices} {told.hardware}",
            hint=f"`cut -d, -f1,2,11 {path} | sort -u`",
        )  # fmt: skip
    widest = max(min(prompts) for prompts in writes.values())
    return Speed(
        prompt=_table((size, median(times)) for size, times in reads.items()),
        step=_table((size, median(prompts.get(widest) or prompts[min(prompts)])) for size, prompts in writes.items()),
        tokens=True,
        measured=told,
    )


def _table(milliseconds: Iterator[tuple[int, float]]) -> Table:
    return tuple((size, takes * MILLISECOND) for size, takes in sorted(milliseconds))
