"""Disconnects clients that do not read their answer, because a waiting answer holds memory, a descriptor and a task."""

import asyncio

SECONDS = 30.0
LEAST = 32 * 1024
"""Minimum bytes that a client must read within `SECONDS` while more data waits."""


class Taking(asyncio.Protocol):
    """A mixin for uvicorn's protocols: it watches a connection while its write buffer is full."""

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
