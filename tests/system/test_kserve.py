"""KServe's protocol, version 2, as Triton's own clients speak it, with models that Poise runs."""

import json
import os
import queue
import re
from collections.abc import Iterator
from typing import Any

import httpx
import numpy as np
import pytest

from system.living import Living
from system.serving import Serving

http = pytest.importorskip("tritonclient.http", reason="Triton's client is not for this platform")
grpc = pytest.importorskip("tritonclient.grpc", reason="grpcio is not installed")

MODELS = """
import msgspec

class Point(msgspec.Struct):
    x: float
    tags: list[str] = []

class Place(msgspec.Struct):
    far: float
    label: str

class Twice:
    def predict(self, batch: list[float]) -> list[float]:
        return [2 * one for one in batch]

class Rows:
    def predict(self, batch: list[list[int]]) -> list[int]:
        return [sum(one) for one in batch]

class Places:
    def predict(self, batch: list[Point]) -> list[Place]:
        return [Place(10 * one.x, "-".join(one.tags)) if one.x >= 0 else ValueError("below zero") for one in batch]

class Words:
    def predict(self, count: int):
        for number in range(count):
            yield {"word": f"w{number}", "at": number}
            if number == 6:
                raise ValueError("no seventh word")

class Bytes:
    def decode(self, body):
        return body

    def predict(self, batch):
        return batch
"""
FILES = {"models.py": MODELS} | {
    f"{name.lower()}.yaml": f"kind: service\nname: {name.lower()}\nmodel: models.py:{name}\nresources: {{cpu: 100m}}\n"
    + ("version: 2026-05\n" if name == "Rows" else "")
    for name in ("Twice", "Rows", "Places", "Bytes", "Words")
}

NAMES = ("twice", "rows", "places", "bytes", "words")


@pytest.fixture(scope="module")
def gateway(home: Living) -> Iterator[Serving]:
    serving = Serving(home, *(name for name in FILES if name.endswith(".yaml")), "--grpc-port", "0")
    for name in NAMES:
        serving.until_said(f"{name}: 1 of 1 ready")
    yield serving
    assert serving.end() == 0


@pytest.fixture(autouse=True)
def nothing_goes_on_serving() -> None:
    """The gateway is shared by the tests of this file."""


@pytest.fixture
def client(gateway: Serving) -> Iterator[object]:
    with http.InferenceServerClient(gateway.url) as made:
        yield made


@pytest.fixture
def calls(gateway: Serving) -> Iterator[object]:
    """Triton's client for gRPC."""
    found = re.search(r"over gRPC at (\S+)", gateway.text)
    assert found is not None
    with grpc.InferenceServerClient(found[1]) as made:
        yield made


KINDS = {"FP32": np.float32, "FP64": np.float64, "INT32": np.int32, "BYTES": object}


def given(name: str, values: object, kind: str, binary: bool = True) -> object:
    array = np.array(values, dtype=KINDS[kind])
    made = http.InferInput(name, list(array.shape), kind)
    made.set_data_from_numpy(array, binary_data=binary)
    return made


def sent(name: str, values: object, kind: str) -> object:
    """An input of a call over gRPC."""
    array = np.array(values, dtype=KINDS[kind])
    made = grpc.InferInput(name, list(array.shape), kind)
    made.set_data_from_numpy(array)
    return made


def test_the_server_and_its_models_are_described(client: Any) -> None:
    assert client.is_server_live() and client.is_server_ready() and client.is_model_ready("twice")
    assert client.get_server_metadata()["name"] == "poise"
    assert client.get_model_metadata("twice") == {
        "name": "twice",
        "versions": ["1"],
        "platform": "poise",
        "inputs": [{"name": "input", "datatype": "FP64", "shape": [-1]}],
        "outputs": [{"name": "output", "datatype": "FP64", "shape": [-1]}],
    }
    told = client.get_model_metadata("places")
    assert [(one["name"], one["datatype"], one["shape"]) for one in told["inputs"] + told["outputs"]] == [
        ("x", "FP64", [-1]), ("tags", "BYTES", [-1, -1]), ("far", "FP64", [-1]), ("label", "BYTES", [-1]),
    ]  # fmt: skip
    assert client.get_model_metadata("rows", "2026-05")["versions"] == ["2026-05"]
    index = {one["name"]: one["state"] for one in client.get_model_repository_index()}
    assert index == dict.fromkeys(NAMES, "READY")


