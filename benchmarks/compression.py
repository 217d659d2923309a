"""Measure the bytes that training sends and its accuracy, with each exchange: real gangs over gloo, on digits.

    python benchmarks/compression.py [--workers 2,4] [--models mlp,cnn] [--seeds 5] [--epochs 20] [--json]

Each gang trains through `poise.Session` on 1,300 of scikit-learn's digits and is tested on the other 497, with the
seeds from 0, with one thread per worker. `bytes` is the amount that a worker sent for gradients (for local SGD: weights
and momentum) over the amount in fp32. The targets are at most half, and a mean accuracy over the seeds at most half a
point below that of `plain`. One digit is 0.2 points.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from statistics import fmean
from typing import Any

from harness import Figure, program, say

KNOWN = 1300
POINTS, PART = 0.5, 50.0
EXCHANGES = ("plain", "fp16", "bf16", "powersgd", "topk", "local")
SECONDS = 900.0
BATCH = 64


def model_of(name: str) -> Any:
    from torch import nn

    if name == "mlp":
        return nn.Sequential(nn.Linear(64, 256), nn.ReLU(), nn.Linear(256, 256), nn.ReLU(), nn.Linear(256, 10))
    return nn.Sequential(
        nn.Unflatten(1, (1, 8, 8)),
        nn.Conv2d(1, 32, 3, padding=1),
        nn.ReLU(),
        nn.Conv2d(32, 64, 3, padding=1),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Linear(1024, 128),
        nn.ReLU(),
        nn.Linear(128, 10),
    )


def train(model_name: str, exchange_name: str, seed: int, epochs: int) -> dict[str, float]:
    """Run one worker of a gang, as a user's script does."""
    import torch
    from sklearn.datasets import load_digits
    from sklearn.model_selection import train_test_split
    from torch.nn.functional import cross_entropy
    from torch.utils.data import TensorDataset

    import poise
    from poise_train.advise import exchange_named
    from poise_train.local import LocalSGD

    torch.set_num_threads(1)
    torch.manual_seed(seed)
    images, labels = load_digits(return_X_y=True)
    known, others, names, answers = train_test_split(
        torch.tensor(images / 16, dtype=torch.float32), torch.tensor(labels), train_size=KNOWN, random_state=0
    )
    model = model_of(model_name)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    exchange = LocalSGD(every=8) if exchange_name == "local" else exchange_named(exchange_name)  # type: ignore[arg-type]
    with poise.Session(
        model, optimizer, TensorDataset(known, names), batch=BATCH, epochs=epochs, seed=seed, exchange=exchange
    ) as run:
        for x, y in run:
            run.step(cross_entropy(model(x), y))
        exchange.even_out()
    right = (model(others).argmax(1) == answers).float().mean()
    return {"accuracy": 100 * float(right), "sent": exchange.sent, "plain": exchange.plain, "samples": run.samples}


def measure(workers: int, models: list[str], seeds: int, epochs: int) -> dict[tuple[str, str], list[dict[str, float]]]:
    """Return the report of worker 0 for each seed, by model and exchange."""
    cases = [(model, kind, seed) for model in models for kind in EXCHANGES for seed in range(seeds)]
    with tempfile.TemporaryDirectory() as folder:
        gang = [
            subprocess.Popen(
                [sys.executable, __file__, "--worker", json.dumps([folder, epochs, cases])],
                env={**os.environ, "OMP_NUM_THREADS": "1", "POISE_RANK": str(rank), "POISE_WORLD_SIZE": str(workers)},
            )
            for rank in range(workers)
        ]
        try:
            ended = [one.wait(SECONDS) for one in gang]
        finally:
            for one in gang:
                one.kill()
                one.wait()
        if any(ended):
            raise SystemExit(f"workers ended with {ended}")
        told: dict[tuple[str, str], list[dict[str, float]]] = {}
        for model, kind, seed in cases:
            answer = json.loads((Path(folder) / f"{model}.{kind}.{seed}.json").read_text())
            told.setdefault((model, kind), []).append(answer)
        return told


def work(folder: str, epochs: int, cases: list[tuple[str, str, int]]) -> None:
    """Run all gangs of one size in sequence, in the same processes."""
    for model, kind, seed in cases:
        name = f"{model}.{kind}.{seed}"
        place = Path(folder) / name
        place.mkdir(exist_ok=True)
        os.environ["POISE_GANG_DIR"] = str(place)
        answer = train(model, kind, seed, epochs)
        if os.environ["POISE_RANK"] == "0":
            (Path(folder) / f"{name}.json").write_text(json.dumps(answer))


def figures(workers: int, told: Mapping[tuple[str, str], list[dict[str, float]]]) -> list[Figure]:
    found = []
    for (model, kind), answers in told.items():
        plain = told[model, "plain"]
        where = f"{model}, {workers} workers, {kind}"
        points = [one["accuracy"] - other["accuracy"] for one, other in zip(answers, plain, strict=True)]
        sent = [100 * one["sent"] / one["plain"] for one in answers]
        worse = f"{fmean(one['accuracy'] for one in answers):.2f} %, {fmean(points):+.2f} points in the mean"
        squeezed = kind != "plain"
        found += [
            Figure(name=f"{where}: bytes", unit="%", values=sent, limit=PART if squeezed else None),
            Figure(
                name=f"{where}: accuracy lost",
                unit="",
                values=[-fmean(points)],
                limit=POINTS if squeezed else None,
                note=worse,
            ),
        ]
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--workers", default="2,4")
    parser.add_argument("--models", default="mlp,cnn")
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--epochs", type=int, default=20)
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--worker", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.worker:
        work(*json.loads(given.worker))
        return

    def all_of_them() -> list[Figure]:
        found: list[Figure] = []
        for workers in map(int, given.workers.split(",")):
            say(f"{workers} workers")
            found += figures(workers, measure(workers, given.models.split(","), given.seeds, given.epochs))
        return found

    raise SystemExit(program(all_of_them, as_json=given.json))


if __name__ == "__main__":
    main()
