"""Train ten small real models and write down, step by step, what a detector of phases may see.

    python benchmarks/phases/record.py [--only RUN] [--seed 0] [--out benchmarks/phases/runs]

All data ships in packages: digits, breast cancer and diabetes in scikit-learn, and the language reference as text in
Python itself (`pydoc_data.topics`). Seeds are fixed; another version of PyTorch or Python gives slightly other runs.
README.md beside this file says what the columns are.
"""

import argparse
import gzip
import io
import math
import pydoc_data.topics
import re
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

import torch
from sklearn.datasets import load_breast_cancer, load_diabetes, load_digits
from torch import Tensor, nn
from torch.nn import functional

RUNS = Path(__file__).parent / "runs"
DIGITS = 3
"""Significant digits that are kept."""

Lost = Callable[[nn.Module, Tensor, Tensor], Tensor]
Rate = Callable[[int], float]


class Stage(NamedTuple):
    """Training on these pairs for so many steps."""

    inputs: Tensor
    targets: Tensor
    steps: int


class Run(NamedTuple):
    """One step takes `pieces` micro-batches of `batch`; `rate` is what the optimizer's rate is multiplied by."""

    model: nn.Module
    loss: Lost
    optimizer: torch.optim.Optimizer
    stages: tuple[Stage, ...]
    pieces: int
    batch: int
    rate: Rate = lambda step: 1.0


class Seen(NamedTuple):
    """What a step showed: see README.md."""

    loss: float
    norm: float
    pieces: float
    rate: float


def record(run: Run) -> Iterator[Seen]:
    """Train, and tell of every step."""
    parameters = list(run.model.parameters())
    usual = [group["lr"] for group in run.optimizer.param_groups]
    step = 0
    for stage in run.stages:
        shuffled = batches(len(stage.inputs), run.batch)
        for _ in range(stage.steps):
            for group, rate in zip(run.optimizer.param_groups, usual, strict=True):
                group["lr"] = rate * run.rate(step)
            lost, squares = 0.0, 0.0
            whole = torch.zeros(sum(each.numel() for each in parameters))
            for _ in range(run.pieces):
                chosen = next(shuffled)
                run.optimizer.zero_grad()
                loss = run.loss(run.model, stage.inputs[chosen], stage.targets[chosen])
                loss.backward()
                flat = torch.cat([each.grad.reshape(-1) for each in parameters if each.grad is not None])
                squares += float(flat.square().sum()) / run.pieces
                lost += loss.item() / run.pieces
                whole += flat / run.pieces
            place = 0
            for each in parameters:
                each.grad = whole[place : place + each.numel()].view_as(each)
                place += each.numel()
            run.optimizer.step()
            yield Seen(lost, float(whole.norm()), math.sqrt(squares), usual[0] * run.rate(step))
            step += 1


def batches(count: int, batch: int) -> Iterator[Tensor]:
    """Places of samples, drawn without putting back until a pass is over."""
    while True:
        order = torch.randperm(count)
        for start in range(0, count - batch + 1, batch):
            yield order[start : start + batch]


# --- data ------------------------------------------------------------------------------------------------------------


def digits() -> tuple[Tensor, Tensor]:
    read = load_digits()
    return torch.tensor(read.data / 16, dtype=torch.float32), torch.tensor(read.target)


def shifted(images: Tensor) -> Tensor:
    """Each batch by up to one pixel, as augmentation."""
    down, right = (int(torch.randint(-1, 2, ())) for _ in range(2))
    return images.view(-1, 8, 8).roll((down, right), (1, 2)).reshape(-1, 64)


def scaled(values: object) -> Tensor:
    tensor = torch.tensor(values, dtype=torch.float32)
    return (tensor - tensor.mean(0)) / tensor.std(0)


def text() -> str:
    """The language reference, as it comes with Python."""
    return "\n".join(pydoc_data.topics.topics[name] for name in sorted(pydoc_data.topics.topics))


# --- models ----------------------------------------------------------------------------------------------------------


def small_cnn(width: int, classes: int) -> nn.Module:
    return nn.Sequential(
        nn.Unflatten(1, (1, 8, 8)),
        nn.Conv2d(1, width, 3, padding=1),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(width, 2 * width, 3, padding=1),
        nn.ReLU(),
        nn.Flatten(),
        nn.Linear(2 * width * 16, classes),
    )


