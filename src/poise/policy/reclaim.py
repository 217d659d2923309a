"""Making room: when will it come by itself, who could yield for it and at what cost, and who had better move.

A blocked unit gets a *reservation*: the nodes where it could start first, by what is foreseen of the attempts there.
Until then others use that room only if they will be gone in time (EASY backfill, Lifka, 1995), so that large gangs
come through, and no two gangs wait for each other: reservations are made in the order in which units are served.

*Preemption* is weighed. Gain: the time by which the unit starts sooner, times its size and the weight of its class.
Cost: for every unit that yields, the work since its last checkpoint, what restoring takes, and the time for which it
stands still while the other runs, times its size and the weight of its class. Only a gain that is larger counts.
Whoever yields has run for a minimum, and not too often. What serves has no end: of it no gain and cost can be told by
the clock. What is of a lower class makes room for it, the cheapest first, and nothing makes it yield for being shorter.
"""

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from functools import cached_property
from heapq import heapify, heappop, heappush
from math import inf
from typing import Literal, NamedTuple

import msgspec
import numpy as np

from poise.model.fleet import CLASSES, CPU, DEVICES, MEMORY, NETWORK, Bools, Fleet, Floats, Ints, Resident
from poise.model.jobs import CLASS_WEIGHT, GRACE
from poise.model.profiles import BRIEF, remaining
from poise.model.resources import WHOLE, Shape
from poise.model.views import Candidate
from poise.policy.feasible import values_of
from poise.policy.place import Draft
from poise.policy.predict import Speeds
from poise.policy.rank import candidate_level, effective_class, level_of
from poise.policy.room import Room, give_back
from poise.policy.running import lost_work
from poise.policy.timely import RISK
from poise.policy.waiting import NEVER, STARVES
from poise.units import MINUTE, SECOND

HYSTERESIS = 1.2
"""What runs yields only to what is worth so much more: estimates err, and every change costs something."""

LEAST = 1e-9
"""A weight below all others."""

ROUNDING = 1e-9
"""A sum of prices is no more than this part off, in whatever order they are added."""

UNSURE = 3.0
"""What is lost for certain counts so many times the deviation of what is won by it, as a part of its mean."""

QUANTUM = 4
"""What does not tell its progress is let run, each time, for one part in so many of what it has run in all: its like
would else take turns without end."""

LOOKED_AT = 32
"""Nodes that are looked at closely for room to come, the nearest to having it first; for a gang one more per task."""

MIN_RUN = 30 * SECOND
"""What has run for less is not stopped: starting and saving would be most of what it did."""

DOUBLINGS = 10
"""Each time that a unit has been stopped, it is left alone for twice as long (so often at most: 8.5 hours after a first
30 s), so that units do not stop each other for ever, and what does not help is not done again and again."""


RENEWED = 30 * MINUTE
"""What has yielded as often as its budget allows may be asked again once it has run for so long at a stretch."""


