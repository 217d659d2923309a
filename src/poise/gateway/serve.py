"""A gateway process: its services, the jobs that are their replicas, upstreams, and the server in front."""

import asyncio
import contextlib
import logging
import os
import secrets
import signal
import socket
import sys
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

from prometheus_client import CollectorRegistry

from poise.client import Client
from poise.errors import Conflict, InputError, NotFound, PoiseError, Unreachable
from poise.gateway.app import Gateway
from poise.gateway.http import Server
from poise.gateway.metrics import Metrics
from poise.gateway.scaling import Scaler
from poise.gateway.service import Service
from poise.gateway.service_metrics import Registry, ServiceMetrics
from poise.gateway.upstreams import Upstreams
from poise.model.reports import LogPiece
from poise.model.servicefile import DeclaredService
from poise.model.serving_upstreams import Front
from poise.policy.replicas import DEFAULT_SCALER, SCALERS
from poise.policy.route import DEFAULT_ROUTER, router_named

T = TypeVar("T")

LOOK_EVERY = 0.5
"""Seconds between two looks at the jobs of the replicas."""

START_AGAIN = (1.0, 60.0)
"""Seconds until a replica that ended is started again: at first, and at most."""

ATTEMPTS = 3
"""To ask a control plane that is about to leave, or is just being started again."""

DRAIN_SECONDS = 30.0

TAIL = 2000
"""Bytes of what a replica wrote that are told if it cannot start."""

_OVER = ("done", "failed", "cancelled", "skipped")


class Replicas:
    """The jobs of one service's replicas. Each is a job of its own, started again for as long as the service lives."""

    def __init__(
        self,
        declared: DeclaredService,
        service: Service,
        connect: Callable[[], Client],
        base: dict[str, Any],
        user: str,
        say: Callable[[str], None],
    ) -> None:
        """`connect` gives a client of the control plane, which it starts if none runs. `base`: fields that every job of
        this user has, such as its folder and environment.
        """
        self._declared = declared
        self._service = service
        self._connect = connect
        self._base = base
        self._user = user
        self._jobs: list[str] = []
        self._since: dict[str, int] = {}
        self._start_up = 0
        self._asked = 0
        rules = declared.rules
        self._scaler = (
            None
            if rules is None
            else Scaler(service, rules, SCALERS[declared.scaler or DEFAULT_SCALER], say, time.monotonic_ns())
        )
        self._pause = START_AGAIN[0]

    def spec(self) -> dict[str, Any]:
        """The job that a replica is."""
        declared, base = self._declared, self._base
        return {
            **base,
            **declared.job,
            "name": f"{declared.name}-{self._asked}",
            "class": f"{declared.name}-replica",
            "run": [declared.python or sys.executable, "-m", "poise.gateway.replica", declared.model],
            "env": base["env"] | declared.job.get("env", {}) | {"POISE_SERVICE_SOCKET": str(self._service.path)},
            "retry": {"limit": 1000, "when": ["lost", "killed", "signal", "oom"]},
        }

    async def keep(self) -> None:
        """Until it is cancelled; raises `InputError` with what it wrote if the first replicas cannot start."""
        while True:
            wanted = (
                self._declared.replicas
                if self._scaler is None
                else self._scaler.look(time.monotonic_ns(), self._start_up)
            )
            while len(self._jobs) < wanted:
                self._asked += 1
                spec, key = self.spec(), secrets.token_hex(8)
                self._jobs.append(await self._ask(partial(Client.submit, spec=spec, key=key, user=self._user)))
                self._since[self._jobs[-1]] = time.monotonic_ns()
            for job in self._jobs[wanted:]:
                self._service.drain(job)
                await self.replace(job)
            self._learn_start_up()
            await asyncio.sleep(LOOK_EVERY)
            ended = [job for job in self._jobs if await self._ask(partial(self._is_over, job))]
            if ended:
                self._jobs = [job for job in self._jobs if job not in ended]
                self._pause = START_AGAIN[0] if self._service.replicas else min(2 * self._pause, START_AGAIN[1])
                await asyncio.sleep(self._pause)

    def _learn_start_up(self) -> None:
        """From when a replica was asked for to when it was seen to be ready: of the latest."""
        for job in [job for job in self._since if self._service.has(job)]:
            self._start_up = time.monotonic_ns() - self._since.pop(job)

    async def _ask(self, question: Callable[[Client], T]) -> T:
        """In a thread. A control plane that was about to leave, since nothing ran any more, is started again."""

        def ask() -> T:
            for left in range(ATTEMPTS, 0, -1):
                try:
                    with self._connect() as client:
                        return question(client)
                except Unreachable:
                    if left == 1:
                        raise
            raise AssertionError("unreachable")

        return await asyncio.to_thread(ask)

    def _is_over(self, job: str, client: Client) -> bool:
        try:
            report = client.job(job)
        except NotFound:
            return True
        if report.status == "failed" and not self._service.ever_ready:
            wrote = b"".join(piece.data for piece in client.logs(job) if isinstance(piece, LogPiece))
            raise InputError(
                f"a replica of {self._declared.name} cannot start",
                field=self._declared.model,
                have=wrote[-TAIL:].decode(errors="replace").strip() or f"exit code {report.exit_code}",
                hint=f"poise logs {job}",
            )
        return report.status in _OVER

    async def replace(self, name: str) -> None:
        """End a replica that hangs, or is one too many; another job takes its place if there are too few."""
        job = name.partition(".")[0]
        if job in self._jobs:
            self._jobs.remove(job)
            self._since.pop(job, None)
            await self._cancel(job)

    async def end(self) -> None:
        await asyncio.gather(*(self._cancel(job) for job in self._jobs))

    async def _cancel(self, job: str) -> None:
        with contextlib.suppress(PoiseError):
            await self._ask(lambda client: client.cancel(job))


