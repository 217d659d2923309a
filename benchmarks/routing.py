"""Compare routers over unequal replicas, in virtual time: mean and P99 of each, with the clairvoyant bound.

    python benchmarks/routing.py [--trace ../shared/data/azure-llm-2023/conv.csv] [--requests 40000] [--loads 0.2,...]
        [--seed 1] [--json]

An open loop: Poisson arrivals; four replicas of speeds 1, 0.8, 0.4 and 0.25 that serve one request at a time; a load of
1 is their total capacity. Times are in units of the mean service on the fastest replica. Sizes are exponential, bounded
Pareto (1.3, up to 1,000 times the least), and those of Azure's conversations: a token written counts as much as 20
read. The policies are those that run live; all get the same arrivals. They know:

* `weighted`, `consistent-hash` (1,000 equally frequent keys): the speeds, as weights.
* `expected-delay by count`: the speeds, and the number of outstanding requests.
* `expected-delay, learned`: only the requests sent and answered, with no sizes, with wrong sizes (log-normal, sigma
  0.5), and on Azure's trace with only the prompt tokens, as on arrival of a request.
* `expected-delay, exact`: the speeds, and all sizes exactly. The target: ours with wrong sizes within 15 % of that.
* `clairvoyant`: shortest remaining time first, on the fastest replicas, with free migration of requests.

Then eight replicas (each speed twice, exponential sizes, a load of 0.85) report metrics at intervals (in mean
services). The router uses metrics alone, its own requests in flight, or both; the metrics are right, or twice too high
and noisy (log-normal, sigma 0.5); there is one router, or four independent ones. Then the two lanes: for requests in
bursts with a deadline of 10 services, the fraction answered in time, and the waits of the others. Last, the four
replicas with 4 and 16 slots of these speeds each, and with processor sharing among all of their requests, on Azure's
sizes; the learning router knows none of this. `--slots` measures only that, for example on the trace of code.
"""

import argparse
import heapq
import json
import sys
from bisect import insort
from collections import deque
from collections.abc import Callable, Sequence
from itertools import count
from math import exp, floor
from pathlib import Path
from random import Random
from statistics import fmean
from typing import Any, NamedTuple

from harness import percentile

from poise.units import MILLISECOND
from poise_lab.traces.requests import calls
from poise_lab.traces.rows import Tally
from poise_serve.model.routing import Asked, ReplicaView, RouteView
from poise_serve.model.speeds import Reckoner
from poise_serve.policy.route import RouterPolicy, lane_of, next_lane, router_named

SPEEDS = (1.0, 0.8, 0.4, 0.25)
NAMES = tuple(f"r{at}" for at in range(2 * len(SPEEDS)))
ROWS = {name: at for at, name in enumerate(NAMES)}
LOADS = (0.2, 0.38, 0.5, 0.65, 0.8, 0.9, 0.95)
UNIT = 100 * MILLISECOND
WRITTEN = 20
PARETO, LONGEST = 1.3, 1000.0
NOISE = 0.5
KEYS = 1000
WARM_UP = 0.1
WITHIN = 0.15

STALE_LOAD, STALE_PART = 0.85, 0.5
AGES = (0.0, 0.3, 1.0, 3.0, 10.0, 30.0)

SLOTS, SLOTS_LOADS = (4, 16), (0.2, 0.5, 0.8, 0.95)

OBJECTIVE, AT_ONCE = 10.0, 2
BURST, BURSTS = 100.0, (1.5, 0.4)


class Request(NamedTuple):
    """`at` and `work` are in units, the work on the fastest replica; `guess` is the known part of its size."""

    at: float
    work: float
    guess: float = 1.0


