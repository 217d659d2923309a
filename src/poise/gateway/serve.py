"""A gateway process: its services, the jobs that are their replicas, upstreams, and the server in front."""

import asyncio
import contextlib
import errno
import logging
import os
import secrets
import signal
import socket
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import msgspec
from prometheus_client import CollectorRegistry

from poise.client import Client
from poise.drivers import sockets
from poise.drivers.redis import Redis
from poise.errors import Conflict, Fault, InputError, NotFound, PoiseError, SpecError, Unreachable
from poise.gateway.app import Gateway
from poise.gateway.cached import Cached, Made
from poise.gateway.canary import Trial, Version
from poise.gateway.embeddings import Embeddings
from poise.gateway.http import Server
from poise.gateway.metrics import Metrics
from poise.gateway.notes import Notes
from poise.gateway.parent import listen_to_signals
from poise.gateway.recording import Recorder
from poise.gateway.service import Asked, Service
from poise.gateway.service_metrics import CacheMetrics, Registry, ServiceMetrics
from poise.gateway.shared_answers import PATIENCE, SharedAnswers, version_of
from poise.gateway.upstreams import Upstreams
from poise.kernel.cache import Cache
from poise.kernel.scaler import LOOK_EVERY, Scaler
from poise.model.precision import VARIABLE
from poise.model.reports import JobReport, LogPiece
from poise.model.servicefile import DeclaredService
from poise.model.serving_upstreams import Front, no_upstreams
from poise.policy.replicas import DEFAULT_SCALER, scaler_named
from poise.policy.route import DEFAULT_ROUTER, router_named
from poise.units import SECOND

T = TypeVar("T")

START_AGAIN = (1.0, 60.0)
"""Seconds until a replica that ended is started again: at first, and at most."""

ATTEMPTS = 3
"""To start a replica, as one job, where it is killed by a signal, or with its node …"""

ASKED = 3
"""… and to ask a control plane that is about to leave, or is just being started again."""

DRAIN_SECONDS = 30.0

NAME_TAKEN = "E107"
"""What a control plane says of a job whose name an unfinished one has; `have` is that one."""

SAY_WHY_AFTER = 2.0
"""Seconds that a replica waits to be placed before it is told why."""

