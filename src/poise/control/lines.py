"""WebSockets as the control plane takes them: a frame is as large as what is honestly said there, and is refused by its
length, before it has come; and whoever does not take what is sent is hung up on.
"""

from asyncio.transports import BaseTransport

from uvicorn.protocols.websockets.websockets_sansio_impl import WebSocketsSansIOProtocol
from websockets.http11 import Request

from poise.control.taking import Taking
from poise.model.calls import MAX_FRAME
from poise.model.messages import MAX_NODE_FRAME

LARGER = {"/v1/channel": MAX_NODE_FRAME}
"""Bytes of a frame, where it is not `MAX_FRAME`."""


class Lines(WebSocketsSansIOProtocol):
    """One WebSocket."""

    def connection_made(self, transport: BaseTransport) -> None:
        super().connection_made(transport)
        self._taking = Taking(self.loop, self.transport)

    def connection_lost(self, exc: Exception | None) -> None:
        self._taking.resumed()
        super().connection_lost(exc)

    def pause_writing(self) -> None:
        super().pause_writing()
        self._taking.paused()

    def resume_writing(self) -> None:
        self._taking.resumed()
        super().resume_writing()

    def handle_connect(self, event: Request) -> None:
        self.conn.max_message_size = LARGER.get(event.path.partition("?")[0], MAX_FRAME)
        super().handle_connect(event)
