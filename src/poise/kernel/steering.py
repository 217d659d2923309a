"""Control loops of rules: each sets its knob while its rule has fired.

A loop takes a step at an evaluation once its interval has passed. It starts at the current value of the knob. It holds
while its signal is unknown, while the budget of actions is spent, and after somebody else has set the knob. When the
rule is over, the knob gets its old value back. Only changes of the knob are recorded; after a restart, a loop starts
again at the current value.
"""

from collections.abc import Callable
from copy import deepcopy
from math import isnan
from typing import Any

import msgspec

from poise.errors import Conflict
from poise.kernel.ledger import Firing, Ledger
from poise.kernel.messages import Configure, SetQuota
from poise.kernel.rules import Engine
from poise.model.control import MICRO, POLICY, Control, format_knob
from poise.model.events import Event, RuleSteered
from poise.model.quotas import Quota
from poise.model.rules import Rule
from poise.model.tenants import DEFAULT, RULE, Bearer, Role
from poise.policy.control import Course, begin, step, value_of
from poise.policy.recipe import RECIPES

QUOTA = {"quota.cpu": "cpu", "quota.memory": "memory", "quota.gpu": "gpus"}
"""Field of a quota for each knob."""


def acting_as(rule: str) -> Bearer:
    """Return the identity with which a rule acts."""
    return Bearer(DEFAULT, Role.ADMIN, token=f"{RULE}{rule}")


def knob_of(firing: Firing | None) -> str:
    """Return the value that the control loop of a firing has set; empty if there is none."""
    if firing is None or firing.over or "control" not in firing.actions:
        return ""
    state = firing.before["control"]
    return format_knob(state["knob"], state["of"], state["value"])


class Steering:
    """The control loops of one control plane."""

    def __init__(
        self,
        commit: Callable[[Event], None],
        configure: Callable[[Configure, int], Any],
        set_quota: Callable[[SetQuota, int], Any],
    ) -> None:
        self._commit, self._configure, self._set_quota = commit, configure, set_quota
        self._courses: dict[str, tuple[int, Course]] = {}
        self._holds: dict[str, str] = {}

    def restart(self) -> None:
        """Forget all loops; each starts again at the current value of its knob."""
        self._courses.clear()
        self._holds.clear()

    def why_not(self, rule: str) -> str:
        """Return the reason why the loop of a rule holds; empty if it does not."""
        return self._holds.get(rule, "")

    def begin(self, ledger: Ledger, control: Control) -> dict[str, Any]:
        """Return the state of a loop that begins: its knob, the value to restore, and the present value. Raises
        `Conflict` if the number does not exist.
        """
        found = _value(ledger, control.knob, control.of, 0)
        before: Any = found
        if control.knob.startswith(POLICY):
            began = ledger.leader.began
            before = [] if began is None else [began.policy, began.recipe, began.code]
        return {"knob": control.knob, "of": control.of, "before": before, "value": found}

    def step(self, ledger: Ledger, engine: Engine, now: int) -> None:
        """Take the steps that are due after an evaluation."""
        for name, _, firing in list(ledger.rules.firings()):
            rule = engine.rule(name) if not firing.over and "control" in firing.actions else None
            if rule is not None and rule.control is not None:
                self._holds[name] = self._step(ledger, engine, rule, rule.control, firing, now)

    def end(self, ledger: Ledger, rule: str, firing: Firing, now: int) -> bool:
        """Restore the old value of the knob. Returns False if somebody else has set it."""
        self._courses.pop(rule, None)
        self._holds.pop(rule, None)
        state, bearer = firing.before["control"], acting_as(rule)
        if _is_others(ledger, state):
            return False
        if state["knob"].startswith(POLICY):
            policy, recipe, code = state["before"]
            wall, why = ledger.leader.wall(now), f"rule {rule} is over"
            self._configure(Configure(0, policy, wall, recipe, code, why, bearer), now)
        elif state["knob"] in QUOTA:
            self._set(ledger, state, state["before"], bearer, now)
        return True

    # --- inside ------------------------------------------------------------------------------------------------------

    def _step(self, ledger: Ledger, engine: Engine, rule: Rule, control: Control, firing: Firing, now: int) -> str:
        """Take a step if it is due. Return the reason why the loop holds; empty if it does not."""
        state, due = firing.before["control"], engine.evaluated
        if _is_others(ledger, state):
            self._courses.pop(rule.name, None)
            return f"somebody else has set {control.knob}"
        value = min(control.most, max(control.least, state["value"]))
        since, course = self._courses.get(rule.name, (0, begin(control, value)))
        if since and due - since < control.every:
            return self.why_not(rule.name)
        measured = engine.sensed.get(rule.name, float("nan"))
        if isnan(measured):
            return f"{control.target.read.signal} is unknown"
        course = step(control, course, measured)
        wanted = value_of(control, course, value)
        if wanted != state["value"]:
            if engine.spent >= engine.rules.budget:
                return f"the budget of {engine.rules.budget} actions an hour is spent"
            self._set(ledger, state, wanted, acting_as(rule.name), now)
            have = f"{control.target.read.signal} {measured:.6g}"
            self._commit(RuleSteered(at=now, due=due, rule=rule.name, value=wanted, have=have))
        self._courses[rule.name] = due, course
        return ""

    def _set(self, ledger: Ledger, state: dict[str, Any], value: int, bearer: Bearer, now: int) -> None:
        knob, of = state["knob"], state["of"]
        if knob in QUOTA:
            quota = msgspec.structs.replace(ledger.quotas.get(of, Quota()), **{QUOTA[knob]: value})
            self._set_quota(SetQuota(0, of, None if quota == Quota() else quota, bearer), now)
        elif knob.startswith(POLICY):
            recipe = deepcopy(_recipe(ledger))
            *path, last = knob.removeprefix(POLICY).split(".")
            inner = recipe
            for name in path:
                inner = inner[name]
            inner[last] = value / MICRO
            policy, _, code = state["before"]
            wall, why = ledger.leader.wall(now), f"control of {knob}"
            self._configure(Configure(0, policy, wall, recipe, code, why, bearer), now)