STALE = 60.0
"""Seconds after which nobody who has made a socket is still about to listen at it."""

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
        notes: Notes,
    ) -> None:
        """`connect` gives a client of the control plane. `base`: fields that every job of this user has, such as its
        folder and environment. `notes`: what a gateway that was killed has left; its replicas are taken over.
        """
        self._declared = declared
        self._service = service
        self._connect = connect
        self._base = base
        self._user = user
        self._say = say
        self.notes = notes
        self._since: dict[str, int] = {}
        self._start_up = 0
        self._submitting: asyncio.Future[None] | None = None
        self._told: dict[str, str] = {}
        service.ever_ready = bool(notes.noted.jobs)
        self._scaler = self._made_scaler()
        self._pause = START_AGAIN[0]
        self._not_before = 0.0

    @property
    def _jobs(self) -> list[str]:
        return self.notes.noted.jobs

    def become(self, declared: DeclaredService) -> None:
        """Be as many from now on as `declared` says."""
        self._declared = msgspec.structs.replace(
            self._declared, replicas=declared.replicas, rules=declared.rules, window=declared.window
        )
        self._scaler = self._scaler or self._made_scaler()

    def _made_scaler(self) -> Scaler | None:
        declared = self._declared
        if declared.rules is None:
            return None
        policy = scaler_named(declared.scaler or DEFAULT_SCALER)
        there = len(self._jobs)
        return Scaler(self._service, declared.rules, declared.window, policy, self._say, time.monotonic_ns(), there)

    def spec(self) -> dict[str, Any]:
        """The job that a replica is."""
        declared, base = self._declared, self._base
        where = {
            "POISE_SERVICE_NAME": declared.name,
            "POISE_SERVICE_SOCKET": str(self._service.path),
            "POISE_SERVICE_BATCH": str(declared.limits.batch),
            **({VARIABLE: declared.precision} if declared.precision else {}),
        }
        name = f"{declared.name}-{self.notes.noted.asked}"
        why = self._scaler.why if self._scaler is not None else ""
        return {
            **base,
            **({"folder": declared.folder} if declared.folder else {}),
            **declared.job,
            "name": name,
            "serves": f"{name} serves {declared.name}{': ' if why else ''}{why}",
            "class": f"{declared.name}-replica",
            "run": [declared.python or sys.executable, "-m", "poise.gateway.replica", declared.model],
            "env": base["env"] | declared.job.get("env", {}) | where,
            "retry": {"limit": ATTEMPTS - 1, "when": ["lost", "killed", "signal", "oom"]},
        }

    async def keep(self) -> None:
        """Until it is cancelled; raises `InputError` with what it wrote if the first replicas cannot start. Once it
        serves, it goes on serving without a control plane, until there is one again.
        """
        name, cut_off = self._declared.name, False
        while True:
            try:
                await self._look()
                if cut_off:
                    self._say(f"{name}: there is a control plane again")
                cut_off = False
            except Fault as error:
                if not self._service.ever_ready:
                    raise
                if not cut_off:
                    told = error.record
                    self._say(f"{name}: goes on, but no replica can be started: {told.message}; {told.hint}")
                cut_off = True
                await asyncio.sleep(START_AGAIN[0])

    async def _look(self) -> None:
        """As many as there shall be now, and what has become of those that there are."""
        wanted = self._declared.replicas
        if self._scaler is not None:
            wanted = self._scaler.look(time.monotonic_ns(), self._start_up)
        while len(self._jobs) < wanted and time.monotonic() >= self._not_before:
            self._submitting = asyncio.ensure_future(self._submit())
            await asyncio.shield(self._submitting)
        for job in self._jobs[wanted:]:
            self._service.drain(job)
            await self.replace(job)
        self._learn_start_up()
        await asyncio.sleep(LOOK_EVERY / SECOND)
        ended = [job for job in self._jobs if await self._ask(partial(self._is_over, job))]
        if ended:
            self.notes.noted.jobs = [job for job in self._jobs if job not in ended]
            self.notes.write()
            self._back_off([job for job in ended if self._since.pop(job, 0)])

    def _back_off(self, never_ready: list[str]) -> None:
        """How long nothing is started after replicas have ended: longer each time that some had never been ready."""
        if never_ready:
            self._say(
                f"{self._declared.name}: {', '.join(never_ready)} ended without having been ready; "
                f"another is started in {self._pause:g} s"
            )
        self._not_before = time.monotonic() + (self._pause if never_ready else START_AGAIN[0])
        self._pause = min(2 * self._pause, START_AGAIN[1]) if never_ready else START_AGAIN[0]

    async def _submit(self) -> None:
        """Under one key until it is known to have been accepted, so that it is one job whatever happens meanwhile."""
        noted = self.notes.noted
        if not noted.key:
            noted.asked += 1
            noted.key = secrets.token_hex(8)
            self.notes.write()
        spec = self.spec()
        try:
            job = await self._ask(partial(Client.submit, spec=spec, key=noted.key, user=self._user))
            noted.jobs.append(job)
            self._since[job] = time.monotonic_ns()
        except InputError as error:
            taken = error.record.code == NAME_TAKEN and error.record.have != spec["name"]  # else it is no name at all
            if not taken:  # by a gateway that serves the same, or was killed while it did
                raise
        noted.key = ""
        self.notes.write()

    def _learn_start_up(self) -> None:
        """From when a replica was asked for to when it was seen to be ready: of the latest."""
        for job in [job for job in self._since if self._service.has(job)]:
            self._start_up = time.monotonic_ns() - self._since.pop(job)

    async def _ask(self, question: Callable[[Client], T]) -> T:
        """In a thread. A control plane that was about to leave, since nothing ran any more, is started again."""

        def ask() -> T:
            for left in range(ASKED, 0, -1):
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
        if report.status in ("done", "failed") and not self._service.ever_ready:
            wrote = b"".join(piece.data for piece in client.logs(job) if isinstance(piece, LogPiece))
            told = wrote[-TAIL:].decode(errors="replace").strip()
            by_itself = all(task.outcome in ("done", "failed") for task in report.tasks)
            raise InputError(
                f"a replica of {self._declared.name} cannot start",
                field=self._declared.model,
                have=told if told and by_itself else f"{told}\n{_ending(report)}".strip(),
                hint=f"poise logs {job}",
            )
        self._tell(report)
        return report.status in _OVER

    def _tell(self, report: JobReport) -> None:
        """What became of a replica that has ended, or has been started again; and why one waits. Once each."""
        what, news = "", ""
        task = next(iter(report.tasks), None)
        if report.status in ("done", "failed"):
            what = "ended"
            news = f"{report.id} has ended ({_ending(report)}), and another is started; `poise logs {report.id}`"
        elif report.status in ("pending", "waiting") and time.time() - report.submitted > SAY_WHY_AFTER:
            reasons = dict.fromkeys(reason for task in report.tasks for reason in task.reasons)
            what, news = "waits", f"{report.id} waits: {'; '.join(reasons)}"
        elif task is not None and task.epoch > 1:
            what = f"attempt {task.epoch}"
            news = f"{report.id} is tried again ({what}); `poise explain {report.id}` says why"
        if what and self._told.get(report.id) != what:
            self._told[report.id] = what
            self._say(f"{self._declared.name}: {news}")

    async def replace(self, name: str) -> None:
        """End a replica that hangs, or is one too many; another job takes its place if there are too few."""
        job = name.partition(".")[0]
        if job in self._jobs:
            self._jobs.remove(job)
            self.notes.write()
            self._since.pop(job, None)
            await self._cancel(job)

    async def end(self) -> None:
        if self._submitting is not None:
            await asyncio.gather(self._submitting, return_exceptions=True)
        await asyncio.gather(*(self._cancel(job) for job in self._jobs))
        self.notes.forget()

    async def _cancel(self, job: str) -> None:
        with contextlib.suppress(PoiseError):
            await self._ask(lambda client: client.cancel(job))


