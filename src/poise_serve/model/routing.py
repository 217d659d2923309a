"""A router's view of a request and of the candidate replicas."""

import msgspec


class Asked(msgspec.Struct, frozen=True):
    """One request to be routed.

    `size`: its work as far as it can be foreseen, in units in which the speeds of replicas are learned (tokens, items;
    1 where nothing is known). `key`: requests of the same key had better meet the same replica (a session, a prefix).
    `due`: the instant by which it must be answered, 0 if there is none.
    """

    size: float = 1.0
    key: str = ""
    due: int = 0


class ReplicaView(msgspec.Struct, frozen=True):
    """One replica, as the router knows it; durations in nanoseconds.

    `outstanding`: requests that this router has sent there and that are not answered. `backlog`: how long these are
    foreseen to take from now. `cost`: how long this request is foreseen to take there, once it is its turn. `told`:
    how long requests of others would have taken there by the replica's own metrics, `age` ago: the backlog that these
    told, less this router's own at that instant; -1 if they told none. `weight`: its share in weighted policies.
    `open`: it may be sent requests (healthy, not draining, not ejected).
    """

    name: str
    weight: float = 1.0
    outstanding: int = 0
    backlog: int = 0
    cost: int = 0
    told: int = -1
    age: int = 0
    open: bool = True


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


__all__ = ["Asked", "ReplicaView", "Route", "RouteView"]
