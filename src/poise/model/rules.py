"""Rules: conditions on signals, and the actions that follow. From a parsed YAML file to records.

    kind: rules
    rules:
      - name: failing-node
        mode: "on"
        trigger: {failures: ">30%"}
        clear: {failures: "<10%"}
        sustained_for: 5m
        actions: [cordon: true, notify: true]

A rule fires for a subject, which is a node, a service or the fleet, once its trigger has held for `sustained_for`. It
ends once `clear` has held for as long, and its actions are undone. Each rule is off until its file sets another mode.
"""

import re
from collections.abc import Iterable, Iterator
from functools import partial, reduce
from typing import Any, Literal, NamedTuple

import msgspec

from poise.errors import SpecError
from poise.model.document import Findings, near
from poise.model.expressions import SIGNALS, Both, Condition, Not, Read, Scope, cost_of, parse_condition, reads_of
from poise.model.fields import NAME, Quantity, parse_or_raise
from poise.model.rule_actions import (
    ACTIONS,
    CORDON,
    REPLICAS,
    Action,
    Control,
    Rescale,
    Setting,
    compile_action,
    setting_of,
)
from poise.model.served import service_in_full
from poise.model.spec import check_name
from poise.units import DAY, MINUTE, SECOND, parse_duration

Mode = Literal["off", "shadow", "ask", "on"]
MODES = ("off", "shadow", "ask", "on")

EVERY = 30 * SECOND
LEAST_EVERY = 5 * SECOND
COOL_DOWN = 10 * MINUTE
BUDGET = 20
MAX_RULES = 100
MAX_ACTIONS = 8
MAX_NAMED = 10_000
MAX_TOTAL_COST = 20_000

_SERVICE = re.compile(f"(?:{NAME}:)?{NAME}")


class RuleSpec(msgspec.Struct, forbid_unknown_fields=True):
    """One rule, as written."""

    name: str
    trigger: str | dict[str, str]
    actions: list[dict[str, Any]]
    mode: Mode = "off"
    clear: str | dict[str, str] | None = None
    sustained_for: Quantity = "0s"
    cool_down: Quantity = "10m"
    scope: list[str] | None = None


class RulesSpec(msgspec.Struct, forbid_unknown_fields=True):
    """A rules file, as written."""

    kind: str
    rules: list[RuleSpec]
    every: Quantity = "30s"
    budget: int = BUDGET


class Rule(NamedTuple):
    """A compiled rule. Times in nanoseconds; `subjects` names its nodes or services, None: all."""

    name: str
    scope: Scope
    trigger: Condition
    clear: Condition
    actions: tuple[Action, ...]
    mode: Mode = "off"
    sustained_for: int = 0
    cool_down: int = COOL_DOWN
    subjects: frozenset[str] | None = None

    @property
    def control(self) -> Control | None:
        """The control loop that runs while the rule has fired; None if there is none."""
        return next((action.value for action in self.actions if isinstance(action.value, Control)), None)

    @property
    def conditions(self) -> tuple[Condition, ...]:
        """All conditions that the engine evaluates: trigger, clear, and the target of the control loop."""
        return (self.trigger, self.clear) if self.control is None else (self.trigger, self.clear, self.control.target)

    @property
    def reads(self) -> Iterator[Read]:
        """All reads of signals, in order."""
        return (read for condition in self.conditions for read in reads_of(condition))


class Rules(NamedTuple):
    """The rules of a file: evaluated every `every` nanoseconds, with at most `budget` actions per hour."""

    rules: tuple[Rule, ...] = ()
    every: int = EVERY
    budget: int = BUDGET

    @property
    def measured(self) -> bool:
        """Whether an enabled rule reads signals that agents measure."""
        signals = (SIGNALS[read.signal] for rule in self.rules if rule.mode != "off" for read in rule.reads)
        return any(signal.measured and signal.scope == "node" for signal in signals)


def targets_of(rule: Rule) -> tuple[str, ...]:
    """Return the targets that a rule notifies beside those of the home."""
    of_its_own = [action.value for action in rule.actions if action.name == "notify" and action.value is not True]
    return tuple(target for targets in of_its_own for target in targets)


def compile_rules(document: Any) -> Rules:
    """Compile a parsed file. Raises `SpecError` with every error."""
    found = Findings()
    spec = found.convert(document, RulesSpec)
    made = Rules() if spec is None else _compile(spec, found)
    found.check(_example)
    return made


def _example(field: str) -> str:
    return {
        "kind": "kind: rules",
        "every": "every: 30s",
        "budget": "budget: 20",
        "trigger": 'trigger: {memory_usage: ">90%"}',
        "clear": 'clear: {memory_usage: "<70%"}',
        "mode": "mode: shadow",
    }.get(field.rpartition(".")[2], "actions: [cordon: true]")


