"""Rules: when they fire, what they do, how it is undone, and that the log says it all again."""

import random
from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest

from poise.errors import Conflict, NotFound
from poise.kernel.backtest import backtest
from poise.kernel.ledger import Ledger
from poise.kernel.messages import AnswerRule, Configure, JudgeShadows, SetRules
from poise.kernel.rules import Change, Engine
from poise.kernel.ruling import engine_of
from poise.model.events import (
    Began,
    Configured,
    Event,
    JobChanged,
    NodeJoined,
    NodesMeasured,
    NodeSuspected,
    NodeTrusted,
    Noticed,
    RuleFired,
    RuleOver,
    RulesSet,
    ServicesMeasured,
)
from poise.model.load import Load
from poise.model.messages import Beat
from poise.model.reports.services import ServiceOrder
from poise.model.rules import compile_rules
from poise.model.served import Served
from poise.policy.split import split_in
from poise.testing import World, node
from poise.units import HOUR, MILLISECOND, MINUTE, SECOND

FULL: dict[str, Any] = {
    "name": "full",
    "mode": "on",
    "trigger": "cpu_reserved > 50%",
    "clear": "cpu_reserved < 10%",
    "sustained_for": "1m",
    "actions": [{"cordon": True}],
}


def rules(*given: dict[str, Any], **fields: Any) -> dict[str, Any]:
    return {"kind": "rules", "rules": list(given), **fields}


def load(world: World, document: dict[str, Any], **policies: dict[str, Any]) -> World:
    return world.ask(SetRules(world.request(), document, policies))


def changed(world: World) -> list[tuple[str, str, str]]:
    """What rules did, in order."""
    return [
        ("over", event.rule, event.subject)
        if isinstance(event, RuleOver)
        else (event.outcome, event.rule, event.subject)
        for event in world.log
        if isinstance(event, RuleFired | RuleOver)
    ]


def recomputed(world: World) -> list[Change]:
    """What an engine says that is given nothing but the log."""
    ledger, engine, told = Ledger(), None, []
    for event in world.log:
        if engine is not None and not isinstance(event, Began):
            told += engine.until(event.at, ledger)
        ledger.apply(event)
        if engine is not None:
            engine.saw(event)
        if isinstance(event, RulesSet):
            engine = engine_of(ledger, event.at)
    assert engine is not None
    return told


def recorded(world: World) -> list[tuple[str, str, int, bool]]:
    return [
        (event.rule, event.subject, event.due, isinstance(event, RuleOver))
        for event in world.log
        if isinstance(event, RuleFired | RuleOver)
    ]


def busy(world: World) -> World:
    return world.job("a", resources={"cpu": 4}).round().start("a")


def minutes(world: World, count: int) -> World:
    for _ in range(4 * count):
        for name in sorted(world.connected):
            world.hear(name, Beat(number=1))
        world.after("15s")
    return world


def test_a_rule_cordons_a_node_after_a_while_and_opens_it_again() -> None:
    world = load(World().nodes(2, cpu=4), rules(FULL))
    busy(world)
    node = world.where("a")[0]
    minutes(world, 1)
    assert not world.ledger.nodes[node].drained  # it has not held for long enough
    minutes(world, 1)
    assert world.ledger.nodes[node].drained
    world.finish("a")
    minutes(world, 3)
    assert not world.ledger.nodes[node].drained
    assert changed(world) == [("done", "full", node), ("over", "full", node)]


def test_the_log_gives_the_same_firings_again() -> None:
    world = load(World().nodes(2, cpu=4), rules(FULL))
    for _ in range(3):
        minutes(busy(world), 3)
        world.finish("a")
        minutes(world, 12)
    assert len(changed(world)) == 6
    assert [tuple(change[:4]) for change in recomputed(world)] == recorded(world)


def test_a_shadow_rule_records_and_does_nothing() -> None:
    world = load(World().nodes(1, cpu=4), rules(FULL | {"mode": "shadow"}))
    minutes(busy(world), 3)
    assert changed(world) == [("shadow", "full", "n1")]
    assert not world.ledger.nodes["n1"].drained


def test_rules_are_off_until_allowed() -> None:
    quiet = {key: value for key, value in FULL.items() if key != "mode"}
    world = load(World().nodes(1, cpu=4), rules(quiet))
    minutes(busy(world), 3)
    assert changed(world) == []


