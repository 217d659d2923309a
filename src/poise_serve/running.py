"""The services of a gateway, with their canaries, caches and recorders."""

import asyncio
import os
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import msgspec
from prometheus_client import CollectorRegistry

from poise.client import Client
from poise.errors import InputError, PoiseError, SpecError
from poise.model.reports import ServiceReport
from poise.model.servicefile import DeclaredService
from poise.units import SECOND
from poise_serve.cached import Cached, Made
from poise_serve.canary import Trial, Version
from poise_serve.embeddings import Embeddings
from poise_serve.kernel.cache import Cache
from poise_serve.large import Large
from poise_serve.notes import Notes
from poise_serve.orders import Orders
from poise_serve.recording import Recorder
from poise_serve.redis import Redis
from poise_serve.replicas import Replicas
from poise_serve.service import Asked, Service
from poise_serve.service_metrics import CacheMetrics, Registry, ServiceMetrics
from poise_serve.shared_answers import PATIENCE, SharedAnswers, version_of
from poise_serve.tracing import Tracing


@dataclass(frozen=True, eq=False)
class _Kept:
    """A running service, with or without a cache."""

    declared: DeclaredService
    service: Service
    cached: Cached | None
    asked: Large
    replicas: Replicas

    def report(self, url: str, window: int) -> ServiceReport:
        recent, batcher = self.service.recent(window), self.service.batcher
        jobs, outlook = tuple(self.replicas.notes.noted.jobs), self.replicas.outlook
        return ServiceReport(
            service=self.declared.name,
            url=url,
            rate=(recent.answered + recent.cached) * SECOND / recent.window,
            objective=self.declared.limits.objective,
            replicas=self.service.replicas,
            started=len(jobs),
            waiting=batcher.waiting,
            serving=batcher.serving,
            jobs=jobs,
            foreseen=outlook.rate if outlook is not None else 0.0,
            spread=outlook.spread if outlook is not None else 0.0,
            **recent._asdict(),
        )

    async def drained(self) -> None:
        await self.asked.drained()
        if self.cached is not None:
            await self.cached.searched()
        await self.service.drained()


