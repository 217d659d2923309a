"""Data whose samples are rows of tensors is read a batch at a time, and what comes is what a DataLoader makes of it."""

from typing import Any

import pytest
import torch
from torch.utils.data import DataLoader, Dataset, Subset, TensorDataset, random_split

from poise_train.loading import at_once, loaded

CHOSEN = [[3, 0, 2], [4], [1, 1]]
ROWS = TensorDataset(
    torch.arange(60.0).view(10, 2, 3),
    torch.arange(10),
    torch.arange(10) % 3 == 0,
    torch.arange(10, dtype=torch.uint8),
)


class Doubled(TensorDataset):
    def __getitem__(self, index: int) -> tuple[torch.Tensor, ...]:
        return tuple(2 * one[index] for one in self.tensors)


class OnlyOdd(Subset[Any]):
    def __getitem__(self, index: Any) -> Any:
        return self.dataset[2 * index + 1]

    def __getitems__(self, indices: list[int]) -> list[Any]:
        return [self[index] for index in indices]


def as_a_loader_gives(data: Dataset[Any]) -> list[Any]:
    return list(DataLoader(data, batch_sampler=CHOSEN))


@pytest.mark.parametrize(
    "data",
    [
        ROWS,
        Subset(ROWS, [9, 8, 7, 6, 5]),
        Subset(Subset(ROWS, range(1, 9)), torch.tensor([7, 0, 3, 4, 2]).tolist()),
        random_split(ROWS, [6, 4], torch.Generator().manual_seed(1))[0],
    ],
    ids=["rows", "some", "some of some", "split"],
)
def test_what_is_read_at_once_is_what_a_loader_gives(data: Dataset[Any]) -> None:
    assert at_once(data) is not None
    given = list(loaded(data, iter(CHOSEN), torch.Generator(), {}))
    for ours, theirs in zip(given, as_a_loader_gives(data), strict=True):
        assert type(ours) is type(theirs)
        assert [one.dtype for one in ours] == [one.dtype for one in theirs]
        assert all(torch.equal(one, other) for one, other in zip(ours, theirs, strict=True))


@pytest.mark.parametrize(
    "data",
    [
        Doubled(torch.arange(10.0)),
        OnlyOdd(ROWS, range(10)),
        Subset(Doubled(torch.arange(10.0)), range(8)),
        [ROWS[place] for place in range(10)],
    ],
    ids=["its own samples", "its own subset", "a subset of its own", "a list"],
)
def test_what_makes_its_own_samples_is_asked_for_each(data: Any) -> None:
    assert at_once(data) is None
    given = list(loaded(data, iter(CHOSEN), torch.Generator(), {}))
    for ours, theirs in zip(given, as_a_loader_gives(data), strict=True):
        assert all(torch.equal(one, other) for one, other in zip(ours, theirs, strict=True))


def test_who_collates_is_asked() -> None:
    """A function that makes batches sees each sample."""
    given = list(loaded(ROWS, iter(CHOSEN), torch.Generator(), {"collate_fn": len}))
    assert given == [3, 1, 2]
