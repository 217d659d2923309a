"""Unequal devices: what runs moves to faster ones when they are free, and changes places with what needs them less.

What a running unit is worth where it is, and what it would be elsewhere, is measured as everywhere (`reclaim.value`):
its weight over the time that it still needs there, with what moving costs it. The sum of that over all units is what an
assignment of work to devices is to make large: for equal devices that is shortest remaining time first (Schrage, 1968).
A move or an exchange of two units is made when it makes the sum larger by more than what estimates are wrong by. That is
local search for the transport problem of units and models, of which the steps with one unit and with two are taken.
"""

from collections.abc import Callable, Collection
from typing import NamedTuple

import numpy as np

from poise.model.fleet import Floats, Resident
from poise.model.resources import WHOLE, Shape
from poise.policy.place import Draft
from poise.policy.reclaim import HYSTERESIS, Preemption, ends, lost_work, may_be_asked, worth
from poise.units import SECOND

AT_ONCE = 16
"""Units that move, and exchanges, in one round at most."""


class Step(NamedTuple):
    """A unit that moves, into free room on `model` (an index), or into that of `with_`, which takes its place."""

    resident: Resident
    model: int
    with_: Resident | None = None


class _Table(NamedTuple):
    """Units of one shape and size: what each is worth where it is, and by model, if it moved there."""

    units: list[Resident]
    here: Floats
    there: Floats
    model: np.ndarray[tuple[int], np.dtype[np.int64]]


def upgrades(draft: Draft, rules: Preemption, asked: Collection[str], ask_again: Callable[[int], None]) -> list[Step]:
    """What had better move, or change places; units that were `asked` to yield already are left alone. `ask_again` is
    told when more units may be asked.
    """
    steps: list[Step] = []
    for (shape, size), units in _alike(draft, rules, asked, ask_again).items():
        table = _table(draft, shape, units)
        if table is None:
            continue
        moved = _moves(draft, shape, size, table, steps)
        _exchanges(table, moved, steps)
    return steps


def _alike(
    draft: Draft, rules: Preemption, asked: Collection[str], ask_again: Callable[[int], None]
) -> dict[tuple[Shape, int], list[Resident]]:
    """Running units with devices of their own that may move, by shape and size."""
    now = draft.view.now
    alike: dict[tuple[Shape, int], dict[str, Resident]] = {}
    for residents in draft.fleet.residents:
        for resident in residents:
            shape = resident.shape
            if not shape.gpus or shape.share != WHOLE or not resident.preemptible or resident.stopping:
                continue
            if not resident.running or resident.unit in asked or resident.least:
                continue
            if now < (at := may_be_asked(resident, rules)):
                ask_again(at)
                continue
            alike.setdefault((shape, resident.size), {})[resident.unit] = resident
    return {key: list(units.values()) for key, units in alike.items()}


def _table(draft: Draft, shape: Shape, units: list[Resident]) -> _Table | None:
    """None where no unit is told to be faster on any model than on another."""
    models, able, now = draft.fleet.models, draft.able(shape).models, draft.view.now
    names = {model.called: index for index, model in enumerate(models) if model.kind != "cpu"}
    left, runs, here, costs, weights, known = [], [], [], [], [], []
    for unit in units:
        at = names.get(unit.model)
        if at is None:
            continue
        of = draft.speeds.of(unit.kind, shape.wants.precision, unit.declared, unit.work, devices=True)
        if all(estimate is of[0] for estimate in of):
            continue
        known.append(unit)
        left.append(max(SECOND, ends(unit, now, draft.speeds) - now))
        runs.append([estimate.mean if can else np.inf for estimate, can in zip(of, able, strict=False)])
        here.append(at)
        costs.append(lost_work(unit, now))
        weights.append(worth(unit.priority, unit.weight))
    if not known:
        return None
    model, weight, remaining = np.array(here), np.array(weights), np.array(left, np.float64) / SECOND
    means = np.array(runs, np.float64)
    elsewhere = remaining[:, None] * means / means[np.arange(len(known)), model][:, None]
    there = weight[:, None] / (elsewhere + np.array(costs, np.float64)[:, None] / SECOND)
    return _Table(known, weight / remaining, np.where(np.isfinite(means), there, 0.0), model)


def _moves(draft: Draft, shape: Shape, size: int, table: _Table, steps: list[Step]) -> set[int]:
    """Into free room, whoever gains most first; it is kept for them."""
    gains = table.there - HYSTERESIS * table.here[:, None]
    moved: set[int] = set()
    if not (gains > 0).any():
        return moved
    fleet = draft.fleet
    room = {
        index: np.where((fleet.device_model == index).any(axis=1), draft.capacity(shape), 0)
        for index in np.flatnonzero((gains > 0).any(axis=0)).tolist()
    }
    for flat in np.argsort(-gains, axis=None, kind="stable").tolist():
        unit, model = divmod(flat, gains.shape[1])
        if gains[unit, model] <= 0 or len(steps) >= AT_ONCE:
            break
        if unit in moved or int(room[model].sum()) < size:
            continue
        moved.add(unit)
        resident, left = table.units[unit], size
        for row in np.argsort(-room[model], kind="stable").tolist():
            takes = min(left, int(room[model][row]))
            if not takes:
                break
            draft.keep(row, resident.unit, shape, draft.view.now, takes)
            room[model][row] -= takes
            left -= takes
        steps.append(Step(resident, model))
    return moved


def _exchanges(table: _Table, moved: Collection[int], steps: list[Step]) -> None:
    """Pairs on two models that are together worth more in each other's place."""
    models = sorted(set(table.model.tolist()))
    busy = set(moved)
    for slow in models:
        for fast in models:
            if slow == fast:
                continue
            gain = table.there[:, fast] - table.here
            loss = table.here - table.there[:, slow]
            ups = [at for at in np.argsort(-gain, kind="stable").tolist() if table.model[at] == slow and at not in busy]
            downs = [
                at for at in np.argsort(loss, kind="stable").tolist() if table.model[at] == fast and at not in busy
            ]
            for up, down in zip(ups, downs, strict=False):
                margin = (HYSTERESIS - 1) * (table.here[up] + table.here[down])
                if gain[up] - loss[down] <= margin or len(steps) >= AT_ONCE:
                    break
                busy |= {up, down}
                steps.append(Step(table.units[up], fast, table.units[down]))
