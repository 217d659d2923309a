"""Keep work off nodes that end, or that are reserved for others, before the work is expected to end.

A node may end at a known time, when its allocation ends. Work that would not end before is excluded from it in the view
of a policy, as if its user had excluded the node. So this holds under every policy. Work of unknown run time is not
excluded, nor is a service, which has no end. Work with checkpoints must only complete some of them there.

The start of a reservation of another tenant is such an end. A firm one is sure to begin in time: work that may not be
preempted is placed before it only if its time limit ends by then, and work of unknown run time only if it may be
preempted.
"""

from bisect import bisect_left
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

import msgspec

from poise.model.decisions import UNKNOWN
from poise.model.fleet import Resident
from poise.model.profiles import Profile, estimate_run
from poise.model.reservations import Window
from poise.model.resources import Shape
from poise.model.tenants import tenant_of_queue
from poise.model.views import Candidate
from poise.units import MINUTE, SECOND

CHECKPOINTS = 2
"""Minimum number of checkpoints on a node that make a start worthwhile."""

WORTHWHILE = MINUTE
"""Minimum time before a firm reservation for which work of unknown run time is started."""

NOTICED = 5 * SECOND
"""Time within which the controller notices work on a place that will soon be reserved."""

FOREVER = 2**62


class Kept(NamedTuple):
    """Nodes and reservations (of devices) that one candidate may not use, each with the time as text."""

    nodes: tuple[tuple[str, str], ...] = ()
    reservations: tuple[tuple[str, str], ...] = ()


NOTHING = Kept()


class Booked:
    """Windows of reservations that have not ended, in order of their start."""

    def __init__(self, windows: Sequence[Window]) -> None:
        self.windows = tuple(windows)
        self._firm = [window for window in windows if window.firm]
        self._soft = [window for window in windows if not window.firm]
        self._firm_begins = [window.begin for window in self._firm]
        self._soft_begins = [window.begin for window in self._soft]
        self._known: dict[tuple[str, int, int], Kept] = {}

    def against(self, tenant: str, firm: int, soft: int, now: int) -> Kept:
        """Return the places that work of a tenant may not use if it needs this long before a firm and before a soft
        reservation, in nanoseconds.
        """
        if not self.windows:
            return NOTHING
        before_firm = bisect_left(self._firm_begins, now + max(1, firm))
        before_soft = bisect_left(self._soft_begins, now + max(1, soft))
        key = tenant, before_firm, before_soft
        known = self._known.get(key)
        if known is None:
            nodes: dict[str, str] = {}
            reservations: dict[str, str] = {}
            for window in sorted((*self._firm[:before_firm], *self._soft[:before_soft]), key=_begin):
                if window.tenant != tenant:
                    for spot in window.spots:
                        told = f"{window.told} ({window.reservation})"
                        if spot.devices:
                            reservations.setdefault(window.reservation, told)
                        else:
                            nodes.setdefault(spot.node, told)
            known = self._known[key] = Kept(tuple(sorted(nodes.items())), tuple(sorted(reservations.items())))
        return known


class Ends:
    """The ends of nodes and the windows of reservations, as of an instant."""

    def __init__(
        self, ends: Sequence[tuple[str, int]], booked: Booked, profiles: Mapping[str, Profile], now: int
    ) -> None:
        self._ends, self._booked, self._profiles, self._now = ends, booked, profiles, now
        self._made: dict[tuple[Shape, int, Kept, tuple[tuple[str, int], ...]], Shape] = {}

    def candidates(self, candidates: tuple[Candidate, ...]) -> tuple[Candidate, ...]:
        """Return the candidates to show."""
        if not self._ends and not self._booked.windows:
            return candidates
        return tuple(map(self.candidate, candidates))

    def candidate(self, candidate: Candidate) -> Candidate:
        """Return one candidate to show: without the nodes and devices that it may not use."""
        lasts = must_last(candidate, self._profiles)
        left = [(name, until - self._now) for name, until in self._ends if until - self._now < max(lasts, 1)]
        kept = self.kept_from(candidate)
        if not left and kept == NOTHING:
            return candidate
        ending = tuple((name, max(0, of) // MINUTE * MINUTE) for name, of in left)
        lasts = lasts if left else self._before_firm(candidate)
        shape, *others = (self._away(shape, lasts, kept, ending) for shape in (candidate.shape, *candidate.others))
        return msgspec.structs.replace(candidate, shape=shape, others=tuple(others))

    def residents(self, residents: tuple[Resident, ...], tenant_of: Callable[[str], str]) -> tuple[Resident, ...]:
        """Return elastic units to show, which do not grow where they may not run now. `tenant_of` maps a unit to its
        tenant.
        """
        if not self._booked.windows:
            return residents
        return tuple(
            msgspec.structs.replace(one, shape=self._away(one.shape, WORTHWHILE, kept, ()))
            if (kept := self._booked.against(tenant_of(one.unit), WORTHWHILE, 0, self._now)) != NOTHING
            else one
            for one in residents
        )

    def kept_from(self, candidate: Candidate) -> Kept:
        """Return the places that others have reserved before this work would end."""
        if not self._booked.windows:
            return NOTHING
        soft = must_last(candidate, self._profiles)
        return self._booked.against(tenant_of_queue(candidate.queue), self._before_firm(candidate), soft, self._now)

    def _before_firm(self, candidate: Candidate) -> int:
        """Return how long before a firm reservation this work must start, in nanoseconds."""
        if not candidate.preemptible:
            return candidate.limit or FOREVER
        longest = must_last(candidate, self._profiles) or WORTHWHILE
        longest = min(longest, candidate.limit) if candidate.limit else longest
        return max(longest, candidate.grace + NOTICED)

    def _away(self, shape: Shape, lasts: int, kept: Kept, ending: tuple[tuple[str, int], ...]) -> Shape:
        key = shape, lasts, kept, ending
        made = self._made.get(key)
        if made is None:
            where = msgspec.structs.replace(shape.where, ending=ending, lasts=lasts, kept=kept.nodes)
            wants = msgspec.structs.replace(shape.wants, kept=kept.reservations) if kept.reservations else shape.wants
            made = self._made[key] = msgspec.structs.replace(shape, where=where, wants=wants)
        return made


def must_last(candidate: Candidate, profiles: Mapping[str, Profile]) -> int:
    """Return how long a node must last to be useful for this work, in nanoseconds: a duration that nearly all runs stay
    below; 0 if unknown.
    """
    if candidate.serves:
        return 0
    estimate = estimate_run(profiles.get(candidate.kind), candidate.declared)
    if estimate.source == UNKNOWN and not candidate.left:
        return 0
    longest = max(candidate.expected, candidate.expected * estimate.most // max(1, estimate.mean))
    if candidate.preemptible and candidate.checkpoint:
        longest = min(longest, CHECKPOINTS * candidate.checkpoint + candidate.restore)
    return longest


def _begin(window: Window) -> int:
    return window.begin
