"""A training that is killed, grows, is asked to end, shrinks, and goes on: `python keeping.py FOLDER`.

Forks the workers of three gangs, one after another, that train with one folder of checkpoints: two workers, killed in
step 17; three, of whom one is asked to end in its step 33; one, to the end. Each worker writes what it did to a file.
"""

import json
import os
import random
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from sklearn.datasets import load_digits
from torch.utils.data import TensorDataset

from poise_train import Session
from poise_train.policy.checkpoints import Keep

torch.set_num_threads(1)

BATCH, EPOCHS = 64, 2
KILLED_IN, ENDED_IN = 17, 33


def parts() -> tuple[torch.nn.Module, torch.optim.Optimizer, TensorDataset]:
    images, labels = load_digits(return_X_y=True)
    torch.manual_seed(3)
    model = torch.nn.Sequential(torch.nn.Linear(64, 32), torch.nn.ReLU(), torch.nn.Linear(32, 10))
    data = TensorDataset(torch.tensor(images).float() / 16, torch.tensor(labels))
    return model, torch.optim.Adam(model.parameters(), 1e-2), data


def train(**options: Any) -> dict[str, Any]:
    """Each step and its loss, and what was told at the beginning and the end."""
    model, optimizer, data = parts()
    losses: dict[int, float] = {}
    with Session(model, optimizer, data, batch=BATCH, epochs=EPOCHS, seed=5, **options) as run:
        began = run.training()
        for images, labels in run:
            run.step(torch.nn.functional.cross_entropy(model(images), labels))
            told = run.training()
            losses[told.step] = told.loss
            if "checkpoint" in options and os.environ.get("KILLED") == str(told.step):
                os.kill(os.getpid(), signal.SIGKILL)
            if os.environ.get("ENDED") == f"{run.rank} {told.step}":
                os.kill(os.getpid(), signal.SIGTERM)
    told = run.training()
    return {
        "losses": losses,
        "began": [began.step, began.samples, began.safe],
        "restored": began.restored,
        "ended": [told.step, told.samples, told.progress, told.safe],
        "weights": [one.tolist() for one in model.parameters()],
        "saved": [told.checkpoint.step, told.checkpoint.kept] if told.checkpoint else [],
    }


def draws_on(folder: Path, seed: int, until: int = 0) -> list[float]:
    """The weights of a training that drops out at random and adds noise, given up `until` so many steps."""
    images, labels = torch.randn(96, 8, generator=torch.Generator().manual_seed(1)), torch.arange(96) % 3
    torch.manual_seed(7)
    model = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.Dropout(0.5), torch.nn.Linear(16, 3))
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    torch.manual_seed(seed)
    random.seed(seed)
    data = TensorDataset(images, labels)
    with Session(model, optimizer, data, batch=8, epochs=2, checkpoint=folder, every=1) as run:
        for samples, targets in run:
            loss = torch.nn.functional.cross_entropy(model(samples), targets) * random.uniform(0.5, 1.5)  # noqa: S311
            run.step(loss)
            if run.steps == until:
                break
    return [number for one in model.parameters() for number in one.flatten().tolist()]


def gang(
    folder: Path, epoch: int, world: int, work: Callable[[], Any], name: str = "done", **environ: str
) -> list[int]:
    """How its workers ended, each with its work."""
    meeting = folder / f"gang{epoch}"
    meeting.mkdir()
    pids = []
    for rank in range(world):
        if (pid := os.fork()) == 0:
            own = {"POISE_GANG_DIR": meeting, "POISE_RANK": rank, "POISE_WORLD_SIZE": world, "POISE_EPOCH": epoch}
            os.environ.update(environ | {name: str(value) for name, value in own.items()})
            code = 1
            try:
                (folder / f"{name}{epoch}.{rank}").write_text(json.dumps(work()))
                code = 0
            except SystemExit as error:
                code = int(error.code or 0)
            finally:
                sys.stderr.flush()
                os._exit(code)
        pids.append(pid)
    return [os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) for pid in pids]


def main(folder: Path) -> None:
    parts()  # what that imports takes longer than all that is trained here, and is imported once

    def work() -> dict[str, Any]:
        return train(checkpoint=folder / "checkpoints", every=5, keep=Keep(last=2, best=0))

    ended = [
        gang(folder, 1, 2, work, KILLED=str(KILLED_IN)),
        gang(folder, 2, 3, work, ENDED=f"1 {ENDED_IN}"),
        gang(folder, 3, 1, work),
    ]
    (folder / "ended").write_text(json.dumps(ended))


def drawn(folder: Path) -> None:
    """Two workers to the end; two that stop in between, and two that go on from there, each with a seed of its own."""
    for epoch, (name, seed, until) in enumerate((("one", 10, 0), ("two", 10, 9), ("two", 20, 0)), start=1):

        def work(name: str = name, seed: int = seed, until: int = until) -> list[float]:
            return draws_on(folder / name, seed + int(os.environ["POISE_RANK"]), until)

        assert gang(folder, epoch, 2, work, "drawn") == [0, 0]


if __name__ == "__main__":
    (drawn if "drawn" in sys.argv else main)(Path(sys.argv[1]))
