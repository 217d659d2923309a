"""A version of a service on trial: which requests it gets, what is held beside what, and how the trial ends.

Whoever asks loses nothing by it: what the canary does not answer with 200, or not in half of the time that there is, or
held when its last replica died, is asked of stable. Copies are made of what stable has answered already. Neither
version's answers are kept for the other: each has a cache of its own, and what comes out of one is not counted.
"""

import asyncio
import time
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any, Literal, NamedTuple

import msgspec

from poise.errors import InputError
from poise.gateway.recording import read_recorded
from poise.gateway.service import ANYBODY, Asked, Asker, Service, Tell
from poise.gateway.wire import Answer
from poise.kernel.batcher import Refuse
from poise.model.canary import Judgement, Stage, Tally, TrialRules
from poise.policy.canary import agrees, judge

LOOK_AFTER = 10
"""So many answers of the canary between two judgements."""

AT_ONCE = 4
"""Recorded requests that are asked at once."""


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
        self._replay: asyncio.Task[None] | None = None
        stable.service.listeners.append(self._heard_stable)
        canary.service.listeners.append(self._heard_canary)
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
            self._pass_on(entry, self._canary.front, self._told_by_canary, patience // 2)
        else:
            self._pass_on(entry, self._stable.front, self._told, timeout)
        return entry.number

    def changed(self) -> None:
        """The canary has one replica more, or less. Without any, nobody knows when it would answer."""
        if self._canary.service.replicas:
            return
        for entry in [entry for entry in self._open.values() if entry.asked is self._canary.front]:
            self._canary.front.cancel(entry.there)
            self._of_canary.add(ok=False, took=0)
            self._ask_stable(entry)
        self._look()

    def cancel(self, number: int) -> None:
        """As `Service.cancel`."""
        entry = self._open.pop(number, None)
        if entry is not None and entry.asked is not None:
            entry.asked.cancel(entry.there)

    def _pass_on(
        self, entry: "_Open", front: Asked, told: Callable[["_Open", Answer | Refuse], None], timeout: int
    ) -> None:
        entry.asked = front
        entry.there = front.ask(entry.body, partial(told, entry), timeout, entry.deferred, entry.asker)

    def _ask_stable(self, entry: "_Open") -> None:
        """In the time that is left."""
        left = entry.timeout and max(1, entry.timeout - (time.monotonic_ns() - entry.came))
        self._pass_on(entry, self._stable.front, self._told, left)

    def _told(self, entry: "_Open", told: Answer | Refuse) -> None:
        if self._open.pop(entry.number, None) is not None:
            entry.tell(told)

    def _told_by_canary(self, entry: "_Open", told: Answer | Refuse) -> None:
        if isinstance(told, Answer) and told.status == 200:
            self._told(entry, told)
        elif entry.number in self._open:
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
        if self._running("shadow", "share"):
            self._of_stable.add(ok=_is_ok(told), took=took)
        if self._running("shadow") and isinstance(told, Answer) and self._turn():
            self._canary.service.ask(body, partial(self._compare, told))

    def _heard_canary(self, _: bytes, told: Answer | Refuse, took: int) -> None:
        if self._running("shadow", "share"):
            self._of_canary.add(ok=_is_ok(told), took=took)
            if self._of_canary.answered % LOOK_AFTER == 0:
                self._look()

    def _compare(self, stable: Answer | Refuse, canary: Answer | Refuse) -> None:
        self._of_canary.compare(agreed=_agree(stable, canary, self.rules.close))

    def _look(self, *, over: bool = False) -> None:
        if self.state == "running":
            self._judged = judge(self.rules, self.stage, self._of_stable, self._of_canary, over=over)
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
        if self._replay is not None:
            self._replay.cancel()
        self.ended.set_result(promoted)

    # --- what was recorded -------------------------------------------------------------------------------------------

    async def _ask_recorded(self) -> None:
        """Ask both versions all that was recorded, where there is nothing else to do, and hold the answers together."""
        await self._stable.service.ready()
        await self._canary.service.ready()
        try:
            bodies = iter(await asyncio.to_thread(read_recorded, self.rules.replay))
        except InputError as error:
            self.end(False, f"{error.record.field}: {error.record.message}")
            return
        await asyncio.gather(*(self._ask_some(bodies) for _ in range(AT_ONCE)))
        self._look(over=True)

    async def _ask_some(self, bodies: Iterator[bytes]) -> None:
        for body in bodies:
            stable, canary = await asyncio.gather(
                _asked(self._stable.service, body, self._of_stable),
                _asked(self._canary.service, body, self._of_canary),
            )
            self._compare(stable, canary)


class _Open:
    """One who waits for an answer: `there` is the number that `asked` has given the question."""

    __slots__ = ("asked", "asker", "body", "came", "deferred", "number", "tell", "there", "timeout")

    def __init__(
        self, number: int, body: bytes, tell: Tell, came: int, timeout: int, deferred: bool, asker: Asker
    ) -> None:
        self.number, self.body, self.tell = number, body, tell
        self.came, self.timeout, self.deferred, self.asker = came, timeout, deferred, asker
        self.asked: Asked | None = None
        self.there = 0


async def _asked(service: Service, body: bytes, tally: Tally) -> Answer | Refuse:
    """What a version says to what was recorded."""
    answer: asyncio.Future[Answer | Refuse] = asyncio.get_running_loop().create_future()
    came = time.monotonic_ns()
    service.ask(body, lambda told: None if answer.done() else answer.set_result(told), deferred=True)
    told = await answer
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
    except msgspec.DecodeError:
        return False


__all__ = ["Trial", "Version"]
