"""Fair shares in one round: the standing of the tree with its placements and preemptions."""

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from functools import cached_property

import numpy as np

from poise.model.decisions import Reason, Spot
from poise.model.fleet import Floats, Ints, Resident
from poise.model.jobs import CLASS_WEIGHT
from poise.model.resources import Shape
from poise.model.share_tree import CPU, Amounts, amounts_of, amounts_there
from poise.model.views import Candidate
from poise.policy.entitled import PROTECTED, Claim, Standing, confined, standing_of
from poise.policy.feasible import ability
from poise.policy.place import Draft
from poise.policy.reclaim import Preemption, Prices

PIECE = 256
"""Number of running units whose costs are looked up at once."""

_MAY: Mapping[bool | None, int] = {False: 0, True: 1, None: 2}
_SINCE = 1
"""The row of the start in `_terms`."""


class Spared:
    """The units that another unit may not preempt. Each is judged when it is asked for."""

    def __init__(
        self, trial: Standing, gains: Claim, held: Callable[[str], Claim], is_young: Callable[[str], bool]
    ) -> None:
        self._trial, self._gains, self._held, self._is_young = trial, gains, held, is_young
        self._known: dict[str, bool] = {}
        self._by_leaf: dict[str, bool | None] = {}

    def __contains__(self, unit: object) -> bool:
        return isinstance(unit, str) and self._is_spared(unit)

    @property
    def leaf(self) -> str:
        """The leaf of the other unit."""
        return self._gains.leaf

    def may_take(self, leaf: str) -> bool | None:
        """Return whether all units of a leaf (True) or none (False) may be preempted; None if units differ."""
        if leaf not in self._by_leaf:
            self._by_leaf[leaf] = self._trial.may_take(self._gains, leaf)
        return self._by_leaf[leaf]

    def _is_spared(self, unit: str) -> bool:
        known = self._known.get(unit)
        if known is None:
            loses = self._held(unit)
            may = self.may_take(loses.leaf)
            may = self._trial.may_stop(self._gains, loses) if may is None else may
            is_other = loses.leaf != self._gains.leaf
            known = self._known[unit] = not may or (is_other and self._is_young(unit))
        return known


