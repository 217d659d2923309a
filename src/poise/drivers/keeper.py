"""The keeper of one slot: it spawns the slot's commands one after another and records how each one ended.

    python -I -S -c START keeper.py DIR NAME

A keeper is a separate process that outlives the agent. When an agent or a control plane is killed, the command keeps
running. The next agent finds the keeper by its socket and adopts its work: nothing is restarted, and no command needs
its own shim. A keeper uses the standard library only, has one thread, and stays small.

Rules it keeps
    * It runs one command at a time, in the order of arrival, and starts the next one without asking the agent.
    * It runs an attempt at most once: it ignores a second order for an attempt that is held, running or ended.
    * It spawns a command only when the command's intent and the last command's ending are in the journal, and the
      disk has room for the new ending. After `kill -9` of the keeper the journal shows which attempts may have run.
      (The journal is not synced: it survives the death of the keeper, not of the machine, and no command runs
      after a reboot anyway.) Otherwise it returns all queued attempts, and `unfit` gives the reason.
    * Nothing of a command survives it: its group, its session and the orphans reparented to the keeper are killed.
      An agent finds the survivors of a killed keeper by the mark that it gave the keeper (`process.mark_of`).
    * No work is lost to a broken connection or a full disk: endings are kept until the agent says `forget`.
    * A side command ends with its main command, and with the connection of the agent that requested it.

A log that grew between two checks has an index, `LOG.times`, of 16-byte little-endian records: a size of the log, and
the time at which it had that size, in nanoseconds since 1970. Output after the last record was written at the log's
modification time.

Files in DIR: `NAME.sock` the socket, `NAME.lock` locked for as long as the keeper lives, `NAME.journal`, and
`NAME.trouble` if the keeper itself met an error that it did not expect.

Protocol: one JSON array per line, in both directions. ATTEMPT is `["job.task", epoch]`.
    From the agent
    * `["hello", {"spare": prefix, "cgroup": {"version", "parent", "home"} or null}]` first; answered with all it holds.
    * `["run", ATTEMPT, ORDER, RECORD]`: RECORD is opaque and comes back on hello.
    * `["renew", ATTEMPT, UNTIL]`: set a new deadline.
    * `["limit", ATTEMPT, TIME_LIMIT, MEMORY]`: set a new time limit, in nanoseconds from the start (0: none), and raise
      the memory limit of a running command, in bytes (0 or absent: keep it).
    * `["shrink", ATTEMPT, MEMORY]`: lower the memory limit of a running command to this many bytes, if it has never
      used more than 7/8 of that. Answered with `sized` if it has this limit then, else with nothing.
    * `["stop", ATTEMPT, HUNG]`: SIGTERM, `grace`, SIGKILL; a queued attempt is `returned`. HUNG is optional: it
      describes why the command counts as hung, and makes its outcome `hung`.
    * `["pause", ATTEMPT, ON]`: stop all of its processes (SIGSTOP), or continue them.
    * `["note", ATTEMPT, TEXT]`: show a text in its terminal, and in the terminals of its side commands.
    * `["idle", ATTEMPT, NOTE]`: stop it as if over its time limit; NOTE is the reason.
    * `["forget", [ATTEMPT, ...]]`: these endings are durable elsewhere.
    * `["feed", WHOSE, PIECE]`: input for the command of an ATTEMPT, or for a side command; answered with `fed` when
      there is room for more. PIECE: at, data (base64), end, size (of the terminal, as `tty`), hold (ns), hang_up; all
      optional.
      A terminal with a `hold` hangs up when the next piece does not come within it.
    * `["exec", NAME, ATTEMPT, {argv, env, stdin, tty}]`: run a side command in the attempt's folder, with its
      environment, cores and memory limit. Its output comes as `said`, as far as there is `credit`.
    * `["credit", NAME, BYTES]`: allow this many more bytes of its output.
    * `["leave", NAME]`: end the side command: SIGHUP, then SIGKILL.
    * `["try"]`: check whether a command could be started; answered with `unfit`.
    * `["quit"]`: exit as soon as there is no work.
    To the agent
    * `["keeper", version, pid]`, `["held", pid, ticks, RUN LINE]`..., `["ended", ...]`..., `["whole"]`: the answer to
      hello.
    * `["started", ATTEMPT, pid, ticks]`: sent only for a command that outlives the reporting delay.
    * `["ended", ATTEMPT, ENDING]`.
    * `["sized", ATTEMPT, MEMORY, USED, SHORT]`: a lowered memory limit, and the most that the command has used so far.
      With SHORT, it uses more than 7/8 of its lowered limit now, and USED says how much; sent once a second.
    * `["unfit", WHY]`: it cannot start commands and has returned the queued attempts; empty: it can start them.
    * `["fed", WHOSE, TAKEN, WANTED]`: bytes of input taken so far, and whether more can be taken.
    * `["said", NAME, STREAM, DATA]`: output of a side command to `out` or `err`, in base64.
    * `["left", NAME, CODE, NOTE]`: a side command has ended with this exit code.
    ORDER: argv, env, folder, cpus, memory, grace (ns), out, err, bound (bytes per log), result, until, hang (ns),
    progress, time_limit (ns), stdin, tty (rows << 16 | columns of a terminal; 0: none), output (a file that gets a copy
    of both logs), append (to that file), owner (a REQUEST of `owner.py`: the account that the command and its side
    commands run as); only argv is needed. An attempt with `output` ends when its output is copied; one that is stopped
    ends at once, with a note if the rest is larger than `bound`. UNTIL and until: an instant on CLOCK_BOOTTIME in
    nanoseconds, at which the command is killed, whether or not the agent is alive, and the attempt is `lost`. ENDING:
    outcome, code, signal, run, cpu, peak, limit, note, result; zeros and empty texts are absent.

The journal holds the same arrays behind a CRC-32 in hex: `["keeper", ...]`, `["starting", ATTEMPT]`,
`["started", ...]`, `["ended", ...]`, `["forget", [ATTEMPT, ...]]`.

`peak` is the cgroup's own figure where a cgroup limits memory. Otherwise it is the largest resident size that the
kernel saw for the command or a child it waited for. A process spawned by sharing memory until `exec` inherits the
spawner's peak, so a peak below some 12 MB reads as the keeper's own.

`timeout`: a command that has run for its `time_limit` is stopped as by `stop`. The time counts from its start on a
monotonic clock, independently of the agent and the control plane, also while the command is paused.

A paused command keeps its processes, stopped. A process that somebody else continues is stopped again. A shell that
sees that its child is stopped takes it for Ctrl-Z. So parents are stopped before their children, and continue after
them.

`hung`: a command with `hang` must write to or touch the file `progress` at least that often; otherwise it is stopped as
by `stop`. Silence is summed between checks on a monotonic clock: a paused keeper or a suspended machine does not count
its own pause as the command's.
"""

# pathlib would make a keeper's memory larger by a seventh:
# ruff: noqa: PTH100, PTH102, PTH103, PTH104, PTH105, PTH106, PTH108, PTH110, PTH113, PTH116, PTH120, PTH123, PTH208

from __future__ import annotations

import binascii
import contextlib
import ctypes
import errno
import fcntl
import gc
import importlib.util
import json
import os
import select
import signal
import socket
import stat
import struct
import time
import zlib
from collections import deque

TYPE_CHECKING = False  # `typing` is as large as `pathlib`
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator
    from typing import Any

    from poise.drivers.console import Ends
    from poise.drivers.owner import Account, Request

START = (
    "import sys, importlib.util as of; spec = of.spec_from_file_location('keeper', sys.argv[1]); "
    "it = of.module_from_spec(spec); spec.loader.exec_module(it); sys.exit(it.main(*sys.argv[2:]))"
)
"""Loads a keeper as a module, which uses the compiled file. Each process compiles a script again, which took a third of
the start time."""

VERSION = 1
MILLISECOND = 1_000_000
SECOND = 1_000_000_000

REPORT_WITHIN = 5 * MILLISECOND  # an event waits at most this long to be sent with others
FULL = 7, 8  # the part of a lowered memory limit that may be in use
SAY_SHORT_EVERY = 1 * SECOND  # minimum interval between reports that a lowered limit is too low
WATCH_EVERY = 100 * MILLISECOND  # logs and watched memory of a running command
WATCH_QUIET = 200 * MILLISECOND  # the same when its logs do not grow
KILL_AGAIN = 100 * MILLISECOND  # interval between kills: a process may fork while it is being killed
PAUSE_WITHIN = 1 * SECOND  # time limit for processes to stop; a process that waits for a disk may not stop
LEFTOVERS_WITHIN = 2 * SECOND  # time limit for killing left-over processes; then they are given up and named
HOUSEKEEPING = 5 * SECOND
UNATTENDED = 300 * SECOND  # an idle keeper exits after this long without an agent; its journal stays
RETRY_WRITE = 500 * MILLISECOND
LEFT_EVERY = 20 * MILLISECOND  # check interval for a stopped command's remaining processes
LOOK_EVERY = 1 * SECOND  # longest interval between progress checks; a tenth of `hang` if that is less

LOG_BOUND = 64 << 20
TIMES = ".times"  # the index of a log
MOMENT = 16  # bytes of one record there
TIMES_LIMIT = 1 << 20
RESULT_LIMIT = 64 << 10
ENDING_LIMIT = 4 * RESULT_LIMIT  # journal limit of an ending: quoting makes a result up to three times larger
JOURNAL_LIMIT = 256 << 10  # rewritten when it is larger than this and mostly forgotten
LINE_LIMIT = 16 << 20  # a longer line is not a valid order
SMALLEST_LIMIT = 1 << 20  # a smaller cgroup could not even execute a program
PROTECTED = -900  # OOM score adjustment; commands get the one that the keeper was started with
BLOCK = 4096  # alignment of the holes that are punched, in bytes
KEEP_SIZE, PUNCH_HOLE = 0x01, 0x02  # of fallocate
CANNOT_ALLOCATE = (errno.EOPNOTSUPP, errno.ENOSYS, errno.ENODEV)  # from file systems that do not support it
PAGE = os.sysconf("SC_PAGE_SIZE")
TICK = SECOND // os.sysconf("SC_CLK_TCK")  # nanoseconds

