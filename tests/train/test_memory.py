"""What memory is for: gradients that are kept, or given back after they were added up."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="needs poise-scheduler[torch]")

import torch.distributed as dist  # noqa: E402
from torch import nn  # noqa: E402

from poise.drivers.memory import resident  # noqa: E402
from poise.errors import Misused  # noqa: E402
from poise_train.exchange import Plain  # noqa: E402
from poise_train.memory import Budget, Shares, gpu_limit  # noqa: E402
from poise_train.reducer import Reducer  # noqa: E402

MIB = 1 << 20


@pytest.fixture
def group(tmp_path: Path) -> Iterator[None]:
    dist.init_process_group("gloo", init_method=f"file://{tmp_path}/group", rank=0, world_size=1)
    yield
    dist.destroy_process_group()


def gradients(model: nn.Module, reducer: Reducer, micros: int) -> list[Any]:
    for micro in range(micros):
        if micro == micros - 1:
            reducer.begin()
        torch.manual_seed(micro)
        model(torch.randn(4, 1024)).square().mean().backward()
    reducer.finish()
    return [one.grad.clone() for one in model.parameters() if one.grad is not None]


@pytest.mark.parametrize("micros", [1, 3])
def test_gradients_that_have_no_room_of_their_own_are_given_back_when_added_up(group: None, micros: int) -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(1024, 8192), nn.ReLU(), nn.Linear(8192, 1))
    kept = Reducer(model.parameters(), Plain())
    wanted = gradients(model, kept, micros)
    assert all(bucket.flat.untyped_storage().size() for bucket in kept.buckets)
    kept.close()
    lean = Reducer(model.parameters(), Plain(), kept=lambda size: False)
    before = resident()
    for _ in range(2):
        assert not any(bucket.flat.untyped_storage().size() for bucket in lean.buckets)
        assert all(one.grad is None for one in model.parameters())
        found = gradients(model, lean, micros)
        assert all(torch.equal(a, b) for a, b in zip(found, wanted, strict=True))
        assert resident() > before + 28 * MIB
        del found
        lean.clear()
    assert resident() < before + 28 * MIB, "32 MiB of gradients are not there between steps"
    lean.close()


def test_two_fifths_of_the_budget_are_for_gradients_that_are_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("POISE_MEMORY", str(1000 * MIB))
    budget = Budget(torch.device("cpu"))
    assert (budget.total, budget.limit) == (1000 * MIB, 1000 * MIB)
    assert budget.kept(400 * MIB) and not budget.kept(401 * MIB)
    assert Budget(torch.device("cpu"), Shares(gradients=0.5)).kept(500 * MIB)
    assert 0 < budget.held() <= budget.most
    monkeypatch.delenv("POISE_MEMORY")
    assert Budget(torch.device("cpu")).kept(10**15), "nobody has set one"


def test_parts_that_are_more_than_the_whole_are_refused() -> None:
    with pytest.raises(Misused) as refused:
        Shares(activations=0.5)
    assert refused.value.record.have == "gradients 0.4, syncing 0.6, activations 0.5"
    with pytest.raises(Misused):
        Shares(gradients=0.7)


def test_a_part_of_a_device_is_told_by_its_memory_or_else_its_share() -> None:
    total = 80 * 10**9
    assert gpu_limit(total, {}) == 0
    assert gpu_limit(total, {"POISE_GPU_SHARE": "1000"}) == 0
    assert gpu_limit(total, {"POISE_GPU_SHARE": "500"}) == total // 2
    assert gpu_limit(total, {"POISE_GPU_SHARE": "500", "POISE_GPU_MEMORY": str(10**10)}) == 10**10
    assert gpu_limit(total, {"POISE_GPU_MEMORY": str(10**12)}) == total
    assert gpu_limit(total, {"POISE_GPU_SHARE": "half"}) == 0
