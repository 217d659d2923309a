"""A working tree as it is sent to nodes: files by the hashes of their content, listed in a manifest with its own hash.

A file is cut into pieces of `PIECE` bytes. A piece is identified by its SHA-256, and a tree by the SHA-256 of its
manifest, so equal trees have equal names, and the receiver of a piece or a manifest can verify it. A manifest comes
from a client and is not trusted: `checked` refuses each path that could lead out of the tree's folder.
"""

import re
from collections.abc import Iterator, Sequence
from typing import Literal

import msgspec

from poise.decoding import msgpack_decoder
from poise.errors import SpecError
from poise.units import format_bytes

PIECE = 2**20
"""Bytes of each piece of a file except the last."""

HASH = 32
"""Bytes of a hash."""

MAX_ENTRIES = 200_000
"""Maximum number of files, links and empty folders of one tree."""

MAX_TREE = 8 * 2**30
"""Maximum bytes of all files of one tree."""

MAX_PATH, MAX_NAME = 4096, 255
"""Maximum bytes of a path, and of each part of it."""

MAX_MANIFEST = 128 * 2**20
"""Maximum bytes of a manifest: a tree of many entries with long paths."""

CODE = "E141"


def owner_of(tenant: str, account: str) -> str:
    """Return whose files are meant: those of a tenant, or of one of its Unix accounts, which share nothing.

    >>> owner_of("team", "ann"), owner_of("team", "")
    ('team/ann', 'team')
    """
    return f"{tenant}/{account}" if account else tenant


IGNORED_BY = ".poiseignore"
"""The file of ignore rules, in addition to `.gitignore`."""

Kind = Literal["file", "program", "link", "folder"]
"""A file, a file that may be executed, a symbolic link, an empty folder."""


class Entry(msgspec.Struct, frozen=True, array_like=True, gc=False, omit_defaults=True):
    """One path of a tree, relative to its root. A file has a `size` and the concatenated hashes of its `pieces`; a link
    has a `target`.
    """

    path: str
    kind: Kind
    size: int = 0
    pieces: bytes = b""
    target: str = ""

    def hashes(self) -> Iterator[bytes]:
        """The hash of each piece."""
        return cut(self.pieces)


class Manifest(msgspec.Struct, frozen=True, array_like=True):
    """All entries of a tree, by path."""

    entries: tuple[Entry, ...]
    version: int = 1

    def encode(self) -> bytes:
        return msgspec.msgpack.encode(self)


class Tree(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, gc=False):
    """The files of a job: the hash of their manifest, in hexadecimal digits, and the `folder` inside them in which its
    commands run. A node that sees the submitter's files runs the job in the original folder, unless the copy counts
    `everywhere`. Each node builds a Python environment from the tree's lock file `requirements`.
    """

    hash: str
    folder: str = ""
    everywhere: bool = False
    requirements: str = ""


def digest(data: bytes) -> bytes:
    """The hash of a piece."""
    import hashlib  # it loads OpenSSL, and each command imports this module

    return hashlib.sha256(data).digest()


def cut(hashes: bytes) -> Iterator[bytes]:
    """Split concatenated hashes."""
    return (hashes[at : at + HASH] for at in range(0, len(hashes), HASH))


def pieces_of(data: bytes) -> list[bytes]:
    """Cut the content of a file into pieces."""
    return [data[at : at + PIECE] for at in range(0, len(data), PIECE)]


_PART = rf"(?!\.{{1,2}}(?:/|\Z))[^/\0]{{1,{MAX_NAME}}}"
_SAFE = re.compile(f"{_PART}(?:/{_PART})*")

_manifest = msgpack_decoder(Manifest)


def decoded(data: bytes) -> Manifest:
    """Decode a received manifest. Raises SpecError if it is invalid, or if `checked` refuses it."""
    try:
        manifest = _manifest.decode(data)
    except msgspec.DecodeError as error:
        raise SpecError(f"this is not a manifest: {error}", code=CODE, field="tree") from None
    if manifest.version != 1:
        what, have = "the manifest has an unknown version", str(manifest.version)
        raise SpecError(what, code=CODE, field="tree", need="version 1", have=have)
    checked(manifest.entries)
    return manifest


def checked(entries: Sequence[Entry]) -> None:
    """Raise SpecError unless each path stays in the tree, no path leads through a file or a link, and all limits are
    met.
    """
    if len(entries) > MAX_ENTRIES:
        raise too_many(len(entries))
    size = sum(entry.size for entry in entries)
    if size > MAX_TREE:
        raise too_large(size)
    kinds: dict[str, Kind] = {}
    for entry in entries:
        if not is_safe(entry.path):
            raise _refused("a path leads out of the tree, or is no path", entry.path)
        if entry.path in kinds:
            raise _refused("a path is there twice", entry.path)
        is_file = entry.kind in ("file", "program")
        count, rest = divmod(len(entry.pieces), HASH)
        if rest or entry.size < 0 or count != -(-entry.size // PIECE) or (entry.size and not is_file):
            raise _refused("the pieces of a file do not make up its size", entry.path)
        if (entry.kind == "link") != bool(entry.target) or "\0" in entry.target or len(entry.target) > MAX_PATH:
            raise _refused("the target of a link is missing, or is none", entry.path)
        kinds[entry.path] = entry.kind
    clear: set[str] = {""}
    for path in kinds:
        above = path.rpartition("/")[0]
        while above not in clear:
            if above in kinds:
                raise _refused(f"a path leads through a {kinds[above]}", path)
            clear.add(above)
            above = above.rpartition("/")[0]


def is_safe(path: str) -> bool:
    """Whether a path is relative, stays below its root, and is a valid path; judged by its text alone."""
    if _SAFE.fullmatch(path) is None or len(path) > MAX_PATH:
        return False
    if path.isascii():
        return True
    encoded = path.encode("utf-8", "surrogatepass")
    return len(encoded) <= MAX_PATH and all(len(part) <= MAX_NAME for part in encoded.split(b"/"))


def too_many(count: int) -> SpecError:
    return SpecError(
        "the working tree has too many files",
        code=CODE,
        field="sync",
        need=f"at most {MAX_ENTRIES}",
        have=str(count),
        hint=f"leave folders out by {IGNORED_BY}, or sync a smaller folder: `--sync=DIR`",
    )


def too_large(size: int) -> SpecError:
    return SpecError(
        "the working tree is too large",
        code=CODE,
        field="sync",
        need=f"at most {format_bytes(MAX_TREE)}",
        have=format_bytes(size),
        hint=f"leave data out by {IGNORED_BY}, and read it from where all nodes see it",
    )


def _refused(what: str, path: str) -> SpecError:
    return SpecError(what, code=CODE, field="tree", have=ascii(path[:200]))
