"""The HTTP API over a world in memory: every route, without a process, a socket or a disk."""

import asyncio
import contextlib
import json
import shutil
import tempfile
import weakref
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple, cast

import msgspec

from poise.config import Home
from poise.control import deadlines
from poise.control.api import make_app
from poise.control.chances import Chances
from poise.control.deciders import Deciders
from poise.control.guard import App
from poise.control.intensity import UNKNOWN
from poise.control.lifetime import Lifetime
from poise.control.observers import Observers, Timings
from poise.control.plane import Plane
from poise.control.storehouse import Storehouse
from poise.control.tally import Tally
from poise.drivers.blobs import Asked, Blobs, answered
from poise.drivers.security import digest
from poise.kernel.controller import Controller, Settings
from poise.kernel.ledger import Ledger
from poise.kernel.messages import AddToken
from poise.kernel.overview import Rates
from poise.model.chances import DeadlineQuestion
from poise.model.observed import Happened
from poise.model.reports.questions import DeadlineForecast
from poise.model.spec import Compiled
from poise.model.tenants import Role
from poise.model.times import Times
from poise.policy.suites import policy_named
from poise.testing import WALL, World

OWNER = "home"
PATIENCE = 10.0
FUTURES = 20


class Answer(NamedTuple):
    status: int
    body: bytes
    location: str = ""

    @property
    def value(self) -> Any:
        return json.loads(self.body)

    @property
    def code(self) -> str:
        code: str = self.value["error"]["code"]
        return code


class _Clock:
    def __init__(self, desk: "Desk") -> None:
        self._desk = desk

    def now(self) -> int:
        return self._desk.world.now

    def wall(self) -> float:
        return WALL


class _Plane:
    """What the routes ask of a plane, answered at once."""

    accepting = True
    behind: str | None = None
    away = ""

    def __init__(self, desk: "Desk") -> None:
        self._desk = desk
        self.clock = _Clock(desk)
        self.timings = Timings()
        self.observers = Observers()
        self.intensities = UNKNOWN
        self._tally, self._counted = Tally(lambda: self.ledger), 0

    @property
    def tally(self) -> Tally:
        """It has been told all that has happened by now."""
        events = tuple(self._desk.world.log[self._counted :])
        self._tally.observe(Happened(first=self._counted + 1, events=events))
        self._counted += len(events)
        return self._tally

    def check_leading(self) -> None:
        pass

    @property
    def controller(self) -> Controller:
        return self._desk.world.controller

    @property
    def ledger(self) -> Ledger:
        return self._desk.world.ledger

    def accepted(self) -> int:
        return 1

    async def settled(self) -> Ledger:
        return self.ledger

    async def prepare(self, document: Any, tenant: str, size: int) -> Compiled:
        return self.controller.prepare(document, WALL, self._desk.world.now, tenant)

    async def request(self, make: Any) -> Any:
        world = self._desk.world
        world.ask(make(world.request()))
        return world.replies[-1].value

    def ask(self, make: Any, answer: Any) -> None:
        world = self._desk.world
        world.say(make(world.request()))
        answer(world.replies[-1])

    def events_after(self, revision: int, limit: int) -> list[tuple[int, Any]]:
        return [*enumerate(self._desk.world.log, start=1)][revision : revision + limit]

    def follow(self) -> asyncio.Event:
        return asyncio.Event()

    def unfollow(self, news: asyncio.Event) -> None:
        pass

    async def over(self, job: str, units: tuple[str, ...], within: float) -> None:
        pass

    async def ends(self, job: str, within: float) -> None:
        await asyncio.sleep(0)

    def rates(self) -> Rates:
        return Rates(7.0, 7.0, 7.0)


class _Lifetime:
    def __init__(self) -> None:
        self.asked: list[str] = []

    def request(self) -> contextlib.AbstractContextManager[None]:
        return contextlib.nullcontext()

    def shut_down(self) -> None:
        self.asked.append("end")

    def stay(self) -> None:
        self.asked.append("stay")


class _Chances(Chances):
    """Answers in this process, from a few futures of the world as it is; `asked` are the questions."""

    def __init__(self, desk: "Desk") -> None:
        super().__init__(desk.plane, desk.home, joins_within=0.0)
        self._desk = desk
        self.asked: list[DeadlineQuestion] = []

    def answer(self, question: DeadlineQuestion) -> DeadlineForecast:
        self.asked.append(question)
        ledger = Ledger.decode(self._desk.world.ledger.encode())
        few = msgspec.structs.replace(question, futures=FUTURES, seconds=PATIENCE)
        return deadlines.answer(ledger, policy_named("poise"), Settings(), few)


