"""Compare the twin with live runs: work on real processes is recorded, and simulated again in virtual time.

    python benchmarks/fidelity_live.py [--only demo|mix] [--jobs 200] [--repeats 1] [--seed 1] [--json]

There are two recordings under the policy `poise`, each in its own state directory: the demo's graph `digits.yaml` on
this machine, and a mix of jobs on a declared fleet of two nodes with four cores and four devices each: short commands,
sleeping commands, some that compute, gangs, all priority classes, deadlines. The twin gets the submission times, the
users' declarations and the run time of each command; it makes all placement decisions again.

Between a decision and a command's first instruction, and between its last instruction and the report of its end, a slot
is held without work. The median of this time is measured on the recording itself ("overhead"), and extends every
attempt in the twin; the median of the recorded rounds likewise extends every decision. "wait" is the time from the
instant at which a unit could be placed until it runs. Live runs also differ from each other: `--repeats` shows how
much.
"""

import argparse
import json
import os
import subprocess
import sys
import time
from collections.abc import Iterable, Iterator
from pathlib import Path
from random import Random
from statistics import median
from typing import Any

import harness
import msgspec
from harness import percentile, say

import poise
from poise.cli.submit import read_spec
from poise.client import Client
from poise.config import Home
from poise.drivers.logfile import open_log
from poise.engine.twin import Twin
from poise.kernel.controller import Settings
from poise.kernel.ledger import Ledger
from poise.model.events import Event, Finished, JobSubmitted, Placed, Round, Started, decode_event
from poise.policy.suites import policy_named
from poise.units import SECOND
from poise_lab.traces.options import Options
from poise_lab.traces.poiselog import read
from poise_lab.what_if import recorded

POLICY = "poise"
MAKESPAN_WITHIN, WAIT_WITHIN = 0.05, 0.10
"""Targets: maximum error of the twin relative to the live run."""

RATE = 16.0
"""Jobs submitted per second: some four times the fleet's capacity, so that most of them wait."""

PATIENCE = 150.0

FLEET = """
kind: fleet
name: pair
nodes:
  left: {cpu: 4, memory: 8GiB, devices: [{model: A100-80, count: 4}]}
  right: {cpu: 4, memory: 8GiB, devices: [{model: A100-80, count: 4}]}
"""

COMPUTE = "import time; end = time.process_time() + {seconds}\nwhile time.process_time() < end: pass"


def mix(jobs: int, seed: int) -> Iterator[tuple[float, dict[str, Any]]]:
    """Yield the jobs and their submission times. Estimates are wrong by a factor of at most two for four jobs of five.
    Few jobs are short: with half of the units served at once and half after all the others, the median wait would lie
    between the two groups and be unstable.
    """
    random = Random(seed)
    at = 0.0
    for number in range(jobs):
        at += random.expovariate(RATE)
        kind = random.choices(("brief", "sleep", "compute", "device", "gang"), (10, 45, 10, 24, 11))[0]
        seconds = {"brief": 0.02, "compute": random.uniform(0.1, 0.3)}.get(
            kind, min(8.0, random.lognormvariate(0.3, 0.7))
        )
        run = (
            [sys.executable, "-S", "-c", COMPUTE.format(seconds=seconds)]
            if kind == "compute"
            else ["sleep", str(seconds)]
        )
        spec: dict[str, Any] = {
            "run": run,
            "class": f"{kind}-{number % 4}",
            "priority": random.choices(("urgent", "high", "medium", "low"), (5, 15, 60, 20))[0],
            "expect": f"{max(1, int(1000 * seconds * random.lognormvariate(0, 0.54)))}ms",
            "resources": {"cpu": 1, "memory": "64MiB"},
        }
        if kind in ("device", "gang"):
            spec["resources"]["gpu"] = random.choice((1, 1, 2))
        if kind == "gang":
            spec["workers"] = random.choice((2, 3))
        if random.random() < 0.1 and kind != "brief":
            spec["deadline"] = f"{int(seconds * 20) + 30}s"
        yield at, spec


def record_mix(home: Home, jobs: int, seed: int) -> None:
    fleet = home.root.parent / "fleet.yaml"
    fleet.write_text(FLEET)
    _up(home, "--fleet", str(fleet))
    client = Client(home)
    began = time.monotonic()
    for at, spec in mix(jobs, seed):
        time.sleep(max(0.0, began + at - time.monotonic()))
        client.submit(spec)
    _until_idle(client)


def record_demo(home: Home) -> None:
    scripts = Path(poise.__file__).parent / "demo"
    work = home.root.parent / "work"
    work.mkdir()
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ.get('PATH', os.defpath)}"
    spec = read_spec(scripts / "digits.yaml", {**os.environ, "PATH": path, "POISE_DEMO": str(scripts)})
    _up(home)
    client = Client(home)
    client.submit({**spec, "folder": str(work)})
    _until_idle(client)


