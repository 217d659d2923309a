"""Making room for blocked units: reservations, preemption and its price.

A blocked unit gets a *reservation*: the nodes where it could start first, by the estimated ends of the attempts there.
Until then other units may use that room only if they end in time (EASY backfill, Lifka, 1995). So large gangs are not
starved. No two gangs wait for each other, because reservations are made in the order in which units are served.

*Preemption* is weighed. Gain: the time by which the unit starts sooner, times its size and the weight of its class.
Cost: for each victim, the work since its last checkpoint, the restore time, and the time it waits while the other unit
runs, times its size and the weight of its class. A unit is preempted only if the gain is larger than the cost. A victim
has run for a minimum time and has not been preempted too often. A service has no end, so gain and cost cannot be
computed from run times: it preempts lower classes, the cheapest first, and is never preempted for a shorter unit.
"""

from collections.abc import Callable, Collection, Container, Iterable, Mapping
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
from poise.model.views import Candidate, Snapshot
from poise.policy.feasible import values_of
from poise.policy.place import Draft
from poise.policy.predict import Speeds
from poise.policy.rank import candidate_level, effective_class, level_of
from poise.policy.room import Room, give_back
from poise.policy.running import Running, lost_work
from poise.policy.timely import RISK
from poise.policy.waiting import CLASS_WEIGHTS, GPUS, NEVER, PRIORITY, STARVES, WEIGHT
from poise.units import MINUTE, SECOND

HYSTERESIS = 1.2
"""Minimum ratio of gain to loss for a preemption: estimates are uncertain, and every preemption costs something."""

LEAST = 1e-9
"""Lower limit of a weight, to avoid division by zero."""

ROUNDING = 1e-9
"""Relative rounding error of a sum of prices, in any order of addition."""

UNSURE = 3.0
"""Weight, in the cost of lost work, of the relative deviation of the estimate: the loss is certain, the gain is not."""

QUANTUM = 4
"""A unit that does not report progress runs for at least 1/4 of its total run time before each preemption; otherwise
similar units would preempt each other without end."""

LOOKED_AT = 32
"""Maximum number of nodes examined closely for room to come, those nearest to having it first; a gang adds one for each
further task."""

RESERVED_NEXT = 4
"""Number of further nodes examined in advance for future room: they replace nodes where room is kept later."""

MIN_RUN = 30 * SECOND
"""Minimum run time before preemption: most of a shorter run is startup and saving."""

DOUBLINGS = 10
"""Maximum number of times the minimum run time doubles. It doubles with each preemption (up to 8.5 hours after a first
30 s), so that units do not preempt each other forever and useless preemptions are not repeated."""


RENEWED = 30 * MINUTE
"""Run time at a stretch after which a unit with a used-up preemption budget may be preempted again. With `value`, a
unit that makes checkpoints may be preempted once it has made one, if that is sooner: then it does not lose its progress
again and again, and short work does not wait behind training of days."""


