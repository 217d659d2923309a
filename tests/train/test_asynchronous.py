"""A parameter server and workers at their own pace: which samples are applied, how stale, and what is learnt."""

import os
import random
import signal
import time
from pathlib import Path
from typing import Any

import msgspec
import pytest
import torch
from sklearn.datasets import load_digits
from torch import nn
from torch.utils.data import TensorDataset

from poise.errors import Misused
from poise.model.training import Training
from poise_train.asynchronous import Asynchronous
from poise_train.handout import Pieces
from train.groups import together

KNOWN, PASSES = 1300, 8
"""Samples that are learned, and how often: gradients are as stale as the machine makes them, and more passes help."""


@pytest.mark.parametrize("seed", range(40))
def test_each_sample_is_applied_once_in_a_pass_and_none_too_stale(seed: int) -> None:
    """Workers that take, end, wait and get lost in any order."""
    draw = random.Random(seed)  # noqa: S311
    most, workers = draw.randrange(5), range(draw.randrange(1, 7))
    pieces = Pieces(draw.randrange(1, 60), draw.randrange(1, 9), draw.randrange(1, 4), most)
    applied: list[tuple[int, int, int]] = []
    working: set[int] = set()
    for _ in range(10_000):
        if pieces.done:
            break
        worker = draw.choice(workers)
        if worker not in pieces.out:
            if pieces.take(worker) is not None:
                working.add(worker)
        elif worker in working and draw.random() < 0.1:
            pieces.lose(worker)
            working.discard(worker)
        elif worker in working:
            working.discard(worker)
            pieces.hold(worker)
        while (due := pieces.due()) is not None:
            applied.append(pieces.out[due].piece)
            assert pieces.apply(due) <= most
    assert pieces.done, "it never came to an end"
    assert len(set(applied)) == len(applied)
    taken = sorted((turn, place) for turn, start, stop in applied for place in range(start, stop))
    assert taken == sorted(set(taken)) and len(taken) == len(applied and {place for _, place in taken}) * (
        1 + max(turn for turn, _ in taken)
    )


def train(rank: int, world: int, staleness: int, victim: int) -> dict[str, Any]:
    images, labels = load_digits(return_X_y=True)
    inputs, targets = torch.tensor(images / 16, dtype=torch.float32), torch.tensor(labels)
    torch.manual_seed(rank)
    model = nn.Sequential(nn.Linear(64, 48), nn.ReLU(), nn.Linear(48, 10))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.5)
    data = TensorDataset(inputs[:KNOWN], targets[:KNOWN])
    with Asynchronous(model, optimizer, data, batch=32, epochs=PASSES, staleness=staleness) as run:
        for turn, (x, y) in enumerate(run):
            if rank == victim and turn == 5:
                os.kill(os.getpid(), signal.SIGKILL)
            if rank == 1:
                time.sleep(0.003)  # the slow one
            run.step(nn.functional.cross_entropy(model(x), y))
    right = (model(inputs[KNOWN:]).argmax(1) == targets[KNOWN:]).float().mean()
    weights = torch.cat([one.detach().flatten() for one in model.parameters()])
    return {
        "accuracy": float(right),
        "weights": weights,
        "samples": run.samples,
        "told": msgspec.to_builtins(run.training()),
        "stale": run.stale,
        "sent": run.sent,
    }


