"""The metrics of this control plane as text: counters, and the current state.

Unlike other reads it does not wait for the log: a log that hangs is exactly what a metrics reader must see.
"""

import asyncio

from poise import __version__
from poise.config import Home
from poise.control import metrics
from poise.control.gatekeeper import Gatekeeper
from poise.control.gauges import Gauges, log_size, standing
from poise.control.plane import Plane
from poise.control.routes import Content
from poise.control.tally import Minutes
from poise.model.metrics import Families
from poise.model.tenants import Bearer


class Scrape:
    """Answers one scrape at a time, so that concurrent scrapes do not block the loop."""

    def __init__(self, plane: Plane, home: Home, gate: Gatekeeper, minutes: Minutes, log_limit: int) -> None:
        """`log_limit` is the maximum size of the log in bytes; 0 means the space on its disk."""
        self._plane = plane
        self._home = home
        self._gate = gate
        self._log_limit = log_limit
        self._gauges = Gauges(plane, minutes)
        self._turn = asyncio.Lock()

    async def answer(self, bearer: Bearer) -> Content:
        """Return the metrics that this bearer may see."""
        async with self._turn:
            found = standing(self._plane, __version__)
            leads = self._plane.behind is None
            if leads:
                found |= await self._gauges.now(bearer)
                refusals = self._gate.refusals().counts
                found[metrics.REFUSALS] = {(code,): count for code, count in refusals.items()}
            return await asyncio.to_thread(self._written, found, bearer, leads=leads)

    def _written(self, found: Families, bearer: Bearer, *, leads: bool) -> Content:
        from poise.drivers.exposition import CONTENT_TYPE, text  # a 50 ms import, kept out of the start

        if leads:
            found |= self._plane.tally.told() | log_size(self._home.log, self._log_limit)
        shown = {
            metric: found[metric]
            for metric in metrics.METRICS
            if metric in found and (bearer.sees_all or metric.seen != "operator")
        }
        return Content(text(shown), CONTENT_TYPE)


__all__ = ["Scrape"]
