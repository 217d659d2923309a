"""Saves and restores the random generators of training: those of PyTorch (host and GPU) and of Python.

NumPy's generator is not saved, because that takes as long as a small step.
"""

import random
from collections.abc import Mapping
from typing import Any, NamedTuple

import torch


class Randomness(NamedTuple):
    """The states of the random generators of this process."""

    here: torch.Tensor
    python: tuple[Any, ...]
    device: int
    there: torch.Tensor | None

    @staticmethod
    def now() -> "Randomness":
        device = torch.cuda.current_device() if torch.cuda.is_initialized() else -1
        there = torch.cuda.get_rng_state(device) if device >= 0 else None
        return Randomness(torch.get_rng_state(), random.getstate(), device, there)

    def put_back(self) -> None:
        torch.set_rng_state(self.here)
        random.setstate(self.python)
        if self.there is not None:
            torch.cuda.set_rng_state(self.there, self.device)

    def state(self) -> dict[str, Any]:
        """Return the state to save in a checkpoint."""
        version, numbers, gauss = self.python
        return {"torch": self.here, "cuda": self.there, "python": (version, torch.tensor(numbers), gauss)}

    @staticmethod
    def of(state: Mapping[str, Any]) -> "Randomness":
        """Load a saved state. The state of a GPU is used only if there is one."""
        version, numbers, gauss = state["python"]
        there = state["cuda"].cpu() if state["cuda"] is not None and torch.cuda.is_available() else None
        device = torch.cuda.current_device() if there is not None else -1
        return Randomness(state["torch"].cpu(), (version, tuple(numbers.tolist()), gauss), device, there)


__all__ = ["Randomness"]
