"""Follows the output of a whole job: the streams of all its tasks' attempts, in order, until the job is over."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Collection
from pathlib import Path
from typing import NamedTuple

from poise.drivers.logs import Moments, last_lines, line_at, piece
from poise.drivers.places import log_paths
from poise.kernel.explain import exit_code
from poise.kernel.find import part_named
from poise.kernel.ledger import JobState, Ledger
from poise.model.messages import Attempt
from poise.model.reports.streams import LogEnd, LogLine, LogPiece
from poise.units import SECOND

PIECE = 256 * 1024
SOON, LATER = 0.03, 0.25
AT_ONCE = 0.008
"""Polling interval in seconds for a terminal, where a user waits for the echo of typed text."""


class Wanted(NamedTuple):
    """Selects existing output: the last `tail` lines of each stream of each task's latest attempt (-1: all), written at
    `since` or later, in seconds since 1970 (0: no limit).
    """

    tail: int = -1
    since: float = 0.0


EVERYTHING = Wanted()


class _Stream:
    """One output stream of one attempt, and the offset up to which it has been returned."""

    def __init__(self, logs: Path, attempt: Attempt, err: bool, rank: int) -> None:
        self.path = log_paths(logs, attempt)[err]
        self.attempt, self.name, self.rank = attempt, "err" if err else "out", rank
        self.offset = 0
        self._moments = Moments(self.path)

    def begin(self, wanted: Wanted, latest: bool) -> None:
        """Skip output that is not wanted."""
        if wanted.tail >= 0:
            self.offset = last_lines(self.path, wanted.tail if latest else 0)
        if wanted.since:
            since = line_at(self.path, self._moments.since(round(wanted.since * SECOND)))
            self.offset = max(self.offset, since)

    def next(self) -> LogPiece | None:
        """Return the next piece that was written at one time; None if there is no more."""
        start, data = piece(self.path, self.offset, PIECE)
        if not data:
            return None
        at, until = self._moments.at(start)
        data = data[: until - start]
        self.offset = start + len(data)
        return self.piece(data, start, at)

    def piece(self, data: bytes, offset: int, at: int = 0) -> LogPiece:
        attempt = self.attempt
        return LogPiece(attempt.task, attempt.epoch, self.name, data, offset, at / SECOND, self.rank)


async def follow_job(
    logs: Path,
    ledger: Callable[[], Ledger],
    job_id: str,
    tasks: Collection[str],
    *,
    follow: bool,
    wanted: Wanted = EVERYTHING,
    rest: Callable[[float], Awaitable[None]] = asyncio.sleep,
) -> AsyncIterator[LogLine]:
    """Yield the `wanted` part of the existing output of these tasks, then new output as they write it.
    `rest` waits for the given number of seconds; it returns early when the job ends.
    """
    known: dict[tuple[Attempt, bool], _Stream] = {}

    def streams(job: JobState | None) -> list[_Stream]:
        found = _attempts(job, tasks) if job is not None else []
        for attempt, rank in found:
            for err in (False, True):
                if (attempt, err) not in known:
                    known[attempt, err] = _Stream(logs, attempt, err, rank)
        return [known[attempt, err] for attempt, _ in found for err in (False, True)]

    if wanted != EVERYTHING:
        first = streams(ledger().jobs.get(job_id))
        latest = {stream.attempt.task: stream.attempt for stream in first}
        for stream in first:
            await asyncio.to_thread(stream.begin, wanted, latest[stream.attempt.task] == stream.attempt)
            yield stream.piece(b"", stream.offset)
        yield LogPiece("", 0, "out", b"")
    pause = SOON
    while True:
        job = ledger().jobs.get(job_id)
        over = job is None or bool(job.ended) or not follow
        found = False
        for stream in streams(job):
            while (told := stream.next()) is not None:
                found = True
                yield told
        if over:
            yield LogEnd(exit_code(job) if job is not None else None)
            return
        pause = SOON if found else min(LATER, pause * 1.2)
        if job is not None and any(unit.spec.tty and not unit.over for unit in job.units):
            pause = AT_ONCE
        await rest(pause)


def _attempts(job: JobState, tasks: Collection[str]) -> list[tuple[Attempt, int]]:
    """Return attempts, each with its rank if several tasks of a gang are requested, else -1."""
    attempts = []
    units = job.units
    if job.array is not None:
        units = [part for name in tasks if (part := part_named(job, job.array, name)) is not None]
    for unit in units:
        asked = [(spec, state) for spec, state in zip(unit.spec.tasks, unit.tasks, strict=True) if spec.name in tasks]
        for spec, state in asked:
            name, rank = f"{job.id}.{spec.name}", spec.rank if len(asked) > 1 else -1
            attempts += [(Attempt(name, past.epoch), rank) for past in state.past]
            if unit.epoch and (state.status != "idle"):
                attempts.append((Attempt(name, state.epoch or unit.epoch), rank))
    return attempts