class Shared:
    """The shares of one round. Units that were promised room count as present, and those that make it as gone."""

    def __init__(self, draft: Draft) -> None:
        view = draft.view
        if view.shares is None:
            raise ValueError("no shares are declared")
        self._draft, self._fleet = draft, draft.fleet
        self.standing = standing_of(view, view.shares)
        self._whole: dict[str, Claim] = {}
        self._promised: dict[str, Claim] = {}
        self._spared: dict[tuple[object, ...], Spared] = {}
        self._pieces: dict[int, list[tuple[float, Resident]]] = {}
        self.young = 0
        """The next instant at which a unit spared because it is young has run for its minimum time (0: none)."""
        gains = frozenset(view.yielded.values())
        for candidate in view.candidates if gains else ():
            if candidate.unit in gains:
                self._promised[candidate.unit] = self.standing.claim(candidate, self._fleet)
        for unit in view.yielded:
            if any(one.stopping for one in draft.running.of_unit(unit)[:1]):
                self._count(self._held(unit), -1)
        for claim in self._promised.values():
            self._count(claim)
        self.confines = bool(self._promised or self.standing.has_limits or self.standing.keeps)
        """Whether any unit may be restricted (`confined`)."""

    def confined(self, candidate: Candidate) -> Candidate | tuple[Reason, ...]:
        """Restrict a unit as `entitled.confined` does. A unit that was promised room does not count against itself."""
        if (claim := self._promised.pop(candidate.unit, None)) is not None:
            self._count(claim, -1)
        if candidate.recovering:
            return candidate
        return confined(self.standing, self._fleet, self._draft.share, candidate, self._draft.view.elsewhere)

    def promise(self, candidate: Candidate) -> None:
        """Count a unit as holding the room that others are about to leave."""
        self._count(self.standing.claim(candidate, self._fleet))

    def place(self, candidate: Candidate, shape: Shape, spots: Sequence[Spot]) -> None:
        """Count a placed unit."""
        for spot in spots:
            node = self._fleet.nodes[self._fleet.rows[spot.node]]
            self.standing.count(candidate.leaf, amounts_there(shape, node, spot.devices))
        self._spared.clear()

    def room_to_grow(self, resident: Resident, most: int) -> int:
        """Return how many more tasks the limits allow."""
        model = resident.model if resident.shape.gpus else CPU
        return self.standing.room_in_limits(resident.leaf, resident.shape, model, most)

    def own_models(self, candidate: Candidate, shape: Shape) -> list[str] | None:
        """Return the device models within its share's guarantees; None if that is all suitable ones."""
        models = ability(self._fleet, shape).called
        needed, path = candidate.least or candidate.tasks, self.standing.path(candidate.leaf)
        own = [
            model
            for model in models
            if any(self.standing.is_within(place, amounts_of(shape, model, needed)) for place in path)
        ]
        return None if len(own) == len(models) else own

    def is_entitled(self, candidate: Candidate) -> bool:
        """Return whether any node above the unit could hold it within its guarantee."""
        return self.standing.is_entitled(self.standing.claim(candidate, self._fleet))

    def borrowers(
        self, candidate: Candidate, shape: Shape, rules: Preemption, asked: Collection[str]
    ) -> Iterator[tuple[float, Resident]]:
        """Yield the units that may be preempted because their share borrows what this unit's share is guaranteed, with
        their costs, the cheapest first; of a share no more than it borrows.
        """
        trial = self.standing.copy()
        claim = trial.claim(candidate, self._fleet)
        trial.count(*claim)
        own = trial.path(candidate.leaf)
        parted: dict[str, tuple[int, int] | None] = {}
        done = {candidate.leaf}
        within: dict[int, bool] = {}
        for cost, one in self._cheapest_first():
            if one.leaf in done or one.unit in asked or (one.shape.gpus > 0) != (shape.gpus > 0):
                continue
            if one.serves and not candidate.serves:
                continue
            if one.leaf not in parted:
                parted[one.leaf] = trial.apart(candidate.leaf, one.leaf)
            if (pair := parted[one.leaf]) is not None:
                mine, theirs = pair
                if not trial.borrows(theirs):
                    done.add(one.leaf)
                    continue
                if mine not in within:
                    within[mine] = trial.was_within(mine, claim.amounts)
                if not within[mine]:
                    continue
            if self._is_young(one, max(rules.min_run, PROTECTED)):  # the budget does not protect a borrower
                continue
            trial.count(*self._held(one.unit), -1)
            yield cost, one
            if trial.path(one.leaf)[0] == own[0]:
                within.clear()  # a node above both in the tree holds less

    @cached_property
    def _leaves(self) -> tuple[list[str], Ints]:
        """The leaves of the running units, and (U,) the number of each unit's leaf."""
        running, numbers = self._draft.running, dict[str, int]()
        of = [numbers.setdefault(running.residents[at].leaf, len(numbers)) for at in running.first.tolist()]
        return list(numbers), np.array(of, np.int64)

    def lawful(self, one: Candidate | Resident, prices: Prices) -> Prices:
        """Return the prices of the units that may be preempted for this one; the others are infinite."""
        spared, running, (leaves, leaf_of), of = self.spared(one), self._draft.running, self._leaves, prices.of.copy()
        could = (of < np.inf).nonzero()[0]
        leaf = leaf_of[could]
        may = np.zeros(len(leaves), np.int64)
        for number in np.unique(leaf).tolist():
            may[number] = _MAY[spared.may_take(leaves[number])]
        is_other = np.array([name != spared.leaf for name in leaves], bool)
        until = running.each("cost", _terms)[_SINCE, running.first[could]] + PROTECTED
        young = (may[leaf] == _MAY[True]) & is_other[leaf] & (until > self._draft.view.now)
        if young.any():
            self._note_young(int(until[young].min()))
        of[could[young | (may[leaf] == _MAY[False])]] = np.inf
        for number in could[may[leaf] == _MAY[None]].tolist():
            if running.residents[int(running.first[number])].unit in spared:
                of[number] = np.inf
        return Prices(of, self._draft)

    def _cheapest_first(self) -> Iterator[tuple[float, Resident]]:
        """Yield the running units that may be preempted, each with its cost, the cheapest first; then the latest first.
        They are looked up piece by piece, because most searches end early.
        """
        costs, places = self._by_cost
        for piece in range(0, len(places), PIECE):
            found = self._pieces.get(piece)
            if found is None:
                here, residents = slice(piece, piece + PIECE), self._draft.running.residents
                ones = map(residents.__getitem__, places[here].tolist())
                found = self._pieces[piece] = list(zip(costs[here].tolist(), ones, strict=True))
            yield from found

    @cached_property
    def _by_cost(self) -> tuple[Floats, Ints]:
        """The costs of the running units that may be preempted, in ascending order, and their first attempts."""
        running = self._draft.running
        first = running.first
        if not len(first):
            return np.zeros(0), first
        may, since, ordinal, worth = running.each("cost", _terms)[:, first]
        costs = running.lost[first].astype(float) * worth
        order = np.lexsort((ordinal, -since, costs))
        order = order[may[order] > 0]
        return costs[order], first[order]

    def spared(self, one: Candidate | Resident) -> "Spared":
        """Return the units that may not be preempted for this one."""
        waits = isinstance(one, Candidate)
        gains = self.standing.claim(one, self._fleet) if isinstance(one, Candidate) else self._held(one.unit)
        key = (waits, gains.leaf, *sorted(gains.amounts.items()))
        known = self._spared.get(key)
        if known is None:
            trial = self.standing.copy()
            if waits:
                trial.count(*gains)
            known = self._spared[key] = Spared(trial, gains, self._held, self._is_young_unit)
        return known

    def complete(self, candidate: Candidate, gangs: Mapping[str, Resident]) -> set[str]:
        """Return the gangs that may not lose even this member for a waiting unit. A gang continues with its other
        members, so it does not have to run for a minute first.
        """
        trial, gains = self.standing.copy(), self.standing.claim(candidate, self._fleet)
        trial.count(*gains)
        return {unit for unit, one in gangs.items() if not trial.may_stop(gains, self._held(unit, [one.task]))}

    def _is_young_unit(self, unit: str) -> bool:
        return self._is_young(self._draft.running.of_unit(unit)[0], PROTECTED)

    def _is_young(self, one: Resident, least: int) -> bool:
        """Return whether a unit has run for less than this time; if so, note the instant at which it has."""
        at = one.since + least
        is_young = self._draft.view.now < at
        if is_young:
            self._note_young(at)
        return is_young

    def _note_young(self, at: int) -> None:
        self.young = min(self.young or at, at)

    def agree(self, candidate: Candidate, shape: Shape, leaves: Mapping[str, Sequence[int] | None]) -> bool:
        """Return whether these tasks of these units (None: all) may be stopped for it; if so, count them as gone and
        this unit as present.
        """
        stops = [(0, self._held(unit, tasks)) for unit, tasks in leaves.items()]
        model = next((model for _, loses in stops for model in loses.amounts if model != CPU), CPU)
        gains = Claim(candidate.leaf, amounts_of(shape, model, candidate.least or candidate.tasks))
        trial = self.standing.copy()
        if trial.unlawful([gains], stops):
            return False
        self.standing = trial
        self._spared.clear()
        return True

    def _held(self, unit: str, tasks: Collection[int] | None = None) -> Claim:
        """Return the amounts that a running unit, or these of its tasks, hold."""
        if tasks is None and unit in self._whole:
            return self._whole[unit]
        of = self._draft.running.of_unit(unit)
        total: Amounts = {}
        for one in of:
            if tasks is None or one.task in tasks:
                model = one.model if one.shape.gpus else CPU
                for named, amount in amounts_of(one.shape, model).items():
                    total[named] = total.get(named, 0) + amount
        held = Claim(of[0].leaf, total)
        if tasks is None:
            self._whole[unit] = held
        return held

    def _count(self, claim: Claim, sign: int = 1) -> None:
        self._spared.clear()
        self.standing.count(claim.leaf, claim.amounts, sign)


def _terms(one: Resident) -> list[int]:
    """Return whether a unit may be preempted, its order among equals, and the weight of its lost work (`cost_of`)."""
    may, worth = one.preemptible and one.running and not one.stopping, one.size * CLASS_WEIGHT[one.priority]
    return [may, one.since, one.ordinal, worth]


__all__ = ["Shared"]