@pytest.mark.parametrize("binary", [True, False])
def test_tensors_are_inferred(client: Any, binary: bool) -> None:
    outputs = [http.InferRequestedOutput("output", binary_data=binary)]
    answer = client.infer("twice", [given("input", [1, 2, 3], "FP32", binary)], outputs=outputs, request_id="7")
    assert answer.as_numpy("output").tolist() == [2, 4, 6] and answer.get_response()["id"] == "7"
    answer = client.infer("rows", [given("any", [[1, 2], [3, 4]], "INT32", binary)], model_version="2026-05")
    assert answer.as_numpy("output").tolist() == [3, 7]
    inputs = [given("x", [1, 2], "FP64", binary), given("tags", [["a", "b"], ["c", "ä"]], "BYTES", binary)]
    answer = client.infer("places", inputs)
    assert answer.as_numpy("far").tolist() == [10, 20]
    assert [one.decode() for one in answer.as_numpy("label")] == ["a-b", "c-ä"]


def test_requests_may_run_beside_each_other(client: Any) -> None:
    asked = [client.async_infer("twice", [given("input", [number], "FP32")]) for number in range(5)]
    assert [one.get_result().as_numpy("output").tolist() for one in asked] == [[2.0 * number] for number in range(5)]


@pytest.mark.parametrize(
    ("model", "name", "values", "kind", "said"),
    [
        ("other", "input", [1], "FP32", "there is no model `other`; known: twice, rows, places, bytes, words"),
        ("twice", "input", ["a"], "BYTES", "item|Expected `float`"),
        ("places", "tags", [["a"]], "BYTES", "Object missing required field `x`"),
        ("places", "x", [1, -1], "FP64", "item 1: ValueError: below zero|below zero"),
        ("bytes", "input", [1], "FP32", "takes bytes, and no tensors"),
    ],
)
def test_what_is_wrong_is_told(client: Any, model: str, name: str, values: object, kind: str, said: str) -> None:
    with pytest.raises(Exception, match=said):
        client.infer(model, [given(name, values, kind)])


def test_a_version_that_there_is_not(client: Any) -> None:
    with pytest.raises(Exception, match="no version `3` of `rows`; known: 2026-05"):
        client.infer("rows", [given("any", [[1]], "INT32")], model_version="3")


@pytest.mark.parametrize(
    ("method", "path", "status"),
    [
        ("GET", "/v2/models/twice/infer", 405),
        ("POST", "/v2/models/twice", 405),
        ("GET", "/v2/models/twice/config", 404),
        ("GET", "/v2x", 404),
        ("OPTIONS", "/v2/models/twice/infer", 200),
        ("POST", "/v2/models/twice/infer", 400),
    ],
)
def test_what_is_no_route(gateway: Serving, method: str, path: str, status: int) -> None:
    answer = httpx.request(method, f"http://{gateway.url}{path}")
    assert answer.status_code == status
    assert status in (200, 404) or isinstance(answer.json()["error"], str)


def test_a_body_over_the_limit_is_refused(gateway: Serving) -> None:
    answer = httpx.post(f"http://{gateway.url}/v2/models/twice/infer", content=os.urandom(17 << 20))
    assert answer.status_code == 413 and "16 MiB" in answer.json()["error"]


# over gRPC


def test_the_server_and_its_models_are_described_over_grpc(calls: Any) -> None:
    assert calls.is_server_live() and calls.is_server_ready() and calls.is_model_ready("rows", "2026-05")
    assert calls.get_server_metadata().extensions == ["binary_tensor_data", "model_repository"]
    told = calls.get_model_metadata("places")
    assert [(one.name, one.datatype, list(one.shape)) for one in [*told.inputs, *told.outputs]] == [
        ("x", "FP64", [-1]), ("tags", "BYTES", [-1, -1]), ("far", "FP64", [-1]), ("label", "BYTES", [-1]),
    ]  # fmt: skip
    index = {(one.name, one.version): one.state for one in calls.get_model_repository_index().models}
    assert index == {(name, "2026-05" if name == "rows" else "1"): "READY" for name in NAMES}


def test_tensors_are_inferred_over_grpc(calls: Any) -> None:
    answer = calls.infer("twice", [sent("input", [1, 2, 3], "FP32")], request_id="7")
    assert answer.as_numpy("output").tolist() == [2, 4, 6] and answer.get_response().id == "7"
    answer = calls.infer("rows", [sent("any", [[1, 2], [3, 4]], "INT32")], model_version="2026-05")
    assert answer.as_numpy("output").tolist() == [3, 7]
    inputs = [sent("x", [1, 2], "FP64"), sent("tags", [["a", "b"], ["c", "ä"]], "BYTES")]
    answer = calls.infer("places", inputs, outputs=[grpc.InferRequestedOutput("label")])
    assert [one.decode() for one in answer.as_numpy("label")] == ["a-b", "c-ä"] and answer.as_numpy("far") is None


