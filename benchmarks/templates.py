"""Compare templates of log lines with manually written ones, for 16 public logs.

    git clone https://github.com/logpai/loghub
    python benchmarks/templates.py loghub [--json]

Loghub (Zhu et al., ISSRE 2023) has 2,000 lines of each of 16 systems, and for each line the event that wrote it. The
figure for each log is the grouping accuracy: the fraction of lines whose template has exactly the lines of their event.
The fraction of words that must agree was chosen on the first eight logs by name. The published
benchmark of Drain, with expressions for each of the logs, has a mean of 0.881 (logpai/logparser, docs/benchmark.md).

The lines of BGL and Thunderbird are also labelled: the figure is how many of the lines reported as unusual (`Novelty`)
were alerts.
"""

import argparse
import csv
import json
import statistics
import sys
from collections import defaultdict
from collections.abc import Hashable, Sequence
from pathlib import Path
from typing import NamedTuple

from harness import columns

from poise.kernel.templates import Novelty, Templates

CHOSEN_ON = 8


class Found(NamedTuple):
    """Results for one log: its grouping accuracy, templates and events; for a labelled log also the lines reported as
    unusual, the alerts among them, and all alerts.
    """

    name: str
    accuracy: float
    templates: int
    events: int
    told: int
    told_alerts: int
    alerts: int


def look(path: Path) -> Found:
    """Read one log."""
    with path.open(encoding="utf-8", errors="replace", newline="") as file:
        rows = list(csv.DictReader(file))
    templates, novelty = Templates(len(rows)), Novelty()
    groups = _groups([id(templates.take(row["Content"])) for row in rows])
    events = _groups([row["EventId"] for row in rows])
    right = sum(len(lines) for lines in groups if lines in events)
    alert = [row.get("Label", "-") != "-" for row in rows]
    told = [number for number, row in enumerate(rows) if novelty.take(path.parent.name, row["Content"])]
    return Found(
        path.parent.name,
        right / len(rows),
        len(groups),
        len(events),
        len(told),
        sum(alert[number] for number in told),
        sum(alert),
    )


def _groups(marks: Sequence[Hashable]) -> set[frozenset[int]]:
    found: dict[Hashable, list[int]] = defaultdict(list)
    for number, mark in enumerate(marks):
        found[mark].append(number)
    return set(map(frozenset, found.values()))


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("logs", type=Path, help="a copy of github.com/logpai/loghub")
    parser.add_argument("--json", action="store_true")
    given = parser.parse_args()
    found = [look(path) for path in sorted(given.logs.glob("*/*_2k.log_structured.csv"))]
    if not found:
        sys.exit(f"{given.logs} has no logs of Loghub")
    if given.json:
        print(json.dumps([one._asdict() for one in found]))
        return
    rows: list[tuple[str, ...]] = [("log", "accuracy", "templates", "events", "told", "of them alerts", "alerts")]
    rows += [(of.name, f"{of.accuracy:.3f}", *map(str, of[2:])) for of in found]
    print(columns(rows))
    for name, some in (("first eight", found[:CHOSEN_ON]), ("others", found[CHOSEN_ON:]), ("all", found)):
        print(f"{name}: {statistics.mean(of.accuracy for of in some):.3f}")


if __name__ == "__main__":
    main()
