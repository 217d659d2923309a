"""The most progress for all, fairly: elastic training is grown, shrunk and moved by what it says of how it scales.

After Pollux (Qiao et al., OSDI 2021, section 4.2). A unit's *speedup* with some devices is what it gets done with them
over what it would with its fair share: all devices shared out evenly, on one node. The units' sizes and nodes are
chosen such that the power mean of all speedups is largest,

    fitness = (1/J sum (s_j r_j + e)^p)^(1/p),  p = -1,  e = 0.001

so that a unit that has little counts much. `r_j` is 1 for what stays as it is, and else what a restart leaves of the
time that the unit has had: `(age - restarts x D) / (age + D)`, with D as its restarts take. A unit gets at most
twice as many tasks as it has had before, since what it says of sizes far from those is a guess. No node holds tasks of
two units that are spread over nodes, as these would wait for each other's traffic.

Pollux searches by a genetic algorithm. Here a device has a price, each unit takes the size that is worth most to it,
and the price is the lowest at which there are devices for all; then sizes are packed on nodes, and of a few such plans,
and that of changing nothing, the fittest is taken. A gang that is not elastic has one size, and work that says nothing
is taken to scale linearly.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import NamedTuple

import numpy as np

from poise.model.decisions import Plan
from poise.model.fleet import DEVICES, Bools, Floats, Ints
from poise.model.views import Snapshot
from poise.policy.claims import Claim, Rows, carry_out, claims_of, devices_by_model, same, vacated
from poise.policy.elastic import share_out
from poise.policy.feasible import MOST_TASKS, ability
from poise.policy.place import Draft
from poise.units import MINUTE, SECOND

EVERY = MINUTE
"""Between two times at which all is shared out anew: Pollux's interval (section 5.1). Between them what waits gets free
devices only."""

RESTART = 30 * SECOND
"""What a restart takes where its unit has said nothing of it (section 5.3)."""

NONE = 1e-3
"""The speedup of those that have nothing, as of Pollux's artifact: next to it all else counts little."""

FILLS = 64
"""Devices in pieces that are given out one by one in a round; the next ones go in the next round."""


class Known(NamedTuple):
    """What is remembered of a unit: when it was submitted, the most tasks it has had, how often it was restarted."""

    since: int
    most: int = 0
    restarts: int = 0


class Bid(NamedTuple):
    """What tasks are worth to a claim: `together` and `apart` are the costs `1 / (s + e)` of 0, 1, ... of them on one
    node and over several, infinite for those that it cannot have; `stays` is that of staying as it is.
    """

    claim: Claim
    together: Floats
    apart: Floats
    stays: float

    def cost(self, rows: Rows) -> float:
        """Of having a task on each of these rows."""
        if same(rows, self.claim.rows):
            return self.stays
        return float((self.apart if len(set(rows)) > 1 else self.together)[len(rows)])

    def of(self, tasks: int) -> float:
        """Of having so many tasks, wherever that is best."""
        cost = float(min(self.together[tasks], self.apart[tasks]))
        return min(cost, self.stays) if tasks == len(self.claim.rows) else cost


class Goodput:
    """Shares all out anew each minute. Its memory holds what is known of each unit, and the plan until it is done."""

    name = "goodput"

    def decide(self, view: Snapshot, /) -> Plan:
        claimed = claims_of(view)
        memory = view.memory.get(self.name, {})
        at, known = int(memory.get("at", 0)), _known(claimed, memory.get("units", {}))
        bids = _bids(view, claimed, known)
        plan: dict[str, list[str]] = memory.get("plan", {})
        if view.now >= at + EVERY or not at:
            wanted, at = _share_out(view, bids), view.now
            names = view.fleet.names
            plan = {
                bid.claim.unit: [names[row] for row in rows]
                for bid in bids
                if (rows := wanted.get(bid.claim.unit, ())) and not same(rows, bid.claim.rows)
            }
        else:
            wanted = _go_on(view, bids, plan)
        for claim in claimed:
            rows = wanted.get(claim.unit, ())
            if claim.rows and not (claim.stays or claim.stopping or _resizes(claim) or same(rows, claim.rows)):
                known[claim.unit] = known[claim.unit]._replace(restarts=known[claim.unit].restarts + 1)
        told = {"at": at, "units": {unit: list(of) for unit, of in known.items()}, "plan": plan} if claimed else {}
        return carry_out(
            view,
            self.name,
            claimed,
            wanted,
            {bid.claim.unit: _words(bid, wanted.get(bid.claim.unit, ())) for bid in bids},
            until=at + EVERY if claimed else None,
            memory={**view.memory, self.name: told} if told != memory else None,
        )


# --- what devices are worth ------------------------------------------------------------------------------------------


def _known(claimed: Sequence[Claim], remembered: Mapping[str, Sequence[int]]) -> dict[str, Known]:
    """Of all that are there."""
    found = {}
    for claim in claimed:
        before = Known(*remembered[claim.unit]) if claim.unit in remembered else None
        if before is None:
            before = Known(claim.candidate.submitted if claim.candidate is not None else claim.since)
        found[claim.unit] = before._replace(most=max(before.most, len(claim.rows)))
    return found


