"""Fair shares in decisions: lending, reclaiming, and the rule of the order of service (`turns` finds the order).

In a class, work within a guarantee goes before work that borrows. Among borrowers, the tree node with the lowest
*level* goes first. The level is the node's debt, plus its present borrowing extrapolated for some hours, over its
weight. Levels are compared from the top of the tree down, among the children of one parent, as in Slurm's Fair Tree.
Within a leaf the order is that of the policy.

A unit of one leaf is preempted for a unit of another leaf only if the two nodes below their common parent allow it.
Either the node that loses borrows, and the node that gains is within its guarantee afterwards. Or the node that gains
has no higher level than the other afterwards, and the other still holds all of its guarantee, which it would take back
at once. The same rule cannot reverse such a change, so no two nodes preempt each other in turn. When other work comes
or ends, it can. So a unit runs for a minute before it is preempted for another leaf.
"""

from collections.abc import Collection, Iterable, Mapping, Sequence
from copy import copy
from functools import cached_property
from math import log, log2
from typing import NamedTuple

import msgspec
import numpy as np

from poise.model.decisions import Reason
from poise.model.fleet import OPEN, Bools, Fleet, Ints
from poise.model.resources import Shape
from poise.model.share_tree import (
    CPU,
    GPU,
    OTHERS,
    WEIGHT,
    Amounts,
    ShareTree,
    ShareView,
    amounts_of,
    borrowed_of,
    sum_of,
    told,
    unused_of,
)
from poise.model.views import Candidate, Snapshot
from poise.policy.feasible import ability
from poise.units import HOUR, MINUTE, format_duration

AHEAD = 16
"""A level counts present borrowing as if it continued for 1/16 of the half-life."""

PROTECTED = MINUTE
"""Minimum run time of a unit before it is preempted for a unit of another leaf."""

NEVER = 2**200
"""The level of a node without weight that borrows."""


class Claim(NamedTuple):
    """The leaf of a unit, and the amounts that it holds or would hold."""

    leaf: str
    amounts: Mapping[str, int]


class _Tree:
    """The properties of a tree that do not depend on what its nodes hold."""

    def __init__(self, tree: ShareTree) -> None:
        self.tree, self.nodes = tree, tree.nodes
        self.places = {node.name: place for place, node in enumerate(tree.nodes)}
        self.nothing_is_free = all(tree.prices.values())
        self.naming = {place for place, node in enumerate(tree.nodes) if node.guaranteed.keys() - {GPU, CPU}}
        self.has_limits = any(node.limit for node in tree.nodes)
        self.keeps = [place for place, node in enumerate(tree.nodes) if not node.lends and node.guaranteed]
        self.of_any = [node.guaranteed.get(GPU, 0) for node in tree.nodes]
        """By node, its guarantee of devices of any model."""
        self._paths: dict[str, tuple[int, ...]] = {}
        self._plain: dict[str, bool] = {}
        self._leaves: tuple[Mapping[str, int], Ints] = {}, np.zeros(0, np.int64)

    def path(self, leaf: str) -> tuple[int, ...]:
        """Return the places of a leaf and of all nodes above it, from the top down."""
        path = self._paths.get(leaf)
        if path is None:
            place, found = self.places.get(leaf, self.places[OTHERS]), list[int]()
            while place >= 0:
                found.append(place)
                place = self.nodes[place].parent
            path = self._paths[leaf] = tuple(reversed(found))
        return path

    def is_plain(self, leaf: str) -> bool:
        """Return whether all devices count the same for the guarantees of a leaf and of all nodes above it. Then the
        claim of a unit does not depend on what is held.
        """
        known = self._plain.get(leaf)
        if known is None:
            known = self._plain[leaf] = self.nothing_is_free and self.naming.isdisjoint(self.path(leaf))
        return known

    def places_of(self, leaves: Mapping[str, int]) -> Ints:
        """Return the place of each of these leaves, in the order of their numbers."""
        known, places = self._leaves
        if known is not leaves or len(places) != len(leaves):
            places = np.array([self.path(leaf)[-1] for leaf in leaves], np.int64)
            self._leaves = leaves, places
        return places

    @cached_property
    def alone(self) -> Bools:
        """By node, whether it is plain and no node is above it."""
        return np.array([node.parent < 0 and self.is_plain(node.name) for node in self.nodes], bool)

    @cached_property
    def devices(self) -> Ints:
        """`of_any` as an array."""
        return np.array(self.of_any, np.int64)


