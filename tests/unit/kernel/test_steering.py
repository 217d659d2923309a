"""Control loops of rules: they bring a signal to its target, within limits and a budget, and give the number back."""

from typing import Any

import pytest

from poise.errors import SpecError
from poise.kernel.ledger import Ledger
from poise.kernel.messages import Configure, SetRules
from poise.model.events import Configured, QuotaSet, RuleFired, RuleOver, RuleSteered
from poise.model.messages import Beat
from poise.model.quotas import Quota
from poise.model.reports.services import ServiceOrder
from poise.model.rules import compile_rules
from poise.testing import World

LOOP: dict[str, Any] = {"knob": "quota.cpu", "of": "default", "target": {"fleet_use": "50%"}, "least": 2, "most": 64}
RULE: dict[str, Any] = {"name": "half", "mode": "on", "trigger": "nodes_up > 0", "clear": "nodes_up == 0"}

FAIRNESS: dict[str, Any] = {
    "knob": "policy.fairness",
    "of": "",
    "target": {"waiting": 10},
    "effect": "lowers",
    "least": 0,
    "most": 0.8,
}


def rules(budget: int = 100, mode: str = "on", **loop: Any) -> dict[str, Any]:
    rule = RULE | {"mode": mode, "actions": [{"control": LOOP | loop}]}
    return {"kind": "rules", "rules": [rule], "every": "30s", "budget": budget}


def load(world: World, document: dict[str, Any]) -> World:
    return world.ask(SetRules(world.request(), document))


def minutes(world: World, count: int) -> World:
    for _ in range(2 * count):
        for name in sorted(world.connected):
            world.hear(name, Beat(number=1))
        world.after("30s").round()
    return world


def busy(*, check: bool = False) -> World:
    """A node of 64 CPUs, a quota of 4, and more work than fits."""
    world = World(check=check).nodes(1, cpu=64).quota("default", cpu=4)
    for _ in range(80):
        world.job(cpu=1)
    return minutes(world.round(), 1)


def steps(world: World) -> list[int]:
    return [event.value for event in world.log if isinstance(event, RuleSteered)]


def use(world: World) -> float:
    return world.ledger.columns.use() / 1000


def test_a_signal_reaches_its_target_and_stays() -> None:
    world = minutes(load(busy(), rules()), 25)
    assert use(world) == pytest.approx(0.5, abs=0.03)
    taken = steps(world)
    assert len(taken) < 20
    assert taken == sorted(taken), "it does not overshoot"
    assert world.ledger.quotas["default"].cpu == taken[-1]
    assert world.controller.ruling.report().rules[0].knob == f"quota.cpu of default: {taken[-1] // 1000}"
    minutes(world, 30)
    assert steps(world) == taken, "within the tolerance nothing changes"
    assert {event.by for event in world.log[-1:] if isinstance(event, QuotaSet)} <= {"rule:half"}


def test_the_old_value_returns_with_the_end_of_the_rule_and_a_replay_agrees() -> None:
    world = minutes(load(busy(check=True), rules()), 5)
    assert world.ledger.quotas["default"].cpu > 4000
    load(world, {"kind": "rules", "rules": []})
    assert world.ledger.quotas["default"] == Quota(cpu=4000)
    again = Ledger()
    for event in world.log:
        again.apply(event)
    assert again.encode() == world.ledger.encode()


def test_someone_elses_value_is_left_alone() -> None:
    world = minutes(load(busy(), rules()), 5).quota("default", cpu=3)
    count = len(steps(world))
    minutes(world, 10)
    assert (len(steps(world)), world.ledger.quotas["default"].cpu) == (count, 3000)
    assert world.controller.ruling.report().rules[0].why_not == "somebody else has set quota.cpu"
    load(world, {"kind": "rules", "rules": []})
    assert world.ledger.quotas["default"].cpu == 3000
    assert [event.actions for event in world.log if isinstance(event, RuleOver)] == [()]


def test_it_holds_at_a_limit_without_winding_up() -> None:
    """60 % of the fleet is out of reach of 16 CPUs. Once the target is in reach, the next step leaves the limit."""
    world = minutes(load(busy(), rules(target={"fleet_use": "60%"}, most=16)), 120)
    assert world.ledger.quotas["default"].cpu == 16_000
    count = len(steps(world))
    world.job("large", tenant="other", cpu=44)
    minutes(world, 3)
    assert use(world) > 0.9
    assert steps(world)[count] < 16_000


def test_it_stops_at_the_budget() -> None:
    world = minutes(load(busy(), rules(budget=4)), 40)
    assert len(steps(world)) == 3, "one action was the firing"
    assert world.controller.ruling.report().rules[0].why_not == "the budget of 4 actions an hour is spent"


