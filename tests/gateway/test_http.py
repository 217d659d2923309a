"""HTTP as clients of every age speak it, on the gateway's own server."""

import asyncio
import gzip
import re
import socket
import ssl
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from prometheus_client import CollectorRegistry

from gateway.front import front
from gateway.server import Serving, models, rest, until
from poise.config import Home
from poise.drivers.authority import ensure_authority, server_context
from poise.model.servicefile import MAX_BODY
from poise_serve.app import Gateway
from poise_serve.asgi import Receive, Scope, Send, answer
from poise_serve.service import ANYBODY, Asker, Tell
from poise_serve.wire import Answer


class Echo:
    """A service that answers with what it was asked, after `wait` seconds."""

    def __init__(self) -> None:
        self.wait = 0.0
        self.asked = self.cancelled = 0
        self.came = self.began = 0
        self.open = self.most = 0

    def ask(self, body: bytes, tell: Tell, timeout: int = 0, deferred: bool = False, asker: Asker = ANYBODY) -> int:
        self.asked += 1
        self.came, self.began = asker.came, time.monotonic_ns()
        self.open += 1
        self.most = max(self.most, self.open)

        def told() -> None:
            self.open -= 1
            tell(Answer(200, "text/plain", body))

        asyncio.get_running_loop().call_later(self.wait, told)
        return self.asked

    def cancel(self, number: int) -> None:
        self.cancelled += 1


@pytest.fixture
def echo() -> Echo:
    return Echo()


@pytest.fixture
def served(echo: Echo) -> Iterator[Serving]:
    with Serving(Gateway({"echo": echo}, {}, {}, {}, CollectorRegistry())) as made:
        yield made


def dial(port: int) -> socket.socket:
    return socket.create_connection(("127.0.0.1", port), timeout=10)


def said(port: int, *parts: bytes) -> bytes:
    """All that comes back, until the server closes."""
    with dial(port) as client:
        for part in parts:
            client.sendall(part)
        return rest(client)


def test_a_request_came_when_the_last_of_its_body_did(served: Serving, echo: Echo) -> None:
    with dial(served.port) as client:
        client.sendall(b"POST /predict HTTP/1.1\r\nHost: x\r\nConnection: close\r\nContent-Length: 4\r\n\r\nab")
        until(lambda: served.server.open == 1)
        before = time.monotonic_ns()
        client.sendall(b"cd")
        assert rest(client).endswith(b"abcd")
    assert before < echo.came <= echo.began


def ask(body: bytes, more: bytes = b"", version: bytes = b"1.1") -> bytes:
    head = b"POST /predict HTTP/%b\r\nHost: x\r\nContent-Length: %d\r\n%b\r\n" % (version, len(body), more)
    return head + body


LIVE = b"GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n"
CLOSE, KEEP = b"Connection: close\r\n", b"Connection: Keep-Alive\r\n"
STREAM = b'{"model": "m", "prompt": "x", "stream": true}'


def statuses(told: bytes) -> list[bytes]:
    return re.findall(rb"HTTP/1\.[01] (\d+)", told)


def test_a_client_of_http_1_0_keeps_its_connection_where_it_says_so(served: Serving) -> None:
    """As `ab -k` does, which waits for ever where the answer does not say that the connection is kept."""
    with dial(served.port) as client:
        for path in (b"GET /healthz HTTP/1.0\r\nConnection: Keep-Alive\r\n\r\n", ask(b"1", KEEP, b"1.0")):
            client.sendall(path)
            head, _, body = client.recv(4096).partition(b"\r\n\r\n")
            assert b"connection: keep-alive" in head.lower() and body
    assert said(served.port, ask(b"1", version=b"1.0")).endswith(b"\r\n\r\n1"), "and else it is closed"


def test_a_client_of_http_1_0_is_sent_no_chunks() -> None:
    asked = b"POST /v1/completions HTTP/1.0\r\nContent-Length: %d\r\n%b\r\n%b" % (len(STREAM), KEEP, STREAM)
    with models("a") as ((a,), urls), front(urls) as (_, url):
        a.pause = 0.02
        told = said(int(url.rpartition(":")[2]), asked)
    head, _, body = told.partition(b"\r\n\r\n")
    assert b"chunked" not in head.lower() and b"keep-alive" not in head.lower()
    assert body.startswith(b"data: ") and body.endswith(b"data: [DONE]\n\n")