def _ending(report: JobReport) -> str:
    why = [task.note for task in report.tasks if task.note]
    if why:
        return why[0]
    code = report.exit_code or 0
    if any(task.outcome in ("signal", "killed") for task in report.tasks) and code - 128 in set(signal.Signals):
        return f"ended by {signal.Signals(code - 128).name}"
    return f"exit code {report.exit_code}"


def bind(host: str, port: int) -> socket.socket:
    """A listening socket; port 0 takes a free one."""
    sock = socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET, socket.SOCK_STREAM)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
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
    sock.listen(2048)
    return sock


@dataclass(frozen=True, eq=False)
class _Kept:
    """A service that runs, with a cache or without."""

    declared: DeclaredService
    service: Service
    cached: Cached | None
    replicas: Replicas

    @property
    def asked(self) -> Asked:
        return self.cached or self.service

    async def drained(self) -> None:
        if self.cached is not None:
            await self.cached.searched()
        await self.service.drained()


class Running:
    """All services of a gateway. `fronts` are asked by name; `services` are all there are, those on trial as well;
    `trials` are those that there were; `caches` are those of what is asked by that name.
    """

    def __init__(
        self,
        folder: Path,
        mark: str,
        connect: Callable[[], Client],
        base: dict[str, Any],
        user: str,
        say: Callable[[str], None],
    ) -> None:
        """`mark` tells its files from those of others that serve the same."""
        self.fronts: dict[str, Asked] = {}
        self.services: dict[str, Service] = {}
        self.trials: dict[str, Trial] = {}
        self.caches: dict[str, list[Cached]] = {}
        self.registry = CollectorRegistry()
        self._folder, self._mark = folder, mark
        self._connect, self._base, self._user, self._say = connect, base, user, say
        self._metrics = Registry(self.registry)
        self._shared: dict[str, SharedAnswers] = {}
        self._recorders: dict[str, Recorder] = {}
        self._kept: list[_Kept] = []
        self._tasks: set[asyncio.Task[Any]] = set()

    def prepare(self, declared: DeclaredService) -> None:
        """What may be missing for a service is told before any begins. Raises `InputError`."""
        for one in filter(None, (declared, declared.canary)):
            if one.redis:
                self._shared[one.name] = _shared(one, self._base, CacheMetrics(self._metrics, one.name))

    async def begin(self, declared: DeclaredService) -> "asyncio.Task[None]":
        """Listen for the replicas of a service, and of its canary. The task keeps them, and raises `InputError` with
        what they wrote if the first ones cannot start.
        """
        name, record, declared = declared.name, declared.record, self._after_its_trial(declared)
        stable = await self._begin(declared, name)
        self.services[name] = stable.service
        self.fronts[name] = stable.asked
        if record is not None:
            file, part, most = record
            self._recorders[name] = Recorder(stable.asked, Path(file), part, most, self._say)
            self.fronts[name] = self._recorders[name]
        if declared.canary is None or declared.trial is None:
            return asyncio.create_task(stable.replicas.keep())
        canary = await self._begin(declared.canary, declared.name)
        old, new = (Version(one.service, one.asked) for one in (stable, canary))
        measure = self._metrics.canary(declared.name)
        trial = Trial(declared.name, declared.trial, old, new, measure, self._say)
        self.trials[declared.name] = trial
        canary.service.watchers.append(trial.changed)
        self._ask_of(declared.name, trial)
        return asyncio.create_task(self._try(trial, stable, canary))

    def _after_its_trial(self, declared: DeclaredService) -> DeclaredService:
        """The version that serves, if a gateway that was killed had seen the end of a trial."""
        canary = declared.canary
        if canary is None:
            return declared
        if Notes(self._file(canary.name, "json")).noted.trial == "promoted":
            return msgspec.structs.replace(canary, replicas=declared.replicas, rules=declared.rules)
        if Notes(self._file(declared.name, "json")).noted.trial == "rolled back":
            return msgspec.structs.replace(declared, canary=None, trial=None)
        return declared

    def _file(self, name: str, kind: str) -> Path:
        return self._folder / f"{name}.{self._mark}.{kind}"

    def embeddings(self, declared: DeclaredService) -> Embeddings:
        """The model of this service behind OpenAI's route, in whichever version serves."""
        versions = [one.name for one in (declared, declared.canary) if one is not None]
        return Embeddings(versions, declared.limits.timeout, self.fronts, self.services)

    def _ask_of(self, name: str, asked: Asked) -> None:
        """From now on."""
        if name in self._recorders:
            self._recorders[name].behind = asked
        else:
            self.fronts[name] = asked

    async def _begin(self, declared: DeclaredService, front: str) -> _Kept:
        """`front`: the name by which it is asked."""
        path = self._file(declared.name, "sock")
        metrics = ServiceMetrics(self._metrics, declared.name)
        service = Service(declared.name, declared.limits, path, metrics)
        notes = Notes(self._file(declared.name, "json"))
        replicas = Replicas(declared, service, self._connect, self._base, self._user, self._say, notes)
        service.on_hang = _in_background(self._tasks, replicas.replace)
        service.watchers.append(partial(_tell_replicas, service, declared, self._say))
        await service.start()
        self.services[declared.name] = service
        cached = None
        if declared.cache:
            answers: Cache[Made] = Cache(declared.cache, declared.ttl)
            cached = Cached(service, answers, metrics, self._shared.get(declared.name), declared.canonical)
            await cached.start()
            self.caches.setdefault(front, []).append(cached)
        kept = _Kept(declared, service, cached, replicas)
        self._kept.append(kept)
        return kept

    async def _try(self, trial: Trial, stable: _Kept, canary: _Kept) -> None:
        """Keep both versions until the trial is over; then the one that is to serve, while the other is ended."""
        keepers = {one: asyncio.create_task(one.replicas.keep()) for one in (stable, canary)}
        try:
            over: list[asyncio.Future[Any]] = [trial.ended, *keepers.values()]
            await asyncio.wait(over, return_when=asyncio.FIRST_COMPLETED)
            if keepers[canary].done() and (error := keepers[canary].exception()) is not None:
                trial.end(False, _said(error))
            if not keepers[stable].done():
                promoted = await trial.ended
                winner, loser = (canary, stable) if promoted else (stable, canary)
                winner.replicas.notes.noted.trial = "promoted" if promoted else "rolled back"
                winner.replicas.notes.write()
                self._ask_of(trial.name, winner.asked)
                keepers[loser].cancel()
                await asyncio.gather(keepers[loser], return_exceptions=True)
                if promoted:
                    winner.replicas.become(stable.declared)
                    self.services[trial.name] = winner.service
                await trial.drained()  # what the canary fails at is asked of stable
                await loser.drained()
                await self._end(loser)
            else:
                winner = stable
            await keepers[winner]
        finally:
            for keeper in keepers.values():
                keeper.cancel()

    async def drained(self) -> None:
        """Until all that was accepted is answered."""
        for trial in self.trials.values():
            trial.close()
            await trial.drained()
        await asyncio.gather(*(one.drained() for one in self._kept))

    async def hang_up(self) -> None:
        """On all replicas: what they were asked is refused, by a canary before stable, which is asked then."""
        for one in reversed(self._kept):
            await one.service.stop()

    async def end(self) -> None:
        """Hang up on all replicas, and end their jobs."""
        await asyncio.gather(*(self._end(one) for one in list(self._kept)))
        for recorder in self._recorders.values():
            recorder.close()

    async def _end(self, kept: _Kept) -> None:
        """Kept until it has ended, so that whoever is cancelled while he waits for it leaves no job behind."""
        name = kept.declared.name
        if self.services.get(name) is kept.service:  # else one that was promoted has its name
            del self.services[name]
        await kept.service.stop()
        if kept.cached is not None:
            for caches in self.caches.values():
                if kept.cached in caches:
                    caches.remove(kept.cached)
            await kept.cached.stop()
        await kept.replicas.end()
        kept.service.measure()
        if kept in self._kept:
            self._kept.remove(kept)


