"""Pieces of working trees in one SQLite file, by tenant and hash, and the process that stores them for a control plane.

    python -m poise.drivers.blobs FILE LIMIT

A piece is stored under the hash that is computed here, so no client can store one under another name. Rows belong to a
tenant, or to a Unix account of a tenant (`owner_of`): others cannot see them. A tree is registered once its manifest
and all its pieces are stored, and stays complete until it is removed as a whole. All acknowledged data is on disk; each
call can be repeated.

The file has a size limit, and leaves free a part of the disk for the log. A tree that no job needs is removed when it
has not been used for `KEPT`, or, when the file is full, for `AT_HAND`, the oldest first. A piece is removed with the
last tree that has it.

As a process it reads requests from its standard input and answers on its standard output, each as a 4-byte length and
MessagePack. It exits at the end of its input. So the control plane's event loop never waits for hashing or the disk.
"""

import contextlib
import math
import os
import shutil
import sqlite3
import struct
import sys
import time
from collections.abc import Collection, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, BinaryIO

import msgspec

from poise.decoding import msgpack_decoder
from poise.drivers.tidy import SPARE
from poise.errors import ErrorRecord, Fault, InputError, NotFound, PoiseError, SpecError, StoreFull
from poise.model.trees import CODE, HASH, MAX_MANIFEST, PIECE, Entry, Manifest, cut, decoded, digest
from poise.units import format_bytes

LIMIT = 32 * 2**30
"""Maximum bytes of the file of a control plane or a node."""

FREE = 2**30
"""Bytes of the disk that the file of a control plane leaves free for the log."""

OF_ONE = 2
"""One tenant may use the limit divided by this number."""

KEPT, AT_HAND = 7 * 86_400, 3_600
"""Seconds for which a tree that no job needs is kept: with free room, and without. Within the second, a client must
submit the job for which it sends a tree."""

AT_ONCE = 500
"""Maximum number of hashes in one SQL query."""

ANSWER, FEW = 4 * 2**20, 16
"""Maximum bytes of pieces in one answer, and the number of pieces that are read at once."""

PAGES, STEPS = 2**14, 16
"""Pages vacuumed in one transaction, and the maximum number of transactions per call; 64 MiB and 1 GiB."""

WAIT_SECONDS = 60.0

DAMAGED = "E216"

_TABLES = """
CREATE TABLE IF NOT EXISTS pieces (
    id INTEGER PRIMARY KEY, tenant TEXT NOT NULL, hash BLOB NOT NULL, size INTEGER NOT NULL, used INTEGER NOT NULL,
    UNIQUE (tenant, hash)
);
CREATE TABLE IF NOT EXISTS contents (id INTEGER PRIMARY KEY, data BLOB NOT NULL);
CREATE TABLE IF NOT EXISTS trees (
    tenant TEXT NOT NULL, hash BLOB NOT NULL, pieces BLOB NOT NULL, used INTEGER NOT NULL, PRIMARY KEY (tenant, hash)
) WITHOUT ROWID;
"""

_bodies = msgpack_decoder(list[bytes])
_manifest = msgpack_decoder(Manifest)
_needed = msgpack_decoder(list[tuple[str, bytes]])


