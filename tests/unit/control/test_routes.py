"""Routes as such: what is found, what is taken from a request, and what goes back."""

import asyncio
import gzip
import json
from collections.abc import AsyncIterator
from typing import Annotated, Any, Literal, NamedTuple

import msgspec
import pytest

from poise.control.guard import Scope
from poise.control.routes import Content, Request, Routes, Stream
from poise.errors import Forbidden, NotFound
from poise.model.tenants import Role

CLOSED: list[str] = []


class Wanted(msgspec.Struct, forbid_unknown_fields=True):
    name: str
    count: int = 1


class Told(NamedTuple):
    status: int
    headers: dict[str, str]
    body: bytes

    @property
    def error(self) -> Any:
        return json.loads(self.body)["error"]


def made() -> Routes:
    def allow(scope: Scope, needed: Role | None) -> None:
        if needed is None:
            raise Forbidden("nobody may")

    routes = Routes(allow)

    @routes.get("/things", summary="Things", role=Role.VIEWER)
    async def things(all_: bool = False, limit: Annotated[int, msgspec.Meta(ge=1, le=10)] = 5) -> list[Any]:
        return [all_, limit]

    @routes.post("/things", summary="One more", role=Role.SUBMITTER, status=201)
    async def more(request: Request, data: Wanted) -> dict[str, int]:
        return {data.name: data.count, "bytes": len(request.body)}

    @routes.get("/things/{name}/{kind}", summary="One", role=Role.VIEWER)
    async def one(name: str, kind: Literal["a", "b"]) -> dict[str, str]:
        if name == "none":
            raise NotFound("there is none", hint="another")
        return {name: kind}

    @routes.get("/broken", summary="Broken", role=Role.VIEWER)
    async def broken() -> None:
        raise LookupError("inside")

    @routes.get("/large", summary="Large", role=Role.VIEWER)
    async def large() -> Content:
        return Content(b"x" * 1000, "text/plain")

    @routes.get("/endless", summary="Endless", role=Role.VIEWER)
    async def endless() -> Stream:
        async def pieces() -> AsyncIterator[bytes]:
            try:
                while True:
                    yield b"piece\n"
                    await asyncio.sleep(0)
            finally:
                CLOSED.append("closed")

        return Stream(pieces(), "text/plain")

    @routes.get("/nobodys", summary="For nobody")
    async def nobodys() -> None:
        raise AssertionError("it was called")

    return routes


def ask(method: str, path: str, body: bytes = b"", **headers: str) -> Told:
    """The client goes as soon as it has been sent twenty messages."""
    route, _, query = path.partition("?")
    scope = {
        "type": "http",
        "method": method,
        "path": route,
        "query_string": query.encode(),
        "headers": [(name.replace("_", "-").encode(), value.encode()) for name, value in headers.items()],
    }
    sent: list[Any] = []
    todo = [{"type": "http.request", "body": body[:3], "more_body": True}, {"type": "http.request", "body": body[3:]}]

    async def call() -> None:
        left = asyncio.Event()

        async def receive() -> Any:
            if todo:
                return todo.pop(0)
            await left.wait()
            return {"type": "http.disconnect"}

        async def send(message: Any) -> None:
            sent.append(message)
            if len(sent) == 20:
                left.set()

        await asyncio.wait_for(made()(scope, receive, send), 20)

    asyncio.run(call())
    given = {name.decode(): value.decode() for name, value in sent[0]["headers"]}
    return Told(sent[0]["status"], given, b"".join(message["body"] for message in sent[1:]))


@pytest.mark.parametrize(
    ("asked", "told"),
    [
        ("/things", [False, 5]),
        ("/things/", [False, 5]),
        ("/things?all=true&limit=10&unknown=1", [True, 10]),
        ("/things?limit=2&limit=3", [False, 3]),
        ("/things/x/a", {"x": "a"}),
    ],
)
def test_what_is_asked_for_is_found_in_the_path_and_the_query(asked: str, told: Any) -> None:
    answer = ask("GET", asked)
    assert (answer.status, json.loads(answer.body)) == (200, told)
    assert answer.headers == {"content-type": "application/json", "content-length": str(len(answer.body))}


@pytest.mark.parametrize(
    ("asked", "status", "field"),
    [
        ("/nothing", 404, "/nothing"),
        ("/things/x", 404, "/things/x"),
        ("/things//a", 404, "/things//a"),
        ("/things/none/a", 404, ""),
        ("/things?limit=many", 422, "limit"),
        ("/things?limit=11", 422, "limit"),
        ("/things?all=perhaps", 422, "all"),
        ("/things/x/c", 422, "kind"),
        ("/nobodys", 403, ""),
    ],
)
def test_what_cannot_be_answered_is_told_with_its_place(asked: str, status: int, field: str) -> None:
    answer = ask("GET", asked)
    assert (answer.status, answer.error.get("field", "")) == (status, field)


def test_other_methods_are_told() -> None:
    refused = ask("PUT", "/things")
    assert (refused.status, refused.headers["allow"], refused.error["code"]) == (405, "GET, OPTIONS, POST", "E102")
    asked = ask("OPTIONS", "/things/x/a")
    assert (asked.status, asked.headers, asked.body) == (204, {"allow": "GET, OPTIONS"}, b"")
    assert ask("OPTIONS", "/nothing").status == 404


def test_a_body_is_of_the_type_that_the_route_says() -> None:
    body = b'{"name": "n", "count": 3}'
    answer = ask("POST", "/things", body)
    assert (answer.status, json.loads(answer.body)) == (201, {"n": 3, "bytes": len(body)})
    for wrong, code, field in (
        (b"", "E101", ""),
        (b"{", "E101", ""),
        (b'{"name": "\xff"}', "E101", ""),
        (b"[]", "E102", ""),
        (b'{"count": 3}', "E102", ""),
        (b'{"name": "n", "count": "3"}', "E102", "count"),
        (b'{"name": "n", "more": 1}', "E102", ""),
    ):
        refused = ask("POST", "/things", wrong)
        assert refused.status == 422
        assert (refused.error["code"], refused.error.get("field", "")) == (code, field), wrong[:40]


def test_what_fails_inside_is_told_without_what_is_inside_and_logged(caplog: pytest.LogCaptureFixture) -> None:
    answer = ask("GET", "/broken")
    assert (answer.status, answer.error) == (500, {"code": "E299", "message": "an internal error: LookupError"})
    assert [record.getMessage() for record in caplog.records] == ["GET /broken failed"]


def test_what_is_large_is_compressed_for_who_can_read_that() -> None:
    plain, small = ask("GET", "/large"), ask("GET", "/large", accept_encoding="br, gzip")
    assert (plain.body, plain.headers["content-type"]) == (b"x" * 1000, "text/plain")
    assert gzip.decompress(small.body) == plain.body
    assert (small.headers["content-encoding"], small.headers["vary"]) == ("gzip", "Accept-Encoding")
    assert int(small.headers["content-length"]) == len(small.body) < 100


def test_a_stream_ends_with_its_client_and_its_source_is_closed() -> None:
    CLOSED.clear()
    answer = ask("GET", "/endless")
    assert answer.status == 200 and answer.body.startswith(b"piece\npiece\n")
    assert "content-length" not in answer.headers
    assert CLOSED == ["closed"]