async def serve(
    services: Sequence[DeclaredService],
    front: Front | None,
    connect: Callable[[], Client],
    folder: Path,
    mark: str,
    listening: socket.socket,
    base: dict[str, Any],
    user: str,
    say: Callable[[str], None],
) -> None:
    """Serve until SIGTERM or SIGINT, then answer what was accepted and end the replicas; at another, refuse what is
    left. `folder` is for sockets, and exists; what a gateway of the same `mark` that was killed has left there is taken
    over.
    """
    logging.getLogger("uvicorn").setLevel(logging.CRITICAL)  # who could not be told in time is no matter for people
    loop = asyncio.get_running_loop()
    stop, hurry = asyncio.Event(), asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, lambda: (hurry if stop.is_set() else stop).set())
    listen_to_signals()
    _sweep(folder)
    running = Running(folder, mark, connect, base, user, say)
    for declared in services:
        running.prepare(declared)
    keeping = [await running.begin(declared) for declared in services]
    own = {one.name: running.embeddings(one) for one in services if one.openai}
    upstreams = _upstreams(front or no_upstreams(), running.registry, own) if front is not None or own else None
    if upstreams is not None:
        await upstreams.start()
    gateway = Gateway(running.fronts, running.services, running.trials, running.caches, running.registry, upstreams)
    server = Server(gateway)
    serving = asyncio.create_task(server.serve(sockets=[listening]))
    stopped = asyncio.create_task(stop.wait())
    await asyncio.wait([*keeping, stopped, serving], return_when=asyncio.FIRST_COMPLETED)
    gateway.draining = True
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
    await running.hang_up()
    if upstreams is not None:
        await upstreams.stop()
    server.should_exit = True
    await serving
    await running.end()
    stopped.cancel()
    for outcome in await asyncio.gather(*keeping, return_exceptions=True):
        if isinstance(outcome, Exception):
            raise outcome


