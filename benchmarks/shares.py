"""Measure fair shares in the twin: whether each tenant gets its entitlement, and at what cost.

    python benchmarks/shares.py [--what drawn,philly,cycles] [--days 30] [--first 0] [--seeds 300] [--jobs 6000]
        [--data ../shared/data]

`drawn`: 20 tenants with bursts on 64 devices for 30 days, every second one idle for days at a time. `philly`: jobs of
Microsoft's trace, with each virtual cluster as a tenant, on enough devices to keep them loaded. Each tenant is
guaranteed its part of the fleet, and lends it. The same jobs also run without shares (*unfair*).

A tenant's *entitlement*, at each instant, is its guarantee or its demand, whichever is less. `short`: the fraction of
its entitlement over 7 days that it did not get, over all windows of 7 days (one every 6 hours) with a demand. `While a
job fits` excludes the time in which all waiting jobs of the tenant are larger than the unused part of its guarantee.

The *ideal* knows all run times, and stops and starts jobs at no cost. It runs each tenant's shortest jobs up to its
guarantee, then the shortest of all jobs, or those of the tenant with the least debt. Without shares, it runs the
shortest of all jobs.

`cycles`: seeds of small worlds of two to five tenants, and the two cases of Kueue. The figure counts pairs of units
that were stopped for each other's node in turn within a minute.

`decide`: CPU time of one decision with and without shares. By default, 1,000 tenants with equal guarantees hold 9,900
of 10,000 nodes, some more than their guarantee and some less, and 10,000 jobs of one device wait. Decisions with and
without shares take turns: first on the same view, then while jobs come and start between them.
"""

import argparse
import random
from bisect import bisect_left
from collections import Counter
from collections.abc import Mapping, Sequence
from itertools import islice
from math import inf
from pathlib import Path
from statistics import fmean, median
from time import process_time
from typing import Any, Literal, NamedTuple

import msgspec
from clusters import nodes_of
from decide import DEVICES, World

from poise.drivers.system import settle_memory
from poise.kernel.controller import Settings
from poise.model.decisions import Place, Spot, Why
from poise.model.events import Event, JobSubmitted, Placed, Preempted, SharesSet, Started
from poise.model.history import Span
from poise.model.jobs import Job, Priority, Task, Unit
from poise.model.resources import Node, Shape
from poise.model.share_tree import ShareTree
from poise.model.sharefile import compile_shares
from poise.model.workload import Arrival, Steady, Truth, Workload
from poise.policy.suites import policy_named
from poise.units import DAY, HOUR, MINUTE, SECOND, format_duration
from poise_lab.measures import JobResult
from poise_lab.traces.formats import read_trace
from poise_lab.traces.options import Options
from poise_lab.trial import Result, simulate

WINDOW, STEP = 7 * DAY, 6 * HOUR
SPANS = 10**9
IDEAL_SECONDS = 600.0
"""Maximum time until the ideal sorts the jobs again, because debts change."""


class Case(NamedTuple):
    name: str
    nodes: list[Node]
    workload: Workload
    shares: ShareTree
    guaranteed: dict[str, float]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--what", default="drawn,philly,cycles")
    parser.add_argument("--days", type=int, default=30)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--nodes", type=int, default=8, help="nodes of 8 devices that the drawn tenants share")
    parser.add_argument("--tenants", type=int, default=20)
    parser.add_argument("--wide", type=int, default=10_000, help="nodes of `decide`")
    parser.add_argument("--many", type=int, default=1000, help="tenants of `decide`")
    parser.add_argument("--first", type=int, default=0, help="first seed of `cycles`")
    parser.add_argument("--seeds", type=int, default=300)
    parser.add_argument("--jobs", type=int, default=6000)
    parser.add_argument("--data", type=Path, default=Path(__file__).parents[2] / "shared" / "data")
    given = parser.parse_args()
    what = given.what.split(",")
    if "drawn" in what:
        compare(drawn(given.seed, given.days, given.tenants, given.nodes))
    if "philly" in what:
        compare(philly(given.data, given.jobs))
    if "decide" in what:
        decisions(given.wide, given.many)
    if "cycles" in what:
        cycles(given.first, given.seeds)


# --- the fleet shared by tenants -------------------------------------------------------------------------------------


