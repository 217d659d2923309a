"""Two processes make of a model in a pipeline what one makes of it whole, and one goes on with what two have saved."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest
import torch
import torch.distributed as dist
from safetensors.torch import load_file
from torch import nn
from torch.nn.functional import cross_entropy

from poise.errors import Misused, NotFound
from poise_train.layers import measure
from poise_train.pipeline import TRIED, Pipeline
from poise_train.policy.pipeline import moves
from train.gangs import HERE, Workers
from train.pipelined import MANY, SIZE, STEPS, adam, digits, digits_model, pipeline

FURTHER = 2
CPU = torch.device("cpu")

Tensors = dict[str, torch.Tensor]


class Whole(NamedTuple):
    """What one process makes of the model without a pipeline."""

    losses: list[float]
    slopes: Tensors
    weights: list[Tensors]
    answers: Tensors


@pytest.fixture(autouse=True)
def alone() -> Iterator[None]:
    """A pipeline in this process is alone, and the group that it makes for that goes with the test."""
    torch.set_num_threads(1)
    yield
    if dist.is_initialized():
        dist.destroy_process_group()


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What two processes have left."""
    folder = tmp_path_factory.mktemp("pipeline")
    gang = Workers(folder, HERE / "pipelined.py")
    try:
        gang.start("a", "b", orders=False)
        assert gang.wait("a", "b") == [0, 0], (gang.said("a"), gang.said("b"))
    finally:
        gang.end()
    return folder


@pytest.fixture(scope="module")
def whole() -> Whole:
    model = digits_model()
    optimizer = adam(model.parameters())
    losses, weights, slopes, answers = [], [], {}, {}
    for step in range(STEPS + FURTHER):
        images, labels = digits(step)
        loss = cross_entropy(model(images), labels)
        loss.backward()
        if step == 0:
            slopes = {name: one.grad.clone() for name, one in model.named_parameters() if one.grad is not None}
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
        weights.append({name: one.clone() for name, one in model.state_dict().items()})
        if step == STEPS - 1:
            with torch.no_grad():
                answers = {"answers": model(digits(0)[0])}
    return Whole(losses, slopes, weights, answers)


def alike(found: Tensors, wanted: Tensors) -> None:
    assert found.keys() == wanted.keys()
    for name, one in found.items():
        torch.testing.assert_close(one, wanted[name], rtol=1e-4, atol=1e-6)


def joined(folder: Path, what: str) -> Tensors:
    """Of both workers, who have no layer in common."""
    first, second = (load_file(folder / f"{what}.{rank}") for rank in range(2))
    assert not first.keys() & second.keys()
    return first | second


@pytest.mark.parametrize("schedule", ["1f1b", "gpipe"])
def test_two_workers_train_as_one_does_with_the_whole_model(folder: Path, whole: Whole, schedule: str) -> None:
    alike(joined(folder, f"slopes.{schedule}"), whole.slopes)
    alike(joined(folder, f"weights.{schedule}"), whole.weights[STEPS - 1])
    for rank in range(2):
        said = json.loads((folder / f"said.{schedule}.{rank}").read_text())
        assert said["losses"] == pytest.approx(whole.losses[:STEPS], rel=1e-4)
        assert 0 < said["bubble"] < 1
        assert said["ends"][-1] == 7


@pytest.mark.parametrize("schedule", ["1f1b", "gpipe"])
def test_pytorch_does_what_was_foreseen_one_after_the_other(folder: Path, schedule: str) -> None:
    for rank in range(2):
        said = json.loads((folder / f"said.{schedule}.{rank}").read_text())
        foreseen = moves("1f1b" if schedule == "1f1b" else "gpipe", rank, 2, MANY)
        assert said["moves"] == [[move.micro, move.back] for move in foreseen]


def test_two_workers_answer_as_one_does_also_where_they_are_told_where_to_cut(folder: Path, whole: Whole) -> None:
    alike(load_file(folder / "answers"), whole.answers)


