"""Whoever asks for something takes it, or is hung up on: what waits for it holds memory, a descriptor and a task."""

import asyncio

SECONDS = 30.0
LEAST = 32 * 1024
"""Bytes that have to be taken within so long, while there is more to be sent."""


class Taking:
    """Watches one connection, from when more waits to be sent than it has room for."""

    def __init__(self, loop: asyncio.AbstractEventLoop, transport: asyncio.Transport) -> None:
        self._loop = loop
        self._transport = transport
        self._timer: asyncio.TimerHandle | None = None

    def paused(self) -> None:
        self._watch()

    def resumed(self) -> None:
        """There is room again, or nobody any more."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _watch(self) -> None:
        self._timer = self._loop.call_later(SECONDS, self._look, self._transport.get_write_buffer_size())

    def _look(self, before: int) -> None:
        if before - self._transport.get_write_buffer_size() < LEAST:
            self._transport.abort()
        else:
            self._watch()