class Servers:
    """Replicas with slots that each serve one request at a time; answers are returned in order of time."""

    def __init__(self, speeds: Sequence[float], slots: int = 1) -> None:
        self.speeds = speeds
        self.slots = slots
        self.free = [[0.0] * slots for _ in speeds]
        self.outstanding = [0] * len(speeds)
        self.ends: list[tuple[float, int, int]] = []

    def send(self, number: int, at: int, request: Request) -> None:
        """Send the request to replica `at`."""
        end = max(self.free[at][0], request.at) + request.work / self.speeds[at]
        heapq.heapreplace(self.free[at], end)
        self.outstanding[at] += 1
        heapq.heappush(self.ends, (end, number, at))

    def answered(self, now: float) -> list[tuple[float, int, int]]:
        """Return the instants, requests and replicas of the answers until now."""
        told = []
        while self.ends and self.ends[0][0] <= now:
            told.append(heapq.heappop(self.ends))
            self.outstanding[told[-1][2]] -= 1
        return told

    def left(self, at: int, now: float) -> float:
        """Return the time until a slot is free."""
        return max(0.0, self.free[at][0] - now)


class Divided(Servers):
    """Replicas with processor sharing among all of their requests."""

    def __init__(self, speeds: Sequence[float]) -> None:
        super().__init__(speeds)
        self.had = [0.0] * len(speeds)  # work done for each current request
        self.until = [0.0] * len(speeds)
        self.there: list[list[tuple[float, int]]] = [[] for _ in speeds]

    def send(self, number: int, at: int, request: Request) -> None:
        self._serve(at, request.at)
        self.outstanding[at] += 1
        heapq.heappush(self.there[at], (self.had[at] + request.work, number))

    def answered(self, now: float) -> list[tuple[float, int, int]]:
        told = []
        while any(self.there):
            end, at = min((self._end(at), at) for at, there in enumerate(self.there) if there)
            if end > now:
                break
            self._serve(at, end)
            self.outstanding[at] -= 1
            told.append((end, heapq.heappop(self.there[at])[1], at))
        return told

    def _end(self, at: int) -> float:
        """Return the end of the request that will be done first."""
        return self.until[at] + (self.there[at][0][0] - self.had[at]) * len(self.there[at]) / self.speeds[at]

    def _serve(self, at: int, now: float) -> None:
        if self.there[at]:
            self.had[at] += (now - self.until[at]) * self.speeds[at] / len(self.there[at])
        self.until[at] = now


Known = Callable[[Servers, int, Request], ReplicaView]
"""Returns the known state of a replica when a request arrives."""


def _counted(servers: Servers, at: int, request: Request) -> ReplicaView:
    pace = UNIT / servers.speeds[at]
    outstanding = servers.outstanding[at]
    before = max(0, outstanding - servers.slots + 1) / servers.slots
    return ReplicaView(NAMES[at], servers.speeds[at], outstanding, int(before * pace), int(pace))


def _exactly(servers: Servers, at: int, request: Request) -> ReplicaView:
    backlog, cost = servers.left(at, request.at), request.work / servers.speeds[at]
    return ReplicaView(NAMES[at], 1.0, servers.outstanding[at], int(backlog * UNIT), int(cost * UNIT))


def told(
    router: RouterPolicy, requests: Sequence[Request], known: Known, seed: int, servers: Servers | None = None
) -> list[float]:
    """Return the response times under a router that gets the true state of the replicas."""
    servers, random = servers or Servers(SPEEDS), Random(seed)
    took = [0.0] * len(requests)

    def answers(until: float) -> None:
        for end, number, _ in servers.answered(until):
            took[number] = end - requests[number].at

    for number, request in enumerate(requests):
        answers(request.at)
        replicas = tuple([known(servers, at, request) for at in range(len(SPEEDS))])
        asked = Asked(key=f"k{random.randrange(KEYS)}")
        view = RouteView(int(request.at * UNIT), asked, replicas, turn=number, seed=random.getrandbits(64))
        servers.send(number, ROWS[router.decide(view).replica], request)
    answers(float("inf"))
    return took


