"""A gang comes to what a worker alone comes to, whatever the model does, and to one state."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.data import TensorDataset

import poise
from poise_train import load
from train.groups import together


class Parts(nn.Module):
    """Layers of which some may be left out."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second, self.third = nn.Linear(4, 4), nn.Linear(4, 4), nn.Linear(4, 1)

    def forward(self, x: torch.Tensor, *, leave_out: bool) -> torch.Tensor:
        out = self.first(x)
        return self.third(out if leave_out else out + self.second(x))  # type: ignore[no-any-return]


def train(rank: int, world: int, kind: str) -> Mapping[str, Any]:
    torch.manual_seed(0)
    inputs = torch.randn(66, 4)
    data = TensorDataset(inputs, inputs.sum(1, keepdim=True))
    model, head = Parts(), nn.Linear(1, 1)
    if kind == "unfrozen":
        model.second.requires_grad_(False)
    also = {"head": head} if kind == "head" else {}
    parameters = [*model.parameters(), *(head.parameters() if also else ())]
    optimizer = torch.optim.AdamW(parameters, lr=0.05, weight_decay=0.5)
    with poise.Session(model, optimizer, data, batch=16, micro=3, epochs=3, also=also) as run:
        if kind == "left":
            for taken, (x, y) in enumerate(run):
                run.step((model(x, leave_out=False) - y).square().mean())
                if taken == 2:  # in the middle of a step, which is begun anew by the next loop
                    break
        for x, y in run:
            late = run.steps >= 5
            if kind == "unfrozen" and late:
                model.second.requires_grad_(True)
            leave_out = kind in ("unused", "head") or (kind == "unfrozen" and not late)
            if kind == "at times":
                leave_out = run.steps % 3 < 2
            out = model(x, leave_out=leave_out)
            run.step((head(out) - y).square().mean() if also else (out - y).square().mean())
    return {"weights": torch.cat([one.detach().flatten() for one in parameters]), "steps": run.steps}


@pytest.mark.parametrize("kind", ["whole", "unused", "at times", "unfrozen", "head", "left"])
def test_a_gang_learns_what_one_worker_learns(tmp_path: Path, kind: str) -> None:
    for world in (1, 3):
        (tmp_path / f"{world}").mkdir()
    (alone,) = together(train, 1, tmp_path / "1", kind)
    told = together(train, 3, tmp_path / "3", kind)
    assert {one["steps"] for one in (alone, *told)} == {15}  # the last step of a pass has two samples for three workers
    assert all(torch.equal(one["weights"], told[0]["weights"]) for one in told)
    assert torch.allclose(told[0]["weights"], alone["weights"], atol=1e-4)


def normalized(rank: int, world: int, folder: str) -> Mapping[str, Any]:
    torch.manual_seed(0)
    inputs = torch.randn(64, 4)
    model = nn.Sequential(nn.BatchNorm1d(4), nn.Linear(4, 4), nn.BatchNorm1d(4), nn.Linear(4, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with poise.Session(model, optimizer, TensorDataset(inputs), batch=16, checkpoint=folder) as run:
        for (x,) in run:
            run.step(model(x).square().mean())
    return {name: one.clone() for name, one in model.state_dict().items()}


def test_what_workers_have_each_for_themselves_is_kept_as_worker_0_has_it(tmp_path: Path) -> None:
    first, second = together(normalized, 2, tmp_path, str(tmp_path / "kept"))
    kept = load(tmp_path / "kept").state["model"]
    assert not torch.equal(first["0.running_mean"], second["0.running_mean"])
    assert kept.keys() == first.keys()
    assert all(torch.equal(kept[name], first[name]) for name in first)


def disagree(rank: int, world: int, name: str) -> Mapping[str, Any]:
    model = nn.Linear(4, 2 if (name, rank) == ("model", 1) else 1)
    options: dict[str, Any] = {"batch": 16} | ({name: 8} if name in ("batch", "seed") and rank else {})
    data = TensorDataset(torch.zeros(60 if (name, rank) == ("samples", 1) else 64, 4))
    try:
        with poise.Session(model, torch.optim.SGD(model.parameters(), lr=0.1), data, **options):
            return {"said": ""}
    except poise.Misused as error:
        return {"said": f"{error.record.field}: {error.record.have}"}


@pytest.mark.parametrize(
    ("name", "have"), [("batch", "8"), ("seed", "8"), ("samples", "60"), ("model", "worker 1 has another")]
)
def test_workers_whose_settings_differ_are_told_at_once(tmp_path: Path, name: str, have: str) -> None:
    for one in together(disagree, 2, tmp_path, name):
        assert one["said"].startswith(f"{name}: {have}")
