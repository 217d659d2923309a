"""A room of the ledger: one part of the state, with its events, its indexes and its invariants."""


class InvariantBroken(AssertionError):
    """The ledger was given an event that cannot follow, or does not add up: a bug, never a user's doing."""


def hold(condition: bool, otherwise: str) -> None:
    """Raise `InvariantBroken` if it does not."""
    if not condition:
        raise InvariantBroken(otherwise)
