"""`poise ARGUMENTS…` without importing all of it anew: each command is a process of its own, forked from one that has.

That takes a fifth of the time of the CPU that starting Python and importing takes, of which a suite of a thousand
commands has little to give. Such a command gets its arguments, environment, folder and streams like any other; what
differs is what Python reads before it runs anything, so a command with other such variables is started as usual.

The supervisor, control plane and agents that such a command starts are forked too. Each is a child of the process that
starts it, with its own session, descriptors, signals, arguments and environment. `/proc` shows the last two as well.
"""

import asyncio
import atexit
import ctypes
import gc
import importlib
import os
import pickle
import runpy
import select
import signal
import socket
import struct
import subprocess
import sys
import threading
import traceback
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple, NoReturn

Word = str | bytes | Path

READ_FIRST = ("PYTHON", "LANG", "LC_", "LD_", "MALLOC_")
"""What variables begin with that are looked at before a program runs."""

DAEMONS = ("poise.control", "poise.agent")
"""Modules that are forked instead of started by `python -m`. The supervisor, which runs as a file, is forked too."""

IMPORTED_LATE = (
    "poise.drivers.yamlfile",
    "websockets.sync.client",
    "poise_serve.beyond",
    "poise_serve.group",
    "poise_serve.peers",
    "poise_serve.serve",
)
"""Modules that many commands import only when they run."""

SET_MM, SET_MM_MAP, SET_MM_MAP_SIZE = 35, 14, 15
"""Options of `prctl` (`linux/prctl.h`): set where a process keeps its arguments and its environment, and ask whether
the kernel supports this."""


class Ended(NamedTuple):
    code: int
    out: bytes
    err: bytes


class Forks:
    """The process that has imported all commands, and what is asked of it."""

    def __init__(self, environment: Mapping[str, str]) -> None:
        self._first = _read_first(environment)
        self._channel, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            self._process = subprocess.Popen(
                [sys.executable, "-P", __file__, str(theirs.fileno())],
                pass_fds=[theirs.fileno()],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                env=dict(environment),
                cwd="/",
            )

    def suits(self, environment: Mapping[str, str]) -> bool:
        return _read_first(environment) == self._first

    def run(
        self,
        program: str,
        arguments: Sequence[Word],
        environment: Mapping[str, str],
        cwd: Path,
        within: float,
        *,
        in_one: bool = False,
    ) -> Ended:
        """One command, waited for; with `in_one` both of its streams are one, as in a terminal."""
        out = os.memfd_create("out")
        err = os.dup(out) if in_one else os.memfd_create("err")
        pid, told = self.begin([program, *arguments], environment, cwd, out, err)
        try:
            if not select.select([told], [], [], within)[0]:
                os.kill(pid, signal.SIGKILL)
                raise AssertionError(f"{arguments!r} does not end: {_content(out)!r} {_content(err)!r}")
            code = os.waitstatus_to_exitcode(int(os.read(told, 20)))
            return Ended(code, _content(out), _content(err))
        finally:
            for file in (out, err, told):
                os.close(file)

    def begin(
        self, words: Sequence[Word], environment: Mapping[str, str], cwd: Path, out: int, err: int
    ) -> tuple[int, int]:
        """Start a command that writes to these two descriptors. Return its process, and the descriptor that its exit
        status can be read from.
        """
        asked = os.memfd_create("asked")
        told, tell = os.pipe()
        try:
            os.write(asked, pickle.dumps(([*map(os.fsdecode, words)], dict(environment), str(cwd))))
            socket.send_fds(self._channel, [b"!"], [asked, out, err, tell])
        finally:
            os.close(asked)
            os.close(tell)
        return int(os.read(told, 20)), told


class Started(subprocess.Popen[bytes]):
    """A command that is still running, with a pipe for each of its streams."""

    def __init__(self, forks: Forks, words: Sequence[Word], environment: Mapping[str, str], cwd: Path) -> None:
        self._forks = forks
        super().__init__(
            words,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env=environment,
            cwd=cwd,
        )

    def _execute_child(self, words: Sequence[Word], *others: Any) -> None:
        """Start it with its environment and folder, and with the pipes that `subprocess` has made."""
        cwd, environment, pipes = others[4], others[5], others[9:15]
        self.pid, self._told = self._forks.begin(words, environment, cwd, pipes[3], pipes[5])
        self._child_created = True
        self._close_pipe_fds(*pipes)  # type: ignore[attr-defined]

    def _internal_poll(self, *_: object, **__: object) -> int | None:
        if self.returncode is None:
            pid, status = self._try_wait(os.WNOHANG)
            if pid:
                self._handle_exitstatus(status)  # type: ignore[attr-defined]
        return self.returncode

    def _try_wait(self, flags: int) -> tuple[int, int]:
        """Act as `waitpid` for a child of another process."""
        if flags == os.WNOHANG and not select.select([self._told], [], [], 0)[0]:
            return 0, 0
        status = int(os.read(self._told, 20))
        os.close(self._told)
        return self.pid, status


