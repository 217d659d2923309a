"""The Open Inference Protocol over HTTP (KServe's version 2, as of Triton), for models that are Poise services.

    GET  /v2                                the server
    GET  /v2/health/live, /v2/health/ready  probes
    GET  /v2/models/NAME                    inputs and outputs of a model, from the annotations of its `predict`
    GET  /v2/models/NAME/ready              whether it has a replica
    POST /v2/models/NAME/infer              inference, with data in JSON or in binary form
    POST /v2/repository/index               all models, with those that are not loaded
    POST /v2/repository/models/NAME/load    read the folder of a model again, and serve what it holds
    POST /v2/repository/models/NAME/unload  stop serving a model

`/v2/models/NAME/versions/VERSION/...` names a version: the `version` of the service, or `1`. The items of a request are
separate requests to the service, batched with those of others (`poise_serve.tensors`, `poise_serve.several`). A model
that yields takes one item a request. Its answer is a stream of events, each with an answer in JSON.
"""

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from functools import partial
from typing import Any, Protocol
from urllib.parse import unquote

import msgspec

from poise import __version__
from poise.decoding import json_decoder
from poise.errors import PoiseError
from poise_serve.asgi import (
    ASK,
    ASKER,
    READ,
    Gone,
    NoRoom,
    Receive,
    Room,
    Scope,
    Send,
    TooLarge,
    answer,
    client_of,
    may_ask,
    tell_methods,
    until_gone,
    whole_body,
)
from poise_serve.kernel.batcher import Refuse
from poise_serve.refusals import Refused, no_room, problem, refusal, too_large
from poise_serve.service import Asked, Asker, Service
from poise_serve.several import ask_each
from poise_serve.streams import Cut, Stream, Streamed, pass_on
from poise_serve.tensors import ALL_BINARY, BINARY, INPUT, OUTPUT, Inferred, WrongTensor, items, outputs, read, write
from poise_serve.wire import EVENTS, Answer, Schema

PREFIX = "/v2"
JSON = "application/json"
LENGTH = "inference-header-content-length"

MOST_QUESTION = 4096
"""Maximum bytes of a request for the index."""

Admit = Callable[[str, Scope], tuple[Asked, int, bool, Asker]]
"""Returns the service of this name, the client's timeout, whether it is deferred, and its tenant. Raises `Refused`."""


class _Failed(msgspec.Struct):
    """A replica's error."""

    error: dict[str, str | int]


_failed = json_decoder(_Failed).decode


class Repository(Protocol):
    """The folders of models from which a gateway serves."""

    async def unloaded(self) -> Mapping[str, str]:
        """Return the models that are not served, each with the reason."""

    async def load(self, name: str, by: str) -> None:
        """Serve what the folder of a model holds now. Raises `PoiseError`."""

    async def unload(self, name: str, by: str) -> None:
        """Stop serving a model. Raises `PoiseError`."""


