"""KServe's protocol over gRPC. Each call is a request to the application that answers over HTTP (`poise_serve.kserve`),
so that keys, limits, deadlines, lanes and traces are the same.

* The deadline of a call is the time limit of its request. A cancelled call cancels its request.
* Metadata has the place of headers: `authorization` and `x-poise-lane`, for example.
* An error has the status that stands for its HTTP status. `retry-after` is in the trailing metadata.
* The answer has raw tensors if the request has them, or if an output is FP16, and typed ones otherwise.

gRPC reads a whole message before the application can measure it. So keys are checked before that, and the calls of one
client are limited: of one key, or of one address if the gateway has no keys.
"""

import asyncio
import logging
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from functools import partial
from typing import Any, NamedTuple
from urllib.parse import quote, unquote

import grpc
import grpc.aio
import msgspec
import numpy as np

from poise.decoding import json_decoder
from poise.errors import Conflict
from poise_serve.asgi import GONE, App, Scope
from poise_serve.kserve import LENGTH, PREFIX
from poise_serve.messages import MESSAGES, SERVICE
from poise_serve.openai import MOST_SECONDS
from poise_serve.refusals import Refused
from poise_serve.tensors import ALL_BINARY, BINARY_SIZE, BYTES, KINDS, Inferred, Tensor, of_json, texts, to_bytes
from poise_serve.wire import EVENTS

MOST_CALLS = 1024
"""Maximum number of calls at once. gRPC holds the message of each in memory."""

MOST_OF_A_CLIENT = 768
"""Maximum number of calls at once of one client."""

MESSAGE_SECONDS = 60.0
"""Seconds in which the message of a call must have come; of a stream, the next one if no request is in flight."""

MOST_IN_STREAM = 64
"""Maximum number of requests of one stream that are answered at once."""

ENVELOPE = 1 << 20
"""Maximum bytes of a message beside the data of its tensors."""

PASSED_ON = frozenset(
    {
        *("authorization", "x-api-key", "x-request-timeout-seconds", "x-poise-lane", "x-poise-tenant"),
        *("cache-control", "traceparent", "tracestate"),
    }
)
"""Metadata that is passed on as headers."""

TOLD = ("retry-after", "x-should-retry")
"""Headers of errors that are passed on as trailing metadata."""

_CODES = {
    400: "INVALID_ARGUMENT", 401: "UNAUTHENTICATED", 403: "PERMISSION_DENIED", 404: "NOT_FOUND",
    408: "DEADLINE_EXCEEDED", 413: "RESOURCE_EXHAUSTED", 422: "INVALID_ARGUMENT", 429: "RESOURCE_EXHAUSTED",
    501: "UNIMPLEMENTED", 503: "RESOURCE_EXHAUSTED", 504: "DEADLINE_EXCEEDED",
}  # fmt: skip
"""The status of a call by the HTTP status; INTERNAL for others."""

Headers = list[tuple[bytes, bytes]]
Check = Callable[[Headers], Awaitable[str]]
"""Returns the name of the key in these headers; empty if none is needed. Raises `Refused` if it is unknown."""

Part = Callable[[bytes], Awaitable[None]]
"""Takes a part of an answer that streams: whole events."""

DATA, ERROR = b"data: ", b"event: error\ndata: "
"""Beginnings of events."""

WANTS_END, IS_END = "triton_enable_empty_final_response", "triton_final_response"
"""Parameters by which Triton's clients ask for an empty answer after the last part, and notice it."""

Answer = Callable[[Any, Any], Awaitable[Any]]
"""Answers a call, from its message and its context. Raises `Refused`."""


class _Failed(msgspec.Struct):
    error: str


_log = logging.getLogger(__name__)
_failed = json_decoder(_Failed).decode
_inferred = json_decoder(Inferred).decode
_told = json_decoder(dict[str, Any]).decode
_listed = json_decoder(list[dict[str, Any]]).decode