def drawn(seed: int, days: int, tenants: int = 20, nodes: int = 8) -> Case:
    """Return tenants with weights from 1 to 4 that alternate between busy and idle days, with a demand of twice their
    part when busy.
    """
    draw = random.Random(f"shares {seed}")
    weights = {f"t{number:02}": draw.choice([1, 1, 2, 2, 3, 4]) for number in range(tenants)}
    devices, total = 8 * nodes, sum(weights.values())
    arrivals = []
    for tenant, weight in weights.items():
        at, busy = 0.0, draw.random() < 0.5
        until = draw.expovariate(1 / (3 * 86400))
        part = devices * weight / total
        while at < days * 86400:
            if not busy:
                at, busy = until, True
                until = at + draw.expovariate(1 / (3 * 86400))
                continue
            size = draw.choice([size for size in (1, 1, 1, 2, 4) if size <= max(1.0, part / 2)])
            seconds = min(2 * 86400.0, draw.lognormvariate(9.3, 1.2))
            at += draw.expovariate(2.0 * part / (size * 20000.0))
            if at >= until:
                at, busy = until, False
                until = at + draw.expovariate(1 / (3 * 86400))
                continue
            arrivals.append(_arrival(int(at * SECOND), tenant, size, seconds, draw))
    arrivals.sort(key=lambda one: one.at)
    workload = Workload(name=f"drawn {seed}", arrivals=tuple(one for one in arrivals if one.at < days * DAY))
    return _case(workload, nodes_of({"A100-80": nodes}, 8), weights)


def _arrival(at: int, tenant: str, size: int, seconds: float, draw: random.Random) -> Arrival:
    shape = Shape(cpu=1000, memory=2**30, gpus=size)
    unit = Unit(
        name="main",
        tasks=(Task(name="main", argv=("true",)),),
        shape=shape,
        priority=Priority.MEDIUM,
        kind=f"{tenant}:train",
        expect=int(seconds * draw.lognormvariate(0, 0.54) * SECOND),
        checkpoint=10 * MINUTE,
        restore=30 * SECOND,
    )
    truth = Truth(pace=Steady(seconds), checkpoint=10 * MINUTE, saves=True, restore=30 * SECOND)
    return Arrival(at=at, units=(unit,), truths={"main": truth}, tenant=tenant)


def philly(data: Path, jobs: int) -> Case:
    """Return the trace with a guarantee for each virtual cluster in proportion to its total use."""
    workload = read_trace(data / "philly" / "philly.csv.gz", Options(jobs=jobs))
    used: dict[str, float] = {}
    for arrival in workload.arrivals:
        unit = arrival.units[0]
        seconds = unit.declared / SECOND
        used[arrival.tenant] = used.get(arrival.tenant, 0.0) + seconds * unit.shape.gpus * len(unit.tasks)
    span = (workload.arrivals[-1].at - workload.arrivals[0].at) / SECOND
    nodes = max(8, round(sum(used.values()) / span / 8 / 0.9))
    weights = {tenant: max(1.0, 100 * amount / sum(used.values())) for tenant, amount in used.items()}
    return _case(workload, nodes_of({"P100": nodes}, 8), weights)


def _case(workload: Workload, nodes: list[Node], weights: Mapping[str, float]) -> Case:
    devices, total = sum(len(node.devices) for node in nodes), sum(weights.values())
    parts = {tenant: devices * weight / total for tenant, weight in weights.items()}
    guaranteed = {tenant: float(int(part)) for tenant, part in parts.items()}  # whole devices; the rest by the largest
    for tenant in sorted(parts, key=lambda one: int(parts[one]) - parts[one])[
        : devices - int(sum(guaranteed.values()))
    ]:
        guaranteed[tenant] += 1
    shares = [
        {"tenant": tenant, "weight": weight, "guaranteed": {"gpu": guaranteed[tenant]}}
        for tenant, weight in weights.items()
    ]
    tree = compile_shares({"kind": "shares", "shares": shares})
    return Case(workload.name, nodes, workload, tree, guaranteed)


