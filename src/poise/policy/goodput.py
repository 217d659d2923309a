"""Goodput scheduling: grow, shrink and move elastic training by its reported scaling, for large and fair progress.

After Pollux (Qiao et al., OSDI 2021, section 4.2). A unit's *speedup* with some devices is its progress with them over
that with its fair share: an equal part of all devices, on one node. The units' sizes and nodes are chosen to maximize
the power mean of all speedups,

    fitness = (1/J sum (s_j r_j + e)^p)^(1/p),  p = -1,  e = 0.001

so that a unit that has little counts much. `r_j` is 1 for a unit that does not change, else the part of its time that
is left after a restart: `(age - restarts x D) / (age + D)`, where D is the duration of a restart. A unit gets at most
twice as many tasks as it has had before, since its estimates for sizes far from those are guesses. No node holds tasks
of two units that are spread over nodes, since their traffic would interfere.

Pollux searches by a genetic algorithm. Here a device has a price, each unit takes the size that is worth most to it,
and the price is the lowest at which there are devices for all. Then sizes are packed on nodes, and the fittest of a few
such plans and the unchanged one is chosen. A gang that is not elastic has one size, and work without reported scaling
is assumed to scale linearly.
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
"""Time between two complete reallocations: Pollux's interval (section 5.1). In between, waiting units get only free
devices."""

RESTART = 30 * SECOND
"""Duration of a restart if its unit has not reported it (section 5.3)."""

NONE = 1e-3
"""Speedup of units without devices, as in Pollux's artifact: next to it all others count little."""

FILLS = 64
"""Maximum number of left-over devices that are assigned one by one in a round; the others wait for the next round."""


class Known(NamedTuple):
    """The state of a unit: when it was submitted, the most tasks it has had, and its number of restarts."""

    since: int
    most: int = 0
    restarts: int = 0


class Bid(NamedTuple):
    """The cost of each size to a claim. `together` and `apart` are the costs `1 / (s + e)` of 0, 1, ... tasks on one
    node and over several, infinite for sizes that it cannot have; `stays` is the cost of no change.
    """

    claim: Claim
    together: Floats
    apart: Floats
    stays: float

    def cost(self, rows: Rows) -> float:
        """Return the cost of having a task on each of these rows."""
        if same(rows, self.claim.rows):
            return self.stays
        return float((self.apart if len(set(rows)) > 1 else self.together)[len(rows)])

    def of(self, tasks: int) -> float:
        """Return the cost of having `tasks` tasks, on the best nodes."""
        cost = float(min(self.together[tasks], self.apart[tasks]))
        return min(cost, self.stays) if tasks == len(self.claim.rows) else cost


class Goodput:
    """Reallocates all devices each minute. Its memory holds the state of each unit, and the unfinished plan."""

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


# --- worth of devices ------------------------------------------------------------------------------------------------


def _known(claimed: Sequence[Claim], remembered: Mapping[str, Sequence[int]]) -> dict[str, Known]:
    """Return the state of all claims."""
    found = {}
    for claim in claimed:
        before = Known(*remembered[claim.unit]) if claim.unit in remembered else None
        if before is None:
            before = Known(claim.candidate.submitted if claim.candidate is not None else claim.since)
        found[claim.unit] = before._replace(most=max(before.most, len(claim.rows)))
    return found


def _bids(view: Snapshot, claimed: Sequence[Claim], known: Mapping[str, Known]) -> list[Bid]:
    """Return a bid for each claim."""
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
    """Return whether a unit resizes without a restart."""
    return claim.resident is not None and claim.resident.resizes


@lru_cache(maxsize=16_384)
def _speeds(told: tuple[int, ...], most: int) -> Floats:
    """Return the speeds with 0, 1, ... `most` tasks relative to one task: as reported, constant beyond the largest
    reported size; linear if nothing is reported. Read-only.
    """
    if not told:
        return np.arange(most + 1, dtype=float)
    speeds = np.array([0, *told], float) / 1000
    return np.concatenate([speeds[: most + 1], np.full(max(0, most + 1 - len(speeds)), speeds[-1])])


# --- reallocation ----------------------------------------------------------------------------------------------------


def _share_out(view: Snapshot, bids: Sequence[Bid]) -> dict[str, Rows]:
    """Return the fittest of these plans: all units stay, and waiting units get free devices; sizes by price, where
    units that have their size stay; and, where these find no room because it is fragmented, all units packed again.
    """
    sizes = _sizes(view, bids)
    plans = [_go_on(view, bids, {}), _packed(view, bids, sizes, anew=False)]
    if any(len(plans[-1].get(unit, ())) < size for unit, size in sizes.items()):
        plans.append(_packed(view, bids, sizes, anew=True))
    return min(plans, key=lambda plan: sum(bid.cost(plan.get(bid.claim.unit, ())) for bid in bids))


def _sizes(view: Snapshot, bids: Sequence[Bid]) -> dict[str, int]:
    """Return the tasks for each claim, at the lowest price of a device at which there are enough; the rest of the
    devices go one by one to where they are worth most.
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
    """Keep running units, place planned units on their nodes, and give other waiting units their least size of the
    rest, in order of arrival.
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
    """Return rows for these sizes, the largest first. Units that already have their size stay, unless all are packed
    `anew`. Then the rest goes to those that start or restart.
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
    """A packing of claims on nodes; no node gets two claims that are spread over several nodes."""

    def __init__(self, view: Snapshot, claims: Sequence[Claim], kept: Sequence[Claim]) -> None:
        self.wanted: dict[str, Rows] = {claim.unit: claim.rows for claim in kept}
        self.now = view.now
        self.draft: Draft = vacated(view, {claim.unit for claim in claims if claim.unit not in self.wanted})
        self.spread: set[int] = set()
        for rows in self.wanted.values():
            if len(set(rows)) > 1:
                self.spread.update(rows)

    def holds(self, claim: Claim, rows: Rows) -> bool:
        """Return whether these rows have room for the claim."""
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
        """Return rows for `tasks` tasks: the fullest node that holds all, else as few nodes as possible, else the best
        of what there is room for; none if that is less than the claim's least.
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
        """Return rows over several nodes: those with most room, and for the last tasks the node that they fill most."""
        room = np.where(self._spread_over(len(room)), 0, room)
        rows: list[int] = []
        while len(rows) < tasks and (most := int(room.max())):
            left = tasks - len(rows)
            row = int(np.where(room >= left, room, MOST_TASKS).argmin() if most >= left else room.argmax())
            rows += [row] * min(left, int(room[row]))
            room[row] = 0
        return tuple(rows)

    def _spread_over(self, nodes: int) -> Bools:
        """Return a mask of the nodes that have a task of a spread claim."""
        mask = np.zeros(nodes, bool)
        mask[list(self.spread)] = True
        return mask

    def fill(self, bids: Sequence[Bid]) -> None:
        """Add one task at a time to the claim that gains most, up to `FILLS` times."""
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
    """Explain the size of a claim."""
    if not rows:
        return "its devices are worth more to others"
    return f"{len(rows)} of up to {len(bid.apart) - 1} tasks now, on {len(set(rows))} nodes"