def test_one_worker_goes_on_with_what_two_have_saved(folder: Path, whole: Whole) -> None:
    pipe = pipeline(digits_model())
    optimizer = adam(pipe.parameters())
    assert pipe.restore(folder / "saved", optimizer) == STEPS
    losses = []
    for step in range(STEPS, STEPS + FURTHER):
        losses.append(pipe.step(*digits(step)))
        optimizer.step()
        optimizer.zero_grad()
    assert losses == pytest.approx(whole.losses[STEPS:], rel=1e-4)
    alike(dict(pipe.module.state_dict()), whole.weights[-1])
    told = pipe.told()
    assert told.ends == (7,)
    assert told.foreseen_bubble == 0
    assert "bubble" in str(told)


def test_nothing_saved_is_no_error_and_another_model_is(tmp_path: Path) -> None:
    pipe = pipeline(digits_model())
    assert pipe.restore(tmp_path / "nothing") == -1
    pipe.save(tmp_path, 1)
    other = Pipeline(nn.Sequential(*digits_model(), nn.Linear(10, 10)), digits(0)[0][:SIZE], micro_batches=1)
    with pytest.raises(NotFound, match=r"has no `7\.weight`"):
        other.restore(tmp_path)


def test_without_room_each_reason_is_told() -> None:
    with pytest.raises(Misused) as refused:
        pipeline(digits_model(), memory=20_000)
    record = refused.value.record
    assert record.code == "E110"
    subjects = [one.message for one in record.all()]
    assert subjects == [
        "there is no room for 0",
        "there is no room for 2",
        "there is no room for 4",
        "there is no room for all layers",
        "there is no room for the devices in a row",
    ]


def test_how_many_micro_batches_is_found_by_measuring(whole: Whole) -> None:
    images, labels = digits(0)
    pipe = Pipeline(digits_model(), images, loss=cross_entropy, target=labels)
    assert pipe.micro_batches in TRIED
    assert pipe.step(images, labels) == pytest.approx(whole.losses[0], rel=1e-4)
    slopes = {name: one.grad for name, one in pipe.module.named_parameters() if one.grad is not None}
    alike(slopes, whole.slopes)


def test_what_cannot_be_is_refused_with_what_was_expected() -> None:
    with pytest.raises(Misused, match="another size than") as refused:
        pipeline(digits_model()).step(*(one[1:] for one in digits(0)))
    assert refused.value.record.need == f"{SIZE * MANY} samples, in {MANY} micro-batches"
    with pytest.raises(Misused, match="layer `0` returns no tensor"):
        Pipeline(nn.Sequential(nn.GRU(64, 8)), digits(0)[0], micro_batches=1)
    with pytest.raises(Misused, match="needs its target"):
        Pipeline(digits_model(), digits(0)[0], loss=cross_entropy, micro_batches=1)


def test_measuring_changes_nothing_and_finds_what_is_kept() -> None:
    model = nn.Sequential(nn.Linear(64, 32), nn.BatchNorm1d(32), nn.Dropout(0.5), nn.Linear(32, 10))
    before = {name: one.clone() for name, one in model.state_dict().items()}
    images, labels = digits(0)
    drawn = torch.get_rng_state()
    found = measure(list(model.named_children()), images, device=CPU, loss=cross_entropy, target=labels, copies=4)
    alike(dict(model.state_dict()), before)
    assert torch.equal(torch.get_rng_state(), drawn)
    assert all(one.grad is None for one in model.parameters())
    assert [one.output.shape for one in found] == [(32, 32), (32, 32), (32, 32), (32, 10)]
    first = found[0].layer
    assert first.output == 4 * 32 * 32
    assert first.kept == 4 * 32 * 64  # its input, for the slope of its weights
    assert first.held == 4 * 4 * (64 * 32 + 32)
    assert all(one.layer.forward > 0 for one in found)
    answering = measure(list(model.named_children()), images, device=CPU)
    assert all(one.layer.backward == 0 and one.layer.kept == 0 for one in answering)
