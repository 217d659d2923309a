"""The client, and those that it asks."""

import threading
import time
from pathlib import Path

from poise.client import Client
from poise.config import Home
from poise.drivers import sockets

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
