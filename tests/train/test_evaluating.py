"""Evaluations in a pass: what is reported of them, announced or not."""

from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest
import torch
from torch import nn
from torch.utils.data import TensorDataset

import poise
from poise.drivers import heartbeat
from poise.model.training import Training
from poise_train import session


@pytest.fixture
def report(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("POISE_REPORT", str(tmp_path / "report"))
    monkeypatch.setenv("POISE_PROGRESS", str(tmp_path / "progress"))
    monkeypatch.setattr(heartbeat, "_STEP_SECONDS", 0.0)
    monkeypatch.setattr(heartbeat, "_next_step", 0.0)
    return tmp_path / "report"


def said(report: Path) -> tuple[bool, bool]:
    """Whether it reports an evaluation, and whether it reports steps."""
    found = msgspec.json.decode(report.read_bytes(), type=Training)
    return found.evaluating, found.step_time > 0


def steps(model: nn.Module) -> Iterator[poise.Session]:
    """After each of three steps."""
    inputs = torch.arange(12.0).unsqueeze(1)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    with poise.Session(model, optimizer, TensorDataset(inputs, 2 * inputs), batch=4) as run:
        for x, y in run:
            run.step(nn.functional.mse_loss(model(x), y))
            yield run


def test_an_announced_evaluation_is_reported_until_it_ends(report: Path) -> None:
    for run in steps(nn.Linear(1, 1)):
        assert said(report) == (False, True)
        (report.parent / "progress").unlink()
        with run.evaluating():
            assert said(report) == (True, False)
            assert (report.parent / "progress").exists()
        assert said(report) == (False, True), "the next step is missed if it does not come"


def test_an_evaluation_after_a_pass_leaves_it_resting(report: Path) -> None:
    runs = list(steps(nn.Linear(1, 1)))
    with runs[0].evaluating():
        assert said(report) == (True, False)
    assert said(report) == (False, False)


def test_an_evaluation_that_nobody_announced_is_recognized_by_its_calls_of_the_model(
    report: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = nn.Linear(1, 1)
    for run in steps(model):
        monkeypatch.setattr(session, "EVERY_SECONDS", 3600.0)
        with torch.no_grad():
            model(torch.ones(1))
        assert said(report) == (False, True), "an answer just after a step is no evaluation"
        (report.parent / "progress").unlink()
        monkeypatch.setattr(session, "EVERY_SECONDS", 0.0)
        with torch.no_grad():
            model(torch.ones(1))
        assert said(report) == (True, False)
        assert (report.parent / "progress").exists()
        assert run.world == 1