def compare(case: Case) -> None:
    devices = sum(len(node.devices) for node in case.nodes)
    print(
        f"{case.name}: {len(case.workload.arrivals)} jobs, {devices} devices, {len(case.guaranteed)} tenants",
        flush=True,
    )
    rows = {}
    for name, shares in (("unfair", None), ("fair", case.shares)):
        turns = Turns()
        result = simulate(
            case.workload, case.nodes, policy_named("poise"), Settings(), shares=shares, spans=SPANS, observe=turns.take
        )
        rows[name] = row = figures(case, result) | {"cycles": len(turns.found)}
        print(
            f"  {name:7} mean completion {row['mean']:.3f} h, use {row['use']:.4f}, short: worst {row['worst']:.1%}, "
            f"P95 {row['p95']:.1%}, worst while a job fits {row['fits']:.2%}, windows over 2 % {row['over']:.1%}, "
            f"preemptions a job {row['preempted']:.2f}, "
            f"cycles {row['cycles']}, rounds a job {row['rounds']:.2f}",
            flush=True,
        )
    fair, unfair = rows["fair"], rows["unfair"]
    print(f"  fair over unfair: mean {fair['mean'] / unfair['mean']:.3f}, use {fair['use'] / unfair['use']:.4f}")
    free = ideal(case, "free")
    told = ", ".join(f"{order} {ideal(case, order) / free:.3f}" for order in ("shortest", "debt"))
    print(f"  ideal: mean completion {free:.3f} h; with guarantees, and the rest by: {told}", flush=True)


def ideal(case: Case, order: Literal["free", "shortest", "debt"]) -> float:
    """Return the mean completion, in hours, if run times are known and changes are free."""
    jobs = [(arrival.at / SECOND, *_size(arrival), arrival.tenant) for arrival in case.workload.arrivals]
    left = [seconds for _, seconds, _, _ in jobs]
    devices, life = sum(len(node.devices) for node in case.nodes), case.shares.half_life / SECOND
    owed = dict.fromkeys(case.guaranteed, 0.0)
    present: list[int] = []
    now, total, coming = 0.0, 0.0, 0
    while present or coming < len(jobs):
        present.sort(key=lambda number: left[number])
        free, held, running, waiting = devices, dict.fromkeys(owed, 0), list[int](), list[int]()
        for number in present:
            size, tenant = jobs[number][2:]
            if order != "free" and size <= min(free, case.guaranteed[tenant] - held[tenant]):
                free, held[tenant] = free - size, held[tenant] + size
                running.append(number)
            else:
                waiting.append(number)
        if order == "debt":
            waiting.sort(key=lambda number: owed[jobs[number][3]] / case.guaranteed[jobs[number][3]])
        for number in waiting:
            size, tenant = jobs[number][2:]
            if size <= free:
                free, held[tenant] = free - size, held[tenant] + size
                running.append(number)
        until = min([left[number] for number in running], default=inf)
        until = min(until, jobs[coming][0] - now if coming < len(jobs) else inf, IDEAL_SECONDS)
        for tenant, amount in held.items():
            borrowed = max(0.0, amount - case.guaranteed[tenant])
            owed[tenant] = owed[tenant] * 2 ** (-until / life) + borrowed * until
        now += until
        for number in running:
            left[number] -= until
            if left[number] <= 1e-6:
                present.remove(number)
                total += now - jobs[number][0]
        while coming < len(jobs) and jobs[coming][0] <= now:
            present.append(coming)
            coming += 1
    return total / len(jobs) / (HOUR / SECOND)


def _size(arrival: Arrival) -> tuple[float, int]:
    """Return the run time of a job in seconds, and its number of devices."""
    unit, truth = arrival.units[0], arrival.truths["main"]
    seconds = truth.pace.seconds if isinstance(truth.pace, Steady) else unit.declared / SECOND
    return seconds, unit.shape.gpus * len(unit.tasks)


class Steps:
    """A step function of time, and its integral."""

    def __init__(self, changes: dict[int, float]) -> None:
        self.at = sorted(changes)
        self.values, self.sums = [], [0.0]
        value = 0.0
        for place, at in enumerate(self.at):
            value += changes[at]
            self.values.append(value)
            if place + 1 < len(self.at):
                self.sums.append(self.sums[-1] + value * (self.at[place + 1] - at))

    def until(self, instant: int) -> float:
        place = bisect_left(self.at, instant) - 1
        return 0.0 if place < 0 else self.sums[place] + self.values[place] * (instant - self.at[place])


