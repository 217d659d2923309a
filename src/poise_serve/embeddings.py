"""The OpenAI embeddings route for a model that is a Poise service.

A request with N inputs becomes N requests to the service: each is a text, or a list of tokens, as JSON, and is batched
with other waiting requests. They arrive at one instant and succeed or fail together: if one is refused, or the client
disconnects, the others are cancelled. The cache works per input, across requests.

The model answers each with `{"embedding": [0.1, …], "tokens": 7}`.
"""

import base64
import struct
from collections.abc import Mapping, Sequence
from functools import partial
from typing import NamedTuple

import msgspec

from poise.decoding import json_decoder
from poise_serve.kernel.batcher import Refuse
from poise_serve.openai import NOT_AGAIN, Refused, read_inputs
from poise_serve.refusals import refusal
from poise_serve.service import ANYBODY, Asked, Asker, Service
from poise_serve.several import ask_each
from poise_serve.wire import Answer

WRONG_INPUT = (400, 422)
"""Status codes of a replica for an invalid input."""


class Embedded(msgspec.Struct):
    """The model's answer. Its numbers are forwarded as text, but decoded too, to validate them."""

    embedding: msgspec.Raw
    tokens: int


class Part(NamedTuple):
    """One embedding of an answer, as JSON, and the tokens of its input."""

    written: bytes
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
        take = partial(self._part, len(inputs.questions) > 1, inputs.in_base64)
        versions = dict.fromkeys(self._services[name] for name in self._versions if name in self._services)
        asked = self._fronts[self.name]
        parts = await ask_each(asked, versions, inputs.questions, take, patience, deferred, asker)
        head, tokens = b'{"object":"list","data":[', sum(part.tokens for part in parts)
        usage = msgspec.json.encode({"prompt_tokens": tokens, "total_tokens": tokens})
        data, model = b",".join(part.written for part in parts), msgspec.json.encode(self.name)
        return b'%b%b],"model":%b,"usage":%b}' % (head, data, model, usage)

    def _part(self, is_one_of_many: bool, in_base64: bool, place: int, told: Answer | Refuse) -> Part:
        if isinstance(told, Refuse):
            raise _refused(self.name, told)
        if told.status != 200:
            raise self._wrong(f"input[{place}]" if is_one_of_many else "input", told)
        try:
            made = _embedded(told.body)
            numbers = _numbers(made.embedding)
            written = bytes(made.embedding)
            if in_base64:
                written = b'"%b"' % base64.b64encode(struct.pack(f"<{len(numbers)}f", *numbers))
        except (msgspec.MsgspecError, OverflowError) as error:
            message = f"`{self.name}` did not answer with an embedding: {error}"
            raise Refused(500, message, code="model_failed", reason="model_failed") from None
        return Part(b'{"object":"embedding","index":%d,"embedding":%b}' % (place, written), made.tokens)

    def _wrong(self, where: str, told: Answer) -> Refused:
        message = str(_failed(told.body).error["message"])
        if told.status in WRONG_INPUT:
            return Refused(400, f"{where}: {message}", code="invalid_input", param=where)
        return Refused(500, f"`{self.name}`, {where}: {message}", code="model_failed", reason="model_failed")


def _refused(name: str, refuse: Refuse) -> Refused:
    """Convert a service's refusal to OpenAI's form."""
    told = refusal(refuse)
    message, away = f"`{name}`: {told.message}", int(told.headers.get("retry-after", "0"))
    final = NOT_AGAIN[0] in told.headers
    return Refused(told.status, message, code=refuse.why, reason=refuse.why, retry_after=away, final=final)


__all__ = ["Embeddings"]
