"""The audit: requests and their requesters, in words, from the records of the log."""

from poise.kernel.ledger import Ledger
from poise.model.document import some
from poise.model.events import (
    AUDITED,
    BudgetsSet,
    Configured,
    DeviceDrained,
    JobCancelled,
    JobChanged,
    JobHeld,
    JobsCancelled,
    JobsRemoved,
    JobSubmitted,
    NodeDrained,
    QuotaSet,
    ReservationAdded,
    ReservationRemoved,
    Resumed,
    RuleAnswered,
    RulesSet,
    ScheduleAdded,
    ScheduleHeld,
    ScheduleRemoved,
    SharesSet,
    TokenAdded,
    TokenRenewed,
    TokenRevoked,
    UnitsCancelled,
)
from poise.model.quotas import Quota
from poise.model.reports.access import AuditReport
from poise.model.resources import PLENTY
from poise.model.tenants import DEFAULT
from poise.policy.split import split_in
from poise.units import format_bytes, format_cpu

FEW = 8
"""Maximum number of jobs or units to name."""


def audit_report(ledger: Ledger, revision: int, event: AUDITED) -> AuditReport:
    """Report one record. It has only the names that the ledger still knows; the log has all of them."""
    by = "" if event.by == "user" else event.by  # version 0.1.0 recorded cancellations like this
    token = ledger.tokens.get(by)
    return AuditReport(
        revision=revision,
        at=ledger.leader.wall(event.at),
        token=by,
        name=token.name if token is not None else "",
        tenant=token.tenant if token is not None else "" if by else DEFAULT,
        what=_in_words(event),
    )


def _in_words(event: AUDITED) -> str:
    match event:
        case JobSubmitted():
            job = event.job
            return f"submitted {job.id}{f' {job.name}' if job.name else ''} of {job.tenant}"
        case Resumed():
            return f"resumed {event.unit}"
        case JobCancelled():
            return f"cancelled {event.job}"
        case JobsCancelled():
            return f"cancelled {some(event.jobs, FEW)}"
        case JobsRemoved():
            return f"removed {some(event.jobs, FEW)} of {event.tenant}"
        case ScheduleAdded():
            made = event.schedule
            name = f" {made.job.name}" if made.job.name else ""
            return f"added schedule {made.id}{name} of {made.job.tenant}: {made.rule.sentence()}"
        case ScheduleHeld():
            why = f": {event.why}" if event.why else ""
            return f"{'held' if event.on else 'released'} schedule {event.schedule}{why}"
        case ScheduleRemoved():
            return f"removed schedule {event.schedule} of {event.tenant}"
        case JobHeld():
            return f"{'held' if event.on else 'released'} {event.job}{f': {event.why}' if event.why else ''}"
        case JobChanged():
            return f"changed {some(event.paths, FEW)} of {some(event.units, FEW)}"
        case UnitsCancelled():
            return f"cancelled {some(event.units, FEW)}"
        case NodeDrained():
            return f"{('emptied' if event.moves else 'drained') if event.on else 'opened'} {event.name}"
        case DeviceDrained():
            return f"{'drained' if event.on else 'opened'} device {event.device} of {event.node}"
        case QuotaSet():
            bounds = _bounds(event.quota) if event.quota is not None else ""
            return f"bounded {event.tenant} to {bounds}" if bounds else f"lifted the quota of {event.tenant}"
        case ReservationAdded():
            kept = event.reservation
            whose = f"tenant {kept.tenant}" if kept.tenant else "maintenance"
            return f"reserved {kept.wants()} for {whose}: {kept.id} {kept.name}"
        case ReservationRemoved():
            return f"{'ended' if event.over else 'cancelled'} reservation {event.reservation}"
        case BudgetsSet():
            names = [budget.name for budget in event.budgets]
            return f"set the budgets {some(names, FEW)}" if names else "removed the budgets"
        case SharesSet():
            names = [node.name for node in event.tree.nodes if node.kind != "others"] if event.tree is not None else []
            return f"set the shares {some(names, FEW)}" if names else "removed the shares"
        case TokenAdded():
            token = event.token
            name = f" ({token.name})" if token.name else ""
            account = f", account {token.account}" if token.account else ""
            if token.subject:
                return f"signed in, token {token.id}{name}: {token.role.name.lower()} of {token.tenant}{account}"
            return f"added token {token.id}{name}: {token.role.name.lower()} of {token.tenant}{account}"
        case Configured() if (split := split_in(event.recipe)) is not None:
            told = f"let {split.trial.policy} decide for {split.nodes}, and {split.rest.policy} for the rest"
            return f"{told}{f' ({event.why})' if event.why else ''}"
        case Configured():
            return f"set the policy to {event.policy}{f' ({event.why})' if event.why else ''}"
        case RulesSet():
            names = [str(rule["name"]) for rule in event.document.get("rules", ())]
            return f"set the rules to {some(names, FEW)}" if names else "removed the rules"
        case RuleAnswered():
            return f"{'allowed' if event.allowed else 'denied'} rule {event.rule} for {event.subject or 'the fleet'}"
        case TokenRenewed():
            return f"renewed token {event.id}"
        case TokenRevoked():
            return f"revoked token {event.id}"
    return "stopped the control plane"


def _bounds(quota: Quota) -> str:
    told = (
        (quota.cpu, f"{format_cpu(quota.cpu)} CPU"),
        (quota.memory, format_bytes(quota.memory)),
        (quota.gpus, f"{format_cpu(quota.gpus)} GPU"),
    )
    return ", ".join(words for amount, words in told if amount < PLENTY)
