"""Data for observers of a control plane: durable events, and durations of the phases of rounds and commits."""

import msgspec

from poise.model.events import Event


class Happened(msgspec.Struct, frozen=True, kw_only=True):
    """Durable events, starting with the revision `first`."""

    first: int
    events: tuple[Event, ...]


class RoundTook(msgspec.Struct, frozen=True, kw_only=True):
    """One round: decided by `policy` on the view of `revision`, applied at the instant `at`. Nanoseconds of each phase:
    creating the `view`, in the turn that asked; to `decide`, including the way to the policy and back; the `wait` for
    the next turn; to `apply` the plan, after checking what is still possible.
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
