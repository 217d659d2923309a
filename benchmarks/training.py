"""What the training library costs, and what training under it survives: real small models, real processes.

    python benchmarks/training.py [--only overhead,kill,resize,preempt] [--rounds 5] [--plot loss.svg] [--json]

* `overhead`: the median step of a small transformer (on the text of the licence) and of a CNN (on digits), in a plain
  loop and in a session, which take turns step by step over the same batches, on one core.
* `kill`: four workers of an elastic gang under a real control plane train on digits; one is killed with SIGKILL in the
  middle. From that to the next step of the gang, and to the next with four workers again; steps that were lost; the
  loss beside a run that nobody disturbs (`--plot`).
* `resize`: accuracy on digits that were not learned, of runs that have 1, then 4, then 2 workers, beside runs with two
  all the time, at the same samples per step, for several seeds.
* `preempt`: a job that trains is put aside by an urgent one, again and again, and goes on. Work that was lost each time
  beside the interval between checkpoints plus what restoring took.
"""

import argparse
import itertools
import statistics
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import harness
from harness import Figure, say

ROOT = Path(__file__).resolve().parent.parent
LICENCE = ROOT / "LICENSE"


# --- overhead --------------------------------------------------------------------------------------------------------


def transformer() -> tuple[Any, Any, Any]:
    """Two layers, width 128, sequences of 64 bytes: model, data, and its loss."""
    import torch
    from torch import nn

    class Small(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.bytes = nn.Embedding(256, 128)
            layer = nn.TransformerEncoderLayer(128, 4, 512, batch_first=True, dropout=0.0)
            self.layers = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
            self.next = nn.Linear(128, 256)

        def forward(self, x: Any) -> Any:
            mask = nn.Transformer.generate_square_subsequent_mask(x.shape[1])
            return self.next(self.layers(self.bytes(x), mask=mask, is_causal=True))

    text = torch.frombuffer(bytearray(LICENCE.read_bytes()), dtype=torch.uint8).long()
    windows = text.unfold(0, 65, 5)
    data = torch.utils.data.TensorDataset(windows[:, :-1].contiguous(), windows[:, 1:].contiguous())
    return Small(), data, lambda said, y: nn.functional.cross_entropy(said.flatten(0, 1), y.flatten())


def cnn() -> tuple[Any, Any, Any]:
    """Two convolutions and two linear layers for digits of 8 by 8."""
    import torch
    from sklearn.datasets import load_digits
    from torch import nn

    images, labels = load_digits(return_X_y=True)
    inputs = torch.tensor(images / 16, dtype=torch.float32).view(-1, 1, 8, 8)
    layers = [nn.Conv2d(1, 32, 3, padding=1), nn.ReLU(), nn.Conv2d(32, 64, 3, padding=1), nn.ReLU()]
    model = nn.Sequential(*layers, nn.Flatten(), nn.Linear(64 * 64, 128), nn.ReLU(), nn.Linear(128, 10))
    return model, torch.utils.data.TensorDataset(inputs, torch.tensor(labels)), nn.functional.cross_entropy


def overhead(make: Callable[[], tuple[Any, Any, Any]], steps: int, batch: int) -> tuple[float, float]:
    """Median seconds of a step: plain, and in a session. One of each in turn: what slows the machine slows both."""
    import torch
    from torch.utils.data import DataLoader

    import poise

    torch.set_num_threads(1)

    def plain() -> Iterator[None]:
        torch.manual_seed(0)
        model, data, loss_of = make()
        optimizer = torch.optim.AdamW(model.parameters())
        while True:
            for x, y in DataLoader(data, batch_size=batch, shuffle=True, drop_last=True):
                optimizer.zero_grad()
                loss_of(model(x), y).backward()
                optimizer.step()
                yield

    def session() -> Iterator[None]:
        torch.manual_seed(0)
        model, data, loss_of = make()
        whole = torch.utils.data.Subset(data, range(len(data) - len(data) % batch))
        optimizer = torch.optim.AdamW(model.parameters())
        with poise.Session(model, optimizer, whole, batch=batch, epochs=10_000) as run:
            for x, y in run:
                run.step(loss_of(model(x), y))
                yield

    loops = {"plain": plain(), "session": session()}
    times: dict[str, list[float]] = {name: [] for name in loops}
    for number in range(steps + 5):
        for name in itertools.islice(itertools.cycle(loops), number % 2, number % 2 + 2):
            began = time.perf_counter()
            next(loops[name])
            if number >= 5:
                times[name].append(time.perf_counter() - began)
    return statistics.median(times["plain"]), statistics.median(times["session"])


def measure_overhead(rounds: int, steps: int) -> list[Figure]:
    figures = []
    for name, make, batch in (("transformer", transformer, 16), ("CNN", cnn, 64)):
        say(f"overhead: {name}")
        shares = []
        for _ in range(rounds):
            plain, session = overhead(make, steps, batch)
            shares.append(100 * (session / plain - 1))
        note = f"a step takes {1000 * plain:.1f} ms"
        figures.append(
            Figure(name=f"a session's share of a step, {name}", unit="%", values=shares, limit=1.0, note=note)
        )
    return figures


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--only", default="overhead", help="overhead, kill, resize, preempt; several with commas")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--steps", type=int, default=150, help="of each loop and round")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    parts = {"overhead": lambda: measure_overhead(options.rounds, options.steps)}
    chosen = options.only.split(",")
    return harness.program(lambda: [figure for name in chosen for figure in parts[name]()], as_json=options.json)


if __name__ == "__main__":
    sys.exit(main())
