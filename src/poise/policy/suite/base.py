"""The state of a round: its view and draft, the prices of running units, and the reasons of its decisions."""

from collections.abc import Container, Mapping, Sequence
from functools import cached_property
from typing import Any, NamedTuple

import msgspec
import numpy as np

from poise.model.decisions import Decision, Reason, Why
from poise.model.fleet import CPU, Resident
from poise.model.resources import Shape
from poise.model.views import Candidate, Snapshot
from poise.policy.allowance import Allowance
from poise.policy.assign import Aim, Part
from poise.policy.emptying import being_emptied
from poise.policy.feasible import MOST_TASKS, grouped, room_when_empty
from poise.policy.growing import Begun
from poise.policy.place import Draft
from poise.policy.rank import Order
from poise.policy.recipe import Recipe
from poise.policy.reclaim import MIN_RUN, Preemption, Prices, Reservation, service, standings
from poise.policy.resizing import Members
from poise.policy.running import lost_work
from poise.policy.score import turn_weight
from poise.policy.shared import Shared
from poise.units import HOUR, format_duration

Reasons = tuple[Reason, ...]

WEIGHED = 2048
"""Maximum number of running attempts, and of waiting units, whose worth is weighed in one round. With more running,
work with devices is preempted and placed like other work. Weighing takes about 10 us each; a round may take 50 ms."""

TURN = 16 * HOUR
"""Device time after which a unit that makes checkpoints may be preempted for work of unknown run time. It is the
threshold of Tiresias' queues (Gu et al., 2019) in the simulator of Pollux's artifact."""

NO_PRICE = float("inf")
"""The price of a unit that may not be preempted."""


class Rules(NamedTuple):
    """The recipe of a suite and what follows from it: the order, whether units wait for room or behind an earlier unit
    only, and the explanation of work that is queued behind its like.
    """

    recipe: Recipe
    order: Order
    only_room: bool
    why_behind: Why


