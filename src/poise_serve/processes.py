"""A process that the models of several services share (`process: NAME`): its jobs, and the models that they load.

Every replica of the process loads all of its models. Each model has its own connection to its service, so batches,
limits and objective are those of the service. If the process dies, all of its models restart. If it died while loading
a model, that model is loaded again after the others, and after a pause that grows. `kernel.turns` decides which batches
run at the same time.
"""

import asyncio
import time
from collections.abc import Callable
from functools import partial
from typing import Any, cast

import msgspec

from poise.client import Client
from poise.drivers import sockets
from poise.errors import InputError
from poise.model.servicefile import DeclaredService
from poise_serve.kernel.turns import LOADING, Turns
from poise_serve.notes import Notes
from poise_serve.replicas import ATTEMPTS, START_AGAIN, Replicas
from poise_serve.service import Service
from poise_serve.wire import (
    Enter,
    Failed,
    Frames,
    FromProcess,
    Keep,
    Load,
    Loading,
    ToProcess,
    Unload,
    decode_from_process,
    framed,
)

MAX_MESSAGE = 1 << 20
"""Maximum bytes of a message of a process."""

GONE_WITHIN = 1.0
"""Seconds after the loss of a model's connection. If its process is still connected then, the others go on."""


class _Member:
    """A model in the process."""

    def __init__(self, service: Service, load: Load) -> None:
        self.service, self.load = service, load
        self.failed: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        """Gets the error if the model cannot be loaded and never was."""
        self.deaths = 0
        self.pause = START_AGAIN[0]
        self.not_before = 0.0

    def put_off(self) -> float:
        """Load it after a pause, which doubles each time. Returns its seconds."""
        pause, self.pause = self.pause, min(2 * self.pause, START_AGAIN[1])
        self.not_before = time.monotonic() + pause
        return pause

    def fail(self, why: str) -> None:
        if not self.failed.done():
            what = f"the model of {self.load.service} cannot be loaded"
            self.failed.set_exception(InputError(what, field=self.load.model, have=why))


