"""Sizes of elastic units, and the distribution of left-over devices.

`sizes` chooses sizes for all elastic units on whole devices together with all waiting gangs; `hand_out` grows units
that were placed with their least into the room of a draft. `elastic` computes the worth of a further task.
"""

from collections.abc import Mapping, Sequence
from heapq import heapify, heappop, heappush
from math import inf
from typing import NamedTuple

import numpy as np

from poise.model.decisions import UNKNOWN, Spot, Why
from poise.model.fleet import Resident
from poise.model.resources import WHOLE, Shape
from poise.model.views import Candidate
from poise.policy.allowance import Allowance
from poise.policy.elastic import Bid, share_out_models, speeds_with, step, worth_having
from poise.policy.place import Draft
from poise.policy.reclaim import worth
from poise.policy.running import lost_work
from poise.units import MINUTE, SECOND

GROWS_BY = 1.5
"""Minimum growth factor for a restart of an elastic unit: less would not pay. A unit that was preempted may return to
all that it can use, even if that is only one task more."""

CHANGES_BY = 1.25
"""Minimum factor of a change of size for a restart: estimates have larger errors than smaller changes."""

NOT_OF_A_MODEL = "default", "declared", "history elsewhere"
"""Sources of estimates that are equal for all device models."""

COOL_DOWN = MINUTE
"""Minimum time between two moves off one node, and between two changes of size of an elastic unit; longer after more
restarts."""

HORIZON = 10 * MINUTE
"""Horizon for the gain of another size: by then units have come or gone."""

SCALES = 0.3
"""Exponent `p` of the speedup `k^p` assumed for the order of remaining work (Berg et al., 2020)."""

UNSERVED = 1000.0
"""Loss of a unit of unknown length without devices, in fair shares of one device."""

ON_TIME = 1000.0
"""Factor of the worth of tasks that meet a deadline."""

ROUNDING = 1e-9
"""Relative tolerance for equal speeds."""

WEIGHED_SIZES = 2**14
"""Maximum number of units times sizes compared in one round, which takes about 15 ms; beyond that all units keep
theirs."""


class Size(NamedTuple):
    """A number of tasks, and the index of their device model among those that are shared out."""

    tasks: int
    model: int = 0


class Unit(NamedTuple):
    """A unit to size: its `speeds` with 0, 1, ... tasks, and from `least` to `most` tasks of `width` devices each.
    `work` is its remaining work in seconds of one device, `weight` its worth, `size` its present tasks; a change of
    size loses `lost` seconds of their work. `rates` are its speeds by device model relative to the fastest (0: cannot
    run there). Its devices are of the model `here`, and another model loses `moves` seconds of its work. `pace` is the
    speed that it needs to be on time, relative to one task on the fastest model (0: no deadline presses).
    """

    name: str
    speeds: Sequence[float]
    least: int
    most: int
    width: int
    work: float
    weight: float
    size: int = 0
    lost: float = 0.0
    guess: bool = False
    pace: float = 0.0
    rates: Sequence[float] = (1.0,)
    here: int = 0
    moves: float = 0.0


class Begun(NamedTuple):
    """An elastic unit placed with its least tasks on these `spots`, which could use more."""

    candidate: Candidate
    shape: Shape
    variant: int
    spots: list[Spot]
    why: Why


def hand_out(begun: Sequence[Begun], draft: Draft, allowance: Allowance, most: Mapping[str, int]) -> None:
    """Hand out the remaining room, one step at a time to the unit that gains most: first on nodes of its placed
    members, then where tasks run no slower, since a gang is as fast as its slowest member. `most` limits the tasks by
    unit.
    """
    steps = [
        (*found, number, bid)
        for number, one in enumerate(begun)
        if (found := step(bid := _bid(one, draft), len(one.spots)))
    ]
    heapify(steps)
    while steps:
        _, to, number, bid = heappop(steps)
        one = begun[number]
        to = min(to, most.get(one.candidate.unit, to))
        while len(one.spots) < to and allowance.room_of(one.candidate, one.shape) and _takes_one(one, draft):
            allowance.take(one.candidate, one.shape, 1)
        if len(one.spots) == to < most.get(one.candidate.unit, to + 1) and (found := step(bid, to)):
            heappush(steps, (*found, number, bid))


