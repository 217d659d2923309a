"""What a whole job wrote: the streams of all its tasks' attempts, in order, followed until the job is over."""

import asyncio
from collections.abc import AsyncIterator, Callable, Collection
from pathlib import Path

from poise.drivers.logs import last_lines, piece
from poise.drivers.process import log_paths
from poise.kernel.explain import exit_code
from poise.kernel.ledger import JobState, Ledger
from poise.model.messages import Attempt
from poise.model.reports import LogEnd, LogLine, LogPiece

PIECE = 256 * 1024
SOON, LATER = 0.03, 0.25
AT_ONCE = 0.008
"""How often a terminal is looked at: somebody waits to see what was typed."""


async def follow_job(
    logs: Path, ledger: Callable[[], Ledger], job_id: str, tasks: Collection[str], *, follow: bool, tail: int = -1
) -> AsyncIterator[LogLine]:
    """Pieces of what these tasks of a job write, as they are written. With a `tail`, of what there is by now only the
    last lines of each stream of each task's latest attempt.
    """
    offsets: dict[tuple[Attempt, str], int] = {}
    job = ledger().jobs.get(job_id)
    attempts = _attempts(job, tasks) if job is not None and tail >= 0 else []
    latest = {attempt.task: attempt for attempt in attempts}
    for attempt in attempts:
        for stream, path in zip(("out", "err"), log_paths(logs, attempt), strict=True):
            lines = tail if latest[attempt.task] == attempt else 0
            offsets[attempt, stream] = offset = await asyncio.to_thread(last_lines, path, lines)
            yield LogPiece(attempt.task, attempt.epoch, stream, b"", offset)
    pause = SOON
    while True:
        job = ledger().jobs.get(job_id)
        over = job is None or bool(job.ended) or not follow
        found = False
        for attempt in _attempts(job, tasks) if job is not None else ():
            out, err = log_paths(logs, attempt)
            for stream, path in (("out", out), ("err", err)):
                while True:
                    start, data = piece(path, offsets.get((attempt, stream), 0), PIECE)
                    if not data:
                        break
                    offsets[attempt, stream] = start + len(data)
                    found = True
                    yield LogPiece(attempt.task, attempt.epoch, stream, data, start)
        if over:
            yield LogEnd(exit_code(job) if job is not None else None)
            return
        pause = SOON if found else min(LATER, pause * 1.2)
        if job is not None and any(unit.spec.tty and not unit.over for unit in job.units):
            pause = AT_ONCE
        await asyncio.sleep(pause)


def _attempts(job: JobState, tasks: Collection[str]) -> list[Attempt]:
    attempts = []
    for unit in job.units:
        for spec, state in zip(unit.spec.tasks, unit.tasks, strict=True):
            if spec.name in tasks:
                name = f"{job.id}.{spec.name}"
                attempts += [Attempt(name, past.epoch) for past in state.past]
                if unit.epoch and (state.status != "idle"):
                    attempts.append(Attempt(name, state.epoch or unit.epoch))
    return attempts
