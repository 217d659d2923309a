"""Fits memory limits again at each evaluation of rules that have fired.

A fit that changes limits is a firing of the rule with the outcome `adjusted`. It counts as one action, and records the
limits from before the first fit. Poise restores these limits when the rule is over. Work that ran out of memory under a
fitted limit gets at least its original limit again, because it may be retried only twice.
"""

from collections.abc import Callable, Sequence

from poise.errors import PoiseError
from poise.kernel.changing import Adjustment, adjustment, check_adjustment, has_value
from poise.kernel.ledger import Ledger
from poise.kernel.rules import Engine
from poise.model.events import Event, RuleFired
from poise.model.rule_actions import ADJUSTED, Relimit


def refit(
    ledger: Ledger,
    engine: Engine,
    adjust: Callable[[str, str, Adjustment, int], None],
    commit: Callable[[Event], None],
    now: int,
) -> None:
    """Fit the limits of all rules that have fired, until the budget of actions is spent."""
    for name, subject, firing in list(ledger.rules.firings()):
        rule = engine.rule(name) if not firing.over else None
        for action in rule.actions if rule is not None else ():
            if action.name not in firing.actions or not isinstance(action.value, Relimit) or not action.value.fit:
                continue
            path, known = ADJUSTED[action.name], firing.before[action.name]
            ours = {unit: change for unit, change in known.items() if has_value(ledger, unit, path, change[1])}
            made = {}
            for unit, (value, fit) in adjustment(ledger, action.value, subject).items():
                ran_out = unit in ours and ledger.jobs.units[unit].ooms
                change = value, max(fit, ours[unit][0]) if ran_out else fit
                free = unit not in known or unit in ours
                if free and change[1] != value and _is_possible(ledger, path, unit, change):
                    made[unit] = change
            if not made or engine.spent >= engine.rules.budget:
                continue
            adjust(name, action.name, made, now)
            first = {unit: [ours.get(unit, change)[0], change[1]] for unit, change in made.items()}
            have = f"{len(made)} limits follow the peaks of earlier attempts"
            before = firing.before | {action.name: ours | first}
            commit(
                RuleFired(
                    at=now,
                    due=engine.evaluated,
                    rule=name,
                    outcome="adjusted",
                    subject=subject,
                    have=have,
                    actions=firing.actions,
                    failed=firing.failed,
                    before=before,
                    spent=1,
                )
            )


def _is_possible(ledger: Ledger, path: str, unit: str, change: Sequence[int]) -> bool:
    try:
        check_adjustment(ledger, path, {unit: change})
    except PoiseError:
        return False
    return True


__all__ = ["refit"]
