"""A running `poise serve`, and how it is asked."""

import http.client
import json
import os
import re
import signal
import socket
import threading
import time
from pathlib import Path
from typing import Any, ClassVar, NamedTuple

from system.living import Living, kill, until

HEARS_WITHIN = 5.0
"""Seconds in which the end of what a process says is heard once it has ended."""


class Told(NamedTuple):
    status: int
    headers: dict[str, str]
    body: bytes
    took: float

    @property
    def value(self) -> Any:
        return json.loads(self.body)


class Serving:
    """A running `poise serve`. Those that a test has not ended, since it failed, are ended after it (`conftest`)."""

    all: ClassVar[list["Serving"]] = []

    def __init__(self, living: Living, *arguments: str, ready: bool = True) -> None:
        same_code = ("--env", "PYTHONPATH") if "PYTHONPATH" in os.environ else ()
        self.process = living.start("serve", *arguments, *same_code, "--port", "0")
        self.all.append(self)
        self.said: list[str] = []
        self._hears = threading.Thread(target=self._listen, daemon=True)
        self._hears.start()
        if ready:
            self.until_said("ready")

    def _listen(self) -> None:
        assert self.process.stderr is not None
        for line in self.process.stderr:
            self.said.append(line.decode())

    @property
    def text(self) -> str:
        return "".join(self.said)

    @property
    def url(self) -> str:
        found = re.search(r"http://([0-9.:]+)", self.text)
        return found[1] if found else ""

    def until_said(self, what: str) -> None:
        until(lambda: what in self.text or not self._hears.is_alive(), f"it says `{what}`", lambda: self.text)
        assert what in self.text, self.text

    def raw(self, *parts: bytes) -> bytes:
        """All that comes back for bytes that are sent as they are, until the server hangs up."""
        host, port = self.url.split(":")
        with socket.create_connection((host, int(port)), timeout=30) as client:
            for part in parts:
                client.sendall(part)
            return b"".join(iter(lambda: client.recv(1 << 16), b""))

    def connection(self) -> http.client.HTTPConnection:
        return http.client.HTTPConnection(self.url, timeout=30)

    def ask(self, body: object, path: str = "/predict", method: str = "POST", **headers: str) -> Told:
        data = body if isinstance(body, bytes) else json.dumps(body).encode()
        connection = self.connection()
        began = time.monotonic()
        try:
            connection.request(method, path, data, {name.replace("_", "-"): value for name, value in headers.items()})
            answer = connection.getresponse()
            return Told(answer.status, dict(answer.headers), answer.read(), time.monotonic() - began)
        finally:
            connection.close()

    def metric(self, name: str, /, **labels: str) -> float:
        text = self.ask(b"", "/metrics", "GET").body.decode()
        wanted = [f'{key}="{value}"' for key, value in labels.items()]
        lines = [line for line in text.splitlines() if line.startswith(name) and all(one in line for one in wanted)]
        return sum(float(line.rpartition(" ")[2]) for line in lines)

    def gateway(self) -> int:
        """The process that serves, a child of the one that was started; 0 between one and the next."""
        children = Path(f"/proc/{self.process.pid}/task/{self.process.pid}/children").read_text().split()
        return int(children[0]) if children else 0

    def kill(self) -> None:
        """Both processes at one moment: either would start the other again."""
        kill(self.process.pid, signal.SIGSTOP)
        kill(self.gateway())
        kill(self.process.pid)

    def end(self) -> int:
        if self in self.all:
            self.all.remove(self)
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
        code = self.process.wait(30)
        assert self.process.stdout is not None and self.process.stderr is not None
        self.process.stdout.close()
        self._hears.join(HEARS_WITHIN)
        if not self._hears.is_alive():  # else what a failed test has left holds it, and to close it would take for ever
            self.process.stderr.close()
        return code