@pytest.mark.parametrize("allowed", [True, False])
def test_a_rule_asks_once_and_is_answered(allowed: bool) -> None:
    world = load(World().nodes(1, cpu=4), rules(FULL | {"mode": "ask"}))
    minutes(busy(world), 5)
    assert changed(world) == [("asked", "full", "n1")]
    assert not world.ledger.nodes["n1"].drained
    for name, subject, hint in (
        ("ful", "n1", "did you mean `full`?"),
        ("nosuch", "n1", "`poise rules`"),
        ("full", "", "`poise rules approve full n1`"),
    ):
        with pytest.raises(NotFound) as refused:
            world.ask(AnswerRule(world.request(), name, subject, allowed))
        assert refused.value.record.hint == hint
    world.ask(AnswerRule(world.request(), "full", "n1", allowed))
    assert world.ledger.nodes["n1"].drained is allowed
    with pytest.raises(Conflict, match="asks for nothing"):
        world.ask(AnswerRule(world.request(), "full", "n1", allowed))
    world.finish("a")
    minutes(world, 3)
    assert not world.ledger.nodes["n1"].drained


def test_a_node_that_an_operator_has_closed_stays_closed() -> None:
    world = load(World().nodes(1, cpu=4), rules(FULL))
    busy(world).drain("n1")
    minutes(world, 3)
    world.finish("a")
    minutes(world, 3)
    assert world.ledger.nodes["n1"].drained
    fired = next(event for event in world.log if isinstance(event, RuleFired))
    assert "closed already" in fired.failed


@pytest.mark.parametrize("opened", [False, True])
def test_a_node_that_an_operator_closes_after_a_rule_stays_closed(opened: bool) -> None:
    world = load(World().nodes(1, cpu=4), rules(FULL))
    minutes(busy(world), 3)
    assert world.ledger.nodes["n1"].drained
    if opened:
        world.drain("n1", on=False)
    world.drain("n1")
    world.finish("a")
    minutes(world, 3)
    assert changed(world)[-1] == ("over", "full", "n1")
    assert world.ledger.nodes["n1"].drained


@pytest.mark.parametrize("answer", [True, False, None])
def test_a_question_is_over_with_its_answer_or_with_its_rule(answer: bool | None) -> None:
    world = load(World().nodes(1, cpu=4), rules(FULL | {"mode": "ask"}))
    minutes(busy(world), 3)
    if answer is not None:
        world.ask(AnswerRule(world.request(), "full", "n1", answer))
    else:
        world.finish("a")
        minutes(world, 3)
    assert [event.over for event in world.log if isinstance(event, Noticed)] == [False, True]


def test_the_notice_of_a_subject_is_over_with_the_last_rule() -> None:
    """Or the incident of one rule would close when another rule is over."""
    short = FULL | {"actions": [{"notify": True}]}
    long = FULL | {"name": "long", "clear": "cpu_reserved < 10%", "sustained_for": "5m", "actions": [{"notify": True}]}
    world = load(World().nodes(1, cpu=4), rules(short, long))
    minutes(busy(world), 7)
    world.finish("a")
    minutes(world, 3)
    assert changed(world) == [("done", "full", "n1"), ("done", "long", "n1"), ("over", "full", "n1")]
    assert [event.over for event in world.log if isinstance(event, Noticed)] == [False, False]
    minutes(world, 4)
    assert [event.over for event in world.log if isinstance(event, Noticed)] == [False, False, True]


def test_the_budget_bounds_what_rules_do_in_an_hour() -> None:
    world = load(World().nodes(4, cpu=4), rules(FULL | {"cool_down": "0s"}, budget=2))
    for name in "abcd":
        world.job(name, resources={"cpu": 4})
    world.round().start(*"abcd")
    minutes(world, 5)
    assert len(changed(world)) == 2
    assert world.controller.ruling.engine is not None
    assert world.controller.ruling.engine.held_back("full") == 2


