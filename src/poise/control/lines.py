"""WebSockets as the control plane takes them: a frame is as large as what is honestly said there, and is refused by its
length, before it has come; and whoever does not take what is sent is hung up on.
"""

from uvicorn.protocols.websockets.websockets_sansio_impl import WebSocketsSansIOProtocol
from websockets.http11 import Request

from poise.drivers.taking import Taking
from poise.model.calls import MAX_FRAME
from poise.model.messages import MAX_NODE_FRAME

LARGER = {"/v1/channel": MAX_NODE_FRAME}
"""Bytes of a frame, where it is not `MAX_FRAME`."""


class Lines(Taking, WebSocketsSansIOProtocol):
    """One WebSocket."""

    def handle_connect(self, event: Request) -> None:
        self.conn.max_message_size = LARGER.get(event.path.partition("?")[0], MAX_FRAME)
        super().handle_connect(event)
