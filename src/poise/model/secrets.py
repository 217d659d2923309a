"""Secrets of a job: environment variables whose values never appear in the log in plain text.

A document has them in one of three forms, for the whole job and for tasks of a graph. A file names them and the source
of their values: `secrets: [HF_TOKEN]` or `secrets: {HF_TOKEN: {file: token.txt}}`. A request has the values as text.
The control plane replaces each text by a `Sealed` as the request arrives, and `model/spec.py` compiles no text, so no
path leads from a value to the log. Errors name a secret and never show its value.
"""

import re
from collections.abc import Callable, Collection, Mapping
from typing import Any

import msgspec

from poise.errors import SpecError
from poise.model.document import Findings

MAX_SECRETS = 64
"""Maximum number of secrets of one task."""

MAX_SECRET = 64 * 1024
"""Maximum bytes of a value. Linux accepts at most 128 KiB for one variable."""

MAX_TOGETHER = 64 * 1024
"""Maximum bytes of all values of one field `secrets`: each launch carries them, and a process has limited space for
variables.
"""

HIDDEN = "sealed"
"""Placeholder for a sealed value in displayed events."""

OURS = "POISE_"
"""Prefix of names that are reserved for Poise."""


class Sealed(msgspec.Struct, frozen=True):
    """A value that only a holder of the key can read."""

    text: str


class Source(msgspec.Struct, frozen=True):
    """Source of a value for the command line: a file, or the environment variable with the secret's name."""

    file: str = ""


def each(document: Any, make: Callable[[dict[str, Any], str], Any]) -> Any:
    """Return the document with the result of `make` in place of each field `secrets`: `make` gets the values by name,
    and the path of the field. A document without secrets is returned unchanged. Raises SpecError.
    """
    if not isinstance(document, Mapping):
        return document
    changed: dict[str, Any] = {}
    if "secrets" in document:
        changed["secrets"] = make(by_name(document["secrets"], "secrets"), "secrets")
    tasks = document.get("tasks")
    if isinstance(tasks, Mapping) and any(isinstance(task, Mapping) and "secrets" in task for task in tasks.values()):
        changed["tasks"] = {name: _of_task(task, f"tasks.{name}.secrets", make) for name, task in tasks.items()}
    return {**document, **changed} if changed else document


def _of_task(task: Any, at: str, make: Callable[[dict[str, Any], str], Any]) -> Any:
    if not isinstance(task, Mapping) or "secrets" not in task:
        return task
    return {**task, "secrets": make(by_name(task["secrets"], at), at)}


def by_name(told: Any, at: str) -> dict[str, Any]:
    """Convert either form to a mapping; values are not checked. Raises SpecError."""
    if isinstance(told, list) and all(isinstance(name, str) for name in told):
        told = dict.fromkeys(told)
    if not isinstance(told, Mapping):
        need, hint = "a list of names, or a mapping", "secrets: [HF_TOKEN]"
        raise SpecError("the value has the wrong type", field=at, need=need, hint=hint)
    if len(told) > MAX_SECRETS:
        need, have = f"at most {MAX_SECRETS}", str(len(told))
        raise SpecError("there are too many secrets", code="E103", field=at, need=need, have=have)
    for name in told:
        if not isinstance(name, str) or not re.fullmatch("[A-Za-z_][A-Za-z0-9_]{0,127}", name):
            need, hint = "letters, digits and `_`", "secrets: [HF_TOKEN]"
            raise SpecError(
                "this is not a name for an environment variable", code="E107", field=at, need=need, hint=hint
            )
        if name.startswith(OURS):
            what = f"names that begin with {OURS} belong to Poise"
            raise SpecError(what, code="E107", field=f"{at}.{name}", have=name, hint="another name")
    return dict(told)


def source_of(name: str, told: Any, at: str) -> Source:
    """Return the source of a value, from a file or a flag. Raises SpecError, also for a value in plain text."""
    if told is None:
        return Source()
    if isinstance(told, Mapping) and [*told] == ["file"] and isinstance(told["file"], str) and told["file"]:
        return Source(told["file"])
    raise SpecError(
        "the value of a secret does not belong in a file or on a command line",
        field=f"{at}.{name}",
        need="only its name, for the value in your environment, or {file: PATH}",
        hint=f"secrets: [{name}]",
    )


def named(document: Any) -> Any:
    """Return the document with only the names of its secrets, as needed by a plan or a check. Raises SpecError."""
    return each(document, lambda told, at: [*told])


def sealed(document: Any, seal: Callable[[str, str], Sealed]) -> Any:
    """Return a request with each secret sealed: `seal` takes a name and a value. Raises SpecError."""
    found = Findings()

    def make(told: dict[str, Any], at: str) -> dict[str, Sealed | None]:
        made = {name: found.get(None, _sealed, name, value, at, seal) for name, value in told.items()}
        if not found:
            found.get(None, check_together, told, at)
        return made

    made = each(document, make)
    found.check()
    return made


def check_together(told: Mapping[str, Any], at: str) -> None:
    """Raise SpecError if the values of a field `secrets` are too large together."""
    size = sum(len(value.encode()) for value in told.values() if isinstance(value, str))
    if size > MAX_TOGETHER:
        need, have = f"at most {MAX_TOGETHER} bytes", f"{size} bytes"
        hint = "keep large values in a file, and the path of the file in a variable"
        raise SpecError("the secrets are too large together", code="E103", field=at, need=need, have=have, hint=hint)


def _sealed(name: str, value: Any, at: str, seal: Callable[[str, str], Sealed]) -> Sealed:
    if not isinstance(value, str):
        hint = f'`poise submit` reads it from where it is; from Python: secrets={{"{name}": value}}'
        raise SpecError(f"the secret `{name}` has no value", field=f"{at}.{name}", need="a text", hint=hint)
    check_value(name, value, at)
    return seal(name, value)


def check_value(name: str, value: str, at: str) -> None:
    """Raise SpecError for a value that no environment variable can hold, and for an empty value."""
    field = f"{at}.{name}"
    if not value:
        raise SpecError(f"the secret `{name}` is empty", field=field, need="a value", hint=f"export {name}=…")
    if "\0" in value:
        what, hint = f"the secret `{name}` has a zero byte, which no variable can hold", "encode it as base64"
        raise SpecError(what, field=field, hint=hint)
    try:
        size = len(value.encode())
    except UnicodeEncodeError:
        raise SpecError(f"the secret `{name}` is not UTF-8 text", field=field, hint="encode it as base64") from None
    if size > MAX_SECRET:
        need, have = f"at most {MAX_SECRET} bytes", f"{size} bytes"
        raise SpecError(f"the secret `{name}` is too long", code="E103", field=field, need=need, have=have)


def size_of(told: Any) -> int:
    """Return the bytes that the ledger stores for a field `secrets`."""
    values = told.items() if isinstance(told, dict) else ()
    return sum(len(name) + len(one.text) for name, one in values if isinstance(one, Sealed))


def compiled(told: Any, taken: Collection[str], at: str, found: Findings) -> dict[str, str]:
    """Return the ledger's value of a field `secrets`: each sealed text, or an empty text if the document has only
    names. `taken` are variables that already have a value.
    """
    made: dict[str, str] = {}
    for name, one in found.get({}, by_name, told, at).items():
        if name in taken:
            what, hint = f"`{name}` is a secret and a variable", f"drop `{name}` from `env`"
            found.add(SpecError(what, code="E107", field=f"{at}.{name}", hint=hint))
        if not isinstance(one, Sealed):
            found.get(None, source_of, name, one, at)
        made[name] = one.text if isinstance(one, Sealed) else ""
    return made
