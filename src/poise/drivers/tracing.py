"""The trace exporter: it reads the log of a home beside the control plane, and sends spans to a collector.

The log is its queue. It stops reading while the collector is unreachable, and remembers the revision up to which all
spans were accepted: spans of later records are sent later, and spans that are sent twice have the same ids. Spans of
requests come from gateways on a datagram socket; while the collector is unreachable, only the latest are kept.
"""

import contextlib
import logging
import select
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import msgspec

from poise.config import Home
from poise.decoding import msgpack_decoder
from poise.drivers import sockets
from poise.drivers.logfile import has_log, read_home
from poise.drivers.otlp import Collector, Unsent
from poise.drivers.spans import MOST_DATAGRAM, read_exported, write_exported
from poise.drivers.system import boot_id, boottime
from poise.drivers.verified import VerifiedLog
from poise.engine.host import ledger_at
from poise.errors import PoiseError
from poise.kernel.spans import Spans
from poise.model.events import Event, decode_event
from poise.model.traces import Exported, Span
from poise.ports import StoredCheckpoint

BATCH = 512
"""Maximum number of spans in one request, as in OpenTelemetry's exporters."""

PAGE = 1000
"""Maximum number of events per read."""

LOOK_SECONDS, PROGRESS_SECONDS = 0.5, 10.0
"""Interval in seconds for looking whether there is a log, and for checking which jobs take long. A log is read at the
interval of the collector: each wake-up of another process costs the tasks that run meanwhile."""

PAUSES = (0.5, 1.0, 2.0, 4.0, 8.0, 16.0, 30.0)
"""Retry delays in seconds while the collector is unreachable; the last one repeats."""

LONGEST_AFTER = 300.0
"""Maximum retry delay, in seconds, that a collector may request."""

LAST_SECONDS = 2.0
"""Time limit in seconds of a request after this process was told to end."""

MOST_REQUESTS = 4096
"""Maximum number of request spans that wait to be sent."""

DATAGRAMS_AT_ONCE = 128
"""Maximum number of datagrams with such spans that are read before the log is read again."""

_log = logging.getLogger("poise.traces")
_spans = msgpack_decoder(list[Span])


class _Behind(Exception):
    """The log does not continue at the exporter's position: it was pruned, or is another log."""