class Blobs:
    """The SQLite file. Several processes may have it open. It leaves `spare` bytes of the disk free, or a twentieth of
    the disk if that is less.
    """

    def __init__(self, path: Path, limit: int = LIMIT, spare: int = 0) -> None:
        self._path = path
        self._limit, self._spare = limit, spare
        self._awaited: dict[tuple[str, bytes], dict[bytes, int]] = {}  # missing pieces of trees, until the next `tidy`
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        os.close(os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600))
        self._db = sqlite3.connect(path, timeout=WAIT_SECONDS, isolation_level=None)
        self._db.execute("PRAGMA auto_vacuum = INCREMENTAL")
        self._db.execute("PRAGMA journal_mode = WAL")
        self._db.execute("PRAGMA synchronous = FULL")
        self._db.execute("PRAGMA busy_timeout = 60000")
        self._db.executescript(_TABLES)

    def close(self) -> None:
        self._db.close()

    # --- pieces ------------------------------------------------------------------------------------------------------

    def missing(self, tenant: str, hashes: Iterable[bytes]) -> list[bytes]:
        """Return the pieces that this tenant does not have here. The others count as used now."""
        wanted = list(dict.fromkeys(hashes))
        found: set[bytes] = set()
        with self._writing():
            for some in _groups(wanted):
                rows = self._of(tenant, some, "hash, id, used")
                found.update(row[0] for row in rows)
                old = [(_now(), row[1]) for row in rows if row[2] < _now() - AT_HAND // 4]
                self._db.executemany("UPDATE pieces SET used = ? WHERE id = ?", old)
        return [one for one in wanted if one not in found]

    def put(self, tenant: str, pieces: Sequence[bytes]) -> int:
        """Store pieces of a tenant, each under its hash, and return the number of new ones. Raises SpecError for a
        piece that is too large, and StoreFull.
        """
        if any(len(one) > PIECE for one in pieces):
            need, have = f"at most {PIECE} bytes", str(max(map(len, pieces)))
            raise SpecError("a piece is too large", code=CODE, field="pieces", need=need, have=have)
        hashes = [digest(one) for one in pieces]
        new = set(self.missing(tenant, hashes))
        self._check_room(tenant, sum(map(len, pieces)))
        count = 0
        with self._writing():
            for one, data in zip(hashes, pieces, strict=True):
                if one not in new:
                    continue
                row = (tenant, one, len(data), _now())
                done = self._db.execute(
                    "INSERT INTO pieces (tenant, hash, size, used) VALUES (?, ?, ?, ?) ON CONFLICT DO NOTHING", row
                )
                if done.rowcount:
                    count += 1
                    self._db.execute("INSERT INTO contents (id, data) VALUES (?, ?)", (done.lastrowid, data))
        return count

    def some(self, tenant: str, hashes: Sequence[bytes]) -> list[bytes]:
        """Return the first of these pieces of a tenant, as many as fit into one answer. Raises as `get`."""
        found: list[bytes] = []
        size = 0
        for at in range(0, len(hashes), FEW):
            for one in self.get(tenant, hashes[at : at + FEW]):
                size += len(one)
                if found and size > ANSWER:
                    return found
                found.append(one)
        return found

    def get(self, tenant: str, hashes: Sequence[bytes]) -> list[bytes]:
        """Return pieces of a tenant in this order. Raises NotFound for a piece that this tenant does not have here."""
        found: dict[bytes, bytes] = {}
        for some in _groups(list(dict.fromkeys(hashes))):
            marks = ",".join("?" * len(some))
            query = f"SELECT hash, data FROM pieces JOIN contents USING (id) WHERE tenant = ? AND hash IN ({marks})"  # noqa: S608 — question marks only
            found.update(self._db.execute(query, (tenant, *some)).fetchall())
        gone = [one for one in hashes if one not in found]
        if gone:
            raise NotFound("a piece is not here", code=DAMAGED, field="pieces", have=gone[0].hex(), hint="submit again")
        return [found[one] for one in hashes]

    # --- trees -------------------------------------------------------------------------------------------------------

    def register(self, tenant: str, tree: bytes, pieces: bytes) -> list[bytes]:
        """Register a tree whose manifest consists of these pieces. Return the file pieces that are still missing; the
        tree is registered when there are none. Raises SpecError if the manifest is malformed, wrong or missing.
        """
        if len(pieces) > MAX_MANIFEST // PIECE * HASH or len(pieces) % HASH:
            raise SpecError("the manifest is too large", code=CODE, field="tree", need=format_bytes(MAX_MANIFEST))
        manifest = b"".join(self.get(tenant, list(cut(pieces))))
        if digest(manifest) != tree:
            raise SpecError("the manifest has another hash", code=CODE, field="tree", need=tree.hex())
        left = self._awaited.pop((tenant, tree), None)
        if left is None:
            known = self._known(tenant)
            left = {
                piece: size for piece, size in _sizes(decoded(manifest).entries).items() if known.get(piece) != size
            }
        left = self._missing_of(tenant, left)
        if left:
            self._awaited[tenant, tree] = left
        else:
            with self._writing():
                row = (tenant, tree, pieces, _now())
                self._db.execute("INSERT OR REPLACE INTO trees (tenant, hash, pieces, used) VALUES (?, ?, ?, ?)", row)
        return list(left)

    def pieces_of(self, tenant: str, tree: bytes) -> bytes:
        """Return the pieces of a registered tree's manifest; the tree counts as used now. Raises NotFound."""
        row = self._db.execute("SELECT pieces FROM trees WHERE tenant = ? AND hash = ?", (tenant, tree)).fetchone()
        if row is None:
            raise NotFound("the tree is not here", code=DAMAGED, field="tree", have=tree.hex(), hint="submit again")
        with self._writing():
            self._db.execute("UPDATE trees SET used = ? WHERE tenant = ? AND hash = ?", (_now(), tenant, tree))
        return bytes(row[0])

    def has(self, tenant: str, tree: bytes) -> bool:
        """Return whether a tree is registered; it counts as used now."""
        with contextlib.suppress(NotFound):
            self.pieces_of(tenant, tree)
            return True
        return False

    def tidy(self, needed: Collection[tuple[str, bytes]]) -> int:
        """Remove everything that no job needs. `needed` are the needed trees with their tenants. Return the number of
        removed trees.
        """
        gone = 0
        self._awaited.clear()
        rows = self._db.execute("SELECT tenant, hash, used FROM trees ORDER BY used").fetchall()
        for tenant, tree, used in rows:
            idle = _now() - used
            if (tenant, tree) not in needed and (
                idle > KEPT or (idle > AT_HAND and self._size() > self._room(self._spare) * 3 // 4)
            ):
                with self._writing():
                    self._db.execute("DELETE FROM trees WHERE tenant = ? AND hash = ?", (tenant, tree))
                self._drop_pieces(tenant)
                gone += 1
        for (tenant,) in self._db.execute("SELECT DISTINCT tenant FROM pieces").fetchall():
            self._drop_pieces(tenant)
        return gone

    def _drop_pieces(self, tenant: str) -> None:
        """Remove a tenant's pieces that no tree has and no client has sent recently."""
        held: set[bytes] = set()
        for (pieces,) in self._db.execute("SELECT pieces FROM trees WHERE tenant = ?", (tenant,)).fetchall():
            held.update(cut(pieces))
            for entry in decoded(b"".join(self.get(tenant, list(cut(pieces))))).entries:
                held.update(entry.hashes())
        rows = self._db.execute("SELECT id, hash, used FROM pieces WHERE tenant = ?", (tenant,)).fetchall()
        drop = [(row[0],) for row in rows if row[1] not in held and row[2] < _now() - AT_HAND]
        with self._writing():
            self._db.executemany("DELETE FROM contents WHERE id = ?", drop)
            self._db.executemany("DELETE FROM pieces WHERE id = ?", drop)
        self._give_back()

    def shrink(self) -> None:
        """Shrink the file of a node, which can fetch everything again: remove the least recently used pieces, down to
        half of the limit, and all trees. The limit is lower if the disk has less free space, not counting a reserve of
        a twentieth.
        """
        limit = self._room(math.inf)
        if self._size() <= limit * 3 // 4:
            return
        rows = self._db.execute("SELECT id, size FROM pieces ORDER BY used DESC").fetchall()
        total, drop = 0, []
        for row, size in rows:
            total += size
            if total > limit // 2:
                drop.append((row,))
        with self._writing():
            self._db.execute("DELETE FROM trees")
            self._db.executemany("DELETE FROM contents WHERE id = ?", drop)
            self._db.executemany("DELETE FROM pieces WHERE id = ?", drop)
        self._give_back()

    # --- the file ----------------------------------------------------------------------------------------------------

    def _known(self, tenant: str) -> dict[bytes, int]:
        """Return the pieces of the tree that this tenant used last, with their sizes. This read counts as a use of the
        tree, so its pieces stay. Most new trees differ from it in only a few files.
        """
        row = self._db.execute("SELECT hash FROM trees WHERE tenant = ? ORDER BY used DESC", (tenant,)).fetchone()
        if row is None:
            return {}
        manifest = b"".join(self.get(tenant, list(cut(self.pieces_of(tenant, row[0])))))
        return _sizes(_manifest.decode(manifest).entries)

    def _missing_of(self, tenant: str, wanted: dict[bytes, int]) -> dict[bytes, int]:
        """Return the wanted pieces that are missing, with their sizes. Raises SpecError if a stored piece is not as
        long as its file says: a node would make a file that differs from its entry.
        """
        left = dict(wanted)
        with self._writing():
            for some in _groups(list(wanted)):
                rows = self._of(tenant, some, "hash, size, id, used")
                for piece, size, _, _ in rows:
                    if left.pop(piece) != size:
                        what = "a file has another size than its pieces"
                        raise SpecError(what, code=CODE, field="tree", have=piece.hex())
                old = [(_now(), row[2]) for row in rows if row[3] < _now() - AT_HAND // 4]
                self._db.executemany("UPDATE pieces SET used = ? WHERE id = ?", old)
        return left

    def _check_room(self, tenant: str, more: int) -> None:
        size = self._size() + more
        if self._spare and self._room(self._spare) < size <= self._limit:
            raise _full("room on the disk of the state directory, beside what stays free for the log")
        if size > self._limit:
            raise _full(f"at most {format_bytes(self._limit)} of files")
        if size <= self._limit // OF_ONE:
            return  # no tenant can exceed its part, and adding up its pieces takes long
        whole = tenant.partition("/")[0]
        accounts = "tenant > ?1 || '/' AND tenant < ?1 || '0'"  # this is the character after the slash
        query = f"SELECT total(size) FROM pieces WHERE tenant = ?1 OR ({accounts})"  # noqa: S608 — a text of ours
        (held,) = self._db.execute(query, (whole,)).fetchone()
        if tenant and held + more > self._limit // OF_ONE:
            raise _full(f"at most {format_bytes(self._limit // OF_ONE)} of files of one tenant")

    def _room(self, spare: float) -> int:
        """Return the limit of the file. It is lower if the disk has less free space, not counting `spare` bytes, or a
        twentieth of the disk if that is less.
        """
        disk = shutil.disk_usage(self._path.parent)
        return min(self._limit, self._size() + max(0, disk.free - int(min(spare, disk.total // SPARE))))

    def _size(self) -> int:
        pages, free, size = (
            self._db.execute(f"PRAGMA {name}").fetchone()[0] for name in ("page_count", "freelist_count", "page_size")
        )
        return int((pages - free) * size)

    def _of(self, tenant: str, hashes: Sequence[bytes], columns: str) -> list[tuple[Any, ...]]:
        marks = ",".join("?" * len(hashes))
        query = f"SELECT {columns} FROM pieces WHERE tenant = ? AND hash IN ({marks})"  # noqa: S608 — columns of ours
        return self._db.execute(query, (tenant, *hashes)).fetchall()

    def _give_back(self) -> None:
        """Vacuum the freed pages, or a part of them, since other requests wait. `execute` would free one page only,
        because it stops when there are no rows.
        """
        for _ in range(STEPS):
            self._db.executescript(f"PRAGMA incremental_vacuum({PAGES})")
            if not self._db.execute("PRAGMA freelist_count").fetchone()[0]:
                break
        self._empty_log()

    def _empty_log(self) -> None:
        """Truncate the write-ahead log, which otherwise keeps its size."""
        with contextlib.suppress(sqlite3.Error):
            self._db.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()

    @contextlib.contextmanager
    def _writing(self) -> Iterator[None]:
        """Run one transaction. Raises StoreFull if the disk is full."""
        try:
            self._db.execute("BEGIN IMMEDIATE")
            try:
                yield
                self._db.execute("COMMIT")
            except BaseException:
                with contextlib.suppress(sqlite3.Error):
                    self._db.execute("ROLLBACK")
                raise
        except sqlite3.OperationalError as error:
            if "full" in str(error) or "I/O" in str(error):
                self._empty_log()
                raise _full("room on the disk of the state directory") from None
            raise


def _sizes(entries: Iterable[Entry]) -> dict[bytes, int]:
    """Return the size of each piece of these entries."""
    sizes: dict[bytes, int] = {}
    for entry in entries:
        left = entry.size
        for piece in (entry.pieces,) if len(entry.pieces) == HASH else entry.hashes():
            size = min(PIECE, left)
            left -= size
            if sizes.setdefault(piece, size) != size:
                raise SpecError("a piece is used with two sizes", code=CODE, field="tree", have=ascii(entry.path))
    return sizes


def _full(need: str) -> StoreFull:
    hint = "`poise rm` jobs that have ended, or leave data out of the tree by .poiseignore"
    return StoreFull("there is no room for the files of the job", code=DAMAGED, field="sync", need=need, hint=hint)


def _now() -> int:
    return int(time.time())


def _groups(hashes: list[bytes]) -> Iterator[list[bytes]]:
    return (hashes[at : at + AT_ONCE] for at in range(0, len(hashes), AT_ONCE))


# --- the process -----------------------------------------------------------------------------------------------------

LENGTH = struct.Struct(">I")


class Asked(msgspec.Struct, array_like=True):
    """A request: its number, the operation, its tenant, and its tree and data."""

    number: int
    deed: str
    tenant: str = ""
    tree: bytes = b""
    data: bytes = b""


class Told(msgspec.Struct, array_like=True):
    """The answer to a request, or its error."""

    number: int
    data: bytes = b""
    error: ErrorRecord | None = None
    status: int = 0


_asked = msgpack_decoder(Asked)


def answered(blobs: Blobs, asked: Asked) -> bytes:
    """Return the answer to a request. Raises PoiseError."""
    match asked.deed:
        case "missing":
            return b"".join(blobs.missing(asked.tenant, cut(asked.data)))
        case "put":
            try:
                pieces = _bodies.decode(asked.data)
            except msgspec.DecodeError as error:
                raise SpecError(f"these are no pieces: {error}", code="E101", field="pieces") from None
            return b"%d" % blobs.put(asked.tenant, pieces)
        case "get":
            return msgspec.msgpack.encode(blobs.some(asked.tenant, list(cut(asked.data))))
        case "register":
            return b"".join(blobs.register(asked.tenant, asked.tree, asked.data))
        case "pieces":
            return blobs.pieces_of(asked.tenant, asked.tree)
        case "tidy":
            needed = _needed.decode(asked.data)
            return b"%d" % blobs.tidy(set(needed))
    raise AssertionError(asked.deed)


def serve(blobs: Blobs, reads: BinaryIO, writes: BinaryIO) -> None:
    """Answer requests one after another until the input ends."""
    while len(head := reads.read(LENGTH.size)) == LENGTH.size:
        asked = _asked.decode(reads.read(*LENGTH.unpack(head)))
        try:
            told = Told(asked.number, answered(blobs, asked))
        except PoiseError as error:
            told = Told(asked.number, error=error.record, status=error.status)
        except sqlite3.Error as error:
            fault = Fault(f"the files of jobs cannot be read or written: {error}", code=DAMAGED, field="blobs.db")
            told = Told(asked.number, error=fault.record, status=fault.status)
        frame = msgspec.msgpack.encode(told)
        writes.write(LENGTH.pack(len(frame)) + frame)
        writes.flush()


def main() -> int:
    os.umask(0o077)
    with contextlib.suppress(OSError):
        os.nice(5)  # the control plane takes precedence
    try:
        blobs = Blobs(Path(sys.argv[1]), int(sys.argv[2]), FREE)
    except (OSError, sqlite3.Error) as error:
        sys.stderr.write(f"the files of jobs cannot be opened: {error}\n")
        return InputError.exit_code
    with contextlib.suppress(KeyboardInterrupt, BrokenPipeError):
        serve(blobs, sys.stdin.buffer, sys.stdout.buffer)
    return 0


if __name__ == "__main__":
    sys.exit(main())
