"""A watcher of a gateway: it holds the listening socket, and restarts the gateway when it is killed.

It does nothing else, so the usual causes of a gateway's death (client data, load, memory) do not affect it. Clients
that connect in between wait in the backlog for the next gateway; replicas reconnect (`replica`), and the next gateway
takes over their jobs from a saved file (`replicas`).

Either of the two may die. A gateway holds the reading end of a pipe whose other end its watcher holds, so it notices
when the watcher was killed, and starts another: this file as a program, which needs nothing but the standard library.
That one cannot wait for the gateway as its parent could; it reads from a pipe as well, in which a gateway that ends in
order leaves a byte. Where it finds none it becomes `poise serve` again, with the socket that it was given.

Both may die at one moment. A gateway is on file beside its sockets for as long as it lives (`registered`), with a lock
that each of its processes holds; under `poise up` the supervisor starts what is on file and locked by nobody. It hands
on the same that a watcher does.

A gateway that is told to stop records this in that file (`note_ending`). If it is killed before it has ended, nothing
starts another one.
"""

import atexit
import faulthandler
import fcntl
import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import NamedTuple

QUICKLY = 5.0
"""A gateway that is killed within this number of seconds …"""

AT_MOST = 3
"""… this many times in a row is not restarted."""

_SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
_INHERITED = "POISE_GATEWAY_INHERITED"
"""Variable with the descriptors of socket and lock, and the mark, of a killed gateway. The supervisor sets it too."""


BOOT = Path("/proc/sys/kernel/random/boot_id")
"""Boot id: a gateway from before a reboot was not killed."""


class Watched(NamedTuple):
    """The server's link to its watcher: a descriptor that becomes readable when the watcher exits."""

    gone: int


class Inherited(NamedTuple):
    """State inherited from a killed gateway: its listening socket, its lock, and the mark of its files."""

    listening: socket.socket
    lock: int
    mark: str


def inherited() -> Inherited | None:
    """Return the state that this process takes over; None for a new gateway."""
    told = os.environ.pop(_INHERITED, "")
    if not told:
        return None
    listening, lock, mark = told.split()
    for descriptor in (listening, lock):
        os.set_inheritable(int(descriptor), False)
    return Inherited(socket.socket(fileno=int(listening)), int(lock), mark)


@contextmanager
def registered(
    folder: Path,
    mark: str,
    listening: socket.socket,
    environment: Mapping[str, str],
    before: Inherited | None,
    *,
    relays: bool = False,
) -> Iterator[int]:
    """Register a gateway on disk until it ends cleanly; yield the descriptor of its lock. The lock file holds the id of
    the process to signal. `environment` holds the variables that a restart needs; it has no secrets. `relays`: another
    process has its services.
    """
    path, record = folder / f"{mark}.lock", folder / f"{mark}.gateway"
    if before is None:
        lock = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        fcntl.flock(lock, fcntl.LOCK_EX)
    else:
        lock = before.lock
    _note(lock, os.getpid())
    host, port = listening.getsockname()[:2]
    told = {
        "command": _command(),
        "folder": str(Path.cwd()),
        "environment": dict(environment),
        "host": host,
        "port": port,
        "shared": bool(listening.getsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT)),
        "listens": bool(listening.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN)),
        "boot": BOOT.read_text(),
        "relays": relays,
    }
    record.write_text(json.dumps(told))
    try:
        yield lock
    finally:
        _forget(record)


def note_ending(record: Path) -> None:
    """Record in the file that this gateway is stopping, and that no other may take over."""
    with suppress(FileNotFoundError, ValueError):
        told, new = json.loads(record.read_text()), record.with_suffix(".ending")
        new.write_text(json.dumps(told | {"ending": True}))
        new.replace(record)


def _is_ending(record: Path) -> bool:
    try:
        return bool(json.loads(record.read_text()).get("ending", False))
    except (OSError, ValueError):
        return False


def _forget(record: Path) -> None:
    record.unlink(missing_ok=True)
    record.with_suffix(".lock").unlink(missing_ok=True)


def _command() -> list[str]:
    """Return the command line of this process."""
    return [sys.executable, *sys.orig_argv[1:]]


def _note(lock: int, process: int) -> None:
    """Write the id of the process to signal into the lock file, for operators."""
    name = b"%d\n" % process
    os.pwrite(lock, name, 0)
    os.ftruncate(lock, len(name))


