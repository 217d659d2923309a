"""The folders in which the members of a gang meet: one for each gang and the epoch in which it was placed, shared by
the nodes of a home.

Beside each folder lie its members' marks: `RANK.NODE.here`, and `RANK.NODE.left` when its end is durable; of those who
joined later their epoch is part of it. When all have come and left, the folder goes. What a gang leaves of which not
all members came goes when an agent starts and finds nobody in it for an hour.
"""

import contextlib
import time
from collections.abc import Callable, Iterable
from pathlib import Path

from poise.drivers.tidy import remove_folder
from poise.model.messages import Attempt, Launch

ABANDONED = 3600.0
"""Seconds after which a folder in which nobody is left is cleared away."""


class Gangs:
    """The gangs of one node. `plain` makes a name safe as one component of a path."""

    def __init__(self, folder: Path, node: str, plain: Callable[[str], str]) -> None:
        self._folder, self._node, self._plain = folder, plain(node), plain
        self._members: dict[Attempt, tuple[str, str, int]] = {}

    def open(self, held: Iterable[Launch]) -> None:
        """What this node's members were when its last agent went, set right; what was abandoned is cleared away."""
        self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        for launch in held:
            self._remember(launch)
        here = {(name, member) for name, member, _ in self._members.values()}
        for marks in self._folder.glob(".*"):
            name = marks.name[1:]
            for mark in marks.glob("*.here"):
                member, _, node = mark.stem.partition(".")
                if node == self._node and (name, member) not in here:
                    mark.rename(mark.with_suffix(".left"))
            quiet = time.time() - marks.stat().st_mtime > ABANDONED
            if quiet and all(mark.suffix == ".left" for mark in marks.iterdir()):
                self._remove(name)

    def join(self, launch: Launch) -> str:
        """The folder for a member that starts; empty when the first of its gang arrives."""
        name, member = self._remember(launch)
        with contextlib.suppress(OSError):
            (self._folder / name).mkdir(mode=0o700, parents=True, exist_ok=True)
            marks = self._folder / f".{name}"
            marks.mkdir(mode=0o700, exist_ok=True)
            (marks / f"{member}.{self._node}.here").touch()
        return str(self._folder / name)

    def leave(self, attempts: Iterable[Attempt]) -> None:
        """The ends of these are durable; those of no gang are not looked at."""
        if not self._members:
            return
        for attempt in attempts:
            if attempt not in self._members:
                continue
            name, member, world = self._members.pop(attempt)
            marks = self._folder / f".{name}"
            with contextlib.suppress(OSError):
                mark = marks / f"{member}.{self._node}.here"
                mark.rename(mark.with_suffix(".left"))
                left = [mark.suffix == ".left" for mark in marks.iterdir()]
                if all(left) and len(left) >= world:
                    self._remove(name)

    def _remember(self, launch: Launch) -> tuple[str, str]:
        """The name of its gang's folder, and that of its mark."""
        epoch = launch.attempt.epoch
        founded = launch.founded or epoch
        name, member = f"{self._plain(launch.gang)}.{founded}", f"{launch.rank}" + f"-{epoch}" * (epoch != founded)
        self._members[launch.attempt] = (name, member, launch.world)
        return name, member

    def _remove(self, name: str) -> None:
        remove_folder(self._folder / name)
        remove_folder(self._folder / f".{name}")
