"""The part of the APIs of model servers that a front needs: reading requests, and the form of errors and streams.

The APIs are OpenAI's, Anthropic's messages, and the routes that vLLM, SGLang and llama.cpp share: rerank and tokenize.
Bodies are forwarded unchanged, except for the name of the model where an alias or a fallback replaces it; only the
fields for routing are read. The **size** of a request, in tokens, is the number of letters in its prompt divided by
four, plus the maximum tokens of the answer (`max_tokens` times `n`; `USUAL_TOKENS` if it is not set, none where the
route generates nothing). It is an estimate: it only has to grow with the work.

The prompt is also cut into blocks of `BLOCK` bytes, as it is written in the request: a conversation that goes on begins
with the same bytes as before. Prompts of other models, tools or cache salts have other blocks.
"""

import re
from collections.abc import Callable, Mapping
from typing import Any, Literal, NamedTuple, TypeVar

import msgspec

from poise.decoding import json_decoder
from poise.units import MILLISECOND, SECOND, is_plain
from poise_serve.kernel.quarantine import digest
from poise_serve.model.prefixes import blocks_of
from poise_serve.model.routing import Prompt

CHAT, COMPLETIONS, EMBEDDINGS, MODELS = "/v1/chat/completions", "/v1/completions", "/v1/embeddings", "/v1/models"
RESPONSES, MESSAGES, COUNT = "/v1/responses", "/v1/messages", "/v1/messages/count_tokens"
RERANK, RERANK_TOO, TOKENIZE, DETOKENIZE = "/v1/rerank", "/rerank", "/tokenize", "/detokenize"

NOT_AGAIN = ("x-should-retry", "false")
"""Header that stops OpenAI's clients from retrying a failed request."""

SOME_HAVE = (RESPONSES, MESSAGES, COUNT, RERANK, RERANK_TOO, TOKENIZE, DETOKENIZE)
"""Routes that many servers do not have. The front learns which have them."""

ASKED = (CHAT, COMPLETIONS, EMBEDDINGS, *SOME_HAVE)

FREE = frozenset({COUNT, TOKENIZE, DETOKENIZE})
"""Routes that only count or convert tokens: no model runs, so no usage is counted."""

GENERATING = frozenset({CHAT, COMPLETIONS, RESPONSES, MESSAGES})

UNNAMED = frozenset({RERANK, RERANK_TOO, TOKENIZE, DETOKENIZE})
"""Routes whose requests need not name a model, if there is only one."""

LETTERS_PER_TOKEN = 4
"""For English text and current tokenizers."""

USUAL_TOKENS = 256
"""Assumed answer length without a limit: the order of the mean in public traces of conversations."""

BLOCK = 256
"""Bytes of a block. Servers keep blocks of 16 to 256 tokens, which are 64 to 1,024 letters."""

MOST_BLOCKS = 4096
"""Blocks of a prompt that are told apart; what follows counts as new."""

LONGEST_KEY = 256

MOST_INPUTS = 2048
"""Maximum inputs (texts or token lists) of an embeddings request; OpenAI has the same limit."""

DEADLINES = {
    "x-request-timeout-seconds": SECOND,  # Ray Serve
    "x-envoy-upstream-rq-timeout-ms": MILLISECOND,  # Envoy
}
"""Headers with the client's timeout for the whole answer, and their units."""

MOST_SECONDS = 2**31
"""Upper limit of these headers' values, in their units."""

PATIENCE = "x-stainless-read-timeout"
"""OpenAI's client disconnects after this many seconds without a byte. Used as the timeout for the first byte."""

PASSED_ON = {b"x-request-timeout-seconds": SECOND, b"x-envoy-expected-rq-timeout-ms": MILLISECOND}
"""Headers that tell an upstream the remaining time, and their units."""

END_OF_EVENT = (b"\n\n", b"\r\n\r\n")


