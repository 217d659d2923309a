"""`poise serve` with a version on trial: nobody who asks notices, the better stays, the worse goes."""

import json
import re
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest

from system.living import Living, until
from system.serving import Serving

MODELS = """
import os, time

class Old:
    def predict(self, batch: list[float]) -> list[float]:
        time.sleep(0.002)
        return [2 * one for one in batch]

class New(Old):
    pass

class Slow(Old):
    def predict(self, batch):
        time.sleep(0.05)
        return super().predict(batch)

class Other(Old):
    def predict(self, batch):
        return [3 * one for one in batch]

class Dies(Old):
    def predict(self, batch):
        os._exit(1)

class Hangs(Old):
    def predict(self, batch):
        time.sleep(1000)

class Refuses(Old):
    def predict(self, batch: list[float]) -> list[float]:
        if 0.0 in batch:
            time.sleep(4)
            raise ValueError("no zero")
        return super().predict(batch)

class Never:
    def load(self):
        raise RuntimeError("no weights here")

    def predict(self, batch):
        return batch
"""

FILES = {"models.py": MODELS}


@pytest.fixture(autouse=True)
def nothing_is_left(home: Living) -> Iterator[None]:
    yield
    for serving in STARTED:
        serving.end()
    STARTED.clear()


def serve(home: Living, canary: str, more: str = "") -> Serving:
    (home.work / "service.yaml").write_text(
        f"""
kind: service
name: twice
model: models.py:Old
objective: {{latency_p99: 1s}}
resources: {{cpu: 100m}}
canary: {{{canary}}}
{more}
"""
    )
    STARTED.append(Serving(home, "service.yaml"))
    return STARTED[-1]


STARTED: list[Serving] = []


class Load:
    """Clients that ask again and again, and remember everything that was not the right answer. In between they leave
    the processor to the replicas that start.
    """

    def __init__(self, serving: Serving, clients: int = 4) -> None:
        self.serving = serving
        self.asked, self.wrong = 0, []  # type: int, list[str]
        self._over = threading.Event()
        self._pool = ThreadPoolExecutor(clients)
        self._clients = [self._pool.submit(self._ask) for _ in range(clients)]

    def _ask(self) -> None:
        connection = self.serving.connection()
        while not self._over.wait(0.01):
            connection.request("POST", "/predict", b"21")
            answer = connection.getresponse()
            body = answer.read()
            self.asked += 1
            if answer.status != 200 or json.loads(body) != 42:
                self.wrong.append(f"{answer.status} {body!r}")
        connection.close()

    def __enter__(self) -> "Load":
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        for client in self._clients:
            client.result()
        self._pool.shutdown()


def jobs(home: Living) -> list[str]:
    return [job.name for job in home.client().jobs() if job.status == "running"]


def test_what_is_as_good_takes_over_while_nobody_notices(home: Living) -> None:
    serving = serve(home, "model: models.py:New, shadow: 50%, share: [20%, 100%], after: 50, latency: 100")
    with Load(serving) as load:
        serving.until_said("the canary is promoted")
        assert "shadow of 50 %" in serving.text and "share of 20 %, after errors 0.00%" in serving.text
        until(lambda: jobs(home) == ["twice-canary-1"], "the old is ended", lambda: str(jobs(home)))
        asked = load.asked
        until(lambda: load.asked > asked + 50, "it goes on", lambda: serving.text)
    assert load.wrong == []
    assert serving.ask(b"", "/readyz", "GET").status == 200
    healthy = [
        serving.metric("serve_deployment_replica_healthy", deployment=name) for name in ("twice", "twice-canary")
    ]
    assert healthy == [0, 1], "what has ended has no replicas"
    trial = serving.ask(b"", "/canaries", "GET").value["twice"]
    assert (trial["state"], trial["stages"]) == ("promoted", ["shadow of 50 %", "share of 20 %", "share of 100 %"])
    assert serving.metric("flagger_canary_status", name="twice") == 1
    assert serving.ask(b"", "/readyz", "GET").value == {"ready": True, "without_replica": []}
    assert serving.end() == 0
    assert jobs(home) == []


