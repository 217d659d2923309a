"""Allocations as linear programs: the part of its time that each unit should have on each device model.

The formulation is Gavel's (Narayanan et al., OSDI 2020, sections 3 to 4). With `x[m, j]` the part of its time that unit
m runs on model j, `rates[m, j]` the part of its work done there in a second and `devices[m]` how many it takes at once,
an allocation is feasible if

    x[m, j] >= 0,   sum_j x[m, j] <= 1,   sum_m devices[m] * x[m, j] <= capacity[j],

and the progress of unit m is `sum_j rates[m, j] * x[m, j]`. Every objective here is one or several programs of one
form, *maximise the smallest of sum_j gains[m, j] * x[m, j]*. Units with equal coefficients get equal shares (the mean
of their shares is as good, since the program is convex), so they are one row: a program has as many rows as there are
different units.

The solver is HiGHS (Huangfu and Hall, 2018), with a limit on its iterations and none on time, so that the same view
gives the same shares. It is imported when a policy first needs it: `pip install 'poise-scheduler[lp]'`.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from poise.errors import InputError, extra
from poise.model.fleet import Floats

ITERATIONS = 1000
"""Maximum number of solver iterations; about twenty are usual."""

OPTIONS = {
    "output_flag": False,
    "threads": 1,
    "solver": "ipm",
    "run_crossover": "off",
    "presolve": "off",
    "ipm_iteration_limit": ITERATIONS,
}
"""Interior points without crossover: of all optimal allocations this gives the central one, which spreads the rest
evenly, and not to the first unit. The solver that Gavel uses does the same.
"""

TINY = 1e-9
"""Lower limit of a divisor."""

HELD = 1e-6
"""Relative decrease allowed to the smallest progress while the rest is given away."""

REFINEMENTS = 30
"""Maximum number of programs for one finish-time fair allocation; four or five are usual."""

PRECISE = 1e-3
"""Relative precision of a finish-time fair allocation."""


class Claims(NamedTuple):
    """The input of an allocation: n units that claim time on k device models, in order of submission.

    `rates` (n, k) is the part of its work that a unit does in a second on each model, 0 where it cannot run; `devices`
    and `weights` (n,) are the devices that it takes at once and its weight; `left` is the remaining part of its work,
    `waited` the seconds since it was submitted, and `alone` the seconds that its completed work would have taken with
    an equal part of the fleet. `capacity` (k,) counts the devices of each model.
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
    """Maximize the smallest normalized progress: a unit's work per second, relative to the mean device, times its
    devices, over its weight (Gavel, section 4.1, with the normalizer of its public code). Without `spare`, here and
    below, devices that are not needed for the smallest progress stay as the solver assigns them.
    """
    mean = claims.rates @ (claims.capacity / claims.capacity.sum())
    return _largest_least(claims.rates * (claims.devices / (mean * claims.weights))[:, None], claims, spare=spare)


def min_makespan(claims: Claims, *, spare: bool = True) -> Floats:
    """Minimize the makespan: maximize the smallest progress over remaining work (Gavel, section 4.2)."""
    return _largest_least(claims.rates / claims.left[:, None], claims, spare=spare)


def finish_time_fair(claims: Claims, *, spare: bool = True) -> Floats:
    """Minimize the largest finish-time ratio: a unit's total time over that with an equal part of the fleet for itself
    (`rho` of Themis, Mahajan et al., NSDI 2020; Gavel, section 4.2).

    A ratio requires a rate of each unit. The allocation that maximizes the smallest part of the required rates has a
    smaller ratio, which is tried next, until there is no gain (the method of Dinkelbach, 1967): each step is exact,
    where bisection would only approximate.
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
    """Give each unit, in order of arrival, all of its time on its fastest model that has room; no unit overtakes the
    first one without room.
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
    """Return (n, k): each unit's part of its time on each model with an equal part of the fleet for itself."""
    parts = (claims.rates > 0) * claims.capacity / (len(claims.devices) * claims.devices[:, None])
    return np.asarray(parts / np.maximum(parts.sum(axis=1), 1.0)[:, None])


def alone_rate(claims: Claims) -> Floats:
    """Return (n,): the part of its work that a unit would do in a second with an equal part of the fleet for itself."""
    return np.asarray((claims.rates * equal_parts(claims)).sum(axis=1))


def solver() -> Any:
    """Return the solver's module. Raises `InputError` if it is not installed."""
    try:
        import highspy
    except ImportError as error:
        raise InputError("this policy needs a solver for linear programs", hint=extra("lp")) from error
    return highspy


def _over_needed(claims: Claims, fair: Floats, ratio: float) -> Floats:
    """Return (n, k): a unit's work per second on each model, over what it needs for its finish-time ratio."""
    return claims.rates * (np.maximum(ratio * fair - claims.waited, TINY) / claims.left)[:, None]


def _largest_least(gains: Floats, claims: Claims, *, spare: bool) -> Floats:
    """Return (n, k): the allocation with the largest smallest `sum_j gains[m, j] * x[m, j]`. Of these, with `spare`,
    return one in which devices do most: devices not needed for the smallest go where they are used best.
    """
    rows = np.column_stack((np.round(gains / gains.max(), 12), claims.devices))
    alike, group, counts = np.unique(rows, axis=0, return_inverse=True, return_counts=True)
    return _solve(alike[:, :-1], alike[:, -1] * counts, claims.capacity, spare=spare)[group.reshape(-1)]


def _solve(gains: Floats, devices: Floats, capacity: Floats, *, spare: bool) -> Floats:
    """Solve one program. Its columns are `x`, row by row of units, and the smallest progress, which is maximized.

    Its rows are `sum_j gains[m, j] * x[m, j] - smallest >= 0` and `sum_j x[m, j] <= 1` for every unit, and the capacity
    of every model. For `spare` the smallest is held, and the sum over units of devices times progress, relative to the
    fastest model, is maximized.
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