def _bids(view: Snapshot, claimed: Sequence[Claim], known: Mapping[str, Known]) -> list[Bid]:
    """One for each claim."""
    fleet = view.fleet
    devices = sum(devices_by_model(view).values())
    nodes = max(1, int((fleet.total[DEVICES] > 0).sum()))
    found = []
    for claim in claimed:
        mine, width = known[claim.unit], int(ability(fleet, claim.shape).by_row(fleet).max(initial=0))
        fair = max(1, -(-devices // (claim.shape.gpus * len(claimed))))
        most = min(claim.most, max(2 * mine.most, claim.least))
        said = view.speedups.get(claim.unit)
        together, apart = _speeds(said.together if said else (), most), _speeds(said.apart if said else (), most)
        base = max(NONE, float(_speeds(said.together if said else (), fair)[fair]))
        share = claim.shape.gpus * nodes / max(1, devices) / base
        restart = (claim.resident.restore if claim.resident is not None else 0) or RESTART
        age = max(0, view.now - mine.since)
        left = max(age - mine.restarts * restart, 0) / (age + restart) if claim.rows and not _resizes(claim) else 1.0
        one, many = 1 / (together * share * left + NONE), 1 / (apart * share * left + NONE)
        one[width + 1 :] = many[:2] = np.inf
        one[1 : claim.least] = many[1 : claim.least] = np.inf
        rows = claim.rows
        speeds = apart if len(set(rows)) > 1 else together
        stays = 1 / (float(speeds[min(len(rows), most)]) * share + NONE)
        found.append(Bid(claim, one, many, stays))
    return found


def _resizes(claim: Claim) -> bool:
    """Whether it changes without being started anew."""
    return claim.resident is not None and claim.resident.resizes


@lru_cache(maxsize=16_384)
def _speeds(told: tuple[int, ...], most: int) -> Floats:
    """With 0, 1, ... `most` tasks, over that with one: as told, and beyond that as with the most; untold as many times
    as fast. To be read only.
    """
    if not told:
        return np.arange(most + 1, dtype=float)
    speeds = np.array([0, *told], float) / 1000
    return np.concatenate([speeds[: most + 1], np.full(max(0, most + 1 - len(speeds)), speeds[-1])])


# --- sharing out -----------------------------------------------------------------------------------------------------


def _share_out(view: Snapshot, bids: Sequence[Bid]) -> dict[str, Rows]:
    """The fittest of: all stay, and what waits gets what is free; sizes as by price, those stay that have theirs; and
    where these find no room, as it is in pieces, all packed anew.
    """
    sizes = _sizes(view, bids)
    plans = [_go_on(view, bids, {}), _packed(view, bids, sizes, anew=False)]
    if any(len(plans[-1].get(unit, ())) < size for unit, size in sizes.items()):
        plans.append(_packed(view, bids, sizes, anew=True))
    return min(plans, key=lambda plan: sum(bid.cost(plan.get(bid.claim.unit, ())) for bid in bids))


def _sizes(view: Snapshot, bids: Sequence[Bid]) -> dict[str, int]:
    """How many tasks each claim gets: at the lowest price of a device at which there are enough, and then those that
    are left go one by one to where they are worth most.
    """
    devices = sum(devices_by_model(view).values())
    devices -= sum(bid.claim.shape.gpus * len(bid.claim.rows) for bid in bids if bid.claim.stays)
    bound = [bid for bid in bids if not bid.claim.stays]
    if not bound:
        return {}
    width = max(len(bid.apart) for bid in bound)
    costs = np.full((len(bound), width), np.inf)
    for place, bid in enumerate(bound):
        costs[place, : len(bid.apart)] = np.minimum(bid.together, bid.apart)
        tasks = len(bid.claim.rows)
        if tasks < width:
            costs[place, tasks] = min(costs[place, tasks], bid.stays)
    each = np.array([bid.claim.shape.gpus for bid in bound])
    sizes = share_out(-costs, each, devices)
    return {bid.claim.unit: int(size) for bid, size in zip(bound, sizes, strict=True)}


def _go_on(view: Snapshot, bids: Sequence[Bid], plan: Mapping[str, Sequence[str]]) -> dict[str, Rows]:
    """Who runs stays; who is in the plan comes to where it says, and what waits otherwise gets the least of what is
    left, the first to come first.
    """
    claims = [bid.claim for bid in bids]
    board = _Board(view, claims, [claim for claim in claims if claim.rows and not claim.stopping])
    for claim in claims:
        rows = tuple(view.fleet.rows[name] for name in plan.get(claim.unit, ()) if name in view.fleet.rows)
        if claim.unit not in board.wanted and len(rows) >= claim.least and board.holds(claim, rows):
            board.put(claim, rows)
    for bid in bids:
        if bid.claim.unit not in board.wanted and bid.claim.candidate is not None:
            board.put(bid.claim, board.find(bid, bid.claim.least))
    return board.wanted


def _packed(view: Snapshot, bids: Sequence[Bid], sizes: Mapping[str, int], *, anew: bool) -> dict[str, Rows]:
    """Rows for these sizes, the largest first; who has its size already stays, or begins `anew` like all others. What
    is left then goes to those that start or start again.
    """
    kept, moving = [], []
    for bid in bids:
        claim = bid.claim
        if claim.stays or (not anew and claim.rows and not claim.stopping and len(claim.rows) == sizes[claim.unit]):
            kept.append(claim)
        else:
            moving.append(bid)
    board = _Board(view, [bid.claim for bid in bids], kept)
    moving.sort(key=lambda bid: (-sizes[bid.claim.unit] * bid.claim.shape.gpus, bid.claim.ordinal))
    for bid in moving:
        if sizes[bid.claim.unit]:
            board.put(bid.claim, board.find(bid, sizes[bid.claim.unit]))
    board.fill([bid for bid in moving if board.wanted.get(bid.claim.unit)])
    return board.wanted


class _Board:
    """Claims being put on nodes; no node gets two that are spread over several."""

    def __init__(self, view: Snapshot, claims: Sequence[Claim], kept: Sequence[Claim]) -> None:
        self.wanted: dict[str, Rows] = {claim.unit: claim.rows for claim in kept}
        self.now = view.now
        self.draft: Draft = vacated(view, {claim.unit for claim in claims if claim.unit not in self.wanted})
        self.spread: set[int] = set()
        for rows in self.wanted.values():
            if len(set(rows)) > 1:
                self.spread.update(rows)

    def holds(self, claim: Claim, rows: Rows) -> bool:
        """Whether there is room for it there."""
        room = self.draft.room_each(claim.shape)
        return all(room[row] >= tasks for row, tasks in Counter(rows).items())

    def put(self, claim: Claim, rows: Rows) -> None:
        if not rows:
            return
        self.wanted[claim.unit] = self.wanted.get(claim.unit, ()) + rows
        for row, tasks in Counter(rows).items():
            self.draft.keep(row, claim.unit, claim.shape, self.now, tasks)
        if len(set(self.wanted[claim.unit])) > 1:
            self.spread.update(self.wanted[claim.unit])

    def find(self, bid: Bid, tasks: int) -> Rows:
        """Rows for so many tasks: the fullest node that holds them all, else as few nodes as hold them, else what is
        best of what there is room for; nothing if that is less than the least.
        """
        claim = bid.claim
        room = self.draft.capacity(claim.shape)
        if not len(room):
            return ()
        whole = np.where(room >= tasks, room, MOST_TASKS)
        row = int(whole.argmin())
        if room[row] >= tasks:
            return (row,) * tasks
        could: list[Rows] = []
        row = int(room.argmax())
        if room[row] >= claim.least:
            could.append((row,) * int(room[row]))
        rows = self._over(room, tasks)
        if len(rows) >= claim.least and len(set(rows)) > 1:
            could.append(rows)
        return min(could, key=bid.cost, default=())

    def _over(self, room: Ints, tasks: int) -> Rows:
        """Rows for so many tasks over several nodes, on those with most room; for the rest of them the one that it
        fills most.
        """
        room = np.where(self._spread_over(len(room)), 0, room)
        rows: list[int] = []
        while len(rows) < tasks and (most := int(room.max())):
            left = tasks - len(rows)
            row = int(np.where(room >= left, room, MOST_TASKS).argmin() if most >= left else room.argmax())
            rows += [row] * min(left, int(room[row]))
            room[row] = 0
        return tuple(rows)

    def _spread_over(self, nodes: int) -> Bools:
        """The nodes that have one that is spread."""
        mask = np.zeros(nodes, bool)
        mask[list(self.spread)] = True
        return mask

    def fill(self, bids: Sequence[Bid]) -> None:
        """One task more for whom it is worth most, as long as there is one, and so many times at most."""
        for _ in range(FILLS):
            best: tuple[float, Bid, int] | None = None
            for bid in bids:
                claim, rows = bid.claim, self.wanted[bid.claim.unit]
                if len(rows) + 1 >= len(bid.apart):
                    continue
                room = self.draft.capacity(claim.shape)
                row = next((row for row in dict.fromkeys(rows) if room[row] > 0), -1)
                if row < 0 and len(set(rows)) > 1:
                    other = np.where(self._spread_over(len(room)), 0, room)
                    row = int(other.argmax()) if other.any() else -1
                if row < 0:
                    continue
                gain = (bid.cost(rows) - bid.cost((*rows, row))) / claim.shape.gpus
                if gain > 0 and (best is None or gain > best[0]):
                    best = (gain, bid, row)
            if best is None:
                return
            self.put(best[1].claim, (best[2],))


def _words(bid: Bid, rows: Rows) -> str:
    """What it is worth to it."""
    if not rows:
        return "its devices are worth more to others"
    return f"{len(rows)} of up to {len(bid.apart) - 1} tasks now, on {len(set(rows))} nodes"
