"""What has happened: the records of the log, and the only thing that changes the ledger.

Each has `at`, nanoseconds since the creation of the log. What somebody asked for has `by`, the id of the token they
came with; it is empty for that of the home. A record's tag never changes its meaning; a new meaning is a new tag.
"""

from typing import Any

import msgspec

from poise.decoding import msgpack_decoder
from poise.model.calls import Call, Function, Result
from poise.model.deadlines import Missed
from poise.model.decisions import Cause, Reason, Spot, Why
from poise.model.incidents import Moment, SymptomKind
from poise.model.jobs import Ending, Job, Speedups, Unit
from poise.model.quotas import Quota
from poise.model.recurring import Schedule
from poise.model.resources import Node
from poise.model.share_tree import ShareTree
from poise.model.tenants import Token
from poise.model.training import Training


class Began(msgspec.Struct, frozen=True, tag="began", kw_only=True, omit_defaults=True):
    """A control plane took the log. `term` fences its predecessors; `history` is how many finished jobs are kept: the
    latest, or, where it is `fair`, the latest of each tenant, and of none more than of another that has as many. Of
    those, as many are kept as have no more than `history_tasks` tasks together (0: any number).

    `boot` and `boottime` anchor `at` to this boot's clock; `wall` (seconds since 1970) is for people only.

    What else its views had, so that its rounds can be decided again: `seed`, `throughputs`, the `recipe` of a policy
    that does not ship with Poise, and `code`, which tells versions of the code that decides apart. A policy that is
    `fixed` gives each unit one place only, by its number: it is shown all that waits and all that runs. `asked` is when
    somebody asked for the policy, in seconds since 1970; 0 for the default.
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


class Configured(msgspec.Struct, frozen=True, tag="configured", kw_only=True, omit_defaults=True):
    """Another policy decides from here on, as somebody asked for at `asked` (seconds since 1970). It remembers nothing
    of the one before. `why` is what spoke for it where it was promoted from shadow, or that it was rolled back. The
    other fields are those of `Began`, and count until the next of both.
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
    """The control plane that began so, under the policy that was configured since."""
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
    """Some units of a job are cancelled, by id; what needs them is skipped, and the rest goes on. With `turns`, parts
    of a task of which only some run at once pass theirs on.
    """

    at: int
    job: str
    units: tuple[str, ...]
    by: str = ""
    turns: bool = False


class JobHeld(msgspec.Struct, frozen=True, tag="job-held", kw_only=True, omit_defaults=True):
    """A job is on hold, or no longer (`on`): what of it has not started does not start. `why` is there if Poise has put
    it on hold.
    """

    at: int
    job: str
    on: bool
    by: str = ""
    why: str = ""


class JobChanged(msgspec.Struct, frozen=True, tag="job-changed", kw_only=True, omit_defaults=True):
    """Units of a job that are not over get the values that `like` has at these `paths` (`model/changing.py`)."""

    at: int
    job: str
    units: tuple[str, ...]
    like: Unit
    paths: tuple[str, ...]
    by: str = ""


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
    """What was `due` of a schedule is done: `job` was submitted, or none, because it was `refused`. The `next` one is
    due then. Turns since `missed` were passed over, as no control plane was there (0: none). Times as of `Schedule`.
    """

    at: int
    schedule: str
    due: int
    next: int
    job: str = ""
    refused: str = ""
    missed: int = 0


class ScheduleHeld(msgspec.Struct, frozen=True, tag="schedule-held", kw_only=True, omit_defaults=True):
    """A schedule is on hold, or no longer (`on`), and is then next due at `next`. `why` where Poise itself held it."""

    at: int
    schedule: str
    on: bool
    next: int = 0
    why: str = ""
    by: str = ""


class ScheduleRemoved(msgspec.Struct, frozen=True, tag="schedule-removed", kw_only=True, omit_defaults=True):
    """A schedule of a tenant submits nothing any more. Its jobs stay."""

    at: int
    schedule: str
    tenant: str
    by: str = ""


