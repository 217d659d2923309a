"""Test rules on past jobs in the twin: their firings and their effect.

The control plane of the twin evaluates the rules and runs their actions, as a live one does. Traces do not contain the
agents' measurements, so rules that read these do not fire.
"""

from collections import Counter
from collections.abc import Sequence
from typing import Any

import msgspec

from poise.drivers.plugins import choice_of, choose_rule_policy, policy_settings, tried
from poise.engine.paired import compare
from poise.engine.twin import Twin
from poise.kernel.backtest import backtest
from poise.kernel.controller import Settings
from poise.kernel.ledger import Ledger
from poise.kernel.messages import SetRules
from poise.model.decisions import Plan
from poise.model.events import Event, RuleFired
from poise.model.reports.rules import RulesEffect, RulesTest
from poise.model.resources import Node
from poise.model.rule_actions import policy_of
from poise.model.rules import compile_rules
from poise.model.views import Snapshot
from poise.model.workload import Workload
from poise.policy.suites import ClusterPolicy
from poise.units import DAY
from poise_lab.trial import Result, row_of, simulate


class Following:
    """The policy of a twin: `first`, or what rules have set since. `twin` is set before the first decision."""

    def __init__(self, first: ClusterPolicy) -> None:
        self.name = first.name
        self.twin: Twin | None = None
        self._first = first
        self._known: dict[tuple[str, bytes], ClusterPolicy] = {}

    def decide(self, view: Snapshot, /) -> Plan:
        began = self.twin.ledger.leader.began if self.twin is not None else None
        if began is None or (began.policy == self.name and not began.recipe):
            return self._first.decide(view)
        key = began.policy, msgspec.json.encode(began.recipe)
        if key not in self._known:
            self._known[key] = tried(choice_of(began))
        return self._known[key].decide(view)


def backtest_on(
    workload: Workload,
    nodes: Sequence[Node],
    policy: ClusterPolicy,
    settings: Settings,
    document: dict[str, Any],
) -> tuple[RulesTest, Result]:
    """Test the rules on the events of a simulation in which they do not act; return the test and that simulation."""
    events: list[Event] = []
    without = simulate(workload, nodes, policy, settings, observe=events.append)
    return backtest(events, compile_rules(document), Ledger()), without


def effect_of(
    workload: Workload,
    nodes: Sequence[Node],
    policy: ClusterPolicy,
    settings: Settings,
    document: dict[str, Any],
    without: Result,
) -> RulesEffect:
    """Return the effect of the rules when all of them act, compared with the same jobs `without` them."""
    rules = [{**rule, "mode": "on"} for rule in document["rules"]]
    policies: dict[str, dict[str, Any]] = {}
    for place, rule in enumerate(compile_rules(document).rules):
        for action in rule.actions:
            if (wanted := policy_of(action)) is not None:
                choice = choose_rule_policy(rule.name, wanted, place)
                told = policy_settings(choice, 0.0)
                policies[rule.name] = {key: told[key] for key in ("policy", "recipe", "code")}
    firings: Counter[str] = Counter({str(rule["name"]): 0 for rule in rules})
    decides = Following(policy)

    def observe(event: Event) -> None:
        if isinstance(event, RuleFired) and event.outcome != "adjusted":
            firings[event.rule] += 1

    def begin(twin: Twin) -> None:
        decides.twin = twin
        twin.ask(lambda request: SetRules(request, {**document, "rules": rules}, policies), 0)

    ruled = simulate(workload, nodes, decides, settings, observe=observe, begin=begin)
    there = {job.id: row_of(job, ruled.measures.makespan) for job in ruled.jobs}
    was = [job for job in without.jobs if job.id in there]
    pairs = [(row_of(job, without.measures.makespan), there[job.id]) for job in was]
    found = compare(pairs, seed=settings.seed, days=[job.submitted // DAY for job in was])
    return RulesEffect(jobs=found.jobs, level=found.level, firings=dict(firings), figures=found.figures)


def with_effect(told: RulesTest, effect: RulesEffect) -> RulesTest:
    return msgspec.structs.replace(told, effect=effect)
