"""The services of a gateway, with their versions, canaries, caches and recorders.

Services may be added, changed and removed while requests run. A change of limits or of the number of replicas applies
to the running version. Any other change starts another version beside it, under a name of its own. Once that one is
ready it gets all new requests; the old one answers those that it has, and ends. If the new version cannot start, the
old one stays.
"""

import asyncio
import contextlib
import os
from collections.abc import Callable, Coroutine, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from itertools import count
from pathlib import Path
from typing import Any
from zlib import crc32

import msgspec
from prometheus_client import CollectorRegistry

from poise.client import Client
from poise.errors import NotFound, PoiseError, SpecError
from poise.model.reports.services import ServiceReport
from poise.model.served import MAX_AT_ONCE, WINDOW, GatewayNews, ServiceNews
from poise.model.servicefile import DeclaredService
from poise.model.serving import Limits
from poise.units import SECOND
from poise_serve.cached import Cached, Made
from poise_serve.canary import Trial, Version
from poise_serve.embeddings import Embeddings
from poise_serve.files import check_files
from poise_serve.kernel.cache import Cache
from poise_serve.large import Large
from poise_serve.notes import Notes, leftovers
from poise_serve.orders import Orders
from poise_serve.processes import Process
from poise_serve.recording import Recorder
from poise_serve.redis import Redis
from poise_serve.replicas import Replicas, needs_whole
from poise_serve.service import Asked, Service
from poise_serve.service_metrics import CacheMetrics, Registry, ServiceMetrics
from poise_serve.shared_answers import PATIENCE, SharedAnswers, version_of
from poise_serve.tracing import Tracing
from poise_serve.wire import Load


