"""A server that never ends its answer holds nobody longer than the time limit."""

import contextlib
import socket
import threading
import time
from collections.abc import Iterator

import pytest

from poise.drivers.exchange import exchange

SECONDS = 0.3


@contextlib.contextmanager
def dripping(begin: bytes, more: bytes) -> Iterator[str]:
    """The address of a server that answers with `begin`, and then with `more` again and again until it is hung up."""
    with socket.create_server(("127.0.0.1", 0)) as server:

        def serve() -> None:
            caller, _ = server.accept()
            with caller, contextlib.suppress(OSError):
                caller.sendall(begin)
                while True:
                    time.sleep(SECONDS / 10)
                    caller.sendall(more)

        thread = threading.Thread(target=serve)
        thread.start()
        yield f"http://127.0.0.1:{server.getsockname()[1]}"
        thread.join()


@pytest.mark.parametrize(
    ("begin", "more"),
    [
        (b"", b"H"),
        (b"HTTP/1.1 200 OK\r\n", b"X: 1\r\n"),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 1000000\r\n\r\n", b" "),
        (b"HTTP/1.0 200 OK\r\n\r\n{}", b" "),
    ],
)
def test_an_answer_that_never_ends_is_cut(begin: bytes, more: bytes) -> None:
    with dripping(begin, more) as url, pytest.raises(OSError):
        exchange("GET", url, {}, seconds=SECONDS, most=2**20)


def test_a_long_answer_is_read_until_it_is_too_long() -> None:
    with dripping(b"HTTP/1.0 200 OK\r\nX-Y: z\r\n\r\n" + b"a" * 100, b"a" * 100) as url:
        told = exchange("GET", url, {}, seconds=30, most=300)
    assert (told.status, told.headers, told.content) == (200, {"x-y": "z"}, b"a" * 301)
