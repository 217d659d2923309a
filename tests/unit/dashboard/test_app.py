"""The dashboard over HTTP, without a socket: who gets in, and what every answer says."""

import asyncio
import json
import re
from collections.abc import AsyncIterator, Callable, Coroutine, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from poise.config import Home
from poise.dashboard import app as module
from poise.dashboard.app import ASSETS, Dashboard

PATIENCE = 120.0
HOST = "127.0.0.1:7719"
MAX_FRONT_END = 250_000
"""Bytes of the whole front end."""


class Answer(NamedTuple):
    status: int
    headers: dict[str, str]
    body: bytes

    @property
    def code(self) -> str:
        code: str = json.loads(self.body)["error"]["code"]
        return code


def scope_of(method: str, path: str, headers: Mapping[str, str]) -> dict[str, Any]:
    route, _, query = path.partition("?")
    given = {"host": HOST} | dict(headers)
    return {
        "type": "http",
        "scheme": "http",
        "method": method,
        "path": route,
        "query_string": query.encode(),
        "headers": [(name.lower().encode(), value.encode()) for name, value in given.items()],
    }


class Asking:
    """Asks a dashboard of a home in which nothing runs."""

    def __init__(self, folder: Path) -> None:
        self.app = Dashboard(Home(folder / "home"), "poise-1", ("Head.example", "10.0.0.7", "fe80::1"))
        self.scheme = "http"

    async def __call__(self, method: str, path: str, body: bytes = b"", **headers: str) -> Answer:
        sent: list[Any] = []
        given = {name.replace("_", "-"): value for name, value in headers.items()}

        async def receive() -> Any:
            return {"type": "http.request", "body": body}

        async def send(message: Any) -> None:
            sent.append(message)

        await self.app(scope_of(method, path, given) | {"scheme": self.scheme}, receive, send)
        told = {name.decode(): value.decode() for name, value in sent[0]["headers"]}
        return Answer(sent[0]["status"], told, b"".join(one.get("body", b"") for one in sent[1:]))

    async def session(self, of: str = "", tenant: str = "default") -> str:
        """The cookie of a new session."""
        body = json.dumps({"link": self.app.sessions.link(of or "theirs", tenant)}).encode()
        answer = await self("POST", "/session", body)
        assert answer.status == 204
        return answer.headers["set-cookie"].partition(";")[0]

    @asynccontextmanager
    async def stream(self, cookie: str) -> AsyncIterator[asyncio.Queue[Any]]:
        """What an open stream sends."""
        sent: asyncio.Queue[Any] = asyncio.Queue()
        gone = asyncio.Event()

        async def receive() -> Any:
            await gone.wait()
            return {"type": "http.disconnect"}

        serving = asyncio.create_task(self.app(scope_of("GET", "/stream", {"cookie": cookie}), receive, sent.put))
        yield sent
        gone.set()
        await serving


@pytest.fixture
def run(tmp_path: Path) -> Callable[[Callable[[Asking], Coroutine[Any, Any, None]]], None]:
    async def whole(test: Callable[[Asking], Coroutine[Any, Any, None]]) -> None:
        ask = Asking(tmp_path)
        try:
            await asyncio.wait_for(test(ask), PATIENCE)
        finally:
            ask.app.close()

    return lambda test: asyncio.run(whole(test))


Run = Callable[[Callable[[Asking], Coroutine[Any, Any, None]]], None]


def test_every_answer_has_the_headers_that_keep_others_out(run: Run) -> None:
    async def test(ask: Asking) -> None:
        cookie = await ask.session()
        for answer in (
            await ask("GET", "/"),
            await ask("GET", "/shell.js"),
            await ask("GET", "/data/job?job=j1"),
            await ask("GET", "/data/job?job=j1", cookie=cookie),
            await ask("POST", "/session", b"x"),
            await ask("GET", "/", host="evil.example"),
        ):
            assert answer.headers["content-security-policy"].startswith("default-src 'self'; ")
            assert "unsafe" not in answer.headers["content-security-policy"]
            assert answer.headers["x-content-type-options"] == "nosniff"
            assert answer.headers["referrer-policy"] == "no-referrer"
            assert answer.headers["cache-control"] in ("no-store", "no-cache")

    run(test)


def test_data_is_never_kept_by_a_cache_and_files_are_asked_for_again(run: Run) -> None:
    async def test(ask: Asking) -> None:
        assert (await ask("GET", "/data/job?job=j1", cookie=await ask.session())).headers["cache-control"] == "no-store"
        file = await ask("GET", "/shell.js")
        assert file.headers["cache-control"] == "no-cache"
        again = await ask("GET", "/shell.js", if_none_match=file.headers["etag"])
        assert (again.status, again.body) == (304, b"")

    run(test)