class Body(msgspec.Struct):
    """The fields read from a request. Fields used only for estimates accept any value: the upstream validates them."""

    model: str
    stream: bool | None = None
    max_tokens: Any = None
    max_completion_tokens: Any = None
    max_output_tokens: Any = None
    n: Any = None
    messages: msgspec.Raw = msgspec.Raw(b"")
    prompt: msgspec.Raw = msgspec.Raw(b"")
    input: msgspec.Raw = msgspec.Raw(b"")
    instructions: msgspec.Raw = msgspec.Raw(b"")
    system: msgspec.Raw = msgspec.Raw(b"")
    query: msgspec.Raw = msgspec.Raw(b"")
    documents: msgspec.Raw = msgspec.Raw(b"")
    content: msgspec.Raw = msgspec.Raw(b"")
    tokens: msgspec.Raw = msgspec.Raw(b"")
    tools: msgspec.Raw = msgspec.Raw(b"")
    cache_salt: msgspec.Raw = msgspec.Raw(b"")
    prompt_cache_key: Any = None
    user: Any = None
    background: Any = None
    conversation: Any = None

    def prompts(self) -> list[bytes]:
        """Return all that the model reads, as JSON."""
        return [
            bytes(one)
            for one in (
                *(self.messages, self.prompt, self.input),
                *(self.instructions, self.system, self.query, self.documents, self.content, self.tokens),
            )
        ]


class UnnamedBody(Body):
    """A request that need not name its model."""

    model: str = ""


class EmbeddingBody(msgspec.Struct):
    """The fields read from an embeddings request to a Poise service."""

    input: str | list[str | int | list[int]]
    encoding_format: Literal["float", "base64"] | None = None
    dimensions: int | None = None


class Inputs(NamedTuple):
    """Inputs to embed, each as JSON, and whether to return the embeddings in base64."""

    questions: list[bytes]
    in_base64: bool


class Question(NamedTuple):
    """A request: its model, whether it streams, its estimated size in tokens, its `key` (requests with the same key
    should go to the same upstream, for its prompt cache), its prompt (None if nothing is generated), its route, and
    whether the upstream keeps something of it, so that a repetition would be seen.
    """

    model: str
    stream: bool
    size: float
    key: str
    prompt: Prompt | None = None
    path: str = ""
    is_kept: bool = False


class Refused(Exception):
    """The request is refused with an error in OpenAI's form. `reason` is its label in metrics."""

    def __init__(
        self,
        status: int,
        message: str,
        *,
        code: str,
        reason: str = "invalid",
        param: str | None = None,
        retry_after: int = 0,
        allow: str = "",
        final: bool = False,
    ) -> None:
        """`final`: tell clients not to retry."""
        super().__init__(message)
        self.status = status
        self.code = code
        self.reason = reason
        self.param = param
        self.retry_after = retry_after
        self.allow = allow
        self.final = final

    def body(self, path: str = "") -> bytes:
        """Encode the error in the form of this route."""
        return error_body(self.status, str(self), self.code, self.param, path)

    def headers(self) -> list[tuple[bytes, bytes]]:
        made = [(b"content-type", b"application/json")]
        if self.retry_after:
            made.append((b"retry-after", str(self.retry_after).encode()))
        if self.allow:
            made.append((b"allow", self.allow.encode()))
        if self.final:
            made.append((NOT_AGAIN[0].encode(), NOT_AGAIN[1].encode()))
        return made


_TYPES = {429: "rate_limit_error", 404: "invalid_request_error"}
_decode = json_decoder(Body).decode
_decode_unnamed = json_decoder(UnnamedBody).decode
_decode_fields = json_decoder(dict[str, msgspec.Raw]).decode
_decode_inputs = json_decoder(EmbeddingBody).decode


