"""What observers of a control plane are told: durable events, and how long the phases of rounds and commits take."""

import msgspec

from poise.model.events import Event


class Happened(msgspec.Struct, frozen=True, kw_only=True):
    """Events that are durable, from the revision `first` on."""

    first: int
    events: tuple[Event, ...]


class RoundTook(msgspec.Struct, frozen=True, kw_only=True):
    """One round: decided by `policy` on the view of `revision`, carried out at the instant `at`. Nanoseconds for each
    phase: making the `view`, in the turn that asked; to `decide`, with the way to the policy and back; the `wait` for
    the next turn; to `apply` the plan, checked and as far as it still could be.
    """

    at: int
    revision: int
    policy: str
    view: int
    decide: int
    wait: int
    apply: int


class CommitTook(msgspec.Struct, frozen=True, kw_only=True):
    """Events of one turn, up to `revision`, were handed to the log at the instant `at`. Nanoseconds: to `append` them,
    and until they were durable (`sync`).
    """

    at: int
    revision: int
    events: int
    append: int
    sync: int


Observed = Happened | RoundTook | CommitTook