@pytest.mark.parametrize("host", ["evil.example", "127.0.0.1.evil.example", "", "192.168.0.1:7719", "localhost:x"])
def test_only_names_of_this_machine_are_answered(run: Run, host: str) -> None:
    async def test(ask: Asking) -> None:
        answer = await ask("GET", "/", host=host)
        assert (answer.status, answer.code) == (403, "E131")

    run(test)


def test_by_tls_it_has_the_names_of_this_machine_and_a_cookie_that_stays_there(run: Run) -> None:
    async def test(ask: Asking) -> None:
        names = ("head.example", "HEAD.example:7720", "10.0.0.7:7720", "[fe80::1]:7720")
        for host in names:
            assert (await ask("GET", "/", host=host)).code == "E131", "without TLS it is loopback only"
        ask.scheme = "https"
        for host in (*names, HOST):
            assert (await ask("GET", "/", host=host)).status == 200
        for host in ("other.example", "10.0.0.8", "[fe80::2]", "head.example:x", ""):
            assert (await ask("GET", "/", host=host)).code == "E131"
        link = json.dumps({"link": ask.app.sessions.link("token")}).encode()
        assert (await ask("POST", "/session", link, host=names[0], origin=f"http://{names[0]}")).code == "E131"
        answer = await ask("POST", "/session", link, host=names[0], origin=f"https://{names[0]}")
        assert answer.status == 204 and answer.headers["set-cookie"].endswith("; Secure")

    run(test)


@pytest.mark.parametrize("origin", ["http://evil.example", "null", "https://127.0.0.1:7719", "http://127.0.0.1:7720"])
def test_pages_of_other_sites_and_other_ports_are_refused(run: Run, origin: str) -> None:
    async def test(ask: Asking) -> None:
        link = json.dumps({"link": ask.app.sessions.link("token")}).encode()
        assert (await ask("POST", "/session", link, origin=origin)).code == "E131"
        assert (await ask("POST", "/session", link, origin=f"http://{HOST}")).status == 204

    run(test)


def test_a_link_becomes_a_cookie_that_scripts_and_other_sites_never_get(run: Run) -> None:
    async def test(ask: Asking) -> None:
        body = json.dumps({"link": ask.app.sessions.link("token")}).encode()
        first = await ask("POST", "/session", body)
        assert re.fullmatch(r"poise-1=[\w-]{43}; Path=/; HttpOnly; SameSite=Strict", first.headers["set-cookie"])
        second = await ask("POST", "/session", body)
        assert (second.status, second.code) == (401, "E130")
        assert "set-cookie" not in second.headers

    run(test)


@pytest.mark.parametrize("path", ["/stream", "/data/job?job=j1", "/data/nothing"])
@pytest.mark.parametrize("cookie", ["", "poise-1=x", "other=1", 'poise-1="', "=;;=\x01"])
def test_nothing_is_shown_without_a_session(run: Run, path: str, cookie: str) -> None:
    async def test(ask: Asking) -> None:
        answer = await ask("GET", path, cookie=cookie)
        assert (answer.status, answer.code) == (401, "E130")

    run(test)


def test_a_session_that_was_left_is_over(run: Run) -> None:
    async def test(ask: Asking) -> None:
        cookie = await ask.session()
        assert (await ask("GET", "/data/nothing", cookie=cookie)).status == 404
        answer = await ask("POST", "/leave", cookie=cookie)
        assert "Max-Age=0" in answer.headers["set-cookie"]
        assert (await ask("GET", "/data/nothing", cookie=cookie)).status == 401

    run(test)


def test_streams_end_with_their_session(run: Run) -> None:
    async def test(ask: Asking) -> None:
        cookie, other = await ask.session(), await ask.session()
        async with ask.stream(cookie) as sent, ask.stream(other) as theirs:
            assert (await sent.get())["status"] == (await theirs.get())["status"] == 200
            await ask("POST", "/leave", cookie=cookie)
            while (await sent.get()).get("more_body"):
                pass
            while (await theirs.get())["body"] != b": poise\n\n":
                pass

    run(test)


def test_a_link_is_made_only_for_a_token(run: Run) -> None:
    async def test(ask: Asking) -> None:
        assert (await ask("POST", "/link")).status == 401
        assert (await ask("POST", "/link", authorization="Bearer ")).status in (401, 503)

    run(test)


