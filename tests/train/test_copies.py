"""Copies of a model that a session trains: the best one so far, an average, a file."""

import copy
import io
import subprocess
import sys
from pathlib import Path

import torch
from torch import nn
from torch.optim.swa_utils import AveragedModel
from torch.utils.data import TensorDataset

import poise
from train import patched


def test_a_copy_answers_with_its_own_weights(tmp_path: Path) -> None:
    for model in (patched.Line(), patched.with_a_forward_of_its_own()):
        whole = nn.Sequential(model)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        data = TensorDataset(torch.ones(4, 1), torch.ones(4, 1))
        one = torch.ones(1, 1)
        with poise.Session(model, optimizer, data, batch=2, precision="bf16") as run:
            copies = copy.deepcopy(model), copy.deepcopy(whole), AveragedModel(model), copy.deepcopy(model.forward)
            before = [of(one).item() for of in copies]
            file = io.BytesIO()
            torch.save(model, file)
            for x, y in run:
                run.step(nn.functional.mse_loss(model(x), y))
            file.seek(0)
            later = torch.load(file, weights_only=False), copy.deepcopy(copies[0])
            assert [of(one).item() for of in (*copies, *later)] == [*before, before[0], before[0]]
            assert model(one).item() != before[0]
        assert model(one).item() != before[0]
        assert copies[0](one).item() == before[0]


def test_a_model_that_was_saved_in_a_session_is_loaded_without_poise(tmp_path: Path) -> None:
    model = nn.Linear(1, 1)
    data = TensorDataset(torch.ones(2, 1))
    with poise.Session(model, torch.optim.SGD(model.parameters(), lr=0.1), data) as run:
        torch.save(model, tmp_path / "model")
        assert run.steps == 0
    script = """
import sys, torch
torch.load(sys.argv[1], weights_only=False)(torch.ones(1, 1))
assert "poise" not in sys.modules
"""
    subprocess.run([sys.executable, "-c", script, tmp_path / "model"], check=True)
