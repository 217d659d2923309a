"""Finds services of this home that miss their objective, by the reports of its gateways, and records them.

A gateway answers any program of its user, at a socket beside those of its replicas. The control plane queries it on a
thread, so a gateway that hangs delays nothing. Findings go into the log, from which incidents are derived.
"""

import asyncio
import logging

from poise.config import Home
from poise.control.incidents import Incidents
from poise.control.plane import Plane
from poise.drivers.gateways import service_reports
from poise.kernel import messages
from poise.kernel.objectives import LONG, SHORT, Judge, Look
from poise.model.reports.services import ServiceReport
from poise.model.tenants import class_of_tenant

EVERY = 5.0
"""Seconds between two checks."""

_log = logging.getLogger("poise.control")


class Objectives:
    """Checks the services of one home while its control plane leads. Call all methods on the loop's thread."""

    def __init__(self, plane: Plane, home: Home, incidents: Incidents) -> None:
        self._plane, self._home, self._incidents = plane, home, incidents
        self._judge: Judge | None = None
        self._names: dict[tuple[str, str], str] = {}

    async def run(self) -> None:
        """Check periodically until this is cancelled."""
        while True:
            await asyncio.sleep(EVERY)
            if self._plane.behind is not None:
                self._judge = None
                continue
            try:
                await self.look()
            except Exception:  # no error here may stop the fleet
                _log.exception("objectives of services could not be judged")

    async def look(self) -> None:
        """Query all gateways and record the changes."""
        now = self._plane.clock.now()
        if self._judge is None:
            self._judge = Judge(await self._incidents.going("objective-missed"), now)
        short, long = await asyncio.to_thread(lambda: (self._ask(SHORT), self._ask(LONG)))
        all_answered = None not in (*short.values(), *long.values())
        reports = {
            (mark, service): (of, (long.get(mark) or {})[service])
            for mark, services in short.items()
            for service, of in (services or {}).items()
            if service in (long.get(mark) or {})
        }
        self._names = {key: name for key, (_, of) in reports.items() if (name := self._name(key, of))}
        looks = [Look(name, *reports[key]) for key, name in self._names.items()]
        for noticed in self._judge.take(looks, now, all_answered=all_answered):
            self._plane.post(messages.Saw(noticed))

    def _ask(self, window: int) -> dict[str, dict[str, ServiceReport] | None]:
        """Return reports by gateway and service; None for a gateway that does not answer. Runs on a thread."""
        told = service_reports(self._home.services, window)
        return {mark: None if of is None else {one.service: one for one in of} for mark, of in told}

    def _name(self, key: tuple[str, str], report: ServiceReport) -> str:
        """Return the name of a service within the home, from the tenant of its replicas. Without replicas, return the
        last known name.
        """
        jobs = self._plane.ledger.jobs
        tenant = next((jobs[job].tenant for job in report.jobs if job in jobs), None)
        return self._names.get(key, "") if tenant is None else class_of_tenant(report.service, tenant)
