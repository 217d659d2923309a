"""The process that serves one dashboard of a home until Ctrl-C or SIGTERM, with its ports."""

import asyncio
import contextlib
import logging
import signal
import socket
import ssl
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple
from urllib.parse import urlsplit

import msgspec
import uvicorn
import uvloop
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from poise.config import DASHBOARD_LISTEN_PORT, DASHBOARD_PORT, Address, Home
from poise.dashboard.app import Dashboard, Made
from poise.dashboard.sessions import Viewer
from poise.decoding import json_decoder
from poise.drivers.dashboards import Running, noted
from poise.drivers.http import Connection
from poise.drivers.reach import reach, trusting
from poise.drivers.security import token_for
from poise.drivers.taking import Taking
from poise.drivers.whole import write_whole
from poise.errors import Fault, InputError

ANSWER_SECONDS = 15.0
MAX_CONNECTIONS = 1024

HEAD_SECONDS = 10.0
"""Seconds within which a new connection must send a request."""


class Beyond(NamedTuple):
    """The listener for browsers on other machines: a socket, its certificate, and the names in that."""

    listening: socket.socket
    context: ssl.SSLContext
    names: Sequence[str]


class _Connection(Taking, HttpToolsProtocol):
    """One connection. It is closed if the browser reads nothing of its response for a while, or sends no request in
    time.
    """

    _late: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._late = self.loop.call_later(HEAD_SECONDS, transport.abort)

    def on_headers_complete(self) -> None:
        self._has_come()
        super().on_headers_complete()

    def connection_lost(self, exc: Exception | None) -> None:
        self._has_come()
        super().connection_lost(exc)

    def _has_come(self) -> None:
        if self._late is not None:
            self._late.cancel()
            self._late = None


class _Server(uvicorn.Server):
    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Do nothing; the inherited method would raise the signal again after serving."""
        yield


def served_elsewhere(home: Home) -> str:
    """Return the address of the dashboard beside the control plane of another user or machine; empty if it reports
    none.
    """
    door = home.elsewhere
    host = f"{door.host}:{door.port}" if isinstance(door, Address) else "poise"
    with contextlib.suppress(OSError), Connection(reach(home, ANSWER_SECONDS)) as connection:
        answer = connection.ask("GET", "/", {"Host": host})
        answer.read()
        return answer.headers.get("location", "")
    return ""


def new_link(home: Home, url: str) -> str:
    """Return the address that opens a running dashboard once. The part after `#` stays in the browser, and out of all
    logs. Raises `Fault`.
    """
    place = urlsplit(url)
    try:
        sock = socket.create_connection((place.hostname or "", place.port or 0), ANSWER_SECONDS)
        if place.scheme == "https" and isinstance(home.elsewhere, Address):
            sock = trusting(home.elsewhere).wrap_socket(sock, server_hostname=place.hostname)
        with Connection(sock) as connection:
            host = {"Host": place.netloc, "Authorization": f"Bearer {token_for(home)}"}
            answer = connection.ask("POST", "/link", host)
            content = answer.read()
            if answer.status == 200:
                return f"{url}#link={json_decoder(Made).decode(content).link}"
            why = f"status {answer.status}"
    except (OSError, msgspec.MsgspecError) as error:
        why = str(error)
    raise Fault("the dashboard that runs does not answer", field=url, have=why, hint="end it with Ctrl-C")


def bind(port: int, host: str = "127.0.0.1") -> socket.socket:
    """Return a socket at this port, or at a free one if `port` is 0, or is a default port that is in use. Raises
    `InputError`.
    """
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    sock = socket.socket(family, socket.SOCK_STREAM)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    for wanted in (port, 0):
        try:
            sock.bind((host, wanted))
        except OSError as error:
            if port in (DASHBOARD_PORT, DASHBOARD_LISTEN_PORT) and wanted:
                continue
            sock.close()
            hint = "--port 0 takes a free one"
            raise InputError(
                f"the port cannot be used: {error.strerror}", field="--port", have=str(port), hint=hint
            ) from None
        break
    sock.listen(256)
    return sock


def bind_again(home: Home, beyond: str = "") -> socket.socket:
    """Return a socket at the port where the dashboard of this home served before, so that open pages reconnect;
    otherwise at the default port or a free one. With `beyond`, the host at which other machines reach it, it is the
    socket for those.
    """
    before = noted(home)
    port = 0 if before is None else before.beyond if beyond else before.port
    host = beyond or "127.0.0.1"
    if port:
        with contextlib.suppress(InputError):
            return bind(port, host)
    return bind(DASHBOARD_LISTEN_PORT if beyond else DASHBOARD_PORT, host)


def serve(
    home: Home,
    listening: socket.socket,
    *,
    beyond: Beyond | None = None,
    viewer: Viewer | None = None,
    ready: Callable[[Running, str], None] = lambda running, link: None,
) -> None:
    """Serve until SIGINT or SIGTERM. `ready` is called with the first link, that of the `viewer`; a dashboard without a
    viewer belongs to the supervisor.
    """
    uvloop.run(_serve(home, listening, beyond, viewer, ready))


async def _serve(
    home: Home,
    listening: socket.socket,
    beyond: Beyond | None,
    viewer: Viewer | None,
    ready: Callable[[Running, str], None],
) -> None:
    logging.getLogger("uvicorn").setLevel(logging.WARNING)
    loop = asyncio.get_running_loop()
    running = Running(
        listening.getsockname()[1], beyond.listening.getsockname()[1] if beyond is not None else 0, viewer is None
    )
    app = Dashboard(home, f"poise-{running.port}", beyond.names if beyond is not None else ())
    servers = [(_server(app), listening)]
    if beyond is not None:
        servers.append((_server(app, beyond.context), beyond.listening))

    def end(number: int) -> None:
        app.sessions.end_streams()  # otherwise the server waits for their connections
        for server, _ in servers:
            server.handle_exit(number, None)

    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, end, number)
    serving = asyncio.gather(*(server.serve(sockets=[sock]) for server, sock in servers))
    while not all(server.started for server, _ in servers) and not serving.done():  # noqa: ASYNC110 — uvicorn has no event for it
        await asyncio.sleep(0.005)
    if home.elsewhere is None:
        write_whole(home.dashboard_endpoint, msgspec.json.encode(running), 0o600)
    try:
        if viewer is not None:
            ready(running, f"{running.url}#link={app.sessions.link(viewer.token, viewer.tenant)}")
        await serving
    finally:
        app.close()
        if home.elsewhere is None:
            home.dashboard_endpoint.unlink(missing_ok=True)


def _server(app: Any, context: ssl.SSLContext | None = None) -> _Server:
    config = uvicorn.Config(
        app,
        http=_Connection,
        ws="none",
        lifespan="off",
        access_log=False,
        log_config=None,
        limit_concurrency=MAX_CONNECTIONS,
        timeout_graceful_shutdown=1,
        server_header=False,
        proxy_headers=False,
        date_header=False,
    )
    config.load()
    config.ssl = context
    return _Server(config)
