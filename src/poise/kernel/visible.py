"""Restricts the view of a ledger for the bearer of a token: other tenants' work is hidden.

The fleet is visible to all tenants: the use of a node is shown, its users are not. Jobs of other tenants are hidden. If
an answer about one's own work names other work (which it waits behind, or which is preempted for it), the name is
removed and the fact remains. Poise's texts always name units as `j7.train`, so removing such names is enough; text from
users is left unchanged.
"""

import re
from collections.abc import Iterator
from typing import Any, TypeVar

import msgspec

from poise.kernel.explain import budget_report, quota_report, schedule_report
from poise.kernel.ledger import JobState, Ledger
from poise.kernel.reserved import reservation_reports
from poise.kernel.sharing import shares_report
from poise.model.arrays import each
from poise.model.events import (
    Began,
    Called,
    CallsClosed,
    CallTried,
    ClockSet,
    Configured,
    DeadlinesMissed,
    DeviceCordoned,
    DeviceDrained,
    Event,
    Finished,
    FunctionTold,
    Held,
    JobCancelled,
    JobChanged,
    JobHeld,
    JobsCancelled,
    JobsRemoved,
    JobSubmitted,
    Lagging,
    NodeDrained,
    NodeForgotten,
    NodeJoined,
    NodeLevelled,
    NodeLost,
    NodeSuspected,
    NodeTrusted,
    NodeUnfit,
    Noticed,
    Notified,
    Placed,
    Preempted,
    QuotaSet,
    QuotaTurned,
    ReservationAdded,
    ReservationMoved,
    ReservationReleased,
    ReservationRemoved,
    Resized,
    Resumed,
    Returned,
    ScheduleAdded,
    ScheduleHeld,
    ScheduleRemoved,
    ScheduleTurn,
    ServicesMeasured,
    SpeedupsTold,
    Started,
    Straggling,
    Suspended,
    TokenAdded,
    TokenRenewed,
    TokenRevoked,
    TrainingTold,
    UnitsCancelled,
)
from poise.model.incidents import OF_WORK, IncidentReport, Suspect
from poise.model.jobs import Job
from poise.model.reports.jobs import ScheduleReport
from poise.model.reports.nodes import NodeReport
from poise.model.reports.questions import Ahead
from poise.model.reports.status import StatusReport
from poise.model.reports.tenants import BudgetReport, QuotaReport, ReservationReport, ShareReport, SharesReport
from poise.model.secrets import HIDDEN
from poise.model.tenants import Bearer, Role, tenant_of_class, tenant_of_queue

OTHERS = "work of another tenant"

_UNIT = re.compile(r"(?<![\w.-])j[1-9][0-9]*(?:\.[\w.\[\]-]*[\w\]])?(?![\w-])")
"""A job, unit or task, as Poise writes it: `j7`, `j7.train`, `j7.shard[2]`."""

_SUSPECTED_WORK = re.compile(f"(?:^suspected cause: |, before: )(?:{'|'.join(sorted(OF_WORK))}) ")
"""A change of the suspected cause from or to a user's work, in the timeline of an incident."""

_SERVICE = re.compile(r"service (\S+) ")
"""Beginning of a timeline line about a service."""

_AGAIN = re.compile(f"{OTHERS}(?:, {OTHERS})+")

_WRITTEN_BY_USERS = frozenset({"name", "command", "user", "result", "artifact", "said"})

Report = TypeVar("Report")


def _without_sealed(event: Any) -> Any:
    """Return an event with the names of secrets but without their values."""
    replace = msgspec.structs.replace
    if isinstance(event, ScheduleAdded):
        return replace(event, schedule=replace(event.schedule, job=_hidden(event.schedule.job)))
    return replace(event, job=_hidden(event.job)) if isinstance(event, JobSubmitted) else event


