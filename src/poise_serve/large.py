"""Limits the concurrency of large JSON requests, so that small requests do not wait for all of them.

A replica parses JSON bodies, at up to 60 ms per MiB: one body of 64 MiB blocks a replica for seconds, and four in one
batch block it four times as long. So only one large request to a service is served at a time (or one less than the
number of replicas), in the deferred lane. After it there is a pause of the same duration while small requests are
pending. Models that decode bytes themselves need no JSON parsing, and are not limited.
"""

import asyncio
from collections import deque

from msgspec.structs import replace

from poise.units import SECOND
from poise_serve.kernel.batcher import Refuse
from poise_serve.service import ANYBODY, Asked, Asker, Service, Tell
from poise_serve.wire import Answer

LARGE = 1 << 20
"""Minimum size in bytes of a large request."""

JSON = "application/json"


class _Question:
    def __init__(self, number: int, body: bytes, tell: Tell, due: float, asker: Asker) -> None:
        self.number = number
        self.body = body
        self.tell = tell
        self.due = due  # seconds, on the loop's clock
        self.asker = asker
        self.began = 0.0
        self.behind = 0  # its number at `behind`, once it is sent
        self.timer: asyncio.TimerHandle | None = None


class Large:
    """Takes requests like the receiver `behind` it, of a `service`. Large requests have negative numbers."""

    def __init__(self, behind: Asked, service: Service) -> None:
        self._behind = behind
        self._service = service
        self._count = 0
        self._waiting: deque[_Question] = deque()
        self._asked: dict[int, _Question] = {}
        self._rests_until = 0.0
        self._timer: asyncio.TimerHandle | None = None

    def ask(self, body: bytes, tell: Tell, timeout: int = 0, deferred: bool = False, asker: Asker = ANYBODY) -> int:
        """See `Asked.ask`."""
        if len(body) < LARGE or JSON not in self._service.forms.takes:
            return self._behind.ask(body, tell, timeout, deferred, asker)
        loop, limits = asyncio.get_running_loop(), self._service.batcher.limits
        patience = (min(timeout, limits.timeout) if timeout else limits.timeout) / SECOND
        self._count += 1
        question = _Question(-self._count, body, tell, loop.time() + patience, asker)
        question.timer = loop.call_later(patience, self._expire, question)
        self._waiting.append(question)
        self._go_on()
        return question.number

    def cancel(self, number: int) -> None:
        if number > 0:
            self._behind.cancel(number)
        elif (asked := self._asked.get(number)) is not None:
            self._behind.cancel(asked.behind)
            self._leave(asked)
        else:
            for question in [one for one in self._waiting if one.number == number]:
                self._drop(question)

    def drop(self) -> None:
        """Refuse all waiting large requests."""
        for question in list(self._waiting):
            self._drop(question)
            question.tell(Refuse(question.number, "ending", "the gateway is ending"))

    async def drained(self) -> None:
        """Wait until all large requests are answered."""
        while self._waiting or self._asked:  # noqa: ASYNC110 — at the end only
            await asyncio.sleep(0.02)

    # --- turns -------------------------------------------------------------------------------------------------------

    def _go_on(self) -> None:
        loop = asyncio.get_running_loop()
        while self._waiting and len(self._asked) < max(1, self._service.replicas - 1):
            if (rest := self._rests_until - loop.time()) > 0 and self._is_busy():
                if self._timer is None:
                    self._timer = loop.call_later(rest, self._rested)
                return
            self._send(self._waiting.popleft())

    def _rested(self) -> None:
        self._timer, self._rests_until = None, 0.0
        self._go_on()

    def _is_busy(self) -> bool:
        """Whether other requests are pending."""
        batcher = self._service.batcher
        return batcher.waiting + batcher.serving > len(self._asked)

    def _send(self, question: _Question) -> None:
        loop = asyncio.get_running_loop()
        if question.timer is not None:
            question.timer.cancel()
        question.began = loop.time()
        self._asked[question.number] = question
        left = max(1, int((question.due - question.began) * SECOND))
        asker = replace(question.asker, came=0)  # what is left of its time begins now
        number = self._behind.ask(question.body, lambda told: self._told(question, told), left, True, asker)
        question.behind = number

    def _told(self, question: _Question, told: Answer | Refuse) -> None:
        self._leave(question)
        question.tell(told)

    def _leave(self, question: _Question) -> None:
        """End a large request, and start the pause before the next one."""
        if self._asked.pop(question.number, None) is not None:
            loop = asyncio.get_running_loop()
            self._rests_until = loop.time() + (loop.time() - question.began)
            loop.call_soon(self._go_on)

    def _expire(self, question: _Question) -> None:
        self._drop(question)
        question.tell(Refuse(question.number, "expired", "its turn did not come in time: others ask as much as well"))

    def _drop(self, question: _Question) -> None:
        self._waiting.remove(question)
        if question.timer is not None:
            question.timer.cancel()


__all__ = ["LARGE", "Large"]
