"""What the controller is told and what it answers: messages in, effects out."""

from typing import Any

import msgspec

from poise.errors import PoiseError
from poise.kernel.ledger import Ledger
from poise.model.calls import FromCaller, FromWorker, ToCaller, ToWorker
from poise.model.decisions import Plan
from poise.model.events import Event, Noticed
from poise.model.incidents import Moment
from poise.model.jobs import Job
from poise.model.messages import Attempt, FromAgent, ToAgent
from poise.model.quotas import Quota
from poise.model.share_tree import ShareTree
from poise.model.spec import Compiled
from poise.model.tenants import DEFAULT, HOME, Bearer, Role
from poise.model.views import Snapshot

# --- messages --------------------------------------------------------------------------------------------------------


class Submit(msgspec.Struct, frozen=True):
    """Answered with the id of the job, or of the schedule, once it is durable. `key` makes a repeated submission
    harmless; with `if_revision` it is refused unless the ledger is of that revision: as it was when somebody looked at
    a plan.
    """

    request: int
    compiled: Compiled
    key: str = ""
    user: str = ""
    if_revision: int | None = None
    bearer: Bearer = HOME


class TakeIn(msgspec.Struct, frozen=True):
    """A job that another control plane has accepted, under the id that it has there. Answered with that id. For a
    control plane that follows the log of the other: nothing is checked again.
    """

    request: int
    job: Job


class Cancel(msgspec.Struct, frozen=True):
    request: int
    job: str
    bearer: Bearer = HOME


class CancelJobs(msgspec.Struct, frozen=True):
    """Cancel whole jobs, by id. Answered with the ids of those, and the tenant of each: those that are over, already
    being cancelled, forgotten or not visible to the bearer are passed over.
    """

    request: int
    jobs: tuple[str, ...]
    bearer: Bearer = HOME


class HoldJob(msgspec.Struct, frozen=True):
    """Put a job on hold, or release it."""

    request: int
    job: str
    on: bool
    bearer: Bearer = HOME


class ChangeJob(msgspec.Struct, frozen=True):
    """Change these `fields` of a job, or of some of its tasks, to what they are in `compiled`. Answered with
    `Changed`.
    """

    request: int
    job: str
    compiled: Compiled
    fields: tuple[str, ...]
    bearer: Bearer = HOME


class RetryJob(msgspec.Struct, frozen=True):
    """Submit the unfinished part of an ended job again. Answered with the new job's id."""

    request: int
    job: str
    bearer: Bearer = HOME


class RemoveJobs(msgspec.Struct, frozen=True):
    """Remove ended jobs, by name or id: all of them or none. Answered with their ids."""

    request: int
    jobs: tuple[str, ...]
    bearer: Bearer = HOME


class HoldSchedule(msgspec.Struct, frozen=True):
    """Put a schedule on hold, or release it. What was due meanwhile is passed over."""

    request: int
    schedule: str
    on: bool
    bearer: Bearer = HOME


class RemoveSchedule(msgspec.Struct, frozen=True):
    request: int
    schedule: str
    bearer: Bearer = HOME


class NoticeDone(msgspec.Struct, frozen=True):
    """A notice of a job was delivered, or given up because it `failed`."""

    request: int
    job: str
    notice: str
    failed: str = ""


class IncidentDone(msgspec.Struct, frozen=True):
    """A target was told of an incident, or is given up because it `failed`."""

    request: int
    incident: str
    moment: Moment
    target: str
    failed: str = ""


class Drain(msgspec.Struct, frozen=True):
    """`node` is a node, or a device of one: `n1:0`. With `moves`, what runs on a node goes on elsewhere."""

    request: int
    node: str
    on: bool
    bearer: Bearer = HOME
    moves: bool = False


class Configure(msgspec.Struct, frozen=True):
    """Another policy is to decide; its fields are those of `Configured`. Answered with the revision."""

    request: int
    policy: str
    asked: float
    recipe: dict[str, Any] = {}
    code: str = ""
    why: str = ""
    bearer: Bearer = HOME


class SetRules(msgspec.Struct, frozen=True):
    """Other rules are to be evaluated; the fields are those of `RulesSet`. Answered with the revision."""

    request: int
    document: dict[str, Any]
    policies: dict[str, dict[str, Any]] = {}
    bearer: Bearer = HOME


class AnswerRule(msgspec.Struct, frozen=True):
    """Allow or deny what a rule asks for. Answered with what was done."""

    request: int
    rule: str
    subject: str
    allowed: bool
    bearer: Bearer = HOME


class GiveUp(msgspec.Struct, frozen=True):
    """What runs the nodes says that these are gone: all that it misses together, so that an outage is known for one.
    Should one of them speak all the same, it is taken in anew.
    """

    request: int
    nodes: tuple[str, ...]
    bearer: Bearer = HOME


class Leave(msgspec.Struct, frozen=True):
    """A node takes its leave, with the token that it joined with: nobody is to wait for it to come back. Answered with
    its name.
    """

    request: int
    node: str
    bearer: Bearer = HOME


class Lend(msgspec.Struct, frozen=True):
    """Others wait for one of these machines: empty the node whose work loses least by it, though there is no room for
    it elsewhere. Answered with the name of that node, or with none where each runs what may not be preempted.
    """

    request: int
    nodes: tuple[str, ...]
    bearer: Bearer = HOME


