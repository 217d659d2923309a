"""Rules, live: one closes a node, says why, and opens it again; another one asks first."""

import json
from typing import Any

from system.living import Diary, Living, until

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
