"""`poise.agent.prepare PLAN -- COMMAND…`: makes the files of an attempt, then executes its command.

It runs in place of the command, first in its attempt, under the same limits, with the same logs, and is stopped in the
same way. So it survives a killed agent, and it waits for an unreachable control plane. A problem with the files or the
environment ends the attempt with that reason and does not count against the node.

The plan is a file, because it holds the attempt's key, which neither the command nor other users may see. It is removed
once it is read. Pieces of files come from the control plane, and each is verified by its hash. `fetched.db` in the
state directory caches them for all attempts of this node. The copy of the tree is made from them, for this attempt
only: its writes change nothing else. When `fetched.db` is damaged, or fills the disk, it is removed and rebuilt.
"""

import contextlib
import errno
import fcntl
import os
import sqlite3
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import msgspec

from poise.config import Home
from poise.decoding import json_decoder, msgpack_decoder
from poise.drivers.blobs import DAMAGED, Blobs
from poise.drivers.environments import Environments
from poise.drivers.following import NOT_PLANNED, Plan, held, make_room
from poise.drivers.http import Connection
from poise.drivers.reach import home_at, home_elsewhere, reach
from poise.drivers.tellings import MOST_NOTED
from poise.errors import ErrorRecord, Fault, PoiseError, StoreFull, Unreachable, from_record
from poise.model.calls import ATTEMPT
from poise.model.trees import Entry, cut, decoded, digest

NOT_PREPARED = 125
"""Exit code if there is no command to execute."""

NOT_FOUND, NOT_EXECUTABLE = 127, 126

PATIENCE = 1800.0
"""Seconds to wait for an unreachable control plane."""

ASK_SECONDS = 60.0
PAUSES = 0.1, 5.0
MOST_ASKED = 2048
"""Maximum number of hashes in one request."""

LONG = 2.0
"""Minimum seconds of fetching and copying that the job's log reports."""

AT_ONCE = 4 * 2**20
"""Maximum bytes of files in memory at once."""


def home_of(plan: Plan) -> Home:
    """Return the state directory of the node, with the addresses of its control plane."""
    if plan.addresses:
        return home_elsewhere(Path(plan.root), plan.addresses)
    if plan.socket:
        return Home(Path(plan.root), Path(plan.socket))
    return home_at(plan.root, {"POISE_CONTROL": plan.control})


class Source:
    """The control plane as the source of an attempt's files."""

    def __init__(self, plan: Plan) -> None:
        self._home = home_of(plan)
        self._attempt, self._key = str(plan.attempt), plan.key
        self._connection: Connection | None = None
        self._turn = 0

    def ask(self, data: bytes, alive: "Alive") -> bytes:
        """Return pieces, or the hashes of the manifest's pieces for an empty request. Waits for an unreachable control
        plane. Raises PoiseError.
        """
        deadline, pause, refused = time.monotonic() + PATIENCE, PAUSES[0], 0
        while True:
            try:
                return self._ask(data)
            except OSError as error:
                failure: PoiseError = Unreachable("no control plane gives the files", have=str(error))
            except PoiseError as error:
                failure = error
                if error.status < 500:  # another replica may have read more of the log, or hold the files
                    refused += 1
                    if refused >= len(self._home.doors):
                        raise
            self.close()
            self._turn += 1
            if time.monotonic() > deadline:
                raise failure
            alive()
            time.sleep(pause)
            pause = min(2 * pause, PAUSES[1])

    def _ask(self, data: bytes) -> bytes:
        if self._connection is None:
            self._connection = Connection(reach(self._home, ASK_SECONDS, self._turn))
        headers = {"Authorization": f"Bearer {self._key}", ATTEMPT: self._attempt}
        headers["Content-Type"] = "application/octet-stream"
        answer = self._connection.ask("POST", "/v1/attempts/files", headers, data)
        content = answer.read()
        if answer.is_last:
            self.close()
        if answer.status >= 400:
            try:
                raise from_record(_refused.decode(content)["error"], answer.status)
            except (msgspec.DecodeError, KeyError):
                raise Fault(f"the control plane answered {answer.status}") from None
        return content

    def close(self) -> None:
        if self._connection is not None:
            with contextlib.suppress(OSError):
                self._connection.close()
            self._connection = None


class Alive:
    """Reports progress of the attempt."""

    def __init__(self, progress: str) -> None:
        self._progress = progress

    def __call__(self) -> None:
        if self._progress:
            with contextlib.suppress(OSError):
                Path(self._progress).touch()


