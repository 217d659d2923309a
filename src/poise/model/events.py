"""Events: the records of the log. Only an event changes the ledger.

Each event has `at`, nanoseconds since the creation of the log. `by` is the id of the token that requested it; it is
empty for the home's own token. A record's tag never changes its meaning; a new meaning gets a new tag.
"""

from typing import Any

import msgspec

from poise.decoding import msgpack_decoder
from poise.model.budgets import Budget
from poise.model.calls import Call, Function, Result
from poise.model.deadlines import Missed
from poise.model.decisions import Cause, Reason, Spot, Why
from poise.model.incidents import Moment, SymptomKind
from poise.model.jobs import Ending, Job, Unit
from poise.model.progress import Speedups
from poise.model.quotas import Quota
from poise.model.recurring import Schedule
from poise.model.reservations import Reservation
from poise.model.resources import Node
from poise.model.share_tree import ShareTree
from poise.model.tenants import Token
from poise.model.training import Training


class Began(msgspec.Struct, frozen=True, tag="began", kw_only=True, omit_defaults=True):
    """A control plane took over the log. `term` fences its predecessors. `history` is the number of finished jobs to
    retain: the latest ones or, if `fair`, the latest of each tenant, with the retained jobs balanced between tenants.
    `history_tasks` also limits the total number of their tasks (0: unlimited). `learning` numbers the rules by which
    run times are learned and expected, so that logs of earlier versions keep theirs: with 0, a class learns from each
    task, and the more certain one of its mean and a declared time counts; with 1 it learns from each unit, and both
    count.

    `boot` and `boottime` anchor `at` to this boot's clock; `wall` (seconds since 1970) is for display only.

    The other fields are the remaining inputs of its views, so that rounds can be replayed: `seed`, `throughputs`, the
    `recipe` of a policy that does not ship with Poise, and `code`, which identifies the version of the deciding code. A
    `fixed` policy gives each unit exactly one place, by its number: it sees all waiting and all running work. `asked`
    is the time of the request for the policy, in seconds since 1970; 0 for the default.
    """

    at: int
    term: int
    policy: str
    history: int
    version: str
    boot: str = ""
    boottime: int = 0
    wall: float = 0.0
    seed: int = 0
    throughputs: dict[str, float] = {}
    recipe: dict[str, Any] = {}
    code: str = ""
    fair: bool = False
    fixed: bool = False
    asked: float = 0.0
    history_tasks: int = 0
    learning: int = 0


class Configured(msgspec.Struct, frozen=True, tag="configured", kw_only=True, omit_defaults=True):
    """Another policy decides from here on, as requested at `asked` (seconds since 1970). It inherits no memory from the
    previous policy. `why` gives the evidence for a promotion from shadow, or says that this is a rollback. The other
    fields are those of `Began`; they apply until the next `Began` or `Configured`.
    """

    at: int
    policy: str
    asked: float
    recipe: dict[str, Any] = {}
    code: str = ""
    fixed: bool = False
    by: str = ""
    why: str = ""


def configured(began: Began, event: Configured) -> Began:
    """Return `began` with the policy that `event` configured."""
    return msgspec.structs.replace(
        began, policy=event.policy, recipe=event.recipe, code=event.code, fixed=event.fixed, asked=event.asked
    )


class JobSubmitted(msgspec.Struct, frozen=True, tag="submitted", kw_only=True, omit_defaults=True, gc=False):
    """A job was accepted. `key` makes a repeated submission of the same tenant harmless."""

    at: int
    job: Job
    key: str = ""
    by: str = ""


class JobCancelled(msgspec.Struct, frozen=True, tag="cancelled", kw_only=True, omit_defaults=True):
    at: int
    job: str
    by: str = ""


class JobsCancelled(msgspec.Struct, frozen=True, tag="jobs-cancelled", kw_only=True, omit_defaults=True):
    """Many jobs are cancelled together, by id: one record for all of them."""

    at: int
    jobs: tuple[str, ...]
    by: str = ""


