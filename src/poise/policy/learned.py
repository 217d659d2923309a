"""`poise` with a learned choice: where several shapes fit and not all units have room, a network picks the next start.

Each pick goes before the order of `poise`; everything else is decided by `poise`. The network sees at most `SLOTS`
shapes that fit, first in that order, and the state of the fleet. One scorer is shared by all shapes, so their order
does not matter (network.py). It answers with a slot, or leaves the rest of the round to `poise`.

Four rules limit the harm of a bad network. It is not asked if a unit has waited too long, or if deadlines, shares or
services decide (`reserved`). It is not asked outside the range of its training (`Brain.choose`). A pick may not be
worth less per device than a fraction of the best one (`LEAST_WORTH`). The estimated delay of other units by all picks
stays within a part of the time of all unfinished units (`BUDGET`).
"""

from collections.abc import Callable, Generator, Mapping, Sequence
from typing import Any

import msgspec
import numpy as np

from poise.model.decisions import Plan
from poise.model.fleet import CPU, DEVICES, MEMORY, NETWORK, Floats
from poise.model.resources import WHOLE
from poise.model.views import Candidate, Snapshot
from poise.policy.emptying import being_emptied
from poise.policy.network import Answer, Brain, Seen
from poise.policy.place import Draft
from poise.policy.rank import RANK_TERMS, RankTerm
from poise.policy.recipe import Recipe
from poise.policy.score import TERMS, Term
from poise.policy.suites import ClusterPolicy, Suite
from poise.policy.waiting import TAKES, WEIGHT
from poise.units import DAY, SECOND, format_duration

SLOTS = 16
"""Maximum number of shapes to choose from."""

MOST_PICKS = 16
"""Maximum number of picks in one round."""

LEAST_WORTH = 0.1
"""A pick must be worth, per device, at least this part of the best shape that fits."""

BUDGET = 0.02
"""Maximum estimated delay of other units by picks, as a part of the time of all unfinished units."""

SHORTEST = 1e-3
"""Lower limit of estimated run times, in seconds."""

SMALLEST = 1e-9
"""Lower limit of divisors, and of a relative worth."""


class Learned:
    """A policy that runs a recipe whose next starts are picked by its network. Raises `ValueError` for a network that
    does not fit.
    """

    def __init__(
        self, recipe: Recipe, terms: Mapping[str, Term] = TERMS, rank_terms: Mapping[str, RankTerm] = RANK_TERMS
    ) -> None:
        if recipe.network is None:
            raise ValueError("the recipe has no network")
        self.name = recipe.name
        self.recipe = recipe
        self._suite = Suite(recipe, terms, rank_terms)
        self._brain = Brain(recipe.network)

    def decide(self, view: Snapshot, /) -> Plan:
        """Decide as `poise`, after the picks of the network."""
        return driven(deciding(self._suite, view), self._brain.choose)


def policy_of(
    recipe: Recipe, terms: Mapping[str, Term] = TERMS, rank_terms: Mapping[str, RankTerm] = RANK_TERMS
) -> ClusterPolicy:
    """Return the policy that runs a recipe. Raises `KeyError` and `ValueError` for an invalid one."""
    return Suite(recipe, terms, rank_terms) if recipe.network is None else Learned(recipe, terms, rank_terms)


Deciding = Generator[Seen, Answer, Plan]


def driven(deciding: Deciding, choose: Callable[[Seen], Answer]) -> Plan:
    """Answer each choice of a round with `choose`, and return the plan."""
    try:
        seen = next(deciding)
        while True:
            seen = deciding.send(choose(seen))
    except StopIteration as end:
        plan: Plan = end.value
        return plan


def deciding(suite: Suite, view: Snapshot) -> Deciding:
    """Decide a round: yield each choice, take the answer, and return the plan."""
    draft, ordered = suite.ordered(view)
    note = reserved(view, draft)
    picks: dict[str, str] = {}
    if not note:
        choices = Choices(draft, list(ordered))
        while len(picks) < MOST_PICKS and (seen := choices.look()) is not None:
            answer = yield seen
            if answer.slot < 0:
                note = answer.why
                break
            if note := choices.refuses(answer.slot):
                break
            picks |= choices.take(answer.slot)
        if picks and choices.spent:
            plan = suite.serve(draft, ordered, picks, _in_words(note))
            memory = {**view.memory, **(plan.memory or {}), "learned": choices.remembered()}
            return msgspec.structs.replace(plan, memory=memory)
    return suite.serve(draft, ordered, picks, _in_words(note))


