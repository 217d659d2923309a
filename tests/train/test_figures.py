"""Figures that a session reports: of this process's steps, and of all workers."""

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.data import TensorDataset

import poise

DATA = TensorDataset(torch.arange(12.0).unsqueeze(1), torch.arange(12.0).unsqueeze(1))


def trained(folder: Path, until: int) -> Any:
    """What is reported at the beginning, and after so many steps or at the end; and the loss of each step."""
    model = nn.Linear(1, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    losses, parts = [], list[float]()
    with poise.Session(model, optimizer, DATA, batch=6, micro=4, epochs=3, checkpoint=folder, every=1) as run:
        first, before = run.training(), run.steps
        for x, y in run:
            run.exchange.sent += 50  # as if there were others
            loss = nn.functional.mse_loss(model(x), y)
            parts.append(loss.item() * len(x) / 6)
            run.step(loss)
            if run.steps > before:
                losses.append(sum(parts))
                before, parts = run.steps, []
                assert run.training().loss == pytest.approx(losses[-1])
            if run.steps == until:
                break
    return first, run.training(), losses


def test_figures_go_on_after_a_resume(tmp_path: Path) -> None:
    _, ended, losses = trained(tmp_path, 4)
    assert (ended.step, ended.sent, ended.loss) == (4, 100, pytest.approx(losses[-1]))
    begun, ended, _ = trained(tmp_path, -1)
    assert (begun.step, begun.loss) == (4, pytest.approx(losses[-1])), "the loss is known before the next step"
    assert (ended.step, ended.sent) == (6, 100), "of the steps of this process, not of all attempts"
