"""The client, and those that it asks."""

import threading
import time
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from socketserver import BaseServer

import msgspec
import pytest

from poise.client import Client
from poise.config import Home
from poise.drivers import sockets
from poise.errors import Fault
from poise.model.reports.status import StatusReport

ANSWER = b'{"staying":true}'


def test_patience_begins_when_the_connection_is_lost(tmp_path: Path) -> None:
    """Not when the question was asked: who waits for the end of a job waits longer for an answer than that."""
    home = Home(tmp_path, others=(tmp_path / "other.sock",))
    home.token.touch(mode=0o600)
    home.token.write_text("secret")
    dies, leads = (sockets.listen(door) for door in home.doors if isinstance(door, Path))

    def serve() -> None:
        asked = dies.accept()[0]
        asked.recv(65536)
        time.sleep(1.0)
        asked.close()
        dies.close()
        asked = leads.accept()[0]
        asked.recv(65536)
        asked.sendall(b"HTTP/1.1 202 Accepted\r\nContent-Length: %d\r\n\r\n%s" % (len(ANSWER), ANSWER))
        asked.close()

    serving = threading.Thread(target=serve, daemon=True)
    serving.start()
    with Client(home, patience=0.5) as client:
        client.stay()
    serving.join()
    leads.close()


STATUS = StatusReport(
    version="", policy="", term=1, revision=1, accepting=True, unfinished=0, pending=0, active=0, nodes=2, elsewhere=1
)


DAMAGED = b'{"error":{"code":"E216","message":"the kept files are damaged"}}'


class _DamagedFiles(BaseHTTPRequestHandler):
    """A control plane that takes jobs, and cannot read the files that clients have sent."""

    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        if self.path.startswith("/v1/trees/"):
            self._answer(500, DAMAGED)
        else:
            self._answer(200, msgspec.json.encode(STATUS))

    def do_POST(self) -> None:
        job = msgspec.json.decode(self.rfile.read(int(self.headers["Content-Length"])))
        if "sync" in job["spec"]:
            self._answer(500, DAMAGED)
        else:
            self._answer(200, b'{"job":"j1"}')

    def log_message(self, format: str, *_: object) -> None:
        """Nothing is said."""

    def _answer(self, status: int, data: bytes) -> None:
        self.send_response(status)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)


def test_a_tree_that_cannot_be_sent_stops_only_a_job_that_asked_for_it(tmp_path: Path) -> None:
    home = Home(tmp_path / "home")
    home.root.mkdir(mode=0o700)
    home.token.touch(mode=0o600)
    home.token.write_text("secret")
    (tmp_path / "tree" / ".git").mkdir(parents=True)
    (door,) = (sockets.listen(door) for door in home.doors if isinstance(door, Path))

    def serve() -> None:
        while True:
            try:
                asked = door.accept()[0]
            except OSError:
                return
            with asked:
                _DamagedFiles(asked, ("", 0), BaseServer(("", 0), BaseHTTPRequestHandler))

    threading.Thread(target=serve, daemon=True).start()
    spec = {"run": ["true"], "folder": str(tmp_path / "tree")}
    notes: list[str] = []
    with Client(home) as client:
        assert client.submit(spec, say=notes.append) == "j1"
        assert any("does not go along, because the kept files are damaged" in note for note in notes)
        with pytest.raises(Fault, match="damaged"):
            client.submit({**spec, "sync": True})
    door.close()