def test_a_policy_is_set_and_set_back() -> None:
    rule = {
        "name": "crowd",
        "mode": "on",
        "trigger": "waiting > 2",
        "actions": [{"set_policy": "srtf"}, {"notify": True}],
    }
    world = load(World().nodes(1, cpu=4), rules(rule), crowd={"policy": "srtf"})
    for name in "abcd":
        world.job(name, resources={"cpu": 4})
    minutes(world.round(), 2)
    assert world.ledger.leader.policy == "srtf"
    for name in "bcd":
        world.cancel(name)
    minutes(world, 2)
    assert world.ledger.leader.policy == "poise"
    assert [event.policy for event in world.log if isinstance(event, Configured)] == ["srtf", "poise"]
    assert [event.over for event in world.log if isinstance(event, Noticed)] == [False, True]


def test_a_policy_that_a_user_sets_too_stays_when_the_rule_is_over() -> None:
    rule = {"name": "crowd", "mode": "on", "trigger": "waiting > 2", "actions": [{"set_policy": "srtf"}]}
    world = load(World().nodes(1, cpu=4), rules(rule), crowd={"policy": "srtf"})
    for name in "abcd":
        world.job(name, resources={"cpu": 4})
    minutes(world.round(), 2)
    world.ask(Configure(world.request(), "srtf", world.wall))
    for name in "bcd":
        world.cancel(name)
    minutes(world, 2)
    assert world.ledger.leader.policy == "srtf"
    assert changed(world)[-1] == ("over", "crowd", "")


CROWD: dict[str, Any] = {"name": "crowd", "mode": "on", "trigger": "waiting > 2", "clear": "waiting < 2"}


def crowded(world: World, *actions: dict[str, Any]) -> World:
    """A world in which five jobs wait for one CPU, after the rule has fired."""
    load(world, rules(CROWD | {"actions": list(actions)}))
    for name in ("train-a", "train-b", "train-c", "eval-a", "eval-b"):
        world.job(name, resources={"cpu": 4, "memory": "1GiB"})
    return minutes(world.round(), 2)


def calm(world: World) -> World:
    """The same world, after the jobs that wait were cancelled until the rule is over."""
    for name in ("train-b", "eval-b", "eval-a"):
        world.cancel(name)
    return minutes(world, 2)


def test_a_rule_changes_the_priority_of_jobs_and_changes_it_back() -> None:
    world = World().nodes(1, cpu=4)
    crowded(world, {"change_priority": {"to": "high", "name": "train-*"}})
    priorities = {name: world.unit(name).spec.priority.name for name in ("train-a", "train-c", "eval-a")}
    assert priorities == {"train-a": "HIGH", "train-c": "HIGH", "eval-a": "MEDIUM"}
    world.change("train-a", priority="urgent")  # a user's later change stays
    calm(world)
    assert changed(world) == [("done", "crowd", ""), ("over", "crowd", "")]
    assert [world.unit(name).spec.priority.name for name in ("train-a", "train-c")] == ["URGENT", "MEDIUM"]
    assert {event.by for event in world.log if isinstance(event, JobChanged)} == {"rule:crowd", ""}


def test_a_rule_raises_memory_limits_up_to_the_end_and_not_of_what_runs() -> None:
    world = World().nodes(1, cpu=4, memory=4 << 30)
    crowded(world, {"adjust_memory_limit": {"by": "300%", "most": "3GiB", "name": "*-a"}})
    assert world.unit("eval-a").spec.shape.memory == 3 << 30
    running = world.unit("train-a")
    assert running.spec.shape.memory == 1 << 30
    assert running.next_spec is not None
    assert running.next_spec.shape.memory == 3 << 30
    calm(world)
    assert world.unit("train-a").next_spec is None


def test_a_memory_limit_that_no_node_has_is_refused_and_said() -> None:
    world = crowded(World().nodes(1, cpu=4, memory=4 << 30), {"adjust_memory_limit": {"to": "8GiB", "name": "train-*"}})
    [fired] = [event for event in world.log if isinstance(event, RuleFired)]
    assert fired.actions == ()
    assert fired.failed.startswith("adjust_memory_limit: ")
    assert world.unit("train-c").spec.shape.memory == 1 << 30


