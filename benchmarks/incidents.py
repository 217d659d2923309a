"""Measure incident detection: storms of faults with known causes on simulated fleets.

    python benchmarks/incidents.py [--first 10001] [--storms 1000] [--jobs 2] [--each] [--json]
    python benchmarks/incidents.py --merge FILE…        print the results of several runs with --json as one table

Each seed is a fleet of 8 to 24 nodes in racks and zones, a steady stream of jobs in which a tenth of the attempts fail
by chance, and one fault or two unrelated ones (`poise.engine.storms`). The real control plane and node machines run it;
the incidents are derived from its log alone.

A symptom belongs to a fault if it occurs below the fault while the fault lasts. The figures over all storms are:

* folded: symptoms of faults that are in the incident of their cause;
* right cause: faults for which the incident with most of its symptoms ranked the right cause first when it was opened;
* merged: storms with two causes in which one incident has most symptoms of both;
* told: seconds from the first symptom of a fault to the opening of that incident;
* false: incidents that no fault explains.

The constants of `poise.kernel.incidents` were chosen on seeds 1 to 300. Publish only seeds from 10,001 on.
"""

import argparse
import math
import statistics
import sys
from collections import Counter
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

import msgspec

from poise.engine.storms import ENDS, LASTS, Fault, Storm, rage, storm_of
from poise.kernel.incidents import Incidents
from poise.kernel.symptoms import Symptoms
from poise.model.events import Event
from poise.model.incidents import Element, Symptom
from poise.units import SECOND

TAIL = 20 * SECOND
"""Maximum delay of a symptom after the end of its fault: a silent node is lost some seconds later."""

AFTER = 300 * SECOND
"""Time to run after the storm, so that incidents close."""


class Judged(msgspec.Struct, frozen=True, kw_only=True):
    """One fault: its symptoms, those in the incident of its cause, the reported cause, and the delay."""

    kind: str
    cause: str
    symptoms: int
    folded: int
    told: str
    tied: tuple[str, ...]
    after: float | None


class Result(msgspec.Struct, frozen=True, kw_only=True):
    """Result of one storm."""

    seed: int
    faults: tuple[Judged, ...]
    merged: bool
    incidents: int
    false: int
    symptoms: int


def run(seed: int) -> Result:
    """Run and judge one storm."""
    storm = storm_of(seed)
    return judge(storm, rage(storm))


def judge(storm: Storm, events: Sequence[Event]) -> Result:
    """Judge the incidents that the events of a storm lead to."""
    incidents, reader = Incidents(), Symptoms()
    symptoms: list[Symptom] = []
    opened: dict[str, tuple[int, Element, tuple[str, ...]]] = {}

    def note_opened() -> None:
        for name, of in incidents.state().incidents.items():
            if name not in opened:
                opened[name] = (of.opened, of.cause.element, tuple(str(one.element) for one in of.tied))

    for revision, event in enumerate(events, start=1):
        incidents.take(revision, event)
        note_opened()
        symptoms += [one for one in reader.read(revision, event) if isinstance(one, Symptom)]
    incidents.tick(events[-1].at + AFTER)
    note_opened()
    state = incidents.state().incidents
    holds = {name: {(of.kind, of.subject) for of in one.shows.values()} for name, one in state.items()}
    mine = [[of for of in symptoms if _shows(of, fault)] for fault in storm.faults]
    first_of = {name: one.first for name, one in state.items()}
    judged, most = [], []
    for fault, shown in zip(storm.faults, mine, strict=True):
        keys = Counter(of.fingerprint for of in shown)
        inside = {name: sum(count for key, count in keys.items() if key in held) for name, held in holds.items()}
        right = [name for name in inside if state[name].cause.element == fault.cause]
        best = max(inside, key=lambda name: (inside[name], -first_of[name]), default="")
        most.append(best if best and inside[best] else "")
        first = most[-1]
        judged.append(
            Judged(
                kind=fault.kind,
                cause=str(fault.cause),
                symptoms=len(shown),
                folded=sum(inside[name] for name in right),
                told=str(opened[first][1]) if first else "",
                tied=opened[first][2] if first else (),
                after=(opened[first][0] - shown[0].at) / SECOND if first else None,
            )
        )
    explained = {name for shown in mine for name, held in holds.items() if {of.fingerprint for of in shown} & held}
    return Result(
        seed=storm.seed,
        faults=tuple(of for of in judged if of.symptoms),
        merged=len(most) > 1 and bool(most[0]) and most[0] == most[1],
        incidents=len(state),
        false=len(state) - len(explained),
        symptoms=len(symptoms),
    )


def _shows(symptom: Symptom, fault: Fault) -> bool:
    """Return whether a symptom belongs to a fault."""
    if not fault.at <= symptom.at <= fault.at + LASTS + TAIL:
        return False
    by_chance = symptom.kind in ("attempt-failed", "attempt-killed", "out-of-memory", "hung")
    if fault.kind == "program":
        return symptom.kind == "attempt-failed" and fault.cause in symptom.suspects
    if fault.kind in ("rack", "switch", "zone", "flapping", "device") and by_chance:
        return False
    return fault.cause in symptom.suspects


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--first", type=int, default=10_001)
    parser.add_argument("--storms", type=int, default=1000)
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--each", action="store_true")
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--merge", type=Path, nargs="*", default=[])
    given = parser.parse_args()
    results = []
    if given.merge:
        for path in given.merge:
            results += msgspec.json.decode(path.read_bytes(), type=list[Result])
        show(results)
        return
    with ProcessPoolExecutor(given.jobs) as pool:
        for result in pool.map(run, range(given.first, given.first + given.storms), chunksize=4):
            results.append(result)
            print(f"{len(results)} of {given.storms} storms", end="\r", file=sys.stderr)
            if given.each and not _well(result):
                print(result)
    if given.json:
        print(msgspec.json.encode(results).decode())
    else:
        show(results)


def _well(result: Result) -> bool:
    return not result.merged and all(of.told == of.cause and _late(of) <= 30 for of in result.faults)


def _late(one: Judged) -> float:
    return math.inf if one.after is None else one.after


def show(results: Sequence[Result]) -> None:
    faults = [of for result in results for of in result.faults]
    two = [result for result in results if len(result.faults) > 1]
    print(f"\n{len(results)} storms, {len(faults)} faults, {sum(of.symptoms for of in results)} symptoms")
    print(f"{'fault':10} {'count':>6} {'folded':>8} {'right cause':>12} {'told P50':>9} {'P99':>8} {'within 30 s':>12}")
    for kind in (*sorted({of.kind for of in faults}), "all"):
        of = [one for one in faults if kind in (one.kind, "all")]
        after = sorted(map(_late, of))
        print(
            f"{kind:10} {len(of):6} {sum(one.folded for one in of) / sum(one.symptoms for one in of):8.1%} "
            f"{sum(one.told == one.cause for one in of) / len(of):12.1%} {statistics.median(after):8.1f}s "
            f"{after[int(0.99 * len(after))]:7.1f}s {sum(_late(one) <= 30 for one in of) / len(of):12.1%}"
        )
    print(f"two causes merged: {sum(of.merged for of in two)} of {len(two)} storms with two causes")
    hours = len(results) * (ENDS + AFTER) / SECOND / 3600
    print(
        f"false incidents: {sum(of.false for of in results)} in {hours:.0f} h of fleets in which 10 % of attempts fail"
    )


if __name__ == "__main__":
    main()