class Notified(msgspec.Struct, frozen=True, tag="notified", kw_only=True, omit_defaults=True):
    """A notice of a job was delivered, by its name as of `JobState.notices`; or it was given up because it `failed`."""

    at: int
    job: str
    notice: str
    failed: str = ""


class DeadlinesMissed(msgspec.Struct, frozen=True, tag="deadlines-missed", kw_only=True):
    """Deadlines of a job could not be met any more, and its user wanted such work cancelled: these units are cancelled,
    what needs them is skipped, and the rest goes on.
    """

    at: int
    job: str
    units: tuple[Missed, ...]


class Placed(msgspec.Struct, frozen=True, tag="placed", kw_only=True, omit_defaults=True, gc=False):
    """A unit got its next epoch and a spot for each of its tasks, or for the first ones if it is elastic.

    `brief`: others of its shape may wait behind it. `variant` is the artifact it runs.
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
    """A unit is asked to save itself and end, for `to` or for its own good; it waits again once it has ended."""

    at: int
    unit: str
    epoch: int
    cause: Cause
    why: Why
    to: str = ""


class Resized(msgspec.Struct, frozen=True, tag="resized", kw_only=True, omit_defaults=True):
    """A gang that runs changes in place: the tasks of the numbers `leaves` are asked to end, those of `joins` begin,
    each on its spot, in the epoch `epoch`; the others go on as they are. `generation` counts such changes since the
    gang was placed, with those that lost members brought about.
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


class Started(msgspec.Struct, frozen=True, tag="started", kw_only=True, omit_defaults=True, gc=False):
    """A task runs. Short tasks skip this: their `Finished` says how long they ran."""

    at: int
    task: str
    epoch: int
    pid: int = 0
    cpus: tuple[int, ...] = ()


class Finished(msgspec.Struct, frozen=True, tag="finished", kw_only=True, omit_defaults=True, gc=False):
    """An attempt is over. `until`: of exclusive work that was given up unheard, when it has ended at the latest."""

    at: int
    task: str
    epoch: int
    ending: Ending
    until: int = 0


class Straggling(msgspec.Struct, frozen=True, tag="straggling", kw_only=True):
    """An attempt takes longer than its like, beyond what chance explains; said once of it. When it had `ran` so long,
    `siblings` of it were done that took `expected` on the mean.
    """

    at: int
    task: str
    epoch: int
    node: str
    ran: int
    expected: int
    siblings: int


class Lagging(msgspec.Struct, frozen=True, tag="lagging", kw_only=True):
    """A member of a gang `computes` for longer in each step than the others, which then wait for it: `siblings` on the
    same model of device compute for `usual` on the median. Said once of an attempt.
    """

    at: int
    task: str
    epoch: int
    node: str
    computes: int
    usual: int
    siblings: int


class SpeedupsTold(msgspec.Struct, frozen=True, tag="speedups", kw_only=True):
    """A running unit has said how it scales, for the first time or noticeably otherwise than before."""

    at: int
    unit: str
    speedups: Speedups


class TrainingTold(msgspec.Struct, frozen=True, tag="training", kw_only=True):
    """A running unit has said how its training gets on, and something that is read has changed noticeably."""

    at: int
    unit: str
    training: Training


class Held(msgspec.Struct, frozen=True, tag="held", kw_only=True, gc=False):
    """The reasons for which a queue waits have changed."""

    at: int
    queue: str
    reasons: tuple[Reason, ...]


class NodeJoined(msgspec.Struct, frozen=True, tag="joined", kw_only=True, omit_defaults=True):
    """A node is there, and came by the token of this `by`: `home` for the home's own; empty where that is not known."""

    at: int
    node: Node
    by: str = ""


class NodeLost(msgspec.Struct, frozen=True, tag="lost", kw_only=True, omit_defaults=True):
    """A node has been silent for too long, or what runs it has `said` that it is gone. `until`: when exclusive work on
    it has ended at the latest.
    """

    at: int
    name: str
    until: int = 0
    said: bool = False