def test_what_fits_no_more_is_undone_all_the_same() -> None:
    """The node came back with less memory while the rule had lowered the limit."""
    world = World().nodes(1, cpu=4, memory=4 << 30)
    crowded(world, {"adjust_memory_limit": {"to": "512MiB", "name": "eval-*"}})
    assert world.unit("eval-a").spec.shape.memory == 512 << 20
    world.lose("n1").join(node("n1", cpu=4, memory=600 << 20))
    for name in ("train-a", "train-b", "train-c", "eval-b"):
        world.cancel(name)
    minutes(world, 2)
    unit = world.unit("eval-a")
    assert unit.next_spec is not None, "it runs with the lower limit"
    assert unit.next_spec.shape.memory == 1 << 30


def test_an_action_of_a_rule_about_a_node_concerns_the_work_there() -> None:
    rule = FULL | {"actions": [{"change_priority": {"to": "low", "name": "*"}}]}
    world = load(World().nodes(1, cpu=4), rules(rule))
    busy(world).job("b", resources={"cpu": 4})
    minutes(world, 3)
    assert [world.unit(name).spec.priority.name for name in "ab"] == ["LOW", "MEDIUM"]


def test_orders_for_services_stand_while_the_rule_has_fired() -> None:
    world = World().nodes(1, cpu=4)
    crowded(
        world,
        {"scale_down_replicas": {"service": "chat", "by": 2}},
        {"mirror_traffic": {"service": "chat", "to": "chat-v2", "share": "25%"}},
    )
    assert world.controller.ruling.orders() == [
        ServiceOrder(service="chat", rule="crowd", by=-2),
        ServiceOrder(service="chat", rule="crowd", to="chat-v2", share=0.25),
    ]
    world.restart()
    assert len(world.controller.ruling.orders()) == 2
    calm(world)
    assert world.controller.ruling.orders() == []


def test_a_rule_that_asks_gives_no_orders_and_names_the_answer() -> None:
    world = World().nodes(1, cpu=4)
    load(world, rules(CROWD | {"mode": "ask", "actions": [{"scale_up_replicas": {"service": "chat"}}]}))
    for name in "abcd":
        world.job(name, resources={"cpu": 4})
    minutes(world.round(), 2)
    assert world.controller.ruling.orders() == []
    [rule] = world.controller.ruling.report().rules
    assert rule.firings[0].answer == "poise rules approve crowd"
    world.ask(AnswerRule(world.request(), "crowd", "", True))
    assert [order.by for order in world.controller.ruling.orders()] == [1]
    assert world.controller.ruling.report().rules[0].firings[0].answer == ""


def test_targets_of_a_rule_are_in_its_notice() -> None:
    world = crowded(World().nodes(1, cpu=4), {"notify": "command:mail"})
    assert [event.targets for event in world.log if isinstance(event, Noticed)] == [("command:mail",)]


def test_what_is_measured_is_recorded_only_for_rules_and_missing_data_holds() -> None:
    rule = FULL | {"trigger": {"memory_usage": ">75%"}, "clear": {"memory_usage": "<50%"}}
    world = World().nodes(1)
    world.hear("n1", Beat(number=1, load=Load(memory=900))).after("1m")
    assert not any(isinstance(event, NodesMeasured) for event in world.log)
    load(world, rules(rule))
    minutes(world, 4)
    assert world.ledger.nodes["n1"].drained
    world.disconnect("n1").after("30m")  # nothing is known: nothing follows
    assert changed(world) == [("done", "full", "n1")]


def test_a_reload_keeps_what_stands_and_undoes_what_is_gone() -> None:
    world = load(World().nodes(2, cpu=4), rules(FULL))
    minutes(busy(world), 3)
    node = world.where("a")[0]
    other = {"name": "other", "mode": "shadow", "trigger": "waiting > 0", "actions": [{"notify": True}]}
    load(world, rules(FULL, other))
    assert world.ledger.nodes[node].drained
    load(world, rules(other))
    assert not world.ledger.nodes[node].drained


def test_a_reload_drops_no_evaluation() -> None:
    world = load(World().nodes(1, cpu=4), rules(FULL))
    busy(world)
    for _ in range(8):
        load(world, rules(FULL, budget=7))
        world.hear("n1", Beat(number=1)).after("15s")
    assert changed(world) == [("done", "full", "n1")]


