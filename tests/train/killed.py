"""A program that saves checkpoints and is killed, again and again: `python killed.py FOLDER`.

For each try it forks (importing PyTorch takes longer than all that is tried) a process that publishes checkpoints of a
gang of two workers. Those in `FOLDER/points` are killed just before their first call to the system that changes a file
after step 1, in the next try before the second, and so on until one lives; and in the middle of what they write. Those
in `FOLDER/moments` save larger states for ever, and are killed any time.
"""

import os
import random
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from poise_train.checkpoints import Checkpoints
from poise_train.policy.checkpoints import Keep

torch.set_num_threads(1)

CALLS = ("open", "write", "fsync", "mkdir", "rename", "unlink", "rmdir")
MOMENTS = 16
LARGE = 200_000


def state(step: int, size: int = 40) -> dict[str, Any]:
    """All of it tells of which step it is."""
    filled = {f"layer {number}": torch.full((size // 4, 4), float(step + number)) for number in range(3)}
    return {"model": filled, "at": step, "done": torch.tensor(step)}


def gang(folder: Path, epoch: int) -> list[Checkpoints]:
    return [Checkpoints(folder, rank=rank, world=2, epoch=epoch, keep=Keep(last=2, best=0)) for rank in range(2)]


def save(workers: list[Checkpoints], step: int, size: int = 40) -> None:
    for one in workers:
        one.save(state(step, size), step=step)


def killed_at(point: int, folder: Path) -> None:
    left = [point]

    def counted(name: str, call: Callable[..., Any]) -> Callable[..., Any]:
        def counting(*arguments: Any, **options: Any) -> Any:
            if str(folder) not in str(arguments[0]) and name not in ("write", "fsync", "rmdir", "unlink"):
                return call(*arguments, **options)
            left[0] -= 1
            if left[0] == 0:
                if name == "write":
                    call(arguments[0], arguments[1][: len(arguments[1]) // 2])
                os.kill(os.getpid(), signal.SIGKILL)
            return call(*arguments, **options)

        return counting

    workers = gang(folder, 1)
    save(workers, 1)
    for one in workers:
        one.wait()
    for name in CALLS:
        setattr(os, name, counted(name, getattr(os, name)))
    for step in (2, 3):  # of two that are kept, one is removed for the third
        save(workers, step)
        for one in workers:
            one.wait()


def for_ever(folder: Path) -> None:
    workers = gang(folder, 1)
    for step in range(1, 1_000_000):
        save(workers, step, LARGE)


def lived(child: Callable[[], None], folder: Path | None = None, seconds: float = 0.0) -> bool:
    """Whether a process that does this ends by itself; it is killed some seconds after a checkpoint is in `folder`."""
    if (pid := os.fork()) == 0:
        try:
            child()
        finally:
            os._exit(0)
    if folder is not None:
        while not any(path.name[5:].isdigit() for path in folder.glob("step-*")):  # any step: the next ones remove it
            time.sleep(0.001)
        time.sleep(seconds)
        os.kill(pid, signal.SIGKILL)
    return os.waitpid(pid, 0)[1] == 0


def main(folder: Path) -> None:
    draw = random.Random(7)  # noqa: S311  which moments does not matter
    for point in range(1, 1000):
        mine = folder / "points" / str(point)
        mine.mkdir(parents=True)
        if lived(lambda mine=mine, point=point: killed_at(point, mine)):  # type: ignore[misc]
            break
    for moment in range(MOMENTS):
        mine = folder / "moments" / str(moment)
        mine.mkdir(parents=True)
        lived(lambda mine=mine: for_ever(mine), mine, draw.uniform(0.0, 0.1))  # type: ignore[misc]


if __name__ == "__main__":
    main(Path(sys.argv[1]))