class Base:
    """The state of one round."""

    def __init__(self, rules: Rules, draft: Draft, picks: Mapping[str, str], note: str) -> None:
        view = draft.view
        self._picks, self._note = picks, note
        self.recipe, self.order, self.view, self.draft = rules.recipe, rules.order, view, draft
        self.decisions: list[Decision] = []
        self.holds: dict[str, Reasons] = {}
        self.turns = NodesInTurn(self.recipe.turns, view)
        self.memory: dict[str, Any] = {}
        self._why_behind = rules.why_behind
        self._only_room = rules.only_room
        self._full: set[Shape] = set()
        self._told: dict[Shape, tuple[Reasons, bool]] = {}  # and whether room is kept for any unit
        self._left: dict[Shape, int] = {}
        self._empty_room: dict[Shape, int] = {}
        self._gang_room: dict[Shape, int] = {}  # upper bounds: room only shrinks in a round
        self._reservations = 0
        self._soonest_of: dict[tuple[int, Shape], tuple[int, Reservation | None]] = {}  # and the changes included
        self._occupied = any(view.fleet.residents)
        self._open = draft.open
        self._all_open = bool(self._open.all())
        self._searches = 0
        self._until: int | None = None
        self._closed = False
        self._postponed = False  # candidates were skipped: ask again at once
        self._waiting: list[Candidate] = []
        self._begun: list[Begun] = []
        self.allowance = Allowance(view.quotas)
        self.shares = Shared(self.draft) if view.shares is not None else None
        self._emptied = being_emptied(view.fleet)
        self._gaining = frozenset(view.yielded.values())
        self._handed_over = not self._emptied
        self._yielding: set[str] = set()
        self._target: dict[str, Aim] = {}
        self._sizes: dict[str, int] = {}
        self._taking_back: dict[str, tuple[Candidate, Reasons]] = {}
        self._taken_back = 0
        self._shared_out: dict[str, Part] = {}

    @cached_property
    def _weighs_worth(self) -> bool:
        """Return whether running and waiting units are compared by worth, which takes time for each attempt."""
        rules = self.recipe.preempt
        return rules is not None and rules.by == "value" and self._attempts < WEIGHED

    @cached_property
    def _attempts(self) -> int:
        return sum(map(len, self.view.fleet.residents))

    @cached_property
    def _is_uneven(self) -> bool:
        """Return whether there are devices of several models, and units may be moved between them."""
        names = [model.name for model in self.view.fleet.models if model.kind != "cpu"]
        return len(names) > 1 and len(set(names)) == len(names) and self._weighs_worth

    @cached_property
    def _models(self) -> list[int]:
        """The device models, where there are several and units may be moved between them."""
        return (
            [index for index, model in enumerate(self.view.fleet.models) if model.kind != "cpu"]
            if self._is_uneven
            else []
        )

    @cached_property
    def _members(self) -> Members:
        return Members(self.draft)

    @cached_property
    def _stopping(self) -> bool:
        return self.draft.running.any_stopping

    @cached_property
    def _all_save(self) -> bool:
        """Return whether all running units with devices make checkpoints, and may be preempted after their turn."""
        return not self.draft.running.any_stays

    @cached_property
    def _prices(self) -> Prices:
        """The worth of each running unit where it is; computed once per round. An elastic unit above its minimum size
        is not preempted but shrunk, except for a deadline, which does not wait for that.
        """
        rules = self.recipe.preempt or Preemption()
        prices = Prices(standings(self.draft, rules), self.draft)
        if self.draft.timely.pressed:
            return prices
        shrinks = {one.unit for one in self.view.elastic if one.unit in self._sizes and one.size > max(1, one.least)}
        return prices.without(shrinks) if shrinks else prices

    @cached_property
    def _prices_for_deadlines(self) -> Prices:
        """The prices for units that must start now to be on time: lost work counts once, however many units wait."""
        return Prices(standings(self.draft, self.recipe.preempt or Preemption(), plain=True), self.draft)

    @cached_property
    def _had_turns(self) -> Prices:
        """The prices of units that may be preempted for work of unknown run time: those that lose little or have had
        much service.
        """
        rules, now = self.recipe.preempt or Preemption(), self.view.now
        had = {
            one.unit
            for one in self.draft.running.residents
            if rules.loses_little(one) or (one.checkpoint and service(one, now) >= TURN)
        }
        return self._prices.without(self.draft.running.units.number.keys() - had)

    @cached_property
    def _leaving(self) -> Prices:
        """The prices of units that should not run now, and of those that should run on another model and either lose
        little, or make checkpoints and have room there: these lose only the difference to their worth there.
        """
        models, now = self.view.fleet.models, self.view.now
        room = {model: self.draft.whole_devices_free(model) for model in self._models}
        others: dict[str, float] = {}
        for one in self.draft.running.residents:
            if (aim := self._target.get(one.unit)) is None:
                continue
            has_room = one.checkpoint > 0 and room[aim.model] >= one.shape.gpus * one.size
            goes = models[aim.model].called != one.model and (has_room or lost_work(one, now) <= MIN_RUN)
            others[one.unit] = max(0.0, self._prices.price(one.unit) - aim.worth) if goes else NO_PRICE
        return self._prices.changed(others)

    def _is_guess(self, candidate: Candidate) -> bool:
        """Return whether the unit's run time is unknown on all devices."""
        return self.draft.speeds.is_guess(candidate, self.draft.able(candidate.shape).models)

    def _spared(self, one: Candidate | Resident) -> Container[str]:
        """Return the units that may not be preempted for this one."""
        if self.shares is None:
            return frozenset()
        return self.shares.spared(one)

    def _lawful(self, one: Candidate | Resident, prices: Prices) -> Prices:
        """Return the prices of the units that may be preempted for this one."""
        return prices if self.shares is None else self.shares.lawful(one, prices)

    def _agree(self, candidate: Candidate, shape: Shape, leaves: Mapping[str, Sequence[int] | None]) -> bool:
        """Return whether these tasks of these units (None: all) may be stopped for it; if so, count them as gone."""
        return self.shares is None or self.shares.agree(candidate, shape, leaves)

    def _keep_rows(self, candidate: Candidate, shape: Shape, rows: Mapping[int, int], until: int) -> None:
        for row, tasks in rows.items():
            self.draft.keep(row, candidate.unit, shape, until, tasks)

    def _could_run(self, candidate: Candidate) -> bool:
        """Return whether the open nodes could hold the unit if they were empty."""
        for shape in (candidate.shape, *candidate.others):
            room = self._empty_room.get(shape)
            if room is None:
                room = self._empty_room[shape] = self._most_of(shape)
            if room >= (candidate.least or candidate.tasks):
                return True
        return False

    def _most_of(self, shape: Shape) -> int:
        fleet, able = self.view.fleet, self.draft.able(shape)
        if self._all_open:
            return able.most
        if shape.where.groups:
            room = np.minimum(able.by_row(fleet), MOST_TASKS)
            return int(grouped(fleet, shape.where, np.where(self._open, room, 0)).sum())
        return room_when_empty(able.room, np.bincount(fleet.kind[self._open & able.where], minlength=len(fleet.likes)))

    def _ask_again(self, at: int) -> None:
        """Request another round at this instant, when the answer may change without an event."""
        if at > self.view.now and (self._until is None or at < self._until):
            self._until = at

    def _remember(self) -> dict[str, Any] | None:
        memory = {**self.view.memory, **self.turns.memory(), **self.memory}
        return memory if memory != self.view.memory else None

    def _why(self, candidate: Candidate, shape: Shape, row: int, gang: Sequence[int] = ()) -> Why:
        """Explain the choice beside the best other nodes; for a `gang`, beside those that hold all of it."""
        fleet = self.draft.fleet
        said = (self.order.words(candidate, self.view), self._picks.get(candidate.unit, self._note))
        rank = ", ".join(filter(None, said))
        if len(fleet) == 1 or self.recipe.turns != "no":
            return Why(
                policy=self.recipe.name, base=self.view.revision, rank=rank, speed=self._speed(candidate, shape, row)
            )
        openings = self.draft.openings(candidate, shape)
        known = openings.whys.get((row, rank))
        if known is not None and not gang:
            return known
        mine, names, scores = openings.beside(row, fleet.names)
        fitting = openings.fitting
        if gang:
            enough = self.draft.capacity(shape) >= len(gang)
            holding = [(name, value) for name, value in zip(names, scores, strict=True) if enough[fleet.rows[name]]]
            names, scores = tuple(name for name, _ in holding), tuple(value for _, value in holding)
            fitting = int(enough.sum())
            if gang[0] != gang[-1]:
                rank = f"{rank}; no node holds all {len(gang)} tasks"
        why = Why(
            policy=self.recipe.name,
            base=self.view.revision,
            rank=rank,
            score={f"score on {fleet.names[row]}": mine},
            instead_of=names,
            behind=scores,
            fitting=fitting,
            speed=self._speed(candidate, shape, row),
        )
        if not gang:
            openings.whys[row, rank] = why
        return why

    def _speed(self, candidate: Candidate, shape: Shape, row: int) -> str:
        """Return the run time estimated here and its source, where devices differ."""
        if not self.draft.speeds.tells_models_apart(devices=shape.gpus > 0):
            return ""
        estimates = self.draft.estimates(candidate, shape)
        if estimates.count(estimates[0]) == len(estimates):
            return ""
        estimate = self.draft.run_on(candidate, shape, row)
        return f"{format_duration(estimate.mean)} ± {format_duration(estimate.deviation)} by {estimate.source}"


