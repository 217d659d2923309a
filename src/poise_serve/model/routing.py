"""A router's view of a request and of the candidate replicas."""

import sys
from typing import Annotated

import msgspec

Amount = Annotated[float, msgspec.Meta(ge=0, le=sys.float_info.max)]
"""A finite number from 0 on, when it is decoded."""


class Prompt(msgspec.Struct, frozen=True):
    """The prompt of a request to a language model.

    `tokens`: its length. `blocks`: names of its blocks of `block` tokens each, see `poise_serve.model.prefixes`.
    `writes`: tokens of the answer, as far as they can be foreseen. `streams`: the first byte of the answer comes when
    the prompt is read.
    """

    tokens: Amount
    writes: Amount = 0.0
    blocks: tuple[int, ...] = ()
    block: Annotated[float, msgspec.Meta(gt=0, le=sys.float_info.max)] = 1.0
    streams: bool = False


class Asked(msgspec.Struct, frozen=True):
    """One request to be routed.

    `size`: its work as far as it can be foreseen, in units in which the speeds of replicas are learned (tokens, items;
    1 where nothing is known). `key`: requests of the same key had better meet the same replica (a session, a prefix).
    `due`: the instant by which it must be answered, 0 if there is none. `prompt`: None if the request has none, or
    nothing is known of it.
    """

    size: Amount = 1.0
    key: str = ""
    due: int = 0
    prompt: Prompt | None = None


class ReplicaView(msgspec.Struct, frozen=True):
    """One replica, as the router knows it; durations in nanoseconds.

    `outstanding`: requests that this router has sent there and that are not answered. `backlog`: how long these are
    foreseen to take from now. `cost`: how long this request is foreseen to take there, once it is its turn. `told`:
    how long requests of others would have taken there by the replica's own metrics, `age` ago: the backlog that these
    told, less this router's own at that instant; -1 if they told none. `weight`: its share in weighted policies.
    `delays`: by how much the request is foreseen to delay the others there, in total. `open`: it may be sent requests
    (healthy, not draining, not ejected).
    """

    name: str
    weight: float = 1.0
    outstanding: int = 0
    backlog: int = 0
    cost: int = 0
    told: int = -1
    age: int = 0
    open: bool = True
    delays: int = 0


class RouteView(msgspec.Struct, frozen=True):
    """A request and the candidate replicas. `turn`: number of requests routed before; `seed`: random seed."""

    now: int
    asked: Asked
    replicas: tuple[ReplicaView, ...]
    turn: int = 0
    seed: int = 0


class Route(msgspec.Struct, frozen=True):
    """The chosen replica; empty if none is open."""

    replica: str


__all__ = ["Amount", "Asked", "Prompt", "ReplicaView", "Route", "RouteView"]