def test_a_restart_keeps_what_stands() -> None:
    world = load(World().nodes(1, cpu=4), rules(FULL))
    minutes(busy(world), 3)
    world.restart()
    minutes(world, 3)
    assert changed(world) == [("done", "full", "n1")]
    assert isinstance(world.controller.ruling.engine, Engine)
    assert world.controller.ruling.due() is not None
    assert world.ledger.rules.spent[-1] > SECOND


SEEDS = 1_000


def unsteady() -> list[Event]:
    """A node for each seed, whose memory is high for one hour of three. What it says is noisy, late by up to two
    minutes, and missing a fifth of the time.
    """
    draws = {f"n{seed}": random.Random(seed) for seed in range(SEEDS)}  # noqa: S311
    late = {name: draw.randrange(0, 2 * MINUTE, SECOND) for name, draw in draws.items()}
    away: set[str] = set()
    log: list[Event] = [NodeJoined(at=1, node=node(name)) for name in draws]
    for at in range(20 * SECOND, 3 * HOUR, 30 * SECOND):
        told: dict[str, tuple[int, ...]] = {}
        for name, draw in draws.items():
            missing = draw.random() < 0.2
            if missing != (name in away):
                log.append(NodeSuspected(at=at, name=name) if missing else NodeTrusted(at=at, name=name))
                away ^= {name}
            level = 930 if HOUR <= at - late[name] < 2 * HOUR else 550
            if not missing:
                told[name] = (0, 0, round(draw.gauss(level, 40)), 0, 0)
        log.append(NodesMeasured(at=at, nodes=told))
    return log


def unsteady_services() -> list[Event]:
    """A service for each seed, whose latency is high for one hour of three. What its gateway reports is noisy, late by
    up to two minutes, and missing a fifth of the time, for up to five minutes.
    """
    draws = {f"s{seed}": random.Random(seed) for seed in range(SEEDS)}  # noqa: S311
    late = {name: draw.randrange(0, 2 * MINUTE, SECOND) for name, draw in draws.items()}
    silent = dict.fromkeys(draws, 0)
    log: list[Event] = []
    for at in range(20 * SECOND, 3 * HOUR, 30 * SECOND):
        told: dict[str, tuple[int, ...]] = {}
        for name, draw in draws.items():
            if draw.random() < 0.05:
                silent[name] = at + draw.randrange(0, 5 * MINUTE, SECOND)
            level = 280 if HOUR <= at - late[name] < 2 * HOUR else 160
            if at >= silent[name]:
                p99 = max(1, round(draw.gauss(level, 12))) * MILLISECOND
                told[name] = Served(rate=50_000, p99=p99, objective=300 * MILLISECOND).values
        log.append(ServicesMeasured(at=at, services=told))
    return log


@pytest.mark.parametrize(
    ("signal", "action", "log"),
    [
        ("memory_usage", {"cordon": True}, unsteady),
        ("service_p99_of_objective", {"scale_up_replicas": {"by": 1}}, unsteady_services),
    ],
)
def test_missing_late_and_noisy_signals_make_no_rule_flap(
    signal: str, action: dict[str, Any], log: Callable[[], list[Event]]
) -> None:
    rule = {
        "name": "high",
        "mode": "shadow",
        "trigger": f"avg_over({signal}, 5m) > 80%",
        "clear": f"avg_over({signal}, 5m) < 70%",
        "sustained_for": "2m",
        "actions": [action],
    }
    ledger, told = Ledger(), Counter[tuple[str, bool]]()
    engine = Engine(compile_rules(rules(rule, budget=10_000)), 0)
    for event in log():
        for change in engine.until(event.at, ledger):
            told[change.subject, change.over] += 1
            assert change.over or HOUR < change.due < 2 * HOUR + 10 * MINUTE
        ledger.apply(event)
        engine.saw(event)
    assert set(told.values()) == {1}  # each fires once, and ends once
    assert len(told) == 2 * SEEDS


def test_a_log_is_tested_as_it_was_lived() -> None:
    world = load(World().nodes(2, cpu=4), rules(FULL))
    for _ in range(2):
        minutes(busy(world), 3)
        world.finish("a")
        minutes(world, 12)
    told = backtest(world.log, compile_rules(rules(FULL)), Ledger())
    assert [(of.rule, of.subject, of.over) for of in told.changes] == [
        (rule, subject, over) for rule, subject, _, over in recorded(world)
    ]
    assert [(of.name, of.firings, of.flaps, of.open) for of in told.rules] == [("full", 2, 1, 0)]
    assert told.missing == ()