class UnitsCancelled(msgspec.Struct, frozen=True, tag="units-cancelled", kw_only=True, omit_defaults=True):
    """Some units of a job are cancelled, by id; units that need them are skipped, and the rest continue. With `turns`,
    parts of a task with limited concurrency pass their turns on.
    """

    at: int
    job: str
    units: tuple[str, ...]
    by: str = ""
    turns: bool = False


class JobHeld(msgspec.Struct, frozen=True, tag="job-held", kw_only=True, omit_defaults=True):
    """A job is put on hold (`on`) or released; units on hold do not start. `why` is set if Poise itself put the job on
    hold, and `budget` if that is because a budget is spent.
    """

    at: int
    job: str
    on: bool
    by: str = ""
    why: str = ""
    budget: str = ""


class JobChanged(msgspec.Struct, frozen=True, tag="job-changed", kw_only=True, omit_defaults=True):
    """Unfinished units of a job get the values that `like` has at these `paths` (`model/changing.py`). The attempts of
    the units that `grow` get a larger memory limit at once, or have a smaller one already.
    """

    at: int
    job: str
    units: tuple[str, ...]
    like: Unit
    paths: tuple[str, ...]
    by: str = ""
    grow: tuple[str, ...] = ()


class JobsRemoved(msgspec.Struct, frozen=True, tag="jobs-removed", kw_only=True, omit_defaults=True):
    """Ended jobs of one tenant are removed from the ledger, by id."""

    at: int
    jobs: tuple[str, ...]
    tenant: str
    by: str = ""


class ScheduleAdded(msgspec.Struct, frozen=True, tag="schedule-added", kw_only=True, omit_defaults=True):
    """A schedule was accepted. `key` makes a repeated submission of the same tenant harmless."""

    at: int
    schedule: Schedule
    key: str = ""
    by: str = ""


class ScheduleTurn(msgspec.Struct, frozen=True, tag="schedule-turn", kw_only=True, omit_defaults=True):
    """The `due` turn of a schedule was handled: `job` was submitted, or none because it was `refused`. `next` is the
    next due time. Turns since `missed` were skipped because no control plane was running (0: none). Times as in
    `Schedule`.
    """

    at: int
    schedule: str
    due: int
    next: int
    job: str = ""
    refused: str = ""
    missed: int = 0


class ScheduleHeld(msgspec.Struct, frozen=True, tag="schedule-held", kw_only=True, omit_defaults=True):
    """A schedule is put on hold (`on`) or released, and is then due at `next`. `why` is set if Poise itself held it."""

    at: int
    schedule: str
    on: bool
    next: int = 0
    why: str = ""
    by: str = ""


class ScheduleRemoved(msgspec.Struct, frozen=True, tag="schedule-removed", kw_only=True, omit_defaults=True):
    """A tenant's schedule is removed and submits no more jobs. Its jobs stay."""

    at: int
    schedule: str
    tenant: str
    by: str = ""


class Notified(msgspec.Struct, frozen=True, tag="notified", kw_only=True, omit_defaults=True):
    """A job's notice was delivered, named as in `JobState.notices`; or delivery `failed` and was given up."""

    at: int
    job: str
    notice: str
    failed: str = ""


class DeadlinesMissed(msgspec.Struct, frozen=True, tag="deadlines-missed", kw_only=True):
    """Deadlines of a job became impossible to meet, and the job asks to cancel such work: these units are cancelled,
    units that need them are skipped, and the rest continue.
    """

    at: int
    job: str
    units: tuple[Missed, ...]


class Placed(msgspec.Struct, frozen=True, tag="placed", kw_only=True, omit_defaults=True, gc=False):
    """A unit got its next epoch and a spot for each of its tasks, or for the first ones if it is elastic.

    `brief`: others of its shape may queue behind it. `variant` is the artifact it runs.
    """

    at: int
    unit: str
    epoch: int
    spots: tuple[Spot, ...]
    why: Why
    queued: bool = False
    brief: bool = False
    variant: int = 0


