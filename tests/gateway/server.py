"""A server that speaks OpenAI's API as far as the front's tests need, and does what it is told to: real HTTP, real
streams of events, token by token. It holds no model: the words it answers with are counted. What answers with a model
is `llama.py` beside it.

As a program it is one that can be killed: `python -m gateway.server NAME SECONDS [PORT]` prints its address.
"""

import asyncio
import contextlib
import json
import socket
import ssl
import sys
import threading
import time
from collections.abc import Callable, Iterator, MutableMapping
from typing import Any

import uvloop

from poise_serve.http import Server

SOON = 30.0


class Serving:
    """An application on a port of the loopback, by default a free one, behind the gateway's own HTTP server, in a
    thread with a loop of its own. `seconds`: between two looks at its connections. `during` is entered before it
    serves.
    """

    def __init__(
        self,
        app: Any,
        seconds: float = 30.0,
        during: Callable[[], contextlib.AbstractAsyncContextManager[None]] = contextlib.nullcontext,
        tls: ssl.SSLContext | None = None,
        port: int = 0,
    ) -> None:
        self._app = app
        self._during = during
        self._tls = tls
        self._seconds = seconds
        self._ready = threading.Event()
        self._listening = socket.create_server(("127.0.0.1", port), backlog=512)
        self._thread = threading.Thread(target=lambda: uvloop.run(self._serve()), daemon=True)

    async def _serve(self) -> None:
        self._loop, self._over = asyncio.get_running_loop(), asyncio.Event()
        async with self._during():
            self.server = Server(self._app, self._tls)
            await self.server.start(self._listening)
            looking = asyncio.create_task(self._look())
            self._ready.set()
            await self._over.wait()
            looking.cancel()
        await self.server.stop()

    async def _look(self) -> None:
        while True:
            await asyncio.sleep(self._seconds)
            for one in self.server.clients:
                one.look()

    @property
    def port(self) -> int:
        return int(self._listening.getsockname()[1])

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def __enter__(self) -> "Serving":
        self._thread.start()
        assert self._ready.wait(10)
        return self

    def __exit__(self, *_: object) -> None:
        self.tell()
        self._thread.join(10)
        assert not self._thread.is_alive()

    def tell(self) -> None:
        """To stop; leaving waits until it has."""
        with contextlib.suppress(RuntimeError):  # it has
            self._loop.call_soon_threadsafe(self._over.set)


class Model:
    """The application. Its fields are set while it runs:

    `wait`: seconds before an answer begins, as many times as long as it has more requests than `slots`, if it has any;
    `pause`: between two words of a stream. `status`: answers with this error, and `retry_after`. `cut_after`: a stream
    ends without its end after so many words; `in_event`: within an event. `dies_of`: a prompt at which it breaks the
    connection off, as a server that dies. `lacks`: routes that it has not. `events`: those that it answers with on a
    route. `go`: cleared, it answers nothing until it is set. `well`: whether probes are answered well. It keeps the
    `asked` bodies with
    their `headers`, and counts those that were `gone` before their answer was complete.
    """

    def __init__(self, name: str, *models: str) -> None:
        self.name = name
        self.models = models or ("m",)
        self.wait = self.pause = 0.0
        self.slots = 0
        self.words = 8
        self.status = 200
        self.retry_after = ""
        self.cut_after = 0
        self.in_event = False
        self.dies_of = ""
        self.lacks: set[str] = set()
        self.events: dict[str, list[str]] = {}
        self.go = threading.Event()
        self.go.set()
        self.well = True
        self.padding = ""
        self.asked: list[dict[str, Any]] = []
        self.headers: list[dict[str, str]] = []
        self.running = self.gone = 0

    async def __call__(self, scope: MutableMapping[str, Any], receive: Any, send: Any) -> None:
        if scope["method"] == "GET":
            models = [{"id": one, "object": "model", "created": 1, "owned_by": self.name} for one in self.models]
            await self._whole(send, 200 if self.well else 500, {"object": "list", "data": models})
            return
        body, more = b"", True
        while more:
            message = await receive()
            body += message.get("body", b"")
            more = message.get("more_body", False)
        self.asked.append(json.loads(body))
        self.headers.append({name.decode(): value.decode() for name, value in scope["headers"]})
        self.running += 1
        answering = asyncio.create_task(self._answer(scope, send, self.asked[-1]))
        hung_up = asyncio.create_task(receive())
        try:
            await asyncio.wait({answering, hung_up}, return_when=asyncio.FIRST_COMPLETED)
            if not answering.done():
                self.gone += 1
        finally:
            answering.cancel()
            hung_up.cancel()
            self.running -= 1
            with contextlib.suppress(asyncio.CancelledError):
                await answering

    async def _answer(self, scope: MutableMapping[str, Any], send: Any, asked: dict[str, Any]) -> None:
        if self.dies_of and asked.get("prompt") == self.dies_of:
            scope["extensions"]["poise.abort"]["now"]()
            return
        while not self.go.is_set():  # noqa: ASYNC110 — another thread sets it
            await asyncio.sleep(0.01)
        await asyncio.sleep(self.wait * max(1.0, self.running / self.slots if self.slots else 0.0))
        kind = "chat.completion" if "chat" in scope["path"] else "text_completion"
        common = {"id": "1", "created": 1, "model": asked.get("model"), "system_fingerprint": self.name}
        if self.status != 200:
            error = {"message": f"{self.name} is told to fail", "type": "server_error", "param": None, "code": None}
            await self._whole(send, self.status, {"error": error})
        elif scope["path"] in self.lacks:
            await self._whole(send, 404, {"detail": "Not Found"})
        elif scope["path"] in self.events:
            await self._say(scope, send, self.events[scope["path"]])
        elif scope["path"] in OTHERS:
            await self._whole(send, 200, OTHERS[scope["path"]] | {"model": asked.get("model"), "by": self.name})
        elif scope["path"].endswith("embeddings"):
            data = [{"object": "embedding", "index": 0, "embedding": [0.5, 0.25]}]
            usage = {"prompt_tokens": 1, "total_tokens": 1}
            await self._whole(send, 200, {"object": "list", "data": data, "model": asked["model"], "usage": usage})
        elif asked.get("stream"):
            await self._stream(scope, send, common | {"object": f"{kind}.chunk"})
        else:
            text = " ".join(map(str, range(self.words)))
            choice = _choice(kind, "message", text)
            await self._whole(send, 200, common | {"object": kind, "choices": [choice]})

    async def _stream(self, scope: MutableMapping[str, Any], send: Any, common: dict[str, Any]) -> None:
        headers = [(b"content-type", b"text/event-stream")]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        for word in range(self.words):
            choice = _choice(common["object"], "delta", f"{word} {self.padding}")
            event = f"data: {json.dumps(common | {'choices': [choice]})}\n\n".encode()
            if self.cut_after and word == self.cut_after:
                if self.in_event:
                    await send({"type": "http.response.body", "body": event[:20], "more_body": True})
                    await asyncio.sleep(0.05)
                scope["extensions"]["poise.abort"]["now"]()
                return
            await send({"type": "http.response.body", "body": event, "more_body": True})
            await asyncio.sleep(self.pause)
        await send({"type": "http.response.body", "body": b"data: [DONE]\n\n"})

    async def _say(self, scope: MutableMapping[str, Any], send: Any, events: list[str]) -> None:
        headers = [(b"content-type", b"text/event-stream")]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        for event in events[: self.cut_after or None]:
            await send({"type": "http.response.body", "body": event.encode(), "more_body": True})
        if self.cut_after:
            await asyncio.sleep(0.05)
            scope["extensions"]["poise.abort"]["now"]()
            return
        await send({"type": "http.response.body", "body": b""})

    async def _whole(self, send: Any, status: int, document: Any) -> None:
        body = json.dumps(document).encode()
        headers = [(b"content-type", b"application/json"), (b"content-length", str(len(body)).encode())]
        if self.retry_after:
            headers.append((b"retry-after", self.retry_after.encode()))
        await send({"type": "http.response.start", "status": status, "headers": headers})
        await send({"type": "http.response.body", "body": body})