class _Told(NamedTuple):
    status: int
    headers: dict[bytes, bytes]
    body: bytes


class Calls:
    """The gRPC server."""

    def __init__(self, app: App, check: Check) -> None:
        self._app = app
        self._check = check
        self._is_ending = False
        self._running: Counter[str] = Counter()
        """Calls by client: its key, otherwise its address."""
        self._server: Any = None

    async def start(self, address: str, most: int, certificate: bytes = b"") -> None:
        """Listen at an address, with TLS if there is a `certificate`: key and certificate (PEM). `most`: maximum
        bytes of the tensors of a request. Raises `Conflict` if the address is taken.
        """
        self._server = server = grpc.aio.server(
            options=[
                ("grpc.max_receive_message_length", most + ENVELOPE),
                ("grpc.max_send_message_length", -1),
                ("grpc.so_reuseport", 0),  # on by default: another gateway could take half of the connections
            ],
            maximum_concurrent_rpcs=MOST_CALLS,
        )
        server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(SERVICE, self._handlers()),))
        try:
            if certificate:
                at = certificate.index(b"-----BEGIN CERTIFICATE")
                credentials = grpc.ssl_server_credentials([(certificate[:at], certificate[at:])])
                server.add_secure_port(address, credentials)
            else:
                server.add_insecure_port(address)
        except RuntimeError as error:
            raise Conflict(
                f"the gateway cannot listen there: {error}", field="--grpc-port", have=address, hint="--grpc-port 0"
            ) from None
        await server.start()

    async def stop(self, patience: float | None = None) -> None:
        """Accept no more calls, and wait this many seconds for those that run. The rest is cancelled."""
        self._is_ending = True
        await self._server.stop(patience)

    def _handlers(self) -> dict[str, Any]:
        whole: dict[str, Answer] = {
            "ServerLive": self._live,
            "ServerReady": self._server_ready,
            "ModelReady": self._model_ready,
            "ServerMetadata": self._server_metadata,
            "ModelMetadata": self._model_metadata,
            "ModelInfer": self._infer,
            "RepositoryIndex": self._index,
            "RepositoryModelLoad": partial(self._change, "load"),
            "RepositoryModelUnload": partial(self._change, "unload"),
        }
        made = {
            name: grpc.stream_unary_rpc_method_handler(  # of one message: this form begins before the message is read
                partial(self._answer, answer),
                request_deserializer=MESSAGES[f"{name}Request"].FromString,
                response_serializer=MESSAGES[f"{name}Response"].SerializeToString,
            )
            for name, answer in whole.items()
        }
        made["ModelStreamInfer"] = grpc.stream_stream_rpc_method_handler(
            self._stream,
            request_deserializer=MESSAGES["ModelInferRequest"].FromString,
            response_serializer=MESSAGES["ModelStreamInferResponse"].SerializeToString,
        )
        return made

    async def _answer(self, answer: Answer, requests: AsyncIterator[Any], context: Any) -> Any:
        """Answer a call of one message, or end it with an error."""
        async with self._admitted(context):
            try:
                request = await asyncio.wait_for(anext(requests), MESSAGE_SECONDS)
            except TimeoutError:
                raise Refused(408, f"the message did not come within {MESSAGE_SECONDS:g} s") from None
            except StopAsyncIteration:
                raise Refused(400, "the call has no message") from None
            return await answer(request, context)

    @asynccontextmanager
    async def _admitted(self, context: Any) -> AsyncIterator[None]:
        """Check the key of a call, and count the call. End it with an error if `Refused` is raised."""
        try:
            key = await self._check(_chosen(context.invocation_metadata() or ()))
            address, _ = _client(context.peer()) or ("", 0)
            client = key or address
            if self._running[client] >= MOST_OF_A_CLIENT:
                who = f"the key `{key}`" if key else f"the client {address}"
                message = f"{who} has {MOST_OF_A_CLIENT} calls at once, the maximum"
                raise Refused(429, message, headers={"retry-after": "1"})
            self._running[client] += 1
            try:
                yield
            finally:
                self._running[client] -= 1
                if not self._running[client]:
                    del self._running[client]
        except Refused as error:
            code = _CODES.get(error.status, "INTERNAL")
            if error.status == 503 and self._is_ending:
                code = "UNAVAILABLE"
            told = tuple((name, error.headers[name]) for name in TOLD if name in error.headers)
            await context.abort(grpc.StatusCode[code], error.message, told)

    # --- calls -------------------------------------------------------------------------------------------------------

    async def _live(self, request: Any, context: Any) -> Any:
        await self._ask(context, "GET", "health/live")
        return MESSAGES["ServerLiveResponse"](live=True)

    async def _server_ready(self, request: Any, context: Any) -> Any:
        told = await self._ask(context, "GET", "health/ready", also=503)
        return MESSAGES["ServerReadyResponse"](ready=told.status == 200)

    async def _model_ready(self, request: Any, context: Any) -> Any:
        told = await self._ask(context, "GET", f"{_path(request.name, request.version)}/ready", also=503)
        return MESSAGES["ModelReadyResponse"](ready=told.status == 200)

    async def _server_metadata(self, request: Any, context: Any) -> Any:
        told = await self._ask(context, "GET", "")
        return MESSAGES["ServerMetadataResponse"](**_told(told.body))

    async def _model_metadata(self, request: Any, context: Any) -> Any:
        told = await self._ask(context, "GET", _path(request.name, request.version))
        return MESSAGES["ModelMetadataResponse"](**_told(told.body))

    async def _index(self, request: Any, context: Any) -> Any:
        body = msgspec.json.encode({"ready": request.ready})
        told = await self._ask(context, "POST", "repository/index", body)
        return MESSAGES["RepositoryIndexResponse"](models=_listed(told.body))

    async def _change(self, what: str, request: Any, context: Any) -> Any:
        name = request.model_name or request.repository_name  # KServe's own clients send the name in the first field
        await self._ask(context, "POST", f"repository/{_path(name, '')}/{what}")
        return MESSAGES[f"RepositoryModel{what.capitalize()}Response"]()

    async def _infer(self, request: Any, context: Any, part: Part | None = None) -> Any:
        """Return the answer of a model. `part` gets the parts of an answer that streams, which then has no outputs."""
        head, binary = _asked(request)
        path = f"{_path(request.model_name, request.model_version)}/infer"
        length = (LENGTH.encode(), str(len(head)).encode())
        told = await self._ask(context, "POST", path, b"".join([head, *binary]), length, part=part)
        is_raw = bool(request.raw_input_contents)
        if told.headers.get(b"content-type") != EVENTS.encode():
            return _response(*_parted(told), is_raw=is_raw)
        if part is None:
            raise Refused(501, f"`{request.model_name}` yields: call ModelStreamInfer")
        return MESSAGES["ModelInferResponse"](model_name=request.model_name, id=request.id)

    async def _stream(self, requests: AsyncIterator[Any], context: Any) -> None:
        """Answer the requests of a stream in their order, several at once. An error is an answer, too. A stream ends if
        no request is in flight and none comes.
        """
        room = asyncio.Semaphore(MOST_IN_STREAM)
        made = MESSAGES["ModelStreamInferResponse"]
        in_flight = 0

        async def answer(request: Any, before: "asyncio.Task[None] | None") -> None:
            async def write(**told: Any) -> None:
                if before is not None and not before.done():
                    await asyncio.wait([before])
                await context.write(made(**told))

            async def part(events: bytes) -> None:
                for event in events.split(b"\n\n"):
                    if event.startswith(ERROR):
                        raise Refused(500, _failed(event.removeprefix(ERROR)).error)
                    if event:
                        inferred = _inferred(event.removeprefix(DATA))
                        data = [to_bytes(of_json(one)) for one in inferred.outputs]
                        await write(infer_response=_response(inferred, data, is_raw=bool(request.raw_input_contents)))

            try:
                told = await self._infer(request, context, part)
                if told.outputs:
                    await write(infer_response=told)
                elif request.parameters[WANTS_END].bool_param:
                    told.parameters[IS_END].bool_param = True
                    await write(infer_response=told)
            except Refused as error:
                await write(error_message=str(error), infer_response={"id": request.id})
            except Exception:
                _log.exception("a request of a stream failed")
                await write(error_message="the gateway failed at this request", infer_response={"id": request.id})
            finally:
                ended()

        def ended() -> None:
            nonlocal in_flight
            room.release()
            in_flight -= 1
            if not in_flight:
                silence.reschedule(asyncio.get_running_loop().time() + MESSAGE_SECONDS)

        last: asyncio.Task[None] | None = None
        async with self._admitted(context):
            try:
                async with asyncio.timeout(MESSAGE_SECONDS) as silence, asyncio.TaskGroup() as group:
                    async for request in requests:
                        in_flight += 1
                        silence.reschedule(None)
                        await room.acquire()
                        last = group.create_task(answer(request, last))
            except TimeoutError:
                raise Refused(408, f"no message came within {MESSAGE_SECONDS:g} s, and none is in flight") from None

    # --- requests to the application ---------------------------------------------------------------------------------

    async def _ask(
        self,
        context: Any,
        method: str,
        path: str,
        body: bytes = b"",
        *more: tuple[bytes, bytes],
        also: int = 200,
        part: Part | None = None,
    ) -> _Told:
        """Ask the application. `part` gets the parts of an answer that streams. Raises `Refused` if the answer has
        another status than 200 and `also`.
        """
        parts: list[bytes] = []
        status, headers = 0, dict[bytes, bytes]()

        async def receive() -> Any:
            return {"type": "http.request", "body": body}

        async def send(message: Any) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                headers.update(message["headers"])
            elif part is not None and headers.get(b"content-type") == EVENTS.encode():
                await part(message.get("body", b""))
            else:
                parts.append(message.get("body", b""))

        scope: Scope = {
            "type": "http",
            "method": method,
            "path": f"{PREFIX}/{path}".rstrip("/"),
            "query_string": b"",
            "headers": [*_headers(context), *more],
            "client": _client(context.peer()),
            "extensions": {GONE: {"then": lambda then: None}},  # the task of a cancelled call is cancelled
        }
        await self._app(scope, receive, send)
        told = _Told(status, headers, b"".join(parts))
        if status in (200, also):
            return told
        known = {name.decode(): value.decode() for name, value in headers.items()}
        raise Refused(status, _failed(told.body).error, headers=known)


