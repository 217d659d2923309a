"""`poise ARGUMENTS…` without importing all of it anew: each command is a process of its own, forked from one that has.

That takes a fifth of the time of the CPU that starting Python and importing takes, of which a suite of a thousand
commands has little to give. Such a command gets its arguments, environment, folder and streams like any other; what
differs is what Python reads before it runs anything, so a command with other such variables is started as usual.
"""

import atexit
import gc
import importlib
import os
import pickle
import select
import signal
import socket
import subprocess
import sys
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import NamedTuple

Word = str | bytes | Path

READ_FIRST = ("PYTHON", "LANG", "LC_", "LD_", "MALLOC_")
"""What variables begin with that are looked at before a program runs."""


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
        asked, out = (os.memfd_create(name) for name in ("asked", "out"))
        err = os.dup(out) if in_one else os.memfd_create("err")
        told, tell = os.pipe()
        try:
            os.write(asked, pickle.dumps(([program, *map(os.fsdecode, arguments)], dict(environment), str(cwd))))
            socket.send_fds(self._channel, [b"!"], [asked, out, err, tell])
            os.close(tell)
            pid = int(os.read(told, 20))
            if not select.select([told], [], [], within)[0]:
                os.kill(pid, signal.SIGKILL)
                raise AssertionError(f"{arguments!r} does not end: {_content(out)!r} {_content(err)!r}")
            code = os.waitstatus_to_exitcode(int(os.read(told, 20)))
            return Ended(code, _content(out), _content(err))
        finally:
            for file in (asked, out, err, told):
                os.close(file)


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
    """Returns in each process that is to run a command, with all that it was given. This one says how each ends: a
    second process for that would be a second copy of all that was imported.
    """
    tells: dict[int, tuple[int, int]] = {}  # by the descriptor of a process: the process, and where its end is told
    ready = select.poll()
    ready.register(channel, select.POLLIN)
    while True:
        for file, _ in ready.poll():
            if file != channel.fileno():
                pid, tell = tells.pop(file)
                ready.unregister(file)
                os.write(tell, b"%20d" % os.waitpid(pid, 0)[1])
                os.close(tell)
                os.close(file)
                continue
            _, files, *_ = socket.recv_fds(channel, 1, 4)
            if not files:
                sys.exit()  # whoever asked has gone
            asked, out, err, tell = files
            if (pid := os.fork()) == 0:
                channel.close()
                for other in (tell, *tells, *(where for _, where in tells.values())):
                    os.close(other)
                _become(asked, out, err)
                return
            for given in (asked, out, err):
                os.close(given)
            os.write(tell, b"%20d" % pid)
            process = os.pidfd_open(pid)
            tells[process] = pid, tell
            ready.register(process, select.POLLIN)


def _become(asked: int, out: int, err: int) -> None:
    arguments, environment, cwd = pickle.loads(_content(asked))  # noqa: S301 — our own
    os.dup2(out, 1)
    os.dup2(err, 2)
    for file in (asked, out, err):
        os.close(file)
    sys.argv = arguments
    os.environ.clear()
    os.environ.update(environment)
    os.chdir(cwd)


if __name__ == "__main__":
    from poise.cli.main import COMMANDS, main

    for module in {module for name, (module, _) in COMMANDS.items() if name != "demo"} | {"poise.cli.group"}:
        importlib.import_module(module)
    for module in ("poise.drivers.yamlfile", "websockets.sync.client"):  # what many of them import when they run
        importlib.import_module(module)
    gc.freeze()
    _serve(socket.socket(fileno=int(sys.argv[1])))
    code = main()
    atexit._run_exitfuncs()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)  # to take apart all that was imported copies most of its memory first: three fifths of a command
