"""Load over time from a log: submitted units, the devices and cores that they ask for, or the requests to services, in
windows.

A unit counts in the window in which it could begin: when its job was submitted, or later if it has a `begin`. Jobs of
schedules are counted apart, because their times are known beforehand. The load of a service is its mean rate of
requests. Time without reports of its gateway counts as no requests.
"""

from collections.abc import Iterable, Iterator
from math import floor

from poise.kernel.ledger import Ledger
from poise.model.events import Event, JobSubmitted, ServicesMeasured
from poise.model.jobs import Unit
from poise.model.resources import WHOLE
from poise.model.served import KNOWN_FOR
from poise.units import SECOND

MAX_SUBJECTS = 10_000
"""Maximum number of tenants, classes or services; further ones count for the fleet only."""


class Loads:
    """Follows a log from the state in `ledger`, which it changes. Windows begin at multiples of `window` nanoseconds
    since 1970.
    """

    def __init__(self, ledger: Ledger, window: int, by: str = "fleet", counted: str = "units") -> None:
        self.ledger = ledger
        self._window, self._by, self._counted = window, by, counted
        self.first: int | None = None
        """Number of the window of the first event."""
        self._sums: dict[str, dict[int, float]] = {}
        self.announced: dict[str, dict[int, float]] = {}
        """Load of jobs of schedules and of jobs with a `begin`, by subject and window."""

    def add(self, event: Event) -> None:
        """Read the next event of the log."""
        if isinstance(event, ServicesMeasured) and self._by == "service":
            for name in sorted(event.services):
                self._count_requests(name, event.at)
        self.ledger.apply(event)
        if self.first is None:
            self.first = self.window_of(event.at)
        if isinstance(event, JobSubmitted) and not event.job.calls and self._by != "service":
            known = "@" in event.key and event.key.partition("@")[0] in self.ledger.schedules
            job = event.job
            for subject, at, amount in loads_of(job.tenant, job.units, event.at, self._by, self._counted):
                later = known or at > event.at
                self._count(self.announced if later else self._sums, subject, self.window_of(at), amount)

    def window_of(self, at: int) -> int:
        """Return the number of the window that contains an instant of the log."""
        return floor(self.ledger.leader.wall(at) * SECOND) // self._window

    def subjects(self) -> list[str]:
        """Return the subjects with any load, the largest first."""
        totals = {subject: sum(windows.values()) for subject, windows in self._sums.items()}
        return sorted(totals, key=lambda subject: (-totals[subject], subject))

    def series(self, subject: str, until: int) -> list[tuple[int, float]]:
        """Return the load of each whole window before the one of the instant `until`: its beginning, and the amount."""
        sums, last = self._sums.get(subject, {}), self.window_of(until)
        first = last if self.first is None else self.first + 1  # the first window may have begun before the log
        return [(window * self._window, sums.get(window, 0.0)) for window in range(first, last)]

    def _count_requests(self, service: str, until: int) -> None:
        """Count the requests between the last record of a service and the next one."""
        last = self.ledger.services.get(service)
        if last is None:
            return
        at, end = last.at, min(until, last.at + KNOWN_FOR)
        while at < end:
            window = self.window_of(at)
            left = (window + 1) * self._window - floor(self.ledger.leader.wall(at) * SECOND)
            took = min(end - at, max(1, left))
            self._count(self._sums, service, window, last.state.rate / 1000 * took / self._window)
            at += took

    def _count(self, sums: dict[str, dict[int, float]], subject: str, window: int, amount: float) -> None:
        if subject not in sums and len(sums) >= MAX_SUBJECTS:
            return
        windows = sums.setdefault(subject, {})
        windows[window] = windows.get(window, 0.0) + amount


def loads_of(tenant: str, units: Iterable[Unit], at: int, by: str, counted: str) -> Iterator[tuple[str, int, float]]:
    """Yield subject, instant and amount of the load of each unit of a job of this tenant, submitted `at`. Services
    count as no load.
    """
    for unit in units:
        if unit.serves:
            continue
        subject = {"tenant": tenant, "class": unit.kind, "priority": unit.priority.name.lower()}.get(by, "fleet")
        tasks, shape = len(unit.tasks), unit.shape
        amount = {"devices": tasks * shape.gpus * shape.share / WHOLE, "cores": tasks * shape.cpu / 1000}.get(
            counted, 1
        )
        if amount:
            yield subject, at + unit.begin, float(amount)


__all__ = ["Loads", "loads_of"]
