"""Reads text files that users name, up to a size: also pipes and devices, which have none."""

from pathlib import Path

from poise.config import MAX_BODY
from poise.errors import SpecError
from poise.units import format_bytes


def read_text(path: Path, hint: str = "") -> str:
    """Return the text of a file. Raises `SpecError` (E101); `hint` says what to do if the file is too large."""
    try:
        with path.open("rb") as file:
            content = file.read(MAX_BODY + 1)  # not by its size, which a pipe does not have
        if len(content) > MAX_BODY:
            raise SpecError(
                "the file is too large",
                code="E101",
                field=str(path),
                need=f"at most {format_bytes(MAX_BODY)}",
                have=format_bytes(max(path.stat().st_size, len(content))),
                hint=hint,
            )
        return content.decode()
    except OSError as error:
        raise SpecError(
            f"the file cannot be read: {error.strerror}", code="E101", field=str(path), hint=f"`ls -l {path}`"
        ) from None
    except UnicodeDecodeError as error:
        raise SpecError(
            "the file is not UTF-8 text", code="E101", field=str(path), have=str(error), hint=f"`file {path}`"
        ) from None