def learned(
    requests: Sequence[Request],
    speeds: Sequence[float] = SPEEDS,
    *,
    routers: int = 1,
    metrics: Callable[[float], float] | None = None,
    age: float = 0.0,
    own: bool = True,
    seed: int = 0,
    servers: Servers | None = None,
) -> list[float]:
    """Return the response times under `expected-delay`, learned from requests sent and answered, with `routers`
    independent routers. Each reads metrics every `age` (`metrics` maps a backlog to its metric), or none; without
    `own`, by metrics alone.
    """
    router, random = router_named("expected-delay"), Random(seed)
    servers, all_of = servers or Servers(speeds), range(len(speeds))
    reckoners = [Reckoner() for _ in range(routers)]
    for reckoner in reckoners:
        for at in all_of:
            reckoner.add(NAMES[at], 0)
    sent_by: dict[int, int] = {}
    read = [-1.0] * routers
    others = [[-1] * len(speeds) for _ in range(routers)]
    took = [0.0] * len(requests)

    def learn(until: float) -> None:
        for end, number, at in servers.answered(until):
            took[number] = end - requests[number].at
            reckoners[sent_by.pop(number)].answered(NAMES[at], str(number), int(end * UNIT))

    for number, request in enumerate(requests):
        mine = random.randrange(routers)
        reckoner = reckoners[mine]
        phase = age * mine / routers
        scrape = request.at if age == 0.0 else phase + floor((request.at - phase) / age) * age
        if metrics is not None and scrape > read[mine]:
            learn(scrape)
            read[mine] = scrape
            for at in all_of:
                backlog = reckoner.known(NAMES[at], 1.0, int(scrape * UNIT))[1] if own else 0
                others[mine][at] = max(0, int(metrics(servers.left(at, scrape)) * UNIT) - backlog)
        learn(request.at)
        now = int(request.at * UNIT)
        since = now - int(read[mine] * UNIT) if own else 0
        replicas = []
        for at in all_of:
            outstanding, backlog, cost = reckoner.known(NAMES[at], request.guess, now)
            own_backlog = backlog if own else 0
            replicas.append(ReplicaView(NAMES[at], 1.0, outstanding, own_backlog, cost, others[mine][at], since))
        view = RouteView(now, Asked(size=request.guess), tuple(replicas), turn=number)
        at = ROWS[router.decide(view).replica]
        reckoner.sent(NAMES[at], str(number), request.guess, now)
        sent_by[number] = mine
        servers.send(number, at, request)
    learn(float("inf"))
    return took


def clairvoyant(requests: Sequence[Request]) -> list[float]:
    """Return the response times of shortest remaining time first with free migration: the requests with least work left
    run on the fastest replicas, in an order that serving does not change.
    """
    left: list[list[float]] = []
    took: list[float] = []
    now = 0.0
    for coming in [*requests, Request(float("inf"), 0.0)]:
        while left:
            served = list(zip(left, SPEEDS, strict=False))
            step = min(job[0] / speed for job, speed in served)
            ends = now + step <= coming.at
            step = step if ends else coming.at - now
            for job, speed in served:
                job[0] -= step * speed
            now += step
            if not ends:
                break
            soonest = min(served, key=lambda pair: pair[0][0])[0]
            left.remove(soonest)
            took.append(now - soonest[1])
        now = coming.at
        insort(left, [coming.work, coming.at])
    return took


# --- two lanes -------------------------------------------------------------------------------------------------------


