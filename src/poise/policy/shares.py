"""Which part of its time each unit should have on each model of device: allocations as linear programs.

The formulation is Gavel's (Narayanan et al., OSDI 2020, sections 3 to 4). With `x[m, j]` the part of its time that unit
m runs on model j, `rates[m, j]` the part of its work done there in a second and `devices[m]` how many it takes at once,
an allocation is possible if

    x[m, j] >= 0,   sum_j x[m, j] <= 1,   sum_m devices[m] * x[m, j] <= capacity[j],

and unit m gets on at `sum_j rates[m, j] * x[m, j]`. Every objective here is one or several programs of one form,
*maximise the smallest of sum_j gains[m, j] * x[m, j]*. Units that are alike in all of it get the same shares (the mean
of their shares is as good, since the program is convex), so that they are one row: a program has as many rows as there
are different units.

HiGHS solves them (Huangfu and Hall, 2018), with a bound on its iterations and none on time, so that the same view gives
the same shares. It is imported when a policy first needs it: `pip install 'poise-scheduler[lp]'`.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from poise.errors import InputError, extra
from poise.model.fleet import Floats

ITERATIONS = 1000
"""Of the solver, at most; some twenty are usual."""

OPTIONS = {
    "output_flag": False,
    "threads": 1,
    "solver": "ipm",
    "run_crossover": "off",
    "presolve": "off",
    "ipm_iteration_limit": ITERATIONS,
}
"""By interior points, and no corner afterwards: of the allocations that are best the one in the middle, which spreads
what is left over on all alike, and not on whoever is named first. So the solver that Gavel uses chooses too.
"""

TINY = 1e-9
"""In place of nothing, where it is divided by."""

HELD = 1e-6
"""The smallest is kept to this part of it while what is spare is given away."""

REFINEMENTS = 30
"""Programs for one finish-time fair allocation at most; four or five are usual."""

PRECISE = 1e-3
"""A finish-time fair allocation is as good as the best one to this part."""


class Claims(NamedTuple):
    """What shares are worked out from: n units that claim time on k models of device, in order of submission.

    `rates` (n, k) is the part of its work that a unit does in a second on each model, 0 where it cannot run;
    `devices`, `weights` (n,) how many it takes at once and how much it counts; `left` the part of its work that is to
    do, `waited` the seconds since it was submitted and `alone` the seconds that what is done would have taken with an
    equal part of the fleet. `capacity` (k,) counts the devices of each model.
    """

    rates: Floats
    devices: Floats
    weights: Floats
    left: Floats
    waited: Floats
    alone: Floats
    capacity: Floats


Allocate = Callable[[Claims], Floats]
"""(n, k): the part of its time that each unit should have on each model."""


def max_min(claims: Claims, *, spare: bool = True) -> Floats:
    """The smallest normalised progress is as large as can be: what a unit does in a second, over what it would do on
    the mean device, times its devices, over its weight (Gavel, section 4.1, with the normaliser of its public code).
    Without `spare`, here and below, what nobody needs for the smallest is left where the solver leaves it.
    """
    mean = claims.rates @ (claims.capacity / claims.capacity.sum())
    return _largest_least(claims.rates * (claims.devices / (mean * claims.weights))[:, None], claims, spare=spare)


def min_makespan(claims: Claims, *, spare: bool = True) -> Floats:
    """All that is here now ends as soon as can be: the smallest progress over what is left is as large as can be
    (Gavel, section 4.2).
    """
    return _largest_least(claims.rates / claims.left[:, None], claims, spare=spare)


def finish_time_fair(claims: Claims, *, spare: bool = True) -> Floats:
    """The largest finish-time ratio is as small as can be: the time a unit will have taken over that which it would
    take with an equal part of the fleet for itself (`rho` of Themis, Mahajan et al., NSDI 2020; Gavel, section 4.2).

    To reach a ratio, every unit needs a rate. The allocation that has most of what is needed for the present ratio has
    a smaller one, which is the next to be tried, until that gains nothing (the method of Dinkelbach, 1967): each step
    is exact where halving an interval would only come nearer.
    """
    rates, left, waited = claims.rates, claims.left, claims.waited
    fair = claims.alone + left / alone_rate(claims)
    ratio = float(((waited + left / alone_rate(claims)) / fair).max())
    for _ in range(REFINEMENTS):
        better = _largest_least(_over_needed(claims, fair, ratio), claims, spare=False)
        reached = float(((waited + left / np.maximum((rates * better).sum(axis=1), TINY)) / fair).max())
        if reached > ratio * (1 - PRECISE):
            break
        ratio = reached
    return _largest_least(_over_needed(claims, fair, ratio), claims, spare=spare)


def first_come(claims: Claims) -> Floats:
    """In order of arrival, each all of its time on the model where it is fastest among those that have room; nobody
    overtakes the first that finds none.
    """
    shares, left = np.zeros(claims.rates.shape), claims.capacity.copy()
    for number, (rates, devices) in enumerate(zip(claims.rates, claims.devices.tolist(), strict=True)):
        there = np.where(left >= devices, rates, 0.0)
        model = int(there.argmax())
        if not there[model]:
            break
        shares[number, model] = 1.0
        left[model] -= devices
    return shares


def equal_parts(claims: Claims) -> Floats:
    """(n, k): each unit's part of its time on each model, if each had the same part of the fleet for itself."""
    parts = (claims.rates > 0) * claims.capacity / (len(claims.devices) * claims.devices[:, None])
    return np.asarray(parts / np.maximum(parts.sum(axis=1), 1.0)[:, None])


