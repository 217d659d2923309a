"""Removes files and folders that are no longer needed."""

import contextlib
import os
import time
import uuid
from collections.abc import Iterable, Set
from pathlib import Path

GANGS = "gang-"
GANG_SECONDS = 30 * 86_400.0
"""Gangs get more time, because one may train for weeks without a change in its folder."""

SPARE = 20
"""Caches and copies leave one part in this many of a disk free: a twentieth."""

_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC


def remove_abandoned(folder: Path, kept: Set[str], seconds: float) -> None:
    """Remove folders in `folder` whose names are not in `kept` and that were last changed more than `seconds` ago."""
    for path in folder.iterdir() if folder.is_dir() else ():
        try:
            unchanged = time.time() - path.stat().st_mtime
        except FileNotFoundError:
            continue
        least = GANG_SECONDS if path.name.startswith(GANGS) else seconds
        if path.name not in kept and unchanged > least:
            remove_folder(path)


def remove_folders(folders: Iterable[Path], jobs: Iterable[str]) -> None:
    """Remove the folders of these jobs if they exist. Job ids are folder names, not paths."""
    names = tuple(jobs)
    for folder in folders:
        for job in names:
            remove_folder(folder / job)


def remove_folder(path: Path) -> None:
    """Remove a folder and its contents. Links are not followed, and items that cannot be removed stay.

    A job may nest folders to any depth. So the subfolders of a folder are moved to `path` before it is removed: no path
    grows long, and at most two folders are open at a time.
    """
    with contextlib.suppress(OSError):
        root = os.open(path, _FOLDER)
        try:
            waiting = _emptied(root, root)
            while waiting:
                name = waiting.pop()
                with contextlib.suppress(OSError):
                    folder = os.open(name, _FOLDER, dir_fd=root)
                    try:
                        waiting += _emptied(folder, root)
                    finally:
                        os.close(folder)
                    os.rmdir(name, dir_fd=root)
        finally:
            os.close(root)
        path.rmdir()


def _emptied(folder: int, root: int) -> list[str]:
    """Remove the files of an open folder, and move its subfolders to the root. Return their names there."""
    with contextlib.suppress(OSError):
        os.fchmod(folder, 0o700)
    moved: list[str] = []
    with os.scandir(folder) as found:
        entries = [(entry.name, entry.is_dir(follow_symlinks=False)) for entry in found]
    for name, is_folder in entries:
        with contextlib.suppress(OSError):
            if not is_folder:
                os.unlink(name, dir_fd=folder)
            elif folder == root:
                moved.append(name)
            else:
                moved.append(_raised(name, folder, root))
    return moved


def _raised(name: str, folder: int, root: int) -> str:
    """Move a folder to the root, under a new name. A read-only folder could not be moved, so it is made writable."""
    with contextlib.suppress(OSError):
        inner = os.open(name, _FOLDER, dir_fd=folder)
        try:
            os.fchmod(inner, 0o700)
        finally:
            os.close(inner)
    new = uuid.uuid4().hex
    os.rename(name, new, src_dir_fd=folder, dst_dir_fd=root)
    return new