def lanes(requests: Sequence[Request], *, two: bool) -> list[float]:
    """Return the response times if each replica gets at most two requests, and the others wait in one lane or
    in two.
    """
    router, servers = router_named("expected-delay"), Servers(SPEEDS)
    first: deque[int] = deque()
    deferred: deque[int] = deque()
    took: list[float] = []
    turn = count()

    def view_of(number: int, now: float) -> RouteView:
        request = requests[number]._replace(at=now)
        replicas = []
        for at in range(len(SPEEDS)):
            known = _exactly(servers, at, request)
            replicas.append(
                ReplicaView(
                    known.name, 1.0, known.outstanding, known.backlog, known.cost, open=known.outstanding < AT_ONCE
                )
            )
        due = int((requests[number].at + OBJECTIVE) * UNIT)
        return RouteView(int(now * UNIT), Asked(due=due), tuple(replicas))

    def send(now: float) -> None:
        going = next(turn)
        while any(outstanding < AT_ONCE for outstanding in servers.outstanding):
            lane = next_lane(going, len(first), len(deferred))
            if lane is None:
                return
            number = (first if lane == "first" else deferred).popleft()
            view = view_of(number, now)
            if two and lane == "first" and lane_of(view) == "deferred":
                deferred.append(number)
                continue
            servers.send(number, ROWS[router.decide(view).replica], requests[number]._replace(at=now))
            going = next(turn)

    def answers(until: float) -> None:
        while servers.ends and servers.ends[0][0] <= until:
            now = servers.ends[0][0]
            took.extend(end - requests[number].at for end, number, _ in servers.answered(now))
            send(now)

    for number, request in enumerate(requests):
        answers(request.at)
        first.append(number)
        send(request.at)
    answers(float("inf"))
    return took


# --- what is asked ---------------------------------------------------------------------------------------------------


def sizes_of(kind: str, many: int, trace: Path, random: Random) -> list[tuple[float, float]]:
    """Return sizes of mean 1, and the part of each that is known on arrival."""
    if kind == "exponential":
        return [(random.expovariate(1.0), 0.0) for _ in range(many)]
    if kind == "pareto":
        least = 1.0 - LONGEST**-PARETO
        drawn = [((1.0 - random.random() * least) ** (-1.0 / PARETO), 0.0) for _ in range(many)]
        mean = PARETO / (PARETO - 1.0) * (1.0 - LONGEST ** (1.0 - PARETO)) / least
    else:
        rows = [(float(call.prompt), float(call.tokens)) for call in calls("azure", trace, Tally(trace, strict=True))]
        drawn = [(read + WRITTEN * wrote, read) for read, wrote in random.choices(rows, k=many)]
        mean = fmean(read + WRITTEN * wrote for read, wrote in rows)
    return [(work / mean, known / mean) for work, known in drawn]


def arrivals(sizes: Sequence[tuple[float, float]], rate: float, random: Random) -> list[Request]:
    now, requests = 0.0, []
    for work, _ in sizes:
        now += random.expovariate(rate)
        requests.append(Request(now, work))
    return requests


def bursts(sizes: Sequence[tuple[float, float]], random: Random) -> list[Request]:
    """Return arrivals that alternate between two loads."""
    now, requests = 0.0, []
    for work, _ in sizes:
        rate = BURSTS[int(now / BURST) % len(BURSTS)] * sum(SPEEDS)
        now += random.expovariate(rate)
        requests.append(Request(now, work))
    return requests


# --- tables ----------------------------------------------------------------------------------------------------------

Cell = tuple[float, float] | None

OURS = "**expected-delay, learned, wrong sizes**"
EXACT = "expected-delay, exact"


def cell(took: Sequence[float]) -> tuple[float, float]:
    counted = took[int(WARM_UP * len(took)) :]
    return fmean(counted), percentile(counted, 99)


