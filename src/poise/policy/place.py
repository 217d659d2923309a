"""Trial placements on a copy of the fleet's free resources: scoring of nodes, placement of tasks, kept room.

All nodes are examined at once, once for each shape and class of work (`Openings`): those that fit are scored and
sorted. Then tasks are placed from the top; each placement checks that there still is room. So a round costs in
proportion to shapes plus placements, not placements times nodes. Scores date from the first look at a shape in the
round; room is always current.
"""

import heapq
from collections.abc import Mapping, Sequence
from functools import cached_property
from itertools import islice
from typing import NamedTuple

import numpy as np

from poise.model.decisions import Reason, Spot, Why
from poise.model.fleet import CPU, DEVICES, MEMORY, NETWORK, Bools, Fleet, Floats, Ints, PoolView
from poise.model.profiles import BRIEF, Estimate
from poise.model.resources import WHOLE, Shape, Where
from poise.model.views import Candidate, Snapshot
from poise.policy.feasible import NAMED, Ability, Summary, ability, capacity, capacity_on, fits, grouped, refusals
from poise.policy.fragments import Typical, typical
from poise.policy.predict import speeds_of
from poise.policy.room import Room, room_on
from poise.policy.running import Running
from poise.policy.score import (
    DEVICE_TERMS,
    WORK_TERMS,
    Scoring,
    Term,
    have_image,
    score,
    score_devices,
    speed,
    weights_where,
)
from poise.policy.timely import Timely, look
from poise.policy.waiting import Waiting

LOOKAHEAD = BRIEF
"""Maximum estimated work, in nanoseconds, that may wait on a node behind running tasks of the same shape."""

MAX_BEHIND = 64
"""Maximum number of attempts that wait per slot, however short they are."""

SCORED = 128
"""Maximum number of nodes scored and sorted at once for a shape; the search is repeated when these are full.
kube-scheduler limits the nodes it scores likewise (`percentageOfNodesToScore`, at least 100)."""

SCORED_SHARED = 4 * SCORED
"""The same limit where devices are shared: there the preselection by fullness predicts the best node less well."""

RUNNERS_UP = 3
"""Number of rejected nodes that a decision names."""


Beside = tuple[float, tuple[str, ...], tuple[float, ...]]
"""A node's score, the names of the best other nodes, and their scores."""


class Openings:
    """The nodes where a shape fits, best first; nodes before `next` have no room left.

    `best` holds the first nodes with their scores. `fitting` counts all nodes that fit; `more` is true if it exceeds
    the rows here. `whys` caches explanations of placements. All is as of the moment when `taken` tasks had been placed.
    """

    __slots__ = ("_beyond", "best", "fitting", "more", "next", "rows", "scores", "taken", "whys")

    def __init__(self, rows: list[int], scores: list[float], fitting: int, taken: int) -> None:
        self.rows, self.scores, self.next = rows, scores, 0
        best = zip(scores[: RUNNERS_UP + 1], rows[: RUNNERS_UP + 1], strict=True)
        self.best = [(round(value, 4), row) for value, row in best]
        self.fitting = fitting
        self.more = fitting > len(rows)
        self.taken = taken
        self.whys: dict[tuple[int, str], Why] = {}
        self._beyond: Beside | None = None

    def beside(self, row: int, names: Sequence[str]) -> Beside:
        """Return a node's score, and the best other nodes with theirs; a node beyond `best` gets the best score."""
        if all(row != other for _, other in self.best):
            if self._beyond is None:
                self._beyond = self._look_beside(row, names)
            return self._beyond
        return self._look_beside(row, names)

    def _look_beside(self, row: int, names: Sequence[str]) -> Beside:
        mine = self.best[0][0] if self.best else 0.0
        others: list[tuple[str, float]] = []
        for value, other in self.best:
            if other == row:
                mine = value
            elif len(others) < RUNNERS_UP:
                others.append((names[other], value))
        return mine, tuple(name for name, _ in others), tuple(value for _, value in others)