async def _drained(server: Server, running: Running, upstreams: Upstreams | None) -> None:
    """Until all that was accepted is answered, and whoever asked has the answer."""
    await asyncio.gather(running.drained(), *([upstreams.drained()] if upstreams is not None else []))
    await server.taken()


def _said(error: BaseException) -> str:
    if not isinstance(error, PoiseError):
        raise error
    return ": ".join(filter(None, [error.record.message, error.record.have]))


def _sweep(folder: Path) -> None:
    """Remove the sockets that gateways left behind which were killed."""
    for path in folder.glob("*.sock"):
        with contextlib.suppress(FileNotFoundError):
            old = time.time() - path.stat().st_mtime > STALE
            try:
                sockets.connect(path).close()
            except ConnectionRefusedError:
                if old:
                    path.unlink()
                    path.with_suffix(".json").unlink(missing_ok=True)


def _shared(declared: DeclaredService, base: dict[str, Any], metrics: CacheMetrics) -> SharedAnswers:
    """What the gateways of a service keep for each other. Raises `InputError` for what is missing for that."""
    name = declared.password_from
    if name and not os.environ.get(name):
        what = "the variable with the password is not set"
        raise SpecError(what, field="cache.password_from", need=name, hint=f"export {name}=...")
    objective = declared.limits.objective
    patience = min(PATIENCE, objective // 4) if objective else PATIENCE
    store = Redis(declared.redis, os.environ.get(name) if name else None, patience)
    version = version_of(declared, Path(declared.folder or base["folder"]))
    return SharedAnswers(store, declared.name, version, declared.ttl, metrics)


def _upstreams(front: Front, registry: CollectorRegistry, own: Mapping[str, Embeddings]) -> Upstreams:
    router = router_named(front.router or DEFAULT_ROUTER)
    return Upstreams(front, lambda view: router.decide(view).replica, Metrics(registry), os.environ, own)


def _tell_replicas(service: Service, declared: DeclaredService, say: Callable[[str], None]) -> None:
    say(f"{declared.name}: {service.replicas} of {declared.wanted} ready")


def _in_background(tasks: set[asyncio.Task[Any]], work: Callable[[str], Any]) -> Callable[[str], None]:
    def begin(name: str) -> None:
        task = asyncio.ensure_future(work(name))
        tasks.add(task)
        task.add_done_callback(tasks.discard)

    return begin


__all__ = ["bind", "serve"]