def compared(kind: str, load: float, sizes: Sequence[tuple[float, float]], seed: int) -> dict[str, Cell]:
    """Return the mean and P99 of each router; None if a replica gets more than its capacity."""
    random = Random(f"{seed} {kind} {load}")
    requests = arrivals(sizes, load * sum(SPEEDS), random)
    wrong = [each._replace(guess=each.work * exp(random.gauss(0.0, NOISE))) for each in requests]
    too_much = load * sum(SPEEDS) / len(SPEEDS) >= min(SPEEDS)
    cells: dict[str, Cell] = {}
    for name in ("random", "round-robin", "weighted", "least-outstanding", "power-of-two", "consistent-hash"):
        unstable = too_much and name in ("random", "round-robin")
        cells[name] = None if unstable else cell(told(router_named(name), requests, _counted, seed))
    shortest = router_named("expected-delay")
    cells["expected-delay by count"] = cell(told(shortest, requests, _counted, seed))
    cells["**expected-delay, learned, no sizes**"] = cell(learned(requests, seed=seed))
    if kind == "azure":
        part = [each._replace(guess=known) for each, (_, known) in zip(requests, sizes, strict=True)]
        cells["**expected-delay, learned, tokens read**"] = cell(learned(part, seed=seed))
    cells[OURS] = cell(learned(wrong, seed=seed))
    cells[EXACT] = cell(told(shortest, requests, _exactly, seed))
    cells["clairvoyant"] = cell(clairvoyant(requests))
    return cells


def stale(many: int, trace: Path, seed: int) -> dict[str, list[float]]:
    """Return the mean response times by age of the metrics."""
    random = Random(f"{seed} stale")
    speeds = SPEEDS * 2
    requests = arrivals(sizes_of("exponential", many, trace, random), STALE_LOAD * sum(speeds), random)
    requests = [each._replace(guess=each.work * exp(random.gauss(0.0, NOISE))) for each in requests]

    def wrong(backlog: float) -> float:
        return 2.0 * backlog * exp(random.gauss(0.0, NOISE))

    def means(**how: Any) -> list[float]:
        return [cell(learned(requests, speeds, age=age, seed=seed, **how))[0] for age in AGES]

    return {
        "metrics alone": means(metrics=float, own=False),
        "own work": [cell(learned(requests, speeds, seed=seed))[0]] * len(AGES),
        "**own work, metrics**": means(metrics=float),
        "**own work, wrong metrics**": means(metrics=wrong),
        "own work, four routers": [cell(learned(requests, speeds, routers=4, seed=seed))[0]] * len(AGES),
        "**own work, metrics, four routers**": means(metrics=float, routers=4),
        "**own work, wrong metrics, four routers**": means(metrics=wrong, routers=4),
    }