class Inferences:
    """Inference of services. `services` and `models` are live: services by name, and names by model and version, first
    that of the default version.
    """

    def __init__(self, services: Mapping[str, Service], models: Mapping[str, Mapping[str, str]], admit: Admit) -> None:
        self.services = services
        self.models = models
        self.admit = admit

    def named(self, model: str, version: str = "") -> tuple[str, str]:
        """Return the version and the service of a model. Raises `Refused`."""
        versions = self.models.get(model)
        if versions is None:
            raise Refused(404, f"there is no model `{model[:100]}`; known: {', '.join(self.models)}")
        version = version or next(iter(versions))
        if version not in versions:
            known = ", ".join(versions)
            raise Refused(404, f"there is no version `{version[:40]}` of `{model}`; known: {known}")
        return version, versions[version]

    def is_ready(self, model: str, version: str = "") -> bool:
        """Whether a model has a replica. Raises `Refused`."""
        return self.services[self.named(model, version)[1]].replicas > 0

    def metadata(self, model: str, version: str = "") -> dict[str, Any]:
        """Describe a model. Raises `Refused`."""
        forms = self.services[self.named(model, version)[1]].forms
        taken, given = forms.takes.get(JSON), forms.gives.get(JSON, {})
        described = [] if taken is None else _tensors(INPUT, taken, forms.parts)
        return {
            "name": model,
            "versions": list(self.models[model]),
            "platform": "poise",
            "inputs": described,
            "outputs": _tensors(OUTPUT, given, forms.parts),
        }

    async def infer(
        self, model: str, version: str, body: bytes, length: int | None, scope: Scope
    ) -> "tuple[bytes, int | None] | _Events":
        """Answer a request. Returns the body, and the bytes of its JSON if binary data follows; or the events of an
        answer that streams. Raises `Refused`, and `Gone` if the client disconnects.
        """
        version, name = self.named(model, version)
        service = self.services[name]
        forms = service.forms
        if JSON not in forms.takes:
            raise Refused(400, f"`{name}` takes bytes, and no tensors: POST /predict/{name}")
        try:
            asked, arrays = read(body, length)
            bodies = items(arrays, _fields(forms.takes[JSON], forms.parts))
        except WrongTensor as error:
            raise Refused(400, str(error)) from None
        admitted = self.admit(name, scope)
        wanted = [one.name for one in asked.outputs]
        if EVENTS in forms.gives:
            if len(bodies) > 1:
                raise Refused(400, f"`{model}` yields, and takes one item a request")
            parts = await _streamed(admitted, bodies[0], scope)
            return _Events(parts, wanted, Inferred(model, version, [], asked.id))
        front, timeout, deferred, asker = admitted
        answers = await ask_each(front, [service], bodies, partial(_taken, len(bodies)), timeout, deferred, asker)
        try:
            made = outputs(answers, wanted)
        except WrongTensor as error:
            status = 400 if "no output" in str(error) else 500
            raise Refused(status, f"`{name}`: {error}") from None
        every = asked.parameters.get(ALL_BINARY) is True
        binary = dict.fromkeys(made, every) | {
            one.name: one.parameters[BINARY] is True for one in asked.outputs if BINARY in one.parameters
        }
        return write(Inferred(model, version, [], asked.id), made, binary)


async def _streamed(admitted: tuple[Asked, int, bool, Asker], body: bytes, scope: Scope) -> Stream | None:
    """Return the stream of an answer; None for one without parts. Raises `Refused`, and `Gone`."""
    front, timeout, deferred, asker = admitted
    told: asyncio.Future[Answer | Refuse] = asyncio.get_running_loop().create_future()

    def tell(one: Answer | Refuse) -> None:
        if not told.done():
            told.set_result(one)

    number = front.ask(body, tell, timeout, deferred, asker)
    try:
        made = await until_gone(scope, told)
    except BaseException:
        front.cancel(number)
        raise
    if isinstance(made, Streamed):
        return made.stream
    _taken(1, 0, made, EVENTS)
    return None


class _Events:
    """The parts of an answer, each as an answer of its own. See `Parts`."""

    def __init__(self, stream: Stream | None, wanted: Sequence[str], inferred: Inferred) -> None:
        """`inferred`: an answer without outputs."""
        self._stream = stream
        self._wanted, self._inferred = wanted, inferred

    def leave(self) -> None:
        if self._stream is not None:
            self._stream.leave()

    async def parts(self) -> AsyncIterator[bytes]:
        if self._stream is None:
            return
        async for part in self._stream.parts():
            yield b"".join(self._event(one) for one in part.split(b"\n\n") if one)

    def _event(self, given: bytes) -> bytes:
        """Return the event of a value that the model yields. Raises `Cut` if it is no tensor."""
        try:
            made = outputs([given.removeprefix(b"data: ")], self._wanted)
        except (WrongTensor, msgspec.MsgspecError) as error:
            raise Cut(str(error)) from None
        told, _ = write(msgspec.structs.replace(self._inferred, outputs=[]), made, {})
        return b"data: %b\n\n" % told