def test_whatever_comes_on_one_connection_is_answered_in_its_order(served: Serving) -> None:
    told = said(served.port, ask(b"one") + LIVE + ask(b"two") + LIVE + ask(b"three", CLOSE))
    assert statuses(told) == [b"200"] * 5
    assert re.findall(rb"one|two|three|ok", told) == [b"one", b"ok", b"two", b"ok", b"three"]


def test_an_empty_answer_has_its_media_type(served: Serving) -> None:
    told = said(served.port, ask(b"", CLOSE))
    assert statuses(told) == [b"200"] and b"content-type: text/plain" in told.lower()


def test_what_is_no_http_is_refused_in_the_form_of_all_errors(served: Serving) -> None:
    told = said(served.port, b"\x16\x03\x01 garbage\r\n\r\n")
    assert statuses(told) == [b"400"] and b'"code":400' in told


@pytest.mark.parametrize("wait", [0.0, 0.3])
def test_a_client_that_ends_its_side_is_answered(served: Serving, echo: Echo, wait: float) -> None:
    echo.wait = wait
    with dial(served.port) as client:
        client.sendall(ask(b"one") + ask(b"two"))
        client.shutdown(socket.SHUT_WR)
        told = rest(client)
    final = [status for status in statuses(told) if status != b"100"]
    assert final == [b"200", b"200"] and told.endswith(b"two")
    assert not echo.cancelled


def test_a_client_that_ends_its_side_with_the_last_of_a_body_is_answered(served: Serving) -> None:
    with dial(served.port) as client:
        client.sendall(ask(b"one")[:-3])
        until(lambda: any(one.is_reading for one in served.server.clients))
        client.sendall(b"one")
        client.shutdown(socket.SHUT_WR)
        assert rest(client).endswith(b"one")


def test_a_client_that_ends_its_side_reads_a_stream_to_its_end() -> None:
    asked = b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n%b" % (len(STREAM), STREAM)
    with models("a") as ((a,), urls), front(urls) as (_, url):
        a.wait, a.pause = 0.1, 0.02
        with dial(int(url.rpartition(":")[2])) as client:
            client.sendall(asked)
            client.shutdown(socket.SHUT_WR)
            assert b"data: [DONE]" in rest(client)


@pytest.mark.parametrize("version", [b"1.1", b"1.0"])
def test_a_client_that_sends_half_of_a_request_and_ends_is_closed(served: Serving, version: bytes) -> None:
    with dial(served.port) as client:
        client.sendall(ask(b"one", version=version)[:-1])
        client.shutdown(socket.SHUT_WR)
        assert b"200" not in rest(client)


def test_a_client_that_has_gone_takes_its_question_along(served: Serving, echo: Echo) -> None:
    echo.wait = 60.0
    began = time.monotonic()
    with dial(served.port) as client:
        client.sendall(ask(b"one"))
        until(lambda: echo.asked == 1)
    until(lambda: echo.cancelled == 1)
    assert time.monotonic() - began < 5
    until(lambda: not served.server.clients)


@pytest.mark.parametrize("coded", [b"gzip, chunked", b"identity, chunked", b"deflate,chunked"])
def test_a_transfer_coding_that_is_not_undone_is_refused(served: Serving, echo: Echo, coded: bytes) -> None:
    head = b"POST /predict HTTP/1.1\r\nHost: x\r\n%bTransfer-Encoding: %b\r\n\r\n" % (CLOSE, coded)
    told = said(served.port, head + b"3\r\nabc\r\n0\r\n\r\n")
    assert statuses(told) == [b"501"] and b"Transfer-Encoding" in told
    assert not echo.asked


def test_a_compressed_body_is_read(served: Serving) -> None:
    body = bytes(100_000)
    told = said(served.port, ask(gzip.compress(body), CLOSE + b"Content-Encoding: gzip\r\n"))
    assert statuses(told) == [b"200"] and told.partition(b"\r\n\r\n")[2] == body


def test_the_rest_of_a_refused_body_is_not_decoded(served: Serving) -> None:
    """It can be a thousand times as large as what is sent."""
    body = gzip.compress(bytes(1 << 20))
    head = b"PUT /predict HTTP/1.1\r\nHost: x\r\nContent-Encoding: gzip\r\nContent-Length: %d\r\n\r\n"
    with dial(served.port) as client:
        client.sendall(head % (2 * len(body)) + body)
        assert statuses(rest(client)) == [b"405"]
        until(lambda: not served.server.clients)


