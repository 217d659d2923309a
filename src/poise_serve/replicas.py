"""Maintains the replicas of a service as jobs of the control plane."""

import asyncio
import contextlib
import secrets
import signal
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, Protocol, TypeVar

import msgspec

from poise.client import Client
from poise.errors import Fault, InputError, NotFound, PoiseError, Unreachable
from poise.model.precision import VARIABLE
from poise.model.reports.jobs import JobReport
from poise.model.reports.streams import LogPiece
from poise.model.scaling import Outlook, after
from poise.model.servicefile import DeclaredService
from poise.policy.replicas import DEFAULT_SCALER, scaler_named
from poise.units import SECOND
from poise_serve.kernel.scaler import LOOK_EVERY, Scaler, with_orders
from poise_serve.notes import Notes
from poise_serve.service import Service

T = TypeVar("T")

START_AGAIN = (1.0, 60.0)
"""Initial and maximum backoff in seconds before restarting a replica."""

ATTEMPTS = 3
"""Maximum attempts of one replica job that is killed by a signal, or lost with its node."""

ASKED = 3
"""Maximum attempts of a request to a control plane that is stopping or restarting."""

NAME_TAKEN = "E107"
"""Error code for a job name that an unfinished job has; `have` is that job."""

SAY_WHY_AFTER = 2.0
"""Seconds that a replica waits for placement before the reason is reported."""

DRAIN_LOOK = 0.05
"""Interval in seconds at which a draining replica is checked."""

TAIL = 2000
"""Bytes of a replica's output in the error if it cannot start."""

_OVER = ("done", "failed", "cancelled", "skipped")


class Served(Protocol):
    """A service, or a process that services share: replicas connect to it."""

    ever_ready: bool
    watchers: list[Callable[[], None]]
    path: Path
    may_join: Callable[[str, int], bool]

    def has(self, job: str) -> bool:
        """Whether a replica of this job is ready."""

    def is_busy(self, job: str) -> bool:
        """Whether a replica of this job has requests."""

    def drain(self, job: str) -> None:
        """Stop sending requests to the replicas of this job."""

    def leave_behind(self, job: str, epoch: int) -> None:
        """Disconnect the replicas of this job's attempts before `epoch`."""

    def note_start_up(self, took: int) -> None:
        """Note the nanoseconds that the latest replica took to start."""


