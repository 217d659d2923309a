"""Find attempts that take longer than similar ones, beyond chance.

An attempt is compared with its finished siblings: parts of the same task or members of the same gang, of one class and
artifact, on the same model of device. Run times of similar work are assumed to be log-normal, so the logarithm of one
more run time, in units of their spread, follows Student's t. The limit is its quantile at one in ten million: a node
may run ten thousand attempts a day, and there should be at most one false alarm per 100 days of a node. Measured over
32 x 2.9 million attempts of a minute, 8 at once on a node, with spreads of a factor of 1.02 to 2.7: 11 false alarms in
8,000 days of a node, 0.14 in 100 days (`tests/unit/kernel/test_straggle.py` repeats four of these runs).

This cannot find members of a gang that wait for each other: all take as long as the slowest. Training reports how long
each member computes in a step (`Paces`). A member delays all others if it takes 1.5 times the median of the others on
its model of device, for `LAGS_FOR` without a break. A `sweep` is not compared, because its tasks differ in their
values.
"""

import math
from collections.abc import Collection, Iterator, Sequence
from typing import NamedTuple

from poise.kernel.ledger import Ledger, TaskState, UnitState
from poise.model.events import Lagging, Straggling
from poise.model.fleet import model_under
from poise.model.sweep import values_in
from poise.units import SECOND

FEWEST = 12
"""Finished siblings required; with fewer, the limit is so high that a run at half the speed stays below it."""

LEAST_RUN = 30 * SECOND
"""Minimum run time to report: a shorter attempt would end before a user could react."""

LEAST_RATIO = 1.5
"""Minimum ratio to the siblings, however similar they are: a run at half the speed is found after three quarters of
it.
"""

LAGS_FOR = 30 * SECOND
FRESH = 30 * SECOND
"""Older reports of members are not compared: the member may be evaluating, or gone."""


class Usual(NamedTuple):
    """Run times of siblings in nanoseconds: their geometric mean, and the limit that none exceeds by chance."""

    mean: int
    most: int
    siblings: int


def usual(runs: Sequence[int]) -> Usual | None:
    """Return the limit for one more run from the run times of siblings; None if there are too few."""
    logs = [math.log(max(1, run)) for run in runs]
    count = len(logs)
    if count < FEWEST:
        return None
    mean = math.fsum(logs) / count
    spread = math.sqrt(math.fsum((log - mean) ** 2 for log in logs) / (count - 1))
    most = mean + max(math.log(LEAST_RATIO), deviations(count) * spread)
    return Usual(round(math.exp(mean)), round(math.exp(min(most, 62 * math.log(2)))), count)


def deviations(count: int) -> float:
    """Return the number of standard deviations, estimated from `count` values, that one more value exceeds once in ten
    million. It is the quantile of Student's t with `count - 1` degrees of freedom times `sqrt(1 + 1 / count)`, which
    `5.2 exp(8.5 / (count - 1))` follows within 5 % from 12 values on (11.3 for 11.9; 9.2 for 9.3 of 16, 5.95 for 5.88
    of 64).
    """
    return 5.2 * math.exp(8.5 / (count - 1))


def stragglers(ledger: Ledger, now: int, connected: Collection[str]) -> Iterator[Straggling]:
    """Yield attempts not reported yet, on connected nodes, which would have reported their ends."""
    siblings: dict[tuple[object, ...], Usual | None] = {}
    for unit in ledger.active.compared.values():
        if unit.stopping or not _is_compared(ledger, unit):
            continue
        for index, (task, spec) in enumerate(zip(unit.tasks, unit.spec.tasks, strict=True)):
            ran = now - task.started
            if task.status != "running" or task.straggles or ran < LEAST_RUN or task.node not in connected:
                continue
            model = _model(ledger, task)
            key = (unit.job, _whole(unit), unit.spec.kind, unit.variant, unit.epoch if _is_gang(unit) else 0, model)
            if key not in siblings:
                siblings[key] = usual([*_runs(ledger, unit, model)])
            known = siblings[key]
            if known is not None and ran > known.most:
                yield Straggling(
                    at=now,
                    task=f"{unit.job}.{spec.name}",
                    epoch=unit.epoch_of(index),
                    node=task.node,
                    ran=ran,
                    expected=known.mean,
                    siblings=known.siblings,
                )


