"""Who may publish checkpoints in a folder: what began there last, unless it is an older attempt.

Who begins makes a file `fence-TURN.EPOCH.TRAINING` that is above all others: its turn is the next. Who publishes looks
whether his is still the highest, and renames what he has written. Between the two another may begin: so who begins also
takes the names from all that is being written, and the rename finds nothing. Either it came first, and who begins finds
it published, or it fails. Nothing is locked, so nobody who was killed leaves a lock.

All attempts of a training have its number, and a later attempt has a higher epoch: an older one, that comes late, does
not begin. Epochs of two trainings say nothing about each other: the one that comes later takes the folder over, for
good. So the last fence of each stays, and whoever finds his own below that of another has been overtaken.
"""

import os
import re
from collections.abc import Callable
from errno import EPERM
from pathlib import Path
from typing import NamedTuple

from poise_train import durable

REMEMBERED = 64
"""Trainings whose fences stay when they have been overtaken. Who comes back from further ago is taken for a new one."""

_TERM = r"([1-9][0-9]*)\.(0|[1-9][0-9]*)\.([0-9a-f]{16})"
_FENCE = re.compile(rf"fence-{_TERM}")
_PARTIAL = re.compile(rf"step-(0|[1-9][0-9]*)\.{_TERM}\.partial")


class Term(NamedTuple):
    """Which turn in the folder it is, and whose: the epoch and the number of a training."""

    turn: int
    epoch: int
    training: int

    def __str__(self) -> str:
        return f"epoch {self.epoch}, turn {self.turn}"

    @property
    def name(self) -> str:
        return f"{self.turn}.{self.epoch}.{self.training:016x}"


def highest(folder: Path) -> Term | None:
    return max(_fences(folder), default=None)


def is_over(folder: Path, epoch: int, training: int) -> bool:
    """Whether a later attempt of this training has begun, or another training since."""
    there = sorted(_fences(folder))
    mine = [term for term in there if term.training == training]
    return bool(mine) and (max(term.epoch for term in mine) > epoch or mine[-1] < there[-1])


def begin(folder: Path, epoch: int, training: int) -> Term | None:
    """The next turn, of this attempt; None if that is over."""
    while not is_over(folder, epoch, training):
        top = highest(folder)
        term = Term(top.turn + 1 if top is not None else 1, epoch, training)
        try:
            os.close(os.open(_path(folder, term), os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o666))
        except FileExistsError:  # another began at the same moment
            continue
        durable.sync(folder)
        if highest(folder) != term:  # another did, and is above it
            _path(folder, term).unlink(missing_ok=True)
            continue
        below = sorted((other for other in _fences(folder) if other < term), reverse=True)
        last = {other.training: other for other in reversed(below) if other.training != training}
        for other in set(below) - set(sorted(last.values(), reverse=True)[:REMEMBERED]):
            _path(folder, other).unlink(missing_ok=True)
        return term
    return None


def partial(folder: Path, step: int, term: Term) -> Path:
    """Where what is being written lies."""
    return folder / f"step-{step}.{term.name}.partial"


def take_names(folder: Path, below: Term, remove: Callable[[Path], bool]) -> list[int]:
    """Nothing that was begun below this term can be published any more, and it is removed; of which steps it was.

    Raises `OSError` if one keeps its name. `remove` says whether there was something.
    """
    steps = _clear(folder, lambda _, term: term < below, remove)

    def kept(path: Path) -> bool:
        raise PermissionError(EPERM, os.strerror(EPERM), str(path))

    _clear(folder, lambda _, term: term < below, kept)
    return steps


def clear_unfinished(folder: Path, term: Term, step: int, remove: Callable[[Path], bool]) -> None:
    """What was begun in this term up to that step, and will never be whole."""
    _clear(folder, lambda one, of: of == term and one <= step, remove)


def _clear(folder: Path, which: Callable[[int, Term], bool], remove: Callable[[Path], bool]) -> list[int]:
    steps = []
    for path in list(folder.iterdir()):
        name = _PARTIAL.fullmatch(path.name)
        if name and which(int(name[1]), _term(name, 2)) and remove(path):
            steps.append(int(name[1]))
    return sorted(steps)


def _fences(folder: Path) -> list[Term]:
    names = (_FENCE.fullmatch(path.name) for path in folder.iterdir()) if folder.is_dir() else ()
    return [_term(name, 1) for name in names if name]


def _term(name: re.Match[str], at: int) -> Term:
    return Term(int(name[at]), int(name[at + 1]), int(name[at + 2], 16))


def _path(folder: Path, term: Term) -> Path:
    return folder / f"fence-{term.name}"
