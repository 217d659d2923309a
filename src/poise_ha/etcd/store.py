"""The log and its writer, as keys and transactions."""

import os
from collections.abc import Callable, Sequence

import msgspec

from poise.decoding import msgpack_decoder
from poise.drivers.led.store import CHECKPOINTS_KEPT, LARGE, PROBE_BYTES, LedWriter, Rows, parts_of
from poise.drivers.verified import Event, VerifiedLog
from poise.errors import PoiseError, StoreAway, StoreDamaged
from poise.model.record import FORMAT, checksum
from poise.ports import StoredCheckpoint
from poise_ha.etcd.keys import Keys, revision_of, settle
from poise_ha.etcd.lease import see
from poise_ha.etcd.link import EtcdLink, Members
from poise_ha.etcd.words import Compare, KeyValue, Operation, delete, end_of, is_value, put

PIECE = 256 * 2**10
"""Approximate size of one value in bytes; etcd accepts requests of 1.5 MiB by default."""

FIRST_PAGE, PAGE = 4, 128
"""Keys in the first answer, which shows the size of entries, and maximum for a later one."""

PAGE_BYTES = 4 * 2**20
"""Approximate size of an answer: a member that takes long for one would count as away, and delays all others
meanwhile.
"""

PRUNE_KEYS = 2_000

_CHECKSUM_BYTES = 4

_encode = msgspec.msgpack.Encoder().encode
_decode_value = msgpack_decoder(bytes | int).decode  # the content, or the number of its pieces
_decode_records = msgpack_decoder(list[bytes]).decode


class EtcdLog(VerifiedLog[Event]):
    """Log that any process may read. Raises `StoreAway` if no member answers."""

    def __init__(self, url: str, decode: Callable[[bytes], Event], warn: Callable[[str], None]) -> None:
        self._link = EtcdLink(url)
        self._keys = Keys(self._link.place.prefix)
        super().__init__(self._link.name, decode, warn)
        try:
            settle(self._link, self._keys)
        except PoiseError:
            self.close()
            raise

    def close(self) -> None:
        self._link.close()

    def first_revision(self) -> int:
        return int(self._value(self._keys.first))

    def last_revision(self) -> int:
        return int(self._value(self._keys.last))

    def written_by(self) -> str:
        return self._value(self._keys.written_by).decode()

    def _value(self, key: bytes) -> bytes:
        return self._link.ask(lambda members: members.value(key))

    def _rows(self, after: int, count: int) -> list[tuple[int, bytes]]:
        return self._link.ask(lambda members: _read(members, self._keys, after, count), LARGE)

    def _checkpoints(self) -> list[int]:
        return self._link.ask(lambda members: _checkpoints(members, self._keys))

    def _whole_checkpoint(self, revision: int) -> StoredCheckpoint | None:
        async def read(members: Members) -> bytes:
            found = await members.range(self._keys.checkpoint(revision))
            return await _content(members, self._keys, found[0]) if found else b""

        content = self._link.ask(read, LARGE)
        said, state = content[:_CHECKSUM_BYTES], content[_CHECKSUM_BYTES:]
        return StoredCheckpoint(revision, state) if said == _checksum(revision, state) else None

    def _damaged(self, message: str) -> PoiseError:
        return StoreDamaged(message, hint="restore a snapshot of etcd")


