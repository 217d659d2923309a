"""State of a service, as gateways report it to the control plane: for rules, control loops and forecasts.

All amounts are integers, so that a report cannot contain what is no number. A gateway sends its services every two
seconds. The control plane records a service again if its state has changed noticeably, or after a minute.
"""

from collections.abc import Iterable
from typing import Annotated, Any

import msgspec

from poise.model.fields import NAME
from poise.model.tenants import class_of_tenant, declared_class, tenant_of_class
from poise.units import MINUTE, SECOND

WINDOW = MINUTE
"""Time over which a gateway measures what it reports."""

LEAST, MOST = 10 * SECOND, MINUTE
"""Shortest time between two records of a service, and the longest while it is reported."""

KNOWN_FOR = 90 * SECOND
"""Time for which the signals of a service hold after its last record. A service that is silent for longer is missing
data.
"""

GONE_AFTER = 10 * MINUTE
"""Time without a report after which the control plane forgets a service."""

MAX_AT_ONCE = 256
"""Maximum number of services in one report."""

MAX_SERVICES = 1_000
"""Maximum number of known services of a tenant."""

NOTICEABLE = 0.1
"""Smallest change of an amount, relative to the larger value, that counts before a minute has passed."""

MAX_GATEWAYS = 64
"""Maximum number of gateways of one service."""

MAX_AMOUNT = 2**53
"""Maximum of an amount, also of a service at all its gateways."""

Amount = Annotated[int, msgspec.Meta(ge=0, le=MAX_AMOUNT)]


class Served(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """State of a service in the last minute: requests in a thousand seconds (`rate`), the P99 latency and the objective
    in nanoseconds (0: unknown, none), the part of requests that were `refused` in thousandths, and the numbers of
    `waiting` requests, of `ready` and of `wanted` replicas.
    """

    rate: Amount = 0
    p99: Amount = 0
    objective: Amount = 0
    refused: Annotated[int, msgspec.Meta(ge=0, le=1000)] = 0
    waiting: Amount = 0
    ready: Amount = 0
    wanted: Amount = 0

    @property
    def values(self) -> tuple[int, ...]:
        """The amounts, in the order of the fields."""
        return tuple(getattr(self, name) for name in self.__struct_fields__)


class ServiceState(msgspec.Struct, frozen=True):
    """A service as it was recorded at an instant."""

    at: int
    state: Served


class ServiceNews(msgspec.Struct, frozen=True, kw_only=True):
    """The state of a service at one gateway. `job` is one of its replicas, by which the control plane knows whose the
    service is.
    """

    service: Annotated[str, msgspec.Meta(pattern=rf"^{NAME}$(?!\n)")]
    job: Annotated[str, msgspec.Meta(max_length=32)]
    state: Served


class GatewayNews(msgspec.Struct, frozen=True, kw_only=True):
    """The services of a gateway. `gateway` distinguishes it from other gateways with the same services."""

    gateway: Annotated[str, msgspec.Meta(min_length=1, max_length=64)]
    services: Annotated[tuple[ServiceNews, ...], msgspec.Meta(max_length=MAX_AT_ONCE)] = ()


def served_of(values: Iterable[int]) -> Served:
    """Return the state with these amounts, in the order of the fields."""
    fields: dict[str, Any] = dict(zip(Served.__struct_fields__, values, strict=False))
    return Served(**fields)


def together(states: Iterable[Served]) -> Served:
    """Return the state of a service at several gateways. The highest P99 and the strictest objective count. A sum is at
    most `MAX_AMOUNT`.
    """
    known = list(states)
    rate = sum(one.rate for one in known)
    return Served(
        rate=min(rate, MAX_AMOUNT),
        p99=max(one.p99 for one in known),
        objective=min((one.objective for one in known if one.objective), default=0),
        refused=round(sum(one.refused * one.rate for one in known) / rate) if rate else 0,
        waiting=min(sum(one.waiting for one in known), MAX_AMOUNT),
        ready=min(sum(one.ready for one in known), MAX_AMOUNT),
        wanted=min(sum(one.wanted for one in known), MAX_AMOUNT),
    )


def is_news(before: Served, at: int, state: Served, now: int) -> bool:
    """Whether to record a service that was last recorded with a state `before` at an instant."""
    passed = now - at
    if passed >= MOST or passed < LEAST:
        return passed >= MOST
    return any(
        abs(new - old) > NOTICEABLE * max(new, old) for old, new in zip(before.values, state.values, strict=True)
    )


def service_in_full(service: str) -> str:
    """Return the name of a service as the log has it, from its name in a rules file.

    >>> [service_in_full(name) for name in ("chat", "ann:chat", "default:chat")]
    ['chat', 'ann:chat', 'chat']
    """
    return class_of_tenant(declared_class(service), tenant_of_class(service))


__all__ = [
    "GONE_AFTER",
    "KNOWN_FOR",
    "LEAST",
    "MAX_AMOUNT",
    "MAX_AT_ONCE",
    "MAX_GATEWAYS",
    "MAX_SERVICES",
    "WINDOW",
    "GatewayNews",
    "Served",
    "ServiceNews",
    "ServiceState",
    "is_news",
    "served_of",
    "service_in_full",
    "together",
]