class KServe:
    """The ASGI application."""

    def __init__(self, inferences: Inferences, room: Room) -> None:
        self._inferences = inferences
        self._room = room
        self.repository: Repository | None = None

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        headers: list[tuple[bytes, bytes]] = []
        try:
            asks = scope["path"].endswith("/infer") or scope["path"].startswith(f"{PREFIX}/repository/")
            allowed = ASK if asks else READ
            if scope["method"] == "OPTIONS":
                await tell_methods(send, allowed)
                return
            if scope["method"] not in allowed:
                raise Refused(405, f"this takes {allowed[0]}", headers={"allow": ", ".join(allowed)})
            told = await self._told(scope, receive)
            if isinstance(told, _Events):
                await pass_on(scope, send, EVENTS, told)
                return
            status, body, headers = told
        except Refused as error:
            status, body = error.status, problem(PREFIX, error.status, error.message)
            headers = [(name.encode(), value.encode()) for name, value in error.headers.items()]
        except Gone:
            return
        kind = b"application/octet-stream" if any(name == LENGTH.encode() for name, _ in headers) else JSON.encode()
        await answer(send, status, body, [(b"content-type", kind), *headers])

    async def _told(self, scope: Scope, receive: Receive) -> "tuple[int, bytes, list[tuple[bytes, bytes]]] | _Events":
        path = [unquote(part) for part in scope["path"].removeprefix(PREFIX).strip("/").split("/") if part]
        inferences = self._inferences
        match path:
            case []:
                extensions = ["binary_tensor_data", "model_repository"]
                return _json({"name": "poise", "version": __version__, "extensions": extensions})
            case ["health", "live"]:
                return _json({"live": True})
            case ["health", "ready"]:
                return _ready(all(inferences.is_ready(model) for model in inferences.models))
            case ["repository", "index"]:
                body = await self._body(scope, receive, MOST_QUESTION)
                self._room.give_back(len(body), client_of(scope))
                return _json(await self._index(_wanted(body)))
            case ["repository", "models", name, "load" | "unload" as change]:
                await self._change(name, change, scope)
                return 200, b"", []
            case ["models", name]:
                return _json(inferences.metadata(name))
            case ["models", name, "versions", version]:
                return _json(inferences.metadata(name, version))
            case ["models", name, "ready"]:
                return _ready(inferences.is_ready(name))
            case ["models", name, "versions", version, "ready"]:
                return _ready(inferences.is_ready(name, version))
            case ["models", name, "infer"]:
                return await self._infer(name, "", scope, receive)
            case ["models", name, "versions", version, "infer"]:
                return await self._infer(name, version, scope, receive)
        raise Refused(404, f"there is no {scope['path'][:100]}; there is {PREFIX}/models/NAME/infer")

    async def _index(self, wanted: "_Wanted") -> list[dict[str, str]]:
        """List the versions of all models; with `ready`, only of those that have a replica."""
        inferences = self._inferences
        made = [
            {"name": model, "version": version, "state": _STATES[inferences.is_ready(model, version)], "reason": ""}
            for model, versions in inferences.models.items()
            for version in versions
        ]
        if self.repository is not None:
            for name, why in (await self.repository.unloaded()).items():
                made.append({"name": name, "version": "", "state": _STATES[False], "reason": why})
        return [one for one in made if not wanted.ready or one["state"] == _STATES[True]]

    async def _change(self, name: str, change: str, scope: Scope) -> None:
        """Load or unload a model. Raises `Refused`."""
        if self.repository is None:
            raise Refused(404, "this gateway has no folders of models")
        asker = scope["extensions"].get(ASKER)
        by = f"the key {asker.name}" if asker is not None else "a client"
        try:
            await (self.repository.load if change == "load" else self.repository.unload)(name, by)
        except PoiseError as error:
            told = [": ".join(filter(None, [one.message, one.have])) for one in error.record.all()]
            raise Refused(error.status if error.status in (404, 409) else 400, f"`{name}`: {'; '.join(told)}") from None

    async def _body(self, scope: Scope, receive: Receive, most: int) -> bytes:
        """Read a body. The caller gives back its room. Raises `Refused`."""
        try:
            return await whole_body(scope, receive, most, self._room)
        except TooLarge:
            raise too_large(most) from None
        except NoRoom:
            raise no_room() from None

    async def _infer(
        self, name: str, version: str, scope: Scope, receive: Receive
    ) -> "tuple[int, bytes, list[tuple[bytes, bytes]]] | _Events":
        inferences = self._inferences
        most = inferences.services[inferences.named(name, version)[1]].batcher.limits.body
        if not may_ask(scope, name):
            raise Refused(403, f"this key may not ask `{name}`")
        body = await self._body(scope, receive, most)
        try:
            made = await self._inferences.infer(name, version, body, _length(scope), scope)
        finally:
            self._room.give_back(len(body), client_of(scope))
        if isinstance(made, _Events):
            return made
        told, length = made
        return 200, told, [] if length is None else [(LENGTH.encode(), str(length).encode())]


