"""Writes files and folders atomically and durably: they get their final names only after they are synced to disk."""

import contextlib
import os
import shutil
from collections.abc import Iterator
from pathlib import Path


@contextlib.contextmanager
def created(path: Path) -> Iterator[int]:
    """Open a file for writing, replacing its content, and sync it to disk at the end of the block."""
    file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o666)
    try:
        yield file
        os.fsync(file)
    finally:
        os.close(file)


def put(file: int, content: bytes | memoryview) -> None:
    """Write all of the content, because one call may write only a part."""
    rest = memoryview(content)
    while rest:
        rest = rest[os.write(file, rest) :]


def write(path: Path, content: bytes) -> None:
    """Write a file atomically, synced before its rename: readers find all of it, or the previous file."""
    draft = path.with_name(f"{path.name}.draft")
    with created(draft) as file:
        put(file, content)
    draft.rename(path)


def sync(folder: Path) -> None:
    """Sync the names in a folder to disk."""
    file = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(file)
    finally:
        os.close(file)


def clear(folder: Path) -> None:
    """Remove a folder and its content; of a link, only the link. It is renamed first, so that no part is found."""
    gone = folder if folder.name.endswith(".cleared") else folder.with_name(f"{folder.name}.cleared")
    if gone != folder:
        if gone.exists() or gone.is_symlink():
            _remove(gone)
        folder.rename(gone)
    _remove(gone)


def _remove(path: Path) -> None:
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink()
