"""The HTTP server: uvicorn's, with bounds on what a client may take up before it has asked anything.

A head has so many bytes at most; a request must keep coming, and an answer must be taken, or the connection is
dropped. So neither half-open clients nor those that send or read a byte at a time hold more than a socket, or for long.
"""

import contextlib
import time
from collections.abc import Iterator
from typing import Any, cast

import uvicorn
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

MAX_HEAD = 64 << 10
"""Bytes of the line and the headers of a request."""

SLOW_SECONDS = 5.0
"""Between two looks: a request that is on its way, or an answer, must have moved by so much since the one before."""

MOVED = 4096
"""Bytes."""

MAX_CONNECTIONS = 10_000

TOO_LARGE = b"HTTP/1.1 431 Request Header Fields Too Large\r\nconnection: close\r\ncontent-length: 0\r\n\r\n"


class BoundedProtocol(HttpToolsProtocol):
    """One connection."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._coming = True  # a request is on its way, the first from the beginning
        self._head = 0  # bytes of it before its headers were over
        self._in_head = True
        self._got = 0
        self._got_then = -1
        self._unsent_then = 0

    def data_received(self, data: bytes) -> None:
        self._got += len(data)
        self._head += len(data)
        super().data_received(data)
        if self._in_head and self._head > MAX_HEAD and not self.transport.is_closing():
            self.transport.write(TOO_LARGE)
            self.transport.close()

    def on_message_begin(self) -> None:
        self._coming, self._got_then = True, -1
        super().on_message_begin()

    def on_headers_complete(self) -> None:
        self._in_head = False
        super().on_headers_complete()

    def on_message_complete(self) -> None:
        self._coming, self._in_head, self._head = False, True, 0
        super().on_message_complete()

    def look(self) -> None:
        """Drop it if what it sends or takes has hardly moved since the last look."""
        if self.transport is None or self.transport.is_closing():
            return
        unsent = self.transport.get_write_buffer_size()
        stuck = self._unsent_then > 0 and unsent > max(0, self._unsent_then - MOVED)
        if self._coming:
            stuck = stuck or (self._got_then >= 0 and self._got - self._got_then < MOVED)
            self._got_then = self._got
        self._unsent_then = unsent
        if stuck:
            self.transport.abort()


class Server(uvicorn.Server):
    """Looks at its connections now and then; goes on to its end when it is told to stop, instead of raising the signal
    again.
    """

    def __init__(self, app: Any) -> None:
        super().__init__(
            uvicorn.Config(
                app,
                loop="uvloop",
                http=BoundedProtocol,
                ws="none",
                lifespan="off",
                access_log=False,
                log_config=None,
                server_header=False,
                date_header=False,
                proxy_headers=False,
                limit_concurrency=MAX_CONNECTIONS,
                timeout_keep_alive=75,
                timeout_graceful_shutdown=1,
            )
        )
        self._looked = 0.0

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield

    async def on_tick(self, counter: int) -> bool:
        now = time.monotonic()
        if now - self._looked >= SLOW_SECONDS:
            self._looked = now
            for connection in list(self.server_state.connections):
                cast(BoundedProtocol, connection).look()
        return await super().on_tick(counter)


__all__ = ["Server"]