_STATES = {True: "READY", False: "UNAVAILABLE"}


class _Wanted(msgspec.Struct):
    """A request for the index."""

    ready: bool = False


_wants = json_decoder(_Wanted).decode


def _wanted(body: bytes) -> _Wanted:
    try:
        return _wants(body or b"{}")
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise Refused(400, f"the body cannot be read: {str(error) or 'nested too deep'}") from None


def _json(value: Any, status: int = 200) -> tuple[int, bytes, list[tuple[bytes, bytes]]]:
    return status, msgspec.json.encode(value), []


def _ready(is_ready: bool) -> tuple[int, bytes, list[tuple[bytes, bytes]]]:
    return _json({"ready": is_ready}, 200 if is_ready else 503)


def _length(scope: Scope) -> int | None:
    said = next((value for name, value in scope["headers"] if name == LENGTH.encode()), None)
    if said is None:
        return None
    if not said.isdigit() or len(said) > 12:
        raise Refused(400, "Inference-Header-Content-Length is a number of bytes")
    return int(said)


def _taken(count: int, place: int, told: Answer | Refuse, kind: str = JSON) -> bytes:
    """Return the result of an item. Raises `Refused`."""
    where = f"item {place}: " if count > 1 else ""
    if isinstance(told, Refuse):
        refused = refusal(told)
        raise Refused(refused.status, f"{where}{refused.message}", headers=refused.headers)
    if told.status != 200:
        status = 400 if told.status == 422 else told.status
        raise Refused(status, f"{where}{_failed(told.body).error['message']}")
    if told.kind != kind:
        raise Refused(400, f"the results are {told.kind}, and no tensors")
    return told.body


def _fields(schema: Schema, parts: Mapping[str, Schema]) -> list[str]:
    """Return the fields of a record; none for another type."""
    return list(_resolved(schema, parts).get("properties", ()))


def _resolved(schema: Schema, parts: Mapping[str, Schema]) -> Schema:
    name = str(schema.get("$ref", "")).rpartition("/")[2]
    return parts.get(name, schema)


_DATATYPES = {"number": "FP64", "integer": "INT64", "boolean": "BOOL", "string": "BYTES"}


def _tensors(name: str, schema: Schema, parts: Mapping[str, Schema]) -> list[dict[str, Any]]:
    """Describe the tensors of a type: one for each field of a record, or one."""
    fields = _resolved(schema, parts).get("properties")
    named: Mapping[str, Schema] = fields if fields else {name: schema}
    return [
        {"name": one, "datatype": _datatype(of, parts), "shape": [-1, *[-1] * _depth(of, parts)]}
        for one, of in named.items()
    ]


def _depth(schema: Schema, parts: Mapping[str, Schema]) -> int:
    """Return how many levels of lists a type has."""
    depth, schema = 0, _resolved(schema, parts)
    while schema.get("type") == "array" and isinstance(schema.get("items"), dict):
        depth, schema = depth + 1, _resolved(schema["items"], parts)
    return depth


def _datatype(schema: Schema, parts: Mapping[str, Schema]) -> str:
    """Return the type of the elements; FP64 if the model does not say."""
    schema = _resolved(schema, parts)
    while schema.get("type") == "array" and isinstance(schema.get("items"), dict):
        schema = _resolved(schema["items"], parts)
    return _DATATYPES.get(str(schema.get("type", "")), "FP64")


__all__ = ["LENGTH", "PREFIX", "Inferences", "KServe", "Repository"]
