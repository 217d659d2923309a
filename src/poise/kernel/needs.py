"""The memory needs of each class of work, from the attempts that the ledger still has."""

from collections.abc import Iterable

from poise.kernel.ledger import Ledger, UnitState
from poise.model.jobs import Ending
from poise.model.rule_actions import Relimit
from poise.policy.memory import Need, fitted, needed, quantile

TELLS = frozenset({"done", "timeout", "oom"})
"""Outcomes of attempts that reached their peak. Attempts with other outcomes may have ended before it."""


class Needs:
    """Memory limits of these units that fit the past attempts of their classes, at the current time of a ledger."""

    def __init__(self, ledger: Ledger, units: Iterable[UnitState]) -> None:
        self._now = ledger.now
        self._by_class: dict[str, list[Need]] = {unit.spec.kind: [] for unit in units}
        self._covered: dict[str, int] = {}
        for job in ledger.jobs.values() if self._by_class else ():
            for unit in job.units:
                if (found := self._by_class.get(unit.spec.kind)) is None:
                    continue
                for at, ending in _endings(unit):
                    if ending.peak and ending.outcome in TELLS:
                        found.append(Need(at, _needed(ending)))

    def limit(self, unit: UnitState, before: int, wanted: Relimit) -> int:
        """Return the next limit of a unit whose limit was `before`. A unit without a limit gets none."""
        kind = unit.spec.kind
        if kind not in self._covered:
            self._covered[kind] = quantile(self._by_class[kind], self._now)
        ran_out = (_needed(ending) for _, ending in _endings(unit) if ending.outcome == "oom")
        own = max((unit.regained, *ran_out))
        after = fitted(before, self._covered[kind], wanted.fit / 1000, own)
        return min(wanted.most, max(wanted.least, after)) if before and after != before else before


def _endings(unit: UnitState) -> list[tuple[int, Ending]]:
    """Return the time and the ending of each ended attempt of a unit."""
    found: list[tuple[int, Ending]] = []
    for task in unit.tasks:
        if task.ending is not None:
            found.append((task.ended, task.ending))
        if task.past:
            found += [(past.at, past.ending) for past in task.past]
    return found


def _needed(ending: Ending) -> int:
    return needed(ending.peak, ran_out=True) if ending.outcome == "oom" else ending.peak


__all__ = ["Needs"]
