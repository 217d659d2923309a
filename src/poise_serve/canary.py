"""Canary trial of a service version: which requests it gets, which answers are compared, and how the trial ends.

Clients lose nothing: a request goes to stable if the canary answers with another status than 200, or not within half of
the timeout, or loses its last replica. A request that was lost with a canary replica is not sent to another one, and
stable serves it alone: a request that kills its server kills at most one of each version. Only requests that stable has
answered are copied. Each version has its own cache, and cached answers are not counted.
"""

import asyncio
import time
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any, Literal, NamedTuple

import msgspec

from poise.errors import InputError
from poise.model.canary import KEPT, Judgement, Stage, Tally, TrialRules
from poise_serve.kernel.batcher import Refuse
from poise_serve.kernel.quarantine import LOSSES
from poise_serve.policy.canary import NOTHING, agrees, judge
from poise_serve.recording import read_recorded
from poise_serve.service import ANYBODY, Asked, Asker, Service, Tell
from poise_serve.wire import Answer

LOOK_AFTER = 10
"""Number of canary answers between two judgements."""

AT_ONCE = 4
"""Maximum number of concurrent recorded requests."""

MOST_COPIED = 64 << 20
"""Maximum bytes of unanswered copies with their stable answers, so that a slow or hung canary gets no more copies. A
single copy may be larger.
"""


class Version(NamedTuple):
    """A version. `front` receives its requests: the service, or its cache."""

    service: Service
    front: Asked