def reserved(view: Snapshot, draft: Draft) -> str:
    """Return why `poise` decides this round alone; "" if the network may be asked."""
    if view.shares is not None:
        return "fair shares decide"
    if being_emptied(view.fleet):
        return "a node is being emptied"
    if draft.timely.pressed:
        return "deadlines press"
    if any(one.serves for one in view.candidates):
        return "a service waits"
    raised = draft.waiting.raised
    if len(raised) and raised.max() > 0:
        at = int(raised.argmax())
        return f"{view.candidates[at].unit} has waited {format_duration(int(draft.waiting.waited[at]))}"
    return ""


def _in_words(note: str) -> str:
    return f"in the order of poise: {note}" if note else ""


class Choices:
    """The choices of one round: the shapes that fit, and what the picks cost others by estimate."""

    def __init__(self, draft: Draft, ordered: Sequence[Candidate]) -> None:
        view, fleet, waiting = draft.view, draft.fleet, draft.waiting
        self.spent = 0.0
        self._draft, self._view = draft, view
        self._scarce = DEVICES if fleet.total[DEVICES].any() else CPU
        is_open = fleet.closed == 0
        self._total = max(1.0, float(fleet.total[self._scarce, is_open].sum()))
        self._free: Floats = draft.free.astype(float) @ is_open
        gaining = frozenset(view.yielded.values())
        for one in ordered if gaining else ():
            if one.unit in gaining:
                self._free = self._free - _needs(one)
        ones = [one for one in ordered if one.unit not in gaining]
        places = waiting.places_of(ones)
        if self._scarce == DEVICES:
            sizes: Floats = waiting.columns[TAKES][places] / WHOLE
        else:
            sizes = np.array([one.shape.cpu * (one.least or one.tasks) for one in ones], float)
        those = np.flatnonzero(sizes)
        self._ones, self._sizes, places = [ones[at] for at in those.tolist()], sizes[those], places[those]
        self._runs: Floats = np.maximum(SHORTEST, waiting.runs[places] / SECOND)
        self._waited: Floats = np.maximum(0.0, waiting.waited[places] / SECOND)
        self._weights: Floats = waiting.columns[WEIGHT][places] / 1000
        self._classes = waiting.classes[places]
        self._worths = np.array(waiting.values(places, draft.waits)) / np.maximum(self._sizes, SMALLEST)
        self._gone = np.zeros(len(self._ones), bool)
        self._slots: list[int] = []

    def look(self) -> Seen | None:
        """Return the next choice; None if there is none: all units have room, or fewer than two shapes fit."""
        demand = float(self._sizes[~self._gone].sum())
        if demand <= self._free[self._scarce]:
            return None
        slots: dict[str, int] = {}
        first = -1
        for at in np.flatnonzero(~self._gone & (self._sizes <= self._free[self._scarce])).tolist():
            one = self._ones[at]
            if one.queue in slots or one.recovering or one.avoid:
                continue
            if first >= 0 and self._classes[at] != first:
                break
            if (_needs(one) <= self._free).all() and self._has_place(one):
                slots[one.queue], first = at, int(self._classes[at])
                if len(slots) == SLOTS:
                    break
        self._slots = list(slots.values())
        if len(slots) < 2:
            return None
        units = tuple(self._ones[at].unit for at in self._slots)
        return Seen(self._shapes(), self._room(demand), units)

    def refuses(self, slot: int) -> str:
        """Return why this slot must not be picked; "" if it may."""
        at = self._slots[slot]
        best = max(self._slots, key=lambda other: (self._worths[other], -other))
        part = self._worths[at] / max(self._worths[best], SMALLEST)
        if part < LEAST_WORTH:
            return f"{self._ones[at].unit} is worth {part:.2g} of {self._ones[best].unit} for each device"
        loss = self._loss(at)
        if self.spent + loss > self._credit:
            return f"the delay of others by picks would be above {BUDGET:.0%} of the time of all jobs"
        return ""

    def take(self, slot: int) -> dict[str, str]:
        """Pick this slot; return its unit and the reason in words."""
        at = self._slots[slot]
        self.spent += self._loss(at)
        self._gone[at] = True
        one = self._ones[at]
        self._free = self._free - _needs(one)
        instead = self._ones[self._slots[0]].unit
        return {one.unit: "picked by the network" + (f" before {instead}" if slot else "")}

    def remembered(self) -> dict[str, float]:
        """Return what is left of the budget, in unit seconds, and the instant."""
        return {"credit": self._credit - self.spent, "at": self._view.now}

    def _loss(self, at: int) -> float:
        """Return the estimated delay, in weighted seconds, if this unit starts before those before it in the order:
        each waits for its device time on the whole fleet, and it would have waited for theirs (Smith, 1956).
        """
        before = ~self._gone[:at]
        work = self._runs * self._sizes
        others, ahead = float(self._weights[:at][before].sum()), float(work[:at][before].sum())
        return max(0.0, (float(work[at]) * others - float(self._weights[at]) * ahead) / self._total)

    @property
    def _credit(self) -> float:
        """The budget in weighted seconds: a part of the time of all unfinished units, less what was spent."""
        memory: Mapping[str, Any] = self._view.memory.get("learned") or {}
        if not memory:
            return BUDGET * float((self._waited * self._weights).sum())
        present = len(self._view.candidates) + len(self._draft.running.units.number)
        passed = max(0, self._view.now - int(memory["at"])) / SECOND
        return min(float(memory["credit"]) + BUDGET * present * passed, BUDGET * present * DAY / SECOND)

    def _has_place(self, one: Candidate) -> bool:
        room = int(self._draft.capacity(one.shape).sum())
        return room >= (one.least or one.tasks)

    def _shapes(self) -> Floats:
        """Return (S, F): the features of the slots."""
        at = np.array(self._slots)
        ones = [self._ones[number] for number in self._slots]
        best = max(float(self._worths[at].max()), SMALLEST)
        backlog = self._view.backlog
        free = max(float(self._free[self._scarce]), SMALLEST)
        columns = [
            np.log10(1 + self._runs[at]) / 6,
            np.log10(1 + 1000 * self._sizes[at] / self._total) / 3,
            np.log10(1 + self._waited[at]) / 6,
            np.log10([1 + one.attained / SECOND for one in ones]) / 6,
            np.log10(np.maximum(self._worths[at] / best, SMALLEST)) / 4,
            np.log10([1 + backlog.get(one.queue, 0) for one in ones]) / 4,
            self._sizes[at] / free,
            np.arange(len(at)) / SLOTS,
            np.log2([1 + one.preempted for one in ones]) / 4,
        ]
        return np.stack(columns, axis=1)

    def _room(self, demand: float) -> Floats:
        """Return (C,): the features of the fleet and of all waiting units."""
        running = self._draft.running
        left = running.left
        waits = int((~self._gone).sum())
        mean_left = float(left.mean()) / SECOND if len(left) else 0.0
        return np.array(
            [
                float(self._free[self._scarce]) / self._total,
                np.log10(1 + waits) / 4,
                np.log10(1 + len(self._slots)) / 2,
                np.log10(1 + demand / self._total) / 2,
                np.log10(1 + len(running.units.number)) / 4,
                np.log10(1 + mean_left) / 6,
                len(self._slots) / max(1, waits),
            ]
        )


def _needs(one: Candidate) -> Floats:
    """Return the resources of a unit, at its minimum size, in the order of a fleet's columns."""
    shape, tasks = one.shape, one.least or one.tasks
    needs = np.zeros(4)
    needs[CPU], needs[MEMORY], needs[NETWORK] = shape.cpu * tasks, shape.memory * tasks, shape.network * tasks
    needs[DEVICES] = shape.gpus * tasks * shape.share / WHOLE
    return needs
