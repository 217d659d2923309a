"""Debian's own PostgreSQL, started for a test and killed, stopped and restarted by it."""

import asyncio
import contextlib
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from drivers.wire import Wire

DEBIAN = Path(sys.prefix) / "debian"
SOCKET = ".s.PGSQL.5432"
PROGRAMS = "usr/lib/postgresql/15/bin"
NOBODY = 65534
"""PostgreSQL refuses to run as root."""


class PostgresServer:
    """One at a socket in a folder of its own, that syncs as it does in earnest."""

    def __init__(self, programs: Path) -> None:
        self._programs = programs
        self.folder = Path(tempfile.mkdtemp(prefix="poise-postgres-"))
        self._data = self.folder / "data"
        self._process: subprocess.Popen[bytes] | None = None
        self._databases = 0
        libraries = ":".join(str(place) for place in DEBIAN.glob("**/lib/*-linux-gnu"))
        self._as: dict[str, Any] = {
            "env": {"PATH": os.environ["PATH"], "LD_LIBRARY_PATH": libraries, "TZ": "UTC", "LANG": "C.UTF-8"},
            "cwd": self.folder,
            **({"user": NOBODY, "group": NOBODY, "extra_groups": []} if os.geteuid() == 0 else {}),
        }
        if os.geteuid() == 0:
            os.chown(self.folder, NOBODY, NOBODY)
        try:
            subprocess.run(
                [programs / "initdb", "-D", self._data, "-U", "poise", "-A", "trust", "-E", "UTF8", "--locale=C.UTF-8"],
                capture_output=True,
                check=True,
                **self._as,
            )
        except PermissionError:
            shutil.rmtree(self.folder)
            pytest.skip(f"root may not start PostgreSQL, and nobody may not read {programs}")

    def start(self) -> None:
        """Returns when it answers. Processes of a server that was killed may still hold its memory: try again then."""
        settings = ["listen_addresses=", f"unix_socket_directories={self.folder}", "jit=off", "shared_buffers=16MB"]
        command = [str(self._programs / "postgres"), "-D", str(self._data)]
        arguments = [*command, *(word for setting in settings for word in ("-c", setting))]
        messages, until = self.folder / "messages", time.monotonic() + 60
        self._process = process = self._begun(arguments)
        while True:
            try:
                self.run("SELECT 1", "postgres")
                return
            except Exception as error:  # it comes up
                said = messages.read_text()[-2000:]
                if time.monotonic() > until or (
                    process.poll() is not None and "pre-existing shared memory" not in said
                ):
                    raise AssertionError(said) from error
                if process.poll() is not None:
                    self._process = process = self._begun(arguments)
                time.sleep(0.05)

    def _begun(self, arguments: list[str]) -> subprocess.Popen[bytes]:
        with (self.folder / "messages").open("ab") as messages:
            return subprocess.Popen(arguments, stdout=subprocess.DEVNULL, stderr=messages, **self._as)

    def url(self, database: str) -> str:
        return f"postgresql://poise@/{database}?host={self.folder}"

    def database(self) -> str:
        """The URL of an empty one."""
        self._databases += 1
        name = f"d{self._databases}"
        self.run(f"CREATE DATABASE {name}", "postgres")
        return self.url(name)

    def run(self, statement: str, database: str, *parameters: Any) -> Any:
        """Rows that a statement gives."""
        import asyncpg

        async def ask() -> Any:
            connection = await asyncpg.connect(self.url(database) if "/" not in database else database)
            try:
                return await connection.fetch(statement, *parameters)
            finally:
                await connection.close()

        return asyncio.run(ask())

    def wire(self, url: str) -> tuple[str, Wire]:
        """The same by a way that can be cut."""
        wire = Wire()
        return url.replace(str(self.folder), str(wire.to_socket(self.folder / SOCKET))), wire

    def renewed(self, url: str) -> Any:
        """Another one whenever the lease was renewed."""
        return self.run("SELECT renewed FROM poise.leadership", url)

    def let_run_out(self, url: str, by: timedelta = timedelta(hours=1)) -> None:
        """As if the database's clock had jumped by so much since the lease was renewed."""
        self.run("UPDATE poise.leadership SET renewed = renewed - $1::interval", url, by)

    def add(self, url: str, revision: int, record: bytes) -> None:
        self.run("INSERT INTO poise.log VALUES ($1, $2)", url, revision, record)

    def kill(self) -> None:
        """As by a power cut, but for what the kernel still holds."""
        if self._process is not None:
            self._signal(signal.SIGKILL)
            self._process.wait()
            self._process = None
            (self._data / "postmaster.pid").unlink(missing_ok=True)

    def stand_still(self, on: bool = True) -> None:
        """It takes connections and says nothing, until it goes on."""
        self._signal(signal.SIGSTOP if on else signal.SIGCONT)

    def _signal(self, number: int) -> None:
        """To all of its processes; some come and go with their connections."""
        assert self._process is not None
        for pid in (self._process.pid, *_children(self._process.pid)):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, number)

    def remove(self) -> None:
        self.kill()
        shutil.rmtree(self.folder, ignore_errors=True)


def _children(pid: int) -> list[int]:
    return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


@contextmanager
def running() -> Iterator[PostgresServer]:
    pytest.importorskip("asyncpg", reason="asyncpg is not there: `make setup` installs it")
    places = [DEBIAN / PROGRAMS, Path("/") / PROGRAMS]
    programs = next((place for place in places if (place / "postgres").exists()), None)
    if programs is None:
        pytest.skip("postgres is not there: `make servers` fetches it from Debian's packages")
    server = PostgresServer(programs)
    try:
        server.start()
        yield server
    finally:
        server.remove()
