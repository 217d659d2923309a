"""The named policies: compositions of an order, weighted node scores, and rules for blocked units.

A `Recipe` is data (recipe.py): the shipped policies are recipes, and so is a user's YAML file. `Suite` runs a recipe in
five steps: order the candidates; find where each fits (feasible); choose the best node (score, place); reserve room for
blocked units or preempt others for them (reclaim); hold the units that still wait, with every reason."""

from bisect import bisect_right
from collections import Counter
from collections.abc import Container, Iterable, Mapping, Sequence
from functools import cached_property, partial
from itertools import chain, filterfalse, islice
from operator import attrgetter
from typing import Any, Literal

import msgspec
import numpy as np

from poise.model.decisions import Ask, Decision, Hold, Place, Plan, Preempt, Reason, Resize, Why
from poise.model.fleet import CPU, DEVICES, HOT, MEMORY, NETWORK, Bools, Ints, Phased, Resident
from poise.model.jobs import FIRST_PHASE, GRACE
from poise.model.profiles import expected_run, is_brief
from poise.model.resources import WHOLE, Shape
from poise.model.views import LEAST_SHOWN, Candidate, Snapshot
from poise.policy.allowance import Allowance
from poise.policy.assign import PRESSED, Aim, Part, assign, in_time
from poise.policy.choose import choose
from poise.policy.elastic import speeds_with, worth_having
from poise.policy.elasticflow import ElasticFlow
from poise.policy.emptying import being_emptied, hand_over, keep_for_leaving
from poise.policy.entitled import Turns, by_share
from poise.policy.feasible import MOST_TASKS, gang_incomplete, grouped, room_when_empty
from poise.policy.goodput import Goodput
from poise.policy.growing import COOL_DOWN, GROWS_BY, Begun, changes, hand_out, sizes, tells_models_apart, units_of
from poise.policy.place import Draft, close_together
from poise.policy.protocol import Policy
from poise.policy.queues import Tiresias
from poise.policy.rank import (
    LENDING,
    ORDERS,
    PATIENCE,
    PRESETS,
    RANK_TERMS,
    RESERVATIONS,
    Order,
    RankTerm,
    by_terms,
    by_value,
    effective_class,
    power_of,
)
from poise.policy.recipe import RECIPES, Recipe
from poise.policy.reclaim import (
    MIN_RUN,
    Preemption,
    Prices,
    Reservation,
    Yielding,
    cost_of,
    drain,
    ends,
    find_yielding,
    gain_of,
    is_coming,
    make_way,
    may_yield_at,
    next_checkpoint,
    reserve,
    service,
    settled,
    standings,
    stands_still,
    take_from,
    value,
)
from poise.policy.resizing import SETTLES, Members, find_smaller, grows_at, more_of
from poise.policy.rounds import SHARING
from poise.policy.running import lost_work
from poise.policy.score import TERMS, Term, turn_weight
from poise.policy.shared import Shared
from poise.policy.static import Static
from poise.policy.timely import EXCHANGE, RISK
from poise.policy.waiting import AGEING, GPUS, ONE, STARVES, WHOLES, WIDTH, ageing
from poise.units import HOUR, SECOND, format_duration

ClusterPolicy = Policy[Snapshot, Plan]
Reasons = tuple[Reason, ...]

ASKS_AGAIN = 8
"""Retry the victim search of a blocked unit each time its wait has grown by 1/8."""

YIELD_SEARCHES = 4
"""Maximum number of victim searches in one round."""

TAKE_BACKS = 16
"""Maximum number of blocked units in one round for which borrowed resources of their share are reclaimed."""

WEIGHED = 2048
"""Maximum number of running attempts, and of waiting units, whose worth is weighed in one round. With more running,
work with devices is preempted and placed like other work. Weighing takes about 10 us each; a round may take 50 ms."""

WEIGHED_WAITING = 256
"""Number of waiting units, first in order, from which a round selects the most valuable combination."""

TURN = 16 * HOUR
"""Device time after which a unit that makes checkpoints may be preempted for work of unknown run time. It is the
threshold of Tiresias' queues (Gu et al., 2019) in the simulator of Pollux's artifact."""

TOGETHER = 64
"""Minimum number of candidates for which the check whether all of them have room pays off."""

IDLES = 0.1
"""Room is kept for a waiting unit only if the device time idle until its start is less than this part of its own."""

MOST_ASKS = 8
"""Maximum number of distinct requests of waiting work that a plan reports as the room it waits for."""

MADE, FOUND, NOTHING = range(3)
"""Kinds of promise to a waiting unit: room that other units vacate for it, room found free, or none."""

_ANY = float("inf")
NOBODY: tuple[Resident, ...] = ()
NO_PICKS: Mapping[str, str] = {}

_is_recovering = attrgetter("recovering")
_serves = attrgetter("serves")
_least = attrgetter("least")
_queue = attrgetter("queue")
_NEVER = np.iinfo(np.int64).max


class Suite:
    """A policy that runs a recipe. `terms` and `rank_terms` may include other terms than the shipped ones. Raises
    KeyError for an unknown name, ValueError for weights of a score that do not add up to more than 0.
    """

    def __init__(
        self, recipe: Recipe, terms: Mapping[str, Term] = TERMS, rank_terms: Mapping[str, RankTerm] = RANK_TERMS
    ) -> None:
        self.recipe = recipe
        self.name = recipe.name
        self.waits = power_of(recipe.fairness)
        self.order = _order_of(recipe.order, rank_terms, self.waits)
        self.terms = terms
        for name in recipe.score:
            terms[name]
        if not sum(recipe.score.values()) > 0:
            raise ValueError("the weights of a score must add up to more than 0")
        self.only_room = _only_room(recipe)
        self.why_behind = Why(policy=recipe.name, rank="short work, queued behind its like")

    def decide(self, view: Snapshot, /) -> Plan:
        """Order the units, place those that fit, make room for those that do not, hold the rest with every reason.

        Where there is room for all shown units, the order does not matter, and similar units are placed together. If
        that fails because the room is fragmented, the units are served one by one.
        """
        return self.serve(*self.ordered(view))

    def ordered(self, view: Snapshot) -> tuple[Draft, list[Candidate] | Turns]:
        """Return a draft of the view, and its candidates in the order in which to serve them."""
        draft = self._draft(view)
        ordered = by_share(view, self.order.sort(view, draft.timely), draft.timely.pressed)
        emptied = being_emptied(view.fleet)
        if view.yielded or emptied:  # room was promised to them, whatever the order is now
            gaining = frozenset(view.yielded.values())
            ordered = sorted(ordered, key=lambda candidate: _promised(candidate, gaining, emptied))
        return draft, ordered

    def serve(
        self, draft: Draft, ordered: list[Candidate] | Turns, picks: Mapping[str, str] = NO_PICKS, note: str = ""
    ) -> Plan:
        """Place candidates in order, and make room for those that do not fit. The units in `picks` come first, except
        for promised room; each has the reason in words. The `note` is added to the reasons of all placements.
        """
        view = draft.view
        in_turn = self.recipe.spread or self.recipe.turns != "no"
        simple = not (in_turn or being_emptied(view.fleet) or view.shares or picks)
        if simple and isinstance(ordered, list) and len(ordered) >= TOGETHER and _may_have_room(view, ordered):
            plan = _Round(self, draft, picks, note).place_all(ordered)
            if plan is not None:
                return plan
            draft = self._draft(view)
        if self.recipe.preempt is not None and any(map(_serves, view.candidates)):
            ordered = _serving_first(list(ordered))
        return _Round(self, draft, picks, note).decide(ordered)

    def _draft(self, view: Snapshot) -> Draft:
        return Draft(view, self.recipe.score, self.terms, spread=self.recipe.spread, waits=self.waits)


