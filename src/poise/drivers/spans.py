"""Between the exporter of traces and the other processes of its home: how far it has come, and spans of requests.

Nothing here imports what the exporter needs to send them.
"""

import contextlib
import socket
from collections.abc import Sequence
from pathlib import Path

import msgspec

from poise.config import Home
from poise.decoding import json_decoder
from poise.drivers import sockets
from poise.drivers.whole import write_whole
from poise.model.traces import Exported, Span

MOST_DATAGRAM = 64 * 1024
"""Bytes of one datagram with spans."""


def read_exported(home: Home) -> Exported | None:
    """How far the exporter has come; None where there never was one."""
    try:
        return json_decoder(Exported).decode(_state(home).read_bytes())
    except (FileNotFoundError, msgspec.MsgspecError):
        return None


def write_exported(home: Home, known: Exported) -> None:
    home.traces.mkdir(mode=0o700, exist_ok=True)
    write_whole(_state(home), msgspec.json.encode(known), 0o600)


def settle_traces(home: Home, revision: int, *, traced: bool) -> None:
    """A control plane begins at this revision: traces are exported from here on, or from where they have been before;
    or they are not, and the exporter that comes later has nothing to catch up. A full disk costs all traces.
    """
    with contextlib.suppress(OSError):
        if not traced:
            _state(home).unlink(missing_ok=True)
        elif read_exported(home) is None:
            write_exported(home, Exported(revision=revision))


def _state(home: Home) -> Path:
    return home.traces / "state.json"


class Telling:
    """How a gateway passes on spans of requests: in datagrams. It waits for nobody; spans without room are lost."""

    def __init__(self, home: Home) -> None:
        self._path = home.traces / "socket"
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_NONBLOCK)

    def tell(self, spans: Sequence[Span]) -> None:
        """In as many datagrams as it takes."""
        data = msgspec.msgpack.encode(spans)
        if len(data) > MOST_DATAGRAM and len(spans) > 1:
            middle = len(spans) // 2
            self.tell(spans[:middle])
            self.tell(spans[middle:])
            return
        with contextlib.suppress(OSError):
            sockets.send(self._socket, data, self._path)
