"""Carry out rules: the engine beside the controller, and its actions.

Events trigger evaluations as they are committed. The actions follow in the next tick, on the ledger of that time. The
actions of a rule are undone once it is over.
"""

from collections.abc import Callable
from typing import Any

from poise.errors import Conflict, NotFound, PoiseError
from poise.kernel.changing import Adjustment, adjusting, adjustment, check_adjustment, undoing
from poise.kernel.ledger import Firing, Ledger
from poise.kernel.messages import AnswerRule, Configure, Drain, SetQuota, SetRules
from poise.kernel.orders import orders
from poise.kernel.promoting import due, promoted, promotion
from poise.kernel.refitting import refit
from poise.kernel.rules import Change, Engine, Standing
from poise.kernel.steering import Steering, acting_as, knob_of
from poise.kernel.watch import Watch
from poise.model.document import near
from poise.model.events import (
    Began,
    Event,
    JobChanged,
    NodesMeasured,
    Noticed,
    RuleAnswered,
    RuleFired,
    RuleOver,
    RulesSet,
)
from poise.model.load import Load, has_changed
from poise.model.reports.rules import RuleFiring, RuleReport, RulesReport
from poise.model.reports.services import ServiceOrder
from poise.model.rule_actions import ADJUSTED, OF_SERVICES
from poise.model.rules import Rule, compile_rules, targets_of
from poise.units import format_duration

WHOLE_FLEET = "the fleet"

MAX_FIRINGS = 100
"""Maximum number of firings of one rule in a report."""


def engine_of(ledger: Ledger, now: int) -> Engine | None:
    """Return the engine of the rules in force, as after a restart; None if there are none."""
    if not ledger.rules.document:
        return None
    standing = {
        (rule, subject): Standing(not firing.over, firing.since) for rule, subject, firing in ledger.rules.firings()
    }
    return Engine(compile_rules(ledger.rules.document), now, standing, ledger.rules.spent)