def _compile(spec: RulesSpec, found: Findings) -> Rules:
    if spec.kind != "rules":
        found.add(SpecError("this file has no rules", field="kind", need="rules", have=spec.kind))
    every = found.get(EVERY, parse_or_raise, parse_duration, spec.every, "every", DAY)
    if every < LEAST_EVERY:
        found.add(SpecError("evaluations are too frequent", field="every", need="at least 5s", have=str(spec.every)))
        every = EVERY
    if not 0 <= spec.budget <= 10_000:
        found.add(SpecError("the budget is out of range", field="budget", need="0 to 10000", have=str(spec.budget)))
    if len(spec.rules) > MAX_RULES:
        what = "there are too many rules"
        found.add(SpecError(what, field="rules", need=f"at most {MAX_RULES}", have=str(len(spec.rules))))
        return Rules()
    rules = tuple(
        rule
        for place, one in enumerate(spec.rules)
        if (rule := _rule(one, f"rules[{place}]", every, found)) is not None
    )
    if not found:
        _check_names(spec, found)
        _check_owners(rules, found)
        total = sum(cost_of(of, every) for rule in rules for of in rule.conditions)
        if total > MAX_TOTAL_COST:
            need, hint = f"at most {MAX_TOTAL_COST} samples", "use shorter windows, or a longer `every`"
            found.add(SpecError("the rules cost too much", field="rules", need=need, have=str(total), hint=hint))
    return Rules(rules, every, spec.budget)


def _rule(spec: RuleSpec, at: str, every: int, found: Findings) -> Rule | None:
    found.get(None, check_name, spec.name, f"{at}.name")
    trigger = found.get(None, _condition, spec.trigger, f"{at}.trigger", every)
    clear = found.get(None, _condition, spec.clear, f"{at}.clear", every) if spec.clear is not None else None
    sustained = found.get(0, parse_or_raise, parse_duration, spec.sustained_for, f"{at}.sustained_for", DAY)
    cool = found.get(COOL_DOWN, parse_or_raise, parse_duration, spec.cool_down, f"{at}.cool_down", 7 * DAY)
    actions = tuple(_actions(spec, at, every, found))
    if trigger is None or found.doubts(at):
        return None
    scope = found.get("fleet", _scope_of, trigger, clear, at)
    for place, action in enumerate(actions):
        if ACTIONS[action.name] not in ("", scope):
            need = f"signals of {_whole(ACTIONS[action.name])}"
            what = f"`{action.name}` cannot follow from signals of {_whole(scope)}"
            hint = "a rule with its own trigger"
            found.add(SpecError(what, field=f"{at}.actions[{place}]", need=need, have=scope, hint=hint))
        if isinstance(action.value, Rescale) and not action.value.service and scope != "service":
            what, field = "the service is not named", f"{at}.actions[{place}].{action.name}.service"
            hint = f"{action.name}: {{service: chat}}"
            found.add(SpecError(what, field=field, need="a name, or signals of a service", hint=hint))
    if clear is None and any(action.name == "promote" for action in actions):
        what, need = "a promotion needs a condition on which it is undone", "a condition"
        hint = "clear: avg_over(waiting, 1h) > 500"
        found.add(SpecError(what, field=f"{at}.clear", need=need, hint=hint))
    if spec.scope is not None and (scope == "fleet" or not spec.scope or len(spec.scope) > MAX_NAMED):
        what = "the scope names the nodes of a rule about nodes, or the services of a rule about services"
        need, hint = "names of nodes or services", "leave `scope` out for the whole fleet"
        found.add(SpecError(what, field=f"{at}.scope", need=need, have=str(spec.scope)[:80], hint=hint))
    if spec.scope is not None and scope == "service":
        for bad in [name for name in spec.scope if not _SERVICE.fullmatch(name)][:1]:
            what, need = "this is no name of a service", "a name, or that of its tenant before it"
            found.add(SpecError(what, field=f"{at}.scope", need=need, have=bad[:80], hint="scope: [chat, ann:image]"))
    subjects = frozenset(spec.scope) if spec.scope is not None else None
    if subjects is not None and scope == "service":
        subjects = frozenset(map(service_in_full, subjects))
    clear = Not(trigger) if clear is None else clear
    return Rule(spec.name, scope, trigger, clear, actions, spec.mode, sustained, cool, subjects)


def _whole(scope: str) -> str:
    return {"node": "a node", "service": "a service"}.get(scope, "the fleet")


def _condition(written: str | dict[str, str], field: str, every: int) -> Condition:
    """Compile a condition: text, or comparisons by signal that must all hold."""
    if isinstance(written, str):
        return parse_condition(written, field, every)
    if not written:
        raise SpecError("the condition is empty", field=field)
    parts: list[Condition] = []
    for signal, comparison in written.items():
        at = f"{field}.{signal}"
        if signal not in SIGNALS:
            need = ", ".join(SIGNALS)
            hint = near(signal, SIGNALS) or 'memory_usage: ">75%"'
            raise SpecError("there is no such signal", field=at, need=need, have=signal[:80], hint=hint)
        text = signal if comparison == "true" else f"{signal} {comparison}"
        parts.append(parse_condition(text, at, every))
    return reduce(partial(Both, False), parts)


