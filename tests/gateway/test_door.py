"""Who may ask a gateway: pages of other sites in a browser may not, programs may."""

import asyncio
from collections.abc import MutableMapping
from typing import Any

import pytest

from poise_serve.asgi import Receive, Scope, Send, answer
from poise_serve.door import Door

Headers = dict[str, str]


async def behind(scope: Scope, receive: Receive, send: Send) -> None:
    await answer(send, 200, b"in", [(b"x-poise-upstream", b"a")])


class Told:
    """What an application answers to one request."""

    def __init__(
        self, app: Any, method: str = "POST", path: str = "/predict", client: str = "127.0.0.1", **headers: str
    ) -> None:
        self.body = b""
        scope: dict[str, Any] = {
            "type": "http",
            "method": method,
            "path": path,
            "query_string": b"",
            "headers": [(name.replace("_", "-").encode(), value.encode()) for name, value in headers.items()],
            "client": (client, 1),
            "extensions": {},
        }
        asyncio.run(app(scope, self._receive, self._send))

    async def _receive(self) -> MutableMapping[str, Any]:
        return {"type": "http.request", "body": b"", "more_body": False}

    async def _send(self, message: MutableMapping[str, Any]) -> None:
        if message["type"] == "http.response.start":
            self.status: int = message["status"]
            self.headers = {name.decode(): value.decode() for name, value in message["headers"]}
        else:
            self.body += message["body"]


@pytest.mark.parametrize(
    ("host", "status"),
    [
        ("localhost:8080", 200),
        ("127.0.0.1:8080", 200),
        ("[::1]:8080", 200),
        ("10.1.2.3", 200),
        ("LocalHost", 200),
        ("gpu1.lab:8080", 200),
        ("evil.example:8080", 403),
        ("localhost.evil.example", 403),
        ("127.0.0.1.evil.example", 403),
        ("localhost:99999", 403),
        ("localhost@evil.example", 403),
        ("x", 403),
    ],
)
def test_a_name_that_resolves_here_is_no_name_of_this_machine(host: str, status: int) -> None:
    """DNS rebinding: a page is served by evil.example, whose name resolves to the loopback a moment later."""
    told = Told(Door(behind, ["gpu1.lab"]), host=host)
    assert told.status == status, told.body


def test_without_a_host_nobody_is_taken_for_a_browser() -> None:
    assert Told(Door(behind)).status == 200


@pytest.mark.parametrize("path", ["/predict", "/v1/chat/completions", "/cache/m", "/metrics", "/nowhere"])
@pytest.mark.parametrize("origin", ["https://evil.example", "null", "http://localhost:3000", "http://127.0.0.1"])
def test_pages_of_other_sites_are_refused_in_the_form_of_the_route(path: str, origin: str) -> None:
    told = Told(Door(behind), path=path, host="localhost:8080", origin=origin)
    assert told.status == 403 and b"--cors" in told.body
    assert (b'"type":' in told.body) == path.startswith("/v1/")
    assert "access-control-allow-origin" not in told.headers


def test_a_page_of_the_gateway_itself_may_ask() -> None:
    assert Told(Door(behind), host="localhost:8080", origin="http://localhost:8080").status == 200


@pytest.mark.parametrize("allowed", ["https://app.example", "*"])
def test_a_site_that_was_let_in_may_ask_and_read(allowed: str) -> None:
    door = Door(behind, origins=[allowed])
    told = Told(door, host="localhost", origin="https://app.example")
    assert (told.status, told.body) == (200, b"in")
    assert told.headers["access-control-allow-origin"] == "https://app.example" and told.headers["vary"] == "Origin"
    asked = Told(
        door, "OPTIONS", host="localhost", origin="https://app.example", access_control_request_method="POST",
        access_control_request_headers="authorization, content-type",
    )  # fmt: skip
    assert asked.status == 204
    assert asked.headers["access-control-allow-headers"] == "authorization, content-type"
    assert asked.headers["access-control-allow-methods"] == "POST"
    assert Told(door, host="evil.example", origin="https://app.example").status == 403, "whatever the Host"


def test_another_site_beside_one_that_was_let_in_may_not() -> None:
    told = Told(Door(behind, origins=["https://app.example"]), host="localhost", origin="https://app.example.evil")
    assert told.status == 403
