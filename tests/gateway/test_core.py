"""What a gateway relays to the core, and what it does without one."""

import asyncio
import contextlib
import threading
from collections.abc import AsyncIterator, Iterator, MutableMapping
from pathlib import Path
from typing import Any, cast

import pytest

from gateway.front import WEB
from gateway.server import Serving, until
from poise.drivers import sockets
from poise_serve.asgi import Gone, Receive, Room, Scope, Send, TooLarge, answer, came_at, until_gone, whole_body
from poise_serve.core import Core
from poise_serve.relay import Relay

PARTS, PART = 100, b"x" * 1000


class Application:
    """In the core: answers with the size of a body, streams, or waits until its client has gone."""

    def __init__(self) -> None:
        self.asked = self.gone = self.sent = 0

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        self.asked += 1
        assert came_at(scope) > 0
        try:
            body = await whole_body(scope, receive, 2 << 20, Room(1 << 30))
            if scope["path"] == "/wait":
                await until_gone(scope, asyncio.get_running_loop().create_future())
        except TooLarge:
            await answer(send, 413, b"", [])
        except Gone:
            self.gone += 1
        else:
            if scope["path"] == "/stream":
                await self._stream(send)
            elif scope["path"] == "/fail":
                raise ValueError("as it is told")
            await answer(send, 200, b"%d" % len(body), [(b"by", b"core")])

    async def _stream(self, send: Send) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": []})
        for _ in range(PARTS):
            await send({"type": "http.response.body", "body": PART, "more_body": True})
            self.sent += 1


class Group:
    """A gateway and a core, in one process."""

    def __init__(self, path: Path) -> None:
        self.application, self.relay = Application(), Relay(path)
        self.path = path

    @contextlib.asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        self._loop = asyncio.get_running_loop()
        await self._start()
        self.relay.start()
        yield
        self.relay.stop()
        await self._core.stop()

    async def _start(self) -> None:
        self._core = Core(self.application, self.path)
        await self._core.start(cast(Any, None))

    def call(self, *work: str) -> None:
        """From another thread: end the core, or start another."""

        async def called() -> None:
            for one in work:
                await (self._start() if one == "start" else self._core.stop())

        asyncio.run_coroutine_threadsafe(called(), self._loop).result(10)


@pytest.fixture
def group(tmp_path: Path) -> Iterator[tuple[Group, str]]:
    made = Group(tmp_path / "core")
    with Serving(made.relay, during=made.running) as serving:
        yield made, serving.url


def test_requests_and_answers_pass_through(group: tuple[Group, str]) -> None:
    url = group[1]
    for size in (0, 3, 1 << 20):
        told = WEB.post(f"{url}/a?b=c", content=b"1" * size)
        assert (told.status_code, told.text, told.headers["by"]) == (200, str(size), "core")
    assert WEB.post(f"{url}/a", content=b"1" * (3 << 20)).status_code == 413
    assert WEB.get(f"{url}/fail").json()["error"]["code"] == 500


def test_a_stream_is_sent_as_fast_as_its_client_reads(group: tuple[Group, str]) -> None:
    made, url = group
    with WEB.stream("GET", f"{url}/stream") as told:
        assert b"".join(told.iter_raw()).startswith(PART * PARTS)
    assert made.application.sent == PARTS


def test_a_client_that_leaves_cancels_its_request(group: tuple[Group, str]) -> None:
    made, url = group
    with pytest.raises(Exception, match="timed out"):
        WEB.get(f"{url}/wait", timeout=0.2)
    until(lambda: made.application.gone == 1)


def test_another_core_gets_the_requests_that_have_no_answer(group: tuple[Group, str]) -> None:
    made, url = group
    told: list[int] = []
    asking = threading.Thread(target=lambda: told.append(WEB.post(f"{url}/wait", content=b"1").status_code))
    asking.start()
    until(lambda: made.application.asked == 1)
    made.call("stop")
    until(lambda: made.application.gone == 1)
    made.application = cast(Any, _answering)
    made.call("start")
    asking.join(10)
    assert told == [200]


def test_a_request_with_which_two_cores_were_lost_is_not_sent_to_a_third(group: tuple[Group, str]) -> None:
    made, url = group
    told: list[Any] = []
    asking = threading.Thread(target=lambda: told.append(WEB.post(f"{url}/wait", content=b"1")))
    asking.start()
    waiting = {1, 2}
    while waiting:
        until(lambda: made.application.asked in waiting)
        made.call("stop")
        until(lambda: made.application.gone in waiting)
        waiting.remove(made.application.gone)
        made.call("start")
    asking.join(10)
    assert told[0].status_code == 502
    assert "two processes" in told[0].text
    assert WEB.post(f"{url}/a", content=b"1").status_code == 200


def test_a_core_that_dies_before_it_is_ready_has_not_got_a_request(group: tuple[Group, str]) -> None:
    """The kernel still accepts connections to a process that is being killed."""
    made, url = group
    told: list[int] = []
    asking = threading.Thread(target=lambda: told.append(WEB.post(f"{url}/wait", content=b"1").status_code))
    asking.start()
    until(lambda: made.application.asked == 1)
    made.call("stop")
    with sockets.listen(made.path) as dying:
        for _ in range(3):
            dying.accept()[0].close()
    made.application = cast(Any, _answering)
    made.call("start")
    asking.join(10)
    assert told == [200]


def test_without_a_core_requests_are_refused_at_the_end(group: tuple[Group, str]) -> None:
    made, url = group
    made.call("stop")
    made.relay.is_ending = True
    until(lambda: WEB.get(f"{url}/a").status_code == 503)
    made.call("start")


async def _answering(scope: MutableMapping[str, Any], receive: Receive, send: Send) -> None:
    await answer(send, 200, b"", [])


@pytest.mark.parametrize("at_once", [False, True])
def test_a_gateway_that_stops_leaves_a_core_that_is_not_ready(tmp_path: Path, at_once: bool) -> None:
    """The connection is closed, and no other one is made."""

    async def stopped() -> list[bytes]:
        loop, relay, heard = asyncio.get_running_loop(), Relay(tmp_path / "core"), list[bytes]()
        with sockets.listen(tmp_path / "core") as listening:
            listening.setblocking(False)
            relay.start()
            core, _ = await loop.sock_accept(listening)
            with core:
                for _ in range(0 if at_once else 20):  # in which the connection is taken up
                    await asyncio.sleep(0)
                relay.stop()
                heard.append(await asyncio.wait_for(loop.sock_recv(core, 1), 5))
            for _ in range(20):  # in which another connection would be made
                await asyncio.sleep(0)
            with pytest.raises(BlockingIOError):
                listening.accept()
        return heard

    assert asyncio.run(stopped()) == [b""]
