"""Check the features that need a GPU (`make gpu-check`): the memory cap, 16 bits, energy, NCCL, and retried steps.

    python benchmarks/gpu_check.py [--seconds 20] [--json]

Prints one table, with the device's name. Without a GPU, it says so and exits. It needs PyTorch and Poise, and no
network.

* *memory cap*: a process with a cap of an eighth of the device uses no more than that, finds micro-batches that fit,
  and leaves the rest to another process.
* *16 bits*: a transformer of eight blocks, trained in fp32 without tf32, and in the precision that `auto` chooses, in
  turn: samples a second, and joules a sample by the device's own counter.
* *NCCL*: a gang with one worker per GPU reaches the same weights as a single worker.
* *out of memory*: steps that ran out of memory give bit-identical weights to steps with smaller micro-batches from the
  start.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from torch import nn
from torch.utils.data import TensorDataset

import poise
from poise_train.energy import Meter
from poise_train.exchange import Bucket, Plain
from poise_train.memory import Budget

MIB = 1 << 20
CAP = 8
"""The cap is 1/8 of the device's memory."""

WIDTH, BLOCKS, TOKENS, BATCH = 1024, 8, 256, 64


class Row(NamedTuple):
    what: str
    found: str
    fine: bool


def main() -> None:
    parser = argparse.ArgumentParser(description="what only a GPU can show")
    parser.add_argument("--seconds", type=float, default=20.0, help="of each precision")
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--part", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if not torch.cuda.is_available():
        print("gpu-check: skipped, PyTorch sees no GPU here")
        return
    if given.part:
        print(json.dumps(PARTS[given.part](given.seconds)))
        return
    name = torch.cuda.get_device_name(0)
    rows = [*memory_cap(), *sixteen_bits(given.seconds), *nccl(), *out_of_memory()]
    if given.json:
        print(json.dumps({"device": name, "rows": [row._asdict() for row in rows]}))
    else:
        print(f"{name} x {torch.cuda.device_count()}, PyTorch {torch.__version__}")
        wide = max(len(row.what) for row in rows)
        for row in rows:
            print(f"{row.what:<{wide}}  {'ok  ' if row.fine else 'FAIL'}  {row.found}")
    sys.exit(not all(row.fine for row in rows))


# --- what is compared, each in a process of its own ---


class Transformer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(512, WIDTH)
        block = nn.TransformerEncoderLayer(WIDTH, 16, 4 * WIDTH, dropout=0.0, batch_first=True)
        self.blocks = nn.TransformerEncoder(block, BLOCKS, enable_nested_tensor=False)
        self.head = nn.Linear(WIDTH, 512)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = self.head(self.blocks(self.embed(tokens)))
        return out


