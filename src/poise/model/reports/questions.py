"""Answers to questions about jobs: why, when, where, what if."""

from collections.abc import Callable, Mapping
from typing import Literal

import msgspec

from poise.model.decisions import Reason, Spot, Why
from poise.model.reports.demand import Prospect
from poise.units import format_duration

Unknown = Literal["", "run times", "nodes", "time"]
"""Why there is no probability: its run times are unknown · no node has joined · there was no time."""


class Foreseen(msgspec.Struct, frozen=True, kw_only=True):
    """An estimated amount, its mean deviation, and its source, as in `Estimate`. Both are None if the source is
    `default`: the amount is unknown.
    """

    mean: int | None
    deviation: int | None
    source: str

    def text(self, form: Callable[[int], str]) -> str:
        """Return the estimate as text: `5m ± 1m`, or `unknown`."""
        if self.mean is None or self.deviation is None:
            return "unknown"
        return f"{form(self.mean)} ± {form(self.deviation)}"


class Prediction(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The predicted resource use of a task: its run time in nanoseconds, by model of each device (or processor) that
    could run it. Memory in bytes, CPU in milli-CPU and device use in thousandths come from `runs` finished runs of its
    class.
    """

    run: dict[str, Foreseen]
    runs: int = 0
    memory: Foreseen | None = None
    cpu: Foreseen | None = None
    device: Foreseen | None = None


class Start(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The predicted start of the first of the units, in nanoseconds from now. In a tenth of the `futures` it is before
    `earliest`, in half before `likely`, and in nine tenths before `latest`. A time is None if the unit does not start
    in that part of the futures; `why` gives the reason. An `earliest` alone is a lower limit. `guesses` names units
    that end before the start and have an unknown run time; then all three times are None. `preempts` names running
    units that are preempted for it in at least half of the futures. `preempts_in` is the median time until then for
    each, in nanoseconds from now. `displaced` has units that are preempted before that, each with the unit that
    preempts it.
    """

    earliest: int | None = None
    likely: int | None = None
    latest: int | None = None
    why: str = ""
    guesses: tuple[str, ...] = ()
    preempts: tuple[str, ...] = ()
    preempts_in: Mapping[str, int] = {}
    displaced: Mapping[str, str] = {}
    futures: int = 0


class Refusing(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A group of similar nodes that refuse a task for the same reasons. `nodes` names some of the `count`."""

    count: int
    nodes: tuple[str, ...]
    reasons: tuple[Reason, ...]


class Freeing(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A running unit that frees resources when it ends: its nodes, and the estimated time left with its source.
    `overrun` means that it has run longer than estimated, and the estimate was updated. `protected` is the reason why
    it is not preempted now although it is of a lower class.
    """

    unit: str
    nodes: tuple[str, ...]
    left: Foreseen
    overrun: bool = False
    protected: Reason | None = None


class Ahead(msgspec.Struct, frozen=True):
    """A unit that is served before another one, and the reason for its position."""

    unit: str
    why: str


class Waiting(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A group of similar waiting units of a job. `named` names some of the `count`. All other fields describe the first
    unit.

    `ahead` is the number of units that are served before it, and `first` has the first of them. `share` names the fair
    share that is served first, with the reason.
    """

    count: int
    named: tuple[str, ...]
    asks: str
    reasons: tuple[Reason, ...]
    place: str = ""
    ahead: int = 0
    first: tuple[Ahead, ...] = ()
    refusing: tuple[Refusing, ...] = ()
    frees: tuple[Freeing, ...] = ()
    start: Start | None = None
    prediction: Prediction | None = None
    share: str = ""


class Going(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A unit that holds resources: its nodes, its `artifact` (of several), the elapsed time, the estimated time left,
    and the reason for its placement.
    """

    unit: str
    status: str
    nodes: tuple[str, ...]
    elapsed: int
    left: Foreseen
    overrun: bool = False
    why: Why | None = None
    reasons: tuple[Reason, ...] = ()
    prediction: Prediction | None = None
    artifact: str = ""


class Told(msgspec.Struct, frozen=True):
    """A past event and its time, in seconds since 1970."""

    at: float
    text: str


class Explanation(msgspec.Struct, frozen=True, kw_only=True):
    """The explanation of a job: why it waits and what would let it start, why it runs where it does, and its past
    events.

    `prospects` compares the clusters on which its waiting work may run, if there are several; for work of several
    kinds, those of the first. `left_out` counts entries that were left out for length; it is 0 if everything was
    requested.
    """

    job: str
    name: str
    status: str
    revision: int
    policy: str
    waiting: tuple[Waiting, ...] = ()
    running: tuple[Going, ...] = ()
    story: tuple[Told, ...] = ()
    left_out: int = 0
    prospects: tuple[Prospect, ...] = ()


class WhyNot(msgspec.Struct, frozen=True, kw_only=True):
    """Why a unit is not on a node: every reason. If it fits there, its score is below that of the `chosen` node, if
    any. For work with several artifacts, `artifact` would be started there, and `chosen_artifact` runs on the chosen
    node.
    """

    job: str
    unit: str
    node: str
    revision: int
    fits: bool
    reasons: tuple[Reason, ...] = ()
    score: float | None = None
    chosen: str = ""
    chosen_score: float | None = None
    text: str = ""
    artifact: str = ""
    chosen_artifact: str = ""


class PlannedPlace(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A group of units that would be placed alike: their places, and the reason. `queued` means that they would queue
    behind similar units.
    """

    count: int
    named: tuple[str, ...]
    spots: tuple[Spot, ...]
    why: Why
    queued: bool = False
    artifact: str = ""


class PlannedYield(msgspec.Struct, frozen=True, kw_only=True):
    """A unit that would be preempted, the unit that preempts it, and the work that is lost."""

    unit: str
    to: str
    why: Why


class PlannedLater(msgspec.Struct, frozen=True, kw_only=True):
    """A group of units that wait for other units of the job, or for other jobs."""

    count: int
    named: tuple[str, ...]
    reasons: tuple[Reason, ...]


class PlanReport(msgspec.Struct, frozen=True, kw_only=True):
    """The effects of submitting a job now; nothing has been submitted. `retries` describes what would be retried, if
    that is not the default and is the same for all tasks.
    """

    revision: int
    policy: str
    places: tuple[PlannedPlace, ...]
    yields: tuple[PlannedYield, ...]
    waits: tuple[Waiting, ...]
    later: tuple[PlannedLater, ...]
    note: str = ""
    retries: str = ""


class Suggestion(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A change that lets a unit start, verified by a decision of the policy.

    `kind` is open, memory, cpu, gpus, gpu_memory, network, wishes, smaller, workers, priority, end or node. `size` is
    the fraction of the request that is given up. For `priority` it is the number of classes, as a fraction of all; for
    `end` it is the hours of lost work. `command` is the command to type, and `yields` has the units that would be
    preempted.
    """

    kind: str
    text: str
    size: float
    command: str = ""
    nodes: tuple[str, ...] = ()
    yields: tuple[str, ...] = ()


class UnblockReport(msgspec.Struct, frozen=True, kw_only=True):
    """The smallest change of each kind that lets a unit start now, smallest first. `text` explains why there is none,
    or why none is needed; for a unit on a lost node, it says what the unit waits for.
    """

    job: str
    unit: str
    revision: int
    suggestions: tuple[Suggestion, ...] = ()
    text: str = ""


class DeadlineForecast(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The probability that a job meets its deadlines, from simulated `futures`. Durations are nanoseconds from now.

    `due` is the time left to the last of its `deadlines`, `chance` the probability that all of them are met, in
    thousandths (-1: `unknown` has the reason). The work with a deadline is done by `p50` in half of the futures, by
    `p90` in nine tenths; None if too few futures complete it.
    """

    job: str
    deadlines: int
    due: int
    chance: int = -1
    p50: int | None = None
    p90: int | None = None
    futures: int = 0
    unknown: Unknown = ""

    @property
    def percent(self) -> str:
        return f"{self.chance / 10:.0f} %"

    @property
    def ends(self) -> str:
        """Format for people: `P50 end in 21m0s, P90 in 26m0s`."""
        p50, p90 = ("never" if at is None else f"in {format_duration(at)}" for at in (self.p50, self.p90))
        return f"P50 end {p50}, P90 {p90}"

    def sentence(self) -> str:
        """Format for people: `deadline in 30m0s: 93 % likely (P50 end in 21m0s, P90 in 26m0s)`."""
        when = f"in {format_duration(self.due)}" if self.due >= 0 else f"{format_duration(-self.due)} ago"
        what = f"deadline {when}" if self.deadlines == 1 else f"{self.deadlines} deadlines, the last {when}"
        if self.unknown:
            return f"{what}: {_UNKNOWN[self.unknown]}"
        return f"{what}: {self.percent} likely{'' if self.deadlines == 1 else ' that all are met'} ({self.ends})"


_UNKNOWN: dict[Unknown, str] = {
    "run times": "no forecast, since nothing is known of how long it runs; `--expect` tells it",
    "nodes": "no forecast, since no node has joined yet",
    "time": "no forecast, since there was no time to simulate it; `poise eta` takes longer",
}
