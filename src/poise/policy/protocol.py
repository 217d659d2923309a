"""The protocol that every policy implements."""

from typing import Protocol, TypeVar

View = TypeVar("View", contravariant=True)
Verdict = TypeVar("Verdict", covariant=True)


class Policy(Protocol[View, Verdict]):
    """A pure function: same view, same verdict, on any machine, on any day. No clock, no randomness, no own memory."""

    @property
    def name(self) -> str: ...
    def decide(self, view: View, /) -> Verdict: ...
