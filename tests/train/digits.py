"""A user's script: a small network learns the digits. Its options come as JSON in OPTIONS; what came of it goes to
OUT.RANK.json, and each step is a line of OUT.PID.steps. It pauses after each step until there is a file `hurry`,
and twice as long after each `lasting` steps, so that it is not over before somebody has looked.
"""

import json
import os
import sys
import time
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import torch
from torch import nn
from torch.utils.data import TensorDataset

import poise
from poise_train import gang, session, topology

options = json.loads(os.environ.get("OPTIONS", "{}"))
out = Path(os.environ["OUT"])
torch.set_num_threads(1)
torch.manual_seed(int(os.environ.get("SEED", "0")))

found = find_spec("sklearn")  # its table is wanted, and not the second and a half that importing it takes
assert found is not None and found.origin is not None
table = np.loadtxt(Path(found.origin).parent / "datasets/data/digits.csv.gz", delimiter=",")
inputs, targets = torch.tensor(table[:, :-1] / 16, dtype=torch.float32), torch.tensor(table[:, -1].astype(int))
count = options.pop("samples", 1000)
session.REGROUP_SECONDS = options.pop("regroup", 60.0)
gang.LONG_SECONDS = options.pop("long", 5.0)
if nodes := options.pop("nodes", 0):  # as if every so many workers were on a node, over slow links
    topology._node = lambda: int(os.environ["SEED"]) % nodes
    topology.Routes.best = lambda self, size: "levels"  # type: ignore[method-assign]
plateau, leaves = options.pop("plateau", False), options.pop("leaves", "")
slow = options.pop("slow", 0.0)  # seconds in which others wait for all workers but the first, in each step
pause, kind = options.pop("pause", 0.0), options.pop("optimizer", "sgd")
lasting = options.pop("lasting", 0)
data = TensorDataset(inputs[:count], targets[:count])

model = nn.Sequential(nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 10))
parameters = model.parameters()
optimizer = torch.optim.SGD(parameters, lr=0.1, momentum=0.9) if kind == "sgd" else torch.optim.Adam(parameters)

routes: list[str] = []
scheduler = torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer, factor=0.5, patience=0) if plateau else None
with poise.Session(model, optimizer, data, scheduler=scheduler, **options) as run:
    steps = out.with_name(f"{out.name}.{os.getpid()}.steps").open("w")
    seen = run.steps
    for x, y in run:
        if slow and run.rank:
            time.sleep(slow)
        loss = nn.functional.cross_entropy(model(x), y)
        run.step(loss)
        if run.steps != seen:
            seen = run.steps
            steps.write(json.dumps([run.steps, run.rank, run.world, time.time(), float(loss)]) + "\n")
            steps.flush()
            if (route := run.training().route) not in routes:
                routes.append(route)
            if leaves and (run.rank, run.steps) == (1, 5):
                if leaves == "break":
                    break
                sys.exit(0)
            if pause and not out.with_name("hurry").exists():
                time.sleep(pause * 2 ** (run.steps // lasting if lasting else 0))

flat = torch.cat([one.detach().flatten() for one in model.parameters()])
right = (model(inputs[1500:]).argmax(1) == targets[1500:]).float().mean()
answer = {"rank": run.rank, "world": run.world, "steps": run.steps, "samples": run.samples, "epoch": run.epoch}
answer |= {"routes": routes, "weights": flat.tolist(), "accuracy": float(right), "pid": os.getpid()}
answer |= {"best": scheduler.best} if scheduler is not None else {}
out.with_name(f"{out.name}.{run.rank}.json").write_text(json.dumps(answer))
sys.exit(0)