class Preemption(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Rules for preemption. `by` selects the victims: `class` preempts lower priority classes if the gain exceeds the
    cost. `value` does the same, and for devices it preempts any class whose units are worth less for their time.
    `remaining` preempts units with longer to run, `attained` units with a quantum more service, `level` units on a
    later feedback level, and `deadline` units with a later deadline.

    A victim must have run for `min_run` nanoseconds. A unit is preempted at most `budget` times, and after that only
    after a long run, or with `value` after its next checkpoint. A round preempts at most `at_once` units, or as many as
    the blocked unit has devices or tasks.
    With `value` the budget does not apply to units that lose at most `min_run` when preempted.
    """

    by: Literal["class", "value", "remaining", "attained", "level", "deadline"] = "class"
    min_run: int = MIN_RUN
    budget: int = 3
    at_once: int = 16

    def at_most(self, shape: Shape, tasks: int) -> int:
        """Return the maximum number of victims in one round for a unit."""
        return max(self.at_once, tasks * max(1, shape.gpus))

    def loses_little(self, resident: Resident) -> bool:
        """Return whether preemption loses at most `min_run` of work, by the checkpoint interval."""
        return 0 < resident.checkpoint <= self.min_run


class Reservation(NamedTuple):
    """The earliest start found for a unit: tasks by row, and the instant."""

    rows: dict[int, int]
    at: int


class Yielding(NamedTuple):
    """Victims, the rows where the unit would then start, the cost, and the sum of the victims' prices."""

    victims: tuple[Resident, ...]
    rows: dict[int, int]
    cost: float
    price: float


Offer = tuple[float, list[Resident], Room]
"""Price of room for one more task on a node, the victims, and the room that results."""


def ends(resident: Resident, now: int, speeds: Speeds) -> int:
    """Return the expected end of an attempt; after an overrun, estimate the remaining time again."""
    if resident.stopping:
        return now + GRACE
    estimate = speeds.of_attempt(resident)
    elapsed = max(0, now - resident.since) if resident.running else 0
    return now + remaining(elapsed, estimate.mean, estimate.deviation)


def next_checkpoint(resident: Resident, now: int) -> int:
    """Return the instant of the next checkpoint of a unit that makes checkpoints."""
    return now + resident.checkpoint - (now - (resident.kept or resident.since)) % resident.checkpoint


def settled(resident: Resident, first: int) -> int:
    """Return the instant from which a unit may be preempted: `first` after its start, doubled with each earlier
    preemption or move. A unit with a checkpoint interval of at most `first` loses little, so for it the time never
    doubles.
    """
    often = 0 if 0 < resident.checkpoint <= first else min(resident.preempted + resident.moved, DOUBLINGS)
    return resident.since + (first << often)


def service(resident: Resident, now: int) -> int:
    """Return the attained service of a running unit, of earlier attempts and this one: time times devices and tasks."""
    elapsed = max(0, now - resident.since) if resident.running else 0
    return resident.attained + elapsed * max(1, resident.shape.gpus) * resident.size


def cost_of(resident: Resident, now: int) -> float:
    """Return the cost of preempting the whole unit: lost work times size times class weight."""
    return float(lost_work(resident, now) * resident.size * CLASS_WEIGHT[resident.priority])


def stands_still(victims: Iterable[Resident], run: int) -> float:
    """Return the cost of the victims' wait while another unit runs in their room: time times size times weight."""
    return float(sum(run * victim.size * CLASS_WEIGHT[victim.priority] for victim in victims))


def price_of(resident: Resident, draft: Draft, by: str) -> float:
    """Return the key that orders victims, lowest first. For `class` this is the preemption cost; for other rules the
    unit with the longest remaining time, the most attained service, the last level or the latest deadline comes first.
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
    """The preemption price of each running unit, `of` (U,) by its number, infinite where it may not be preempted; and
    the `least` of all prices.
    """

    def __init__(self, of: Floats, draft: Draft) -> None:
        self.of = of
        self._draft, self._fleet, self._holders = draft, draft.fleet, draft.running.holders
        self._number = draft.running.units.number
        self._prices = of[self._holders.numbers]
        self._rows: dict[int, Ints] = {}
        self._least: dict[int, tuple[Floats, float]] = {}
        self._each: dict[int, list[tuple[float, int]]] = {}
        self.least = float(of.min(initial=inf))

    def price(self, unit: str) -> float:
        """Return the price of a running unit."""
        return float(self.of[self._number[unit]])

    def by_unit(self) -> dict[str, float]:
        """Return the prices by unit."""
        return dict(zip(self._number, self.of.tolist(), strict=True))

    def without(self, units: Collection[str]) -> "Prices":
        """Return these prices if those units may not be preempted."""
        return self.changed(dict.fromkeys(units, inf))

    def changed(self, prices: Mapping[str, float]) -> "Prices":
        """Return these prices with other ones for some units; units that do not run are ignored."""
        of, known = self.of.copy(), [unit for unit in prices if unit in self._number]
        of[[self._number[unit] for unit in known]] = [prices[unit] for unit in known]
        return Prices(of, self._draft)

    def rows(self, devices: int) -> Ints:
        """Return the rows where `devices` devices could be free on one node, in ascending order of the total price of
        the cheapest holdings that free them.
        """
        if devices not in self._rows:
            offers = self._offers
            places, enough = offers.reaching(devices - self._fleet.free[DEVICES, offers.rows])
            costs = offers.costs[enough, places]
            rows = offers.rows[enough]
            self._rows[devices] = rows[np.lexsort((rows, costs))]
        return self._rows[devices]

    def at_least(self, devices: int) -> tuple[Floats, float]:
        """Return (N,): a lower bound of the price to free `devices` devices on one node, and the least of these. The
        bound is the price of the last of the cheapest holdings that together free enough: without that one or a dearer
        one, too few come free. It is infinite where that many devices never come free.
        """
        known = self._least.get(devices)
        if known is None:
            offers = self._offers
            places, enough = offers.reaching(devices - self._fleet.free[DEVICES, offers.rows])
            prices, bounds = offers.prices[enough, places], np.full(len(self._fleet), inf)
            bounds[offers.rows[enough]] = prices
            known = self._least[devices] = bounds, float(prices.min(initial=inf))
        return known

    def covering(self, row: int, devices: int) -> float:
        """Return a lower bound of the price to free `devices` devices on a node, as if the last victim, in order of
        price per device, could yield in part (Dantzig, 1957).
        """
        lacks, total = devices - int(self._fleet.free[DEVICES, row]), 0.0
        each = self._each.get(row)
        if each is None:
            each = self._each[row] = self._offers.each(row)
        for cost, frees in each:
            if lacks <= 0:
                break
            total += cost * min(frees, lacks)
            lacks -= frees
        return total * (1 - ROUNDING)

    @cached_property
    def _offers(self) -> "_Offers":
        could = (self._prices < inf).nonzero()[0]
        rows, prices, devices = self._holders.rows[could], self._prices[could], self._holders.devices[could]
        order = np.lexsort((devices, prices, rows))
        prices, devices = prices[order], devices[order]  # `rows` are in ascending order already
        on = np.bincount(rows, minlength=1)
        here = on.nonzero()[0]
        counts = on[here]
        first = counts.cumsum() - counts
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
        could = enough[:, -1].nonzero()[0]
        return enough[could].argmax(axis=1), could

    def each(self, row: int) -> list[tuple[float, int]]:
        """Return the preemptible holdings of a row as (price per device, devices), cheapest first."""
        place = int(self.rows.searchsorted(row))
        if place == len(self.rows) or self.rows[place] != row:
            return []
        offers = zip(self.prices[place].tolist(), self.frees[place].tolist(), strict=True)
        return sorted([(price / frees, frees) for price, frees in offers if frees])


def standings(draft: Draft, rules: Preemption, *, plain: bool = False) -> Floats:
    """Return (U,): the worth of not preempting each running unit. The worth is infinite while the unit may not be
    preempted, and where it would lose more work than it has left.

    The worth is the unit's weight divided by the delay of its end that it is spared. With `R` left to run and `L` lost
    by preemption, a unit that runs for `T` in its place gains `R` and costs it `T + L`: that is a gain if `R - L > T`
    (two jobs on one machine, as in Smith, 1956). The lost work is repeated on the unit's `n` devices and delays all
    waiting units, so `L` counts `1 + n c / w` times, where `c` is the waiting weight per device. The loss is certain
    and the gain is an estimate, so the loss counts more the less certain the estimate is (`UNSURE`). In `plain` prices
    `L` counts once.
    """
    running = draft.running
    prices = np.full(len(running.units.number), inf)
    if not running.residents:
        return prices
    asked_from, priority, weight, may, width = _terms(running, rules)
    lost = running.lost
    worths = CLASS_WEIGHTS[priority] * weight / 1000
    delays = 1 + width * crowding(draft) / np.maximum(worths, LEAST)
    if not plain:
        lost = lost * delays + UNSURE * running.varies * np.minimum(lost, running.left)
    spared = running.left - lost
    of = HYSTERESIS * worths / (np.maximum(1, spared) / SECOND)
    standing = np.where((spared > 0) & (draft.view.now >= asked_from), of, inf)
    rows = may.nonzero()[0][::-1]  # the first member of a gang sets its price
    prices[running.units.of[rows]] = standing[rows]
    return prices


def least_standing(draft: Draft, rules: Preemption) -> float:
    """Return a lower bound of all `standings` until an event, if no unit outlives its estimate: as if no unit lost any
    work, and each could be preempted now.
    """
    running = draft.running
    if not running.residents:
        return inf
    _, priority, weight, may, _ = _terms(running, rules)
    of = HYSTERESIS * CLASS_WEIGHTS[priority] * weight / 1000 / (np.maximum(1, running.left) / SECOND)
    return float(of[may > 0].min(initial=inf))


def _terms(running: Running, rules: Preemption) -> Ints:
    """Return, for each attempt, what its price depends on: from when it may be preempted, its class and weight, whether
    it may ever be preempted, and its devices.
    """

    def terms(one: Resident) -> list[int]:
        may = one.preemptible and one.running and not one.stopping and not one.serves
        asked_from = may_be_asked(one, rules) if may else NEVER
        width = one.shape.gpus * one.size
        return [asked_from, one.priority, one.weight, may, width]

    return running.each(rules, terms)


def crowding(draft: Draft) -> float:
    """Return the waiting weight per device, of units that wait for devices: repeated work delays all of them."""
    fleet, columns = draft.fleet, draft.waiting.columns
    devices = int(fleet.total[DEVICES, draft.open].sum())
    who = (columns[GPUS] > 0).nonzero()[0]
    if len(who) < columns.shape[1]:
        columns = columns[:, who]
    weights = CLASS_WEIGHTS[columns[PRIORITY]] * columns[WEIGHT] / 1000
    return float(weights.cumsum()[-1]) / max(1, devices) if len(weights) else 0.0  # added up one by one, in order


def value(candidate: Candidate, run: int, view: Snapshot, *, at: int = 0, waits: float = 1.0) -> float:
    """Return the worth of starting a unit, now or `at` another instant: its weight divided by its estimated run time
    `run`, in nanoseconds. A wait of `STARVES` run times doubles the worth (before the power `waits`).
    """
    longs_for: float = 1 + ((at or view.now) - candidate.ready) / (STARVES * (run if run > SECOND else SECOND))
    if waits != 1.0:
        longs_for = longs_for**waits
    of = effective_class(candidate, view, at)
    return worth(of, candidate.weight) * longs_for / ((run if run > 1 else 1) / SECOND)


def values(candidate: Candidate, runs: Collection[int], view: Snapshot, *, waits: float = 1.0) -> list[float]:
    """Return the worth of starting a unit now for each of several run times in nanoseconds."""
    return [value(candidate, run, view, waits=waits) for run in runs]


def worth(priority: int, weight: int) -> float:
    """Return the class weight times the business weight, which is given in thousandths."""
    return CLASS_WEIGHT[priority] * weight / 1000


def reserve(shape: Shape, draft: Draft, tasks: int) -> Reservation | None:
    """Return the earliest start of the unit if nothing else were placed; None if it could never start."""
    now = draft.view.now
    ahead = _earliest(draft, shape, tasks)
    if tasks == 1 and ahead:
        at, row = min(ahead)
        if openings_on(draft, row, shape, 1, now, at, at) == [at]:  # no other row is sooner
            return Reservation({row: 1}, at)
    slots: list[tuple[int, int]] = []  # the earliest openings found so far
    for earliest, row in sorted(ahead):
        before = slots[-1][0] if len(slots) == tasks else None
        if before is not None and (earliest, row) > slots[-1]:
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
    """Return tasks by row where the unit is certain to get room if no other unit is admitted: the rows that lack least
    now, whatever the estimated ends. While room is kept the lack only shrinks, so the drain ends. None if the unit
    could never start.
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
    spared: Container[str] = (),
) -> Yielding | None:
    """Return the cheapest set of victims found whose end lets this unit start; None if there is none. Skip units that
    are preempted already in this round (`asked`) and those in `spared`.
    """
    may = _may_yield(candidate, draft, rules, asked, spared)
    near = dict.fromkeys(_nearest(draft, shape, tasks, yielding_to=candidate if rules.by == "class" else None), 0.0)
    most = rules.at_most(shape, tasks) - len(asked)
    return _cheapest(shape, draft, tasks, near, most, may, lambda resident: price_of(resident, draft, rules.by))


