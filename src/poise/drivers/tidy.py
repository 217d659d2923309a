"""What nobody will read any more is removed."""

import shutil
import time
from collections.abc import Iterable, Set
from pathlib import Path

GANGS = "gang-"
GANG_SECONDS = 30 * 86_400.0
"""A gang may train for weeks, and nothing changes in its folder meanwhile."""


def remove_abandoned(folder: Path, kept: Set[str], seconds: float) -> None:
    """Remove each folder in `folder` whose name is not kept and in which nothing was made or removed for so long."""
    for path in folder.iterdir() if folder.is_dir() else ():
        try:
            unchanged = time.time() - path.stat().st_mtime
        except FileNotFoundError:
            continue
        least = GANG_SECONDS if path.name.startswith(GANGS) else seconds
        if path.name not in kept and unchanged > least:
            shutil.rmtree(path, ignore_errors=True)


def remove_folders(folders: Iterable[Path], jobs: Iterable[str]) -> None:
    """Remove the folders of these jobs, where there are any. Ids of jobs are names of folders, not paths."""
    for folder in folders:
        for job in jobs:
            shutil.rmtree(folder / job, ignore_errors=True)