def read_question(path: str, body: bytes) -> Question:
    """Read a request for routing. Raises `Refused` for a body that no upstream could read."""
    asked = _asked(path, body)
    if not asked.model and path not in UNNAMED:
        raise Refused(400, "`model` is empty; GET /v1/models lists what there is", code="invalid_body", param="model")
    prompt = _prompt(asked) if path in GENERATING else None
    size = _letters(asked) / LETTERS_PER_TOKEN if prompt is None else prompt.tokens + prompt.writes
    is_kept = path == RESPONSES and bool(asked.background or asked.conversation)
    return Question(asked.model, bool(asked.stream), max(1.0, size), _key(asked), prompt, path, is_kept)


def naming(body: bytes, model: str) -> bytes:
    """Return a valid request with another model; its other fields stay as they are."""
    fields = _decode_fields(body)
    fields["model"] = msgspec.Raw(msgspec.json.encode(model))
    return msgspec.json.encode(fields)


def read_inputs(body: bytes) -> Inputs:
    """Read an embeddings request. Raises `Refused`."""
    asked = _read(_decode_inputs, EMBEDDINGS, body)
    if asked.dimensions is not None:
        message = "Embeddings are as long as this model makes them; leave `dimensions` out"
        raise Refused(400, message, code="invalid_body", param="dimensions")
    given = asked.input
    one_of_tokens = isinstance(given, list) and bool(given) and all(isinstance(one, int) for one in given)
    inputs = [given] if isinstance(given, str) or one_of_tokens else given
    if not 1 <= len(inputs) <= MOST_INPUTS:
        message = f"A request has 1 to {MOST_INPUTS} inputs, and this one has {len(inputs)}"
        raise Refused(400, message, code="invalid_body", param="input")
    if any(isinstance(one, int) for one in inputs) or len({isinstance(one, str) for one in inputs}) > 1:
        message = "Inputs are a text, or tokens; or a list of texts, or a list of lists of tokens"
        raise Refused(400, message, code="invalid_body", param="input")
    if not all(inputs):
        raise Refused(400, "An input is empty", code="invalid_body", param="input")
    return Inputs([msgspec.json.encode(one) for one in inputs], asked.encoding_format == "base64")


def prompt_key(path: str, body: bytes) -> bytes:
    """Hash the model and the prompt of a request, without its other fields. The body must be valid."""
    asked = _asked(path, body)
    return digest(asked.model.encode(), *asked.prompts())


def _asked(path: str, body: bytes) -> Body:
    return _read(_decode_unnamed, path, body) if path in UNNAMED else _read(_decode, path, body)


T = TypeVar("T")


def _read(decode: Callable[[bytes], T], path: str, body: bytes) -> T:
    try:
        return decode(body)
    except msgspec.ValidationError as error:
        field = str(error).partition(" - at `$.")[2].rstrip("`")
        message = f"The body is not a request: {error}. A request is an object such as {_EXAMPLES[path]}"
        raise Refused(400, message, code="invalid_body", param=field or None) from None
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        message = f"The body is not JSON: {error}. A request is an object such as {_EXAMPLES[path]}"
        raise Refused(400, message, code="invalid_json") from None
    except RecursionError:
        raise Refused(400, "The body is JSON that is nested too deep", code="invalid_json") from None


_EXAMPLES = {
    CHAT: '{"model": "NAME", "messages": [{"role": "user", "content": "Hello"}]}',
    COMPLETIONS: '{"model": "NAME", "prompt": "Hello"}',
    EMBEDDINGS: '{"model": "NAME", "input": "Hello"}',
    RESPONSES: '{"model": "NAME", "input": "Hello"}',
    MESSAGES: '{"model": "NAME", "max_tokens": 100, "messages": [{"role": "user", "content": "Hello"}]}',
    COUNT: '{"model": "NAME", "messages": [{"role": "user", "content": "Hello"}]}',
    RERANK: '{"model": "NAME", "query": "Hello", "documents": ["Hi", "Bye"]}',
    RERANK_TOO: '{"model": "NAME", "query": "Hello", "documents": ["Hi", "Bye"]}',
    TOKENIZE: '{"model": "NAME", "prompt": "Hello"}',
    DETOKENIZE: '{"model": "NAME", "tokens": [1, 2]}',
}