class Ruling:
    """The rules of one control plane. Call `before` and `after` with each event, `tick` in each tick."""

    def __init__(
        self,
        ledger: Ledger,
        *,
        commit: Callable[[Event], None],
        drain: Callable[[Drain, int], Any],
        configure: Callable[[Configure, int], Any],
        set_quota: Callable[[SetQuota, int], Any],
        change: Callable[[JobChanged], None],
    ) -> None:
        self._ledger = ledger
        self._commit, self._drain, self._configure, self._change = commit, drain, configure, change
        self._steering = Steering(commit, configure, set_quota)
        self.engine: Engine | None = None
        self._changes: list[Change] = []
        self._recorded = 0
        self._unfitted: dict[str, str] = {}

    def restart(self, ledger: Ledger, now: int) -> None:
        """Start again from the state in the ledger."""
        self._ledger, self.engine = ledger, engine_of(ledger, now)
        self._changes.clear()
        self._unfitted.clear()
        self._steering.restart()

    def before(self, event: Event) -> None:
        """Evaluate what is due before this event is applied."""
        if self.engine is not None and self.engine.due <= event.at and not isinstance(event, Began):
            self._changes += self.engine.until(event.at, self._ledger)

    def after(self, event: Event) -> None:
        if self.engine is not None:
            self.engine.saw(event)

    def due(self) -> int | None:
        """Return the instant of the next evaluation; None if no rule is active."""
        return self.engine.due if self.engine is not None and self.engine.active else None

    def tick(self, now: int, watch: Watch) -> None:
        """Evaluate what is due, carry out the changes, and record the loads that the next evaluation reads."""
        engine = self.engine
        if engine is None:
            return
        self._changes += engine.until(now, self._ledger)
        changes, self._changes = self._changes, []
        for change in changes:
            rule = engine.rule(change.rule)
            if rule is not None:
                self._carry_out(rule, change, now)
        if engine.evaluated != self._recorded:
            self._recorded = engine.evaluated
            if any(action.name == "promote" for rule in engine.rules.rules for action in rule.actions):
                self._take_turns(now)
            self._steering.step(self._ledger, engine, now)
            self._unfitted = refit(self._ledger, engine, self._adjust, self._commit, now)
            if engine.rules.measured:
                self._measure(engine, watch, now)

    def reads(self, signal: str) -> bool:
        """Whether an enabled rule reads a signal."""
        rules = self.engine.rules.rules if self.engine is not None else ()
        return any(read.signal == signal for rule in rules if rule.mode != "off" for read in rule.reads)

    def set(self, message: SetRules, now: int) -> int:
        """Replace the rules. Undo the actions of removed and changed rules; the others keep their state."""
        old = self.engine
        self._commit(RulesSet(at=now, document=message.document, policies=message.policies, by=message.bearer.token))
        rules = compile_rules(message.document).rules if message.document else ()
        same = {rule.name for rule in rules if old is not None and rule in old.rules.rules}
        for rule, subject, firing in list(self._ledger.rules.firings()):
            if rule not in same and not firing.over:
                undone = self._undo(rule, subject, firing, "the rule was changed or removed", now)
                self._commit(RuleOver(at=now, due=0, rule=rule, subject=subject, actions=undone))
        self.engine = engine_of(self._ledger, now)
        if self.engine is not None and old is not None:
            self.engine.taking_over(old, now)
        self._changes = [change for change in self._changes if change.rule in same]
        return self._ledger.revision

    def answer(self, message: AnswerRule, now: int) -> tuple[str, ...]:
        """Allow or deny the actions of a rule that asks for approval. Raises NotFound, Conflict."""
        firing, engine = self._ledger.rules.firing(message.rule, message.subject), self.engine
        rule = engine.rule(message.rule) if engine is not None else None
        where = message.subject or WHOLE_FLEET
        if rule is None:
            known = [] if engine is None else [one.name for one in engine.rules.rules]
            what, hint = f"there is no rule `{message.rule[:80]}`", near(message.rule, known) or "`poise rules`"
            raise NotFound(what, field="rule", have=message.rule[:80], hint=hint)
        if firing is None:
            what, hint = f"rule `{rule.name}` has not fired for {where}", self._open_answer(rule) or "poise rules"
            raise NotFound(what, field="rule", have=rule.name, hint=f"`{hint}`")
        if not _asks(firing):
            what = f"rule `{message.rule}` asks for nothing for {where}"
            raise Conflict(what, field="rule", have="over" if firing.over else firing.outcome, hint="`poise rules`")
        self._notice(rule.name, message.subject, "approved" if message.allowed else "denied", now, over=True)
        done, failed, before = self._act(rule, message.subject, firing.have, now) if message.allowed else ((), "", {})
        self._commit(
            RuleAnswered(
                at=now,
                rule=rule.name,
                allowed=message.allowed,
                subject=message.subject,
                actions=done,
                failed=failed,
                before=before,
                by=message.bearer.token,
            )
        )
        return done

    def report(self) -> RulesReport:
        """Return the rules in force, with the state of each and its latest firings; at most `MAX_FIRINGS` of each rule,
        latest first.
        """
        engine = self.engine
        if engine is None:
            return RulesReport()
        wall = self._ledger.leader.wall
        firings: dict[str, list[RuleFiring]] = {rule.name: [] for rule in engine.rules.rules}
        for name, subject, firing in self._ledger.rules.firings():
            if name in firings:
                told = RuleFiring(
                    subject=subject,
                    at=wall(firing.at),
                    outcome=firing.outcome,
                    have=firing.have,
                    actions=firing.actions,
                    failed=firing.failed,
                    over=firing.over,
                    answer=_answer(name, subject) if _asks(firing) else "",
                )
                firings[name].append(told)
        return RulesReport(
            rules=tuple(
                RuleReport(
                    name=rule.name,
                    mode=rule.mode,
                    about=rule.scope,
                    scope=rule.scope if rule.subjects is None else ", ".join(sorted(rule.subjects)),
                    actions=tuple(action.name for action in rule.actions),
                    why_not=self._why_not(engine, rule),
                    knob=knob_of(self._ledger.rules.firing(rule.name, "")),
                    firings=tuple(reversed(firings[rule.name][-MAX_FIRINGS:])),
                )
                for rule in engine.rules.rules
            ),
            evaluated=wall(engine.evaluated),
            budget=engine.rules.budget,
            spent=engine.spent,
        )

    def orders(self) -> list[ServiceOrder]:
        """Return what rules that have fired ask of services."""
        return orders(self._ledger, self.engine) if self.engine is not None else []

    def _open_answer(self, rule: Rule) -> str:
        """Return the command that answers the first open question of a rule; empty if there is none."""
        asked = (of for name, of, firing in self._ledger.rules.firings() if name == rule.name and _asks(firing))
        subject = next(asked, None)
        return "" if subject is None else _answer(rule.name, subject)

    def _why_not(self, engine: Engine, rule: Rule) -> str:
        if rule.mode == "off":
            return "it is off"
        if held := engine.held_back(rule.name):
            return f"the budget of {engine.rules.budget} actions an hour is spent ({held} held back)"
        if answer := self._open_answer(rule):
            return f"it waits for approval: `{answer}`"
        standing = [(subject, firing) for name, subject, firing in self._ledger.rules.firings() if name == rule.name]
        if failed := next((firing.failed for _, firing in reversed(standing) if not firing.over and firing.failed), ""):
            return failed
        if any(not firing.over for _, firing in standing):
            if rule.mode == "shadow":
                return "it only records, in shadow"
            return self._unfitted.get(rule.name) or self._steering.why_not(rule.name)
        if not engine.evaluated:
            return "it was not evaluated yet"
        under_way = list(engine.unsettled(rule.name))
        if not under_way:
            return "its trigger does not hold"
        since = max(engine.evaluated - since for _, since in under_way)
        if since < rule.sustained_for:
            return f"its trigger has held for {format_duration(since)} of {format_duration(rule.sustained_for)}"
        return f"it cools down, or its scope leaves these {rule.scope}s out"

    # --- inside ------------------------------------------------------------------------------------------------------

    def _carry_out(self, rule: Rule, change: Change, now: int) -> None:
        if change.over:
            firing = self._ledger.rules.firing(rule.name, change.subject)
            if firing is not None and not firing.over:
                undone = self._undo(rule.name, change.subject, firing, change.have, now)
                self._commit(
                    RuleOver(
                        at=now, due=change.due, rule=rule.name, subject=change.subject, have=change.have, actions=undone
                    )
                )
            return
        outcome = {"on": "done", "ask": "asked"}.get(rule.mode, "shadow")
        done: tuple[str, ...] = ()
        failed, before = "", dict[str, Any]()
        if rule.mode == "on":
            done, failed, before = self._act(rule, change.subject, change.have, now)
        elif rule.mode == "ask":
            self._notice(rule.name, change.subject, f"asks for approval: {change.have}", now, targets_of(rule))
        self._commit(
            RuleFired(
                at=now,
                due=change.due,
                rule=rule.name,
                outcome=outcome,
                subject=change.subject,
                have=change.have,
                actions=done,
                failed=failed,
                before=before,
                spent=0 if rule.mode == "shadow" else len(rule.actions),
            )
        )

    def _act(self, rule: Rule, subject: str, have: str, now: int) -> tuple[tuple[str, ...], str, dict[str, Any]]:
        """Take the actions of a rule. Return the completed actions, the failures, and the previous policy."""
        done, failed = [], []
        before: dict[str, Any] = {}
        for action in rule.actions:
            try:
                match action.name:
                    case "notify":
                        self._notice(rule.name, subject, have, now, targets_of(rule))
                    case "set_policy":
                        before |= self._set_policy(rule.name, self._ledger.rules.policies[rule.name], now)
                    case "promote":
                        before |= promotion(self._ledger, rule.name, action.value, now)
                    case "control":
                        before["control"] = self._steering.begin(self._ledger, action.value)
                    case name if name in ADJUSTED:
                        made = adjustment(self._ledger, action.value, subject if rule.scope == "node" else "")
                        check_adjustment(self._ledger, ADJUSTED[name], made)
                        self._adjust(rule.name, name, made, now)
                        before[name] = made
                    case name if name in OF_SERVICES:
                        pass  # gateways read `orders`
                    case name:
                        self._close(rule.name, subject, moves=name == "migrate_task", now=now)
            except PoiseError as error:
                failed.append(f"{action.name}: {error.record.message}")
            else:
                done.append(action.name)
        return tuple(done), "; ".join(failed), before

    def _close(self, rule: str, node: str, *, moves: bool, now: int) -> None:
        state = self._ledger.nodes.get(node)
        if state is None:
            raise NotFound(f"node {node} has gone", field="node", have=node)
        if state.drained:
            raise Conflict(f"node {node} is closed already", field="node", have=node)
        self._drain(Drain(0, node, True, acting_as(rule), moves=moves), now)

    def _adjust(self, rule: str, action: str, made: Adjustment, now: int) -> None:
        for event in adjusting(self._ledger, ADJUSTED[action], made, acting_as(rule).token, now):
            self._change(event)

    def _take_turns(self, now: int) -> None:
        """Let the policy of each standing promotion decide where and when it should. A policy that somebody else has
        set stays.
        """
        for name, _, firing in self._ledger.rules.firings():
            rule = self.engine.rule(name) if self.engine is not None and not firing.over else None
            if rule is None or "promote" not in firing.actions:
                continue
            [trial] = [action.value for action in rule.actions if action.name == "promote"]
            wanted = due(self._ledger, trial, self._ledger.rules.policies[name], firing, now)
            if wanted is not None:
                self._set_policy(name, wanted.policy, now, why=wanted.why)

    def _set_policy(self, rule: str, policy: dict[str, Any], now: int, why: str = "") -> dict[str, Any]:
        before, asked = self._ledger.leader.now, self._ledger.leader.wall(now)
        self._configure(Configure(request=0, asked=asked, bearer=acting_as(rule), why=why, **policy), now)
        return {"instead": policy["policy"], "before": before}

    def _undo(self, rule: str, subject: str, firing: Firing, have: str, now: int) -> tuple[str, ...]:
        """Undo the actions of a firing, unless a user has undone them already."""
        undone = []
        if _asks(firing):
            self._notice(rule, subject, f"asks no more: {have}", now, over=True)
        for name in firing.actions:
            if name == "notify":
                self._notice(rule, subject, f"over: {have}", now, over=True)
            elif name in ("set_policy", "promote"):
                leader = self._ledger.leader
                if leader.policy not in promoted(firing) or leader.is_set_by_user:
                    continue
                self._set_policy(rule, firing.before["before"], now, why=f"rule {rule} is over: {have}")
            elif name == "control":
                if not self._steering.end(self._ledger, rule, firing, now):
                    continue
            elif name in ADJUSTED:
                self._adjust(rule, name, undoing(self._ledger, ADJUSTED[name], firing.before[name]), now)
            elif name not in OF_SERVICES:  # an order ends with the firing
                state, bearer = self._ledger.nodes.get(subject), acting_as(rule)
                if state is None or state.drained_by != bearer.token:
                    continue
                self._drain(Drain(0, subject, False, bearer), now)
            undone.append(name)
        return tuple(undone)

    def _notice(
        self, rule: str, subject: str, have: str, now: int, targets: tuple[str, ...] = (), *, over: bool = False
    ) -> None:
        """Record news of a subject. It has one symptom of all rules, which is over with the last of them."""
        if over and any(
            of == subject and name != rule and not firing.over and ("notify" in firing.actions or _asks(firing))
            for name, of, firing in self._ledger.rules.firings()
        ):
            return
        text, known = f"rule {rule}: {have}", self.engine.rule(rule) if self.engine is not None else None
        service = known is not None and known.scope == "service"
        if service:
            text = f"service {subject} is in {text}"
        self._commit(
            Noticed(at=now, kind="rule-fired", subject=subject, text=text, over=over, targets=targets, service=service)
        )

    def _measure(self, engine: Engine, watch: Watch, now: int) -> None:
        """Record the measurements of agents that have changed noticeably since the last record."""
        nodes: dict[str, tuple[int, ...]] = {}
        for name, load in watch.loads():
            known = engine.measured.get(name)
            said = Load(**dict(zip(Load.__struct_fields__, known, strict=True))) if known is not None else None
            if name in self._ledger.nodes and has_changed(said, load):
                nodes[name] = tuple(getattr(load, field) for field in Load.__struct_fields__)
        if nodes:
            self._commit(NodesMeasured(at=now, nodes=dict(sorted(nodes.items()))))


def _asks(firing: Firing) -> bool:
    return firing.outcome == "asked" and not firing.over


def _answer(rule: str, subject: str) -> str:
    """Return the command that allows what a rule asks for."""
    return f"poise rules approve {rule} {subject}".strip()
