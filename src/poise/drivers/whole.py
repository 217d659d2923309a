"""Files that are there whole or not at all, for whoever reads them meanwhile."""

import os
from pathlib import Path


def write_whole(path: Path, content: bytes, mode: int = 0o666) -> None:
    """Write it beside, and put it in place. One writer at a time; a machine that stops may lose it."""
    draft = path.with_name(f"{path.name}.new")
    with os.fdopen(os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, mode), "wb") as file:
        file.write(content)
    draft.replace(path)


__all__ = ["write_whole"]
