"""Rounds with decisions, from the log: the decisions, their reasons, and the alternatives considered.

    decided = Rounds(Ledger())
    for event in events:
        decided.add(event)
    for round in decided.latest(): ...

The latest rounds are stored, each with its first decisions. Logs from before rounds were recorded have one round for
each instant with decisions.
"""

from collections import deque
from collections.abc import Collection, Iterator
from itertools import islice, zip_longest
from typing import NamedTuple

from poise.kernel.explain import what_for
from poise.kernel.ledger import Ledger
from poise.kernel.visible import Sight
from poise.model.decisions import Reason, Spot
from poise.model.events import Event, Held, Placed, Preempted, Resized, Round
from poise.model.rounds import Decided, Made

KEPT = 20_000
"""Maximum number of rounds stored."""

EACH = 100
"""Maximum number of decisions stored per round."""

FEW = 32
"""Maximum number of units named per queue."""


class _Waits(NamedTuple):
    """The first units of a held queue, the number of further units, and the reasons."""

    units: tuple[str, ...]
    more: int
    reasons: tuple[Reason, ...]


_Decision = Placed | Preempted | Resized | _Waits


class _Kept(NamedTuple):
    """A stored round; it is formatted on request."""

    revision: int
    base: int
    at: float
    policy: str
    fired: tuple[str, ...]
    decisions: tuple[_Decision, ...]
    left_out: int


class Rounds:
    """Follows a log from the state in `ledger`, which it changes."""

    def __init__(self, ledger: Ledger) -> None:
        self.ledger = ledger
        self._kept: deque[_Kept] = deque(maxlen=KEPT)
        self._open: list[_Decision] = []
        self._left_out = 0
        self._last: tuple[int, int, int] = (0, 0, 0)

    def add(self, event: Event) -> None:
        """Read the next event of the log."""
        self.ledger.apply(event)
        self.note(event)

    def note(self, event: Event) -> None:
        """Read an event that the ledger has already applied."""
        if isinstance(event, Placed | Preempted | Resized | Held):
            if event.at != self._last[1]:
                self._close()
            self._take(event)
        elif isinstance(event, Round):
            self._last = (self.ledger.revision, event.at, event.base)
            self._close(event.policy, event.fired)

    def latest(
        self,
        count: int = 0,
        *,
        before: int = 0,
        since: float = 0.0,
        jobs: Collection[str] = (),
        node: str = "",
        sight: Sight | None = None,
    ) -> list[Decided]:
        """Return the latest rounds, the newest first: before a revision and since a time, at most `count` (0: all
        stored).

        With `jobs`, return only decisions about these; with `node`, only those that chose or considered it. With
        `sight`, return only the visible parts.
        """
        self._close()
        found = (
            seen
            for kept in reversed(self._kept)
            if kept.at >= since and (not before or kept.revision < before)
            for seen in _seen(kept, jobs, node, sight)
        )
        return list(islice(found, count or None))

    def _take(self, event: Placed | Preempted | Resized | Held) -> None:
        base = 0 if isinstance(event, Held) else event.why.base
        self._last = (self.ledger.revision, event.at, base or self._last[2])
        if len(self._open) == EACH:
            self._left_out += 1
        elif not isinstance(event, Held):
            self._open.append(event)
        elif event.reasons and (waiting := self.ledger.queues.get(event.queue)):
            self._open.append(_Waits(tuple(islice(waiting, FEW)), max(0, len(waiting) - FEW), event.reasons))

    def _close(self, policy: str = "", fired: tuple[str, ...] = ()) -> None:
        """Store the complete round, unless it has no decisions."""
        if self._open:
            revision, at, base = self._last
            leader = self.ledger.leader
            self._kept.append(
                _Kept(
                    revision,
                    base,
                    leader.wall(at),
                    policy or leader.policy,
                    fired,
                    tuple(self._open),
                    self._left_out,
                )
            )
        self._open, self._left_out = [], 0


def _seen(kept: _Kept, jobs: Collection[str], node: str, sight: Sight | None) -> Iterator[Decided]:
    """Yield the requested and visible part of the round, unless that is empty."""
    chosen = [one for one in kept.decisions if not jobs or not set(jobs).isdisjoint(_jobs_of(one))]
    if node:
        chosen = [one for one in chosen if node in _nodes_of(one)]
    if sight is not None and not sight.bearer.sees_all:
        chosen = [one for one in chosen if any(map(sight.shows, _jobs_of(one)))]
    if not chosen:
        return
    made = map(_made, chosen)
    yield Decided(
        revision=kept.revision,
        base=kept.base,
        at=kept.at,
        policy=kept.policy,
        made=tuple(made if sight is None else map(sight.only, made)),
        fired=kept.fired,
        left_out=kept.left_out if len(chosen) == len(kept.decisions) else 0,
    )


def _jobs_of(one: _Decision) -> set[str]:
    return {name.partition(".")[0] for name in (one.units if isinstance(one, _Waits) else (one.unit,))}


def _nodes_of(one: _Decision) -> Iterator[str]:
    """Yield the chosen nodes, and the best rejected ones."""
    if isinstance(one, Placed):
        yield from (spot.node for spot in one.spots)
    elif isinstance(one, Resized):
        yield from (spot.node for _, spot in one.joins)
    if not isinstance(one, _Waits):
        yield from one.why.instead_of


def _made(one: _Decision) -> Made:
    if isinstance(one, _Waits):
        reasons = "; ".join(reason.sentence() for reason in one.reasons)
        return Made(what="held", of=one.units, more=one.more, why=reasons)
    why, others = one.why, dict(zip_longest(one.why.instead_of, one.why.behind[: len(one.why.instead_of)]))
    if isinstance(one, Placed):
        return Made(
            what="placed",
            of=(one.unit,),
            why=f"{why.sentence()}; behind its like" if one.queued else why.sentence(),
            where=tuple(dict.fromkeys(map(_place, one.spots))),
            score=why.score,
            instead_of=others,
            fitting=why.fitting,
        )
    return Made(
        what="resized" if isinstance(one, Resized) else "preempted",
        of=(one.unit,),
        why=what_for(one),
        to=one.to,
        where=tuple(dict.fromkeys(_place(spot) for _, spot in one.joins)) if isinstance(one, Resized) else (),
        score=why.score,
        instead_of=others,
    )


def _place(spot: Spot) -> str:
    """Return a spot as text: `n1[0, 1]`."""
    return f"{spot.node}{list(spot.devices)}" if spot.devices else spot.node
