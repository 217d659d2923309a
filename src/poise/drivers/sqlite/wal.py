"""External checks of SQLite's write-ahead file (`-wal`) and its index (`-shm`) (sqlite.org/walformat.html).

The file is a header and frames, one page each. Frames of one generation share two random salts with the header; every
opening and every recovery of the store starts a new generation. The index has the same salts, and the number of frames
that SQLite accepts: those up to the last commit before the first bad frame.
"""

import struct
from pathlib import Path
from sys import byteorder

_HEADER_BYTES = 32
_HEADER_PAGE_SIZE = slice(8, 12)
_HEADER_SALTS = slice(16, 24)
_FRAME_HEADER_BYTES = 24
_FRAME_COMMIT = slice(4, 8)  # the size of the database after a commit, 0 in other frames
_FRAME_SALTS = slice(8, 16)
_INDEX_FRAMES = slice(16, 20)
_INDEX_SALTS = slice(32, 40)


def wal_path(path: Path) -> Path:
    return path.with_name(f"{path.name}-wal")


def index_path(path: Path) -> Path:
    return path.with_name(f"{path.name}-shm")


def has_index(path: Path) -> bool:
    """Return whether index and write-ahead file have the same generation; otherwise SQLite waits for 10 s."""
    header, index = _start(wal_path(path), _HEADER_BYTES), _start(index_path(path), _INDEX_SALTS.stop)
    if len(header) < _HEADER_BYTES:
        return not header and not any(index[_INDEX_FRAMES]) and index_path(path).exists()
    return header[_HEADER_SALTS] == index[_INDEX_SALTS] and _is_whole(header)


def lost_commit(path: Path) -> int:
    """Return the first frame of synced commits that SQLite does not accept; 0 if there are none. The log must be open.

    A commit is synced before the next one is written, so a crash can tear only the last transaction. One commit after
    the accepted frames may be that one; a second commit proves that the first had been synced.
    """
    content = _start(wal_path(path))  # before the index, which may advance meanwhile, but not fall behind
    index = _start(index_path(path), _INDEX_SALTS.stop)
    salts = content[_HEADER_SALTS]
    if not salts or index[_INDEX_SALTS] != salts:
        return 0  # SQLite starts a new generation; the mark shows whether anything is missing
    believed = int.from_bytes(index[_INDEX_FRAMES], byteorder)
    size = _FRAME_HEADER_BYTES + int.from_bytes(content[_HEADER_PAGE_SIZE], "big")
    commits = 0
    for start in range(_HEADER_BYTES + believed * size, len(content) - size + 1, size):
        frame = content[start : start + _FRAME_HEADER_BYTES]
        commits += frame[_FRAME_SALTS] == salts and any(frame[_FRAME_COMMIT])
    return believed + 1 if commits > 1 else 0


def _is_whole(header: bytes) -> bool:
    """Check SQLite's own checksum, in this machine's byte order."""
    first = second = 0
    for even, odd in struct.iter_unpack("<2I", header[:24]):
        first = first + even + second & 0xFFFF_FFFF
        second = second + odd + first & 0xFFFF_FFFF
    return header[24:] == struct.pack(">2I", first, second)


def _start(file: Path, count: int = -1) -> bytes:
    """Return the first bytes of a file; none if it is missing."""
    try:
        with file.open("rb") as opened:
            return opened.read(count)
    except FileNotFoundError:
        return b""
