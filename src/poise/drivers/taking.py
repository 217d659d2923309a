"""Whoever asks for something takes it, or is hung up on: what waits for it holds memory, a descriptor and a task."""

import asyncio

SECONDS = 30.0
LEAST = 32 * 1024
"""Bytes that have to be taken within so long, while there is more to be sent."""


class Taking(asyncio.Protocol):
    """In front of a protocol of uvicorn's: watches its connection while more waits to be sent than it has room for."""

    loop: asyncio.AbstractEventLoop
    transport: asyncio.Transport
    _stuck: asyncio.TimerHandle | None = None

    def pause_writing(self) -> None:
        super().pause_writing()
        self._watch()

    def resume_writing(self) -> None:
        self._relax()
        super().resume_writing()

    def connection_lost(self, exc: Exception | None) -> None:
        self._relax()
        super().connection_lost(exc)

    def _watch(self) -> None:
        self._stuck = self.loop.call_later(SECONDS, self._look, self.transport.get_write_buffer_size())

    def _relax(self) -> None:
        if self._stuck is not None:
            self._stuck.cancel()
            self._stuck = None

    def _look(self, before: int) -> None:
        if before - self.transport.get_write_buffer_size() < LEAST:
            self.transport.abort()
        else:
            self._watch()