def alone_rate(claims: Claims) -> Floats:
    """(n,): the part of its work that a unit would do in a second with an equal part of the fleet for itself."""
    return np.asarray((claims.rates * equal_parts(claims)).sum(axis=1))


def solver() -> Any:
    """The module of the solver. Raises `InputError` where it is not installed."""
    try:
        import highspy
    except ImportError as error:
        raise InputError("this policy needs a solver for linear programs", hint=extra("lp")) from error
    return highspy


def _over_needed(claims: Claims, fair: Floats, ratio: float) -> Floats:
    """(n, k): what a unit does on each model in a second over what it must do for its finish-time ratio."""
    return claims.rates * (np.maximum(ratio * fair - claims.waited, TINY) / claims.left)[:, None]


def _largest_least(gains: Floats, claims: Claims, *, spare: bool) -> Floats:
    """(n, k): the possible allocation whose smallest `sum_j gains[m, j] * x[m, j]` is largest. Of these, with `spare`,
    one in which devices do most: what nobody needs for the smallest goes where it is used best.
    """
    rows = np.column_stack((np.round(gains / gains.max(), 12), claims.devices))
    alike, group, counts = np.unique(rows, axis=0, return_inverse=True, return_counts=True)
    return _solve(alike[:, :-1], alike[:, -1] * counts, claims.capacity, spare=spare)[group.reshape(-1)]


def _solve(gains: Floats, devices: Floats, capacity: Floats, *, spare: bool) -> Floats:
    """One program, column by column: `x` row by row of units, and at last the smallest, which is to be largest.

    Its rows are `sum_j gains[m, j] * x[m, j] - smallest >= 0` and `sum_j x[m, j] <= 1` for every unit, and the capacity
    of every model. For what is spare the smallest is held, and the sum over units of devices times progress, over that
    on the fastest model, is to be largest.
    """
    highspy = solver()
    (n, k), infinite = gains.shape, highspy.kHighsInf
    units, models = np.repeat(np.arange(n), k), np.tile(np.arange(k), n)
    index = np.column_stack((units, n + units, 2 * n + models)).ravel()
    value = np.column_stack((gains.ravel(), np.ones(n * k), np.repeat(devices, k))).ravel()
    program = highspy.HighsLp()
    program.num_col_, program.num_row_ = n * k + 1, 2 * n + k
    program.sense_ = highspy.ObjSense.kMaximize
    program.col_cost_ = np.append(np.zeros(n * k), 1.0)
    program.col_lower_ = np.zeros(n * k + 1)
    program.col_upper_ = np.append(np.where(gains.ravel() > 0, infinite, 0.0), infinite)
    program.row_lower_ = np.append(np.zeros(n), np.full(n + k, -infinite))
    program.row_upper_ = np.concatenate((np.full(n, infinite), np.ones(n), capacity))
    program.a_matrix_.format_ = highspy.MatrixFormat.kColwise
    program.a_matrix_.start_ = np.append(np.arange(0, 3 * n * k + 1, 3), 3 * n * k + n).astype(np.int32)
    program.a_matrix_.index_ = np.append(index, np.arange(n)).astype(np.int32)
    program.a_matrix_.value_ = np.append(value, -np.ones(n))
    highs = highspy.Highs()
    for option, setting in OPTIONS.items():
        highs.setOptionValue(option, setting)
    highs.passModel(program)
    found = _run(highs)
    if spare:
        worth = devices[:, None] * gains / gains.max(axis=1, keepdims=True)
        columns = np.arange(n * k + 1, dtype=np.int32)
        highs.changeColBounds(n * k, float(found[-1]) * (1 - HELD), infinite)
        highs.changeColsCost(n * k + 1, columns, np.append(worth.ravel() / worth.max(), 0.0))
        found = _run(highs)
    return np.asarray(np.clip(found[:-1].reshape(n, k), 0.0, 1.0))


def _run(highs: Any) -> Floats:
    highs.run()
    solution = highs.getSolution()
    if not solution.value_valid:
        raise AssertionError(f"no shares: {highs.modelStatusToString(highs.getModelStatus())}")
    return np.array(solution.col_value)


__all__ = [
    "Allocate",
    "Claims",
    "alone_rate",
    "equal_parts",
    "finish_time_fair",
    "first_come",
    "max_min",
    "min_makespan",
    "solver",
]