def test_a_test_says_what_the_log_does_not_have() -> None:
    world = minutes(World().nodes(1), 2)
    told = backtest(world.log, compile_rules(rules(FULL | {"trigger": "memory_usage > 1%", "clear": "hot"})), Ledger())
    assert told.missing == ("memory_usage",)
    assert told.changes == ()


PROMOTION: dict[str, Any] = {
    "name": "better",
    "mode": "on",
    "trigger": "shadow_better",
    "clear": "waiting > 2",
    "actions": [{"promote": {"policy": "srtf", "share": "50%", "for": "8m", "turn": "2m"}}],
}


def promoting(world: World) -> World:
    load(world, rules(PROMOTION), better={"policy": "srtf"})
    return world.say(JudgeShadows({"srtf": "mean completion -9 %"}))


def policies(world: World) -> list[str]:
    return [event.policy for event in world.log if isinstance(event, Configured)]


def test_a_promotion_takes_turns_before_it_is_for_good() -> None:
    world = promoting(World().nodes(1, cpu=4))
    minutes(world, 20)
    assert policies(world) == ["srtf", "poise", "srtf"]
    told = [event for event in world.log if isinstance(event, Configured)]
    assert [round((later.at - told[0].at) / MINUTE) for later in told] == [0, 2, 4]
    assert {event.why for event in told} == {"promotion of srtf, 50 % of the time on trial"}
    assert {event.by for event in told} == {"rule:better"}


def test_the_trial_of_a_promotion_begins_with_its_approval() -> None:
    world = load(World().nodes(1, cpu=4), rules(PROMOTION | {"mode": "ask"}), better={"policy": "srtf"})
    world.say(JudgeShadows({"srtf": "mean completion -9 %"}))
    minutes(world, 30)
    world.ask(AnswerRule(world.request(), "better", "", True))
    asked = world.now
    minutes(world, 12)
    told = [event for event in world.log if isinstance(event, Configured)]
    assert [event.policy for event in told] == ["srtf", "poise", "srtf"]
    assert told[0].at > asked + MINUTE


def test_a_promotion_is_undone_when_its_rule_is_over() -> None:
    world = promoting(World().nodes(1, cpu=4))
    minutes(world, 20)
    assert world.ledger.leader.policy == "srtf"
    world.say(JudgeShadows({}))
    minutes(world, 2)
    assert world.ledger.leader.policy == "srtf", "only `clear` ends it"
    for name in "abcd":
        world.job(name, resources={"cpu": 4})
    minutes(world.round(), 3)
    assert world.ledger.leader.policy == "poise"
    assert changed(world) == [("done", "better", ""), ("over", "better", "")]


def test_a_policy_that_a_user_sets_ends_the_turns() -> None:
    world = promoting(World().nodes(1, cpu=4))
    minutes(world, 3)
    world.ask(Configure(world.request(), "fifo", 1.0))
    minutes(world, 20)
    assert world.ledger.leader.policy == "fifo"


def test_a_policy_that_a_user_sets_during_its_turn_is_for_good() -> None:
    world = minutes(promoting(World().nodes(1, cpu=4)), 3)
    assert world.ledger.leader.policy == "srtf"
    world.ask(Configure(world.request(), "srtf", world.wall))
    minutes(world, 4)
    assert policies(world) == ["srtf", "srtf"]
    for name in "abcd":
        world.job(name, resources={"cpu": 4})
    minutes(world.round(), 3)
    assert world.ledger.leader.policy == "srtf"
    assert changed(world)[-1] == ("over", "better", "")


def rolled_back(world: World) -> World:
    """As `poise rollback`, and half an hour later."""
    before = world.ledger.leader.before
    world.ask(Configure(world.request(), before["policy"], world.wall, before["recipe"], before["code"], "rolled back"))
    return minutes(world, 30)


