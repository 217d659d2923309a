"""The timeline: rows by node and device, a slice for each phase of each attempt, in levels of detail.

    slices = Slices(Ledger())
    for event in events:
        slices.add(event)
    picture = slices.window(now, since, now, pixels=1200)

A row holds one attempt at a time: attempts that share a device, or a node without devices, have separate rows. A slice
takes about 20 bytes; beyond `MOST` slices the older ones are dropped. The cost of a window depends on the visible
slices: those shorter than a pixel are drawn as one.
"""

import re
from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Collection, Iterable, Iterator, Sequence
from itertools import chain, islice
from typing import NamedTuple, get_args

import msgspec
import numpy as np

from poise.kernel.follow import Following, Seen
from poise.kernel.ledger import Ledger
from poise.model.decisions import Spot
from poise.model.events import Event
from poise.model.history import Level
from poise.model.jobs import FAILED
from poise.model.tenants import HOME, Bearer
from poise.model.timeline import Phase, Row, Slice, Timeline

MOST = 4_000_000
"""Maximum number of slices. A log retains a million records, and each attempt has a few slices."""

LANES = 256
"""Maximum rows of one device, or of a node for attempts without one."""

WAITING = 24
"""Maximum rows of waiting units."""

_PHASES: tuple[Phase, ...] = get_args(Phase)
_CODES = {phase: code for code, phase in enumerate(_PHASES)}
_FAILED = 16
"""Added to the code of the last slice of an attempt that failed."""

_NUMBER = re.compile(r"([0-9]+)")
_KINDS = ("device", "slot", "waiting")


class _Key(NamedTuple):
    """Subject of a group of rows: a device, the slots of a node, or (without a node) the waiting units."""

    node: str
    kind: int
    number: int


class _Kept(msgspec.Struct, frozen=True, gc=False):
    """Record of an ended attempt."""

    task: str
    epoch: int
    tenant: str
    priority: str
    outcome: str
    why: str = ""
    note: str = ""


_Open = tuple[int, int, Phase, _Kept]
"""A slice without a fixed end: beginning, end, phase, attempt."""


class _Lane:
    """One row: slices one after the other, and its current attempt, if any."""

    __slots__ = ("attempts", "codes", "holder", "since", "until")

    def __init__(self) -> None:
        self.since, self.until, self.codes = array("q"), array("q"), array("b")
        self.attempts: list[_Kept] = []
        self.holder: Seen | None = None

    def is_free(self, since: int) -> bool:
        return self.holder is None and (not self.until or self.until[-1] <= since)

    def append(self, since: int, until: int, phase: Phase, attempt: _Kept, *, failed: bool = False) -> None:
        self.since.append(since)
        self.until.append(until)
        self.codes.append(_CODES[phase] + _FAILED * failed)
        self.attempts.append(attempt)

    def drop_half(self) -> int:
        """Drop the older half; return the end of the last dropped slice."""
        half = len(self.until) // 2
        last = self.until[half - 1] if half else 0
        for column in (self.since, self.until, self.codes, self.attempts):
            del column[:half]
        return last