class Preempted(msgspec.Struct, frozen=True, tag="preempted", kw_only=True, omit_defaults=True):
    """A unit is asked to checkpoint and end, for `to` or for its own good; it is pending again once it has ended."""

    at: int
    unit: str
    epoch: int
    cause: Cause
    why: Why
    to: str = ""


class Resized(msgspec.Struct, frozen=True, tag="resized", kw_only=True, omit_defaults=True):
    """A running gang changes size in place: the tasks numbered in `leaves` are asked to end, and those in `joins`
    start, each on its spot, in epoch `epoch`; the other tasks keep running. `generation` counts these changes since the
    gang was placed, including those caused by lost members.
    """

    at: int
    unit: str
    epoch: int
    generation: int
    cause: Cause
    why: Why
    leaves: tuple[int, ...] = ()
    joins: tuple[tuple[int, Spot], ...] = ()
    to: str = ""


class Suspended(msgspec.Struct, frozen=True, tag="suspended", kw_only=True):
    """An idle unit of one task is suspended: its processes are stopped, and it keeps only its memory. It was last in
    use at the instant `since`.
    """

    at: int
    unit: str
    epoch: int
    since: int


class Resumed(msgspec.Struct, frozen=True, tag="resumed", kw_only=True, omit_defaults=True):
    """A suspended unit has its resources again, as at its placement, and continues."""

    at: int
    unit: str
    epoch: int
    by: str = ""


class Started(msgspec.Struct, frozen=True, tag="started", kw_only=True, omit_defaults=True, gc=False):
    """A task runs. Short tasks skip this record: their `Finished` has the run time."""

    at: int
    task: str
    epoch: int
    pid: int = 0
    cpus: tuple[int, ...] = ()


class Finished(msgspec.Struct, frozen=True, tag="finished", kw_only=True, omit_defaults=True, gc=False):
    """An attempt is over. `until`: latest end time of exclusive work that was given up without hearing from its
    node.
    """

    at: int
    task: str
    epoch: int
    ending: Ending
    until: int = 0


class Straggling(msgspec.Struct, frozen=True, tag="straggling", kw_only=True):
    """An attempt takes significantly longer than its siblings; recorded once per attempt. After it had `ran` for this
    duration, `siblings` attempts were done, with a mean run time of `expected`.
    """

    at: int
    task: str
    epoch: int
    node: str
    ran: int
    expected: int
    siblings: int


class Lagging(msgspec.Struct, frozen=True, tag="lagging", kw_only=True):
    """A gang member `computes` for longer in each step than the others, which then wait for it: `siblings` members on
    the same device model compute for `usual` in the median. Recorded once per attempt.
    """

    at: int
    task: str
    epoch: int
    node: str
    computes: int
    usual: int
    siblings: int


class SpeedupsTold(msgspec.Struct, frozen=True, tag="speedups", kw_only=True):
    """A running unit reported its speedups, for the first time or with a noticeable change."""

    at: int
    unit: str
    speedups: Speedups


class TrainingTold(msgspec.Struct, frozen=True, tag="training", kw_only=True):
    """A running unit reported its training progress, and a value that Poise uses has changed noticeably."""

    at: int
    unit: str
    training: Training


class Held(msgspec.Struct, frozen=True, tag="held", kw_only=True, gc=False):
    """The reasons why a queue waits have changed."""

    at: int
    queue: str
    reasons: tuple[Reason, ...]


class NodeJoined(msgspec.Struct, frozen=True, tag="joined", kw_only=True, omit_defaults=True):
    """A node joined with the token `by`: `home` for the home's own token; empty if unknown."""

    at: int
    node: Node
    by: str = ""


