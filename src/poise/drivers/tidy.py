"""What nobody will read any more is removed."""

import contextlib
import os
import time
import uuid
from collections.abc import Iterable, Set
from pathlib import Path

GANGS = "gang-"
GANG_SECONDS = 30 * 86_400.0
"""A gang may train for weeks, and nothing changes in its folder meanwhile."""

SPARE = 20
"""The part of a disk that caches and copies leave free: a twentieth."""

_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC


def remove_abandoned(folder: Path, kept: Set[str], seconds: float) -> None:
    """Remove each folder in `folder` whose name is not kept and in which nothing was made or removed for so long."""
    for path in folder.iterdir() if folder.is_dir() else ():
        try:
            unchanged = time.time() - path.stat().st_mtime
        except FileNotFoundError:
            continue
        least = GANG_SECONDS if path.name.startswith(GANGS) else seconds
        if path.name not in kept and unchanged > least:
            remove_folder(path)


def remove_folders(folders: Iterable[Path], jobs: Iterable[str]) -> None:
    """Remove the folders of these jobs, where there are any. Ids of jobs are names of folders, not paths."""
    names = tuple(jobs)
    for folder in folders:
        for job in names:
            remove_folder(folder / job)


def remove_folder(path: Path) -> None:
    """Remove a folder and all that is in it. A link is not followed, and what cannot be removed stays.

    A job makes folders as deep as it likes. So a folder gives the folders in it to `path` before it is removed: no
    path grows long, and two folders are open at a time.
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
    """Remove the files of an open folder, and move its folders to the root. Returns their names there."""
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
    """Move a folder to the root, under a new name. One that is read-only could not be moved."""
    with contextlib.suppress(OSError):
        inner = os.open(name, _FOLDER, dir_fd=folder)
        try:
            os.fchmod(inner, 0o700)
        finally:
            os.close(inner)
    new = uuid.uuid4().hex
    os.rename(name, new, src_dir_fd=folder, dst_dir_fd=root)
    return new
