"""A room of the ledger: one part of what is known, with its events, its indexes and its invariants.

A room is made with the state, of which it owns some fields, and with the rooms that it may see. It changes what it
owns itself, and asks another room for what that one owns. Most rooms are dictionaries of their records; nobody else
writes to them.
"""

from collections.abc import Callable
from typing import Any, Self

Handlers = dict[type, Callable[[Any], None]]
"""By the type of an event: what takes it in."""


class InvariantBroken(AssertionError):
    """The ledger was given an event that cannot follow, or does not add up: a bug, never a user's doing."""


class Room:
    """What the ledger asks of each of its rooms."""

    def handlers(self) -> Handlers:
        """The events that change what is in it. An event that concerns several rooms is the highest one's."""
        return {}

    def check(self, anew: Self) -> None:
        """Its invariants; `anew` is the same room, made anew from the encoded state. Raises `InvariantBroken`, naming
        the first that does not hold.
        """


def hold(condition: bool, otherwise: str) -> None:
    """Raise `InvariantBroken` if it does not."""
    if not condition:
        raise InvariantBroken(otherwise)


def hold_same(index: str, mine: Any, theirs: Any) -> None:
    """Raise `InvariantBroken` if an index is not what it is when it is made anew."""
    if mine != theirs:
        raise InvariantBroken(f"index {index} differs from one made anew: {mine} is not {theirs}")