@cache
def forks() -> Forks:
    """Of this process, for as long as it lives."""
    kept = {name: os.environ[name] for name in ("PATH", "HOME", "TMPDIR", "PYTHONPATH") if name in os.environ}
    return Forks(kept | {"LANG": "C.UTF-8"})


def _read_first(environment: Mapping[str, str]) -> dict[str, str]:
    return {name: value for name, value in environment.items() if name.startswith(READ_FIRST)}


def _content(file: int) -> bytes:
    return os.pread(file, os.fstat(file).st_size, 0)


def _serve(channel: socket.socket) -> None:
    """Returns in each process that is to run a command, with all that it was given."""
    while True:
        _, files, *_ = socket.recv_fds(channel, 1, 4)
        if not files:
            sys.exit()  # whoever asked has gone
        asked, out, err, tell = files
        if os.fork():
            for file in files:
                os.close(file)
            continue
        channel.close()
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        if (pid := os.fork()) == 0:
            os.close(tell)
            break
        for file in (asked, out, err):
            os.close(file)
        os.write(tell, b"%20d" % pid)
        os.write(tell, b"%20d" % os.waitpid(pid, 0)[1])
        os._exit(0)
    arguments, environment, cwd = pickle.loads(_content(asked))  # noqa: S301 — our own
    os.dup2(out, 1)
    os.dup2(err, 2)
    for file in (asked, out, err):
        os.close(file)
    os.chdir(cwd)
    become([sys.executable, *arguments], environment)
    sys.argv = arguments


class Starting(NamedTuple):
    """The arguments of `_posixsubprocess.fork_exec`, with which `subprocess` starts a program."""

    arguments: Sequence[Word]
    programs: Sequence[bytes]
    close_fds: bool
    kept: tuple[int, ...]
    cwd: str | None
    environment: Sequence[bytes] | None
    stdin: int
    to_stdin: int
    from_stdout: int
    stdout: int
    from_stderr: int
    stderr: int
    from_failure: int
    failure: int
    restore_signals: bool
    new_session: bool
    group: int
    gid: int | None
    gids: Sequence[int] | None
    uid: int | None
    umask: int
    first: object

    def daemon(self) -> list[str]:
        """Return the module or the file to run here, and its arguments; nothing if this is not a daemon to fork.

        A daemon with another user, or with other variables that Python reads at start, is not forked.
        """
        words = [os.fsdecode(word) for word in self.arguments]
        usual = (self.group, self.uid, self.gid, self.gids, self.umask, self.first) == (-1, None, None, None, -1, None)
        if not usual or words[0] != sys.executable or _read_first(self.variables()) != _read_first(os.environ):
            return []
        if words[1:2] == ["-S"] and words[2].endswith("/poise/control/supervisor.py"):
            return words[2:]
        return words[2:] if words[1:2] == ["-m"] and words[2] in DAEMONS else []

    def variables(self) -> dict[str, str]:
        if self.environment is None:
            return dict(os.environ)
        pairs = (os.fsdecode(pair).partition("=") for pair in self.environment)
        return {name: value for name, _, value in pairs}

    def settle(self) -> None:
        """Give a forked process the streams, folder, session and descriptors that the program would have had."""
        signal.set_wakeup_fd(-1)
        for number in signal.valid_signals() - {signal.SIGKILL, signal.SIGSTOP}:
            if callable(signal.getsignal(number)):
                signal.signal(number, signal.default_int_handler if number == signal.SIGINT else signal.SIG_DFL)
        streams = [
            (number, os.dup(file)) for number, file in enumerate((self.stdin, self.stdout, self.stderr)) if file != -1
        ]
        for place, file in streams:
            os.dup2(file, place)
        if self.cwd is not None:
            os.chdir(self.cwd)
        if self.new_session:
            os.setsid()
        become([os.fsdecode(word) for word in self.arguments], self.variables())
        kept = [number for number in self.kept if number > 2 and number != self.failure]
        for low, high in zip([2, *kept], [*kept, os.sysconf("SC_OPEN_MAX")], strict=True):
            os.closerange(low + 1, high)


