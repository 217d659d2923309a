"""Reads the results of an array from the log."""

from collections.abc import Generator
from contextlib import closing

from poise.config import Home
from poise.drivers.logfile import read_home
from poise.drivers.verified import VerifiedLog
from poise.kernel.results import Results, gathered
from poise.model.events import Event, decode_event
from poise.model.reports.jobs import PartReport


def rows_of(home: Home, results: Results) -> Generator[PartReport, None, None]:
    """Yield the rows of an array from the log of the home. Raises the errors of a log that cannot be read."""
    with closing(read_home(home, decode_event)) as log:
        yield from gathered(results, log.read(before(log, results.since)))


def before(log: VerifiedLog[Event], at: int) -> int:
    """Return the latest revision before an instant, by bisection."""
    low, high = log.first_revision() - 1, log.last_revision()
    while low < high:
        middle = (low + high) // 2
        _, event = next(log.read(middle, 1))
        if event.at < at:
            low = middle + 1
        else:
            high = middle
    return low