def sizes(units: Sequence[Unit], devices: Sequence[int]) -> dict[str, Size]:
    """Return the tasks of each unit, and one device model for all of them, out of these `devices` of each model.

    Speeds of units with known work are summed, each weighted by its place in the order of remaining work: with speedup
    `k^p` that is the optimum for the mean completion time (heSRPT, Berg et al., 2020). The worth of a unit with unknown
    work has the same slope at a fair share and is concave, so that all such units get some devices.
    """
    units = [unit for unit in units if unit.least * unit.width <= max(devices, default=0)]
    widest = min(max(devices, default=0), max([unit.most for unit in units], default=0))
    if not 0 < len(units) * widest * len(devices) <= WEIGHED_SIZES:
        return {}
    worths, total = _by_place(units), sum(devices)
    kept = np.zeros((len(units), len(devices)), np.int64)
    gains = np.full((len(units), len(devices), widest + 1), -inf)
    for place, unit in enumerate(units):
        speeds = unit.width * np.array(unit.speeds[: min(unit.most, widest) + 1])
        now = unit.rates[unit.here] * unit.speeds[unit.size] * unit.width if unit.size else 0.0
        fair = float(speeds[min(len(speeds) - 1, max(1, unit.least, total // (unit.width * len(units))))])
        for model, rate in enumerate(unit.rates):
            if not rate:
                continue
            here = unit.size > 0 and model == unit.here
            does = rate * speeds
            gain = worths[place] * (2 * fair - fair**2 / np.maximum(does, fair / UNSERVED) if unit.guess else does)
            if unit.size:
                lasts = min(HORIZON / SECOND, max(1.0, unit.work / now))
                again = worths[place] * now * (unit.lost if here else max(unit.lost, unit.moves)) / lasts
                gain[: unit.size if here else None] -= again
                gain[unit.size + 1 if here else len(gain) :] -= again
            if unit.pace:
                on_time = rate * np.array(unit.speeds[: len(gain)]) >= unit.pace * (1 - ROUNDING)
                gain[on_time] += ON_TIME * unit.weight * max(worths) * unit.width
            gain[1 : max(1, unit.least)] = -inf
            if unit.size and not here:
                gain[0] = -inf  # a running unit keeps its least, whatever others would gain
            kept[place, model] = unit.least if here else 0
            gains[place, model, : len(gain) - kept[place, model]] = gain[kept[place, model] :]
    widths = np.array([unit.width for unit in units])
    left = np.array(devices) - (kept * widths[:, None]).sum(axis=0)
    on, more = share_out_models(gains, widths, left)
    return {
        unit.name: Size(int(kept[place, on[place]] + more[place]), int(on[place])) for place, unit in enumerate(units)
    }


def changes(resident: Resident, to: int, now: int) -> bool:
    """Return whether a running unit should change to this many tasks now."""
    if resident.resizes:
        return to != resident.size and now >= resident.since + COOL_DOWN
    much = max(to, resident.size) >= CHANGES_BY * min(to, resident.size)
    return much and now >= resident.since + COOL_DOWN * (1 + resident.preempted + resident.moved)


def _by_place(units: Sequence[Unit]) -> list[float]:
    """Return the worth of a device to each unit: larger, the more weight has at least as much work left."""
    worths, before, q = [0.0] * len(units), 0.0, 1 / (1 - SCALES)
    for place in sorted(range(len(units)), key=lambda place: -units[place].work / units[place].weight):
        weight = units[place].weight
        worths[place] = ((before + weight) ** q - before**q) ** (1 / q)
        before += weight
    return worths


def units_of(draft: Draft, waiting: Sequence[Candidate], models: Sequence[int]) -> tuple[list[Unit], list[int]]:
    """Return all elastic units that run on whole devices and may change, and all that wait for such; and the number of
    devices for them of each of these `models`. With no models all devices count as equal.
    """
    view, running = draft.view, draft.running
    left = dict(zip([one.unit for one in running.residents], running.left.tolist(), strict=True))
    units = list[Unit]()
    devices = [draft.whole_devices_free(model) for model in models] or [draft.whole_devices_free()]
    places = {view.fleet.models[model].called: place for place, model in enumerate(models)}
    for one in view.elastic:
        if not one.shape.gpus or one.shape.share != WHOLE or one.serves or one.stopping or not one.preemptible:
            continue
        told = view.speedups.get(one.unit)
        on_one = int(draft.able(one.shape).by_row(draft.fleet).max(initial=0))
        speeds, seconds = speeds_with(told, one.most, on_one), max(1.0, left.get(one.unit, SECOND) / SECOND)
        width, now = one.shape.gpus, max(1, one.size)
        rates, here = _rates(draft, one, models), places.get(one.model, 0)
        if not rates[here]:
            continue
        devices[here] += width * one.size
        units.append(
            Unit(
                one.unit,
                speeds,
                max(1, one.least),
                max(now, worth_having(speeds, max(1, one.least))),
                width,
                seconds * speeds[now] * width * rates[here],
                worth(one.priority, one.weight),
                one.size,
                0.0 if one.resizes else lost_work(one, view.now) / SECOND,
                not one.declared and draft.speeds.is_guess(one, draft.able(one.shape).models),
                draft.timely.paces.get(one.unit, 0.0),
                rates,
                here,
                lost_work(one, view.now) / SECOND,
            )
        )
    for candidate in waiting:
        shape, told = candidate.shape, view.speedups.get(candidate.unit)
        least = candidate.least or candidate.tasks
        run = draft.speeds.shortest(candidate, draft.able(shape).models) / SECOND
        if candidate.least:
            speeds = speeds_with(told, candidate.tasks, int(draft.able(shape).by_row(draft.fleet).max(initial=0)))
            most, work = worth_having(speeds, least), run * speeds[least] * shape.gpus
        else:
            speeds, most, work = tuple(map(float, range(least + 1))), least, run * least * shape.gpus
        pressed = candidate.least and candidate.unit in draft.timely.pressed
        units.append(
            Unit(
                candidate.unit,
                speeds,
                least,
                most,
                shape.gpus,
                work,
                worth(candidate.priority, candidate.weight),
                guess=draft.speeds.is_guess(candidate, draft.able(shape).models),
                pace=draft.timely.paces.get(candidate.unit, 0.0) if pressed else 0.0,
                rates=_rates(draft, candidate, models),
            )
        )
    return units, devices


def _rates(draft: Draft, one: Resident | Candidate, models: Sequence[int]) -> tuple[float, ...]:
    """Return the unit's speed on each of these models relative to its fastest one; 0 where it cannot run."""
    if not models:
        return (1.0,)
    shape = one.shape
    of, able = (
        draft.speeds.of(one.kind, shape.wants.precision, one.declared, one.work, devices=True),
        draft.able(shape).models,
    )
    fastest = min([of[model].mean for model in models if able[model]], default=1)
    return tuple(fastest / max(1, of[model].mean) if able[model] else 0.0 for model in models)


def tells_models_apart(draft: Draft, one: Resident | Candidate, models: Sequence[int]) -> bool:
    """Return whether estimates exist that are specific to at least two of these models: a measurement on one of them is
    not compared with a declared time for the others. Guesses differ only by a throughput table.
    """
    of = draft.speeds.of(one.kind, one.shape.wants.precision, one.declared, one.work, devices=True)
    guesses = {of[model].mean for model in models if of[model].source == UNKNOWN}
    return len(guesses) > 1 or sum(of[model].source not in NOT_OF_A_MODEL for model in models) > 1


def _bid(one: Begun, draft: Draft) -> Bid:
    candidate, shape = one.candidate, one.shape
    speeds = speeds_with(draft.view.speedups.get(candidate.unit), candidate.tasks)
    run = draft.speeds.shortest(candidate, draft.able(shape).models) if shape.gpus else candidate.expected
    value = worth(candidate.priority, candidate.weight) / (max(1, run) * speeds[len(one.spots)])
    return Bid(value, speeds, len(one.spots), max(1, shape.gpus))


def _takes_one(one: Begun, draft: Draft) -> bool:
    """Take room for one more task; return whether there was any."""
    candidate, shape = one.candidate, one.shape
    rows = list(dict.fromkeys(draft.fleet.rows[spot.node] for spot in one.spots))
    row = next((row for row in rows if draft.room_for(row, shape)), -1)
    if row < 0:
        found = draft.best(candidate, shape)
        slowest = max(draft.run_on(candidate, shape, row).mean for row in rows)
        if found is None or draft.run_on(candidate, shape, found[0]).mean > slowest:
            return False
        row = found[0]
    one.spots.append(draft.take(row, candidate, shape))
    return True
