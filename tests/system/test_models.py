"""A folder of models with versions: served, changed while requests run, loaded and unloaded."""

import hashlib
import json
import os
import re
import shutil
from collections.abc import Iterator
from typing import Any

import pytest

from system.living import Living, until
from system.serving import Serving
from system.test_service import asking, listed

grpc = pytest.importorskip("tritonclient.grpc", reason="grpcio is not installed")

MODEL = """
from pathlib import Path

class Model:
    def load(self):
        self.factor = float(Path("factor").read_text())

    def predict(self, batch: list[float]) -> list[float]:
        return [self.factor * one for one in batch]
"""
CONFIG = "resources: {cpu: 100m}\n" + (
    f"env: {{PYTHONPATH: {json.dumps(os.environ['PYTHONPATH'])}}}\n" if "PYTHONPATH" in os.environ else ""
)
ONE = {"name": "input", "datatype": "FP64", "shape": [1], "data": [1]}
KEYS = "".join(
    f"- {{name: {name}, sha256: {hashlib.sha256(name.encode()).hexdigest()}, scopes: [{scopes}]}}\n"
    for name, scopes in (("ops", "ask, admin"), ("app", "ask"))
)
FILES = {
    "keys.yaml": f"kind: keys\nkeys:\n{KEYS}",
    "models/times/config.yaml": f"{CONFIG}version_policy: {{latest: 2}}\n",
    "models/times/model.py": MODEL,
    "models/times/1/factor": "1",
    "models/times/2/factor": "2",
    "models/ten/config.yaml": CONFIG,
    "models/ten/model.py": MODEL,
    "models/ten/factor": "10",
}


@pytest.fixture(scope="module")
def gateway(home: Living) -> Iterator[Serving]:
    serving = Serving(home, "models", "--keys", "keys.yaml", "--grpc-port", "0")
    for name in ("times", "times.1", "ten"):
        serving.until_said(f"{name}: 1 of 1 ready")
    yield serving
    assert serving.end() == 0


@pytest.fixture(autouse=True)
def nothing_goes_on_serving() -> None:
    """The gateway is shared by the tests of this file."""


def asked(gateway: Serving, path: str, body: object = None, key: str = "app", method: str = "POST") -> tuple[int, Any]:
    answer = gateway.ask(body if body is not None else b"", f"/v2/{path}", method, authorization=f"Bearer {key}")
    return answer.status, json.loads(answer.body or b"null")


def calls(gateway: Serving) -> Any:
    """Triton's client for gRPC."""
    found = re.search(r"over gRPC at (\S+)", gateway.text)
    assert found is not None
    return grpc.InferenceServerClient(found[1])


def times(gateway: Serving, path: str) -> list[float]:
    """What a version makes of 1."""
    status, told = asked(gateway, f"models/{path}/infer", {"inputs": [ONE]})
    assert status == 200, told
    return list(told["outputs"][0]["data"])


def index(gateway: Serving, **wanted: bool) -> dict[tuple[str, str], str]:
    return {(one["name"], one["version"]): one["state"] for one in asked(gateway, "repository/index", wanted)[1]}


def refused(home: Living, *arguments: str) -> str:
    done = home.poise("service", *arguments)
    assert done.code == 1, done.text
    return done.err


def test_each_version_that_the_policy_names_is_served(gateway: Serving) -> None:
    assert index(gateway) == {("times", "2"): "READY", ("times", "1"): "READY", ("ten", "1"): "READY"}
    assert [times(gateway, path) for path in ("times", "times/versions/1", "times/versions/2", "ten")] == [
        [1.0 * factor] for factor in (2, 1, 2, 10)
    ]
    assert asked(gateway, "models/times", method="GET")[1]["versions"] == ["2", "1"]
    assert asked(gateway, "models/times/versions/3", method="GET") == (
        404,
        {"error": "there is no version `3` of `times`; known: 2, 1"},
    )