def bind(host: str, port: int) -> socket.socket:
    """A listening socket; port 0 takes a free one."""
    sock = socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET, socket.SOCK_STREAM)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        sock.bind((host, port))
    except OSError as error:
        sock.close()
        raise Conflict(
            f"the gateway cannot listen there: {error.strerror}",
            field="--port",
            have=f"{host}:{port}",
            hint="--port 0 takes a free one",
        ) from None
    sock.listen(2048)
    return sock


async def serve(
    services: Sequence[DeclaredService],
    front: Front | None,
    connect: Callable[[], Client],
    folder: Path,
    listening: socket.socket,
    base: dict[str, Any],
    user: str,
    say: Callable[[str], None],
) -> None:
    """Serve until SIGTERM or SIGINT, then answer what was accepted and end the replicas. `folder` is for sockets, and
    exists.
    """
    logging.getLogger("uvicorn").setLevel(logging.ERROR)
    collected = CollectorRegistry()
    registry = Registry(collected)
    loop = asyncio.get_running_loop()
    stop = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    running: dict[str, Service] = {}
    kept: list[Replicas] = []
    tasks: set[asyncio.Task[Any]] = set()
    for declared in services:
        path = folder / f"{declared.name}.sock"
        metrics = ServiceMetrics(registry, declared.name)
        service = Service(declared.name, declared.limits, path, metrics)
        replicas = Replicas(declared, service, connect, base, user, say)
        service.on_hang = _in_background(tasks, replicas.replace)
        service.on_change = partial(_tell_replicas, service, declared, say)
        await service.start()
        running[declared.name] = service
        kept.append(replicas)
    upstreams = _upstreams(front, collected) if front is not None else None
    if upstreams is not None:
        await upstreams.start()
    gateway = Gateway(running, collected, upstreams)
    server = Server(gateway)
    keeping = [asyncio.create_task(replicas.keep()) for replicas in kept]
    serving = asyncio.create_task(server.serve(sockets=[listening]))
    stopped = asyncio.create_task(stop.wait())
    await asyncio.wait([*keeping, stopped, serving], return_when=asyncio.FIRST_COMPLETED)
    gateway.draining = True
    for keeper in keeping:
        keeper.cancel()
    if stop.is_set():
        say("draining")
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(DRAIN_SECONDS):
                await asyncio.gather(*(service.drained() for service in running.values()))
    if upstreams is not None:
        await upstreams.stop()
    server.should_exit = True
    await serving
    for service in running.values():
        await service.stop()
    await asyncio.gather(*(replicas.end() for replicas in kept))
    stopped.cancel()
    for outcome in await asyncio.gather(*keeping, return_exceptions=True):
        if isinstance(outcome, PoiseError):
            raise outcome


def _upstreams(front: Front, registry: CollectorRegistry) -> Upstreams:
    router = router_named(front.router or DEFAULT_ROUTER)
    return Upstreams(front, lambda view: router.decide(view).replica, Metrics(registry), os.environ)


def _tell_replicas(service: Service, declared: DeclaredService, say: Callable[[str], None]) -> None:
    say(f"{declared.name}: {service.replicas} of {declared.wanted} ready")


def _in_background(tasks: set[asyncio.Task[Any]], work: Callable[[str], Any]) -> Callable[[str], None]:
    def begin(name: str) -> None:
        task = asyncio.ensure_future(work(name))
        tasks.add(task)
        task.add_done_callback(tasks.discard)

    return begin


__all__ = ["bind", "serve"]
