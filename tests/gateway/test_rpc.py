"""KServe's protocol over gRPC, by Triton's client: keys, deadlines, refusals and cancelled calls. The service has no
replica, so its requests wait. Tensors and answers are in `tests/system/test_kserve.py`.
"""

import asyncio
import hashlib
import json
import socket
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from prometheus_client import CollectorRegistry

from poise.config import Home
from poise.drivers.authority import ensure_authority, server_context
from poise.errors import Conflict
from poise.model.serving import Limits
from poise.units import MINUTE
from poise_serve.app import Gateway
from poise_serve.asgi import App, Receive, Scope, Send, answer
from poise_serve.door import Door
from poise_serve.keys import Keys, Usage
from poise_serve.kserve import LENGTH
from poise_serve.messages import MESSAGES
from poise_serve.service import Service
from poise_serve.service_metrics import Registry, ServiceMetrics

grpc = pytest.importorskip("grpc", reason="grpcio is not installed")
triton = pytest.importorskip("tritonclient.grpc.aio", reason="Triton's client is not for this platform")
rpc = pytest.importorskip("poise_serve.rpc")

Refused = triton.InferenceServerException
MOST = 1 << 20
KEY = {"authorization": "Bearer sk-app"}


def asked(kind: str, contents: dict[str, Any]) -> Any:
    given = {"name": "input", "datatype": kind, "shape": [1], "contents": contents}
    return MESSAGES["ModelInferRequest"](model_name="m", inputs=[given])


async def unchecked(headers: object) -> str:
    """A check of a gateway without keys."""
    return ""


class Served:
    """A gateway with one service, `m`, which takes one request at a time from clients with a key."""

    def __init__(self, service: Service, calls: Any, port: int, options: dict[str, Any]) -> None:
        self.service, self.calls, self.port = service, calls, port
        self.client = triton.InferenceServerClient(f"127.0.0.1:{port}", **options)

    async def infer(self, values: object = (1.0,), headers: dict[str, str] = KEY, **more: Any) -> Any:
        array = np.array(values, dtype=np.float32)
        given = triton.InferInput("input", list(array.shape), "FP32")
        given.set_data_from_numpy(array)
        return await self.client.infer("m", [given], headers=headers, **more)

    async def refused(self, *args: Any, **more: Any) -> tuple[str, str]:
        with pytest.raises(Refused) as raised:
            await self.infer(*args, **more)
        return raised.value.status(), raised.value.message()

    async def until_waiting(self, count: int) -> None:
        async with asyncio.timeout(10):
            while self.service.batcher.waiting != count:  # noqa: ASYNC110 — there is no event
                await asyncio.sleep(0.01)


@asynccontextmanager
async def streaming(app: App) -> AsyncIterator[Callable[..., Any]]:
    """The server before an application, and a call of `ModelStreamInfer`."""
    calls = rpc.Calls(app, unchecked)
    with socket.create_server(("127.0.0.1", 0)) as held:
        port = held.getsockname()[1]
    await calls.start(f"127.0.0.1:{port}", MOST)
    try:
        async with grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel:
            yield channel.stream_stream(
                "/inference.GRPCInferenceService/ModelStreamInfer",
                request_serializer=MESSAGES["ModelInferRequest"].SerializeToString,
                response_deserializer=MESSAGES["ModelStreamInferResponse"].FromString,
            )
    finally:
        await calls.stop(0)


