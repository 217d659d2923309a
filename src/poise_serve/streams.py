"""Answers that are passed on while a model still makes them."""

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Callable
from typing import Protocol

from poise_serve.asgi import GONE, Scope, Send, abort
from poise_serve.refusals import problem
from poise_serve.wire import EVENTS, Answer

MOST_HELD = 8 << 20
"""Bytes of an answer that are held while its client does not read. More ends the answer."""


class Cut(Exception):
    """The answer ends before it is complete."""


class Stream:
    """The parts of one answer, from a replica to a client. `slot`: the replica that makes it; `abandon`: called once if
    nobody reads it to its end.
    """

    def __init__(self, slot: str, abandon: Callable[[], None]) -> None:
        self.slot = slot
        self._abandon = abandon
        self._parts: deque[bytes] = deque()
        self._held = 0
        self._is_over = False
        self._why = ""
        self._news = asyncio.Event()

    def put(self, part: bytes) -> None:
        if self._is_over:
            return
        self._parts.append(part)
        self._held += len(part)
        self._news.set()
        if self._held > MOST_HELD:
            self._parts.clear()
            self.end("its client does not read")
            self._abandon()

    def end(self, why: str = "") -> None:
        """End the answer; `why` says what it lacks, if anything."""
        if not self._is_over:
            self._is_over, self._why = True, why
            self._news.set()

    def leave(self) -> None:
        """The client has gone."""
        if not self._is_over:
            self.end("its client has gone")
            self._abandon()

    async def parts(self) -> AsyncIterator[bytes]:
        """Yield the parts as they come, those that are there together. Raises `Cut` if the answer is not complete."""
        while True:
            while not self._parts and not self._is_over:
                self._news.clear()
                await self._news.wait()
            if self._parts:
                made = b"".join(self._parts)
                self._parts.clear()
                self._held = 0
                yield made
            elif self._why:
                raise Cut(self._why)
            else:
                return


class Parts(Protocol):
    """The parts of an answer, as `Stream` has them."""

    def parts(self) -> AsyncIterator[bytes]:
        """Yield the parts as they come. Raises `Cut` if the answer is not complete."""

    def leave(self) -> None:
        """Make no more of it: the client has gone."""


async def pass_on(scope: Scope, send: Send, kind: str, stream: Parts) -> None:
    """Send an answer as its parts come. An incomplete one ends with an error event, or with a closed connection."""
    scope["extensions"][GONE]["then"](stream.leave)
    await send({"type": "http.response.start", "status": 200, "headers": [(b"content-type", kind.encode())]})
    try:
        async for part in stream.parts():
            await send({"type": "http.response.body", "body": part, "more_body": True})
        await send({"type": "http.response.body", "body": b""})
    except Cut as cut:
        if kind != EVENTS:
            await abort(scope)
            return
        event = b"event: error\ndata: %b\n\n" % problem(scope["path"], 500, str(cut))
        await send({"type": "http.response.body", "body": event})
    finally:
        stream.leave()


class Streamed(Answer, frozen=True):
    """An answer that comes in parts."""

    stream: Stream


__all__ = ["Cut", "Parts", "Stream", "Streamed", "pass_on"]
