"""A version on trial beside the current one: the rules of the trial, and the statistics of both.

The current version is called *stable*, the one on trial *canary*. A trial has stages, one after the other: a *replay*
of recorded requests, a *shadow* that receives copies of live requests and whose answers are discarded, and a *share* of
live requests that it answers itself.
"""

from collections import deque
from typing import Literal

import msgspec

KEPT = 5000
"""Number of latest latencies to keep for one version."""


class Stage(msgspec.Struct, frozen=True):
    """`part`: the fraction of requests that are copied to the canary, or answered by it."""

    kind: Literal["replay", "shadow", "share"]
    part: float = 1.0

    def __str__(self) -> str:
        return self.kind if self.kind == "replay" else f"{self.kind} of {100 * self.part:.4g} %"


class TrialRules(msgspec.Struct, frozen=True, kw_only=True):
    """Conditions that a canary must meet in every stage after `after` answers: at most `errors` more errors per request
    than stable, at most `latency` times its P95, and at least `agreement` equal answers to the same requests, where
    numbers are equal if their relative difference is at most `close`. With `promote` it replaces stable after the last
    stage, else it stays there. `replay`: the file of recorded requests.
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
    """Statistics of one version, for a canary in one stage; durations in nanoseconds."""

    def __init__(self) -> None:
        self.answered = 0
        self.errors = 0
        self.took: deque[int] = deque(maxlen=KEPT)
        self.compared = 0
        self.agreed = 0

    def add(self, *, ok: bool, took: int = 0) -> None:
        """Count an answered request and its duration; or (not `ok`) one with an error or without an answer."""
        self.answered += 1
        self.errors += not ok
        if ok:
            self.took.append(took)

    def compare(self, *, agreed: bool) -> None:
        """Count a comparison of an answer with the other version's."""
        self.compared += 1
        self.agreed += agreed


class Judgement(msgspec.Struct, frozen=True):
    """The verdict on a canary in its stage, with a sentence for each comparison."""

    verdict: Literal["go on", "pass", "fail"]
    reasons: tuple[str, ...]


__all__ = ["Judgement", "Stage", "Tally", "TrialRules"]
