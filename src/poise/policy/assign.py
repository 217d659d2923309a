"""Assignment of running and waiting units to unequal device models.

The worth of running a unit on a model is its weight over its remaining run time there, including the cost of moving
(`reclaim.values` and `reclaim.standing`). An assignment maximizes the sum over all units. For equal devices that is
shortest remaining time first (Schrage, 1968), with weights Smith's rule (1956). Units are served by worth per device on
their best model, and take the best model left: the greedy rule for a knapsack of several kinds of room. That gives fast
devices to short units, even if those would be nearly as fast elsewhere. So, while the sum grows, one unit moves into
free room or two exchange places: the shift and the interchange of local search for generalised assignment (Osman,
1995). A running unit moves only if the gain exceeds the error of estimates.
"""

from collections.abc import Iterable, Mapping, Sequence
from heapq import heappop, heappush
from itertools import product
from typing import NamedTuple

from poise.model.fleet import Resident
from poise.model.resources import WHOLE
from poise.model.views import Candidate
from poise.policy.place import Draft
from poise.policy.reclaim import values, worth
from poise.policy.running import lost_work
from poise.units import SECOND

Entry = tuple[float, int, str, int, list[tuple[float, int]]]
"""Worth per device (negative), ordinal, unit, devices, and worth by model."""

PRESSED = 3.0
"""Factor of the worth of a unit that must start now to be on time."""

EXCHANGES = 256
"""Maximum number of exchanges in one round, each about 20 us for two models."""

QUEUES = 8192
"""Maximum number of wish queues examined for that in one round, each about 2 us: many models and sizes have many."""


class Wish(NamedTuple):
    """The loss of worth (negative: gain) if a unit assigned to one model goes to another."""

    loss: float
    ordinal: int
    unit: str
    devices: int
    here: int
    there: int


class Aim(NamedTuple):
    """The device model, as an index, where a unit should run, and its worth there."""

    model: int
    worth: float


class Part(NamedTuple):
    """Devices that an elastic unit gets: `devices` of a `model`. Those that it `has` now are of the model `here`."""

    model: int
    devices: int
    has: int = 0
    here: int = 0


def assign(
    draft: Draft, candidates: Sequence[Candidate], standings: Mapping[str, float], shared_out: Iterable[Part] = ()
) -> dict[str, Aim]:
    """Return the model for each unit that should run. Running units that are not in `standings`, or may not be
    preempted now, stay where they are and are not in the result. Devices `shared_out` to others are not available.
    """
    fleet = draft.fleet
    room = {index: 0 for index, model in enumerate(fleet.models) if model.kind != "cpu"}
    free = (draft.share == WHOLE) & (fleet.closed == 0)[:, None]
    for index in room:
        room[index] = int((free & (fleet.device_model == index)).sum())
    for kept in draft.kept.values():
        for one in kept:
            for index in room:
                room[index] -= one.shape.gpus * one.tasks if draft.able(one.shape).models[index] else 0
    for part in shared_out:
        room[part.model] -= part.devices
        room[part.here] += part.has
    names = {model.called: index for index, model in enumerate(fleet.models) if model.kind != "cpu"}
    entries: list[Entry] = []
    left = dict(zip([one.unit for one in draft.running.residents], draft.running.left.tolist(), strict=True))
    for resident in _units(fleet.residents):
        if standings.get(resident.unit, 0) and resident.shape.share == WHOLE and resident.shape.gpus:
            here = names.get(resident.model)
            if here is not None and standings[resident.unit] < float("inf"):
                entry = _running(draft, resident, here, standings[resident.unit], left[resident.unit])
                room[here] += entry[3]
                entries.append(entry)
    entries += [_waiting(draft, one) for one in candidates if one.shape.gpus and one.shape.share == WHOLE]
    target: dict[str, int] = {}
    entries.sort()
    for _, _, unit, devices, worths in entries:
        best = max(((gain, -index) for gain, index in worths if room[index] >= devices), default=None)
        if best is not None:
            target[unit] = -best[1]
            room[-best[1]] -= devices
    improve(entries, target, room)
    return {
        unit: Aim(target[unit], gain)
        for _, _, unit, _, worths in entries
        for gain, index in worths
        if target.get(unit) == index
    }


def in_time(draft: Draft, candidate: Candidate, runs: Mapping[int, int]) -> dict[int, int]:
    """Return those of a waiting unit's run times by model that end before it is due."""
    return {model: run for model, run in runs.items() if draft.view.now + run <= candidate.due}


