"""Sends the files that attempts have left on a node, as one tar archive, piece by piece.

A path is followed name by name from the folder of the attempt, and never through a link: what a command has left there
cannot lead to files elsewhere. A link itself is in the archive, if it stays in it. A file is read as far as it reached
when it was opened; one that shrinks meanwhile is filled up, because its size has been told already.

A process that has only the rights of the account reads the files of the account's work:

    python -m poise.drivers.getting HOME TMP GET
"""

import asyncio
import contextlib
import os
import stat
import subprocess
import sys
import tarfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

import msgspec

from poise.config import Home
from poise.decoding import json_decoder
from poise.drivers.accounts import Accounts
from poise.drivers.following import work_folder
from poise.drivers.keeper import CREDIT
from poise.drivers.owner import Refused, Request, drop, mounts, own_namespace
from poise.model.messages import Credit, FromConsole, Get, Leave, Left, Said, ToConsole
from poise.model.trees import is_safe

GONE, UNREADABLE = 66, 74
"""Exit codes (of sysexits.h): there is no such path; it cannot be read."""

AT_ONCE = 64 * 1024
MOST_ENTRIES = 1_000_000
BLOCK = 512

_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_FILE = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC


class GoneError(Exception):
    """The path does not exist."""


class Giving:
    """The archives that are being sent, by `say`. `accounts` has the folders of accounts."""

    def __init__(self, home: Home, say: Callable[[FromConsole], None], accounts: Accounts | None = None) -> None:
        self._home = home
        self._say = say
        self._accounts = accounts
        self._under_way: dict[str, _Given] = {}

    def takes(self, message: ToConsole) -> bool:
        """Whether a message is about what is given here; it is then seen to."""
        if isinstance(message, Get):
            given = self._under_way[message.name] = _Given(message.name, self._pieces(message), self._say)
            given.task = asyncio.get_running_loop().create_task(given.run())
            given.task.add_done_callback(lambda _: self._under_way.pop(message.name, None))
            return True
        if not isinstance(message, Credit | Leave) or message.name not in self._under_way:
            return False
        given = self._under_way[message.name]
        if isinstance(message, Credit):
            given.credit += message.bytes
            given.more.set()
        elif given.task is not None:
            given.task.cancel()
        return True

    def leave_all(self) -> None:
        """Nobody waits for any of it."""
        for given in self._under_way.values():
            if given.task is not None:
                given.task.cancel()

    def _pieces(self, get: Get) -> Iterator[bytes]:
        return as_account(self._accounts, get) if get.account else left_by(self._home, get)


def left_by(home: Home, get: Get) -> Iterator[bytes]:
    """Return the archive of what an attempt has left in its copy of a tree, or in the folder of its job. Raises as
    `archive`.
    """
    copy = work_folder(home, get.attempt)
    inner = f"{get.within}/{get.path}" if get.within and copy.is_dir() else get.path
    return archive(copy if copy.is_dir() else Path(get.folder or "/"), os.path.normpath(inner))


def as_account(accounts: Accounts | None, get: Get) -> Iterator[bytes]:
    """Return such an archive of an account, read with its rights. Raises GoneError and OSError."""
    if accounts is None:
        raise OSError("only an agent that runs as root reads the files of accounts")
    try:
        places = accounts.ensure(get.account)
    except Refused as why:
        raise OSError(str(why)) from None
    asked = (str(places.home.root), places.tmp, msgspec.json.encode(get).decode())
    command = [sys.executable, "-P", "-m", __name__, *asked]
    pipe = subprocess.PIPE
    with subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=pipe, stderr=pipe) as process:  # noqa: S603
        try:
            while process.stdout is not None and (piece := os.read(process.stdout.fileno(), AT_ONCE)):
                yield piece
        except GeneratorExit:
            process.kill()
            raise
        why_not = process.stderr.read().decode(errors="replace").strip() if process.stderr is not None else ""
    if process.returncode:
        raise (GoneError if process.returncode == GONE else OSError)(why_not or "the process that reads it has ended")


class _Given:
    """One archive, as far as there is credit for it."""

    def __init__(self, name: str, pieces: Iterator[bytes], say: Callable[[FromConsole], None]) -> None:
        self.name = name
        self.credit = CREDIT
        self.more = asyncio.Event()
        self.task: asyncio.Task[None] | None = None
        self._pieces = pieces
        self._say = say

    async def run(self) -> None:
        left = Left(name=self.name, code=0)
        try:
            while (piece := await asyncio.to_thread(next, self._pieces, None)) is not None:
                while self.credit <= 0:
                    self.more.clear()
                    await self.more.wait()
                self.credit -= len(piece)
                self._say(Said(name=self.name, stream="out", data=piece))
        except GoneError as error:
            left = Left(name=self.name, code=GONE, note=str(error))
        except OSError as error:
            left = Left(name=self.name, code=UNREADABLE, note=f"it cannot be read: {error.strerror or error}")
        except Exception as error:  # whatever it was, somebody waits for the end
            left = Left(name=self.name, code=UNREADABLE, note=f"it cannot be read: {error!r}")
        self._say(left)


