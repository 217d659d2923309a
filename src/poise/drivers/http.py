"""An HTTP/1.1 client over an existing connection: one request after another, each with its answer.

`http.client` does the same, but takes a fifth of a command's start time: it imports a mail parser and TLS
(docs/decisions/036-a-client-that-reads-http.md).
"""

import contextlib
import socket
from collections.abc import Iterator, Mapping
from typing import BinaryIO

MAX_LINE, MAX_HEADERS, MAX_DIGITS = 64 * 1024, 100, 16
"""Maximum bytes of a header line, number of headers, and digits of a length."""

NOT_HTTP = "the answer is not HTTP/1.1"
ENDED = "the connection has ended"

CONTINUE, NO_CONTENT, NOT_MODIFIED = 100, 204, 304


class Answer:
    """A status, headers by lower-case name, and content, which is read once: whole or by lines. Raises ConnectionError
    if it ends too early or is not HTTP, and the connection's own errors.
    """

    def __init__(self, stream: BinaryIO) -> None:
        self._stream = stream
        self.status = CONTINUE
        while self.status == CONTINUE:
            version, self.status = self._status()
            self.headers = dict(self._headers())
        self._chunked = self.headers.get("transfer-encoding", "").lower() == "chunked"
        length = "0" if self.status in (NO_CONTENT, NOT_MODIFIED) else self.headers.get("content-length")
        self._length = -1 if length is None else _number(length.encode(), 10)
        ends = not self._chunked and self._length < 0
        self.is_last = ends or version != b"HTTP/1.1" or self.headers.get("connection", "").lower() == "close"
        """Whether the connection ends with this answer."""

    def read(self) -> bytes:
        """Return the whole content."""
        return b"".join(self._pieces())

    def __iter__(self) -> Iterator[bytes]:
        """Yield lines with their line ends, each as soon as it is complete."""
        begun = b""
        for piece in self._pieces():
            *lines, begun = (begun + piece).split(b"\n")
            for line in lines:
                yield line + b"\n"
        if begun:
            yield begun

    def _pieces(self) -> Iterator[bytes]:
        if self._chunked:
            while size := _number(self._line().partition(b";")[0], 16):
                yield self._exactly(size)
                self._line()
            for _ in self._headers():
                pass
        elif self._length >= 0:
            yield self._exactly(self._length)
        else:
            while piece := self._stream.read(MAX_LINE):
                yield piece

    def _status(self) -> tuple[bytes, int]:
        version, _, rest = self._line().partition(b" ")
        if not version.startswith(b"HTTP/1."):
            raise ConnectionError(NOT_HTTP)
        return version, _number(rest[:3], 10)

    def _headers(self) -> Iterator[tuple[str, str]]:
        for _ in range(MAX_HEADERS):
            line = self._line()
            if not line:
                return
            name, _, value = line.decode("latin-1").partition(":")
            yield name.strip().lower(), value.strip()
        raise ConnectionError(NOT_HTTP)

    def _line(self) -> bytes:
        line = self._stream.readline(MAX_LINE)
        if not line.endswith(b"\n"):
            raise ConnectionError(ENDED if len(line) < MAX_LINE else NOT_HTTP)
        return line.rstrip(b"\r\n")

    def _exactly(self, size: int) -> bytes:
        data = self._stream.read(size)
        if len(data) < size:
            raise ConnectionError(ENDED)
        return data


def _number(text: bytes, base: int) -> int:
    digits = text.strip()
    if digits.isalnum() and len(digits) <= MAX_DIGITS:
        with contextlib.suppress(ValueError):
            return int(digits, base)
    raise ConnectionError(NOT_HTTP)


class Connection:
    """Sends requests over one socket, which it closes. Read an answer's content before the next request."""

    def __init__(self, sock: socket.socket) -> None:
        self.sock = sock
        self._stream = sock.makefile("rb")

    def ask(self, method: str, path: str, headers: Mapping[str, str], content: bytes | None = None) -> Answer:
        """Send a request for a path that is already quoted. Raises OSError, and ValueError for invalid headers."""
        given = {"Host": "poise"} | dict(headers)
        if content is not None or method != "GET":
            given["Content-Length"] = str(len(content or b""))
        lines = [f"{method} {path} HTTP/1.1", *(f"{name}: {value}" for name, value in given.items())]
        if not all(map(str.isprintable, lines)):
            raise ValueError("a header has characters that cannot be sent")
        self.sock.sendall("\r\n".join([*lines, "", ""]).encode("latin-1") + (content or b""))
        return Answer(self._stream)

    def __enter__(self) -> "Connection":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        self._stream.close()
        self.sock.close()
