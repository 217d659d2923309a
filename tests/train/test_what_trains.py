"""What a session does not train, or trains in one way alone and in another in a gang: told before the first step."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel
from torch.optim.swa_utils import AveragedModel
from torch.utils.data import TensorDataset

import poise

X = torch.arange(12.0).unsqueeze(1)
DATA = TensorDataset(X, 2 * X)


def sgd(model: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.SGD(model.parameters(), lr=1e-3)


def train(run: poise.Session, model: nn.Module) -> None:
    for x, y in run:
        run.step(nn.functional.mse_loss(model(x), y))


@pytest.fixture
def gang(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """This process is the first of a gang to which others may come."""
    for name, value in {"GANG_DIR": tmp_path, "ORDERS": tmp_path / "o", "WORLD_SIZE": 1, "RANK": 0}.items():
        monkeypatch.setenv(f"POISE_{name}", str(value))


@pytest.fixture
def group(tmp_path: Path) -> Iterator[None]:
    """A process group that the script has made itself."""
    dist.init_process_group("gloo", init_method=f"file://{tmp_path}/store", rank=0, world_size=1)
    yield
    dist.destroy_process_group()


def adversarial(also: bool) -> None:
    model, other = nn.Linear(1, 1), nn.Linear(1, 1)
    optimizer, others = sgd(model), sgd(other)
    kept: dict[str, Any] = {"D": other, "oD": others} if also else {}
    with poise.Session(model, optimizer, DATA, batch=6, also=kept) as run:
        for x, y in run:
            others.zero_grad()
            nn.functional.mse_loss(other(x), y).backward()
            others.step()
            run.step(nn.functional.mse_loss(model(x), y))


@pytest.mark.usefixtures("gang")
@pytest.mark.parametrize("also", [True, False])
def test_a_second_optimizer_is_refused_in_a_gang(also: bool) -> None:
    with pytest.raises(poise.Misused, match=r"would train another model on each worker(.|\n)*SGD beside it, over 2"):
        adversarial(also)


@pytest.mark.parametrize("also", [True, False])
def test_a_second_optimizer_trains_alone(also: bool) -> None:
    adversarial(also)


@pytest.mark.usefixtures("gang")
def test_an_optimizer_of_inputs_is_no_second_one() -> None:
    model = nn.Linear(1, 1)
    with poise.Session(model, sgd(model), DATA) as run:
        image = torch.zeros(1, requires_grad=True)
        search = torch.optim.SGD([image], lr=0.1)
        model(image).sum().backward()
        search.step()
        train(run, model)


@pytest.mark.usefixtures("gang")
def test_a_session_inside_another_is_refused_in_a_gang() -> None:
    one, other = nn.Linear(1, 1), nn.Linear(1, 1)
    with poise.Session(one, sgd(one), DATA) as run, pytest.raises(poise.Misused, match="inside another"):
        with poise.Session(other, sgd(other), DATA):
            pass
        train(run, one)
    with poise.Session(other, sgd(other), DATA) as run:
        train(run, other)


def test_sessions_inside_each_other_train_alone() -> None:
    one, other = nn.Linear(1, 1), nn.Linear(1, 1)
    with poise.Session(one, sgd(one), DATA) as first, poise.Session(other, sgd(other), DATA) as second:
        train(second, other)
        train(first, one)
    assert (first.steps, second.steps) == (1, 1)


@pytest.mark.usefixtures("gang")
def test_sparse_gradients_are_refused_in_a_gang() -> None:
    model = nn.Sequential(nn.Embedding(12, 1, sparse=True))
    with pytest.raises(poise.Misused, match="its gradients are sparse"), poise.Session(model, sgd(model), DATA):
        pass


@pytest.mark.usefixtures("group")
def test_what_shares_training_out_itself_is_refused() -> None:
    model = nn.Linear(1, 1)
    with pytest.raises(poise.Misused, match="DistributedDataParallel adds gradients up"):
        poise.Session(DistributedDataParallel(model), sgd(model), DATA)
    with pytest.raises(poise.Misused, match="DistributedDataParallel adds gradients up"):
        poise.Session(nn.Sequential(DistributedDataParallel(model)), sgd(model), DATA)
    sharded = nn.Linear(1, 1)
    fully_shard(sharded, mesh=init_device_mesh("cpu", (1,)))
    with pytest.raises(poise.Misused, match="FSDP2"):
        poise.Session(sharded, sgd(sharded), DATA)


def test_what_accelerate_has_prepared_is_refused() -> None:
    accelerate = pytest.importorskip("accelerate")
    model = nn.Linear(1, 1)
    prepared, optimizer = accelerate.Accelerator(cpu=True).prepare(model, sgd(model))
    with pytest.raises(poise.Misused, match="Accelerate has prepared it"):
        poise.Session(prepared, optimizer, DATA)


def test_an_average_beside_the_model_is_not_added_up() -> None:
    model = nn.Linear(1, 1)
    run = poise.Session(model, sgd(model), DATA, also={"average": AveragedModel(model)})
    assert run._parameters == [*model.parameters()]


@pytest.mark.parametrize(
    "make",
    [
        lambda optimizer: torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 3),
        lambda optimizer: torch.optim.lr_scheduler.StepLR(optimizer, 2),
        lambda optimizer: torch.optim.lr_scheduler.MultiStepLR(optimizer, [1, 3]),
    ],
)
def test_a_scheduler_that_is_made_for_passes_is_not_stepped_after_each_step(make: Any) -> None:
    def learning_rate(**options: Any) -> float:
        model = nn.Linear(1, 1)
        optimizer = sgd(model)
        with poise.Session(model, optimizer, DATA, batch=4, epochs=3, scheduler=make(optimizer), **options) as run:
            train(run, model)
        return float(optimizer.param_groups[0]["lr"])

    with pytest.raises(poise.Misused, match=r'made for passes(.|\n)*each="pass" for 3 passes, or each="step" for 9'):
        learning_rate()
    optimizer = sgd(nn.Linear(1, 1))
    scheduler = make(optimizer)
    for steps, each in ((3, "pass"), (6, "step")):
        for _ in range(steps):
            optimizer.step()
            scheduler.step()
        assert learning_rate(each=each) == pytest.approx(optimizer.param_groups[0]["lr"])
