"""The memory needs of each class of work, from the attempts that the ledger still has."""

from collections.abc import Iterator
from itertools import chain

from poise.kernel.ledger import Ledger, UnitState
from poise.model.jobs import Ending
from poise.model.rule_actions import Relimit
from poise.policy.memory import Need, fitted, needed, quantile

TELLS = frozenset({"done", "timeout", "oom"})
"""Outcomes of attempts that reached their peak. Attempts with other outcomes may have ended before it."""


class Needs:
    """Memory limits that fit the past attempts of each class, at the current time of a ledger."""

    def __init__(self, ledger: Ledger) -> None:
        self._now = ledger.now
        self._by_class: dict[str, list[Need]] = {}
        self._covered: dict[str, int] = {}
        for job in ledger.jobs.values():
            for unit in job.units:
                for at, ending in _endings(unit):
                    if ending.outcome in TELLS and ending.peak:
                        self._by_class.setdefault(unit.spec.kind, []).append(Need(at, _needed(ending)))

    def limit(self, unit: UnitState, before: int, wanted: Relimit) -> int:
        """Return the next limit of a unit whose limit was `before`. A unit without a limit gets none."""
        kind = unit.spec.kind
        if kind not in self._covered:
            self._covered[kind] = quantile(self._by_class.get(kind, ()), self._now)
        own = max((_needed(ending) for _, ending in _endings(unit) if ending.outcome == "oom"), default=0)
        after = fitted(before, self._covered[kind], wanted.fit / 1000, own)
        return min(wanted.most, max(wanted.least, after)) if before and after != before else before


def _endings(unit: UnitState) -> Iterator[tuple[int, Ending]]:
    """Yield the time and the ending of each ended attempt of a unit."""
    for task in unit.tasks:
        last = () if task.ending is None else ((task.ended, task.ending),)
        yield from chain(((past.at, past.ending) for past in task.past), last)


def _needed(ending: Ending) -> int:
    return needed(ending.peak, ran_out=ending.outcome == "oom")


__all__ = ["Needs"]
