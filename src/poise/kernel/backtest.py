"""Test rules on a past log: which would have fired, and with which actions.

The signals come from the log; the actions of the rules have no effect on them. Every rule is evaluated, whatever its
mode, as if it had been in force from the first record on.
"""

from collections import Counter
from collections.abc import Iterable, Iterator
from typing import NamedTuple

from poise.kernel.ledger import Ledger
from poise.kernel.rules import Change, Engine
from poise.model.events import Began, Event, NodesMeasured, RuleFired, ServicesMeasured
from poise.model.expressions import SIGNALS, Scope
from poise.model.reports.rules import RulesTest, TestedChange, TestedRule
from poise.model.rules import Rules
from poise.units import HOUR

MAX_CHANGES = 1_000
"""Maximum number of changes in a report."""

FLAPS_WITHIN = 1 * HOUR


def backtest(events: Iterable[Event], rules: Rules, ledger: Ledger) -> RulesTest:
    """Evaluate rules on the events of a log, starting with the state of the ledger."""
    tried = Rules(tuple(rule._replace(mode="shadow") for rule in rules.rules), rules.every, rules.budget)
    first, began = ledger.revision + 1, 0
    engine = Engine(tried, ledger.now)
    changes: list[Change] = []
    measured: set[Scope] = set()
    for event in events:
        if not isinstance(event, Began):
            changes += engine.until(event.at, ledger)
        began = began or event.at
        ledger.apply(event)
        engine.saw(event)
        if isinstance(event, NodesMeasured | ServicesMeasured):
            measured.add("node" if isinstance(event, NodesMeasured) else "service")
    read = {of.signal for rule in rules.rules for of in rule.reads}
    return RulesTest(
        first=first,
        last=ledger.revision,
        hours=max(0, ledger.now - began) / HOUR,
        evaluations=engine.evaluations,
        rules=_rules(rules, changes),
        changes=tuple(
            TestedChange(
                at=ledger.leader.wall(change.due),
                rule=change.rule,
                subject=change.subject,
                have=change.have,
                over=change.over,
            )
            for change in changes[:MAX_CHANGES]
        ),
        conflicts=_conflicts(changes),
        missing=tuple(sorted(name for name in read if SIGNALS[name].measured and SIGNALS[name].scope not in measured)),
    )


class Sample(NamedTuple):
    """The signal of a control loop and its knob, in the unit of the knob, at an evaluation."""

    at: int
    measured: float
    value: int


def samples(events: Iterable[Event], rules: Rules, rule: str, ledger: Ledger) -> Iterator[Sample]:
    """Yield the signal and the knob of the control loop of a rule at each evaluation from its firing on, and before the
    steps of that evaluation.
    """
    engine = Engine(rules, ledger.now)
    for event in events:
        while not isinstance(event, Began) and engine.due <= event.at:
            due = engine.due
            engine.until(due, ledger)
            firing = ledger.rules.firing(rule, "")
            if firing is not None and not firing.over and "control" in firing.actions:
                yield Sample(due, engine.sensed[rule], firing.before["control"]["value"])
        ledger.apply(event)
        engine.saw(event)
        if isinstance(event, RuleFired) and event.rule == rule and "control" in event.actions:
            yield Sample(event.due, engine.sensed[rule], event.before["control"]["value"])


def _rules(rules: Rules, changes: Iterable[Change]) -> tuple[TestedRule, ...]:
    firings: Counter[str] = Counter()
    flaps: Counter[str] = Counter()
    ended: dict[tuple[str, str], int] = {}
    still: Counter[str] = Counter()
    for change in changes:
        key = change.rule, change.subject
        if change.over:
            ended[key] = change.due
            still[change.rule] -= 1
            continue
        firings[change.rule] += 1
        still[change.rule] += 1
        flaps[change.rule] += key in ended and change.due - ended[key] <= FLAPS_WITHIN
    return tuple(
        TestedRule(
            name=rule.name,
            mode=rule.mode,
            firings=firings[rule.name],
            actions={action.name: firings[rule.name] for action in rule.actions},
            flaps=flaps[rule.name],
            open=still[rule.name],
        )
        for rule in rules.rules
    )


def _conflicts(changes: Iterable[Change]) -> tuple[str, ...]:
    standing: dict[str, set[str]] = {}
    found: dict[str, None] = {}
    for change in changes:
        rules = standing.setdefault(change.subject, set())
        if change.over:
            rules.discard(change.rule)
            continue
        for other in sorted(rules):
            found.setdefault(f"{other} and {change.rule}: {change.subject or 'the fleet'}")
        rules.add(change.rule)
    return tuple(found)