class Process:
    """One shared process, with as many replicas as its services want. `replicas` maintains its jobs."""

    def __init__(
        self,
        declared: DeclaredService,
        notes: Notes,
        connect: Callable[[], Client],
        base: dict[str, Any],
        user: str,
        say: Callable[[str], None],
        address: str = "",
    ) -> None:
        """`declared`: the first of its services. The other parameters are those of `Replicas`."""
        self.name = declared.process
        self.path = notes.path.with_suffix(".sock")
        self.ever_ready = False
        """Whether a replica has connected, as of `Service` …"""
        self.watchers: list[Callable[[], None]] = []
        self.may_join: Callable[[str, int], bool] = lambda job, epoch: False
        """… and so are these two."""
        self._say = say
        self._members: dict[str, _Member] = {}
        self._controls: dict[str, _Control] = {}
        self._turns: dict[str, Turns] = {}  # of `_controls`
        self._listening: asyncio.Server | None = None
        job = DeclaredService(
            name=self.name, model="", python=declared.python, replicas=declared.replicas, job=declared.job
        )
        self.replicas = Replicas(job, self, connect, base, user, say, notes, address)
        self.keeping = asyncio.create_task(self.replicas.keep())
        """Maintains the jobs."""

    async def start(self) -> None:
        loop = asyncio.get_running_loop()
        self._listening = await loop.create_unix_server(self.guest, sock=sockets.listen(self.path))

    # --- its services ------------------------------------------------------------------------------------------------

    def join(self, service: Service, load: Load) -> "asyncio.Task[None]":
        """Load a model. The task raises `InputError` if the model or the process cannot start; otherwise it does not
        end.
        """
        member = self._members[load.socket] = _Member(service, load)
        service.may_join = lambda job, epoch: self.may_join(job, epoch)
        service.turns_of = self._turns.get
        service.batcher.ahead = 0  # it may be the turn of another model
        service.watchers.append(self._look_at_turns)
        for control in self._controls.values():
            self._load(control, member)
        return asyncio.create_task(self._keep(member))

    async def _keep(self, member: _Member) -> None:
        await asyncio.wait([self.keeping, member.failed], return_when=asyncio.FIRST_COMPLETED)
        await (member.failed if member.failed.done() else asyncio.shield(self.keeping))

    def forget(self, service: Service) -> None:
        """Unload the model of a service."""
        place = str(service.path)
        self._members.pop(place, None)
        for control in self._controls.values():
            control.turns.leave((service.name, LOADING))
            control.send(Unload(place))

    @property
    def is_needed(self) -> bool:
        """Whether it has a model."""
        return bool(self._members)

    async def end(self) -> None:
        """End the jobs."""
        if self._listening is not None:
            self._listening.close()
            self.path.unlink(missing_ok=True)
        self.keeping.cancel()
        await asyncio.gather(self.keeping, return_exceptions=True)
        for control in list(self._controls.values()):
            control.close()
        await self.replicas.end()

    def _load(self, control: "_Control", member: _Member) -> None:
        """Let a replica load a model, at once or after its pause."""

        def load() -> None:
            if self._members.get(member.load.socket) is member:
                control.turns.enter((member.load.service, LOADING), False, lambda: control.send(member.load))

        if (pause := member.not_before - time.monotonic()) > 0:
            asyncio.get_running_loop().call_later(pause, load)
        else:
            load()

    # --- its replicas ------------------------------------------------------------------------------------------------

    def guest(self, name: str = "") -> "_Control":
        """Make the channel of a replica, which has authenticated as `name` if it is on another machine."""
        return _Control(self, name)

    def joined(self, control: "_Control", name: str) -> None:
        if (before := self._controls.get(name)) is not None:
            before.close()
        self._controls[name], self._turns[name] = control, control.turns
        self.ever_ready = True
        for watcher in self.watchers:
            watcher()
        control.send(Keep(list(self._members)))
        for member in self._members.values():
            self._load(control, member)

    def heard(self, control: "_Control", message: FromProcess) -> None:
        if isinstance(message, Loading):
            control.loading = message.socket
            return
        control.loading = ""
        if isinstance(message, Enter) or (member := self._members.get(message.socket)) is None:
            return
        control.turns.leave((member.load.service, LOADING))
        if isinstance(message, Failed):
            if not member.service.ever_ready:
                member.fail(message.why)
                return
            pause = member.put_off()
            why = message.why.rpartition("\n")[2]
            self._say(f"{member.load.service}: the model cannot be loaded; it is loaded again in {pause:g} s: {why}")
            self._load(control, member)
        else:
            member.pause, member.deaths = START_AGAIN[0], 0

    def left(self, control: "_Control", name: str) -> None:
        """Handle a replica that has disconnected, and report the model that it was serving or loading."""
        if self._controls.get(name) is not control:
            return
        del self._controls[name]
        turns = self._turns.pop(name)
        if serving := turns.serving | turns.lost:
            self._say(f"{self.name}: {name} ended while it served {', '.join(sorted(serving))}")
        if (member := self._members.get(control.loading)) is not None:
            member.deaths += 1
            why = f"the process {self.name} ended while it loaded this model"
            if not member.service.ever_ready and member.deaths >= ATTEMPTS:
                member.fail(f"{why}, {member.deaths} times")
            else:
                self._say(f"{member.load.service}: {why}; it is loaded again in {member.put_off():g} s")

    def _look_at_turns(self) -> None:
        """After the loss of a model's connection, continue if the process still exists."""
        for name, turns in self._turns.items():
            if turns.lost:
                asyncio.get_running_loop().call_later(GONE_WITHIN, partial(self._go_on, name, turns))

    def _go_on(self, name: str, turns: Turns) -> None:
        if self._turns.get(name) is turns:
            turns.go_on()

    # --- for `Replicas` ----------------------------------------------------------------------------------------------

    def has(self, job: str) -> bool:
        """Whether a replica of this job is connected."""
        return any(_job_of(name) == job for name in self._controls)

    def is_busy(self, job: str) -> bool:
        """Whether a replica of this job has requests of any model."""
        return any(member.service.is_busy(job) for member in self._members.values())

    def drain(self, job: str) -> None:
        """Send no more requests to the replicas of this job."""
        for member in self._members.values():
            member.service.drain(job)

    def leave_behind(self, job: str, epoch: int) -> None:
        """Disconnect the replicas of this job's attempts before `epoch`."""
        for name, control in list(self._controls.items()):
            if _job_of(name) == job and _epoch_of(name) < epoch:
                control.close()
        for member in self._members.values():
            member.service.leave_behind(job, epoch)

    def note_start_up(self, took: int) -> None:
        """Note the nanoseconds that the latest replica took to start."""
        for member in self._members.values():
            member.service.note_start_up(took)


def _job_of(name: str) -> str:
    return name.partition(".")[0]


def _epoch_of(name: str) -> int:
    epoch = name.rpartition(".")[2]
    return int(epoch) if epoch.isdecimal() and len(epoch) < 20 else 0


class _Control(asyncio.Protocol):
    """The connection on which one replica of a process learns what to load."""

    def __init__(self, process: Process, known_as: str) -> None:
        self.loading = ""
        """The socket of the model that it loads now."""
        self.turns = Turns()
        self._process, self._name = process, known_as
        self._is_known = bool(known_as)
        self._frames = Frames(MAX_MESSAGE)
        self._transport: asyncio.Transport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        if self._is_known:
            self._process.joined(self, self._name)

    def data_received(self, data: bytes) -> None:
        try:
            for frame in self._frames.add(data):
                self._take(decode_from_process.decode(frame))
                if self.is_closed:
                    return
        except msgspec.DecodeError:
            self.close()

    def _take(self, message: FromProcess) -> None:
        if self._name:
            self._process.heard(self, message)
        elif isinstance(message, Enter):
            self._name = message.name
            self._process.joined(self, self._name)

    def connection_lost(self, _: Exception | None) -> None:
        self._process.left(self, self._name)

    @property
    def is_closed(self) -> bool:
        return self._transport is None or self._transport.is_closing()

    def send(self, message: ToProcess) -> None:
        if self._transport is not None and not self._transport.is_closing():
            self._transport.write(framed(message))

    def close(self) -> None:
        if self._transport is not None:
            self._transport.close()


__all__ = ["Process"]
