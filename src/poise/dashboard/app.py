"""The dashboard over HTTP: its files, its stream, its data, and its sessions.

    POST /link      with a token as `Authorization: Bearer …`: a link that is good once
    POST /session   {"link": "…"}: exchange it for the cookie of a session
    POST /leave     end the session
    GET  /sign-in   go to the sign-in issuer, which sends the browser back to /signed-in
    GET  /signed-in exchange the code of the issuer for the cookie of a session
    GET  /stream    server-sent events: the picture, then its changes; `Last-Event-ID` resumes
    GET  /data/…    further data for a view (`poise.dashboard.data`)
    GET  …          a file, or else the page, which knows the views

The files contain no user data and need no session. A request must name this machine as Host and must not come from
another site, so that no page elsewhere can use the cookie, whatever its name resolves to. Without TLS, only the names
of loopback count as this machine.
"""

import asyncio
import base64
import contextlib
import hashlib
import logging
import re
import secrets
from collections.abc import AsyncGenerator, Awaitable, Callable, Collection, Mapping, MutableMapping
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from http.cookies import CookieError, SimpleCookie
from pathlib import Path
from typing import Any, NamedTuple, TypeVar
from urllib.parse import parse_qsl, unquote
from weakref import WeakValueDictionary

import msgspec

from poise.client import Client
from poise.config import Home
from poise.dashboard.data import ROUTES, Kept
from poise.dashboard.mirror import LINGER, Mirror, client_for
from poise.dashboard.past import LookingBack
from poise.dashboard.services import services_of
from poise.dashboard.sessions import Session, Sessions, Viewer
from poise.dashboard.spent import spent_of
from poise.decoding import json_decoder
from poise.drivers.security import new_secret
from poise.errors import Busy, Denied, Fault, Forbidden, InputError, NotFound, PoiseError

T = TypeVar("T")
Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]

ASSETS = Path(__file__).with_name("assets")
TYPES = {
    ".html": "text/html; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".svg": "image/svg+xml",
    ".txt": "text/plain; charset=utf-8",
}
PAGE = "/index.html"

SECURITY = (
    (
        b"content-security-policy",
        b"default-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'; object-src 'none'",
    ),
    (b"x-content-type-options", b"nosniff"),
    (b"referrer-policy", b"no-referrer"),
    (b"cross-origin-opener-policy", b"same-origin"),
    (b"cross-origin-resource-policy", b"same-origin"),
)
"""Headers of every response."""

NO_STORE = (b"cache-control", b"no-store")
REVALIDATE = (b"cache-control", b"no-cache")

MAX_BODY = 4096
MAX_STREAMS, MAX_STREAMS_OF_ONE = 512, 16
"""Maximum numbers of open streams in all, and of one session; a browser opens one for all its tabs. A tenant may have
at most half of the streams that others leave.
"""

ASKS_AT_ONCE, ASKS_OF_ONE = 8, 4
"""Maximum numbers of concurrent requests to the control plane for pages in all, and for one tenant."""

SIGN_IN_SECONDS, SIGN_INS_AT_ONCE = 600, 4
"""Seconds within which a browser must return from the issuer, and maximum number of concurrent requests to it."""

LOOPBACK = frozenset({"localhost", "127.0.0.1", "[::1]"})
_HOST = re.compile(r"([a-z0-9._-]+|\[[0-9a-f:.]+\])(?::[0-9]{1,5})?")

_log = logging.getLogger("poise.dashboard")

NO_SESSION = "this browser has no session, or it is over"


