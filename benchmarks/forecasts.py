"""How often work comes when it was foreseen: `poise eta --check` on worlds that are drawn from seeds, and on logs.

    python benchmarks/forecasts.py [--seeds 4] [--jobs 200] [--asked 30] [--futures 40] [--load 1.2]
        [--policies fifo,poise] [--json] [LOG...]

Each world is a synthetic trace (Poisson arrivals, heavy-tailed run times in 20 classes) on 4 nodes of 8 devices at a
load of 1.2, run in the twin; the forecasts are those that would have been made when jobs were submitted, from what was
known then: nothing of later arrivals, and of run times only what users said (wrong by a factor of two for one of five)
or nothing, and what had ended by then. Those made when nothing at all was known are left out. "between" is the part
that lies between P10 and P90; the target is 75 to 85 %. What is to begin at once, and does, says nothing of starts.
"""

import argparse
import json
import sys
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, Literal

import msgspec
from harness import say

from poise.drivers.logfile import open_log
from poise.drivers.plugins import policy_of
from poise.engine.twin import Twin
from poise.kernel.controller import Settings
from poise.kernel.ledger import Ledger
from poise.model.events import Event, decode_event
from poise.model.resources import Device, Node
from poise.model.workload import Seats
from poise.policy.suites import policy_named
from poise.twin.forecast import Bounds, Checked, Coverage, check
from poise.twin.traces.options import Options
from poise.twin.traces.synthetic import Synthetic, generate

NODES, PER_NODE = 4, 8
LEAST, MOST = 0.75, 0.85
KNOWN: tuple[Literal["estimated", "none"], ...] = ("estimated", "none")
MEDIAN, SPREAD = 600.0, 1.3
TIME = 600.0
"""Seconds that one world may take; nothing is left out for want of time."""


def world(policy: str, information: Literal["estimated", "none"], jobs: int, load: float, seed: int) -> list[Event]:
    """All that happened."""
    drawn = Synthetic(jobs=jobs, median=MEDIAN, spread=SPREAD, most=4, longest=86_400.0)
    options = Options(information=information, seed=seed)
    workload = generate(drawn, options)
    seconds = sum(
        arrival.truths[unit.name].pace.left(0.0, Seats(("T4",) * len(unit.tasks)))
        * len(unit.tasks)
        * max(1, unit.shape.gpus)
        for arrival in workload.arrivals
        for unit in arrival.units
    )
    lasts = workload.arrivals[-1].at / 1e9
    faster = seconds / (NODES * PER_NODE) / load / lasts  # arrivals are stretched until the load is as asked
    events: list[Event] = []
    twin = Twin(policy_named(policy), Settings(seed=seed), observe=events.append)
    twin.add_nodes(
        Node(
            name=f"n{number}",
            incarnation="1",
            cpu=96_000,
            memory=2**38,
            devices=tuple(Device(index=at, memory=2**34, uuid=f"n{number}-{at}", model="T4") for at in range(PER_NODE)),
        )
        for number in range(NODES)
    )
    for arrival in workload.arrivals:
        twin.arrive(msgspec.structs.replace(arrival, at=int(arrival.at * faster)))
    twin.run()
    return events


def row(name: str, told: Sequence[Checked]) -> dict[str, Any]:
    return {
        "world": name,
        "forecasts": sum(len(each.forecasts) for each in told),
        "start": _together([each.start for each in told]),
        "finish": _together([each.finish for each in told]),
        "seconds": sum(each.seconds for each in told),
    }


def _together(parts: Sequence[Coverage]) -> dict[str, float]:
    count = sum(part.count for part in parts)
    return {"count": count} | {
        name: sum(getattr(part, name) * part.count for part in parts) / max(1, count) / 1000
        for name in ("earlier", "within", "later")
    }


def rows(given: argparse.Namespace) -> Iterator[dict[str, Any]]:
    bounds = Bounds(given.futures, TIME)
    for policy in given.policies.split(","):
        for information in KNOWN:
            told = []
            for seed in range(given.seeds):
                events: Iterable[Event] = world(policy, information, given.jobs, given.load, seed)
                told.append(
                    check(events, Ledger(), lambda began: policy_named(began.policy), jobs=given.asked, bounds=bounds)
                )
            made = row(f"{policy}, {information}", told)
            say(f"{made['world']}: {made['seconds']:.0f} s")
            yield made
    for log in given.logs:
        with open_log(log, decode_event) as recording:
            start = Ledger.decode(recording.start.state) if recording.start is not None else Ledger()
            looked = check(
                recording.events,
                start,
                lambda began: policy_of(began, anyway=True),
                jobs=given.asked * given.seeds,
                bounds=bounds,
            )
        yield row(log.name, [looked])


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("logs", nargs="*", type=Path, metavar="LOG")
    parser.add_argument("--seeds", type=int, default=4)
    parser.add_argument("--jobs", type=int, default=200)
    parser.add_argument("--asked", type=int, default=30)
    parser.add_argument("--futures", type=int, default=40)
    parser.add_argument("--load", type=float, default=1.2)
    parser.add_argument("--policies", default="fifo,poise")
    parser.add_argument("--json", action="store_true")
    given = parser.parse_args()
    made = list(rows(given))
    if given.json:
        print(json.dumps(made, indent=2))
        return 0
    print(f"{'':24}{'of':>8}{'forecasts':>11}{'before P10':>12}{'between':>10}{'after P90':>11}")
    for each in made:
        for what in ("start", "finish"):
            of = each[what]
            verdict = "met" if LEAST <= of["within"] <= MOST else "outside"
            print(
                f"{each['world']:24}{what:>8}{of['count']:11}{of['earlier']:12.1%}{of['within']:10.1%}{of['later']:11.1%}"
                f"  {verdict}"
            )
    return 0


if __name__ == "__main__":
    sys.exit(main())
