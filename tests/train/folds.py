"""A user's script with two sessions, one after another: the second goes on with the model of the first.

It pauses as digits.py does, and writes down where each began and how it ended; DIE names a session and a step in which
it is killed, unless somebody was before (the file `died` is there then).
"""

import json
import os
import signal
import sys
import time
from pathlib import Path

import torch
from torch import nn
from torch.utils.data import TensorDataset

import poise

torch.set_num_threads(1)
out = Path(os.environ["OUT"])
options = json.loads(os.environ.get("OPTIONS", "{}"))
pause, lasting = options.pop("pause", 0.0), options.pop("lasting", 0)
dies = os.environ.get("DIE", "").split()
torch.manual_seed(0)
inputs = torch.randn(128, 4)
model = nn.Linear(4, 1)
for fold, epochs in ((1, 2), (2, 3)):
    data = TensorDataset(inputs, inputs.sum(1, keepdim=True) * fold)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    with poise.Session(model, optimizer, data, **{"batch": 16, "epochs": epochs, **options}) as run:
        began, restored = run.steps, run.training().restored
        for x, y in run:
            run.step(nn.functional.mse_loss(model(x), y))
            with out.with_name(f"{out.name}.{os.getpid()}.steps").open("a") as steps:
                steps.write(json.dumps([run.steps, run.rank, run.world, fold]) + "\n")
            if pause and not out.with_name("hurry").exists():
                time.sleep(pause * 2 ** (run.steps // lasting if lasting else 0))
            died = out.with_name("died")
            if dies == [str(fold), str(run.steps)] and run.rank == run.world - 1 and not died.exists():
                died.touch()
                os.kill(os.getpid(), signal.SIGKILL)
    if run.rank == 0:
        said = {"fold": fold, "began": began, "restored": restored, "steps": run.steps, "world": run.world}
        weights = [number for one in model.parameters() for number in one.flatten().tolist()]
        with out.with_name(f"{out.name}.folds").open("a") as told:
            told.write(json.dumps(said | {"weights": weights, "epoch": os.environ.get("POISE_EPOCH", "")}) + "\n")
    sys.stdout.write(f"worker {run.rank} of {run.world} ended session {fold} at step {run.steps}\n")