def test_a_new_version_is_taken_while_nobody_notices(home: Living, gateway: Serving) -> None:
    jobs = {one["version"]: one["jobs"] for one in listed(home)["services"]}
    home.file("models/times/3/factor", "3")
    second, key = "/v2/models/times/versions/2/infer", "Bearer app"
    with (
        asking(gateway, authorization=key) as answers,
        asking(gateway, second, json.dumps({"inputs": [ONE]}).encode(), authorization=key) as others,
    ):
        until(lambda: len(answers) > 5 < len(others), "it answers")
        done = home.poise("service", "apply", "models")
        assert done.code == 0, done.err
        before = len(answers)
        until(lambda: len(answers) > before + 5, "it goes on")
    assert {status for status, _ in [*answers, *others]} == {200}
    assert [answers[0][1], answers[-1][1]] == [b"4.0", b"6.0"]
    assert [times(gateway, path) for path in ("times", "times/versions/2")] == [[3.0], [2.0]]
    assert asked(gateway, "models/times/versions/1", method="GET")[0] == 404
    until(lambda: len(listed(home)["services"]) == 3, "the oldest version ends")
    now = {one["version"]: one["jobs"] for one in listed(home)["services"]}
    assert jobs["times"] in now.values(), "version 2 was not started again"
    assert home.poise("service", "undo").code == 0
    assert [times(gateway, path) for path in ("times", "times/versions/1")] == [[2.0], [1.0]]
    assert jobs["times"] in [one["jobs"] for one in listed(home)["services"]], "nor when it is the default again"
    assert home.poise("service", "apply", "models").code == 0


def test_a_bad_folder_does_not_stop_the_others(home: Living, gateway: Serving) -> None:
    home.file("models/bad/config.yaml", CONFIG)
    home.file("models/ten/config.yaml", f"{CONFIG}timeout: 5s\n")
    try:
        assert "there is no model.py" in refused(home, "apply", "models")
        home.file("models/times/4/factor", "four")
        said = refused(home, "apply", "models")
        assert "there is no model.py" in said and "could not convert string to float" in said
    finally:
        for folder in ("bad", "times/4"):
            shutil.rmtree(home.work / "models" / folder)
    documents = json.loads(home.poise("service", "show", "--json").text)["documents"]
    assert documents["service ten"]["timeout"] == "5s"
    assert [times(gateway, path) for path in ("times", "times/versions/2", "ten")] == [[3.0], [2.0], [10.0]]
    assert "nothing to change" in home.poise("service", "apply", "models").err


def test_a_model_is_unloaded_and_loaded(home: Living, gateway: Serving) -> None:
    assert asked(gateway, "repository/models/ten/unload")[0] == 403, "that needs the scope `admin`"
    assert asked(gateway, "repository/models/ten/unload", key="ops") == (200, None)
    assert index(gateway)[("ten", "")] == "UNAVAILABLE"
    assert asked(gateway, "models/ten/infer", {})[0] == 404
    assert ("ten", "") not in index(gateway, ready=True)
    with calls(gateway) as client:
        client.load_model("ten", headers={"authorization": "Bearer ops"})
    assert index(gateway)[("ten", "1")] == "READY" and times(gateway, "ten") == [10.0]
    status, told = asked(gateway, "repository/models/other/load", key="ops")
    assert status == 404 and "there is no folder of this model: ten, times" in told["error"]


def test_a_killed_gateway_is_followed_by_one_with_the_same_versions(home: Living, gateway: Serving) -> None:
    before = {one["version"]: one["jobs"] for one in listed(home)["services"]}
    first = gateway.gateway()
    os.kill(first, 9)
    until(lambda: gateway.gateway() not in (0, first), "another one takes over")
    until(lambda: _is_ready(gateway), "it is ready", lambda: gateway.text)
    assert [times(gateway, path) for path in ("times", "times/versions/2", "ten")] == [[3.0], [2.0], [10.0]]
    assert {one["version"]: one["jobs"] for one in listed(home)["services"]} == before
    with calls(gateway) as client:
        assert client.is_server_ready(headers={"authorization": "Bearer app"}), "at the same port"


def _is_ready(gateway: Serving) -> bool:
    try:
        return asked(gateway, "health/ready", method="GET")[0] == 200
    except OSError:
        return False
