"""Records which policies in shadow are better than the current one, for the rules that promote them."""

import asyncio
import logging

from poise.config import Home
from poise.control.deciders import Deciders
from poise.control.plane import Plane
from poise.drivers.worlds import read_told
from poise.engine.paired import in_words, not_to_promote, world_report
from poise.kernel import messages

EVERY = 300.0
"""Seconds between two judgements: the intervals take up to a second of processor time."""

_log = logging.getLogger("poise.control")


class Judging:
    """Judges the policies in shadow of one home while its control plane leads and a rule reads the result."""

    def __init__(self, plane: Plane, home: Home, deciders: Deciders) -> None:
        self._plane, self._home, self._deciders = plane, home, deciders

    async def run(self) -> None:
        """Judge periodically until this is cancelled."""
        while True:
            await asyncio.sleep(EVERY)
            try:
                await self.look()
            except Exception:  # no error here may stop the fleet
                _log.exception("policies in shadow could not be judged")

    async def look(self) -> None:
        """Judge now, and record the result if it differs."""
        if self._plane.behind is None and self._plane.controller.ruling.reads("shadow_better"):
            labels = [report.policy for report in self._deciders.shadows()]
            better = await asyncio.to_thread(judged, self._home, labels, self._plane.clock.wall())
            self._plane.post(messages.JudgeShadows(better))


def judged(home: Home, labels: list[str], wall: float) -> dict[str, str]:
    """Return the policies that may be promoted, each with the evidence."""
    told = read_told(home) if labels else None
    better = {}
    for label in labels if told is not None else ():
        report = world_report(told, label, wall) if told is not None else None
        if report is not None and not not_to_promote(report):
            better[label] = f"mean completion {in_words(report.figures[0])} of {report.jobs} jobs in shadow"
    return better