def figures(case: Case, result: Result) -> dict[str, Any]:
    """Return completion, use, and the shortfall of tenants."""
    tenant = {job.id: job.tenant for job in result.jobs}
    asks: dict[str, dict[int, float]] = {name: {} for name in case.guaranteed}
    held: dict[str, dict[int, float]] = {name: {} for name in case.guaranteed}
    last = case.workload.arrivals[-1].at

    def add(changes: dict[int, float], since: int, until: int, amount: float) -> None:
        if until > since:
            changes[since] = changes.get(since, 0.0) + amount
            changes[until] = changes.get(until, 0.0) - amount

    for job in result.jobs:
        add(asks[job.tenant], job.submitted, job.ended if job.ended >= 0 else last, job.devices)
    for span in result.spans:
        add(held[tenant[span.job]], span.since, span.until or last, len(span.devices))
    short, fits = [], [0.0]
    for name, guaranteed in case.guaranteed.items():
        entitled = Steps(capped(asks[name], guaranteed))
        jobs = [job for job in result.jobs if job.tenant == name]
        spans = [span for span in result.spans if tenant[span.job] == name]
        unused = Steps(unfit(jobs, spans, guaranteed, last))
        got = Steps(capped(held[name], guaranteed))
        for begin in range(0, max(1, last - WINDOW), STEP):
            end = min(last, begin + WINDOW)
            due = entitled.until(end) - entitled.until(begin)
            if due > 0.01 * guaranteed * (end - begin):
                received = got.until(end) - got.until(begin)
                short.append(max(0.0, 1 - received / due))
                fits.append(1 - (received + unused.until(end) - unused.until(begin)) / due)
    short.sort()
    done = [job for job in result.jobs if job.ended >= 0]
    devices = sum(len(node.devices) for node in case.nodes)
    use = sum(Steps(changes).until(last) for changes in held.values()) / (devices * last)
    return {
        "mean": fmean(job.completion for job in done) / HOUR,
        "use": use,
        "worst": short[-1] if short else 0.0,
        "fits": max(fits),
        "p95": short[int(0.95 * (len(short) - 1))] if short else 0.0,
        "over": sum(one > 0.02 for one in short) / max(1, len(short)),
        "preempted": sum(job.preempted for job in result.jobs) / len(result.jobs),
        "rounds": result.rounds / len(result.jobs),
    }


def capped(changes: dict[int, float], most: float) -> dict[int, float]:
    """Return the changes of the same function, limited to `most`."""
    capped_at, value, before = {}, 0.0, 0.0
    for at in sorted(changes):
        value += changes[at]
        now = min(value, most)
        if now != before:
            capped_at[at] = now - before
            before = now
    return capped_at


def unfit(jobs: Sequence[JobResult], spans: Sequence[Span], most: float, last: int) -> dict[int, float]:
    """Return the changes of the unused part of a guarantee of `most` devices while no waiting job fits into it."""
    size = {job.id: job.devices for job in jobs}
    changes = [(job.submitted, job.id, 1, 0) for job in jobs]
    changes += [(job.ended if job.ended >= 0 else last, job.id, -1, 0) for job in jobs]
    changes += [(span.since, span.job, 0, len(span.devices)) for span in spans]
    changes += [(span.until or last, span.job, 0, -len(span.devices)) for span in spans]
    present, held = set[str](), Counter[str]()
    found, before = dict[int, float](), 0.0
    for at, job, comes, more in sorted(changes):
        if comes:
            (present.add if comes > 0 else present.discard)(job)
        held[job] += more
        unused = most - held.total()
        waiting = [size[one] for one in present if not held[one]]
        now = min(unused, sum(waiting)) if waiting and 0 < unused < min(waiting) else 0.0
        if now != before:
            found[at] = found.get(at, 0.0) + now - before
            before = now
    return found


# --- the cost of a decision ------------------------------------------------------------------------------------------


