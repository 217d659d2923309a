"""Fencing of checkpoint writers: only the attempt that began last in a folder may publish, unless it is an older one.

A new attempt creates a file `fence-TURN.EPOCH.TRAINING` with the next turn. A publisher checks that its own fence is
still the highest, and renames its folder. Another attempt may begin between the two steps, so it also renames all
unfinished folders, which makes the publisher's rename fail. Either the rename came first, and the new attempt finds the
checkpoint published, or it fails. There are no locks, so a killed process leaves none behind.

All attempts of a training share its number, and a later attempt has a higher epoch: an older attempt that comes late
cannot begin. Epochs of different trainings are not comparable: the later one takes the folder over permanently. So the
last fence of each training is kept, and a training with its fence below that of another has been replaced.
"""

import os
import re
from collections.abc import Callable
from errno import EPERM
from pathlib import Path
from typing import NamedTuple

from poise_train import durable

REMEMBERED = 64
"""Number of replaced trainings whose fences are kept. An older one that returns counts as a new training."""

_TERM = r"([1-9][0-9]*)\.(0|[1-9][0-9]*)\.([0-9a-f]{16})"
_FENCE = re.compile(rf"fence-{_TERM}")
_PARTIAL = re.compile(rf"step-(0|[1-9][0-9]*)\.{_TERM}\.partial")


class Term(NamedTuple):
    """A turn in the folder, with the epoch and the number of its training."""

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
    """Whether a later attempt of this training, or another training after it, has begun."""
    there = sorted(_fences(folder))
    mine = [term for term in there if term.training == training]
    return bool(mine) and (max(term.epoch for term in mine) > epoch or mine[-1] < there[-1])


def begin(folder: Path, epoch: int, training: int) -> Term | None:
    """Begin the next turn for this attempt; None if it is fenced off."""
    while not is_over(folder, epoch, training):
        top = highest(folder)
        term = Term(top.turn + 1 if top is not None else 1, epoch, training)
        try:
            os.close(os.open(_path(folder, term), os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o666))
        except FileExistsError:  # another attempt began at the same moment
            continue
        durable.sync(folder)
        if highest(folder) != term:  # another attempt began with a higher term
            _path(folder, term).unlink(missing_ok=True)
            continue
        below = sorted((other for other in _fences(folder) if other < term), reverse=True)
        last = {other.training: other for other in reversed(below) if other.training != training}
        for other in set(below) - set(sorted(last.values(), reverse=True)[:REMEMBERED]):
            _path(folder, other).unlink(missing_ok=True)
        return term
    return None


def partial(folder: Path, step: int, term: Term) -> Path:
    """Return the folder of an unfinished checkpoint."""
    return folder / f"step-{step}.{term.name}.partial"


def take_names(folder: Path, below: Term, remove: Callable[[Path], bool]) -> list[int]:
    """Remove unfinished checkpoints of lower terms, so that they cannot be published. Return their steps.

    Raises `OSError` if one keeps its name. `remove` returns whether it removed something.
    """
    steps = _clear(folder, lambda _, term: term < below, remove)

    def kept(path: Path) -> bool:
        raise PermissionError(EPERM, os.strerror(EPERM), str(path))

    _clear(folder, lambda _, term: term < below, kept)
    return steps


def clear_unfinished(folder: Path, term: Term, step: int, remove: Callable[[Path], bool]) -> None:
    """Remove unfinished checkpoints of this term up to that step, which will never be complete."""
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
