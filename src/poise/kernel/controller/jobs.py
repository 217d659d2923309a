"""Requests about jobs: submit, change, hold, cancel, retry, remove."""

from collections import Counter
from collections.abc import Callable, Iterable

from poise.errors import Busy, Conflict, NotFound, SpecError
from poise.kernel import changing
from poise.kernel.controller.attempts import LiveAttempts
from poise.kernel.controller.cadence import Cadence
from poise.kernel.controller.limits import LiveLimits
from poise.kernel.controller.outbox import Outbox, Requests
from poise.kernel.dispatch import Dispatch
from poise.kernel.find import check_exist, find
from poise.kernel.fitting import check_all
from poise.kernel.lateness import Lateness
from poise.kernel.ledger import WINDOW, JobState, Ledger, UnitState
from poise.kernel.messages import (
    Cancel,
    CancelJobs,
    ChangeJob,
    HoldJob,
    NoticeDone,
    RemoveJobs,
    RetryJob,
    Submit,
    TakeIn,
)
from poise.kernel.owners import owned
from poise.kernel.timetable import Calendar
from poise.kernel.turns import Turns
from poise.model.events import (
    Event,
    JobCancelled,
    JobChanged,
    JobHeld,
    JobsCancelled,
    JobSubmitted,
    Notified,
    UnitsCancelled,
)
from poise.model.jobs import Job
from poise.model.messages import Desired
from poise.model.reports.jobs import Changed
from poise.model.spec import Compiled
from poise.model.tenants import Bearer, Role

MAX_UNFINISHED = 200_000


