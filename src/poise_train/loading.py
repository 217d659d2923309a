"""Loads batches with the settings of the user's DataLoader, for the samples of this worker's share."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import torch
from torch.utils.data import DataLoader, Dataset, Subset, TensorDataset, default_collate

Read = Callable[[list[int]], Any]
"""Returns the batch of these samples."""


class _Given:
    """A batch sampler for a DataLoader, from lists of indices."""

    def __init__(self, indices: Iterator[list[int]]) -> None:
        self._indices = indices

    def __iter__(self) -> Iterator[list[int]]:
        return self._indices


def loading_of(loader: DataLoader[Any] | None) -> dict[str, Any]:
    """Return the loading settings of the user's DataLoader."""
    if loader is None:
        return {}
    found = {name: getattr(loader, name) for name in ("num_workers", "collate_fn", "pin_memory", "worker_init_fn")}
    if loader.num_workers:
        found |= {"prefetch_factor": loader.prefetch_factor, "multiprocessing_context": loader.multiprocessing_context}
    return found


def loaded(
    data: Dataset[Any], indices: Iterator[list[int]], drawn: torch.Generator, loading: Mapping[str, Any]
) -> Iterable[Any]:
    """Iterate over the batches of these samples. `drawn` generates the seeds of loader processes."""
    if loading.get("num_workers") or loading.get("pin_memory"):
        return DataLoader(data, batch_sampler=_Given(indices), generator=drawn, **loading)
    collate = loading.get("collate_fn", default_collate)
    read = at_once(data) if collate is default_collate else None
    return map(read or one_by_one(data, collate), indices)


def one_by_one(data: Dataset[Any], collate: Callable[[list[Any]], Any]) -> Read:
    """Read samples one by one, like a DataLoader without loader processes."""
    several = getattr(data, "__getitems__", None)
    if callable(several):
        return lambda chosen: collate(several(chosen))
    return lambda chosen: collate([data[place] for place in chosen])


def at_once(data: Dataset[Any]) -> Read | None:
    """Return a reader that indexes each tensor once per batch, if samples are rows of tensors; otherwise None. The
    batches equal those of a DataLoader, which collates sample by sample, and take a fraction of the time.
    """
    if type(data) is TensorDataset and all(type(one) is torch.Tensor for one in data.tensors):
        tensors = data.tensors

        def rows(chosen: list[int]) -> list[torch.Tensor]:
            place = torch.tensor(chosen)
            return [one[place] for one in tensors]

        return rows
    if type(data) is Subset and (read := at_once(data.dataset)):
        within, whole = data.indices, read
        return lambda chosen: whole([int(within[place]) for place in chosen])
    return None


def moved(batch: Any, device: torch.device) -> Any:
    """Move a batch to the device of the model."""
    if isinstance(batch, torch.Tensor):
        return batch.to(device, non_blocking=True)
    if isinstance(batch, Mapping):
        return {name: moved(one, device) for name, one in batch.items()}
    if isinstance(batch, Sequence) and not isinstance(batch, str | bytes):
        return [moved(one, device) for one in batch]
    return batch


__all__ = ["at_once", "loaded", "loading_of", "moved", "one_by_one"]
