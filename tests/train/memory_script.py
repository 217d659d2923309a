"""A training script that is given little memory: `python memory_script.py OUT CASE...`

A case is options, joined by commas; how it went is written to OUT/CASE.json, and the model to OUT/CASE.safetensors.
`free=100`: MiB of data that it may ask for from the first step on. `left=6`: from the third on, there is room for so
many activations of 128 samples. `budget=150`: MiB that it may hold, beyond what PyTorch takes. `form`: how the
loop makes its steps, `plain`, `closure`, or `late`, which has memory short in backward. `micro`, `dropout`,
`normalise=1` and `precision` are what they say; by `scale` its
losses are made larger at first. Cases with a `rank` are one gang of two.
"""

import json
import os
import re
import resource
import sys
import traceback
from pathlib import Path
from typing import Any

import numpy as np
import sklearn
import torch
import torch._dynamo  # which optimizers import when they are first used: seconds, once for all cases
from safetensors.torch import save_file
from torch import nn
from torch.utils.checkpoint import checkpoint
from torch.utils.data import TensorDataset

import poise
from poise.drivers.memory import resident
from poise_train.reducer import Reducer
from poise_train.shards import order

MIB = 1 << 20
STEPS = 4
BATCH = 256
WIDE = 8192
"""A sample takes 32 KiB of each of the activations in between."""


class Model(nn.Module):
    """Digits, with much in between that takes memory and no time."""

    def __init__(self, dropout: float, normalise: bool, late: bool) -> None:
        super().__init__()
        self.into = nn.Linear(64, WIDE)
        flat = [nn.Hardtanh() for _ in range(6)]
        self.between = nn.Sequential(*([nn.BatchNorm1d(WIDE)] if normalise else []), nn.Dropout(dropout), *flat)
        self.out = nn.Sequential(nn.Linear(WIDE, 64), nn.ReLU(), nn.Linear(64, 10))
        self.late = late

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        wide = self.into(images)
        if self.late and self.training:  # what is in between is worked out, and taken, in backward
            wide = checkpoint(self.between, wide, use_reentrant=False)
        else:
            wide = self.between(wide)
        out: torch.Tensor = self.out(wide)
        return out


def made(told: dict[str, str]) -> tuple[Model, torch.optim.Optimizer, TensorDataset]:
    torch.manual_seed(0)
    table = np.loadtxt(Path(sklearn.__file__).parent / "datasets/data/digits.csv.gz", delimiter=",", dtype=np.float32)
    data = TensorDataset(torch.tensor(table[:, :-1] / 16), torch.tensor(table[:, -1].astype(np.int64)))
    model = Model(float(told.get("dropout", 0)), told.get("normalise") == "1", told.get("form") == "late")
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    torch.manual_seed(1)
    return model, optimizer, data


def options(case: str) -> dict[str, str]:
    return dict(one.split("=") for one in case.split(","))


def trained(case: str) -> tuple[Model, dict[str, Any]]:
    """With Poise, for a few steps; and how it went: the micro-batches of each step in the end, and all that came."""
    told = options(case)
    model, optimizer, data = made(told)
    loss_fn = nn.CrossEntropyLoss()
    steps: list[list[int]] = []
    out: list[int] = []  # how many buckets were on their way whenever the rest was made again
    again = Reducer.again
    Reducer.again = lambda self: (out.append(len(self._waits)), again(self))[1]  # type: ignore[method-assign, func-returns-value]
    tried: list[int] = []
    micro, precision = int(told.get("micro", 0)), told.get("precision", "fp32")
    with poise.Session(model, optimizer, data, batch=BATCH, micro=micro, precision=precision) as run:
        may_ask_for(told.get("free"))
        run._precision.scale *= float(told.get("scale", 1))
        sizes: list[int] = []
        for inputs, targets in run:
            if run.steps != len(steps):
                steps.append(last_of(sizes, BATCH // run.world))
                sizes = []
                if len(steps) == 2:
                    taken = all_but(told.get("left"))  # noqa: F841
                if len(steps) == STEPS:
                    break
            sizes.append(len(targets))
            tried.append(len(targets))
            if told.get("form") != "plain":
                run.step(lambda x=inputs, y=targets: loss_fn(model(x), y))
            else:
                run.step(loss_fn(model(inputs), targets))
        resource.setrlimit(resource.RLIMIT_DATA, (resource.RLIM_INFINITY,) * 2)
        training = run.training()
        return model, {
            "steps": steps,
            "tried": tried,
            "out": out,
            "batch": training.batch,
            "accumulation": training.accumulation,
            "effective": training.effective,
            "memory": training.memory,
            "budget": training.budget,
            "precision": training.precision,
            "scale": run._precision.scale,
        }


def plain(case: str, steps: list[list[int]]) -> Model:
    """The same in a loop without Poise, of the micro-batches that are named for each step."""
    model, optimizer, data = made(options(case))
    loss_fn = nn.CrossEntropyLoss()
    places = order(len(data), seed=0, turn=0, shuffle=True)
    at = 0
    for sizes in steps:
        optimizer.zero_grad()
        for size in sizes:
            these = torch.from_numpy(places[at : at + size])
            loss = loss_fn(model(data.tensors[0][these]), data.tensors[1][these])
            (loss * (size / sum(sizes)) if size < sum(sizes) else loss).backward()
            at += size
        optimizer.step()
    return model


def may_ask_for(mib: str | None) -> None:
    """So much more from now on, and what is free of what it has asked for."""
    asked = re.search(r"VmData:\s+(\d+)", Path("/proc/self/status").read_text())
    if mib is not None and asked is not None:
        resource.setrlimit(resource.RLIMIT_DATA, (int(asked[1]) * 1024 + int(mib) * MIB, resource.RLIM_INFINITY))


def all_but(activations: str | None) -> list[torch.Tensor]:
    """Take all memory that is left but for so many activations."""
    taken: list[torch.Tensor] = []
    if activations is not None:
        may_ask_for("64")
        try:
            while True:
                taken.append(torch.empty(128 * WIDE + 64))
        except RuntimeError:
            del taken[-int(activations) :]
    return taken


def last_of(sizes: list[int], samples: int) -> list[int]:
    """Those of the last try."""
    first = len(sizes)
    while samples > 0 and first:
        first -= 1
        samples -= sizes[first]
    return sizes[first:]


def in_a_process_of_its_own(out: Path, case: str) -> int:
    """Begin a case in a copy of this process, which has imported all and allocated nothing yet; its identity."""
    process = os.fork()
    if process:
        return process
    told = options(case)
    if "budget" in told:
        os.environ["POISE_MEMORY"] = str(resident() + int(told["budget"]) * MIB)
    if (rank := told.get("rank")) is not None:
        os.environ |= {"POISE_RANK": rank, "POISE_WORLD_SIZE": "2", "POISE_GANG_DIR": str(out)}
    status = 1
    try:
        model, how = trained(case)
        save_file(model.state_dict(), out / f"{case}.safetensors")
        (out / f"{case}.json").write_text(json.dumps(how))
        status = 0
    except BaseException:
        traceback.print_exc()
    finally:
        os._exit(status)


if __name__ == "__main__":
    torch.set_num_threads(1)
    begun = [in_a_process_of_its_own(Path(sys.argv[1]), case) for case in sys.argv[2:]]
    sys.exit(max(os.waitstatus_to_exitcode(os.waitpid(one, 0)[1]) for one in begun))
