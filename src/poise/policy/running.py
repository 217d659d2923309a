"""What runs, in columns: when each attempt is foreseen to end, and how long it likely goes on.

Most of what runs is the same from one view to the next, and so is what is foreseen of it: what was worked out for a
node is remembered with the fleet (`Fleet.runs`), and holds as long as the same attempts run there and the profiles that
it came from are the same.
"""

from collections.abc import Callable
from functools import cached_property
from itertools import accumulate
from typing import Any, NamedTuple

import numpy as np

from poise.model.fleet import Fleet, Floats, Ints, Resident
from poise.model.jobs import GRACE
from poise.model.profiles import remaining, remaining_each
from poise.policy.predict import Speeds

SINCE, RUNS, STOPPING, MEAN, DEVIATION, LIKELY, LIKELY_DEVIATION = range(7)


def lost_work(resident: Resident, now: int) -> int:
    """Nanoseconds of one task's work that are lost if it yields now, and of restoring it."""
    elapsed = max(0, now - resident.since) if resident.running else 0
    if resident.kept:
        return max(0, now - resident.kept) + resident.restore
    lost = elapsed % resident.checkpoint if resident.checkpoint else elapsed
    return lost + resident.restore


class _Seen(NamedTuple):
    """What is foreseen of each of a node's attempts, in `columns` (7, A) as well, and what that came from."""

    residents: tuple[Resident, ...]
    throughputs: object
    names: tuple[str, ...]
    profiles: tuple[Any, ...]
    foreseen: list[list[int]]
    columns: Ints


class Running:
    """All attempts of a fleet at an instant, row by row: `residents` and all columns are in that order."""

    def __init__(self, fleet: Fleet, speeds: Speeds, now: int) -> None:
        self._fleet, self._speeds, self._now = fleet, speeds, now
        self._seen: dict[int, _Seen] = {}
        self._endings: dict[int, tuple[list[tuple[int, int]], list[int]]] = {}
        self.residents = [one for on in fleet.residents for one in on]

    def each(self, name: object, make: Callable[[Resident], list[int]]) -> Ints:
        """What `make` says of each attempt, in columns; of what still runs where it ran it is remembered under this
        `name`.
        """
        runs, parts = self._fleet.runs, []
        for row, residents in enumerate(self._fleet.residents):
            if residents:
                known = runs.get((name, row))
                if known is None or known[0] is not residents:
                    known = runs[name, row] = (residents, np.array([make(one) for one in residents], np.int64).T)
                parts.append(known[1])
        return np.concatenate(parts, axis=1) if parts else np.zeros((0, 0), np.int64)

    @cached_property
    def elapsed(self) -> Ints:
        """(A,): nanoseconds since it began; of what has not begun, since it was placed."""
        elapsed: Ints = np.maximum(0, self._now - self._columns[SINCE])
        return elapsed

    @cached_property
    def left(self) -> Ints:
        """(A,): nanoseconds for which each likely goes on where it is."""
        columns = self._columns
        left: Ints = remaining_each(self.elapsed, columns[LIKELY], columns[LIKELY_DEVIATION])
        return left

    @property
    def varies(self) -> Floats:
        """(A,): the mean deviation of each one's run time, as a part of it."""
        columns = self._columns
        varies: Floats = columns[DEVIATION] / np.maximum(1, columns[MEAN])
        return varies

    def endings(self, row: int) -> tuple[list[tuple[int, int]], list[int]]:
        """What runs on a row in the order in which it will end: the instant, and its number there; and how many
        thousandths of devices have come free with it.
        """
        found = self._endings.get(row)
        if found is None:
            residents = self._fleet.residents[row]
            order = sorted((self._end(foreseen), number) for number, foreseen in enumerate(self._on(row).foreseen))
            freed = accumulate(residents[number].shape.share * residents[number].shape.gpus for _, number in order)
            found = self._endings[row] = order, list(freed)
        return found

    def _end(self, foreseen: list[int]) -> int:
        """The instant at which it is expected to end; what has overrun is estimated anew."""
        since, runs, stopping, mean, deviation, *_ = foreseen
        if stopping:
            return self._now + GRACE
        return self._now + remaining(max(0, self._now - since) if runs else 0, mean, deviation)

    @cached_property
    def _columns(self) -> Ints:
        parts = [self._on(row).columns for row, residents in enumerate(self._fleet.residents) if residents]
        return np.concatenate(parts, axis=1) if parts else np.zeros((LIKELY_DEVIATION + 1, 0), np.int64)

    def _on(self, row: int) -> _Seen:
        found = self._seen.get(row)
        if found is None:
            found = self._seen[row] = self._look(row)
        return found

    def _look(self, row: int) -> _Seen:
        """What was seen of it for an earlier view, if that still holds."""
        residents, speeds, runs = self._fleet.residents[row], self._speeds, self._fleet.runs
        known: _Seen | None = runs.get(("running", row))
        if (
            known is not None
            and known.residents is residents
            and known.throughputs is speeds.throughputs
            and known.profiles == speeds.profiles_of(known.names)
        ):
            return known
        foreseen = [self._foreseen(one) for one in residents]
        names = tuple(dict.fromkeys(name for one in residents for name in speeds.sources_of(one.kind, one.model)))
        found = runs["running", row] = _Seen(
            residents, speeds.throughputs, names, speeds.profiles_of(names), foreseen, np.array(foreseen, np.int64).T
        )
        return found

    def _foreseen(self, resident: Resident) -> list[int]:
        mean, likely = self._speeds.of_attempt(resident), self._speeds.of_attempt(resident, count_on=True)
        return [
            resident.since,
            resident.running,
            resident.stopping,
            mean.mean,
            mean.deviation,
            likely.mean,
            likely.deviation,
        ]