def stand_by(say: Callable[[str], None], record: Path) -> int | Watched:
    """Fork into a supervisor and a server. In the server, return its link to the supervisor; in the supervisor, return
    the exit code after the server has ended, including all restarts. The supervisor forwards signals to stop, and the
    hangup of the terminal; the server holds them until it calls `listen_to_signals`. Call this before threads start,
    while signals are blocked.
    """
    told: list[int] = []
    child = 0

    def pass_on(number: int, _: object) -> None:
        number = signal.SIGTERM if number == signal.SIGHUP else number
        told.append(number)
        if child:
            os.kill(child, number)

    quick = 0
    passed = [one for one in _SIGNALS if signal.getsignal(one) != signal.SIG_IGN]
    before = [(number, signal.signal(number, pass_on)) for number in passed]
    gone, held = os.pipe()
    while True:
        began = time.monotonic()
        child = os.fork()
        if not child:
            for number, handler in before:
                signal.signal(number, handler)
            faulthandler.enable()  # print a traceback if native code crashes
            os.setpgid(0, 0)  # a terminal signals it only through its watcher
            os.close(held)
            return Watched(gone)
        early = list(told)
        listen_to_signals()
        for one in early:
            os.kill(child, one)
        os.waitid(os.P_PID, child, os.WEXITED | os.WNOWAIT)  # signals need the process until it is reaped
        hold_signals()  # until the next one starts; at the end, late signals have no effect
        _, status = os.waitpid(child, 0)
        child = 0
        code = os.waitstatus_to_exitcode(status)
        if code >= 0:
            return code
        quick = quick + 1 if time.monotonic() - began < QUICKLY else 0
        name = signal.Signals(-code).name
        if told or quick >= AT_MOST or _is_ending(record):
            return 128 - code
        say(f"the gateway was ended by {name}; another takes over")


def hold_signals() -> None:
    """Block signals that stop this process until it can shut down cleanly."""
    signal.pthread_sigmask(signal.SIG_BLOCK, _SIGNALS)


def listen_to_signals() -> None:
    """Unblock signals; pending ones are delivered now."""
    signal.pthread_sigmask(signal.SIG_UNBLOCK, _SIGNALS)


class Watchers:
    """The successive watchers of a gateway; each is started when the previous one was killed."""

    def __init__(self, first: Watched, listening: socket.socket, lock: int, record: Path) -> None:
        """`record`: the file of the gateway."""
        self.gone = first.gone
        """Becomes readable when the watcher exits."""
        self._listening, self._lock, self._record = listening, lock, record
        self._started: list[subprocess.Popen[bytes]] = []

    def start(self) -> int:
        """Start another watcher, and return its process id. Raises OSError."""
        os.close(self.gone)
        self.gone, held = os.pipe()
        ends, end = os.pipe()
        atexit.register(_end_in_order, end)
        given = (held, ends, self._listening.fileno(), self._lock)
        try:
            made = subprocess.Popen(  # noqa: S603 — this file
                [
                    *(sys.executable, "-I", "-S", __file__, *map(str, given), str(self._record), str(os.getpid())),
                    *_command(),
                ],
                pass_fds=given,
                stdin=subprocess.DEVNULL,
                start_new_session=True,
            )
        finally:
            os.close(held)
            os.close(ends)
        self._started = [one for one in self._started if one.poll() is None]
        self._started.append(made)
        _note(self._lock, made.pid)
        return made.pid


def _end_in_order(end: int) -> None:
    """Tell the watcher that this gateway ended cleanly, so that no other takes over."""
    with suppress(BrokenPipeError):  # it was killed before
        os.write(end, b".")


def _watch(held: int, ends: int, listening: int, lock: int, record: Path, gateway: int, command: list[str]) -> None:
    """Wait until the gateway has ended, then become the next one, unless it left a byte in `ends`, or was told to end.
    `held` lets the gateway detect the exit of this process.
    """
    told = False

    def pass_on(*_: object) -> None:
        nonlocal told
        told = True
        os.kill(gateway, signal.SIGTERM)

    for number in _SIGNALS:
        signal.signal(number, pass_on)
    for own in (held, ends):
        os.set_inheritable(own, False)
    if os.read(ends, 1):
        return
    if told or _is_ending(record):
        _forget(record)
        return
    sys.stderr.write("poise: the gateway was killed; another takes over\n")
    sys.stderr.flush()
    for number in _SIGNALS:
        signal.signal(number, signal.SIG_DFL)
    os.environ[_INHERITED] = f"{listening} {lock} {record.stem}"
    os.execv(command[0], command)  # noqa: S606 — what it was started as


if __name__ == "__main__":
    _held, _ends, _listening, _lock, _record, _gateway, *_rest = sys.argv[1:]
    _watch(int(_held), int(_ends), int(_listening), int(_lock), Path(_record), int(_gateway), _rest)

__all__ = [
    "Inherited",
    "Watched",
    "Watchers",
    "hold_signals",
    "inherited",
    "listen_to_signals",
    "note_ending",
    "registered",
    "stand_by",
]
