"""Stores incidents as of some revision in a file, so that a start need not read the log from its beginning. The file is
a copy: if it is missing, damaged or of another log, the log is read again.
"""

import contextlib
from collections.abc import Iterable
from pathlib import Path
from zlib import crc32

import msgspec

from poise.decoding import msgpack_decoder
from poise.drivers.whole import write_whole
from poise.engine.host import Log
from poise.kernel.incidents import Incidents, State
from poise.kernel.ledger import Ledger
from poise.kernel.symptoms import seen
from poise.model.events import Event, encode_event

VERSION = 1
BACK = 50_000
"""Maximum number of events to read if there is no file; that takes about ten seconds of CPU time."""


class Kept(msgspec.Struct, kw_only=True):
    """The content of the file. `sum` is the checksum of the last event that was read."""

    version: int
    sum: int
    state: State


_decoder = msgpack_decoder(Kept)


def load(path: Path, log: Log, ledger: Ledger) -> tuple[Incidents, Iterable[tuple[int, Event]]]:
    """Return the stored incidents, and the events to read next."""
    with contextlib.suppress(OSError, msgspec.MsgspecError):
        kept = _decoder.decode(path.read_bytes())
        last = kept.state.revision
        found = next(iter(log.read(last - 1, 1)), None) if last else None
        if kept.version == VERSION and found is not None and found[0] == last and sum_of(found[1]) == kept.sum:
            return Incidents(kept.state), log.read(last)
    events = iter(log.read(max(0, ledger.revision - BACK)))
    first = next(events, None)
    if first is None:
        return Incidents(), ()
    whole = first[0] == 1
    made = Incidents(None if whole else State(facts=seen(state.node for state in list(ledger.nodes.values()))))
    return made, _joined(first, events)


def save(path: Path, incidents: Incidents, last: Event) -> None:
    """Store the incidents as they are after this event. Raises OSError."""
    kept = Kept(version=VERSION, sum=sum_of(last), state=incidents.state())
    write_whole(path, msgspec.msgpack.encode(kept), 0o600)


def sum_of(event: Event) -> int:
    """Return the checksum of an event."""
    return crc32(encode_event(event))


def _joined(first: tuple[int, Event], rest: Iterable[tuple[int, Event]]) -> Iterable[tuple[int, Event]]:
    yield first
    yield from rest
