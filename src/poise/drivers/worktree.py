"""A working tree on this machine: the files to send, and the hash of each.

Each file's content is read once. An index in the state directory holds the hashes with each file's size, times, inode
and mode. A file is read again unless all of these are unchanged *and* the file was last changed well before it was
read: a file that changes within the same clock tick looks the same (Git calls such an entry racily clean). The check
uses the change time (ctime), which no program can set, so `touch -r`, `rsync -t`, renames and checkouts are all
detected. Entries on network file systems, whose clock differs from ours, are never trusted. So an unchanged tree costs
one listing with stats, and a stale file is never sent.

Left out are version control, caches, environments, and paths that `.gitignore` and `.poiseignore` name. Files that
cannot be sent, or look like secrets, are errors that name them.
"""

import hashlib
import os
import re
import stat
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import cached_property
from pathlib import Path
from typing import NamedTuple

import msgspec

from poise.decoding import msgpack_decoder
from poise.drivers.bringing import git_folder, tree_root
from poise.drivers.ignores import FILES, Rule, deciding, line_for, rules_of
from poise.drivers.whole import write_whole
from poise.errors import Conflict, NotFound, SpecError
from poise.model.document import some
from poise.model.trees import (
    CODE,
    IGNORED_BY,
    MAX_ENTRIES,
    MAX_TREE,
    PIECE,
    Entry,
    Kind,
    Manifest,
    cut,
    digest,
    pieces_of,
    too_large,
    too_many,
)

VERSION = 2
"""Version of the index and of the rules for choosing files; an index with another version is ignored."""

SETTLED = 2 * 10**9
"""Minimum nanoseconds between a file's last change and its reading: the coarsest clock of a file system."""

ALWAYS_OUT = {
    ".git": "version control",
    ".hg": "version control",
    ".svn": "version control",
    "__pycache__": "a cache",
    ".mypy_cache": "a cache",
    ".pytest_cache": "a cache",
    ".ruff_cache": "a cache",
    ".ipynb_checkpoints": "a cache",
}
"""Names that are left out everywhere, with the reason."""

ENVIRONMENT = "a virtual environment; `requirements` builds one on the node"

NOT_UTF8 = "its name is not UTF-8"

LOCAL = frozenset(("bcachefs", "btrfs", "ext2", "ext3", "ext4", "f2fs", "overlay", "ramfs", "tmpfs", "xfs", "zfs"))
"""File systems that use this machine's clock."""

SECRET_NAMES = re.compile(
    r"\.env(?:\.(?!example$|sample$|template$|dist$)[^/]*)?|[^/]*\.(?:pem|key|p12|pfx|jks|keystore|kdbx|token)"
    r"|id_(?:rsa|dsa|ecdsa|ed25519)(?:_sk)?|\.netrc|\.pgpass|\.pypirc|\.npmrc|\.htpasswd|\.git-credentials"
    r"|credentials\.json|service[-_]account[^/]*\.json|token|secrets?\.(?:ya?ml|json|toml)",
    re.IGNORECASE,
)
"""Names of files that hold keys or passwords."""

SECRET_TEXTS = re.compile(
    rb"-----BEGIN (?:[A-Z]+ )*PRIVATE KEY-----|\bAKIA[0-9A-Z]{16}\b|\bgh[pousr]_[A-Za-z0-9]{36}|\bgithub_pat_\w{60}"
    rb"|\bhf_[A-Za-z]{34}\b|\bglpat-[\w-]{20}|\bxox[abprs]-[\w-]{20}|\bAIza[\w-]{35}\b|\bsk-(?:proj-|ant-)?[\w-]{40}"
)
"""Patterns of known keys and tokens in texts."""

SCANNED = 1 << 20
"""Largest file, in bytes, that is scanned for tokens."""

TRIES = 3
SHOWN = 5