class Kept(Storehouse):
    """Files that are kept here, and not in a process of their own."""

    def __init__(self) -> None:
        folder = tempfile.mkdtemp(prefix="poise-files-")
        super().__init__(Path(folder) / "files.db")
        weakref.finalize(self, shutil.rmtree, folder)

    async def ask(self, deed: str, tenant: str = "", tree: bytes = b"", data: bytes = b"") -> bytes:
        blobs = Blobs(self.path)
        try:
            return answered(blobs, Asked(1, deed, tenant, tree, data))
        finally:
            blobs.close()


class Desk:
    """Ask the API about a world. `tokens` are secrets: each is known by the name that it was given."""

    def __init__(self, world: World | None = None, logs: Path = Path("/nowhere"), known_as: Sequence[str] = ()) -> None:
        self.world = world or World()
        self.lifetime = _Lifetime()
        self.plane = cast(Plane, _Plane(self))
        self.home = Home(logs)
        self.chances = _Chances(self)
        self.app: App = make_app(
            self.plane,
            self.home,
            OWNER,
            cast(Lifetime, self.lifetime),
            Deciders(lambda: self.world.ledger.leader.began, Times()),
            known_as=known_as,
            chances=self.chances,
            files=Kept(),
        )

    def token(self, secret: str, tenant: str, role: Role, *, lasts: int = 0) -> str:
        """Let a secret in; its id."""
        request = self.world.request()
        self.world.ask(
            AddToken(request=request, tenant=tenant, role=role, hash=digest(secret), name=secret, lasts=lasts)
        )
        made: str = self.world.replies[-1].value.id
        return made

    def call(
        self,
        method: str,
        path: str,
        body: Any = None,
        *,
        who: str | None = OWNER,
        kind: str = "application/json",
        host: str = "poise",
        more: Mapping[str, str] | None = None,
    ) -> Answer:
        """`more` are further headers."""
        given = {"host": host, "content-type": kind, **(more or {})}
        return asyncio.run(asyncio.wait_for(self._call(method, path, body, who, given), PATIENCE))

    async def ask(self, method: str, path: str) -> Answer:
        """The same beside other work of a loop."""
        return await self._call(method, path, None, OWNER, {"host": "poise"})

    async def _call(self, method: str, path: str, body: Any, who: str | None, given: Mapping[str, str]) -> Answer:
        content = body if isinstance(body, bytes) else b"" if body is None else json.dumps(body).encode()
        route, _, query = path.partition("?")
        headers = [(name.lower().encode(), value.encode()) for name, value in given.items()]
        headers.append((b"content-length", str(len(content)).encode()))
        if who is not None:
            headers.append((b"authorization", f"Bearer {who}".encode()))
        websocket = method == "WEBSOCKET"
        scope: dict[str, Any] = {
            "type": "websocket" if websocket else "http",
            "asgi": {"version": "3.0"},
            "http_version": "1.1",
            "method": method,
            "path": route,
            "raw_path": route.encode(),
            "query_string": query.encode(),
            "root_path": "",
            "scheme": "http",
            "headers": headers,
            "client": ("127.0.0.1", 1),
            "server": ("127.0.0.1", 7717),
            "subprotocols": [],
            "state": {},
        }
        sent: list[Any] = []
        answered = asyncio.Event()
        todo = [{"type": "websocket.connect"} if websocket else {"type": "http.request", "body": content}]

        async def receive() -> Any:
            if todo:
                return todo.pop(0)
            if websocket:
                return {"type": "websocket.disconnect", "code": 1000}
            await answered.wait()
            return {"type": "http.disconnect"}

        async def send(message: Any) -> None:
            sent.append(message)
            if message["type"] == "http.response.body" and not message.get("more_body"):
                answered.set()

        await self.app(scope, receive, send)
        if websocket:
            first = sent[0]
            body = b"".join(of.get("body", b"") for of in sent if of["type"] == "websocket.http.response.body")
            return Answer(200 if first["type"] == "websocket.accept" else first["status"], body)
        start = next(of for of in sent if of["type"] == "http.response.start")
        content = b"".join(of.get("body", b"") for of in sent if of["type"] == "http.response.body")
        return Answer(start["status"], content, dict(start["headers"]).get(b"location", b"").decode())
