"""Bare HTTP to a home's control plane: what a client that is not ours, or means no good, may send."""

import http.client
import json
import socket
from typing import Any, NamedTuple

from poise.drivers import sockets
from system.living import PATIENCE, Living


class Answer(NamedTuple):
    status: int
    headers: dict[str, str]
    body: bytes

    @property
    def value(self) -> Any:
        return json.loads(self.body)

    @property
    def error(self) -> dict[str, str]:
        error: dict[str, str] = self.value["error"]
        return error


class Caller:
    """Sends requests, one connection each, as whoever it says it is."""

    def __init__(self, living: Living) -> None:
        self.living = living
        self.good = {"Host": "poise", "Authorization": f"Bearer {living.home.token.read_text()}"}

    def connect(self) -> socket.socket:
        return sockets.connect(self.living.home.socket, PATIENCE)

    def call(
        self, method: str, path: str, body: bytes | None = None, headers: dict[str, str] | None = None, **more: str
    ) -> Answer:
        """With the right Host and token unless `headers` say otherwise; `more` are further headers."""
        sent = dict(self.good if headers is None else headers)
        sent |= {name.replace("_", "-"): value for name, value in more.items()}
        if body is not None:
            sent.setdefault("Content-Type", "application/json")
            sent.setdefault("Content-Length", str(len(body)))
        head = "".join(f"{name}: {value}\r\n" for name, value in sent.items())
        with self.connect() as sock:
            sock.sendall(f"{method} {path} HTTP/1.1\r\nConnection: close\r\n{head}\r\n".encode() + (body or b""))
            return read_answer(sock, method)

    def submit(self, spec: Any) -> Answer:
        return self.call("POST", "/v1/jobs", json.dumps({"spec": spec}).encode())


def read_answer(sock: socket.socket, method: str = "GET") -> Answer:
    response = http.client.HTTPResponse(sock, method=method)
    response.begin()
    headers = {name.lower(): value for name, value in response.getheaders()}
    return Answer(response.status, headers, response.read())
