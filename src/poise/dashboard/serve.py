"""One dashboard of a home: its port, its lock, and the process that serves it until Ctrl-C or SIGTERM."""

import asyncio
import contextlib
import logging
import signal
import socket
from collections.abc import Callable, Iterator

import msgspec
import uvicorn
import uvloop
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from poise.config import DASHBOARD_PORT, Home
from poise.dashboard.app import Dashboard, Made
from poise.decoding import json_decoder
from poise.drivers.http import Connection
from poise.drivers.lock import is_held
from poise.drivers.security import token_for
from poise.drivers.taking import Taking
from poise.drivers.whole import write_whole
from poise.errors import Fault, InputError

ANSWER_SECONDS = 15.0
MAX_CONNECTIONS = 1024


class Running(msgspec.Struct, frozen=True):
    """A dashboard that runs: the port on loopback at which it serves."""

    port: int

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}/"

    def opened_by(self, link: str) -> str:
        """The address that opens it once. What follows the `#` stays in the browser, and in no log."""
        return f"{self.url}#link={link}"


class _Connection(Taking, HttpToolsProtocol):
    """One connection; a browser that takes nothing of its answer for a while is hung up on."""


class _Server(uvicorn.Server):
    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """The inherited way raises the signal again after serving."""
        yield


def found(home: Home) -> Running | None:
    """The dashboard of this home that runs already."""
    if home.elsewhere is not None or not is_held(home.dashboard):
        return None
    try:
        return json_decoder(Running).decode(home.dashboard_endpoint.read_bytes())
    except (OSError, msgspec.MsgspecError):
        return None  # it is just beginning, or ending


def new_link(home: Home, running: Running) -> str:
    """Ask a running dashboard of this home for a link. Raises `Fault`."""
    try:
        sock = socket.create_connection(("127.0.0.1", running.port), ANSWER_SECONDS)
        with Connection(sock) as connection:
            host = {"Host": f"127.0.0.1:{running.port}", "Authorization": f"Bearer {token_for(home)}"}
            answer = connection.ask("POST", "/link", host)
            content = answer.read()
            if answer.status == 200:
                return json_decoder(Made).decode(content).link
            why = f"status {answer.status}"
    except (OSError, msgspec.MsgspecError) as error:
        why = str(error)
    raise Fault("the dashboard that runs does not answer", field=running.url, have=why, hint="end it with Ctrl-C")


def bind(port: int) -> socket.socket:
    """A socket on loopback at this port; if `port` is 0, or the default one is taken, at a free one. Raises
    `InputError`.
    """
    sock = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    for wanted in (port, 0):
        try:
            sock.bind(("127.0.0.1", wanted))
        except OSError as error:
            if port == DASHBOARD_PORT and wanted:
                continue
            sock.close()
            hint = "--port 0 takes a free one"
            raise InputError(
                f"the port cannot be used: {error.strerror}", field="--port", have=str(port), hint=hint
            ) from None
        break
    sock.listen(256)
    return sock


def serve(home: Home, token: str, listening: socket.socket, ready: Callable[[Running, str], None]) -> None:
    """Serve until SIGINT or SIGTERM. `ready` is called with the address and the first link."""
    uvloop.run(_serve(home, token, listening, ready))


async def _serve(home: Home, token: str, listening: socket.socket, ready: Callable[[Running, str], None]) -> None:
    logging.getLogger("uvicorn").setLevel(logging.WARNING)
    running = Running(listening.getsockname()[1])
    app = Dashboard(home, f"poise-{running.port}")
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
    server, loop = _Server(config), asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, server.handle_exit, number, None)
    serving = asyncio.create_task(server.serve(sockets=[listening]))
    while not server.started and not serving.done():  # noqa: ASYNC110 — it says so in no other way
        await asyncio.sleep(0.005)
    if home.elsewhere is None:
        write_whole(home.dashboard_endpoint, msgspec.json.encode(running), 0o600)
    try:
        ready(running, app.sessions.link(token))
        await serving
    finally:
        app.close()
        if home.elsewhere is None:
            home.dashboard_endpoint.unlink(missing_ok=True)
