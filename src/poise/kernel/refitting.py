"""Fits memory limits again at each evaluation of rules that have fired.

A fit that changes limits is a firing of the rule with the outcome `adjusted`. It counts as one action, and records the
limits from before the first fit. Poise restores these limits when the rule is over. Work that ran out of memory under a
fitted limit gets at least its original limit again, because it may be retried only twice. A limit that cannot be set
stays, and the reason is returned.
"""

from collections.abc import Callable, Sequence
from typing import NamedTuple

from poise.errors import PoiseError
from poise.kernel.changing import Adjustment, adjustment, check_adjustment, has_value
from poise.kernel.ledger import Firing, Ledger, UnitState
from poise.kernel.rules import Engine
from poise.model.changing import MEMORY
from poise.model.events import Event, RuleFired
from poise.model.rule_actions import ADJUSTED, Relimit
from poise.policy.memory import needed
from poise.units import format_bytes

LIMIT = "adjust_memory_limit"
"""The action whose firings have the limits before and after it, by unit."""


def refit(
    ledger: Ledger,
    engine: Engine,
    adjust: Callable[[str, str, Adjustment, int], None],
    commit: Callable[[Event], None],
    now: int,
) -> dict[str, str]:
    """Fit the limits of all rules that have fired, until the budget of actions is spent. Return why rules could not fit
    some.
    """
    failed: dict[str, str] = {}
    checked: dict[tuple[object, ...], str] = {}
    for name, subject, firing in list(ledger.rules.firings()):
        rule = engine.rule(name) if not firing.over else None
        if rule is None:
            continue
        for action in rule.actions:
            if action.name not in firing.actions or not isinstance(action.value, Relimit) or not action.value.fit:
                continue
            if engine.spent >= engine.rules.budget:
                failed[name] = f"the budget of {engine.rules.budget} actions an hour is spent"
                continue
            path, known = ADJUSTED[action.name], firing.before[action.name]
            ours = {unit: change for unit, change in known.items() if has_value(ledger, unit, path, change[1])}
            made = {}
            try:
                fits = adjustment(ledger, action.value, subject if rule.scope == "node" else "")
            except PoiseError as error:
                failed[name] = f"{action.name}: {error.record.message}"
                continue
            for unit, (value, fit) in fits.items():
                ran_out = unit in ours and ledger.jobs.units[unit].ooms
                change = value, max(fit, ours[unit][0]) if ran_out else fit
                if (unit in known and unit not in ours) or change[1] == value:
                    continue
                if why := _why_not(ledger, path, unit, change, checked):
                    failed[name] = f"{action.name} of {unit} to {format_bytes(change[1])}: {why}"
                else:
                    made[unit] = change
            if not made:
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
    return failed


class Fitting(NamedTuple):
    """The firing that has fitted the limit of a unit."""

    rule: str
    subject: str
    firing: Firing

    def limits(self, unit: UnitState) -> Sequence[int]:
        """Return the limits before and after it."""
        found: Sequence[int] = self.firing.before[LIMIT][unit.id]
        return found


def fitting_of(ledger: Ledger, unit: UnitState) -> Fitting | None:
    """Return the firing that has set the memory limit of a unit; None if no rule has, or if it was set since."""
    for rule, subject, firing in ledger.rules.firings():
        change = firing.before.get(LIMIT, {}).get(unit.id)
        if change and not firing.over and has_value(ledger, unit.id, MEMORY, change[1]):
            return Fitting(rule, subject, firing)
    return None


def resized(fitting: Fitting, unit: UnitState, memory: int, why: str, now: int) -> RuleFired:
    """Return the record that the running attempt of a unit has this limit now, as a limit of the rule."""
    firing, change = fitting.firing, [fitting.limits(unit)[0], memory]
    return RuleFired(
        at=now,
        due=firing.since,
        rule=fitting.rule,
        outcome="adjusted",
        subject=fitting.subject,
        have=f"{unit.id} runs with {format_bytes(memory)} now: {why}",
        actions=firing.actions,
        failed=firing.failed,
        before=firing.before | {LIMIT: firing.before[LIMIT] | {unit.id: change}},
        spent=0,
    )


def raised(ledger: Ledger, unit: UnitState, used: int) -> int:
    """Return the limit for a running attempt whose lowered limit is too low: as after an attempt that ran out of
    memory, up to the limit from before it was lowered, or from before the rule.
    """
    fitting = fitting_of(ledger, unit)
    most = max(unit.lowered_from, fitting.limits(unit)[0] if fitting is not None else 0)
    return min(needed(used, ran_out=True), most)


def _why_not(
    ledger: Ledger, path: str, unit: str, change: Sequence[int], checked: dict[tuple[object, ...], str]
) -> str:
    """Return why a unit cannot have the limit of this change; empty if it can. Similar units are `checked` once."""
    state = ledger.jobs.units[unit]
    spec = state.next_spec or state.spec
    alike = ledger.jobs[state.job].tenant, spec.shape, spec.least, len(spec.tasks), change[1]
    if alike not in checked:
        checked[alike] = ""
        try:
            check_adjustment(ledger, path, {unit: change})
        except PoiseError as error:
            checked[alike] = error.record.message
    return checked[alike]


__all__ = ["fitting_of", "raised", "refit", "resized"]
