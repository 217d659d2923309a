"""Measure reservations: how fast many are planned, and whether stated chances come true.

    python benchmarks/reservations.py [--what plan,chances] [--count 1000] [--nodes 512] [--repeats 7]
        [--worlds 300] [--futures 60] [--seed 1]

`plan`: recurring reservations for one year (a third each daily, on weekdays, and weekly; 1 to 4 of the nodes, 30
minutes to 2 hours) are placed one after the other, as `poise reserve apply` places them. Their windows are expanded,
and places are found that are free in all of them.

`chances`: worlds with random work of known and unknown classes, each with one soft reservation. Its chance is stated
from simulated futures of the state. Then the world goes on with run times that the futures do not know, and the window
finds its places free or not. A stated chance from 75 to 85 % should come true in 75 to 85 % of the worlds.
"""

import argparse
import random
import time
from statistics import median
from typing import NamedTuple

from poise.drivers.calendar import shifts
from poise.engine.keeping import chance_of
from poise.engine.lookahead import Bounds
from poise.engine.twin import Twin
from poise.kernel.controller import Settings
from poise.kernel.ledger import Ledger
from poise.kernel.messages import Reserve
from poise.kernel.reserved import others_on
from poise.model.jobs import Priority, Task, Unit
from poise.model.reservations import Reservation, Zones, compile_reservations, starts_of
from poise.model.resources import Shape
from poise.model.workload import Arrival, Steady, Truth
from poise.policy.reserving import Chosen, Site, Taken, choose
from poise.policy.suites import policy_named
from poise.testing import node
from poise.units import MINUTE, SECOND

NOW = 1_793_500_000.0
RULES = (
    "FREQ=DAILY;COUNT=365",
    "FREQ=WEEKLY;BYDAY=MO,TU,WE,TH,FR;COUNT=260",
    "FREQ=WEEKLY;COUNT=52",
)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--what", default="plan,chances")
    parser.add_argument("--count", type=int, default=1000)
    parser.add_argument("--nodes", type=int, default=512)
    parser.add_argument("--repeats", type=int, default=7)
    parser.add_argument("--worlds", type=int, default=300)
    parser.add_argument("--futures", type=int, default=60)
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    if "plan" in options.what.split(","):
        plan(options.count, options.nodes, options.repeats, options.seed)
    if "chances" in options.what.split(","):
        chances(options.worlds, options.futures, options.seed)


# --- planning --------------------------------------------------------------------------------------------------------


def drawn(count: int, seed: int) -> tuple[Reservation, ...]:
    """Return random recurring reservations of a year."""
    chance = random.Random(seed)
    entries = [
        {
            "name": f"r{number}",
            "tenant": f"t{number % 20}",
            "nodes": chance.randint(1, 4),
            "from": f"2026-11-{chance.randint(10, 28):02}T{chance.randint(0, 23):02}:{chance.choice((0, 30)):02}",
            "for": f"{chance.choice((30, 60, 90, 120))}m",
            "every": RULES[number % len(RULES)],
            "time_zone": chance.choice(("UTC", "Europe/Zurich", "America/New_York")),
        }
        for number in range(count)
    ]
    return compile_reservations({"kind": "reservations", "reservations": entries}, Zones(NOW, shifts))


def plan(count: int, nodes: int, repeats: int, seed: int) -> None:
    wanted = drawn(count, seed)
    sites = {name: Site(name, every=tuple(range(8))) for name in (f"n{number:04}" for number in range(nodes))}
    times, windows, elsewhere, refused = [], 0, 0, 0
    for _ in range(repeats):
        starts_of.cache_clear()
        began = time.process_time()
        taken, windows, elsewhere, refused = Taken(), 0, 0, 0
        for one in wanted:
            begins = one.begins()
            found = choose(one, begins, sites, taken)
            if isinstance(found, Chosen):
                taken.take(found.places, begins, one.length)
                windows, elsewhere = windows + len(begins), elsewhere + len(found.elsewhere)
            else:
                refused += 1
        times.append(1000 * (time.process_time() - began))
    print(f"{count} recurring reservations, {windows} windows of a year on {nodes} nodes")
    least, most = min(times), max(times)
    print(f"planned in {median(times):.0f} ms of processor time ({least:.0f} to {most:.0f}, {repeats} repeats)")
    print(f"{elsewhere} windows on other places than usual, {refused} reservations refused")


# --- chances ---------------------------------------------------------------------------------------------------------


class Stated(NamedTuple):
    chance: float
    met: bool


def chances(worlds: int, futures: int, seed: int) -> None:
    found = [stated for number in range(worlds) if (stated := one_world(seed * 100_000 + number, futures)) is not None]
    print(f"{len(found)} worlds, {futures} futures each")
    print("stated      worlds   came true")
    for low, high in ((0, 25), (25, 50), (50, 75), (75, 85), (85, 101)):
        those = [stated for stated in found if low <= 100 * stated.chance < high]
        if those:
            told = f"{100 * sum(stated.met for stated in those) / len(those):.0f} %"
            print(f"{low:>3}-{min(high, 100):>3} %   {len(those):>6}   {told:>9}")
    expected = sum(stated.chance for stated in found)
    print(
        f"in all: {expected / len(found):.1%} stated, {sum(stated.met for stated in found) / len(found):.1%} came true"
    )


def one_world(seed: int, futures: int) -> Stated | None:
    """Return what is stated about a soft reservation in a random world, and what comes of it."""
    chance, policy = random.Random(seed), policy_named("poise")
    twin = Twin(policy, Settings(policy="poise"), ledger=Ledger())
    twin.add_nodes([node(f"n{number}", cpu=1) for number in range(1, 5)])
    mean = {kind: chance.uniform(5, 40) for kind in ("a", "b", "c")}
    spread = {kind: chance.uniform(0.2, 0.7) for kind in mean}
    at = 0.0
    for number in range(chance.randint(60, 90)):
        at += chance.expovariate(1 / 4.5)
        kind = chance.choice(tuple(mean))
        run = mean[kind] * chance.lognormvariate(0, spread[kind])
        unit = Unit(
            name="main", tasks=(Task(name="main", argv=("work",)),), shape=Shape(cpu=1000), priority=Priority.MEDIUM,
            kind=kind,
        )  # fmt: skip
        twin.arrive(
            Arrival(
                at=round(at * MINUTE), units=(unit,), truths={"main": Truth(pace=Steady(run * 60))}, name=f"j{number}"
            )
        )
    looked = round(chance.uniform(0.5, 0.7) * at * MINUTE)
    twin.run(looked)
    now = looked + twin.began
    wall = twin.ledger.leader.wall(now)
    ahead = chance.choice((5, 10, 20))
    document = {
        "kind": "reservations",
        "reservations": [
            {"name": "soft", "tenant": "team", "nodes": 1, "from": f"+{ahead}m", "for": "1h", "soft": True},
        ],
    }
    wanted = compile_reservations(document, Zones(wall, shifts))
    twin.host.ask(lambda request: Reserve(request, wanted), lambda reply: None)
    twin.run(looked + SECOND)
    reservations = twin.ledger.reservations
    if not reservations:
        return None
    [name] = reservations
    window = next(reservations.windows(name, now))
    told = chance_of(
        twin.ledger.fork(), policy, window, now + SECOND, lambda: 0.0, bounds=Bounds(futures=futures), seed=seed
    )
    twin.run(window.begin - twin.began)
    return Stated(told.thousandths / 1000, not others_on(twin.ledger, window))


if __name__ == "__main__":
    main()
