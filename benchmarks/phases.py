"""Compare the change points of the phase detector with those labelled by a person, on ten recorded real runs.

    python benchmarks/phases.py [--runs benchmarks/phases/runs] [--json]

`phases/README.md` describes the runs and their labels, which were made before the detector existed. A run is right if
it has the changes of its label, in order, each within a tenth of the run's length; one change more or less is wrong.
Five ways to sample are compared: as a Session does, at every fourth step with the losses since the last sample and the
gradient of that step, and at every eighth in fine-tuning; at every step; at every step with an unknown end of the run;
without the gradients; and, as a baseline, with only the variance of the norms of the last ten gradients, above 0.1
initial, below 0.01 fine-tuning.

`--runs` uses other runs, made by `phases/record.py --seed 1 --out FOLDER`; the labels are those of the recorded ones.
"""

import argparse
import gzip
import json
import sys
import tomllib
from collections.abc import Callable
from pathlib import Path
from statistics import pvariance

import msgspec
from harness import Figure

from poise.model.training import Phase
from poise_train.model.phases import PhaseMemory, PhaseRules, PhaseView, Step
from poise_train.policy.phases import Phases, is_due

FOLDER = Path(__file__).parent / "phases"
WITHIN = 0.1

Changes = tuple[tuple[int, Phase], ...]
Way = Callable[[tuple[Step, ...]], Changes]


class Label(msgspec.Struct, frozen=True):
    why: str
    changes: Changes


def labels() -> dict[str, Label]:
    read = tomllib.loads((FOLDER / "labels.toml").read_text(encoding="utf-8"))
    return msgspec.convert(read, dict[str, Label])


def steps(path: Path) -> tuple[Step, ...]:
    rows = [line.split(",") for line in gzip.decompress(path.read_bytes()).decode().splitlines()[2:]]
    return tuple(
        Step(step=number, loss=float(row[0]), norm=float(row[1]), rate=float(row[3])) for number, row in enumerate(rows)
    )


# --- ways to look ----------------------------------------------------------------------------------------------------


def as_a_session(seen: tuple[Step, ...]) -> Changes:
    rules, memory, changes, noted = PhaseRules(), PhaseMemory(), list[tuple[int, Phase]](), list[Step]()
    for step in seen:
        due = is_due(step.step, memory, rules)
        noted.append(step if due else msgspec.structs.replace(step, norm=-1.0))
        if due:
            verdict = Phases().decide(PhaseView(steps=tuple(noted), total=len(seen), rules=rules, memory=memory))
            memory, noted = verdict.memory, []
            changes += verdict.changes
    return tuple(changes)


def every_step(seen: tuple[Step, ...]) -> Changes:
    return Phases().decide(PhaseView(steps=seen, total=len(seen))).changes


def end_not_known(seen: tuple[Step, ...]) -> Changes:
    return Phases().decide(PhaseView(steps=seen)).changes


def without_gradients(seen: tuple[Step, ...]) -> Changes:
    return every_step(tuple(msgspec.structs.replace(step, norm=-1.0) for step in seen))


def variance_alone(seen: tuple[Step, ...]) -> Changes:
    changes: list[tuple[int, Phase]] = []
    for step in range(10, len(seen)):
        variance = pvariance([each.norm for each in seen[step - 9 : step + 1]])
        phase: Phase = "initial" if variance > 0.1 else "fine-tuning" if variance < 0.01 else "convergence"
        if phase != (changes[-1][1] if changes else "initial"):
            changes.append((step, phase))
    return tuple(changes)


WAYS: dict[str, Way] = {
    "as a session looks": as_a_session,
    "every step": every_step,
    "end not known": end_not_known,
    "without gradients": without_gradients,
    "variance alone": variance_alone,
}


def is_right(found: Changes, label: Changes, length: int) -> bool:
    return [phase for _, phase in found] == [phase for _, phase in label] and all(
        abs(at - wanted) <= WITHIN * length for (at, _), (wanted, _) in zip(found, label, strict=True)
    )


def measure(runs: Path = FOLDER / "runs") -> list[Figure]:
    known = {name: (label.changes, steps(runs / f"{name}.csv.gz")) for name, label in labels().items()}
    figures = []
    for way, look in WAYS.items():
        found = {name: look(seen) for name, (_, seen) in known.items()}
        right = [name for name, (label, seen) in known.items() if is_right(found[name], label, len(seen))]
        wrong = ", ".join(name for name in known if name not in right)
        many = sum(max(0, len(found[name]) - len(label)) for name, (label, _) in known.items())
        note = f"of {len(known)}; changes too many: {many}" + (f"; not {wrong}" if 0 < len(right) < len(known) else "")
        limit = len(known) if way in ("as a session looks", "every step") else None
        figures.append(
            Figure(
                name=f"phases right, {way}", unit="", values=[float(len(right))], limit=limit, larger=True, note=note
            )
        )
    return figures


def table(runs: Path) -> None:
    for name, label in labels().items():
        seen = steps(runs / f"{name}.csv.gz")
        print(f"{name}, {len(seen)} steps\n    {'a person sees':20}{_shown(label.changes)}")
        for way, look in WAYS.items():
            found = look(seen)
            verdict = "right" if is_right(found, label.changes, len(seen)) else "wrong"
            print(f"    {way:20}{_shown(found) if len(found) < 9 else f'{len(found)} changes'}, {verdict}")


def _shown(changes: Changes) -> str:
    return ", ".join(f"{phase} at {at}" for at, phase in changes) or "no change"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=Path, default=FOLDER / "runs")
    parser.add_argument("--json", action="store_true")
    given = parser.parse_args()
    figures = measure(given.runs)
    if given.json:
        print(json.dumps([msgspec.to_builtins(figure) for figure in figures], indent=2))
    else:
        table(given.runs)
        print()
        for figure in figures:
            print(f"{figure.name:36}{figure.values[0]:3.0f} {figure.note}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