def _is_others(ledger: Ledger, state: dict[str, Any]) -> bool:
    """Return whether somebody else has set the knob, removed it, or chosen another policy."""
    if state["knob"].startswith(POLICY) and ledger.leader.policy != state["before"][0]:
        return True
    try:
        return bool(_value(ledger, state["knob"], state["of"], state["value"]) != state["value"])
    except Conflict:
        return True


def _value(ledger: Ledger, knob: str, of: str, last: int) -> int:
    """Return the current value of a knob, in its unit; for extra replicas, which only the rule sets, the `last` value.
    Raises `Conflict` if it is not a number.
    """
    if knob in QUOTA:
        quota = ledger.quotas.get(of, Quota())
        if quota.hours:
            what, hint = f"the quota of {of} depends on the hour", f"`poise quota {of}`"
            raise Conflict(what, field="control", hint=hint)
        return int(getattr(quota, QUOTA[knob]))
    if not knob.startswith(POLICY):
        return last
    found: Any = _recipe(ledger)
    for name in knob.removeprefix(POLICY).split("."):
        found = found.get(name) if isinstance(found, dict) else None
    if isinstance(found, bool) or not isinstance(found, int | float):
        what = f"policy {ledger.leader.policy} has no number {knob.removeprefix(POLICY)}"
        raise Conflict(what, field="control", hint="fairness, score.TERM or order.TERM")
    return round(found * MICRO)


def _recipe(ledger: Ledger) -> dict[str, Any]:
    """Return the recipe of the policy in force; empty if it has none."""
    began = ledger.leader.began
    if began is None or began.recipe:
        return {} if began is None else began.recipe
    shipped = next((recipe for recipe in RECIPES if recipe.name == began.policy), None)
    if shipped is None:
        return {}
    made: dict[str, Any] = msgspec.to_builtins(shipped)
    return {"fairness": shipped.fairness} | made


__all__ = ["Steering", "acting_as", "knob_of"]
