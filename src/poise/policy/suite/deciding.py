"""The whole round: units are served in order, and the decisions become a plan."""

from bisect import bisect_right
from collections import Counter
from collections.abc import Iterable, Sequence
from functools import cached_property
from itertools import chain, filterfalse, islice
from operator import attrgetter

import numpy as np

from poise.model.decisions import Ask, Hold, Place, Plan, Reason
from poise.model.fleet import CPU, DEVICES, HOT, Bools, Ints, Resident
from poise.model.resources import WHOLE
from poise.model.views import Candidate, Snapshot
from poise.policy.assign import Aim, Part, assign
from poise.policy.choose import choose
from poise.policy.emptying import keep_for_leaving
from poise.policy.growing import sizes, tells_models_apart, units_of
from poise.policy.suite.base import NO_PRICE, WEIGHED
from poise.policy.suite.blocked import TAKE_BACKS, YIELD_SEARCHES
from poise.policy.suite.changing import Changing
from poise.policy.turns import Turns
from poise.policy.waiting import GPUS, ONE, WHOLES, WIDTH

WEIGHED_WAITING = 256
"""Number of waiting units, first in order, from which a round selects the most valuable combination."""

MOST_ASKS = 8
"""Maximum number of distinct requests of waiting work that a plan reports as the room it waits for."""

MADE, FOUND, NOTHING = range(3)
"""Kinds of promise to a waiting unit: room that other units vacate for it, room found free, or none."""

_is_recovering = attrgetter("recovering")

_least = attrgetter("least")

_queue = attrgetter("queue")


class Round(Changing):
    """One round of decisions."""

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
            if not self._handed_over and promise_to(candidate, self._gaining, self._emptied) == NOTHING:
                self._hand_over()
            if candidate.queue in self.holds and not candidate.recovering:
                continue
            if candidate.tenant and (over := self.allowance.against(candidate)):
                self.holds[candidate.queue] = over
                continue
            if last_lane is not None and self.order.lane(candidate, self.view) > last_lane:
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
                    lane = self.order.lane(candidate, self.view)
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

    def _picked_first(self, ordered: Iterable[Candidate]) -> list[Candidate]:
        """Put first the picked units, after those with promised room."""
        places = {unit: place for place, unit in enumerate(self._picks)}

        def place(candidate: Candidate) -> int:
            promised = promise_to(candidate, self._gaining, self._emptied) != NOTHING
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
        lanes = self.order.lanes(self.view, self.draft.waiting, places)
        keys = [last, lanes]
        if pressed := self.draft.timely.pressed:
            late = np.array([one.unit in pressed for one in ordered])
            keys = [last, np.where(late, 0, lanes), ~late]
        if self.view.yielded or self._emptied:
            keys.append(np.array([promise_to(one, self._gaining, self._emptied) for one in ordered]))
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
        may = ((held > 0) & (prices < NO_PRICE)).nonzero()[0]
        running = held[may]
        devices = free + int(running.sum())
        worths = np.concatenate((prices[may], draft.waiting.values(waiting, draft.waits)))
        chosen = choose(worths, np.concatenate((running, widths)), devices)
        first = len(running)
        fits = [first + number not in chosen and width <= devices for number, width in enumerate(widths.tolist())]
        return waiting[fits]  # units that are too wide now keep their order and reserve room

    def _before_unseen(self, ordered: list[Candidate]) -> list[Candidate]:
        """Return the candidates without those of later lanes than the units not shown; those follow at once."""
        if len(self.view.backlog) == 1:
            return ordered

        def lane(candidate: Candidate) -> int:
            return self.order.lane(candidate, self.view)

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


def _takes_whole(candidate: Candidate) -> bool:
    """Return whether a unit waits for whole devices and has only one artifact."""
    return bool(candidate.shape.gpus) and candidate.shape.share == WHOLE and not candidate.others


def promise_to(candidate: Candidate, gaining: frozenset[str], emptied: frozenset[str]) -> int:
    """Return which kind of room was promised to a unit: `MADE` by others (it is `gaining`), `FOUND` when it had to
    leave a node, or `NOTHING`.
    """
    if candidate.unit in gaining:
        return MADE
    return FOUND if candidate.avoid in emptied else NOTHING


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