CREDIT = 256 << 10  # initial limit, in bytes, of a side command's output in transit to its reader
COPIED = 1 << 20  # bytes of a log that are copied per write
COPIED_AT_ONCE = 4 << 20  # the same per turn of the loop
MOST_BESIDE = 16
MOST_DRAINED = 64  # reads from one file descriptor
LEAVE_WITHIN = 5 * SECOND  # time between SIGHUP and SIGKILL of a side command

LEASE_OVER = "its lease ran out"
HUNG_UP = "its terminal was hung up: nobody was there any more"
TASK_ENDED = "its task has ended"
PAUSED = "suspended, because it was idle: press a key to resume it"

RUN = b'["run",'

_scan: Callable[[str, int], tuple[Any, int]] = json.JSONDecoder().scan_once  # type: ignore[attr-defined]


def parse(line: bytes, start: int = 0) -> Any:
    """Return the JSON value that begins at `start`; raise ValueError if there is none. Faster than `json.loads`."""
    try:
        return _scan(line.decode(), start)[0]
    except StopIteration:
        raise ValueError("not JSON") from None


def key_of(line: bytes) -> bytes:
    """Return the ATTEMPT of a `run` line as its original bytes. Names are ASCII without commas: `],` ends it."""
    return line[len(RUN) : line.index(b"],", len(RUN)) + 1]


def now() -> int:
    return time.monotonic_ns()


def left(until: int) -> int:
    """Return the nanoseconds until an instant on CLOCK_BOOTTIME, which includes suspended time."""
    return until - time.clock_gettime_ns(time.CLOCK_BOOTTIME)


def read_file(path: str) -> bytes:
    with open(path, "rb") as file:
        return file.read()


def write_file(path: str, text: str) -> None:
    with open(path, "w") as file:
        file.write(text)


def start_ticks(pid: int) -> int:
    """Return the start time of a process in clock ticks since boot, or 0. Together with the pid it identifies the
    process."""
    try:
        return int(read_file(f"/proc/{pid}/stat").rpartition(b")")[2].split()[19])
    except (OSError, IndexError, ValueError):
        return 0


def is_stopped(pid: int) -> bool:
    """Return whether a process is stopped, or no longer runs."""
    try:
        return read_file(f"/proc/{pid}/stat").rpartition(b")")[2].split()[0] in b"TZX"
    except (OSError, IndexError):
        return True


def family(ancestor: int) -> dict[int, int]:
    """Return every living descendant of a process with its resident bytes."""
    children: dict[int, list[tuple[int, int]]] = {}
    for name in os.listdir("/proc"):
        if not name.isdigit():
            continue
        try:
            fields = read_file(f"/proc/{name}/stat").rpartition(b")")[2].split()
        except OSError:
            continue
        if fields[0] != b"Z":
            children.setdefault(int(fields[1]), []).append((int(name), int(fields[21]) * PAGE))
    found: dict[int, int] = {}
    ahead = [ancestor]
    while ahead:
        for pid, resident in children.get(ahead.pop(), ()):
            if pid not in found:
                found[pid] = resident
                ahead.append(pid)
    return found


def cpu_of(pids: Iterable[int]) -> int:
    """Return the CPU time in nanoseconds of these processes and of the children they have waited for."""
    total = 0
    for pid in pids:
        with contextlib.suppress(OSError, IndexError, ValueError):
            fields = read_file(f"/proc/{pid}/stat").rpartition(b")")[2].split()
            total += sum(map(int, fields[11:15]))
    return total * TICK


def proportional(pids: Iterable[int]) -> int:
    """Return the resident bytes of these processes, counting each shared page once; 0 if the kernel does not report
    it."""
    total = 0
    for pid in pids:
        try:
            text = read_file(f"/proc/{pid}/smaps_rollup")
            total += int(text.partition(b"\nPss:")[2].split(None, 1)[0]) << 10
        except (ProcessLookupError, FileNotFoundError):
            continue
        except (OSError, IndexError, ValueError):
            return 0
    return total


