"""Incidents of a running Poise: a node that stops is one incident, told once to a webhook, and closed on its return."""

import hashlib
import hmac
import json
import os
import signal
from collections.abc import Iterator

import pytest
from webhook import Receiver, receiving

from poise.drivers.lock import holder
from system.living import Living, kill, until

FLEET = """
kind: fleet
name: lab
nodes:
  a: {count: 3, cpu: 2, memory: 2GiB, rack: r1}
"""
KEY = "secret"


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    with receiving() as made:
        yield made


def test_a_lost_node_is_one_incident_told_once_and_closed_when_it_is_back(living: Living, receiver: Receiver) -> None:
    living.file("fleet.yaml", FLEET)
    assert living.poise("up", "--port", "0", "--fleet", "fleet.yaml").code == 0
    (living.home.root / "notifications.yaml").write_text(
        f"kind: notifications\nkey: {KEY}\nincidents: ['{receiver.url}']\n"
    )
    receiver.statuses = [503]  # so that it is sent again
    client = living.client()
    until(lambda: len(client.nodes()) == 3, "all nodes have joined", living.messages)
    jobs = [
        living.poise("submit", "-q", "--cpu", "1", "--node", "a-0", "--", "sleep", "600").text.strip() for _ in "12"
    ]
    until(lambda: all(client.job(job).status == "running" for job in jobs), "both run", living.messages)
    assert living.poise("incidents", "--json").value == []
    agent = holder(living.home.nodes / "a-0" / "lock")
    os.kill(agent, signal.SIGSTOP)
    try:
        until(lambda: len(receiver.got) == 2, "it is told", living.messages)
        until(
            lambda: any(b"incident-told" in event for event in client.events(after=0, follow=False)),
            "that is in the log",
            living.messages,
        )
        kill(living.pid("control"))
    finally:
        os.kill(agent, signal.SIGCONT)
    until(lambda: len(receiver.got) > 2, "it is closed, and told", living.messages)
    first, opened, closed = (json.loads(body) for _, body in receiver.got)
    [incident] = living.poise("incidents", "--json").value
    assert first == opened
    assert [headers["Poise-Signature"] for headers, _ in receiver.got] == [
        "sha256=" + hmac.new(KEY.encode(), body, hashlib.sha256).hexdigest() for _, body in receiver.got
    ]
    assert (opened["id"], closed["id"]) == (f"{incident['id']}/opened", f"{incident['id']}/closed")
    assert (incident["cause"]["kind"], incident["cause"]["name"], incident["nodes"]) == ("node", "a-0", ["a-0"])
    assert incident["closed"] > incident["opened"]
    assert closed["incident"]["symptoms"] == incident["symptoms"]
    shown = living.poise("incidents", incident["id"]).text
    assert "suspected cause node a-0" in shown
    assert "`poise drain a-0`" in shown
    assert living.poise("incidents", "i999", "--json").error["code"] == "E120"
    assert living.poise("down", "--cancel").code == 0
    assert living.poise("incidents", "--json").value == [incident], "from the log alone"
    (living.home.root / "incidents").write_bytes(b"no such thing")
    assert living.poise("incidents", incident["id"], "--json").value == incident, "and from its beginning"
