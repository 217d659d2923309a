"""The order of waiting units by share: found one by one, as far as units are served."""

from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from heapq import heapify, heappop, heapreplace
from itertools import compress

import numpy as np

from poise.model.fleet import Fleet, Ints
from poise.model.resources import Shape
from poise.model.share_tree import ShareView
from poise.model.views import Candidate, Snapshot
from poise.policy.entitled import Claim, Standing, standing_of
from poise.policy.waiting import LEAF, PRIORITY, TAKES, Waiting


def by_share(view: Snapshot, ordered: list[Candidate], pressed: Collection[str]) -> "list[Candidate] | Turns":
    """Return the candidates of a view in order of service, from the order of the policy: first the units that must
    start now to be on time, then by declared class, and within a class by share. Without declared shares the order is
    unchanged.
    """
    return ordered if view.shares is None else Turns(view, view.shares, ordered, pressed)


_Key = tuple[bool, int, int]
"""Whether a node borrows, its level, and the place of its next unit in the order of the policy."""

_ROOT = -1
_NOTHING: Mapping[str, int] = {}


class Turns:
    """The candidates of a view in order of service by share, found one by one. Once the order of the others has no
    effect, they may be `settled`: then they come in the order of the policy.
    """

    def __init__(
        self, view: Snapshot, shares: ShareView, ordered: Sequence[Candidate], pressed: Collection[str]
    ) -> None:
        self._view, self._shares, self._waiting = view, shares, Waiting(view)
        classes = self._waiting.columns[PRIORITY]
        self._lanes: dict[int, Sequence[Candidate]] = {}
        if len(classes) and not pressed and (classes == classes[0]).all():
            self._lanes[int(classes[0])] = ordered
        else:
            lanes = defaultdict[int, list[Candidate]](list)
            for one in ordered:
                lanes[-1 if one.unit in pressed else one.priority].append(one)
            self._lanes |= lanes
        self.settled = False

    def __iter__(self) -> Iterator[Candidate]:
        standing = standing_of(self._view, self._shares)
        for number in sorted(self._lanes):
            ones = self._lanes[number]
            left = bytearray(b"\1") * len(ones)
            for taken in () if self.settled else _Lane(standing, self._view.fleet, self._waiting, ones).in_order():
                left[taken] = 0
                yield ones[taken]
                if self.settled:
                    break
            yield from compress(ones, left)


