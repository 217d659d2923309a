"""A parameter server and workers at their own pace: which samples are applied, how stale, and what is learnt."""

import os
import random
import signal
import time
from pathlib import Path
from typing import Any

import pytest
import torch
from sklearn.datasets import load_digits
from torch import nn

from poise.errors import Misused
from poise.train.asynchronous import Asynchronous
from poise.train.handout import Pieces
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
    with Asynchronous(model, optimizer, samples=KNOWN, batch=32, epochs=PASSES, staleness=staleness) as run:
        for turn, places in enumerate(run):
            if rank == victim and turn == 5:
                os.kill(os.getpid(), signal.SIGKILL)
            if rank == 1:
                time.sleep(0.003)  # the slow one
            run.step(nn.functional.cross_entropy(model(inputs[places]), targets[places]))
    right = (model(inputs[KNOWN:]).argmax(1) == targets[KNOWN:]).float().mean()
    weights = torch.cat([one.detach().flatten() for one in model.parameters()])
    return {
        "accuracy": float(right),
        "weights": weights,
        "applied": torch.tensor(run.applied),
        "stale": run.stale,
        "sent": run.sent,
    }


def test_workers_at_their_own_pace_learn_the_digits_from_each_sample_once_a_pass(tmp_path: Path) -> None:
    server, *workers = together(train, 4, tmp_path, 3, -1)
    assert bool((server["applied"] == 1).all())
    assert max(server["stale"]) <= 3
    assert any(server["stale"][stale] for stale in server["stale"] if stale)  # it was asynchronous indeed
    assert server["accuracy"] > 0.8
    for one in workers:
        assert torch.equal(one["weights"], server["weights"])
    gradients = PASSES * -(-KNOWN // 32)
    assert sum(one["sent"] for one in workers) > gradients * 4 * server["weights"].numel()


def test_what_a_killed_worker_had_taken_is_taken_by_others(tmp_path: Path) -> None:
    server, *workers = together(train, 4, tmp_path, 3, 2, killed=(2,))
    assert bool((server["applied"] == 1).all())
    assert server["accuracy"] > 0.8
    assert all(torch.equal(one["weights"], server["weights"]) for one in workers)


def test_a_model_with_more_than_weights_is_refused() -> None:
    model = nn.BatchNorm1d(3)
    with pytest.raises(Misused, match="batch norms"):
        Asynchronous(model, torch.optim.SGD(model.parameters()), samples=3)
