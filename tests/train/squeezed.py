"""A user's script: digits, with an exchange that EXCHANGE names. What came of it goes to OUT.RANK.json.

It pauses as digits.py does.
"""

import json
import os
import time
from pathlib import Path

import torch
from sklearn.datasets import load_digits
from torch import nn
from torch.utils.data import TensorDataset

import poise
from poise_train.compression import TopK
from poise_train.local import LocalSGD

options = json.loads(os.environ["OPTIONS"])
name, pause, lasting = options.pop("kind"), options.pop("pause", 0.0), options.pop("lasting", 0)
torch.set_num_threads(1)
torch.manual_seed(int(os.environ["SEED"]))
images, labels = load_digits(return_X_y=True)
inputs, targets = torch.tensor(images / 16, dtype=torch.float32), torch.tensor(labels)
model = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 10))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.5)
made = {"local": LocalSGD(every=4), "topk": TopK(part=0.05)}
out = Path(os.environ["OUT"])
told = out.with_name(f"{out.name}.{os.getpid()}.steps").open("w")
seen = -1
with poise.Session(
    model, optimizer, TensorDataset(inputs[:1300], targets[:1300]), exchange=made.get(name, name), **options
) as run:
    for x, y in run:
        run.step(nn.functional.cross_entropy(model(x), y))
        if run.steps != seen:
            seen = run.steps
            told.write(json.dumps([run.steps, run.rank, run.world, time.time()]) + "\n")
            told.flush()
            if pause and not out.with_name("hurry").exists():
                time.sleep(pause * 2 ** (run.steps // lasting if lasting else 0))
    run.exchange.even_out()
    training = run.training()

right = (model(inputs[1300:]).argmax(1) == targets[1300:]).float().mean()
answer = {
    "accuracy": float(right),
    "weights": torch.cat([one.detach().flatten() for one in model.parameters()]).tolist(),
}
answer |= {
    "restored": training.restored,
    "samples": run.samples,
    "sent": training.sent,
    "plain": training.plain,
    "advice": training.advice,
}
answer["speedups"] = training.speedups.together if training.speedups else []
out.with_name(f"{out.name}.{run.rank}.json").write_text(json.dumps(answer))