class Kept(NamedTuple):
    """Room kept on a node for a unit, already subtracted from the columns, and when the unit is expected to use it."""

    unit: str
    shape: Shape
    tasks: int
    until: int


class Draft:
    """A draft of placements on an immutable view. `weights` are the weights of the node score. With `spread`, nodes are
    scored again after each task; without it a node is filled as long as it has room. `waits` is the exponent of the
    waiting time.
    """

    def __init__(
        self,
        view: Snapshot,
        weights: Mapping[str, float],
        terms: Mapping[str, Term],
        *,
        spread: bool = False,
        waits: float = 1.0,
    ) -> None:
        self.view, self.waits = view, waits
        self.fleet = fleet = view.fleet
        self.free: Ints = fleet.free.copy()
        self.memory: Ints = fleet.device_memory.copy()
        self.share: Ints = fleet.device_share.copy()
        self.speeds = speeds_of(view)
        self.kept: dict[int, list[Kept]] = {}
        self._for_images = weights.get("images", 0.0) if len(weights) > 1 else 0.0
        weights = {name: weight for name, weight in weights.items() if name != "images" or not self._for_images}
        self._weights, self._terms, self._spread = weights, terms, spread
        self._in_order_of_names = weights.keys() <= {"first"}  # independent of estimates and of room
        self._weights_whole, self._weights_shared = (weights_where(weights, shared=shared) for shared in (False, True))
        self._typical: Typical | None = None
        self._looked_at_work = False
        self._shares_are_typical: bool | None = None
        self._rooms: dict[int, Room] = {}
        self._openings: dict[tuple[Shape, str], Openings] = {}
        self._capacity: dict[Shape, tuple[Ints, int]] = {}  # and the number of changes included
        self._changed: list[int] = []  # rows, in the order in which room was taken
        self._behind: dict[str, list[tuple[float, int, int, int]]] = {}
        self._pools: dict[str, dict[int, PoolView]] = {}
        self._summaries: dict[Where, Summary] = {}
        self._now: Fleet | None = None
        self._fullness: Floats | None = None
        self._by_fullness: Ints = np.zeros(0, np.int64)
        self._taken = 0
        self._meanwhile: dict[Shape, tuple[list[int], int]] = {}  # nodes, and the number of kept nodes examined
        self.ranked: dict[tuple[Shape, int], Ints] = {}
        """Rows in the order of what they lack for a shape and a number of tasks; valid until the next placement
        (`reclaim`).
        """
        self.soonest: dict[Shape, dict[int, int | None]] = {}
        """The instants at which rows will have devices for a task of a shape (None: never); valid as long as `ranked`.
        """
        self._kind: list[int] = fleet.kind.tolist()
        self._could_hold: dict[Shape, Bools] = {}
        self._keeps_for: set[str] = set()

    # --- queries -----------------------------------------------------------------------------------------------------

    @property
    def changes(self) -> int:
        """How often room was taken or kept."""
        return len(self._changed)

    @cached_property
    def timely(self) -> Timely:
        """Deadlines that can be met, and the units that must start now for that."""
        return look(self.view, self.speeds, self.running)

    @cached_property
    def running(self) -> Running:
        """The units that ran before anything was placed in this draft."""
        return Running(self.fleet, self.speeds, self.view.now)

    @cached_property
    def waiting(self) -> Waiting:
        """The waiting units, in columns."""
        return Waiting(self.view)

    def able(self, shape: Shape) -> Ability:
        """Return which nodes and devices could hold the shape if they were free."""
        return ability(self.fleet, shape)

    @cached_property
    def open(self) -> Bools:
        """(N,): whether each node is open; read-only."""
        is_open: Bools = self.fleet.closed == 0
        return is_open

    def could_hold(self, shape: Shape) -> Bools:
        """Return (N,): whether each node is open and could hold a task of the shape when empty; read-only."""
        found = self._could_hold.get(shape)
        if found is None:
            able = self.able(shape)
            found = self._could_hold[shape] = self.open if able.everywhere else self.open & able.where
        return found

    def room(self, row: int) -> Room:
        """Return the node's room, less what this draft has placed. Read-only; change it through `take` only."""
        found = self._rooms.get(row)
        if found is None:
            found = self._rooms[row] = room_on(self.fleet, row, self._real_free(row), self.memory, self.share)
        return found

    def estimates(self, candidate: Candidate, shape: Shape) -> list[Estimate]:
        """Return the candidate's estimated run time by device model."""
        return self.speeds.of(
            candidate.kind, shape.wants.precision, candidate.declared, candidate.work, devices=shape.gpus > 0
        )

    def run_on(self, candidate: Candidate, shape: Shape, row: int) -> Estimate:
        """Return the candidate's estimated run time on this node, on its fastest suitable device."""
        fleet, estimates = self.fleet, self.estimates(candidate, shape)
        if not shape.gpus:
            return estimates[int(fleet.processor[row])]
        able = self.able(shape).models
        models: set[int] = {model for model in fleet.device_model[row].tolist() if able[model]}
        return min((estimates[model] for model in models), key=_mean)

    def openings(self, candidate: Candidate, shape: Shape) -> Openings:
        """Return the nodes where one task of the shape fits, best first. With `spread`, the scores are current."""
        key = (shape, candidate.kind)
        found = self._openings.get(key)
        if found is None or (self._spread and found.taken != self._taken):
            found = self._openings[key] = self._look(candidate, shape)
        return found

    def best(self, candidate: Candidate, shape: Shape) -> tuple[int, float] | None:
        """Return the best node that has room for one task now, and its score. Return the node to avoid only if it is
        the only one.
        """
        openings = self.openings(candidate, shape)
        while True:
            rows = openings.rows
            while openings.next < len(rows) and not self._has_room(rows[openings.next], shape):
                openings.next += 1
            if openings.next < len(rows):
                break
            if not openings.more:
                return None
            again = self._look(candidate, shape)
            openings.rows, openings.scores, openings.next, openings.more = again.rows, again.scores, 0, again.more
        place = openings.next
        if candidate.avoid and self.fleet.names[rows[place]] == candidate.avoid:
            others = (other for other in range(place + 1, len(rows)) if self._has_room(rows[other], shape))
            place = next(others, place)
        return rows[place], openings.scores[place]

    def best_whole(self, candidate: Candidate, shape: Shape, least: int, most: int, *, without: int = -1) -> int | None:
        """Return the best node, among those sorted already and except `without`, that has room for all tasks of a gang:
        for `most` tasks, else for `least`.
        """
        openings = self.openings(candidate, shape)
        rows = [row for row in openings.rows[openings.next :] if row != without]
        room = self.capacity(shape)[rows]
        for tasks in dict.fromkeys((most, least)):
            enough = room >= tasks
            if enough.any():
                return rows[int(enough.argmax())]
        return None

    def room_for(self, row: int, shape: Shape) -> int:
        """Return how many tasks of the shape this node could take now, by its columns; at most one for shares and for
        shapes that not every device fits.
        """
        free = self.free
        bounds = [MAX_BEHIND]
        if shape.cpu:
            bounds.append(int(free[CPU, row]) // shape.cpu)
        if shape.memory:
            bounds.append(int(free[MEMORY, row]) // shape.memory)
        if shape.network:
            bounds.append(int(free[NETWORK, row]) // shape.network)
        if shape.gpus:
            exact = shape.share == WHOLE and self.able(shape).uniform[self._kind[row]]
            bounds.append(int(free[DEVICES, row]) // shape.gpus if exact else int(self._has_room(row, shape)))
        return max(0, min(bounds))

    def capacity(self, shape: Shape) -> Ints:
        """Return (N,): how many tasks of one unit each node could take now, as `grouped` counts them; read-only."""
        return self.within(shape, self.room_each(shape))

    def within(self, shape: Shape, room: Ints) -> Ints:
        """Return (N,): the part of `room` that one unit may use, as `grouped` counts it."""
        return grouped(self.fleet, shape.where, room) if shape.where.groups else room

    def room_each(self, shape: Shape) -> Ints:
        """Return (N,): how many tasks of the shape each node could take now, without the unit's grouping; read-only.
        Only rows changed since the last call are computed again.
        """
        known = self._capacity.get(shape)
        able, arrays = self.able(shape), (self.free, self.memory, self.share)
        if known is None:
            room = capacity(self.fleet, shape, able, *arrays)
        else:
            room, seen = known
            if seen == len(self._changed):
                return room
            rows = np.array([row for row in set(self._changed[seen:]) if room[row]], np.int64)
            if len(rows):
                room[rows] = capacity_on(rows, self.fleet, shape, able, *arrays)
        self._capacity[shape] = (room, len(self._changed))
        return room

    def reasons_on(self, row: int, shape: Shape) -> list[Reason]:
        """Return every reason why one task of the shape cannot start on this node now, with the draft's placements."""
        reasons = refusals(self._as_fleet(), row, shape)
        if not reasons and row in self.kept:
            return [self._reserved(row)]
        return reasons

    def reasons(self, shape: Shape) -> list[Reason]:
        """Return every reason why no node has room for one task: by node in a small fleet, else by kind of node."""
        fleet = self.fleet
        if len(fleet) > NAMED:
            summary = self._summaries.get(shape.where)
            if summary is None:
                summary = self._summaries[shape.where] = Summary(fleet, self.free, shape.where)
            return summary.reasons(shape, self.able(shape))
        return [reason for row in range(len(fleet)) for reason in self.reasons_on(row, shape)]

    # --- placements --------------------------------------------------------------------------------------------------

    def take(self, row: int, candidate: Candidate | None, shape: Shape, *, brief: bool = False) -> Spot:
        """Take room for one task, which the caller has checked. Other tasks may queue behind it if it is `brief`."""
        devices: tuple[int, ...] = ()
        if shape.gpus and row not in self._rooms and self._are_alike(row, shape):
            devices = self._take_alike(row, shape, 1)[0]
        elif shape.gpus:
            room = self.room(row)
            picked = room.pick_devices(shape, self.able(shape).models, self._worth(row, candidate, shape))
            if picked is None:
                raise AssertionError(f"{shape} was to be placed where it does not fit: {self.fleet.names[row]}")
            devices = picked
            room.take(shape, devices)
            self._take_devices(row, shape, devices)
        elif row in self._rooms:
            self._rooms[row].take(shape, ())
        self._count(row, shape, 1)
        if brief:
            self._add_to_pool(row, shape)
        return Spot(self.fleet.names[row], devices)

    def take_many(self, row: int, candidate: Candidate, shape: Shape, count: int, *, brief: bool = False) -> list[Spot]:
        """Take room for several tasks of one shape; the caller has checked that they fit (`room_for`)."""
        alike = row not in self._rooms and (not shape.gpus or self._are_alike(row, shape))
        if not alike or brief or count == 1 or self._spread:
            return [self.take(row, candidate, shape, brief=brief) for _ in range(count)]
        name = self.fleet.names[row]
        self._count(row, shape, count)
        if not shape.gpus:
            return [Spot(name)] * count
        return [Spot(name, devices) for devices in self._take_alike(row, shape, count)]

    def keep(self, row: int, unit: str, shape: Shape, until: int, tasks: int = 1) -> None:
        """Keep room, free now or soon, for tasks of a unit on a node. No other unit takes it in this draft, except
        units that end by `until`.
        """
        self.kept.setdefault(row, []).append(Kept(unit, shape, tasks, until))
        self._keeps_for.add(unit)
        self._add(row, shape, tasks)
        if shape.share != WHOLE:  # else others could take whole devices
            self.free[DEVICES, row] -= shape.gpus * tasks

    def whole_devices_free(self, model: int = -1) -> int:
        """Return how many devices of open nodes are wholly free; of one model only, if `model` is given."""
        free = (self.share == WHOLE) & self.open[:, None]
        return int((free if model < 0 else free & (self.fleet.device_model == model)).sum())

    def kept_now(self, unit: str) -> int:
        """Return for how many tasks of a unit its kept room is free already."""
        tasks = 0
        for row, keeps in self.kept.items() if unit in self._keeps_for else ():
            if all(kept.unit != unit for kept in keeps):
                continue
            room = self.room(row).copy()
            for kept in keeps:
                if kept.unit == unit:
                    able = self.able(kept.shape).models
                    for _ in range(kept.tasks):
                        picked = room.pick(kept.shape, able)
                        if picked is None:
                            break
                        room.take(kept.shape, picked)
                        tasks += 1
        return tasks

    def room_meanwhile(self, shape: Shape) -> list[int]:
        """Return the nodes where one task fits while their room is kept for other units; read-only. Kept room counts as
        free here, so only nodes kept since the last call are examined.
        """
        known = self._meanwhile.get(shape)
        if known is not None and known[1] == len(self.kept):
            return known[0]
        found, examined = known or ([], 0)
        able, could = self.able(shape), self.could_hold(shape)
        since = islice(self.kept, examined, None)
        found += [row for row in since if could[row] and self.room(row).pick(shape, able.models) is not None]
        self._meanwhile[shape] = found, len(self.kept)
        return found

    def place_behind(self, candidate: Candidate, run: int) -> Spot | None:
        """Return a place behind brief tasks of the same shape, on a node with little estimated work, so that the wait
        is short.

        `run` is the learned run time in nanoseconds; a unit with 0 (nothing learned) never queues behind others.
        """
        if not run or candidate.tasks > 1 or candidate.shape.gpus or candidate.recalled or run > LOOKAHEAD:
            return None
        key = candidate.shape.key()
        depth = min(MAX_BEHIND, LOOKAHEAD // run)
        waiting = self._behind.get(key)
        if waiting is None:
            waiting = self._behind[key] = self._lines(key)
        while waiting and (waiting[0][1] in self.kept):
            heapq.heappop(waiting)
        if not waiting or waiting[0][0] >= depth:
            return None
        _, row, behind, brief = waiting[0]
        heapq.heapreplace(waiting, ((behind + 1) / brief, row, behind + 1, brief))
        mine = self._pools.setdefault(key, {})
        pool = mine.get(row) or self.fleet.pools[key][row]
        mine[row] = PoolView(pool.slots, pool.attempts + 1, pool.long)
        return Spot(self.fleet.names[row])

    # --- inside ------------------------------------------------------------------------------------------------------

    def _look(self, candidate: Candidate, shape: Shape) -> Openings:
        rows = fits(self.fleet, shape, self.able(shape), self.free, self.memory, self.share)
        fitting = len(rows)
        if not fitting:
            return Openings([], [], 0, self._taken)
        estimates = [] if self._in_order_of_names else self.estimates(candidate, shape)
        most = SCORED_SHARED if self._weights_for(shape) is not self._weights_whole else SCORED
        if fitting > most and not self._spread:
            best = self._preselect(rows, shape, estimates, most)
            if self._for_images and shape.where.image:
                best = np.union1d(best, rows[have_image(self.fleet, rows, shape)][:most])
            rows = best
        scores = self.scores(rows, shape, estimates)
        order = np.lexsort((rows, -scores))
        return Openings(rows[order].tolist(), scores[order].tolist(), fitting, self._taken)

    def _preselect(self, rows: Ints, shape: Shape, estimates: list[Estimate], most: int) -> Ints:
        """Return the `most` nodes worth scoring in full, by fullness and speed; the first ones by name where scores do
        not look at room.
        """
        if self._in_order_of_names:
            return rows[:most]
        fleet = self.fleet
        if self._fullness is None:
            self._fullness = 1 - fleet.free[CPU] / np.maximum(fleet.total[CPU], 1)
            self._by_fullness = np.argsort(-self._fullness, kind="stable")
        if len({estimate.mean for estimate in estimates}) == 1:
            fits_there = np.zeros(len(fleet), bool)
            fits_there[rows] = True
            return np.asarray(self._by_fullness[fits_there[self._by_fullness]][:most])
        by_kind = speed(Scoring(fleet, np.array(fleet.likes), self.free, shape, estimates, 0))
        worth = self._fullness[rows] + by_kind[fleet.kind[rows]]
        return rows[np.argpartition(-worth, most)[:most]]

    def scores(
        self, rows: Ints, shape: Shape, estimates: list[Estimate]
    ) -> np.ndarray[tuple[int], np.dtype[np.float64]]:
        """Return the score of each of these nodes, given the placements of this draft. Only work with an image looks at
        the images of nodes.
        """
        weights = self._weights_for(shape)
        if self._for_images and shape.where.image:
            weights = {**weights, "images": self._for_images}
        return score(self._scoring(rows, shape, estimates, weights), weights, self._terms)

    def _weights_for(self, shape: Shape) -> Mapping[str, float]:
        """Return the weights for shared devices if the task takes a part of one, or if shares are typical of the
        running work.
        """
        if self._weights_shared is self._weights_whole or shape.is_part:
            return self._weights_shared
        if self._shares_are_typical is None:
            known = self._typical_work() if any(running.is_part for running in self.view.running) else None
            self._shares_are_typical = known is not None and any(part.share != WHOLE for part in known.parts)
        return self._weights_shared if self._shares_are_typical else self._weights_whole

    def _scoring(self, rows: Ints, shape: Shape, estimates: list[Estimate], weights: Mapping[str, float]) -> Scoring:
        seed = self.view.seed + self.view.revision + self._taken
        typical = None if WORK_TERMS.isdisjoint(weights) else self._typical_work()
        return Scoring(
            self.fleet, rows, self.free, shape, estimates, seed, share=self.share, memory=self.memory, typical=typical
        )

    def _typical_work(self) -> Typical | None:
        """Return the typical work of the view; placements do not change it."""
        if not self._looked_at_work:
            self._typical, self._looked_at_work = typical(self.view), True
        return self._typical

    def _worth(self, row: int, candidate: Candidate | None, shape: Shape) -> Sequence[float]:
        """Return the worth of taking a share of each device of a node, where weighted terms differ between devices."""
        weights = self._weights_shared
        if candidate is None or not shape.is_part or DEVICE_TERMS.keys().isdisjoint(weights):
            return ()
        given = score_devices(self._scoring(np.array([row]), shape, self.estimates(candidate, shape), weights), weights)
        return () if given is None else [float(value) for value in given[0]]

    def _real_free(self, row: int) -> Ints:
        """Return (4,): the free resources of the node; kept room counts as free."""
        free = self.free[:, row].copy()
        for kept in self.kept.get(row, ()):
            shape = kept.shape
            free += np.array((shape.cpu, shape.memory, shape.network, shape.gpus)) * kept.tasks
        return free

    def _has_room(self, row: int, shape: Shape) -> bool:
        free = self.free
        if free[CPU, row] < shape.cpu:
            return False
        if shape.memory and free[MEMORY, row] < shape.memory:
            return False
        if shape.network and free[NETWORK, row] < shape.network:
            return False
        if not shape.gpus:
            return True
        if shape.share == WHOLE and free[DEVICES, row] < shape.gpus:
            return False
        able = self.able(shape)
        if shape.share == WHOLE and able.uniform[self._kind[row]]:
            return True
        return self.room(row).pick_devices(shape, able.models) is not None

    def _count(self, row: int, shape: Shape, tasks: int) -> None:
        """Count tasks that were placed, and forget what depends on the free resources."""
        self._add(row, shape, tasks)
        self._taken += tasks
        self._meanwhile.clear()
        self.ranked.clear()
        self.soonest.clear()

    def _add(self, row: int, shape: Shape, tasks: int) -> None:
        free = self.free
        self._changed.append(row)
        self._summaries.clear()
        self._now = None
        free[CPU, row] -= shape.cpu * tasks
        if shape.memory:
            free[MEMORY, row] -= shape.memory * tasks
        if shape.network:
            free[NETWORK, row] -= shape.network * tasks
        if shape.gpus and shape.share == WHOLE:
            free[DEVICES, row] -= shape.gpus * tasks

    def _are_alike(self, row: int, shape: Shape) -> bool:
        """Return whether all free devices of the node are interchangeable."""
        kind = self._kind[row]
        return shape.share == WHOLE and self.fleet.alike[kind] and self.able(shape).uniform[kind]

    def _take_alike(self, row: int, shape: Shape, count: int) -> list[tuple[int, ...]]:
        """Take the first free devices, for several tasks."""
        free = [place for place, share in enumerate(self.share[row].tolist()) if share == WHOLE][: shape.gpus * count]
        if len(free) < shape.gpus * count:
            raise AssertionError(f"{shape} was to be placed where it does not fit: {self.fleet.names[row]}")
        self.share[row, free] = 0
        devices = self.fleet.nodes[row].devices
        indices = [devices[place].index for place in free]
        return [tuple(indices[start : start + shape.gpus]) for start in range(0, len(indices), shape.gpus)]

    def _take_devices(self, row: int, shape: Shape, devices: Sequence[int]) -> None:
        for place, device in enumerate(self.fleet.nodes[row].devices):
            if device.index in devices:
                if shape.share != WHOLE:
                    self.memory[row, place] -= shape.gpu_memory
                    if self.share[row, place] == WHOLE:
                        self.free[DEVICES, row] -= 1
                self.share[row, place] -= shape.share

    def _lines(self, key: str) -> list[tuple[float, int, int, int]]:
        """Return a heap of (waiting per slot, row, waiting, slots) of the nodes that run brief work of a shape."""
        pools: dict[int, PoolView] = {**self.fleet.pools.get(key, {}), **self._pools.get(key, {})}
        lines = []
        for row, pool in pools.items():
            brief = pool.slots - pool.long
            if brief > 0 and not self.fleet.closed[row] and self.fleet.free[:, row].min() >= 0:
                behind = pool.attempts - pool.slots
                lines.append((behind / brief, row, behind, brief))
        heapq.heapify(lines)
        return lines

    def _add_to_pool(self, row: int, shape: Shape) -> None:
        key = shape.key()
        mine = self._pools.setdefault(key, {})
        pool = mine.get(row) or self.fleet.pools.get(key, {}).get(row, PoolView(0, 0))
        mine[row] = PoolView(pool.slots + 1, pool.attempts + 1, pool.long)
        self._behind.pop(key, None)

    def _as_fleet(self) -> Fleet:
        """Return the fleet with the placements of this draft; kept room counts as free."""
        if self._now is None:
            made = self._now = self.fleet.copy()
            made.free, made.device_memory, made.device_share = self.free.copy(), self.memory, self.share
            for row in self.kept:
                made.free[:, row] = self._real_free(row)
        return self._now

    def _reserved(self, row: int) -> Reason:
        kept = self.kept[row][0]
        return Reason(code="RESERVED", subject=self.fleet.names[row], need=kept.unit)


def close_together(fleet: Fleet, room: Ints, needed: int) -> list[int]:
    """Return a row for each task: the tightest single node, else the tightest rack or zone, else the whole fleet.
    Within it use the roomiest and best connected nodes first, so that few are used.
    """
    whole = np.flatnonzero(room >= needed)
    if len(whole):
        row = int(whole[np.argmin(room[whole])])
        return [row] * needed
    for place in (fleet.rack, fleet.zone, np.zeros(len(fleet), np.int64)):
        sums = np.bincount(place, weights=room)
        enough = np.flatnonzero(sums >= needed)
        if len(enough):
            inside = np.flatnonzero((place == enough[np.argmin(sums[enough])]) & (room > 0))
            order = np.lexsort((inside, fleet.latency[inside], -fleet.bandwidth[inside], -room[inside]))
            rows: list[int] = []
            for row in inside[order].tolist():
                rows += [row] * min(int(room[row]), needed - len(rows))
                if len(rows) == needed:
                    return rows
    return []


def _mean(estimate: Estimate) -> int:
    return estimate.mean
