"""Distributes waiting work over the substrates that have or can get room for it.

`split` gives each task to the substrate where it is expected to end first. Each task goes to one substrate, so no
machine is requested twice for it. Room for a kind of work consists of openings, each a number of tasks at once after a
delay. Work that is served earlier delays work that is served later. A gang goes to one substrate as a whole.

Machines that exist or are requested already are preferred: new ones must be earlier by a margin.
"""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import msgspec

from poise.model.reports.demand import Demand, Opening, Prospect, Quote
from poise.units import MINUTE, SECOND

GUESS = 5 * MINUTE
"""Assumed run time of a task with an unknown run time."""

MARGIN, PART = 10 * SECOND, 4
"""New machines must be earlier than existing or requested ones by `MARGIN` plus the delay of these divided by `PART`.
"""

HERE = ""
"""Stands for the nodes that exist independently of the waiting work, in place of the name of a substrate."""

Quotes = Mapping[str, Mapping[str, Quote]]
"""Quotes by substrate and by the key of the demand."""


class Share(NamedTuple):
    """The distribution of one demand: the number of tasks by substrate, and the prospects on each substrate. There is
    no room for `left` tasks.
    """

    demand: Demand
    tasks: Mapping[str, int]
    prospects: tuple[Prospect, ...]
    left: int

    def of(self, substrate: str) -> Demand | None:
        """Return the part of the demand that a substrate gets."""
        tasks, whole = self.tasks.get(substrate, 0), self.demand
        if not tasks:
            return None
        work, unknown = whole.work * tasks // whole.tasks, whole.unknown * tasks // whole.tasks
        return msgspec.structs.replace(whole, tasks=tasks, work=work, unknown=unknown)


class _Lane(NamedTuple):
    """Room of a substrate for `groups` gangs or single tasks at once: from `delay` on, nearly certainly from `late`."""

    substrate: str
    groups: int
    delay: int
    late: int
    asked: bool

    def done(self, until: int, run: int) -> int:
        """Return how many groups end by then."""
        return self.groups * max(0, (until - self.delay) // run)

    def end(self, groups: int, run: int) -> int:
        """Return when the last of this number of groups ends."""
        return self.delay + -(-groups // self.groups) * run


class _Used:
    """The use of one substrate by earlier demands: all of it until `behind`, and then a `part` of it for `lasts`."""

    def __init__(self) -> None:
        self.behind, self.part, self.lasts = 0, 0.0, 0

    def lanes(self, substrate: str, openings: Sequence[Opening], together: int) -> list[_Lane]:
        """Return the room that is left for gangs of this size."""
        found = self._left(substrate, openings, together)
        if not found and self.part:
            self.behind, self.part = self.behind + self.lasts, 0.0
            found = self._left(substrate, openings, together)
        return found

    def _left(self, substrate: str, openings: Sequence[Opening], together: int) -> list[_Lane]:
        found, slots, taken = [], 0, 0
        for one in sorted(openings, key=lambda one: one.delay):
            slots += one.slots
            if groups := int(slots * (1 - self.part)) // together - taken:
                taken += groups
                late = max(one.late, one.delay) + self.behind
                found.append(_Lane(substrate, groups, one.delay + self.behind, late, one.asked))
        return found

    def take(self, groups: int, room: int, run: int) -> None:
        """Count groups that use room for `room` groups."""
        waves, rest = divmod(groups, room)
        if waves:
            self.behind, self.part, self.lasts = self.behind + waves * run, rest / room, run
        else:
            self.part += (1 - self.part) * rest / room
            self.lasts = max(self.lasts, run)


def split(waits: Sequence[Demand], quotes: Quotes) -> list[Share]:
    """Distribute each demand, in the order in which they are served."""
    used = {substrate: _Used() for substrate in sorted(quotes)}
    return [_share(work, quotes, used) for work in waits]


def _share(work: Demand, quotes: Quotes, used: Mapping[str, _Used]) -> Share:
    known, together = work.tasks - work.unknown, max(1, work.together)
    run = max(1, work.work // known) if known > 0 and work.work else GUESS
    lanes: list[_Lane] = []
    for substrate, state in used.items():
        if (quote := quotes[substrate].get(work.key)) is not None:
            lanes += state.lanes(substrate, quote.openings, together)
    given = _distribute(lanes, -(-work.tasks // together), run)
    tasks: dict[str, int] = {}
    prospects, left = [], work.tasks
    for substrate, state in used.items():
        if (quote := quotes[substrate].get(work.key)) is None:
            continue
        mine = [(lane, groups) for lane, groups in zip(lanes, given, strict=True) if lane.substrate == substrate]
        if not mine:
            why = quote.why or f"it has no room for {together} tasks at once"
            prospects.append(Prospect(substrate=substrate, why=why))
            continue
        first = min((lane for lane, _ in mine), key=lambda lane: lane.delay)
        end = max(first.end(1, run), *(lane.end(groups, run) for lane, groups in mine))
        if groups := sum(groups for _, groups in mine):
            state.take(groups, sum(lane.groups for lane, _ in mine), run)
            tasks[substrate] = min(left, groups * together)
            left -= tasks[substrate]
        prospects.append(Prospect(substrate=substrate, chosen=groups > 0, start=first.delay, late=first.late, end=end))
    return Share(work, tasks, tuple(prospects), left)


def _distribute(lanes: Sequence[_Lane], groups: int, run: int) -> list[int]:
    """Return how many groups each lane gets, so that the last one ends as early as possible."""
    if not lanes:
        return []
    lanes = _with_margin(lanes)
    least, most = min(lane.delay for lane in lanes), min(lane.end(groups, run) for lane in lanes)
    while least < most:  # the earliest time by which all can end
        until = (least + most) // 2
        least, most = (least, until) if sum(lane.done(until, run) for lane in lanes) >= groups else (until + 1, most)
    given = [lane.done(most, run) for lane in lanes]
    over = sum(given) - groups
    for number, lane in sorted(enumerate(lanes), key=lambda item: (item[1].asked, -item[0])):
        if lane.end(given[number], run) == most:  # of those that end last
            fewer = min(over, lane.groups, given[number])
            given[number] -= fewer
            over -= fewer
    return given


def _with_margin(lanes: Sequence[_Lane]) -> list[_Lane]:
    """Return the lanes with the margin by which those of new machines must be earlier."""
    asked = [lane.delay for lane in lanes if lane.asked]
    if not asked:
        return list(lanes)
    margin = MARGIN + min(asked) // PART
    return [lane if lane.asked else lane._replace(delay=lane.delay + margin) for lane in lanes]