class LinkRequest(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The secret of a one-time link."""

    link: str


class Made(msgspec.Struct, frozen=True):
    """A one-time link, without the address."""

    link: str


class _File(NamedTuple):
    body: bytes
    kind: str
    tag: str


class _WrongMethod(InputError):
    status = 405


class Dashboard:
    """ASGI application. `cookie` is the name of its cookie, which differs by port because cookies ignore ports. `names`
    are the names of this machine for remote browsers, which connect with TLS.
    """

    def __init__(self, home: Home, cookie: str, names: Collection[str] = ()) -> None:
        self.sessions = Sessions()
        self._home, self._cookie = home, cookie
        self._names = {f"[{name}]" if ":" in name else name.lower() for name in names}
        self._files = _files()
        of_home = {"services": services_of(home), "spent": spent_of(home)}
        self._kept = Kept(ROUTES | LookingBack(home).routes | of_home)
        self._mirrors: dict[str, Mirror] = {}
        self._looking: dict[str, int] = {}
        self._leaving: dict[str, asyncio.TimerHandle] = {}
        self._asks = asyncio.Semaphore(ASKS_AT_ONCE)
        self._asks_of: WeakValueDictionary[str, asyncio.Semaphore] = WeakValueDictionary()
        self._signing = ThreadPoolExecutor(SIGN_INS_AT_ONCE, "sign-in")

    def close(self) -> None:
        self._signing.shutdown(wait=False, cancel_futures=True)
        for mirror in self._mirrors.values():
            mirror.stop()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return
        headers = {name.decode("latin-1"): value.decode("latin-1") for name, value in scope["headers"]}
        try:
            self._check_origin(scope.get("scheme", "http"), headers)
            await self._answer(scope, headers, receive, send)
        except PoiseError as error:
            body = msgspec.json.encode({"error": error.record})
            await _send(send, error.status, body, (NO_STORE, (b"content-type", b"application/json")))
        except Exception as error:
            _log.error("%s %s failed", scope["method"], scope["path"], exc_info=error)
            fault = Fault(f"an internal error: {type(error).__name__}")
            body = msgspec.json.encode({"error": fault.record})
            await _send(send, fault.status, body, (NO_STORE, (b"content-type", b"application/json")))

    async def _answer(self, scope: Scope, headers: Mapping[str, str], receive: Receive, send: Send) -> None:
        method, path = scope["method"], scope["path"]
        if path in ("/link", "/session", "/leave"):
            _check_method(method, "POST")
            await self._enter_or_leave(scope, headers, receive, send)
            return
        _check_method(method, "GET")
        if path in ("/sign-in", "/signed-in"):
            await self._sign_in(scope, headers, send)
        elif path == "/stream":
            await self._stream(self._session(headers), headers, receive, send)
        elif path.startswith("/data/"):
            await self._data(self._session(headers), scope, send)
        else:
            await self._file(path, headers, send)

    # --- links and sessions ------------------------------------------------------------------------------------------

    def _check_origin(self, scheme: str, headers: Mapping[str, str]) -> None:
        """Raise `Forbidden` if the Host is not this machine, or the request comes from another site."""
        host, origin = headers.get("host", "").lower(), headers.get("origin")
        match = _HOST.fullmatch(host)
        if match is None or (match[1] not in LOOPBACK and (scheme != "https" or match[1] not in self._names)):
            raise Forbidden("the Host is not this machine", code="E131", field="Host", have=host[:80])
        if origin is not None and origin.lower() != f"{scheme}://{host}":
            raise Forbidden("requests from other sites are refused", code="E131", field="Origin", have=origin[:80])

    async def _enter_or_leave(self, scope: Scope, headers: Mapping[str, str], receive: Receive, send: Send) -> None:
        path, secure = scope["path"], "; Secure" if scope.get("scheme", "http") == "https" else ""
        if path == "/link":
            scheme, _, token = headers.get("authorization", "").partition(" ")
            if scheme.lower() != "bearer":
                raise Denied("the request carries no token", field="Authorization", hint="`poise dashboard`")
            tenant = await asyncio.to_thread(self._tenant_of, token)
            body = msgspec.json.encode(Made(self.sessions.link(token, tenant)))
            await _send(send, 200, body, (NO_STORE, (b"content-type", b"application/json")))
            return
        kept = f"Path=/; HttpOnly; SameSite=Strict{secure}"
        cookie = f"{self._cookie}=; Max-Age=0; {kept}"
        if path == "/session":
            secret = self.sessions.open((await _read(receive)).link)
            if secret is None:
                raise Denied(
                    "the link was used before, or has expired", field="link", hint="`poise dashboard` prints another"
                )
            cookie = f"{self._cookie}={secret}; {kept}"
        else:
            session = self.sessions.of(self._secret(headers))
            self.sessions.end(self._secret(headers))
            if session is not None and session.signed_in:
                with contextlib.suppress(PoiseError):  # the token expires by itself
                    await asyncio.to_thread(client_for(self._home, session.viewer.token).sign_out)
        await _send(send, 204, b"", (NO_STORE, (b"set-cookie", cookie.encode())))

    async def _sign_in(self, scope: Scope, headers: Mapping[str, str], send: Send) -> None:
        """Send the browser to the issuer, or exchange the code that the issuer gave it. The page shows the code of a
        refusal. No address is taken from the request, so nobody can be redirected elsewhere.
        """
        scheme, host, name = scope.get("scheme", "http"), headers["host"], f"{self._cookie}-sign-in"
        redirect, secure = f"{scheme}://{host}/signed-in", "; Secure" if scheme == "https" else ""
        kept = f"Path=/signed-in; HttpOnly; SameSite=Lax{secure}"
        cookies = [f"{name}=; Max-Age=0; {kept}"]
        try:
            if scope["path"] == "/sign-in":
                where, begun = await self._asked(self._begun, redirect)
                cookies = [f"{name}={begun}; Max-Age={SIGN_IN_SECONDS}; {kept}"]
            else:
                asked = dict(parse_qsl(scope["query_string"].decode("latin-1")))
                viewer = await self._asked(self._proved, asked, _cookie(headers, name), redirect)
                secret = self.sessions.begin(viewer, signed_in=True)
                where = "/"
                cookies.append(f"{self._cookie}={secret}; Path=/; HttpOnly; SameSite=Strict{secure}")
        except PoiseError as error:
            where = f"/#refused={error.record.code}"
        sent = [(b"set-cookie", cookie.encode()) for cookie in cookies]
        await _send(send, 303, b"", (NO_STORE, (b"location", where.encode()), *sent))

    async def _asked(self, ask: Callable[..., T], *arguments: object) -> T:
        """Ask the issuer, which may be slow, on a thread of sign-ins: anybody may sign in."""
        return await asyncio.get_running_loop().run_in_executor(self._signing, ask, *arguments)

    def _begun(self, redirect: str) -> tuple[str, str]:
        """Return the page of the issuer, and the secret state that the browser must present on its return."""
        state, nonce, verifier = (secrets.token_urlsafe(32) for _ in range(3))
        challenge = base64.urlsafe_b64encode(hashlib.sha256(verifier.encode()).digest()).decode().rstrip("=")
        with client_for(self._home, "") as client:
            page = client.start_page_sign_in(redirect=redirect, state=state, nonce=nonce, challenge=challenge)
        return page, f"{state}.{nonce}.{verifier}"

    def _proved(self, asked: Mapping[str, str], begun: str, redirect: str) -> Viewer:
        """Return the viewer whom the issuer has sent back. Raises `Denied`, also if this browser did not begin the
        sign-in.
        """
        state, _, rest = begun.partition(".")
        nonce, _, verifier = rest.partition(".")
        if not state or not secrets.compare_digest(asked.get("state", "").encode(), state.encode()):
            raise Denied("this browser has not begun a sign-in", code="E135", field="state", hint="sign in again")
        if not asked.get("code"):
            raise Denied("the issuer sent no code", code="E135", field="code", have=ascii(asked.get("error", "")[:80]))
        token = new_secret()
        with client_for(self._home, "") as client:
            told = client.sign_in(token, code=asked["code"], redirect=redirect, verifier=verifier, nonce=nonce)
        return Viewer(told.tenant, token)

    def _tenant_of(self, token: str) -> str:
        """Return the tenant of a token. Raises an error if the token is invalid."""
        with Client(self._home, token=token) as client:
            return client.whoami().tenant

    def _secret(self, headers: Mapping[str, str]) -> str:
        return _cookie(headers, self._cookie)

    def _session(self, headers: Mapping[str, str]) -> Session:
        session = self.sessions.of(self._secret(headers))
        if session is None:
            raise Denied(NO_SESSION, field="Cookie", hint="`poise dashboard` prints a link")
        return session

    # --- stream, data and files --------------------------------------------------------------------------------------

    async def _stream(self, session: Session, headers: Mapping[str, str], receive: Receive, send: Send) -> None:
        if session.streams >= MAX_STREAMS_OF_ONE:
            raise Busy("too many pages are open", need=f"at most {MAX_STREAMS_OF_ONE} of a browser", hint="close some")
        tenant = session.viewer.tenant
        theirs, others = self.sessions.streams(tenant)
        if theirs >= (MAX_STREAMS - others) // 2:
            need = f"at most half of the {MAX_STREAMS - others} that others leave"
            raise Busy(f"too many pages of tenant `{tenant}` are open", need=need, have=str(theirs), hint="close some")
        with self._looked_at(session) as mirror:
            kinds = (NO_STORE, (b"content-type", b"text/event-stream"), (b"x-accel-buffering", b"no"))
            await send({"type": "http.response.start", "status": 200, "headers": [*SECURITY, *kinds]})
            await _until_over(mirror.feed.stream(headers.get("last-event-id", "")), session, receive, send)

    @contextlib.contextmanager
    def _looked_at(self, session: Session) -> Any:
        """Yield the mirror of the session's token. A mirror is kept for a while after its last viewer has left."""
        token = session.viewer.token
        if (leaving := self._leaving.pop(token, None)) is not None:
            leaving.cancel()
        if token not in self._mirrors:
            self._mirrors[token] = Mirror(self._home, token, lambda: self._revoked(token))
        session.streams += 1
        self._looking[token] = self._looking.get(token, 0) + 1
        try:
            yield self._mirrors[token]
        finally:
            session.streams -= 1
            self._looking[token] -= 1
            if not self._looking[token]:
                del self._looking[token]
                self._leaving[token] = asyncio.get_running_loop().call_later(LINGER, self._left, token)

    def _left(self, token: str) -> None:
        self._leaving.pop(token, None)
        if (mirror := self._mirrors.pop(token, None)) is not None:
            mirror.stop()

    def _revoked(self, token: str) -> None:
        """Drop the sessions of a token that the control plane refuses, and all data kept for it."""
        self._mirrors.pop(token, None)
        self.sessions.forget(token)
        self._kept.forget(token)

    async def _data(self, session: Session, scope: Scope, send: Send) -> None:
        asked = dict(parse_qsl(scope["query_string"].decode("latin-1")))
        name = unquote(scope["path"].removeprefix("/data/"))
        connect = partial(client_for, self._home, session.viewer.token)
        of_tenant = self._asks_of.setdefault(session.viewer.tenant, asyncio.Semaphore(ASKS_OF_ONE))
        async with of_tenant, self._asks:
            try:
                body = await asyncio.to_thread(self._kept.answer, name, session.viewer.token, asked, connect)
            except Denied:
                self._revoked(session.viewer.token)
                raise
        await _send(send, 200, body, (NO_STORE, (b"content-type", b"application/json")))

    async def _file(self, path: str, headers: Mapping[str, str], send: Send) -> None:
        file = self._files.get(path)
        if file is None and Path(path).suffix in TYPES:
            raise NotFound("there is no such file", field="path", have=path[:200], hint="reload the page")
        file = file or self._files[PAGE]
        about = (REVALIDATE, (b"etag", file.tag.encode()), (b"content-type", file.kind.encode()))
        if headers.get("if-none-match") == file.tag:
            await _send(send, 304, b"", about)
        else:
            await _send(send, 200, file.body, about)


def _cookie(headers: Mapping[str, str], name: str) -> str:
    """Return the value of a cookie; empty if there is none."""
    try:
        found = SimpleCookie(headers.get("cookie", "")).get(name)
    except CookieError:
        found = None
    return found.value if found is not None else ""


def _files() -> dict[str, _File]:
    """Return the front end by path: some ten small files, kept in memory."""
    found = {}
    for path in ASSETS.rglob("*"):
        if path.suffix in TYPES:
            body = path.read_bytes()
            tag = f'"{hashlib.sha256(body).hexdigest()[:16]}"'
            found[f"/{path.relative_to(ASSETS).as_posix()}"] = _File(body, TYPES[path.suffix], tag)
    return found


def _check_method(method: str, allowed: str) -> None:
    if method != allowed:
        raise _WrongMethod("the path has no such method", need=allowed, have=method[:20])


async def _read(receive: Receive) -> LinkRequest:
    """Return the body of a request. Raises `InputError`."""
    body = b""
    while True:
        message = await receive()
        body += message.get("body", b"")
        if len(body) > MAX_BODY:
            raise InputError("the request is too large", need=f"at most {MAX_BODY} bytes")
        if not message.get("more_body", False):
            break
    try:
        return json_decoder(LinkRequest).decode(body)
    except msgspec.MsgspecError as error:
        raise InputError("the body is not a link", need='{"link": "…"}', have=str(error)[:80]) from None


async def _send(send: Send, status: int, body: bytes, headers: tuple[tuple[bytes, bytes], ...]) -> None:
    length = () if status in (204, 304) else ((b"content-length", b"%d" % len(body)),)
    await send({"type": "http.response.start", "status": status, "headers": [*SECURITY, *headers, *length]})
    await send({"type": "http.response.body", "body": body})


async def _until_over(pieces: AsyncGenerator[bytes], session: Session, receive: Receive, send: Send) -> None:
    """Send the pieces until they end, the session is over, or the browser disconnects."""

    async def write() -> None:
        async with contextlib.aclosing(pieces):
            async for piece in pieces:
                await send({"type": "http.response.body", "body": piece, "more_body": True})

    async def leave() -> None:
        while (await receive())["type"] != "http.disconnect":
            pass

    tasks = [asyncio.create_task(one) for one in (write(), leave(), session.over.wait())]
    try:
        await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for task in tasks:
            task.cancel()
        for failed in await asyncio.gather(*tasks, return_exceptions=True):
            if isinstance(failed, Exception):
                _log.error("a stream failed", exc_info=failed)
    await send({"type": "http.response.body", "body": b""})
