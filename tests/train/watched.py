"""A user's script that trains on digits and writes down the phase of each step, and in the end what its watch keeps."""

import json
import os
import time
from pathlib import Path

import torch
from sklearn.datasets import load_digits
from torch import nn
from torch.utils.data import TensorDataset

import poise

options = json.loads(os.environ["OPTIONS"])
pause = options.pop("pause", 0.0)
out = Path(os.environ["OUT"])
torch.set_num_threads(1)
torch.manual_seed(0)
images, labels = load_digits(return_X_y=True)
data = TensorDataset(torch.tensor(images[:1600] / 16, dtype=torch.float32), torch.tensor(labels[:1600]))
model = nn.Sequential(nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 10))
optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)

with (
    poise.Session(model, optimizer, data, **options) as run,
    out.with_name(f"{out.name}.{os.getpid()}.steps").open("w") as steps,
):
    for x, y in run:
        run.step(nn.functional.cross_entropy(model(x), y))
        steps.write(json.dumps([run.steps, run.rank, run.world, time.time(), run.watch.phase]) + "\n")
        steps.flush()
        time.sleep(pause)

out.with_name(f"{out.name}.{run.rank}.json").write_text(json.dumps(run.watch.state_dict()))
