"""Files and folders that are whole and on the disk, or not there: written, synced, and only then given their names."""

import contextlib
import os
import shutil
from collections.abc import Iterator
from pathlib import Path


@contextlib.contextmanager
def created(path: Path) -> Iterator[int]:
    """A new file to write to; once the block is left it is on the disk. What there was is overwritten."""
    file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o666)
    try:
        yield file
        os.fsync(file)
    finally:
        os.close(file)


def put(file: int, content: bytes | memoryview) -> None:
    """All of it: the system may take a part at a time."""
    rest = memoryview(content)
    while rest:
        rest = rest[os.write(file, rest) :]


def write(path: Path, content: bytes) -> None:
    """Whoever looks finds all of it under this name, or nothing."""
    draft = path.with_name(f"{path.name}.draft")
    with created(draft) as file:
        put(file, content)
    draft.rename(path)


def sync(folder: Path) -> None:
    """The names in it are on the disk."""
    file = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(file)
    finally:
        os.close(file)


def clear(folder: Path) -> None:
    """Remove it with all that is in it; of a link, the link. It loses its name first: nobody finds half of it."""
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
