"""Sign-in at the dashboard: by code, PKCE, state and nonce, against an issuer and a control plane at their sockets."""

import asyncio
from collections.abc import Callable, Coroutine, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl, urlsplit

import pytest
from provider import SECRET, Provider, providing, settings

from unit.control.open_door import OpenDoor, entered, open_door
from unit.dashboard.test_app import HOST, Answer, Asking

Use = Callable[[Asking, OpenDoor], Coroutine[Any, Any, None]]


@pytest.fixture(scope="module")
def provider() -> Iterator[Provider]:
    with providing() as made:
        made.redirects = [f"http://{HOST}/signed-in"]
        yield made


@pytest.fixture
def run(tmp_path: Path, provider: Provider) -> Callable[[Use], None]:
    home = tmp_path / "home"
    home.mkdir(mode=0o700)
    (home / "sign-in.yaml").write_text(settings(provider))
    (home / "secret").write_text(SECRET)
    (home / "secret").chmod(0o600)

    async def whole(use: Use) -> None:
        ask = Asking(tmp_path)
        try:
            async with open_door(home) as door, entered(door.app, home / "poise.sock"):
                await asyncio.wait_for(use(ask, door), 30)
        finally:
            ask.app.close()

    return lambda use: asyncio.run(whole(use))


def place(url: str) -> str:
    """What a browser asks this dashboard for."""
    split = urlsplit(url)
    assert f"{split.scheme}://{split.netloc}" == f"http://{HOST}"
    return f"{split.path}?{split.query}"


async def begun(ask: Asking, provider: Provider) -> tuple[str, str]:
    """The cookie of a browser, and the place where the issuer sends it."""
    answer = await ask("GET", "/sign-in?next=https://evil.example")
    cookie = answer.headers["set-cookie"]
    assert (answer.status, "SameSite=Lax" in cookie, "HttpOnly" in cookie) == (303, True, True)
    return cookie.partition(";")[0], place(provider.signs_in(answer.headers["location"]))


def refused(answer: Answer) -> str:
    assert (answer.status, "SameSite=Strict" in answer.headers["set-cookie"]) == (303, False)
    return answer.headers["location"].removeprefix("/#refused=")


def test_a_browser_signs_in_once_and_its_token_ends_with_it(run: Callable[[Use], None], provider: Provider) -> None:
    async def use(ask: Asking, door: OpenDoor) -> None:
        tokens = door.plane.ledger.tokens
        cookie, back = await begun(ask, provider)
        answer = await ask("GET", f"{back}&next=https://evil.example", cookie=cookie)
        assert (answer.status, answer.headers["location"]) == (303, "/")
        session = answer.headers["set-cookie"].partition(";")[0]
        assert session.startswith("poise-1=") and "SameSite=Strict" in answer.headers["set-cookie"]
        told = await ask("GET", "/data/whoami", cookie=session)
        assert (told.status, tokens["t1"].tenant) == (200, "vision"), told.body
        assert refused(await ask("GET", back, cookie=cookie)) == "E135", "a code is good once"
        assert (await ask("POST", "/leave", cookie=session)).status == 204
        assert tokens["t1"].revoked

    run(use)


def test_a_browser_that_did_not_begin_gets_no_session(run: Callable[[Use], None], provider: Provider) -> None:
    async def use(ask: Asking, door: OpenDoor) -> None:
        own, _ = await begun(ask, provider)
        _, of_another = await begun(ask, provider)
        state = own.partition("=")[2].partition(".")[0]
        code = dict(parse_qsl(of_another.partition("?")[2]))["code"]
        for cookie, path in (
            ("", of_another),
            (own, of_another),
            (own, f"/signed-in?code={code}&state={state}"),  # another's code: its verifier is missing
            (own, f"/signed-in?error=access_denied&state={state}"),
            ("poise-1-sign-in=..", "/signed-in?code=x&state="),
            ("poise-1-sign-in=", "/signed-in"),
        ):
            assert refused(await ask("GET", path, cookie=cookie)) == "E135", path
        assert not door.plane.ledger.tokens

    run(use)


def test_a_refusal_is_shown_by_its_code(run: Callable[[Use], None], provider: Provider) -> None:
    async def use(ask: Asking, door: OpenDoor) -> None:
        before = provider.person
        try:
            for person, code in (({"groups": ["guests"]}, "E136"), ({"nonce": "another"}, "E135")):
                provider.person = before | person
                provider.forge = lambda claims: provider.key.token(claims | provider.person)
                cookie, back = await begun(ask, provider)
                assert refused(await ask("GET", back, cookie=cookie)) == code
        finally:
            provider.person, provider.forge = before, None
        assert not door.plane.ledger.tokens

    run(use)


def test_other_sites_hosts_and_methods_are_refused(run: Callable[[Use], None]) -> None:
    async def use(ask: Asking, door: OpenDoor) -> None:
        assert (await ask("GET", "/sign-in", host="evil.example")).status == 403
        assert (await ask("GET", "/sign-in", origin="https://evil.example")).status == 403
        assert (await ask("POST", "/sign-in")).status == 405

    run(use)


def test_a_slow_issuer_keeps_no_page_waiting(run: Callable[[Use], None], provider: Provider) -> None:
    async def use(ask: Asking, door: OpenDoor) -> None:
        asyncio.get_running_loop().set_default_executor(ThreadPoolExecutor(1))
        provider.open.clear()
        provider.asked.clear()
        try:
            waiting = asyncio.create_task(ask("GET", "/sign-in"))
            while not provider.asked:  # noqa: ASYNC110 — another thread appends
                await asyncio.sleep(0.01)
            await asyncio.wait_for(asyncio.to_thread(provider.open.set), 20)
            assert (await waiting).status == 303
        finally:
            provider.open.set()

    run(use)