def served(folder: Path, use: Callable[[Served], Awaitable[None]], *, tls: bool = False) -> None:
    """`tls`: with a certificate of the home `folder`."""
    certificate, options = b"", {}
    if tls:
        server_context(Home(folder), ["127.0.0.1"], "serve")
        certificate = (Home(folder).authority / "serve.pem").read_bytes()
        (folder / "ca.pem").write_bytes(ensure_authority(Home(folder)))
        options = {"ssl": True, "root_certificates": str(folder / "ca.pem")}

    async def run() -> None:
        file = folder / "keys.yaml"
        digest = hashlib.sha256(b"sk-app").hexdigest()
        file.write_text(f"kind: keys\nkeys: [{{name: app, sha256: {digest}, scopes: [ask]}}]\n")
        metrics = ServiceMetrics(Registry(CollectorRegistry()), "m")
        service = Service("m", Limits(timeout=MINUTE, queue=1), folder / "m.sock", metrics)
        await service.start()
        services = {"m": service}
        gateway = Gateway(services, services, {}, {}, CollectorRegistry(), models={"m": {"1": "m"}})
        door = Door(gateway, keys=Keys(file, None), usage=Usage(CollectorRegistry()))
        with socket.create_server(("127.0.0.1", 0)) as held:
            port = held.getsockname()[1]
            with pytest.raises(Conflict) as raised:
                await rpc.Calls(door, door.key_of).start(f"127.0.0.1:{port}", MOST)
            assert raised.value.record.field == "--grpc-port"
        calls = rpc.Calls(door, door.key_of)
        await calls.start(f"127.0.0.1:{port}", MOST, certificate)
        made = Served(service, calls, port, options)
        try:
            await use(made)
        finally:
            await made.client.close()
            await calls.stop(0)
            await service.stop()

    asyncio.run(asyncio.wait_for(run(), 30))


def test_a_call_needs_a_key_and_is_refused_before_its_message_is_read(tmp_path: Path) -> None:
    async def use(one: Served) -> None:
        assert await one.refused(headers={}) == (
            "StatusCode.UNAUTHENTICATED",
            "this gateway needs a key, as `Authorization: Bearer KEY`, and knows no such key",
        )
        async with grpc.aio.insecure_channel(f"127.0.0.1:{one.port}") as channel:
            stream = channel.stream_unary("/inference.GRPCInferenceService/ModelInfer")()  # sends no message
            assert await stream.code() == grpc.StatusCode.UNAUTHENTICATED
        assert await one.client.is_server_live(headers=KEY)
        assert not await one.client.is_server_ready(headers=KEY), "it has no replica"

    served(tmp_path, use)