class Residual(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.inner = nn.Sequential(nn.LayerNorm(width), nn.Linear(width, width), nn.ReLU(), nn.Linear(width, width))

    def forward(self, inputs: Tensor) -> Tensor:
        return inputs + self.inner(inputs)  # type: ignore[no-any-return]


class Rows(nn.Module):
    """Reads an image row by row."""

    def __init__(self) -> None:
        super().__init__()
        self.gru = nn.GRU(8, 48, batch_first=True)
        self.head = nn.Linear(48, 10)

    def forward(self, inputs: Tensor) -> Tensor:
        return self.head(self.gru(inputs.view(-1, 8, 8))[0][:, -1])  # type: ignore[no-any-return]


class Letters(nn.Module):
    """A small transformer that says the next letter."""

    def __init__(self, letters: int, length: int, width: int = 48) -> None:
        super().__init__()
        self.embedding = nn.Embedding(letters, width)
        self.position = nn.Parameter(torch.randn(length, width) * 0.02)
        layer = nn.TransformerEncoderLayer(width, 4, 4 * width, 0.0, batch_first=True, norm_first=True)
        self.layers = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.head = nn.Linear(width, letters)
        self.register_buffer("mask", nn.Transformer.generate_square_subsequent_mask(length))

    def forward(self, inputs: Tensor) -> Tensor:
        hidden = self.layers(self.embedding(inputs) + self.position, mask=self.mask, is_causal=True)
        return self.head(hidden)  # type: ignore[no-any-return]


class Neighbours(nn.Module):
    """Says a word from the mean of the embeddings of its neighbours (Mikolov and others, 2013)."""

    def __init__(self, words: int, width: int = 32) -> None:
        super().__init__()
        self.embedding = nn.Embedding(words, width)
        self.head = nn.Linear(width, words)

    def forward(self, inputs: Tensor) -> Tensor:
        return self.head(self.embedding(inputs).mean(1))  # type: ignore[no-any-return]


def classified(model: nn.Module, inputs: Tensor, targets: Tensor) -> Tensor:
    return functional.cross_entropy(model(inputs), targets)


def classified_shifted(model: nn.Module, inputs: Tensor, targets: Tensor) -> Tensor:
    return functional.cross_entropy(model(shifted(inputs)), targets, label_smoothing=0.1)


def classified_letters(model: nn.Module, inputs: Tensor, targets: Tensor) -> Tensor:
    return functional.cross_entropy(model(inputs).flatten(0, 1), targets.flatten())


def squared(model: nn.Module, inputs: Tensor, targets: Tensor) -> Tensor:
    return functional.mse_loss(model(inputs), targets)


# --- runs ------------------------------------------------------------------------------------------------------------


def cnn_digits() -> Run:
    """Stochastic gradient descent with momentum, constant rate."""
    model = small_cnn(8, 10)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.02, momentum=0.9)
    return Run(model, classified, optimizer, (Stage(*digits(), 900),), 4, 16)


def mlp_digits() -> Run:
    """Adam, constant rate."""
    model = nn.Sequential(nn.Linear(64, 96), nn.ReLU(), nn.Linear(96, 48), nn.ReLU(), nn.Linear(48, 10))
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    return Run(model, classified, optimizer, (Stage(*digits(), 800),), 4, 16)


def linear_cancer() -> Run:
    """Logistic regression, plain gradient descent; one micro-batch, so nothing is known within a step."""
    read = load_breast_cancer()
    model = nn.Linear(30, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.03)
    return Run(model, classified, optimizer, (Stage(scaled(read.data), torch.tensor(read.target), 600),), 1, 32)


def autoencoder_digits() -> Run:
    """Adam; the rate drops to a tenth after 1000 steps."""
    images, _ = digits()
    model = nn.Sequential(nn.Linear(64, 48), nn.ReLU(), nn.Linear(48, 12), nn.Linear(12, 48), nn.ReLU())
    model.append(nn.Linear(48, 64))
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
    return Run(
        model, squared, optimizer, (Stage(images, images, 1400),), 2, 32, lambda step: 0.1 if step >= 1000 else 1
    )