class SetQuota(msgspec.Struct, frozen=True):
    request: int
    tenant: str
    quota: Quota | None
    bearer: Bearer = HOME


class SetShares(msgspec.Struct, frozen=True):
    """Share the fleet by this tree; None: by none. Answered with the revision."""

    request: int
    tree: ShareTree | None
    bearer: Bearer = HOME


class AddToken(msgspec.Struct, frozen=True, kw_only=True):
    """Answered with the `Token`, also when it is asked again. `hash` is the SHA-256 of its secret; it `lasts` so many
    nanoseconds, 0: for ever.
    """

    request: int
    tenant: str
    role: Role
    hash: str
    name: str = ""
    lasts: int = 0
    bearer: Bearer = HOME


class RevokeToken(msgspec.Struct, frozen=True):
    request: int
    id: str
    bearer: Bearer = HOME


class AskToStop(msgspec.Struct, frozen=True):
    """Recorded; whoever sent it ends the control plane once it is answered."""

    request: int
    bearer: Bearer = HOME


class FromNode(msgspec.Struct, frozen=True):
    """A node has said something, `by` the token with which it came (see `NodeJoined`)."""

    node: str
    message: FromAgent
    by: str = ""


class Locked(msgspec.Struct, frozen=True):
    """The secrets of an attempt could not be opened, and `why`: it was not sent to its node."""

    attempt: Attempt
    why: str


class Saw(msgspec.Struct, frozen=True):
    """A detector noticed something. It is recorded, unless the log is full."""

    noticed: Noticed


class FromJobCaller(msgspec.Struct, frozen=True):
    """The caller of a job that serves calls, who is of this tenant, has said something."""

    job: str
    message: FromCaller
    tenant: str = DEFAULT


class CallerGone(msgspec.Struct, frozen=True):
    """Its connection has closed; it may come back."""

    job: str


class FromCallWorker(msgspec.Struct, frozen=True):
    """A worker of such a job has said something. When its connection closes nothing follows: it may come back, and
    holds what it holds until its attempt is over.
    """

    attempt: Attempt
    message: FromWorker


class Gone(msgspec.Struct, frozen=True):
    """A node's connection has closed; it is lost only if it stays away."""

    node: str


class Crowded(msgspec.Struct, frozen=True):
    """Nodes come faster than they can be let in; those that were turned away come back by `until`."""

    until: int


class Durable(msgspec.Struct, frozen=True):
    revision: int


class AppendFailed(msgspec.Struct, frozen=True):
    """The log could not be written; `ledger` has been reloaded from what is durable."""

    ledger: Ledger
    error: PoiseError


class Recovered(msgspec.Struct, frozen=True):
    """The log can be written again."""


class Decided(msgspec.Struct, frozen=True):
    """The plan for a view; without one it was made by hand, and cannot be made again."""

    plan: Plan
    view: Snapshot | None = None


Request = (
    Submit
    | TakeIn
    | Cancel
    | CancelJobs
    | HoldJob
    | ChangeJob
    | RetryJob
    | RemoveJobs
    | HoldSchedule
    | RemoveSchedule
    | NoticeDone
    | IncidentDone
    | Drain
    | GiveUp
    | Leave
    | Lend
    | SetQuota
    | SetShares
    | Configure
    | SetRules
    | AnswerRule
    | AddToken
    | RevokeToken
    | AskToStop
)
Message = (
    Request
    | FromNode
    | Locked
    | Saw
    | Gone
    | Crowded
    | FromJobCaller
    | CallerGone
    | FromCallWorker
    | Durable
    | AppendFailed
    | Recovered
    | Decided
)


# --- effects ---------------------------------------------------------------------------------------------------------


class Append(msgspec.Struct, frozen=True):
    """Write these events; the last of them has revision `expected` + their number."""

    events: tuple[Event, ...]
    expected: int


class Reply(msgspec.Struct, frozen=True):
    """The answer to a request."""

    request: int
    value: Any = None
    error: PoiseError | None = None


class Send(msgspec.Struct, frozen=True):
    node: str
    message: ToAgent


class SayCaller(msgspec.Struct, frozen=True):
    job: str
    message: ToCaller


class SayWorker(msgspec.Struct, frozen=True):
    attempt: Attempt
    message: ToWorker


class HangCaller(msgspec.Struct, frozen=True):
    """Close the connection of a job's caller, for what it said."""

    job: str
    error: PoiseError


class HangCalls(msgspec.Struct, frozen=True):
    """Close the connections of all callers and workers, so that they say anew what they have."""


class Hang(msgspec.Struct, frozen=True):
    """Close the node's connection, so that it says anew what it holds."""

    node: str


class Decide(msgspec.Struct, frozen=True):
    view: Snapshot


class Checkpoint(msgspec.Struct, frozen=True):
    """Save the state of the ledger as it is once all effects of this turn are carried out: it was last saved long ago.
    Encoding it is the shell's, since that takes long where much is kept.
    """


class TryRecover(msgspec.Struct, frozen=True):
    """See whether the log can be written again; `Recovered` follows if so."""


Effect = (
    Append | Reply | Send | Hang | SayCaller | SayWorker | HangCaller | HangCalls | Decide | Checkpoint | TryRecover
)