def improve(entries: Iterable[Entry], target: dict[str, int], room: dict[int, int]) -> None:
    """Move a unit to a model that has room, or exchange two, while the total worth of `target` grows: each time the
    change with the largest gain.
    """
    about = {unit: (ordinal, devices, worths) for _, ordinal, unit, devices, worths in entries if unit in target}
    wishes: dict[tuple[int, int, int], list[Wish]] = {}  # by models and size, best first

    def wish(unit: str) -> None:
        ordinal, devices, worths = about[unit]
        here = target[unit]
        worth = next(gain for gain, index in worths if index == here)
        for gain, there in worths:
            if there != here:
                queue = wishes.setdefault((here, there, devices), [])
                heappush(queue, Wish(worth - gain, ordinal, unit, devices, here, there))

    for unit in about:
        wish(unit)
    for _ in range(min(EXCHANGES, QUEUES // max(1, len(wishes)))):
        change = _best_change(wishes, target, room)
        for one in change:
            target[one.unit] = one.there
            room[one.here] += one.devices
            room[one.there] -= one.devices
            wish(one.unit)
        if not change:
            return


def _best_change(
    wishes: Mapping[tuple[int, int, int], list[Wish]], target: Mapping[str, int], room: Mapping[int, int]
) -> tuple[Wish, ...]:
    """Return the possible wish with the largest gain, or two that make room for each other; none without a gain."""
    first: dict[tuple[int, int], list[Wish]] = {}
    for (here, there, _), queue in wishes.items():
        while queue and target[queue[0].unit] != here:  # stale: the unit has moved
            heappop(queue)
        if queue:
            first.setdefault((here, there), []).append(queue[0])
    best: tuple[float, tuple[Wish, ...]] = (0.0, ())
    for (here, there), ones in first.items():
        for one in ones:
            if one.devices <= room[there]:
                best = min(best, (one.loss, (one,)))
        if here < there:
            for one, other in product(ones, first.get((there, here), ())):
                needs = one.devices - other.devices
                if -room[here] <= needs <= room[there]:
                    best = min(best, (one.loss + other.loss, (one, other)))
    return best[1]


def _units(residents: Iterable[tuple[Resident, ...]]) -> list[Resident]:
    """Return each running unit once, in order of submission."""
    units = {resident.unit: resident for on in residents for resident in on}
    return sorted(units.values(), key=lambda resident: resident.ordinal)


def _running(draft: Draft, resident: Resident, here: int, standing: float, left: int) -> Entry:
    """Return a running unit's entry. An elastic one changes models only with its size, and none moves to be late."""
    now, shape = draft.view.now, resident.shape
    of = draft.speeds.of(resident.kind, shape.wants.precision, resident.declared, resident.work, devices=True)
    left = max(SECOND, left)
    lost, weight, able = lost_work(resident, now), worth(resident.priority, resident.weight), draft.able(shape).models
    worths = [(standing, here)]
    for index, can in enumerate(able[: len(of)]):
        if can and index != here and draft.fleet.models[index].kind != "cpu" and not resident.least:
            there = left * of[index].mean // max(1, of[here].mean) + lost
            if resident.unit in draft.timely.promised and draft.view.now + there > resident.due:
                continue
            worths.append((weight / (there / SECOND), index))
    devices = shape.gpus * resident.size
    return (-max(worths)[0] / devices, resident.ordinal, resident.unit, devices, worths)


def _waiting(draft: Draft, candidate: Candidate) -> Entry:
    """Return the entry of a waiting unit. One whose deadline is kept gets a model on which it is on time, if there is
    one. One that must start now is worth more; for an elastic unit its size ensures that it is on time.
    """
    shape = candidate.shape
    left, times = draft.speeds.left(candidate, shape, draft.able(shape).models), 1.0
    if candidate.unit in draft.timely.waiting:
        left = in_time(draft, candidate, left) or left
    if candidate.unit in draft.timely.pressed and not candidate.least:
        times = PRESSED
    gains = [times * gain for gain in values(candidate, left.values(), draft.view, waits=draft.waits)]
    devices = shape.gpus * (candidate.least or candidate.tasks)
    worths = list(zip(gains, left, strict=True))
    return (-max(gains, default=0.0) / devices, candidate.ordinal, candidate.unit, devices, worths)
