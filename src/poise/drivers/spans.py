"""Shared state of the trace exporter and other processes of its home: its position in the log, and spans of requests.

This module does not import the exporter's dependencies for sending.
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
"""Maximum bytes of one datagram with spans."""


def read_exported(home: Home) -> Exported | None:
    """Return the exporter's position; None if it has never run."""
    try:
        return json_decoder(Exported).decode(_state(home).read_bytes())
    except (FileNotFoundError, msgspec.MsgspecError):
        return None


def write_exported(home: Home, known: Exported) -> None:
    home.traces.mkdir(mode=0o700, exist_ok=True)
    write_whole(_state(home), msgspec.json.encode(known), 0o600)


def settle_traces(home: Home, revision: int, *, traced: bool) -> None:
    """Set the exporter's initial position when a control plane starts at this revision: with `traced`, keep an earlier
    position or begin here; otherwise remove it, so that a later exporter has no backlog. On a full disk no traces are
    exported.
    """
    with contextlib.suppress(OSError):
        if not traced:
            _state(home).unlink(missing_ok=True)
        elif read_exported(home) is None:
            write_exported(home, Exported(revision=revision))


def _state(home: Home) -> Path:
    return home.traces / "state.json"


class Telling:
    """Sends spans of requests from a gateway as datagrams. It never blocks; spans without buffer space are lost."""

    def __init__(self, home: Home) -> None:
        self._path = home.traces / "socket"
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_NONBLOCK)

    def tell(self, spans: Sequence[Span]) -> None:
        """Send spans in as many datagrams as needed."""
        data = msgspec.msgpack.encode(spans)
        if len(data) > MOST_DATAGRAM and len(spans) > 1:
            middle = len(spans) // 2
            self.tell(spans[:middle])
            self.tell(spans[middle:])
            return
        with contextlib.suppress(OSError):
            sockets.send(self._socket, data, self._path)
