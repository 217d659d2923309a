"""What a policy answers: a plan of decisions, each with its reason.

A `Hold` carries *every* reason why something waits, by name, so that `show` and `explain` only have to draw it.
"""

from typing import Any, Literal

import msgspec

Fixable = Literal["now", "later", "never"]


class Reason(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Why something was not done.

    `subject` is what refused (a node, a unit), `fixable` whether it can pass by itself, `wakes` the kind of event after
    which it is worth asking again.
    """

    code: str
    subject: str = ""
    need: str = ""
    have: str = ""
    fixable: Fixable = "later"
    wakes: str = ""

    def sentence(self) -> str:
        """For people: `node n1: 2 CPU free, 4 needed`."""
        text = REASONS.get(self.code, self.code).format(need=self.need, have=self.have, subject=self.subject)
        return f"{self.subject}: {text}" if self.subject and "{subject}" not in REASONS.get(self.code, "") else text


REASONS = {
    "CPU_BUSY": "{have} CPU free, {need} needed",
    "MEMORY_BUSY": "{have} of memory free, {need} needed",
    "GPU_BUSY": "{have} fitting GPU free, {need} needed",
    "CPU_TOO_SMALL": "has {have} CPU in all, {need} needed",
    "MEMORY_TOO_SMALL": "has {have} of memory in all, {need} needed",
    "GPU_TOO_FEW": "has {have} fitting GPU in all, {need} needed",
    "GANG_INCOMPLETE": "room for {have} of the {need} tasks of the gang",
    "NODE_DRAINED": "is drained",
    "NODE_LOST": "is lost",
    "NO_NODES": "no node has joined yet",
    "NEEDS": "waits for {need}",
    "AFTER": "waits for job {need}",
    "BACKOFF": "is tried again in {need}",
    "BEHIND": "waits behind {subject}, which came first",
    "RESERVED": "room is kept for {need}, which has waited long",
    "PARTITION_BUSY": "its fixed partition has {have} CPU free, {need} needed",
    "SKIPPED": "skipped: {need} was not done",
    "NEXT_ROUND": "is decided on in the next round",
    "NEEDS_ITS_NODE": "is tried again only where it was: its retries are used up, or exclude a lost node",
    "UNKNOWN_UNIT": "there is no unit {subject}",
    "UNKNOWN_NODE": "there is no node {subject}",
    "NOT_PENDING": "{subject} is {have}, not pending",
    "NOT_YET": "{subject} is being stopped, or its back-off has not ended",
    "NOT_WHOLE": "{have} spots for the {need} tasks of {subject}",
    "NOT_BRIEF": "only brief work of one task and no devices may be queued behind its like",
    "POOL_GONE": "nothing brief runs there to wait behind",
    "DEVICE_TAKEN": "device {have} is held, unknown or too small; {need} needed",
}


class Spot(msgspec.Struct, frozen=True, array_like=True):
    """Where one task of a unit goes: a node, and device indices on it."""

    node: str
    devices: tuple[int, ...] = ()


class Why(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Why a placement was made: the policy, what put the unit first, the node's score, and the nodes not chosen."""

    policy: str
    rank: str = ""
    score: dict[str, float] = {}
    instead_of: tuple[str, ...] = ()

    def sentence(self) -> str:
        """For people: `high, critical path, 12.0 s to go; fit on n1 0.8; not n2`; one node needs no score."""
        if not self.instead_of:
            return self.rank
        terms = ", ".join(f"{name} {value:g}" for name, value in self.score.items())
        return "; ".join(part for part in (self.rank, terms, f"not {', '.join(self.instead_of)}") if part)


class Place(msgspec.Struct, frozen=True, kw_only=True, tag="place"):
    """Start a unit: one spot per task, in the unit's order.

    `queued` places it behind tasks of the same shape that hold the room now: the node starts it the moment one of them
    ends. It takes no room of its own, so nothing is ever over-allocated.
    """

    unit: str
    spots: tuple[Spot, ...]
    why: Why
    queued: bool = False


class Hold(msgspec.Struct, frozen=True, kw_only=True, tag="hold"):
    """Leave a queue (units alike in class, shape and priority) waiting, for these reasons."""

    queue: str
    reasons: tuple[Reason, ...]


Decision = Place | Hold


class Plan(msgspec.Struct, frozen=True, kw_only=True):
    """A policy's verdict on a snapshot of revision `base`.

    `until` is the earliest instant at which the answer could change by itself. `memory` comes back in the next view.
    """

    base: int
    policy: str
    decisions: tuple[Decision, ...] = ()
    until: int | None = None
    memory: dict[str, Any] | None = None
    failed: str = ""


class Rejection(msgspec.Struct, frozen=True, kw_only=True):
    """A decision that the ledger refused, and every reason why."""

    unit: str
    reasons: tuple[Reason, ...]