def take_from(
    shape: Shape,
    draft: Draft,
    tasks: int,
    rules: Preemption,
    borrowers: Iterable[tuple[float, Resident]],
    asked: Collection[str],
) -> Yielding | None:
    """Return the cheapest set of victims found, among the `borrowers` with their costs, the cheapest first, that leaves
    room for `tasks` tasks; None if there is none. On nodes with kept room, count the room of units in `asked` as free
    and subtract the kept room; if that is enough, there are no victims.
    """
    able = draft.could_hold(shape)
    rooms = {row: _beside_kept(draft, row, asked) for row in draft.kept if able[row]}
    most = rules.at_most(shape, tasks)
    if tasks == 1:
        found = _cheapest_of(shape, draft, borrowers, able, rooms)
        return None if found is None or len(found.victims) > most else found
    costs = {one.unit: cost for cost, one in borrowers}
    least: dict[int, float] = {}  # by row: no victim there costs less
    for unit, cost in costs.items():
        for row in draft.running.rows_of(unit):
            least.setdefault(row, cost)
    has_room = draft.capacity(shape) > 0
    rows = [row for row in dict.fromkeys((*np.flatnonzero(has_room).tolist(), *rooms, *sorted(least))) if able[row]]
    if shape.where.groups:
        rows = _of_groups(draft, shape, np.array(rows, np.int64), tasks).tolist()
    near = {row: 0.0 if has_room[row] or row in rooms else least[row] for row in rows}
    return _cheapest(
        shape, draft, tasks, near, most, lambda one: one.unit in costs, lambda one: costs[one.unit], rooms=rooms
    )


