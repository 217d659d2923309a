"""`poise serve MODEL --gateways 2`: gateways share a port, and one more process, the core, has the models."""

import json
import os
import signal
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from system.living import Living, kill, until
from system.serving import Serving
from system.test_service import asking, listed

SERVICE = {
    "kind": "service",
    "resources": {"cpu": "100m"},
    "env": {"PYTHONPATH": os.environ["PYTHONPATH"]} if "PYTHONPATH" in os.environ else {},
}
FILES = {
    "app.py": """
import time
from collections.abc import Iterator
from pathlib import Path

class Model:
    def predict(self, batch: list[float]) -> list[dict]:
        while max(batch) > 0 and not Path("go").exists():
            time.sleep(0.01)
        return [{"batch": len(batch)}] * len(batch)

class Story:
    def predict(self, count: int) -> Iterator[int]:
        yield from range(count)
""",
    "model.json": json.dumps(SERVICE | {"name": "model", "model": "app.py:Model", "queue": 2, "batch": 2}),
    "story.json": json.dumps(SERVICE | {"name": "story", "model": "app.py:Story"}),
}


@pytest.fixture(scope="module")
def serving(home: Living) -> Iterator[Serving]:
    served = Serving(home, "model.json", "story.json", "--gateways", "2", ready=False)
    for name in ("model", "story"):
        served.until_said(f"{name}: 1 of 1 ready")
    yield served
    assert served.end() == 0
    assert "Traceback" not in served.text
    assert not [one for one in Path(home.home.services).iterdir() if one.suffix in (".core", ".sock", ".gateway")]


@pytest.fixture(autouse=True)
def nothing_goes_on_serving() -> None:
    """The gateways are shared by the tests of this file."""


def processes(home: Living, *, relays: bool) -> list[int]:
    """The gateways, or the core."""
    found = []
    for record in Path(home.home.services).glob("*.gateway"):
        if json.loads(record.read_text())["relays"] is relays:
            watcher = record.with_suffix(".lock").read_text().strip()
            found += Path(f"/proc/{watcher}/task/{watcher}/children").read_text().split()
    return [int(one) for one in found]


def test_limits_are_those_of_all_together(serving: Serving, home: Living) -> None:
    with ThreadPoolExecutor(8) as clients:
        asked = [clients.submit(serving.ask, 1, "/predict/model") for _ in range(8)]
        until(lambda: sum(one.done() for one in asked) >= 4, "others are refused", lambda: serving.text)
        home.file("go", "")
        told = [one.result() for one in asked]
    assert sorted({one.status for one in told}) == [200, 503]
    answered = sum(one.status == 200 for one in told)
    assert 2 <= answered <= 4, "two wait; up to two run, unless all eight came before the core had sent a batch"
    assert serving.metric("serve_deployment_queued_queries") == 0


def test_streams_large_bodies_and_changes_pass_through(serving: Serving, home: Living) -> None:
    assert serving.ask(200, "/predict/story").body == b"".join(b"data: %d\n\n" % one for one in range(200))
    assert serving.ask(b"0." + b"0" * (1 << 20), "/predict/model").status == 200
    assert serving.ask(b"0." + b"0" * (17 << 20), "/predict/model").status == 413
    assert serving.ask(b"", "/nothing", "GET").status == 404
    assert [one["service"] for one in listed(home)["services"]] == ["model", "story"]
    home.file("model.json", FILES["model.json"].replace('"queue": 2', '"queue": 50'))
    assert home.poise("service", "apply", "model.json").code == 0
    with ThreadPoolExecutor(8) as clients:
        asked = [clients.submit(serving.ask, 0, "/predict/model") for _ in range(16)]
        assert {one.result().status for one in asked} == {200}
    assert len(home.poise("services", "--json").value) == 2


def test_a_killed_core_loses_no_request(serving: Serving, home: Living) -> None:
    before = [one["jobs"] for one in listed(home)["services"]]
    (old,) = processes(home, relays=False)
    with asking(serving, "/predict/model", b"0") as answers:
        until(lambda: len(answers) > 5, "it answers")
        kill(old)
        told = len(answers)
        until(lambda: len(answers) > told + 10, "it goes on", lambda: serving.text)
    assert {status for status, _ in answers} == {200}
    assert [one["jobs"] for one in listed(home)["services"]] == before, "the same replicas"


def test_a_killed_gateway_loses_only_what_it_held(serving: Serving, home: Living) -> None:
    old = processes(home, relays=True)
    assert len(old) == 2
    kill(old[0])
    failed = 0
    for _ in range(40):
        try:
            assert serving.ask(0, "/predict/model").status == 200
        except OSError:
            failed += 1
    assert failed <= 1, "a connection that it had accepted"
    until(lambda: len(set(processes(home, relays=True)) - {old[0]}) == 2, "both are there", lambda: serving.text)


def test_the_requests_that_it_has_are_answered_at_the_end(home: Living) -> None:
    home.file("slow.json", FILES["model.json"].replace('"model"', '"slow"', 1))
    served = Serving(home, "slow.json", "--gateways", "2", ready=False)
    served.until_said("1 of 1 ready")
    (home.work / "go").unlink(missing_ok=True)
    with ThreadPoolExecutor(1) as clients:
        asked = clients.submit(served.ask, 1)
        until(lambda: served.metric("serve_replica_processing_queries") == 1, "it is served")
        served.process.send_signal(signal.SIGTERM)
        served.until_said("draining")
        home.file("go", "")
        assert asked.result().status == 200
    served.process.wait(30)  # a second signal while it ends would end it at once
    assert served.end() == 0