class NodeLost(msgspec.Struct, frozen=True, tag="lost", kw_only=True, omit_defaults=True):
    """A node has been silent for too long, or its substrate `said` that it is gone. `until`: latest end time of the
    exclusive work on it.
    """

    at: int
    name: str
    until: int = 0
    said: bool = False


class NodeSuspected(msgspec.Struct, frozen=True, tag="suspected", kw_only=True):
    """A node has been silent for longer than its limit: nothing new is placed there, and running work stays placed."""

    at: int
    name: str


class NodeTrusted(msgspec.Struct, frozen=True, tag="trusted", kw_only=True):
    """A suspected node has been heard from again."""

    at: int
    name: str


class NodeUnfit(msgspec.Struct, frozen=True, tag="unfit", kw_only=True, omit_defaults=True):
    """A node cannot start tasks, and reports `why`: nothing new is placed there until it can. Without `why`, it can
    again.
    """

    at: int
    name: str
    why: str = ""


class NodeForgotten(msgspec.Struct, frozen=True, tag="forgotten", kw_only=True):
    """A node is no longer part of the fleet, and holds no work."""

    at: int
    name: str


class NodeLevelled(msgspec.Struct, frozen=True, tag="levelled", kw_only=True, omit_defaults=True):
    """A node's load level has changed and stayed there. `hot`: above the threshold for a sustained window."""

    at: int
    name: str
    level: int
    hot: bool = False


class Triggered(msgspec.Struct, frozen=True, tag="triggered", kw_only=True, omit_defaults=True):
    """A signal crossed its threshold and forced a round."""

    at: int
    trigger: str
    subject: str = ""
    have: str = ""


class Noticed(msgspec.Struct, frozen=True, tag="noticed", kw_only=True, omit_defaults=True):
    """A detector noticed an anomaly of `subject` (a node, a task, a service, or the control plane if empty), or that it
    is `over`. `text` describes the measurement for people; `jobs` are the replicas of a service; `targets` are notified
    beside those of the home. `service`: a rule fired for a service. Only detectors write this record, and no decision
    depends on it.
    """

    at: int
    kind: SymptomKind
    subject: str = ""
    text: str = ""
    over: bool = False
    jobs: tuple[str, ...] = ()
    targets: tuple[str, ...] = ()
    service: bool = False


class IncidentTold(msgspec.Struct, frozen=True, tag="incident-told", kw_only=True, omit_defaults=True):
    """A notification target received an incident at a `moment`, or delivery `failed`."""

    at: int
    incident: str
    moment: Moment
    target: str
    failed: str = ""


class NodeDrained(msgspec.Struct, frozen=True, tag="drained", kw_only=True, omit_defaults=True):
    """Close a node to new placements (`on`) or open it again. With `moves`, its running work moves to other nodes. If
    it is closed for maintenance, `reservation` is the id of that reservation.
    """

    at: int
    name: str
    on: bool
    by: str = ""
    moves: bool = False
    reservation: str = ""


class DeviceCordoned(msgspec.Struct, frozen=True, tag="device-cordoned", kw_only=True, omit_defaults=True):
    """A device of a node has failed: nothing is placed on it until somebody opens it again. `id` is its driver's name
    for it, or its index if it has none; units whose attempts it ended are never placed on it again.
    """

    at: int
    node: str
    device: int
    id: str
    code: str
    text: str = ""


class DeviceDrained(msgspec.Struct, frozen=True, tag="device-drained", kw_only=True, omit_defaults=True):
    """Close a device to new placements (`on`), or open it again whatever it was closed for."""

    at: int
    node: str
    device: int
    id: str
    on: bool
    by: str = ""


class QuotaSet(msgspec.Struct, frozen=True, tag="quota", kw_only=True, omit_defaults=True):
    """Set a tenant's quota; None removes it. Logs call the field `user`, its first name."""

    at: int
    tenant: str = msgspec.field(name="user")
    quota: Quota | None = None
    by: str = ""


