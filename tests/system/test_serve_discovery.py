"""`discover: {job: ...}`: the tasks of a job are upstreams while they run, and no request fails when one ends."""

import http.client
import json
import threading
from collections import Counter
from collections.abc import Iterator

import pytest

from system.living import Living, free_port, kill, until
from system.serving import Serving

SERVER = """
import json, os, signal, sys, threading, time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

class Server(ThreadingHTTPServer):
    daemon_threads = False  # as servers do: at SIGTERM, requests are finished

class Handler(BaseHTTPRequestHandler):
    def do_GET(self):
        self.say({"object": "list", "data": [{"id": "m"}]})

    def do_POST(self):
        self.rfile.read(int(self.headers["Content-Length"]))
        time.sleep(0.05)
        self.say({"by": os.environ["POISE_PART"]})

    def say(self, document):
        body = json.dumps(document).encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_):
        pass

server = Server(("127.0.0.1", int(sys.argv[1]) + int(os.environ["POISE_PART"])), Handler)
signal.signal(signal.SIGTERM, lambda *_: threading.Thread(target=server.shutdown).start())
server.serve_forever()
server.server_close()
"""
FILES = {"server.py": SERVER}
QUICK = {"every": "1s", "delay": "0s", "failures": 2}


@pytest.fixture
def serving(home: Living) -> Iterator[tuple[Serving, int]]:
    home.up()
    port = free_port(2)
    document = {"kind": "upstreams", "discover": [{"name": "fleet", "job": f"servers:{port}+part"}], "health": QUICK}
    home.file("up.json", json.dumps(document))
    served = Serving(home, "up.json", ready=False)
    served.until_said("/v1")
    until(lambda: home.poise("service", "list").code == 0, "it listens", lambda: served.text)
    yield served, port
    assert served.end() == 0


class Clients:
    """Threads that ask one request after the other."""

    def __init__(self, serving: Serving) -> None:
        self.answers: Counter[str] = Counter()
        self._serving, self._over = serving, threading.Event()
        self._threads = [threading.Thread(target=self._ask) for _ in range(3)]

    def _ask(self) -> None:
        connection = self._serving.connection()
        while not self._over.is_set():
            try:
                connection.request("POST", "/v1/completions", json.dumps({"model": "m", "prompt": "x"}))
                answer = connection.getresponse()
                body = answer.read()
                self.answers[json.loads(body)["by"] if answer.status == 200 else body.decode()] += 1
            except (OSError, http.client.HTTPException) as error:
                self.answers[repr(error)] += 1
        connection.close()

    def __enter__(self) -> "Clients":
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        for thread in self._threads:
            thread.join()


def test_tasks_join_and_leave_and_no_request_fails(serving: tuple[Serving, int], home: Living) -> None:
    served, port = serving

    def upstreams() -> list[str]:
        listed = home.poise("service", "list", "--json").value["upstreams"]
        return [one["name"] for one in listed if one["state"] == "healthy"]

    home.poise("submit", "--name", "servers", "--parts", "2", "--cpu", "0.1", "--", "python3", "server.py", str(port))
    until(lambda: len(upstreams()) == 2, "both tasks are upstreams", lambda: served.text)
    with Clients(served) as clients:
        until(lambda: {"0", "1"} <= clients.answers.keys(), "both answer", lambda: clients.answers)
        home.poise("cancel", "servers.main[0]")
        until(lambda: len(upstreams()) == 1, "one has left", upstreams)
        kill(home.pid("control"))
        before = clients.answers["1"]
        until(lambda: clients.answers["1"] > before + 5, "the control plane is not needed", lambda: clients.answers)
        home.poise("submit", "--name", "more", "--", "true")
    assert clients.answers.keys() == {"0", "1"}, "no request failed"
    home.poise("cancel", "servers")
    until(lambda: upstreams() == [], "a job that is over has no upstreams", upstreams)
