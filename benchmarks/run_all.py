"""Run all benchmarks, with the installed peers: prints a table with the targets, and writes `.bench/results.json`.

    python benchmarks/run_all.py [--quick] [--only PART] [--out .bench/results.json]

The run takes about ten minutes with the peers, less without. These parts run only on request: `--only quality` (more
than half an hour), `--only faults` (real kills, an hour), `--only migration` (real moves, eight minutes) and `--only
"serving claims, live"` (ten minutes). `--quick` is for a trial; its figures mean little. Results of parts that are not
measured stay unchanged.
"""

import argparse
import json
import os
import platform
import sys
from collections.abc import Callable
from pathlib import Path
from time import perf_counter

import cache
import checkpoint_stall
import claims_serving
import commands
import decide
import footprint
import functions
import harness
import herd
import latency
import live_faults
import migration
import mixed
import peers
import precision
import restart
import starting
from harness import Figure, say

from poise.policy.suites import POLICIES

OUT = Path(__file__).parent.parent / ".bench" / "results.json"


LONG = ("quality", "faults", "migration", "serving claims, live")
"""Parts that run only on request."""


def parts(quick: bool) -> dict[str, Callable[[], list[Figure]]]:
    """Return the benchmarks by title, in order."""
    if quick:
        return {
            "commands": lambda: commands.measure(commands.SYSTEMS, peers.FOLDER, 100, 2, big=0),
            "decisions": lambda: decide.measure(1000, 10_000, 50, 100, 2, curves=False),
            "submissions": lambda: latency.measure(20, 20.0, held_jobs=1000, rounds=2),
            "functions": lambda: functions.measure(500, 10_000, 2),
            "cache": lambda: cache.measure(cache.TRACE, (1,), cache.TTLS[:1]),
            "footprint": lambda: footprint.measure(100, seconds=5.0, runs=5),
            "starts": lambda: starting.measure(2),
            "restart": lambda: restart.measure(10_000, repeats=2),
            "precision": lambda: precision.measure(["cnn"], rounds=1),
            "checkpoints": lambda: checkpoint_stall.measure(2, 128, 2),
            "faults": lambda: live_faults.measure((), 1, live_faults.QUICK, with_peers=False),
            "migration": lambda: migration.measure(["drained"], 1),
            "a thousand nodes": lambda: herd.measure(100, 5.0, 1, 500),
            "quality": lambda: mixed.measure(["poise", "fifo"], 20, [1]),
            "serving claims": lambda: claims_serving.measure(many=2000),
            "serving claims, live": claims_serving.measure_live,
        }
    return {
        "commands": lambda: commands.measure(commands.SYSTEMS, peers.FOLDER, 1000, 5, big=10_000),
        "decisions": lambda: decide.measure(10_000, 100_000, 200, 480, 5),
        "quality": lambda: mixed.measure(list(POLICIES), 200, [1]),
        "submissions": lambda: latency.measure(200, 20.0, held_jobs=20_000, rounds=3),
        "functions": lambda: functions.measure(10_000, 1_000_000, 5),
        "cache": lambda: cache.measure(cache.TRACE, (cache.SHARED,), cache.TTLS[:1]),
        "footprint": lambda: footprint.measure(1000, seconds=20.0, runs=30),
        "starts": lambda: starting.measure(11),
        "restart": lambda: restart.measure(100_000, repeats=5),
        "precision": lambda: precision.measure(list(precision.SUBJECTS), rounds=3),
        "checkpoints": lambda: checkpoint_stall.measure(15, 384, 4),
        "faults": lambda: live_faults.measure((), 3, live_faults.Sizes(), with_peers=True),
        "migration": lambda: migration.measure(list(migration.CASES), 3),
        "a thousand nodes": herd.measure,
        "serving claims": claims_serving.measure,
        "serving claims, live": claims_serving.measure_live,
    }


def measure(quick: bool, only: str, out: Path) -> list[Figure]:
    """Run all parts except the long ones, or the named one; write the results after each part."""
    results: dict[str, object] = json.loads(out.read_text()) if out.exists() else {}
    results |= {"python": platform.python_version(), "system": platform.platform()}
    everything: list[Figure] = []
    begun = perf_counter()
    for title, part in parts(quick).items():
        if title != only if only else title in LONG:
            continue
        say(f"--- {title}")
        figures = part()
        everything += figures
        results[title] = harness.as_builtins(figures)
        results["seconds"] = round(perf_counter() - begun, 1)
        results["load"] = os.getloadavg()
        out.parent.mkdir(parents=True, exist_ok=True)
        out.write_text(json.dumps(results, indent=2) + "\n")
    targets = [figure for figure in everything if figure.met is not None]
    say(f"{sum(bool(figure.met) for figure in targets)} of {len(targets)} targets met; written to {out}")
    if any(figure.note.startswith("absent") for figure in everything):
        say("peers that are absent: `python benchmarks/peers.py install` puts them into `.peers/`")
    return everything


def main() -> int:
    parser = argparse.ArgumentParser(description="all figures in one run, beside the peers that are installed")
    parser.add_argument("--quick", action="store_true", help="small sizes, to try it out")
    parser.add_argument("--only", default="", choices=list(parts(True)), help="measure this part alone")
    parser.add_argument("--out", type=Path, default=OUT, help="where to write the results as JSON")
    parser.add_argument("--json", action="store_true", help="print JSON instead of a table")
    options = parser.parse_args()
    out: Path = options.out.resolve()
    return harness.program(lambda: measure(options.quick, options.only, out), as_json=options.json)


if __name__ == "__main__":
    sys.exit(main())
