"""Records requests to a service in a file for replay: one line of JSON each, `{"at": 1700000000.2, "body": "21"}`.

`at` is the arrival time, in seconds since 1970. A body that is not UTF-8 is in `base64` instead. Only the owner can
read the file. Its size is limited: when it is full, nothing more is written.
"""

import os
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from queue import SimpleQueue

import msgspec

from poise.decoding import json_decoder
from poise.errors import InputError
from poise_serve.service import ANYBODY, Asked, Asker, Tell

MOST_LINE = 400 << 20
"""Maximum length of a line in bytes: JSON escapes can make a body of 64 MiB six times as long."""

MOST_WAITING = 10_000
"""Maximum number of queued requests; more are dropped, because a slow disk must not fill the memory."""


class Recorded(msgspec.Struct, omit_defaults=True):
    """A recorded request."""

    at: float = 0.0
    body: str | None = None
    base64: bytes | None = None


class Recorder:
    """Forwards requests to `behind`, and records the share `part` of them until the file has `most` bytes."""

    def __init__(self, behind: Asked, path: Path, part: float, most: int, say: Callable[[str], None]) -> None:
        """Raises `InputError` if the file cannot be written."""
        self.behind = behind
        self._part, self._most, self._due, self._say = part, most, 0.0, say
        self._lines: SimpleQueue[bytes] = SimpleQueue()
        try:
            self._file = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o600)
        except OSError as error:
            why = f"requests cannot be recorded: {error.strerror}"
            raise InputError(why, field="record.file", have=str(path)) from None
        self._size = os.fstat(self._file).st_size
        self._thread = threading.Thread(target=self._write, name="recorder", daemon=True)
        self._thread.start()

    def ask(self, body: bytes, tell: Tell, timeout: int = 0, deferred: bool = False, asker: Asker = ANYBODY) -> int:
        """See `Asked.ask`."""
        self._due += self._part
        if self._due >= 1:
            self._due -= 1
            self._record(body)
        return self.behind.ask(body, tell, timeout, deferred, asker)

    def cancel(self, number: int) -> None:
        """See `Asked.cancel`."""
        self.behind.cancel(number)

    def _record(self, body: bytes) -> None:
        try:
            recorded = Recorded(time.time(), body=body.decode())
        except UnicodeDecodeError:
            recorded = Recorded(time.time(), base64=body)
        line = msgspec.json.encode(recorded) + b"\n"
        if self._size + len(line) <= self._most and self._lines.qsize() < MOST_WAITING:
            self._size += len(line)
            self._lines.put(line)

    def close(self) -> None:
        """Write all queued requests, and stop."""
        self._lines.put(b"")
        self._thread.join()

    def _write(self) -> None:
        """Write in a separate thread, because a disk may be slow."""
        while line := self._lines.get():
            wrote = 0
            try:
                while wrote < len(line):
                    wrote += os.write(self._file, line[wrote:])
            except OSError as error:
                self._most = 0
                self._say(f"requests are not recorded any more: {error.strerror}")
                if wrote:  # remove the partial line
                    os.ftruncate(self._file, os.lseek(self._file, -wrote, os.SEEK_CUR))
                break
        os.close(self._file)


def read_recorded(path: str) -> Iterator[bytes]:
    """Yield the bodies of the recorded requests in a file. Raises `InputError` at an invalid line, with its number and
    the error.
    """
    try:
        if Path(path).exists() and not Path(path).is_file():  # a pipe or a device may have no end
            raise InputError("recorded requests are in a file", field=path)
        number = 0
        with Path(path).open("rb") as file:
            while line := file.readline(MOST_LINE):
                number += 1
                yield _recorded(line, number, path)
    except OSError as error:
        raise InputError(f"recorded requests cannot be read: {error.strerror}", field=path) from None
    if not number:
        raise InputError("this file has no recorded requests", field=path)


def _recorded(line: bytes, number: int, path: str) -> bytes:
    try:
        if len(line) == MOST_LINE:
            raise ValueError(f"it has more than {MOST_LINE >> 20} MiB")
        one = json_decoder(Recorded).decode(line)
    except (ValueError, RecursionError) as error:
        why = f"line {number} is no recorded request: {error}"
        raise InputError(why, field=path, need='{"body": "21"}') from None
    return one.body.encode() if one.body is not None else one.base64 or b""


__all__ = ["Recorder", "read_recorded"]
