"""Routes of jobs: submit, list, change, hold, cancel, retry, remove."""

import asyncio
from collections import Counter
from functools import partial
from itertools import islice
from typing import Annotated, Any

import msgspec

from poise.config import PAGE
from poise.control.api.parts import MAX_LISTED, MAX_WAIT, OPERATOR, SUBMITTER, VIEWER, JobIds, Parts, Revision
from poise.control.hot import Submission
from poise.control.routes import Request, Routes
from poise.drivers.captures import captures_of
from poise.drivers.tidy import remove_folders
from poise.errors import SpecError
from poise.kernel import messages
from poise.kernel.changing import to_remove
from poise.kernel.explain import job_report
from poise.kernel.find import found_report, listed
from poise.kernel.ledger import job_status
from poise.kernel.visible import Sight
from poise.model.changing import as_job, fields_in
from poise.model.fields import MAX_DURATION, Quantity, parse_or_raise
from poise.model.reports.jobs import Changed, JobReport, JobStatus
from poise.model.spec import compile_spec
from poise.model.tenants import Bearer
from poise.units import parse_duration

RECENT = 20
"""Number of finished jobs in a list of jobs, unless the client requests all."""

CANCELLED_AT_ONCE = 1024
"""Jobs cancelled in one turn of the loop (about 20 ms) and by one log record, when all jobs are cancelled."""

REMOVED_AT_ONCE = 1024
"""Jobs that one request may remove by name, and that one log record removes when all are removed."""


class Submitted(msgspec.Struct, frozen=True):
    """An accepted job or job schedule; its record is durable. `note` is a remark on it. If it serves calls, its caller
    authenticates to `/v1/calls` with `caller_key`.
    """

    job: str
    note: str = ""
    caller_key: str = ""


class Cancelled(msgspec.Struct, frozen=True):
    """The number of cancelled jobs, in total and by tenant, and their ids. Their records are durable; their running
    tasks are being stopped.
    """

    cancelled: int
    tenants: dict[str, int]
    jobs: tuple[str, ...]


class Change(msgspec.Struct, frozen=True):
    """Fields of a job file with their new values, such as `{"priority": "high", "resources": {"memory": "8GiB"}}`."""

    spec: dict[str, Any]


class Removed(msgspec.Struct, frozen=True):
    """Ids of the removed jobs. Their output, values and checkpoints are removed too."""

    removed: tuple[str, ...]