class Replicas:
    """The replica jobs of one service, or of one process that services share. Each replica is a separate job, restarted
    until the service stops.
    """

    def __init__(
        self,
        declared: DeclaredService,
        service: Served,
        connect: Callable[[], Client],
        base: dict[str, Any],
        user: str,
        say: Callable[[str], None],
        notes: Notes,
        address: str = "",
    ) -> None:
        """`connect` makes a client of the control plane. `base`: fields of every job of this user, such as folder and
        environment. `notes`: the saved state of a killed gateway, whose replicas are taken over. Replicas on other
        machines connect to `address`.
        """
        self._declared = declared
        self._service = service
        self._connect = connect
        self._base = base
        self._user = user
        self._say = say
        self.notes = notes
        self._address = address
        self.ordered = 0
        """Replicas that rules add to the target count, within its limits; negative: remove."""
        self._leaving: list[str] = []
        """Surplus replicas that get no more requests, and end once they have answered those that they have."""
        self._since: dict[str, int] = {}
        self._submitting: asyncio.Future[None] | None = None
        self._told: dict[str, str] = {}
        service.ever_ready = notes.noted.ready
        service.note_start_up(notes.noted.start_up)
        service.watchers.append(self._note_ready)
        self._epochs: dict[str, int] = {}
        service.may_join = lambda job, epoch: job in self._jobs and epoch >= self._epochs.get(job, 0)
        self._scaler = self._made_scaler()
        self._pause = START_AGAIN[0]
        self._not_before = 0.0

    @property
    def _jobs(self) -> list[str]:
        return self.notes.noted.jobs

    @property
    def wanted(self) -> int:
        """Number of replicas, without surplus ones."""
        return len(self._jobs) - len(self._leaving)

    @property
    def outlook(self) -> Outlook | None:
        """The forecast of the scaler; None if there is no scaler, or no forecast yet."""
        return self._scaler.outlook if self._scaler is not None else None

    def become(self, declared: DeclaredService) -> None:
        """Use the replica count and scaling rules of `declared` from now on."""
        before = self._declared
        self._declared = msgspec.structs.replace(
            before,
            replicas=declared.replicas,
            rules=declared.rules,
            scaler=declared.scaler,
            window=declared.window,
            announced=declared.announced,
        )
        if self._declared != before:
            self._scaler = self._made_scaler()

    def _made_scaler(self) -> Scaler | None:
        declared = self._declared
        if declared.rules is None or not isinstance(self._service, Service):
            return None
        policy = scaler_named(declared.scaler or DEFAULT_SCALER)
        now = time.monotonic_ns()
        since_1970 = time.time_ns() - now
        return Scaler(
            self._service,
            declared.rules,
            declared.window,
            policy,
            self._say,
            now,
            len(self._jobs),
            after(declared.announced, since_1970),
        )

    def spec(self) -> dict[str, Any]:
        """Return the job specification of a new replica."""
        declared, base = self._declared, self._base
        where = {
            "POISE_SERVICE_NAME": declared.name,
            "POISE_SERVICE_SOCKET": str(self._service.path),
            **({"POISE_SERVICE_ADDRESS": self._address} if self._address else {}),
            "POISE_SERVICE_BATCH": str(declared.limits.batch),
            "POISE_SERVICE_AT_ONCE": str(declared.concurrency),
            **({"POISE_SERVICE_WHOLE": whole} if (whole := needs_whole(declared)) else {}),
            **({VARIABLE: declared.precision} if declared.precision else {}),
        }
        program = ["poise_serve.replica", declared.model] if declared.model else ["poise_serve.shared_process"]
        name = f"{declared.name}-{self.notes.noted.asked}"
        why = self._scaler.why if self._scaler is not None else ""
        return {
            **base,
            **({"folder": declared.folder} if declared.folder else {}),
            **declared.job,
            "name": name,
            "serves": f"{name} serves {declared.name}{': ' if why else ''}{why}",
            "class": f"{declared.name}-replica",
            "run": [declared.python or sys.executable, "-m", *program],
            "env": base["env"] | declared.job.get("env", {}) | where,
            "retry": {"limit": ATTEMPTS - 1, "when": ["lost", "killed", "signal", "oom"]},
        }

    async def keep(self) -> None:
        """Maintain the replicas until cancelled. Raises `InputError` with their output if the first replicas cannot
        start. A service that was ever ready keeps serving while the control plane is unreachable.
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
        """Start or stop replicas to match the target count, and check which have ended."""
        wanted = self._declared.replicas
        if self._scaler is not None:
            now = time.monotonic_ns()
            wanted = self._scaler.look(now, self.start_up(now))
        wanted = with_orders(wanted, self.ordered, self._declared.rules)
        while self.wanted < wanted and time.monotonic() >= self._not_before:
            self._submitting = asyncio.ensure_future(self._submit())
            await asyncio.shield(self._submitting)
        for job in [job for job in self._jobs if job not in self._leaving][wanted:]:
            self._service.drain(job)
            self._leaving.append(job)
        for job in [job for job in self._leaving if not self._service.is_busy(job)]:
            await self.replace(job)
        self._learn_start_up()
        await asyncio.sleep(LOOK_EVERY / SECOND)
        ended = [job for job in self._jobs if await self._ask(partial(self._is_over, job))]
        self._epochs = {job: self._epochs.get(job, 0) for job in self._jobs}
        for job, epoch in self._epochs.items():
            self._service.leave_behind(job, epoch)
        if ended:
            self.notes.noted.jobs = [job for job in self._jobs if job not in ended]
            self._leaving = [job for job in self._leaving if job not in ended]
            self.notes.write()
            self._back_off([job for job in ended if self._since.pop(job, 0)])

    def _back_off(self, never_ready: list[str]) -> None:
        """Set the backoff after replicas have ended. It doubles while some end without having been ready."""
        if never_ready:
            self._say(
                f"{self._declared.name}: {', '.join(never_ready)} ended without having been ready; "
                f"another is started in {self._pause:g} s"
            )
        self._not_before = time.monotonic() + (self._pause if never_ready else START_AGAIN[0])
        self._pause = min(2 * self._pause, START_AGAIN[1]) if never_ready else START_AGAIN[0]

    async def _submit(self) -> None:
        """Submit a replica, with the same idempotency key until it is accepted, so that a retry makes no second job."""
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
            taken = error.record.code == NAME_TAKEN and error.record.have != spec["name"]  # otherwise an invalid name
            if not taken:  # taken: by a job of another or a killed gateway
                raise
        noted.key = ""
        self.notes.write()

    def start_up(self, now: int) -> int:
        """Return the expected start-up time of a new replica in nanoseconds: that of the latest one, and no less than
        replicas that still start have taken so far.
        """
        return max(self.notes.noted.start_up, *(now - since for since in self._since.values()), 0)

    def _note_ready(self) -> None:
        """Save that a replica was ready, so that a gateway that takes over knows that they can start."""
        if self._service.ever_ready and not self.notes.noted.ready:
            self.notes.noted.ready = True
            self.notes.write()

    def _learn_start_up(self) -> None:
        """Measure the start-up time of the latest replica, from submission to ready. A gateway that takes over knows
        it too.
        """
        for job in [job for job in self._since if self._service.has(job)]:
            self.notes.noted.start_up = time.monotonic_ns() - self._since.pop(job)
            self._service.note_start_up(self.notes.noted.start_up)
            self.notes.write()

    async def _ask(self, question: Callable[[Client], T]) -> T:
        """Query the control plane in a thread. Retry, because an idle one that is stopping gets restarted."""

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
                field=self._declared.model or self._declared.name,
                have=told if told and by_itself else f"{told}\n{_ending(report)}".strip(),
                hint=f"poise logs {job}",
            )
        self._tell(report)
        self._epochs[job] = max((task.epoch for task in report.tasks), default=0)
        return report.status in _OVER

    def _tell(self, report: JobReport) -> None:
        """Report a replica that has ended, is retried or waits, and why. Once each."""
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
            news = f"{report.id} is retried ({what}); `poise explain {report.id}` says why"
        if what and self._told.get(report.id) != what:
            self._told[report.id] = what
            self._say(f"{self._declared.name}: {news}")

    async def drain(self, job: str) -> None:
        """End a replica once it has answered its batch. Another job is started."""
        self._service.drain(job)
        while self._service.is_busy(job):  # noqa: ASYNC110 — there is no event
            await asyncio.sleep(DRAIN_LOOK)
        await self.replace(job)

    async def replace(self, name: str) -> None:
        """Cancel a hung or surplus replica. If too few remain, another job is started later."""
        job = name.partition(".")[0]
        if job in self._jobs:
            self._jobs.remove(job)
            self._leaving = [one for one in self._leaving if one != job]
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


def needs_whole(declared: DeclaredService) -> str:
    """Return the field of the service that needs whole answers, if any."""
    needing = {"cache": declared.cache, "canary": declared.canary or declared.trial, "openai": declared.openai}
    return next((field for field, value in needing.items() if value), "")


def _ending(report: JobReport) -> str:
    why = [task.note for task in report.tasks if task.note]
    if why:
        return why[0]
    code = report.exit_code or 0
    if any(task.outcome in ("signal", "killed") for task in report.tasks) and code - 128 in set(signal.Signals):
        return f"ended by {signal.Signals(code - 128).name}"
    return f"exit code {report.exit_code}"


__all__ = ["ATTEMPTS", "START_AGAIN", "Replicas", "Served", "needs_whole"]