@dataclass(eq=False)
class _Kept:
    """A running version of the service `name`, with or without a cache. `keeper` maintains its replicas; in a shared
    `process`, it ends with an error if the model cannot be loaded.
    """

    name: str
    declared: DeclaredService
    service: Service
    cached: Cached | None
    asked: Large
    replicas: Replicas
    keeper: "asyncio.Task[None]"
    process: Process | None = None

    def report(self, name: str, url: str, window: int) -> ServiceReport:
        recent, batcher = self.service.recent(window), self.service.batcher
        jobs, outlook = tuple(self.replicas.notes.noted.jobs), self.replicas.outlook
        return ServiceReport(
            service=name,
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

    def news(self, name: str) -> ServiceNews | None:
        """Return its state for the control plane; None without replicas."""
        jobs, batcher = self.replicas.notes.noted.jobs, self.service.batcher
        if not jobs:
            return None
        state = self.service.recent(WINDOW).served(
            objective=self.declared.limits.objective,
            waiting=batcher.waiting,
            ready=self.service.replicas,
            wanted=self.replicas.wanted,
        )
        return ServiceNews(service=name, job=jobs[0], state=state)

    async def drained(self) -> None:
        await self.asked.drained()
        if self.cached is not None:
            await self.cached.searched()
        await self.service.drained()


class Running:
    """All services of a gateway. `fronts`: request receivers by name. `services`: all services, including canaries.
    `trials`: all trials, including finished ones. `caches`: caches by the name in requests. `models`: services by model
    and version, first that of the default version. `failed` gets the error of a service that cannot start, which ends
    the gateway. `changes`: the state of the latest change of each service.
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
        self.models: dict[str, dict[str, str]] = {}
        self.registry = CollectorRegistry()
        self._folder, self._mark, self._address = folder, mark, address
        self._connect, self._base, self._user, self._say = connect, base, user, say
        self._metrics = Registry(self.registry)
        self._tracing = tracing
        self._shared: dict[str, SharedAnswers] = {}
        self._recorders: dict[str, Recorder] = {}
        self._kept: list[_Kept] = []
        self._processes: dict[str, Process] = {}
        self.orders = Orders(connect, self.services, self._replicas, self.news, say)
        self._tasks: set[asyncio.Task[Any]] = set()
        self.failed: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.changes: dict[str, str] = {}
        self.on_trial: Callable[[str, bool], None] = lambda name, promoted: None
        """Called when a trial has ended and its winner serves …"""
        self.on_switch: Callable[[str], None] = lambda name: None
        """… when another version of a service serves …"""
        self.on_change: Callable[[str], None] = lambda name: None
        """… when a change of a service is done …"""
        self.on_failure: Callable[[str, str], None] = lambda name, why: None
        """… and when a change of a service failed, with the reason."""
        self._current: dict[str, _Kept] = {}
        self._asked_for: dict[str, DeclaredService] = {}
        self._judging: dict[str, asyncio.Task[None]] = {}
        self._changing: dict[str, asyncio.Task[None]] = {}
        self._retiring: set[asyncio.Task[None]] = set()

    def _replicas(self) -> dict[str, Replicas]:
        """Return what maintains the replicas of each service, by its present name."""
        kept = {one.service: one.replicas for one in self._kept}
        return {name: kept[service] for name, service in self.services.items() if service in kept}

    def prepare(self, declared: DeclaredService) -> None:
        """Check a service's requirements before any service starts. Raises `InputError`."""
        check_files(declared, self._base["folder"])
        for one in filter(None, (declared, declared.canary)):
            if one.redis:
                self._shared[one.name] = _shared(one, self._base, CacheMetrics(self._metrics, one.name))

    def _serves(self, name: str, kept: _Kept) -> None:
        """Let a version serve the requests of this name."""
        self._current[name] = kept
        self.services[name] = kept.service
        self._list_models()

    def _list_models(self) -> None:
        """List the models again, after another version serves or is another model's."""
        self.models.clear()
        for name in sorted(self._current, key=lambda one: self._asked_for[one].version_of != ""):
            versions = self.models.setdefault(self._model_of(name), {})
            versions.setdefault(self._current[name].declared.version or "1", name)

    def _sibling(self, declared: DeclaredService) -> _Kept | None:
        """Return what serves this version already under another name of its model."""
        model = declared.version_of or declared.name
        others = [
            kept for name, kept in self._current.items() if name != declared.name and self._model_of(name) == model
        ]
        return next((kept for kept in others if _is_same(kept.declared, declared)), None)

    def _model_of(self, name: str) -> str:
        return self._asked_for[name].version_of or name

    @property
    def kept(self) -> "list[_Kept]":
        """All running versions."""
        return self._kept

    @property
    def versions(self) -> dict[str, str]:
        """The name of the serving version of each service."""
        return {name: kept.declared.name for name, kept in self._current.items()}

    async def begin(self, declared: DeclaredService, version: str = "", *, required: bool = True) -> None:
        """Listen for the replicas of a service and its canary, and maintain them. `version`: the name of the version
        that a killed gateway served. `required`: if the first replicas cannot start, the gateway ends (`failed`).
        """
        name, record = declared.name, declared.record
        self._asked_for[name] = declared
        stable = self._sibling(declared) or await self._begin(_version(declared, version or name), name)
        self._serves(name, stable)
        self.fronts[name] = stable.asked
        if record is not None:
            file, part, most = record
            self._recorders[name] = Recorder(stable.asked, Path(file), part, most, self._say)
            self.fronts[name] = self._recorders[name]
        if required:
            stable.keeper.add_done_callback(self._check)
        if declared.canary is not None:
            await self._begin_trial(name, declared)

    def _check(self, done: "asyncio.Task[None]") -> None:
        """Let the gateway end with the error of a task."""
        if not done.cancelled() and (error := done.exception()) is not None and not self.failed.done():
            self.failed.set_exception(error)

    async def _begin_trial(self, name: str, declared: DeclaredService) -> None:
        """Start the canary of a service, and the trial against the version that serves."""
        if declared.canary is None or declared.trial is None:
            raise AssertionError("a trial needs a canary")
        stable = self._current[name]
        canary = await self._begin(_version(declared.canary, self._free(declared.canary.name)), name)
        old, new = (Version(one.service, one.asked) for one in (stable, canary))
        measure = self._metrics.canary(name)
        trial = self.trials[name] = Trial(name, declared.trial, old, new, measure, self._say)
        canary.service.watchers.append(trial.changed)
        self._ask_of(name, trial)
        judging = self._judging[name] = asyncio.create_task(self._try(trial, stable, canary))
        judging.add_done_callback(self._check)

    def _free(self, name: str) -> str:
        """Return a name for a version that no other has: this one, or with a number."""
        taken = {kept.declared.name for kept in self._kept}
        return next(
            one for one in (name, *(f"{name}{number}" for number in range(2, len(taken) + 3))) if one not in taken
        )

    # --- changes -----------------------------------------------------------------------------------------------------

    def check(self, declared: DeclaredService) -> None:
        """Raise `InputError` for a change that needs another gateway, or a missing requirement."""
        before = self._asked_for.get(declared.name)
        for field in ("record", "openai"):
            if before is not None and getattr(before, field) != getattr(declared, field):
                what = "this cannot be changed while the service runs"
                raise SpecError(what, field=field, hint="stop `poise serve`, and start it with the file")
        check_files(declared, self._base["folder"])

    def change(self, declared: DeclaredService) -> None:
        """Begin to add or to change a service; `changes` has the state. A change in progress is given up."""
        self._replace_change(declared.name, lambda before: self._change(declared, before))

    def remove(self, name: str) -> None:
        """Begin to end a service. Its requests are answered; new ones get 404."""
        self._replace_change(name, lambda before: self._remove(name, before))

    def _replace_change(
        self, name: str, change: "Callable[[asyncio.Task[None] | None], Coroutine[Any, Any, None]]"
    ) -> None:
        before = self._changing.get(name)
        self.changes[name] = "in progress"
        changing = self._changing[name] = asyncio.create_task(change(before))
        changing.add_done_callback(partial(self._changed, name))

    def _changed(self, name: str, changing: "asyncio.Task[None]") -> None:
        if self._changing.get(name) is not changing:
            return
        del self._changing[name]
        if changing.cancelled():
            self.changes[name] = "given up"
        elif (error := changing.exception()) is None:
            self.changes[name] = "done"
            self.on_change(name)
        elif isinstance(error, PoiseError):
            self.changes[name] = f"failed: {_told(error)}"
            self.on_failure(name, _told(error))
        else:
            self._check(changing)

    async def settled(self, name: str) -> str:
        """Wait until no change of a service goes on. Returns the state of the latest one."""
        while (changing := self._changing.get(name)) is not None:
            await asyncio.wait([changing])
            await asyncio.sleep(0)  # let `_changed` note its end
        return self.changes.get(name, "")

    async def _change(self, declared: DeclaredService, before: "asyncio.Task[None] | None") -> None:
        await _given_up(before)
        name = declared.name
        if name not in self._current:
            await self._add(declared)
            return
        judging, goes_on = self._judging.get(name), self._is_on_trial(declared)
        if judging is not None and not goes_on:
            self.trials[name].end(False, "the configuration was changed")
            await asyncio.shield(judging)
        if _is_same(self._current[name].declared, declared):
            self._settle(self._current[name], declared)
        else:
            await self._roll(name, declared)
        self._asked_for[name] = declared
        self._list_models()
        if declared.canary is not None and not goes_on:
            self.prepare(declared)
            await self._begin_trial(name, declared)

    async def _add(self, declared: DeclaredService) -> None:
        """Start a service. If it cannot start, nothing of it is left."""
        name = declared.name
        self.prepare(declared)
        await self.begin(declared, required=False)
        try:
            await self._until_ready(self._current[name])
        except BaseException:
            await self._remove(name, None)
            raise

    async def _until_ready(self, fresh: _Kept) -> None:
        """Wait for the first replica of a version. Raises the error with which it cannot start."""
        ready = asyncio.create_task(fresh.service.ready())
        try:
            await asyncio.wait([ready, fresh.keeper], return_when=asyncio.FIRST_COMPLETED)
            if not ready.done():
                await fresh.keeper  # which raises
        finally:
            ready.cancel()
        fresh.keeper.add_done_callback(self._check)

    def _settle(self, kept: _Kept, declared: DeclaredService) -> None:
        """Apply limits and the number of replicas to the running version."""
        kept.declared = msgspec.structs.replace(
            kept.declared, limits=declared.limits, **{field: getattr(declared, field) for field in SCALE}
        )
        kept.service.batcher.limits = declared.limits
        kept.replicas.become(declared)

    async def _roll(self, name: str, declared: DeclaredService) -> None:
        """Send the requests to another version once it is ready, and end the old one."""
        fresh = self._sibling(declared) or await self._fresh(name, declared)
        old = self._current[name]
        self._serves(name, fresh)
        self._ask_of(name, fresh.asked)
        self.on_switch(name)
        self._retire(old)

    async def _fresh(self, name: str, declared: DeclaredService) -> _Kept:
        """Start another version of the service `name`, and wait until it is ready."""
        used = {kept.declared.name for kept in self._kept}
        version = next(f"{name}-v{number}" for number in count(2) if f"{name}-v{number}" not in used)
        made = _version(declared, version)
        self.prepare(made)
        fresh = await self._begin(made, name)
        try:
            await self._until_ready(fresh)
        except BaseException:
            self._retire(fresh)
            raise
        return fresh

    async def _remove(self, name: str, before: "asyncio.Task[None] | None") -> None:
        await _given_up(before)
        if (judging := self._judging.pop(name, None)) is not None:
            judging.cancel()
            self.trials[name].end(False, "the service is removed")
        serving = self._current.get(name)
        for registered in (self._current, self.fronts, self.trials, self._asked_for):
            registered.pop(name, None)
        self._list_models()
        for kept in [kept for kept in self._kept if kept.name == name or kept is serving]:
            self._retire(kept)
        if (recorder := self._recorders.pop(name, None)) is not None:
            recorder.close()

    def _retire(self, kept: _Kept) -> None:
        """Begin to end a version that gets no more requests, once it has answered those that it has. One that also
        serves under another name stays.
        """
        if kept in self._current.values():
            return

        async def retire() -> None:
            await asyncio.gather(kept.keeper, return_exceptions=True)
            await kept.drained()
            await self._end(kept)

        kept.keeper.cancel()
        retiring = asyncio.create_task(retire())
        self._retiring.add(retiring)
        retiring.add_done_callback(self._retiring.discard)
        retiring.add_done_callback(self._check)

    def _is_on_trial(self, declared: DeclaredService) -> bool:
        """Whether the current trial is the declared one."""
        before = self._asked_for[declared.name]
        return (
            declared.name in self._judging
            and before.trial == declared.trial
            and _is_same(before, declared)
            and _is_same(before.canary, declared.canary)
        )

    def end_trial(self, name: str, why: str, *, promoted: bool) -> None:
        """End the trial of a service by hand. Raises `NotFound` if there is none."""
        if name not in self._judging:
            on_trial = ", ".join(self._judging) or "no service"
            raise NotFound(f"there is no canary of `{name[:80]}` on trial", field="service", have=on_trial)
        self.trials[name].end(promoted, why)

    async def drain(self, job: str) -> bool:
        """Let a replica answer its batch, and end it; another is started. Returns False for another job's id."""
        kept = next((one for one in self._kept if job in one.replicas.notes.noted.jobs), None)
        if kept is None:
            return False
        await kept.replicas.drain(job)
        return True

    async def cancel_leftovers(self) -> None:
        """Cancel the replicas of versions that a killed gateway was ending."""
        known = {kept.declared.name for kept in self._kept} | set(self._processes)
        for notes in leftovers(self._folder, self._mark, known):
            for job in notes.noted.jobs:
                with contextlib.suppress(PoiseError):
                    await asyncio.to_thread(_cancel, self._connect, job)
            notes.forget()

    def _file(self, name: str, kind: str) -> Path:
        return self._folder / f"{name}.{self._mark}.{kind}"

    def host_at(self, path: str) -> Service | Process | None:
        """Return the service or the process whose replicas connect to this socket."""
        hosts: list[Service | Process] = [*(one.service for one in self._kept), *self._processes.values()]
        return next((one for one in hosts if str(one.path) == path), None)

    def embeddings(self, declared: DeclaredService) -> Embeddings:
        """Serve this service's model at the OpenAI embeddings route, in its current version."""
        versions = [declared.name, f"{declared.name}-canary"]
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
        process, load = None, _load(declared, service, self._base)
        if declared.process:
            process = await self._process_of(declared)
            replicas = process.replicas
        else:
            notes = Notes(self._file(declared.name, "json"))
            replicas = Replicas(
                declared, service, self._connect, self._base, self._user, self._say, notes, self._address
            )
        service.on_hang = _in_background(self._tasks, replicas.replace)
        service.watchers.append(partial(self._tell_replicas, service, declared))
        await service.start()
        self.services.setdefault(declared.name, service)
        cached = None
        if declared.cache:
            answers: Cache[Made] = Cache(declared.cache, declared.ttl)
            cached = Cached(service, answers, metrics, self._shared.get(declared.name), declared.canonical)
            await cached.start()
            self.caches.setdefault(front, []).append(cached)
        keeper = asyncio.create_task(replicas.keep()) if process is None else process.join(service, load)
        asked = Large(cached or service, service)
        kept = _Kept(front, declared, service, cached, asked, replicas, keeper, process)
        self._kept.append(kept)
        return kept

    def _tell_replicas(self, service: Service, declared: DeclaredService) -> None:
        """Tell how many replicas are ready, of those that are wanted now."""
        wanted = next((kept.declared for kept in self._kept if kept.service is service), declared).wanted
        self._say(f"{declared.name}: {service.replicas} of {wanted} ready")

    async def _process_of(self, declared: DeclaredService) -> Process:
        """Return the process that loads the model of this service, and start it if it is not running. A process with
        other resources is a different process.
        """
        name = f"{declared.process}-{_digest_of(declared)}"
        process = self._processes.get(name)
        if process is None:
            notes = Notes(self._file(name, "json"))
            process = self._processes[name] = Process(
                declared, notes, self._connect, self._base, self._user, self._say, self._address
            )
            await process.start()
        return process

    async def _try(self, trial: Trial, stable: _Kept, canary: _Kept) -> None:
        """Wait until the trial ends. Then let the winner serve; drain and stop the other."""
        over: list[asyncio.Future[Any]] = [trial.ended, canary.keeper, stable.keeper]
        await asyncio.wait(over, return_when=asyncio.FIRST_COMPLETED)
        if canary.keeper.done() and (error := canary.keeper.exception()) is not None:
            trial.end(False, _told(error))
        if stable.keeper.done():
            return
        promoted = await trial.ended
        winner, loser = (canary, stable) if promoted else (stable, canary)
        self._ask_of(trial.name, winner.asked)
        loser.keeper.cancel()
        if promoted:
            winner.keeper.add_done_callback(self._check)
            self._settle(winner, stable.declared)
        self._serves(trial.name, winner)
        del self._judging[trial.name]
        self.on_trial(trial.name, promoted)
        await trial.drained()  # stable answers requests that the canary fails
        self._retire(loser)

    def reports(self, url: str, window: int) -> list[ServiceReport]:
        """Report each running service and canary, for the last `window` nanoseconds."""
        return [one.report(name, url, window) for name, one in self._named()]

    def _named(self) -> "Iterator[tuple[str, _Kept]]":
        """Yield each running version with its name in requests, or else its own."""
        names = {kept: name for name, kept in self._current.items()}
        return ((names.get(one, one.declared.name), one) for one in self._kept)

    def news(self) -> list[GatewayNews]:
        """Return the reports for the control plane, at least one: of versions that get requests."""
        on_trial = {self.trials[name].canary for name in self._judging}
        asked = [
            (name, kept) for name, kept in self._named() if kept in self._current.values() or kept.service in on_trial
        ]
        news = tuple(one for name, kept in asked if (one := kept.news(name)) is not None)
        firsts = range(0, max(1, len(news)), MAX_AT_ONCE)
        return [GatewayNews(gateway=self._mark, services=news[first : first + MAX_AT_ONCE]) for first in firsts]

    def stop(self) -> None:
        """Maintain the replicas no more: the gateway ends."""
        for task in self._maintaining():
            task.cancel()

    async def stopped(self) -> None:
        """Wait for all tasks. Raises the error that ends the gateway."""
        await asyncio.gather(*self._maintaining(), return_exceptions=True)
        if self.failed.done():
            self.failed.result()

    def _maintaining(self) -> "list[asyncio.Task[None]]":
        keepers = [kept.keeper for kept in self._kept]
        shared = [process.keeping for process in self._processes.values()]
        return [*self._changing.values(), *self._judging.values(), *self._retiring, *keepers, *shared]

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
        for name in [name for name, service in self.services.items() if service is kept.service]:
            del self.services[name]
        kept.asked.drop()
        await kept.service.stop()
        if kept.cached is not None:
            for caches in self.caches.values():
                if kept.cached in caches:
                    caches.remove(kept.cached)
            await kept.cached.stop()
        if kept.process is None:
            await kept.replicas.end()
        else:
            await self._leave(kept.process, kept.service)
        kept.service.measure()
        if kept in self._kept:
            self._kept.remove(kept)

    async def _leave(self, process: Process, service: Service) -> None:
        """Unload a model from its process, which ends with the last one."""
        process.forget(service)
        if not process.is_needed:
            for name in [name for name, one in self._processes.items() if one is process]:
                del self._processes[name]
            await process.end()


SCALE = ("replicas", "rules", "scaler", "window", "announced")
"""Fields of a service that apply to a running version, besides its limits."""


def _is_same(one: DeclaredService | None, other: DeclaredService | None) -> bool:
    """Whether two declarations differ at most in what applies to a running version."""
    if one is None or other is None:
        return one is other
    return _essence(one) == _essence(other)


def _essence(declared: DeclaredService) -> DeclaredService:
    base = DeclaredService(name="", model="")
    settings: Mapping[str, Any] = {field: getattr(base, field) for field in SCALE}
    limits = Limits(batch=declared.limits.batch)
    return msgspec.structs.replace(
        declared, name="", version_of="", limits=limits, canary=None, trial=None, record=None, **settings
    )


def _load(declared: DeclaredService, service: Service, base: Mapping[str, Any]) -> Load:
    """Return how a shared process loads the model of a service."""
    return Load(
        str(service.path),
        service=declared.name,
        model=declared.model,
        folder=declared.folder or base["folder"],
        batch=declared.limits.batch,
        at_once=declared.concurrency,
        whole=needs_whole(declared),
        precision=declared.precision,
    )


def _digest_of(declared: DeclaredService) -> str:
    """Return a name for the resources, variables and interpreter of a process, without the values of secrets."""
    job = declared.job | {"secrets": sorted(declared.job.get("secrets", ()))}
    return f"{crc32(msgspec.json.encode([declared.python, job], order='deterministic')):08x}"


def _version(declared: DeclaredService, name: str) -> DeclaredService:
    """Return a version of a service, without its canary and its recorder."""
    return msgspec.structs.replace(declared, name=name, canary=None, trial=None)


async def _given_up(change: "asyncio.Task[None] | None") -> None:
    if change is not None:
        change.cancel()
        await asyncio.gather(change, return_exceptions=True)


def _cancel(connect: Callable[[], Client], job: str) -> None:
    with connect() as client:
        client.cancel(job)


def _told(error: BaseException) -> str:
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


def _in_background(tasks: set[asyncio.Task[Any]], work: Callable[[str], Any]) -> Callable[[str], None]:
    def begin(name: str) -> None:
        task = asyncio.ensure_future(work(name))
        tasks.add(task)
        task.add_done_callback(tasks.discard)

    return begin


__all__ = ["Running"]
