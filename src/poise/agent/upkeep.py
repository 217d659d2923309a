"""The overhead of an agent: bytes that it sends, and CPU time."""

import asyncio
import time
from typing import Any, cast

from websockets.asyncio.client import ClientConnection

from poise.model.load import Upkeep


class _Counted:
    """A transport that counts the bytes written: frames as sent, after compression and before TLS."""

    def __init__(self, transport: asyncio.Transport, toll: "Toll") -> None:
        self._transport = transport
        self._toll = toll

    def write(self, data: bytes) -> None:
        self._toll.sent += len(data)
        self._transport.write(data)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._transport, name)


class Toll:
    """Counts the traffic of all connections of its class `connection`."""

    def __init__(self) -> None:
        toll = self

        class Connection(ClientConnection):
            def connection_made(self, transport: asyncio.BaseTransport) -> None:
                super().connection_made(cast(asyncio.Transport, _Counted(cast(asyncio.Transport, transport), toll)))

        self.connection: type[ClientConnection] = Connection
        self.sent = 0
        self._last = (time.monotonic(), 0, time.process_time())

    def take(self) -> Upkeep:
        """Return the overhead since the last call."""
        before, self._last = self._last, (time.monotonic(), self.sent, time.process_time())
        seconds, sent, used = (new - old for new, old in zip(self._last, before, strict=True))
        return Upkeep(sent=round(sent / seconds), cpu=round(1e6 * used / seconds)) if seconds > 0 else Upkeep()