def test_a_key_has_only_a_part_of_the_calls(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("poise_serve.rpc.MOST_OF_A_CLIENT", 1)

    async def use(one: Served) -> None:
        waiting = asyncio.create_task(one.infer())
        await one.until_waiting(1)
        status, message = await one.refused()
        assert status == "StatusCode.RESOURCE_EXHAUSTED" and "the key `app` has 1 calls at once" in message
        waiting.cancel()
        await one.until_waiting(0)

    served(tmp_path, use)


def test_a_message_that_does_not_come_ends_its_call(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("poise_serve.rpc.MESSAGE_SECONDS", 0.1)

    async def use(one: Served) -> None:
        async with grpc.aio.insecure_channel(f"127.0.0.1:{one.port}") as channel:
            method = channel.stream_unary("/inference.GRPCInferenceService/ModelInfer")
            assert await method(metadata=tuple(KEY.items())).code() == grpc.StatusCode.DEADLINE_EXCEEDED
            monkeypatch.setattr("poise_serve.rpc.MESSAGE_SECONDS", 30.0)
            empty = method(iter(()), metadata=tuple(KEY.items()))
            assert await empty.code() == grpc.StatusCode.INVALID_ARGUMENT

    served(tmp_path, use)


def test_a_stream_that_says_nothing_ends_and_one_with_a_request_in_flight_does_not(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    begun, go = asyncio.Event(), asyncio.Event()

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        begun.set()
        await go.wait()
        await halves(scope, receive, send)

    async def run() -> None:
        async with streaming(app) as stream:
            monkeypatch.setattr("poise_serve.rpc.MESSAGE_SECONDS", 0.2)
            silent = stream()
            assert await silent.code() == grpc.StatusCode.DEADLINE_EXCEEDED
            assert "no message came within 0.2 s" in await silent.details()
            monkeypatch.setattr("poise_serve.rpc.MESSAGE_SECONDS", 2.0)
            asks = stream()
            await asks.write(asked("FP32", {"fp32_contents": [1.0]}))
            await begun.wait()
            await asyncio.sleep(2.5)
            monkeypatch.setattr("poise_serve.rpc.MESSAGE_SECONDS", 0.2)
            go.set()
            assert (await asks.read()).infer_response.model_name == "m"
            assert await asks.code() == grpc.StatusCode.DEADLINE_EXCEEDED

    asyncio.run(asyncio.wait_for(run(), 30))


def test_without_keys_an_address_has_only_a_part_of_the_calls(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("poise_serve.rpc.MOST_OF_A_CLIENT", 1)

    async def run() -> None:
        async with streaming(halves) as stream:
            first, request = stream(), asked("FP32", {"fp32_contents": [1.0]})
            await first.write(request)
            await first.read()
            second = stream()
            assert await second.code() == grpc.StatusCode.RESOURCE_EXHAUSTED
            assert await second.details() == "the client 127.0.0.1 has 1 calls at once, the maximum"
            await first.done_writing()
            assert await first.code() == grpc.StatusCode.OK
            assert len([one async for one in stream([request])]) == 1

    asyncio.run(asyncio.wait_for(run(), 30))


def test_a_deadline_is_the_time_limit_of_its_request(tmp_path: Path) -> None:
    async def use(one: Served) -> None:
        status, _ = await one.refused(client_timeout=0.2)
        assert status == "StatusCode.DEADLINE_EXCEEDED"
        await one.until_waiting(0)
        status, message = await one.refused(headers=KEY | {"x-request-timeout-seconds": "0.1"})
        assert status == "StatusCode.DEADLINE_EXCEEDED" and "not answered within" in message

    served(tmp_path, use)


def test_a_full_queue_refuses_and_a_cancelled_call_leaves_it(tmp_path: Path) -> None:
    async def use(one: Served) -> None:
        waiting = asyncio.create_task(one.infer())
        await one.until_waiting(1)
        async with grpc.aio.insecure_channel(f"127.0.0.1:{one.port}") as channel:
            given = {"name": "input", "datatype": "FP32", "shape": [1], "contents": {"fp32_contents": [1.0]}}
            request = MESSAGES["ModelInferRequest"](model_name="m", inputs=[given])
            call = channel.unary_unary("/inference.GRPCInferenceService/ModelInfer")(
                request.SerializeToString(), metadata=tuple(KEY.items())
            )
            assert await call.code() == grpc.StatusCode.RESOURCE_EXHAUSTED
            assert int(dict(await call.trailing_metadata())["retry-after"]) >= 1
        waiting.cancel()
        await one.until_waiting(0)

    served(tmp_path, use)


def test_a_gateway_that_ends_lets_others_answer(tmp_path: Path) -> None:
    async def use(one: Served) -> None:
        waiting = asyncio.create_task(one.infer())
        await one.until_waiting(1)
        ending = asyncio.create_task(one.calls.stop(20.0))
        await asyncio.sleep(0)
        await one.service.stop()
        with pytest.raises(Refused, match="the gateway is ending") as raised:
            await waiting
        assert raised.value.status() == "StatusCode.UNAVAILABLE"
        await ending

    served(tmp_path, use)


@pytest.mark.parametrize(
    ("model", "version", "status", "said"),
    [
        ("", "", "INVALID_ARGUMENT", "the name of the model is empty"),
        ("other", "", "NOT_FOUND", "there is no model `other`; known: m"),
        ("m", "3", "NOT_FOUND", "there is no version `3` of `m`; known: 1"),
        ("m", "1", "", ""),
        ("a/b", "", "NOT_FOUND", "there is no model `a/b`; known: m"),
    ],
)
def test_names_are_those_of_models(tmp_path: Path, model: str, version: str, status: str, said: str) -> None:
    async def use(one: Served) -> None:
        if not status:
            assert (await one.client.get_model_metadata(model, version, headers=KEY)).versions == ["1"]
            return
        with pytest.raises(Refused, match=said) as raised:
            await one.client.get_model_metadata(model, version, headers=KEY)
        assert raised.value.status() == f"StatusCode.{status}"

    served(tmp_path, use)


@pytest.mark.parametrize(
    ("kind", "contents", "said"),
    [
        ("INT8", {"int_contents": [1, 300]}, "`input`: 300 is outside of the range of INT8"),
        ("INT16", {"int_contents": [-32769]}, "`input`: -32769 is outside of the range of INT16"),
        ("UINT8", {"uint_contents": [256]}, "`input`: 256 is outside of the range of UINT8"),
        ("FP16", {"fp32_contents": [1.0]}, "`input`: FP16 has no typed contents; send raw_input_contents"),
    ],
)
def test_typed_contents_that_have_no_binary_form_are_refused(kind: str, contents: dict[str, Any], said: str) -> None:
    with pytest.raises(rpc.Refused) as raised:
        rpc._asked(asked(kind, contents))
    assert (raised.value.status, raised.value.message) == (400, said)


@pytest.mark.parametrize(
    ("kind", "contents", "binary"),
    [
        ("INT8", {"int_contents": [-128, 127]}, b"\x80\x7f"),
        ("UINT8", {"uint_contents": [255]}, b"\xff"),
        ("UINT64", {"uint64_contents": [2**64 - 1]}, b"\xff" * 8),
        ("INT16", {}, b""),
        ("FP32", {"fp32_contents": [float("nan")]}, b"\0\0\xc0\x7f"),
        ("BOOL", {"bool_contents": [True, False]}, b"\1\0"),
    ],
)
def test_typed_contents_have_a_binary_form(kind: str, contents: dict[str, Any], binary: bytes) -> None:
    _, parts = rpc._asked(asked(kind, contents))
    assert parts == [binary]


HALVES = np.array([0.5, 2.0], dtype=np.float16)


async def halves(scope: Scope, receive: Receive, send: Send) -> None:
    """An application whose model `broken` fails, and whose others answer in FP16."""
    if "broken" in scope["path"]:
        raise KeyError("broken")
    output = {"name": "output", "datatype": "FP16", "shape": [2], "parameters": {"binary_data_size": HALVES.nbytes}}
    head = json.dumps({"model_name": "m", "model_version": "1", "outputs": [output]}).encode()
    await answer(send, 200, head + HALVES.tobytes(), [(LENGTH.encode(), str(len(head)).encode())])


def test_a_request_that_fails_ends_no_stream_and_an_output_without_typed_contents_is_raw(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def run() -> None:
        request = asked("FP32", {"fp32_contents": [1.0]})
        broken = MESSAGES["ModelInferRequest"](model_name="broken", id="7", inputs=request.inputs)
        async with streaming(halves) as stream:
            told = [one async for one in stream([*[broken] * rpc.MOST_IN_STREAM, request])]
        assert {(one.error_message, one.infer_response.id) for one in told[:-1]} == {
            ("the gateway failed at this request", "7")
        }
        assert told[-1].error_message == "" and len(told) == rpc.MOST_IN_STREAM + 1
        assert list(told[-1].infer_response.raw_output_contents) == [HALVES.tobytes()]

    asyncio.run(asyncio.wait_for(run(), 30))
    assert "KeyError: 'broken'" in caplog.text


def test_a_message_over_the_limit_is_refused(tmp_path: Path) -> None:
    async def use(one: Served) -> None:
        status, message = await one.refused([[0.0] * (MOST // 2)])
        assert status == "StatusCode.RESOURCE_EXHAUSTED" and "larger than" in message

    served(tmp_path, use)


def test_other_machines_need_tls(tmp_path: Path) -> None:
    async def use(one: Served) -> None:
        assert await one.client.is_server_live(headers=KEY)
        plain = triton.InferenceServerClient(f"127.0.0.1:{one.port}")
        with pytest.raises(Refused):
            await plain.is_server_live(headers=KEY, client_timeout=10)
        await plain.close()

    served(tmp_path, use, tls=True)
