"""The API before a real control plane and its log, in this process: requests, and WebSockets that stay open."""

import asyncio
import contextlib
import json
import signal
import socket
import ssl
from collections.abc import AsyncIterator, Callable, Mapping, MutableMapping
from pathlib import Path
from typing import Any, cast

import msgspec

from poise.config import Home
from poise.control.api import make_app
from poise.control.decider import InlineDecider
from poise.control.deciders import Deciders
from poise.control.entrance import Entrance
from poise.control.guard import App
from poise.control.lifetime import Lifetime
from poise.control.lines import HEAR_NOW
from poise.control.plane import Plane, clock_of
from poise.drivers import sockets
from poise.drivers.plugins import build, choose
from poise.drivers.security import digest
from poise.drivers.sqlite import SqliteStore
from poise.engine.host import load_ledger
from poise.kernel.controller import Controller, Settings
from poise.kernel.messages import AddToken
from poise.model.events import Event, decode_event, encode_event
from poise.model.tenants import Role
from poise.model.times import Times
from unit.control.desk import OWNER, Answer

POLICY = build(choose("poise"))
PATIENCE = 30.0


class Line:
    """One WebSocket: what is said into it, and what comes out of it."""

    def __init__(self, door: "OpenDoor", path: str, secret: str | None, more: Mapping[str, str]) -> None:
        self._inward: asyncio.Queue[dict[str, Any]] = asyncio.Queue()
        self._outward: asyncio.Queue[MutableMapping[str, Any]] = asyncio.Queue()
        self._inward.put_nowait({"type": "websocket.connect"})
        scope = door.scope("websocket", "GET", path, secret, more)
        scope["extensions"] = {HEAR_NOW: self._takes}
        self._taker: Callable[[bytes], bool] = lambda _: False
        self.task = asyncio.create_task(self._served(door.app, scope))

    async def _served(self, app: App, scope: dict[str, Any]) -> None:
        async def send(message: MutableMapping[str, Any]) -> None:
            self._outward.put_nowait(message)

        await app(scope, self._inward.get, send)

    async def accepted(self) -> bool:
        """Whether it was let in."""
        accepted: bool = (await self._next())["type"] == "websocket.accept"
        return accepted

    def _takes(self, taker: Callable[[bytes], bool]) -> None:
        self._taker = taker

    def offer(self, message: Any) -> bool:
        """Offer a word as it is read; return whether it was taken."""
        return self._taker(msgspec.msgpack.encode(message))

    def say(self, message: Any) -> None:
        self._inward.put_nowait({"type": "websocket.receive", "bytes": msgspec.msgpack.encode(message)})

    async def hear(self) -> Any:
        """The next word, as plain values; what it is ended with where it is ended."""
        message = await self._next()
        return msgspec.msgpack.decode(message["bytes"]) if message["type"] == "websocket.send" else message

    @property
    def unread(self) -> int:
        """How much of what was said into it the other side has not taken."""
        return self._inward.qsize()

    async def over(self) -> None:
        """Wait until the other side has ended it."""
        await asyncio.wait_for(asyncio.shield(self.task), PATIENCE)

    async def _next(self) -> MutableMapping[str, Any]:
        return await asyncio.wait_for(self._outward.get(), PATIENCE)

    async def close(self) -> None:
        self._inward.put_nowait({"type": "websocket.disconnect", "code": 1000})
        await self.over()


class OpenDoor:
    """A control plane that runs on this loop. `token` makes tokens: secrets are known by the name that was given."""

    def __init__(self, plane: Plane, home: Home) -> None:
        self.plane = plane
        lifetime = cast(Lifetime, _Lifetime())
        self.app = make_app(plane, home, OWNER, lifetime, Deciders(lambda: plane.ledger.leader.began, Times()))

    async def token(self, secret: str, tenant: str, role: Role, *, name: str = "", account: str = "") -> None:
        hashed, name = digest(secret), name or secret
        await self.plane.request(
            lambda request: AddToken(request=request, tenant=tenant, role=role, hash=hashed, name=name, account=account)
        )

    def dial(self, path: str, secret: str | None, more: Mapping[str, str] | None = None) -> Line:
        return Line(self, path, secret, more or {})

    async def call(self, method: str, path: str, body: Any = None, secret: str | None = OWNER) -> Answer:
        content = b"" if body is None else json.dumps(body).encode()
        sent: list[dict[str, Any]] = []
        todo = [{"type": "http.request", "body": content}]

        async def receive() -> dict[str, Any]:
            return todo.pop() if todo else {"type": "http.disconnect"}

        async def send(message: Any) -> None:
            sent.append(message)

        more = {"content-type": "application/json", "content-length": str(len(content))}
        await asyncio.wait_for(self.app(self.scope("http", method, path, secret, more), receive, send), PATIENCE)
        status = next(of["status"] for of in sent if of["type"] == "http.response.start")
        return Answer(status, b"".join(of.get("body", b"") for of in sent))

    def scope(self, kind: str, method: str, path: str, secret: str | None, more: Mapping[str, str]) -> dict[str, Any]:
        path, _, query = path.partition("?")
        headers = {"host": "poise"} | {name.lower(): value for name, value in more.items()}
        if secret is not None:
            headers["authorization"] = f"Bearer {secret}"
        return {
            "type": kind,
            "asgi": {"version": "3.0"},
            "http_version": "1.1",
            "method": method,
            "path": path,
            "raw_path": path.encode(),
            "query_string": query.encode(),
            "root_path": "",
            "scheme": "http",
            "headers": [(name.encode(), value.encode()) for name, value in headers.items()],
            "client": ("127.0.0.1", 1),
            "server": ("127.0.0.1", 7717),
            "subprotocols": [],
            "state": {},
        }


class _Lifetime:
    """Nothing ends by itself."""

    def request(self) -> contextlib.AbstractContextManager[None]:
        return contextlib.nullcontext()


@contextlib.asynccontextmanager
async def open_door(folder: Path) -> AsyncIterator[OpenDoor]:
    loop = asyncio.get_running_loop()
    store: SqliteStore[Event] = SqliteStore(
        folder / "log.db", encode_event, decode_event, call_soon=loop.call_soon_threadsafe
    )
    controller = Controller(load_ledger(store), Settings(policy="poise"))
    plane = Plane(controller, store, clock_of(controller.ledger), InlineDecider(POLICY))
    plane.begin(boot="boot", boottime=0)
    try:
        yield OpenDoor(plane, Home(folder))
    finally:
        plane.end()


@contextlib.asynccontextmanager
async def entered(app: App, path: Path, context: ssl.SSLContext | None = None) -> AsyncIterator[Entrance]:
    """Let in whoever connects to a socket: that of a path, or with TLS that of an address."""
    listening = sockets.listen(path) if context is None else socket.create_server(("127.0.0.1", 0))
    entrance = Entrance(app, [listening], context)
    serving = asyncio.create_task(entrance.open(lambda: None))
    while not entrance.started:
        assert not serving.done(), serving.result()
        await asyncio.sleep(0.001)
    try:
        yield entrance
    finally:
        entrance.handle_exit(signal.SIGTERM, None)
        await serving