def can_show() -> bool:
    """Whether this kernel lets a process change the arguments that `/proc` shows; else daemons are started as usual."""
    size = ctypes.c_uint()
    told: int = ctypes.CDLL(None).prctl(SET_MM, SET_MM_MAP_SIZE, ctypes.byref(size), ctypes.c_ulong(0), 0)
    return told == 0


def become(arguments: list[str], environment: Mapping[str, str]) -> None:
    """Set the arguments and the environment of this process as `exec` would; `/proc` shows them as well."""
    sys.orig_argv = arguments
    os.environ.clear()
    os.environ.update(environment)
    words = [map(os.fsencode, arguments), (os.fsencode(f"{name}={value}") for name, value in environment.items())]
    parts = [b"".join(word + b"\0" for word in of) for of in words]
    text = ctypes.create_string_buffer(b"".join(parts))
    _SHOWN[:] = [text]
    start = ctypes.addressof(text)
    middle, end = start + len(parts[0]), start + len(parts[0]) + len(parts[1])
    with open("/proc/self/stat") as file:  # noqa: PTH123
        fields = [*map(int, file.read().rpartition(")")[2].split()[1:])]
    code, stack, data = fields[22:24], fields[24], fields[41:44]  # of proc(5): 26 and 27, 28, 45 to 47
    if not can_show():
        return
    libc = ctypes.CDLL(None, use_errno=True)
    libc.sbrk.restype = ctypes.c_void_p
    places = struct.pack("<12QIi", *code, *data, libc.sbrk(0), stack, start, middle, middle, end, 0, 0, -1)
    if libc.prctl(SET_MM, SET_MM_MAP, places, ctypes.c_ulong(len(places)), 0) != 0:
        raise OSError(ctypes.get_errno(), "the kernel lets no process change its arguments")


_SHOWN: list[object] = []
"""The memory that the kernel shows must not move."""


def _start(*asked: object) -> int:
    """Replace `fork_exec`: fork daemons from here, where their modules are loaded; start other programs as usual."""
    starting = Starting(*asked[: len(Starting._fields)])  # type: ignore[arg-type]
    daemon = starting.daemon()
    alone = len(os.listdir("/proc/self/task")) == 1 and asyncio._get_running_loop() is None  # noqa: PTH208
    if not daemon or not alone:  # locks of other threads or a loop would stay held for ever
        return int(_FORK_EXEC(*asked))
    if pid := os.fork():
        return pid
    gc.freeze()  # never collect objects of the parent: that would close files that are no longer theirs
    code: object = 0
    try:
        atexit._clear()
        starting.settle()
        sys.stdout, sys.stderr = (open(number, "w", buffering=1, closefd=False) for number in (1, 2))  # noqa: SIM115
        sys.argv = daemon
        if daemon[0] in DAEMONS:
            runpy.run_module(daemon[0], run_name="__main__", alter_sys=True)
        else:
            runpy.run_path(daemon[0], run_name="__main__")
    except SystemExit as left:
        code = left.code
    except BaseException:
        traceback.print_exc()
        code = 1
    return _end(code if isinstance(code, int) else int(code is not None))


def _end(code: int) -> NoReturn:
    """Exit without destroying imported modules. That would copy most of the memory: three fifths of a command."""
    threading._shutdown()  # type: ignore[attr-defined]
    atexit._run_exitfuncs()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


if __name__ == "__main__":
    os.environ["OPENBLAS_NUM_THREADS"] = "1"  # as the supervisor sets it; a process with several threads must not fork
    from poise.cli.main import COMMANDS, main

    for module in {module for name, (module, _) in COMMANDS.items() if name != "demo"} | {"poise.cli.group"}:
        importlib.import_module(module)
    for module in IMPORTED_LATE:
        importlib.import_module(module)
    for module in DAEMONS:
        importlib.import_module(f"{module}.__main__")
        del sys.modules[f"{module}.__main__"]  # it is run under another name
    gc.freeze()
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    _serve(socket.socket(fileno=int(sys.argv[1])))
    _FORK_EXEC = subprocess._fork_exec  # type: ignore[attr-defined]
    if can_show():
        subprocess._fork_exec = _start  # type: ignore[attr-defined]
    _end(main())