def test_others_have_their_turn_while_a_body_is_decoded() -> None:
    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        stuck, more = 0, True
        while more:
            turns: list[int] = []
            asyncio.get_running_loop().call_soon(turns.append, 1)
            more = (await receive())["more_body"]
            stuck += not turns
        await answer(send, 200, b"stuck %d times" % stuck, [])

    with Serving(app) as made:
        told = said(made.port, ask(gzip.compress(bytes(8 << 20)), CLOSE + b"Content-Encoding: gzip\r\n"))
    assert told.endswith(b"stuck 0 times")


@pytest.mark.parametrize(("coded", "status"), [(b"gzip", b"400"), (b"compress", b"415"), (b"gzip, gzip", b"415")])
def test_a_body_that_cannot_be_decoded_is_refused(served: Serving, echo: Echo, coded: bytes, status: bytes) -> None:
    told = said(served.port, ask(b"no such thing", CLOSE + b"Content-Encoding: %b\r\n" % coded))
    assert statuses(told) == [status] and b'{"error"' in told
    assert not echo.asked


def test_a_small_body_that_unpacks_to_much_is_bounded(served: Serving) -> None:
    bomb = gzip.compress(bytes(MAX_BODY + 1), 1)
    assert statuses(said(served.port, ask(bomb, CLOSE + b"Content-Encoding: gzip\r\n"))) == [b"413"]


def test_who_waits_until_the_body_is_asked_for_is_told(served: Serving) -> None:
    with dial(served.port) as client:
        client.sendall(ask(b"", b"Expect: 100-continue\r\n" + CLOSE).replace(b"Length: 0", b"Length: 3"))
        assert client.recv(100) == b"HTTP/1.1 100 Continue\r\n\r\n"
        client.sendall(b"one")
        assert rest(client).endswith(b"one")


def test_it_speaks_tls_by_the_authority_of_the_home(echo: Echo, tmp_path: Path) -> None:
    home = Home(tmp_path)
    app = Gateway({"echo": echo}, {}, {}, {}, CollectorRegistry())
    with Serving(app, tls=server_context(home, ["localhost"], "serve")) as made:
        trusting = ssl.create_default_context(cadata=ensure_authority(home).decode())
        for more in (b"", CLOSE):
            with trusting.wrap_socket(dial(made.port), server_hostname="localhost") as client:
                client.sendall(ask(b"one", more))
                told = client.recv(4096)
                assert told.endswith(b"one")
        assert b"HTTP/1.1 200" not in said(made.port, LIVE), "and nothing else"


def test_who_dials_and_never_shakes_hands_is_hung_up_on(
    echo: Echo, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("poise_serve.http.HANDSHAKE", 0.1)
    app = Gateway({"echo": echo}, {}, {}, {}, CollectorRegistry())
    with Serving(app, tls=server_context(Home(tmp_path), ["localhost"], "serve")) as made, dial(made.port) as client:
        assert rest(client) == b""


def test_a_question_that_offers_another_protocol_is_answered_in_this_one(served: Serving) -> None:
    """Java's own client offers HTTP/2 with each first request."""
    with dial(served.port) as client:
        for offer in (b"Connection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\n", b""):
            client.sendall(ask(b"one", offer))
            told = client.recv(4096)
            assert statuses(told) == [b"200"] and told.endswith(b"one")


def test_a_client_that_asks_much_at_once_is_served_one_question_at_a_time(served: Serving, echo: Echo) -> None:
    """So a hundred of them take as much of the gateway's time as a hundred that wait for each answer."""
    told = said(served.port, ask(b"x") * 300 + ask(b"last", CLOSE))
    assert statuses(told) == [b"200"] * 301 and told.endswith(b"last")
    assert echo.most == 1


def test_metrics_are_written_once_for_all_who_ask_and_hold_up_nobody(
    served: Serving, monkeypatch: pytest.MonkeyPatch
) -> None:
    go_on, written = threading.Event(), []

    def write(registry: CollectorRegistry) -> bytes:
        written.append(registry)
        assert go_on.wait(10), "a question is answered meanwhile"
        return b"metrics"

    monkeypatch.setattr("poise_serve.app.text_of", write)
    with ThreadPoolExecutor(20) as pool:
        asked = [pool.submit(said, served.port, LIVE.replace(b"/healthz", b"/metrics", 1)[:-2] + CLOSE + b"\r\n")]
        until(lambda: bool(written))
        asked += [pool.submit(said, served.port, b"GET /metrics HTTP/1.0\r\n\r\n") for _ in range(19)]
        assert said(served.port, ask(b"one", CLOSE)).endswith(b"one")
        until(lambda: len(served.server.clients) == 20)
        go_on.set()
        assert all(one.result().endswith(b"metrics") for one in asked)
    assert len(written) == 1
