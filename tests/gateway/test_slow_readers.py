"""Clients that do not take what they are answered, with a server in this process that looks at them often."""

import asyncio
import socket
import threading
import time
from collections.abc import Iterator

import pytest
from prometheus_client import CollectorRegistry

from gateway.server import Serving, until
from poise_serve import http
from poise_serve.app import Gateway
from poise_serve.asgi import GONE, Receive, Scope, Send
from poise_serve.service import ANYBODY, Asker, Tell
from poise_serve.wire import Answer

LARGE = 50_000_000


class Answers:
    """A service that answers with more than any buffer of the system holds: a little later, or at once, as a cache."""

    at_once = False
    after = 0.0
    large = LARGE

    def ask(self, body: bytes, tell: Tell, timeout: int = 0, deferred: bool = False, asker: Asker = ANYBODY) -> int:
        answer = Answer(200, "text/plain", bytes(self.large))
        if self.at_once:
            tell(answer)
        else:
            asyncio.get_running_loop().call_later(self.after, tell, answer)
        return 1

    def cancel(self, number: int) -> None:
        raise AssertionError("all are answered")


@pytest.fixture
def server() -> Iterator[Serving]:
    app = Gateway({"large": Answers()}, {}, {}, {}, CollectorRegistry())
    with Serving(app, seconds=0.2) as made:
        yield made


def asked(server: Serving, more: bytes) -> socket.socket:
    client = socket.create_connection(("127.0.0.1", server.port), timeout=10)
    client.sendall(b"POST /predict HTTP/1.1\r\nHost: x\r\n%sContent-Length: 0\r\n\r\n" % more)
    return client


@pytest.mark.parametrize("more", [b"", b"Connection: close\r\n"], ids=["goes on", "ends with it"])
def test_who_takes_nothing_is_dropped(server: Serving, more: bytes) -> None:
    with asked(server, more):
        until(lambda: len(server.server.clients) == 1)
        until(lambda: not server.server.clients)


ASKS = b"POST /predict HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n"


@pytest.mark.parametrize("sent", [b"", ASKS[:30], ASKS % 9 + b"1"], ids=["nothing", "half a header", "half a body"])
def test_who_does_not_send_the_rest_is_dropped(server: Serving, sent: bytes) -> None:
    with socket.create_connection(("127.0.0.1", server.port), timeout=10) as client:
        client.sendall(sent)
        until(lambda: len(server.server.clients) == 1)
        until(lambda: not server.server.clients)


def test_who_sends_it_slowly_is_answered(server: Serving) -> None:
    with socket.create_connection(("127.0.0.1", server.port), timeout=10) as client:
        client.sendall(ASKS % 102400)
        for _ in range(10):
            client.sendall(bytes(10240))
            time.sleep(0.1)
        assert client.recv(1 << 12).startswith(b"HTTP/1.1 200 ")


def test_who_asks_more_than_is_taken_ahead_is_answered(server: Serving, monkeypatch: pytest.MonkeyPatch) -> None:
    """A part of a question came, and no more is read until the answers to those before are there."""
    monkeypatch.setattr(Answers, "large", 1)
    monkeypatch.setattr(Answers, "after", 0.002)
    count, came = 400, b""
    with socket.create_connection(("127.0.0.1", server.port), timeout=20) as client:
        sending = threading.Thread(target=client.sendall, args=(ASKS % 0 * count,))
        sending.start()
        while came.count(b"HTTP/1.1 200 ") < count or not came.endswith(b"\0"):
            part = client.recv(1 << 20)
            assert part, came[-200:]
            came += part
        sending.join()


def test_who_takes_a_stream_steadily_is_not_dropped_however_much_waits_for_it() -> None:
    written = 0

    async def endless(scope: Scope, receive: Receive, send: Send) -> None:
        nonlocal written
        gone = asyncio.Event()
        scope["extensions"][GONE]["then"](gone.set)
        await send({"type": "http.response.start", "status": 200, "headers": []})
        while not gone.is_set():
            await send({"type": "http.response.body", "body": bytes(1 << 14), "more_body": True})
            written += 1 << 14

    with Serving(endless) as made, asked(made, b"") as client:
        for _ in range(10):
            before = written
            while written <= before + (1 << 18):  # more than can wait in the server
                assert client.recv(1 << 16)
            [connection] = made.server.clients
            connection.look()
        assert made.server.clients == [connection]


@pytest.mark.parametrize("at_once", [False, True], ids=["later", "at once"])
def test_who_takes_it_slowly_gets_all_of_it(server: Serving, monkeypatch: pytest.MonkeyPatch, at_once: bool) -> None:
    monkeypatch.setattr(http, "LINGER", 0.1)
    monkeypatch.setattr(Answers, "at_once", at_once)
    with asked(server, b"Connection: close\r\n") as client:
        came = 0
        while part := client.recv(1 << 20):
            came += len(part)
            time.sleep(0.005)
    assert came > LARGE


def test_all_is_taken_once_nobody_waits_for_a_part_of_an_answer(server: Serving) -> None:
    with asked(server, b"") as client:
        until(lambda: len(server.server.clients) == 1)
        connection = server.server.clients[0]
        until(lambda: connection.owes)
        came = 0
        while came < LARGE:
            came += len(client.recv(1 << 20))
        until(lambda: not connection.owes)
