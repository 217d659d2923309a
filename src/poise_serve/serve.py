"""Runs a gateway process from start to shutdown: its services, its upstreams and its HTTP server."""

import asyncio
import contextlib
import errno
import os
import signal
import socket
import ssl
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from poise.client import Client
from poise.config import Home
from poise.drivers import sockets
from poise.drivers.exposition import text_of
from poise.drivers.gateways import admin_socket_of
from poise.drivers.lock import holder
from poise.drivers.system import settle_memory
from poise.errors import Conflict
from poise.model.servicefile import MAX_BODY
from poise.model.serving_upstreams import Front
from poise.units import SECOND
from poise_serve import reporting as reports
from poise_serve.admin import Admin
from poise_serve.app import Gateway
from poise_serve.beyond import Beyond
from poise_serve.core import Core
from poise_serve.door import Door
from poise_serve.embeddings import Embeddings
from poise_serve.folders import Folders, Read
from poise_serve.http import Server
from poise_serve.keys import Keys, Usage
from poise_serve.live import Declare, Live, restored, state_file
from poise_serve.metrics import Metrics
from poise_serve.model.changes import Document
from poise_serve.parent import Watched, Watchers, listen_to_signals, note_ending
from poise_serve.peers import Peers
from poise_serve.pool import chooser
from poise_serve.running import Running
from poise_serve.tracing import Tracing
from poise_serve.upstreams import Upstreams

if TYPE_CHECKING:
    from poise_serve.rpc import Calls

DRAIN_SECONDS = 30.0

FAREWELL = 1.0
"""Seconds that a stopping gateway leaves to its last gRPC calls."""

STALE = 60.0
"""Minimum age in seconds of a socket to remove: a younger one may belong to a gateway that does not listen yet."""


class Entrance(NamedTuple):
    """Access rules: programs that use one of the `names` of this machine, and web pages from one of the `origins`. With
    a `file` of keys, or a `home` whose tokens are keys, clients need a key. With `tls`, clients must use TLS; its
    `certificate` has the key before it (PEM).
    """

    names: Sequence[str] = ()
    origins: Sequence[str] = ()
    file: Path | None = None
    home: Home | None = None
    tls: ssl.SSLContext | None = None
    certificate: bytes = b""

    def keys(self, peers: Peers | None = None) -> Keys | None:
        """Return the API keys, or None if none are configured. Raises `SpecError` if the file is invalid."""
        return None if self.file is None and self.home is None else Keys(self.file, self.home, peers=peers)


def bind(host: str, port: int, *, shared: bool = False, listen: bool = True, flag: str = "--port") -> socket.socket:
    """Return a listening socket; port 0 selects a free port. `shared`: several gateways listen there. Without `listen`
    it only holds the port. `flag`: that of the port.
    """
    sock = socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET, socket.SOCK_STREAM)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    if shared:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
    try:
        sock.bind((host, port))
    except OSError as error:
        sock.close()
        host_is_wrong = isinstance(error, socket.gaierror) or error.errno == errno.EADDRNOTAVAIL
        raise Conflict(
            f"the gateway cannot listen there: {error.strerror}",
            field="--host" if host_is_wrong else flag,
            have=f"{host}:{port}",
            hint="--host 127.0.0.1, or 0.0.0.0 for all of this machine's"
            if host_is_wrong
            else f"{flag} 0 takes a free one",
        ) from None
    if listen:
        sock.listen(2048)
    return sock


def url_of(listening: socket.socket, tls: bool) -> str:
    """Return the URL of a gateway that listens on this socket."""
    return f"{'https' if tls else 'http'}://{address_of(*listening.getsockname()[:2])}"


def address_of(host: str, port: int) -> str:
    """Return host and port as in a URL."""
    return f"{f'[{host}]' if ':' in host else host}:{port}"


