"""A version of a service on trial: which requests it gets, what is held beside what, and how the trial ends.

Whoever asks loses nothing by it: what the canary does not answer with 200, or not in half of the time that there is, or
held when its last replica died, is asked of stable. What a replica of the canary died of is not sent to another of
them, and stable serves it alone: a request that kills its server kills one of each. Copies are made of what stable has
answered already. Neither version's answers are kept for the other: each has a cache of its own, and what comes out of
one is not counted.
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
"""So many answers of the canary between two judgements."""

AT_ONCE = 4
"""Recorded requests that are asked at once."""

MOST_COPIED = 64 << 20
"""Bytes of what was copied to the canary, and of what it is held beside, that is not answered yet: one that is slow, or
hangs, is copied no more. One copy may be larger.
"""


class Version(NamedTuple):
    """`front` is asked: the service, or the cache before it."""

    service: Service
    front: Asked


class Trial:
    """Asked and cancelled as a `Service` is, for as long as the trial lasts, and a little longer."""

    def __init__(
        self,
        name: str,
        rules: TrialRules,
        stable: Version,
        canary: Version,
        measure: Callable[[float, int], None],
        say: Callable[[str], None],
    ) -> None:
        """`measure` is told the part of the requests that the canary answers, and 0, 1, 2 for the states."""
        self.name = name
        self.rules = rules
        self.ended: asyncio.Future[bool] = asyncio.get_running_loop().create_future()
        """Whether the canary is promoted, once that is known."""
        self.state: Literal["running", "promoted", "rolled back"] = "running"
        self._stable, self._canary = stable, canary
        self._measure, self._say = measure, say
        self._stage = -1
        self._judged = Judgement("go on", ())
        self._of_stable, self._of_canary = Tally(), Tally()
        self._due = 0.0  # to the canary, in requests
        self._asked = 0
        self._open: dict[int, _Open] = {}
        self._emptied = asyncio.Event()
        self._copies: set[_Copy] = set()
        self._copied = 0  # bytes
        self._closing = False
        self._sent = 0  # to the canary, by way of trial
        self._behind: int | None = None  # the first that it was sent, and are not answered yet
        self._no_sample: Answer | Refuse | None = None
        self._replay: asyncio.Task[None] | None = None
        stable.service.listeners.append(self._heard_stable)
        canary.service.listeners.append(self._heard_canary)
        canary.service.batcher.losses = 1
        self._next_stage("")

    @property
    def stage(self) -> Stage:
        """The present one; after the last, the last."""
        return self.rules.stages[min(self._stage, len(self.rules.stages) - 1)]

    def report(self) -> dict[str, Any]:
        """For people and programs who ask how it goes."""
        return {
            "state": self.state,
            "stage": str(self.stage),
            "stages": [str(stage) for stage in self.rules.stages],
            "answered": {"stable": self._of_stable.answered, "canary": self._of_canary.answered},
            "found": list(self._judged.reasons),
        }

    # --- requests ----------------------------------------------------------------------------------------------------

    def ask(self, body: bytes, tell: Tell, timeout: int = 0, deferred: bool = False, asker: Asker = ANYBODY) -> int:
        """As `Service.ask`."""
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
        """The canary has one replica more, or less. Without any, nobody knows when it would answer."""
        if self._canary.service.replicas:
            return
        for entry in [entry for entry in self._open.values() if entry.asked is self._canary.front]:
            self._canary.front.cancel(entry.there)
            self._of_canary.add(ok=False)
            self._ask_stable(entry)
        self._look()

    def cancel(self, number: int) -> None:
        """As `Service.cancel`."""
        entry = self._closed(number)
        if entry is None or entry.asked is None:
            return
        entry.asked.cancel(entry.there)
        if entry.asked is self._canary.front and self._took_too_long(time.monotonic_ns() - entry.came):
            self._count(ok=False)

    async def drained(self) -> None:
        """Until everybody who has asked is answered."""
        while self._open:
            self._emptied.clear()
            await self._emptied.wait()

    def close(self) -> None:
        """The gateway ends: what nobody waits for is asked no more."""
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
        """Whether who left had waited longer than any answer of stable's takes: of a canary that hangs, nothing else
        may ever be heard.
        """
        longest = max(self._of_stable.took, default=0)
        return longest > 0 and waited > max(self.rules.latency * longest, longest + NOTHING)

    def _pass_on(
        self, entry: "_Open", front: Asked, told: Callable[["_Open", Answer | Refuse], None], timeout: int
    ) -> None:
        entry.asked = front
        number = front.ask(entry.body, partial(told, entry), timeout, entry.deferred, entry.asker)
        if entry.asked is front:  # else it was refused at once, and is asked elsewhere by now
            entry.there = number

    def _ask_stable(self, entry: "_Open") -> None:
        """In the time that is left. What it says is no sample of its answers: what both refuse is all there."""
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
        """Whether it is the canary's turn: of any so many requests in a row it gets its part, spread evenly."""
        if not self._canary.service.replicas:
            return False
        self._due += self.stage.part
        if self._due < 1:
            return False
        self._due -= 1
        return True

    # --- what is seen ------------------------------------------------------------------------------------------------

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
            if _is_ok(told):  # it waited while the first was answered, with which a version warms up
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
                self._of_canary = Tally()  # or what it was for long would hide what it is
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
        self._of_canary, self._due = Tally(), 0.0  # stable's stays: in the last stages it is hardly asked any more
        self._say(f"{self.name}: the canary is on trial, {self.stage}{f', after {found}' if found else ''}")
        self._measure(self.stage.part if self.stage.kind == "share" else 0.0, 0)
        if self.stage.kind == "replay":
            self._replay = asyncio.ensure_future(self._ask_recorded())

    def end(self, promoted: bool, why: str) -> None:
        """Promote it, or roll it back; once. What it is asked already it goes on answering."""
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

    # --- what was recorded -------------------------------------------------------------------------------------------

    async def _ask_recorded(self) -> None:
        """Ask both versions all that was recorded, where there is nothing else to do, and hold the answers together."""
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
    """One who waits for an answer: `there` is the number that `asked` has given the question, `again` that the canary
    has failed at it.
    """

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
    """A question that the canary is asked, and what stable has said to it: so many bytes."""

    __slots__ = ("number", "size", "stable")

    def __init__(self, stable: Answer, size: int) -> None:
        self.stable, self.size, self.number = stable, size, 0


async def _asked(service: Service, body: bytes, tally: Tally) -> Answer | Refuse:
    """What a version says to what was recorded."""
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
    """Whether two answers say the same, as values if both are JSON."""
    if not isinstance(one, Answer) or not isinstance(other, Answer) or one.status != other.status:
        return False
    if one.body == other.body:
        return True
    try:
        return agrees(msgspec.json.decode(one.body), msgspec.json.decode(other.body), close)
    except (msgspec.DecodeError, RecursionError):
        return False


__all__ = ["Trial", "Version"]
