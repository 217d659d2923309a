"""Reads checkpoints and verifies all their bytes.

    restored = load("checkpoints")
    model.load_state_dict(restored.state["model"])

The number of workers may differ: each worker reads all parts, directly into the tensors. Reading runs no code, and
returns nothing but tensors, numbers, texts, bytes, lists, tuples and mappings.
"""

import contextlib
import os
import re
import time
from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Literal, NamedTuple

import msgspec
import torch

from poise.errors import NotFound, StoreDamaged
from poise_train.model.checkpoints import MANIFEST, Kind, Manifest, OtherVersion, unseal, writer
from poise_train.pieces import Damaged, read, rows_of, shard_file
from poise_train.trees import DTYPES, put_together

_NAME = re.compile(r"step-(0|[1-9][0-9]*)(\.damaged)?")


class Foreign(Damaged):
    """The checkpoint is complete, but was written by another version of Poise, `need`."""

    def __init__(self, why: str, need: str) -> None:
        super().__init__(why)
        self.need = need


class Restored(NamedTuple):
    """A state as saved at `step`, with its `score`, if any; `own` has the private state of each worker of that gang.
    `note` is one sentence with the checkpoint, and the skipped ones with the reasons.
    """

    state: Any
    step: int
    note: str
    own: tuple[Any, ...] = ()
    score: float | None = None


def listed(folder: Path) -> list[int]:
    """Return the steps of the checkpoints, in ascending order. Only reading shows whether they are complete."""
    return sorted(step for path, step in _named(folder) if not path.suffix and path.is_dir())


def damaged(folder: Path) -> list[tuple[Path, int]]:
    """Return the damaged checkpoints that were set aside, with their steps."""
    return [(path, step) for path, step in _named(folder) if path.suffix]


def _named(folder: Path) -> list[tuple[Path, int]]:
    found = [(path, _NAME.fullmatch(path.name)) for path in folder.iterdir()] if folder.is_dir() else []
    return [(path, int(name[1])) for path, name in found if name]


def folder_of(folder: Path, step: int) -> Path:
    return folder / f"step-{step}"


def load(folder: str | os.PathLike[str], which: int | Literal["newest", "best"] = "newest") -> Restored:
    """The newest complete checkpoint of the folder, or the one with the largest score, or that of a step. It needs only
    the folder, and does not disturb writers.

        model.load_state_dict(load("checkpoints", "best").state["model"])

    `state` has the saved objects of a session by name: `model`, `optimizer`, `scheduler`, and those of `also`. Raises
    `NotFound`, and `StoreDamaged` if the checkpoint is not complete, or none is.
    """
    there, wrong = listed(Path(folder)), dict[int, str]()
    for one in _in_order(Path(folder), there, which, wrong):
        try:
            return restored(Path(folder), one, wrong)
        except (Damaged, OSError) as error:
            wrong[one] = reason(error)
    if wrong:
        raise StoreDamaged("; ".join(passed(wrong)), code="E210", field=str(folder), hint=f"ls {folder}")
    have = ", ".join(map(str, there)) or "none"
    if which == "best" and there:
        raise NotFound("no checkpoint here has a score", field=str(folder), have=have, hint="run.score(ACCURACY)")
    raise NotFound("this checkpoint does not exist", field=str(folder), have=have, hint=f"ls {folder}")


def _in_order(folder: Path, there: list[int], which: int | str, wrong: dict[int, str]) -> list[int]:
    """Return the candidate steps, best first; add those with an unreadable score to `wrong`."""
    if which == "newest":
        return there[::-1]
    if isinstance(which, int):
        return [which] if which in there else []
    if which != "best":
        need = '"newest", "best" or a step'
        raise NotFound(
            "this checkpoint does not exist", field="which", need=need, have=repr(which), hint='which="best"'
        )
    scores: dict[int, float] = {}
    for step in there:
        try:
            score = read_manifest(folder_of(folder, step)).score
        except (Damaged, OSError) as error:
            wrong[step] = reason(error)
        else:
            if score is not None:
                scores[step] = score
    return sorted(scores, key=lambda step: (scores[step], step), reverse=True)


def restored(folder: Path, step: int, wrong: Mapping[int, str]) -> Restored:
    """Read the checkpoint of this step. `wrong`: reasons for skipped checkpoints. Raises `Damaged` and `OSError`."""
    path = folder_of(folder, step)
    manifest = read_manifest(path)
    try:
        state, owns = _read(path, manifest)
    except (LookupError, ValueError, msgspec.MsgspecError) as error:  # valid checksums: not damage
        need = writer(manifest.format, manifest.poise)
        raise Foreign(f"it was written by another version: {error}", need) from None
    at = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(manifest.at))
    note = "; ".join([f"the checkpoint of step {step}, of {at}", *passed(wrong)])
    return Restored(state, step, note, owns, manifest.score)


def _read(path: Path, manifest: Manifest) -> tuple[Any, tuple[Any, ...]]:
    tensors = [_empty(kind) for kind in manifest.kinds]
    owns = []
    covered: Counter[int] = Counter()
    for shard in manifest.shards:
        every = tensors + [_empty(kind) for kind in shard.kinds]
        targets = [(piece, rows_of(every[piece.tensor], piece)) for piece in shard.pieces]
        read(path / shard_file(shard.rank), shard.size, shard.head, targets)
        covered.update({piece.tensor: piece.size for piece in shard.pieces})
        owns.append(put_together(msgspec.json.decode(shard.own), every))
    if any(covered[number] != tensor.nbytes for number, tensor in enumerate(tensors)):
        raise Damaged("some of its tensors are not all there")
    return put_together(msgspec.json.decode(manifest.tree), tensors), tuple(owns)


def newest(folder: Path, step: int) -> Manifest | None:
    """Return the newest readable manifest up to that step, or None; tensors are not verified."""
    for one in reversed(listed(folder)):
        if one <= step:
            with contextlib.suppress(Damaged, OSError):
                return read_manifest(folder_of(folder, one))
    return None


def part_of(manifest: Manifest, name: str) -> Any:
    """Return the part of the state with that name, which must not contain tensors; None if there is none."""
    match msgspec.json.decode(manifest.tree):
        case {"map": list(pairs)}:
            return next((put_together(tree, []) for key, tree in pairs if key == name), None)
    return None


def read_manifest(path: Path) -> Manifest:
    """Read the manifest of a checkpoint. Raises `Damaged` and `OSError`."""
    try:
        manifest = unseal((path / MANIFEST).read_bytes())
    except FileNotFoundError:
        raise Damaged("its manifest is missing") from None
    except OtherVersion as error:
        raise Foreign(str(error), error.need) from None
    except ValueError as error:
        raise Damaged(str(error)) from None
    if path.name != f"step-{manifest.step}":
        raise Damaged(f"its manifest is of step {manifest.step}")
    return manifest


def passed(wrong: Mapping[int, str]) -> Iterator[str]:
    """Yield a sentence for each skipped checkpoint, newest first."""
    for step, why in sorted(wrong.items(), reverse=True):
        yield f"that of step {step} was passed over: {why}"


def reason(error: BaseException) -> str:
    if isinstance(error, OSError) and error.strerror:
        return f"{error.strerror} ({Path(str(error.filename)).name})" if error.filename else error.strerror
    return str(error) or type(error).__name__


def _empty(kind: Kind) -> torch.Tensor:
    return torch.empty(kind.shape, dtype=DTYPES[kind.dtype])
