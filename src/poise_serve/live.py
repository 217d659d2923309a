"""The configuration of a running gateway: applied from documents, kept in a file, and undone.

Documents are those that `poise serve` is started with. All of a request is checked before anything changes. The file is
written after each change, so that the next gateway at the same address goes on with what was applied. It does so if it
is started with the same documents as the last one, or with those that were applied; if their files were changed
meanwhile, they win. A gateway that takes over from a killed one always goes on.

The end of a trial is a change as well: the document then has the winner, without the canary.
"""

import asyncio
import time
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from contextlib import suppress
from pathlib import Path

import msgspec

from poise.decoding import json_decoder
from poise.drivers.whole import write_whole
from poise.errors import Conflict, InputError, NotFound
from poise.model.document import near, some
from poise.model.servicefile import DeclaredService, check_processes
from poise.model.serving_upstreams import Front, no_upstreams
from poise_serve.embeddings import Embeddings
from poise_serve.model.changes import (
    UPSTREAMS,
    Applied,
    Document,
    Entry,
    GatewayReport,
    PastChange,
    ReplicaReport,
    Saved,
    State,
    differences,
    key_of,
    model_of,
)
from poise_serve.pool import chooser
from poise_serve.running import Running
from poise_serve.upstreams import Upstreams, check_front

MOST_HISTORY = 20
"""Maximum number of changes that are kept, and can be undone."""

OF_CANARY = ("model", "version", "folder", "python", "precision")
"""Fields of a canary that replace those of its service when it is promoted."""

Declare = Callable[[Document], DeclaredService | Front]
"""Compiles a document. Raises `SpecError`."""

Open = Callable[[Front], Awaitable[Upstreams]]
"""Starts the application below /v1/."""


def state_file(folder: Path, host: str, port: int) -> Path:
    """Return the file of the gateway at this address."""
    return folder / f"{host}:{port}.applied"


def restored(path: Path, given: Sequence[Document], *, taken_over: bool) -> Saved:
    """Return the configuration to go on with: that of the file, or that of the given documents."""
    base = {key_of(document): document for document in given}
    with suppress(OSError, msgspec.DecodeError, UnicodeDecodeError):
        saved = json_decoder(Saved).decode(path.read_bytes())
        if taken_over or base in (saved.base, saved.state.documents):
            return msgspec.structs.replace(saved, base=base)
    return Saved(base, State(base))


