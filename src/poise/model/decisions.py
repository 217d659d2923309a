"""The answer of a policy: a plan of decisions, each with its reason.

A `Hold` carries *every* reason why something waits, by name, so that `show` and `explain` only format them.
"""

from itertools import zip_longest
from typing import Any, Literal

import msgspec

from poise.model.resources import Shape

SERVES = "serves"
"""Source of an unlimited run time: the unit runs until it is stopped."""

UNKNOWN = "default"
"""Source of an unknown run time: neither history nor a declaration exists. Its mean is a placeholder for computations,
and is never shown to people.
"""

Fixable = Literal["now", "later", "never"]


class Reason(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, gc=False):
    """Why something was not done.

    `subject` is what refused (a node, a unit), `fixable` is whether the reason can pass by itself.
    """

    code: str
    subject: str = ""
    need: str = ""
    have: str = ""
    fixable: Fixable = "later"

    def sentence(self) -> str:
        """Format for people: `node n1: 2 CPU free, 4 needed`."""
        subject = self.subject or "others"
        text = REASONS.get(self.code, self.code).format(need=self.need, have=self.have, subject=subject)
        return f"{self.subject}: {text}" if self.subject and "{subject}" not in REASONS.get(self.code, "") else text


REASONS = {
    "CPU_BUSY": "{have} CPU free, {need} needed",
    "MEMORY_BUSY": "{have} of memory free, {need} needed",
    "GPU_BUSY": "fitting devices free: {have}, needed: {need}",
    "CPU_TOO_SMALL": "has {have} CPU in all, {need} needed",
    "MEMORY_TOO_SMALL": "has {have} of memory in all, {need} needed",
    "GPU_TOO_FEW": "fitting devices in all: {have}, needed: {need}",
    "GANG_INCOMPLETE": "room for {have} of the {need} tasks of the gang",
    "SPREAD": "needs a different {subject} for each of {need} tasks: room on {have}",
    "TOGETHER": "needs one {subject} for all {need} tasks: the {subject} with most room holds {have}",
    "NODE_DRAINED": "is drained",
    "DEVICE_CORDONED": "closed to new work: device {have}",
    "NODE_LOST": "is lost",
    "NODE_SUSPECT": "has been silent for a moment",
    "NODE_SHRUNK": "has shrunk: its work holds {have} more than it offers, and {need} is needed",
    "NODE_UNFIT": "cannot start commands; `poise nodes` says why",
    "SHARE_TOO_LARGE": "work may share up to {have} of one of its devices, {need} needed",
    "NO_NODES": "no node has joined yet",
    "QUOTA": "the quota of {subject} has {have} left, {need} needed",
    "BUDGET": "waits until the budget {subject} is renewed or raised: {have}",
    "LIMIT": "the limit of the share {subject} leaves no room for {need}",
    "NOT_LENT": "the free room is guaranteed to {have}, which does not lend it; {need} needed",
    "ABOVE_SHARE": "it would take from {subject}, whose share is no larger",
    "NEEDS": "waits for {need}",
    "AFTER": "waits for job {need}",
    "AT_MOST": "waits for its turn: at most {need} of the task's parts run at once",
    "LEASE": "may still run on {subject} until its lease ends in {need}",
    "BACKOFF": "retries in {need}",
    "BEGINS": "begins in {need} at the earliest",
    "BEHIND": "waits behind {subject}, which came first",
    "KEPT": "room there is kept for it",
    "RESERVED": "room is kept for {need}, which comes first",
    "TURN": "waits for its turn: others are owed more time",
    "NETWORK_BUSY": "network bandwidth free: {have}, needed: {need}",
    "NETWORK_TOO_SMALL": "has {have} of network bandwidth in all, {need} needed",
    "NO_SUCH_DEVICE": "has no suitable device: {need} needed, {have} there",
    "NOWHERE": "no node can run it: {have}",
    "OTHER_NODE": "is not an allowed node: {need} needed",
    "ALLOWS_UNKNOWN": "may run on {subject}, but there is no such node: {have}",
    "EXCLUDES_UNKNOWN": "excludes {subject}, but there is no such node: {have}",
    "NODE_ENDS": "ends in {have}; this needs {need}",
    "NODE_RESERVED": "is reserved {have}; this needs {need}",
    "DEVICES_RESERVED": "some of its devices are reserved {have}; this needs {need}",
    "NOT_AT_ONCE": "each resource is free somewhere, but not all on one node: {need}",
    "STRAGGLING": "takes longer than similar tasks, which took {need}",
    "LAGGING": "computes for {have} in each step there, and delays the others of its gang, which take {need}",
    "SUSPENDED": "is suspended, because it was idle: `poise attach {subject}` resumes it",
    "IDLE": "idle since {have} ago; its limit is {need}",
    "STOPPING": "is asked to {have}",
    "PREEMPTING": "{have} is being preempted for it",
    "UNSTABLE": "attempts have kept failing there",
    "FAILED_THERE": "it has failed there before, and another node is possible",
    "DEADLINE": "cannot end in time: {have} expected, {need} left",
    "LATE": "its deadline of {need} cannot be met any more ({have}): treated as ordinary work",
    "LATE_ON": "it would miss its deadline there, and could not move: {have} expected, {need} left",
    "LATE_FOR": "the deadline of {subject} cannot be met any more ({have}): treated as ordinary work",
    "CANCELLED_LATE": "cancelled: its deadline of {need} could not be met any more ({have})",
    "CANCELLED_FOR": "cancelled: only {subject} needs it, whose deadline could not be met any more",
    "NOT_RUNNING": "{subject} is {have}, not running",
    "PROTECTED": "{subject} cannot be preempted now: {have}",
    "PARTITION_BUSY": "its fixed partition has {have} CPU free, {need} needed",
    "SKIPPED": "skipped: {need} was not done",
    "SKIPPED_AFTER": "skipped: job {need} ended as {have}",
    "ON_HOLD": "is on hold: `poise release {subject}` lets it start",
    "LOCKED": "is on hold: {have}; once that is repaired: `poise release {subject}`",
    "NEXT_ROUND": "will be decided in the next round",
    "NEEDS_ITS_NODE": "is out of retries, and waits for its original node",
    "UNKNOWN_UNIT": "there is no unit {subject}",
    "UNKNOWN_VARIANT": "{subject} has no artifact number {have}",
    "UNKNOWN_NODE": "there is no node {subject}",
    "NOT_PENDING": "{subject} is {have}, not pending",
    "NOT_YET": "{subject} is being stopped, or its back-off has not ended",
    "NOT_WHOLE": "{have} spots for the {need} tasks of {subject}",
    "NOT_SPREAD": "{need} tasks of the gang on one {subject}: {have}",
    "NOT_TOGETHER": "the tasks of the gang on more than one {subject}: {have}",
    "NOT_RESIZABLE": "{subject} cannot change its size now: {have}",
    "NOT_BRIEF": "only short work of one task without devices may be queued behind similar work",
    "POOL_GONE": "no short work runs there to queue behind",
    "DEVICE_TAKEN": "device {have} is held, unknown or too small; {need} needed",
}


