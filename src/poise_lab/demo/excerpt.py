"""Cut the excerpt of `trace/jobs.csv` from Philly's flat table: `python excerpt.py philly.csv.gz > trace/jobs.csv`.

The rows are all jobs that one virtual cluster submitted in one week, in order of submission. That virtual cluster and
week were chosen by their size (150 to 300 jobs, of which some need several devices), before any policy was tried. The
trace has no deadlines: every fourth job is declared urgent, with a deadline of twice its run time plus half an hour.
"""

import csv
import gzip
import sys
from datetime import datetime, timedelta
from pathlib import Path

CLUSTER = "103959"
WEEK = datetime(2017, 11, 6), datetime(2017, 11, 13)  # noqa: DTZ001 — local times, as the trace has them
EVERY = 4
SLACK = 2.0
GRACE = timedelta(minutes=30)


def main(path: Path) -> None:
    """Write the excerpt to stdout."""
    with gzip.open(path, "rt", newline="") as file:
        rows = [row for row in csv.DictReader(file) if row["cluster"] == CLUSTER]
    submitted = {number: datetime.fromisoformat(row["timestamp"]) for number, row in enumerate(rows)}
    chosen = sorted((at, number) for number, at in submitted.items() if WEEK[0] <= at < WEEK[1])
    out = csv.writer(sys.stdout, lineterminator="\n")
    out.writerow(("timestamp", "duration", "num_gpus", "cluster", "priority", "deadline"))
    for place, (at, number) in enumerate(chosen, 1):
        row = rows[number]
        urgent = place % EVERY == 0
        due = at + SLACK * timedelta(seconds=float(row["duration"])) + GRACE
        deadline = due.isoformat(sep=" ", timespec="seconds") if urgent else ""
        fields = row["timestamp"], round(float(row["duration"])), row["num_gpus"], row["cluster"]
        out.writerow((*fields, "urgent" if urgent else "medium", deadline))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