@pytest.mark.parametrize("body", [b"", b"{}", b"[]", b'{"link": 1}', b'{"link": "x", "more": 1}', b"\xff"])
def test_what_is_no_link_is_refused(run: Run, body: bytes) -> None:
    async def test(ask: Asking) -> None:
        assert (await ask("POST", "/session", body)).status == 400

    run(test)


def test_a_body_that_is_too_large_is_refused(run: Run) -> None:
    async def test(ask: Asking) -> None:
        assert (await ask("POST", "/session", b"x" * (module.MAX_BODY + 1))).status == 400

    run(test)


@pytest.mark.parametrize(
    ("method", "path"), [("POST", "/now"), ("GET", "/session"), ("DELETE", "/stream"), ("PUT", "/link")]
)
def test_other_methods_are_refused(run: Run, method: str, path: str) -> None:
    async def test(ask: Asking) -> None:
        assert (await ask(method, path)).status == 405

    run(test)


@pytest.mark.parametrize("path", ["/", "/now", "/jobs/j1.main", "/jobs/<b>", "/a/page/of/2016", "/../etc/passwd"])
def test_every_path_gets_the_page_that_knows_the_views(run: Run, path: str) -> None:
    async def test(ask: Asking) -> None:
        answer = await ask("GET", path)
        assert (answer.status, answer.body) == (200, (ASSETS / "index.html").read_bytes())

    run(test)


def test_a_file_that_is_not_there_is_not_the_page(run: Run) -> None:
    async def test(ask: Asking) -> None:
        assert (await ask("GET", "/old.js")).status == 404

    run(test)


def test_without_a_control_plane_the_stream_says_so(run: Run) -> None:
    async def test(ask: Asking) -> None:
        async with ask.stream(await ask.session()) as sent:
            assert (await sent.get())["status"] == 200
            assert (await sent.get())["body"] == b": poise\n\n"
            piece = (await sent.get())["body"].decode()
            assert '"condition":"away"' in piece

    run(test)


def test_streams_of_one_session_are_bounded(run: Run) -> None:
    async def test(ask: Asking) -> None:
        cookie = await ask.session()
        streams = [ask.stream(cookie) for _ in range(module.MAX_STREAMS_OF_ONE + 1)]
        opened = [await stream.__aenter__() for stream in streams]
        statuses = [(await sent.get())["status"] for sent in opened]
        assert statuses == [200] * module.MAX_STREAMS_OF_ONE + [503]
        for stream in streams:
            await stream.__aexit__(None, None, None)
        async with ask.stream(cookie) as sent:
            assert (await sent.get())["status"] == 200

    run(test)


def test_a_tenant_has_at_most_half_of_the_streams_that_others_leave(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MAX_STREAMS", 8)

    async def test(ask: Asking) -> None:
        async with AsyncExitStack() as stack:
            for tenant, least in (("ann", 4), ("bob", 2), ("cy", 1)):
                cookies = [await ask.session(f"{tenant}{number}", tenant) for number in range(2)]
                opened = [
                    await stack.enter_async_context(ask.stream(cookies[number % 2])) for number in range(least + 1)
                ]
                assert [(await sent.get())["status"] for sent in opened] == [200] * least + [503], tenant
        async with ask.stream(await ask.session("ann", "ann")) as sent:
            assert (await sent.get())["status"] == 200

    run(test)


def test_one_mirror_serves_all_browsers_with_a_token(run: Run) -> None:
    async def test(ask: Asking) -> None:
        first, second, other = await ask.session(), await ask.session(), await ask.session("other")
        async with ask.stream(first) as one, ask.stream(second) as two, ask.stream(other) as three:
            for sent in (one, two, three):
                await sent.get()
            assert len(ask.app._mirrors) == 2

    run(test)


# --- the front end -------------------------------------------------------------------------------------------------


def test_the_front_end_is_small() -> None:
    assert sum(path.stat().st_size for path in ASSETS.rglob("*") if path.is_file()) < MAX_FRONT_END


def test_the_front_end_asks_no_other_host_and_has_nothing_inline() -> None:
    for path in ASSETS.rglob("*"):
        if not path.is_file():
            continue
        text = path.read_text()
        hosts = set(re.findall(r"https?://[^\s\"'`)]+", text)) - {"http://www.w3.org/2000/svg"}
        assert hosts == set(), path
        if path.suffix == ".js":
            assert not re.search(r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|\beval\(", text), path
    page = (ASSETS / "index.html").read_text()
    assert not re.search(r"<script(?![^>]*src=)|<style|\sstyle=|\son\w+=", page)