class Spot(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """Place of one task of a unit: a node, and device indices on it."""

    node: str
    devices: tuple[int, ...] = ()


NO_POLICY = "control plane"
"""The `policy` of a decision that the control plane makes by itself, in no round."""


class Why(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, gc=False):
    """Why a decision was made.

    `base` is the revision of its view: the same view gives the same decision. `rank` is the reason for the unit's rank,
    `score` has the terms of the chosen node, `instead_of` the best rejected nodes, `behind` their scores, and `fitting`
    the number of suitable nodes. `speed` is the run time estimate with its source.
    """

    policy: str
    base: int = 0
    rank: str = ""
    score: dict[str, float] = {}
    instead_of: tuple[str, ...] = ()
    behind: tuple[float, ...] = ()
    fitting: int = 0
    speed: str = ""

    def sentence(self) -> str:
        """Format for people: `high, critical path, 12.0 s to go; fit 0.8; not n2 (0.61)`."""
        terms = ", ".join(f"{name} {value:g}" for name, value in self.score.items())
        others = ", ".join(
            f"{name} ({value:g})" if value is not None else name
            for name, value in zip_longest(self.instead_of, self.behind)
        )
        beside = f"not {others}" if others else "no other node will do now" if self.fitting == 1 else ""
        return "; ".join(part for part in (self.rank, self.speed, terms, beside) if part)


class Place(msgspec.Struct, frozen=True, kw_only=True, tag="place", gc=False):
    """Start a unit: one spot per task, in the unit's order; an elastic unit may get fewer, down to its least.

    `queued` places it behind tasks of the same shape that hold the resources now: the node starts it the moment one of
    them ends. It takes no resources of its own, so nothing is ever over-allocated. `variant` is the chosen artifact.
    """

    unit: str
    spots: tuple[Spot, ...]
    why: Why
    queued: bool = False
    variant: int = 0


Cause = Literal["yield", "move", "grow", "shrink"]


class Preempt(msgspec.Struct, frozen=True, kw_only=True, tag="preempt"):
    """Ask a unit to checkpoint and end; it is pending again and resumes elsewhere, or in another size.

    `cause`: it yields to `to`, moves off a hot or draining node, or an elastic unit grows or shrinks.
    """

    unit: str
    cause: Cause
    why: Why
    to: str = ""


class Resize(msgspec.Struct, frozen=True, kw_only=True, tag="resize"):
    """Change the size of a running gang in place: the tasks of these numbers leave, and the gang gets one more for each
    spot in `joins`; the others continue. `cause` and `to` as in `Preempt`.
    """

    unit: str
    cause: Cause
    why: Why
    leaves: tuple[int, ...] = ()
    joins: tuple[Spot, ...] = ()
    to: str = ""


class Hold(msgspec.Struct, frozen=True, kw_only=True, tag="hold", gc=False):
    """Leave a queue (units alike in class, shape and priority) waiting, for these reasons."""

    queue: str
    reasons: tuple[Reason, ...]


Decision = Place | Preempt | Resize | Hold


class Ask(msgspec.Struct, frozen=True, array_like=True):
    """Room for `tasks` tasks of a shape at once."""

    shape: Shape
    tasks: int


class Plan(msgspec.Struct, frozen=True, kw_only=True):
    """A policy's verdict on a snapshot of revision `base`.

    `until` is the earliest instant at which the answer could change by itself. `memory` comes back in the next view.
    With `closed`, more work in held queues changes nothing: it waits behind earlier work. If `asks` is set, more
    work in held queues changes nothing either, nor does the end of an attempt, unless there is room for one of these
    requests then: no round is run otherwise.
    """

    base: int
    policy: str
    decisions: tuple[Decision, ...] = ()
    until: int | None = None
    memory: dict[str, Any] | None = None
    closed: bool = False
    asks: tuple[Ask, ...] | None = None
    failed: str = ""


class Rejection(msgspec.Struct, frozen=True, kw_only=True):
    """A decision that the ledger refused, and every reason."""

    unit: str
    reasons: tuple[Reason, ...]