def _path(name: str, version: str) -> str:
    """Return the path of a model below `/v2`. Raises `Refused`."""
    if not name:
        raise Refused(400, "the name of the model is empty")
    return f"models/{quote(name, safe='')}" + (f"/versions/{quote(version, safe='')}" if version else "")


def _headers(context: Any) -> Headers:
    """Return the headers of a call: its metadata, and its deadline."""
    headers = _chosen(context.invocation_metadata() or ())
    left = context.time_remaining()
    if (
        left is not None
        and left < MOST_SECONDS
        and not any(name == b"x-request-timeout-seconds" for name, _ in headers)
    ):
        headers.append((b"x-request-timeout-seconds", b"%.6f" % max(left, 1e-3)))
    return headers


def _chosen(metadata: Sequence[tuple[str, str | bytes]]) -> Headers:
    return [(name.encode(), value.encode()) for name, value in metadata if name in PASSED_ON and isinstance(value, str)]


def _client(peer: str) -> tuple[str, int] | None:
    """Return the address of `ipv4:127.0.0.1:5000`, or of `ipv6:%5B::1%5D:5000`."""
    kind, _, rest = peer.partition(":")
    host, _, port = unquote(rest).rpartition(":")
    return (host.strip("[]").partition("%")[0], int(port)) if kind in ("ipv4", "ipv6") and port.isdigit() else None


