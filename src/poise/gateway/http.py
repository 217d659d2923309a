"""The HTTP server: uvicorn's, with a way of its own for questions to models, and bounds on what clients may take up.

A question (`POST /predict`) does not become a task and a chain of messages, as in ASGI: once its body is there it is
handed to its service, and the answer is written when the service tells it, in one piece. What else is asked goes to the
ASGI application. Several questions that come on one connection without waiting are answered in their order.

A client that goes away takes its questions along; one that does not take its answers is dropped.
"""

import asyncio
import contextlib
import http
import time
from collections import deque
from collections.abc import Iterator
from typing import Any, cast
from urllib.parse import unquote

import httptools
import uvicorn

from poise.gateway.app import Gateway, is_question
from poise.gateway.asgi import NoRoom
from poise.gateway.cached import Noted
from poise.gateway.connection import MOVED, Connection
from poise.gateway.refusals import MAX_BODY, Refused, no_room, refusal, too_large
from poise.gateway.service import ANYBODY, Asked, Asker
from poise.gateway.wire import Answer, error_body
from poise.kernel.batcher import Refuse

MOST_AHEAD = 64
"""Questions of one connection that are not answered; beyond that it is not read."""

LOOK_EVERY = 5.0
"""Seconds between two looks at a connection …"""

LOOK_AT_END = 0.02
"""… and between two at whether all have their answers, when the gateway ends."""

IDLE_LOOKS = 15
"""A connection on which nothing was asked for so many looks is closed."""

LINGER = 10.0
"""Seconds that the rest of a refused request is read, and dropped, until its sender hangs up."""

MAX_CONNECTIONS = 10_000

JSON = "application/json"
_LINES = {status.value: f"HTTP/1.1 {status.value} {status.phrase}\r\ncontent-type: " for status in http.HTTPStatus}


class Question:
    """One request to a service. `answer` is what is to be written; nothing as long as it is not there. `whole`: its
    body has come.
    """

    __slots__ = ("answer", "asker", "body", "deferred", "last", "number", "service", "size", "timeout", "whole")

    def __init__(self, service: Asked | None, timeout: int, deferred: bool, asker: Asker = ANYBODY) -> None:
        self.service = service
        self.timeout = timeout
        self.deferred = deferred
        self.asker = asker
        self.body: list[bytes] = []
        self.size = 0
        self.number = 0
        self.answer = b""
        self.last = False
        self.whole = False