_plan = json_decoder(Plan)
_refused = json_decoder(dict[str, ErrorRecord])
_pieces = msgpack_decoder(list[bytes])


def prepared(plan: Plan) -> dict[str, str]:
    """Make the files of an attempt. Return additional variables for its command. Raises PoiseError, OSError and
    sqlite3.Error.
    """
    home, alive, begun = home_of(plan), Alive(plan.progress), time.monotonic()
    entries = copied(home, plan, Source(plan), alive)
    if (took := time.monotonic() - begun) > LONG:
        say(f"{len(entries)} files were fetched and copied, in {took:.1f} s")
    if not plan.tree.requirements:
        return {}
    environments = Environments(home.environments, alive=alive, say=say)
    return environments.ensure(Path(plan.folder), plan.tree.requirements, plan.tree.hash)


_OfCache = (StoreFull, sqlite3.Error, OSError)


def copied(home: Home, plan: Plan, source: Source, alive: Alive) -> tuple[Entry, ...]:
    """Copy the tree. If the cache is damaged or the disk is full, retry once with a new cache. Raises as `prepared`."""
    held(Path(plan.folder))
    try:
        return _copied(home, plan, source, alive)
    except _OfCache as error:
        if isinstance(error, OSError) and error.errno != errno.ENOSPC:
            raise
        say(f"the files that this node keeps are fetched again: {error}")
        _remove_cache(home.fetched)
    try:
        return _copied(home, plan, source, alive)
    except _OfCache:
        _remove_cache(home.fetched)
        raise


def _copied(home: Home, plan: Plan, source: Source, alive: Alive) -> tuple[Entry, ...]:
    with _locked(home.fetched, fcntl.LOCK_SH):
        blobs = Blobs(home.fetched)
    with contextlib.closing(blobs):
        entries = fetched(blobs, plan, source, alive)
        make_room(home.work, sum(entry.size for entry in entries))
        written(blobs, entries, Path(plan.folder), alive)
    return entries


def _remove_cache(path: Path) -> None:
    """Remove the cache. Processes that have it open continue with the removed file."""
    with _locked(path, fcntl.LOCK_EX):
        for end in ("", "-wal", "-shm"):
            Path(f"{path}{end}").unlink(missing_ok=True)