class QuotaTurned(msgspec.Struct, frozen=True, tag="quota-turned", kw_only=True):
    """Other amounts of a quota are in force: those of the hours of this number, or outside all hours (-1)."""

    at: int
    tenant: str
    turn: int


class SharesSet(msgspec.Struct, frozen=True, tag="shares-set", kw_only=True, omit_defaults=True):
    """Set the tree of shares of the fleet; None removes it."""

    at: int
    tree: ShareTree | None = None
    by: str = ""


class ReservationAdded(msgspec.Struct, frozen=True, tag="reservation-added", kw_only=True, omit_defaults=True):
    """A reservation was accepted. Its windows take these `places`, except those in `elsewhere`, by their start in
    seconds since 1970.
    """

    at: int
    reservation: Reservation
    places: tuple[Spot, ...]
    elsewhere: dict[str, tuple[Spot, ...]] = {}
    by: str = ""


class ReservationMoved(msgspec.Struct, frozen=True, tag="reservation-moved", kw_only=True, omit_defaults=True):
    """The window that begins at this time (seconds since 1970) takes other places, because nodes of it failed."""

    at: int
    reservation: str
    begins_at: int
    places: tuple[Spot, ...]
    why: str = ""


class ReservationReleased(msgspec.Struct, frozen=True, tag="reservation-released", kw_only=True, omit_defaults=True):
    """The window that begins at this time (seconds since 1970) ends early, because its tenant did not use it."""

    at: int
    reservation: str
    begins_at: int


class ReservationRemoved(msgspec.Struct, frozen=True, tag="reservation-removed", kw_only=True, omit_defaults=True):
    """A reservation of this tenant (empty: maintenance) was cancelled, or its last window is `over`."""

    at: int
    reservation: str
    tenant: str = ""
    over: bool = False
    by: str = ""


class BudgetsSet(msgspec.Struct, frozen=True, tag="budgets-set", kw_only=True, omit_defaults=True):
    """Set all budgets. A budget that counts the same work in the same way keeps its sum."""

    at: int
    budgets: tuple[Budget, ...] = ()
    by: str = ""


class BudgetTurned(msgspec.Struct, frozen=True, tag="budget-turned", kw_only=True):
    """A period of a budget has begun. It `begins` and `ends` at times of the wall clock, in nanoseconds since 1970. Use
    counts for it `since` an instant of the log: earlier than `at` if no control plane ran (0: `at`).
    """

    at: int
    budget: str
    begins: int
    ends: int
    since: int = 0


class BudgetReached(msgspec.Struct, frozen=True, tag="budget-reached", kw_only=True):
    """A budget has reached the alert at this `share`, in percent (0: none any more)."""

    at: int
    budget: str
    share: int
    spent: int


class ClockSet(msgspec.Struct, frozen=True, tag="clock-set", kw_only=True):
    """The wall clock, in seconds since 1970, has moved relative to the clock of the log. Windows of reservations follow
    it.
    """

    at: int
    wall: float


class TokenAdded(msgspec.Struct, frozen=True, tag="token-added", kw_only=True, omit_defaults=True):
    at: int
    token: Token
    by: str = ""


class TokenRenewed(msgspec.Struct, frozen=True, tag="token-renewed", kw_only=True, omit_defaults=True):
    """The person of a token has proved its identity again; the token `expires` at this instant."""

    at: int
    id: str
    expires: int
    by: str = ""


class TokenRevoked(msgspec.Struct, frozen=True, tag="token-revoked", kw_only=True, omit_defaults=True):
    """A token is revoked; requests with it are refused from now on."""

    at: int
    id: str
    by: str = ""


class StopAsked(msgspec.Struct, frozen=True, tag="stop-asked", kw_only=True, omit_defaults=True):
    """Somebody asked the control plane to stop, over its API."""

    at: int
    by: str = ""


