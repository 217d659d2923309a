"""Requests and answers of etcd's gateway, as in its API version 3 (JSON, bytes in base64)."""

from typing import Any, Literal

import msgspec

from poise.decoding import json_decoder


class KeyValue(msgspec.Struct):
    """`mod_revision` changes with every write of the key."""

    key: bytes
    value: bytes = b""
    mod_revision: str = ""


class Found(msgspec.Struct):
    kvs: list[KeyValue] = []


class Header(msgspec.Struct):
    cluster_id: str = ""


class Response(msgspec.Struct):
    response_range: Found = msgspec.field(default_factory=Found)


class Told(msgspec.Struct):
    """Answer to any request; fields that do not apply are empty."""

    header: Header = msgspec.field(default_factory=Header)
    kvs: list[KeyValue] = []
    succeeded: bool = False
    responses: list[Response] = []
    token: str = ""


class Refusal(msgspec.Struct):
    """An error; `code` is gRPC's."""

    message: str = ""
    error: str = ""
    code: int = 0


class Range(msgspec.Struct, omit_defaults=True):
    """A query by key range, in key order. Without an end: one key. Without a limit: all keys."""

    key: bytes
    range_end: bytes = b""
    limit: int = 0
    keys_only: bool = False


class Put(msgspec.Struct):
    key: bytes
    value: bytes


class Delete(msgspec.Struct, omit_defaults=True):
    key: bytes
    range_end: bytes = b""


class Compare(msgspec.Struct, omit_defaults=True):
    """Comparison of a value, a version (0: the key does not exist) or a mod_revision."""

    key: bytes
    target: Literal["VALUE", "VERSION", "MOD"]
    value: bytes | None = None
    version: str = ""
    mod_revision: str = ""


class Operation(msgspec.Struct, omit_defaults=True):
    request_put: Put | None = None
    request_range: Range | None = None
    request_delete_range: Delete | None = None


class Transaction(msgspec.Struct, omit_defaults=True):
    compare: list[Compare]
    success: list[Operation]


encode = msgspec.json.Encoder().encode
decode_answer = json_decoder(Told).decode
decode_refusal = json_decoder(Refusal).decode


def is_value(key: bytes, value: bytes) -> Compare:
    return Compare(key, "VALUE", value=value)


def is_absent(key: bytes) -> Compare:
    return Compare(key, "VERSION", version="0")


def put(key: bytes, value: bytes) -> Operation:
    return Operation(request_put=Put(key, value))


def delete(key: bytes, end: bytes = b"") -> Operation:
    return Operation(request_delete_range=Delete(key, end))


def end_of(prefix: bytes) -> bytes:
    """Return the end of the range of all keys with this prefix."""
    return prefix[:-1] + bytes([prefix[-1] + 1])


Question = Range | Transaction | dict[str, Any]