class NodesInTurn:
    """Nodes in turn, equally or by weight; the state comes with the view and goes out with the plan."""

    def __init__(self, kind: str, view: Snapshot) -> None:
        self._kind = kind
        self._last = str(view.memory.get("last", ""))
        self._credit: dict[str, float] = dict(view.memory.get("credit", {}))

    def next(self, draft: Draft, shape: Shape) -> int | None:
        """Return the row whose turn it is, among those where the shape fits."""
        fleet = draft.fleet
        rows = np.flatnonzero(draft.capacity(shape) > 0).tolist()
        if not rows:
            return None
        if self._kind == "equal":
            row = next((row for row in rows if fleet.names[row] > self._last), rows[0])
            self._last = fleet.names[row]
            return int(row)
        weights = {row: self._weight(draft, row) for row in rows}
        for row, weight in weights.items():
            self._credit[fleet.names[row]] = self._credit.get(fleet.names[row], 0.0) + weight
        chosen = max(rows, key=lambda row: (self._credit[fleet.names[row]], -row))
        self._credit[fleet.names[chosen]] -= sum(weights.values())
        return int(chosen)

    def memory(self) -> dict[str, Any]:
        if self._kind == "equal":
            return {"last": self._last} if self._last else {}
        return {"credit": self._credit} if self._kind == "weighted" and self._credit else {}

    def _weight(self, draft: Draft, row: int) -> float:
        total = int(draft.fleet.total[CPU, row])
        used = 1 - int(draft.free[CPU, row]) / total if total else 0.0
        return turn_weight(used, draft.fleet.nodes[row].latency)


def on_model(shape: Shape, name: str) -> Shape:
    """Return the shape restricted to devices of this model."""
    return on_models(shape, (name,))


def on_models(shape: Shape, names: Sequence[str]) -> Shape:
    """Return the shape restricted to devices of these models."""
    return msgspec.structs.replace(shape, wants=msgspec.structs.replace(shape.wants, models=tuple(names)))


def told(worth: float) -> float:
    """Return a worth per hour, rounded to three digits, for display."""
    return float(f"{3600 * worth:.3g}")