@pytest.mark.parametrize("passed", [3, 12])
@pytest.mark.parametrize("trial", [{"nodes": "n1"}, {"share": "50%", "turn": "2m"}, {"share": "100%"}])
def test_a_rollback_of_a_promotion_stays(trial: dict[str, Any], passed: int) -> None:
    rule = PROMOTION | {"actions": [{"promote": {"policy": "srtf", "for": "8m"} | trial}]}
    world = load(World().nodes(4, cpu=4), rules(rule), better={"policy": "srtf", "recipe": {}, "code": ""})
    minutes(world.say(JudgeShadows({"srtf": "mean completion -9 %"})), passed)
    assert world.ledger.leader.policy != "poise"
    assert rolled_back(world).ledger.leader.policy == "poise"


PARTLY = PROMOTION | {"actions": [{"promote": {"policy": "srtf", "nodes": "n1", "for": "8m"}}]}


def test_a_promotion_is_for_a_part_of_the_nodes_first() -> None:
    world = load(World().nodes(4, cpu=4), rules(PARTLY), better={"policy": "srtf", "recipe": {}, "code": ""})
    world.say(JudgeShadows({"srtf": "mean completion -9 %"}))
    minutes(world, 3)
    split, found = world.ledger.leader.policy, split_in(world.ledger.leader.now["recipe"])
    assert found is not None
    assert (found.trial.policy, found.rest.policy, str(found.nodes)) == ("srtf", "poise", "node n1")
    minutes(world, 10)
    assert policies(world) == [split, "srtf"]
    told = [event for event in world.log if isinstance(event, Configured)]
    assert [event.why for event in told] == [
        "promotion of srtf, on trial for node n1",
        "promotion of srtf, after its trial",
    ]
    assert round((told[1].at - told[0].at) / MINUTE) == 8
    assert world.ledger.leader.before["policy"] == "poise", "a rollback ends the whole promotion"


@pytest.mark.parametrize("passed", [3, 12])
def test_a_promotion_for_a_part_of_the_nodes_is_undone_when_its_rule_is_over(passed: int) -> None:
    world = load(World().nodes(4, cpu=4), rules(PARTLY), better={"policy": "srtf", "recipe": {}, "code": ""})
    minutes(world.say(JudgeShadows({"srtf": "mean completion -9 %"})), passed)
    assert world.ledger.leader.policy != "poise"
    for _ in range(8):
        world.job(resources={"cpu": 4})
    minutes(world.round(), 3)
    assert world.ledger.leader.policy == "poise"
    assert [kind for kind, _, _ in changed(world)] == ["done", "over"]


def test_a_promotion_for_nodes_that_are_not_there_changes_nothing() -> None:
    rule = PROMOTION | {"actions": [{"promote": {"policy": "srtf", "nodes": "n9", "for": "8m"}}]}
    world = load(World().nodes(4, cpu=4), rules(rule), better={"policy": "srtf", "recipe": {}, "code": ""})
    minutes(world.say(JudgeShadows({"srtf": "mean completion -9 %"})), 3)
    [fired] = [event for event in world.log if isinstance(event, RuleFired)]
    assert fired.failed == "promote: there is no node n9"
    assert policies(world) == []


def test_a_policy_that_is_not_better_is_not_promoted() -> None:
    world = load(World().nodes(1, cpu=4), rules(PROMOTION), better={"policy": "srtf"})
    world.say(JudgeShadows({"las": "mean completion -9 %"}))
    minutes(world, 3)
    [fired] = [event for event in world.log if isinstance(event, RuleFired)]
    assert fired.failed == "promote: srtf was not better in shadow"
    assert policies(world) == []


def test_units_that_ran_out_of_memory_are_a_signal() -> None:
    rule = {
        "name": "oom",
        "mode": "on",
        "trigger": "out_of_memory > 0",
        "actions": [{"adjust_memory_limit": {"by": "100%", "most": "64GiB", "class": "train"}}],
    }
    world = load(World().nodes(1, cpu=4, memory=64 << 30), rules(rule, every="5s"))
    world.job("a", resources={"cpu": 1, "memory": "1GiB"}, retry={"limit": 3, "when": ["oom"]}, **{"class": "train"})
    world.round().start("a")
    minutes(world, 1)
    assert changed(world) == []
    world.finish("a", outcome="oom")
    minutes(world, 1)
    unit = world.unit("a")
    assert (unit.next_spec or unit.spec).shape.memory == 2 << 30