class Slices(Following):
    """Follows a log from the state in `ledger`, which it changes. The picture is complete from `known_since` on. With
    `reasons` it also stores the reason of each placement, which doubles its memory.
    """

    def __init__(self, ledger: Ledger, *, reasons: bool = False) -> None:
        self.known_since = ledger.now
        self._reasons = reasons
        self._groups: dict[_Key, list[_Lane]] = {}
        self._lanes: dict[str, list[_Lane]] = {}
        self._rows: list[tuple[_Key, int, _Lane]] | None = None
        self._count = 0
        self._unplaced = {"attempts": 0, "waits": 0}
        self._levels = (array("q"), array("q"), array("q"))
        super().__init__(ledger)

    def add(self, event: Event) -> None:
        """Read the next event of the log."""
        self.known_since = self.known_since or event.at
        super().add(event)
        at, pending, active = self._levels
        now = (self.ledger.queues.pending, len(self.ledger.active))
        if not at or now != (pending[-1], active[-1]):
            for column, value in zip(self._levels, (event.at, *now), strict=True):
                column.append(value)
        if self._count > MOST:
            self._forget()

    # --- what happens ------------------------------------------------------------------------------------------------

    def on_begin(self, attempt: Seen) -> None:
        if attempt.first and attempt.ready < attempt.placed:
            lane = self._free(_Key("", 2, 0), attempt.ready, WAITING)
            if lane is not None:
                self._append(lane, attempt.ready, attempt.placed, "waiting", self._kept(attempt))
            else:
                self._unplaced["waits"] += 1
        if not attempt.queued:
            self._seat(attempt, attempt.placed)

    def on_start(self, attempt: Seen) -> None:
        if attempt.task not in self._lanes:
            self._seat(attempt, attempt.started)

    def on_end(self, attempt: Seen) -> None:
        if attempt.task not in self._lanes and attempt.started:
            self._seat(attempt, attempt.started)
        kept = self._kept(attempt)
        for lane in self._lanes.pop(attempt.task, ()):
            lane.holder = None
            for since, until, phase in _phases(attempt, attempt.ended):
                failed = attempt.outcome in FAILED and until == attempt.ended
                self._append(lane, since, until, phase, kept, failed=failed)

    def _seat(self, attempt: Seen, since: int) -> None:
        keys = [_Key(attempt.node, 0, device) for device in attempt.devices] or [_Key(attempt.node, 1, 0)]
        lanes = self._lanes[attempt.task] = []
        for key in keys:
            lane = self._free(key, since, LANES)
            if lane is not None:
                lane.holder = attempt
                lanes.append(lane)
            else:
                self._unplaced["attempts"] += 1

    def _free(self, key: _Key, since: int, most: int) -> _Lane | None:
        """Return the first row of a group that is free from `since` on; None if all are taken."""
        group = self._groups.setdefault(key, [])
        found = next((lane for lane in group if lane.is_free(since)), None)
        if found is None and len(group) < most:
            found = _Lane()
            group.append(found)
            self._rows = None
        return found

    def _append(
        self, lane: _Lane, since: int, until: int, phase: Phase, attempt: _Kept, *, failed: bool = False
    ) -> None:
        lane.append(since, until, phase, attempt, failed=failed)
        self._count += 1

    def _kept(self, attempt: Seen) -> _Kept:
        why = attempt.why.sentence() if self._reasons and attempt.why is not None else ""
        note = attempt.note if self._reasons else ""
        return _Kept(attempt.task, attempt.epoch, attempt.tenant, attempt.priority, attempt.outcome, why, note)

    def _forget(self) -> None:
        lanes = list(chain.from_iterable(self._groups.values()))
        self.known_since = max(self.known_since, *(lane.drop_half() for lane in lanes))
        self._count = sum(len(lane.since) for lane in lanes)
        old = bisect_left(self._levels[0], self.known_since)
        for column in self._levels:
            del column[: max(0, old - 1)]

    # --- telling it --------------------------------------------------------------------------------------------------

    def window(
        self,
        now: int,
        since: int,
        until: int,
        *,
        pixels: int = 0,
        first: int = 0,
        count: int = 0,
        jobs: Collection[str] = (),
        bearer: Bearer = HOME,
    ) -> Timeline:
        """Return the timeline between two instants, as of `now`: `count` rows from row number `first` on (0: all),
        `pixels` wide (0: every slice). With `jobs`, return only the rows and slices of these. Work of tenants that the
        bearer may not see has no name.
        """
        since = max(since, self.known_since)
        until = max(until, since + 1)
        shown = _Shown(since, max(1, (until - since) // pixels) if pixels else 0, frozenset(jobs), bearer)
        waiting = self._waiting(now)
        rows = []
        for key, beside, lane in self._sorted() if jobs else self._chosen(first, count):
            open_ = self._open_in(lane, now, waiting)
            slices = tuple(shown.slices(lane, until, [one for one in open_ if one[1] > since and one[0] < until]))
            if slices or not jobs:
                name = f"{_KINDS[key.kind]} {_number(key, beside)}"
                rows.append(Row(node=key.node, name=name, beside=beside, slices=slices))
        total = len(rows) if jobs else len(self._sorted())
        chosen = tuple(islice(rows, first, first + count if count else None)) if jobs else tuple(rows)
        return Timeline(
            begins=self.ledger.leader.wall(since),
            length=until - since,
            revision=self.ledger.revision,
            total=total,
            first=first,
            rows=chosen,
            levels=tuple(self._thinned(since, until, pixels or 1000)) if bearer.sees_all else (),
            names=self._names(chosen),
            left_out={name: number for name, number in self._unplaced.items() if number},
        )

    def count(self, since: int, until: int) -> int:
        """Return the number of slices of ended attempts between two instants."""
        lanes = chain.from_iterable(self._groups.values())
        return sum(max(0, bisect_left(lane.since, until) - bisect_right(lane.until, since)) for lane in lanes)

    def _sorted(self) -> list[tuple[_Key, int, _Lane]]:
        if self._rows is None:
            keys = sorted(self._groups, key=_by_number)
            self._rows = [(key, beside, lane) for key in keys for beside, lane in enumerate(self._groups[key])]
        return self._rows

    def _chosen(self, first: int, count: int) -> Iterable[tuple[_Key, int, _Lane]]:
        return islice(self._sorted(), first, first + count if count else None)

    def _waiting(self, now: int) -> dict[int, _Open]:
        """Return the units that wait now, by the row that has room for them."""
        found: dict[int, _Open] = {}
        for unit in self.ledger.queues.first(WAITING):
            since = max(unit.ready, unit.not_before)
            lane = next((one for one in self._lanes_of_waiting() if id(one) not in found and one.is_free(since)), None)
            if lane is not None and since < now:
                found[id(lane)] = (since, now, "waiting", self._kept(self._seen(unit, 0, Spot(""), 0, None)))
        return found

    def _lanes_of_waiting(self) -> Iterator[_Lane]:
        key = _Key("", 2, 0)
        yield from self._groups.get(key, ())
        while len(self._groups.get(key, ())) < WAITING:
            self._rows = None
            self._groups.setdefault(key, []).append(lane := _Lane())
            yield lane

    def _open_in(self, lane: _Lane, now: int, waiting: dict[int, _Open]) -> list[_Open]:
        holder = lane.holder
        if holder is not None:
            kept = self._kept(holder)
            return [(since, until, phase, kept) for since, until, phase in _phases(holder, now)]
        return [waiting[id(lane)]] if id(lane) in waiting else []

    def _thinned(self, since: int, until: int, points: int) -> Iterator[Level]:
        """Yield the maximum of each interval, so that no peak is lost, and the value at its end."""
        at, pending, active = (np.array(column) for column in self._levels)
        begin, end = np.searchsorted(at, [since, until], "right")
        if begin:
            yield Level(0, int(pending[begin - 1]), int(active[begin - 1]))
        if begin < end:
            places = (at[begin:end] - since) // max(1, (until - since) // points)
            firsts = np.flatnonzero(np.diff(places, prepend=-1))
            lasts = np.append(firsts[1:], end - begin) - 1
            most = [np.maximum.reduceat(column[begin:end], firsts) for column in (pending, active)]
            ends = [column[begin:end][lasts] for column in (pending, active)]
            columns = (at[begin:end][firsts], *most, at[begin:end][lasts], *ends)
            for first, *highest, last, waits, holds in zip(*(one.tolist() for one in columns), strict=True):
                yield Level(first - since, *highest)
                if highest != [waits, holds]:
                    yield Level(last - since, waits, holds)

    def _names(self, rows: Iterable[Row]) -> dict[str, str]:
        """Return the names that users gave to the jobs, for jobs that the ledger still has."""
        jobs = {one.task.partition(".")[0] for row in rows for one in row.slices if one.task}
        known = self.ledger.jobs
        return {job: known[job].name for job in sorted(jobs) if job in known and known[job].name}


class _Shown(NamedTuple):
    """Draws a row from the instant `since` on; slices shorter than `least` are drawn as one."""

    since: int
    least: int
    jobs: frozenset[str]
    bearer: Bearer

    def slices(self, lane: _Lane, until: int, open_: list[_Open]) -> Iterator[Slice]:
        begin, end = bisect_right(lane.until, self.since), bisect_left(lane.since, until)
        for first, last in self._groups(lane, begin, end):
            phase = _PHASES[lane.codes[first] % _FAILED]
            numbers: Sequence[int] = range(first, last)
            if last - first == 1 or (phase == "waiting" and not self.bearer.sees_all):  # a row of waiting units
                numbers = [number for number in numbers if self._is_asked(phase, lane.attempts[number])]
            if len(numbers) == 1:
                number = numbers[0]
                yield self._one(lane.since[number], lane.until[number], phase, lane.attempts[number])
            elif numbers:
                yield self._many(lane, numbers)
        for since, ends, phase, attempt in open_:
            if self._is_asked(phase, attempt):
                yield self._one(since, ends, phase, attempt)

    def _groups(self, lane: _Lane, begin: int, end: int) -> Iterator[tuple[int, int]]:
        """Yield ranges of slices to draw as one: short neighbours that begin in the same pixel."""
        if not self.least or self.jobs or end - begin < 2:
            yield from ((number, number + 1) for number in range(begin, end))
            return
        since = np.frombuffer(lane.since, np.int64)[begin:end].copy()
        short = np.frombuffer(lane.until, np.int64)[begin:end] - since < self.least
        place = np.where(short, (since - self.since) // self.least, -2 - np.arange(len(since)))
        firsts = begin + np.flatnonzero(np.diff(place, prepend=place[0] - 1))
        yield from zip(firsts.tolist(), [*firsts[1:].tolist(), end], strict=True)

    def _is_asked(self, phase: Phase, attempt: _Kept) -> bool:
        """Return whether the slice belongs to the chosen jobs. Waiting units of other tenants are hidden."""
        seen = phase != "waiting" or self.bearer.sees(attempt.tenant)
        return seen and (not self.jobs or attempt.task.partition(".")[0] in self.jobs)

    def _one(self, since: int, until: int, phase: Phase, attempt: _Kept) -> Slice:
        since, until = since - self.since, until - self.since
        if not self.bearer.sees(attempt.tenant):
            return Slice(since=since, until=until, phase=phase)
        return Slice(
            since=since,
            until=until,
            phase=phase,
            task=attempt.task,
            epoch=attempt.epoch,
            outcome=attempt.outcome if phase != "waiting" else "",
            priority=attempt.priority,
            why=attempt.why if phase != "waiting" else "",
            note=attempt.note if phase != "waiting" else "",
        )

    def _many(self, lane: _Lane, numbers: Sequence[int]) -> Slice:
        first, last = numbers[0], numbers[-1]
        busy = sum(lane.until[number] - lane.since[number] for number in numbers)
        failed = next((number for number in numbers if lane.codes[number] >= _FAILED), first)
        seen = lane.codes[failed] >= _FAILED and self.bearer.sees(lane.attempts[failed].tenant)
        return Slice(
            since=lane.since[first] - self.since,
            until=lane.until[last] - self.since,
            phase="many",
            outcome=lane.attempts[failed].outcome if seen else "",
            count=len(numbers),
            busy=busy,
        )


def _phases(attempt: Seen, until: int) -> Iterator[tuple[int, int, Phase]]:
    """Yield the phases of an attempt up to an instant, each with its beginning and its end."""
    started, asked = attempt.started or until, attempt.asked or until
    if not attempt.queued and attempt.placed < min(started, asked):
        yield attempt.placed, min(started, asked), "starting"
    if started < asked:
        yield started, asked, "running"
    if asked < until:
        yield max(asked, attempt.placed), until, "stopping"


def _number(key: _Key, beside: int) -> int:
    return key.number if key.kind == 0 else beside


def _by_number(key: _Key) -> tuple[list[tuple[bool, int, str]], int, int]:
    """Return the sort key of a group: n2 before n10, waiting units first."""
    parts = [(part.isdigit(), int(part) if part.isdigit() else 0, part) for part in _NUMBER.split(key.node) if part]
    return parts, key.kind, key.number