class Journal:
    """A file of lines that survives the keeper. Lines that could not be written wait in memory and are retried.

    Blocks beyond the end of the file are reserved for the ending of the running command, so that it is not lost if the
    disk fills. Where the file system cannot reserve blocks (NFS, ZFS), such an ending waits in memory.
    """

    def __init__(self, path: str) -> None:
        self.path = path
        self.size = 0
        self.rewrite_at = JOURNAL_LIMIT
        self.retry_at = 0
        self._why_not = ""  # why the journal cannot be opened or fully written
        self._waiting = b""
        self._fd = -1
        self._reserved = 0
        self._open()

    def whole(self) -> bool:
        """Return whether all lines are in the file."""
        return not self._waiting

    def why_unfit(self) -> str:
        """Return why no command may be spawned (lines are unwritten, or there is no room for an ending), or ""."""
        if self._fd < 0:
            self._open()
        if self._fd < 0 or self._waiting:
            return self._why_not
        if self._reserved - self.size >= ENDING_LIMIT:
            return ""
        upto = reach(self.size)
        number = allocate(self._fd, KEEP_SIZE, 0, upto)
        if number in (0, *CANNOT_ALLOCATE):
            self._reserved = upto
            return ""
        return os.strerror(number)

    def is_there(self) -> bool:
        """Return whether the journal's file still exists: nobody has deleted it."""
        return self._fd < 0 or os.fstat(self._fd).st_nlink > 0

    def write(self, lines: list[bytes]) -> None:
        self._append(b"".join([b"%08x %b\n" % (zlib.crc32(line), line) for line in lines]))

    def retry(self) -> None:
        """Write the waiting lines. Reopen the file first, because it may have been replaced."""
        self.retry_at = 0
        text, self._waiting = self._waiting, b""
        if text:
            self._open()
            self._append(text)

    def _append(self, text: bytes) -> None:
        if self._waiting:
            self._waiting += text
            return
        written = 0
        try:
            written = os.write(self._fd, text)
            self._why_not = os.strerror(errno.ENOSPC)
        except OSError as error:
            self._why_not = error.strerror or "?"
        self.size += written
        if written < len(text):
            self._waiting = text[written:]
            self.retry_at = now() + RETRY_WRITE

    def replace(self, lines: list[bytes]) -> bool:
        """Replace the journal with these lines and room for one more ending, all or nothing. Return whether it
        succeeded."""
        text = b"".join([b"%08x %b\n" % (zlib.crc32(line), line) for line in lines])
        fresh = self.path + ".new"
        try:
            fd = os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
            try:
                whole = os.write(fd, text) == len(text)
                number = allocate(fd, KEEP_SIZE, 0, reach(len(text)))
                whole = whole and number in (0, *CANNOT_ALLOCATE)
            finally:
                os.close(fd)
            if not whole:
                raise OSError(errno.ENOSPC, "the journal was written in part")
            os.replace(fresh, self.path)
        except OSError:
            with contextlib.suppress(OSError):
                os.unlink(fresh)
            return False
        self._waiting = b""
        self.retry_at = 0
        self.rewrite_at = max(JOURNAL_LIMIT, 2 * len(text))
        self._open()
        return True

    def read(self) -> Iterator[bytes]:
        """Yield every line with a valid checksum; skip a torn tail and damaged lines."""
        try:
            text = read_file(self.path) if os.path.isfile(self.path) else b""
        except OSError:
            return
        for line in text.split(b"\n"):
            if line[8:9] == b" " and line[:8] == b"%08x" % zlib.crc32(line[9:]):
                yield line[9:]

    def _open(self) -> None:
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1
        self._reserved = 0
        try:
            self._fd = os.open(self.path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
            self.size = os.fstat(self._fd).st_size
        except OSError as error:
            self._why_not = error.strerror or "?"


def reach(size: int) -> int:
    """Return the size up to which a journal of this size reserves blocks, so that one more ending fits."""
    return -(-(size + ENDING_LIMIT) // RESULT_LIMIT) * RESULT_LIMIT


class Log:
    """One output stream. It goes to a spare file, which is renamed to the attempt's log only if it has content.

    A command that runs for a few milliseconds without output costs no file operation. A longer one gets its named file
    while it runs, so that the log can be followed. A silent one leaves no file.
    """

    def __init__(self, fd: int, spare: str) -> None:
        self.fd = fd  # the keeper's own 1 or 2, which a command inherits as they are
        self.spare = spare
        self._open_now = False
        self.note = ""
        self._path = ""
        self._named = False
        self._punched = 0
        self._size = 0
        self._changed = 0  # time at which the log had that size
        self._user = -1  # who owns the file; -1: the keeper's user

    def begin(self, path: str, user: int = -1) -> None:
        """Take output for this path. A file that belongs to another user never serves again."""
        if user != self._user:
            self.drop()
            self._user = user
        self._path = path
        self._named = False
        self._punched = self._size = self._changed = 0
        if not self._open_now:
            self._open()

    def name(self) -> None:
        """Rename the file to the attempt's log."""
        if self._named or not self._path or self.note:
            return
        try:
            self._rename()
        except OSError as error:
            self.note = f"no log: {error.strerror}"

    def bound(self, most: int, upto: int | None = None) -> bool:
        """Free the older parts, before `upto`, of a log larger than `most` bytes. Return whether the log has grown."""
        state = os.fstat(self.fd)
        size, grown = state.st_size, state.st_size != self._size
        if grown:
            if self._size and self._named:
                with contextlib.suppress(OSError):  # the disk is full: only the index is lost
                    note_time(self._path, self._size, self._changed)
            self._size, self._changed = size, state.st_mtime_ns
        if size < self._punched:
            self._punched = 0
        upto = min(size - most // 2, size if upto is None else upto) // BLOCK * BLOCK
        if most and size - self._punched > most and upto > self._punched:
            if not punch(self.fd, self._punched, upto - self._punched):
                with contextlib.suppress(OSError):
                    os.ftruncate(self.fd, 0)
                upto = 0
            self._punched = upto
        return grown

    def finish(self, most: int) -> None:
        """End the log: a file with text keeps its name; an empty one serves the next attempt."""
        if self.note:
            self._close()
        elif os.lseek(self.fd, 0, os.SEEK_END):
            self.bound(most)
            self.name()
            self._close()
        elif self._named:  # it may have a reader: it must not become another attempt's file
            with contextlib.suppress(OSError):
                os.unlink(self._path)
            self._close()

    def drop(self) -> None:
        if self._open_now:
            self._close()
            with contextlib.suppress(OSError):
                os.unlink(self.spare)

    def _open(self) -> None:
        flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_TRUNC | os.O_CLOEXEC
        try:
            os.makedirs(os.path.dirname(self.spare), exist_ok=True)
            fd = os.open(self.spare, flags, 0o600)
        except OSError as error:
            self.note = f"no log: {error.strerror}"
            return
        if self._user >= 0:
            os.fchown(fd, self._user, -1)
        os.dup2(fd, self.fd)
        os.close(fd)
        self._open_now = True

    def _rename(self) -> None:
        try:
            os.rename(self.spare, self._path)
        except FileNotFoundError:
            os.makedirs(os.path.dirname(self._path), exist_ok=True)
            os.rename(self.spare, self._path)
        self._named = True

    def _close(self) -> None:
        null = os.open("/dev/null", os.O_WRONLY | os.O_CLOEXEC)
        os.dup2(null, self.fd)
        os.close(null)
        self._open_now = False
        self.note = ""


class Copy:
    """A user-named file that gets a copy of both logs, without their holes. It is filled as the logs grow, before a log
    is truncated to its limit.
    """

    def __init__(self, path: str, logs: tuple[Log, Log], account: Account | None, *, append: bool) -> None:
        """Open the file, with the rights of an account if there is one. Raises OSError, also for anything but a regular
        file, since a write must not block.
        """
        self.places = [0, 0]  # offset up to which each log is copied
        self.behind = False  # whether there is more to copy at once
        self._fd = -1
        self._sources: list[int] = []
        try:
            with contextlib.nullcontext() if account is None else owners().borrowed(account):
                os.makedirs(os.path.dirname(path), exist_ok=True)
                flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_NONBLOCK | os.O_CLOEXEC
                self._fd = os.open(path, flags, 0o644)
            if not stat.S_ISREG(os.fstat(self._fd).st_mode):
                raise OSError(errno.EINVAL, "it is not a file")
            if not append:
                os.ftruncate(self._fd, 0)
            self._sources = [os.open(log.spare, os.O_RDONLY | os.O_CLOEXEC) for log in logs]
        except OSError:
            self.close()
            raise

    def take(self, most: int = COPIED_AT_ONCE) -> str:
        """Copy at most this many bytes of the new output of each log. Return the reason if that failed, or ""."""
        self.behind = False
        try:
            for number, source in enumerate(self._sources):
                size, left = os.fstat(source).st_size, most
                if size < self.places[number]:  # the log was truncated: start over
                    self.places[number] = 0
                while left and self.places[number] < size:
                    start, end = data_at(source, self.places[number])
                    data = os.pread(source, min(end - start, COPIED, left), start)
                    self.places[number] = start + os.write(self._fd, data)
                    if not data:
                        break
                    left -= len(data)
                self.behind = self.behind or (not left and self.places[number] < size)
        except OSError as error:
            self.behind = False  # try again later
            return error.strerror or "?"
        return ""

    def close(self) -> None:
        for fd in (self._fd, *self._sources):
            if fd >= 0:
                os.close(fd)


def note_time(path: str, size: int, at: int) -> None:
    """Append a size of a log and its time to the log's index. An index beyond half of `TIMES_LIMIT` grows only after a
    pause in the log's growth, and never beyond `TIMES_LIMIT`. Raises OSError.
    """
    fd = os.open(path + TIMES, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        end = os.lseek(fd, 0, os.SEEK_END) // MOMENT * MOMENT
        if end >= TIMES_LIMIT:
            text = os.pread(fd, end, 0)
            text = b"".join([text[place : place + MOMENT] for place in range(MOMENT, end, 2 * MOMENT)])
            os.pwrite(fd, text, 0)
            os.ftruncate(fd, len(text))
            end = len(text)
        if end and moment_at(fd, end - MOMENT)[0] >= size:
            return
        if end >= TIMES_LIMIT // 2:
            span, gap = at - moment_at(fd, 0)[1], at - moment_at(fd, end - 2 * MOMENT)[1]
            if gap * (TIMES_LIMIT // 2 // MOMENT) < span:
                end -= MOMENT  # overwrite the last record
        os.pwrite(fd, struct.pack("<QQ", size, at), end)
    finally:
        os.close(fd)


def moment_at(fd: int, place: int) -> tuple[int, int]:
    """Return a record of a log's index: a size and its time."""
    size, at = struct.unpack("<QQ", os.pread(fd, MOMENT, place))
    return size, at


def data_at(fd: int, offset: int) -> tuple[int, int]:
    """Return where the next data of a file begins and ends: its size twice if only a hole follows."""
    try:
        start = os.lseek(fd, offset, os.SEEK_DATA)
        return start, os.lseek(fd, start, os.SEEK_HOLE)
    except OSError as error:  # ENXIO: only a hole follows; otherwise the file system does not support holes
        size = os.fstat(fd).st_size
        return (size, size) if error.errno == errno.ENXIO else (offset, max(offset, size))


def punch(fd: int, start: int, length: int) -> bool:
    """Free a range of a file and keep all offsets. Return False if the file system does not support it."""
    return allocate(fd, KEEP_SIZE | PUNCH_HOLE, start, length) == 0


def allocate(fd: int, mode: int, start: int, length: int) -> int:
    """Call `fallocate`. Return 0 or the error number."""
    call = ctypes.CDLL(None, use_errno=True).fallocate64
    call.argtypes = [ctypes.c_int, ctypes.c_int, ctypes.c_int64, ctypes.c_int64]
    return 0 if call(fd, mode, start, length) == 0 else ctypes.get_errno()


class Cgroup:
    """A memory limit for one command. The keeper enters the cgroup, spawns and leaves it: the child is in it from the
    start."""

    def __init__(self, version: int, path: str, home: str, limit: int) -> None:
        self.version = version
        self.path = path
        self._home = home
        limit = max(limit, SMALLEST_LIMIT)
        os.mkdir(path, 0o755)
        try:
            if version == 1:
                self._write("memory.limit_in_bytes", limit)
                with contextlib.suppress(OSError):  # the kernel may not account for swap
                    self._write("memory.memsw.limit_in_bytes", limit)
            else:
                self._write("memory.max", limit)
                for name, value in (("memory.swap.max", 0), ("memory.oom.group", 1)):
                    with contextlib.suppress(OSError):  # the same, and older kernels
                        self._write(name, value)
        except OSError:
            os.rmdir(path)
            raise

    def grow(self, limit: int) -> bool:
        """Raise the limit. Returns whether the kernel has done so."""
        try:
            if self.version == 1:
                with contextlib.suppress(OSError):  # the limit with swap must not be below the other
                    self._write("memory.memsw.limit_in_bytes", limit)
                self._write("memory.limit_in_bytes", limit)
            else:
                self._write("memory.max", limit)
        except OSError:
            return False
        return True

    def shrink(self, limit: int) -> bool:
        """Lower the limit. Returns whether the kernel has done so."""
        try:
            if self.version == 1:
                self._write("memory.limit_in_bytes", limit)
                with contextlib.suppress(OSError):  # the limit with swap must not be below the other
                    self._write("memory.memsw.limit_in_bytes", limit)
            else:
                self._write("memory.max", limit)
        except OSError:
            return False
        return True

    def used(self) -> int:
        """Return the bytes in use, without files that the kernel can drop from its cache."""
        text = self._read("memory.usage_in_bytes" if self.version == 1 else "memory.current").strip()
        mark = "total_inactive_file " if self.version == 1 else "inactive_file "
        lines = self._read("memory.stat").splitlines()
        cached = sum(int(line[len(mark) :]) for line in lines if line.startswith(mark))
        return max(0, int(text) - cached) if text.isdigit() else 0

    def enter(self) -> None:
        self._write("cgroup.procs", 0)

    def leave(self) -> None:
        with contextlib.suppress(OSError):  # the command is running: that counts more
            write_file(f"{self._home}/cgroup.procs", "0")

    def killed(self) -> bool:
        """Return whether the kernel's out-of-memory killer killed a process in this cgroup."""
        text = self._read("memory.oom_control" if self.version == 1 else "memory.events")
        return any(line.startswith("oom_kill ") and line != "oom_kill 0" for line in text.splitlines())

    def peak(self) -> int:
        text = self._read("memory.max_usage_in_bytes" if self.version == 1 else "memory.peak").strip()
        return int(text) if text.isdigit() else 0

    def kill(self) -> None:
        for pid in self._read("cgroup.procs").split():
            if int(pid) != os.getpid():
                with contextlib.suppress(OSError):
                    os.kill(int(pid), signal.SIGKILL)

    def remove(self) -> None:
        for _ in range(50):
            try:
                os.rmdir(self.path)
                return
            except FileNotFoundError:
                return
            except OSError:
                self.kill()
                time.sleep(0.002)

    def _write(self, name: str, value: int) -> None:
        write_file(f"{self.path}/{name}", str(value))

    def _read(self, name: str) -> str:
        try:
            return read_file(f"{self.path}/{name}").decode()
        except OSError:
            return ""


class Command:
    """The running command."""

    pid = 0
    ticks = 0
    since = 0
    cpu = 0
    peak = 0
    lowered_from = 0  # its memory limit before it was lowered while it ran; 0: it has that again
    short_at = 0  # when it may say again that its lowered limit is too low
    announced = False
    stopping = False
    lapsed = False
    oom = False
    hung = ""  # evidence for counting it as hung
    idle = ""  # why it counts as idle, and is stopped
    paused = False
    note = ""
    cgroup: Cgroup | None = None
    announce_at = 0
    watch_at = 0
    kill_at = 0
    limit_at = 0  # when its time limit expires; 0: it has none, or is being stopped
    overran = False
    left_at = 0  # next check for remaining processes after its first process ended while being stopped
    look_at = 0
    wake = 0
    looked = 0
    silent = 0
    seen: tuple[int, ...] = ()  # last seen state of the progress file
    cpu_then = 0  # CPU time when it was first seen silent; -1: it is not silent
    ends: Ends | None = None  # of a command with input or a terminal
    copy: Copy | None = None
    hang_up_at = 0  # when its terminal hangs up unless more input arrives; 0: never
    owner: Request | None = None  # the account as which it runs; None: the keeper's user

    def __init__(self, key: bytes, line: bytes, order: dict[str, Any]) -> None:
        self.key = key
        self.line = line
        self.limit: int = order.get("memory", 0)
        self.grace: int = order.get("grace", 0)
        self.bound: int = order.get("bound", LOG_BOUND)
        self.result: str = order.get("result", "")
        self.hang: int = order.get("hang", 0)
        self.progress: str = order.get("progress", "")
        self.time_limit: int = order.get("time_limit", 0)
        self.until: int = order.get("until", 0)
        self.folder: str = order.get("folder") or "/"
        self.env: dict[str, str] = order.get("env") or {}

    @property
    def account(self) -> Account | None:
        return None if self.owner is None else self.owner.account

    def noted(self, note: str) -> None:
        """Append a note for the ending."""
        self.note = f"{self.note}; {note}" if self.note else note

    def plan(self) -> None:
        """Set `wake` to the next instant at which this command needs attention."""
        self.wake = self.watch_at if self.announced else min(self.announce_at, self.watch_at)
        if self.kill_at and self.kill_at < self.wake:
            self.wake = self.kill_at
        if self.left_at and self.left_at < self.wake:
            self.wake = self.left_at
        if self.look_at and self.look_at < self.wake:
            self.wake = self.look_at
        if self.limit_at and self.limit_at < self.wake:
            self.wake = self.limit_at
        if self.hang_up_at and self.hang_up_at < self.wake:
            self.wake = self.hang_up_at
        if self.until and (over := now() + left(self.until)) < self.wake:
            self.wake = over
        if self.copy is not None and self.copy.behind:
            self.wake = 0


class Beside:
    """A side command: it runs beside an attempt's command, and a client reads its output."""

    credit = CREDIT
    code: int | None = None  # exit code once it has ended; negative: the signal
    kill_at = 0
    note = ""  # why it was ended

    def __init__(self, key: bytes, pid: int, ends: Ends) -> None:
        self.key = key
        self.pid = pid
        self.ends: Ends | None = ends
        self.pidfd = os.pidfd_open(pid)


class Unstartable(Exception):
    """The command could not be executed. `code` is the exit code that a shell would give."""

    def __init__(self, code: int, note: str) -> None:
        super().__init__(note)
        self.code = code
        self.note = note


class Keeper:
    """The event loop: one socket, one child process, a few timers."""

    def __init__(self, folder: str, name: str, listener: socket.socket) -> None:
        self._folder = folder
        self._name = name
        self._listener = listener
        self._poll = select.poll()
        self._poll.register(listener.fileno(), select.POLLIN)
        self._woken, self._waker = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        self._poll.register(self._woken, select.POLLIN)
        self._connection: socket.socket | None = None
        self._connected = -1
        self._received = b""
        self._unsent = b""
        self._pidfd = -1
        self._watched = -1

        self._queue: deque[tuple[bytes, bytes]] = deque()
        self._known: set[bytes] = set()
        self._endings: dict[bytes, bytes] = {}
        self._command: Command | None = None
        self._beside: dict[bytes, Beside] = {}
        self._ends: dict[int, Command | Beside] = {}  # owners of the watched file descriptors
        self._leaving = False
        self._stuck: set[int] = set()
        self._renewed: dict[bytes, int] = {}  # later deadlines of queued attempts
        self._limits: dict[bytes, int] = {}  # other time limits of queued attempts

        self._events: list[bytes] = []
        self._entries: list[bytes] = []
        self._flush_at = 0
        self._housekeeping_at = now() + HOUSEKEEPING
        self._idle_since = now()

        self._spare = ""
        self._out = Log(1, f"{folder}/{name}.out")
        self._err = Log(2, f"{folder}/{name}.err")
        self._cgroup: dict[str, Any] | None = None
        self._count = 0
        self._folder_now = ""
        self._cpus_now: list[int] = []
        self._all_cpus = os.sched_getaffinity(0)
        self._found: tuple[str, str, str] | None = None
        self._found_path = ""
        self._score = Score()
        self._wait_any = ctypes.CDLL(None).waitpid
        self._wait_any.argtypes = [ctypes.c_int, ctypes.c_void_p, ctypes.c_int]

        self._journal = Journal(f"{folder}/{name}.journal")
        self._recall()

    # -- the loop

    def serve(self) -> None:
        # Commands inherit ignored and blocked signals, but not handled ones.
        signal.pthread_sigmask(signal.SIG_SETMASK, ())
        for number in signal.valid_signals() - {signal.SIGKILL, signal.SIGSTOP}:
            if signal.getsignal(number) == signal.SIG_IGN:
                signal.signal(number, lambda *_: None)
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            signal.signal(number, self._on_signal)
        signal.set_wakeup_fd(self._waker, warn_on_full_buffer=False)  # otherwise a signal would not end a wait
        self._score.protect()
        while not self._leaving or self._busy() or not self._journal.whole():
            try:
                self._turn()
            except Exception as error:  # a keeper that dies takes its command with it
                self._trouble(error)
                time.sleep(0.05)
        self._depart()

    def _turn(self) -> None:
        for fd, what in self._poll.poll(self._timeout()):
            if fd == self._pidfd:
                self._on_exit()
            elif fd == self._connected:
                if what & ~select.POLLOUT:
                    self._on_readable()
                elif self._unsent:
                    self._send(b"")
            elif fd == self._woken:
                os.read(fd, 64)
            elif fd in self._ends:
                self._on_end(fd, what)
            elif fd == self._listener.fileno():
                self._on_connect()
        moment = now()
        command = self._command
        if command is not None and moment >= command.wake:
            self._attend(command, moment)
        if self._flush_at and moment >= self._flush_at:
            self._flush()
        if moment >= self._housekeeping_at or (self._journal.retry_at and moment >= self._journal.retry_at):
            self._keep_house(moment)

    def _timeout(self) -> int:
        wake = self._housekeeping_at
        if self._flush_at and self._flush_at < wake:
            wake = self._flush_at
        if self._command is not None and self._command.wake < wake:
            wake = self._command.wake
        if self._journal.retry_at and self._journal.retry_at < wake:
            wake = self._journal.retry_at
        wait = wake - now()
        return -(-wait // MILLISECOND) if wait > 0 else 0

    def _busy(self) -> bool:
        return self._command is not None or bool(self._queue)

    def _on_signal(self, _number: int, _frame: object) -> None:
        if not self._busy():
            self._leaving = True

    def _keep_house(self, moment: int) -> None:
        if self._journal.retry_at:
            self._journal.retry()
        if moment < self._housekeeping_at:
            return
        self._housekeeping_at = moment + HOUSEKEEPING
        if self._busy():
            self._idle_since = moment
            return
        gc.collect()
        unattended = self._connection is None and moment - self._idle_since > UNATTENDED
        if unattended or not os.path.exists(f"{self._folder}/{self._name}.lock"):
            self._leaving = True

    def _depart(self) -> None:
        """Remove everything but the endings that no agent has acknowledged."""
        self._flush()
        self._out.drop()
        self._err.drop()
        left = ["sock", "lock"] + ([] if self._endings else ["journal"])
        for suffix in left:
            with contextlib.suppress(OSError):
                os.unlink(f"{self._folder}/{self._name}.{suffix}")

    def _trouble(self, error: Exception) -> None:
        path = f"{self._folder}/{self._name}.trouble"
        frames, trace = [], error.__traceback__
        while trace is not None:
            frames.append(f"{trace.tb_frame.f_code.co_name}:{trace.tb_lineno}")
            trace = trace.tb_next
        with contextlib.suppress(OSError):
            if not os.path.exists(path) or os.stat(path).st_size < 1 << 20:
                with open(path, "a") as file:
                    file.write(f"{time.time():.3f} {' '.join(frames)} {error!r}\n")

    # -- the agent

    def _on_connect(self) -> None:
        try:
            connection, _ = self._listener.accept()
        except OSError:
            return
        credentials = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i"))
        if struct.unpack("3i", credentials)[1] not in (os.getuid(), 0):
            connection.close()
            return
        while self._on_readable():  # read the last agent's remaining messages
            pass
        self._disconnect()
        connection.setblocking(False)
        self._connection = connection
        self._connected = connection.fileno()
        self._poll.register(self._connected, select.POLLIN)

    def _disconnect(self) -> None:
        if self._connection is not None:
            self._poll.unregister(self._connected)
            self._connection.close()
        self._connection, self._connected = None, -1
        self._received = self._unsent = b""
        self._idle_since = now()
        for beside in list(self._beside.values()):
            self._on_leave(beside)

    def _on_readable(self) -> bool:
        """Read a part of the agent's messages. Return whether there was any."""
        if self._connection is None:
            return False
        try:
            data = self._connection.recv(1 << 16)
        except BlockingIOError:
            return False
        except OSError:
            data = b""
        if not data:
            self._disconnect()
            return False
        lines = (self._received + data).split(b"\n") if self._received else data.split(b"\n")
        self._received = lines.pop()
        if len(self._received) > LINE_LIMIT:
            self._disconnect()
            return False
        for line in lines:
            try:
                if line.startswith(RUN):
                    key = key_of(line)
                    if key not in self._known:
                        self._known.add(key)
                        self._queue.append((key, line))
                else:
                    self._on_message(parse(line))
            except (ValueError, LookupError, TypeError, AttributeError) as error:  # not a valid message
                self._trouble(error)
        if self._command is None and self._queue:
            self._start_next()
            self._report()
        return True

    def _on_message(self, message: list[Any]) -> None:
        kind = message[0]
        if kind == "hello":
            self._on_hello(message[1])
        elif kind == "stop":
            self._on_stop(text_of(message[1]), *message[2:3])
        elif kind == "renew":
            self._on_renew(text_of(message[1]), message[2])
        elif kind == "limit":
            self._on_limit(text_of(message[1]), *message[2:4])
        elif kind == "shrink":
            self._on_shrink(text_of(message[1]), message[2])
        elif kind == "pause":
            self._on_pause(text_of(message[1]), message[2])
        elif kind == "note":
            self._on_note(text_of(message[1]), message[2])
        elif kind == "idle":
            self._on_idle(text_of(message[1]), message[2])
        elif kind == "forget":
            self._on_forget([text_of(attempt) for attempt in message[1]])
        elif kind == "feed":
            self._on_feed(message[1], message[2])
        elif kind == "exec":
            self._on_exec(message[1], text_of(message[2]), message[3])
        elif kind == "credit":
            if (beside := self._beside.get(quote(message[1]))) is not None:
                beside.credit += message[2]
                self._after_ends(beside)
        elif kind == "leave":
            if (beside := self._beside.get(quote(message[1]))) is not None:
                self._on_leave(beside)
        elif kind == "try":
            self._events.append(b'["unfit",%b]' % quote(self._why_unfit()))
            self._flush()
        elif kind == "quit":
            self._leaving = True

    def _on_hello(self, settings: dict[str, Any]) -> None:
        self._leaving = False
        self._cgroup = settings.get("cgroup")
        spare = settings.get("spare") or f"{self._folder}/."
        if spare != self._spare and self._command is None:
            self._spare = spare
            self._out.drop()
            self._err.drop()
            self._out = Log(1, f"{spare}{self._name}.out")
            self._err = Log(2, f"{spare}{self._name}.err")
        self._events.clear()  # the answer contains them
        self._flush()
        answer = [b'["keeper",%d,%d]' % (VERSION, os.getpid())]
        if self._command is not None:
            command = self._command
            command.ticks = command.ticks or start_ticks(command.pid)
            answer.append(b'["held",%d,%d,%b]' % (command.pid, command.ticks, command.line))
        answer += [b'["held",0,0,%b]' % line for _, line in self._queue]
        answer += self._endings.values()
        answer.append(b'["whole"]\n')
        self._send(b"\n".join(answer))

    def _on_stop(self, key: bytes, hung: str = "") -> None:
        command = self._command
        if command is not None and command.key == key:
            if not command.stopping:
                command.stopping, command.hung = True, command.hung or hung
                self._end_gently(command)
            return
        for item in self._queue:
            if item[0] == key:
                self._queue.remove(item)
                self._end(key, b'"outcome":"returned"')
                self._flush()
                return

    def _end_gently(self, command: Command) -> None:
        """Send SIGTERM now and SIGKILL after the grace period; stop checking for progress and for the time limit."""
        self._pause(command, on=False)
        command.look_at = command.limit_at = 0
        if not command.kill_at:
            numbers = [signal.SIGTERM, signal.SIGCONT]
            if command.ends is not None and command.ends.terminal >= 0:
                numbers.insert(1, signal.SIGHUP)  # an interactive shell heeds nothing else
            for number in numbers:
                with contextlib.suppress(OSError):
                    os.killpg(command.pid, number)
            command.kill_at = now() + command.grace
        command.plan()

    def _on_pause(self, key: bytes, on: bool) -> None:
        command = self._command
        if command is not None and command.key == key and not (on and (command.stopping or command.kill_at)):
            if on and not command.paused:
                self._on_note(key, PAUSED)
            self._pause(command, on=on)

    def _pause(self, command: Command, *, on: bool) -> None:
        """Stop all processes of a command, parents first, or continue them, children first. Repeat it for processes
        that were started meanwhile. A parent that has not stopped yet could still see that its child is stopped.
        """
        if command.paused == on:
            return
        command.paused = on
        seen: set[int] = set()
        until = now() + PAUSE_WITHIN
        while fresh := [pid for pid in family(os.getpid()) if pid not in seen]:
            seen.update(fresh)
            for pid in fresh if on else reversed(fresh):
                with contextlib.suppress(OSError):
                    os.kill(pid, signal.SIGSTOP if on else signal.SIGCONT)
                while on and now() < until and not is_stopped(pid):
                    time.sleep(0.0005)

    def _on_note(self, key: bytes, text: str) -> None:
        command = self._command
        if command is None or command.key != key:
            return
        line = f"\r\npoise: {text}\r\n".encode()
        if command.ends is not None and command.ends.terminal >= 0:
            with contextlib.suppress(OSError):
                os.write(1, line)
        for beside in self._beside.values():
            if beside.ends is not None and beside.ends.terminal >= 0:
                said = (beside.key, binascii.b2a_base64(line, newline=False))
                self._events.append(b'["said",%b,"out","%b"]' % said)
        self._flush()

    def _on_idle(self, key: bytes, note: str) -> None:
        command = self._command
        if command is not None and command.key == key and not (command.stopping or command.kill_at):
            command.overran, command.idle = True, note
            self._end_gently(command)

    def _on_renew(self, key: bytes, until: int) -> None:
        command = self._command
        if command is not None and command.key == key:
            command.until = until
            command.plan()
        elif key in self._known and key not in self._endings:
            self._renewed[key] = until

    def _on_limit(self, key: bytes, limit: int, memory: int = 0) -> None:
        command = self._command
        if command is not None and command.key == key:
            if 0 < command.limit < memory and (command.cgroup is None or command.cgroup.grow(memory)):
                command.limit = memory
                if memory >= command.lowered_from:
                    command.lowered_from = 0
            if not (command.stopping or command.overran or command.kill_at):
                command.time_limit = limit
                command.limit_at = command.since + limit if limit else 0
                command.plan()
        elif key in self._known and key not in self._endings:
            self._limits[key] = limit

    def _on_shrink(self, key: bytes, memory: int) -> None:
        command = self._command
        if command is None or command.key != key or command.stopping or not 0 < memory <= command.limit:
            return
        peak = command.cgroup.peak() if command.cgroup is not None else command.peak
        if memory < command.limit:
            part, whole = FULL
            if not peak or peak * whole > memory * part:  # it is not known, or needs more
                return
            if command.cgroup is not None and not command.cgroup.shrink(max(memory, SMALLEST_LIMIT)):
                return
            command.lowered_from = max(command.lowered_from, command.limit)
            command.limit = memory
        self._events.append(b'["sized",%b,%d,%d,false]' % (key, memory, peak))
        self._report()

    def _say_if_short(self, command: Command, moment: int) -> None:
        used = command.cgroup.used() if command.cgroup is not None else sum(family(os.getpid()).values())
        part, whole = FULL
        if used * whole > command.limit * part:
            command.short_at = moment + SAY_SHORT_EVERY
            self._events.append(b'["sized",%b,%d,%d,true]' % (command.key, command.limit, used))
            self._report()

    def _on_forget(self, keys: list[bytes]) -> None:
        forgotten = [key for key in keys if self._endings.pop(key, None) is not None]
        if not forgotten:
            return
        self._known.difference_update(forgotten)
        if self._journal.size > self._journal.rewrite_at:
            self._journal.replace(self._essence())
        else:
            self._journal.write([b'["forget",[%b]]' % b",".join(forgotten)])

    def _send(self, text: bytes) -> None:
        if self._connection is None:
            return
        waiting = self._unsent + text if self._unsent else text
        try:
            sent = self._connection.send(waiting, socket.MSG_NOSIGNAL)
        except BlockingIOError:
            sent = 0
        except OSError:
            self._disconnect()
            return
        if bool(self._unsent) != (sent < len(waiting)):
            self._poll.register(self._connected, select.POLLIN | (select.POLLOUT if sent < len(waiting) else 0))
        self._unsent = waiting[sent:]

    # -- the journal

    def _recall(self) -> None:
        """Take over the unforgotten endings of an earlier keeper of this slot. An attempt that it began and did not end
        is lost: the agent that cleaned up after it may have had no room to record an ending.
        """
        for line in self._journal.read():
            entry = parse(line)
            if entry[0] == "starting":
                key = text_of(entry[1])
                self._endings[key] = b'["ended",%b,{"outcome":"lost","note":"its keeper was killed"}]' % key
            elif entry[0] == "ended":
                self._endings[text_of(entry[1])] = line
            elif entry[0] == "forget":
                for attempt in entry[1]:
                    self._endings.pop(text_of(attempt), None)
        self._known.update(self._endings)
        lines = [self._header(), *self._endings.values()]
        if not self._journal.replace(lines):
            self._journal.write(lines)

    def _header(self) -> bytes:
        boot = read_file("/proc/sys/kernel/random/boot_id").strip()
        return b'["keeper",%d,%d,"%b"]' % (VERSION, os.getpid(), boot)

    def _essence(self) -> list[bytes]:
        """Return the journal without forgotten attempts."""
        lines = [self._header(), *self._endings.values()]
        if self._command is not None:
            lines.append(b'["starting",%b]' % self._command.key)
            if self._command.announced:
                lines.append(self._started_line(self._command))
        return lines

    def _end(self, key: bytes, ending: bytes) -> None:
        line = b'["ended",%b,{%b}]' % (key, ending)
        self._renewed.pop(key, None)
        self._limits.pop(key, None)
        self._endings[key] = line
        self._entries.append(line)
        self._events.append(line)

    def _report(self) -> None:
        """Send events at once if the agent should send more orders; otherwise soon, batched."""
        if len(self._queue) < 2:
            self._flush()
        elif not self._flush_at:
            self._flush_at = now() + REPORT_WITHIN

    def _flush(self) -> None:
        """Write events to the journal, then send them to the agent."""
        self._flush_at = 0
        if self._entries:
            self._journal.write(self._entries)
            self._entries = []
        if self._events:
            self._events.append(b"")
            text = b"\n".join(self._events)
            self._events.clear()
            self._send(text)

    # -- input and output of a command, and side commands

    def _watch_ends(self, of: Command | Beside) -> None:
        """Poll only the file descriptors that can make progress: a ready one that is left alone would keep the keeper
        awake.
        """
        ends = of.ends
        reads = ends is not None and (isinstance(of, Command) or of.credit > 0)
        wanted = dict.fromkeys(ends.outputs, select.POLLIN) if ends is not None and reads else {}
        if ends is not None and ends.input is not None and ends.input.waits:
            wanted[ends.input.fd] = wanted.get(ends.input.fd, 0) | select.POLLOUT
        if isinstance(of, Beside) and of.pidfd >= 0:
            wanted[of.pidfd] = select.POLLIN
        for fd in [fd for fd, owner in self._ends.items() if owner is of and fd not in wanted]:
            self._poll.unregister(fd)
            del self._ends[fd]
        for fd, events in wanted.items():
            self._poll.register(fd, events)
            self._ends[fd] = of

    def _on_end(self, fd: int, what: int) -> None:
        """Handle a ready file descriptor of a command, or the end of a side command."""
        of = self._ends[fd]
        if isinstance(of, Beside) and fd == of.pidfd:
            self._reap_beside(of)
        elif of.ends is not None:
            given = of.ends.input
            if given is not None and fd == given.fd and given.waits:
                given.write()
            if fd in of.ends.outputs and what & ~select.POLLOUT:
                self._pass_on(of, fd)
        self._after_ends(of)

    def _after_ends(self, of: Command | Beside) -> None:
        """Report input that was taken, and poll for the next event, after work on a command's file descriptors."""
        given = of.ends.input if of.ends is not None else None
        if given is not None and given.answers():
            self._events.append(b'["fed",%b,%d,%b]' % (of.key, given.taken, b"true" if given.wanted else b"false"))
        if isinstance(of, Beside) and of.code is not None and not self._drain(of):
            self._leave(of)
        else:
            self._watch_ends(of)
        self._flush()

    def _pass_on(self, of: Command | Beside, fd: int) -> bool:
        """Pass output to the log or to its reader. Return whether there was any."""
        ends = of.ends
        if ends is None:
            return False
        data = ends.read(fd, CREDIT if isinstance(of, Command) else of.credit)
        if data is None:
            ends.done(fd)
        elif data and isinstance(of, Command):
            with contextlib.suppress(OSError):  # the disk is full: the command could not write it either
                os.write(1, data)
        elif data and isinstance(of, Beside):
            of.credit -= len(data)
            said = (of.key, quote(ends.outputs[fd]), binascii.b2a_base64(data, newline=False))
            self._events.append(b'["said",%b,%b,"%b"]' % said)
        return bool(data)

    def _drain(self, of: Command | Beside) -> bool:
        """Pass on the remaining output of an ended command. Return True if there may be more but no credit."""
        for fd in [] if of.ends is None else list(of.ends.outputs):
            for _ in range(MOST_DRAINED):
                if isinstance(of, Beside) and of.credit <= 0:
                    return True
                if not self._pass_on(of, fd):
                    break
        return False

    def _on_feed(self, whose: Any, piece: dict[str, Any]) -> None:
        key = quote(whose) if isinstance(whose, str) else text_of(whose)
        of: Command | Beside | None = self._beside.get(key, self._command)
        if of is None or of.key != key or of.ends is None or of.ends.input is None:
            return
        if isinstance(of, Command) and of.ends.terminal >= 0:
            hold: int = piece.get("hold", 0)
            of.hang_up_at = now() + hold if hold else 0
            of.plan()
            if piece.get("hang_up"):
                self._hang_up(of)
                return
        if size := piece.get("size"):
            of.ends.resize(size >> 16, size & 0xFFFF)
        of.ends.input.take(piece.get("at", 0), binascii.a2b_base64(piece.get("data", "")), piece.get("end", False))
        self._after_ends(of)

    def _hang_up(self, command: Command) -> None:
        """Close the command's terminal. The kernel would signal only its first process, not the rest of its group."""
        command.hang_up_at = 0
        if command.ends is not None:
            self._drain(command)
            command.noted(HUNG_UP)
            self._close_ends(command)
            for number in (signal.SIGHUP, signal.SIGCONT):
                with contextlib.suppress(OSError):
                    os.killpg(command.pid, number)

    def _close_ends(self, of: Command | Beside) -> None:
        ends, of.ends = of.ends, None
        self._watch_ends(of)
        if ends is not None:
            ends.close()

    def _on_exec(self, name: str, key: bytes, order: dict[str, Any]) -> None:
        command, quoted = self._command, quote(name)
        if quoted in self._beside:
            return
        code, note = 126, ""
        if command is None or command.key != key:
            note = "its task does not run here any more"
        elif len(self._beside) >= MOST_BESIDE:
            note = f"{MOST_BESIDE} commands run beside the task already, which is the most"
        else:
            env, argv = {**command.env, **order.get("env", {})}, order["argv"]
            ends, program, pid = None, "", 0
            try:
                program = "" if command.owner else self._find(argv, env, command.folder)
                ends = console().Ends(stdin=order.get("stdin", False), tty=order.get("tty", 0), piped=True)
                pid = self._spawn(command, program, argv, env, ends)
                self._score.protect()
                self._beside[quoted] = beside = Beside(quoted, pid, ends)
                self._watch_ends(beside)
            except Unstartable as why:
                code, note = why.code, why.note
                if ends is not None:
                    ends.close()
            except OSError as error:
                refused = self._refused(argv[0], program, error)
                code, note = refused.code, refused.note
                if ends is not None:
                    ends.close()
                if pid:
                    kill_group(pid)
        if note:
            self._events.append(b'["left",%b,%d,%b]' % (quoted, code, quote(note)))
            self._flush()

    def _reap_beside(self, beside: Beside) -> None:
        if beside.code is None:
            with contextlib.suppress(ChildProcessError):
                self._collect(beside.pid)
        os.close(beside.pidfd)
        self._poll.unregister(beside.pidfd)
        del self._ends[beside.pidfd]
        beside.pidfd = -1

    def _on_leave(self, beside: Beside) -> None:
        """End a side command that has no reader any more."""
        if beside.kill_at:
            return
        beside.kill_at = now() + LEAVE_WITHIN
        for number in (signal.SIGHUP, signal.SIGCONT):
            with contextlib.suppress(OSError):
                os.killpg(beside.pid, number)
        self._close_ends(beside)

    def _leave(self, beside: Beside) -> None:
        """Report an ended side command whose output is all on its way."""
        del self._beside[beside.key]
        code = 128 + signal.SIGKILL if beside.code is None else beside.code
        code = 128 - code if code < 0 else code
        self._close_ends(beside)
        self._events.append(b'["left",%b,%d,%b]' % (beside.key, code, quote(beside.note)))

    def _end_ends(self, command: Command) -> None:
        """End the side commands of an ended command, and close its file descriptors."""
        for beside in list(self._beside.values()):
            self._drain(beside)
            if beside.pidfd >= 0:
                self._reap_beside(beside)
            beside.note = TASK_ENDED
            self._leave(beside)
        self._drain(command)
        self._close_ends(command)

    # -- the command

    def _start_next(self) -> None:
        """Start the first queued command that can be started."""
        while self._queue and self._command is None:
            key, line = self._queue.popleft()
            if unfit := self._intend(key):
                self._hand_back(key, unfit)
                break
            try:
                self._start(key, line)
            except Unstartable as why:
                self._end(key, b'"outcome":"unstartable","code":%d,"note":%b' % (why.code, quote(why.note)))
            except Exception as error:  # an invalid order fails its attempt, not the keeper
                self._trouble(error)
                note = quote(f"the order cannot be followed: {error!r}")
                self._end(key, b'"outcome":"unstartable","code":126,"note":%b' % note)
        if self._command is None:
            self._rest()

    def _intend(self, key: bytes) -> str:
        """Record that an attempt is about to be spawned. Return why that failed, or ""."""
        if why := self._why_unfit():
            return why
        self._entries.append(b'["starting",%b]' % key)
        self._journal.write(self._entries)
        self._entries = []
        return self._why_unfit()

    def _why_unfit(self) -> str:
        """Return why nothing may be spawned, or ""."""
        there = self._journal.is_there() or self._journal.replace(self._essence())
        why = self._journal.why_unfit() if there else "it was deleted"
        return why and f"nothing can be started: `{self._journal.path}` cannot be written: {why}"

    def _hand_back(self, key: bytes, why: str) -> None:
        """Return this attempt and all queued ones, because nothing can be started."""
        for one in (key, *(waiting for waiting, _ in self._queue)):
            self._end(one, b'"outcome":"returned","note":' + quote(why))
        self._queue.clear()
        self._events.append(b'["unfit",%b]' % quote(why))

    def _start(self, key: bytes, line: bytes) -> None:
        order = parse(line, len(RUN) + len(key) + 1)  # the record after it is opaque
        command = Command(key, line, order)
        command.until = self._renewed.pop(key, command.until)
        command.time_limit = self._limits.pop(key, command.time_limit)
        if command.until and left(command.until) <= 0:
            self._end(key, b'"outcome":"returned","note":' + quote(LEASE_OVER))
            return
        argv: list[str] = order["argv"]
        env, folder = command.env, command.folder
        if asked := order.get("owner"):
            command.owner = self._owner(asked)
            if order.get("make"):
                self._make_folder(folder, command.owner.account)
        elif folder != self._folder_now:
            self._enter_folder(folder)
        cpus = order.get("cpus") or []
        if cpus != self._cpus_now:
            self._bind(cpus)
        program = "" if command.owner else self._find(argv, env, folder)
        user = -1 if command.account is None else command.account.uid
        self._out.begin(order.get("out", ""), user)
        self._err.begin(order.get("err", ""), user)
        if command.limit and self._cgroup:
            command.cgroup = self._make_cgroup(command, self._cgroup)
        if output := order.get("output", ""):
            try:
                logs = (self._out, self._err)
                command.copy = Copy(output, logs, command.account, append=order.get("append", False))
            except OSError as error:
                command.noted(f"`{output}` is not written: {error.strerror}")
        try:
            if order.get("stdin") or order.get("tty"):
                command.ends = console().Ends(stdin=True, tty=order.get("tty", 0))
            command.pid = self._spawn(command, program, argv, env, command.ends)
        except (OSError, Unstartable) as error:
            if command.copy is not None:
                command.copy.close()
            if command.ends is not None:
                command.ends.close()
            if command.cgroup is not None:
                command.cgroup.remove()
            self._out.finish(0)
            self._err.finish(0)
            self._found = None
            raise error if isinstance(error, Unstartable) else self._refused(argv[0], program, error) from None
        command.since = moment = now()
        try:
            self._pidfd = os.pidfd_open(command.pid)
        except OSError as error:
            os.kill(command.pid, signal.SIGKILL)
            os.waitpid(command.pid, 0)
            if command.copy is not None:
                command.copy.close()
            if command.ends is not None:
                command.ends.close()
            raise Unstartable(126, f"`{argv[0]}`: cannot be watched: {error.strerror}") from None
        if self._pidfd != self._watched:
            if self._watched >= 0:
                self._poll.unregister(self._watched)
            self._poll.register(self._pidfd, select.POLLIN)
            self._watched = self._pidfd
        command.announce_at = moment + REPORT_WITHIN
        command.watch_at = moment + WATCH_EVERY
        if command.hang:
            command.seen, command.looked = written(command.progress), moment
            command.look_at = moment + look_every(command)
        if command.time_limit:
            command.limit_at = moment + command.time_limit
        if command.ends is not None:
            self._watch_ends(command)
        command.wake = min(command.announce_at, command.limit_at or command.announce_at)
        self._command = command

    def _spawn(
        self, command: Command, program: str, argv: list[str], env: dict[str, str], ends: Ends | None = None
    ) -> int:
        """Start a command, or a command beside it, with its limits and as its owner. Raises OSError and Unstartable."""
        self._score.restore()
        actions = () if ends is None else ends.actions
        if command.cgroup is not None:
            command.cgroup.enter()
        try:
            if command.owner is not None:
                return self._spawn_owned(command.owner, command.folder, argv, env, actions)
            return os.posix_spawn(program, argv, env, setsid=True, file_actions=actions)
        finally:
            if command.cgroup is not None:
                command.cgroup.leave()
            if ends is not None:
                ends.spawned()

    def _spawn_owned(self, owner: Request, folder: str, argv: list[str], env: dict[str, str], actions: Any) -> int:
        def enter() -> str:
            try:
                self._enter_folder(folder)
            except Unstartable as why:
                private = owner.tmp and folder.startswith(("/tmp/", "/var/tmp/"))  # noqa: S108 — as it is named
                raise Unstartable(why.code, f"{why.note}{': /tmp is private here' if private else ''}") from None
            return self._find(argv, env, folder)

        try:
            pid: int = owners().spawn(owner, enter, argv, env, actions)
        except owners().Refused as why:
            raise Unstartable(why.code, str(why)) from None
        return pid

    def _owner(self, asked: object) -> Request:
        """Return the checked request for an account. Raises Unstartable."""
        if os.geteuid() != 0:
            raise Unstartable(126, "only an agent that runs as root runs commands as other users")
        try:
            request: Request = owners().Request(asked)
        except owners().Refused as why:
            raise Unstartable(126, str(why)) from None
        return request

    def _make_folder(self, folder: str, account: Account) -> None:
        """Create a folder as an account, because links in folders of the account may lead elsewhere."""
        try:
            with owners().borrowed(account):
                os.makedirs(folder, 0o700, exist_ok=True)
        except OSError as error:
            raise Unstartable(126, f"the folder `{folder}` cannot be created: {error.strerror}") from None

    def _enter_folder(self, folder: str) -> None:
        try:
            os.chdir(folder)
        except OSError as error:
            why = "does not exist" if error.errno == errno.ENOENT else f"cannot be entered: {error.strerror}"
            raise Unstartable(126, f"the folder `{folder}` {why}") from None
        self._folder_now = folder

    def _bind(self, cpus: list[int]) -> None:
        try:
            os.sched_setaffinity(0, cpus or self._all_cpus)
        except OSError as error:
            raise Unstartable(126, f"CPUs {cpus} cannot be bound: {error.strerror}") from None
        self._cpus_now = cpus

    def _find(self, argv: list[str], env: dict[str, str], folder: str) -> str:
        """Return the file to execute, found in the command's own PATH and relative to its own folder."""
        if not argv or not argv[0]:
            raise Unstartable(127, "there is no command")
        name = argv[0]
        if "/" in name:
            return name
        asked = (name, env.get("PATH", ""), folder)
        if asked == self._found:
            return self._found_path
        denied = False
        for place in asked[1].split(":"):
            path = f"{place or '.'}/{name}"
            try:
                mode = os.stat(path).st_mode
            except OSError:
                continue
            if stat.S_ISREG(mode) and os.access(path, os.X_OK):
                self._found, self._found_path = asked, path
                return path
            denied = True
        if denied:
            raise Unstartable(126, f"`{name}`: found in PATH, but not executable")
        raise Unstartable(127, f"`{name}`: command not found")

    def _refused(self, name: str, program: str, error: OSError) -> Unstartable:
        if error.errno == errno.ENOENT:
            if os.path.exists(program or error.filename or ""):
                return Unstartable(126, f"`{name}`: its interpreter does not exist")
            return Unstartable(127, f"`{name}`: no such file")
        if error.errno == errno.ENOEXEC:
            return Unstartable(126, f"`{name}`: not a program (no `#!` line?)")
        if error.errno == errno.EACCES:
            return Unstartable(126, f"`{name}`: not executable")
        return Unstartable(126, f"`{name}`: {error.strerror}")

    def _make_cgroup(self, command: Command, given: dict[str, Any]) -> Cgroup | None:
        self._count += 1
        path = f"{given['parent']}/{self._name}.{os.getpid()}.{self._count}"
        try:
            return Cgroup(given["version"], path, given["home"], command.limit)
        except OSError as error:
            command.note = f"memory is watched: no cgroup could be made ({error.strerror})"
            return None

    def _attend(self, command: Command, moment: int) -> None:
        """Do everything that is due for a running command."""
        if not command.announced and moment >= command.announce_at:
            self._announce(command)
        if command.until and left(command.until) <= 0:
            command.until, command.lapsed, command.kill_at = 0, True, moment
        if command.kill_at and moment >= command.kill_at:
            command.kill_at = moment + KILL_AGAIN
            self._kill_all(command)
        if command.copy is not None and (command.copy.behind or moment >= command.watch_at):
            command.copy.take()  # before a log loses its oldest output
        if command.left_at and moment >= command.left_at:
            self._on_exit()
            return
        if command.hang_up_at and moment >= command.hang_up_at:
            self._hang_up(command)
        if moment >= command.watch_at:
            self._watch(command, moment)
        if command.look_at and moment >= command.look_at:
            self._look(command, moment)
        if command.limit_at and moment >= command.limit_at:
            command.overran = True
            self._end_gently(command)
        command.plan()

    def _announce(self, command: Command) -> None:
        command.announced = True
        command.ticks = command.ticks or start_ticks(command.pid)
        self._score.protect()
        self._out.name()
        self._err.name()
        line = self._started_line(command)
        self._entries.append(line)
        self._events.append(line)
        self._flush()

    def _started_line(self, command: Command) -> bytes:
        return b'["started",%b,%d,%d]' % (command.key, command.pid, command.ticks)

    def _watch(self, command: Command, moment: int) -> None:
        copied = (None, None) if command.copy is None else command.copy.places
        grown = self._out.bound(command.bound, copied[0])
        grown = self._err.bound(command.bound, copied[1]) or grown
        interval = WATCH_EVERY if grown else WATCH_QUIET
        self._reap(command.pid)
        for beside in self._beside.values():
            if beside.kill_at and moment >= beside.kill_at:
                kill_group(beside.pid)
        if command.limit and command.cgroup is None:
            self._watch_memory(command)
            interval = max(WATCH_EVERY, 20 * (now() - moment))  # at most 5 % of a core
        if command.lowered_from and not command.stopping:
            if moment >= command.short_at:
                self._say_if_short(command, moment)
            interval = min(interval, WATCH_EVERY)
        if command.paused:
            self._stop_again()
            interval = max(interval, 100 * (now() - moment))  # at most 1 % of a core
        command.watch_at = now() + interval

    def _stop_again(self) -> None:
        """Stop the processes of a paused command that somebody else has continued."""
        for pid in family(os.getpid()):
            if not is_stopped(pid):
                with contextlib.suppress(OSError):
                    os.kill(pid, signal.SIGSTOP)

    def _look(self, command: Command, moment: int) -> None:
        """Check for progress since the last check. Read its CPU time only at the first silent check and at the last,
        since that costs more than a `stat`.
        """
        every = look_every(command)
        seen = written(command.progress)
        if command.paused or seen != command.seen:
            command.seen, command.silent, command.cpu_then = seen, 0, -1
        else:
            command.silent += min(moment - command.looked, 2 * every)
            if command.cpu_then < 0:
                command.cpu_then = self._cpu_so_far(command)
        command.looked, command.look_at = moment, moment + every
        if command.silent >= command.hang:
            used = max(0, self._cpu_so_far(command) - command.cpu_then)
            how = "busy" if 10 * used > command.silent else "idle"
            silent, spent = command.silent / SECOND, used / SECOND
            command.hung = f"silent for {silent:.1f} s, {spent:.1f} s of CPU used: {how}"
            self._end_gently(command)

    def _cpu_so_far(self, command: Command) -> int:
        return command.cpu + cpu_of(family(os.getpid()))

    def _watch_memory(self, command: Command) -> None:
        members = family(os.getpid())
        total = sum(members.values())
        if total > command.limit:
            total = proportional(members) or total
        command.peak = max(command.peak, total)
        if total > command.limit:
            command.oom = True
            self._kill_all(command)

    def _kill_all(self, command: Command) -> None:
        for beside in self._beside.values():
            if beside.code is None:  # it may be gone before the command ends
                beside.note = TASK_ENDED
        with contextlib.suppress(OSError):
            os.killpg(command.pid, signal.SIGKILL)
        if command.cgroup is not None:
            command.cgroup.kill()
        for pid in family(os.getpid()):
            with contextlib.suppress(OSError):
                os.kill(pid, signal.SIGKILL)

    def _reap(self, but: int) -> None:
        """Reap ended orphans while the command runs."""
        while True:
            try:
                ended = os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
            except ChildProcessError:
                return
            if ended is None or ended.si_pid == but:
                return
            self._collect(ended.si_pid)

    def _collect(self, pid: int) -> None:
        with contextlib.suppress(ChildProcessError):
            ended, status, usage = os.wait4(pid, os.WNOHANG)
            for beside in self._beside.values():
                if beside.pid == ended:
                    beside.code = os.waitstatus_to_exitcode(status)
            if self._command is not None:
                self._command.cpu += round((usage.ru_utime + usage.ru_stime) * SECOND)

    def _on_exit(self) -> None:
        command = self._command
        if command is None:
            return
        if command.kill_at and not command.lapsed and self._asked_and_alive(command):
            self._look_away()
            command.left_at = now() + LEFT_EVERY
            command.plan()
            return
        if command.copy is not None and not command.kill_at:
            command.copy.take()
            if command.copy.behind:  # copy from the loop, which heeds a stop meanwhile
                self._kill_all(command)
                self._look_away()
                command.look_at, command.left_at = 0, now() + LEFT_EVERY
                command.plan()
                return
        pid, status, usage = os.wait4(command.pid, os.WNOHANG)
        if pid == 0:
            return
        run = now() - command.since
        os.close(self._pidfd)
        self._pidfd = -1
        # Remaining processes of a command are our children by now. (`os.waitpid` would raise an exception, which is
        # slower.)
        if self._wait_any(-1, None, os.WNOHANG) >= 0:
            self._sweep(command)
        if command.ends is not None or self._beside:
            self._end_ends(command)
        self._finish(command, status, usage, run)
        self._command = None
        self._start_next()
        self._report()
        if self._pidfd < 0:
            self._look_away()

    def _look_away(self) -> None:
        """Stop polling: there is no process to wait for."""
        if self._watched >= 0:
            self._poll.unregister(self._watched)
            self._watched = -1

    def _asked_and_alive(self, command: Command) -> bool:
        """Return whether other processes of its group, which were also asked to stop, still run: a shell ends at once,
        but its children may have state to save.
        """
        for pid in family(os.getpid()):
            with contextlib.suppress(OSError):
                if pid != command.pid and pid not in self._stuck and os.getpgid(pid) == command.pid:
                    return True
        return False

    def _sweep(self, command: Command) -> None:
        """Kill the processes that a command has left behind, generation by generation."""
        until = now() + LEFTOVERS_WITHIN
        while True:
            members = [pid for pid in family(os.getpid()) if pid not in self._stuck]
            for pid in members:
                with contextlib.suppress(OSError):
                    os.kill(pid, signal.SIGKILL)
            try:
                while True:
                    pid, _, usage = os.wait4(-1, os.WNOHANG)
                    if pid == 0:
                        break
                    command.cpu += round((usage.ru_utime + usage.ru_stime) * SECOND)
            except ChildProcessError:
                self._stuck.clear()
                return
            if not members and self._stuck:
                return
            if now() > until:
                self._stuck.update(members)
                command.note = f"left-over processes could not be killed: {sorted(members)}"
                return
            time.sleep(0.001)

    def _finish(self, command: Command, status: int, usage: Any, run: int) -> None:
        """Determine how a command ended, and clean up after it."""
        code, number = (0, os.WTERMSIG(status)) if os.WIFSIGNALED(status) else (os.WEXITSTATUS(status), 0)
        peak = max(command.peak, usage.ru_maxrss << 10)
        notes = [note for note in (command.hung, command.note) if note]
        if command.hang:
            with contextlib.suppress(OSError):
                os.unlink(command.progress)
        if command.cgroup is not None:
            command.oom = command.oom or ((code != 0 or number != 0) and command.cgroup.killed())
            peak = command.cgroup.peak() or peak
            command.cgroup.remove()
        outcome = b"failed" if code else b"done"
        if command.lapsed:
            outcome, notes = b"lost", [*notes, LEASE_OVER]
        elif command.oom:
            outcome = b"oom"
        elif command.hung:
            outcome = b"hung"
        elif command.overran:
            why = command.idle or f"over its time limit of {command.time_limit / SECOND:g} s"
            outcome, notes = b"timeout", [*notes, why]
        elif command.stopping:
            outcome = b"stopped"
        elif number:
            outcome = b"killed" if number == signal.SIGKILL else b"signal"
        if command.copy is not None:
            why = command.copy.take(command.bound or LOG_BOUND)
            if not why and command.copy.behind:
                why = "it was stopped before the rest was copied"
            if why:
                notes.append(f"not all of its output is in the file that was named: {why}")
            command.copy.close()
        for log in (self._out, self._err):
            if log.note:
                notes.append(log.note)
            log.finish(command.bound)
        cpu = command.cpu + round((usage.ru_utime + usage.ru_stime) * SECOND)
        ending = b'"outcome":"%b","run":%d,"cpu":%d,"peak":%d' % (outcome, run, cpu, peak)
        if code or number or command.limit:
            ending += b',"code":%d,"signal":%d,"limit":%d' % (code, number, command.limit)
        if command.result and os.access(command.result, os.F_OK):
            result, note = read_result(command.result, command.account)
            if note:
                notes.append(note)
            elif result:
                ending += b',"result":' + quote(result)
        if notes:
            ending += b',"note":' + quote("; ".join(dict.fromkeys(notes)))
        self._end(command.key, ending)

    def _rest(self) -> None:
        """Go idle: leave the folder, and clear the program cache."""
        self._idle_since = now()
        self._found = None
        self._score.protect()
        if self._folder_now != "/":
            os.chdir("/")
            self._folder_now = "/"


class Score:
    """Protects the keeper, but not its commands, from the kernel's out-of-memory killer.

    A command inherits the score. The keeper therefore drops its protection before a spawn and restores it once a
    command runs for more than a few milliseconds: a burst of short commands avoids the cost.
    """

    def __init__(self) -> None:
        self._fd = -1
        self._covered = False
        with contextlib.suppress(OSError):
            self._fd = os.open("/proc/self/oom_score_adj", os.O_RDWR | os.O_CLOEXEC)
            self._given = os.read(self._fd, 16).strip()

    def protect(self) -> None:
        if self._fd >= 0 and not self._covered:
            with contextlib.suppress(OSError):  # without the privilege, the score stays as it is
                os.pwrite(self._fd, b"%d" % PROTECTED, 0)
                self._covered = True

    def restore(self) -> None:
        if self._covered:
            os.pwrite(self._fd, self._given, 0)
            self._covered = False


def console() -> Any:
    return module_beside("console")


def owners() -> Any:
    return module_beside("owner")


def module_beside(name: str) -> Any:
    """Load a module beside this file. Most keepers never need one. Raises OSError if it is not there."""
    if name not in _modules:
        spec = importlib.util.spec_from_file_location(name, f"{os.path.dirname(__file__)}/{name}.py")
        if spec is None or spec.loader is None:
            raise OSError(f"`{name}.py` is not beside the keeper")
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        _modules[name] = module
    return _modules[name]


_modules: dict[str, Any] = {}


def kill_group(pid: int) -> None:
    with contextlib.suppress(OSError):
        os.killpg(pid, signal.SIGKILL)


def look_every(command: Command) -> int:
    return min(LOOK_EVERY, command.hang // 10)


def written(path: str) -> tuple[int, ...]:
    """Return a value that changes when a file is written or touched: inode, size and mtime, whatever clock sets it."""
    try:
        state = os.stat(path)
    except OSError:
        return ()
    return (state.st_ino, state.st_size, state.st_mtime_ns)


def quote(text: str) -> bytes:
    return json.dumps(text).encode()


def text_of(attempt: list[Any]) -> bytes:
    """Return the key of an ATTEMPT, formatted as an agent writes it."""
    return b'["%b",%d]' % (attempt[0].encode(), attempt[1])


def read_result(path: str, account: Account | None) -> tuple[str, str]:
    """Return the JSON text that a command left as its result, or the error. The file is removed. A command of an
    account may have linked a file of another user there.
    """
    try:
        fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOFOLLOW | os.O_CLOEXEC)
    except OSError as error:
        return "", f"the result cannot be read: {error.strerror}"
    try:
        if not stat.S_ISREG(os.fstat(fd).st_mode) or (account is not None and not owners().own(fd, account)):
            return "", "the result is not a file of its own"
        with contextlib.suppress(OSError):
            os.unlink(path)
        data = os.read(fd, RESULT_LIMIT + 1)
    except OSError as error:
        return "", f"the result cannot be read: {error.strerror}"
    finally:
        os.close(fd)
    if len(data) > RESULT_LIMIT:
        return "", "the result is larger than 64 KiB"
    try:
        text = data.decode()
        json.loads(text)
    except (ValueError, RecursionError):
        return "", "the result is not JSON in UTF-8"
    return text, ""


def listen(folder: str, name: str) -> socket.socket | None:
    """Take the slot: its lock, then its socket. Return None if another keeper holds it."""
    if not take(f"{folder}/{name}.lock"):
        return None
    with contextlib.suppress(FileNotFoundError):
        os.unlink(f"{folder}/{name}.sock")
    where = os.open(folder, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    mask = os.umask(0o177)
    try:
        listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        listener.bind(f"/proc/self/fd/{where}/{name}.sock")  # a full path may be longer than an address can be
    finally:
        os.umask(mask)
        os.close(where)
    listener.listen(8)
    listener.setblocking(False)
    return listener


def take(path: str) -> bool:
    """Lock a file for as long as this process and its forks live. Return False if it is already locked."""
    while True:
        lock = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if os.path.samestat(os.fstat(lock), os.stat(path)):
                return True
        except BlockingIOError:
            os.close(lock)
            return False
        except FileNotFoundError:
            pass
        os.close(lock)  # its last owner removed it meanwhile


def detach() -> bool:
    """Detach from the starter, its session and its files. Return False in the starter, which then exits."""
    if os.fork():
        return False
    os.setsid()
    null = os.open("/dev/null", os.O_RDWR)
    for fd in (0, 1, 2):
        os.dup2(null, fd)
    if null > 2:
        os.close(null)
    set_child_subreaper = 36
    ctypes.CDLL(None).prctl(set_child_subreaper, 1, 0, 0, 0)
    os.chdir("/")
    return True


def main(folder: str, name: str) -> int:
    """Run a keeper. In the starter, exit code 0 means that the keeper is listening, and 3 that the slot already has
    one."""
    os.closerange(3, os.sysconf("SC_OPEN_MAX"))  # commands must not inherit the starter's open files
    folder = os.path.abspath(folder)
    listener = listen(folder, name)
    if listener is None:
        return 3
    ready, done = os.pipe()
    if detach():
        listener.listen(8)  # again: peers now see this process as the listener
        os.close(ready)
        os.close(done)
        gc.collect()
        gc.freeze()
        gc.disable()
        Keeper(folder, name, listener).serve()
        os._exit(0)  # at once: the agent takes the end of the connection as the end of the keeper
    os.close(done)
    os.read(ready, 1)  # until the keeper is the listener: the agent marks whatever process it sees as that
    return 0
