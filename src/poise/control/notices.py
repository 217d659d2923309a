"""Notices of jobs: which targets a job may notify, and delivery to them.

The ledger knows the due notices and the log records deliveries, so a restart loses none. A notice that was delivered
just before a crash is delivered again; receivers recognize duplicates by the id. Only the bookkeeping runs on the loop:
a slow or dead receiver blocks one thread.
"""

import asyncio
import logging
from collections import Counter, deque
from collections.abc import Awaitable, Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import cast
from urllib.parse import urlsplit

import msgspec

from poise.config import Home
from poise.control.plane import Plane
from poise.drivers import webhooks
from poise.drivers.webhooks import Undelivered
from poise.errors import NotLeading, PoiseError, SpecError, StoreFull, located
from poise.kernel import messages
from poise.kernel.explain import job_report
from poise.kernel.ledger import JobState
from poise.model.notices import (
    COMMAND,
    WEBHOOK,
    Moment,
    Notice,
    Notifications,
    Notify,
    compile_notifications,
    unknown_command,
)
from poise.model.spec import Compiled
from poise.model.tenants import Bearer, Role
from poise.units import SECOND

THREADS = 16
"""Number of sender threads; a receiver blocks at most one at a time."""

GOING, GOING_OF_RECEIVER = 1024, 4
"""Limits on notices being sent or waiting for a retry: in total, and per receiver. Further ones wait."""

DELAYS = (1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 60.0, 120.0, 300.0)
"""Seconds before each retry. After the last one the notice is given up."""

RECORD_AGAIN = 5.0
"""Seconds between attempts to record a finished notice while the disk of the log is full."""

EVERY = 0.2
"""Seconds between two checks for due notices."""

_Key = tuple[str, str]
"""The id of a job and the name of one of its notices."""

_log = logging.getLogger("poise.control")


async def until_taken(name: str, send: Callable[[], Awaitable[None]], delays: Sequence[float]) -> str:
    """Send a notice until it is accepted or given up. Return why it was given up, or an empty text."""
    for delay in (*delays, None):
        try:
            await send()
            return ""
        except Undelivered as error:
            if delay is None or not error.worth_retrying:
                _log.warning("notice %s is given up: %s", name, error)
                return str(error)
            await asyncio.sleep(delay)
    raise AssertionError("the last delay is None")


async def until_recorded(plane: Plane, done: Callable[[int], messages.Message]) -> bool:
    """Record that a notice is finished. Return False if another control plane leads: it sends the notice again."""
    while True:
        try:
            await plane.request(done)
            return True
        except NotLeading:
            return False
        except StoreFull:
            await asyncio.sleep(RECORD_AGAIN)


class Targets:
    """The home's notification settings, from a file that is read again when it changes."""

    def __init__(self, home: Home) -> None:
        self._path = home.notifications
        self._read: tuple[tuple[int, int], Notifications] | None = None

    def of_home(self) -> Notifications:
        """Return the settings of the home. Thread-safe. Raises SpecError for an invalid file."""
        try:
            found = self._path.stat()
        except FileNotFoundError:
            return Notifications()
        state, read = (found.st_mtime_ns, found.st_size), self._read
        if read is None or read[0] != state:
            from poise.drivers.yamlfile import load_yaml, place_in_file  # few homes have such a file

            with located(place_in_file(self._path)):
                self._read = read = (state, compile_notifications(load_yaml(self._path)))
        return read[1]

    def send(self, target: str, notice: str, body: bytes, told: Mapping[str, str], *, trusted: bool) -> None:
        """Send a body to a webhook or a command, on any thread. A command gets `told` as POISE_ variables. A webhook
        may have a private address if it is `trusted`. Raises `Undelivered`.
        """
        try:
            of_home = self.of_home()
        except (PoiseError, OSError) as error:
            raise Undelivered(f"`notifications.yaml` cannot be read: {error}") from None
        if target.startswith(WEBHOOK):
            url = target.removeprefix(WEBHOOK)
            private = trusted or urlsplit(url).hostname in of_home.private
            webhooks.post(url, body, notice, key=of_home.key, private=private)
            return
        argv = of_home.commands.get(target.removeprefix(COMMAND))
        if argv is None:
            raise Undelivered(f"this home has no {target}", worth_retrying=False)
        webhooks.run(argv, body, {f"POISE_{what}": text for what, text in told.items()})

    def admit(self, compiled: Compiled, bearer: Bearer) -> Compiled:
        """Return the job with its targets: its own, or else those that the home names for all jobs. Raises SpecError
        for a command that the home does not have, and for a webhook at a private address unless the bearer is an admin.
        """
        of_home, trusted = self.of_home(), bearer.role >= Role.ADMIN
        if compiled.notify is None:
            if compiled.calls or compiled.units[0].serves:  # these end when nobody needs them
                return compiled
            return compiled._replace(notify=of_home.notify)
        for target in compiled.notify.targets:
            if target.startswith(COMMAND) and target.removeprefix(COMMAND) not in of_home.commands:
                raise unknown_command(target, of_home.commands)
            host = urlsplit(target.removeprefix(WEBHOOK)).hostname or "" if target.startswith(WEBHOOK) else ""
            if not trusted and host and webhooks.is_private_literal(host, of_home.private):
                what, hint = "this webhook is at a private address", "`private:` in `notifications.yaml` of the home"
                raise SpecError(what, code="E105", field="notify", have=host, hint=hint)
        return compiled._replace(notify=msgspec.structs.replace(compiled.notify, trusted=trusted))


