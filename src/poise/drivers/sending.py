"""Sends lines while their answers arrive, over successive connections: lines without an answer when a connection is
lost are sent again over the next one.
"""

import contextlib
import io
import select
import socket
import ssl
import threading
import time
from collections import deque
from collections.abc import Iterable
from typing import Any

LAST = b"0\r\n\r\n"
"""The end of a chunked request body."""

MOST = 1000
"""Maximum number of lines without an answer."""

NOT_NOW = (BlockingIOError, ssl.SSLWantReadError, ssl.SSLWantWriteError)


class Sending:
    """Sends `lines` as HTTP chunks, each soon after it is produced, in a thread. A line without an answer for `silence`
    seconds will not get one over that connection.
    """

    def __init__(self, lines: Iterable[bytes], silence: float) -> None:
        self.failure: BaseException | None = None
        """The exception of the producer, after which there are no more lines."""
        self.silence = silence
        self.unanswered: deque[bytes] = deque()
        self.moved = 0.0  # time of the last answer, or of the first line without one
        self._lines = lines
        self._made: deque[bytes] = deque()
        self._ended = self._over = False
        self._room = threading.Semaphore(MOST)
        self._bell, self.rings = socket.socketpair()
        self._maker = threading.Thread(target=self._make, daemon=True)

    @property
    def is_done(self) -> bool:
        """Whether every line was sent and answered."""
        return self._ended and not self._made and not self.unanswered

    def over(self, sock: socket.socket, head: bytes) -> io.BufferedReader:
        """Start using this connection: send `head`, then all lines without an answer, then new ones. Return the reader
        for its answers; reading also sends the rest.
        """
        if not self._maker.ident:
            self._maker.start()
        self.moved = time.monotonic()
        return io.BufferedReader(Duplex(self, sock, head + b"".join(map(_chunk, self.unanswered))))

    def made(self) -> tuple[bytes, bool]:
        """Return chunks of the lines produced since the last call, and whether they are the last ones."""
        ended, chunks = self._ended, []  # read in this order: lines from before the end are present by then
        if self._made and not self.unanswered:
            self.moved = time.monotonic()
        while self._made:
            line = self._made.popleft()
            self.unanswered.append(line)
            chunks.append(_chunk(line))
        return b"".join(chunks), ended

    def answered(self) -> None:
        """Record the answer to the oldest line."""
        self.unanswered.popleft()
        self.moved = time.monotonic()
        self._room.release()

    def close(self) -> None:
        """Stop the production of lines."""
        self._over = True
        self._room.release()
        self._bell.close()
        self.rings.close()

    def _make(self) -> None:
        try:
            for line in self._lines:
                self._room.acquire()
                if self._over:
                    return
                self._made.append(line)
                self._ring()
        except BaseException as error:
            self.failure = error
        self._ended = True
        self._ring()

    def _ring(self) -> None:
        with contextlib.suppress(OSError):  # the listener has left
            self._bell.send(b".")


class Duplex(io.RawIOBase):
    """One connection. Reading from it also sends pending data, so that only one thread uses it, as TLS requires. Raises
    TimeoutError if no answer comes.
    """

    def __init__(self, sending: Sending, sock: socket.socket, begin: bytes) -> None:
        self._sending = sending
        self._sock = sock
        self._out = bytearray(begin)
        self._all = False
        self._poll = select.poll()
        self._poll.register(sending.rings, select.POLLIN)
        sock.setblocking(False)
        sending.rings.setblocking(False)

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any, /) -> int:
        while True:
            sent = self._send()
            with contextlib.suppress(*NOT_NOW):
                return self._sock.recv_into(buffer)
            if not sent:
                self._wait()

    def _send(self) -> bool:
        """Send pending data. Return whether any was sent."""
        if not self._all:
            chunks, self._all = self._sending.made()
            self._out += chunks + (LAST if self._all else b"")
        with contextlib.suppress(*NOT_NOW):
            if self._out:
                del self._out[: self._sock.send(self._out)]
                return True
        return False

    def _wait(self) -> None:
        """Wait until data can be read or sent, or has been produced."""
        self._poll.register(self._sock, select.POLLIN | (select.POLLOUT if self._out else 0))
        left = self._sending.moved + self._sending.silence - time.monotonic() if self._sending.unanswered else None
        if not self._poll.poll(None if left is None else max(0.0, 1000 * left)) and left is not None:
            raise TimeoutError(f"no answer within {self._sending.silence:g} s")
        with contextlib.suppress(BlockingIOError):
            self._sending.rings.recv(4096)


def _chunk(line: bytes) -> bytes:
    return b"%x\r\n%s\r\n" % (len(line), line)


__all__ = ["Sending"]