class Wide(nn.Module):
    """A model with much memory and little work per sample; its dropout makes random numbers matter."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            nn.Linear(64, 65536), nn.Dropout(0.1), *[nn.Hardtanh() for _ in range(8)], nn.Linear(65536, 10)
        )

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = self.layers(images)
        return out


def precision(name: str, seconds: float) -> dict[str, Any]:
    """Train on next tokens of counting sequences; return samples, joules and the final loss."""
    torch.manual_seed(0)
    starts = torch.randint(0, 512, (1 << 14, 1))
    tokens = (starts + torch.arange(TOKENS + 1)) % 512
    model = Transformer().cuda()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    loss = torch.zeros(())
    data = TensorDataset(tokens)
    with poise.Session(model, optimizer, data, batch=BATCH, micro=BATCH, epochs=1000, precision=name) as run:
        meter, began, warm = Meter(run.device), 0.0, 10
        for (batch,) in run:
            if run.steps == warm and not began:
                torch.cuda.synchronize()
                meter, began = Meter(run.device), time.perf_counter()
            if began and time.perf_counter() - began > seconds:
                break
            loss = nn.functional.cross_entropy(model(batch[:, :-1]).flatten(0, 1), batch[:, 1:].flatten())
            run.step(loss)
        torch.cuda.synchronize()
        samples, elapsed = (run.steps - warm) * BATCH, time.perf_counter() - began
        return {
            "precision": run.precision,
            "rate": samples / elapsed,
            "joules": meter.read() / 1000 / samples,
            "source": meter.source,
            "loss": float(loss.detach()),
            "memory": run.training().memory,
        }


def digits(count: int) -> TensorDataset:
    torch.manual_seed(3)
    images = torch.rand(count, 64)
    return TensorDataset(images, (images.sum(1) * 10).long() % 10)


def wide(batch: int, micro: int, steps: int, before: int = 0) -> tuple[nn.Module, dict[str, Any]]:
    """Run `steps` steps; from the third on, the device has `before` bytes less."""
    torch.manual_seed(0)
    torch.cuda.manual_seed(0)
    model = Wide().cuda()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    sizes: list[list[int]] = [[]]
    taken = None
    with poise.Session(model, optimizer, digits(batch * steps), batch=batch, micro=micro) as run:
        for images, labels in run:
            if len(sizes) <= run.steps:
                sizes.append([])
            if run.steps == 2 and before and taken is None:
                taken = torch.empty(before, dtype=torch.uint8, device="cuda")
            sizes[run.steps].append(len(labels))
            run.step(nn.functional.cross_entropy(model(images), labels))
        training = run.training()
        return model, {
            "sizes": sizes,
            "shortages": run._fitting.shortages,
            "memory": training.memory,
            "reserved": torch.cuda.max_memory_reserved(),
            "budget": training.budget,
            "batch": training.batch,
        }


def short(seconds: float) -> dict[str, Any]:
    """Run steps that run out of memory, and the same steps with the resulting micro-batch size."""
    limit = Budget(torch.device("cuda", 0)).limit
    each = 65536 * 4 * 10
    batch = limit // each * 2  # twice the size that fits
    found, how = wide(batch, batch, 1)
    last = how["sizes"][0][-1]
    again, other = wide(batch, max(size for size in how["sizes"][0][-(batch // last) :]), 1)
    same = all(torch.equal(a, b) for a, b in zip(found.parameters(), again.parameters(), strict=True))
    return {"same": same, "shortages": [how["shortages"], other["shortages"]], "batch": batch, "micro": how["batch"]}


def capped(seconds: float) -> dict[str, Any]:
    """Run steps that need more memory than the cap."""
    limit = Budget(torch.device("cuda", 0)).limit
    return wide(limit // (65536 * 4 * 10) * 2, 0, 4)[1] | {"limit": limit}


def gang(seconds: float) -> dict[str, Any]:
    """Run one worker of a gang; the first reports the result."""
    torch.cuda.set_device(int(os.environ.get("LOCAL_RANK", "0")))
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(64, 256), nn.ReLU(), nn.Linear(256, 10)).cuda()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with poise.Session(model, optimizer, digits(4096), batch=256) as run:
        for images, labels in run:
            run.step(nn.functional.cross_entropy(model(images), labels))
        told = {"world": run.world, "rank": run.rank, "weights": next(model.parameters()).flatten()[:64].tolist()}
        if dist.is_initialized():  # a single worker's gradients also go through NCCL
            ones = torch.ones(1 << 22, device="cuda")
            Plain().begin(Bucket(0, ones, ()))()
            told |= {"added up": float(ones.mean()), "backend": dist.get_backend()}
        return told


PARTS = {
    "short": short,
    "capped": capped,
    "gang": gang,
    **{
        f"in-{name}": lambda seconds, name=name: precision(name, seconds)  # type: ignore[misc]
        for name in ("fp32", "bf16", "fp16", "auto")
    },
}


# --- rows ---


def run(part: str, seconds: float = 0.0, launcher: tuple[str, ...] = (), **env: str) -> list[dict[str, Any]]:
    """Return the reports of all processes of a part."""
    command = [sys.executable, *launcher, str(Path(__file__).resolve()), "--part", part, "--seconds", str(seconds)]
    clean = {name: value for name, value in os.environ.items() if not name.startswith("POISE_")}
    with tempfile.TemporaryDirectory() as folder:
        done = subprocess.run(command, env={**clean, **env}, cwd=folder, text=True, stdout=subprocess.PIPE, check=True)
    return [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]


def memory_cap() -> list[Row]:
    total = torch.cuda.get_device_properties(0).total_memory
    (how,) = run("capped", POISE_GPU_SHARE=str(1000 // CAP), POISE_GPU_MEMORY=str(total // CAP))
    fine = how["memory"] <= how["reserved"] <= how["limit"] and how["batch"] > 1
    text = f"{how['reserved'] / MIB:,.0f} of {how['limit'] / MIB:,.0f} MiB, micro-batches of {how['batch']}"
    return [Row("memory cap held", f"{text}, {how['shortages']} times short", fine)]


def sixteen_bits(seconds: float) -> list[Row]:
    found = {name: run(f"in-{name}", seconds)[0] for name in ("fp32", "bf16", "fp16", "auto")}
    base = found["fp32"]
    rows = []
    for name, how in found.items():
        text = f"{how['rate']:,.0f} samples/s ({how['rate'] / base['rate']:.2f} x), "
        text += f"{how['joules']:.3f} J/sample ({how['joules'] / base['joules'] - 1 if base['joules'] else 0:+.0%}, "
        text += f"{how['source'] or 'not counted'}), loss {how['loss']:.3f}, {how['memory'] / MIB:,.0f} MiB"
        label = f"training in {name}" + (f" ({how['precision']})" if name == "auto" else "")
        rows.append(Row(label, text, how["loss"] == how["loss"]))
    return rows


def nccl() -> list[Row]:
    workers = torch.cuda.device_count()
    launcher = ("-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(workers))
    together = min(run("gang", launcher=launcher), key=lambda one: int(one["rank"]))
    (alone,) = run("gang")
    apart = max(abs(a - b) for a, b in zip(together["weights"], alone["weights"], strict=True))
    text = f"{together['world']} of {workers} workers by {together['backend']}, weights differ by {apart:.1e}"
    fine = apart < 1e-4 and together["added up"] == together["world"] == workers and "nccl" in together["backend"]
    return [Row("NCCL", f"{text} from those of one alone", fine)]


def out_of_memory() -> list[Row]:
    total = torch.cuda.get_device_properties(0).total_memory
    (how,) = run("short", POISE_GPU_SHARE=str(1000 // CAP), POISE_GPU_MEMORY=str(total // CAP))
    text = f"{how['batch']} samples, {how['shortages'][0]} times short, then {how['micro']}: "
    fine = how["same"] and how["shortages"][0] > 0 and not how["shortages"][1]
    return [Row("out of memory", text + ("the same bits" if how["same"] else "other weights"), fine)]


if __name__ == "__main__":
    main()
