"""Probabilities that jobs meet their deadlines, computed by a separate process, one question at a time.

`python -m poise.control.deadlines` reads the log and simulates futures while the control plane continues; no result
reaches the log. A job with `if-late: refuse` is checked before it is submitted. It is refused if its deadline would
probably be missed, or if the probability cannot be computed.
"""

import asyncio
import logging
import subprocess
import sys

import msgspec

from poise.config import Home
from poise.control.plane import Plane
from poise.decoding import msgpack_decoder
from poise.errors import Busy, Conflict, InputError, PoiseError, SpecError
from poise.kernel.find import Found
from poise.model.chances import DeadlineQuestion
from poise.model.deadlines import LIKELY
from poise.model.jobs import Job
from poise.model.reports.questions import DeadlineForecast
from poise.model.spec import Compiled
from poise.units import SECOND, format_duration

MOST_WAITING = 4
"""Maximum number of questions waiting or being answered; further ones are refused. Each takes 1 to 3 s, and a client
waits for 15 s."""

WITHIN = 10.0
"""Time limit in seconds: 0.5 to start, 2 to simulate, the rest to read a long log on a busy machine."""

JOINS_WITHIN = 5.0
"""Seconds to wait for a first node: `poise run` submits as soon as its control plane answers."""

_LOOK_EVERY = 0.05
_ON_RETRY = "try again, or `if-late: run`"

_log = logging.getLogger("poise.control")


class Chances:
    """Computes deadline probabilities for one control plane."""

    def __init__(self, plane: Plane, home: Home, *, joins_within: float = JOINS_WITHIN) -> None:
        self._plane = plane
        self._home = home
        self._joins_within = joins_within
        self._turn = asyncio.Lock()
        self._waiting = 0

    async def check(self, compiled: Compiled, key: str, user: str) -> None:
        """Raise the refusal of a job with strict deadlines: `SpecError` (E108) if they will probably be missed, `Busy`
        if there is no estimate. A job that was already submitted under this key is not checked.
        """
        strict = compiled.strict
        if not strict or (key and self._plane.ledger.jobs.submitted_under(key, compiled.tenant) is not None):
            return
        self._plane.check_leading()
        job = self._plane.controller.jobs.would_submit(compiled, user)  # raises all other refusals
        told = await self._ask(tuple(unit.name for unit in strict), job=job)
        first = min(strict, key=lambda unit: unit.deadline)
        refused = refusal(told, compiled.due_by.get(first.name, "deadline"), first.deadline)
        if refused is not None:
            raise refused

    async def of(self, found: Found) -> DeadlineForecast:
        """Return the probability for a submitted job, or for some of its tasks."""
        if found.job.calls is not None:
            what, hint = f"{found.name} serves calls, and ends when its caller does", f"`poise explain {found.name}`"
            raise InputError(what, field="job", hint=hint)
        units = tuple(unit.spec.name for unit in found.units if unit.spec.deadline and not unit.over)
        if not units:
            what = f"{found.name} has no deadline to come"
            raise Conflict(what, field="job", hint="`poise submit --deadline 30m …`")
        return await self._ask(units, known=found.job.id)

    async def _ask(self, units: tuple[str, ...], *, known: str = "", job: Job | None = None) -> DeadlineForecast:
        if self._waiting >= MOST_WAITING:
            raise Busy("too many deadlines are being estimated", need=f"at most {MOST_WAITING}", hint=_ON_RETRY)
        self._waiting += 1
        try:
            async with self._turn:
                await self._wait_for_a_node()
                await self._plane.settled()
                question = DeadlineQuestion(units=units, known=known, job=job, now=self._plane.clock.now())
                return await asyncio.to_thread(self.answer, question)
        finally:
            self._waiting -= 1

    async def _wait_for_a_node(self) -> None:
        for _ in range(round(self._joins_within / _LOOK_EVERY)):
            if any(node.status == "up" for node in self._plane.ledger.nodes.values()):
                return
            await asyncio.sleep(_LOOK_EVERY)

    def answer(self, question: DeadlineQuestion) -> DeadlineForecast:
        """Query the process; blocks the thread. Raises `Busy` if there is no answer."""
        try:
            done = subprocess.run(  # noqa: S603 — our own program
                [sys.executable, "-m", "poise.control.deadlines", str(self._home.root)],
                input=msgspec.msgpack.encode(question),
                stdout=subprocess.PIPE,
                timeout=WITHIN,
                start_new_session=True,
                check=True,
            )
            return msgpack_decoder(DeadlineForecast).decode(done.stdout)
        except (OSError, subprocess.SubprocessError, msgspec.MsgspecError) as error:
            _log.warning("no forecast of a deadline: %s", error)
            what = "the chance of the deadline could not be estimated"
            raise Busy(what, have=str(error)[:120], hint=_ON_RETRY) from None


def refusal(told: DeadlineForecast, field: str, deadline: int) -> PoiseError | None:
    """Return the refusal of a job with a strict deadline in this field; None if it will probably be met."""
    if told.unknown == "run times":
        return SpecError(
            "nothing is known of how long it runs, so that no deadline can be promised",
            code="E108",
            field=field,
            need="an estimated run time",
            hint="expect: 10m",
        )
    if told.unknown:
        why = "no node has joined yet" if told.unknown == "nodes" else "there was no time to simulate it"
        return Busy("the chance of the deadline could not be estimated", field=field, have=why, hint=_ON_RETRY)
    if told.chance >= LIKELY:
        return None
    hint = "if-late: run" if told.p90 is None else f"by: {-(-told.p90 // SECOND)}s"
    return SpecError(
        "the deadline is unlikely to be met",
        code="E108",
        field=field,
        need=f"a chance of {LIKELY // 10} % or more",
        have=f"{told.percent} for {format_duration(deadline)}; {told.ends}",
        hint=hint,
    )


__all__ = ["Chances", "refusal"]
