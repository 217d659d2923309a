"""Keep work off nodes that end before the work is expected to end.

A node may end at a known time, when its allocation ends or its maintenance begins. Work that would not end before is
excluded from it in the view of a policy, as if its user had excluded the node. So this holds under every policy. Work
of unknown run time is not excluded, nor is a service, which has no end. Work with checkpoints must only complete some
of them there.
"""

from collections.abc import Iterable, Mapping, Sequence

import msgspec

from poise.model.decisions import UNKNOWN
from poise.model.profiles import Profile, estimate_run
from poise.model.resources import Shape
from poise.model.views import Candidate
from poise.units import MINUTE

CHECKPOINTS = 2
"""Minimum number of checkpoints on a node that make a start worthwhile."""


def lasting(
    candidates: tuple[Candidate, ...], ends: Sequence[tuple[str, int]], profiles: Mapping[str, Profile], now: int
) -> tuple[Candidate, ...]:
    """Return the candidates to show, if these nodes end at these instants."""
    if not ends:
        return candidates
    return tuple(one_lasting(candidate, ends, profiles, now) for candidate in candidates)


def one_lasting(
    candidate: Candidate, ends: Iterable[tuple[str, int]], profiles: Mapping[str, Profile], now: int
) -> Candidate:
    """Return one candidate, changed likewise."""
    lasts = must_last(candidate, profiles)
    left = [(name, until - now) for name, until in ends if until - now < max(lasts, 1)]
    if not left:
        return candidate
    ending = tuple((name, max(0, of) // MINUTE * MINUTE) for name, of in left)

    def away(shape: Shape) -> Shape:
        where = msgspec.structs.replace(shape.where, ending=ending, lasts=lasts)
        return msgspec.structs.replace(shape, where=where)

    return msgspec.structs.replace(candidate, shape=away(candidate.shape), others=tuple(map(away, candidate.others)))


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
