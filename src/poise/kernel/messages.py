"""Messages to the controller, and the effects with which it answers."""

from typing import Any

import msgspec

from poise.errors import PoiseError
from poise.kernel.ledger import Ledger
from poise.model.budgets import Budget
from poise.model.calls import FromCaller, FromWorker, ToCaller, ToWorker
from poise.model.decisions import Plan
from poise.model.events import Event, Noticed
from poise.model.incidents import Moment
from poise.model.jobs import Job
from poise.model.messages import Attempt, FromAgent, ToAgent
from poise.model.quotas import Quota
from poise.model.reservations import Reservation
from poise.model.served import Served
from poise.model.share_tree import ShareTree
from poise.model.spec import Compiled
from poise.model.tenants import DEFAULT, HOME, Bearer, Role
from poise.model.views import Snapshot

# --- messages --------------------------------------------------------------------------------------------------------


class Submit(msgspec.Struct, frozen=True):
    """Submit a job or schedule. The reply is its id, once it is durable. `key` makes a repeated submission idempotent.
    With `if_revision` it is refused unless the ledger has that revision, as when the user looked at a plan.
    """

    request: int
    compiled: Compiled
    key: str = ""
    user: str = ""
    if_revision: int | None = None
    bearer: Bearer = HOME


class TakeIn(msgspec.Struct, frozen=True):
    """Take in a job that another control plane has accepted, with the id that it has there. The reply is that id. For a
    control plane that follows the log of the other one: nothing is checked again.
    """

    request: int
    job: Job


class Cancel(msgspec.Struct, frozen=True):
    request: int
    job: str
    bearer: Bearer = HOME


class CancelJobs(msgspec.Struct, frozen=True):
    """Cancel whole jobs, by id. The reply has their ids, and the tenant of each. Jobs that are over, already being
    cancelled, forgotten or not visible to the bearer are ignored.
    """

    request: int
    jobs: tuple[str, ...]
    bearer: Bearer = HOME


class ResumeJob(msgspec.Struct, frozen=True):
    """Resume the suspended tasks of a job. The reply has the reasons why some of them wait for their resources, as
    sentences; these resume later.
    """

    request: int
    job: str
    bearer: Bearer = HOME


class HoldJob(msgspec.Struct, frozen=True):
    """Put a job on hold, or release it."""

    request: int
    job: str
    on: bool
    bearer: Bearer = HOME


class ChangeJob(msgspec.Struct, frozen=True):
    """Change these `fields` of a job, or of some of its tasks, to their values in `compiled`. The reply is
    `Changed`.
    """

    request: int
    job: str
    compiled: Compiled
    fields: tuple[str, ...]
    bearer: Bearer = HOME


class RetryJob(msgspec.Struct, frozen=True):
    """Submit the unfinished part of an ended job again. The reply is the new job's id."""

    request: int
    job: str
    bearer: Bearer = HOME


class RemoveJobs(msgspec.Struct, frozen=True):
    """Remove ended jobs, by name or id: all of them or none. The reply has their ids."""

    request: int
    jobs: tuple[str, ...]
    bearer: Bearer = HOME


class HoldSchedule(msgspec.Struct, frozen=True):
    """Put a schedule on hold, or release it. Runs that were due meanwhile are skipped."""

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
    """A target was notified of an incident, or the notice is given up because it `failed`."""

    request: int
    incident: str
    moment: Moment
    target: str
    failed: str = ""


class Drain(msgspec.Struct, frozen=True):
    """Drain or open `node`: a node, or a device such as `n1:0`. With `moves`, the node's running work moves
    elsewhere.
    """

    request: int
    node: str
    on: bool
    bearer: Bearer = HOME
    moves: bool = False


class Configure(msgspec.Struct, frozen=True):
    """Change the policy; the fields are those of `Configured`. The reply is the revision."""

    request: int
    policy: str
    asked: float
    recipe: dict[str, Any] = {}
    code: str = ""
    why: str = ""
    bearer: Bearer = HOME


class SetRules(msgspec.Struct, frozen=True):
    """Replace the rules; the fields are those of `RulesSet`. The reply is the revision."""

    request: int
    document: dict[str, Any]
    policies: dict[str, dict[str, Any]] = {}
    bearer: Bearer = HOME


class AnswerRule(msgspec.Struct, frozen=True):
    """Allow or deny the actions of a rule that asks. The reply says what was done."""

    request: int
    rule: str
    subject: str
    allowed: bool
    bearer: Bearer = HOME


class HearServices(msgspec.Struct, frozen=True):
    """The state of the services of a tenant at one gateway, by their names as classes of the tenant."""

    request: int
    tenant: str
    gateway: str
    services: dict[str, Served]


class JudgeShadows(msgspec.Struct, frozen=True):
    """The policies in shadow whose figures allow a promotion, as in `ShadowJudged`. It is recorded if it differs."""

    better: dict[str, str]


class GiveUp(msgspec.Struct, frozen=True):
    """Report nodes as gone, from the system that runs them. It sends all missing nodes together, so that an outage is
    recognized as one. A node that speaks again can rejoin.
    """

    request: int
    nodes: tuple[str, ...]
    bearer: Bearer = HOME


class Leave(msgspec.Struct, frozen=True):
    """A node leaves, with the token that it joined with, and will not come back. The reply is its name."""

    request: int
    node: str
    bearer: Bearer = HOME