class Preemption(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Who may make whom yield: `class` a lower priority class, if the gain is larger than the cost; `value` the same,
    and what has devices whatever else has them and is worth less for its time, of any class; `remaining` who has longer
    to run; `attained` who has had more service by a quantum; `level` who is on a later level of feedback; `deadline`
    who is due later.

    `min_run` nanoseconds must have been run. A unit yields `budget` times, and then only after it has run for long;
    and `at_once` units in one round, or as many as the one they yield to has devices or tasks. The budget is not for
    what loses no more than `min_run` when it yields, where value counts.
    """

    by: Literal["class", "value", "remaining", "attained", "level", "deadline"] = "class"
    min_run: int = MIN_RUN
    budget: int = 3
    at_once: int = 16

    def at_most(self, shape: Shape, tasks: int) -> int:
        """How many may be asked at once for a unit."""
        return max(self.at_once, tasks * max(1, shape.gpus))

    def loses_little(self, resident: Resident) -> bool:
        """Whether it loses no more than `min_run` when it yields, by the interval of its checkpoints."""
        return 0 < resident.checkpoint <= self.min_run


class Reservation(NamedTuple):
    """Where a unit could start first: tasks by row, and the instant."""

    rows: dict[int, int]
    at: int


class Yielding(NamedTuple):
    """Units that would yield, the rows where the unit would then start, what that costs, and the prices in all."""

    victims: tuple[Resident, ...]
    rows: dict[int, int]
    cost: float
    price: float


Offer = tuple[float, list[Resident], Room]
"""What room for one more task on a node costs, who yields for it, and the room there is then."""


def ends(resident: Resident, now: int, speeds: Speeds) -> int:
    """The instant at which an attempt is expected to end; what has overrun is estimated anew."""
    if resident.stopping:
        return now + GRACE
    estimate = speeds.of_attempt(resident)
    elapsed = max(0, now - resident.since) if resident.running else 0
    return now + remaining(elapsed, estimate.mean, estimate.deviation)


def next_checkpoint(resident: Resident, now: int) -> int:
    """The instant of the next one of what makes some."""
    return now + resident.checkpoint - (now - (resident.kept or resident.since)) % resident.checkpoint


def settled(resident: Resident, first: int) -> int:
    """The instant from which on a unit may be stopped: after so long for the first time, and then twice as long each
    time; always after so long if it has a checkpoint by then, and so loses little.
    """
    often = 0 if 0 < resident.checkpoint <= first else min(resident.preempted + resident.moved, DOUBLINGS)
    return resident.since + (first << often)


def service(resident: Resident, now: int) -> int:
    """Attained service of a running unit: that of its earlier attempts and this one's, times devices and tasks."""
    elapsed = max(0, now - resident.since) if resident.running else 0
    return resident.attained + elapsed * max(1, resident.shape.gpus) * resident.size


def cost_of(resident: Resident, now: int) -> float:
    """What it costs if the whole unit yields: lost work times size times the weight of its class."""
    return float(lost_work(resident, now) * resident.size * CLASS_WEIGHT[resident.priority])


def stands_still(victims: Iterable[Resident], run: int) -> float:
    """What it costs the victims to wait while another runs in their room: time times size times weight of the class."""
    return float(sum(run * victim.size * CLASS_WEIGHT[victim.priority] for victim in victims))


def price_of(resident: Resident, draft: Draft, by: str) -> float:
    """In which order units are asked to yield, the lowest first: by class what it costs; else the longest remaining,
    the most attained, the last level.
    """
    now = draft.view.now
    if by == "class":
        return cost_of(resident, now)
    if by == "deadline":
        return 1 / (1 + (resident.due or NEVER) / SECOND)
    if by == "remaining":
        return 1 / (1 + max(0, ends(resident, now, draft.speeds) - now) / SECOND)
    attained = service(resident, now)
    return 1 / (1 + (attained / SECOND if by == "attained" else level_of(attained)))


class Prices:
    """What each unit may yield for, by unit, and the `least` of all."""

    def __init__(self, of: Mapping[str, float], draft: Draft) -> None:
        self.of = of
        self._fleet, self._holders = draft.fleet, draft.running.holders
        self._prices = np.array([of.get(unit, inf) for unit in self._holders.units])
        self._rows: dict[int, list[int]] = {}
        self._least: dict[int, Floats] = {}
        self.least = float(self._prices.min(initial=inf))

    def rows(self, devices: int) -> list[int]:
        """Where so many devices could be free on one node, those first where the cheapest that free them cost least."""
        if devices not in self._rows:
            offers = self._offers
            places, enough = offers.reaching(devices - self._fleet.free[DEVICES, offers.rows])
            costs = offers.costs[enough, places]
            rows = offers.rows[enough]
            self._rows[devices] = rows[np.lexsort((rows, costs))].tolist()
        return self._rows[devices]

    def at_least(self, devices: int) -> Floats:
        """(N,): less than what it costs at least that so many devices are free on one node: the price of the last of
        the cheapest of which so many come free, since without it, or one that is dearer, there are too few. Infinite
        where so many never come free.
        """
        if devices not in self._least:
            offers = self._offers
            places, enough = offers.reaching(devices - self._fleet.free[DEVICES, offers.rows])
            found = self._least[devices] = np.full(len(self._fleet), inf)
            found[offers.rows[enough]] = offers.prices[enough, places]
        return self._least[devices]

    def covering(self, row: int, devices: int) -> float:
        """Less than what any units of a node cost together of which so many devices come free: as if the last of them,
        in the order of what each device costs, could yield in part (Dantzig, 1957).
        """
        lacks, total = devices - int(self._fleet.free[DEVICES, row]), 0.0
        for cost, frees in self._offers.each(row):
            if lacks <= 0:
                break
            total += cost * min(frees, lacks)
            lacks -= frees
        return total * (1 - ROUNDING)

    @cached_property
    def _offers(self) -> "_Offers":
        could = np.flatnonzero(self._prices < inf)
        rows, prices, devices = self._holders.rows[could], self._prices[could], self._holders.devices[could]
        order = np.lexsort((devices, prices, rows))
        rows, prices, devices = rows[order], prices[order], devices[order]
        first = np.flatnonzero(np.diff(rows, prepend=-1))
        here, counts = rows[first], np.diff(first, append=len(rows))
        place = np.repeat(np.arange(len(here)), counts), np.arange(len(rows)) - np.repeat(first, counts)
        by_price = np.full((len(here), counts.max(initial=1)), inf)
        frees = np.zeros(by_price.shape, np.int64)
        by_price[place], frees[place] = prices, devices
        return _Offers(here, by_price, frees, by_price.cumsum(axis=1), frees.cumsum(axis=1))


class _Offers(NamedTuple):
    """Preemptible holdings: the `rows` that have any; the `prices` on each row, in ascending order, and the number of
    devices that each `frees` (R, M). `costs` and `freed` are cumulative sums. Padding has an infinite price and frees
    nothing.
    """

    rows: Ints
    prices: Floats
    frees: Ints
    costs: Floats
    freed: Ints

    def reaching(self, lacks: Ints) -> tuple[Ints, Ints]:
        """Find the rows that can free `lacks` devices. Return, for each of them, the index of the last holding needed
        in order of price, and the indices of these rows.
        """
        enough = self.freed >= lacks[:, None]
        could = np.flatnonzero(enough[:, -1])
        return enough[could].argmax(axis=1), could

    def each(self, row: int) -> list[tuple[float, int]]:
        """Return the preemptible holdings of a row as (price per device, devices), cheapest first."""
        place = int(np.searchsorted(self.rows, row))
        if place == len(self.rows) or self.rows[place] != row:
            return []
        offers = zip(self.prices[place].tolist(), self.frees[place].tolist(), strict=True)
        return sorted([(price / frees, frees) for price, frees in offers if frees])


def standings(draft: Draft, rules: Preemption, *, plain: bool = False) -> dict[str, float]:
    """What it is worth to let each unit go on that runs and may be made to yield; infinite where it may not be asked
    now, or would lose more than is left of it.

    That is its weight by the time that its end is put off less when it goes on than when it yields. With `R` left to
    run and `L` lost by yielding, one that runs for `T` in its place gains `R` and costs it `T + L`: that is a gain if
    `R - L > T` (two jobs on one machine, as in Smith, 1956). What is lost has to be done again on its `n` devices, and
    that delays all that waits: `L` counts `1 + n c / w` times, where `c` is the weight that waits for each device.
    And it is lost for certain, where what is won is a guess: it counts more, the less sure that is (`UNSURE`). In
    `plain` prices `L` counts once.
    """
    running = draft.running

    def terms(one: Resident) -> list[int]:
        may = one.preemptible and one.running and not one.stopping and not one.serves
        asked_from = may_be_asked(one, rules) if may else NEVER
        width = one.shape.gpus * one.size
        return [asked_from, one.checkpoint, one.kept, one.restore, one.priority, one.weight, may, width]

    if not running.residents:
        return {}
    asked_from, checkpoint, kept, restore, priority, weight, may, width = running.each(rules, terms)
    elapsed = running.elapsed
    by_interval = np.where(checkpoint > 0, elapsed % np.maximum(1, checkpoint), elapsed)
    lost = np.where(kept > 0, np.maximum(0, draft.view.now - kept), by_interval) + restore
    worths = np.array(CLASS_WEIGHT)[priority] * weight / 1000
    delays = 1 + width * crowding(draft) / np.maximum(worths, LEAST)
    if not plain:
        lost = lost * delays + UNSURE * running.varies * np.minimum(lost, running.left)
    spared = running.left - lost
    of = HYSTERESIS * worths / (np.maximum(1, spared) / SECOND)
    standing = np.where((spared > 0) & (draft.view.now >= asked_from), of, inf)
    if may.all():
        prices = standing[::-1].tolist()  # of a gang the first counts
        return dict(zip([one.unit for one in reversed(running.residents)], prices, strict=True))
    rows = np.flatnonzero(may)[::-1]
    return dict(zip([running.residents[row].unit for row in rows.tolist()], standing[rows].tolist(), strict=True))


def crowding(draft: Draft) -> float:
    """The weights of all that waits for whole devices, for each device there is: what is done again delays them all."""
    fleet = draft.fleet
    devices = int(fleet.total[DEVICES, fleet.closed == 0].sum())
    waiting = sum(worth(one.priority, one.weight) for one in draft.view.candidates if one.shape.gpus)
    return waiting / max(1, devices)


def value(candidate: Candidate, run: int, now: int, *, waits: float = 1.0) -> float:
    """The worth of starting a unit that is foreseen to run for `run` nanoseconds: its weight over that time. A wait as
    long as `STARVES` runs doubles it, where waiting counts once (to the power `waits`).
    """
    return values(candidate, (run,), now, waits=waits)[0]


def values(candidate: Candidate, runs: Collection[int], now: int, *, waits: float = 1.0) -> list[float]:
    """The same for each of several lengths."""
    weight = worth(effective_class(candidate, now), candidate.weight)
    waited = now - candidate.ready
    longs_for: list[float] = [1 + waited / (STARVES * (run if run > SECOND else SECOND)) for run in runs]
    if waits != 1.0:
        longs_for = [more**waits for more in longs_for]
    return [weight * more / ((run if run > 1 else 1) / SECOND) for more, run in zip(longs_for, runs, strict=True)]


def worth(priority: int, weight: int) -> float:
    """By class and business weight, in thousandths."""
    return CLASS_WEIGHT[priority] * weight / 1000


def reserve(candidate: Candidate, shape: Shape, draft: Draft, tasks: int) -> Reservation | None:
    """Where and when the unit could start first if nothing else were placed; None where it could never."""
    now = draft.view.now
    slots: list[tuple[int, int]] = []  # the first, of the rows that were looked at
    for earliest, row in _earliest(draft, shape, _nearest(draft, shape, tasks)):
        before = slots[-1][0] if len(slots) == tasks else None
        if before is not None and earliest > before:
            break
        slots += [(at, row) for at in openings_on(draft, row, shape, _most_on(shape, tasks), now, before, earliest)]
        slots = sorted(slots)[:tasks]
    if len(slots) < tasks:
        return None
    rows: dict[int, int] = {}
    for _, row in slots:
        rows[row] = rows.get(row, 0) + 1
    return Reservation(rows, slots[-1][0])


def drain(shape: Shape, draft: Draft, tasks: int) -> dict[int, int] | None:
    """Tasks by row where the unit gets its room for certain if nobody else is let in: where least is lacking of it now,
    whatever is foreseen of what runs there. What lacks least lacks ever less while room is kept, so this comes to an
    end. None where it could never start.
    """
    able, kind = draft.able(shape), draft.fleet.kind
    rows: dict[int, int] = {}
    left = tasks
    for row in _nearest(draft, shape, tasks):
        rows[row] = min(left, int(able.room[kind[row]]), _most_on(shape, tasks))
        left -= rows[row]
        if not left:
            return rows
    return None


def find_yielding(
    candidate: Candidate,
    shape: Shape,
    draft: Draft,
    tasks: int,
    rules: Preemption,
    asked: Collection[str] = (),
    spared: Collection[str] = (),
) -> Yielding | None:
    """The cheapest set of units found whose end would let this one start; None if there is none that may yield. Units
    that were `asked` in this round already, for another one, are not asked twice, and those `spared` not at all.
    """
    may = _may_yield(candidate, draft, rules, [*asked, *spared] if spared else asked)
    near = dict.fromkeys(_nearest(draft, shape, tasks, yielding_to=candidate if rules.by == "class" else None), 0.0)
    most = rules.at_most(shape, tasks) - len(asked)
    return _cheapest(shape, draft, tasks, near, most, may, lambda resident: price_of(resident, draft, rules.by))


def take_from(
    shape: Shape, draft: Draft, tasks: int, rules: Preemption, order: Sequence[str], asked: Collection[str]
) -> Yielding | None:
    """The cheapest set found, of the units in `order`, that would leave room for so many tasks; None if there is none.
    Where room is kept, it is what is left of what those leave who were `asked` already.
    """
    could, now = frozenset(order), draft.view.now
    holding = [row for row, here in enumerate(draft.fleet.residents) if any(one.unit in could for one in here)]
    able = draft.able(shape).where & (draft.fleet.closed == 0)
    free = np.flatnonzero(able & (draft.capacity(shape) > 0)).tolist() if tasks > 1 else []
    rows = [row for row in dict.fromkeys((*free, *holding)) if able[row]]
    if shape.where.groups and tasks > 1:
        rows = _of_groups(draft, shape, np.array(rows, np.int64), tasks).tolist()
    rooms = {row: _beside_kept(draft, row, asked) for row in rows if row in draft.kept}
    most, near = rules.at_most(shape, tasks), dict.fromkeys(rows, 0.0)
    return _cheapest(
        shape, draft, tasks, near, most, lambda one: one.unit in could, lambda one: cost_of(one, now), rooms=rooms
    )


def _beside_kept(draft: Draft, row: int, asked: Collection[str]) -> Room:
    """What a node has room for when those have gone who were asked to, and those have come for whom it is kept."""
    room = draft.room(row).copy()
    for resident in draft.fleet.residents[row]:
        if resident.stopping or resident.unit in asked:
            give_back(room, resident)
    for kept in draft.kept[row]:
        able = draft.able(kept.shape).models
        for _ in range(kept.tasks):
            if (picked := room.pick(kept.shape, able)) is None:
                break
            room.take(kept.shape, picked)
    return room


def make_way(
    shape: Shape,
    draft: Draft,
    tasks: int,
    rules: Preemption,
    prices: Prices,
    worth: float,
    asked: Collection[str],
    run: int = 0,
    risk: float = RISK,
) -> Yielding | None:
    """The cheapest set of units found, each of a price below `worth`, that would leave room for so many tasks; None if
    there is none. No deadline that is kept is put at more than this `risk` by standing still for so long a `run`.
    """
    if prices.least >= worth:
        return None
    of = prices.of

    def may(resident: Resident) -> bool:
        if draft.timely.makes_late(resident, run, risk):
            return False
        return of.get(resident.unit, inf) < worth and resident.unit not in asked and not resident.stopping

    free = draft.capacity(shape)
    devices = shape.gpus if shape.share == WHOLE else 0
    bounds = prices.at_least(devices)
    if not free.any() and bounds.min(initial=inf) >= worth:
        return None
    near = _cheapest_rows(draft, shape, tasks, prices)
    most = rules.at_most(shape, tasks) - len(asked)
    at_least = dict(zip(near, np.where(free[near] > 0, 0.0, bounds[near]).tolist(), strict=True))
    for row, bound in at_least.items():
        if 0.0 < bound < worth:
            at_least[row] = max(bound, prices.covering(row, devices))
    return _cheapest(shape, draft, tasks, at_least, most, may, lambda resident: of[resident.unit], worth)


def _cheapest(
    shape: Shape,
    draft: Draft,
    tasks: int,
    near: Mapping[int, float],
    most: int,
    may: Callable[[Resident], bool],
    price: Callable[[Resident], float],
    below: float = inf,
    rooms: Mapping[int, Room] = {},
) -> Yielding | None:
    """Of the units that `may` yield on the nodes `near`, the cheapest found, at `most` so many, and for less than
    `below` in all. Room on a node costs no less than is said there; it is looked at closely only where that could be
    the cheapest. `rooms` are there instead of those of the draft.
    """
    chosen: dict[str, Resident] = {}
    rooms = dict(rooms)
    rows: dict[int, int] = {}
    on: dict[str, list[int]] = {}
    if tasks > 1:
        for row in near:
            for unit in {resident.unit for resident in draft.fleet.residents[row]}:
                on.setdefault(unit, []).append(row)
    offers: dict[int, Offer] = {}
    place = {row: place for place, row in enumerate(near)}
    heap = [(bound, place[row], row) for row, bound in near.items()]
    heapify(heap)
    total = 0.0

    def look(row: int) -> Offer | None:
        return _cheapest_on(row, draft, rooms.get(row), shape, may, chosen, price)

    for _ in range(tasks):
        if (found := _next_offer(heap, offers, below - total, look)) is None:
            return None
        row = found
        costs, victims, room = offers.pop(row)
        total += costs
        chosen.update((victim.unit, victim) for victim in victims)
        if len(chosen) > most:
            return None
        rooms[row] = room
        rows[row] = rows.get(row, 0) + 1
        picked = room.pick(shape, draft.able(shape).models)
        room.take(shape, picked or ())
        for other in {row, *(other for victim in victims for other in on.get(victim.unit, ()))}:
            offers.pop(other, None)
            if rows.get(other, 0) < _most_on(shape, tasks):
                heappush(heap, (0.0, place[other], other))
    yielding = tuple(sorted(chosen.values(), key=_ordinal))
    cost = sum(cost_of(victim, draft.view.now) for victim in yielding)
    return Yielding(yielding, rows, cost, sum(price(victim) for victim in yielding))


def _next_offer(
    heap: list[tuple[float, int, int]],
    offers: dict[int, Offer],
    below: float,
    look: Callable[[int], Offer | None],
) -> int | None:
    """The row whose offer is cheapest, if that is less than `below`; in the heap is what each row costs at least or,
    with an offer, costs; then its place among those that cost the same, and the row.
    """
    while heap and heap[0][0] < below:
        bound, place, row = heappop(heap)
        if row in offers:
            if bound == offers[row][0]:
                return row
            continue  # it was looked at again since
        offer = look(row)
        if offer is not None:
            offers[row] = offer
            heappush(heap, (offer[0], place, row))
    return None


def may_yield_at(candidate: Candidate, shape: Shape, draft: Draft, rules: Preemption) -> int | None:
    """The next instant at which one of a lower class will have run for long enough to be asked; None if none will."""
    instants = (
        may_be_asked(resident, rules)
        for row in _nearest(draft, shape, candidate.least or candidate.tasks, yielding_to=candidate)
        for resident in draft.fleet.residents[row]
        if resident.preemptible and not resident.stopping and resident.priority > candidate.priority
    )
    return min((at for at in instants if at > draft.view.now), default=None)


def is_coming(candidate: Candidate, shape: Shape, draft: Draft, tasks: int) -> dict[int, int] | None:
    """The rows where the unit fits as soon as those have ended who were asked to already; None if it does not."""
    rows: dict[int, int] = {}
    left = tasks
    for row in _nearest(draft, shape, tasks):
        room = draft.room(row).copy()
        if not any(resident.stopping for resident in draft.fleet.residents[row]):
            continue
        for resident in draft.fleet.residents[row]:
            if resident.stopping:
                give_back(room, resident)
        while left and (picked := room.pick(shape, draft.able(shape).models)) is not None:
            room.take(shape, picked)
            rows[row] = rows.get(row, 0) + 1
            left -= 1
            if rows[row] == _most_on(shape, tasks):
                break
    return None if left else rows


def gain_of(candidate: Candidate, starts: int, now: int, tasks: int) -> float:
    """What starting after the grace instead of at `starts` is worth: time times size times the weight of its class.

    A unit without deadline gains what it waits less; one that would miss its deadline gains no less than its run.
    """
    sooner = max(0, starts - now - GRACE)
    if candidate.due and starts + candidate.expected > candidate.due:
        sooner = max(sooner, candidate.expected)
    return float(sooner * tasks * CLASS_WEIGHT[candidate.priority])


# --- inside ----------------------------------------------------------------------------------------------------------


def may_be_asked(resident: Resident, rules: Preemption) -> int:
    """The instant from which on it may; classes cannot stop each other for ever, and the budget bounds them."""
    if resident.preempted >= rules.budget and not (rules.by == "value" and rules.loses_little(resident)):
        return resident.since + max(RENEWED, rules.min_run)
    if rules.by == "value":
        return max(settled(resident, rules.min_run), resident.since + resident.outlived // QUANTUM)
    return resident.since + rules.min_run if rules.by == "class" else settled(resident, rules.min_run)


def _may_yield(
    candidate: Candidate, draft: Draft, rules: Preemption, asked: Collection[str]
) -> Callable[[Resident], bool]:
    now = draft.view.now

    def may(resident: Resident) -> bool:
        if not resident.preemptible or resident.stopping or not resident.running or resident.unit in asked:
            return False
        if resident.serves and not candidate.serves:
            return False
        if now < may_be_asked(resident, rules):
            return False
        if rules.by == "class":
            return resident.priority > candidate.priority
        if rules.by == "deadline":
            return bool(candidate.due) and (resident.due or NEVER) > candidate.due
        if rules.by == "remaining":
            return ends(resident, now, draft.speeds) - now > candidate.expected
        if rules.by == "attained":
            quantum = rules.min_run * max(1, resident.shape.gpus) * resident.size
            return service(resident, now) > candidate.attained + quantum
        return level_of(service(resident, now)) > candidate_level(candidate, now)

    return may


def _nearest(draft: Draft, shape: Shape, tasks: int, yielding_to: Candidate | None = None) -> list[int]:
    """Rows that could hold one task when empty and where no room is kept, at least one for every task; those first that
    lack least of what they could hold; with what may yield to a unit counted as free, only those that lack nothing.
    """
    fleet, able = draft.fleet, draft.able(shape)
    if len(draft.kept) == len(fleet):
        return []
    asks = {CPU: shape.cpu, MEMORY: shape.memory, NETWORK: shape.network, DEVICES: shape.gpus}
    resources = [resource for resource, need in asks.items() if need]
    free = np.maximum(draft.free[resources], 0)
    if yielding_to is not None:
        for lower in range(yielding_to.priority + 1, CLASSES):
            free += fleet.yielding[lower][resources]
    mask: Bools = able.where & (fleet.closed == 0)
    if draft.kept:
        mask[list(draft.kept)] = False  # as if those had started for whom it is kept, and did not end
    needs = np.array([[need] for need in asks.values() if need])
    if _most_on(shape, tasks) > 1 and yielding_to is None:
        needs = needs * np.clip(able.room[fleet.kind], 1, tasks)
    if len(resources) == 1:
        lacks = np.maximum(0.0, 1 - free[0] / needs[0])
    else:
        lacks = np.maximum(0.0, 1 - free / needs).sum(axis=0) if resources else np.zeros(len(fleet))
    if yielding_to is not None:
        mask &= lacks <= 0
    rows = mask.nonzero()[0]
    rows = rows[lacks[rows].argsort(kind="stable")]
    if shape.where.groups and tasks > 1:
        rows = _of_groups(draft, shape, rows, tasks)
    found: list[int] = rows[: LOOKED_AT + tasks - 1].tolist()
    return found


def _of_groups(draft: Draft, shape: Shape, rows: Ints, tasks: int) -> Ints:
    """Of rows in order those on which a gang may be placed in any way, where it is spread with one task on each: the
    first row of each value. Where it is together: the rows of the first value whose nodes hold enough.
    """
    where, fleet = shape.where, draft.fleet
    if where.spread:
        _, first = np.unique(values_of(fleet, where.spread)[rows], return_index=True)
        rows = rows[np.sort(first)]
    if where.together:
        of = values_of(fleet, where.together)[rows]
        room = np.minimum(draft.able(shape).by_row(fleet)[rows], _most_on(shape, tasks))
        enough = np.bincount(of, weights=room) >= tasks if len(rows) else np.zeros(0, bool)
        values = [value for value in dict.fromkeys(of.tolist()) if enough[value]]
        rows = rows[of == values[0]] if values else rows[:0]
    return rows


def _most_on(shape: Shape, tasks: int) -> int:
    """How many tasks of a gang may be on one node."""
    return 1 if shape.where.spread else tasks


def _cheapest_rows(draft: Draft, shape: Shape, tasks: int, prices: Prices) -> list[int]:
    """Rows that could hold a task of the shape: for a gang those with room for one, then where room costs least."""
    fleet, able = draft.fleet, draft.able(shape)
    could = able.where & (fleet.closed == 0)
    could[list(draft.kept)] = False
    if shape.where.groups and tasks > 1:
        rows = np.flatnonzero(could & (draft.capacity(shape) > 0)).tolist()
        ordered = np.array(
            list(dict.fromkeys([*rows, *(row for row in prices.rows(shape.gpus) if could[row])])), np.int64
        )
        found: list[int] = _of_groups(draft, shape, ordered, tasks)[: LOOKED_AT + tasks - 1].tolist()
        return found
    most = LOOKED_AT + tasks - 1
    rows = np.flatnonzero(could & (draft.capacity(shape) > 0))[:most].tolist() if tasks > 1 else []
    known = set(rows)
    for row in prices.rows(shape.gpus):
        if len(rows) >= most:
            break
        if could[row] and row not in known:
            rows.append(row)
    return rows


def _earliest(draft: Draft, shape: Shape, rows: list[int]) -> list[tuple[int, int]]:
    """Of these rows those that will have devices for one task, the soonest first, and when that is."""
    if not rows:
        return []
    free = np.maximum(draft.share[rows], 0).sum(axis=1)
    return draft.running.soonest(rows, (shape.gpus * shape.share - free).tolist())


def openings_on(
    draft: Draft, row: int, shape: Shape, most: int, now: int, before: int | None = None, since: int = 0
) -> list[int]:
    """The instants at which this node has room for one more task, up to `most` of them; later than `before` none, and
    it is known that there are none earlier than `since`.
    """
    room, able = draft.room(row).copy(), draft.able(shape).models
    instants: list[int] = []
    if since <= now:
        _fill(room, shape, able, now, most, instants)
    residents = draft.fleet.residents[row]
    brief = _held_by_brief(draft.fleet, row, residents) if draft.fleet.pools else None
    if brief is not None and len(instants) < most:
        room.cpu, room.memory, room.network = room.cpu + brief[0], room.memory + brief[1], room.network + brief[2]
        _fill(room, shape, able, now + BRIEF, most, instants)
    for at, number in draft.running.endings(row):
        if len(instants) >= most or (before is not None and at > before):
            break
        give_back(room, residents[number])
        if at >= since:
            _fill(room, shape, able, at, most, instants)
    return instants


def _fill(room: Room, shape: Shape, able: list[bool], at: int, most: int, instants: list[int]) -> None:
    while len(instants) < most and (picked := room.pick(shape, able)) is not None:
        room.take(shape, picked)
        instants.append(at)


def _held_by_brief(fleet: Fleet, row: int, residents: Iterable[Resident]) -> tuple[int, int, int] | None:
    """CPU, memory and network held by work that is known to be brief, and so not among the residents."""
    held = fleet.total[:, row] - fleet.free[:, row]
    cpu, memory, network = int(held[CPU]), int(held[MEMORY]), int(held[NETWORK])
    for resident in residents:
        cpu, memory, network = (
            cpu - resident.shape.cpu, memory - resident.shape.memory, network - resident.shape.network,
        )  # fmt: skip
    return (cpu, memory, network) if cpu > 0 or memory > 0 else None


def _cheapest_on(
    row: int,
    draft: Draft,
    room: Room | None,
    shape: Shape,
    may: Callable[[Resident], bool],
    chosen: dict[str, Resident],
    price: Callable[[Resident], float],
) -> Offer | None:
    """The cheapest victims on one node found greedily: the cheapest first until there is room, then who is not needed
    after all stays.
    """
    able = draft.able(shape).models
    units: dict[str, list[Resident]] = {}
    for resident in draft.fleet.residents[row]:
        units.setdefault(resident.unit, []).append(resident)
    fresh = room is None
    room = draft.room(row).copy() if room is None else room.copy()
    if fresh:  # members of gangs that yield already, for their members on other nodes
        for unit in units:
            if unit in chosen:
                _give_all(room, units[unit])
    could = sorted(
        (price(of[0]), -of[0].since, of[0].ordinal) for unit, of in units.items() if unit not in chosen and may(of[0])
    )
    by_ordinal = {of[0].ordinal: of for of in units.values()}
    victims: list[list[Resident]] = []
    for _, _, ordinal in could:
        if room.pick(shape, able) is not None:
            break
        _give_all(room, by_ordinal[ordinal])
        victims.append(by_ordinal[ordinal])
    if room.pick(shape, able) is None:
        return None
    for spared in victims[:-1]:
        without = room.copy()
        for resident in spared:
            without.take(resident.shape, resident.devices)
        if without.pick(shape, able) is not None:
            victims.remove(spared)
            room = without
    return sum(price(of[0]) for of in victims), [of[0] for of in victims], room


def _give_all(room: Room, residents: list[Resident]) -> None:
    for resident in residents:
        give_back(room, resident)


def _ordinal(resident: Resident) -> int:
    return resident.ordinal