# --- tensors ---------------------------------------------------------------------------------------------------------


def _asked(request: Any) -> tuple[bytes, list[bytes]]:
    """Return a request as JSON, and the binary data of its inputs. Raises `Refused`."""
    raw = list(request.raw_input_contents)
    if raw and len(raw) != len(request.inputs):
        raise Refused(400, f"there are {len(request.inputs)} inputs, and {len(raw)} raw contents")
    parts = raw or [_packed(one) for one in request.inputs]
    inputs = [
        Tensor(one.name, list(one.shape), one.datatype, {BINARY_SIZE: len(part)})
        for one, part in zip(request.inputs, parts, strict=True)
    ]
    asked = {
        "id": request.id,
        "inputs": inputs,
        "outputs": [{"name": one.name} for one in request.outputs],
        "parameters": {ALL_BINARY: True},
    }
    return msgspec.json.encode(asked), parts


_CONTENTS = {
    "BOOL": "bool_contents",
    "UINT8": "uint_contents", "UINT16": "uint_contents", "UINT32": "uint_contents", "UINT64": "uint64_contents",
    "INT8": "int_contents", "INT16": "int_contents", "INT32": "int_contents", "INT64": "int64_contents",
    "FP32": "fp32_contents", "FP64": "fp64_contents",
}  # fmt: skip
"""The typed contents of each datatype. Those of FP16 are always raw."""


