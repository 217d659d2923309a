"""Writes files atomically, so that readers never see a partial file."""

import os
from pathlib import Path


def write_whole(path: Path, content: bytes, mode: int = 0o666) -> None:
    """Write a draft beside the file, and rename it. One writer at a time; the file is not synced, so a crash may lose
    it."""
    draft = path.with_name(f"{path.name}.new")
    with os.fdopen(os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, mode), "wb") as file:
        file.write(content)
    draft.replace(path)


__all__ = ["write_whole"]
