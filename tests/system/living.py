"""A whole Poise in a folder of its own: real processes, the real command, and nothing left behind."""

import contextlib
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

from poise.client import Client
from poise.config import Home
from poise.drivers.lock import holder
from system.forked import forks

POISE = str(Path(sys.executable).parent / "poise")
PATIENCE = 120.0
"""Seconds that anything may take on a busy machine; nothing here waits so long unless it is broken."""


class Done(NamedTuple):
    """A command that has ended."""

    code: int
    out: bytes
    err: str

    @property
    def text(self) -> str:
        return self.out.decode()

    @property
    def value(self) -> Any:
        """The one JSON value on stdout; anything beside it is an error here."""
        return json.loads(self.out)

    @property
    def error(self) -> dict[str, str]:
        error: dict[str, str] = self.value["error"]
        return error


class Living:
    """One home and everything that runs for it."""

    def __init__(self) -> None:
        self.root = Path(tempfile.mkdtemp(prefix="poise-"))
        self.home = Home(self.root / "home")
        self.variables: dict[str, str] = {}
        self.work = self.root / "work"
        self.work.mkdir()

    # --- the command as typed ----------------------------------------------------------------------------------------

    def environment(self, **more: str) -> dict[str, str]:
        kept = {name: os.environ[name] for name in ("PATH", "HOME", "TMPDIR", "PYTHONPATH") if name in os.environ}
        return kept | {"POISE_HOME": str(self.home.root), "LANG": "C.UTF-8"} | self.variables | more

    def start(self, *arguments: str | bytes | Path, **more: str) -> subprocess.Popen[bytes]:
        """`poise ARGUMENTS…` in a terminal of its own, still running."""
        return subprocess.Popen(
            [POISE, *arguments],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            cwd=self.work,
            env=self.environment(**more),
        )

    def poise(self, *arguments: str | bytes | Path, **more: str) -> Done:
        """`poise ARGUMENTS…`, waited for: its own process, which need not import what it runs (`forked`)."""
        environment = self.environment(**more)
        if not forks().suits(environment):
            return ended(self.start(*arguments, **more))
        code, out, err = forks().run(POISE, arguments, environment, self.work, PATIENCE)
        return Done(code, out, err.decode("utf-8", "replace"))

    def up(self, *options: str) -> None:
        done = self.poise("up", "--port", "0", *options)
        assert done.code == 0, done.err

    def client(self) -> Client:
        return Client(self.home)

    def file(self, name: str, text: str) -> Path:
        path = self.work / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
        return path

    # --- its processes -----------------------------------------------------------------------------------------------

    def pid(self, what: str) -> int:
        """The process that holds a lock: `control`, `agent` or `supervisor`; 0 if there is none."""
        return holder(
            {"control": self.home.lock, "agent": self.home.node / "lock", "supervisor": self.home.supervisor}[what]
        )

    def processes(self, mark: bytes = b"") -> dict[int, str]:
        """Every process that names this home in its arguments or environment; with `mark`, only those that hold it."""
        found = {}
        name = os.fsencode(self.home.root)
        for entry in Path("/proc").iterdir():
            if not entry.name.isdigit() or int(entry.name) == os.getpid():
                continue
            try:
                arguments = (entry / "cmdline").read_bytes()
                everything = arguments + (entry / "environ").read_bytes()
                if (entry / "stat").read_text().rpartition(")")[2].split()[0] == "Z":
                    continue
            except OSError:
                continue
            if name in everything and mark in everything:
                found[int(entry.name)] = arguments.replace(b"\0", b" ").decode("utf-8", "replace")
        return found

    def keepers(self) -> list[int]:
        return sorted(pid for pid, arguments in self.processes().items() if "keeper.py" in arguments)

    def tasks(self) -> list[int]:
        """Processes of commands."""
        return sorted(pid for pid, arguments in self.processes(b"POISE_EPOCH=").items() if "keeper.py" not in arguments)

    def attempts(self) -> set[tuple[str, int]]:
        """Tasks and epochs of which any process is there."""
        found = set()
        for pid in self.tasks():
            with contextlib.suppress(OSError):  # it has just ended
                pairs = (pair.partition(b"=") for pair in Path(f"/proc/{pid}/environ").read_bytes().split(b"\0"))
                known = {name.decode(): value.decode() for name, _, value in pairs if name.startswith(b"POISE_")}
                if "POISE_TASK" in known and "POISE_EPOCH" in known:
                    found.add((known["POISE_TASK"], int(known["POISE_EPOCH"])))
        return found

    def messages(self) -> str:
        return self.home.messages.read_text() if self.home.messages.exists() else ""

    def close(self) -> None:
        """End all of it; whatever is left then was leaked, and fails the test."""
        try:
            if any(self.pid(what) for what in ("control", "agent", "supervisor")):
                done = self.poise("down", "--cancel", "--json")
                assert done.code == 0, (done.text, done.err, self.messages()[-2000:])
            until(lambda: not self.processes(), "every process has ended", self.processes, seconds=20)
        finally:
            self.destroy()

    def destroy(self) -> None:
        for _ in range(20):
            left = self.processes()
            for pid in left:
                kill(pid)
            if not left:
                break
            time.sleep(0.05)
        shutil.rmtree(self.root, ignore_errors=True)


