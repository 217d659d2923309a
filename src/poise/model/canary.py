"""A version on trial beside the one that serves: how it is tried, and what was seen of both.

The version that serves is *stable*, the one on trial the *canary*. A trial has stages, one after the other: a *replay*
of requests that were recorded, a *shadow* that is sent copies of live requests and whose answers nobody gets, a *share*
of live requests that it answers itself.
"""

from collections import deque
from typing import Literal

import msgspec

KEPT = 5000
"""Latencies of one version that are remembered: the latest."""


class Stage(msgspec.Struct, frozen=True):
    """`part`: of the requests that are copied to the canary, or answered by it."""

    kind: Literal["replay", "shadow", "share"]
    part: float = 1.0

    def __str__(self) -> str:
        return self.kind if self.kind == "replay" else f"{self.kind} of {100 * self.part:.4g} %"


class TrialRules(msgspec.Struct, frozen=True, kw_only=True):
    """What a canary must hold to in every stage, `after` answers of it: `errors` more in one request than stable at
    most, `latency` times its P95 at most, and of the answers to the same request `agreement` the same at least, where
    numbers are the same that differ by no more than the part `close`. With `promote` it takes the place of stable
    after the last stage, else it stays there. `replay`: where the recorded requests are.
    """

    stages: tuple[Stage, ...]
    after: int = 200
    errors: float = 0.01
    latency: float = 1.2
    agreement: float = 0.95
    close: float = 1e-3
    promote: bool = True
    replay: str = ""


class Tally:
    """What was seen of one version, of a canary in one stage; durations in nanoseconds."""

    def __init__(self) -> None:
        self.answered = 0
        self.errors = 0
        self.took: deque[int] = deque(maxlen=KEPT)
        self.compared = 0
        self.agreed = 0

    def add(self, *, ok: bool, took: int = 0) -> None:
        """A request that was answered, and how long that took; or (not `ok`) with an error or not at all."""
        self.answered += 1
        self.errors += not ok
        if ok:
            self.took.append(took)

    def compare(self, *, agreed: bool) -> None:
        """An answer that was held beside that of the other version."""
        self.compared += 1
        self.agreed += agreed


class Judgement(msgspec.Struct, frozen=True):
    """What is to become of a canary in its stage, and why, a sentence for each thing that was compared."""

    verdict: Literal["go on", "pass", "fail"]
    reasons: tuple[str, ...]


__all__ = ["Judgement", "Stage", "Tally", "TrialRules"]
