"""Client of a Kubernetes API server.

Only one thread may call an `Api` at a time; a watch has its own connection. If a busy server names a delay (429, or 503
with `Retry-After`), the client retries after it.
"""

import contextlib
import json
import socket
import time
from collections.abc import Callable, Generator, Mapping
from typing import Any
from urllib.parse import urlencode

from poise.drivers.http import Answer, Connection
from poise.drivers.kubernetes.credentials import Access
from poise.errors import PoiseError

CALL_SECONDS = 30.0
TRIES = 4
LONGEST_WAIT = 10.0
"""Seconds that a call waits at most between two tries, whatever the server says."""

MERGE = "application/merge-patch+json"
JSON = "application/json"


class Refused(Exception):
    """The server refused the request: HTTP status, reason in one word, and message."""

    def __init__(self, status: int, reason: str, message: str, after: float = 0.0) -> None:
        super().__init__(f"{status} {reason}: {message}" if message else f"{status} {reason}")
        self.status, self.reason, self.message, self.after = status, reason, message, after


class Away(Exception):
    """The server does not answer, or the connection broke. The request may have been carried out."""


class Api:
    """Client of one API server. `sleep` waits for a number of seconds; tests can replace it."""

    def __init__(self, access: Access, sleep: Callable[[float], None] = time.sleep) -> None:
        self.access = access
        self._sleep = sleep
        self._open: Connection | None = None

    def get(self, path: str, **query: str) -> Any:
        return self._call("GET", path, query=query)

    def raw(self, path: str, query: Mapping[str, str]) -> bytes:
        """Return the undecoded answer."""
        return self._tried("GET", path, query, None, JSON)

    def create(self, path: str, body: Mapping[str, Any], **query: str) -> Any:
        return self._call("POST", path, body, query)

    def patch(self, path: str, body: Mapping[str, Any]) -> Any:
        return self._call("PATCH", path, body, kind=MERGE)

    def delete(self, path: str, body: Mapping[str, Any] | None = None, **query: str) -> Any:
        return self._call("DELETE", path, body, query)

    def stream(self, path: str, query: Mapping[str, str], seconds: float) -> Generator[bytes]:
        """The lines of a watch, until the server closes it. Raises `Away` if nothing came for `seconds`."""
        try:
            with self._connection(seconds) as connection:
                answer = self._sent(connection, "GET", path, query, None, JSON)
                if answer.status == 401:
                    self._renew()
                if answer.status >= 400:
                    raise _refusal(answer, answer.read())
                yield from answer
        except OSError as error:
            raise Away(_said(error)) from error

    def close(self) -> None:
        if self._open is not None:
            self._open.close()
            self._open = None

    # --- one call -----------------------------------------------------------------------------------------------------

    def _call(
        self,
        method: str,
        path: str,
        body: Mapping[str, Any] | None = None,
        query: Mapping[str, str] | None = None,
        kind: str = JSON,
    ) -> Any:
        content = json.dumps(body).encode() if body is not None else None
        answer = self._tried(method, path, query or {}, content, kind)
        try:
            return json.loads(answer or b"null")
        except ValueError:
            said = answer[:100].decode(errors="replace")
            raise Away(f"the answer is not that of an API server: {said}") from None

    def _tried(self, method: str, path: str, query: Mapping[str, str], content: bytes | None, kind: str) -> bytes:
        """Send a request; retry if the server is too busy, since it has then done nothing. Retry also if a kept-alive
        connection breaks, since servers close idle ones. Every request names its object, so a retry is idempotent.
        """
        for number in range(TRIES):
            kept = self._open is not None
            try:
                return self._once(method, path, query, content, kind)
            except Refused as refused:
                if refused.status == 401 and number == 0:  # the token or the certificate was rotated
                    self._renew()
                elif refused.after <= 0 or number == TRIES - 1:
                    raise
                else:
                    self._sleep(min(refused.after, LONGEST_WAIT))
            except Away:
                if not kept:
                    raise
        raise Away("the connection broke again and again")

    def _once(self, method: str, path: str, query: Mapping[str, str], content: bytes | None, kind: str) -> bytes:
        try:
            if self._open is None:
                self._open = self._connection(CALL_SECONDS)
            answer = self._sent(self._open, method, path, query, content, kind)
            body = answer.read()
        except OSError as error:
            self.close()
            raise Away(_said(error)) from error
        if answer.is_last:
            self.close()
        if answer.status >= 400:
            raise _refusal(answer, body)
        return body

    def _sent(
        self,
        connection: Connection,
        method: str,
        path: str,
        query: Mapping[str, str],
        content: bytes | None,
        kind: str,
    ) -> Answer:
        host = f"[{self.access.host}]" if ":" in self.access.host else self.access.host
        headers = {"Host": f"{host}:{self.access.port}", "Accept": JSON, "User-Agent": "poise", **self.access.headers}
        if content:
            headers["Content-Type"] = kind
        if token := self._token(False):
            headers["Authorization"] = f"Bearer {token}"
        target = f"{self.access.path}{path}" + (f"?{urlencode(query)}" if query else "")
        return connection.ask(method, target, headers, content)

    def _renew(self) -> None:
        self.close()  # its certificate was refused
        self._token(True)

    def _token(self, anew: bool) -> str:
        """Return the token. Raises `Away` if it cannot be had, for as long as that lasts."""
        try:
            return self.access.token(anew)
        except PoiseError as error:
            raise Away(f"{error}: {error.record.have}") from None

    def _connection(self, seconds: float) -> Connection:
        access = self.access
        self._token(False)  # a command may give a certificate with it
        connect = access.proxy.connect if access.proxy is not None else _connected
        sock = connect(access.host, access.port, seconds)
        try:
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            if access.tls is not None:
                sock = access.tls.wrap_socket(sock, server_hostname=access.server_name or access.host)
        except BaseException:
            sock.close()
            raise
        return Connection(sock)


def _refusal(answer: Answer, body: bytes) -> Refused:
    said: Any = None
    with contextlib.suppress(ValueError):
        said = json.loads(body)
    if not isinstance(said, dict):
        said = {"message": body[:200].decode(errors="replace")}
    after = 0.0
    with contextlib.suppress(ValueError):
        after = float(answer.headers.get("retry-after") or 0)
    if answer.status == 429:
        after = after or 1.0
    elif answer.status not in (500, 503, 504):
        after = 0.0
    return Refused(answer.status, str(said.get("reason") or ""), str(said.get("message") or ""), after)


def _connected(host: str, port: int, seconds: float) -> socket.socket:
    return socket.create_connection((host, port), seconds)


def _said(error: Exception) -> str:
    return str(error) or type(error).__name__