@contextlib.contextmanager
def _locked(path: Path, kind: int) -> Iterator[None]:
    """Lock the cache, so that no process opens it while another one removes its files."""
    file = os.open(f"{path}.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(file, kind)
        yield
    finally:
        os.close(file)


def fetched(blobs: Blobs, plan: Plan, source: Source, alive: Alive) -> tuple[Entry, ...]:
    """Fetch all pieces of an attempt's tree, and return its entries."""
    tree = bytes.fromhex(plan.tree.hash)
    if not blobs.has("", tree):
        blobs.shrink()
        pieces = source.ask(b"", alive)
        _fetch(blobs, source, list(cut(pieces)), alive)
        missing = blobs.register("", tree, pieces)
        if missing:
            _fetch(blobs, source, missing, alive)
            missing = blobs.register("", tree, pieces)
        if missing:
            raise Fault("files of the job were removed while they were fetched", code=DAMAGED, field="sync")
    source.close()
    return decoded(b"".join(blobs.get("", list(cut(blobs.pieces_of("", tree)))))).entries


def _fetch(blobs: Blobs, source: Source, wanted: Sequence[bytes], alive: Alive) -> None:
    left = blobs.missing("", wanted)
    while left:
        few = left[:MOST_ASKED]
        try:
            given = _pieces.decode(source.ask(b"".join(few), alive))
        except msgspec.DecodeError as error:
            raise Fault(f"the control plane gave no pieces: {error}", code=DAMAGED) from None
        if not given or any(digest(data) != one for one, data in zip(few, given, strict=False)):
            raise Fault("the control plane gave another piece than it was asked for", code=DAMAGED, field="sync")
        blobs.put("", given)
        left = left[len(given) :]
        alive()


def written(blobs: Blobs, entries: Sequence[Entry], folder: Path, alive: Alive) -> None:
    """Write the tree to a folder. No path is followed through a link, even one made meanwhile. An existing file, which
    can only be the attempt's log, stays. Raises OSError and PoiseError.
    """
    with _Folders(folder) as folders:
        for few in _together(entries):
            hashes = list(dict.fromkeys(piece for entry in few for piece in entry.hashes()))
            contents = (
                dict(zip(hashes, blobs.get("", hashes), strict=True)) if sum(e.size for e in few) <= AT_ONCE else {}
            )
            for entry in few:
                _write(blobs, contents, entry, folders)
            alive()
        for entry in entries:
            if entry.kind == "folder":
                folders.of(entry.path + "/")
            elif entry.kind == "link":
                parent, name = folders.of(entry.path), entry.path.rpartition("/")[2]
                with contextlib.suppress(FileExistsError):
                    os.symlink(entry.target, name, dir_fd=parent)


def _together(entries: Sequence[Entry]) -> Iterator[list[Entry]]:
    """Yield files in groups that fit in memory; a large file is alone."""
    group: list[Entry] = []
    size = 0
    for entry in entries:
        if entry.kind not in ("file", "program"):
            continue
        if group and (size + entry.size > AT_ONCE or len(group) >= MOST_ASKED):
            yield group
            group, size = [], 0
        group.append(entry)
        size += entry.size
    if group:
        yield group


def _write(blobs: Blobs, contents: dict[bytes, bytes], entry: Entry, folders: "_Folders") -> None:
    parent, name = folders.of(entry.path), entry.path.rpartition("/")[2]
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
    try:
        file = os.open(name, flags, 0o755 if entry.kind == "program" else 0o644, dir_fd=parent)
    except FileExistsError:
        return
    try:
        for piece in entry.hashes():
            data = memoryview(contents[piece] if contents else blobs.get("", [piece])[0])
            while data:
                data = data[os.write(file, data) :]
    except BaseException:  # a partial file would count as complete
        os.unlink(name, dir_fd=parent)
        raise
    finally:
        os.close(file)


class _Folders:
    """The folders of a tree, opened one inside the other without following links."""

    def __init__(self, root: Path) -> None:
        root.mkdir(mode=0o700, parents=True, exist_ok=True)
        self._open: list[tuple[str, int]] = [("", os.open(root, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC))]

    def of(self, path: str) -> int:
        """Return the folder that holds a path."""
        wanted = path.split("/")[:-1]
        depth = 0
        while depth < len(wanted) and depth + 1 < len(self._open) and self._open[depth + 1][0] == wanted[depth]:
            depth += 1
        while len(self._open) > depth + 1:
            os.close(self._open.pop()[1])
        for part in wanted[depth:]:
            above = self._open[-1][1]
            with contextlib.suppress(FileExistsError):
                os.mkdir(part, 0o755, dir_fd=above)
            flags = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
            self._open.append((part, os.open(part, flags, dir_fd=above)))
        return self._open[-1][1]

    def __enter__(self) -> "_Folders":
        return self

    def __exit__(self, *_: object) -> None:
        for _name, file in self._open:
            os.close(file)


def say(text: str) -> None:
    """Write a line to standard error, unbuffered: on a full disk, buffered output would change the exit code."""
    with contextlib.suppress(OSError):
        os.write(sys.stderr.fileno(), f"poise: {text}\n".encode("utf-8", "replace"))


def _fail(plan: Plan, why: str) -> int:
    """Report a failure. The file for the reason was made with the plan, so that it has room on a full disk."""
    say(why)
    with contextlib.suppress(OSError):
        file = os.open(plan.failure, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            os.write(file, why.encode("utf-8", "replace")[:MOST_NOTED])
        finally:
            os.close(file)
    return NOT_PREPARED


def main() -> int:
    path, command = Path(sys.argv[1]), sys.argv[3:]
    try:
        plan = _plan.decode(path.read_bytes())
    except FileNotFoundError:
        say(NOT_PLANNED)
        return NOT_PREPARED
    try:
        path.unlink()
    except PermissionError:  # the file belongs to the account, its folder does not
        os.truncate(path, 0)
    try:
        more = prepared(plan)
        os.chdir(f"{plan.folder}/{plan.tree.folder}")
    except PoiseError as error:
        told = error.record
        rest = "; ".join(part for part in (told.have, told.hint) if part)
        return _fail(plan, f"{told.code}: {told.message}{f' ({rest})' if rest else ''}")
    except (OSError, sqlite3.Error) as error:
        return _fail(plan, f"{DAMAGED}: the files of the job cannot be made here: {error}")
    environment = dict(os.environ) | more
    try:
        os.execvpe(command[0], command, environment)  # noqa: S606 — what the user asks for
    except FileNotFoundError:
        say(f"{command[0]}: no such command")
        return NOT_FOUND
    except OSError as error:
        say(f"{command[0]}: {error.strerror}")
        return NOT_EXECUTABLE