class Lend(msgspec.Struct, frozen=True):
    """Release one of these machines for other users: drain the node whose work loses least, even without room
    elsewhere. The reply is the name of that node, or empty if each runs work that cannot be preempted.
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
    """Share the fleet by this tree; None removes the shares. The reply is the revision."""

    request: int
    tree: ShareTree | None
    bearer: Bearer = HOME


class SetBudgets(msgspec.Struct, frozen=True):
    """Set all budgets. The reply is the revision."""

    request: int
    budgets: tuple[Budget, ...]
    bearer: Bearer = HOME


class Reserve(msgspec.Struct, frozen=True):
    """Accept reservations, all or none; one of the same tenant and name is replaced. The reply lists `Accepted`."""

    request: int
    reservations: tuple[Reservation, ...]
    bearer: Bearer = HOME


class CancelReservation(msgspec.Struct, frozen=True):
    """Cancel a reservation, by id or name. The reply is its id."""

    request: int
    reservation: str
    bearer: Bearer = HOME


class AddToken(msgspec.Struct, frozen=True, kw_only=True):
    """Create a token. The reply is the `Token`, also for a repeated request. `hash` is the SHA-256 of its secret; it
    `lasts` this many nanoseconds (0: no expiry).
    """

    request: int
    tenant: str
    role: Role
    hash: str
    name: str = ""
    lasts: int = 0
    account: str = ""
    bearer: Bearer = HOME


class SignedIn(msgspec.Struct, frozen=True, kw_only=True):
    """A person has proved its identity to the issuer. The reply is its `Token`, which `lasts` this many nanoseconds.
    `hash` is the SHA-256 of its secret. `renews`: only if the token with this hash may still be renewed.
    """

    request: int
    hash: str
    subject: str
    name: str
    tenant: str
    role: Role
    account: str
    lasts: int
    renews: bool = False


class RevokeToken(msgspec.Struct, frozen=True):
    request: int
    id: str
    bearer: Bearer = HOME


class AskToStop(msgspec.Struct, frozen=True):
    """Record a request to stop. The sender ends the control plane after the reply."""

    request: int
    bearer: Bearer = HOME


class FromNode(msgspec.Struct, frozen=True):
    """A message of a node; `by` is the token with which it joined (see `NodeJoined`)."""

    node: str
    message: FromAgent
    by: str = ""


class Locked(msgspec.Struct, frozen=True):
    """The secrets of an attempt could not be decrypted, for the reason `why`. It was not sent to its node."""

    attempt: Attempt
    why: str


class Saw(msgspec.Struct, frozen=True):
    """A detector noticed something. It is recorded, unless the log is full."""

    noticed: Noticed


class FromJobCaller(msgspec.Struct, frozen=True):
    """A message of the caller of a job that serves calls; `tenant` is the caller's."""

    job: str
    message: FromCaller
    tenant: str = DEFAULT


class CallerGone(msgspec.Struct, frozen=True):
    """A caller's connection has closed; it may come back."""

    job: str


class FromCallWorker(msgspec.Struct, frozen=True):
    """A message of a worker of a job that serves calls. A closed connection has no effect: the worker may come back,
    and holds its calls until its attempt is over.
    """

    attempt: Attempt
    message: FromWorker


class Gone(msgspec.Struct, frozen=True):
    """A node's connection has closed; the node is lost only if it stays away."""

    node: str


class Crowded(msgspec.Struct, frozen=True):
    """Nodes join faster than they can be accepted; the rejected ones return by `until`."""

    until: int


class Durable(msgspec.Struct, frozen=True):
    revision: int


class AppendFailed(msgspec.Struct, frozen=True):
    """The log could not be written; `ledger` has been reloaded from the durable log."""

    ledger: Ledger
    error: PoiseError


class Recovered(msgspec.Struct, frozen=True):
    """The log can be written again."""


class Decided(msgspec.Struct, frozen=True):
    """The plan for a view. Without a view it was made by hand, and cannot be reproduced."""

    plan: Plan
    view: Snapshot | None = None


Request = (
    Submit
    | TakeIn
    | Cancel
    | CancelJobs
    | HoldJob
    | ResumeJob
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
    | SetBudgets
    | SetShares
    | Reserve
    | CancelReservation
    | Configure
    | SetRules
    | AnswerRule
    | HearServices
    | AddToken
    | SignedIn
    | RevokeToken
    | AskToStop
)
Message = (
    Request
    | FromNode
    | Locked
    | Saw
    | JudgeShadows
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
    """Write these events. The last one has revision `expected` plus their number."""

    events: tuple[Event, ...]
    expected: int


class Reply(msgspec.Struct, frozen=True):
    """The reply to a request."""

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
    """Close the connection of a job's caller, because of its message."""

    job: str
    error: PoiseError


class HangCalls(msgspec.Struct, frozen=True):
    """Close the connections of all callers and workers, so that they report their state again."""


class Hang(msgspec.Struct, frozen=True):
    """Close a node's connection, so that it reports its attempts again."""

    node: str


class Decide(msgspec.Struct, frozen=True):
    view: Snapshot


class Checkpoint(msgspec.Struct, frozen=True):
    """Save the state of the ledger after all effects of this turn; the last save was long ago. The shell encodes it,
    because that takes long for a large state.
    """


class TryRecover(msgspec.Struct, frozen=True):
    """Test whether the log can be written again; `Recovered` follows if so."""


Effect = (
    Append | Reply | Send | Hang | SayCaller | SayWorker | HangCaller | HangCalls | Decide | Checkpoint | TryRecover
)