def _cheapest_of(
    shape: Shape,
    draft: Draft,
    borrowers: Iterable[tuple[float, Resident]],
    able: Bools,
    rooms: Mapping[int, Room],
) -> Yielding | None:
    """Return the cheapest victims for one task, as for `take_from`. Look no further than at borrowers that cost less
    than what is found.
    """
    models = draft.able(shape).models
    for row, room in rooms.items():
        if room.pick(shape, models) is not None:
            return Yielding((), {row: 1}, 0.0, 0.0)
    best: tuple[float, list[Resident], int] | None = None
    costs: dict[str, float] = {}
    freed: dict[int, int] = {}
    for cost, one in borrowers:
        if best is not None and cost >= best[0]:
            break
        costs[one.unit] = cost
        rows = draft.running.rows_of(one.unit)
        for row in rows:
            freed[row] = freed.get(row, 0) + len(one.devices)
        for row in dict.fromkeys(rows):
            lacks = shape.gpus - int(draft.free[DEVICES, row]) if shape.share == WHOLE and row not in rooms else 0
            if not able[row] or freed[row] < lacks:
                continue
            offer = _cheapest_on(
                row, draft, rooms.get(row), shape, lambda of: of.unit in costs, {}, lambda of: costs[of.unit]
            )
            if offer is not None and (best is None or offer[0] < best[0]):
                best = offer[0], offer[1], row
    if best is None:
        return None
    price, victims, row = best
    cost = sum(cost_of(victim, draft.view.now) for victim in victims)
    return Yielding(tuple(victims), {row: 1}, cost, price)


