"""One picture for many browsers: a limited log of changes, in which each browser has its own position.

A browser that reconnects with the id of its last change resumes there. A browser that is too far behind, because it is
slow, was stopped or was connected to another process, gets the whole picture. So the feed keeps no state for a browser.
"""

import asyncio
import secrets
from collections import deque
from collections.abc import AsyncGenerator
from typing import Any

import msgspec

from poise.dashboard.picture import Delta, apply

KEPT, KEPT_BYTES = 1024, 4 << 20
"""Changes kept for browsers that are behind: maximum number, and maximum bytes."""

ALIVE = 15.0
"""Seconds of silence after which a comment is sent as a heartbeat."""


class Feed:
    """The picture, its latest changes, and an event for the next one. Use it on one event loop."""

    def __init__(self) -> None:
        self._id = secrets.token_hex(4)
        self._number = 0
        self._state: dict[str, dict[str, Any]] = {}
        self._whole = b""
        self._changes: deque[bytes] = deque()
        self._bytes = 0
        self._news = asyncio.Event()
        self._ended = b""

    def publish(self, delta: Delta) -> None:
        """Add a change. All browsers get the same bytes."""
        apply(self._state, delta)
        self._number += 1
        self._whole = b""
        self._changes.append(self._message("change", delta))
        self._bytes += len(self._changes[-1])
        while len(self._changes) > KEPT or self._bytes > KEPT_BYTES:
            self._bytes -= len(self._changes.popleft())
        self._wake()

    def end(self, why: str, text: str) -> None:
        """Delete the picture, and end every stream with this reason."""
        self._state, self._whole = {}, b""
        self._changes.clear()
        self._ended = b"event: end\ndata: %s\n\n" % msgspec.json.encode({"why": why, "text": text})
        self._wake()

    async def stream(self, last: str) -> AsyncGenerator[bytes]:
        """Yield server-sent events after the one with the id `last`, or from the whole picture on."""
        yield b": poise\n\n"
        position = self._position(last)
        while not self._ended:
            news = self._news
            kept_from = self._number - len(self._changes)
            if self._number and position < kept_from:
                position = self._number
                yield self._snapshot()
            elif 0 <= position < self._number:
                missed = [self._changes[at - kept_from] for at in range(position, self._number)]
                position = self._number
                yield b"".join(missed)
            else:
                try:
                    async with asyncio.timeout(ALIVE):  # `wait_for` loses a cancellation that comes with a change
                        await news.wait()
                except TimeoutError:
                    yield b": alive\n\n"
        yield self._ended

    def _position(self, last: str) -> int:
        """Return the number of the last change that a browser has seen; -1 where it needs the whole picture."""
        of, _, number = last.partition(".")
        known = of == self._id and number.isdecimal() and len(number) < 16 and int(number) <= self._number
        return int(number) if known else -1

    def _snapshot(self) -> bytes:
        self._whole = self._whole or self._message("whole", self._state)
        return self._whole

    def _message(self, kind: str, content: Any) -> bytes:
        return b"event: %s\nid: %s.%d\ndata: %s\n\n" % (
            kind.encode(),
            self._id.encode(),
            self._number,
            msgspec.json.encode(content),
        )

    def _wake(self) -> None:
        self._news.set()
        self._news = asyncio.Event()
