"""Measure what flexible jobs save: the CO2e of a trace whose jobs wait for clean hours, beside the same jobs at once.

    python benchmarks/clean_hours.py [--trace poisson:jobs=600,rate=20] [--fleet FILE] [--jobs 600]
        [--flexible 0h,6h,12h,24h] [--policy poise] [--json]

Each row is one simulation. The hours have the shape of a grid with much solar power: from 0.24 kg/kWh at noon to 0.48
in the evening. Run times are estimated, as users declare them. The CO2e is that of the devices while work holds them,
because idle power is drawn at all hours. `waited` is the mean time from a job's arrival to its start, including the
time that it waits for clean hours; `queued` is the part of it after its earliest start.
"""

import argparse
import json
import sys
from pathlib import Path

import msgspec
from harness import say

from poise.kernel.controller import Settings
from poise.model.intensity import Intensity
from poise.model.worldfile import World
from poise.policy.suites import policy_named
from poise.units import HOUR, parse_duration
from poise_lab.compare import Asked, Loaded, load
from poise_lab.traces.options import Options
from poise_lab.trial import simulate

HOURS = (
    *(0.31, 0.30, 0.29, 0.29, 0.30, 0.33, 0.38, 0.41, 0.40, 0.36, 0.31, 0.27),
    *(0.25, 0.24, 0.25, 0.29, 0.36, 0.43, 0.47, 0.48, 0.46, 0.42, 0.38, 0.34),
)


class Row(msgspec.Struct, frozen=True, kw_only=True):
    """One simulation; times in hours, CO2e in kg."""

    flexible: str
    jobs: int
    co2: float
    waited: float
    queued: float
    makespan: float


def measured(loaded: Loaded, policy: str, flexible: str) -> Row:
    world = World(idle=0.0, intensity=Intensity(hours=HOURS), flexible=parse_duration(flexible))
    settings = Settings(throughputs=loaded.fleet.throughputs)
    found = simulate(loaded.workload, loaded.fleet.nodes, policy_named(policy), settings, world=world)
    started = [job for job in found.jobs if job.started >= 0]
    count = max(1, len(started))
    return Row(
        flexible=flexible,
        jobs=len(started),
        co2=found.measures.co2,
        waited=sum(job.started - job.submitted for job in started) / count / HOUR,
        queued=sum(job.started - job.submitted - job.begin for job in started) / count / HOUR,
        makespan=found.measures.makespan / HOUR,
    )


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--trace", type=Path, default=Path("poisson:jobs=600,rate=20"))
    parser.add_argument("--fleet", type=Path, default=Path("src/poise_lab/demo/trace/fleet.yaml"))
    parser.add_argument("--jobs", type=int, default=600)
    parser.add_argument("--flexible", default="0h,6h,12h,24h")
    parser.add_argument("--policy", default="poise")
    parser.add_argument("--json", action="store_true")
    given = parser.parse_args()
    loaded = load(Asked(trace=given.trace, fleet=given.fleet, options=Options(jobs=given.jobs)))
    rows = []
    for flexible in given.flexible.split(","):
        rows.append(measured(loaded, given.policy, flexible))
        say(f"{flexible}: done")
    if given.json:
        print(json.dumps(msgspec.to_builtins(rows), indent=2))
        return 0
    print("| flexible | CO2e of work | waited | queued | makespan |")
    print("| --- | --- | --- | --- | --- |")
    for row in rows:
        saved = f"{row.co2 / rows[0].co2 - 1:+.1%}"
        times = " | ".join(f"{value:.2f} h" for value in (row.waited, row.queued, row.makespan))
        print(f"| {row.flexible} | {row.co2:,.0f} kg ({saved}) | {times} |")
    return 0


if __name__ == "__main__":
    sys.exit(main())