def _up(home: Home, *options: str) -> None:
    command = [sys.executable, "-m", "poise.cli.main", "up", "--port", "0", *options]
    done = subprocess.run(command, env=harness.environ_of(home), capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(done.stderr)


def _until_idle(client: Client) -> None:
    deadline = time.monotonic() + PATIENCE
    while client.status().unfinished:
        if time.monotonic() > deadline:
            raise RuntimeError(f"not over after {PATIENCE:g} s")
        time.sleep(0.2)


# --- figures of a log, live or virtual -------------------------------------------------------------------------------


class Told(msgspec.Struct, frozen=True, kw_only=True):
    """Results in seconds: from the first submission to the last end, the wait of each unit, the overhead of attempts
    beyond their commands, and the time from a round's view to its effects. Also the number of units, and of repeated
    placements.
    """

    makespan: float
    waits: tuple[float, ...]
    overheads: tuple[float, ...]
    deciding: tuple[float, ...]
    units: int
    preempted: int


def told_by(events: Iterable[Event]) -> Told:
    ledger = Ledger()
    ready: dict[str, int] = {}
    placed: dict[str, Placed] = {}
    waits: dict[str, float] = {}
    overheads: list[float] = []
    deciding: list[float] = []
    first = last = again = 0
    for event in events:
        if isinstance(event, JobSubmitted):
            first = first or event.at
        elif isinstance(event, Placed):
            unit = ledger.jobs.unit(event.unit)
            assert unit is not None
            ready.setdefault(event.unit, unit.ready)
            again += event.unit in placed
            placed[event.unit] = event
        elif isinstance(event, Round):
            deciding.append((event.at - event.asked) / SECOND)
        elif isinstance(event, Started | Finished):
            found = ledger.jobs.task(event.task)
            assert found is not None
            unit_id = found[0].id
            ran = event.ending.run if isinstance(event, Finished) else 0
            waits.setdefault(unit_id, (event.at - ran - ready[unit_id]) / SECOND)
            if isinstance(event, Finished):
                last = event.at
                if event.ending.outcome == "done" and not placed[unit_id].queued:
                    overheads.append((event.at - placed[unit_id].at - ran) / SECOND)
        ledger.apply(event)
    return Told(
        makespan=(last - first) / SECOND,
        waits=tuple(waits.values()),
        overheads=tuple(overheads),
        deciding=tuple(deciding),
        units=len(placed),
        preempted=again,
    )


def run_again(log: Path, overhead: float, deciding: float) -> Told:
    """Run the recording again in virtual time."""
    with open_log(log, decode_event) as recording:
        known = recorded(recording.events)
    workload = read(log, Options(information="estimated"))
    assert not workload.skipped, workload.skipped
    events: list[Event] = []
    throughputs = known.began.throughputs if known.began is not None else {}
    twin = Twin(
        policy_named(POLICY), Settings(throughputs=throughputs), observe=events.append, delay=int(deciding * SECOND)
    )
    twin.add_nodes(known.nodes.values())
    start = int(overhead * SECOND)
    for arrival in workload.arrivals:
        truths = {name: msgspec.structs.replace(truth, start=start) for name, truth in arrival.truths.items()}
        twin.arrive(msgspec.structs.replace(arrival, truths=truths))
    if not twin.run() or twin.refused:
        raise RuntimeError(f"the twin did not run it all: {twin.refused}")
    return told_by(events)


def measure(name: str, jobs: int, seed: int) -> dict[str, Any]:
    with harness.own_home() as home:
        began = time.monotonic()
        if name == "demo":
            record_demo(home)
        else:
            record_mix(home, jobs, seed)
        took = time.monotonic() - began
        with open_log(home.log, decode_event) as recording:
            live = told_by(recording.events)
        overhead, deciding = median(live.overheads), median(live.deciding)
        began = time.monotonic()
        twin = run_again(home.log, overhead, deciding)
        virtual = time.monotonic() - began
    waits = median(live.waits), median(twin.waits)
    say(f"{name}: live {took:.1f} s, twin {virtual:.2f} s")
    return {
        "name": name,
        "units": live.units,
        "makespan": live.makespan,
        "makespan_twin": twin.makespan,
        "makespan_error": twin.makespan / live.makespan - 1,
        "wait": waits[0],
        "wait_twin": waits[1],
        "wait_error": waits[1] / waits[0] - 1,
        "wait_p90": percentile(live.waits, 90),
        "wait_p90_twin": percentile(twin.waits, 90),
        "preempted": live.preempted,
        "preempted_twin": twin.preempted,
        "overhead": overhead,
        "deciding": deciding,
        "overhead_p90": percentile(live.overheads, 90),
        "met": abs(twin.makespan / live.makespan - 1) <= MAKESPAN_WITHIN
        and abs(waits[1] / waits[0] - 1) <= WAIT_WITHIN,
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", choices=["demo", "mix"])
    parser.add_argument("--jobs", type=int, default=200)
    parser.add_argument("--repeats", type=int, default=1)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--json", action="store_true")
    given = parser.parse_args()
    names = [given.only] if given.only else ["demo", "mix"]
    rows = [measure(name, given.jobs, given.seed) for name in names for _ in range(given.repeats)]
    if given.json:
        print(json.dumps(rows, indent=2))
        return 0
    columns = (
        ("", 6),
        ("units", 6),
        ("makespan live", 15),
        ("twin", 9),
        ("", 9),
        ("P50 wait live", 15),
        ("twin", 9),
        ("", 9),
    )
    print("".join(f"{title:>{width}}" for title, width in columns) + "   overhead P50, P90")
    for row in rows:
        print(
            f"{row['name']:6}{row['units']:6}{row['makespan']:13.2f} s{row['makespan_twin']:7.2f} s"
            f"{row['makespan_error']:+9.1%}{row['wait']:13.3f} s{row['wait_twin']:7.3f} s{row['wait_error']:+9.1%}"
            f"{row['overhead'] * 1000:11.0f}, {row['overhead_p90'] * 1000:.0f} ms  {'met' if row['met'] else 'MISSED'}"
        )
    return 0


if __name__ == "__main__":
    sys.exit(main())