def archive(folder: Path, path: str) -> Iterator[bytes]:
    """A file or a folder below a folder, as pieces of a tar archive. Raises GoneError, and OSError."""
    if path != "." and not is_safe(path):
        raise GoneError("a path leads out of the folder of the job")
    try:
        top = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    except OSError:
        raise GoneError("the node has no files of this attempt") from None
    with contextlib.ExitStack() as stack:
        stack.callback(os.close, top)
        *above, name = path.split("/")
        try:
            for part in above:
                top = os.open(part, _FOLDER, dir_fd=top)
                stack.callback(os.close, top)
            state = os.stat(name, dir_fd=top, follow_symlinks=False)
        except OSError:
            raise GoneError("the node has no such file, or it is behind a link") from None
        yield from _together(_entries(top, name, state))


def _together(pieces: Iterator[bytes]) -> Iterator[bytes]:
    """Small pieces in one, and the end of the archive."""
    waiting = bytearray()
    for piece in pieces:
        waiting += piece
        while len(waiting) >= AT_ONCE:
            yield bytes(waiting[:AT_ONCE])
            del waiting[:AT_ONCE]
    yield bytes(waiting) + bytes(2 * BLOCK)


class _Folder(NamedTuple):
    """A folder whose entries are being given; `is_at` is its device and its number there."""

    shown: str
    names: Iterator[str]
    is_at: tuple[int, int]


def _entries(parent: int, name: str, state: os.stat_result) -> Iterator[bytes]:
    """An entry of a folder, and all below it at any depth. One folder is open at a time: the way back up is by `..`,
    and it is an error if that leads elsewhere by now.
    """
    yield from _entry(parent, name, name, state)
    if not stat.S_ISDIR(state.st_mode):
        return
    here = os.open(name, _FOLDER if name != "." else os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC, dir_fd=parent)
    try:
        inside = [_opened(here, name)]
        count = 1
        while inside:
            if (inner := next(inside[-1].names, None)) is None:
                inside.pop()
                if inside:
                    here = _into(here, "..")
                    if _is_at(here) != inside[-1].is_at:
                        raise OSError("a folder was moved while it was read")
                continue
            try:
                found = os.stat(inner, dir_fd=here, follow_symlinks=False)
            except FileNotFoundError:
                continue
            count += 1
            if count > MOST_ENTRIES:
                raise OSError(f"there are more than {MOST_ENTRIES} files")
            shown = f"{inside[-1].shown}/{inner}"
            yield from _entry(here, inner, shown, found)
            if stat.S_ISDIR(found.st_mode):
                here = _into(here, inner)
                inside.append(_opened(here, shown))
    finally:
        os.close(here)


def _into(here: int, name: str) -> int:
    """A folder in one that is open, in its place."""
    other = os.open(name, _FOLDER, dir_fd=here)
    os.close(here)
    return other


def _opened(folder: int, shown: str) -> _Folder:
    return _Folder(shown, iter(sorted(os.listdir(folder))), _is_at(folder))


def _is_at(folder: int) -> tuple[int, int]:
    state = os.fstat(folder)
    return state.st_dev, state.st_ino


def _entry(parent: int, name: str, shown: str, state: os.stat_result) -> Iterator[bytes]:
    """One entry, without what is below it."""
    info = tarfile.TarInfo(shown)
    info.mode, info.mtime = stat.S_IMODE(state.st_mode) & 0o777, int(state.st_mtime)
    if stat.S_ISREG(state.st_mode):
        yield from _of_file(parent, name, info)
    elif stat.S_ISLNK(state.st_mode):
        info.type, info.linkname = tarfile.SYMTYPE, os.readlink(name, dir_fd=parent)
        yield _head(info)
    elif stat.S_ISDIR(state.st_mode):
        info.type = tarfile.DIRTYPE
        yield _head(info)


def _of_file(parent: int, name: str, info: tarfile.TarInfo) -> Iterator[bytes]:
    try:
        file = os.open(name, _FILE, dir_fd=parent)
    except FileNotFoundError:
        return
    try:
        state = os.fstat(file)
        if not stat.S_ISREG(state.st_mode):
            return
        left = info.size = state.st_size
        yield _head(info)
        while left:
            data = os.read(file, min(AT_ONCE, left)) or bytes(min(AT_ONCE, left))
            left -= len(data)
            yield data
        yield bytes(-info.size % BLOCK)
    finally:
        os.close(file)


def _head(info: tarfile.TarInfo) -> bytes:
    return info.tobuf(tarfile.PAX_FORMAT, "utf-8", "surrogateescape")


def main() -> int:
    """Enter the view of the account, give up all other rights, then write the archive."""
    home, get = Home(Path(sys.argv[1])), json_decoder(Get).decode(sys.argv[3])
    try:
        request = Request({"account": get.account, "tmp": sys.argv[2]})
        with contextlib.suppress(OSError):
            own_namespace()
            for step in mounts(request):
                with contextlib.suppress(OSError):
                    step()
        drop(request)
        for piece in left_by(home, get):
            sys.stdout.buffer.write(piece)
        sys.stdout.buffer.flush()
    except GoneError as error:
        sys.stderr.write(str(error))
        return GONE
    except (OSError, Refused) as error:
        sys.stderr.write(str(getattr(error, "strerror", "") or error))
        return UNREADABLE
    return 0


if __name__ == "__main__":
    sys.exit(main())
