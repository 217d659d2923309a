"""Finds the driver of a store by the scheme of its URL. Installed packages offer drivers as entry points:

    poise.stores    a `Kind`, by a scheme

A driver is imported when a URL names it: its library may be an extra.
"""

from collections.abc import Callable
from functools import cache
from typing import Any, NamedTuple, cast
from urllib.parse import urlsplit

from poise.drivers.grouped import KEEP, QUEUE_LIMIT
from poise.drivers.led.lease import Lease
from poise.drivers.led.link import is_unclear, name_of
from poise.drivers.led.store import LedStore, LedWriter
from poise.drivers.verified import Event, VerifiedLog, log
from poise.errors import InputError, NotLeading

GROUP = "poise.stores"
NEED = "postgresql://…, etcd://HOST:PORT[,HOST:PORT…][/PREFIX], or `home`"


class Kind(NamedTuple):
    """How to open one kind of store. The first argument of each function is the URL."""

    log: Callable[..., VerifiedLog[Any]]
    writer: Callable[[str, Callable[[str], None]], LedWriter]
    lease: Callable[..., Lease]


def check_store(url: str) -> None:
    """Raise an error if the URL is invalid, or the store cannot be used now."""
    log_at(url, bytes).close()


def log_at(
    url: str, decode: Callable[[bytes], Event], *, warn: Callable[[str], None] = log.warning
) -> VerifiedLog[Event]:
    """Return the log, for reading. Raises `StoreAway` if the store is unreachable, now and later."""
    return _kind(url).log(url, decode, warn)


def store_at(
    url: str,
    encode: Callable[[Event], bytes],
    decode: Callable[[bytes], Event],
    *,
    call_soon: Callable[[Callable[[], None]], object] | None = None,
    warn: Callable[[str], None] = log.warning,
    keep: int = KEEP,
    queue_limit: int = QUEUE_LIMIT,
    written_by: str = "",
) -> LedStore[Event]:
    """Return the store, for reading, and for writing once this control plane leads."""
    return LedStore(
        log_at(url, decode, warn=warn),
        _kind(url).writer(url, warn),
        encode,
        call_soon=call_soon,
        warn=warn,
        keep=keep,
        queue_limit=queue_limit,
        written_by=written_by,
    )


def lease_at(
    url: str, *, holder: str, address: str, token: str, lasts: int, on_lost: Callable[[NotLeading], object]
) -> Lease:
    return _kind(url).lease(url, holder=holder, address=address, token=token, lasts=lasts, on_lost=on_lost)


def _kind(url: str) -> Kind:
    try:
        parts = urlsplit(url)
    except ValueError:  # its message contains the whole URL
        raise InputError("this is no URL", field="--store", need=NEED) from None
    if is_unclear(parts):
        need = "%40 for `@`, %2F for `/`, %3F for `?`, %23 for `#`"
        raise InputError(
            "a password must be percent-encoded, as in a URL", field="--store", need=need, have=name_of(url)
        )
    if (kind := _found(parts.scheme)) is not None:
        return kind
    raise InputError(
        "this store does not exist", field="--store", need=NEED, have=name_of(url) if parts.netloc else url
    )


@cache
def _found(scheme: str) -> Kind | None:
    from importlib import metadata  # expensive import

    for point in metadata.entry_points(group=GROUP, name=scheme):
        return cast(Kind, point.load())
    return None
