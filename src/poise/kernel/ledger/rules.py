"""Rules, and their firings."""

from collections.abc import Iterator
from typing import Any

import msgspec

from poise.kernel.ledger.room import Handlers, Room
from poise.kernel.ledger.state import Firing, State
from poise.model.events import NodesMeasured, RuleAnswered, RuleFired, RuleOver, RulesSet, RuleSteered, ShadowJudged
from poise.units import HOUR

MAX_PAST = 10_000
"""Maximum number of ended firings; the log has all of them."""


def key_of(rule: str, subject: str) -> str:
    """Return the key of a firing. The name of a rule contains no slash."""
    return f"{rule}/{subject}"


class RuleBook(Room):
    """Owns `rules`, `rule_policies`, `firings`, `actions_spent` and `shadow_better`."""

    def __init__(self, state: State) -> None:
        self._state = state

    @property
    def document(self) -> dict[str, Any]:
        """Content of the rules file; empty if there is none."""
        return self._state.rules

    @property
    def policies(self) -> dict[str, dict[str, Any]]:
        """Policies set by rules, by the name of the rule."""
        return self._state.rule_policies

    @property
    def spent(self) -> list[int]:
        """Instants of the actions in the last hour before the latest of them."""
        return self._state.actions_spent

    @property
    def shadow_better(self) -> dict[str, str]:
        """Policies in shadow whose figures allow a promotion, with the evidence."""
        return self._state.shadow_better

    def firing(self, rule: str, subject: str) -> Firing | None:
        """Return the last firing of a rule for a subject; None if there is none."""
        return self._state.firings.get(key_of(rule, subject))

    def firings(self) -> Iterator[tuple[str, str, Firing]]:
        """Yield rule, subject and firing, in the order in which they fired."""
        for key, firing in self._state.firings.items():
            rule, _, subject = key.partition("/")
            yield rule, subject, firing

    def handlers(self) -> Handlers:
        return {
            RulesSet: self._set,
            RuleFired: self._fired,
            RuleOver: self._over,
            RuleAnswered: self._answered,
            RuleSteered: self._steered,
            NodesMeasured: self._only_recorded,
            ShadowJudged: self._judged,
        }

    def _set(self, event: RulesSet) -> None:
        self._state.rules, self._state.rule_policies = event.document, event.policies

    def _judged(self, event: ShadowJudged) -> None:
        self._state.shadow_better = event.better

    def _fired(self, event: RuleFired) -> None:
        firings, key = self._state.firings, key_of(event.rule, event.subject)
        firings.pop(key, None)
        firings[key] = Firing(
            at=event.at,
            since=event.due,
            outcome=event.outcome,
            have=event.have,
            actions=event.actions,
            failed=event.failed,
            before=event.before,
        )
        self._spend(event.due, event.spent)
        past = [known for known, firing in firings.items() if firing.over]
        for known in past[: max(0, len(past) - MAX_PAST)]:
            del firings[known]

    def _spend(self, due: int, actions: int) -> None:
        if actions:
            recent = [at for at in self._state.actions_spent if at > due - HOUR]
            self._state.actions_spent = [*recent, *[due] * actions]

    def _steered(self, event: RuleSteered) -> None:
        key = key_of(event.rule, event.subject)
        firing = self._state.firings[key]
        before = firing.before | {"control": firing.before["control"] | {"value": event.value}}
        self._state.firings[key] = msgspec.structs.replace(firing, before=before)
        self._spend(event.due, 1)

    def _over(self, event: RuleOver) -> None:
        key = key_of(event.rule, event.subject)
        firing = self._state.firings[key]
        self._state.firings[key] = msgspec.structs.replace(firing, since=event.due, over=True)

    def _answered(self, event: RuleAnswered) -> None:
        key, outcome = key_of(event.rule, event.subject), "done" if event.allowed else "denied"
        firing = self._state.firings[key]
        self._state.firings[key] = msgspec.structs.replace(
            firing, outcome=outcome, actions=event.actions, failed=event.failed, before=event.before
        )

    def _only_recorded(self, event: NodesMeasured) -> None:
        """Change nothing: rules read the event from the log."""