class JobRequests:
    """The part of the controller that takes jobs in, and does what their users ask."""

    def __init__(
        self,
        ledger: Ledger,
        calendar: Calendar | None,
        outbox: Outbox,
        cadence: Cadence,
        attempts: LiveAttempts,
        limits: LiveLimits,
        dispatch: Dispatch,
        *,
        commit: Callable[[Event], None],
    ) -> None:
        self.ledger = ledger
        self._outbox = outbox
        self._cadence = cadence
        self._attempts = attempts
        self._limits = limits
        self._dispatch = dispatch
        self._commit = commit
        self.lateness = Lateness()
        self.turns = Turns(
            ledger,
            calendar,
            commit=commit,
            submit=self._take_in,
            would_submit=self.would_submit,
            stop=self._stop_cancelled,
        )

    def requests(self) -> Requests:
        return {
            Submit: self._submit,
            TakeIn: lambda message, now: self._admit(message.job, "", "", now),
            Cancel: self._cancel,
            CancelJobs: self._cancel_jobs,
            HoldJob: self._hold,
            ChangeJob: self._change,
            RetryJob: self._retry,
            RemoveJobs: self._remove,
            NoticeDone: self._notice_done,
        }

    def _submit(self, message: Submit, now: int) -> str:
        rule, tenant = message.compiled.recurs, message.compiled.tenant
        known = self.ledger.jobs if rule is None else self.ledger.schedules
        existing = known.submitted_under(message.key, tenant) if message.key else None
        if existing is not None:
            return existing
        if message.if_revision is not None and message.if_revision != self.ledger.revision:
            raise Conflict(
                "state changed since the plan was made",
                code="E122",
                field="if_revision",
                need=f"revision {message.if_revision}",
                have=f"revision {self.ledger.revision}",
                hint="`poise plan` again, and submit with its revision",
            )
        compiled, by = owned(self.ledger, message.compiled, message.bearer), message.bearer.token
        user = message.bearer.person or message.user
        if rule is not None:
            return self.turns.add(rule, compiled, user, message.key, by, now)
        return self._admit(self.would_submit(compiled, user), message.key, by, now)

    def _admit(self, job: Job, key: str, by: str, now: int) -> str:
        undecided = self._cadence.undecided
        self._take_in(job, key, by, now)
        if not undecided:
            self._cadence.submitted(self.ledger.jobs[job.id].units)
        return job.id

    def _take_in(self, job: Job, key: str, by: str, now: int) -> None:
        self._commit(JobSubmitted(at=now, job=job, key=key, by=by))
        if job.id in self.ledger.jobs.cancelling:
            self.lateness.submitted(job.id)

    def check(self, compiled: Compiled, key: str, user: str) -> None:
        """Raises the error with which a submission would be refused now, unless its key was accepted already."""
        if compiled.recurs is None and not (key and self.ledger.jobs.submitted_under(key, compiled.tenant)):
            self.would_submit(compiled, user)

    def would_submit(self, compiled: Compiled, user: str = "") -> Job:
        """Return the job that a submission would create now, without effect. Raises the error of a refusal."""
        tenant = compiled.tenant
        self._check_room(tenant, min(compiled.size, max(len(compiled.units), WINDOW)))
        if compiled.name and (held := self.ledger.jobs.named(compiled.name, tenant)):
            raise Conflict(
                f"the name `{compiled.name}` is taken by an unfinished job",
                code="E107",
                field="name",
                have=held.id,
                hint=f"`poise cancel {compiled.name}`, or another name",
            )
        own = Bearer(tenant, Role.SUBMITTER)
        ids = {
            name: self._awaited(name, own, field).id
            for field, names in zip(("after", "after-any", "after-failure"), compiled.all_after, strict=True)
            for name in names
        }
        several = Counter(ids[name] for names in compiled.all_after for name in set(names)) if ids else {}
        if twice := next((job for job, times in several.items() if times > 1), ""):
            what = "it comes after one job in two ways"
            raise SpecError(what, code="E105", field="after", have=twice, hint=f"after-any: [{twice}]")
        check_all(compiled.units, self.ledger.columns.room(), tenant, self.ledger.quotas.get(tenant))
        return compiled.job(self.ledger.jobs.next_id(), ids, user)

    def _check_room(self, tenant: str, more: int) -> None:
        """Raises `Busy` if there are too many unfinished units. A sole tenant may use the whole limit. Otherwise a
        tenant may use half of what the others leave, so that there is always room for a new one.
        """
        own = self.ledger.jobs.unfinished_units(tenant)
        room = MAX_UNFINISHED - (self.ledger.jobs.unfinished_units() - own)
        if own + more > room // 2 and (self.ledger.jobs.has_others(tenant) or self.ledger.tokens.has_others(tenant)):
            room //= 2
        if own + more > room:
            raise Busy(
                f"too much work of tenant `{tenant}` is waiting already",
                need=f"at most {room} units",
                have=str(own + more),
                hint="submit the rest when some of it has ended",
            )

    def _awaited(self, name: str, bearer: Bearer, field: str) -> JobState:
        """Return a job that another one waits for, by its full name, because a spec outlives the meaning of a
        prefix.
        """
        job = self.ledger.jobs.find(name, bearer)
        if job is None:
            what, hint = f"there is no job `{name}`", "`poise ls --all` lists the jobs"
            whole = name.partition(".")[0]
            if self.ledger.jobs.find(whole, bearer) is not None:
                what = f"a job comes after a whole job, and `{name}` is a task"
                hint = f"{field}: [{whole}]; tasks of one job have `needs`"
            raise NotFound(what, code="E105", field=field, have=name, hint=hint)
        return job

    def _cancel(self, message: Cancel, now: int) -> str:
        found = find(self.ledger, message.job, bearer=message.bearer)
        by = message.bearer.token
        job, units = found.job, [unit for unit in found.units if not unit.over]
        if not units:
            what = f"job {job.id}" if found.whole else found.name
            raise Conflict(f"{what} is over already", field="job", hint=f"`poise show {found.name}`")
        check_exist(self.ledger, found)
        if job.calls is not None and not found.whole:
            raise Conflict(
                f"{found.name} is a worker of {job.id}, which has as many as it needs",
                field="job",
                hint=f"`poise cancel {job.id}`",
            )
        for unit in units:
            if not found.tasks.issuperset(task.name for task in unit.spec.tasks):
                raise Conflict(
                    f"{found.name} is a member of a gang, which can only be cancelled as a whole",
                    field="job",
                    have=f"{len(unit.spec.tasks)} tasks in {unit.id}",
                    hint=f"`poise cancel {unit.id}`",
                )
        if found.whole:
            self._commit(JobCancelled(at=now, job=job.id, by=by))
        else:
            ids = tuple(unit.id for unit in units)
            turns = any(unit.spec.at_most for unit in units)
            self._commit(UnitsCancelled(at=now, job=job.id, units=ids, by=by, turns=turns))
        self._stop_cancelled(job, units, now)
        return found.name

    def _cancel_jobs(self, message: CancelJobs, now: int) -> dict[str, str]:
        bearer, known = message.bearer, (self.ledger.jobs.get(name) for name in message.jobs)
        jobs = [job for job in known if job and not job.ended and not job.cancelled_by and bearer.sees(job.tenant)]
        if jobs:
            self._commit(JobsCancelled(at=now, jobs=tuple(job.id for job in jobs), by=bearer.token))
        for job in jobs:
            if not job.ended or job.calls is not None:
                self._stop_cancelled(job, job.units, now)
        return {job.id: job.tenant for job in jobs}

    def _stop_cancelled(self, job: JobState, units: Iterable[UnitState], now: int) -> None:
        """Stop the running attempts of a cancelled job."""
        for unit in units:
            if unit.status == "active":
                self._attempts.stop(unit, now)
        self._dispatch.cancelled(job, now)

    def cancel_late(self, now: int) -> None:
        """Cancel units whose deadline cannot be met, if their user asked for it, before they get more devices."""
        for missed in self.lateness.missed(self.ledger, now):
            units = [self.ledger.jobs.unit(one.unit) for one in missed.units]
            self._commit(missed)
            for unit in units:
                if unit is not None and unit.status == "active":
                    self._attempts.stop(unit, now)

    def _hold(self, message: HoldJob, now: int) -> str:
        job = changing.to_hold(self.ledger, message.job, message.bearer)
        if job.budget and not message.on:
            what, hint = f"the budget `{job.budget}` holds {job.id}", "`poise usage --budgets`; an admin can raise it"
            raise Conflict(what, field="job", have=job.held_for, hint=hint)
        if job.hold != message.on or job.budget:  # the hold of a user outlasts that of a budget
            self._commit(JobHeld(at=now, job=job.id, on=message.on, by=message.bearer.token))
            self._cadence.want()
        return job.id

    def _change(self, message: ChangeJob, now: int) -> Changed:
        event, told = changing.change(self.ledger, message.job, message.compiled, message.fields, now, message.bearer)
        if event.units:
            self.commit_change(event)
        return told

    def commit_change(self, event: JobChanged) -> None:
        self._limits.change(event)
        if event.job in self.ledger.jobs.cancelling:
            self.lateness.submitted(event.job)

    def _retry(self, message: RetryJob, now: int) -> str:
        compiled, user = changing.to_retry(self.ledger, message.job, message.bearer)
        job = self.would_submit(compiled, user)
        self._commit(JobSubmitted(at=now, job=job, by=message.bearer.token))
        return job.id

    def _remove(self, message: RemoveJobs, now: int) -> tuple[str, ...]:
        removal = changing.remove(self.ledger, message.jobs, now, message.bearer)
        for event in removal.events:
            self._commit(event)
        for node, removed in removal.by_node.items():
            self._outbox.send(node, Desired(removed=tuple(removed)))
        return removal.jobs

    def _notice_done(self, message: NoticeDone, now: int) -> None:
        """Record a delivered notice. The job may have been removed meanwhile."""
        job = self.ledger.jobs.get(message.job)
        if job is not None and message.notice in job.notices:
            self._commit(Notified(at=now, job=job.id, notice=message.notice, failed=message.failed))