class _Round:
    """One round of decisions."""

    def __init__(self, suite: Suite, draft: Draft, picks: Mapping[str, str], note: str) -> None:
        view = draft.view
        self._picks, self._note = picks, note
        self.recipe, self.order, self.view, self.draft = suite.recipe, suite.order, view, draft
        self.decisions: list[Decision] = []
        self.holds: dict[str, Reasons] = {}
        self.turns = _Turns(self.recipe.turns, view)
        self.memory: dict[str, Any] = {}
        self._why_behind = suite.why_behind
        self._only_room = suite.only_room
        self._full: set[Shape] = set()
        self._told: dict[Shape, tuple[Reasons, bool]] = {}  # and whether room is kept for any unit
        self._left: dict[Shape, int] = {}
        self._empty_room: dict[Shape, int] = {}
        self._gang_room: dict[Shape, int] = {}  # upper bounds: room only shrinks in a round
        self._guesses: dict[str, bool] = {}
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

    def place_all(self, ordered: list[Candidate]) -> Plan | None:
        """Place every candidate, except those of later lanes than unseen ones; None if one of them has no place."""
        if self._unseen:
            ordered = self._before_unseen(ordered)
        if self.view.quotas:
            ordered, over = self.allowance.share_out(ordered)
            self.holds |= over
        fleet = self.view.fleet
        free = fleet.free.astype(float) @ (fleet.closed == 0)
        shapes = [candidate.shape for candidate in ordered]
        if sum([shape.cpu for shape in shapes]) > free[CPU]:  # cheap check that usually decides
            return None
        if sum([shape.gpus * shape.share for shape in shapes]) > free[DEVICES] * WHOLE:
            return None
        groups: dict[str, list[Candidate]] = {}
        for candidate in ordered:
            if candidate.others or candidate.avoid or candidate.recovering:
                return None
            groups.setdefault(candidate.queue, []).append(candidate)
        need = np.zeros(4)
        for group in groups.values():
            shape, tasks = group[0].shape, sum(candidate.least or candidate.tasks for candidate in group)
            need += (
                shape.cpu * tasks,
                shape.memory * tasks,
                shape.network * tasks,
                shape.gpus * tasks * shape.share / WHOLE,
            )
        if (need > free).any():
            return None
        for group in groups.values():
            if group[0].tasks == 1 and not group[0].least:
                if not self._place_alike(group):
                    return None
            elif not all(self._place(candidate) for candidate in group):
                return None
        return self._finish()

    def _place_alike(self, group: list[Candidate]) -> bool:
        """Place single-task units of one queue, node by node; return whether all of them found room."""
        draft, first = self.draft, group[0]
        shape = first.shape
        brief = is_brief(self.view.profiles.get(first.kind), shape, 1)
        placed = 0
        while placed < len(group):
            found = draft.best(first, shape)
            if found is None:
                return False
            row = found[0]
            count = min(draft.room_for(row, shape), len(group) - placed)
            why = self._why(group[placed], shape, row)
            spots = draft.take_many(row, first, shape, count, brief=brief)
            self.allowance.take(first, shape, count)
            self.decisions += [
                Place(unit=candidate.unit, spots=(spot,), why=why)
                for candidate, spot in zip(group[placed:], spots, strict=False)
            ]
            placed += count
        return True

    def decide(self, turns: list[Candidate] | Turns) -> Plan:
        """Serve the candidates in order."""
        recipe = self.recipe
        order = turns if isinstance(turns, Turns) and not self._weighs_worth else None
        ordered: list[Candidate] = [] if order is not None else list(turns)
        if self._shares_elastic(ordered):
            self._share_out(ordered)
        if self._sizes and self.shares is None:
            last = np.array([self._sizes.get(one.unit, 1) == 0 for one in ordered], bool)
            ordered = self._last(ordered, self.draft.waiting.places_of(ordered), last)
        if self._is_uneven:
            within = (one for one in ordered if not (one.tenant and self.allowance.against(one)))
            rest = [one for one in within if one.unit not in self._shared_out]
            prices = {unit: price for unit, price in self._prices.by_unit().items() if unit not in self._shared_out}
            self._target = assign(self.draft, rest[: WEIGHED - self._attempts], prices, self._shared_out.values())
            self._target |= {unit: Aim(one.model, 0.0) for unit, one in self._shared_out.items()}
        elif self._weighs_worth and not self._sizes and self.shares is None:
            ordered = self._most_worth_first(ordered)
        if self._picks:
            ordered, order = self._picked_first(turns), None
        first = ""  # the blocked unit that no other may overtake, where overtaking is not allowed
        only_behind = False  # it is queued on a node, and others may follow it there
        last_lane: int | None = None  # the first lane with more units than shown, all placed
        keep_for_leaving(self.draft)
        for candidate in ordered if order is None else order:
            if not self._handed_over and _promised(candidate, self._gaining, self._emptied) == NOTHING:
                self._hand_over()
            if candidate.queue in self.holds and not candidate.recovering:
                continue
            if candidate.tenant and (over := self.allowance.against(candidate)):
                self.holds[candidate.queue] = over
                continue
            if last_lane is not None and self.order.lane(candidate, self.view.now) > last_lane:
                self._postponed = True
                continue
            if self.shares is not None and self.shares.confines:
                found = self.shares.confined(candidate)
                if isinstance(found, tuple):
                    self.holds[candidate.queue] = found
                    continue
                candidate = found
            if first and not only_behind and not self.view.quotas:  # no other unit can start
                behind_first = (Reason(code="BEHIND", subject=first),)
                self.holds = dict.fromkeys(self.view.backlog, behind_first) | self.holds
                break
            if first:
                full = candidate.shape in self._full
                if not (only_behind and full):
                    if not candidate.recovering:
                        self.holds[candidate.queue] = (Reason(code="BEHIND", subject=first),)
                    only_behind = only_behind and not self._could_run(candidate)
                    continue
            elif self._place(candidate):
                self._count_share(candidate)
                if self._unseen and self._was_last_shown(candidate):
                    lane = self.order.lane(candidate, self.view.now)
                    last_lane = lane if last_lane is None else min(lane, last_lane)
                continue
            behind = self._behind(candidate)
            if not recipe.overtake and self._could_run(candidate):
                first, only_behind = first or candidate.unit, behind is not None
                self._closed = recipe.order == "arrival" and not (only_behind or self.view.quotas)
            if behind is not None:
                self.decisions.append(behind)
                continue
            self._blocked(candidate)
            if order is not None and not order.settled:
                order.settled = self._is_settled()
        return self._finish()

    def _is_settled(self) -> bool:
        """Return whether the order of the remaining units has no effect: no device is free, no unit that waits can do
        without one, and no more room is made or kept for them in this round.
        """
        recipe = self.recipe
        searches = self._occupied and (self._searches < YIELD_SEARCHES or self._taken_back < TAKE_BACKS)
        if (searches and recipe.preempt is not None) or not (recipe.overtake and self._handed_over):
            return False
        if not (self._only_one_device if recipe.reserve else self._only_devices):
            return False
        return not (self.draft.share[self._open] > 0).any()

    @cached_property
    def _only_devices(self) -> bool:
        """Whether all units that wait ask for devices."""
        return bool(self.draft.waiting.columns[GPUS].all())

    @cached_property
    def _only_one_device(self) -> bool:
        """Whether all units that wait ask for one device: no room is kept for those."""
        return bool(self.draft.waiting.columns[ONE].all())

    def _count_share(self, candidate: Candidate) -> None:
        """Count the last placement against its share."""
        begun = self._begun[-1] if self._begun and self._begun[-1].candidate is candidate else None
        last = begun or self.decisions[-1]
        if self.shares is not None and (begun or (isinstance(last, Place) and last.unit == candidate.unit)):
            shape = (candidate.shape, *candidate.others)[last.variant]  # type: ignore[union-attr]
            self.shares.place(candidate, shape, last.spots)  # type: ignore[union-attr]

    def _picked_first(self, ordered: Iterable[Candidate]) -> list[Candidate]:
        """Put first the picked units, after those with promised room."""
        places = {unit: place for place, unit in enumerate(self._picks)}

        def place(candidate: Candidate) -> int:
            promised = _promised(candidate, self._gaining, self._emptied) != NOTHING
            return -1 if promised else places.get(candidate.unit, len(places))

        return sorted(ordered, key=place)

    def _most_worth_first(self, ordered: list[Candidate]) -> list[Candidate]:
        """Put first, in each class, the units worth most together with running work, if gangs wait for devices."""
        waiting = self.draft.waiting
        places = waiting.places_of(ordered)
        here = places[waiting.columns[WHOLES][places] > 0][:WEIGHED_WAITING]
        if not (waiting.columns[WIDTH][here] > 1).any():
            return ordered
        behind = np.zeros(len(ordered), bool)
        behind[self._left_out(here)] = True
        return self._last(ordered, places, behind[places])

    def _last(self, ordered: list[Candidate], places: Ints, last: Bools) -> list[Candidate]:
        """Return the candidates with those marked `last` after others of equal promise, deadline pressure and class."""
        lanes = self.order.lanes(self.draft.waiting, places)
        keys = [last, lanes]
        if pressed := self.draft.timely.pressed:
            late = np.array([one.unit in pressed for one in ordered])
            keys = [last, np.where(late, 0, lanes), ~late]
        if self.view.yielded or self._emptied:
            keys.append(np.array([_promised(one, self._gaining, self._emptied) for one in ordered]))
        return [ordered[number] for number in np.lexsort(keys).tolist()]

    def _shares_elastic(self, ordered: Sequence[Candidate]) -> bool:
        """Return whether the sizes of elastic units on whole devices are chosen together. With several device models
        each unit gets one of them, so at least one unit must be known to be faster on some model.
        """
        if not (self.recipe.elastic and self._weighs_worth):
            return False
        if not (self.view.elastic or any(map(_least, ordered))):
            return False
        elastic: Iterable[Resident | Candidate] = chain(self.view.elastic, (one for one in ordered if one.least))
        of_devices = (one for one in elastic if one.shape.gpus)
        if not self._is_uneven:
            return any(True for _ in of_devices)
        return any(tells_models_apart(self.draft, one, self._models) for one in of_devices)

    @cached_property
    def _models(self) -> list[int]:
        """The device models, where there are several and units may be moved between them."""
        return (
            [index for index, model in enumerate(self.view.fleet.models) if model.kind != "cpu"]
            if self._is_uneven
            else []
        )

    def _share_out(self, ordered: Sequence[Candidate]) -> None:
        """Choose sizes for all elastic units on whole devices and all gangs that wait for them. With several device
        models, also choose a model for each elastic unit that is to start or to grow beyond its minimum.
        """
        models, waiting = self._models, list(islice(filter(_takes_whole, ordered), WEIGHED_WAITING))
        units, there = units_of(self.draft, waiting, models)
        found = sizes(units, there)
        self._sizes = {unit: size.tasks for unit, size in found.items()} | self._begun_anew(ordered)
        if models:
            elastic = {one.name: one for one in units if one.least < one.most}
            for unit, size in found.items():
                if unit not in elastic or not self._sizes[unit]:
                    continue
                one = elastic[unit]
                stays = one.size == one.least and one.here == size.model
                if not (stays and self._sizes[unit] == one.least):  # else it may be preempted as others are
                    gets, has = one.width * self._sizes[unit], one.width * one.size
                    self._shared_out[unit] = Part(models[size.model], gets, has, models[one.here])

    def _left_out(self, waiting: Ints) -> Ints:
        """Return the places of units waiting for whole devices that are not in the most valuable combination with
        running work.
        """
        draft, free = self.draft, self.draft.whole_devices_free()
        widths = draft.waiting.columns[WIDTH][waiting]
        if widths.sum() <= free:  # all have room, whatever their worth
            return waiting[:0]
        prices, held = self._prices.of, draft.running.widths
        may = ((held > 0) & (prices < _ANY)).nonzero()[0]
        running = held[may]
        devices = free + int(running.sum())
        worths = np.concatenate((prices[may], draft.waiting.values(waiting, draft.waits)))
        chosen = choose(worths, np.concatenate((running, widths)), devices)
        first = len(running)
        fits = [first + number not in chosen and width <= devices for number, width in enumerate(widths.tolist())]
        return waiting[fits]  # units that are too wide now keep their order and reserve room

    @cached_property
    def _is_uneven(self) -> bool:
        """Return whether there are devices of several models, and units may be moved between them."""
        names = [model.name for model in self.view.fleet.models if model.kind != "cpu"]
        return len(names) > 1 and len(set(names)) == len(names) and self._weighs_worth

    def _before_unseen(self, ordered: list[Candidate]) -> list[Candidate]:
        """Return the candidates without those of later lanes than the units not shown; those follow at once."""
        if len(self.view.backlog) == 1:
            return ordered

        def lane(candidate: Candidate) -> int:
            return self.order.lane(candidate, self.view.now)

        last = {candidate.queue: candidate for candidate in ordered}
        limit = min(lane(last[queue]) for queue in self._unseen)
        if self.view.yielded or self.draft.timely.pressed:  # those are first in the order
            before = [candidate for candidate in ordered if lane(candidate) <= limit]
        else:
            before = ordered[: bisect_right(ordered, limit, key=lane)]
        if len(before) < len(ordered):
            self._postponed = True
        return before

    @cached_property
    def _unseen(self) -> dict[str, int]:
        """The number of shown units not placed yet, by queue, of each queue that is longer than shown."""
        return _unseen(self.view)

    def _was_last_shown(self, candidate: Candidate) -> bool:
        """Return whether this was the last shown unit of a queue that continues."""
        left = self._unseen.get(candidate.queue)
        if left is None or candidate.recovering:
            return False
        self._unseen[candidate.queue] = left - 1
        return left == 1

    def _finish(self) -> Plan:
        """Give the remaining room to elastic units, move work off hot nodes, hold waiting units with every reason."""
        if not self._handed_over:
            self._hand_over()
        self._place_elastic()
        if self.recipe.reallocate:
            self._reallocate()
            self._move_stragglers()
            self._follow_phases()
            self._move_up()
        if self.draft.timely.next:
            self._ask_again(self.draft.timely.next)
        if self.shares is not None and self.shares.young:
            self._ask_again(self.shares.young)
        if self._postponed:
            self._ask_again(self.view.now + 1)
        elif self._sizes:
            self._resize()
        elif self.recipe.elastic and not self.holds:
            self._grow()
        for queue, (candidate, back) in self._taking_back.items():
            if queue not in self.holds:
                self.holds[queue] = back
                self._waiting.append(candidate)
        for candidate in self._waiting:  # by the room left after all placements
            self.holds[candidate.queue] += self._reasons(candidate)
        self.decisions.extend(Hold(queue=queue, reasons=reasons) for queue, reasons in self.holds.items())
        asks = self._asks()
        return Plan(
            base=self.view.revision,
            policy=self.recipe.name,
            decisions=tuple(self.decisions),
            until=self._until if asks is None else None,
            memory=self._remember(),
            closed=self._closed,
            asks=asks,
        )

    def _asks(self) -> tuple[Ask, ...] | None:
        """Return the room without which the plan would not change, whatever the time and other events; None where that
        is unknown.
        """
        view, recipe = self.view, self.recipe
        if self._postponed or self._emptied or view.quotas or view.yielded:
            return None
        if not self._only_room:
            return () if self._has_placed_all() and self._rests() else None
        if not (recipe.overtake or self._closed or not self.holds):
            return None
        if not (self.holds.keys() >= view.backlog.keys() or self.holds.keys() >= self._unseen.keys()):
            return None
        if any(map(_is_recovering, view.candidates)):
            return None
        asks: dict[Ask, None] = {}
        for candidate in self._waiting:
            needed = candidate.least or candidate.tasks
            for shape in (candidate.shape, *candidate.others):
                if needed == 1 and not shape.gpus:
                    return None  # it may be brief and queue behind similar work
                asks[Ask(shape, needed)] = None
        return tuple(asks) if len(asks) <= MOST_ASKS else None

    def _has_placed_all(self) -> bool:
        """Return whether no unit waits, and the only decisions are starts of units with a fixed size."""
        ones, decisions = self.view.candidates, self.decisions
        return (
            len(ones) == len(decisions) == sum(self.view.backlog.values())
            and all(isinstance(one, Place) and not one.queued for one in decisions)
            and not any(one.least for one in ones)
        )

    def _rests(self) -> bool:
        """Return whether no running unit could be grown or moved, even with more room."""
        view, recipe = self.view, self.recipe
        if self._until is not None or (recipe.elastic and view.elastic) or self._is_uneven:
            return False
        return not recipe.reallocate or not (view.stragglers or view.phased or (view.fleet.levels == HOT).any())

    # --- placing -----------------------------------------------------------------------------------------------------

    def _place(self, candidate: Candidate) -> bool:
        """Place the unit if it fits, in the artifact with the shortest estimated run time; after an out-of-memory
        failure, in one that asks for less memory, if there is one.
        """
        aim = self._target.get(candidate.unit)
        told_apart = aim is not None and self._by_speed(candidate, candidate.shape)[0][1] is not None
        if aim is not None and told_apart and not candidate.others:
            shapes: tuple[Shape, ...] = (_on_model(candidate.shape, self.view.fleet.models[aim.model].name),)
        elif late := self._late_on(candidate):
            names = [model.name for model in self.view.fleet.models if model.name not in late]
            shapes = (_on_models(candidate.shape, names),)
        else:
            shapes = (candidate.shape, *candidate.others)
        if candidate.tasks > 1 or candidate.least:
            return self._place_gang(candidate, shapes)
        best: tuple[bool, bool, int, int, int, Shape] | None = None
        for variant, shape in enumerate(shapes):
            if candidate.tenant and candidate.others and not self.allowance.room_of(candidate, shape):
                continue
            if shape in self._full:
                row = None
            elif self.recipe.turns != "no":
                row = self.turns.next(self.draft, shape)
            else:
                found = self.draft.best(candidate, shape)
                row = found[0] if found else None
            if row is None:
                self._full.add(shape)
                row = self._meanwhile(candidate, shape)
            if row is not None and len(shapes) == 1:
                best = (False, False, 0, variant, row, shape)
            elif row is not None:  # known run times come before guesses
                run = self.draft.run_on(candidate, shape, row)
                found_here = (_ran_out(candidate, shape), run.source == "default", run.mean, variant, row, shape)
                best = found_here if best is None else min(best, found_here)
        if best is None:
            return False
        *_, variant, row, shape = best
        brief = is_brief(self.view.profiles.get(candidate.kind), shape, 1)
        why = self._why(candidate, shape, row)
        spot = self.draft.take(row, candidate, shape, brief=brief)
        self.allowance.take(candidate, shape, 1)
        self.decisions.append(Place(unit=candidate.unit, spots=(spot,), why=why, variant=variant))
        return True

    def _late_on(self, candidate: Candidate) -> dict[str, int]:
        """Return the device models on which a unit may not start, with its run time there: it would miss a deadline
        that is kept, and could not move to a faster device without losing all of its work.
        """
        moves = candidate.checkpoint and candidate.preemptible
        if moves or candidate.unit not in self.draft.timely.waiting or candidate.others or not self._is_uneven:
            return {}
        runs = self.draft.speeds.left(candidate, candidate.shape, self.draft.able(candidate.shape).models)
        good = in_time(self.draft, candidate, runs)
        return {self.view.fleet.models[index].name: run for index, run in runs.items() if good and index not in good}

    def _meanwhile(self, candidate: Candidate, shape: Shape) -> int | None:
        """Return a row with room kept for another unit, if this unit is known to end before that room is needed."""
        now, kept = self.view.now, self.draft.kept
        for row in self.draft.room_meanwhile(shape) if kept else ():
            run = self.draft.run_on(candidate, shape, row)
            if run.source != "default" and all(one.until >= now + run.most for one in kept[row]):
                return row
        return None

    def _place_gang(self, candidate: Candidate, shapes: tuple[Shape, ...]) -> bool:
        """Place all tasks or none; of an elastic unit its minimum now, and more at the end of the round."""
        needed = candidate.least or candidate.tasks
        best: tuple[bool, bool, int, int, list[int]] | None = None
        wanted = self._sizes.get(candidate.unit, 0)
        for variant, shape in enumerate(shapes):
            within = self.allowance.room_of(candidate, shape) >= needed
            if candidate.least and wanted > needed and self.allowance.room_of(candidate, shape) >= wanted:
                if rows := self._gang_rows(candidate, shape, wanted):
                    best = (False, False, 0, variant, rows)
                    break
                if self._stopping:
                    return False
            rows = self._gang_rows(candidate, shape, needed) if within else []
            if rows and len(shapes) == 1:
                best = (False, False, 0, variant, rows)
            elif rows:  # as fast as its slowest member; known run times come before guesses
                run = max(self.draft.run_on(candidate, shape, row) for row in dict.fromkeys(rows))
                found = (_ran_out(candidate, shape), run.source == "default", run.mean, variant, rows)
                best = found if best is None else min(best, found)
        if best is None:
            return False
        *_, variant, rows = best
        shape = shapes[variant]
        why = self._why(candidate, shape, rows[0], rows)
        spots = [self.draft.take(row, candidate, shape) for row in rows]
        self.allowance.take(candidate, shape, len(rows))
        if len(rows) < candidate.tasks:
            self._begun.append(Begun(candidate, shape, variant, spots, why))
        else:
            self.decisions.append(Place(unit=candidate.unit, spots=tuple(spots), why=why, variant=variant))
        return True

    def _gang_rows(self, candidate: Candidate, shape: Shape, needed: int) -> list[int]:
        """Return a row for every task, close together: on one node, else in one rack, else in one zone, else anywhere.
        Use devices of one model if one could hold the gang, the fastest first: a gang on several is as slow as its
        slowest. Use the node to avoid only if it is necessary.
        """
        if self._gang_room.get(shape, needed) < needed:
            return []
        avoid = self.draft.fleet.rows.get(candidate.avoid, -1)
        rows = self._gang_rows_on(candidate, shape, needed, without=avoid) if avoid >= 0 else []
        return rows or self._gang_rows_on(candidate, shape, needed)

    def _gang_rows_on(self, candidate: Candidate, shape: Shape, needed: int, *, without: int = -1) -> list[int]:
        row = self.draft.best_whole(candidate, shape, needed, candidate.tasks, without=without)
        if row is not None:
            return [row] * needed
        fleet = self.draft.fleet
        self._gang_room[shape] = int(self.draft.capacity(shape).sum())
        room = self.draft.room_each(shape)
        if without >= 0:
            room = np.where(np.arange(len(room)) == without, 0, room)
        if self._gang_room[shape] < needed or int(room.sum()) < needed:
            return []
        masks = [mask for _, mask in self._by_speed(candidate, shape)]
        most = self.draft.able(shape).by_row(fleet)

        def on(mask: Any, room: Ints) -> Ints:
            return self.draft.within(shape, room if mask is None else np.where(mask, room, 0))

        if all(mask is not None and int(on(mask, most).sum()) < needed for mask in masks):
            masks.append(None)  # no single model could ever hold it
        for mask in masks:
            here = on(mask, room)
            if int(here.sum()) >= needed:
                rows = close_together(fleet, here, needed)
                if rows:
                    return rows
        return []

    def _by_speed(self, candidate: Candidate, shape: Shape) -> list[tuple[int | None, Any]]:
        """Return, where models differ, each that could run the unit, fastest first, and a mask of its nodes."""
        if not shape.gpus:
            return [(None, None)]
        estimates, able = self.draft.estimates(candidate, shape), self.draft.able(shape)
        models = [index for index, can in enumerate(able.models) if can]
        if len({estimates[index].mean for index in models}) < 2:
            return [(models[0] if models else None, None)]
        fleet = self.draft.fleet
        ordered = sorted(models, key=lambda index: (estimates[index].mean, index))
        return [(index, (fleet.device_model == index).any(axis=1)) for index in ordered]

    def _place_elastic(self) -> None:
        hand_out(self._begun, self.draft, self.allowance, self._sizes)
        for one in self._begun:
            place = Place(unit=one.candidate.unit, spots=tuple(one.spots), why=one.why, variant=one.variant)
            self.decisions.append(place)

    def _behind(self, candidate: Candidate) -> Place | None:
        profile = self.view.profiles.get(candidate.kind)
        alone = not (candidate.others or candidate.tenant or candidate.least)
        if not alone or not is_brief(profile, candidate.shape, candidate.tasks):
            return None
        spot = self.draft.place_behind(candidate, max(1, expected_run(profile, 0)))
        return None if spot is None else Place(unit=candidate.unit, spots=(spot,), queued=True, why=self._why_behind)

    # --- blocked units -----------------------------------------------------------------------------------------------

    def _blocked(self, candidate: Candidate) -> None:
        """Preempt others or keep room for the unit; hold the unit's queue with every reason."""
        more: Reasons = ()
        could = self._could_run(candidate)
        if could and self.recipe.preempt is not None:
            if self.shares is not None and (back := self._take_back(candidate, self.shares, self.recipe.preempt)):
                self._taking_back.setdefault(candidate.queue, (candidate, back))  # others of its queue may do it too
                return
            more = self._make_yield(candidate, self.recipe.preempt)
        if not more and self._target.pop(candidate.unit, None) is not None and self._place(candidate):
            self._count_share(candidate)
            return  # the best model gets no room: place it on another
        if not self._closed:  # else no unit takes its room, and waiting changes no order
            if not more and could and self.recipe.reserve:
                self._keep_in_turn(candidate)
            every = ageing(candidate)
            self._ask_again(candidate.ready + every * (1 + (self.view.now - candidate.ready) // every))
        if not candidate.recovering:  # a recovering unit is held by its node, which may return
            self.holds[candidate.queue] = more
            self._waiting.append(candidate)

    def _keep_in_turn(self, candidate: Candidate) -> None:
        """Keep room for large units that have waited long, except for one device, which smaller units cannot block."""
        if (candidate.tasks == 1 and candidate.shape.gpus == 1) or self._reservations >= RESERVATIONS:
            return
        patience = PATIENCE[effective_class(candidate, self.view.now)]
        if self._weighs_worth and candidate.shape.gpus and self._all_save and self._is_guess(candidate):
            patience = TURN  # until then all preemptible units may be preempted for it
        waits_until = candidate.ready + patience
        if self.view.now >= waits_until:
            self._keep(candidate, waits_until + max(LENDING, ageing(candidate)))
        else:
            self._ask_again(waits_until)

    def _make_yield(self, candidate: Candidate, rules: Preemption) -> Reasons:
        """Preempt the cheapest units if that is worth it, and keep the room that they leave."""
        if not self._occupied and self.decisions:  # units placed in this round may be preempted later
            self._ask_again(self.view.now + rules.min_run)
        if not self._occupied or self._searches >= YIELD_SEARCHES:
            return ()
        self._searches += 1
        needed, now = candidate.least or candidate.tasks, self.view.now
        shapes = (candidate.shape, *candidate.others)
        if coming := self._keep_coming(candidate, shapes, needed):
            return coming
        if smaller := self._make_smaller(candidate, shapes, needed):
            return smaller
        if candidate.serves:
            rules = msgspec.structs.replace(rules, by="class")
        elif rules.by == "value":
            if candidate.shape.gpus and candidate.shape.share == WHOLE and self._weighs_worth:
                return self._make_way(candidate, rules)
            rules = msgspec.structs.replace(rules, by="class")
        could = [
            (found, shape)
            for shape in shapes
            if (
                found := find_yielding(
                    candidate, shape, self.draft, needed, rules, self._yielding, self._spared(candidate)
                )
            )
            and found.victims
        ]
        if not could:
            if rules.by != "class":
                self._ask_again(now + rules.min_run)  # service grows with time
            for shape in shapes if rules.by == "class" else ():
                if (at := may_yield_at(candidate, shape, self.draft, rules)) is not None:
                    self._ask_again(at)
            return ()
        found, shape = min(could, key=_cost)
        if candidate.serves:
            return self._ask_to_yield(candidate, shape, found, {})
        gain = 0.0
        if rules.by == "class":
            soonest = self._soonest(candidate)
            gain = gain_of(candidate, soonest[0].at if soonest else now + AGEING, now, needed)
            if gain <= found.cost + stands_still(found.victims, candidate.expected):
                return ()
        scores = {}
        for victim in found.victims:
            cost = cost_of(victim, now) + stands_still([victim], candidate.expected)
            scores[victim.unit] = {"gain": round(gain / SECOND, 3), "cost": round(cost / SECOND, 3)}
        return self._ask_to_yield(candidate, shape, found, scores)

    def _keep_coming(self, candidate: Candidate, shapes: Sequence[Shape], needed: int) -> Reasons:
        """Keep the room of units that are stopping already, if that is enough."""
        for shape in shapes if self._stopping else ():
            coming = is_coming(candidate, shape, self.draft, needed)
            if coming is not None:
                return self._keep_promised(candidate, shape, coming)
        return ()

    def _keep_promised(self, candidate: Candidate, shape: Shape, rows: Mapping[int, int]) -> Reasons:
        """Keep room that other units leave."""
        self._keep_rows(candidate, shape, rows, self.view.now + GRACE)
        if self.shares is not None:
            self.shares.promise(candidate)
        return (Reason(code="PREEMPTING", have="work there", need=candidate.unit),)

    def _make_smaller(self, candidate: Candidate, shapes: Sequence[Shape], needed: int) -> Reasons:
        """Shrink gangs that resize in place, and keep the room of the members that leave."""
        if not self._members.of:
            return ()
        gangs = {unit: of[0][1] for unit, of in self._members.of.items()}
        for resident in gangs.values():
            self._ask_again(resident.since + SETTLES)
        asked = self._yielding if self.shares is None else self._yielding | self.shares.complete(candidate, gangs)
        for shape in shapes:
            found = find_smaller(candidate, shape, self.draft, needed, self._members, asked, self._sizes)
            if found is None or not self._agree(candidate, shape, found.leaves):
                continue
            rank = candidate.serves or self.order.words(candidate, self.view.now)
            why = Why(policy=self.recipe.name, base=self.view.revision, rank=rank)
            for unit, leaves in found.leaves.items():
                self._yielding.add(unit)
                self.decisions.append(
                    Resize(unit=unit, cause="shrink", why=why, leaves=tuple(leaves), to=candidate.unit)
                )
            self._keep_rows(candidate, shape, found.rows, self.view.now + GRACE)
            names = ", ".join(found.leaves)
            return (Reason(code="PREEMPTING", have=names, need=candidate.unit),)
        return ()

    def _take_back(self, candidate: Candidate, shares: Shared, rules: Preemption) -> Reasons:
        """Reclaim resources that a share is guaranteed and others have borrowed, from the units that lose least."""
        if not self._occupied or self._taken_back >= TAKE_BACKS or not shares.is_entitled(candidate):
            return ()
        self._taken_back += 1
        shapes, needed = (candidate.shape, *candidate.others), candidate.least or candidate.tasks
        if coming := self._keep_coming(candidate, shapes, needed):
            return coming
        for shape in shapes:
            own = shares.own_models(candidate, shape)
            if own is not None and not own:
                continue
            wanted = shape if own is None else _on_models(shape, own)
            borrowers = shares.borrowers(candidate, shape, rules, self._yielding)
            found = take_from(wanted, self.draft, needed, rules, borrowers, self._yielding)
            if found is None:
                continue
            if not found.victims:  # others were asked for more room than they need
                return self._keep_promised(candidate, shape, found.rows)
            found = found._replace(victims=tuple(sorted(found.victims, key=partial(_rank, now=self.view.now))))
            rank = f"{candidate.leaf} takes back what it is guaranteed"
            return self._ask_to_yield(candidate, shape, found, {}, rank)
        return ()

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

    @cached_property
    def _members(self) -> Members:
        return Members(self.draft)

    def _make_way(self, candidate: Candidate, rules: Preemption) -> Reasons:
        """Preempt the units that are worth least, on the device model with the largest gain."""
        draft, now, needed = self.draft, self.view.now, candidate.least or candidate.tasks
        pressed = candidate.unit in draft.timely.pressed
        risk = EXCHANGE if pressed else RISK
        best: tuple[float, float, Yielding, Shape] | None = None
        guess = self._is_guess(candidate) and not pressed
        shapes: tuple[Shape, ...] = (candidate.shape, *candidate.others)
        if (aim := self._target.get(candidate.unit)) is not None:
            shapes = (_on_model(candidate.shape, self.view.fleet.models[aim.model].name),)
            prices = self._leaving
        else:
            shapes = () if self._target else shapes
            prices = self._had_turns if guess else self._prices_for_deadlines if pressed else self._prices
        prices = self._lawful(candidate, prices)
        for shape in shapes:
            run = draft.speeds.shortest(candidate, draft.able(shape).models)
            gain = (PRESSED if pressed else 1.0) * value(candidate, run, now, waits=min(1.0, draft.waits))
            found = make_way(shape, draft, needed, rules, prices, gain, self._yielding, run, risk)
            if found and found.victims and gain > found.price and (best is None or gain - found.price > best[0]):
                best = (gain - found.price, gain, found, shape)
        if best is not None and guess and any(self._had_turns.price(one.unit) == _ANY for one in best[2].victims):
            best = None
        if best is None:  # the worth of a waiting unit grows with time
            self._ask_again(now + max(rules.min_run, (now - candidate.ready) // ASKS_AGAIN))
            return ()
        _, gain, found, shape = best
        worths = {one.unit: {"worth": _told(gain), "instead": _told(prices.price(one.unit))} for one in found.victims}
        return self._ask_to_yield(candidate, shape, found, worths)

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
    def _weighs_worth(self) -> bool:
        """Return whether running and waiting units are compared by worth, which takes time for each attempt."""
        rules = self.recipe.preempt
        return rules is not None and rules.by == "value" and self._attempts < WEIGHED

    @cached_property
    def _attempts(self) -> int:
        return sum(map(len, self.view.fleet.residents))

    @cached_property
    def _all_save(self) -> bool:
        """Return whether all running units with devices make checkpoints, and may be preempted after their turn."""
        return not self.draft.running.any_stays

    @cached_property
    def _stopping(self) -> bool:
        return self.draft.running.any_stopping

    def _is_guess(self, candidate: Candidate) -> bool:
        """Return whether the unit's run time is unknown on all devices."""
        known = self._guesses.get(candidate.unit)
        if known is None:
            estimates = self.draft.estimates(candidate, candidate.shape)
            known = self._guesses[candidate.unit] = all(estimate.source == "default" for estimate in estimates)
        return known

    def _ask_to_yield(
        self,
        candidate: Candidate,
        shape: Shape,
        found: Yielding,
        scores: Mapping[str, dict[str, float]],
        rank: str = "",
    ) -> Reasons:
        """Preempt the victims and keep the room that they leave."""
        if not self._agree(candidate, shape, dict.fromkeys((victim.unit for victim in found.victims), None)):
            return ()
        for victim in found.victims:
            self._yielding.add(victim.unit)
            shrinks = victim.least and victim.size > victim.least
            why = Why(
                policy=self.recipe.name,
                base=self.view.revision,
                rank=rank or candidate.serves or self.order.words(candidate, self.view.now),
                score=scores.get(victim.unit, {}),
            )
            cause: Literal["shrink", "yield"] = "shrink" if shrinks else "yield"
            self.decisions.append(Preempt(unit=victim.unit, cause=cause, why=why, to=candidate.unit))
        self._keep_rows(candidate, shape, found.rows, self.view.now + GRACE)
        names = ", ".join(victim.unit for victim in found.victims)
        return (Reason(code="PREEMPTING", have=names, need=candidate.unit),)

    def _soonest(self, candidate: Candidate) -> tuple[Reservation, Shape] | None:
        """Return where, when and in which artifact a blocked unit could start first."""
        needed = candidate.least or candidate.tasks
        could = [
            (found, shape)
            for shape in (candidate.shape, *candidate.others)
            if (found := self._reserve(shape, needed)) is not None
        ]
        return min(could, key=_instant, default=None)

    def _reserve(self, shape: Shape, needed: int) -> Reservation | None:
        """Return the earliest start of such a unit; found anew only after room was taken or kept."""
        known = self._soonest_of.get((needed, shape))
        if known is None or known[0] != self.draft.changes:
            known = self._soonest_of[needed, shape] = self.draft.changes, reserve(shape, self.draft, needed)
        return known[1]

    def _keep(self, candidate: Candidate, lent_until: int) -> None:
        """Keep the room where the unit could start first. Until the instant `lent_until`, lend it to units that end in
        time; after that, to none.
        """
        now, soonest = self.view.now, self._soonest(candidate)
        if soonest is None or not self._pays(candidate, soonest[1], soonest[0]):
            return
        if now < lent_until:
            self._ask_again(lent_until)
            self._reservations += 1
            self._keep_rows(candidate, soonest[1], soonest[0].rows, soonest[0].at)
            return
        for shape in (candidate.shape, *candidate.others):
            rows = drain(shape, self.draft, candidate.least or candidate.tasks)
            if rows is not None:
                self._reservations += 1
                self._keep_rows(candidate, shape, rows, now)
                return

    def _pays(self, candidate: Candidate, shape: Shape, soonest: Reservation) -> bool:
        """Return whether the device time idle until the unit starts is a small enough part of its own; the allowed part
        grows with its wait.
        """
        if not shape.gpus:
            return True
        now = self.view.now
        room: list[int] = self.draft.capacity(shape)[list(soonest.rows)].tolist()
        free = sum(map(min, room, soonest.rows.values()))
        if not free:
            return True
        run = self.draft.speeds.shortest(candidate, self.draft.able(shape).models)
        waited = now - candidate.ready
        return free * (soonest.at - now) <= IDLES * (candidate.least or candidate.tasks) * (run + waited / STARVES)

    def _keep_rows(self, candidate: Candidate, shape: Shape, rows: Mapping[int, int], until: int) -> None:
        for row, tasks in rows.items():
            self.draft.keep(row, candidate.unit, shape, until, tasks)

    def _reasons(self, candidate: Candidate) -> Reasons:
        """Return every reason against every artifact of the unit."""
        if not len(self.view.fleet):
            return (Reason(code="NO_NODES"),)
        reasons: list[Reason] = []
        needed = candidate.least or candidate.tasks
        if needed > 1:
            room = self._room_at_end(candidate.shape) + self.draft.kept_now(candidate.unit)
            have = min(needed - 1, room)
            reasons.append(gang_incomplete(self.view.fleet, candidate.shape.where, needed, have))
        for model, run in self._late_on(candidate).items():
            left = format_duration(candidate.due - self.view.now)
            reasons.append(Reason(code="LATE_ON", subject=model, need=left, have=format_duration(run)))
        for shape in (candidate.shape, *candidate.others):
            known = self._told.get(shape)
            if known is None:
                found = tuple(self.draft.reasons(shape))
                known = self._told[shape] = found, any(reason.code == "RESERVED" for reason in found)
            if not known[1]:
                reasons += known[0]
                continue
            reasons += [
                Reason(code="KEPT", subject=reason.subject)
                if reason.code == "RESERVED" and reason.need == candidate.unit
                else reason
                for reason in known[0]
            ]
        return tuple(reasons) or (Reason(code="NEXT_ROUND"),)

    def _room_at_end(self, shape: Shape) -> int:
        """Return for how many tasks there is room after all placements."""
        if shape not in self._left:
            self._left[shape] = int(self.draft.capacity(shape).sum())
        return self._left[shape]

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

    # --- running units -----------------------------------------------------------------------------------------------

    def _grow(self) -> None:
        """Restart larger the elastic unit that gains most, if that exceeds its lost work; called when none waits."""
        now = self.view.now
        best: tuple[float, Resident] | None = None
        for resident in self.view.elastic:
            if resident.size >= resident.most or resident.stopping or resident.unit in self._yielding:
                continue
            if resident.resizes:
                self._grow_in_place(resident)
                continue
            if now < (at := settled(resident, COOL_DOWN)):
                self._ask_again(at)
                continue
            size, slower = self._anew(resident)
            speeds = speeds_with(self.view.speedups.get(resident.unit), resident.most)
            most = worth_having(speeds, resident.least)
            size = min(size, most)
            comes_back = resident.preempted > 0 and size == most
            if size < GROWS_BY * resident.size and not comes_back:
                continue
            left = ends(resident, now, self.draft.speeds) - now
            sooner = 1 - slower * speeds[resident.size] / speeds[size]
            won = (left * sooner - lost_work(resident, now)) * resident.size
            if won > 0 and (best is None or won > best[0]):
                best = (won, resident)
            elif won <= 0 and resident.checkpoint:  # the least work is lost just after a checkpoint
                self._ask_again(next_checkpoint(resident, now))
        if best is not None:
            why = Why(policy=self.recipe.name, base=self.view.revision, rank=f"room for more than {best[1].size} tasks")
            self.decisions.append(Preempt(unit=best[1].unit, cause="grow", why=why))

    def _resize(self) -> None:
        """Resize elastic units to the sizes with the largest total worth, at most once in `COOL_DOWN`. Units that
        resize without a restart grow into free room at once. No unit restarts to grow while work waits for devices,
        since repeated work would delay all of it. Nor does any unit shrink for such growth.
        """
        now = self.view.now
        again = int(self.view.memory.get("shared_anew", 0))
        here = [one for one in self.view.elastic if one.unit in self._sizes and one.unit not in self._yielding]
        short = sum(_width(one) for one in self._waiting if self._sizes.get(one.unit))
        for one in here:
            if one.resizes and one.size < self._sizes[one.unit] and not self._changes_model(one):
                self._grow_in_place(one)
        if now < again:
            self._ask_again(again)
            return
        moving = [one for one in here if self._changes_model(one)]
        changing = [one for one in here if one not in moving and changes(one, self._sizes[one.unit], now)]
        if any(one.shape.gpus for one in self._waiting):
            moving = []
            changing = [one for one in changing if one.resizes or self._sizes[one.unit] <= one.size]
        changing = self._attainable(changing, moving)
        short += sum(one.shape.gpus * max(0, self._sizes[one.unit] - one.size) for one in changing)
        short += sum(one.size for one in changing if one in moving)
        if not changing or not short:
            self._ask_again(now + COOL_DOWN)
            return
        self.memory["shared_anew"] = now + COOL_DOWN
        self.memory["anew"] = {one.unit: self._sizes[one.unit] for one in changing if not one.resizes}
        self._ask_again(now + COOL_DOWN)
        for one in changing:
            to = self._sizes[one.unit]
            rank = f"{to} tasks are worth more"
            if one in moving:
                rank += f" on {self.view.fleet.models[self._target[one.unit].model].called}"
            why = Why(policy=self.recipe.name, base=self.view.revision, rank=rank)
            if one in moving:
                self.decisions.append(Preempt(unit=one.unit, cause="move", why=why))
            elif one.resizes and to >= max(1, one.least):
                if to < one.size:
                    members = sorted(member.task for _, member in self._members.of[one.unit] if not member.stopping)
                    leaves = tuple(members[to - one.size :])
                    self.decisions.append(Resize(unit=one.unit, cause="shrink", why=why, leaves=leaves))
            elif to:
                cause: Literal["grow", "shrink"] = "grow" if to > one.size else "shrink"
                self.decisions.append(Preempt(unit=one.unit, cause=cause, why=why))

    def _changes_model(self, one: Resident) -> bool:
        """Return whether a running elastic unit should move to another device model."""
        part = self._shared_out.get(one.unit)
        return part is not None and part.model != part.here

    def _attainable(self, changing: Sequence[Resident], moving: Sequence[Resident]) -> list[Resident]:
        """Return the units that shrink, and those that would restart to grow or on another model as far as there is
        room: free room, and room that the others give back. Limit their sizes to that room.
        """
        now = self.view.now
        models = {part.model for part in self._shared_out.values()} | {part.here for part in self._shared_out.values()}
        room = {model: self.draft.whole_devices_free(model) for model in models or {-1}}
        on = {unit: part.here for unit, part in self._shared_out.items()}
        shrink = [one for one in changing if self._sizes[one.unit] <= one.size]
        for one in shrink:
            room[on.get(one.unit, -1)] += one.shape.gpus * (one.size - max(one.least, self._sizes[one.unit]))
        grow = list[Resident]()
        for one in moving:
            part = self._shared_out[one.unit]
            if now >= one.since + COOL_DOWN * (1 + one.preempted + one.moved) and part.devices <= room[part.model]:
                room[part.model] -= part.devices
                room[part.here] += part.has
                grow.append(one)
        for one in changing:
            model = on.get(one.unit, -1)
            to = min(self._sizes[one.unit], one.size + room[model] // one.shape.gpus)
            if to > one.size and changes(one, to, now):
                self._sizes[one.unit] = to
                room[model] -= one.shape.gpus * (to - one.size)
                grow.append(one)
        return shrink + grow

    def _begun_anew(self, waiting: Sequence[Candidate]) -> dict[str, int]:
        """Return the sizes of the units that were just stopped to restart with another size."""
        if self.view.now >= int(self.view.memory.get("shared_anew", 0)):
            return {}
        anew: dict[str, int] = self.view.memory.get("anew", {})
        return {one.unit: anew[one.unit] for one in waiting if one.unit in anew}

    def _grow_in_place(self, resident: Resident) -> None:
        """Add as many tasks to a running unit as there is room for where they run no slower than its others."""
        if self.view.now < (at := grows_at(resident)):
            self._ask_again(at)
            return
        leaving = sum(one.stopping for _, one in self._members.of[resident.unit])
        wanted = self._sizes.get(resident.unit, resident.most)
        most = self.allowance.room_for(resident.tenant, resident.shape, wanted - resident.size - leaving)
        if self.shares is not None:
            most = self.shares.room_to_grow(resident, most)
        there, here = self._runs_by_row(resident)
        runs_well = there == here if resident.unit in self._shared_out else there <= here
        spots = more_of(resident, self.draft, self._members, most, runs_well)
        if spots:
            self.allowance.use(resident.tenant, resident.shape, len(spots))
            rank = f"room for {resident.size + len(spots)} of its tasks"
            why = Why(policy=self.recipe.name, base=self.view.revision, rank=rank)
            self.decisions.append(Resize(unit=resident.unit, cause="grow", why=why, joins=tuple(spots)))

    def _anew(self, resident: Resident) -> tuple[int, float]:
        """Return the size with which an elastic unit would be placed now if it did not run, and its task run time
        relative to the current one: on the fastest devices that hold its minimum, and on its own where those are no
        slower.
        """
        shape, (there, here) = resident.shape, self._runs_by_row(resident)
        room = self.draft.capacity(shape)
        for run in np.unique([*there[room > 0].tolist(), here]).tolist():
            size = int(room[there <= run].sum()) + resident.size * (here <= run)
            if size >= resident.least:
                more = self.allowance.room_for(resident.tenant, shape, resident.most)
                return min(resident.most, size, resident.size + more), run / max(1, here)
        return 0, 1.0

    def _runs_by_row(self, resident: Resident) -> tuple[Ints, int]:
        """Return the unit's run time on the fastest suitable device of each node, and where it runs now."""
        draft, fleet, shape = self.draft, self.draft.fleet, resident.shape
        devices = shape.gpus > 0
        estimates = draft.speeds.of(
            resident.kind, shape.wants.precision, resident.declared, resident.work, devices=devices
        )
        able = draft.able(shape).models
        runs = np.array([of.mean if can or not devices else _NEVER for of, can in zip(estimates, able, strict=False)])
        there = (
            np.append(runs, _NEVER)[fleet.device_model].min(axis=1, initial=_NEVER)
            if devices
            else runs[fleet.processor]
        )
        here = next(
            (
                int(run)
                for model, run in zip(fleet.models, runs, strict=True)
                if model.called == resident.model and (model.kind != "cpu") == devices
            ),
            int(runs.min()),
        )
        return there, here

    def _hand_over(self) -> None:
        """Move units off nodes that are being drained, before placing waiting units that were not promised room."""
        self._handed_over = True
        decided = hand_over(self.draft, self.recipe.name)
        self.decisions += decided
        self._yielding.update(decision.unit for decision in decided)

    def _reallocate(self) -> None:
        """Move the cheapest unit off a node that has been hot for long to one with room, then let the node cool."""
        fleet, now = self.view.fleet, self.view.now
        hot = np.flatnonzero((fleet.levels == HOT) & (fleet.closed == 0))
        moved = dict(self.view.memory.get("moved", {}))
        for row in hot.tolist():
            name = fleet.names[row]
            if now - moved.get(name, -COOL_DOWN) < COOL_DOWN:
                self._ask_again(moved[name] + COOL_DOWN)
                continue
            residents = fleet.residents[row]
            if len(residents) < 2:
                continue  # moving it would only move the heat
            movable = [
                resident
                for resident in residents
                if resident.preemptible and resident.running and not resident.stopping and resident.size == 1
                and resident.unit not in self._yielding
            ]  # fmt: skip
            for resident in movable:
                self._ask_again(settled(resident, MIN_RUN))
            movable = [resident for resident in movable if now >= settled(resident, MIN_RUN)]
            for resident in sorted(movable, key=lambda resident: (cost_of(resident, now), resident.ordinal)):
                room = np.where(fleet.levels > 0, 0, self.draft.capacity(resident.shape))
                left = ends(resident, now, self.draft.speeds) - now
                if room.max(initial=0) > 0 and left > lost_work(resident, now):
                    target = fleet.names[int(room.argmax())]
                    rank = f"{name} is hot, {target} has room and is not"
                    why = Why(policy=self.recipe.name, base=self.view.revision, rank=rank)
                    self.decisions.append(Preempt(unit=resident.unit, cause="move", why=why))
                    moved[name] = now
                    break
        if moved != self.view.memory.get("moved", {}):
            self.memory["moved"] = {name: at for name, at in moved.items() if now - at < COOL_DOWN}

    def _move_up(self) -> None:
        """Move units to the device model where they should run, into free room or room of preempted units."""
        rules, fleet = self.recipe.preempt, self.view.fleet
        if rules is None or not self._target:
            return
        units = {resident.unit: resident for residents in fleet.residents for resident in residents}
        in_vain: dict[tuple[Shape, int], float] = {}  # the largest worth that made no room; room only shrinks
        for unit, aim in self._target.items():
            resident, model = units.get(unit), fleet.models[aim.model].called
            if resident is None or resident.model == model or unit in self._yielding or unit in self._shared_out:
                continue
            shape, here = _on_model(resident.shape, fleet.models[aim.model].name), self._prices.price(unit)
            if aim.worth <= here:
                continue  # its devices are worth more to others, which may preempt it
            like = shape, resident.size
            rows = close_together(fleet, self.draft.capacity(shape), resident.size)
            if rows:
                room, victims = Counter(rows), NOBODY
            elif aim.worth <= in_vain.get(like, 0.0):
                continue
            else:
                leaving = self._lawful(resident, self._leaving)
                found = make_way(shape, self.draft, resident.size, rules, leaving, aim.worth, self._yielding)
                if found is None:
                    in_vain[like] = aim.worth
                    continue
                room, victims = Counter(found.rows), found.victims
            why = Why(
                policy=self.recipe.name,
                base=self.view.revision,
                rank=f"is done sooner on {model}",
                score={"worth": _told(aim.worth), "instead": _told(here)},
            )
            self.decisions.append(Preempt(unit=unit, cause="move", why=why))
            self._yielding.add(unit)
            for row, tasks in room.items():
                self.draft.keep(row, unit, shape, self.view.now, tasks)
            for victim in victims:
                why = Why(
                    policy=self.recipe.name,
                    base=self.view.revision,
                    rank=f"{unit} is worth more on {model}",
                    score={"worth": _told(aim.worth), "instead": _told(leaving.price(victim.unit))},
                )
                self.decisions.append(Preempt(unit=victim.unit, cause="yield", why=why, to=unit))
                self._yielding.add(victim.unit)

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
            others[one.unit] = max(0.0, self._prices.price(one.unit) - aim.worth) if goes else _ANY
        return self._prices.changed(others)

    def _move_stragglers(self) -> None:
        """Restart a straggler on another node of the same kind, if its remaining run time exceeds the cost of restart
        and a whole run there. A run that has overrun is expected to take as long again. For a gang that waits for one
        member, compare the waiting part of the remaining time with the work since the last checkpoint.
        """
        fleet, now = self.view.fleet, self.view.now
        for straggler in self.view.stragglers:
            resident = straggler.resident
            if not resident.preemptible or resident.unit in self._yielding:
                continue
            if straggler.computes:
                at = settled(resident, MIN_RUN)
                left = ends(resident, now, self.draft.speeds) - now
                waits = 1 - straggler.expected / straggler.computes
                if now > at and left * waits <= lost_work(resident, now):
                    at = next_checkpoint(resident, now) if resident.checkpoint else now + MIN_RUN
            else:
                at = max(resident.since + straggler.expected + resident.restore, settled(resident, MIN_RUN))
            if now <= at:
                self._ask_again(at + 1)
                continue
            row = fleet.rows[straggler.node]
            room = np.where((fleet.kind == fleet.kind[row]) & (np.arange(len(fleet)) != row), 1, 0)
            room = room * self.draft.capacity(resident.shape)
            if room.max(initial=0) > 0:
                target = int(room.argmax())
                what = "a gang waits for its member" if straggler.computes else "it takes longer than its like"
                rank = f"{what} on {straggler.node}, and {fleet.names[target]} has room"
                why = Why(policy=self.recipe.name, base=self.view.revision, rank=rank)
                self.decisions.append(Preempt(unit=resident.unit, cause="move", why=why))
                self.draft.keep(target, resident.unit, resident.shape, now)

    def _follow_phases(self) -> None:
        """Shrink training that asks for less in its new phase, if it loses little and a waiting unit fits in the
        returned room. Grow training that asks for more, if nothing waits and there is room.
        """
        now, fleet = self.view.now, self.view.fleet
        for one in self.view.phased:
            resident, shape = one.resident, one.shape
            if not resident.preemptible or not resident.running or resident.unit in self._yielding:
                continue
            if now < (at := settled(resident, COOL_DOWN)):
                self._ask_again(at)
                continue
            if not (resident.checkpoint or resident.kept):
                continue
            if ends(resident, now, self.draft.speeds) - now <= lost_work(resident, now):
                self._ask_again(next_checkpoint(resident, now) if resident.checkpoint else now + MIN_RUN)
                continue
            rows = Counter(fleet.rows[name] for name in one.nodes if name in fleet.rows)
            why = Why(policy=self.recipe.name, base=self.view.revision, rank=_in_words(one))
            if shape.cpu <= resident.shape.cpu and shape.gpu_memory <= resident.shape.gpu_memory:
                found = self._fits_with(one, rows)
                if found is None:
                    continue
                self.decisions.append(Preempt(unit=resident.unit, cause="shrink", why=why, to=found.unit))
                self._yielding.add(resident.unit)
            elif not self._waiting and not self._postponed and self._has_more(one, rows):
                self.decisions.append(Preempt(unit=resident.unit, cause="grow", why=why))
                self._yielding.add(resident.unit)

    def _fits_with(self, one: Phased, rows: Mapping[int, int]) -> Candidate | None:
        """Return the first waiting unit of one task that fits where this unit returns resources."""
        fleet, free = self.view.fleet, self.draft.free
        cpu = one.resident.shape.cpu - one.shape.cpu
        memory = one.resident.shape.gpu_memory - one.shape.gpu_memory
        for candidate in self._waiting:
            asks = candidate.shape
            if (candidate.least or candidate.tasks) > 1:
                continue
            for row, tasks in rows.items():
                after = free[:, row] - (asks.cpu - cpu * tasks, asks.memory, asks.network, 0)
                if (after[[CPU, MEMORY, NETWORK]] < 0).any() or fleet.closed[row]:
                    continue
                here = [device for device in one.resident.devices if memory and one.nodes[0] == fleet.names[row]]
                shared = asks.is_part and any(
                    fleet.device_memory[row, device] + memory >= asks.gpu_memory
                    and fleet.device_share[row, device] >= asks.share
                    for device in here
                )
                if asks.gpus <= free[DEVICES, row] or shared:
                    return candidate
        return None

    def _has_more(self, one: Phased, rows: Mapping[int, int]) -> bool:
        """Return whether its nodes have room for the additional resources that it asks for."""
        more = one.shape.cpu - one.resident.shape.cpu
        return all(self.draft.free[CPU, row] >= more * tasks for row, tasks in rows.items())

    # --- explanations ------------------------------------------------------------------------------------------------

    def _why(self, candidate: Candidate, shape: Shape, row: int, gang: Sequence[int] = ()) -> Why:
        """Explain the choice beside the best other nodes; for a `gang`, beside those that hold all of it."""
        fleet = self.draft.fleet
        said = (self.order.words(candidate, self.view.now), self._picks.get(candidate.unit, self._note))
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

    def _ask_again(self, at: int) -> None:
        """Request another round at this instant, when the answer may change without an event."""
        if at > self.view.now and (self._until is None or at < self._until):
            self._until = at

    def _remember(self) -> dict[str, Any] | None:
        memory = {**self.view.memory, **self.turns.memory(), **self.memory}
        return memory if memory != self.view.memory else None


class _Turns:
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


def _width(candidate: Candidate) -> int:
    """Return the minimum number of devices of a unit."""
    return candidate.shape.gpus * (candidate.least or candidate.tasks)


def _takes_whole(candidate: Candidate) -> bool:
    """Return whether a unit waits for whole devices and has only one artifact."""
    return bool(candidate.shape.gpus) and candidate.shape.share == WHOLE and not candidate.others


def _only_room(recipe: Recipe) -> bool:
    """Return whether units wait only for room or behind an earlier unit."""
    moves = recipe.preempt is not None or recipe.reserve or recipe.elastic or recipe.reallocate
    return not moves and recipe.score.keys() <= TERMS.keys() - {"random"}


def _serving_first(ordered: list[Candidate]) -> list[Candidate]:
    """Move services before all units of a lower class, however long those have waited: otherwise room kept for those
    units would be kept from the services.
    """
    serving = [one for one in ordered if one.serves]
    if not serving:
        return ordered
    for one in serving:
        place = ordered.index(one)
        lower = next((at for at, other in enumerate(ordered[:place]) if other.priority > one.priority), place)
        ordered = [*ordered[:lower], one, *ordered[lower:place], *ordered[place + 1 :]]
    return ordered


def _promised(candidate: Candidate, gaining: frozenset[str], emptied: frozenset[str]) -> int:
    """Return which kind of room was promised to a unit: `MADE` by others (it is `gaining`), `FOUND` when it had to
    leave a node, or `NOTHING`.
    """
    if candidate.unit in gaining:
        return MADE
    return FOUND if candidate.avoid in emptied else NOTHING


def _in_words(one: Phased) -> str:
    return f"in its {one.phase or FIRST_PHASE} phase it asks for {one.shape.describe()}"


def _rank(victim: Resident, now: int) -> tuple[float, int, int]:
    """Return the key that orders victims: the cost, then the latest start."""
    return cost_of(victim, now), -victim.since, victim.ordinal


def _cost(found: tuple[Yielding, Shape]) -> float:
    return found[0].cost


def _ran_out(candidate: Candidate, shape: Shape) -> bool:
    """Return whether the unit ran out of memory and this shape asks for no less memory."""
    return candidate.ran_out > 0 and not 0 < shape.memory < candidate.ran_out


def _instant(found: tuple[Reservation, Shape]) -> int:
    return found[0].at


def _may_have_room(view: Snapshot, ordered: list[Candidate]) -> bool:
    """Return whether the total free resources suffice for the first units in order, as many as are shown of each queue
    at least. With quotas return True, since a quota may hold those units back while others start.
    """
    if view.quotas:
        return True
    fleet = view.fleet
    cpu, devices = (fleet.free[[CPU, DEVICES]] @ (fleet.closed == 0)).tolist()
    for one in ordered[: 1 if view.yielded else LEAST_SHOWN]:
        shape, tasks = one.shape, one.least or one.tasks
        cpu, devices = cpu - shape.cpu * tasks, devices - shape.gpus * shape.share * tasks / WHOLE
    return bool(cpu >= 0 and devices >= 0)


def _unseen(view: Snapshot) -> dict[str, int]:
    """Return the number of shown units of each queue that is longer than shown."""
    recovering = sum(map(_is_recovering, view.candidates))
    if not recovering and sum(view.backlog.values()) <= len(view.candidates):
        return {}
    if len(view.backlog) == 1:
        [(queue, count)] = view.backlog.items()
        shown_of_it = len(view.candidates) - recovering
        return {queue: shown_of_it} if count > shown_of_it else {}
    waiting = filterfalse(_is_recovering, view.candidates) if recovering else view.candidates
    shown = Counter(map(_queue, waiting))
    return {queue: count for queue, count in shown.items() if view.backlog.get(queue, 0) > count}


def _on_model(shape: Shape, name: str) -> Shape:
    """Return the shape restricted to devices of this model."""
    return _on_models(shape, (name,))


def _on_models(shape: Shape, names: Sequence[str]) -> Shape:
    """Return the shape restricted to devices of these models."""
    return msgspec.structs.replace(shape, wants=msgspec.structs.replace(shape.wants, models=tuple(names)))


def _told(worth: float) -> float:
    """Return a worth per hour, rounded to three digits, for display."""
    return float(f"{3600 * worth:.3g}")


def _order_of(order: str | Mapping[str, float], terms: Mapping[str, RankTerm], waits: float) -> Order:
    if not isinstance(order, str):
        for name in order:
            terms[name]
        return by_terms(order, terms)
    if order == "value":
        return ORDERS[order]._replace(sort=partial(by_value, waits=waits))
    return by_terms(PRESETS[order]) if order in PRESETS else ORDERS[order]


POLICIES: dict[str, ClusterPolicy] = {recipe.name: Suite(recipe) for recipe in RECIPES} | {
    policy.name: policy for policy in (Static(), Tiresias(), Goodput(), ElasticFlow(), *SHARING)
}


def is_fixed(name: str) -> bool:
    """Return whether the shipped policy of this name assigns each unit one fixed place, by its number; custom policies
    never do. Such a policy must be shown all waiting and running units, however brief.
    """
    return getattr(POLICIES.get(name), "fixed", False)


SAFE_POLICY = "fifo"
"""The policy that decides where the configured policy fails."""


def decide_safely(view: Snapshot) -> Plan:
    """Decide with the safe policy in place of another, without that policy's memory."""
    plan = POLICIES[SAFE_POLICY].decide(msgspec.structs.replace(view, memory={}))
    return msgspec.structs.replace(plan, memory=None)


def policy_named(name: str) -> ClusterPolicy:
    """Return the policy of this name. Raises KeyError with the known names."""
    try:
        return POLICIES[name]
    except KeyError:
        raise KeyError(f"there is no policy `{name}`; known: {', '.join(POLICIES)}") from None


__all__ = [
    "POLICIES",
    "RECIPES",
    "SAFE_POLICY",
    "ClusterPolicy",
    "Recipe",
    "Suite",
    "decide_safely",
    "is_fixed",
    "policy_named",
]