class RemoveRequest(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The ended jobs to remove: `jobs` by id or name; or `all`; or those that match all given filters: one of the
    `statuses`, a `name` or id pattern, a `user`, an end at least `older_than` (a duration) ago.
    """

    jobs: Annotated[tuple[str, ...], msgspec.Meta(max_length=REMOVED_AT_ONCE)] = ()
    all: bool = False
    statuses: tuple[JobStatus, ...] = ()
    name: Annotated[str, msgspec.Meta(max_length=128)] = ""
    user: Annotated[str, msgspec.Meta(max_length=128)] = ""
    older_than: Quantity | None = None

    @property
    def filters(self) -> bool:
        return bool(self.all or self.statuses or self.name or self.user or self.older_than is not None)


class ResumeReport(msgspec.Struct, frozen=True):
    """Why suspended tasks wait for their resources; they resume once these are free. Empty if all run."""

    waits: tuple[str, ...]


def add_routes(routes: Routes, parts: Parts) -> None:
    plane, home = parts.plane, parts.home

    @routes.post(
        "/v1/jobs",
        summary="Submit a job (or, as application/x-ndjson, a stream of them)",
        status=201,
        role=SUBMITTER,
    )
    async def submit(
        bearer: Bearer, request: Request, data: Submission, if_revision: Revision | None = None
    ) -> Submitted:
        spec = parts.vault.sealed(data.spec, bearer.tenant)
        compiled = parts.targets.admit(await plane.prepare(spec, bearer.tenant, len(request.body)), bearer)
        if compiled.tree is not None:
            plane.controller.jobs.check(compiled, data.key, data.user)  # before the client sends files for the job
        await parts.files.admit(compiled, bearer.account)
        await parts.chances.check(compiled, data.key, data.user)
        job = await plane.request(
            lambda number: messages.Submit(number, compiled, data.key, data.user, if_revision, bearer)
        )
        return Submitted(job, compiled.note, parts.caller_key_of(job))

    @routes.get(
        "/v1/jobs",
        summary="Jobs: the unfinished and the latest finished ones, or all; by `status`, `name` (a pattern), `user`, "
        f"and the `latest` of these; the first {PAGE}, or those `after` an id",
        role=VIEWER,
    )
    async def jobs(
        bearer: Bearer,
        all_: bool = False,
        status: tuple[JobStatus, ...] = (),
        name: Annotated[str, msgspec.Meta(max_length=128)] = "",
        user: Annotated[str, msgspec.Meta(max_length=128)] = "",
        latest: Annotated[int, msgspec.Meta(ge=0, le=MAX_LISTED)] = 0,
        after: Annotated[str, msgspec.Meta(pattern=r"^(j[0-9]{1,18})?$(?!\n)")] = "",
        limit: Annotated[int, msgspec.Meta(ge=1, le=PAGE)] = PAGE,
    ) -> list[JobReport]:
        ledger = await plane.settled()
        now = plane.clock.now()
        seen = Sight(ledger, bearer).jobs(None if all_ else RECENT, "" if latest else after)
        shown = islice(listed(seen, statuses=status, name=name, user=user, latest=latest, after=after), limit)
        idle = plane.controller.tellings.idle_since
        return [job_report(ledger, job, now, tasks=False, idle=idle) for job in shown]

    @routes.post(
        "/v1/jobs/ended",
        summary="Which of these jobs have ended, with their statuses; an empty status: no longer known",
        status=200,
        role=VIEWER,
    )
    async def ended_jobs(bearer: Bearer, data: JobIds) -> dict[str, str]:
        ledger = await plane.settled()
        found = {name: job for name in data if (job := ledger.jobs.get(name)) is not None and bearer.sees(job.tenant)}
        ended = {name: job_status(job) for name, job in found.items() if job.ended}
        return ended | dict.fromkeys((name for name in data if name not in found), "")

    @routes.get(
        "/v1/jobs/{name}",
        summary="One job with its tasks, or some of them; `wait` at most this many seconds until they are over",
        role=VIEWER,
    )
    async def job(bearer: Bearer, name: str, wait: float = 0.0) -> JobReport:
        ledger, found = await parts.settled_job(bearer, name)
        if wait > 0 and not found.job.ended:
            units = () if found.whole else tuple(unit.id for unit in found.units)
            await plane.over(found.job.id, units, min(wait, MAX_WAIT))
            ledger = await plane.settled()
        live = plane.controller.tellings.heard, plane.controller.tellings.idle_since
        told = Sight(ledger, bearer).only(found_report(ledger, found, plane.clock.now(), *live))
        kept = await asyncio.to_thread(captures_of, home.logs, found.job.id)
        return msgspec.structs.replace(told, captures=tuple(kept)) if kept else told

    @routes.post(
        "/v1/jobs/{name}/cancel",
        summary="Cancel a job, or some of its tasks; running tasks get SIGTERM, then SIGKILL",
        status=202,
        role=SUBMITTER,
    )
    async def cancel(bearer: Bearer, name: str) -> Submitted:
        return Submitted(await plane.request(lambda request: messages.Cancel(request, name, bearer)))

    @routes.post(
        "/v1/jobs/{name}/hold",
        summary="Put a job on hold: waiting tasks do not start; running tasks continue",
        status=202,
        role=SUBMITTER,
    )
    async def hold(bearer: Bearer, name: str) -> Submitted:
        return Submitted(await plane.request(lambda request: messages.HoldJob(request, name, True, bearer)))

    @routes.post(
        "/v1/jobs/{name}/release",
        summary="Release a job that is on hold",
        status=202,
        role=SUBMITTER,
    )
    async def release(bearer: Bearer, name: str) -> Submitted:
        return Submitted(await plane.request(lambda request: messages.HoldJob(request, name, False, bearer)))

    @routes.post(
        "/v1/jobs/{name}/resume",
        summary="Resume the suspended tasks of a job; the answer says why some still wait for resources",
        status=200,
        role=SUBMITTER,
    )
    async def resume(bearer: Bearer, name: str) -> ResumeReport:
        return ResumeReport(await parts.resume(bearer, name))

    @routes.post(
        "/v1/jobs/{name}/change",
        summary="Change fields of an unfinished job, or of some of its tasks",
        status=202,
        role=SUBMITTER,
    )
    async def change(bearer: Bearer, name: str, data: Change) -> Changed:
        fields = fields_in(data.spec)
        compiled = compile_spec(as_job(data.spec), wall=plane.clock.wall(), tenant=bearer.tenant)
        changed: Changed = await plane.request(
            lambda number: messages.ChangeJob(number, name, compiled, fields, bearer)
        )
        return changed

    @routes.post(
        "/v1/jobs/{name}/retry",
        summary="Submit the unfinished part of an ended job again",
        status=201,
        role=SUBMITTER,
    )
    async def retry(bearer: Bearer, name: str) -> Submitted:
        return Submitted(await plane.request(lambda request: messages.RetryJob(request, name, bearer)))

    @routes.post(
        "/v1/cancel",
        summary="Cancel all unfinished jobs of the bearer's tenant, or of all with `all_tenants`, as an operator; "
        "only those with such a status, name or user, where given; running tasks get SIGTERM, then SIGKILL",
        status=202,
        role=SUBMITTER,
    )
    async def cancel_all(
        bearer: Bearer,
        all_tenants: bool = False,
        status: tuple[JobStatus, ...] = (),
        name: Annotated[str, msgspec.Meta(max_length=128)] = "",
        user: Annotated[str, msgspec.Meta(max_length=128)] = "",
    ) -> Cancelled:
        if all_tenants:
            parts.gate.allow(bearer, OPERATOR, "/v1/cancel")
        ledger = await plane.settled()
        theirs = (job for job in ledger.jobs.values() if all_tenants or job.tenant == bearer.tenant)
        unfinished = [job.id for job in listed(theirs, statuses=status, name=name, user=user) if not job.ended]
        latest_first = unfinished[::-1]
        tenants: Counter[str] = Counter()
        jobs: list[str] = []
        for first in range(0, len(latest_first), CANCELLED_AT_ONCE):  # cancel dependent jobs first
            few = tuple(latest_first[first : first + CANCELLED_AT_ONCE])
            cancelled = await plane.request(partial(messages.CancelJobs, jobs=few, bearer=bearer))
            tenants += Counter(cancelled.values())
            jobs += cancelled
        return Cancelled(len(jobs), dict(tenants), tuple(reversed(jobs)))

    @routes.post(
        "/v1/remove",
        summary="Remove ended jobs, by name or by filter, with their output, values and checkpoints",
        status=202,
        role=SUBMITTER,
    )
    async def remove(bearer: Bearer, data: RemoveRequest) -> Removed:
        if bool(data.jobs) == data.filters:
            raise SpecError("name jobs, or filter them: one of both", code="E101", field="jobs", hint='{"all": true}')
        plane.check_leading()
        ledger = await plane.settled()
        if data.jobs:
            ended = to_remove(ledger, data.jobs, bearer)
        else:
            age = parse_or_raise(parse_duration, data.older_than or 0, "older_than", MAX_DURATION)
            until = plane.clock.now() - age
            seen = listed(Sight(ledger, bearer).jobs(), statuses=data.statuses, name=data.name, user=data.user)
            ended = [job for job in seen if 0 < job.ended <= until]
        removed: list[str] = []
        for first in range(0, len(ended), REMOVED_AT_ONCE):
            few = tuple(job.id for job in ended[first : first + REMOVED_AT_ONCE])
            await asyncio.to_thread(remove_folders, (home.logs, home.values, home.meetings, home.checkpoints), few)
            removed += await plane.request(partial(messages.RemoveJobs, jobs=few, bearer=bearer))
        return Removed(tuple(removed))