class Live:
    """The configuration, and what carries it out."""

    def __init__(
        self,
        saved: Saved,
        path: Path,
        declare: Declare,
        running: Running,
        own: dict[str, Embeddings],
        open_upstreams: Open,
        environment: Mapping[str, str],
        say: Callable[[str], None],
    ) -> None:
        """`own`: embedding models by name, which `open_upstreams` serves too. `environment`: variables with the keys of
        upstreams.
        """
        self._base, self._state, self._history = saved.base, saved.state, list(saved.history)
        self._versions = saved.versions
        self._path = path
        self._declare = declare
        self._running = running
        self._own = own
        self._open = open_upstreams
        self._environment = environment
        self._say = say
        self._lock = asyncio.Lock()
        self._serving = dict(saved.serving)
        """For each service whose change is in progress, the documents that serve, to go back to if the change fails:
        its own, and of a model those of all versions.
        """
        self.upstreams: Upstreams | None = None
        running.on_trial = self._trial_ended
        running.on_switch = self._switched
        running.on_change = self._done
        running.on_failure = self._go_back

    @property
    def drain_seconds(self) -> int:
        """Nanoseconds for running requests of upstreams to finish when the gateway ends."""
        front = self._front(self._state)
        return front.drain if front is not None else 0

    async def start(self) -> None:
        """Start all services and upstreams. A change that was in progress when another gateway was killed goes on: its
        old version serves until then. Raises `InputError` if one is invalid.
        """
        documents = dict(self._state.documents)
        for key, serving in self._serving.items():
            dropped = _together_with(key, documents)
            documents = {one: document for one, document in documents.items() if one not in dropped} | serving
        declared = [self._declare(document) for document in documents.values()]
        services = [one for one in declared if isinstance(one, DeclaredService)]
        for service in services:
            self._running.prepare(service)
        for service in services:
            await self._running.begin(service, self._versions.get(service.name, ""))
            if service.openai:
                self._own[service.name] = self._running.embeddings(service)
        front = self._front(self._state)
        if front is not None or self._own:
            self.upstreams = await self._open(front or no_upstreams())
            for name in self._state.drained:
                self.upstreams.drain(name, draining=True)
        await self._running.cancel_leftovers()
        for document in [self._state.documents[key] for key in self._serving if key in self._state.documents]:
            if isinstance(one := self._declare(document), DeclaredService):
                self._change_service(one)

    # --- changes -----------------------------------------------------------------------------------------------------

    async def apply(
        self, documents: Sequence[Document], by: str, *, check: bool = False, models: Collection[str] = ()
    ) -> Applied:
        """Use these documents, beside those for other services. With `check`, only return what would change. `models`:
        those with all their versions in these documents; other versions of them are removed. Raises `InputError`, and
        then nothing has changed.
        """
        async with self._lock:
            given = {key_of(document): document for document in documents}
            if len(given) < len(documents):
                raise InputError("two documents are for the same service, or for upstreams", hint="one file for each")
            kept = {key: one for key, one in self._state.documents.items() if model_of(one) not in models}
            target = msgspec.structs.replace(self._state, documents=kept | given)
            return await self._move(target, by, check=check)

    async def remove(self, name: str, by: str) -> Applied:
        """Remove a service with its other versions, or an upstream. Raises `InputError`."""
        async with self._lock:
            before = self._state.documents
            documents = {
                key: one
                for key, one in before.items()
                if key == UPSTREAMS or name not in (key.removeprefix("service "), model_of(one))
            }
            if len(documents) == len(before):
                documents[UPSTREAMS] = self._without(name)
            drained = tuple(one for one in self._state.drained if one != name)
            return await self._move(State(documents, drained), by)

    async def drain(self, name: str, by: str, *, undo: bool = False) -> Applied:
        """Send an upstream no more requests, or with `undo` send it requests again. Let a replica answer its batch and
        end; another is started. Raises `InputError`.
        """
        async with self._lock:
            if not undo and name not in self._upstream_names() and await self._running.drain(name):
                return Applied(changes=())
            self._check_upstream(name)
            drained = tuple(one for one in self._state.drained if one != name)
            target = msgspec.structs.replace(self._state, drained=drained if undo else (*drained, name))
            return await self._move(target, by)

    async def undo(self, by: str) -> Applied:
        """Restore the configuration before the latest change that is not undone. Raises `Conflict` without one."""
        async with self._lock:
            at = next((at for at in reversed(range(len(self._history))) if not self._history[at].settled), None)
            if at is None:
                raise Conflict("there is no change to undo", hint="`poise service show` lists the changes")
            return await self._move(self._history[at].before, by, undoes=at)

    def end_trial(self, name: str, by: str, *, promoted: bool) -> None:
        """Promote a canary, or roll it back. Raises `NotFound` without one."""
        self._running.end_trial(name, f"by {by}", promoted=promoted)

    async def _move(self, target: State, by: str, *, check: bool = False, undoes: int | None = None) -> Applied:
        """Carry out the difference to another configuration. `undoes`: place of the change that this undoes. Nothing
        is recorded if the upstreams cannot be changed.
        """
        before = self._state
        changed = [key for key, document in target.documents.items() if document != before.documents.get(key)]
        declared = {key: self._declare(target.documents[key]) for key in changed}
        for one in declared.values():
            if isinstance(one, DeclaredService):
                self._running.check(one)
            else:
                check_front(one, self._environment)
        if any(isinstance(one, DeclaredService) and one.process for one in declared.values()):
            every = [self._declare(document) for document in target.documents.values()]
            check_processes(one for one in every if isinstance(one, DeclaredService))
        changes = differences(before, target)
        if check or not changes:
            return Applied(changes=changes)
        removed = before.documents.keys() - target.documents
        await self._change_upstreams(declared, has_none=UPSTREAMS in removed)
        # trials may have ended meanwhile; from here on nothing else runs
        documents = {key: one for key, one in self._state.documents.items() if key not in removed}
        documents |= {key: target.documents[key] for key in declared}
        self._state = msgspec.structs.replace(target, documents=documents)
        for key, document in before.documents.items():
            stays = f"service {document.get('version_of')}" in declared  # until the new version serves
            if key in removed and key != UPSTREAMS and not stays:
                self._own.pop(key.removeprefix("service "), None)
                self._serving.pop(key, None)
                self._running.remove(key.removeprefix("service "))
        for key, one in declared.items():
            if isinstance(one, DeclaredService):
                self._serving.setdefault(key, _together_with(key, before.documents))
                self._change_service(one)
        if self.upstreams is not None:
            for name in {*before.drained, *target.drained}:
                self.upstreams.drain(name, draining=name in target.drained)
        said = tuple(str(change) for change in changes)
        self._say(f"{by} changed: {'; '.join(said)}")
        if undoes is not None:
            self._history[undoes] = msgspec.structs.replace(self._history[undoes], settled=True)
        self._note(by, said, before, settled=undoes is not None)
        names = tuple(key.removeprefix("service ") for key in declared if key != UPSTREAMS)
        return Applied(changes=changes, pending=names)

    async def _change_upstreams(self, declared: Mapping[str, DeclaredService | Front], *, has_none: bool) -> None:
        """Use the declared upstreams, or none. Embedding models are served by the same application."""
        front = no_upstreams() if has_none else next((one for one in declared.values() if isinstance(one, Front)), None)
        if self.upstreams is not None:
            if front is not None:
                await self.upstreams.change(front, chooser(front))
        elif front is not None or any(isinstance(one, DeclaredService) and one.openai for one in declared.values()):
            self.upstreams = await self._open(front or no_upstreams())

    def _change_service(self, declared: DeclaredService) -> None:
        self._running.change(declared)
        if declared.openai and declared.name not in self._own:
            self._own[declared.name] = self._running.embeddings(declared)

    def _note(self, by: str, changes: tuple[str, ...], before: State, *, settled: bool = False) -> None:
        """Record a change, and write the file."""
        self._history = [*self._history, Entry(time.time(), by, changes, before, settled)][-MOST_HISTORY:]
        self._write()

    def _write(self) -> None:
        saved = Saved(self._base, self._state, self._running.versions, tuple(self._history), self._serving)
        try:
            write_whole(self._path, msgspec.json.encode(saved), 0o600)
        except OSError as error:
            self._say(f"the configuration cannot be written, and is lost when the gateway ends: {error.strerror}")

    # --- what happens by itself --------------------------------------------------------------------------------------

    def _switched(self, name: str) -> None:
        """Note that the new version of a service serves. Its trial, if any, has not begun yet."""
        key = f"service {name}"
        if key in self._serving and key in self._state.documents:
            documents = _together_with(key, self._state.documents)
            self._serving[key] = documents | {key: _stable(documents[key])}
        self._write()

    def _done(self, name: str) -> None:
        """Note that a change of a service is done."""
        if self._serving.pop(f"service {name}", None) is not None:
            self._write()
        self._remove_others(name)

    def _trial_ended(self, name: str, promoted: bool) -> None:
        key = f"service {name}"
        changing = self._serving.get(key)
        document = (self._state.documents if changing is None else changing).get(key)
        if document is None or "canary" not in document:
            return
        stable = _stable(document)
        after = _promoted(stable, document["canary"]) if promoted else stable
        if changing is not None:  # the change has ended the trial, and may have the next one
            self._serving[key] = changing | {key: after}
            self._write()
            return
        before = msgspec.structs.replace(self._state, documents=self._state.documents | {key: stable})
        self._state = msgspec.structs.replace(self._state, documents=self._state.documents | {key: after})
        outcome = f"the canary of {name} was {'promoted' if promoted else 'rolled back'}"
        self._note("the trial", (outcome,), before, settled=not promoted)

    def _go_back(self, name: str, why: str) -> None:
        """Keep the documents of the versions that serve, after another one could not start."""
        key, before = f"service {name}", self._state
        restored, dropped = self._serving.pop(key, {}), _together_with(key, before.documents)
        documents = {one: document for one, document in before.documents.items() if one not in dropped} | restored
        if key not in restored:
            self._own.pop(name, None)
        self._state = msgspec.structs.replace(before, documents=documents)
        for one, document in restored.items():
            declared = self._declare(document)
            if one != key and document != before.documents.get(one) and isinstance(declared, DeclaredService):
                self._running.change(declared)
        self._remove_others(name)
        self._say(f"{name} stays as it was: {why}")
        self._note("the gateway", (f"{name} stays as it was: {why}",), before, settled=True)

    def _remove_others(self, name: str) -> None:
        """Remove the versions of a model that are not in the configuration any more."""
        for other in tuple(self._running.models.get(name, {}).values()):
            if f"service {other}" not in self._state.documents:
                self._running.remove(other)

    # --- helpers -----------------------------------------------------------------------------------------------------

    def report(self, url: str) -> GatewayReport:
        running = self._running
        return GatewayReport(
            url=url,
            documents=self._state.documents,
            drained=self._state.drained,
            upstreams=tuple(self.upstreams.states) if self.upstreams is not None else (),
            services=tuple(
                ReplicaReport(
                    service=kept.name,
                    version=kept.declared.name,
                    model=kept.declared.model,
                    replicas=kept.service.replicas,
                    jobs=tuple(kept.replicas.notes.noted.jobs),
                    held=0 if kept.service.replicas else kept.service.batcher.waiting,
                )
                for kept in running.kept
            ),
            changes=running.changes,
            trials={name: trial.report() for name, trial in running.trials.items()},
            history=tuple(
                PastChange(at=one.at, by=one.by, changes=one.changes, settled=one.settled) for one in self._history
            ),
        )

    def _front(self, state: State) -> Front | None:
        document = state.documents.get(UPSTREAMS)
        declared = None if document is None else self._declare(document)
        return declared if isinstance(declared, Front) else None

    def _upstream_names(self) -> list[str]:
        return [one.name for one in self.upstreams.states] if self.upstreams is not None else []

    def _check_upstream(self, name: str) -> None:
        known = [*self._upstream_names(), *self._state.drained]
        if name in known:
            return
        jobs = [job for kept in self._running.kept for job in kept.replicas.notes.noted.jobs]
        what = f"there is no upstream or replica `{name[:80]}`"
        have = some([*known, *jobs], 12) or "no upstreams"
        raise NotFound(what, field="name", have=have, hint=near(name, [*known, *jobs]) or "`poise service list`")

    def _without(self, name: str) -> Document:
        """Return the document of upstreams without this one. Raises `InputError`."""
        document = self._state.documents.get(UPSTREAMS, {})
        listed = document.get("upstreams", [])
        left = [one for one in listed if one.get("name") != name]
        if len(left) == len(listed):
            services = [key.removeprefix("service ") for key in self._state.documents if key != UPSTREAMS]
            known = [*(str(one.get("name")) for one in listed), *services]
            what = f"there is no service or upstream `{name[:80]}`"
            raise NotFound(what, field="name", have=some(known, 12), hint=near(name, known) or "`poise service list`")
        return document | {"upstreams": left}


def _together_with(key: str, documents: Mapping[str, Document]) -> dict[str, Document]:
    """Return a document, and those of all versions if it is that of a model."""
    model = key.removeprefix("service ")
    return {one: document for one, document in documents.items() if one == key or document.get("version_of") == model}


def _stable(document: Document) -> Document:
    """Return the document of a service without its canary."""
    return {field: value for field, value in document.items() if field != "canary"}


def _promoted(stable: Document, canary: Mapping[str, object]) -> Document:
    """Return the document of a service whose canary was promoted."""
    after = stable | {field: canary[field] for field in OF_CANARY if canary.get(field)}
    if isinstance(env := canary.get("env"), dict) and env:
        after["env"] = stable.get("env", {}) | env
    return after


__all__ = ["Live", "restored", "state_file"]
