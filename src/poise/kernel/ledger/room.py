"""A room of the ledger: a part of the state with its events, indexes and invariants.

The constructor of a room takes the state, of which the room owns some fields, and the rooms that it may see. A room
changes only what it owns, and calls other rooms for the rest. Many rooms are dictionaries of their records; only the
room itself writes to them.
"""

from collections.abc import Callable
from typing import Any, Self

Handlers = dict[type, Callable[[Any], None]]
"""The handler of each type of event."""


class InvariantBroken(AssertionError):
    """An event that is impossible in this state, or an inconsistent state: a bug, never the fault of a user."""


class Room:
    """The interface between the ledger and each room."""

    def handlers(self) -> Handlers:
        """Return the events that this room handles. If an event concerns several rooms, the highest handles it and
        calls the others.
        """
        return {}

    def check(self, anew: Self) -> None:
        """Check the invariants of the room. `anew` is the same room, rebuilt from the encoded state. Raises
        `InvariantBroken` for the first that does not hold.
        """


def hold(condition: bool, otherwise: str) -> None:
    """Raise `InvariantBroken` unless the condition holds."""
    if not condition:
        raise InvariantBroken(otherwise)


def hold_same(index: str, mine: Any, theirs: Any) -> None:
    """Raise `InvariantBroken` if an index differs from the rebuilt one."""
    if mine != theirs:
        raise InvariantBroken(f"index {index} differs from one made anew: {mine} is not {theirs}")
