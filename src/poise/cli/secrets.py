"""Reads the values of secrets from the environment, files, or standard input."""

import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from poise.errors import SpecError
from poise.model.document import Findings
from poise.model.secrets import MAX_SECRET, check_value, each, source_of

STDIN = "-"


def absolute(spec: dict[str, Any], folder: Path) -> dict[str, Any]:
    """Return the job with absolute paths of its secrets' files, and its secrets as a mapping. Raises SpecError."""
    made: dict[str, Any] = each(spec, lambda told, at: {name: _absolute(one, folder) for name, one in told.items()})
    return made


def _absolute(one: Any, folder: Path) -> Any:
    if isinstance(one, dict) and isinstance(one.get("file"), str) and one["file"] not in ("", STDIN):
        return one | {"file": str(folder / Path(one["file"]).expanduser())}
    return one


def with_values(spec: dict[str, Any], environ: Mapping[str, str]) -> dict[str, Any]:
    """Return the job with the values of its secrets, as requests need it. Raises SpecError."""
    found = Findings()

    def make(told: dict[str, Any], at: str) -> dict[str, str]:
        return {name: found.get("", _value, name, one, at, environ) for name, one in told.items()}

    made: dict[str, Any] = each(spec, make)
    found.check()
    return made


def _value(name: str, told: Any, at: str, environ: Mapping[str, str]) -> str:
    file = source_of(name, told, at).file
    if not file and name not in environ:
        hint = f"export {name}=…, or a file: `--secret {name}=@FILE`"
        raise SpecError(f"`{name}` is not set in your environment", field=f"{at}.{name}", hint=hint)
    value = _read(file, f"{at}.{name}") if file else environ[name]
    check_value(name, value, at)
    return value


def _read(file: str, field: str) -> str:
    """Return the text of a file without trailing newlines, which editors add."""
    try:
        if file == STDIN:
            content = sys.stdin.buffer.read(MAX_SECRET + 2)
        else:
            with Path(file).expanduser().open("rb") as opened:
                content = opened.read(MAX_SECRET + 2)
    except OSError as error:
        what, hint = f"the file of a secret cannot be read: {error.strerror}", f"`ls -l {file}`"
        raise SpecError(what, field=field, have=file, hint=hint) from None
    try:
        return content.decode().rstrip("\r\n")
    except UnicodeDecodeError:
        what, hint = "the file of a secret is not UTF-8 text", "encode it as base64"
        raise SpecError(what, field=field, have=file, hint=hint) from None