class _Lane:
    """The candidates of one lane: `ones`, in the order of the policy."""

    def __init__(self, standing: Standing, fleet: Fleet, waiting: Waiting, ones: Sequence[Candidate]) -> None:
        self._standing, self._fleet, self._ones = standing, fleet, ones
        leaf, self._takes = waiting.columns[[LEAF, TAKES]][:, waiting.places_of(ones)]
        self._place: Ints = standing.places_of(waiting.leaves)[leaf]
        """(N,): the place of the leaf of each."""
        self._claims: dict[str, Claim] = {}  # by queue: its units are alike
        self._amounts: dict[tuple[Shape, int], Mapping[str, int]] = {}  # of units of plain leaves

    def in_order(self) -> Iterator[int]:
        """Yield the numbers of the candidates in order of service, each counted as it is taken: first those within the
        guarantee of a node above them, then the others.
        """
        if not len(self._ones):
            return
        by_leaf = self._place.argsort(kind="stable")
        places = self._place[by_leaf]
        first = np.concatenate(([0], (places[1:] != places[:-1]).nonzero()[0] + 1))
        beyond: dict[int, list[int]] = {}
        if self._standing.are_alone(places[first]):
            yield from self._within(by_leaf, first, beyond)
            yield from self._borrowing(beyond)
        else:
            yield from self._merged(_lists(by_leaf, places), beyond)
            yield from self._merged(beyond, None)

    def _within(self, by_leaf: Ints, first: Ints, beyond: dict[int, list[int]]) -> Iterator[int]:
        """Yield the units that are within guarantees, in order, if no guarantee is for several leaves; put the others
        in `beyond`. What is within a guarantee changes no level, so these units can be found leaf by leaf. The units
        `by_leaf` of each leaf begin at `first`.
        """
        standing, takes, counts = self._standing, self._takes[by_leaf], np.diff(first, append=len(by_leaf))
        places, least = self._place[by_leaf[first]], np.minimum.reduceat(takes, first)
        unused = standing.unused_devices(places)
        alike = (least > 0) & ((least == np.maximum.reduceat(takes, first)) | (unused == 0))
        fitting = np.where(alike, unused // np.maximum(1, least), 0)
        within = np.arange(len(by_leaf)) - first.repeat(counts) < fitting.repeat(counts)
        for leaf in (~alike).nonzero()[0].tolist():
            begins, place = int(first[leaf]), int(places[leaf])
            for at in range(begins, begins + int(counts[leaf])):
                claim = self._claim(int(by_leaf[at]))
                if standing.is_within(place, claim.amounts):
                    standing.count(*claim)
                    within[at] = True
        some = np.logical_or.reduceat(within, first).nonzero()[0]
        levels = [standing.level(place) for place in places[some].tolist()]
        level = {value: number for number, value in enumerate(sorted(set(levels)))}
        rank = np.zeros(len(first), np.int64)
        rank[some] = [level[value] for value in levels]
        taken = by_leaf[within]
        yield from taken[np.lexsort((taken, rank.repeat(counts)[within]))].tolist()
        for number in by_leaf[within & alike.repeat(counts)].tolist():
            standing.count(*self._claim(number))
        left = by_leaf[~within]
        beyond.update(_lists(left, self._place[left]))

    def _borrowing(self, waiting: Mapping[int, Sequence[int]]) -> Iterator[int]:
        """Yield the units that are not within guarantees, in order, if no guarantee is for several leaves."""
        leaves = [self._of_borrower(place, numbers) for place, numbers in waiting.items()]
        heap = [(*next(of_leaf), of_leaf) for of_leaf in leaves]
        heapify(heap)
        while heap:
            _, number, of_leaf = heap[0]
            yield number
            if (following := next(of_leaf, None)) is None:
                heappop(heap)
            else:
                heapreplace(heap, (*following, of_leaf))

    def _of_borrower(self, place: int, numbers: Sequence[int]) -> Iterator[tuple[int, int]]:
        """Yield the units of a leaf, each with the level of the leaf before it is taken. Similar units are counted
        together.
        """
        standing, leaf, like = self._standing, self._standing.nodes[place].name, _NOTHING
        each, taken, level = None, 0, standing.level(place)
        for number in numbers:
            yield level, number
            amounts = self._claim(number).amounts
            if amounts is not like and taken:
                standing.count(leaf, _times(like, taken))
            if amounts is not like or each is None:
                like, taken, each = amounts, 0, standing.each_borrows(place, amounts)
            if each is None:
                standing.count(leaf, amounts)
                level = standing.level(place)
            else:
                taken += 1
                level = standing.level_with(place, taken * each)
        if taken:
            standing.count(leaf, _times(like, taken))

    def _merged(self, waiting: Mapping[int, Sequence[int]], beyond: dict[int, list[int]] | None) -> Iterator[int]:
        """Yield the units that wait, in order. With `beyond`, put there those that are not within the guarantee of a
        node above them: what is taken meanwhile never brings them within it.
        """
        standing = self._standing
        paths = {place: standing.path(standing.nodes[place].name) for place in waiting}
        children: dict[int, dict[int, None]] = {_ROOT: {}}
        for path in paths.values():
            above = _ROOT
            for place in path:
                children.setdefault(above, {})[place] = None
                above = place
        is_flat = all(len(path) == 1 for path in paths.values())
        for number in self._below(_ROOT, waiting, children, beyond):
            if is_flat or not self._is_beyond(number, beyond):  # another one below the same node may have been taken
                yield number
                standing.count(*self._claim(number))

    def _below(
        self,
        place: int,
        waiting: Mapping[int, Sequence[int]],
        children: Mapping[int, Iterable[int]],
        beyond: dict[int, list[int]] | None,
    ) -> Iterator[int]:
        """Yield the units that wait below a node, in order; the caller counts each before the next."""
        if place in waiting:
            yield from self._of_leaf(place, waiting[place], beyond)
            return
        heap: list[tuple[_Key, int, Iterator[int]]] = []
        for child in children[place]:
            of_child = self._below(child, waiting, children, beyond)
            if (number := next(of_child, None)) is not None:
                heap.append((self._key(child, number, beyond), child, of_child))
        heapify(heap)
        while heap:
            (*_, first), child, of_child = heap[0]
            yield first
            if (number := next(of_child, None)) is None:
                heappop(heap)
            else:
                heapreplace(heap, (self._key(child, number, beyond), child, of_child))

    def _of_leaf(self, place: int, numbers: Sequence[int], beyond: dict[int, list[int]] | None) -> Iterator[int]:
        """Yield the units of a leaf. With `beyond`, put there those that are not within a guarantee."""
        if beyond is None:
            yield from numbers
            return
        standing, leaf, used_up = self._standing, self._standing.nodes[place].name, False
        for number in numbers:
            used_up = used_up or standing.is_used_up(leaf)
            if used_up and self._ones[number].shape.gpus:
                beyond.setdefault(place, []).append(number)
            elif not self._is_beyond(number, beyond):
                yield number

    def _is_beyond(self, number: int, beyond: dict[int, list[int]] | None) -> bool:
        """Return whether a unit is set aside, and do so."""
        if beyond is None or self._standing.is_entitled(self._claim(number)):
            return False
        beyond.setdefault(self._standing.path(self._ones[number].leaf)[-1], []).append(number)
        return True

    def _key(self, place: int, number: int, beyond: dict[int, list[int]] | None) -> _Key:
        standing = self._standing
        borrows = beyond is None or not standing.is_within(place, self._claim(number).amounts)
        return borrows, standing.level(place), number

    def _claim(self, number: int) -> Claim:
        """Return what a unit would hold."""
        one, standing = self._ones[number], self._standing
        claim = self._claims.get(one.queue)
        if claim is None:
            if not standing.is_plain(one.leaf):
                return standing.claim(one, self._fleet)
            request = one.shape, one.least or one.tasks
            amounts = self._amounts.get(request)
            if amounts is None:
                amounts = self._amounts[request] = standing.claim(one, self._fleet).amounts
            claim = self._claims[one.queue] = Claim(one.leaf, amounts)
        return claim


# --- explanations ----------------------------------------------------------------------------------------------------


def _times(amounts: Mapping[str, int], times: int) -> dict[str, int]:
    return {model: amount * times for model, amount in amounts.items()}


def _lists(numbers: Ints, places: Ints) -> dict[int, list[int]]:
    """Return the numbers by place."""
    found = defaultdict[int, list[int]](list)
    for number, place in zip(numbers.tolist(), places.tolist(), strict=True):
        found[place].append(number)
    return found
