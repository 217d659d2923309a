"""Who may publish checkpoints in a folder: the highest epoch, and of one epoch what began last.

Who begins makes a file `fence-EPOCH.TURN` that is above all others. Who publishes looks whether his is still the
highest, and renames what he has written. Between the two another may begin: so who begins also takes the names from all
that is being written, and the rename finds nothing. Either it came first, and who begins finds it published, or it
fails. Nothing is locked, so nobody who was killed leaves a lock.
"""

import contextlib
import os
import re
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from poise.train import durable

_FENCE = re.compile(r"fence-(\d+)\.(\d+)")
_PARTIAL = re.compile(r"step-(\d+)\.(\d+)\.(\d+)\.partial")


class Term(NamedTuple):
    """The epoch of who writes, and which turn of that epoch it is."""

    epoch: int
    turn: int

    def __str__(self) -> str:
        return f"epoch {self.epoch}, turn {self.turn}"


def highest(folder: Path) -> Term | None:
    return max(_fences(folder), default=None)


def begin(folder: Path, epoch: int) -> Term | None:
    """The next turn of this epoch; None if a higher epoch has begun."""
    while True:
        top = highest(folder)
        if top is not None and top.epoch > epoch:
            return None
        term = Term(epoch, top.turn + 1 if top is not None and top.epoch == epoch else 1)
        try:
            os.close(os.open(_path(folder, term), os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o666))
        except FileExistsError:  # another began at the same moment
            continue
        durable.sync(folder)
        for other in _fences(folder):
            if other < term:
                _path(folder, other).unlink(missing_ok=True)
        return term


def partial(folder: Path, step: int, term: Term) -> Path:
    """Where what is being written lies."""
    return folder / f"step-{step}.{term.epoch}.{term.turn}.partial"


def take_names(folder: Path, below: Term) -> list[int]:
    """Nothing that was begun below this term can be published any more, and it is removed; of which steps it was."""
    return _clear(folder, lambda _, term: term < below)


def clear_unfinished(folder: Path, term: Term, step: int) -> None:
    """What was begun in this term up to that step, and will never be whole."""
    _clear(folder, lambda one, of: of == term and one <= step)


def _clear(folder: Path, which: Callable[[int, Term], bool]) -> list[int]:
    steps = []
    for path in list(folder.iterdir()):
        name = _PARTIAL.fullmatch(path.name)
        if name and which(int(name[1]), Term(int(name[2]), int(name[3]))):
            with contextlib.suppress(FileNotFoundError):  # who wrote it was quicker, or removes it too
                durable.clear(path)
                steps.append(int(name[1]))
    return sorted(steps)


def _fences(folder: Path) -> list[Term]:
    names = (_FENCE.fullmatch(path.name) for path in folder.iterdir()) if folder.is_dir() else ()
    return [Term(int(name[1]), int(name[2])) for name in names if name]


def _path(folder: Path, term: Term) -> Path:
    return folder / f"fence-{term.epoch}.{term.turn}"
