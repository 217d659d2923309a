"""One HTTP request to a server that others have named, and that may be hostile.

The timeout of a socket limits each of its steps only, so a server that sends a byte now and then could hold a thread
for days. Here the connection is cut when the time is over.
"""

import contextlib
import socket
import threading
import time
from collections.abc import Mapping
from typing import NamedTuple
from urllib.parse import urlsplit


class Answer(NamedTuple):
    """An answer. The names of `headers` are in lower case."""

    status: int
    headers: dict[str, str]
    content: bytes


def exchange(
    method: str, url: str, headers: Mapping[str, str], body: bytes | None = None, *, seconds: float, most: int
) -> Answer:
    """Send a request to a URL of `http` or `https`, and return the answer. Redirects are not followed. The content has
    one byte more than `most` if it is too long.

    Blocks for `seconds` at most, besides the look-up of the name and the attempts to connect to its other addresses.
    Raises OSError, and ValueError for a URL that is none.
    """
    import http.client  # slow to import, and seldom needed
    import ssl

    split = urlsplit(url)
    host, secure = split.hostname or "", split.scheme == "https"
    kind = http.client.HTTPSConnection if secure else http.client.HTTPConnection
    connection = kind(host, split.port)
    connection.sock = plain = socket.create_connection((host, connection.port), seconds)
    over, held = time.monotonic() + seconds, plain.dup()
    timer = threading.Timer(seconds, _cut, (held,))
    timer.start()
    try:
        if secure:
            connection.sock = ssl.create_default_context().wrap_socket(plain, server_hostname=host)
        target = (split.path or "/") + (f"?{split.query}" if split.query else "")
        connection.request(method, target, body, dict(headers))
        answer = connection.getresponse()
        content = answer.read(most + 1)
        named = {name.lower(): value for name, value in answer.getheaders()}
    except (OSError, http.client.HTTPException) as error:
        if time.monotonic() >= over:
            raise TimeoutError(f"no whole answer within {seconds:g} s") from None
        raise error if isinstance(error, OSError) else OSError(f"this is not HTTP: {error!r}") from None
    finally:
        timer.cancel()
        held.close()
        connection.close()
        plain.close()
    if time.monotonic() >= over:  # the cut may look like the end of the content
        raise TimeoutError(f"no whole answer within {seconds:g} s")
    return Answer(answer.status, named, content)


def _cut(held: socket.socket) -> None:
    """End a connection, whoever reads from it."""
    with contextlib.suppress(OSError):
        held.shutdown(socket.SHUT_RDWR)


__all__ = ["Answer", "exchange"]
