"""Rules files: what is accepted, and what each error says."""

import time
from typing import Any

import pytest

from poise.errors import SpecError
from poise.model.expressions import MAX_LENGTH, Both, Compare, Not, Read, Truth, parse_condition
from poise.model.jobs import Priority
from poise.model.rule_actions import Mirror, Relimit, Reprioritize, Rescale, WhichJobs
from poise.model.rules import compile_rules, targets_of
from poise.model.selection import Selection
from poise.units import MINUTE, SECOND


def rule(**fields: Any) -> dict[str, Any]:
    return {"name": "r", "trigger": "cpu_usage > 80%", "actions": [{"cordon": True}]} | fields


def refused(document: Any) -> list[tuple[str, str]]:
    with pytest.raises(SpecError) as caught:
        compile_rules(document)
    return [(record.field, record.message) for record in caught.value.record.all()]


def of(*rules: dict[str, Any], **fields: Any) -> dict[str, Any]:
    return {"kind": "rules", "rules": list(rules)} | fields


def test_comparisons_and_functions() -> None:
    told = parse_condition("not hot and (load > 1.5 or quantile_over(0.9, cpu_usage, 10m) >= 80%)", "trigger", SECOND)
    assert told == Both(
        False,
        Not(Truth(Read("hot"))),
        Both(
            True,
            Compare(Read("load"), ">", 1.5),
            Compare(Read("cpu_usage", "quantile_over", 10 * MINUTE, 0.9), ">=", 0.8),
        ),
    )


def test_a_latency_is_compared_with_a_time() -> None:
    half = parse_condition("service_p99 > 0.5", "trigger", SECOND)
    assert parse_condition("service_p99 > 500ms", "trigger", SECOND) == half
    [(field, _)] = refused(of(rule(trigger={"service_p99": "> 500ds"}, actions=[{"notify": True}])))
    assert field == "rules[0].trigger.service_p99"


def test_a_scope_has_names_of_services() -> None:
    slow = rule(trigger="service_waiting > 3", actions=[{"notify": True}])
    for name in ("bad name!", "", "a:b:c", "chat\n"):
        assert refused(of(slow | {"scope": ["chat", name]})) == [("rules[0].scope", "this is no name of a service")]


def test_a_mapping_is_all_of_its_comparisons() -> None:
    made = compile_rules(of(rule(trigger={"gpu_utilization": ">80%", "memory_usage": ">75%"})))
    assert made.rules[0].trigger == parse_condition("gpu_utilization > 80% and memory_usage > 75%", "", SECOND)
    assert made.rules[0].mode == "off"


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", "a signal is missing"),
        ("cpu_usage", "a comparison is missing"),
        ("cpu_usage > 80", "is a share, at column 13"),
        ("waiting > 5%", "is a number, at column 11"),
        ("service_p99 > 5%", "is a time, at column 15"),
        ("service_p99 > 5x", "is a time, at column 15"),
        ("service_rate > 5s", "is a number, at column 16"),
        ("cpu_usage > 80% and", "a signal is missing"),
        ("(cpu_usage > 80%", "`)` is missing"),
        ("cpu_usage > 80% load > 2", "does not end here, at column 17"),
        ("cpu_usages > 80%", "there is no such signal, at column 1"),
        ("hot > 1", "true or false already"),
        ("avg_over(hot, 10m) > 1", "true or false, not a number"),
        ("avg_over(cpu_usage, 1s) > 80%", "this is no window"),
        ("avg_over(cpu_usage, 48h) > 80%", "this is no window"),
        ("quantile_over(2, cpu_usage, 10m) > 80%", "a quantile"),
        ("__import__('os')", "is not part of a condition"),
        ("not " * 100 + "hot", "nested too deep"),
        ("h" * (MAX_LENGTH + 1), "too long"),
    ],
)
def test_each_error_says_what_and_where(text: str, says: str) -> None:
    with pytest.raises(SpecError) as caught:
        parse_condition(text, "rules[0].trigger", 30 * SECOND)
    assert says in caught.value.record.message
    assert caught.value.record.field == "rules[0].trigger"
    assert caught.value.record.hint or "no such signal" in says


def test_one_rule_owns_what_an_action_sets() -> None:
    told = refused(of(rule(name="a"), rule(name="b", actions=[{"migrate_task": True}])))
    assert told == [("rules[1].actions", "`a` and `b` both set the cordon of a node")]
    compile_rules(of(rule(name="a", scope=["n1"]), rule(name="b", scope=["n2"])))


def test_what_cannot_be_done_is_refused_with_the_reason() -> None:
    [(field, message)] = refused(of(rule(actions=[{"adjust_gpu_memory_limit": "12Gi"}])))
    assert field == "rules[0].actions[0].adjust_gpu_memory_limit"
    assert "cannot do `adjust_gpu_memory_limit`" in message


