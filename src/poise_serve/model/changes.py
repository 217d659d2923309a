"""Records of a gateway's configuration and of its changes."""

from typing import Any

import msgspec

Document = dict[str, Any]
"""A parsed file: a service, or upstreams. Its paths are absolute, and its variables have their values."""


class Change(msgspec.Struct, frozen=True):
    """A difference between two configurations. `at`: the place, such as `upstreams.big.limit`. What was added has no
    `before`, what was removed has no `after`.
    """

    at: str
    before: Any = None
    after: Any = None

    def __str__(self) -> str:
        if self.before is None:
            return f"+ {self.at}: {_shown(self.after)}"
        if self.after is None:
            return f"- {self.at}: {_shown(self.before)}"
        return f"~ {self.at}: {_shown(self.before)} -> {_shown(self.after)}"


class State(msgspec.Struct, frozen=True):
    """A configuration: its documents by their keys (`key_of`), and the upstreams that are drained."""

    documents: dict[str, Document] = {}
    drained: tuple[str, ...] = ()


class Entry(msgspec.Struct, frozen=True):
    """A change that was made. `at`: seconds since 1970; `by`: user, or name of the key; `before`: what undoing it
    restores. `settled`: it is undone, or it undid another.
    """

    at: float
    by: str
    changes: tuple[str, ...]
    before: State
    settled: bool = False


class Saved(msgspec.Struct, frozen=True):
    """The file of a gateway. `base`: the documents with which it was started. `versions`: the name of the serving
    version of each service. `serving`: for each document whose change is in progress, the documents that serve.
    """

    base: dict[str, Document]
    state: State
    versions: dict[str, str] = {}
    history: tuple[Entry, ...] = ()
    serving: dict[str, dict[str, Document]] = {}


class UpstreamReport(msgspec.Struct, frozen=True, kw_only=True):
    """A model server behind a gateway. `state`: `healthy`, `starting`, `unhealthy`, `draining`, `leaving` (removed, and
    still answering requests), or why it gets no requests for a while. `running`: its current requests; `limit`: the
    current maximum. `tier`: it gets requests only while all upstreams of lower tiers are full or down. `held`: requests
    that wait until it, or another upstream of their model, is up.
    """

    name: str
    url: str
    state: str
    models: tuple[str, ...]
    running: int
    limit: int
    tier: int
    held: int = 0


class ReplicaReport(msgspec.Struct, frozen=True, kw_only=True):
    """A version of a service. `version`: its own name; `replicas`: how many are ready; `jobs`: ids of all. `held`:
    requests that wait until a replica is ready.
    """

    service: str
    version: str
    model: str
    replicas: int
    jobs: tuple[str, ...]
    held: int = 0


class PastChange(msgspec.Struct, frozen=True, kw_only=True):
    """A change, without what undoing it restores."""

    at: float
    by: str
    changes: tuple[str, ...]
    settled: bool


class GatewayReport(msgspec.Struct, frozen=True, kw_only=True):
    """The configuration of a gateway and its state. `changes`: the state of the latest change by service; `trials`:
    reports of canaries by service.
    """

    url: str
    documents: dict[str, Document]
    drained: tuple[str, ...]
    upstreams: tuple[UpstreamReport, ...]
    services: tuple[ReplicaReport, ...]
    changes: dict[str, str]
    trials: dict[str, Any]
    history: tuple[PastChange, ...]


class Applied(msgspec.Struct, frozen=True, kw_only=True):
    """The changes that were made, or with a check that would be made. `pending`: services whose change goes on."""

    changes: tuple[Change, ...]
    pending: tuple[str, ...] = ()


class Apply(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A request to apply documents, or to `check` what that would change. `models`: those with all their versions in
    these documents; other versions of them are removed.
    """

    documents: list[Document]
    check: bool = False
    models: tuple[str, ...] = ()


class Named(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A request about an upstream, a replica or a service. `undo`: take a drain back."""

    name: str
    undo: bool = False


UPSTREAMS = "upstreams"


def key_of(document: Document) -> str:
    """Return the key of a document: a gateway has one document of upstreams, and one for each service."""
    kind = UPSTREAMS if document.get("kind") == UPSTREAMS else "service"
    return kind if kind == UPSTREAMS else f"service {document.get('name', '')}"


def model_of(document: Document) -> str:
    """Return the model of which a service is the default, or another, version; empty for upstreams."""
    return str(document.get("version_of") or document.get("name", ""))


def differences(before: State, after: State) -> tuple[Change, ...]:
    """Return what changes, in the order of the places. Entries of lists are compared by their names, if they have."""
    old, new = _places(before), _places(after)
    return tuple(Change(at, old.get(at), new.get(at)) for at in sorted({*old, *new}) if old.get(at) != new.get(at))


def _places(state: State) -> dict[str, Any]:
    made: dict[str, Any] = {}
    for key, document in state.documents.items():
        _enter(made, key, {name: value for name, value in document.items() if name not in ("kind", "name")})
    made |= {f"upstreams.{name}.drained": True for name in state.drained}
    return made


def _enter(made: dict[str, Any], at: str, value: Any) -> None:
    if isinstance(value, list) and value and all(isinstance(one, dict) and one.get("name") for one in value):
        value = {str(one["name"]): {name: of for name, of in one.items() if name != "name"} for one in value}
    if isinstance(value, dict) and value:
        for name, one in value.items():
            within = at if (at, name) == (UPSTREAMS, UPSTREAMS) else f"{at}.{name}"
            _enter(made, within, one)
    else:
        made[at] = value


def _shown(value: Any) -> str:
    return msgspec.json.encode(value).decode() if not isinstance(value, str) else value


__all__ = [
    "UPSTREAMS",
    "Applied",
    "Apply",
    "Change",
    "Document",
    "Entry",
    "GatewayReport",
    "Named",
    "PastChange",
    "ReplicaReport",
    "Saved",
    "State",
    "UpstreamReport",
    "differences",
    "key_of",
    "model_of",
]
