"""Incidents of a control plane: derived from its log beside the loop, and sent to the targets of the home.

It follows the log like any client, so slow processing delays incidents but no round. A thread processes events, a page
at a time. The result is saved to a file periodically, and can be rebuilt from the log.

A notice is sent when an incident opens and when it closes. The log records deliveries, so a restart repeats only a
notice that was just being sent; receivers recognize it by its id.
"""

import asyncio
import logging
from collections.abc import Sequence
from contextlib import closing
from functools import partial

import msgspec

from poise.config import Home
from poise.control.notices import DELAYS, Targets, until_recorded, until_taken
from poise.control.plane import Plane
from poise.drivers import incidentfile
from poise.drivers.logfile import has_log, read_home
from poise.drivers.outputs import endings
from poise.errors import PoiseError
from poise.kernel import messages
from poise.kernel.incidents import Incidents as Folded
from poise.model.events import Event, decode_event
from poise.model.incidents import IncidentNotice, IncidentReport, Moment, SymptomKind
from poise.units import HOUR

FIRST_AFTER = 1.0
"""Delay after the start before the log is read, so that waiting clients are served first."""

EVERY = 0.5
"""Seconds between two polls of the log."""

PAGE = 500
"""Events processed at a time: a few milliseconds."""

SAVE_EVERY = 30.0

READ_AGAIN = 5.0
"""Seconds until an unreadable `notifications.yaml` is read again."""

AT_ONCE = 16
"""Maximum number of notices being sent or waiting for a retry."""

LATE = 1 * HOUR
"""An incident that opened longer ago than this gets no notices."""

_log = logging.getLogger("poise.control")


class Incidents:
    """The incidents of one control plane. Call all methods on the loop's thread."""

    def __init__(self, plane: Plane, home: Home, delays: Sequence[float] = DELAYS) -> None:
        self._plane = plane
        self._home = home
        self._delays = delays
        self._folded: Folded | None = None
        self._turn = asyncio.Lock()
        self._last: Event | None = None
        self._saved = 0
        self._going: dict[tuple[str, Moment, str], asyncio.Task[None]] = {}

    async def reports(self) -> list[IncidentReport]:
        """Return all known incidents, oldest first, as of the current log."""
        async with self._turn:
            folded, wall = await self._caught_up(), self._plane.ledger.leader.wall
            return await asyncio.to_thread(lambda: [folded.report(name, wall) for name in folded.ids()])

    async def report(self, name: str) -> IncidentReport:
        """Return one incident. Raises NotFound."""
        async with self._turn:
            folded = await self._caught_up()
            report, tasks = folded.report(name, self._plane.ledger.leader.wall), folded.attempts(name)
        outputs = await asyncio.to_thread(endings, self._home.logs, tasks) if tasks else ()
        return msgspec.structs.replace(report, outputs=outputs)

    async def going(self, kind: SymptomKind) -> list[str]:
        """Return the subjects of the ongoing symptoms of a kind, as of the current log."""
        async with self._turn:
            return (await self._caught_up()).going(kind)

    async def run(self) -> None:
        """Follow the log until this is cancelled."""
        await asyncio.sleep(FIRST_AFTER)
        loop = asyncio.get_running_loop()
        save_at = loop.time() + SAVE_EVERY
        try:
            while True:
                try:
                    async with self._turn:
                        await self._caught_up()
                        if loop.time() >= save_at:
                            save_at = loop.time() + SAVE_EVERY
                            await asyncio.to_thread(self._save)
                except (PoiseError, OSError) as error:
                    _log.warning("incidents are not up to date: %s", error)
                await asyncio.sleep(EVERY)
        finally:
            self._save()

    async def _caught_up(self) -> Folded:
        """Process all durable events; return the result."""
        plane = self._plane
        if self._folded is None:
            self._folded = await asyncio.to_thread(self._load)
        folded = self._folded
        while folded.revision < plane.ledger.revision:
            page = plane.events_after(folded.revision, PAGE)
            if not page:
                break
            await asyncio.to_thread(self._take, folded, page)
        else:
            now, due = plane.clock.now(), folded.due()
            if due is not None and due <= now:
                await asyncio.to_thread(folded.tick, now)
        return folded

    def _load(self) -> Folded:
        """Load the file and the rest of the log, with a separate reader because this runs on a thread."""
        if not has_log(self._home):  # the log does not exist yet
            return Folded()
        with closing(read_home(self._home, decode_event)) as log:
            folded, ahead = incidentfile.load(self._home.incidents, log, self._plane.ledger)
            for revision, event in ahead:
                if revision > self._plane.controller.durable:
                    break
                folded.take(revision, event)
                self._last = event
        return folded

    def _take(self, folded: Folded, page: Sequence[tuple[int, Event]]) -> None:
        for revision, event in page:
            folded.take(revision, event)
        self._last = page[-1][1]

    def _save(self) -> None:
        folded = self._folded
        if folded is None or self._last is None or folded.revision == self._saved:
            return
        try:
            incidentfile.save(self._home.incidents, folded, self._last)
            self._saved = folded.revision
        except OSError as error:
            _log.debug("incidents are not kept: %s", error)

    # --- notices -----------------------------------------------------------------------------------------------------

    async def tell(self, targets: Targets) -> None:
        """Send due notices to the targets of the home while this control plane leads, until this is cancelled."""
        try:
            while True:
                await asyncio.sleep(EVERY)
                if self._folded is None or self._plane.behind is not None:
                    continue
                try:
                    named = (await asyncio.to_thread(targets.of_home)).incidents
                except (PoiseError, OSError) as error:
                    _log.warning("`notifications.yaml` cannot be read: %s", error)
                    await asyncio.sleep(READ_AGAIN)
                    continue
                async with self._turn:
                    due = list(self._folded.untold(named, self._plane.clock.now() - LATE))
                for key in due:
                    if key not in self._going and len(self._going) < AT_ONCE:
                        self._going[key] = asyncio.create_task(self._deliver(targets, *key))
                        self._going[key].add_done_callback(partial(self._gone, key))
        finally:
            for task in self._going.values():
                task.cancel()

    def _gone(self, key: tuple[str, Moment, str], task: asyncio.Task[None]) -> None:
        del self._going[key]
        if not task.cancelled() and (error := task.exception()) is not None:
            _log.error("incident %s is not told: %s", key[0], error)

    async def _deliver(self, targets: Targets, name: str, moment: Moment, target: str) -> None:
        """Send a notice until it is accepted or given up, and record that."""
        notice_id = f"{name}/{moment}"

        async def send() -> None:
            notice = IncidentNotice(id=notice_id, moment=moment, incident=await self.report(name))
            told = {"INCIDENT": name, "MOMENT": moment, "TITLE": notice.incident.title}
            await asyncio.to_thread(targets.send, target, notice_id, msgspec.json.encode(notice), told, trusted=True)

        failed = await until_taken(notice_id, send, self._delays)
        if await until_recorded(
            self._plane, lambda number: messages.IncidentDone(number, name, moment, target, failed)
        ):
            async with self._turn:
                await self._caught_up()  # see the record before the notice leaves `_going`