def _hidden(job: Job) -> Job:
    replace = msgspec.structs.replace
    if not job.secrets and not any(unit.secrets for unit in job.units):
        return job
    units = tuple(replace(unit, secrets=dict.fromkeys(unit.secrets, HIDDEN)) for unit in job.units)
    array = None if job.array is None else each(job.array, secrets=units[0].secrets)
    return replace(job, secrets=dict.fromkeys(job.secrets, HIDDEN), units=units, array=array)


class Sight:
    """A ledger as a bearer may see it."""

    def __init__(self, ledger: Ledger, bearer: Bearer) -> None:
        self.ledger = ledger
        self.bearer = bearer

    def jobs(self, recent: int | None = None, after: str = "") -> Iterator[JobState]:
        """Return all visible jobs, or the unfinished ones and the `recent` latest finished ones; with `after`, only
        those after that job.
        """
        tenant = None if self.bearer.sees_all else self.bearer.tenant
        own = (job for job in self.ledger.jobs.after(after) if tenant in (None, job.tenant))
        if recent is None:
            return own
        latest = frozenset(self.ledger.jobs.latest_ended(recent, tenant))
        return (job for job in own if not job.ended or job.id in latest)

    def schedules(self) -> list[ScheduleReport]:
        known = self.ledger.schedules.values()
        return [schedule_report(self.ledger, of) for of in known if self.bearer.sees(of.job.tenant)]

    def quotas(self) -> list[QuotaReport]:
        return [
            quota_report(tenant, quota, self.ledger.quotas.held(tenant))
            for tenant, quota in sorted(self.ledger.quotas.items())
            if self.bearer.sees(tenant)
        ]

    def reservations(self, now: int) -> list[ReservationReport]:
        """Return all reservations; of those of other tenants, only the times and places."""
        return reservation_reports(self.ledger, now, self.bearer)

    def shares(self, now: int) -> SharesReport:
        """Return all shares; for other tenants, only their standing relative to the bearer's own."""
        report = shares_report(self.ledger, now)
        tree = self.ledger.shares.tree
        if self.bearer.sees_all or tree is None:
            return report
        own = {node.name for node in tree.nodes if (node.kind, node.of) == ("tenant", self.bearer.tenant)}
        seen: list[ShareReport] = []
        inside = set(own)
        for one in report.shares:
            if one.within in inside:
                inside.add(one.name)
            if one.name in inside or one.kind in ("group", "tenant") or not one.within:
                seen.append(one)
        return msgspec.structs.replace(report, shares=tuple(seen))

    def status(self, report: StatusReport) -> StatusReport:
        """Return the report with the counts of the bearer's tenant."""
        if self.bearer.sees_all:
            return report
        own = [job for job in self.ledger.jobs.values() if job.tenant == self.bearer.tenant and not job.ended]
        statuses = [unit.status for job in own for unit in job.units]
        return msgspec.structs.replace(
            report, unfinished=len(own), pending=statuses.count("pending"), active=statuses.count("active")
        )

    def node(self, report: NodeReport) -> NodeReport:
        """Return the report without the names of other tenants' work on its devices."""
        if self.bearer.sees_all:
            return report
        return msgspec.structs.replace(report, devices=self._only(report.devices, frozenset()))

    def incident(self, report: IncidentReport) -> IncidentReport | None:
        """Return an incident of the fleet or of the tenant's own work, without the names of other work; None for
        others.
        """
        if self.bearer.sees_all:
            return report
        if not self._may_suspect(report.cause):
            return None
        all_own = not report.more_jobs and all(map(self._is_own, report.jobs))
        cleaned = msgspec.structs.replace(
            report,
            tied=tuple(filter(self._may_suspect, report.tied)),
            timeline=tuple(
                msgspec.structs.replace(step, text=self._without_said(step.text))
                for step in report.timeline
                if not _SUSPECTED_WORK.search(step.text) and self._may_read(step.text)
            ),
            undelivered={},
            outputs=report.outputs if all_own and report.cause.kind in OF_WORK else (),
        )
        return self.only(cleaned)

    def _may_suspect(self, suspect: Suspect) -> bool:
        """Return whether a suspect is a part of the fleet, or the tenant's own work."""
        match suspect.kind:
            case "job":
                return self._is_own(suspect.name)
            case "program" | "service":
                return tenant_of_class(suspect.name) == self.bearer.tenant
            case "user":
                return suspect.name.partition("/")[0] == self.bearer.tenant
            case "budget":
                return self._is_own_budget(suspect.name)
        return True

    def _may_notice(self, event: Noticed) -> bool:
        """Return whether a detector's notice concerns the fleet, or the tenant's own work."""
        match event.kind:
            case "member-differs" | "new-template":
                return self._is_own(event.subject)
            case "objective-missed":
                return tenant_of_class(event.subject) == self.bearer.tenant
            case "rule-fired" if event.service:
                return tenant_of_class(event.subject) == self.bearer.tenant
            case "budget-reached":
                return self._is_own_budget(event.subject)
        return True

    def _is_own_budget(self, name: str) -> bool:
        """Return whether a budget covers only work of the bearer's tenant."""
        known = self.ledger.budgets.get(name)
        return known is not None and known.budget.tenant == self.bearer.tenant

    def budgets(self, now: int) -> list[BudgetReport]:
        """Report the budgets that the bearer may see: those of its tenant, or all."""
        seen = (name for name in self.ledger.budgets if self.bearer.sees_all or self._is_own_budget(name))
        return [budget_report(self.ledger, name, now) for name in seen]

    def _may_read(self, text: str) -> bool:
        """Return False for a timeline line about a service of another tenant."""
        service = _SERVICE.match(text)
        return service is None or tenant_of_class(service[1]) == self.bearer.tenant

    def _without_said(self, text: str) -> str:
        """Return a timeline line without the text after the colon, if an attempt of others or a policy wrote it."""
        names = _UNIT.findall(text)
        harmless = all(map(self._is_own, names)) and not text.startswith("policy ")
        return text if harmless else text.partition(": ")[0]

    def shows(self, job: str) -> bool:
        """Return whether the bearer may see a job, by its id."""
        return self.bearer.sees_all or self._is_own(job)

    def only(self, report: Report, *own: str) -> Report:
        """Return a report on own work without the names of other work; `own` are ids of jobs that do not exist yet."""
        return report if self.bearer.sees_all else self._only(report, frozenset(own))

    def event(self, event: Event) -> Any:
        """Return the part of the record that the bearer may see, or None; sealed values are always hidden. If the
        ledger has forgotten a job, only its submission is still recognized as one's own.
        """
        event = _without_sealed(event)
        if isinstance(event, TokenAdded) and self.bearer.role == Role.ADMIN:
            return msgspec.structs.replace(event, token=msgspec.structs.replace(event.token, hash=""))
        if isinstance(event, TokenAdded | TokenRenewed | TokenRevoked) and self.bearer.role < Role.ADMIN:
            return None
        if self.bearer.sees_all:
            return event
        match event:
            case JobSubmitted():
                return self._asked(event) if event.job.tenant == self.bearer.tenant else None
            case JobCancelled() | UnitsCancelled() | JobHeld() | JobChanged():
                return self._asked(event) if self._is_own(event.job) else None
            case JobsCancelled():
                own = tuple(job for job in event.jobs if self._is_own(job))
                return self._asked(msgspec.structs.replace(event, jobs=own)) if own else None
            case ScheduleAdded():
                return self._asked(event) if event.schedule.job.tenant == self.bearer.tenant else None
            case ScheduleHeld() | ScheduleTurn():
                known = self.ledger.schedules.get(event.schedule)
                if known is None or known.job.tenant != self.bearer.tenant:
                    return None
                return event if isinstance(event, ScheduleTurn) else self._asked(event)
            case ReservationAdded():
                return self._asked(event) if event.reservation.tenant == self.bearer.tenant else None
            case ReservationMoved() | ReservationReleased():
                known_place = self.ledger.reservations.get(event.reservation)
                mine = known_place is not None and known_place.reservation.tenant == self.bearer.tenant
                return event if mine else None
            case QuotaTurned():
                return event if event.tenant == self.bearer.tenant else None
            case QuotaSet() | JobsRemoved() | ScheduleRemoved() | ReservationRemoved():
                return self._asked(event) if event.tenant == self.bearer.tenant else None
            case NodeJoined() | NodeDrained() | DeviceDrained() | Configured():
                return self._asked(event)
            case Placed() | Preempted() | Resized():
                return self._only(event, frozenset()) if self._is_own(event.unit) else None
            case DeadlinesMissed() | Notified() | FunctionTold() | Called() | CallTried() | Returned() | CallsClosed():
                return event if self._is_own(event.job) else None
            case Started() | Finished() | Straggling() | Lagging():
                return event if self._is_own(event.task) else None
            case SpeedupsTold() | TrainingTold() | Suspended():
                return event if self._is_own(event.unit) else None
            case Resumed():
                return self._asked(event) if self._is_own(event.unit) else None
            case Noticed():  # targets are the operator's, and their addresses may be secret
                return msgspec.structs.replace(event, targets=()) if self._may_notice(event) else None
            case ServicesMeasured():
                return self._own_services(event)
            case Held():
                mine = tenant_of_queue(event.queue) == self.bearer.tenant
                return self._only(event, frozenset()) if mine else None
            case (
                Began()
                | ClockSet()
                | NodeLost()
                | NodeForgotten()
                | NodeLevelled()
                | NodeSuspected()
                | NodeTrusted()
                | NodeUnfit()
                | DeviceCordoned()
            ):
                return event
        return None  # hide events that are not known to be harmless

    def _own_services(self, event: ServicesMeasured) -> ServicesMeasured | None:
        services = {name: of for name, of in event.services.items() if tenant_of_class(name) == self.bearer.tenant}
        gone = tuple(name for name in event.gone if tenant_of_class(name) == self.bearer.tenant)
        return msgspec.structs.replace(event, services=services, gone=gone) if services or gone else None

    def _is_own(self, name: str) -> bool:
        """Return whether a job, unit or task belongs to the bearer's tenant."""
        job = self.ledger.jobs.get(name.partition(".")[0])
        return job is not None and job.tenant == self.bearer.tenant

    def _asked(self, event: Any) -> Any:
        """Return the event; remove the requester unless the requester belongs to this tenant."""
        token = self.ledger.tokens.get(event.by)
        known = token is not None and token.tenant == self.bearer.tenant
        return event if known else msgspec.structs.replace(event, by="")

    def _only(self, value: Any, own: frozenset[str]) -> Any:
        """Return the value without names of other tenants' work; the same object if there are none."""
        if isinstance(value, str):
            return _AGAIN.sub(OTHERS, _UNIT.sub(lambda found: self._called(found[0], own), value))
        if isinstance(value, tuple | list):
            told = [self._only(item, own) for item in value]
            kept = all(new is old for new, old in zip(told, value, strict=True))
            return value if kept else type(value)(dict.fromkeys(told) if OTHERS in told else told)
        if isinstance(value, dict):
            return {key: self._only(item, own) for key, item in value.items()}
        if isinstance(value, Ahead) and not (self._is_own(value.unit) or value.unit.partition(".")[0] in own):
            return Ahead(OTHERS, "")
        if isinstance(value, msgspec.Struct):
            fields = (field for field in value.__struct_fields__ if field not in _WRITTEN_BY_USERS)
            told_of = {field: self._only(getattr(value, field), own) for field in fields}
            changed = {field: new for field, new in told_of.items() if new is not getattr(value, field)}
            return msgspec.structs.replace(value, **changed) if changed else value
        return value

    def _called(self, name: str, own: frozenset[str]) -> str:
        return name if name.partition(".")[0] in own or self._is_own(name) else OTHERS
