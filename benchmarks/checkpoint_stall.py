"""Measure how long training stalls for a checkpoint, compared with `torch.save` of the same state.

    python benchmarks/checkpoint_stall.py [--rounds 15] [--quick] [--json]

A transformer of 7 million weights with Adam, 85 MB of state, trains on one core; the other core is for background work.
A round saves the same state three ways, in turn. Each save is followed by two steps of training, so that none is
affected by the previous one:

* `torch.save`: into a file, with `fsync`; training stalls for all of it.
* `poise`: `Checkpoints.save` with the optimizer: the rest is copied during the next gradients. The stall is the time
  that `save` and the optimizer's next step were held up.
* `poise, at once`: the same without the optimizer, so everything is copied before `save` returns.

*Added to training*: the extra time of the two steps including the save, over two steps without: copying and writing in
the background also use memory bandwidth and CPU. *Checksums*: GB a second on one core.
"""

import argparse
import hashlib
import os
import sys
import tempfile
import zlib
from collections.abc import Callable
from pathlib import Path
from time import perf_counter
from typing import Any

import harness
from harness import Figure

TARGET = 5.0
"""Target in percent of a synchronous `torch.save`."""

STEPS = 2
"""Training steps after each save: the first waits for the rest of the copy, the second shows the background work."""

HASHED = 1 << 26


class Subject:
    """A transformer and its optimizer, after one step."""

    def __init__(self, width: int, layers: int) -> None:
        import torch

        torch.manual_seed(0)
        torch.set_num_threads(1)
        layer = torch.nn.TransformerEncoderLayer(width, 8, 4 * width, dropout=0.0, batch_first=True)
        self.model = torch.nn.TransformerEncoder(layer, layers, enable_nested_tensor=False)
        self.optimizer = torch.optim.Adam(self.model.parameters(), 1e-4)
        self.batch = torch.randn(8, 32, width)
        self.step()

    def step(self) -> None:
        self.optimizer.zero_grad()
        self.model(self.batch).square().mean().backward()
        self.optimizer.step()

    def state(self) -> dict[str, Any]:
        return {"model": self.model.state_dict(), "optimizer": self.optimizer.state_dict()}


def measure(rounds: int, width: int, layers: int) -> list[Figure]:
    import torch

    from poise_train.checkpoints import Checkpoints
    from poise_train.policy.checkpoints import Keep

    subject = Subject(width, layers)
    stalls: dict[str, list[float]] = {"torch.save": [], "poise": [], "poise, at once": []}
    added: dict[str, list[float]] = {name: [] for name in stalls}
    took: list[float] = []
    size = last = 0.0
    with tempfile.TemporaryDirectory(prefix="poise-bench-") as name:
        folder = Path(name)
        checkpoints = Checkpoints(folder / "checkpoints", keep=Keep(last=1, best=0))
        step = 0

        def synchronous() -> None:
            with (folder / "state.pt").open("wb") as file:
                torch.save(subject.state(), file)
                file.flush()
                os.fsync(file.fileno())

        def beside(optimizer: torch.optim.Optimizer | None) -> None:
            checkpoints.save(subject.state(), step=step, optimizer=optimizer)

        ways: dict[str, Callable[[], None]] = {
            "torch.save": synchronous,
            "poise": lambda: beside(subject.optimizer),
            "poise, at once": lambda: beside(None),
        }
        for turn in range(rounds + 2):  # two rounds of warm-up: memory for copies is allocated, files exist
            plain = timed(lambda: training(subject))
            for way, saving in ways.items():
                step += 1
                held = timed(saving)
                whole = held + timed(lambda: training(subject))
                checkpoints.wait()
                saved = checkpoints.published()
                if way != "torch.save":
                    assert saved is not None and saved.step == step, "it was published"
                    # Include the wait of the next step; building the state counts for all ways.
                    held = max(held, saved.stall / 1e9)
                    size, last = saved.bytes / 1e6, saved.took / 1e6
                if turn >= 2:
                    stalls[way].append(1000 * held)
                    added[way].append(1000 * (whole - plain))
                    if way == "poise":
                        took.append(last)
        checkpoints.close()
    return [*figures(stalls, added, took, size), *checksums(rounds)]


def training(subject: Subject) -> None:
    for _ in range(STEPS):
        subject.step()


def timed(what: Callable[[], None]) -> float:
    began = perf_counter()
    what()
    return perf_counter() - began


def figures(
    stalls: dict[str, list[float]], added: dict[str, list[float]], took: list[float], size: float
) -> list[Figure]:
    """Return the figures of each round relative to `torch.save` of the same round."""
    found = [Figure(name=f"stall: {way}", unit="ms", values=values) for way, values in stalls.items()]
    for way in ("poise", "poise, at once"):
        shares = [100 * own / base for own, base in zip(stalls[way], stalls["torch.save"], strict=True)]
        limit = TARGET if way == "poise" else None
        found.append(
            Figure(name=f"stall: {way} over torch.save", unit="%", values=shares, limit=limit, note=f"{size:.0f} MB")
        )
    found += [Figure(name=f"added to training: {way}", unit="ms", values=values) for way, values in added.items()]
    shares = [100 * own / base for own, base in zip(added["poise"], added["torch.save"], strict=True)]
    found.append(Figure(name="added to training: poise over torch.save", unit="%", values=shares))
    found.append(Figure(name="until it is published, beside training", unit="ms", values=took))
    return found


def checksums(rounds: int) -> list[Figure]:
    """Measure the checksum rate on 64 MiB."""
    content = os.urandom(HASHED)
    ways: dict[str, Callable[[], object]] = {
        "CRC-32": lambda: zlib.crc32(content),
        "SHA-256": lambda: hashlib.sha256(content).digest(),
        "BLAKE2b": lambda: hashlib.blake2b(content).digest(),
    }
    seconds: dict[str, list[float]] = {name: [] for name in ways}
    for _ in range(min(rounds, 5)):
        for name, way in ways.items():
            seconds[name].append(timed(lambda way=way: way()))  # type: ignore[misc]
    return [
        Figure(
            name=f"checksum: {name}",
            unit="",
            values=[HASHED / each / 1e9 for each in values],
            larger=True,
            note="GB a second",
        )
        for name, values in seconds.items()
    ]


def main() -> int:
    parser = argparse.ArgumentParser(description="for how long training stands still for a checkpoint")
    parser.add_argument("--rounds", type=int, default=15, help="times that each way is measured")
    parser.add_argument("--quick", action="store_true", help="a small model, to try it out")
    parser.add_argument("--json", action="store_true", help="print JSON instead of a table")
    options = parser.parse_args()
    rounds, width, layers = (2, 128, 2) if options.quick else (options.rounds, 384, 4)
    return harness.program(lambda: measure(rounds, width, layers), as_json=options.json)


if __name__ == "__main__":
    sys.exit(main())
