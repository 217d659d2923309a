"""The twin's part of `poise demo`: a week of a real cluster on an unequal fleet, under `poise` and three baselines.

The trace, the fleet and the rule that selects urgent jobs are in `trace/`. The table shows the main figures, with the
best of each column marked, whichever policy it is.
"""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

import msgspec

from poise.kernel.used import spread
from poise.units import format_duration
from poise_lab.compare import SPANS, Asked, Comparison, Watch, compare
from poise_lab.figures import devices_held, percent
from poise_lab.traces.options import Options
from poise_lab.trial import Result

FOLDER = Path(__file__).parent / "trace"
POLICIES = ("poise", "fifo", "static", "round-robin")
COLUMNS = {
    "submit": "timestamp",
    "duration": "duration",
    "gpus": "num_gpus",
    "tenant": "cluster",
    "priority": "priority",
    "deadline": "deadline",
}


class Standing(msgspec.Struct, frozen=True, kw_only=True):
    """Main figures of one trial: deadlines met and their total number, the P95 waiting time of urgent and other jobs
    and the mean completion in nanoseconds, the fraction of all devices that was held, and the number of preemptions.
    """

    policy: str
    met: int
    deadlines: int
    urgent_wait: int
    other_wait: int
    completion: int
    held: float
    preempted: int


class Column(NamedTuple):
    """A column of the table: `value` ranks it, `text` is shown."""

    title: str
    value: Callable[[Standing], float]
    text: Callable[[Standing], str]
    most: bool


TABLE = (
    Column("deadlines met", lambda of: of.met, lambda of: f"{of.met} of {of.deadlines}", most=True),
    Column("P95 wait, urgent", lambda of: of.urgent_wait, lambda of: format_duration(of.urgent_wait), most=False),
    Column("P95 wait, others", lambda of: of.other_wait, lambda of: format_duration(of.other_wait), most=False),
    Column("mean completion", lambda of: of.completion, lambda of: format_duration(of.completion), most=False),
    Column("devices in use", lambda of: of.held, lambda of: percent(of.held), most=True),
    Column("preemptions", lambda of: of.preempted, lambda of: f"{of.preempted}", most=False),
)

ABOUT = (
    "266 jobs of a virtual cluster of Microsoft's Philly, a week of 2017, on 24 V100, 16 P100 and 16 K80; "
    "every fourth is declared urgent, and due after twice its run time and 30 min"
)

BASELINES = "fifo, static and round-robin look neither at urgency and deadlines nor at the speeds of devices"


def run(watch: Watch = lambda number, far: None) -> Comparison:
    """Try each policy on the excerpt."""
    asked = Asked(trace=FOLDER / "jobs.csv", fleet=FOLDER / "fleet.yaml", options=Options(columns=COLUMNS), spans=SPANS)
    return compare(asked, POLICIES, watch)


def standings(told: Comparison) -> list[Standing]:
    """Return the main figures of each trial. Urgent jobs are those with a deadline."""
    return [_standing(trial) for trial in told.trials]


def _standing(trial: Result) -> Standing:
    urgent, others = (
        spread([job.completion - job.run for job in trial.jobs if bool(job.deadline) == is_urgent and job.ended >= 0])
        for is_urgent in (True, False)
    )
    return Standing(
        policy=trial.policy,
        met=trial.measures.met,
        deadlines=trial.measures.deadlines,
        urgent_wait=urgent.p95,
        other_wait=others.p95,
        completion=trial.measures.completion.mean,
        held=round(devices_held(trial.measures), 4),
        preempted=sum(trial.measures.preemptions.values()),
    )


def best(column: Column, of: Sequence[Standing]) -> float:
    """Return the best value of a column."""
    return (max if column.most else min)(map(column.value, of))