class Trial:
    """Takes requests like a `Service`, during the trial and shortly after it."""

    def __init__(
        self,
        name: str,
        rules: TrialRules,
        stable: Version,
        canary: Version,
        measure: Callable[[float, int], None],
        say: Callable[[str], None],
    ) -> None:
        """`measure` gets the canary's share of requests, and the state: 0 running, 1 promoted, 2 rolled back."""
        self.name = name
        self.rules = rules
        self.ended: asyncio.Future[bool] = asyncio.get_running_loop().create_future()
        """Resolves to whether the canary is promoted."""
        self.state: Literal["running", "promoted", "rolled back"] = "running"
        self._stable, self._canary = stable, canary
        self._measure, self._say = measure, say
        self._stage = -1
        self._judged = Judgement("go on", ())
        self._of_stable, self._of_canary = Tally(), Tally()
        self._due = 0.0  # fraction of a request due to the canary
        self._asked = 0
        self._open: dict[int, _Open] = {}
        self._emptied = asyncio.Event()
        self._copies: set[_Copy] = set()
        self._copied = 0  # bytes
        self._closing = False
        self._sent = 0  # to the canary as part of the trial
        self._behind: int | None = None  # unanswered requests sent before the canary's first answer
        self._no_sample: Answer | Refuse | None = None
        self._replay: asyncio.Task[None] | None = None
        stable.service.listeners.append(self._heard_stable)
        canary.service.listeners.append(self._heard_canary)
        canary.service.batcher.losses = 1
        self._next_stage("")

    @property
    def canary(self) -> Service:
        """The service on trial."""
        return self._canary.service

    @property
    def stage(self) -> Stage:
        """Current stage; after the last one, the last."""
        return self.rules.stages[min(self._stage, len(self.rules.stages) - 1)]

    def report(self) -> dict[str, Any]:
        """Status of the trial for `/canaries`."""
        return {
            "state": self.state,
            "stage": str(self.stage),
            "stages": [str(stage) for stage in self.rules.stages],
            "answered": {"stable": self._of_stable.answered, "canary": self._of_canary.answered},
            "found": list(self._judged.reasons),
        }

    # --- requests ----------------------------------------------------------------------------------------------------

    def ask(self, body: bytes, tell: Tell, timeout: int = 0, deferred: bool = False, asker: Asker = ANYBODY) -> int:
        """See `Service.ask`."""
        self._asked += 1
        entry = _Open(self._asked, body, tell, time.monotonic_ns(), timeout, deferred, asker)
        self._open[self._asked] = entry
        if self._running("share") and self._turn():
            patience = min(filter(None, (timeout, self._canary.service.batcher.limits.timeout)))
            self._sent += 1
            self._pass_on(entry, self._canary.front, self._told_by_canary, max(1, patience // 2))
        else:
            self._pass_on(entry, self._stable.front, self._told, timeout)
        return entry.number

    def changed(self) -> None:
        """Handle a change of the canary's replicas. Without replicas, send its requests to stable."""
        if self._canary.service.replicas:
            return
        for entry in [entry for entry in self._open.values() if entry.asked is self._canary.front]:
            self._canary.front.cancel(entry.there)
            self._of_canary.add(ok=False)
            self._ask_stable(entry)
        self._look()

    def cancel(self, number: int) -> None:
        """See `Service.cancel`."""
        entry = self._closed(number)
        if entry is None or entry.asked is None:
            return
        entry.asked.cancel(entry.there)
        if entry.asked is self._canary.front and self._took_too_long(time.monotonic_ns() - entry.came):
            self._count(ok=False)

    async def drained(self) -> None:
        """Wait until all requests are answered."""
        while self._open:
            self._emptied.clear()
            await self._emptied.wait()

    def close(self) -> None:
        """Cancel requests without a client, such as copies and recorded ones, when the gateway stops."""
        self._closing = True
        if self._replay is not None:
            self._replay.cancel()
        for copy in self._copies:
            self._canary.service.cancel(copy.number)
        self._copies.clear()

    def _closed(self, number: int) -> "_Open | None":
        entry = self._open.pop(number, None)
        if not self._open:
            self._emptied.set()
        return entry

    def _took_too_long(self, waited: int) -> bool:
        """Whether a client that disconnected had waited longer than stable's slowest answer. A hung canary may show no
        other sign.
        """
        longest = max(self._of_stable.took, default=0)
        return longest > 0 and waited > max(self.rules.latency * longest, longest + NOTHING)

    def _pass_on(
        self, entry: "_Open", front: Asked, told: Callable[["_Open", Answer | Refuse], None], timeout: int
    ) -> None:
        entry.asked = front
        number = front.ask(entry.body, partial(told, entry), timeout, entry.deferred, entry.asker)
        if entry.asked is front:  # otherwise it was refused at once, and is already sent elsewhere
            entry.there = number

    def _ask_stable(self, entry: "_Open") -> None:
        """Send the request to stable, in the remaining time. Its answer is not counted: the canary's failures would
        bias the sample.
        """
        entry.again = True
        left = entry.timeout and max(1, entry.timeout - (time.monotonic_ns() - entry.came))
        self._pass_on(entry, self._stable.front, self._told, left)

    def _told(self, entry: "_Open", told: Answer | Refuse) -> None:
        self._no_sample = told if entry.again else None
        if self._closed(entry.number) is not None:
            entry.tell(told)

    def _told_by_canary(self, entry: "_Open", told: Answer | Refuse) -> None:
        if isinstance(told, Answer) and told.status == 200:
            self._told(entry, told)
        elif entry.number in self._open:
            if isinstance(told, Refuse) and told.why == "lost":
                self._stable.service.suspect(entry.body)
            self._ask_stable(entry)

    def _turn(self) -> bool:
        """Whether the canary gets this request. Its share is spread evenly over the requests."""
        if not self._canary.service.replicas:
            return False
        self._due += self.stage.part
        if self._due < 1:
            return False
        self._due -= 1
        return True

    # --- observations ------------------------------------------------------------------------------------------------

    def _heard_stable(self, body: bytes, told: Answer | Refuse, took: int) -> None:
        if self._running("shadow", "share") and told is not self._no_sample:
            self._of_stable.add(ok=_is_ok(told), took=took)
        self._no_sample = None
        if self._running("shadow") and not self._closing and isinstance(told, Answer) and self._turn():
            self._copy(body, told)

    def _copy(self, body: bytes, stable: Answer) -> None:
        copy = _Copy(stable, len(body) + len(stable.body))
        if self._copies and self._copied + copy.size > MOST_COPIED:
            return
        self._copies.add(copy)
        self._copied += copy.size
        self._sent += 1
        copy.number = self._canary.service.ask(body, partial(self._compare_copy, copy))

    def _compare_copy(self, copy: "_Copy", told: Answer | Refuse) -> None:
        self._copies.discard(copy)
        self._copied -= copy.size
        self._compare(copy.stable, told)

    def _heard_canary(self, _: bytes, told: Answer | Refuse, took: int) -> None:
        if not self._running("shadow", "share"):
            return
        if self._behind is None:
            self._behind = self._sent - 1
        elif self._behind:
            self._behind -= 1
            if _is_ok(told):  # it waited for the first answer, which includes warm-up
                return
        self._count(ok=_is_ok(told), took=took)

    def _count(self, *, ok: bool, took: int = 0) -> None:
        self._of_canary.add(ok=ok, took=took)
        if self._of_canary.answered % LOOK_AFTER == 0:
            self._look()

    def _compare(self, stable: Answer | Refuse, canary: Answer | Refuse) -> None:
        if isinstance(stable, Answer):
            self._of_canary.compare(agreed=_agree(stable, canary, self.rules.close))

    def _look(self, *, over: bool = False) -> None:
        if self.state == "running":
            stays = self._stage == len(self.rules.stages)
            endless = stays or (self.stage.kind == "replay" and not over)
            judged = judge(self.rules, self.stage, self._of_stable, self._of_canary, over=over, endless=endless)
            self._judged = judged
            if stays and self._of_canary.answered >= KEPT:
                self._of_canary = Tally()  # so that old answers do not hide new problems
            found = "; ".join(self._judged.reasons)
            if self._judged.verdict == "pass":
                self._next_stage(found)
            elif self._judged.verdict == "fail":
                self.end(False, found)

    # --- stages ------------------------------------------------------------------------------------------------------

    def _running(self, *kinds: str) -> bool:
        return self.state == "running" and self.stage.kind in kinds

    def _next_stage(self, found: str) -> None:
        if self._stage + 1 >= len(self.rules.stages):
            if self.rules.promote:
                self.end(True, found)
            elif self._stage + 1 == len(self.rules.stages):
                self._stage += 1
                self._say(f"{self.name}: the canary has passed all stages, and stays at a {self.stage}: {found}")
            return
        self._stage += 1
        self._of_canary, self._due = Tally(), 0.0  # keep stable's: it gets few requests in the last stages
        self._say(f"{self.name}: the canary is on trial, {self.stage}{f', after {found}' if found else ''}")
        self._measure(self.stage.part if self.stage.kind == "share" else 0.0, 0)
        if self.stage.kind == "replay":
            self._replay = asyncio.ensure_future(self._ask_recorded())

    def end(self, promoted: bool, why: str) -> None:
        """Promote the canary or roll it back, once. Requests in progress are still answered."""
        if self.state != "running":
            return
        self.state = "promoted" if promoted else "rolled back"
        self._say(f"{self.name}: the canary is {self.state}: {why}")
        self._measure(float(promoted), 1 if promoted else 2)
        self._stable.service.listeners.remove(self._heard_stable)
        self._canary.service.listeners.remove(self._heard_canary)
        self._canary.service.batcher.losses = LOSSES
        self.close()
        self.ended.set_result(promoted)

    # --- recorded requests -------------------------------------------------------------------------------------------

    async def _ask_recorded(self) -> None:
        """Replay all recorded requests on both versions, in the deferred lane, and compare the answers."""
        await self._stable.service.ready()
        await self._canary.service.ready()
        try:
            bodies, turn = read_recorded(self.rules.replay), asyncio.Lock()
            await asyncio.gather(*(self._ask_some(bodies, turn) for _ in range(AT_ONCE)))
        except InputError as error:
            self.end(False, f"{error.record.field}: {error.record.message}")
            return
        self._look(over=True)

    async def _ask_some(self, bodies: Iterator[bytes], turn: asyncio.Lock) -> None:
        while True:
            async with turn:
                body = await asyncio.to_thread(next, bodies, None)
            if body is None:
                return
            stable, canary = await asyncio.gather(
                _asked(self._stable.service, body, self._of_stable),
                _asked(self._canary.service, body, self._of_canary),
            )
            self._compare(stable, canary)
            if self._of_canary.answered % LOOK_AFTER == 0:
                self._look()


class _Open:
    """A pending request. `there`: its number at `asked`. `again`: the canary has failed to answer it."""

    __slots__ = ("again", "asked", "asker", "body", "came", "deferred", "number", "tell", "there", "timeout")

    def __init__(
        self, number: int, body: bytes, tell: Tell, came: int, timeout: int, deferred: bool, asker: Asker
    ) -> None:
        self.number, self.body, self.tell = number, body, tell
        self.came, self.timeout, self.deferred, self.asker = came, timeout, deferred, asker
        self.asked: Asked | None = None
        self.there = 0
        self.again = False


class _Copy:
    """A request copied to the canary, with stable's answer; `size` is the bytes of both."""

    __slots__ = ("number", "size", "stable")

    def __init__(self, stable: Answer, size: int) -> None:
        self.stable, self.size, self.number = stable, size, 0


async def _asked(service: Service, body: bytes, tally: Tally) -> Answer | Refuse:
    """Send a recorded request to a version and return its answer."""
    answer: asyncio.Future[Answer | Refuse] = asyncio.get_running_loop().create_future()
    came = time.monotonic_ns()
    number = service.ask(body, lambda told: None if answer.done() else answer.set_result(told), deferred=True)
    try:
        told = await answer
    except asyncio.CancelledError:
        service.cancel(number)
        raise
    tally.add(ok=_is_ok(told), took=time.monotonic_ns() - came)
    return told


def _is_ok(told: Answer | Refuse) -> bool:
    return isinstance(told, Answer) and told.status == 200


def _agree(one: Answer | Refuse, other: Answer | Refuse, close: float) -> bool:
    """Whether two answers are equal, as values if both are JSON."""
    if not isinstance(one, Answer) or not isinstance(other, Answer) or one.status != other.status:
        return False
    if one.body == other.body:
        return True
    try:
        return agrees(msgspec.json.decode(one.body), msgspec.json.decode(other.body), close)
    except (msgspec.DecodeError, RecursionError):
        return False


__all__ = ["Trial", "Version"]