def test_workers_at_their_own_pace_learn_the_digits_from_each_sample_once_a_pass(tmp_path: Path) -> None:
    server, *workers = together(train, 4, tmp_path, 3, -1)
    assert server["samples"] == KNOWN * PASSES
    told = msgspec.convert(server["told"], Training)
    assert (told.step, told.samples, told.progress) == (PASSES * -(-KNOWN // 32), KNOWN * PASSES, 1_000_000)
    assert (told.world, told.batch) == (4, 32)
    assert 0 < told.loss < 1
    assert told.step_time > 0
    assert max(server["stale"]) <= 3
    assert any(server["stale"][stale] for stale in server["stale"] if stale)  # it was asynchronous indeed
    assert server["accuracy"] > 0.8
    for one in workers:
        assert torch.equal(one["weights"], server["weights"])
    gradients = PASSES * -(-KNOWN // 32)
    assert sum(one["sent"] for one in workers) > gradients * 4 * server["weights"].numel()


def test_what_a_killed_worker_had_taken_is_taken_by_others(tmp_path: Path) -> None:
    server, *workers = together(train, 4, tmp_path, 3, 2, killed=(2,))
    assert server["samples"] == KNOWN * PASSES
    assert server["accuracy"] > 0.8
    assert all(torch.equal(one["weights"], server["weights"]) for one in workers)


def test_a_model_with_more_than_weights_is_refused() -> None:
    model = nn.BatchNorm1d(3)
    with pytest.raises(Misused, match="batch norms"):
        Asynchronous(model, torch.optim.SGD(model.parameters()), TensorDataset(torch.zeros(4, 3)))


def with_fixed(rank: int, world: int) -> dict[str, Any]:
    """Training of a model that each process begins with another frozen layer and another buffer."""
    torch.manual_seed(rank)
    model = nn.Sequential(nn.Linear(3, 4), nn.Linear(4, 1))
    model[0].requires_grad_(False)
    model.register_buffer("places", torch.tensor([rank]))
    data = TensorDataset(torch.ones(8, 3))
    with Asynchronous(model, torch.optim.SGD(model[1].parameters(), lr=0.1), data, batch=4) as run:
        for (x,) in run:
            run.step(model(x).sum())
    return {name: one.detach().clone() for name, one in model.state_dict().items()}


def test_workers_compute_with_the_frozen_weights_and_buffers_of_the_server(tmp_path: Path) -> None:
    server, *workers = together(with_fixed, 3, tmp_path)
    for one in workers:
        for name, tensor in server.items():
            assert torch.equal(one[name], tensor), name


def of_many_types(rank: int, world: int) -> dict[str, Any]:
    """Training of weights of three types, and of one with sparse gradients, at rates of zero: nothing changes."""
    torch.manual_seed(rank)
    model = nn.ModuleDict(
        {
            "b16": nn.Linear(3, 1).bfloat16(),
            "f64": nn.Linear(3, 1).double(),
            "few": nn.Embedding(5, 1, sparse=True),
        }
    )
    data = TensorDataset(torch.arange(8))
    with Asynchronous(model, torch.optim.SGD(model.parameters(), lr=0.0), data, batch=4) as run:
        for (x,) in run:
            ones = torch.ones(4, 3)
            parts = model["b16"](ones.bfloat16()), model["f64"](ones.double()), model["few"](x % 5)
            run.step(sum(part.double().sum() for part in parts))
    return {name: one.detach().clone() for name, one in model.state_dict().items()}


def test_weights_and_gradients_are_sent_in_their_own_types(tmp_path: Path) -> None:
    server, worker = together(of_many_types, 2, tmp_path)
    for name, tensor in server.items():
        assert torch.equal(worker[name], tensor), name


def put_aside(rank: int, world: int, folder: str, asked: int) -> dict[str, Any]:
    """Training whose server is asked to end after so many gradients (0: never)."""
    torch.manual_seed(0)
    model = nn.Linear(1, 1)
    data = TensorDataset(torch.arange(40.0).unsqueeze(1) / 40, torch.arange(40.0).unsqueeze(1) / 20)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    code, run = 0, Asynchronous(model, optimizer, data, batch=4, epochs=3, checkpoint=folder, every=1000)
    seen: list[float] = []
    real = optimizer.step

    def step(*args: Any, **named: Any) -> Any:
        if len(seen) + 1 == asked and rank == 0:
            os.kill(os.getpid(), signal.SIGTERM)
            while not run._stopping:  # another thread hears the signal, as soon as it gets a core
                time.sleep(0.001)
        seen.append(0.0)
        return real(*args, **named)

    optimizer.step = step  # type: ignore[method-assign]
    try:
        with run:
            for x, y in run:
                run.step(nn.functional.mse_loss(model(x), y))
    except SystemExit as ended:
        code = int(str(ended.code))
    return {"code": code, "applied": len(seen), "samples": run.samples, "told": msgspec.to_builtins(run.training())}


def test_asked_to_end_it_saves_itself_and_goes_on_with_each_sample_once(tmp_path: Path) -> None:
    folders = [tmp_path / name for name in ("first", "second")]
    for folder in folders:
        folder.mkdir()
    first, *others = together(put_aside, 3, folders[0], str(tmp_path / "checkpoints"), 5)
    assert [first["code"], *(one["code"] for one in others)] == [143] * 3
    assert 5 <= first["applied"] <= 7, "what was on its way is applied"
    assert first["told"]["checkpoint"]["step"] == first["applied"]
    second, *others = together(put_aside, 3, folders[1], str(tmp_path / "checkpoints"), 0)
    assert [second["code"], *(one["code"] for one in others)] == [0] * 3
    assert first["applied"] + second["applied"] == 30
    assert second["samples"] == 120
    assert second["told"]["restored"].startswith(f"the checkpoint of step {first['applied']}, of ")


def breaks(rank: int, world: int) -> dict[str, Any]:
    """The optimizer of the server fails at every step from the second on."""
    model = nn.Linear(1, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    real, seen = optimizer.step, [0]

    def step(*args: Any, **named: Any) -> Any:
        seen[0] += 1
        if seen[0] > 1 and rank == 0:
            raise RuntimeError("bad state")
        return real(*args, **named)

    optimizer.step = step  # type: ignore[method-assign]
    data = TensorDataset(torch.zeros(400, 1), torch.zeros(400, 1))
    try:
        with Asynchronous(model, optimizer, data, batch=4) as run:
            for x, y in run:
                run.step(nn.functional.mse_loss(model(x), y))
    except (RuntimeError, SystemExit) as error:
        return {"said": f"{error}"}
    return {"said": ""}


def test_an_optimizer_that_fails_again_and_again_ends_all_and_is_told(tmp_path: Path) -> None:
    """What other workers have sent meanwhile waits to be applied, and fails as well."""
    told = [one["said"] for one in together(breaks, 5, tmp_path)]
    assert told == ["bad state", *["143"] * 4]