class NodeSuspected(msgspec.Struct, frozen=True, tag="suspected", kw_only=True):
    """A node has been silent for longer than its limit: nothing new is placed there, nothing is taken away."""

    at: int
    name: str


class NodeTrusted(msgspec.Struct, frozen=True, tag="trusted", kw_only=True):
    """A node that was suspected has been heard."""

    at: int
    name: str


class NodeUnfit(msgspec.Struct, frozen=True, tag="unfit", kw_only=True, omit_defaults=True):
    """A node can start nothing, and says `why`: nothing new is placed there until it can. Without `why`, it can."""

    at: int
    name: str
    why: str = ""


class NodeForgotten(msgspec.Struct, frozen=True, tag="forgotten", kw_only=True):
    """A node is no longer part of the fleet, and holds nothing any more."""

    at: int
    name: str


class NodeLevelled(msgspec.Struct, frozen=True, tag="levelled", kw_only=True, omit_defaults=True):
    """A node's load has changed its level and stayed there. `hot` since: above the threshold for a sustained window."""

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
    """A detector noticed something unusual about `subject` (a node, a task, a service, or the control plane where it is
    empty), or that it is `over`. `text` says for people what was measured; `jobs` are the replicas of a service. Only
    detectors write it, and nothing is decided by it.
    """

    at: int
    kind: SymptomKind
    subject: str = ""
    text: str = ""
    over: bool = False
    jobs: tuple[str, ...] = ()


class IncidentTold(msgspec.Struct, frozen=True, tag="incident-told", kw_only=True, omit_defaults=True):
    """A target was told of an incident at a `moment`, or could not be told because it `failed`."""

    at: int
    incident: str
    moment: Moment
    target: str
    failed: str = ""


class NodeDrained(msgspec.Struct, frozen=True, tag="drained", kw_only=True, omit_defaults=True):
    """`on` closes the node to new placements, off opens it again. With `moves`, what runs there goes on elsewhere."""

    at: int
    name: str
    on: bool
    by: str = ""
    moves: bool = False


class DeviceCordoned(msgspec.Struct, frozen=True, tag="device-cordoned", kw_only=True, omit_defaults=True):
    """A device of a node has failed: it gives no room until somebody opens it again. `id` is what its driver calls it,
    or its place where it has no name; units whose attempts it ended are never placed on it again.
    """

    at: int
    node: str
    device: int
    id: str
    code: str
    text: str = ""


class DeviceDrained(msgspec.Struct, frozen=True, tag="device-drained", kw_only=True, omit_defaults=True):
    """`on` closes a device to new placements, off opens it again, whatever it was closed for."""

    at: int
    node: str
    device: int
    id: str
    on: bool
    by: str = ""


class QuotaSet(msgspec.Struct, frozen=True, tag="quota", kw_only=True, omit_defaults=True):
    """What a tenant's work may hold at once from now on; None: anything. In logs it is `user`, as it was at first."""

    at: int
    tenant: str = msgspec.field(name="user")
    quota: Quota | None = None
    by: str = ""


class SharesSet(msgspec.Struct, frozen=True, tag="shares-set", kw_only=True, omit_defaults=True):
    """The fleet is shared by this tree from now on; None: by none."""

    at: int
    tree: ShareTree | None = None
    by: str = ""


class TokenAdded(msgspec.Struct, frozen=True, tag="token-added", kw_only=True, omit_defaults=True):
    at: int
    token: Token
    by: str = ""


class TokenRevoked(msgspec.Struct, frozen=True, tag="token-revoked", kw_only=True, omit_defaults=True):
    """Whoever still has the token is refused from now on."""

    at: int
    id: str
    by: str = ""


class StopAsked(msgspec.Struct, frozen=True, tag="stop-asked", kw_only=True, omit_defaults=True):
    """The control plane was told to end over its API."""

    at: int
    by: str = ""


