"""Models that share one process: each has its own batches, and only the guilty one is blamed."""

import json
import os
import signal
from collections.abc import Iterator

import pytest

from system.living import Living, until
from system.serving import Serving
from system.test_service import asking, listed

ENV = f"env: {{PYTHONPATH: {json.dumps(os.environ['PYTHONPATH'])}}}\n" if "PYTHONPATH" in os.environ else ""
CONFIG = f"process: small\nresources: {{cpu: 100m}}\n{ENV}"
MODEL = """
import os
import signal
from pathlib import Path

import words  # each model has its own

class Model:
    def load(self):
        self.factor = float(Path("factor").read_text())

    def predict(self, batch: list[float]) -> list[dict]:
        if 13.0 in batch and words.NAME == "fragile":
            os.kill(os.getpid(), signal.SIGKILL)
        return [{"of": words.NAME, "process": os.getpid(), "is": self.factor * one} for one in batch]
"""
STORY = """
import os
from collections.abc import AsyncIterator

class Model:
    async def predict(self, count: int) -> AsyncIterator[int]:
        for _ in range(count):
            yield os.getpid()
"""
FILES = {
    "models/twice/config.yaml": CONFIG,
    "models/twice/model.py": MODEL,
    "models/twice/words.py": "NAME = 'twice'",
    "models/twice/factor": "2",
    "models/fragile/config.yaml": CONFIG,
    "models/fragile/model.py": MODEL,
    "models/fragile/words.py": "NAME = 'fragile'",
    "models/fragile/factor": "3",
    "models/story/config.yaml": CONFIG,
    "models/story/model.py": STORY,
}


@pytest.fixture(scope="module")
def gateway(home: Living) -> Iterator[Serving]:
    serving = Serving(home, "models")
    for name in ("twice", "fragile", "story"):
        serving.until_said(f"{name}: 1 of 1 ready")
    yield serving
    assert serving.end() == 0


@pytest.fixture(autouse=True)
def nothing_goes_on_serving() -> None:
    """The gateway is shared by the tests of this file."""


def process_of(gateway: Serving) -> int:
    return int(gateway.ask(1, "/predict/twice").value["process"])


def test_each_model_answers_from_the_same_process(home: Living, gateway: Serving) -> None:
    process = process_of(gateway)
    answers = [gateway.ask(2, f"/predict/{name}").value for name in ("twice", "fragile")]
    assert answers == [
        {"of": "twice", "process": process, "is": 4.0},
        {"of": "fragile", "process": process, "is": 6.0},
    ]
    assert gateway.ask(2, "/predict/story").body == 2 * f"data: {process}\n\n".encode()
    jobs = [one["jobs"] for one in listed(home)["services"]]
    assert len(jobs) == 3 and len(jobs[0]) == 1 and all(one == jobs[0] for one in jobs)


def test_another_version_of_a_model_is_loaded_beside_the_others(home: Living, gateway: Serving) -> None:
    process = process_of(gateway)
    home.file("models/twice/config.yaml", f"{CONFIG}concurrency: 3\n")
    home.file("models/twice/factor", "20")
    with asking(gateway, "/predict/fragile", b"1") as others, asking(gateway, "/predict/twice", b"1") as answers:
        until(lambda: len(answers) > 5 < len(others), "they answer")
        assert home.poise("service", "apply", "models").code == 0
        before = len(answers)
        until(lambda: len(answers) > before + 5, "they go on")
    assert {status for status, _ in [*answers, *others]} == {200}
    assert gateway.ask(1, "/predict/twice").value == {"of": "twice", "process": process, "is": 20.0}
    home.file("models/twice/factor", "none")
    home.file("models/twice/config.yaml", CONFIG)
    refused = home.poise("service", "apply", "models")
    assert refused.code == 1 and "could not convert string to float" in refused.err
    home.file("models/twice/factor", "20")
    assert gateway.ask(1, "/predict/twice").value == {"of": "twice", "process": process, "is": 20.0}
    assert home.poise("service", "remove", "story").code == 0
    until(lambda: gateway.ask(1, "/predict/story").status == 404, "it is removed")
    assert process_of(gateway) == process


def test_only_the_request_that_ends_the_process_is_blamed(gateway: Serving) -> None:
    before = process_of(gateway)
    with asking(gateway, "/predict/twice", b"1") as others:
        until(lambda: len(others) > 3, "it answers")
        refused = gateway.ask(13, "/predict/fragile")
        assert refused.status == 502 and "so did another" in refused.value["error"]["message"], refused
        answered = len(others)
        until(
            lambda: len(others) > answered + 3,
            "the other model answers again",
            lambda: f"{others[answered - 3 :]} {gateway.text}",
            30,
        )
    assert {status for status, _ in others} == {200}
    assert gateway.ask(13, "/predict/fragile").status == 422, "quarantined"
    assert gateway.ask(1, "/predict/fragile").status == 200
    assert process_of(gateway) != before
    gateway.until_said("ended while it served fragile\n")


def test_models_that_want_different_processes_are_refused(home: Living, gateway: Serving) -> None:
    home.file("models/fragile/config.yaml", CONFIG.replace("100m", "200m"))
    refused = home.poise("service", "apply", "models")
    assert refused.code == 1
    assert "share the process `small`, but differ in resources" in refused.err
    home.file("models/fragile/config.yaml", CONFIG)


def test_they_go_on_when_another_gateway_takes_over(gateway: Serving) -> None:
    process, old = process_of(gateway), gateway.gateway()
    os.kill(old, signal.SIGKILL)
    until(lambda: gateway.gateway() not in (0, old), "another gateway is there")
    until(lambda: gateway.ask(1, "/predict/fragile").status == 200, "it answers", lambda: gateway.text, 20)
    assert process_of(gateway) == process
