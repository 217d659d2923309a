"""Routes of the log: events, changes with their authors, refused requests."""

import asyncio
from collections.abc import AsyncIterator, Callable

import msgspec

from poise.control.api.parts import ADMIN, EVENT_PAGE, KEEP_ALIVE, MAX_REVISION, VIEWER, Parts, Revision
from poise.control.openapi import LoggedEvent
from poise.control.plane import Plane
from poise.control.routes import Request, Routes, Stream
from poise.kernel.audit import audit_report
from poise.kernel.visible import Sight
from poise.model.events import (
    AUDITED,
    DeadlinesMissed,
    Event,
    Held,
    NodeLevelled,
    Placed,
    PolicyFailed,
    Preempted,
    Resized,
    Triggered,
)
from poise.model.reports.access import AuditReport, RefusalsReport
from poise.model.tenants import Bearer

WHOLE = b": whole\n\n"
"""Marks the complete end of an event stream that does not follow. If it is missing, the stream was cut off."""

DECISIONS = Placed | Held | Preempted | Resized | DeadlinesMissed | NodeLevelled | Triggered | PolicyFailed
"""Scheduling decisions and the events that caused them; a stream of decisions shows these."""


def add_routes(routes: Routes, parts: Parts) -> None:
    plane, gate = parts.plane, parts.gate

    @routes.get(
        "/v1/events", summary="The log as server-sent events, from `after` on; `decisions` only, or all", role=VIEWER
    )
    async def events(
        bearer: Bearer,
        request: Request,
        after: Revision = -1,
        decisions: bool = False,
        follow: bool = True,
    ) -> Stream:
        def shown(revision: int, event: Event) -> LoggedEvent | None:
            seen = Sight(plane.ledger, bearer).event(event)
            wanted = seen is not None and (not decisions or isinstance(event, DECISIONS))
            return LoggedEvent(revision, seen) if wanted else None

        stream = _event_stream(plane, _resumed(request, after), shown, lambda: gate.stands(bearer), follow=follow)
        return Stream(stream, "text/event-stream")

    @routes.get("/v1/audit", summary="Changes with their authors, as server-sent events, from `after` on", role=ADMIN)
    async def audit(bearer: Bearer, request: Request, after: Revision = -1, follow: bool = True) -> Stream:
        def shown(revision: int, event: Event) -> AuditReport | None:
            return audit_report(plane.ledger, revision, event) if isinstance(event, AUDITED) else None

        stream = _event_stream(plane, _resumed(request, after), shown, lambda: gate.stands(bearer), follow=follow)
        return Stream(stream, "text/event-stream")

    @routes.get("/v1/refusals", summary="Number of refused requests, and the latest of them", role=ADMIN)
    async def refusals() -> RefusalsReport:
        return gate.refusals()


def _resumed(request: Request, after: int) -> int:
    """Return the revision to resume after: from `Last-Event-ID` if the client was cut off, else `after`."""
    last = request.headers.get("last-event-id", "")
    return min(int(last), MAX_REVISION) if last.isdecimal() and len(last) < 20 else after


async def _event_stream(
    plane: Plane,
    after: int,
    shown: Callable[[int, Event], msgspec.Struct | None],
    stands: Callable[[], bool],
    *,
    follow: bool,
) -> AsyncIterator[bytes]:
    """Stream events after the revision `after`; below zero means from now on. `shown` converts a record for display, or
    returns None to skip it. The stream ends when the token becomes invalid.
    """
    await plane.settled()
    position = plane.ledger.revision if after < 0 else after
    news = plane.follow()
    try:
        yield b": poise\n\n"
        while stands():
            news.clear()
            page = plane.events_after(position, EVENT_PAGE)
            chunks = []
            for revision, event in page:
                position = revision
                if (told := shown(revision, event)) is not None:
                    chunks.append(b"id: %d\ndata: %s\n\n" % (revision, msgspec.json.encode(told)))
            if chunks:
                yield b"".join(chunks)
            if page:
                await asyncio.sleep(0)  # yield the loop: a long log with few matches must not delay other requests
                continue
            if not follow:
                yield WHOLE
                return
            try:
                async with asyncio.timeout(KEEP_ALIVE):  # `wait_for` loses a cancellation that coincides with an event
                    await news.wait()
            except TimeoutError:
                yield b": alive\n\n"
    finally:
        plane.unfollow(news)