class RulesSet(msgspec.Struct, frozen=True, tag="rules-set", kw_only=True, omit_defaults=True):
    """These rules are evaluated from here on: the content of a rules file, none where it is empty. `policies` has what
    `Configured` says of the policies that they may set, by the name of the rule.
    """

    at: int
    document: dict[str, Any] = {}
    policies: dict[str, dict[str, Any]] = {}
    by: str = ""


class NodesMeasured(msgspec.Struct, frozen=True, tag="nodes-measured", kw_only=True):
    """How busy nodes are, where that has changed noticeably: in thousandths, in the order of `Load`. Recorded only
    while a rule reads it.
    """

    at: int
    nodes: dict[str, tuple[int, ...]]


class RuleFired(msgspec.Struct, frozen=True, tag="rule-fired", kw_only=True, omit_defaults=True):
    """A rule fired for a subject (a node, or the fleet where it is empty) in its evaluation at the instant `due`, when
    it saw what `have` says. `outcome`: `done`, only recorded (`shadow`), or `asked` for approval. `actions` are those
    that were carried out, `failed` says why others were not. With `spent` they count against the budget.
    `before` has the policy that was set `instead` of the
    one `before`, where the rule set one.
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
    """What a rule fired for is over, by its evaluation at the instant `due`, or because the rule is no longer there;
    these `actions` are undone.
    """

    at: int
    due: int
    rule: str
    subject: str = ""
    have: str = ""
    actions: tuple[str, ...] = ()


class RuleAnswered(msgspec.Struct, frozen=True, tag="rule-answered", kw_only=True, omit_defaults=True):
    """Somebody allowed what a rule had asked for, or denied it. The rest as of `RuleFired`."""

    at: int
    rule: str
    allowed: bool
    subject: str = ""
    actions: tuple[str, ...] = ()
    failed: str = ""
    before: dict[str, Any] = {}
    by: str = ""


class FunctionTold(msgspec.Struct, frozen=True, tag="function", kw_only=True):
    """A job that serves calls was told of a function; calls name it by its number, counted from 0."""

    at: int
    job: str
    function: Function


class Called(msgspec.Struct, frozen=True, tag="called", kw_only=True, gc=False):
    """A call was accepted by its job."""

    at: int
    job: str
    call: Call


class CallTried(msgspec.Struct, frozen=True, tag="tried", kw_only=True):
    """A call began for nothing, and has to be made once more: it raised and may be tried again, or its worker ended."""

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
    """No more calls will come to this job."""

    at: int
    job: str
    why: str = ""


class PolicyFailed(msgspec.Struct, frozen=True, tag="policy-failed", kw_only=True):
    at: int
    policy: str
    error: str


class Remembered(msgspec.Struct, frozen=True, tag="remembered", kw_only=True):
    """What the policy asked to be handed back in the next view."""

    at: int
    memory: dict[str, Any]


class Round(msgspec.Struct, frozen=True, tag="round", kw_only=True, omit_defaults=True, gc=False):
    """A plan has been carried out: what was placed, preempted, held and remembered since the round before, as far as it
    still could be. A round that changed nothing leaves no record.

    The plan was made on the view of revision `base` as of the instant `asked`, which told of the triggers that had
    `fired`; by the safe policy where `policy` names it, else by the one in charge.
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
    | SharesSet
    | TokenAdded
    | TokenRevoked
    | StopAsked
    | NodeLevelled
    | Triggered
    | Noticed
    | IncidentTold
    | RulesSet
    | NodesMeasured
    | RuleFired
    | RuleOver
    | RuleAnswered
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
    | TokenAdded
    | TokenRevoked
    | Configured
    | RulesSet
    | RuleAnswered
    | StopAsked
)
"""What was done because somebody asked for it."""

_encoder = msgspec.msgpack.Encoder()
_decoder: msgspec.msgpack.Decoder[Event] = msgpack_decoder(Event)


def encode_event(event: Event) -> bytes:
    return _encoder.encode(event)


def decode_event(data: bytes) -> Event:
    """Raises msgspec.DecodeError or ValidationError for what this version does not know."""
    return _decoder.decode(data)
