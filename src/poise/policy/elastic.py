"""Sizes of elastic units: devices are assigned one after the other to the unit that gains most.

A unit of weight `w` with work for `x` seconds on one task does `s(k)` seconds of that work per second with `k` tasks.
Its weighted progress per second is then `w s(k) / x`, and one more task is worth

    w (s(k + 1) - s(k)) / x

to it. Assigning devices to the largest of these first maximizes the sum over all units if speedups are concave; where
they are not, several tasks are assigned at once. For work that scales linearly that is shortest remaining time first;
the worse work scales, the more evenly devices are shared. A gang of one size is one step.
"""

from collections.abc import Sequence
from functools import lru_cache
from typing import NamedTuple

import numpy as np

from poise.model.fleet import Floats, Ints
from poise.model.progress import Speedups
from poise.policy.feasible import MOST_TASKS

LOSS = 0.1
"""Serial part of an elastic unit's work if nothing is known: eight tasks are then 4.7 times as fast as one (Amdahl,
1967)."""

PAYS = 0.3
"""Minimum gain of a task beyond the least, relative to the first task; with less it would idle most of its time."""

BISECTIONS = 24
"""Bisection steps in the search for the price of a device."""

RISES = 8
"""Maximum number of times the price of each device model is raised because the others have risen."""


class Bid(NamedTuple):
    """A unit that could use from `least` tasks to as many as it has `speeds` for, of `width` devices each. `worth` is
    its weight over its run time on one task; `speeds` are for 0, 1, ... tasks.
    """

    worth: float
    speeds: Sequence[float]
    least: int = 1
    width: int = 1


@lru_cache(maxsize=16_384)
def speeds_with(told: Speedups | None, most: int, on_one: int = MOST_TASKS) -> tuple[float, ...]:
    """Return the speeds with 0, 1, ... `most` tasks relative to one task: as reported, constant beyond the largest
    reported size. More than `on_one` tasks are on several nodes.
    """
    if told is None or not told.together:
        return (0.0, *(tasks / (1 + LOSS * (tasks - 1)) for tasks in range(1, most + 1)))
    best: list[float] = [0.0]
    for tasks in range(1, most + 1):
        could = (told.together, told.apart) if tasks <= on_one else (told.apart or told.together,)
        best.append(max(best[-1], *(of[min(tasks, len(of)) - 1] / 1000 for of in could if of)))
    return tuple(best)


def share_out(gains: Floats, widths: Ints, devices: int) -> Ints:
    """Return tasks for each of J units that maximize the sum of their `gains` (J, K + 1) for 0 to K tasks of `widths`
    devices each. A device has a price, each unit takes the size with the largest gain beyond it, and the price is the
    lowest at which there are enough devices. Devices left over go to the largest gains per device.
    """
    _, sizes = share_out_models(gains[:, None, :], widths, np.array([devices]))
    return sizes


def share_out_models(gains: Floats, widths: Ints, devices: Ints) -> tuple[Ints, Ints]:
    """Return the model of each unit and its tasks there, for M device models of which a unit takes one, by `gains` (J,
    M, K + 1) and the number of `devices` (M). Each model has its own price. Prices start at 0 and only rise, each to
    the lowest at which there is enough of it given the others, until there is enough of all: so they end at the lowest
    such prices (the ascending auction of Demange, Gale and Sotomayor, 1986).
    """
    every, (_, models, sizes) = np.arange(len(gains)), gains.shape
    tasks = np.arange(sizes)
    takes = widths[:, None, None] * tasks
    gains = np.where(takes <= devices[:, None], gains, -np.inf)
    without = gains[:, :, 0].max(axis=1)
    slopes = (gains[:, :, 1:] - without[:, None, None]) / takes[:, :, 1:]
    highest = slopes.max(axis=(0, 2), initial=0.0) + 1e-9
    prices = np.zeros(models)

    def choose() -> tuple[Ints, Ints]:
        best = (gains - prices[:, None] * takes).reshape(len(gains), -1).argmax(axis=1)
        return best // sizes, best % sizes

    def lacks() -> Ints:
        on, chosen = choose()
        return np.bincount(on, widths * chosen, models).astype(np.int64) - devices

    for attempt in range(RISES):
        short = lacks() > 0
        if attempt and not short.any():
            break
        for model in range(models):
            if attempt and not short[model]:
                continue
            low, high = float(prices[model]), float(highest[model])
            for _ in range(BISECTIONS):
                prices[model] = (low + high) / 2
                if lacks()[model] <= 0:
                    high = float(prices[model])
                else:
                    low = float(prices[model])
            prices[model] = high
    on, chosen = choose()
    left = -lacks()
    for place in np.argsort(gains[every, on, chosen] / np.maximum(1, widths * chosen)).tolist():
        if left[on[place]] < 0 and chosen[place]:  # the prices have not settled
            left[on[place]] += widths[place] * chosen[place]
            on[place], chosen[place] = gains[place, :, 0].argmax(), 0
    while left.any():
        now = widths * chosen
        more = np.broadcast_to(takes, gains.shape).copy()
        more[every, on] -= now[:, None]
        better = gains - gains[every, on, chosen][:, None, None]
        better = np.where((more > 0) & (more <= left[:, None]), better / np.maximum(more, 1), 0.0)
        place, model, size = map(int, np.unravel_index(int(better.argmax()), better.shape))
        if better[place, model, size] <= 0:
            break
        left[on[place]] += now[place]
        left[model] -= widths[place] * size
        on[place], chosen[place] = model, size
    return on, chosen


def worth_having(speeds: Sequence[float], least: int) -> int:
    """Return the largest number of tasks for which each step pays."""
    bid, tasks = Bid(1.0, speeds, least), least
    while found := step(bid, tasks):
        tasks = found[1]
    return tasks


def step(bid: Bid, tasks: int) -> tuple[float, int] | None:
    """Return the step from this many tasks with the largest worth per device (negative, for a heap), and the tasks it
    leads to; None if none pays.
    """
    speeds, first = bid.speeds, max(1, bid.least) if tasks == 0 else tasks + 1
    best, to = 0.0, 0
    for more in range(first, len(speeds)):
        slope = (speeds[more] - speeds[tasks]) / (more - tasks)
        if slope > best:
            best, to = slope, more
    if not to or (tasks and best < PAYS):
        return None
    return -bid.worth * best / bid.width, to
