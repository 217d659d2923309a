"""Streams the results of a job."""

import asyncio
from collections.abc import AsyncIterator, Generator, Iterator
from contextlib import closing
from itertools import islice

import msgspec

from poise.config import Home
from poise.drivers.results import rows_of
from poise.kernel.ledger import JobState, Ledger
from poise.kernel.results import Results, results_of
from poise.model.reports.jobs import PartReport

AT_ONCE = 512
"""Rows to read from the log and to encode at once, on a thread."""


async def results_of_job(home: Home, ledger: Ledger, job: JobState, now: int) -> AsyncIterator[msgspec.Raw]:
    """Yield a line of JSON for each task that is over, several lines at once."""
    array = job.array
    rows = _each(results_of(ledger, job, now)) if array is None else rows_of(home, Results(ledger, job, array))
    with closing(rows):
        while lines := await asyncio.to_thread(_lines, islice(rows, AT_ONCE)):
            yield msgspec.Raw(lines)


def _each(rows: list[PartReport]) -> Generator[PartReport, None, None]:
    yield from rows


def _lines(rows: Iterator[PartReport]) -> bytes:
    return b"\n".join(map(msgspec.json.encode, rows))
