"""Debian's own Redis, started for a test and killed, stopped and restarted by it."""

import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import redis

DEBIAN = Path(sys.prefix) / "debian"
PROGRAM = DEBIAN / "usr/bin/redis-server"


class RedisServer:
    """One at a socket of its own, which keeps nothing on disk."""

    def __init__(self, folder: Path) -> None:
        self._path = folder / "redis.sock"
        self.url = f"unix://{self._path}"
        self.client: Any = redis.Redis(unix_socket_path=str(self._path))
        self._process: subprocess.Popen[bytes] | None = None

    def start(self, *options: str) -> None:
        """Returns when it answers."""
        libraries = ":".join(str(place) for place in DEBIAN.glob("usr/lib/*-linux-gnu"))
        command = [str(PROGRAM), "--port", "0", "--unixsocket", str(self._path), "--save", "", *options]
        self._process = subprocess.Popen(
            command, env=os.environ | {"LD_LIBRARY_PATH": libraries}, cwd=self._path.parent, stdout=subprocess.DEVNULL
        )
        until = time.monotonic() + 30
        while True:
            try:
                self.client.ping()
                return
            except redis.ConnectionError:
                if time.monotonic() > until or self._process.poll() is not None:
                    raise
                time.sleep(0.01)

    def kill(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None

    def stand_still(self) -> None:
        """It takes connections and says nothing, until it is to `go_on`."""
        assert self._process is not None
        self._process.send_signal(signal.SIGSTOP)

    def go_on(self) -> None:
        assert self._process is not None
        self._process.send_signal(signal.SIGCONT)

    def keys(self, pattern: str = "*") -> list[str]:
        return sorted(key.decode() for key in self.client.keys(pattern))


@contextmanager
def running() -> Iterator[RedisServer]:
    if not PROGRAM.exists():
        pytest.skip(f"{PROGRAM.name} is not there: `make servers` fetches it from Debian's packages")
    with tempfile.TemporaryDirectory() as folder:
        server = RedisServer(Path(folder))
        try:
            server.start()
            yield server
        finally:
            server.kill()
            server.client.close()
