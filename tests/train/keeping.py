"""A training that is killed, grows, is asked to end, shrinks, and goes on: `python keeping.py FOLDER`.

Forks the workers of three gangs, one after another, that train with one folder of checkpoints: two workers, killed in
step 17; three, of whom one is asked to end in its step 33; one, to the end. Each worker writes what it did to a file.
"""

import json
import os
import signal
import sys
from pathlib import Path
from typing import Any

import torch
from sklearn.datasets import load_digits
from torch.utils.data import TensorDataset

from poise.policy.checkpoints import Keep
from poise.train import Session

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


def gang(folder: Path, epoch: int, world: int, **environ: str) -> list[int]:
    """How its workers ended."""
    meeting = folder / f"gang{epoch}"
    meeting.mkdir()
    pids = []
    for rank in range(world):
        if (pid := os.fork()) == 0:
            own = {"POISE_GANG_DIR": meeting, "POISE_RANK": rank, "POISE_WORLD_SIZE": world, "POISE_EPOCH": epoch}
            os.environ.update(environ | {name: str(value) for name, value in own.items()})
            code = 1
            try:
                done = train(checkpoint=folder / "checkpoints", every=5, keep=Keep(last=2, best=0))
                (folder / f"done{epoch}.{rank}").write_text(json.dumps(done))
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
    ended = [
        gang(folder, 1, 2, KILLED=str(KILLED_IN)),
        gang(folder, 2, 3, ENDED=f"1 {ENDED_IN}"),
        gang(folder, 3, 1),
    ]
    (folder / "ended").write_text(json.dumps(ended))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