def _scope_of(trigger: Condition, clear: Condition | None, at: str) -> Scope:
    reads = [*reads_of(trigger), *(reads_of(clear) if clear is not None else ())]
    scopes = {SIGNALS[read.signal].scope for read in reads}
    if len(scopes) > 1:
        have = ", ".join(f"{read.signal} ({SIGNALS[read.signal].scope})" for read in reads)
        what, hint = "a rule is about nodes, about services or about the fleet", "two rules"
        raise SpecError(what, field=f"{at}.trigger", need="signals of one scope", have=have[:200], hint=hint)
    return scopes.pop()


def _actions(spec: RuleSpec, at: str, every: int, found: Findings) -> Iterator[Action]:
    if not 1 <= len(spec.actions) <= MAX_ACTIONS:
        have = str(len(spec.actions))
        found.add(SpecError("a rule has actions", field=f"{at}.actions", need=f"1 to {MAX_ACTIONS}", have=have))
    for place, written in enumerate(spec.actions[:MAX_ACTIONS]):
        for name, value in written.items():
            yield from compile_action(name, value, f"{at}.actions[{place}].{name}", every, found)


def _check_names(spec: RulesSpec, found: Findings) -> None:
    seen: dict[str, int] = {}
    for place, one in enumerate(spec.rules):
        if one.name in seen:
            what, hint = f"two rules are called `{one.name}`", f"name: {one.name}-2"
            field = f"rules[{place}].name"
            found.add(SpecError(what, code="E107", field=field, have=f"rules[{seen[one.name]}]", hint=hint))
        seen.setdefault(one.name, place)


class _Owners:
    """Which rule first changes a setting: by kind of setting, and by the name of what it is of (empty: all)."""

    def __init__(self) -> None:
        self._of: dict[str, dict[str, Rule]] = {}

    def claim(self, setting: Setting, names: Iterable[str], rule: Rule) -> tuple[Setting, Rule] | None:
        """Note the owner of a setting for these names. Return what an earlier rule owns of it, and that rule."""
        known = self._of.setdefault(setting.kind, {})
        if "" in names:
            taken = next((("", other) for other in known.values()), None)
        else:
            taken = next(((name, known[one]) for name in sorted(names) for one in ("", name) if one in known), None)
        for name in names:
            known.setdefault(name, rule)
        if taken is None:
            return None
        return Setting(setting.kind, "" if setting.kind == CORDON else taken[0]), taken[1]


def _claims_of(rule: Rule) -> Iterator[tuple[Setting, frozenset[str]]]:
    """Yield the settings that a rule changes, each with the names of what it is of: for an action about the subject of
    the rule, its nodes or services.
    """
    for action in rule.actions:
        setting = setting_of(action)
        if setting is None:
            continue
        if setting.kind in (CORDON, REPLICAS) and not setting.of and rule.subjects is not None:
            yield setting, rule.subjects
        else:
            yield setting, frozenset({setting.of})


def _check_owners(rules: tuple[Rule, ...], found: Findings) -> None:
    """Check that each setting is owned by one rule, unless the rules have different nodes or services. Rules that are
    off count too.
    """
    owners = _Owners()
    for place, rule in enumerate(rules):
        at = f"rules[{place}].actions"
        loops, own = [action for action in rule.actions if isinstance(action.value, Control)], _Owners()
        if len(loops) > 1:
            what = f"`{rule.name}` has {len(loops)} control loops"
            found.add(SpecError(what, code="E107", field=at, have=rule.name, hint="one rule for each"))
        elif any(own.claim(setting, names, rule) for setting, names in _claims_of(rule)):
            what, hint = f"two actions of `{rule.name}` change the same setting", "one action for each setting"
            found.add(SpecError(what, code="E107", field=at, have=rule.name, hint=hint))
        for setting, names in _claims_of(rule):
            taken = owners.claim(setting, names, rule)
            if taken is not None and taken[1] is not rule:
                what = f"`{taken[1].name}` and `{rule.name}` both set {taken[0]}"
                need, have = "one rule for each", f"{taken[1].name}, {rule.name}"
                hint = _how_apart(setting, rule, taken[1])
                found.add(SpecError(what, code="E107", field=at, need=need, have=have, hint=hint))


def _how_apart(setting: Setting, rule: Rule, other: Rule) -> str:
    """Return how two rules can be kept from changing the same setting."""
    if rule.scope != other.scope:
        return f"take the action out of {other.name} or {rule.name}"
    if setting.kind in (CORDON, REPLICAS) and not setting.of:
        return f"join them into one rule, or give them different {rule.scope}s: `scope` of {rule.name}"
    return "join them into one rule"
