"""Compile a file of API keys for a gateway.

    kind: keys
    keys:
    - {name: app, tenant: ann, sha256: 2cf24d..., scopes: [ask], models: [twice], rate: 600/m, tokens: 1000000/d}
    - {name: ci, token: t3, rate: 10/s}

A key is identified by the SHA-256 of its secret, so that the file contains no secrets; or it is a token of the control
plane, identified by the id that `poise token ls` shows. `compile_keys` raises `SpecError` with every error.
"""

import re
from collections import Counter
from typing import Any, Literal

import msgspec

from poise.errors import SpecError
from poise.model.document import Findings
from poise.model.spec import check_name
from poise.model.tenants import DEFAULT, Role
from poise.units import DAY, HOUR, MINUTE, SECOND

Scope = Literal["ask", "read", "forget", "admin"]
"""Permissions of a key: ask models; read metrics and canaries; delete cached answers (`forget`); change the
configuration (`admin`)."""

SCOPES_OF = {
    Role.NODE: frozenset[str](),
    Role.OBSERVER: frozenset({"read"}),
    Role.VIEWER: frozenset({"read"}),
    Role.SUBMITTER: frozenset({"ask", "read"}),
    Role.OPERATOR: frozenset({"ask", "read", "forget", "admin"}),
    Role.ADMIN: frozenset({"ask", "read", "forget", "admin"}),
}
"""Permissions of control-plane tokens, by role."""

MOST_KEYS = 10_000
ALLOWANCE = r"[1-9][0-9]{0,14}/[smhd]"
WINDOWS = {"s": SECOND, "m": MINUTE, "h": HOUR, "d": DAY}


class Allowance(msgspec.Struct, frozen=True):
    """A limit of `amount` in each `window` of nanoseconds."""

    amount: int
    window: int


class KeySpec(msgspec.Struct, forbid_unknown_fields=True):
    """One key. `rate`: requests, such as `600/m`; `tokens`: of prompts and answers, such as `1000000/d`."""

    name: str = ""
    tenant: str = ""
    sha256: str = ""
    token: str = ""
    scopes: list[Scope] | None = None
    models: list[str] = msgspec.field(default_factory=list)
    rate: str = ""
    tokens: str = ""


class KeysSpec(msgspec.Struct, forbid_unknown_fields=True):
    """A whole file."""

    kind: str = ""
    keys: list[KeySpec] = msgspec.field(default_factory=list)


class Key(msgspec.Struct, frozen=True, kw_only=True):
    """A compiled key. `digest`: SHA-256 of its secret; `token`: the id of a control-plane token instead. Without
    `scopes` or `tenant`, those of that token apply; no `models` means all models. None for an allowance means no limit.
    """

    name: str
    tenant: str = ""
    digest: str = ""
    token: str = ""
    scopes: frozenset[str] | None = None
    models: frozenset[str] = frozenset()
    rate: Allowance | None = None
    tokens: Allowance | None = None


def compile_keys(document: Any) -> tuple[Key, ...]:
    """Compile a parsed file."""
    found = Findings()
    top = found.convert(document, KeysSpec)
    made: list[Key] = []
    if top is not None:
        if top.kind != "keys":
            found.add(SpecError("this is not a file of keys", field="kind", need="keys", have=top.kind))
        if not 1 <= len(top.keys) <= MOST_KEYS:
            found.add(
                SpecError("invalid number of keys", field="keys", need=f"1 to {MOST_KEYS}", have=str(len(top.keys)))
            )
        made = [_compile(told, f"keys[{place}]", found) for place, told in enumerate(top.keys[:MOST_KEYS])]
        for field, values in (
            ("name", [key.name for key in made]),
            ("sha256", [key.digest for key in made if key.digest]),
            ("token", [key.token for key in made if key.token]),
        ):
            for twice in sorted(value for value, count in Counter(values).items() if count > 1):
                found.add(SpecError(f"two keys have the same {field}", field="keys", have=twice))
    found.check(lambda field: "keys: [{name: app, sha256: ..., rate: 600/m}]")
    return tuple(made)


def _compile(told: KeySpec, at: str, found: Findings) -> Key:
    found.get(None, check_name, told.name, f"{at}.name")
    if told.tenant:
        found.get(None, check_name, told.tenant, f"{at}.tenant")
    if bool(told.sha256) == bool(told.token):
        need = "sha256 (of a secret), or token (the id of a token of the control plane)"
        found.add(SpecError("a key needs either `sha256` or `token`", field=at, need=need))
    if told.sha256 and not re.fullmatch(r"[0-9a-f]{64}", told.sha256):
        found.add(SpecError("this is not a SHA-256", field=f"{at}.sha256", need="64 digits of 0-9 and a-f"))
    scopes = told.scopes if told.scopes is not None or told.token else ["ask"]
    return Key(
        name=told.name,
        tenant=told.tenant or ("" if told.token else DEFAULT),
        digest=told.sha256,
        token=told.token,
        scopes=None if scopes is None else frozenset(scopes),
        models=frozenset(told.models),
        rate=found.get(None, _allowance, told.rate, f"{at}.rate"),
        tokens=found.get(None, _allowance, told.tokens, f"{at}.tokens"),
    )


def _allowance(text: str, field: str) -> Allowance | None:
    if not text:
        return None
    if not re.fullmatch(ALLOWANCE, text):
        raise SpecError(
            "this is not a limit", field=field, need="an amount by s, m, h or d", have=text[:40], hint="600/m"
        )
    amount, _, unit = text.partition("/")
    return Allowance(int(amount), WINDOWS[unit])


__all__ = ["SCOPES_OF", "Allowance", "Key", "KeysSpec", "compile_keys"]
