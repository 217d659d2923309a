"""The OpenAI embeddings route for a model that is a Poise service.

A request with N inputs becomes N requests to the service: each is a text, or a list of tokens, as JSON, and is batched
with other waiting requests. They arrive at one instant and succeed or fail together: if one is refused, or the client
disconnects, the others are cancelled. The cache works per input, across requests.

The model answers each with `{"embedding": [0.1, …], "tokens": 7}`.
"""

import asyncio
import base64
import struct
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial

import msgspec

from poise.decoding import json_decoder
from poise_serve.kernel.batcher import Refuse
from poise_serve.openai import NOT_AGAIN, Refused, read_inputs
from poise_serve.refusals import refusal
from poise_serve.service import ANYBODY, Asked, Asker, Service
from poise_serve.wire import Answer

WRONG_INPUT = (400, 422)
"""Status codes of a replica for an invalid input."""


class Embedded(msgspec.Struct):
    """The model's answer. Its numbers are forwarded as text, but decoded too, to validate them."""

    embedding: msgspec.Raw
    tokens: int


class Failed(msgspec.Struct):
    """A replica's error."""

    error: dict[str, str | int]


_embedded = json_decoder(Embedded).decode
_numbers = json_decoder(list[float]).decode
_failed = json_decoder(Failed).decode


class Embeddings:
    """One embeddings model."""

    def __init__(
        self, versions: Sequence[str], timeout: int, fronts: Mapping[str, Asked], services: Mapping[str, Service]
    ) -> None:
        """`versions`: names of the model's service and its canary. `fronts` and `services` are live mappings of all
        services. `timeout`: nanoseconds.
        """
        self.name = versions[0]
        self.timeout = timeout
        self._versions = versions
        self._fronts = fronts
        self._services = services

    async def embed(self, body: bytes, patience: int = 0, deferred: bool = False, asker: Asker = ANYBODY) -> bytes:
        """Answer a request. `patience`: the client's timeout in nanoseconds, 0 for that of the service. `deferred`: use
        the deferred lane. Raises `Refused`.
        """
        inputs = read_inputs(body)
        asked = self._fronts[self.name]
        whole = Whole(self.name, len(inputs.questions), in_base64=inputs.in_base64)
        numbers: list[int] = []
        try:
            with self._together():
                try:
                    for place, question in enumerate(inputs.questions):
                        numbers.append(asked.ask(question, partial(whole.told, place), patience, deferred, asker))
                        whole.check()
                except Refused:
                    _cancel(asked, numbers)
                    raise
            return await whole.answer
        finally:
            _cancel(asked, numbers)

    @contextmanager
    def _together(self) -> Iterator[None]:
        """Let requests in this block arrive at one instant, for all versions."""
        with ExitStack() as stack:
            for name in self._versions:
                if name in self._services:
                    stack.enter_context(self._services[name].together())
            yield


class Whole:
    """Collects the answers to all inputs into one, or the first refusal."""

    def __init__(self, name: str, count: int, *, in_base64: bool) -> None:
        self.answer: asyncio.Future[bytes] = asyncio.get_running_loop().create_future()
        self._name = name
        self._parts: list[bytes] = [b""] * count
        self._left = count
        self._tokens = 0
        self._in_base64 = in_base64

    def check(self) -> None:
        """Raises the refusal, if there is one."""
        if self.answer.done() and (error := self.answer.exception()) is not None:
            raise error

    def told(self, place: int, told: Answer | Refuse) -> None:
        if self.answer.done():
            return
        try:
            self._parts[place] = self._part(place, told)
        except Refused as error:
            self.answer.set_exception(error)
            return
        self._left -= 1
        if not self._left:
            head, data = b'{"object":"list","data":[', b",".join(self._parts)
            usage = msgspec.json.encode({"prompt_tokens": self._tokens, "total_tokens": self._tokens})
            model = msgspec.json.encode(self._name)
            self.answer.set_result(b'%b%b],"model":%b,"usage":%b}' % (head, data, model, usage))

    def _part(self, place: int, told: Answer | Refuse) -> bytes:
        if isinstance(told, Refuse):
            raise _refused(self._name, told)
        if told.status != 200:
            raise self._wrong(place, told)
        try:
            made = _embedded(told.body)
            numbers = _numbers(made.embedding)
            written = bytes(made.embedding)
            if self._in_base64:
                written = b'"%b"' % base64.b64encode(struct.pack(f"<{len(numbers)}f", *numbers))
        except (msgspec.MsgspecError, OverflowError) as error:
            message = f"`{self._name}` did not answer with an embedding: {error}"
            raise Refused(500, message, code="model_failed", reason="model_failed") from None
        self._tokens += made.tokens
        return b'{"object":"embedding","index":%d,"embedding":%b}' % (place, written)

    def _wrong(self, place: int, told: Answer) -> Refused:
        message = str(_failed(told.body).error["message"])
        where = f"input[{place}]" if len(self._parts) > 1 else "input"
        if told.status in WRONG_INPUT:
            return Refused(400, f"{where}: {message}", code="invalid_input", param=where)
        return Refused(500, f"`{self._name}`, {where}: {message}", code="model_failed", reason="model_failed")


def _cancel(asked: Asked, numbers: Sequence[int]) -> None:
    for number in numbers:
        asked.cancel(number)


def _refused(name: str, refuse: Refuse) -> Refused:
    """Convert a service's refusal to OpenAI's form."""
    told = refusal(refuse)
    message, away = f"`{name}`: {told.message}", int(told.headers.get("retry-after", "0"))
    final = NOT_AGAIN[0] in told.headers
    return Refused(told.status, message, code=refuse.why, reason=refuse.why, retry_after=away, final=final)


__all__ = ["Embeddings"]