def ended(process: subprocess.Popen[bytes], seconds: float = PATIENCE) -> Done:
    """Wait for a command."""
    try:
        out, err = process.communicate(timeout=seconds)
    except subprocess.TimeoutExpired:
        process.kill()
        out, err = process.communicate()
        raise AssertionError(f"{process.args!r} does not end: {out!r} {err!r}") from None
    return Done(process.returncode, out, err.decode("utf-8", "replace"))


def until(holds: Callable[[], Any], what: str, story: Callable[[], Any] = str, seconds: float = PATIENCE) -> Any:
    """Wait until it holds, and return what it gave; fail with the story if it does not.

    A look is followed by a pause twice as long: what is waited for needs the processor too.
    """
    deadline = time.monotonic() + seconds
    while True:
        began = time.monotonic()
        if found := holds():
            return found
        now = time.monotonic()
        assert now < deadline, f"not in {seconds:g} s: {what}; {story()}"
        time.sleep(min(max(0.02, 2 * (now - began)), 1.0))


def free_port(count: int = 1) -> int:
    """The first of so many free ports in a row."""
    while True:
        with contextlib.ExitStack() as held:
            port: int = held.enter_context(socket.create_server(("127.0.0.1", 0))).getsockname()[1]
            with contextlib.suppress(OSError, OverflowError):  # the next one is in use, or there is none
                for one in range(1, count):
                    held.enter_context(socket.create_server(("127.0.0.1", port + one)))
                return port


def kill(pid: int | None, number: int = signal.SIGKILL) -> None:
    """kill -9, if it is still there; 0 is nobody (to the system it would be everybody of this group)."""
    if pid is not None and pid > 1:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, number)


def alive(pid: int) -> bool:
    """Whether the process runs (a zombie does not)."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def resident(pid: int) -> int:
    """Bytes of memory that a process holds."""
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


class Diary:
    """A file to which commands append when they start and when they end; it shows what ran twice at once."""

    def __init__(self, path: Path) -> None:
        self.path = path
        path.touch()

    def command(self, seconds: float, name: str = "$POISE_TASK") -> str:
        """A shell command that writes both lines around a sleep. Each line is one write at the end of the file."""
        line = f'echo "%s {name} $POISE_EPOCH" >> {self.path}'
        return f"{line % 'start'}; sleep {seconds:g}; {line % 'end'}"

    def held(self) -> str:
        """As `command`, but it goes on until `release`, however long that takes: one process, a shell."""
        os.mkfifo(self._gate)
        return self.command(0).replace("sleep 0", f"read _ < {self._gate}")

    def release(self) -> None:
        """Let the one command that waits go on, once it waits."""
        gate = until(lambda: _opened(self._gate), "a command waits to be released")
        os.write(gate, b"\n")
        os.close(gate)

    @property
    def _gate(self) -> Path:
        return self.path.with_suffix(".gate")

    def entries(self) -> Iterator[tuple[str, str, int]]:
        for line in self.path.read_text().splitlines():
            word, name, epoch = line.split()
            yield word, name, int(epoch)

    def endings(self) -> list[str]:
        return [name for word, name, _ in self.entries() if word == "end"]

    def check(self, *, killed: frozenset[str] | set[str] = frozenset()) -> None:
        """Nothing ran twice at once: a task starts anew under a later epoch only, and only one that was killed does."""
        running: dict[str, int] = {}
        seen: dict[str, int] = {}
        for word, name, epoch in self.entries():
            if word == "start":
                assert epoch > seen.get(name, 0), f"{name} was started twice under epoch {epoch}"
                assert name not in running or name in killed, f"{name} ran twice at once"
                running[name] = seen[name] = epoch
            else:
                assert running.get(name) == epoch, f"{name} ended under epoch {epoch}, which did not run"
                del running[name]
        assert set(running) <= killed, f"never ended: {running}"


def _opened(gate: Path) -> int:
    """The gate, open for writing; 0 while nobody reads it."""
    try:
        return os.open(gate, os.O_WRONLY | os.O_NONBLOCK)
    except OSError:
        return 0