def test_after_a_restart_it_goes_on_at_the_present_value() -> None:
    world = minutes(load(busy(), rules()), 4)
    before = steps(world)
    world.restart()
    minutes(world, 30)
    assert steps(world)[: len(before)] == before
    assert steps(world)[len(before)] > before[-1]
    assert use(world) == pytest.approx(0.5, abs=0.03)


def test_a_parameter_of_the_policy_is_adjusted_and_set_back() -> None:
    """The queue stays longer than its target, so `fairness` rises by steps to its limit."""
    world = minutes(load(busy(), rules(**FAIRNESS)), 30)
    told = [event.recipe["fairness"] for event in world.log if isinstance(event, Configured)]
    assert told == sorted(told)
    assert (told[-1], world.ledger.leader.policy) == (0.8, "poise")
    load(world, {"kind": "rules", "rules": []})
    began = world.ledger.leader.began
    assert began is not None
    assert (began.policy, began.recipe) == ("poise", {})


def test_another_policy_ends_the_control_of_a_parameter() -> None:
    world = minutes(load(busy(), rules(**FAIRNESS)), 5)
    world.ask(Configure(world.request(), "fifo", 1.0))
    minutes(world, 5)
    load(world, {"kind": "rules", "rules": []})
    assert world.ledger.leader.policy == "fifo"


def test_a_parameter_that_does_not_exist_is_said() -> None:
    world = minutes(load(busy(), rules(knob="policy.score.haste", of="")), 2)
    [fired] = [event for event in world.log if isinstance(event, RuleFired)]
    assert fired.failed == "control: policy poise has no number score.haste"


def test_extra_replicas_are_orders() -> None:
    loop: dict[str, Any] = {
        "knob": "replicas",
        "of": "chat",
        "target": {"waiting": 20},
        "effect": "lowers",
        "least": 0,
        "most": 8,
    }
    world = minutes(load(busy(), rules(**loop)), 30)
    assert world.controller.ruling.orders() == [ServiceOrder(service="chat", rule="half", by=8)]


def test_a_rule_in_shadow_sets_nothing() -> None:
    world = minutes(load(busy(), rules(mode="shadow")), 10)
    assert steps(world) == []


@pytest.mark.parametrize(
    ("loop", "field", "says"),
    [
        ({"knob": "batch"}, "knob", "a control loop cannot set this"),
        ({"knob": "policy."}, "knob", "a control loop cannot set this"),
        ({"knob": "policy.preempt.budget", "of": ""}, "knob", "a control loop cannot set this"),
        ({"knob": "policy.fairness", "of": "", "least": 0, "most": 1.5}, "most", "the quantity cannot be read"),
        ({"of": ""}, "of", ""),
        ({"of": "ann:default"}, "of", ""),
        ({"knob": "policy.fairness"}, "of", "a parameter belongs to the policy in force"),
        ({"target": "waiting > 3"}, "target", "this is no target"),
        ({"target": {"waiting": 3, "running": 4}}, "target", "this is no target"),
        ({"target": {"cpu_usage": "50%"}}, "target", "the target of this control loop cannot be a signal of nodes"),
        ({"target": {"fleet_use": 50}}, "target", "`fleet_use` is a share"),
        ({"least": 8, "most": 8}, "most", "`least` must be less than `most`"),
        ({"every": "10s"}, "every", "the steps are more frequent than the evaluations of the rules"),
        ({"gains": {"proportional": -1}}, "gains", "a gain is out of range"),
        ({"gains": "fast"}, "gains", ""),
    ],
)
def test_each_error_says_what_and_where(loop: dict[str, Any], field: str, says: str) -> None:
    with pytest.raises(SpecError) as caught:
        compile_rules(rules(**loop))
    record = caught.value.record
    assert record.field == f"rules[0].actions[0].control.{field}"
    assert says in record.message


def test_a_loop_owns_its_knob() -> None:
    """Two rules cannot set the replicas of one service, and one rule cannot have two loops."""
    document = rules(knob="replicas", of="chat", least=0)
    other = RULE | {"name": "more", "actions": [{"scale_up_replicas": {"service": "chat"}}]}
    with pytest.raises(SpecError, match="`half` and `more` both set the replicas of chat"):
        compile_rules(document | {"rules": [*document["rules"], other]})
    two = RULE | {"actions": [{"control": LOOP}, {"control": LOOP | {"of": "ann"}}]}
    with pytest.raises(SpecError, match="`half` has 2 control loops"):
        compile_rules({"kind": "rules", "rules": [two]})
    policy = RULE | {"actions": [{"control": FAIRNESS}, {"set_policy": "srtf"}]}
    with pytest.raises(SpecError, match="two actions of `half` change the same setting"):
        compile_rules({"kind": "rules", "rules": [policy]})