def beside(kind: str, slots: int, many: int, trace: Path, seed: int) -> dict[float, dict[str, Cell]]:
    """Return the results by load, of replicas that serve several requests at once: with `slots`, or with processor
    sharing if that is 0.
    """
    found: dict[float, dict[str, Cell]] = {}
    for load in SLOTS_LOADS:
        random = Random(f"{seed} {kind} {load}")
        sizes = sizes_of("azure", many, trace, random)
        requests = arrivals(sizes, load * (slots or 1) * sum(SPEEDS), random)
        wrong = [each._replace(guess=each.work * exp(random.gauss(0.0, NOISE))) for each in requests]
        part = [each._replace(guess=known) for each, (_, known) in zip(requests, sizes, strict=True)]

        def servers() -> Servers:
            return Servers(SPEEDS, slots) if slots else Divided(SPEEDS)

        rows = {
            "least-outstanding": ("least-outstanding", _counted),
            "expected-delay by count": ("expected-delay", _counted),
        }
        if slots:
            rows[EXACT] = ("expected-delay", _exactly)
        cells: dict[str, Cell] = {
            name: cell(told(router_named(router), requests, known, seed, servers()))
            for name, (router, known) in rows.items()
        }
        cells["**expected-delay, learned, tokens read**"] = cell(learned(part, seed=seed, servers=servers()))
        cells[OURS] = cell(learned(wrong, seed=seed, servers=servers()))
        found[load] = cells
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    shared = Path(__file__).parents[2] / "shared" / "data" / "azure-llm-2023" / "conv.csv"
    parser.add_argument("--trace", type=Path, default=shared)
    parser.add_argument("--requests", type=int, default=40_000)
    parser.add_argument("--loads", default=",".join(map(str, LOADS)))
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--slots", action="store_true", help="only replicas that serve several requests at once")
    parser.add_argument("--json", action="store_true")
    given = parser.parse_args()
    loads = [float(load) for load in given.loads.split(",")]
    found: dict[str, Any] = {"loads": loads, "ages": AGES}
    if given.slots:
        for slots in (*SLOTS, 0):
            kind = f"{slots} slots" if slots else "divided"
            found[kind] = beside(kind, slots, int(given.requests * STALE_PART), given.trace, given.seed)
            if not given.json:
                table(kind, found[kind])
        if given.json:
            print(json.dumps(found))
        return
    for kind in ("azure", "exponential", "pareto"):
        cells = {}
        for load in loads:
            print(f"{kind}, {load} …", end="\r", file=sys.stderr, flush=True)
            sizes = sizes_of(kind, given.requests, given.trace, Random(f"{given.seed} {kind}"))
            cells[load] = compared(kind, load, sizes, given.seed)
        found[kind] = cells
        if not given.json:
            show(kind, cells)
    found["stale"] = stale(int(given.requests * STALE_PART), given.trace, given.seed)
    random = Random(f"{given.seed} lanes")
    requests = bursts(sizes_of("azure", given.requests, given.trace, random), random)
    found["lanes"] = {}
    for name, two in (("one", False), ("two", True)):
        took = lanes(requests, two=two)
        in_time = sum(each <= OBJECTIVE for each in took) / len(took)
        found["lanes"][name] = {"in_time": in_time, "mean": fmean(took), "longest": max(took)}
    for slots in (*SLOTS, 0):
        kind = f"{slots} slots" if slots else "divided"
        found[kind] = beside(kind, slots, int(given.requests * STALE_PART), given.trace, given.seed)
    if given.json:
        print(json.dumps(found))
        return
    print("\n| mean response, metrics read every | " + " | ".join(f"{age:g}" for age in AGES) + " |")
    print("| --- |" + " --- |" * len(AGES))
    for name, means in found["stale"].items():
        print(f"| {name} | " + " | ".join(f"{mean:.2f}" for mean in means) + " |")
    print("\n| lanes | in time | mean | longest |\n| --- | --- | --- | --- |")
    for name, figures in found["lanes"].items():
        print(f"| {name} | {figures['in_time']:.1%} | {figures['mean']:.2f} | {figures['longest']:.0f} |")
    for kind in (*(f"{slots} slots" for slots in SLOTS), "divided"):
        table(kind, found[kind])


def table(kind: str, cells: dict[float, dict[str, Cell]]) -> None:
    print(f"\n| {kind}, mean / P99 | " + " | ".join(f"{load:g}" for load in cells) + " |")
    print("| --- |" + " --- |" * len(cells))
    for name in next(iter(cells.values())):
        found = [column[name] for column in cells.values()]
        print(f"| {name} | " + " | ".join("∞" if each is None else _pair(each) for each in found) + " |")


def show(kind: str, cells: dict[float, dict[str, Cell]]) -> None:
    table(kind, cells)
    above = [
        [ours / exact - 1 for ours, exact in zip(each[OURS] or (), each[EXACT] or (), strict=True)]
        for each in cells.values()
    ]
    print("| wrong sizes over exact | " + " | ".join(f"{mean:+.0%} / {tail:+.0%}" for mean, tail in above) + " |")
    worst = max(mean for mean, _ in above)
    print(f"\nmean at most {worst:+.1%}: {'met' if worst <= WITHIN else 'MISSED'}", flush=True)


def _pair(each: tuple[float, float]) -> str:
    return " / ".join(
        f"{value:.2f}" if value < 10 else f"{value:.1f}" if value < 100 else f"{value:.0f}" for value in each
    )


if __name__ == "__main__":
    main()
