"""Incidents of a running Poise: a node that stops is one incident, told once to a webhook, and closed on its return."""

import hashlib
import hmac
import json
import os
import signal
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest

from poise.drivers.lock import holder
from system.living import Living, kill, until

FLEET = """
kind: fleet
name: lab
nodes:
  a: {count: 3, cpu: 2, memory: 2GiB, rack: r1}
"""
KEY = "secret"


class Receiver(ThreadingHTTPServer):
    """A webhook on loopback. The first request gets 503, so that it is sent again."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Taking)
        self.statuses = [503]
        self.taken: list[dict[str, Any]] = []
        self.signed: list[bool] = []
        threading.Thread(target=self.serve_forever, args=(0.05,), daemon=True).start()


class _Taking(BaseHTTPRequestHandler):
    server: Receiver

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        status = self.server.statuses.pop() if self.server.statuses else 200
        if status == 200:
            expected = "sha256=" + hmac.new(KEY.encode(), body, hashlib.sha256).hexdigest()
            self.server.signed.append(self.headers["Poise-Signature"] == expected)
            self.server.taken.append(json.loads(body))
        self.send_response(status)
        self.send_header("Content-Length", "0")
        self.end_headers()

    def log_message(self, format: str, *args: Any) -> None:
        pass


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    made = Receiver()
    yield made
    made.shutdown()
    made.server_close()


def test_a_lost_node_is_one_incident_told_once_and_closed_when_it_is_back(living: Living, receiver: Receiver) -> None:
    living.file("fleet.yaml", FLEET)
    assert living.poise("up", "--port", "0", "--fleet", "fleet.yaml").code == 0
    (living.home.root / "notifications.yaml").write_text(
        f"kind: notifications\nkey: {KEY}\nincidents: ['webhook:http://127.0.0.1:{receiver.server_port}/hook']\n"
    )
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
        until(lambda: [one["moment"] for one in receiver.taken] == ["opened"], "it is told", living.messages)
        until(
            lambda: any(b"incident-told" in event for event in client.events(after=0, follow=False)),
            "that is in the log",
            living.messages,
        )
        kill(living.pid("control"))
    finally:
        os.kill(agent, signal.SIGCONT)
    until(lambda: len(receiver.taken) > 1, "it is closed, and told", living.messages)
    opened, closed = receiver.taken
    [incident] = living.poise("incidents", "--json").value
    assert receiver.signed == [True, True]
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