class Pace(NamedTuple):
    """A report of a member, and since when it has been slow without a break (0: it is not)."""

    epoch: int
    computes: int
    heard: int
    slow_since: int = 0


class Paces:
    """Reported times that members of gangs compute in a step; dropped when the unit ends."""

    def __init__(self) -> None:
        self._of: dict[str, dict[int, Pace]] = {}

    def heard(self, unit: UnitState, index: int, computes: int, now: int) -> None:
        """Record a report of a member."""
        paces = self._of.setdefault(unit.id, {})
        known = paces.get(index)
        since = known.slow_since if known is not None and known.epoch == unit.epoch_of(index) else 0
        paces[index] = Pace(unit.epoch_of(index), computes, now, since)

    def lagging(self, ledger: Ledger, now: int) -> Iterator[Lagging]:
        """Yield members not reported yet for which the others have waited long enough."""
        for name in list(self._of):
            unit = ledger.jobs.unit(name)
            if unit is None or unit.status != "active":
                del self._of[name]
                continue
            paces = self._of[name]
            fresh = {
                index: pace
                for index, pace in paces.items()
                if pace.epoch == unit.epoch_of(index)
                and now - pace.heard <= FRESH
                and unit.tasks[index].status == "running"
            }
            for index, pace in fresh.items():
                model = _model(ledger, unit.tasks[index])
                others = sorted(
                    one.computes
                    for other, one in fresh.items()
                    if other != index and _model(ledger, unit.tasks[other]) == model
                )
                usual = others[len(others) // 2] if others else pace.computes
                if pace.computes <= LEAST_RATIO * usual:
                    paces[index] = pace._replace(slow_since=0)
                elif not pace.slow_since:
                    paces[index] = pace._replace(slow_since=now)
                elif now - pace.slow_since >= LAGS_FOR and unit.lags is None and not unit.stopping:
                    yield Lagging(
                        at=now,
                        task=f"{unit.job}.{unit.spec.tasks[index].name}",
                        epoch=unit.epoch_of(index),
                        node=unit.tasks[index].node,
                        computes=pace.computes,
                        usual=usual,
                        siblings=len(others),
                    )
                    break


def _is_compared(ledger: Ledger, unit: UnitState) -> bool:
    first = unit.spec.tasks[0]
    alike = len(unit.tasks) > FEWEST or (not _is_gang(unit) and first.parts > 0 and not values_in(first.env))
    return alike and not unit.saved and not unit.generation and ledger.jobs[unit.job].calls is None


def _is_gang(unit: UnitState) -> bool:
    return len(unit.tasks) > 1


def _whole(unit: UnitState) -> str:
    """Return the name of the task that the unit is a part of."""
    return unit.spec.name.partition("[")[0]


def _runs(ledger: Ledger, unit: UnitState, model: str) -> Iterator[int]:
    """Yield the run times of finished siblings on this model of device."""
    if _is_gang(unit):
        others = [unit]
    else:
        others = [
            other
            for other in ledger.jobs[unit.job].units
            if other.status == "done"
            and (_whole(other), other.spec.kind, other.variant) == (_whole(unit), unit.spec.kind, unit.variant)
            and not other.saved
        ]
    for other in others:
        for task in other.tasks:
            if task.ending is not None and task.ending.outcome == "done" and _model(ledger, task) == model:
                yield task.ending.run


def _model(ledger: Ledger, task: TaskState) -> str:
    known = ledger.nodes.get(task.node)
    return "" if known is None else model_under(known.node, task.devices)
