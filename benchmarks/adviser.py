"""Check whether the exchange that the communication adviser recommends is the fastest: real jobs on limited links.

    sudo python benchmarks/adviser.py [--configurations 10] [--json]

Ten configurations of a model, the rate of the links and the number of workers; each rank is one thread on a node of its
own (`links.py`). In each configuration, the adviser watches a job that trains with plain gradients, and recommends one
of five exchanges. The job then runs with each of them, and the medians of its steps are compared. A choice counts as
the best if none is faster by more than `TIE` of a step, because the adviser takes exact gradients unless others save
more. The benchmark also reports the error of the predicted step time, for all exchanges in all configurations.
"""

import argparse
import json
import os
import sys
import tempfile
import time
from pathlib import Path
from statistics import median
from typing import Any

import links
from harness import Figure, absent, program, say

from poise_train.policy.advise import WORTH

TIE = WORTH
NEEDED = 80.0
KINDS = ("plain", "fp16", "bf16", "powersgd", "topk")
CONFIGURATIONS = [
    (model, rate, workers)
    for workers in (2, 4)
    for model, rates in (("wide", (25, 100, 500)), ("cnn", (20, 400)))
    for rate in rates
]
SAMPLES, BATCH, WARM = 1280, 64, 4
SECONDS = 1500.0


def model_of(name: str) -> Any:
    """Return a model: `wide` has 1.1 million weights and little computation, `cnn` a hundred thousand and much
    computation.
    """
    from torch import nn

    if name == "wide":
        return nn.Sequential(nn.Linear(64, 1024), nn.ReLU(), nn.Linear(1024, 1024), nn.ReLU(), nn.Linear(1024, 10))
    return nn.Sequential(
        nn.Unflatten(1, (1, 8, 8)),
        nn.Conv2d(1, 64, 3, padding=1),
        nn.ReLU(),
        nn.Conv2d(64, 128, 3, padding=1),
        nn.ReLU(),
        nn.AdaptiveAvgPool2d(2),
        nn.Flatten(),
        nn.Linear(512, 64),
        nn.ReLU(),
        nn.Linear(64, 10),
    )


def train(model_name: str, exchange: Any) -> float:
    """Run a user's training script; return the median seconds of a step."""
    import torch
    from sklearn.datasets import load_digits
    from torch.nn.functional import cross_entropy
    from torch.utils.data import TensorDataset

    import poise

    torch.set_num_threads(1)
    torch.manual_seed(0)
    images, labels = load_digits(return_X_y=True)
    inputs = torch.tensor(images[:SAMPLES] / 16, dtype=torch.float32)
    model = model_of(model_name)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.02, momentum=0.9)
    data = TensorDataset(inputs, torch.tensor(labels[:SAMPLES]))
    times = [time.perf_counter()]
    with poise.Session(model, optimizer, data, batch=BATCH, exchange=exchange) as run:
        for x, y in run:
            run.step(cross_entropy(model(x), y))
            times.append(time.perf_counter())
    return median(after - before for before, after in zip(times[WARM:], times[WARM + 1 :], strict=False))


def work(folder: str, cases: list[tuple[str, int]]) -> None:
    """Run one rank: all cases for one number of workers."""
    import msgspec

    from poise_train.advise import Adviser

    for number, (model, rate) in enumerate(cases):
        links.limit(rate)
        told: dict[str, Any] = {}
        for kind in ("advice", *KINDS):
            place = Path(folder) / f"{number}.{kind}"
            place.mkdir(exist_ok=True)
            os.environ["POISE_GANG_DIR"] = str(place)
            adviser = Adviser(switch=False)
            took = train(model, adviser if kind == "advice" else kind)
            told[kind] = msgspec.to_builtins(adviser.advised) if kind == "advice" else took
        if os.environ["POISE_RANK"] == "0":
            (Path(folder) / f"{number}.json").write_text(json.dumps(told))


def measured(workers: int, cases: list[tuple[str, int]]) -> list[dict[str, Any]]:
    with tempfile.TemporaryDirectory() as folder, links.nodes(workers) as nodes:
        command = [sys.executable, __file__, "--rank", json.dumps([folder, cases])]
        links.run([(node, command) for node in nodes], {"POISE_WORLD_SIZE": str(workers)}, SECONDS)
        return [json.loads((Path(folder) / f"{number}.json").read_text()) for number in range(len(cases))]


def measure(configurations: int) -> list[Figure]:
    missing = links.why_not()
    if missing:
        return [absent("the adviser's choice is the best", missing)]
    wanted = CONFIGURATIONS[:configurations]
    right, errors, waits = [], [], []
    for workers in sorted({workers for *_, workers in wanted}):
        cases = [(model, rate) for model, rate, many in wanted if many == workers]
        for (model, rate), told in zip(cases, measured(workers, cases), strict=True):
            advice, took = told["advice"], {kind: told[kind] for kind in KINDS}
            best = min(took, key=lambda kind: took[kind])
            right.append(took[advice["choice"]] <= took[best] * (1 + TIE))
            foreseen = {one["name"]: one["seconds"] for one in advice["alternatives"]}
            errors += [100 * abs(foreseen[kind] / took[kind] - 1) for kind in KINDS]
            waits.append(100 * (took[advice["choice"]] / took[best] - 1))
            say(f"{model}, {rate} Mbit/s, {workers} workers: {advice['choice']} ({advice['reason']})")
            say(
                "  foreseen/measured ms: "
                + ", ".join(f"{kind} {1e3 * foreseen[kind]:.1f}/{1e3 * took[kind]:.1f}" for kind in KINDS)
            )
    share = 100 * sum(right) / len(right)
    note = f"{sum(right)} of {len(right)}, ties within {100 * TIE:.0f} %"
    return [
        Figure(name="the choice is the best", unit="%", values=[share], limit=NEEDED, larger=True, note=note),
        Figure(name="a step with the choice is longer than with the best by", unit="%", values=waits),
        Figure(name="foreseen steps: error", unit="%", values=errors),
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--configurations", type=int, default=len(CONFIGURATIONS))
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--rank", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.rank:
        work(*json.loads(given.rank))
        return
    raise SystemExit(program(lambda: measure(given.configurations), as_json=given.json))


if __name__ == "__main__":
    main()