def test_values_of_actions_are_compiled() -> None:
    made = compile_rules(
        of(
            rule(
                actions=[
                    {"change_priority": {"to": "high", "class": "train"}},
                    {"adjust_memory_limit": {"by": "50%", "most": "64GiB", "tenant": "ann"}},
                    {"scale_up_replicas": {"service": "ann:chat", "by": 2}},
                    {"mirror_traffic": {"service": "chat", "to": "chat-v2", "share": "10%"}},
                    {"notify": ["webhook:https://hooks.example.org/poise"]},
                ]
            )
        )
    )
    assert [action.value for action in made.rules[0].actions] == [
        Reprioritize(jobs=WhichJobs(kind="train"), to=Priority.HIGH),
        Relimit(jobs=WhichJobs(tenant="ann"), by=500, most=64 << 30),
        Rescale(service="ann:chat", by=2),
        Mirror(service="chat", to="chat-v2", share=100),
        ("webhook:https://hooks.example.org/poise",),
    ]
    assert targets_of(made.rules[0]) == ("webhook:https://hooks.example.org/poise",)


def test_settings_of_different_things_have_different_owners() -> None:
    def scaling(name: str, **value: Any) -> dict[str, Any]:
        return rule(name=name, actions=[{"scale_up_replicas": value}])

    def priority(called: str, **which: str) -> dict[str, Any]:
        return rule(name=called, actions=[{"change_priority": {"to": "high"} | which}])

    compile_rules(of(scaling("a", service="chat"), scaling("b", service="image")))
    told = refused(of(scaling("a", service="chat"), scaling("b", service="chat", by=3)))
    assert told == [("rules[1].actions", "`a` and `b` both set the replicas of chat")]
    compile_rules(of(priority("a", tenant="ann"), priority("b", tenant="bob")))
    told = refused(of(priority("a", tenant="ann"), priority("b", name="train-*")))
    assert told == [("rules[1].actions", "`a` and `b` both set the priority of jobs")]


def promotion(**fields: Any) -> dict[str, Any]:
    actions = [{"promote": {"policy": "srtf", **fields}}]
    return of(rule(trigger="shadow_better", clear="waiting > 500", actions=actions))


def test_a_promotion_is_for_a_part_of_the_nodes_or_of_the_time() -> None:
    [by_nodes, by_time] = (compile_rules(promotion(**fields)) for fields in ({"nodes": "25%"}, {}))
    assert by_nodes.rules[0].actions[0].value.nodes == Selection(share=250)
    assert (by_time.rules[0].actions[0].value.nodes, by_time.rules[0].actions[0].value.share) == (None, 250)
    at = "rules[0].actions[0].promote"
    assert [field for field, _ in refused(promotion(nodes="25%", share="25%", turn="2h"))] == [
        f"{at}.share",
        f"{at}.turn",
    ]
    assert [field for field, _ in refused(promotion(nodes="a,zone=b"))] == [f"{at}.nodes"]


@pytest.mark.parametrize(
    ("document", "field"),
    [
        (of(rule(mode="maybe")), "rules[0].mode"),
        (of(rule(actions=[])), "rules[0].actions"),
        (of(rule(actions=[{"cordn": True}])), "rules[0].actions[0].cordn"),
        (of(rule(actions=[{"cordon": False}])), "rules[0].actions[0].cordon"),
        (of(rule(trigger="waiting > 3")), "rules[0].actions[0]"),
        (of(rule(trigger="waiting > 3 and hot")), "rules[0].trigger"),
        (of(rule(actions=[{"set_policy": "srtf"}])), "rules[0].actions[0]"),
        (of(rule(), rule()), "rules[1].name"),
        (of(rule(actions=[{"change_priority": {"to": "high"}}])), "rules[0].actions[0].change_priority"),
        (
            of(rule(actions=[{"change_priority": {"to": "soon", "class": "a"}}])),
            "rules[0].actions[0].change_priority.to",
        ),
        (
            of(rule(actions=[{"adjust_memory_limit": {"by": "5%", "class": "a"}}])),
            "rules[0].actions[0].adjust_memory_limit.most",
        ),
        (of(rule(actions=[{"adjust_memory_limit": {"class": "a"}}])), "rules[0].actions[0].adjust_memory_limit"),
        (
            of(rule(actions=[{"adjust_memory_limit": {"by": "5%", "fit": "5%", "most": "1GiB", "class": "a"}}])),
            "rules[0].actions[0].adjust_memory_limit",
        ),
        (
            of(rule(actions=[{"adjust_memory_limit": {"fit": "5%", "class": "a"}}])),
            "rules[0].actions[0].adjust_memory_limit.most",
        ),
        (
            of(rule(actions=[{"adjust_memory_limit": {"fit": "5%", "least": "2GiB", "most": "1GiB", "class": "a"}}])),
            "rules[0].actions[0].adjust_memory_limit.least",
        ),
        (
            of(rule(actions=[{"adjust_memory_limit": {"to": "1KiB", "class": "a"}}])),
            "rules[0].actions[0].adjust_memory_limit.to",
        ),
        (
            of(rule(actions=[{"scale_up_replicas": {"service": "a b"}}])),
            "rules[0].actions[0].scale_up_replicas.service",
        ),
        (
            of(rule(actions=[{"scale_up_replicas": {"service": "a", "by": 0}}])),
            "rules[0].actions[0].scale_up_replicas.by",
        ),
        (of(rule(actions=[{"mirror_traffic": {"service": "a", "to": "a"}}])), "rules[0].actions[0].mirror_traffic.to"),
        (of(rule(actions=[{"notify": "mail"}])), "rules[0].actions[0].notify"),
        (of(rule(actions=[{"notify": []}])), "rules[0].actions[0].notify"),
        (of(rule(sustained_for="soon")), "rules[0].sustained_for"),
        (of(rule(), every="1s"), "every"),
        (of(rule(), budget=-1), "budget"),
        (of(rule(scope=[])), "rules[0].scope"),
        ({"kind": "job", "rules": []}, "kind"),
    ],
)
def test_the_field_that_is_wrong_is_named(document: Any, field: str) -> None:
    assert refused(document)[0][0] == field


