"""Rules, live: one closes a node, says why, and opens it again; another one asks first."""

import json
from typing import Any

import pytest

from system.living import Diary, Living, until
from system.serving import Serving

RULES = """
kind: rules
every: 5s
rules:
  - name: taken
    mode: %s
    trigger: cpu_reserved > 0%%
    clear: cpu_reserved < 1%%
    actions: [cordon: true]
"""


def events(living: Living, kind: str) -> list[dict[str, Any]]:
    found = [json.loads(line)["event"] for line in living.poise("events").text.splitlines()]
    return [event for event in found if event["type"] == kind]


def closed(living: Living) -> bool:
    return bool(living.poise("nodes", "--json").value[0]["status"] == "drained")


def test_a_rule_closes_a_node_and_opens_it_again(living: Living) -> None:
    living.up()
    living.file("rules.yaml", RULES % "on")
    assert living.poise("rules", "check", "rules.yaml").code == 0
    assert living.poise("rules", "apply", "rules.yaml").code == 0
    diary = Diary(living.home.root / "diary")
    assert living.poise("submit", "--", "sh", "-c", diary.held()).code == 0
    until(lambda: closed(living), "the rule closes the node", living.messages)
    [rule] = living.poise("rules", "--json").value["rules"]
    assert rule["firings"][0]["actions"] == ["cordon"]
    assert rule["firings"][0]["have"].startswith("cpu_reserved ")
    assert events(living, "drained")[0]["by"] == "rule:taken"
    diary.release()
    until(lambda: not closed(living), "the rule opens it again", living.messages)
    tested = living.poise("rules", "test", "rules.yaml", "--json").value
    assert tested["rules"][0]["firings"] == 1
    assert [change["over"] for change in tested["changes"]] == [False, True]


@pytest.mark.slow
def test_a_rule_asks_and_is_allowed(living: Living) -> None:
    living.up()
    living.file("rules.yaml", RULES % "ask")
    assert living.poise("rules", "apply", "rules.yaml").code == 0
    diary = Diary(living.home.root / "diary")
    assert living.poise("submit", "--", "sh", "-c", diary.held()).code == 0
    fired = until(lambda: events(living, "rule-fired"), "the rule asks", living.messages)
    assert not closed(living)
    assert living.poise("rules", "approve", "taken", fired[0]["subject"]).code == 0
    assert closed(living)
    refused = living.poise("rules", "deny", "taken", fired[0]["subject"])
    assert (refused.code, "asks for nothing" in refused.err) == (1, True)
    diary.release()
    until(lambda: not closed(living), "the node is open again", living.messages)


SERVICE = """
kind: service
name: %s
model: twice.py:Twice
replicas: 1..3
resources: {cpu: 50m}
"""
TWICE = """
class Twice:
    def predict(self, batch: list) -> list:
        return [2 * one for one in batch]
"""
BUSY = """
kind: rules
every: 5s
rules:
  - name: busy
    mode: %s
    trigger: service_replicas > 0
    scope: [twice]
    actions:
      - scale_up_replicas: {by: 1}
      - mirror_traffic: {service: twice, to: other, share: 100%%}
"""


def test_a_service_gets_a_replica_and_copies_its_requests_while_a_rule_has_fired(living: Living) -> None:
    living.up()
    living.file("twice.py", TWICE)
    for name in ("twice", "other"):
        living.file(f"{name}.yaml", SERVICE % name)
    living.file("rules.yaml", BUSY % "on")
    serving = Serving(living, "twice.yaml", "other.yaml")

    def replicas() -> dict[str, int]:
        return {one["service"]: one["replicas"] for one in living.poise("services", "--json").value}

    until(lambda: replicas() == {"twice": 1, "other": 1}, "both are ready", lambda: serving.text)
    assert living.poise("rules", "apply", "rules.yaml").code == 0
    until(lambda: replicas() == {"twice": 2, "other": 1}, "the rule adds one", lambda: serving.text)
    until(lambda: "are copied to other by rule busy" in serving.text, "requests are copied", lambda: serving.text)
    assert serving.ask(21, "/predict/twice").value == 42
    until(
        lambda: serving.metric("serve_deployment_request_counter_total", deployment="other") >= 1,
        "a copy is answered",
        lambda: serving.text,
    )
    tested = living.poise("rules", "test", "rules.yaml", "--json").value
    assert [(change["subject"], change["over"]) for change in tested["changes"]] == [("twice", False)]
    assert {name for event in events(living, "services-measured") for name in event["services"]} == {"twice", "other"}
    living.file("rules.yaml", BUSY % "off")
    assert living.poise("rules", "apply", "rules.yaml").code == 0
    until(lambda: replicas() == {"twice": 1, "other": 1}, "it has as many as before", lambda: serving.text)
    assert serving.end() == 0