OTHERS: dict[str, dict[str, Any]] = {
    "/v1/rerank": {"results": [{"index": 0, "relevance_score": 0.5}], "usage": {"prompt_tokens": 7, "total_tokens": 7}},
    "/tokenize": {"tokens": [1, 2, 3], "count": 3},
    "/v1/messages": {
        "id": "m", "type": "message", "role": "assistant", "stop_reason": "end_turn", "stop_sequence": None,
        "content": [{"type": "text", "text": "Hello"}], "usage": {"input_tokens": 11, "output_tokens": 5},
    },
    "/v1/responses": {
        "id": "r", "object": "response", "created_at": 1, "status": "completed", "parallel_tool_calls": False,
        "tool_choice": "auto", "tools": [],
        "output": [{"type": "message", "id": "o", "role": "assistant", "status": "completed",
                    "content": [{"type": "output_text", "text": "Hello", "annotations": []}]}],
        "usage": {"input_tokens": 11, "output_tokens": 5, "total_tokens": 16,
                  "input_tokens_details": {"cached_tokens": 3}, "output_tokens_details": {"reasoning_tokens": 2}},
    },
}  # fmt: skip
"""Whole answers of routes besides OpenAI's first ones."""


def _choice(kind: str, field: str, text: str) -> dict[str, Any]:
    said = {field: {"role": "assistant", "content": text}} if "chat" in kind else {"text": text}
    return {"index": 0, "finish_reason": None if "chunk" in kind else "stop", "logprobs": None} | said


@contextlib.contextmanager
def models(*names: str) -> Iterator[tuple[list[Model], list[str]]]:
    """So many servers, and their addresses."""
    with contextlib.ExitStack() as stack:
        made = [Model(name) for name in names]
        servings = [stack.enter_context(Serving(model)) for model in made]
        yield made, [serving.url for serving in servings]
        for serving in servings:
            serving.tell()


def until(true: Callable[[], bool]) -> None:
    """Waits for what is about to come true."""
    end = time.monotonic() + SOON
    while not true():
        assert time.monotonic() < end
        time.sleep(0.01)


def rest(connection: socket.socket) -> bytes:
    """What comes until the other side closes."""
    came = b""
    with contextlib.suppress(ConnectionResetError):
        while part := connection.recv(2**20):
            came += part
    return came


if __name__ == "__main__":
    slow = Model(sys.argv[1])
    slow.wait = float(sys.argv[2])
    with Serving(slow, port=int(sys.argv[3]) if sys.argv[3:] else 0) as serving:
        sys.stdout.write(f"{serving.url}\n")
        sys.stdout.flush()
        sys.stdin.read()
