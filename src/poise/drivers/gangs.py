"""The folders in which gang members meet: one for each gang and the epoch in which it was placed, shared by the nodes
of a home.

Beside each folder are its members' marks: `RANK.NODE.here`, then `RANK.NODE.left` once the member's ending is durable;
for members that joined later, the name contains their epoch. When all members have joined and left, the folder is
removed. If some members never joined, an agent removes the folder at its start once nobody has been in it for an hour.
"""

import contextlib
import time
from collections.abc import Callable, Iterable
from pathlib import Path

from poise.drivers.tidy import remove_folder
from poise.model.messages import Attempt, Launch

ABANDONED = 3600.0
"""Seconds after which an abandoned folder is removed."""


class Gangs:
    """The gangs of one node. `plain` makes a name safe as one component of a path."""

    def __init__(self, folder: Path, node: str, plain: Callable[[str], str]) -> None:
        self._folder, self._node, self._plain = folder, plain(node), plain
        self._members: dict[Attempt, tuple[str, str, int]] = {}

    def open(self, held: Iterable[Launch]) -> None:
        """Restore this node's members after a restart of the agent, fix their marks, and remove abandoned folders."""
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
        """Return the folder for a starting member; it is empty for the first of its gang."""
        name, member = self._remember(launch)
        with contextlib.suppress(OSError):
            (self._folder / name).mkdir(mode=0o700, parents=True, exist_ok=True)
            marks = self._folder / f".{name}"
            marks.mkdir(mode=0o700, exist_ok=True)
            (marks / f"{member}.{self._node}.here").touch()
        return str(self._folder / name)

    def leave(self, attempts: Iterable[Attempt]) -> None:
        """Mark these members as left, because their endings are durable. Other attempts are ignored."""
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
        """Return the name of its gang's folder, and the name of its mark."""
        epoch = launch.attempt.epoch
        founded = launch.founded or epoch
        name, member = f"{self._plain(launch.gang)}.{founded}", f"{launch.rank}" + f"-{epoch}" * (epoch != founded)
        self._members[launch.attempt] = (name, member, launch.world)
        return name, member

    def _remove(self, name: str) -> None:
        remove_folder(self._folder / name)
        remove_folder(self._folder / f".{name}")