def decisions(nodes: int, tenants: int, rounds: int = 25) -> None:
    """Print the CPU time of decisions with and without shares, in turn: first of the same view again and again, then
    while jobs come and start between them.
    """
    worlds = {"without shares": crowded(nodes, tenants), "with shares": crowded(nodes, tenants)}
    policy, now, names = policy_named("poise"), worlds["with shares"].now + HOUR, tenants_of(tenants)
    each = {"guaranteed": {"gpu": nodes * DEVICES // tenants}}
    tree = compile_shares({"kind": "shares", "shares": [{"tenant": name, **each} for name in names]})
    worlds["with shares"].ledger.apply(SharesSet(at=now, tree=tree))
    plans = {name: policy.decide(world.ledger.snapshot(now)) for name, world in worlds.items()}
    settle_memory()  # as the control plane does
    for name, plan in plans.items():
        print(f"{name}: {dict(Counter(type(one).__name__.lower() for one in plan.decisions))}")
    arrive, alike = random.Random("moving"), {name: random.Random("runs") for name in worlds}
    for moving in (False, True):
        seconds: dict[str, list[float]] = {name: [] for name in worlds}
        for _ in range(rounds):
            now += SECOND * moving
            come = [arrive.choice(names) for _ in range(moving * nodes // 100)]
            for name, world in worlds.items():
                for tenant in come:
                    submit(world, now, tenant, 1, alike[name])
                begun = process_time()
                plan = policy.decide(world.ledger.snapshot(now))
                seconds[name].append(process_time() - begun)
                starts = (one for one in plan.decisions if isinstance(one, Place))
                for one in islice(starts, moving * nodes // 500):
                    world.ledger.apply(Placed(at=now, unit=one.unit, epoch=1, spots=one.spots, why=one.why))
        print("jobs come and start:" if moving else "the same view:")
        for name, of in seconds.items():
            print(f"  decision {name}: {median(of):.4f} s of CPU ({min(of):.4f} to {max(of):.4f})")
        ratio = median(seconds["with shares"]) / median(seconds["without shares"])
        print(f"  with over without: {ratio:.2f}", flush=True)


def tenants_of(count: int) -> list[str]:
    return [f"t{number:04}" for number in range(count)]


def submit(world: World, now: int, tenant: str, devices: int, draw: random.Random) -> str:
    arrival = _arrival(now, tenant, devices, draw.lognormvariate(9.3, 1.2), draw)
    job = Job(id=world.ledger.jobs.next_id(), units=arrival.units, tenant=tenant)
    world.ledger.apply(JobSubmitted(at=now, job=job))
    return job.id


def crowded(nodes: int, tenants: int) -> World:
    """Return a world in which the jobs of the tenants hold 99 % of the nodes, and as many jobs as nodes wait."""
    draw, names = random.Random("decide"), tenants_of(tenants)
    world = World(nodes, pending=0, shapes=1, gaps=None)
    ledger, now = world.ledger, world.now
    for number in range(nodes - nodes // 100):
        unit = f"{submit(world, now, draw.choice(names), DEVICES, draw)}.main"
        spots = (Spot(f"n{number:05d}", tuple(range(DEVICES))),)
        ledger.apply(Placed(at=now, unit=unit, epoch=1, spots=spots, why=Why(policy="poise")))
        ledger.apply(Started(at=now, task=unit, epoch=1, pid=1))
    for _ in range(nodes):
        submit(world, now, draw.choice(names), 1, draw)
    return world


# --- eviction cycles -------------------------------------------------------------------------------------------------


class Stop(NamedTuple):
    """An order to a unit of one tenant to make room for a unit of another."""

    at: int
    unit: str
    to: str
    loses: str
    gains: str
    rank: str

    def __str__(self) -> str:
        at = format_duration(self.at)
        return f"{self.unit} ({self.loses}) for {self.to} ({self.gains}) at {at}: {self.rank}"


class Turns:
    """Records which unit was stopped for which. A cycle: a unit is stopped for one of another tenant, which starts, and
    is stopped for one of the first tenant before it has run for a minute. `found` has both stops of each cycle.
    """

    def __init__(self) -> None:
        self.stops = 0
        self.found: list[tuple[Stop, Stop]] = []
        self._tenants: dict[str, str] = {}
        self._placed: dict[str, int] = {}
        self._promised: dict[str, Stop] = {}  # the last stop for a unit that has not started yet
        self._gained: dict[str, Stop | None] = {}  # the last stop for the present attempt

    def take(self, event: Event) -> None:
        match event:
            case JobSubmitted():
                self._tenants[event.job.id] = event.job.tenant
            case Placed():
                self._placed[event.unit] = event.at
                self._gained[event.unit] = self._promised.pop(event.unit, None)
            case Preempted() if event.to:
                loses, gains = self._of(event.unit), self._of(event.to)
                stop = Stop(event.at, event.unit, event.to, loses, gains, event.why.rank)
                before, ran = self._gained.get(event.unit), event.at - self._placed.get(event.unit, 0)
                self.stops += 1
                if ran < MINUTE and before is not None and before.loses == gains != loses:
                    self.found.append((before, stop))
                self._promised[event.to] = stop

    def _of(self, unit: str) -> str:
        return self._tenants[unit.partition(".")[0]]


def cycles(first: int, seeds: int) -> None:
    total = stops = 0
    for seed in range(first, first + seeds):
        turns = _turns(_small(seed))
        total += len(turns.found)
        stops += turns.stops
        for before, after in turns.found:
            print(f"  seed {seed}: {before}; then {after}", flush=True)
    print(f"cycles: {total} in {seeds} seeds from {first} with {stops} stops", flush=True)
    for name, case in kueue().items():
        turns = _turns(case)
        print(f"  {name}: {len(turns.found)} cycles, {turns.stops} stops")


def _turns(case: Case) -> Turns:
    turns = Turns()
    simulate(case.workload, case.nodes, policy_named("poise"), Settings(), shares=case.shares, observe=turns.take)
    return turns


def _small(seed: int) -> Case:
    draw = random.Random(f"cycle {seed}")
    tenants = {f"t{number}": draw.choice([1, 1, 2, 3]) for number in range(draw.randint(2, 5))}
    nodes = nodes_of({"A100-80": draw.randint(1, 3)}, draw.choice([4, 8]))
    arrivals = []
    for number in range(draw.randint(10, 40)):
        tenant = draw.choice(list(tenants))
        size = draw.choice([1, 1, 2, 4])
        seconds = draw.lognormvariate(6.5, 1.0)
        arrivals.append(_arrival(number * draw.randint(1, 600) * SECOND, tenant, size, seconds, draw))
    arrivals.sort(key=lambda one: one.at)
    case = _case(Workload(name=f"small {seed}", arrivals=tuple(arrivals)), nodes, tenants)
    if draw.random() < 0.5:  # some have no guarantee, and borrow all devices
        free = [
            msgspec.structs.replace(node, guaranteed={}) if draw.random() < 0.5 else node for node in case.shares.nodes
        ]
        case = case._replace(shares=msgspec.structs.replace(case.shares, nodes=tuple(free)))
    return case


def kueue() -> dict[str, Case]:
    """Return two queues of one cohort whose pending jobs can each evict the other's: kubernetes-sigs/kueue#3779 (both
    borrow, preemption by share and by priority), and #14543 (a plan that frees victims of its own queue last).
    """
    draw = random.Random("kueue")

    def case(name: str, jobs: Sequence[tuple[float, str, int]], shares: Sequence[dict[str, Any]], devices: int) -> Case:
        arrivals = tuple(_arrival(int(at * SECOND), tenant, size, 3600.0, draw) for at, tenant, size in jobs)
        tree = compile_shares({"kind": "shares", "shares": list(shares)})
        return Case(name, nodes_of({"A100-80": 1}, devices), Workload(name=name, arrivals=arrivals), tree, {})

    borrowing = [(0, "a", 4), (300, "b", 4), (600, "a", 4), (900, "b", 4), (1200, "a", 2), (1300, "b", 2)]
    mixed = [(0, "a", 3), (1, "a", 2), (300, "b", 4), (301, "b", 1), (600, "a", 3), (900, "c", 2), (901, "b", 3)]
    return {
        "kueue 3779": case("3779", borrowing, [{"tenant": "a"}, {"tenant": "b"}], 6),
        "kueue 14543": case(
            "14543",
            mixed,
            [{"tenant": "a", "guaranteed": {"gpu": 2}}, {"tenant": "b", "guaranteed": {"gpu": 4}}, {"tenant": "c"}],
            8,
        ),
    }


if __name__ == "__main__":
    main()
