"""A block of a transformer whose layers are split over two processes trains as it does whole."""

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from safetensors.torch import load_file
from torch import nn

from poise.errors import Misused
from poise_train.split import split
from train import splitting
from train.gangs import HERE, Workers


@pytest.fixture
def alone() -> Iterator[None]:
    yield
    dist.destroy_process_group()


def test_two_workers_with_half_of_each_layer_train_as_one_does(tmp_path: Path) -> None:
    torch.set_num_threads(1)
    gang = Workers(tmp_path, HERE / "splitting.py")
    try:
        gang.start("a", "b", orders=False)
        assert gang.wait("a", "b") == [0, 0], (gang.said("a"), gang.said("b"))
    finally:
        gang.end()
    wanted = splitting.trained(splitting.block())
    for rank in range(2):
        found = load_file(tmp_path / f"found.{rank}")
        assert found.pop("part").shape == (2 * splitting.WIDTH, splitting.WIDTH)
        assert found.keys() == wanted.keys()
        for name, one in found.items():
            torch.testing.assert_close(one, wanted[name], rtol=1e-4, atol=1e-5)


def test_what_cannot_be_split_is_refused_by_name(alone: None) -> None:
    model = nn.Sequential(nn.Linear(8, 8), nn.ReLU())
    with pytest.raises(Misused, match="no layer `wide`") as refused:
        split(model, {"wide": "columns"})
    assert refused.value.record.have == "0"
    with pytest.raises(Misused, match="layer `1` is not split"):
        split(model, {"1": "rows"})
