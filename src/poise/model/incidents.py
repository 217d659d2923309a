"""Symptoms, the elements that may cause them, and incidents: symptoms grouped by their common cause.

Times are nanoseconds of the log's clock, except in `IncidentReport`, where they are seconds since 1970.
"""

from typing import Literal

import msgspec

ElementKind = Literal[
    "network", "zone", "rack", "node", "device",
    "control plane", "store", "clock", "policy",
    "user", "program", "service", "job", "budget",
]  # fmt: skip
"""Possible causes: a part of the fleet, a part of the control plane, or a part of the work."""

OF_WORK: frozenset[ElementKind] = frozenset(("user", "program", "service", "job", "budget"))
"""Causes that belong to a tenant."""

SymptomKind = Literal[
    "node-lost", "node-silent", "node-unfit", "device-failed",
    "attempt-lost", "attempt-failed", "attempt-killed", "out-of-memory", "hung", "unstartable",
    "straggling", "member-differs", "node-unusual", "new-template", "deadline-missed",
    "objective-missed",
    "slow-store", "store-full", "clock-step", "control-restarted", "policy-failed",
    "rule-fired", "budget-reached",
]  # fmt: skip

Moment = Literal["opened", "closed"]
"""Moments at which notification targets receive an incident."""


class Element(msgspec.Struct, frozen=True, array_like=True, order=True):
    """One part of the fleet, of the control plane or of the work. `name` is empty if there is only one."""

    kind: ElementKind
    name: str = ""

    def __str__(self) -> str:
        return f"{self.kind} {self.name}".rstrip()


class Symptom(msgspec.Struct, frozen=True, array_like=True):
    """A failure or anomaly, read from the event of `revision`. It was observed on `subject`; `suspects` are its
    possible causes. `targets` are notified of its incident.
    """

    at: int
    revision: int
    kind: SymptomKind
    subject: str
    text: str
    suspects: tuple[Element, ...]
    targets: tuple[str, ...] = ()

    @property
    def fingerprint(self) -> tuple[str, str]:
        """Symptoms with the same fingerprint count as one symptom, seen several times."""
        return self.kind, self.subject


class Entry(msgspec.Struct, frozen=True, array_like=True):
    """A line of a timeline: the instant, the revision of its event, and a sentence."""

    at: int
    revision: int
    text: str


class Suspect(msgspec.Struct, frozen=True, kw_only=True):
    """A possible cause, and its score from 0 to 1: its share of all explanations, by likelihood."""

    kind: ElementKind
    name: str
    score: float

    @property
    def element(self) -> Element:
        return Element(self.kind, self.name)


class Step(msgspec.Struct, frozen=True, kw_only=True):
    """A line of the timeline of an `IncidentReport`."""

    at: float
    revision: int
    text: str


class IncidentReport(msgspec.Struct, frozen=True, kw_only=True):
    """One incident. `cause` is the likeliest suspect; `tied` are others that explain the symptoms about as well.
    `symptoms` counts all its symptoms, by kind. `nodes` and `jobs` are those affected by the latest few hundred
    symptoms; `more_nodes` and `more_jobs` count those that are not named. `evidence` supports the cause, `done` lists
    Poise's reactions, and `hint` is a suggestion. `closed` is 0 while it is open. `undelivered` maps targets to the
    reason why notification failed. `outputs` has the last output of attempts that ended badly, with the meaning of
    device error codes in it.
    """

    id: str
    title: str
    opened: float
    last: float
    closed: float
    cause: Suspect
    tied: tuple[Suspect, ...]
    symptoms: dict[str, int]
    nodes: tuple[str, ...]
    jobs: tuple[str, ...]
    timeline: tuple[Step, ...]
    evidence: tuple[str, ...]
    done: tuple[str, ...]
    hint: str
    more_nodes: int = 0
    more_jobs: int = 0
    undelivered: dict[str, str] = {}
    outputs: tuple[str, ...] = ()


class IncidentNotice(msgspec.Struct, frozen=True, kw_only=True):
    """The JSON that a webhook or a command receives about an incident. `id` stays the same when it is sent again."""

    id: str
    moment: Moment
    incident: IncidentReport
