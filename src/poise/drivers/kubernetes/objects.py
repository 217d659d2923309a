"""The fields that all Kubernetes objects have, as far as Poise reads them. All other fields are ignored."""

import msgspec


class Record(msgspec.Struct, frozen=True, kw_only=True, rename="camel", gc=False):
    """A part of an object; unknown fields are ignored."""


class Owner(Record, frozen=True):
    api_version: str = ""
    kind: str = ""
    name: str = ""
    uid: str = ""
    controller: bool = False


class Meta(Record, frozen=True):
    name: str = ""
    namespace: str = ""
    uid: str = ""
    resource_version: str = ""
    labels: dict[str, str] | None = None
    annotations: dict[str, str] | None = None
    creation_timestamp: str = ""
    deletion_timestamp: str | None = None
    deletion_grace_period_seconds: int | None = None
    owner_references: tuple[Owner, ...] | None = None


class Known(Record, frozen=True):
    """A named object."""

    metadata: Meta