async def serve(
    given: Sequence[Document],
    declare: Declare,
    connect: Callable[[], Client],
    folder: Path,
    mark: str,
    listening: socket.socket,
    watched: Watched,
    lock: int,
    taken_over: bool,
    base: dict[str, Any],
    user: str,
    say: Callable[[str], None],
    beyond: Beyond | None = None,
    entrance: "Entrance | None" = None,
    tracing: Tracing | None = None,
    peers: Peers | None = None,
    grpc_port: int = 0,
    read_models: Read = dict,
    core: Path | None = None,
) -> None:
    """Serve `given` documents, which `declare` compiles, until SIGTERM or SIGINT, then answer accepted requests and
    stop the replicas. At a second signal, refuse the remaining requests. `folder` exists and holds the sockets; those
    that a killed gateway of the same `mark` left there are taken over, with its configuration (`taken_over`). `lock` is
    held for the lifetime of the gateway. Replicas on other machines connect to `beyond`. `entrance` authenticates
    clients; `tracing` records spans. `peers`: other gateways before the same upstreams. `grpc_port`: for KServe's
    protocol over gRPC; 0 for none. `read_models` reads the folders of models that it was started with. `core`: the
    socket for the gateways of a group, which then listen in place of this process.
    """
    loop = asyncio.get_running_loop()
    stop, hurry = asyncio.Event(), asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, lambda: (hurry if stop.is_set() else stop).set())
    listen_to_signals()
    record = folder / f"{mark}.gateway"
    watchers = Watchers(watched, listening, lock, record)
    loop.add_reader(watchers.gone, watch_again, watchers, stop, say)
    _sweep(folder)
    running = Running(folder, mark, connect, base, user, say, beyond.address.text if beyond else "", tracing)
    guests = await beyond.listen(running.host_at) if beyond is not None else None
    gateway = Gateway(
        *(running.fronts, running.services, running.trials, running.caches, running.registry),
        peers=peers,
        models=running.models,
    )
    own: dict[str, Embeddings] = {}

    memory = folder / f"{mark}.found"

    async def open_upstreams(front: Front) -> Upstreams:
        gateway.rest = Upstreams(front, chooser(front), Metrics(running.registry), os.environ, own, peers, memory)
        await gateway.rest.start()
        return gateway.rest

    url = url_of(listening, entrance is not None and entrance.tls is not None)
    path = state_file(folder, *listening.getsockname()[:2])
    saved = restored(path, given, taken_over=taken_over)
    if saved.history and not taken_over:
        say("goes on with the changes of `poise service`; `poise service show` lists them")
    live = Live(saved, path, declare, running, own, open_upstreams, os.environ, say)
    await live.start()
    gateway.admin = admin = Admin(live, lambda: url)
    gateway.kserve.repository = Folders(read_models, live, running)
    entrance = entrance or Entrance()
    keys = entrance.keys(peers)
    if peers is not None:
        await peers.start(partial(text_of, running.registry))
    usage = Usage(running.registry) if keys is not None else None
    door = Door(gateway, entrance.names, entrance.origins, keys, usage)
    app = door if tracing is None else tracing.around(door)
    server = Server(app, entrance.tls) if core is None else Core(app, core)
    await server.start(listening)
    calls = None
    if grpc_port:
        from poise_serve.rpc import Calls  # needs the extra `grpc`

        calls = Calls(app, door.key_of)
        most = max((one.batcher.limits.body for one in running.services.values()), default=MAX_BODY)
        await calls.start(address_of(listening.getsockname()[0], grpc_port), most, entrance.certificate)
    administering = Server(admin)
    await administering.start(sockets.listen(admin_socket_of(folder, mark)))
    reporting = await reports.listen(folder, mark, partial(running.reports, url))
    settle_memory()
    ordered = asyncio.create_task(running.orders.follow())
    stopped = asyncio.create_task(stop.wait())
    over: list[asyncio.Future[Any]] = [running.failed, stopped]
    await asyncio.wait(over, return_when=asyncio.FIRST_COMPLETED)
    gateway.draining = server.is_ending = True
    note_ending(record)
    ordered.cancel()
    await administering.stop()
    admin_socket_of(folder, mark).unlink(missing_ok=True)
    running.stop()
    upstreams = live.upstreams
    if stop.is_set():
        say("draining")
        patience = max(DRAIN_SECONDS, live.drain_seconds / SECOND)
        draining = asyncio.create_task(_drained(server, running, upstreams, calls, patience))
        hurried = asyncio.create_task(hurry.wait())
        await asyncio.wait([draining, hurried], timeout=patience, return_when=asyncio.FIRST_COMPLETED)
        for task in (draining, hurried):
            task.cancel()
    reporting.close()
    reports.forget(folder, mark)
    if guests is not None:
        guests.close()
    await running.hang_up()
    if upstreams is not None:
        await upstreams.stop()
    memory.unlink(missing_ok=True)
    if peers is not None:
        await peers.stop()
    await server.stop()
    if calls is not None:
        await calls.stop(FAREWELL)
    await running.end()
    if tracing is not None:
        tracing.flush()
    loop.remove_reader(watchers.gone)
    stopped.cancel()
    signal.pthread_sigmask(signal.SIG_BLOCK, (signal.SIGTERM, signal.SIGINT))  # shutdown needs no signal any more
    await running.stopped()


def watch_again(watchers: Watchers, stop: asyncio.Event, say: Callable[[str], None]) -> None:
    """Start another watcher after the previous one was killed, unless this process is stopping."""
    loop = asyncio.get_running_loop()
    loop.remove_reader(watchers.gone)
    if stop.is_set():
        return
    try:
        process = watchers.start()
    except OSError as error:
        say(f"the process that watched the gateway was killed, and there can be no other: {error.strerror}")
        return
    loop.add_reader(watchers.gone, watch_again, watchers, stop, say)
    say(f"the process that watched the gateway was killed; process {process} watches it now, and ends it at SIGTERM")


async def _drained(
    server: Server | Core, running: Running, upstreams: Upstreams | None, calls: "Calls | None", patience: float
) -> None:
    """Wait until all accepted requests are answered and the answers are sent."""
    waiting = [running.drained()]
    waiting += [upstreams.drained()] if upstreams is not None else []
    waiting += [calls.stop(patience)] if calls is not None else []
    await asyncio.gather(*waiting)
    await server.taken()


def _sweep(folder: Path) -> None:
    """Remove stale sockets of killed gateways, and their notes. A gateway whose lock is held is taken over, so its
    notes stay: they have its replicas.
    """
    for path in (*folder.glob("*.sock"), *folder.glob("*.admin")):
        mark = path.stem.rpartition(".")[2]
        if holder(folder / f"{mark}.lock"):
            continue
        with contextlib.suppress(FileNotFoundError):
            old = time.time() - path.stat().st_mtime > STALE
            try:
                sockets.connect(path).close()
            except ConnectionRefusedError:
                if old:
                    path.unlink()
                    path.with_suffix(".json").unlink(missing_ok=True)


__all__ = ["DRAIN_SECONDS", "Entrance", "address_of", "bind", "serve", "url_of", "watch_again"]
