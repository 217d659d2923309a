"""What tests of stores write, and the thread that owns one."""

import threading
import time
from collections.abc import Callable
from typing import Any

import msgspec

from poise.drivers.led import Lease, LedStore, lease_at, store_at
from poise.errors import NotLeading
from poise.units import MINUTE


class Note(msgspec.Struct, frozen=True, tag="note"):
    text: str


encode = msgspec.msgpack.Encoder().encode
decode = msgspec.msgpack.Decoder(Note).decode


leases: list[Lease] = []
"""That were made, and are to be closed."""


def note(number: int) -> Note:
    return Note(f"note {number}")


def notes(first: int, last: int) -> list[Note]:
    return [note(number) for number in range(first, last + 1)]


def noted_at(url: str, **options: Any) -> LedStore[Note]:
    return store_at(url, encode, decode, **options)


def lease_of(
    url: str,
    holder: str,
    *,
    address: str = "",
    lasts: int = MINUTE,
    on_lost: Callable[[NotLeading], object] = lambda _: None,
) -> Lease:
    lease = lease_at(url, holder=holder, address=address or f"at {holder}", token="", lasts=lasts, on_lost=on_lost)
    leases.append(lease)
    return lease


class Owner:
    """An owner's thread without a loop: calls wait here until `run` makes them."""

    def __init__(self) -> None:
        self.calls: list[Callable[[], None]] = []
        self.arrived = threading.Condition()

    def call_soon(self, call: Callable[[], None]) -> None:
        with self.arrived:
            self.calls.append(call)
            self.arrived.notify()

    def run(self, until: Callable[[], bool]) -> None:
        deadline = time.monotonic() + 10
        while not until():
            with self.arrived:
                if not self.calls:
                    assert self.arrived.wait(max(0.0, deadline - time.monotonic())), "nothing happened for 10 s"
                calls, self.calls = self.calls, []
            for call in calls:
                call()