def test_typed_tensors_get_a_typed_answer(calls: Any) -> None:
    from tritonclient.grpc import service_pb2

    inputs = [
        {"name": "x", "datatype": "FP64", "shape": [2], "contents": {"fp64_contents": [1, 2]}},
        {"name": "tags", "datatype": "BYTES", "shape": [2, 1], "contents": {"bytes_contents": [b"a", b"b"]}},
    ]
    answer = calls._client_stub.ModelInfer(service_pb2.ModelInferRequest(model_name="places", inputs=inputs))
    told = {one.name: one.contents for one in answer.outputs}
    assert list(told["far"].fp64_contents) == [10, 20] and list(told["label"].bytes_contents) == [b"a", b"b"]
    assert not answer.raw_output_contents


@pytest.mark.parametrize(
    ("model", "name", "values", "kind", "status", "said"),
    [
        (
            "other",
            "input",
            [1],
            "FP32",
            "NOT_FOUND",
            "there is no model `other`; known: twice, rows, places, bytes, words",
        ),
        ("twice", "input", ["a"], "BYTES", "INVALID_ARGUMENT", "Expected `float`"),
        ("places", "x", [1, -1], "FP64", "INTERNAL", "item 1: ValueError: below zero"),
        ("bytes", "input", [1], "FP32", "INVALID_ARGUMENT", "takes bytes, and no tensors"),
    ],
)
def test_what_is_wrong_has_the_status_of_grpc(
    calls: Any, model: str, name: str, values: object, kind: str, status: str, said: str
) -> None:
    with pytest.raises(grpc.InferenceServerException, match=said) as raised:
        calls.infer(model, [sent(name, values, kind)])
    assert raised.value.status() == f"StatusCode.{status}"


def test_a_stream_of_requests_is_answered_in_its_order(calls: Any) -> None:
    answers: queue.Queue[tuple[Any, Any]] = queue.Queue()
    calls.start_stream(callback=lambda result, error: answers.put((result, error)))
    for number in range(20):
        calls.async_stream_infer("twice" if number != 7 else "other", [sent("input", [number], "FP32")])
    told = [answers.get(timeout=10) for _ in range(20)]
    calls.stop_stream()
    assert [result.as_numpy("output").tolist() if error is None else str(error) for result, error in told] == [
        [2.0 * number] if number != 7 else "there is no model `other`; known: twice, rows, places, bytes, words"
        for number in range(20)
    ]


def test_a_model_that_yields_answers_in_parts(calls: Any, gateway: Serving) -> None:
    answers: queue.Queue[tuple[Any, Any]] = queue.Queue()
    calls.start_stream(callback=lambda result, error: answers.put((result, error)))
    for count in (2, 9):
        asked = [sent("input", [count], "INT32")]
        calls.async_stream_infer("words", asked, request_id=str(count), enable_empty_final_response=True)
    told = [answers.get(timeout=10) for _ in range(11)]
    calls.stop_stream()
    words = [(result.as_numpy("word"), result.as_numpy("at")) for result, error in told[:2]]
    assert [(word.tolist(), at.tolist()) for word, at in words] == [([b"w0"], [0]), ([b"w1"], [1])]
    last = told[2][0].get_response()
    assert last.id == "2" and last.parameters["triton_final_response"].bool_param and not last.outputs
    assert [error is None for _, error in told[3:]] == [True] * 7 + [False]
    assert "no seventh word" in str(told[10][1])
    with pytest.raises(grpc.InferenceServerException, match="yields: call ModelStreamInfer"):
        calls.infer("words", [sent("input", [2], "INT32")])
    one = {"name": "input", "datatype": "INT64", "shape": [1], "data": [2]}
    answer = httpx.post(
        f"http://{gateway.url}/v2/models/words/infer", json={"inputs": [one], "outputs": [{"name": "at"}]}
    )
    assert answer.headers["content-type"] == "text/event-stream"
    events = [json.loads(line.removeprefix("data: ")) for line in answer.text.splitlines() if line]
    assert [event["outputs"][0]["data"] for event in events] == [[0], [1]]