class RulesSet(msgspec.Struct, frozen=True, tag="rules-set", kw_only=True, omit_defaults=True):
    """Set the rules to evaluate: the content of a rules file; an empty document removes them. `policies` maps a rule's
    name to the fields of `Configured` for the policy that the rule may set.
    """

    at: int
    document: dict[str, Any] = {}
    policies: dict[str, dict[str, Any]] = {}
    by: str = ""


class ShadowJudged(msgspec.Struct, frozen=True, tag="shadow-judged", kw_only=True, omit_defaults=True):
    """The policies in shadow whose figures allow a promotion, each with the evidence. Recorded when they change, while
    a rule reads it.
    """

    at: int
    better: dict[str, str] = {}


class NodesMeasured(msgspec.Struct, frozen=True, tag="nodes-measured", kw_only=True):
    """Load of nodes that has changed noticeably, in thousandths, in the order of `Load`. Recorded only while a rule
    reads it.
    """

    at: int
    nodes: dict[str, tuple[int, ...]]


class ServicesMeasured(msgspec.Struct, frozen=True, tag="services-measured", kw_only=True, omit_defaults=True):
    """State of services as their gateways report it: the amounts of `Served`, in its order. Recorded if it has changed
    noticeably, or after a minute. The services in `gone` are not reported any more. Services are named as classes of
    their tenants.
    """

    at: int
    services: dict[str, tuple[int, ...]] = {}
    gone: tuple[str, ...] = ()


class RuleFired(msgspec.Struct, frozen=True, tag="rule-fired", kw_only=True, omit_defaults=True):
    """A rule fired for a subject (a node, or the fleet if empty) in its evaluation at the instant `due`; `have` is the
    observed value. `outcome`: `done`, recorded only (`shadow`), or `asked` for approval; `adjusted` if a rule that has
    fired changed memory limits again. `actions` were carried out; `failed` says why others were not. `spent` counts
    against the budget. If the rule set a policy, `before` has the policies before and `instead`.
    """

    at: int
    due: int
    rule: str
    outcome: str
    subject: str = ""
    have: str = ""
    actions: tuple[str, ...] = ()
    failed: str = ""
    before: dict[str, Any] = {}
    spent: int = 0


class RuleOver(msgspec.Struct, frozen=True, tag="rule-over", kw_only=True, omit_defaults=True):
    """The condition of a rule has ended, at its evaluation at the instant `due` or because the rule was removed; these
    `actions` are undone.
    """

    at: int
    due: int
    rule: str
    subject: str = ""
    have: str = ""
    actions: tuple[str, ...] = ()


class RuleAnswered(msgspec.Struct, frozen=True, tag="rule-answered", kw_only=True, omit_defaults=True):
    """Somebody allowed or denied the request of a rule. Other fields as in `RuleFired`."""

    at: int
    rule: str
    allowed: bool
    subject: str = ""
    actions: tuple[str, ...] = ()
    failed: str = ""
    before: dict[str, Any] = {}
    by: str = ""


class RuleSteered(msgspec.Struct, frozen=True, tag="rule-steered", kw_only=True, omit_defaults=True):
    """The control loop of a rule set its knob to `value` at the evaluation at the instant `due`, because the signal was
    `have`. The value is in the unit of the knob (`model/control.py`).
    """

    at: int
    due: int
    rule: str
    value: int
    subject: str = ""
    have: str = ""


class FunctionTold(msgspec.Struct, frozen=True, tag="function", kw_only=True):
    """A function was registered with a job that serves calls; calls name it by its number, counted from 0."""

    at: int
    job: str
    function: Function


class Called(msgspec.Struct, frozen=True, tag="called", kw_only=True, gc=False):
    """A call was accepted by its job."""

    at: int
    job: str
    call: Call


class CallTried(msgspec.Struct, frozen=True, tag="tried", kw_only=True):
    """A call failed and has to be retried: it raised and has retries left, or its worker ended."""

    at: int
    job: str
    number: int
    worker: str = ""
    note: str = ""