def _letters(asked: Body) -> int:
    return sum(map(len, asked.prompts()))


def _prompt(asked: Body) -> Prompt:
    limits = (asked.max_completion_tokens, asked.max_tokens, asked.max_output_tokens)
    said = next((most for most in limits if _is_count(most)), USUAL_TOKENS)
    answers = asked.n if _is_count(asked.n) else 1
    text = bytes(asked.system) + bytes(asked.instructions)  # what servers put first
    text += bytes(asked.messages) or bytes(asked.prompt) or bytes(asked.input)
    before = (asked.tools, asked.cache_salt)
    seed = b"\0".join((asked.model.encode("utf-8", "surrogatepass"), *map(bytes, before)))
    return Prompt(
        tokens=_letters(asked) / LETTERS_PER_TOKEN,
        writes=float(said * answers),
        blocks=blocks_of(text, BLOCK, MOST_BLOCKS, seed),
        block=BLOCK / LETTERS_PER_TOKEN,
        streams=bool(asked.stream),
    )


def _is_count(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 0 < value < 2**31


def _key(asked: Body) -> str:
    for said in (asked.prompt_cache_key, asked.user):
        if isinstance(said, str) and said:
            return said[:LONGEST_KEY]
    return ""


LANE = "x-poise-lane"


def read_deadlines(headers: Mapping[str, str]) -> tuple[int, int]:
    """Return the client's timeouts for the whole answer and for its first byte, in nanoseconds; 0 if not set."""
    whole = [_time(name, headers[name], scale) for name, scale in DEADLINES.items() if name in headers]
    first = _time(PATIENCE, headers[PATIENCE], SECOND) if PATIENCE in headers else 0
    return min(whole, default=0), first


def read_lane(headers: Mapping[str, str]) -> bool:
    """Whether the request is for the deferred lane. Raises `Refused`."""
    lane = headers.get(LANE)
    if lane not in (None, "deferred"):
        message = f"The header {LANE} is `deferred`, or is not there: `{lane[:40]}`"
        raise Refused(400, message, code="invalid_header", param=LANE)
    return lane is not None


def _time(name: str, said: str, scale: int) -> int:
    try:
        value = float(said)
    except ValueError:
        value = -1.0
    if not (0 < value < MOST_SECONDS and is_plain(said)):
        unit = "seconds" if scale == SECOND else "milliseconds"
        message = f"The header {name} is not a number of {unit} above 0: `{said[:40]}`"
        raise Refused(400, message, code="invalid_header", param=name)
    return max(1, round(value * scale))


def left(nanoseconds: int) -> list[tuple[bytes, bytes]]:
    """Make the headers that tell an upstream the remaining time."""
    return [(name, (b"%.3f" % (nanoseconds / scale)).rstrip(b"0").rstrip(b".")) for name, scale in PASSED_ON.items()]


class FrontProblem(msgspec.Struct, frozen=True):
    """An error in OpenAI's form. `param`: the invalid field, if any."""

    message: str
    type: str
    param: str | None
    code: str


class FrontErrorBody(msgspec.Struct, frozen=True):
    """The body of every error of these routes that is the front's own."""

    error: FrontProblem


class MessageProblem(msgspec.Struct, frozen=True):
    """An error in Anthropic's form."""

    type: str
    message: str


class MessageErrorBody(msgspec.Struct, frozen=True):
    """The body of an error below /v1/messages."""

    error: MessageProblem
    type: str = "error"


_MESSAGE_TYPES = {
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    413: "request_too_large",
    429: "rate_limit_error",
    503: "overloaded_error",
    504: "timeout_error",
}


def is_api(path: str) -> bool:
    """Whether a path is one of these APIs'."""
    return path.startswith("/v1/") or path in ASKED


def is_of_messages(path: str) -> bool:
    return path in (MESSAGES, COUNT)


def error_body(status: int, message: str, code: str, param: str | None = None, path: str = "") -> bytes:
    """Encode an error, in the form that clients of this route expect."""
    if is_of_messages(path):
        kind = _MESSAGE_TYPES.get(status, "invalid_request_error" if status < 500 else "api_error")
        return msgspec.json.encode(MessageErrorBody(MessageProblem(kind, message)))
    kind = _TYPES.get(status, "invalid_request_error" if status < 500 else "server_error")
    return msgspec.json.encode(FrontErrorBody(FrontProblem(message, kind, param, code)))


USAGE_WITHIN = 4096
"""Bytes at the end of an answer that are searched for its usage."""

_TOKENS = {
    "prompt": rb"(?:prompt|input)",
    "completion": rb"(?:completion|output)",
    "cached": rb"cached",
    "read": rb"cache_read_input",
    "created": rb"cache_creation_input",
}
_TOLD = {kind: re.compile(rb'"%b_tokens"\s*:\s*([0-9]{1,12})' % name) for kind, name in _TOKENS.items()}


def told_tokens(end: bytes, kind: Literal["prompt", "completion", "cached", "read", "created"]) -> int | None:
    """Return the number of tokens in the usage at the end of an answer; None if it is not told."""
    found = _TOLD[kind].findall(end)
    return int(found[-1]) if found else None


def told_prompt(text: bytes) -> int | None:
    """Return the tokens of the prompt in a usage, with those that were cached; None if they are not told. Anthropic's
    usage counts these apart.
    """
    told = told_tokens(text, "prompt")
    if told is None:
        return None
    return told + (told_tokens(text, "read") or 0) + (told_tokens(text, "created") or 0)


def cached_share(end: bytes) -> float | None:
    """Return the part of the prompt, from 0 to 1, that the server kept from earlier ones; None if it does not tell."""
    if b'"cached_tokens"' not in end and b'"cache_read_input_tokens"' not in end:
        return None
    cached, prompt = told_tokens(end, "cached"), told_prompt(end)
    if cached is None:
        cached = told_tokens(end, "read")  # Anthropic's
    return min(1.0, cached / prompt) if cached is not None and prompt else None


def error_event(message: str, code: str, path: str) -> bytes:
    """Make the last event of an interrupted stream, which clients of this route raise. No `[DONE]` follows."""
    named = b"event: error\n" if is_of_messages(path) else b""
    return named + b"data: " + error_body(502, message, code, path=path) + b"\n\n"


def only_embeddings(model: str) -> Refused:
    message = f"The model `{model}` makes embeddings, and nothing else: ask {EMBEDDINGS}"
    return Refused(404, message, code="model_not_found", reason="unknown_model", param="model")


def no_such_route(path: str, model: str, lacking: list[str], having: list[tuple[str, str]]) -> Refused:
    """Refuse a request whose model is on servers that do not have its route. `having`: upstreams with the route, each
    with a model.
    """
    others = ", ".join(f"`{name}` has it for the model `{other}`" for name, other in having[:5])
    message = f"No upstream of `{model[:80]}` has {path}: {', '.join(lacking[:10])} said so"
    what = others or "No other upstream is known to have it"
    return Refused(404, f"{message}. {what}", code="route_not_found", reason="unknown_route")


def unnamed_model(known: list[str]) -> Refused:
    shown = ", ".join(f"`{name}`" for name in known[:20]) or "none yet"
    return Refused(400, f"Name the model: there are {shown}", code="invalid_body", param="model")


def unknown_model(model: str, known: list[str]) -> Refused:
    shown = ", ".join(f"`{name}`" for name in known[:20]) + (f" and {len(known) - 20} more" if len(known) > 20 else "")
    what = f"There are {shown}" if known else "No upstream has told its models yet"
    message = f"The model `{model[:80]}` does not exist here. {what}"
    return Refused(404, message, code="model_not_found", reason="unknown_model", param="model")
