"""KServe's own Python client, as its documentation calls it, and models that Poise runs. The client is a program apart,
`kserve_sdk.py` beside this.
"""

import hashlib
import json
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from system.living import Living
from system.serving import Serving
from system.test_kserve import FILES as MODELS

HOME = Path(__file__).resolve().parents[2] / ".peers" / "kserve"
CLIENT = Path(__file__).parent / "kserve_sdk.py"
KEY = "sk-app"

if not (HOME / ".ready").exists():
    pytest.skip("needs KServe's client: `make test-clients` installs it", allow_module_level=True)

DIGEST = hashlib.sha256(KEY.encode()).hexdigest()
FILES = MODELS | {"keys.yaml": f"kind: keys\nkeys: [{{name: app, sha256: {DIGEST}, scopes: [ask]}}]\n"}
SERVED = ("twice", "rows", "places")


@pytest.fixture(scope="module")
def told(home: Living) -> Iterator[dict[str, dict[str, Any]]]:
    """What the client got over HTTP and over gRPC."""
    serving = Serving(home, *(f"{name}.yaml" for name in SERVED), "--keys", "keys.yaml", "--grpc-port", "0")
    for name in SERVED:
        serving.until_said(f"{name}: 1 of 1 ready")
    found = re.search(r"over gRPC at (\S+)", serving.text)
    assert found is not None
    command = [str(HOME / "bin" / "python"), str(CLIENT), f"http://{serving.url}", found[1], KEY]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert ended.returncode == 0, ended.stderr
    yield json.loads(ended.stdout)
    assert serving.end() == 0


@pytest.fixture(autouse=True)
def nothing_goes_on_serving() -> None:
    """The gateway is shared by the tests of this file."""


PLACES = {"id": "7", "model": "places", "outputs": {"far": [10.0, 20.0], "label": ["a", "ä"]}}
TWICE = [2.0, 4.0, 6.0]


@pytest.mark.parametrize("way", ["http", "grpc"])
def test_the_server_and_a_model_are_ready(told: dict[str, dict[str, Any]], way: str) -> None:
    assert [told[way][what] for what in ("live", "ready", "model")] == [True, True, True]


def test_tensors_are_inferred_over_http(told: dict[str, dict[str, Any]]) -> None:
    assert told["http"]["dict"]["outputs"] == {"output": TWICE} and told["http"]["headers"] == "application/json"
    assert told["http"]["json"] == told["http"]["binary"] == PLACES


def test_tensors_are_inferred_over_grpc(told: dict[str, dict[str, Any]]) -> None:
    assert told["grpc"]["typed"] == {"id": "7", "model": "twice", "outputs": {"output": TWICE}}
    assert told["grpc"]["binary"] == PLACES


def test_an_unknown_model_is_an_error(told: dict[str, dict[str, Any]]) -> None:
    known = "there is no model `another`; known: twice, rows, places"
    assert told["http"]["another"] is False
    assert told["http"]["unknown"].startswith(f"404: {known}")
    assert told["grpc"]["another"] == told["grpc"]["unknown"] == f"NOT_FOUND: {known}"


def test_tensors_that_do_not_fit_are_an_error(told: dict[str, dict[str, Any]]) -> None:
    assert told["http"]["wrong"].startswith("400: ") and "Expected" in told["http"]["wrong"]
    assert told["grpc"]["wrong"].startswith("INVALID_ARGUMENT: ") and "Expected" in told["grpc"]["wrong"]


def test_a_request_without_the_key_is_refused(told: dict[str, dict[str, Any]]) -> None:
    assert told["http"]["no key"].startswith("401: ")
    assert told["grpc"]["no key"].startswith("UNAUTHENTICATED: ")
