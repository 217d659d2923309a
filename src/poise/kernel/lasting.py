"""Work goes only to nodes that last for as long as it is expected to run.

A node may end at a known time: its allocation does, or its maintenance begins. What would not end before that is kept
away from it in what a policy is shown, as if its user had excluded the node; so every policy keeps to it. Work whose
run time nobody knows is not kept away, and neither is a service, which has no end. Work that saves itself must only get
on by some checkpoints there.
"""

from collections.abc import Iterable, Mapping, Sequence

import msgspec

from poise.model.decisions import UNKNOWN
from poise.model.profiles import Profile, estimate_run
from poise.model.resources import Shape
from poise.model.views import Candidate
from poise.units import MINUTE

CHECKPOINTS = 2
"""Checkpoints that work makes on a node at least, to be worth its start."""


def lasting(
    candidates: tuple[Candidate, ...], ends: Sequence[tuple[str, int]], profiles: Mapping[str, Profile], now: int
) -> tuple[Candidate, ...]:
    """The candidates as they are shown, where these nodes end at these instants."""
    if not ends:
        return candidates
    return tuple(one_lasting(candidate, ends, profiles, now) for candidate in candidates)


def one_lasting(
    candidate: Candidate, ends: Iterable[tuple[str, int]], profiles: Mapping[str, Profile], now: int
) -> Candidate:
    """The same of one candidate."""
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
    """For how long a node must last to be of use for this work, in nanoseconds: what nearly all runs stay under; 0 if
    nothing is known.
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
