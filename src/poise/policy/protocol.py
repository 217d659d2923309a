"""The one protocol that every policy follows."""

from typing import Protocol, TypeVar

View = TypeVar("View", contravariant=True)
Verdict = TypeVar("Verdict", covariant=True)


class Policy(Protocol[View, Verdict]):
    """Same view, same verdict, on any machine, on any day: no clock, no randomness, no memory of its own."""

    @property
    def name(self) -> str: ...
    def decide(self, view: View, /) -> Verdict: ...