def _beside_kept(draft: Draft, row: int, asked: Collection[str]) -> Room:
    """Return a node's room once stopping and `asked` units have ended and units with kept room have started."""
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
    """Return the cheapest set of victims found, each with a price below `worth`, that leaves room for `tasks` tasks;
    None if there is none. Skip a victim whose deadline would be at more than this `risk` after it waits for `run`.
    """
    if prices.least >= worth:
        return None

    def may(resident: Resident) -> bool:
        if draft.timely.makes_late(resident, run, risk):
            return False
        return prices.price(resident.unit) < worth and resident.unit not in asked and not resident.stopping

    free = draft.capacity(shape)
    devices = shape.gpus if shape.share == WHOLE else 0
    bounds, least = prices.at_least(devices)
    if least >= worth and not free.any():
        return None
    near = _cheapest_rows(draft, shape, tasks, prices)
    most = rules.at_most(shape, tasks) - len(asked)
    found = np.where(free[near] > 0, 0.0, bounds[near])
    if tasks == 1:  # the others are never examined
        near, found = near[found < worth], found[found < worth]
    at_least = dict(zip(near.tolist(), found.tolist(), strict=True))
    for row, bound in at_least.items():
        if 0.0 < bound < worth:
            at_least[row] = max(bound, prices.covering(row, devices))
    if tasks == 1 and min(at_least.values(), default=inf) >= worth:
        return None
    return _cheapest(shape, draft, tasks, at_least, most, may, lambda resident: prices.price(resident.unit), worth)


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
    """Return the cheapest victims found on the nodes `near` for which `may` is true: at most `most`, and for less than
    `below` in total. `near` holds a lower bound of the price on each node; a node is examined closely only where it
    could be the cheapest. `rooms` overrides rooms of the draft.
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
    """Return the row with the cheapest offer, if it costs less than `below`. The heap holds the lower bound of the
    price of each row, or the price if it has an offer; then its position among equal prices, and the row.
    """
    while heap and heap[0][0] < below:
        bound, place, row = heappop(heap)
        if row in offers:
            if bound == offers[row][0]:
                return row
            continue  # stale entry: the row was examined again
        offer = look(row)
        if offer is not None:
            offers[row] = offer
            heappush(heap, (offer[0], place, row))
    return None


def may_yield_at(candidate: Candidate, shape: Shape, draft: Draft, rules: Preemption) -> int | None:
    """Return the next instant at which a unit of a lower class may be preempted; None if there is none."""
    instants = (
        may_be_asked(resident, rules)
        for row in _nearest(draft, shape, candidate.least or candidate.tasks, yielding_to=candidate)
        for resident in draft.fleet.residents[row]
        if resident.preemptible and not resident.stopping and resident.priority > candidate.priority
    )
    return min((at for at in instants if at > draft.view.now), default=None)


def is_coming(candidate: Candidate, shape: Shape, draft: Draft, tasks: int) -> dict[int, int] | None:
    """Return tasks by row where the unit fits once the stopping units have ended; None if it does not fit."""
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
    """Return the gain of a start after the grace period instead of at `starts`: time times size times class weight.

    A unit without a deadline gains the time it waits less; one that would miss its deadline gains at least its run
    time.
    """
    sooner = max(0, starts - now - GRACE)
    if candidate.due and starts + candidate.expected > candidate.due:
        sooner = max(sooner, candidate.expected)
    return float(sooner * tasks * CLASS_WEIGHT[candidate.priority])


# --- inside ----------------------------------------------------------------------------------------------------------


def may_be_asked(resident: Resident, rules: Preemption) -> int:
    """Return the instant from which a unit may be preempted; the budget limits preemption between classes."""
    used_up = resident.preempted >= rules.budget
    if rules.by == "value":
        quantum = resident.outlived // QUANTUM
        if not used_up or rules.loses_little(resident):
            return max(settled(resident, rules.min_run), resident.since + quantum)
        saves = resident.checkpoint + resident.restore if resident.checkpoint else RENEWED
        return resident.since + max(rules.min_run, min(RENEWED, max(saves, quantum)))
    if used_up:
        return resident.since + max(RENEWED, rules.min_run)
    return resident.since + rules.min_run if rules.by == "class" else settled(resident, rules.min_run)


def _may_yield(
    candidate: Candidate, draft: Draft, rules: Preemption, asked: Collection[str], spared: Container[str]
) -> Callable[[Resident], bool]:
    now = draft.view.now

    def may(resident: Resident) -> bool:
        return is_worse(resident) and resident.unit not in spared

    def is_worse(resident: Resident) -> bool:
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
        return level_of(service(resident, now)) > candidate_level(candidate, draft.view)

    return may


def _nearest(draft: Draft, shape: Shape, tasks: int, yielding_to: Candidate | None = None) -> list[int]:
    """Return rows that could hold one task when empty and have no kept room, at least one for every task, those that
    lack least first. With `yielding_to`, count what that unit may preempt as free, and return only rows that lack
    nothing.
    """
    kept, most = draft.kept, LOOKED_AT + tasks - 1
    if len(kept) == len(draft.fleet):
        return []
    if yielding_to is not None:
        ranked = _ranked(draft, shape, tasks, yielding_to)
    else:  # kept room changes no other row
        known = draft.ranked.get((shape, tasks))
        ranked = draft.ranked[shape, tasks] = _ranked(draft, shape, tasks) if known is None else known
    grouped = shape.where.groups and tasks > 1
    rows: list[int] = (ranked if grouped else ranked[: most + len(kept)]).tolist()
    if kept:  # as if the units with kept room had started and never ended
        rows = [row for row in rows if row not in kept]
    if grouped:
        rows = _of_groups(draft, shape, np.array(rows, np.int64), tasks).tolist()
    return rows[:most]


def _ranked(draft: Draft, shape: Shape, tasks: int, yielding_to: Candidate | None = None) -> Ints:
    """Return all rows for `_nearest`, including those with kept room."""
    fleet, able = draft.fleet, draft.able(shape)
    asks = {CPU: shape.cpu, MEMORY: shape.memory, NETWORK: shape.network, DEVICES: shape.gpus}
    resources = [resource for resource, need in asks.items() if need]
    free = np.maximum(draft.free[resources], 0)
    if yielding_to is not None:
        for lower in range(yielding_to.priority + 1, CLASSES):
            free += fleet.yielding[lower][resources]
    mask = draft.could_hold(shape)
    needs = np.array([[need] for need in asks.values() if need])
    if _most_on(shape, tasks) > 1 and yielding_to is None:
        needs = needs * np.clip(able.room[fleet.kind], 1, tasks)
    if len(resources) == 1:
        lacks = np.maximum(0.0, 1 - free[0] / needs[0])
    else:
        lacks = np.add.reduce(np.maximum(0.0, 1 - free / needs), axis=0) if resources else np.zeros(len(fleet))
    if yielding_to is not None:
        mask = mask & (lacks <= 0)
    rows = mask.nonzero()[0]
    ranked: Ints = rows[lacks[rows].argsort(kind="stable")]
    return ranked


def _of_groups(draft: Draft, shape: Shape, rows: Ints, tasks: int) -> Ints:
    """Filter rows, in order, by the gang's grouping. Spread with one task on each value: keep the first row of each
    value. Together: keep the rows of the first value whose nodes hold enough tasks.
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
    """Return the maximum number of tasks of a gang on one node."""
    return 1 if shape.where.spread else tasks