@pytest.mark.parametrize(
    ("canary", "why"),
    [
        pytest.param("model: models.py:Slow, share: [50%], after: 50", "ms beside", marks=pytest.mark.slow),
        pytest.param("model: models.py:Other, shadow: 100%, after: 50", "answers the same", marks=pytest.mark.slow),
        ("model: models.py:Dies, share: [30%], after: 20", "errors"),
        pytest.param("model: models.py:Never, share: [50%]", "no weights here", marks=pytest.mark.slow),
    ],
)
def test_what_is_worse_is_rolled_back_and_nobody_notices(home: Living, canary: str, why: str) -> None:
    serving = serve(home, canary)
    with Load(serving) as load:
        serving.until_said("the canary is rolled back")
        until(lambda: jobs(home) == ["twice-1"], "only the old is left", lambda: str(jobs(home)) + serving.text)
        asked = load.asked
        until(lambda: load.asked > asked + 20, "it goes on", lambda: serving.text)
    said = serving.text[serving.text.index("rolled back") :]
    assert why in said
    assert load.wrong == []
    assert serving.end() == 0


def test_what_was_recorded_is_asked_of_both_before_anybody_is(home: Living) -> None:
    serving = serve(home, "model: models.py:New, share: [100%], promote: false", "record: {file: asked.jsonl}")
    for number in range(30):
        assert serving.ask(number).value == 2.0 * number
    assert serving.end() == 0
    lines = (home.work / "asked.jsonl").read_text().splitlines()
    assert sorted(json.loads(line)["body"] for line in lines) == sorted(str(number) for number in range(30))
    serving = serve(home, "model: models.py:Other, replay: asked.jsonl")
    serving.until_said("rolled back")
    same = re.search(r"([0-9.]+)% of ([0-9]+) answers the same", serving.text)
    assert same is not None and round(float(same[1]) * int(same[2])) == 100, "zero is twice zero"
    assert 6 <= int(same[2]) <= 30, "looked at after ten answers of the canary, four being asked at once"
    assert serving.end() == 0


def test_a_canary_that_hangs_holds_up_neither_clients_nor_the_end(home: Living) -> None:
    serving = serve(home, "model: models.py:Hangs, shadow: 100%")
    serving.until_said("canary: 1 of 1 ready")
    assert [serving.ask(number).value for number in range(20)] == [2.0 * number for number in range(20)]
    began = time.monotonic()
    assert serving.end() == 0
    assert time.monotonic() - began < 8, "nobody waits for copies"
    until(lambda: jobs(home) == [], "all replicas end", lambda: str(jobs(home)))


def test_the_end_does_not_wait_for_what_was_recorded(home: Living) -> None:
    (home.work / "many.jsonl").write_text('{"body": "21"}\n' * 100_000)
    serving = serve(home, "model: models.py:New, replay: many.jsonl")
    serving.until_said("on trial, replay")
    until(lambda: serving.metric("serve_deployment_request_counter_total") > 50, "it goes on", lambda: serving.text)
    began = time.monotonic()
    assert serving.end() == 0
    assert time.monotonic() - began < 8
    until(lambda: jobs(home) == [], "all replicas end", lambda: str(jobs(home)))


def test_what_it_held_when_it_was_promoted_is_still_asked_of_stable(home: Living) -> None:
    serving = serve(home, "model: models.py:Refuses, replicas: 2, share: [50%], after: 20, latency: 1000")
    serving.until_said("canary: 2 of 2 ready")
    assert serving.ask(21).value == 42.0, "the first is asked of stable, the next one of the canary"
    with ThreadPoolExecutor(24) as pool:
        asked = [pool.submit(serving.ask, 0)]
        until(
            lambda: serving.metric("serve_replica_processing_queries", deployment="twice-canary"), "the canary is asked"
        )
        asked += [pool.submit(serving.ask, 21) for _ in range(150)]
        serving.until_said("the canary is promoted")
        assert {one.result().value for one in asked} <= {42.0, 0.0}, "nobody sees it fail"
        assert all(one.result().took < 10 for one in asked)
    assert serving.end() == 0