class Protocol(Connection):
    """One connection."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._gateway = cast(Gateway, self.app)
        self._coming: Question | None = None
        self._asked: deque[Question] = deque()
        self._deaf = False  # nothing that comes is read any more: the answer that closes it is on its way
        self._seen = -1
        self._unsent = 0
        self._idle = 0
        self._end: asyncio.TimerHandle | None = None

    # --- what comes --------------------------------------------------------------------------------------------------

    def data_received(self, data: bytes) -> None:
        if self._deaf:
            self._got += len(data)
        else:
            super().data_received(data)

    def on_headers_complete(self) -> None:
        if self._deaf:
            return
        path = _path(self.url)
        if not is_question(path) or self.parser.get_method() != b"POST":
            if self._asked:
                self._begin(None)
                self._refuse(self._asked[-1], Refused(400, "ask this on a connection of its own"), last=True)
                return
            super().on_headers_complete()
            return
        self._in_headers = False
        if super()._is_answering():  # what was asked first is answered, and nothing after it: that is asked again
            self.cycle.keep_alive = False
            self._deaf = True
            return
        try:
            if self.parser.should_upgrade():  # whose body the parser does not read
                raise Refused(400, "only HTTP/1.1 is spoken here; ask without the header Upgrade")
            asked = self._gateway.admit(path, self.headers)
        except Refused as error:
            self._begin(None)
            self._refuse(self._asked[-1], error, last=True)
            return
        self._begin(Question(*asked))
        if self.expect_100_continue:
            self.transport.write(b"HTTP/1.1 100 Continue\r\n\r\n")

    def on_body(self, body: bytes) -> None:
        question = self._coming
        if question is not None:
            question.body.append(body)
            question.size += len(body)
            try:
                self._gateway.room.take(len(body))
            except NoRoom:
                self._refuse(question, no_room(), last=True)
            else:
                if question.size > MAX_BODY:
                    self._refuse(question, too_large(), last=True)
        elif not self._deaf:
            super().on_body(body)

    def on_message_complete(self) -> None:
        question, self._coming = self._coming, None
        if question is None:
            if not self._deaf and self.cycle is not None:
                super().on_message_complete()
            return
        self._expect(False)
        question.whole = True
        question.last = self._gateway.draining or not self.parser.should_keep_alive()
        service = cast(Asked, question.service)
        body = question.body[0] if len(question.body) == 1 else b"".join(question.body)
        question.body.clear()
        question.number = service.ask(
            body, lambda told: self._tell(question, told), question.timeout, question.deferred, question.asker
        )
        if len(self._asked) > MOST_AHEAD:
            self.flow.pause_reading()

    def send_400_response(self, msg: str) -> None:
        """What cannot be read is answered in its turn."""
        if self._deaf:
            return
        if self._coming is None:
            if super()._is_answering():
                super().send_400_response(msg)
                return
            self._begin(None)
        self._refuse(self._asked[-1], Refused(400, msg), last=True)

    def connection_lost(self, exc: Exception | None) -> None:
        for question in self._asked:
            self._gateway.room.give_back(question.size)
            if question.service is not None and question.number and not question.answer:
                question.service.cancel(question.number)
        self._asked.clear()
        self._deaf = True
        if self._end is not None:
            self._end.cancel()
        super().connection_lost(exc)

    # --- what is answered --------------------------------------------------------------------------------------------

    def _begin(self, question: Question | None) -> None:
        self._coming = question
        self._asked.append(question or Question(None, 0, False))

    def _tell(self, question: Question, told: Answer | Refuse) -> None:
        if isinstance(told, Noted):
            self._write(question, told.status, told.kind, told.body, f"{told.note}\r\n")
        elif isinstance(told, Answer):
            self._write(question, told.status, told.kind, told.body)
        else:
            self._refuse(question, refusal(told))

    def _refuse(self, question: Question, error: Refused, *, last: bool = False) -> None:
        """Tell an error in the one form of all errors; after the `last` nothing is read any more."""
        if last:
            self._expect(False)
            self._deaf = question.last = True
            self._coming = None
            question.body.clear()
        body = error_body(error.status, error.message)
        more = "".join(f"{name}: {value}\r\n" for name, value in error.headers.items())
        self._write(question, error.status, JSON, body, more)

    def _write(self, question: Question, status: int, kind: str, body: bytes, more: str = "") -> None:
        close = "connection: close\r\n" if question.last else ""
        head = f"{_LINES[status]}{kind}\r\ncontent-length: {len(body)}\r\n{more}{close}\r\n"
        question.answer = head.encode("latin-1") + body
        self._gateway.room.give_back(question.size)
        question.size = 0
        asked = self._asked
        if asked and asked[0] is question and len(asked) == 1:
            asked.clear()
            self._send(question)
            return
        while asked and asked[0].answer:
            self._send(asked.popleft())
        if len(asked) <= MOST_AHEAD // 2:
            self.flow.resume_reading()

    def _send(self, question: Question) -> None:
        if not self.transport.is_closing():
            self.transport.write(question.answer)
            if question.last and question.whole:
                self.transport.close()
            elif question.last:  # closed while its body still comes, whoever sends it would not read the answer
                self.transport.write_eof()
                self._end = self.loop.call_later(LINGER, self.transport.abort)

    # --- who does not get on -----------------------------------------------------------------------------------------

    def _is_answering(self) -> bool:
        return bool(self._asked) or super()._is_answering()

    @property
    def owes(self) -> bool:
        """Whether an answer is still to come, or to be taken by whoever asked."""
        return self._is_answering() or (self.transport is not None and self.transport.get_write_buffer_size() > 0)

    def look(self) -> None:
        """Drop it as well if hardly anything of what waits to be sent was taken since the last look; close it if
        nothing was asked for a while.
        """
        super().look()
        if self.transport is None:
            return
        unsent = self.transport.get_write_buffer_size()
        stuck = self._unsent > 0 and unsent > max(0, self._unsent - MOVED)
        self._idle = 0 if self._is_answering() or self._got != self._seen else self._idle + 1
        self._seen, self._unsent = self._got, unsent
        if stuck:
            self.transport.abort()
        elif self._idle > IDLE_LOOKS:
            self.transport.close()


def _path(url: bytes) -> str:
    """Of what is asked for; the whole address may be there, as for a proxy."""
    path = url.partition(b"?")[0] if url.startswith(b"/") else httptools.parse_url(url).path or b""
    text = path.decode("ascii", "replace")
    return unquote(text) if "%" in text else text


class Server(uvicorn.Server):
    """Looks at its connections now and then; goes on to its end when it is told to stop, instead of raising the signal
    again.
    """

    def __init__(self, gateway: Gateway) -> None:
        super().__init__(
            uvicorn.Config(
                gateway,
                loop="uvloop",
                http=Protocol,
                ws="none",
                lifespan="off",
                access_log=False,
                log_config=None,
                server_header=False,
                date_header=False,
                proxy_headers=False,
                limit_concurrency=MAX_CONNECTIONS,
                timeout_graceful_shutdown=1,
            )
        )
        self._looked = 0.0

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield

    async def taken(self) -> None:
        """Until every client has what it was answered, as far as that can be known here."""
        while any(cast(Protocol, one).owes for one in self.server_state.connections):  # noqa: ASYNC110 — nobody tells
            await asyncio.sleep(LOOK_AT_END)

    async def on_tick(self, counter: int) -> bool:
        now = time.monotonic()
        if now - self._looked >= LOOK_EVERY:
            self._looked = now
            for connection in list(self.server_state.connections):
                cast(Protocol, connection).look()
        return await super().on_tick(counter)


__all__ = ["Server"]