def _cheapest_rows(draft: Draft, shape: Shape, tasks: int, prices: Prices) -> Ints:
    """Return rows that could hold a task: for a gang first those with room, then those with the cheapest victims."""
    could, most = draft.could_hold(shape), LOOKED_AT + tasks - 1
    if draft.kept:
        could = could.copy()
        could[list(draft.kept)] = False
    rows = prices.rows(shape.gpus)
    rows = rows[could[rows]]
    if tasks == 1:
        return rows[:most]
    first = (could & (draft.capacity(shape) > 0)).nonzero()[0]
    if len(first):
        rows = np.concatenate((first, rows[~np.isin(rows, first)]))
    if shape.where.groups:
        rows = _of_groups(draft, shape, rows, tasks)
    return rows[:most]


def _earliest(draft: Draft, shape: Shape, tasks: int) -> list[tuple[int, int]]:
    """Return (instant, row) of the rows that will have devices for one task, in no order."""
    rows, known = _nearest(draft, shape, tasks), draft.soonest.setdefault(shape, {})
    if not all(map(known.__contains__, rows)):
        ahead = draft.ranked[shape, tasks][: LOOKED_AT + tasks + len(draft.kept) + RESERVED_NEXT].tolist()
        unknown = [row for row in dict.fromkeys((*rows, *ahead)) if row not in known]
        free = np.add.reduce(np.maximum(draft.share[unknown], 0), axis=1)
        ats = draft.running.soonest(np.array(unknown), shape.gpus * shape.share - free)
        known.update(zip(unknown, ats, strict=True))
    return [(at, row) for row in rows if (at := known[row]) is not None]


def openings_on(
    draft: Draft, row: int, shape: Shape, most: int, now: int, before: int | None = None, since: int = 0
) -> list[int]:
    """Return up to `most` instants at which this node has room for one more task, none later than `before`. The caller
    knows that there are none earlier than `since`.
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
    """Return the CPU, memory and network held by brief work, which is not among the residents; None if none is."""
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
    """Return the cheapest victims on a node, found greedily: add until there is room, then drop unneeded ones."""
    able = draft.able(shape).models
    units: dict[str, list[Resident]] = {}
    for resident in draft.fleet.residents[row]:
        units.setdefault(resident.unit, []).append(resident)
    fresh = room is None
    room = draft.room(row).copy() if room is None else room.copy()
    if fresh:  # free the members here of gangs chosen for their members on other nodes
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