def _packed(tensor: Any) -> bytes:
    """Return typed contents in binary form. Raises `Refused`."""
    contents, kind = tensor.contents, tensor.datatype
    if kind == BYTES:
        return b"".join(len(one).to_bytes(4, "little") + one for one in contents.bytes_contents)
    if kind not in _CONTENTS:
        if kind in KINDS:
            raise Refused(400, f"`{tensor.name[:80]}`: {kind} has no typed contents; send raw_input_contents")
        return b""
    given = np.array(getattr(contents, _CONTENTS[kind]))  # of 32 or 64 bits
    made = given.astype(KINDS[kind])
    wrong = given[given != made] if made.dtype.kind in "iu" else given[:0]
    if wrong.size:
        raise Refused(400, f"`{tensor.name[:80]}`: {wrong[0]} is outside of the range of {kind}")
    return made.tobytes()


def _parted(told: _Told) -> tuple[Inferred, list[bytes]]:
    """Return an answer, and the binary data of its outputs."""
    at = int(told.headers.get(LENGTH.encode(), b"0")) or len(told.body)
    inferred = _inferred(told.body[:at])
    parts = []
    for tensor in inferred.outputs:
        size = tensor.parameters[BINARY_SIZE]
        parts.append(told.body[at : at + size])
        at += size
    return inferred, parts


def _response(inferred: Inferred, parts: Sequence[bytes], *, is_raw: bool) -> Any:
    """Return an answer as a message. `parts`: the binary data of its outputs. `is_raw`: they stay binary, as all do
    if one has no typed contents.
    """
    is_raw = is_raw or any(tensor.datatype not in (*_CONTENTS, BYTES) for tensor in inferred.outputs)
    made = MESSAGES["ModelInferResponse"](
        model_name=inferred.model_name, model_version=inferred.model_version, id=inferred.id
    )
    for tensor, data in zip(inferred.outputs, parts, strict=True):
        output = made.outputs.add(name=tensor.name, datatype=tensor.datatype, shape=tensor.shape)
        if is_raw:
            made.raw_output_contents.append(data)
        elif tensor.datatype == BYTES:
            output.contents.bytes_contents.extend(one.encode() for one in texts(tensor, memoryview(data)))
        else:
            values = np.frombuffer(data, dtype=KINDS[tensor.datatype]).tolist()
            getattr(output.contents, _CONTENTS[tensor.datatype]).extend(values)
    return made


__all__ = ["Calls"]