READING = os.O_RDONLY
for name in ("O_NOFOLLOW", "O_NONBLOCK", "O_CLOEXEC", "O_BINARY"):
    READING |= getattr(os, name, 0)  # no system has all of them
"""Flags for opening a file: never follow a link, and never wait for the writer of a pipe."""

MOST_SENT, SENT = 20_000, 2 * PIECE
"""Maximum number of pieces in one request, and of their bytes."""


class Known(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """A file as it was when it was read. `settled` means that equal stats prove it unchanged."""

    size: int
    modified: int
    changed: int
    inode: int
    mode: int
    kind: Kind
    pieces: bytes
    target: str
    settled: bool


class Folder(msgspec.Struct, array_like=True):
    """A folder of the index: the hash of its rules, its files and links, its subfolders, and the names left out with
    the reason. The name of a folder that was left out ends in a slash.
    """

    rules: bytes
    entries: dict[str, Known] = {}
    folders: list[str] = []
    left: dict[str, str] = {}


class Index(msgspec.Struct, array_like=True):
    """A tree as it was last seen, with its hash. Folders are keyed by their path below the root, which is "" itself."""

    version: int
    root: str
    hash: str
    folders: dict[str, Folder]


class Left(NamedTuple):
    """A path that was left out."""

    path: str
    why: str


class Snapshot:
    """A tree as it is now. `read` is the number of files whose content was read; `size` is the total size of all
    files."""

    def __init__(
        self, root: Path, folders: dict[str, Folder], left: Sequence[Left], *, read: int = 0, known: str = ""
    ) -> None:
        """`known` is the hash of the tree if it is already known."""
        self.root = root
        self.folders = folders
        self.left = left
        self.read = read
        self._known = known

    @cached_property
    def hash(self) -> str:
        return self._known or digest(self.manifest).hex()

    def holds(self, path: str) -> bool:
        """Return whether it has a file or a link at this path below its root."""
        above, _, name = path.rpartition("/")
        folder = self.folders.get(f"{above}/" if above else "")
        return folder is not None and name in folder.entries

    @cached_property
    def entries(self) -> tuple[Entry, ...]:
        """All of its entries, sorted by path."""
        found = []
        for below, folder in self.folders.items():
            for name, of in folder.entries.items():
                found.append(Entry(below + name, of.kind, of.size, of.pieces, of.target))
            if below and not folder.entries and not folder.folders:
                found.append(Entry(below[:-1], "folder"))
        found.sort(key=lambda entry: entry.path)
        return tuple(found)

    @cached_property
    def manifest(self) -> bytes:
        return Manifest(self.entries).encode()

    @cached_property
    def files(self) -> int:
        return sum(len(folder.entries) for folder in self.folders.values())

    @cached_property
    def size(self) -> int:
        return sum(one.size for folder in self.folders.values() for one in folder.entries.values())

    def contents(self, wanted: set[bytes]) -> Iterator[bytes]:
        """Yield these pieces of its files, each once. Raises Conflict if a file has changed since it was scanned."""
        left = set(wanted)
        for entry in self.entries if left else ():
            if not left:
                return
            if entry.kind not in ("file", "program"):
                continue
            for number, piece in enumerate(entry.hashes()):
                if piece in left:
                    left.discard(piece)
                    yield _read_piece(self.root / entry.path, number, piece, entry.path)

    def told(self) -> str:
        """Return the paths left out, with reasons, in one line; "" if there are none."""
        reasons: dict[str, list[str]] = {}
        for one in self.left:
            reasons.setdefault(one.why, []).append(one.path)
        return "; ".join(f"{some(paths, SHOWN)} ({why})" for why, paths in reasons.items())


def look(root: Path, state: Path) -> Snapshot:
    """Scan the tree below a folder. Its index is kept in the state directory `state`. Raises SpecError with all
    problems that prevent sending it.
    """
    root = root.resolve()
    if not root.is_dir():
        raise SpecError("the working tree is no folder", code=CODE, field="sync", have=str(root), hint="--sync=DIR")
    path = _index_path(root, state)
    known = _load(path, root)
    scan = _Scan(root, state.resolve(), known)
    scan.run()
    is_known = known is not None and not scan.differs
    snapshot = Snapshot(root, scan.folders, scan.left, read=scan.read, known=known.hash if known and is_known else "")
    if snapshot.files > MAX_ENTRIES:
        raise too_many(snapshot.files)
    if snapshot.size > MAX_TREE:
        raise too_large(snapshot.size)
    scan.check()
    if not is_known or scan.read:
        _save(path, Index(VERSION, str(root), snapshot.hash, scan.folders))
    return snapshot


Ask = Callable[[str, str, bytes | None], bytes]
"""Sends a request to a control plane (method, path, content) and returns the content of the answer."""


def sending(tree: Snapshot, ask: Ask) -> Iterator[list[bytes]]:
    """Send the pieces of a tree that the control plane lacks, and yield them request by request. If it lacks nothing,
    one request suffices.
    """
    try:
        ask("GET", f"/v1/trees/{tree.hash}", None)
        return
    except NotFound:
        pass
    manifest = {digest(one): one for one in pieces_of(tree.manifest)}
    names = b"".join(map(digest, pieces_of(tree.manifest)))
    new = cut(ask("POST", "/v1/files/missing", names))
    for pieces in _batches(manifest[one] for one in new):
        ask("POST", "/v1/files", msgspec.msgpack.encode(pieces))
    for _ in range(TRIES):
        missing = set(cut(ask("POST", f"/v1/trees/{tree.hash}", names)))
        if not missing:
            return
        for pieces in _batches(tree.contents(missing)):
            ask("POST", "/v1/files", msgspec.msgpack.encode(pieces))
            yield pieces
    raise Conflict("files were removed while the tree was sent", code=CODE, field="sync", hint="again")


def _batches(pieces: Iterable[bytes]) -> Iterator[list[bytes]]:
    batch: list[bytes] = []
    size = 0
    for piece in pieces:
        if batch and (size + len(piece) > SENT or len(batch) >= MOST_SENT):
            yield batch
            batch, size = [], 0
        batch.append(piece)
        size += len(piece)
    if batch:
        yield batch


class _Below(NamedTuple):
    """A folder that is still to be scanned, with the rules from above it."""

    below: str
    rules: list[Rule]
    chain: bytes
    device: int
    local: bool


class _Scan:
    """One walk over a tree."""

    def __init__(self, root: Path, state: Path, known: Index | None) -> None:
        self._root = str(root)
        self._state = str(state)
        self._top = tree_root(root)
        self._above = f"{root.relative_to(self._top)}/" if self._top not in (None, root) else ""
        self._known = known.folders if known is not None else {}
        self._mounts = _mounts()
        self._problems: dict[str, list[str]] = {}
        self._count = self._size = 0
        self.folders: dict[str, Folder] = {}
        self.left: list[Left] = []
        self.read = 0
        self.differs = False

    def run(self) -> None:
        device = os.stat(self._root).st_dev  # noqa: PTH116 — as below
        waiting = [_Below("", *self._rules_above(), device, self._is_local(self._root))]
        while waiting:
            waiting += reversed(self._folder(*waiting.pop()))
        self.differs = self.differs or self._known.keys() != self.folders.keys()

    def check(self) -> None:
        """Raise SpecError with everything that cannot be sent."""
        errors = []
        for why, paths in self._problems.items():
            line = line_for(paths[0])
            hint = f"add `{line}` to {IGNORED_BY} to leave it out"
            if why.startswith("it looks like a secret"):
                hint += f", or `!{line}` to send it; a job gets a key by `--secret`"
            have = some([path if _is_utf8(path) else ascii(path) for path in sorted(paths)], SHOWN)
            errors.append(SpecError(why, code=CODE, field="sync", have=have, hint=hint))
        if errors:
            first = errors[0]
            others = tuple(error.record for error in errors[1:])
            first.record = msgspec.structs.replace(first.record, others=others)
            raise first

    def _rules_above(self) -> tuple[list[Rule], bytes]:
        """Return the rules that Git applies in the root from elsewhere (`info/exclude`, and the folders above it up to
        the top of its Git working tree), and their hash.
        """
        rules: list[Rule] = []
        chain = b""
        if self._top is None:
            return rules, chain
        rules, chain = self._more_rules(rules, chain, "", ".git/info/exclude", f"{git_folder(self._top)}/info/exclude")
        names = self._above.split("/")[:-1]
        for depth in range(len(names)):
            base = "".join(f"{name}/" for name in names[:depth])
            for name in FILES:
                rules, chain = self._more_rules(rules, chain, base, name, f"{self._top}/{base}{name}")
        return rules, chain

    def _more_rules(self, rules: list[Rule], chain: bytes, base: str, name: str, path: str) -> tuple[list[Rule], bytes]:
        """Return the rules and their hash, extended by a file of the folder `base`. A link does not count as such a
        file."""
        try:
            state = os.lstat(path)
            text = Path(path).read_bytes() if stat.S_ISREG(state.st_mode) else None
        except (FileNotFoundError, NotADirectoryError):
            return rules, chain
        except OSError as error:
            self._problem(f"it cannot be read: {error.strerror}", os.path.relpath(path, self._root))
            return rules, chain
        if text is None:
            return rules, chain
        chain = hashlib.blake2b(chain + b"\0" + os.fsencode(path) + b"\0" + text, digest_size=16).digest()
        return rules + rules_of(text.decode("utf-8", "replace"), name, base), chain

    def _folder(self, below: str, rules: list[Rule], chain: bytes, device: int, local: bool) -> list["_Below"]:
        """Scan the folder at the path `below` the root (with a trailing slash unless it is the root). Return its
        subfolders.
        """
        try:
            with os.scandir(self._root + "/" + below) as entries:
                found = sorted(entries, key=_name_of)
        except FileNotFoundError:
            return []  # it was removed since its name was read: the tree is in use
        except OSError as error:
            self._problem(f"it cannot be read: {error.strerror}", below or ".")
            return []
        if any(one.name in FILES for one in found):
            for name in FILES:  # in the order of FILES, not of the folder
                path = f"{self._root}/{below}{name}"
                rules, chain = self._more_rules(rules, chain, self._above + below, name, path)
        before = self._known.get(below)
        same_rules = before is not None and before.rules == chain
        known = before.entries if before is not None and same_rules else {}
        here = self.folders[below] = Folder(chain)
        entries_here, inside = here.entries, []
        for one in found:
            name = one.name
            try:
                state = one.stat(follow_symlinks=False)
            except FileNotFoundError:
                continue
            except OSError as error:
                self._problem(f"it cannot be read: {error.strerror}", below + name)
                continue
            of = known.get(name)
            if (
                of is not None
                and of.settled
                and local
                and state.st_ctime_ns == of.changed
                and state.st_mtime_ns == of.modified
                and state.st_size == of.size
                and state.st_ino == of.inode
                and state.st_mode == of.mode
                and of.kind != "link"
            ):
                entries_here[name] = of
                continue
            path = below + name
            is_folder = stat.S_ISDIR(state.st_mode)
            ending = "/" * is_folder
            why = before.left.get(name + ending) if before is not None and same_rules else None
            was_sent = before is not None and same_rules and is_folder and name in before.folders
            if why == ENVIRONMENT or (why is None and (not was_sent or _is_environment(one))):
                why = self._why_out(path, name, rules, one, is_folder)
            if why is not None:
                if _is_utf8(name):
                    here.left[name + ending] = why
                self.left.append(Left((path if _is_utf8(path) else ascii(path)) + ending, why))
            elif is_folder and not _is_utf8(name):
                self._problem(NOT_UTF8, path)
            elif is_folder:
                inside.append((path + "/", state.st_dev))
                here.folders.append(name)
            else:
                self._take(entries_here, name, path, state, rules, local)
        if before is None or before != here:
            self.differs = True
        return [
            _Below(
                path,
                rules,
                chain,
                its_device,
                local if its_device == device else self._is_local(self._root + "/" + path),
            )
            for path, its_device in inside
        ]

    def _why_out(
        self,
        path: str,
        name: str,
        rules: Sequence[Rule],
        one: "os.DirEntry[str]",
        is_folder: bool,
    ) -> str | None:
        """Return why a path is left out, or None if it is not."""
        if is_folder and one.path == self._state:
            return "the state directory of Poise"
        if name in ALWAYS_OUT:
            return ALWAYS_OUT[name]
        rule = deciding(rules, self._above + path, is_folder=is_folder) if rules else None
        if rule is not None:
            place = os.path.relpath(rule.base + rule.file, self._above or ".")
            return None if rule.includes else f"`{rule.text}` in {place}"
        return ENVIRONMENT if is_folder and _is_environment(one) else None

    def _take(
        self,
        entries: dict[str, Known],
        name: str,
        path: str,
        state: os.stat_result,
        rules: Sequence[Rule],
        local: bool,
    ) -> None:
        """Add a file or link that is new or may have changed."""
        if not _is_utf8(name):
            self._problem(NOT_UTF8, path)
            return
        self._count += 1
        if self._count > MAX_ENTRIES:
            raise too_many(self._count)
        if stat.S_ISLNK(state.st_mode):
            self._take_link(entries, name, path, state)
            return
        if not stat.S_ISREG(state.st_mode):
            self._problem(f"it is {_what(state.st_mode)}, which cannot be sent", path)
            return
        self._size += state.st_size
        if self._size > MAX_TREE:  # before the rest is read
            raise too_large(self._size)
        allowed = (rule := deciding(rules, self._above + path, is_folder=False)) is not None and rule.file == IGNORED_BY
        if not allowed and SECRET_NAMES.fullmatch(name):
            self._problem("it looks like a secret by its name", path)
            return
        try:
            made, has_secret = self._hashed(path, local)
        except FileNotFoundError:
            return
        except OSError as error:
            self._problem(f"it cannot be read: {error.strerror or error}", path)
            return
        if has_secret and not allowed:
            self._problem("it looks like a secret: a key or a token is in its text", path)
            return
        entries[name] = made

    def _take_link(self, entries: dict[str, Known], name: str, path: str, state: os.stat_result) -> None:
        full = f"{self._root}/{path}"
        try:
            target = os.readlink(full)  # noqa: PTH115
            target.encode()
        except FileNotFoundError:
            return
        except (OSError, UnicodeEncodeError):
            self._problem("its target cannot be read as UTF-8", path)
            return
        leads_to = os.path.realpath(full)
        if target.startswith("/") or not (leads_to + "/").startswith(self._root + "/"):
            self._problem("the link leads out of the tree", path)
            return
        entries[name] = Known(0, 0, 0, state.st_ino, state.st_mode, "link", b"", target, settled=False)

    def _hashed(self, path: str, local: bool) -> tuple[Known, bool]:
        """Return a file with the hashes of its pieces, and whether it contains a secret. Raises OSError if it changes
        during each of `TRIES` reads.
        """
        full = f"{self._root}/{path}"
        self.read += 1
        for _ in range(TRIES):
            begun = time.time_ns()
            file = os.open(full, READING)
            try:
                state, pieces, size, has_secret = os.fstat(file), [], 0, False
                if not stat.S_ISREG(state.st_mode):
                    continue
                while data := _whole_piece(file):
                    pieces.append(digest(data))
                    size += len(data)
                    if state.st_size <= SCANNED and b"\0" not in data[:1024]:
                        has_secret = has_secret or SECRET_TEXTS.search(data) is not None
                    if size > state.st_size:
                        break
                after = os.fstat(file)
            finally:
                os.close(file)
            if size == state.st_size and _same(state, after):
                kind: Kind = "program" if state.st_mode & 0o100 else "file"
                settled = local and state.st_ctime_ns < begun - SETTLED
                made = Known(
                    size,
                    state.st_mtime_ns,
                    state.st_ctime_ns,
                    state.st_ino,
                    state.st_mode,
                    kind,
                    b"".join(pieces),
                    "",
                    settled,
                )
                return made, has_secret
        raise OSError("it changes while it is read")

    def _problem(self, why: str, path: str) -> None:
        self._problems.setdefault(why, []).append(path)
        self.differs = True

    def _is_local(self, path: str) -> bool:
        """Return whether file times in this folder come from this machine's clock."""
        if self._mounts is None:
            return sys.platform == "darwin"
        at = path.rstrip("/")
        while at and at not in self._mounts:
            at = at.rpartition("/")[0]
        return self._mounts.get(at or "/") in LOCAL


def _is_environment(folder: "os.DirEntry[str]") -> bool:
    return os.path.exists(folder.path + "/pyvenv.cfg")  # noqa: PTH110 — no path object for each folder


def _is_utf8(name: str) -> bool:
    try:
        name.encode()
    except UnicodeEncodeError:
        return False
    return True


def _name_of(entry: "os.DirEntry[str]") -> str:
    return entry.name


def _same(one: os.stat_result, other: os.stat_result) -> bool:
    return (one.st_size, one.st_mtime_ns, one.st_ctime_ns) == (other.st_size, other.st_mtime_ns, other.st_ctime_ns)


def _whole_piece(file: int) -> bytes:
    """Read the next piece of a file; only the last one is shorter."""
    data = os.read(file, PIECE)
    while 0 < len(data) < PIECE and (more := os.read(file, PIECE - len(data))):
        data += more
    return data


def _read_piece(path: Path, number: int, wanted: bytes, name: str) -> bytes:
    try:
        file = os.open(path, READING)
        try:
            data = os.pread(file, PIECE, number * PIECE)
        finally:
            os.close(file)
    except OSError:
        data = b""
    if digest(data) != wanted:
        raise Conflict("a file has changed while the tree was sent", code=CODE, field="sync", have=name, hint="again")
    return data


def _what(mode: int) -> str:
    for is_one, name in ((stat.S_ISSOCK, "a socket"), (stat.S_ISFIFO, "a pipe")):
        if is_one(mode):
            return name
    return "a device"


def _mounts() -> dict[str, str] | None:
    """Return the file system of each mount point, or None if the system does not report them."""
    try:
        lines = Path("/proc/self/mountinfo").read_text("utf-8", "surrogateescape").splitlines()
    except OSError:
        return None
    found = {}
    for line in lines:
        before, _, after = line.partition(" - ")
        words = before.split(" ")
        place = re.sub(r"\\([0-7]{3})", lambda code: chr(int(code[1], 8)), words[4])
        found[place] = after.partition(" ")[0]
    return found


# --- the index -------------------------------------------------------------------------------------------------------

_index = msgpack_decoder(Index)


def _index_path(root: Path, state: Path) -> Path:
    return state / "trees" / hashlib.blake2b(os.fsencode(root), digest_size=16).hexdigest()


def _load(path: Path, root: Path) -> Index | None:
    """Return the index of a tree, or None if there is no usable one; then all files are read."""
    try:
        index = _index.decode(path.read_bytes())
    except (OSError, msgspec.DecodeError):
        return None
    return index if index.version == VERSION and index.root == str(root) else None


def _save(path: Path, index: Index) -> None:
    """Save the index. If that fails, all files are read again the next time."""
    try:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        write_whole(path, msgspec.msgpack.encode(index), mode=0o600)
    except (OSError, UnicodeEncodeError):
        return
