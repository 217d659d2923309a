"""The exporter of traces: it reads the log of a home beside the control plane, and sends spans to a collector.

The log is its queue. It reads no further while the collector is away, and remembers the revision up to which all spans
were taken: what the log still has is sent later, and what is sent twice has the same ids. Spans of requests come from
gateways on a socket of datagrams; of these the latest are kept while the collector is away, and the others are lost.
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
"""Spans in one request, as of OpenTelemetry's exporters."""

PAGE = 1000
"""Events that are read at once."""

LOOK_SECONDS, PROGRESS_SECONDS = 0.5, 10.0
"""How often the log is read, and how often it is looked which jobs take long."""

PAUSES = (0.5, 1.0, 2.0, 4.0, 8.0, 16.0, 30.0)
"""Seconds before each further try while the collector is away; the last one from then on."""

LONGEST_AFTER = 300.0
"""The longest that a collector may ask to be left alone, in seconds."""

LAST_SECONDS = 2.0
"""Time limit of a request when this process was told to end."""

MOST_REQUESTS = 4096
"""Spans of requests that wait to be sent."""

DATAGRAMS_AT_ONCE = 128
"""Datagrams with such spans that are read before the log has its turn again."""

_log = logging.getLogger("poise.traces")
_spans = msgpack_decoder(list[Span])


class _Behind(Exception):
    """The log does not go on where it was read to: it was pruned, or is another one."""


class Exporter:
    """Exports the traces of one home until it is `stopping`; `wake` becomes readable when that changes."""

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
        """Follow the log, from wherever it has to be read again. A log that cannot be read is tried again later."""
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
        """Until it is time to stop. Raises `_Behind`."""
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
                self._pause(LOOK_SECONDS)
            self._take_requests()
            self._flush(spans.ledger.revision)

    def _page(self, log: VerifiedLog[Event], after: int) -> list[tuple[int, Event]]:
        page = list(log.read(after, PAGE))
        if page and page[0][0] != after + 1:
            _log.warning("the log was pruned before its traces were sent, from revision %d on", after + 1)
            raise _Behind
        if not page and log.last_revision() < after:
            self._remember(revision=0)  # all of another log is new
            raise _Behind
        return page

    def _checkpoint(self, log: VerifiedLog[Event]) -> StoredCheckpoint | None:
        """Where to begin to read: the latest state before what is to be sent, or the oldest that is left."""
        last = log.last_revision()
        if self._known.revision > last:
            self._known = msgspec.structs.replace(self._known, revision=0)
        latest = log.latest_checkpoint()
        return latest if latest is not None and latest.revision <= self._known.revision else log.oldest_checkpoint()

    # --- sending -----------------------------------------------------------------------------------------------------

    def _flush(self, revision: int) -> None:
        """Send what there is, however long that takes, and remember that all up to `revision` is dealt with; where it
        was told to end, the rest is sent at the next start.
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
        """Whether the collector has answered before it was time to stop."""
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
        """Take in spans of requests meanwhile; cut short when it is time to stop."""
        end = time.monotonic() + seconds
        while not self._stopping() and (left := end - time.monotonic()) > 0:
            select.select([self._wake, self._listening.fileno()], [], [], left)
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
        """A full disk costs that spans are sent again at the next start."""
        self._known = msgspec.structs.replace(self._known, **known)
        if self._known != self._written:
            with contextlib.suppress(OSError):
                write_exported(self._home, self._known)
                self._written = self._known


def sampled(spans: Iterable[Span]) -> Iterator[Span]:
    """Spans of traces that are to be told of."""
    return (span for span in spans if span.context.sampled)
