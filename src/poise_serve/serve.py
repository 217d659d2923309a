"""Runs a gateway process from start to shutdown: its services, its upstreams and its HTTP server."""

import asyncio
import contextlib
import errno
import os
import signal
import socket
import ssl
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from prometheus_client import CollectorRegistry

from poise.client import Client
from poise.config import Home
from poise.drivers import sockets
from poise.drivers.exposition import text_of
from poise.errors import Conflict
from poise.model.servicefile import DeclaredService
from poise.model.serving_upstreams import Front, no_upstreams
from poise.units import SECOND
from poise_serve import reporting as reports
from poise_serve.app import Gateway
from poise_serve.beyond import Beyond
from poise_serve.door import Door
from poise_serve.embeddings import Embeddings
from poise_serve.http import Server
from poise_serve.keys import Keys, Usage
from poise_serve.metrics import Metrics
from poise_serve.parent import Watched, Watchers, listen_to_signals
from poise_serve.peers import Peers
from poise_serve.policy.route import DEFAULT_ROUTER, router_named
from poise_serve.running import Running
from poise_serve.tracing import Tracing
from poise_serve.upstreams import Upstreams

DRAIN_SECONDS = 30.0

STALE = 60.0
"""Minimum age in seconds of a socket to remove: a younger one may belong to a gateway that does not listen yet."""


class Entrance(NamedTuple):
    """Access rules: programs that use one of the `names` of this machine, and web pages from one of the `origins`. With
    a `file` of keys, or a `home` whose tokens are keys, clients need a key. With `tls`, clients must use TLS.
    """

    names: Sequence[str] = ()
    origins: Sequence[str] = ()
    file: Path | None = None
    home: Home | None = None
    tls: ssl.SSLContext | None = None

    def keys(self, peers: Peers | None = None) -> Keys | None:
        """Return the API keys, or None if none are configured. Raises `SpecError` if the file is invalid."""
        return None if self.file is None and self.home is None else Keys(self.file, self.home, peers=peers)


def bind(host: str, port: int, *, shared: bool = False, listen: bool = True) -> socket.socket:
    """Return a listening socket; port 0 selects a free port. `shared`: several gateways listen there. Without `listen`
    it only holds the port.
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
            field="--host" if host_is_wrong else "--port",
            have=f"{host}:{port}",
            hint="--host 127.0.0.1, or 0.0.0.0 for all of this machine's"
            if host_is_wrong
            else "--port 0 takes a free one",
        ) from None
    if listen:
        sock.listen(2048)
    return sock


def url_of(listening: socket.socket, tls: bool) -> str:
    """Return the URL of a gateway that listens on this socket."""
    address, number = listening.getsockname()[:2]
    return f"{'https' if tls else 'http'}://{f'[{address}]' if ':' in address else address}:{number}"


async def serve(
    services: Sequence[DeclaredService],
    front: Front | None,
    connect: Callable[[], Client],
    folder: Path,
    mark: str,
    listening: socket.socket,
    watched: Watched,
    lock: int,
    base: dict[str, Any],
    user: str,
    say: Callable[[str], None],
    beyond: Beyond | None = None,
    entrance: "Entrance | None" = None,
    tracing: Tracing | None = None,
    peers: Peers | None = None,
) -> None:
    """Serve until SIGTERM or SIGINT, then answer accepted requests and stop the replicas. At a second signal, refuse
    the remaining requests. `folder` exists and holds the sockets; those that a killed gateway of the same `mark` left
    there are taken over. `lock` is held for the lifetime of the gateway. Replicas on other machines connect to
    `beyond`. `entrance` authenticates clients; `tracing` records spans. `peers`: other gateways before the same
    upstreams.
    """
    loop = asyncio.get_running_loop()
    stop, hurry = asyncio.Event(), asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, lambda: (hurry if stop.is_set() else stop).set())
    listen_to_signals()
    watchers = Watchers(watched, listening, lock, mark)
    loop.add_reader(watchers.gone, _watch_again, watchers, stop, say)
    _sweep(folder)
    running = Running(folder, mark, connect, base, user, say, beyond.address.text if beyond else "", tracing)
    guests = await beyond.listen(running.service_at) if beyond is not None else None
    for declared in services:
        running.prepare(declared)
    keeping = [await running.begin(declared) for declared in services]
    own = {one.name: running.embeddings(one) for one in services if one.openai}
    upstreams = None
    if front is not None or own:
        upstreams = _upstreams(front or no_upstreams(), running.registry, own, peers)
    if upstreams is not None:
        await upstreams.start()
    gateway = Gateway(
        running.fronts, running.services, running.trials, running.caches, running.registry, upstreams, peers
    )
    entrance = entrance or Entrance()
    keys = entrance.keys(peers)
    if peers is not None:
        await peers.start(partial(text_of, running.registry))
    usage = Usage(running.registry) if keys is not None else None
    door = Door(gateway, entrance.names, entrance.origins, keys, usage)
    server = Server(door if tracing is None else tracing.around(door), entrance.tls)
    await server.start(listening)
    url = url_of(listening, entrance.tls is not None)
    reporting = await reports.listen(folder, mark, partial(running.reports, url))
    ordered = asyncio.create_task(running.orders.follow())
    stopped = asyncio.create_task(stop.wait())
    await asyncio.wait([*keeping, stopped], return_when=asyncio.FIRST_COMPLETED)
    gateway.draining = server.is_ending = True
    ordered.cancel()
    for keeper in keeping:
        keeper.cancel()
    if stop.is_set():
        say("draining")
        draining = asyncio.create_task(_drained(server, running, upstreams))
        hurried = asyncio.create_task(hurry.wait())
        patience = max(DRAIN_SECONDS, front.drain / SECOND if front is not None else 0.0)
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
    if peers is not None:
        peers.stop()
    await server.stop()
    await running.end()
    if tracing is not None:
        tracing.flush()
    loop.remove_reader(watchers.gone)
    stopped.cancel()
    signal.pthread_sigmask(signal.SIG_BLOCK, (signal.SIGTERM, signal.SIGINT))  # shutdown needs no signal any more
    for outcome in await asyncio.gather(*keeping, return_exceptions=True):
        if isinstance(outcome, Exception):
            raise outcome


def _watch_again(watchers: Watchers, stop: asyncio.Event, say: Callable[[str], None]) -> None:
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
    loop.add_reader(watchers.gone, _watch_again, watchers, stop, say)
    say(f"the process that watched the gateway was killed; process {process} watches it now, and ends it at SIGTERM")


async def _drained(server: Server, running: Running, upstreams: Upstreams | None) -> None:
    """Wait until all accepted requests are answered and the answers are sent."""
    await asyncio.gather(running.drained(), *([upstreams.drained()] if upstreams is not None else []))
    await server.taken()


def _sweep(folder: Path) -> None:
    """Remove stale sockets of killed gateways."""
    for path in folder.glob("*.sock"):
        with contextlib.suppress(FileNotFoundError):
            old = time.time() - path.stat().st_mtime > STALE
            try:
                sockets.connect(path).close()
            except ConnectionRefusedError:
                if old:
                    path.unlink()
                    path.with_suffix(".json").unlink(missing_ok=True)


def _upstreams(
    front: Front, registry: CollectorRegistry, own: Mapping[str, Embeddings], peers: Peers | None
) -> Upstreams:
    router = router_named(front.router or DEFAULT_ROUTER)
    return Upstreams(front, lambda view: router.decide(view).replica, Metrics(registry), os.environ, own, peers)


__all__ = ["Entrance", "bind", "serve", "url_of"]