def transformer_text() -> Run:
    """AdamW; 100 steps of warm-up, then a cosine to nothing."""
    steps, length = 1500, 48
    read = text()
    letters = {letter: number for number, letter in enumerate(sorted(set(read)))}
    codes = torch.tensor([letters[letter] for letter in read])
    rows = codes[: len(codes) // length * length].view(-1, length)
    targets = codes[1 : 1 + rows.numel()].view(-1, length)
    model = Letters(len(letters), length)
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3)

    def rate(step: int) -> float:
        return step / 100 if step < 100 else 0.5 + 0.5 * math.cos(math.pi * (step - 100) / (steps - 100))

    return Run(model, classified_letters, optimizer, (Stage(rows[: len(targets)], targets, steps),), 4, 8, rate)


def embedding_words() -> Run:
    """Adagrad, constant rate."""
    words = re.findall(r"[a-z_]+", text().lower())
    known = {word: number for number, (word, _) in enumerate(Counter(words).most_common(1500))}
    codes = torch.tensor([known[word] for word in words if word in known])
    around = torch.stack([codes[0:-4], codes[1:-3], codes[3:-1], codes[4:]], 1)
    model = Neighbours(len(known))
    optimizer = torch.optim.Adagrad(model.parameters(), lr=0.1)
    return Run(model, classified, optimizer, (Stage(around, codes[2:-2], 1500),), 4, 64)


def regression_diabetes() -> Run:
    """RMSprop; the rate drops to a tenth after 500 steps."""
    read = load_diabetes()
    model = nn.Sequential(nn.Linear(10, 24), nn.Tanh(), nn.Linear(24, 1))
    optimizer = torch.optim.RMSprop(model.parameters(), lr=2e-3)
    stage = Stage(scaled(read.data), scaled(read.target).unsqueeze(1), 800)
    return Run(model, squared, optimizer, (stage,), 4, 16, lambda step: 0.1 if step >= 500 else 1)


def gru_digits() -> Run:
    """Adam with a rate that falls exponentially."""
    model = Rows()
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
    return Run(model, classified, optimizer, (Stage(*digits(), 1000),), 8, 8, lambda step: 0.5 ** (step / 300))


def other_classes() -> Run:
    """A CNN learns the digits 0 to 4 and is then trained on with 5 to 9, which it has never seen."""
    images, labels = digits()
    low = labels < 5
    model = small_cnn(6, 10)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.03, momentum=0.9)
    stages = (Stage(images[low], labels[low], 600), Stage(images[~low], labels[~low], 600))
    return Run(model, classified, optimizer, stages, 4, 8, lambda step: 0.3 if step >= 600 else 1)


def residual_staircase() -> Run:
    """A residual network on shifted digits; the rate drops to a tenth after a half and after three quarters."""
    model = nn.Sequential(nn.Linear(64, 64), Residual(64), Residual(64), nn.Linear(64, 10))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, weight_decay=1e-3)

    def rate(step: int) -> float:
        return 1.0 if step < 800 else 0.1 if step < 1200 else 0.01

    return Run(model, classified_shifted, optimizer, (Stage(*digits(), 1600),), 4, 16, rate)


TRAINED: dict[str, Callable[[], Run]] = {
    "cnn-digits": cnn_digits,
    "mlp-digits": mlp_digits,
    "linear-cancer": linear_cancer,
    "autoencoder-digits": autoencoder_digits,
    "transformer-text": transformer_text,
    "embedding-words": embedding_words,
    "regression-diabetes": regression_diabetes,
    "gru-digits": gru_digits,
    "other-classes": other_classes,
    "residual-staircase": residual_staircase,
}


def write(path: Path, seen: list[Seen], pieces: int, batch: int) -> None:
    text = io.StringIO()
    text.write(f"# pieces={pieces} batch={batch}\n")
    text.write(",".join(Seen._fields) + "\n")
    for one in seen:
        text.write(",".join(f"{value:.{DIGITS}g}" for value in one) + "\n")
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(gzip.compress(text.getvalue().encode(), mtime=0))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--only", choices=list(TRAINED), help="this run alone")
    parser.add_argument("--seed", type=int, default=0, help="0 is what was recorded")
    parser.add_argument("--out", type=Path, default=RUNS)
    given = parser.parse_args()
    torch.set_num_threads(1)
    for number, (name, build) in enumerate(TRAINED.items()):
        if given.only in (None, name):
            torch.manual_seed(number + 100 * given.seed)
            run = build()
            seen = list(record(run))
            write(given.out / f"{name}.csv.gz", seen, run.pieces, run.batch)
            print(f"{name:20} {len(seen):5} steps, loss {seen[0].loss:.3g} to {seen[-1].loss:.3g}")


if __name__ == "__main__":
    main()