class EtcdWriter(LedWriter):
    """Writer whose transactions are refused once another process has the term."""

    def __init__(self, url: str, warn: Callable[[str], None]) -> None:
        self._link = EtcdLink(url)
        self._keys = Keys(self._link.place.prefix)
        super().__init__(self._link.name, warn)

    def sign(self, written_by: str) -> None:
        said = (put(self._keys.written_by, written_by.encode()), put(self._keys.format, b"%d" % FORMAT))
        self._link.ask(lambda members: self._commit(members, *said))

    def _append(self, rows: Rows) -> None:
        async def append(members: Members) -> None:
            for part in parts_of(rows, PIECE):
                before, last = part[0][0] - 1, part[-1][0]
                content, follows = _encode([record for _, record in part]), is_value(self._keys.last, b"%d" % before)
                moved = put(self._keys.last, b"%d" % last)
                if not await self._put(members, self._keys.log(last), content, moved, only_if=follows):
                    self._check_there(part, await _read(members, self._keys, before, len(part)))

        self._link.ask(append, LARGE)

    def add_checkpoint(self, checkpoint: StoredCheckpoint) -> None:
        revision, state = checkpoint

        async def add(members: Members) -> None:
            await self._put(members, self._keys.checkpoint(revision), _checksum(revision, state) + state)
            older = (await _checkpoints(members, self._keys))[:-CHECKPOINTS_KEPT]
            if older:
                await self._commit(members, *self._forget(self._keys.checkpoints, self._keys.checkpoint(older[-1] + 1)))

        self._link.ask(add, LARGE)

    def prune(self, before: int) -> bool:
        async def prune(members: Members) -> bool:
            kept = await _checkpoints(members, self._keys)
            first = int(await members.value(self._keys.first))
            end = min(before, kept[0] + 1) if len(kept) >= CHECKPOINTS_KEPT else first
            if end <= first:
                return False
            going = await members.range(self._keys.logs, self._keys.log(end), limit=PRUNE_KEYS, keys_only=True)
            slice_end = revision_of(going[-1].key) + 1 if len(going) == PRUNE_KEYS else end
            begins = put(self._keys.first, b"%d" % slice_end)
            await self._commit(members, begins, *self._forget(self._keys.logs, self._keys.log(slice_end)))
            return slice_end < end

        return self._link.ask(prune, LARGE)

    def probe(self) -> None:
        """Write a value next to the log, and delete it."""

        async def probe(members: Members) -> None:
            await self._commit(members, put(self._keys.probe, os.urandom(PROBE_BYTES)))
            await self._commit(members, delete(self._keys.probe))

        self._link.ask(probe)

    def close(self) -> None:
        self._link.close()

    def _forget(self, begin: bytes, end: bytes) -> list[Operation]:
        return [delete(begin, end), delete(self._keys.pieces(begin), self._keys.pieces(end))]

    async def _put(
        self, members: Members, key: bytes, content: bytes, *more: Operation, only_if: Compare | None = None
    ) -> bool:
        """Store `content` under its key if `only_if` holds; return whether it did. Pieces are written first."""
        value = _encode(content)
        if len(content) > PIECE:
            begins = range(0, len(content), PIECE)
            for number, begin in enumerate(begins):
                await self._commit(members, put(self._keys.piece(key, number), content[begin : begin + PIECE]))
            value = _encode(len(begins))
        return await self._commit(members, put(key, value), *more, only_if=only_if)

    async def _commit(self, members: Members, *operations: Operation, only_if: Compare | None = None) -> bool:
        """Return False if `only_if` does not hold. Raises `NotLeading` if another process has the term."""
        compare = [is_value(self._keys.term, b"%d" % self.term)]
        done = await members.commit([*compare, only_if] if only_if is not None else compare, list(operations))
        if not done:
            seen = await see(members, self._keys)
            self._check_leads(seen.term, seen.who.holder)
        return done


async def _read(members: Members, keys: Keys, after: int, count: int) -> list[tuple[int, bytes]]:
    """Return at most `count` records after this revision, in order. Unreadable content yields an empty record."""
    rows: list[tuple[int, bytes]] = []
    begin, limit = keys.log(after + 1), FIRST_PAGE
    while len(rows) < count:
        try:
            page, before = await members.range(begin, end_of(keys.logs), limit=limit), len(rows)
        except StoreAway:
            if limit <= FIRST_PAGE:
                raise
            limit = FIRST_PAGE  # the answer may have been too large
            continue
        for one in page:
            records = _records(await _content(members, keys, one))
            first = revision_of(one.key) - len(records) + 1
            rows += [row for row in enumerate(records, start=first) if row[0] > after]
        if len(page) < limit:
            break
        begin, missing = page[-1].key + b"\0", count - len(rows)
        size = sum(len(one.value) for one in page) + 1
        limit = max(1, min(PAGE, missing * len(page) // (len(rows) - before) + 1, PAGE_BYTES * len(page) // size))
    return rows[:count]


def _records(content: bytes) -> Sequence[bytes]:
    try:
        return _decode_records(content)
    except msgspec.MsgspecError:
        return [b""]


async def _content(members: Members, keys: Keys, found: KeyValue) -> bytes:
    """Return the content of an entry; empty if it is damaged."""
    try:
        value = _decode_value(found.value)
    except msgspec.MsgspecError:
        return b""
    if isinstance(value, bytes):
        return value
    pieces: list[bytes] = []
    while len(pieces) < value:
        pieces.append(await members.value(keys.piece(found.key, len(pieces))))
        if not pieces[-1]:
            return b""
    return b"".join(pieces)


async def _checkpoints(members: Members, keys: Keys) -> list[int]:
    found = await members.range(keys.checkpoints, end_of(keys.checkpoints), keys_only=True)
    return [revision_of(one.key) for one in found]


def _checksum(revision: int, state: bytes) -> bytes:
    return checksum(revision, state).to_bytes(_CHECKSUM_BYTES, "big")