class Running:
    """All services of a gateway. `fronts`: request receivers by name. `services`: all services, including canaries.
    `trials`: all trials, including finished ones. `caches`: caches by the name in requests.
    """

    def __init__(
        self,
        folder: Path,
        mark: str,
        connect: Callable[[], Client],
        base: dict[str, Any],
        user: str,
        say: Callable[[str], None],
        address: str = "",
        tracing: Tracing | None = None,
    ) -> None:
        """`mark` distinguishes its files from those of other gateways with the same services. Replicas on other
        machines connect to `address`.
        """
        self.fronts: dict[str, Asked] = {}
        self.services: dict[str, Service] = {}
        self.trials: dict[str, Trial] = {}
        self.caches: dict[str, list[Cached]] = {}
        self.registry = CollectorRegistry()
        self._folder, self._mark, self._address = folder, mark, address
        self._connect, self._base, self._user, self._say = connect, base, user, say
        self._metrics = Registry(self.registry)
        self._tracing = tracing
        self._shared: dict[str, SharedAnswers] = {}
        self._recorders: dict[str, Recorder] = {}
        self._kept: list[_Kept] = []
        self.orders = Orders(connect, self.services, self._replicas, say)
        self._tasks: set[asyncio.Task[Any]] = set()

    def _replicas(self) -> dict[str, Replicas]:
        """Return what maintains the replicas of each service, by its present name."""
        kept = {one.service: one.replicas for one in self._kept}
        return {name: kept[service] for name, service in self.services.items() if service in kept}

    def prepare(self, declared: DeclaredService) -> None:
        """Check a service's requirements before any service starts. Raises `InputError`."""
        for one in filter(None, (declared, declared.canary)):
            file = one.model.partition(":")[0]
            folder = Path(one.folder or self._base["folder"])
            if file.endswith(".py") and not (folder / file).is_file():
                raise InputError("no such file", field=file, hint=f"ls {folder}")
            if one.redis:
                self._shared[one.name] = _shared(one, self._base, CacheMetrics(self._metrics, one.name))

    async def begin(self, declared: DeclaredService) -> "asyncio.Task[None]":
        """Listen for the replicas of a service and its canary. The returned task maintains them, and raises
        `InputError` with their output if the first ones cannot start.
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
        """Return the version that serves, if a trial ended under a previous gateway that was killed."""
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

    def service_at(self, path: str) -> Service | None:
        """Return the service whose replicas connect to this socket."""
        return next((one.service for one in self._kept if str(one.service.path) == path), None)

    def embeddings(self, declared: DeclaredService) -> Embeddings:
        """Serve this service's model at the OpenAI embeddings route, in its current version."""
        versions = [one.name for one in (declared, declared.canary) if one is not None]
        return Embeddings(versions, declared.limits.timeout, self.fronts, self.services)

    def _ask_of(self, name: str, asked: Asked) -> None:
        """Route the requests of this name to `asked`."""
        if name in self._recorders:
            self._recorders[name].behind = asked
        else:
            self.fronts[name] = asked

    async def _begin(self, declared: DeclaredService, front: str) -> _Kept:
        """Start a service. `front`: its name in requests."""
        path = self._file(declared.name, "sock")
        metrics = ServiceMetrics(self._metrics, declared.name)
        service = Service(declared.name, declared.limits, path, metrics, self._tracing)
        notes = Notes(self._file(declared.name, "json"))
        replicas = Replicas(declared, service, self._connect, self._base, self._user, self._say, notes, self._address)
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
        kept = _Kept(declared, service, cached, Large(cached or service, service), replicas)
        self._kept.append(kept)
        return kept

    async def _try(self, trial: Trial, stable: _Kept, canary: _Kept) -> None:
        """Maintain both versions until the trial ends, then the winner; drain and stop the other."""
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
                await trial.drained()  # stable answers requests that the canary fails
                await loser.drained()
                await self._end(loser)
            else:
                winner = stable
            await keepers[winner]
        finally:
            for keeper in keepers.values():
                keeper.cancel()

    def reports(self, url: str, window: int) -> list[ServiceReport]:
        """Report each running service and canary, for the last `window` nanoseconds."""
        return [one.report(url, window) for one in self._kept]

    async def drained(self) -> None:
        """Wait until all accepted requests are answered."""
        for trial in self.trials.values():
            trial.close()
            await trial.drained()
        await asyncio.gather(*(one.drained() for one in self._kept))

    async def hang_up(self) -> None:
        """Disconnect all replicas and refuse their requests: canaries first, because stable then gets theirs."""
        for one in reversed(self._kept):
            one.asked.drop()
            await one.service.stop()

    async def end(self) -> None:
        """Disconnect all replicas and cancel their jobs."""
        await asyncio.gather(*(self._end(one) for one in list(self._kept)))
        for recorder in self._recorders.values():
            recorder.close()

    async def _end(self, kept: _Kept) -> None:
        """Stop a service. It stays listed until its jobs have ended, so that a cancelled call leaves none behind."""
        name = kept.declared.name
        if self.services.get(name) is kept.service:  # otherwise the promoted canary has this name
            del self.services[name]
        kept.asked.drop()
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


def _said(error: BaseException) -> str:
    if not isinstance(error, PoiseError):
        raise error
    return ": ".join(filter(None, [error.record.message, error.record.have]))


def _shared(declared: DeclaredService, base: dict[str, Any], metrics: CacheMetrics) -> SharedAnswers:
    """Make a service's cache shared by gateways. Raises `InputError` for a missing requirement."""
    name = declared.password_from
    if name and not os.environ.get(name):
        what = "the variable with the password is not set"
        raise SpecError(what, field="cache.password_from", need=name, hint=f"export {name}=...")
    objective = declared.limits.objective
    patience = min(PATIENCE, objective // 4) if objective else PATIENCE
    store = Redis(declared.redis, os.environ.get(name) if name else None, patience)
    version = version_of(declared, Path(declared.folder or base["folder"]))
    return SharedAnswers(store, declared.name, version, declared.ttl, metrics)


def _tell_replicas(service: Service, declared: DeclaredService, say: Callable[[str], None]) -> None:
    say(f"{declared.name}: {service.replicas} of {declared.wanted} ready")


def _in_background(tasks: set[asyncio.Task[Any]], work: Callable[[str], Any]) -> Callable[[str], None]:
    def begin(name: str) -> None:
        task = asyncio.ensure_future(work(name))
        tasks.add(task)
        task.add_done_callback(tasks.discard)

    return begin


__all__ = ["Running"]
