"""Measure what flexible jobs save: the CO2e of a trace whose jobs wait for clean hours, beside the same jobs at once.

    python benchmarks/clean_hours.py [--trace poisson:jobs=300,rate=20] [--fleet FILE] [--flexible 0h,6h,12h,24h]
        [--policy poise] [--json]

Each row is one simulation, on 64 A100s of 8 nodes unless a fleet is given. The hours have the shape of a grid with much
solar power: from 0.24 kg/kWh at noon to 0.48 in the evening. Run times are estimated, as users declare them. The CO2e
is that of the devices while work holds them, because idle power is drawn at all hours. `waited` is the mean time from a
job's arrival to its start, including the time that it waits for clean hours; `queued` is the part of it after its
earliest start.
"""

import argparse
import json
import sys
from pathlib import Path

import msgspec
from harness import say

from poise.drivers.yamlfile import load_kind
from poise.kernel.controller import Settings
from poise.model.fleetfile import DeclaredFleet, compile_fleet
from poise.model.intensity import Intensity
from poise.model.workload import Workload
from poise.model.worldfile import World
from poise.policy.suites import policy_named
from poise.units import HOUR, parse_duration
from poise_lab.traces.formats import read_trace
from poise_lab.trial import simulate

HOURS = (
    *(0.31, 0.30, 0.29, 0.29, 0.30, 0.33, 0.38, 0.41, 0.40, 0.36, 0.31, 0.27),
    *(0.25, 0.24, 0.25, 0.29, 0.36, 0.43, 0.47, 0.48, 0.46, 0.42, 0.38, 0.34),
)

FLEET = {
    "kind": "fleet",
    "name": "one",
    "nodes": {"a": {"count": 8, "cpu": 64, "memory": "512GiB", "devices": [{"model": "A100-80", "count": 8}]}},
}


class Row(msgspec.Struct, frozen=True, kw_only=True):
    """One simulation; times in hours, CO2e in kg, energy in kWh."""

    flexible: str
    jobs: int
    co2: float
    energy: float
    waited: float
    queued: float
    makespan: float


def measured(workload: Workload, fleet: DeclaredFleet, policy: str, flexible: str) -> Row:
    world = World(idle=0.0, intensity=Intensity(hours=HOURS), flexible=parse_duration(flexible))
    settings = Settings(throughputs=fleet.throughputs)
    found = simulate(workload, fleet.nodes, policy_named(policy), settings, world=world)
    started = [job for job in found.jobs if job.started >= 0]
    count = max(1, len(started))
    return Row(
        flexible=flexible,
        jobs=len(started),
        co2=found.measures.co2,
        energy=found.measures.energy,
        waited=sum(job.started - job.submitted for job in started) / count / HOUR,
        queued=sum(job.started - job.submitted - job.begin for job in started) / count / HOUR,
        makespan=found.measures.makespan / HOUR,
    )


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--trace", type=Path, default=Path("poisson:jobs=300,rate=20"))
    parser.add_argument("--fleet", type=Path)
    parser.add_argument("--flexible", default="0h,6h,12h,24h")
    parser.add_argument("--policy", default="poise")
    parser.add_argument("--json", action="store_true")
    given = parser.parse_args()
    fleet = compile_fleet(FLEET if given.fleet is None else load_kind(given.fleet, "fleet"))
    workload = read_trace(given.trace)
    rows = []
    for flexible in given.flexible.split(","):
        rows.append(measured(workload, fleet, given.policy, flexible))
        say(f"{flexible}: done")
    if given.json:
        print(json.dumps(msgspec.to_builtins(rows), indent=2))
        return 0
    print("| flexible | CO2e of work | energy | waited | queued | makespan |")
    print("| --- | --- | --- | --- | --- | --- |")
    for row in rows:
        saved = f"{row.co2 / rows[0].co2 - 1:+.1%}"
        times = " | ".join(f"{value:.2f} h" for value in (row.waited, row.queued, row.makespan))
        print(f"| {row.flexible} | {row.co2:,.0f} kg ({saved}) | {row.energy:,.0f} kWh | {times} |")
    return 0


if __name__ == "__main__":
    sys.exit(main())