def test_a_rule_about_services_names_them_or_takes_the_one_that_it_fires_for() -> None:
    slow = {"trigger": "service_waiting > 3", "actions": [{"scale_up_replicas": {"by": 2}}]}
    made = compile_rules(of(rule(**slow, scope=["chat", "default:image", "ann:chat"]))).rules[0]
    assert made.scope == "service"
    assert made.subjects == frozenset(["chat", "image", "ann:chat"])
    assert made.actions[0].value == Rescale(service="", by=2)
    told = refused(of(rule(trigger="waiting > 3", actions=[{"scale_up_replicas": {"by": 2}}])))
    assert told == [("rules[0].actions[0].scale_up_replicas.service", "the service is not named")]
    told = refused(of(rule(trigger="service_waiting > 3")))
    assert told == [("rules[0].actions[0]", "`cordon` cannot follow from signals of a service")]
    told = refused(of(rule(trigger="service_waiting > 3 and waiting > 3", actions=[{"notify": True}])))
    assert told == [("rules[0].trigger", "a rule is about nodes, about services or about the fleet")]


def test_the_replicas_of_a_service_have_one_owner() -> None:
    """A rule that takes the service that it fires for owns the replicas of all, or of those in its scope."""

    def slow(name: str, *scope: str) -> dict[str, Any]:
        found = rule(name=name, trigger="service_waiting > 3", actions=[{"scale_up_replicas": {"by": 1}}])
        return found | ({"scope": list(scope)} if scope else {})

    named = rule(name="named", trigger="waiting > 3", actions=[{"scale_up_replicas": {"service": "default:chat"}}])
    compile_rules(of(slow("a", "ann:chat"), slow("b", "image"), named))
    assert refused(of(slow("a", "chat"), slow("b", "chat", "image"))) == [
        ("rules[1].actions", "`a` and `b` both set the replicas of chat")
    ]
    assert refused(of(slow("a", "chat"), named)) == [
        ("rules[1].actions", "`a` and `named` both set the replicas of chat")
    ]
    assert refused(of(slow("a"), named)) == [("rules[1].actions", "`a` and `named` both set the replicas of chat")]


def test_rules_with_many_services_are_checked_in_little_time() -> None:
    """Quadratic in the services of the scopes, this took 100 rules of 1,000 services minutes."""
    names = [f"s{number}" for number in range(100_000)]
    scopes = [names[first : first + 1_000] for first in range(0, len(names), 1_000)]
    slow = [
        rule(name=f"r{place}", trigger="service_waiting > 3", actions=[{"scale_up_replicas": {"by": 1}}], scope=scope)
        for place, scope in enumerate(scopes)
    ]
    began = time.process_time()
    compile_rules(of(*slow))
    assert time.process_time() - began < 5
    slow[-1]["scope"] = scopes[0]
    [(field, message)] = refused(of(*slow))
    assert (field, message) == ("rules[99].actions", "`r0` and `r99` both set the replicas of s0")


@pytest.mark.parametrize(
    ("actions", "trigger", "hint"),
    [
        ([{"cordon": True}], "cpu_usage > 90%", "different nodes: `scope` of b"),
        ([{"scale_up_replicas": {"by": 1}}], "service_waiting > 3", "different services: `scope` of b"),
        ([{"scale_up_replicas": {"by": 1, "service": "chat"}}], "waiting > 3", "join them into one rule"),
    ],
)
def test_two_owners_of_a_setting_are_told_how_to_differ(actions: Any, trigger: str, hint: str) -> None:
    both = [rule(name=name, trigger=trigger, actions=actions) for name in ("a", "b")]
    with pytest.raises(SpecError) as caught:
        compile_rules(of(*both))
    assert caught.value.record.hint.endswith(hint)
