"""Rounds that decided something, as the log has them: what, why, and which alternatives were weighed.

    decided = Rounds(Ledger())
    for event in events:
        decided.add(event)
    for round in decided.latest(): ...

The latest rounds are kept, each with its first decisions. Logs from before rounds were recorded have one for each
instant at which something was decided.
"""

from collections import deque
from collections.abc import Collection, Iterator
from itertools import islice, zip_longest

import msgspec

from poise.kernel.explain import what_for
from poise.kernel.ledger import Ledger
from poise.kernel.visible import Sight
from poise.model.decisions import Spot
from poise.model.events import Event, Held, Placed, Preempted, Resized, Round
from poise.model.rounds import Decided, Made, What

KEPT = 20_000
"""Rounds that are kept."""

EACH = 100
"""Decisions that are told of one round."""

FEW = 32
"""Units of a queue that are named."""


class Rounds:
    """Follows a log from the state in `ledger` on, which it changes."""

    def __init__(self, ledger: Ledger) -> None:
        self.ledger = ledger
        self._kept: deque[Decided] = deque(maxlen=KEPT)
        self._made: list[Made] = []
        self._left_out = 0
        self._last: tuple[int, int, int] = (0, 0, 0)

    def add(self, event: Event) -> None:
        """Take in the next event of the log."""
        self.ledger.apply(event)
        self.note(event)

    def note(self, event: Event) -> None:
        """Take in an event that the ledger has."""
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
        sight: Sight | None = None,
    ) -> list[Decided]:
        """The latest rounds (0: all that are kept) up to before a revision and from a time on, the newest first: of
        these `jobs` only, where any are named, and what may be seen with this `sight`.
        """
        self._close()
        found = (
            seen
            for told in reversed(self._kept)
            if told.at >= since and (not before or told.revision < before)
            for seen in _seen(told, jobs, sight)
        )
        return list(islice(found, count or None))

    def _take(self, event: Placed | Preempted | Resized | Held) -> None:
        base = 0 if isinstance(event, Held) else event.why.base
        self._last = (self.ledger.revision, event.at, base or self._last[2])
        if len(self._made) == EACH:
            self._left_out += 1
        elif isinstance(event, Held):
            self._made += _held(event, list(self.ledger.queues.get(event.queue, ())))
        else:
            self._made.append(_made(event))

    def _close(self, policy: str = "", fired: tuple[str, ...] = ()) -> None:
        """The round is complete; one in which nothing was decided for anybody is not told of."""
        if self._made:
            revision, at, base = self._last
            self._kept.append(
                Decided(
                    revision=revision,
                    base=base,
                    at=self.ledger.leader.wall(at),
                    policy=policy or self.ledger.leader.policy,
                    made=tuple(self._made),
                    fired=fired,
                    left_out=self._left_out,
                )
            )
        self._made, self._left_out = [], 0


def _made(event: Placed | Preempted | Resized) -> Made:
    why = event.why
    others = dict(zip_longest(why.instead_of, why.behind[: len(why.instead_of)]))
    if isinstance(event, Placed):
        where, text = tuple(dict.fromkeys(map(_place, event.spots))), why.sentence()
        text = f"{text}; behind its like" if event.queued else text
        return Made(
            what="placed",
            of=(event.unit,),
            why=text,
            where=where,
            score=why.score,
            instead_of=others,
            fitting=why.fitting,
        )
    joins = tuple(dict.fromkeys(_place(spot) for _, spot in event.joins)) if isinstance(event, Resized) else ()
    what: What = "resized" if isinstance(event, Resized) else "preempted"
    return Made(
        what=what, of=(event.unit,), why=what_for(event), to=event.to, where=joins, score=why.score, instead_of=others
    )


def _held(event: Held, waiting: list[str]) -> Iterator[Made]:
    if waiting and event.reasons:
        why = "; ".join(reason.sentence() for reason in event.reasons)
        yield Made(what="held", of=tuple(waiting[:FEW]), more=max(0, len(waiting) - FEW), why=why)


def _place(spot: Spot) -> str:
    """`n1[0, 1]`."""
    return f"{spot.node}{list(spot.devices)}" if spot.devices else spot.node


def _seen(told: Decided, jobs: Collection[str], sight: Sight | None) -> Iterator[Decided]:
    """The round with what is asked for, and may be seen, unless that is nothing."""
    made = [one for one in told.made if not jobs or _jobs_of(one) & set(jobs)]
    if sight is not None and not sight.bearer.sees_all:
        made = [sight.only(one) for one in made if any(map(sight.shows, _jobs_of(one)))]
    if made:
        all_of_it = len(made) == len(told.made)
        yield msgspec.structs.replace(told, made=tuple(made), left_out=told.left_out if all_of_it else 0)


def _jobs_of(made: Made) -> set[str]:
    return {name.partition(".")[0] for name in made.of}