class Notifier:
    """Sends the notices of jobs while this control plane leads."""

    def __init__(self, plane: Plane, targets: Targets, delays: tuple[float, ...] = DELAYS) -> None:
        self._plane = plane
        self._targets = targets
        self._delays = delays
        self._news = asyncio.Event()
        self._looked: set[str] = set()
        """Jobs whose notices are all queued or being sent."""
        self._waiting: dict[str, deque[_Key]] = {}
        """Queued notices by receiver."""
        self._going: dict[_Key, asyncio.Task[None]] = {}
        self._taken: set[_Key] = set()
        """Notices that are queued or being sent."""
        self._of_receiver: Counter[str] = Counter()
        self._turns: dict[str, asyncio.Lock] = {}
        self._threads = ThreadPoolExecutor(THREADS, "notice")

    async def run(self) -> None:
        """Send due notices until this is cancelled."""
        news = self._news = self._plane.follow()
        try:
            while True:
                news.clear()
                if self._plane.behind is None:
                    self._begin()
                await asyncio.sleep(EVERY)
                await news.wait()
        finally:
            self._plane.unfollow(news)
            for task in self._going.values():
                task.cancel()
            self._threads.shutdown(wait=False, cancel_futures=True)

    def _begin(self) -> None:
        """Queue the notices that are due and durable, and send as many as the limits allow."""
        jobs, durable = self._plane.ledger.jobs, self._plane.controller.durable
        for job_id, since in jobs.notifying.items():
            if job_id in self._looked or since > durable:
                continue
            self._looked.add(job_id)
            for name in jobs[job_id].notices:
                if (key := (job_id, name)) not in self._taken:
                    self._taken.add(key)
                    self._waiting.setdefault(_receiver(_target(jobs[job_id], name)), deque()).append(key)
        for receiver in list(self._waiting):
            self._send_to(receiver)

    def _send_to(self, receiver: str) -> None:
        """Send the queued notices of a receiver, as far as the limits allow."""
        waiting = self._waiting.get(receiver, deque())
        while waiting and self._of_receiver[receiver] < GOING_OF_RECEIVER and len(self._going) < GOING:
            key = waiting.popleft()
            job = self._plane.ledger.jobs.get(key[0])
            if job is None or key[1] not in job.notices:  # the job or its notice was removed
                self._forget(key)
                continue
            self._of_receiver[receiver] += 1
            self._going[key] = asyncio.create_task(self._deliver(job, key[1], receiver))
            self._going[key].add_done_callback(partial(self._gone, key, receiver))
        if not waiting:
            self._waiting.pop(receiver, None)

    def _gone(self, key: _Key, receiver: str, task: asyncio.Task[None]) -> None:
        del self._going[key]
        self._forget(key)
        self._of_receiver[receiver] -= 1
        if not self._of_receiver[receiver]:
            del self._of_receiver[receiver]
            self._turns.pop(receiver, None)
        if task.cancelled():
            return
        if (error := task.exception()) is not None:
            _log.error("a notice of %s is not dealt with: %s", key[0], error)
        self._send_to(receiver)
        self._news.set()  # its job may have new notices by now

    def _forget(self, key: _Key) -> None:
        """Mark a notice as finished. Its job is checked again, since it may have new notices."""
        self._taken.discard(key)
        self._looked.discard(key[0])

    async def _deliver(self, job: JobState, name: str, receiver: str) -> None:
        """Send a notice until it is accepted or given up, and record that."""
        notice, target = self._notice(job, name), _target(job, name)

        async def send() -> None:
            async with self._turns.setdefault(receiver, asyncio.Lock()):
                now = partial(self._send, target, notice, job.notify)
                await asyncio.get_running_loop().run_in_executor(self._threads, now)

        failed = await until_taken(notice.id, send, self._delays)
        await until_recorded(self._plane, partial(messages.NoticeDone, job=job.id, notice=name, failed=failed))

    def _send(self, target: str, notice: Notice, notify: Notify | None) -> None:
        """Send a notice once; runs on a thread. Raises `Undelivered`."""
        told = {"JOB": notice.job, "NAME": notice.name, "STATUS": notice.status, "MOMENT": notice.moment}
        trusted = notify is not None and notify.trusted
        self._targets.send(target, notice.id, msgspec.json.encode(notice), told, trusted=trusted)

    def _notice(self, job: JobState, name: str) -> Notice:
        ledger = self._plane.ledger
        report = job_report(ledger, job, self._plane.clock.now(), tasks=False)
        return Notice(
            id=f"{job.id}/{name}",
            moment=cast(Moment, name.partition("/")[0]),
            job=job.id,
            name=job.name,
            tenant=job.tenant,
            user=job.user,
            status=report.status,
            exit_code=report.exit_code,
            command=report.command,
            note=job.note,
            submitted=report.submitted,
            ended=report.ended,
            elapsed=report.elapsed / SECOND,
        )


def _target(job: JobState, name: str) -> str:
    """Return the target of a notice; its name ends with the target's index."""
    targets = job.notify.targets if job.notify is not None else ()
    return targets[int(name.partition("/")[2])]


def _receiver(target: str) -> str:
    """Return what is rate-limited as one receiver: the host of a webhook, or a command."""
    return (urlsplit(target.removeprefix(WEBHOOK)).netloc if target.startswith(WEBHOOK) else target).lower()
