"""Chooses the working tree that a job uploads. Each submission imports this module, so it is small."""

import os
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from poise.errors import SpecError

if TYPE_CHECKING:
    from poise.drivers.worktree import Snapshot

CODE = "E141"


class Brought(NamedTuple):
    """The tree to upload for a job: the folder `root`, and `folder`, in which its commands run. `by_default` means that
    the job did not request it. It is used `everywhere`, or only on nodes that cannot see the folder itself.
    """

    root: Path
    folder: Path
    everywhere: bool
    by_default: bool
    requirements: str

    def look(self, state: Path) -> "Snapshot":
        """Return the tree as it is now. Raises SpecError, also if the lock file is not in it."""
        from poise.drivers.worktree import look  # here, since most jobs bring no files

        snapshot = look(self.root, state)
        if self.requirements and self.lock_file(snapshot) is None:
            need, hint = "a file of the working tree that is not left out", "--requirements requirements.txt"
            what, have = "the lock file is not in the working tree", self.requirements
            raise SpecError(what, code=CODE, field="requirements", need=need, have=have, hint=hint)
        return snapshot

    def lock_file(self, snapshot: "Snapshot") -> str | None:
        """Return its path below the root: it is searched in the job's folder, then in the root."""
        for start in (self.folder, self.root):
            path = os.path.normpath(start / self.requirements)
            below = os.path.relpath(path, snapshot.root)
            if snapshot.holds(below):
                return below
        return None

    def told(self, spec: dict[str, Any], snapshot: "Snapshot") -> dict[str, Any]:
        """Return the job with the tree that was sent."""
        inside = self.folder.is_relative_to(snapshot.root)
        below = str(self.folder.relative_to(snapshot.root)) if inside else "."
        sent = {"tree": snapshot.hash, "folder": "" if below == "." else below, "everywhere": self.everywhere}
        more: dict[str, Any] = {"requirements": self.lock_file(snapshot)} if self.requirements else {}
        if isinstance(spec.get("run"), list):
            more["run"] = [self._word(word, snapshot) for word in spec["run"]]
        return {**spec, "sync": sent, **more}

    def _word(self, word: Any, snapshot: "Snapshot") -> Any:
        """Return a word of the command. The full path of a file in the tree becomes a path to the copy."""
        if not isinstance(word, str) or not word.startswith("/"):
            return word
        above, _, name = word.rpartition("/")
        path = f"{os.path.realpath(above or '/')}/{name}"
        start = self.folder if self.folder.is_relative_to(snapshot.root) else snapshot.root
        if not snapshot.holds(os.path.relpath(path, snapshot.root)):
            return word
        near = os.path.relpath(path, start)
        return near if "/" in near else f"./{near}"


def brought(spec: Mapping[str, Any], *, remote: bool) -> Brought | None:
    """Return the tree to upload for a job: the one it requests, or by default its Git working tree. Return None if it
    uploads nothing. `remote`: the control plane is on another machine.
    """
    sync, requirements, folder = spec.get("sync"), spec.get("requirements"), spec.get("folder")
    by_default = sync is None and not requirements
    if sync is False or not isinstance(sync, bool | str | None) or (by_default and not folder):
        return None
    if by_default and (spec.get("serves") or spec.get("calls")):
        return None
    if not isinstance(requirements, str | None) or not isinstance(folder, str | None) or "\0" in f"{sync}{folder}":
        return None  # compiling the job reports the error
    place = Path(folder or ".").expanduser().resolve()
    if isinstance(sync, str):
        root: Path | None = (place / Path(sync).expanduser()).resolve()
    else:
        root = tree_root(place) or (None if by_default else place)
    return None if root is None else Brought(root, place, remote or not by_default, by_default, requirements or "")


def tree_root(folder: Path) -> Path | None:
    """Return the top of the Git working tree that contains a folder, or None."""
    return next((one for one in (folder, *folder.parents) if (one / ".git").exists()), None)


def git_folder(top: Path) -> Path:
    """Return Git's common folder for the working trees of a repository, given the top of one. It is elsewhere for a
    submodule and for a tree of `git worktree add`.
    """
    folder = top / ".git"
    try:
        if folder.is_file():
            folder = top / folder.read_text("utf-8", "surrogateescape").removeprefix("gitdir:").strip()
        return folder / (folder / "commondir").read_text("utf-8", "surrogateescape").strip()
    except (OSError, ValueError):
        return folder