class Exporter:
    """Exports the traces of one home until `stopping` returns true; `wake` becomes readable when that changes."""

    def __init__(self, home: Home, collector: Collector, *, stopping: Callable[[], bool], wake: int) -> None:
        self._home, self._collector = home, collector
        self._stopping, self._wake = stopping, wake
        self._known = self._written = Exported()
        self._batch: list[Span] = []
        self._requests: deque[Span] = deque(maxlen=MOST_REQUESTS)
        self._requests_lost = 0
        self._listening = sockets.listen_to_datagrams(home.traces / "socket")

    def close(self) -> None:
        self._listening.close()
        self._collector.close()

    def run(self) -> None:
        """Follow the log, starting over when necessary. If the log is unreadable, retry later."""
        while not self._stopping():
            try:
                if has_log(self._home) and (known := read_exported(self._home)) is not None:
                    self._known = self._written = known
                    self._follow()
            except _Behind:
                continue
            except (PoiseError, OSError) as error:
                _log.warning("the log cannot be read, and traces wait: %s", error)
                self._pause(PAUSES[-1])
            self._pause(LOOK_SECONDS)

    # --- the log -----------------------------------------------------------------------------------------------------

    def _follow(self) -> None:
        """Follow the log until it is time to stop. Raises `_Behind`."""
        self._batch.clear()
        with contextlib.closing(read_home(self._home, decode_event)) as log:
            spans = Spans(ledger_at(self._checkpoint(log), log.written_by, plans=False))
            told = 0
            looked = time.monotonic()
            while not self._stopping():
                page = self._page(log, spans.ledger.revision)
                for revision, event in page:
                    made = spans.add(event)
                    if revision > self._known.revision:
                        self._batch += sampled(made)
                if len(page) == PAGE:
                    self._flush(spans.ledger.revision)
                    continue
                now = spans.ledger.leader.resume_at(boot_id(), boottime(), time.time())
                if time.monotonic() - looked >= PROGRESS_SECONDS or not told:
                    self._batch += sampled(spans.progress(told, now)) if told else []
                    told, looked = now, time.monotonic()
                self._take_requests()
                self._flush(spans.ledger.revision)
                self._pause(self._collector.every)
            self._take_requests()
            self._flush(spans.ledger.revision)

    def _page(self, log: VerifiedLog[Event], after: int) -> list[tuple[int, Event]]:
        page = list(log.read(after, PAGE))
        if page and page[0][0] != after + 1:
            _log.warning("the log was pruned before its traces were sent, from revision %d on", after + 1)
            raise _Behind
        if not page and log.last_revision() < after:
            self._remember(revision=0)  # everything in another log is new
            raise _Behind
        return page

    def _checkpoint(self, log: VerifiedLog[Event]) -> StoredCheckpoint | None:
        """Return the state from which to read: the latest one before the first unsent record, or the oldest remaining
        one."""
        last = log.last_revision()
        if self._known.revision > last:
            self._known = msgspec.structs.replace(self._known, revision=0)
        latest = log.latest_checkpoint()
        return latest if latest is not None and latest.revision <= self._known.revision else log.oldest_checkpoint()

    # --- sending -----------------------------------------------------------------------------------------------------

    def _flush(self, revision: int) -> None:
        """Send all spans, retrying without limit, and record that everything up to `revision` is done. After a stop
        request, the rest is sent at the next start.
        """
        taken = True
        while taken and self._batch:
            if taken := self._sent(self._batch[:BATCH]):
                del self._batch[:BATCH]
        while taken and self._requests:
            taken = self._sent([self._requests.popleft() for _ in range(min(BATCH, len(self._requests)))])
        lost, self._requests_lost = self._known.lost + self._requests_lost, 0
        self._remember(revision=max(revision if taken else 0, self._known.revision), lost=lost)

    def _sent(self, spans: Sequence[Span]) -> bool:
        """Send spans. Return whether the collector answered before it was time to stop."""
        tries = 0
        while True:
            try:
                refused = self._collector.send(spans, LAST_SECONDS) if self._stopping() else self._collector.send(spans)
            except Unsent as unsent:
                if self._stopping():
                    return False
                if not unsent.again:
                    _log.warning("%d spans are lost: %s", len(spans), unsent)
                    self._remember(refused=self._known.refused + len(spans), error="")
                    return True
                if not tries:
                    _log.warning("traces wait: %s", unsent)
                self._remember(error=str(unsent))
                self._pause(max(PAUSES[min(tries, len(PAUSES) - 1)], min(unsent.after, LONGEST_AFTER)))
                tries += 1
                continue
            if refused:
                _log.warning("%s has refused %d of %d spans", self._collector.url, refused, len(spans))
            known = self._known
            sent = known.sent + len(spans) - refused
            self._known = msgspec.structs.replace(known, sent=sent, refused=known.refused + refused, error="")
            return True

    def _pause(self, seconds: float) -> None:
        """Receive spans of requests during a pause, which a stop request ends early."""
        end = time.monotonic() + seconds
        either = select.poll()  # unlike `select`, for file descriptors above 1,023 too
        either.register(self._wake, select.POLLIN)
        either.register(self._listening, select.POLLIN)
        while not self._stopping() and (left := end - time.monotonic()) > 0:
            either.poll(1000 * left)
            self._take_requests()

    def _take_requests(self) -> None:
        with contextlib.suppress(BlockingIOError):
            for _ in range(DATAGRAMS_AT_ONCE):
                data = self._listening.recv(MOST_DATAGRAM)
                with contextlib.suppress(msgspec.MsgspecError):
                    spans = _spans.decode(data)
                    self._requests_lost += max(0, len(self._requests) + len(spans) - MOST_REQUESTS)
                    self._requests += spans

    # --- memory ------------------------------------------------------------------------------------------------------

    def _remember(self, **known: Any) -> None:
        """Update and save the exporter's state. If the disk is full, spans are sent again at the next start."""
        self._known = msgspec.structs.replace(self._known, **known)
        if self._known != self._written:
            with contextlib.suppress(OSError):
                write_exported(self._home, self._known)
                self._written = self._known


def sampled(spans: Iterable[Span]) -> Iterator[Span]:
    """Return the spans of sampled traces."""
    return (span for span in spans if span.context.sampled)
