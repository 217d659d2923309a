"""Measure the time of a test of rules on a week's log of 1,000 nodes.

    python benchmarks/rules.py [--nodes 1000] [--days 7] [--seed 1] [--json]

The log is generated: each node runs jobs of about two hours, one after another, and reports its load after a change of
5 %, about every quarter of an hour. The rules are those of `examples/rules.yaml`. The time is that of `poise rules
test` from the first event to the report, without reading the log from disk.
"""

import argparse
import json
import random
import sys
import time
from collections.abc import Iterator
from pathlib import Path

from poise.drivers.yamlfile import load_kind
from poise.kernel.backtest import backtest
from poise.kernel.ledger import Ledger
from poise.model.decisions import Spot, Why
from poise.model.events import Event, Finished, JobSubmitted, NodeJoined, NodesMeasured, Placed, Started
from poise.model.jobs import Ending
from poise.model.rules import compile_rules
from poise.model.spec import compile_spec
from poise.testing import node
from poise.units import DAY, HOUR, MINUTE, SECOND

RULES = Path(__file__).resolve().parent.parent / "examples" / "rules.yaml"
LEAST = 5 * MINUTE


def log(nodes: int, days: int, seed: int) -> Iterator[Event]:
    """Yield the events in order; each minute contains the events due in it."""
    draw = random.Random(seed)
    names = [f"n{number}" for number in range(1, nodes + 1)]
    yield from (NodeJoined(at=1, node=node(name, cpu=8)) for name in names)
    compiled = compile_spec({"run": "work", "resources": {"cpu": 8}}, wall=0.0)
    runs: dict[str, tuple[str, int]] = {}
    number, why = 0, Why(policy="fifo", base=0)
    memory = dict.fromkeys(names, 400)
    for at in range(SECOND, days * DAY, MINUTE):
        measured: dict[str, tuple[int, ...]] = {}
        for name in names:
            task, ends = runs.get(name, ("", 0))
            if task and ends <= at:
                yield Finished(at=at, task=task, epoch=1, ending=Ending(outcome="done"))
                del runs[name]
            if name not in runs:
                number += 1
                job = compiled.job(f"j{number}", {}, "")
                task = f"{job.id}.main"
                yield JobSubmitted(at=at, job=job)
                yield Placed(at=at, unit=task, epoch=1, spots=(Spot(node=name),), why=why)
                yield Started(at=at, task=task, epoch=1)
                runs[name] = task, at + LEAST + round(draw.expovariate(1 / (2 * HOUR)))
            if draw.random() < 1 / 15:
                memory[name] = min(990, max(100, memory[name] + round(draw.gauss(0, 120))))
                measured[name] = (500, 900, memory[name], 0, 0)
        if measured:
            yield NodesMeasured(at=at, nodes=measured)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--nodes", type=int, default=1000)
    parser.add_argument("--days", type=int, default=7)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--json", action="store_true")
    asked = parser.parse_args()
    events = list(log(asked.nodes, asked.days, asked.seed))
    rules = compile_rules(load_kind(RULES, "rules"))
    began = time.perf_counter()
    told = backtest(events, rules, Ledger(plans=False))
    took = time.perf_counter() - began
    found = {
        "nodes": asked.nodes,
        "days": asked.days,
        "events": len(events),
        "evaluations": told.evaluations,
        "firings": sum(rule.firings for rule in told.rules),
        "seconds": round(took, 1),
    }
    print(json.dumps(found) if asked.json else "  ".join(f"{name} {value}" for name, value in found.items()))
    return 0


if __name__ == "__main__":
    sys.exit(main())
