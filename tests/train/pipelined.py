"""A worker of a pipeline, for `test_pipeline.py`: it trains, saves and answers, and leaves what it saw beside
OUT.
"""

import json
import os
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from sklearn.datasets import load_digits
from torch import nn
from torch.nn.functional import cross_entropy

from poise_train.pipeline import Pipeline

SIZE, MANY, STEPS = 8, 4, 3
"""Samples of a micro-batch, micro-batches of a step, steps."""


def digits_model() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Linear(64, 96), nn.ReLU(), nn.Linear(96, 96), nn.ReLU(), nn.Linear(96, 32), nn.ReLU(), nn.Linear(32, 10)
    )


def adam(parameters: Iterable[nn.Parameter]) -> torch.optim.Adam:
    """One that divides by no gradient so small that it matters how a processor rounds."""
    return torch.optim.Adam(parameters, 1e-2, eps=1e-4)


def digits(step: int) -> tuple[torch.Tensor, torch.Tensor]:
    """The images and labels of a step."""
    images, labels = (torch.tensor(one) for one in load_digits(return_X_y=True))
    part = slice(step * SIZE * MANY, (step + 1) * SIZE * MANY)
    return images[part].float() / 16, labels[part]


def pipeline(model: nn.Module, **how: Any) -> Pipeline:
    images, labels = digits(0)
    return Pipeline(model, images[:SIZE], loss=cross_entropy, target=labels[:SIZE], micro_batches=MANY, **how)


def watch(pipe: Pipeline) -> list[tuple[int, bool]]:
    """What the stage does from now on: which micro-batch, and whether back."""
    seen: list[tuple[int, bool]] = []
    forward, backward = pipe._stage.forward_one_chunk, pipe._stage.backward_one_chunk

    def forwards(micro: int, *args: Any, **named: Any) -> Any:
        seen.append((micro, False))
        return forward(micro, *args, **named)

    def backwards(micro: int, *args: Any, **named: Any) -> Any:
        seen.append((micro, True))
        return backward(micro, *args, **named)

    pipe._stage.forward_one_chunk, pipe._stage.backward_one_chunk = forwards, backwards  # type: ignore[method-assign]
    return seen


def work(folder: Path) -> None:
    for schedule in ("1f1b", "gpipe"):
        pipe = pipeline(digits_model(), schedule=schedule)
        optimizer = adam(pipe.parameters())
        losses, seen = [], watch(pipe)
        for step in range(STEPS):
            losses.append(pipe.step(*digits(step)))
            if step == 0:
                moves = list(seen)
                slopes = {
                    name: one.grad.clone() for name, one in pipe.module.named_parameters() if one.grad is not None
                }
            optimizer.step()
            optimizer.zero_grad()
        save_file(slopes, folder / f"slopes.{schedule}.{pipe.rank}")
        save_file(dict(pipe.module.state_dict()), folder / f"weights.{schedule}.{pipe.rank}")
        told = pipe.told()
        said = {"losses": losses, "moves": moves, "ends": told.ends, "bubble": told.bubble, "text": str(told)}
        (folder / f"said.{schedule}.{pipe.rank}").write_text(json.dumps(said))
        pipe.save(folder / "saved", STEPS, optimizer)
    torch.manual_seed(1)
    pipe = Pipeline(digits_model(), digits(0)[0][:SIZE], micro_batches=MANY, ends=(1, 7))
    assert pipe.restore(folder / "saved") == STEPS
    answers = pipe.answer(digits(0)[0])
    assert (answers is None) == (not pipe.last)
    if answers is not None:
        save_file({"answers": answers}, folder / "answers")


if __name__ == "__main__":
    torch.set_num_threads(1)
    work(Path(os.environ["OUT"]).parent)
