"""Gradients that are added up over real gloo groups: what comes out, what goes out, and what is kept."""

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist

from poise_train.compression import Half, PowerSGD, TopK
from poise_train.exchange import Bucket, Exchange, Plain
from poise_train.topology import ring_bytes
from train.groups import together

KINDS: dict[str, Callable[[], Exchange]] = {
    "plain": Plain,
    "fp16": Half,
    "bf16": lambda: Half(torch.bfloat16),
    "powersgd": lambda: PowerSGD(rank=2),
    "topk": lambda: TopK(part=0.05),
}
SHAPES = ((40, 60), (40,), (8, 3, 5, 5), (20, 40))


def buckets(of: Callable[[torch.Size], torch.Tensor]) -> list[Bucket]:
    """Two, each of two parameters."""
    made = []
    for index in range(2):
        parameters = tuple(torch.nn.Parameter(torch.zeros(shape)) for shape in SHAPES[2 * index : 2 * index + 2])
        made.append(Bucket(index, torch.cat([of(one.shape).flatten() for one in parameters]), parameters))
    return made


def one_step(exchange: Exchange, mine: list[Bucket]) -> list[torch.Tensor]:
    waits = [exchange.begin(bucket) for bucket in mine]  # all are in flight together
    for wait in waits:
        wait()
    return [bucket.flat for bucket in mine]


def add_up(rank: int, world: int, kind: str) -> dict[str, Any]:
    """Ten steps with the same gradients: what each came to, and the exact sum."""
    exchange = KINDS[kind]()
    draw = torch.Generator().manual_seed(rank)
    gradients = buckets(lambda shape: torch.randn(shape, generator=draw))
    exact = one_step(Plain(), [one._replace(flat=one.flat.clone()) for one in gradients])
    steps = [
        torch.cat(one_step(exchange, [one._replace(flat=one.flat.clone()) for one in gradients])) for _ in range(10)
    ]
    sent = exchange.sent
    exchange.even_out()
    state = exchange.state_dict()
    return {
        "steps": torch.stack(steps),
        "exact": torch.cat(exact),
        "owed": torch.cat(state["residuals"]) if state else torch.zeros(()),
        "sent": sent,
        "plain": exchange.plain,
    }


@pytest.mark.parametrize("kind", KINDS)
def test_what_is_sent_and_what_is_kept_is_all_there_was(kind: str, tmp_path: Path) -> None:
    told = together(add_up, 3, tmp_path, kind)
    exact = told[0]["exact"]
    for one in told:
        assert torch.equal(one["steps"], told[0]["steps"])  # to the bit, or the weights would drift apart
        near = {"fp16": 0.02, "bf16": 0.2}.get(kind, 1e-3)
        assert torch.allclose(one["steps"].sum(0) + one["owed"], 10 * exact, atol=10 * near, rtol=1e-3)
        assert one["plain"] == 10 * sum(ring_bytes(4 * numel, 3) for numel in (2440, 1400))
    if kind in ("fp16", "bf16"):
        assert abs(2 * told[0]["sent"] - told[0]["plain"]) <= 2 * 20  # rounded down, per bucket
    if kind in ("powersgd", "topk"):
        assert told[0]["sent"] < 0.3 * told[0]["plain"]
        assert not torch.allclose(told[0]["steps"][0], exact, atol=1e-2)  # it is compressed indeed


def compare_first(rank: int, world: int) -> dict[str, torch.Tensor]:
    """A gradient of rank 2 in all, and one of three large entries: each is what its exchange is for."""
    draw = torch.Generator().manual_seed(0)
    low = torch.randn(40, 2, generator=draw) @ torch.randn(2, 60, generator=draw)
    few = torch.zeros(40, 60)
    few[3, 4], few[39, 59], few[0, 0] = 5.0, -7.0, 1.0 + rank
    matrix = (torch.nn.Parameter(torch.zeros(40, 60)),)
    one = one_step(PowerSGD(rank=2), [Bucket(0, (low * (rank + 1)).flatten(), matrix)])[0]
    two = one_step(TopK(part=0.002), [Bucket(0, few.flatten(), matrix)])[0]
    return {"low": low.flatten(), "powersgd": one, "topk": two.view(40, 60)[[3, 39, 0], [4, 59, 0]]}


def test_a_low_rank_and_a_sparse_gradient_come_through_exactly(tmp_path: Path) -> None:
    told = together(compare_first, 2, tmp_path)[0]
    assert torch.allclose(told["powersgd"], 3 * told["low"], atol=1e-4)
    assert told["topk"].tolist() == [10.0, -14.0, 3.0]


def overflow(rank: int, world: int, kind: str) -> dict[str, Any]:
    """A good step, one in which one worker's gradient is not finite, and then good ones; and one that is abandoned."""
    exchange = KINDS[kind]()
    draw = torch.Generator().manual_seed(rank)
    good = buckets(lambda shape: torch.randn(shape, generator=draw))

    def owed() -> torch.Tensor:
        exchange.even_out()
        return torch.cat(exchange.state_dict()["residuals"])

    def step(worst: float = 1.0) -> torch.Tensor:
        return torch.cat(one_step(exchange, [one._replace(flat=one.flat * worst) for one in good]))

    step()
    before = owed()
    bad = step(math.inf if rank == 1 else 1.0)
    after = owed()
    step()
    exchange.abandon()
    abandoned = owed()
    return {"before": before, "bad": bad, "after": after, "abandoned": abandoned, "good": step()}


@pytest.mark.parametrize("kind", ["powersgd", "topk"])
def test_a_step_that_overflows_or_breaks_off_leaves_what_was_kept(kind: str, tmp_path: Path) -> None:
    for told in together(overflow, 2, tmp_path, kind):
        assert not math.isfinite(float(told["bad"].sum()))  # so that all skip the step
        assert torch.allclose(told["before"], told["after"], atol=1e-6)
        assert torch.allclose(told["before"], told["abandoned"], atol=1e-6)
        assert bool(told["good"].isfinite().all())


def shrink(rank: int, world: int, kind: str) -> dict[str, Any]:
    """Three workers make a step; two of them go on from the state that all have taken."""
    exchange = KINDS[kind]()
    draw = torch.Generator().manual_seed(rank)
    one_step(exchange, buckets(lambda shape: torch.randn(shape, generator=draw)))
    exchange.even_out()
    state = exchange.state_dict()
    pair = dist.new_group([0, 1])
    if rank == 2:
        return {}
    later = KINDS[kind]() if rank else exchange  # one of them comes back from a checkpoint
    if rank:
        later.load_state_dict(state)
    later.share(2)
    still = torch.cat(later.state_dict()["residuals"])
    mine = buckets(torch.zeros)
    waits = [later.begin(bucket, pair) for bucket in mine]
    for wait in waits:
        wait()
    came = torch.cat([bucket.flat for bucket in mine])
    later.even_out(pair)
    return {"owed": torch.cat(state["residuals"]), "still": still, "came": came, "left": later.state_dict()}


@pytest.mark.parametrize("kind", ["powersgd", "topk"])
def test_what_three_workers_owe_two_of_them_deliver(kind: str, tmp_path: Path) -> None:
    for told in together(shrink, 3, tmp_path, kind)[:2]:
        assert torch.allclose(told["owed"], told["still"], atol=1e-5)
        assert float(told["came"].norm()) > 0
        assert torch.allclose(told["came"] + torch.cat(told["left"]["residuals"]), told["owed"], atol=1e-4)