class Standing:
    """The standing of all tree nodes while a plan is made; `count` records placements and preemptions. With `before`,
    an earlier standing of the same tree, only the nodes that hold something else since are looked at.
    """

    def __init__(self, view: ShareView, before: "Standing | None" = None) -> None:
        self.shares = view
        self.tree, self.nodes, self.debts = view.tree, view.tree.nodes, view.debts
        self.held = list(view.held)
        self._own: set[int] = set()  # nodes whose held amounts belong to no other standing, and may be changed
        self._unused: dict[int, Amounts] = {}
        if before is None or before.tree is not view.tree:
            self._tree = _Tree(view.tree)
            self._devices = list(map(_devices_in, view.held))
            self._rates: list[int | None] = [None] * len(self.nodes)
        else:
            self._tree, self._devices, self._rates = before._tree, before._devices.copy(), before._rates.copy()
            changed = [place for place, held in enumerate(view.held) if held is not before.shares.held[place]]
            for place in changed:
                self._devices[place], self._rates[place] = _devices_in(view.held[place]), None
        self._nothing_is_free, self._naming = self._tree.nothing_is_free, self._tree.naming
        self.has_limits, self.keeps = self._tree.has_limits, self._tree.keeps
        self.path = self._tree.path
        self.is_plain, self.places_of = self._tree.is_plain, self._tree.places_of

    def copy(self) -> "Standing":
        made = copy(self)
        made.held, made._devices = self.held.copy(), self._devices.copy()
        made._rates, made._unused = self._rates.copy(), self._unused.copy()
        self._own, made._own = set(), set()
        return made

    def become(self, other: "Standing") -> None:
        """Take over what a copy holds."""
        self.held, self._devices, self._rates, self._unused = other.held, other._devices, other._rates, other._unused
        self._own = other._own

    def view(self) -> ShareView:
        return ShareView(self.tree, tuple(self.held), tuple(self.debts))

    def count(self, leaf: str, amounts: Mapping[str, int], sign: int = 1) -> None:
        """Add the amounts to the leaf and all nodes above it, or subtract them."""
        own, unused = self._own, self._unused
        for place in self.path(leaf):
            if place not in own:
                own.add(place)
                self.held[place] = dict(self.held[place])
            held = self.held[place]
            for model, amount in amounts.items():
                more = amount if sign > 0 else -amount
                held[model] = held.get(model, 0) + more
                if model != CPU:
                    self._devices[place] += more
            self._rates[place] = None
            if unused:
                unused.pop(place, None)

    def rate(self, place: int) -> int:
        """Return a node's borrowing in nano-dollars an hour."""
        rate = self._rates[place]
        if rate is None:
            held = self.held[place]
            rate = self._rate_of(place, held) if place in self._naming else self._rate_of_any(place, held)
            self._rates[place] = rate
        return rate

    def borrows(self, place: int) -> bool:
        """Return whether a node borrows anything that has a price."""
        if self._rates[place] is None and self._nothing_is_free:
            guaranteed = self.nodes[place].guaranteed
            if self._devices[place] > sum(guaranteed.values()) - guaranteed.get(CPU, 0):
                return True  # more devices than all guarantees have
        return self.rate(place) > 0

    def _rate_of(self, place: int, held: Mapping[str, int]) -> int:
        price, guaranteed = self.tree.price, self.nodes[place].guaranteed
        over = borrowed_of(held, guaranteed, price)
        return sum(amount * price(model) for model, amount in over.items())

    def _rate_of_any(self, place: int, held: Mapping[str, int]) -> int:
        """Return the borrowing of a node whose guarantee names no model: it covers the most expensive devices."""
        over, price, rate = self._devices[place] - self._tree.of_any[place], self.tree.price, 0
        if over > 0:
            for each, amount in sorted([(price(model), amount) for model, amount in held.items() if model != CPU]):
                taken = min(amount, over)
                rate, over = rate + taken * each, over - taken
        if CPU in held:
            rate += max(0, held[CPU] - self.nodes[place].guaranteed.get(CPU, 0)) * price(CPU)
        return rate

    def _rate_with(self, place: int, amounts: Mapping[str, int]) -> int:
        held = dict(self.held[place])
        for model, amount in amounts.items():
            held[model] = held.get(model, 0) + amount
        return self._rate_of(place, held)

    def is_within(self, place: int, amounts: Mapping[str, int]) -> bool:
        """Return whether a node could hold these amounts too without borrowing more."""
        if len(amounts) == 1:
            [(model, amount)] = amounts.items()
            return self._fits(place, model, amount)
        return bool(self.nodes[place].guaranteed) and self._rate_with(place, amounts) <= self.rate(place)

    def _fits(self, place: int, model: str, amount: int) -> bool:
        """Return whether a node could hold this amount of a model too without borrowing more."""
        if not (guaranteed := self.nodes[place].guaranteed):
            return False
        if not self._nothing_is_free:
            return self._rate_with(place, {model: amount}) <= self.rate(place)
        if place not in self._naming:
            if model == CPU:
                return self.held[place].get(CPU, 0) + amount <= guaranteed.get(CPU, 0)
            return self._devices[place] + amount <= self._tree.of_any[place]
        unused = self._unused.get(place)
        if unused is None:
            unused = self._unused[place] = unused_of(guaranteed, self.held[place])
        any_device = unused.get(GPU, 0) if model not in (CPU, GPU) else 0
        return amount <= unused.get(model, 0) + any_device

    def level(self, place: int) -> int:
        """Return a node's debt and borrowing over its weight; the lowest level is served first."""
        return self.level_with(place, 0)

    def level_with(self, place: int, more: int) -> int:
        """Return the level of a node if it borrowed this much more, in nano-dollars an hour."""
        node, ahead = self.nodes[place], self.tree.half_life // AHEAD
        owes = self.debts[place] + (self.rate(place) + more) * ahead // HOUR
        if node.weight:
            return owes * WEIGHT // node.weight
        return NEVER if owes else 0

    def each_borrows(self, place: int, amounts: Mapping[str, int]) -> int | None:
        """Return how much more a plain node borrows with each further unit of these amounts, in nano-dollars an hour;
        None if it may not be the same for each.
        """
        if len(amounts) != 1 or CPU in amounts or self._devices[place] < self._tree.of_any[place]:
            return None
        [(model, amount)] = amounts.items()
        price = self.tree.price(model)
        is_cheapest = all(price <= self.tree.price(other) for other in self.held[place] if other != CPU)
        return amount * price if is_cheapest else None

    def claim(self, candidate: Candidate, fleet: Fleet) -> Claim:
        """Return what a unit would hold in its least size: on guaranteed devices of its leaf, or else the cheapest."""
        shape, tasks = candidate.shape, candidate.least or candidate.tasks
        if not shape.gpus:
            return Claim(candidate.leaf, amounts_of(shape, CPU, tasks))
        models, amount, price = ability(fleet, shape).called, shape.gpus * shape.share * tasks, self.tree.price
        if len(models) < 2:
            return Claim(candidate.leaf, {models[0] if models else "": amount})
        path = () if self.is_plain(candidate.leaf) else self.path(candidate.leaf)
        best = min(
            [(sum([not self._fits(place, model, amount) for place in path]), price(model), model) for model in models]
        )
        return Claim(candidate.leaf, {best[2]: amount})

    def promise(self, leaving: Iterable[Claim], coming: Iterable[Claim]) -> None:
        """Count units that make room as gone, and the units that it is made for as present."""
        for claim in leaving:
            self.count(*claim, -1)
        for claim in coming:
            self.count(*claim)

    # --- preemption between shares -----------------------------------------------------------------------------------

    def apart(self, leaf: str, other: str) -> tuple[int, int] | None:
        """Return the places of the two nodes below the lowest common one; None if both units are of one leaf."""
        for mine, theirs in zip(self.path(leaf), self.path(other), strict=False):
            if mine != theirs:
                return mine, theirs
        return None

    def may_take(self, gains: Claim, leaf: str) -> bool | None:
        """Return whether a unit that is counted may preempt all units of a leaf (True) or none (False); None if that
        depends on the levels afterwards.
        """
        parted = self.apart(gains.leaf, leaf)
        if parted is None:
            return True
        mine, theirs = parted
        if not self.borrows(theirs):
            return False
        return True if self.was_within(mine, gains.amounts) else None

    def may_stop(self, gains: Claim, loses: Claim) -> bool:
        """Return whether a unit that is counted may preempt another, which is still counted."""
        may = self.may_take(gains, loses.leaf)
        if may is not None:
            return may
        self.count(loses.leaf, loses.amounts, -1)
        lawful = self.is_lawful(gains, loses)
        self.count(loses.leaf, loses.amounts)
        return lawful

    def is_entitled(self, claim: Claim) -> bool:
        """Return whether any node above a unit could hold it within its guarantee."""
        return any(self.is_within(place, claim.amounts) for place in self.path(claim.leaf))

    def is_used_up(self, leaf: str) -> bool:
        """Return whether it is certain that no node above a leaf could hold a device more within its guarantee."""
        if not self.is_plain(leaf):
            return False
        return all(self._devices[place] >= self._tree.of_any[place] for place in self.path(leaf))

    def are_alone(self, places: Ints) -> bool:
        """Return whether these nodes are plain leaves, and no node is above any of them."""
        return bool(self._tree.alone[places].all())

    def unused_devices(self, places: Ints) -> Ints:
        """Return the unused guarantees of plain leaves, in thousandths of devices."""
        unused: Ints = np.maximum(0, self._tree.devices[places] - np.array(self._devices, np.int64)[places])
        return unused

    def was_within(self, place: int, amounts: Mapping[str, int]) -> bool:
        """Return whether these amounts, of those that a node holds, are within its guarantee."""
        if len(amounts) == 1 and self._nothing_is_free and place not in self._naming:
            [(model, amount)] = amounts.items()
            if amount > 0 and model != CPU:  # with fewer devices, it would borrow less
                return bool(self.nodes[place].guaranteed) and self._devices[place] <= self._tree.of_any[place]
        less = {model: -amount for model, amount in amounts.items()}
        return bool(self.nodes[place].guaranteed) and self.rate(place) <= self._rate_with(place, less)

    def unlawful(
        self, gains: Sequence[Claim], stops: Sequence[tuple[int, Claim]], counted: Collection[int] = ()
    ) -> set[int]:
        """Return the numbers of the `stops` that are not allowed; each names the number of the gain that it is for.
        Count the gains here, unless they are in `counted`. Check the stops in order, then the allowed ones again at the
        end, since later stops may change a node's gain.
        """
        refused: set[int] = set()
        while True:
            trial, there = self.copy(), set(counted)
            accepted: list[tuple[int, Claim, Claim]] = []
            for number, (of, loses) in enumerate(stops):
                if number in refused:
                    continue
                comes = of not in there
                if comes:
                    trial.count(*gains[of])
                if trial.may_stop(gains[of], loses):
                    there.add(of)
                    accepted.append((number, gains[of], loses))
                    trial.count(*loses, -1)
                else:
                    refused.add(number)
                    if comes:
                        trial.count(*gains[of], -1)
            broken = [number for number, gaining, loses in accepted if not trial.is_lawful(gaining, loses)]
            if not broken:
                self.become(trial)
                return refused
            refused.add(broken[-1])

    def is_lawful(self, gains: Claim, loses: Claim) -> bool:
        """Return whether a preemption is allowed, given the standing after it."""
        parted = self.apart(gains.leaf, loses.leaf)
        if parted is None:
            return True
        mine, theirs = parted
        if self.was_within(mine, gains.amounts):
            return True
        return self.level(mine) <= self.level(theirs) and not self._lacks(theirs, loses.amounts)

    def _lacks(self, place: int, amounts: Mapping[str, int]) -> bool:
        """Return whether a node has an unused guarantee for any of these models."""
        unused = unused_of(self.nodes[place].guaranteed, self.held[place])
        return any(unused.get(model) or (model != CPU and unused.get(GPU)) for model in amounts)

    # --- available room ----------------------------------------------------------------------------------------------

    def room_in_limits(self, leaf: str, shape: Shape, model: str, most: int) -> int:
        """Return how many tasks of a shape, on this model, the limits of a leaf and all nodes above it allow."""
        each = amounts_of(shape, model)
        for place in self.path(leaf) if each else ():
            limit, held = self.nodes[place].limit, self.held[place]
            for named, bound in limit.items():
                if need := sum_of(each, named):
                    most = min(most, max(0, bound - sum_of(held, named)) // need)
        return most

    def kept_free(self, leaf: str) -> Amounts:
        """Return the unused guarantees of nodes that do not lend, except those above the leaf."""
        kept: Amounts = {}
        own = self.path(leaf)
        for place in self.keeps:
            if place in own:
                continue
            unused = unused_of(self.nodes[place].guaranteed, self.held[place])
            for model, amount in unused.items():
                kept[model] = kept.get(model, 0) + amount
        return kept


def standing_of(view: Snapshot, shares: ShareView) -> Standing:
    """Return the standing of a view's shares; cached with the fleet, and updated where they hold other amounts."""
    known: Standing | None = view.fleet.runs.get("standing")
    if known is None or known.shares is not shares:
        known = Standing(shares, known)
        for place in range(len(known.nodes)):  # once, not in each copy
            known.rate(place)
        view.fleet.runs["standing"] = known
    return known.copy()


class Ratio(NamedTuple):
    """A node relative to its siblings: its part of their weights, and of their debts (None: there is no debt). The
    node for all others has a part of the weights only if it holds or owes anything.
    """

    share: float
    used: float | None


def ratio(standing: Standing, place: int) -> Ratio:
    """Return a node's parts of weights and debts among its siblings."""
    beside = [other for other, node in enumerate(standing.nodes) if node.parent == standing.nodes[place].parent]
    weights = {
        other: standing.nodes[other].weight
        for other in beside
        if standing.nodes[other].kind != "others" or standing.debts[other] or standing.held[other]
    }
    whole, owed = sum(weights.values()), sum(standing.debts[other] for other in beside)
    share = weights.get(place, 0) / whole if whole else 0.0
    return Ratio(share, standing.debts[place] / owed if owed else None)


def level_in(standing: Standing, one: int, other: int) -> int | None:
    """Return the nanoseconds until two nodes owe the same for their weights, if both continue their present borrowing;
    None if they never do.
    """
    life = standing.tree.half_life
    weights = [max(1, standing.nodes[place].weight) for place in (one, other)]
    owed = [standing.debts[place] / weight for place, weight in zip((one, other), weights, strict=True)]
    rates = (standing.rate(place) for place in (one, other))
    ends = [rate * life / HOUR / log(2) / weight for rate, weight in zip(rates, weights, strict=True)]
    apart, at_last = owed[0] - owed[1], ends[0] - ends[1]
    if not apart:
        return 0
    if at_last == apart or not 0 < (left := at_last / (at_last - apart)) < 1:
        return None
    return round(-life * log2(left))


def served_first(view: Snapshot, candidate: Candidate) -> str:
    """Explain why a unit is served before those of other shares, or which share goes first and until when; empty if no
    shares are declared.
    """
    if view.shares is None:
        return ""
    standing, fleet = Standing(view.shares), view.fleet
    waiting: dict[int, Candidate] = {}
    for one in view.candidates:
        for place in standing.path(one.leaf):
            waiting.setdefault(place, one)

    def key(place: int, unit: Candidate) -> tuple[bool, int]:
        return not standing.is_within(place, standing.claim(unit, fleet).amounts), standing.level(place)

    for own in standing.path(candidate.leaf):
        parent, mine = standing.nodes[own].parent, key(own, candidate)
        others = [
            (key(place, unit), place)
            for place, unit in waiting.items()
            if place != own and standing.nodes[place].parent == parent
        ]
        if not others or min(others)[0] >= mine:
            continue
        (borrows, _), first = min(others)
        name, other = standing.nodes[own].name, standing.nodes[first].name
        if not borrows and mine[0]:
            return f"share `{other}` is served first: it is within its guarantee, and `{name}` borrows"
        at = level_in(standing, own, first)
        until = f"; level in {format_duration(at)} (P50, at the present rates)" if at else ""
        told = f"it has used {_used(standing, first)} of its share of late, `{name}` {_used(standing, own)}"
        return f"share `{other}` is served first: {told}{until}"
    place = standing.path(candidate.leaf)[0]
    within = standing.is_within(place, standing.claim(candidate, fleet).amounts)
    why = "it is within its guarantee" if within else "no share that waits has used less of its own"
    return f"its share `{standing.nodes[place].name}` is served first: {why}"


def _used(standing: Standing, place: int) -> str:
    share, used = ratio(standing, place)
    return f"{100 * used / share:.0f} %" if used is not None and share else "none"


# --- limits and lending ----------------------------------------------------------------------------------------------


def confined(
    standing: Standing, fleet: Fleet, share: Ints, candidate: Candidate, elsewhere: Mapping[str, int]
) -> Candidate | tuple[Reason, ...]:
    """Return the unit, restricted to the models and the size that limits and lending leave to it; or the reasons why it
    waits. `share` is the free part of each device, as in `Fleet.device_share`. Guarantees may also be kept free
    `elsewhere`, as in `Snapshot`.
    """
    if not (standing.has_limits or standing.keeps):
        return candidate
    shape, needed = candidate.shape, candidate.least or candidate.tasks
    models = ability(fleet, shape).called if shape.gpus else [CPU]
    sizes = {model: standing.room_in_limits(candidate.leaf, shape, model, candidate.tasks) for model in models}
    allowed = [model for model in models if sizes[model] >= needed]
    if models and not allowed:
        return (Reason(code="LIMIT", subject=candidate.leaf, need=_asks(shape, needed)),)
    if shape.gpus and standing.keeps:
        kept = standing.kept_free(candidate.leaf)
        free = free_devices(fleet, share)
        for model, amount in elsewhere.items():
            free[model] = free.get(model, 0) + amount
        need = shape.gpus * shape.share * needed
        spare = sum(free.values()) - sum_of(kept, GPU)
        path = standing.path(candidate.leaf)

        def is_own(model: str) -> bool:
            return any(standing.is_within(place, {model: need}) for place in path)

        lent = [
            model
            for model in allowed
            if is_own(model) or (free.get(model, 0) - kept.get(model, 0) >= need and spare >= need)
        ]
        if not lent:
            owners = ", ".join(standing.nodes[place].name for place in standing.keeps)
            return (Reason(code="NOT_LENT", subject=candidate.leaf, have=owners, need=_asks(shape, needed)),)
        allowed = lent
    size = max((sizes[model] for model in allowed), default=candidate.tasks)
    changes: dict[str, object] = {}
    if len(allowed) < len(models) and all(allowed):
        changes["shape"] = msgspec.structs.replace(
            shape, wants=msgspec.structs.replace(shape.wants, models=tuple(allowed))
        )
    if size < candidate.tasks:
        changes["tasks"] = size
    return msgspec.structs.replace(candidate, **changes) if changes else candidate


def free_devices(fleet: Fleet, share: Ints) -> Amounts:
    """Return the free thousandths of devices of open nodes, by model."""
    free: Amounts = {}
    for index, model in enumerate(fleet.models):
        if model.kind != "cpu":
            here = (fleet.device_model == index) & (fleet.closed == OPEN)[:, None]
            free[model.called] = free.get(model.called, 0) + int(share[here].clip(0).sum())
    return free


def _devices_in(held: Mapping[str, int]) -> int:
    return sum(held.values()) - held.get(CPU, 0)


def _asks(shape: Shape, tasks: int) -> str:
    [(named, amount)] = amounts_of(shape, GPU, tasks).items()
    return told(named, amount)


__all__ = ["PROTECTED", "Claim", "Standing", "confined", "served_first"]