class Returned(msgspec.Struct, frozen=True, tag="returned", kw_only=True, gc=False):
    """A call has returned, from the task of `worker`."""

    at: int
    job: str
    result: Result
    worker: str = ""


class CallsClosed(msgspec.Struct, frozen=True, tag="closed", kw_only=True):
    """This job accepts no more calls."""

    at: int
    job: str
    why: str = ""


class PolicyFailed(msgspec.Struct, frozen=True, tag="policy-failed", kw_only=True):
    at: int
    policy: str
    error: str


class Remembered(msgspec.Struct, frozen=True, tag="remembered", kw_only=True):
    """Memory that the policy asked to get back in the next view."""

    at: int
    memory: dict[str, Any]


class Round(msgspec.Struct, frozen=True, tag="round", kw_only=True, omit_defaults=True, gc=False):
    """A plan has been carried out: the placements, preemptions, holds and memory since the previous round, as far as
    they were still possible. A round that changed nothing leaves no record.

    The plan was made on the view of revision `base` as of the instant `asked`, which listed the triggers that had
    `fired`; by the safe policy if `policy` names it, else by the current policy.
    """

    at: int
    base: int
    asked: int
    fired: tuple[str, ...] = ()
    policy: str = ""


Event = (
    Began
    | Configured
    | JobSubmitted
    | JobCancelled
    | JobsCancelled
    | UnitsCancelled
    | JobHeld
    | JobChanged
    | JobsRemoved
    | ScheduleAdded
    | ScheduleTurn
    | ScheduleHeld
    | ScheduleRemoved
    | Notified
    | DeadlinesMissed
    | Placed
    | Preempted
    | Resized
    | Suspended
    | Resumed
    | Started
    | Finished
    | Straggling
    | Lagging
    | SpeedupsTold
    | TrainingTold
    | Held
    | NodeJoined
    | NodeLost
    | NodeSuspected
    | NodeTrusted
    | NodeUnfit
    | NodeForgotten
    | NodeDrained
    | DeviceCordoned
    | DeviceDrained
    | QuotaSet
    | QuotaTurned
    | SharesSet
    | BudgetsSet
    | BudgetTurned
    | BudgetReached
    | ReservationAdded
    | ReservationMoved
    | ReservationReleased
    | ReservationRemoved
    | ClockSet
    | TokenAdded
    | TokenRenewed
    | TokenRevoked
    | StopAsked
    | NodeLevelled
    | Triggered
    | Noticed
    | IncidentTold
    | RulesSet
    | NodesMeasured
    | ServicesMeasured
    | ShadowJudged
    | RuleFired
    | RuleOver
    | RuleAnswered
    | RuleSteered
    | FunctionTold
    | Called
    | CallTried
    | Returned
    | CallsClosed
    | PolicyFailed
    | Remembered
    | Round
)

AUDITED = (
    JobSubmitted
    | Resumed
    | JobCancelled
    | JobsCancelled
    | UnitsCancelled
    | JobHeld
    | JobChanged
    | JobsRemoved
    | ScheduleAdded
    | ScheduleHeld
    | ScheduleRemoved
    | NodeDrained
    | DeviceDrained
    | QuotaSet
    | SharesSet
    | BudgetsSet
    | ReservationAdded
    | ReservationRemoved
    | TokenAdded
    | TokenRenewed
    | TokenRevoked
    | Configured
    | RulesSet
    | RuleAnswered
    | StopAsked
)
"""Events that somebody requested."""

_encoder = msgspec.msgpack.Encoder()
_decoder: msgspec.msgpack.Decoder[Event] = msgpack_decoder(Event)


def encode_event(event: Event) -> bytes:
    return _encoder.encode(event)


def decode_event(data: bytes) -> Event:
    """Raises msgspec.DecodeError or ValidationError for a record that this version does not know."""
    return _decoder.decode(data)
