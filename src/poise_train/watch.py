"""Observes a session's loss and gradients, and derives the training phase from them.

Cheap enough to be always on: losses stay where they are, without waiting for the device, and are fetched with the norm
of the gradient only at the steps that are looked at. The norm is of what the optimizer gets, so it is the same at all
workers; the losses are those of all of them. So all workers see alike, and come to the same phase at the same step.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import msgspec
import torch

from poise.decoding import convert
from poise.model.training import Phase
from poise_train.model.phases import Pace, PhaseMemory, PhaseRules, PhaseView, Step
from poise_train.policy.phases import Phases, is_due, pace_of


class Noted(NamedTuple):
    """Of a step that was not looked at yet: this worker's part of its loss, and the learning rate."""

    step: int
    loss: torch.Tensor | float
    rate: float


class Watch:
    """Tells the phase of a run from its steps. Each is noted; `due` says whether it is to be looked at, and then `see`
    is called with what those that were noted have shown. What is remembered is kept in checkpoints. Without `rules` it
    sees nothing.
    """

    def __init__(self, rules: PhaseRules | None = None) -> None:
        self._rules = rules
        self._policy = Phases()
        self._memory = PhaseMemory()
        self._noted: list[Noted] = []

    @property
    def phase(self) -> Phase:
        """Empty before the first step, and where it does not watch."""
        return self._memory.phase if self._memory.count or self._memory.seen >= 0 else ""

    @property
    def pace(self) -> Pace:
        """The requests of the current phase."""
        return Pace() if self._rules is None else pace_of(self._memory.phase, self._rules)

    @property
    def precision(self) -> str:
        """The precision that the phase asks for; empty: the one that is used."""
        return self.pace.precision

    def due(self, step: int) -> bool:
        """Whether to evaluate this step; equal on all workers."""
        return self._rules is not None and is_due(step, self._memory, self._rules)

    def note(self, step: int, loss: torch.Tensor | float, rate: float) -> None:
        """Note a step's loss and rate. A repeated step replaces its first note."""
        if self._rules is not None:
            if self._noted and self._noted[-1].step == step:
                self._noted.pop()
            self._noted.append(Noted(step, loss, rate))

    def losses(self) -> list[float]:
        """Of the steps that were noted since the last look, as this worker sees them."""
        return [float(one.loss) for one in self._noted]

    def see(self, losses: Sequence[float], *, norm: float, total: int = 0) -> Phase:
        """What the steps that were noted have shown: the loss of each, of all workers; the norm of the gradient of the
        last; and how many steps the whole run has, if that is known.
        """
        noted, self._noted = self._noted, []
        if self._rules is not None and noted:
            seen = [Step(step=one.step, loss=loss, rate=one.rate) for one, loss in zip(noted, losses, strict=True)]
            seen[-1] = msgspec.structs.replace(seen[-1], norm=norm)
            view = PhaseView(steps=tuple(seen), total=total, rules=self._rules, memory=self._memory)
            self._memory = self._policy.decide(view).memory
        return self.phase

    def forget(self) -> None:
        """What was noted and not looked at, where somebody comes who has not noted it."""
        self._noted = []

    def state_dict(self) -> dict[str, Any]:
        """Plain numbers, texts and lists."""
        found: dict[str, Any] = msgspec.to_builtins(self._memory)
        return found

    def load_state_dict(self, found: Mapping[str, Any]) -> None:
        """One that cannot be read, for another version wrote it, is as if there were none: the phase is told anew."""
        try:
            self._memory = convert(dict(found), PhaseMemory)
        except msgspec.ValidationError:
            self._memory = PhaseMemory()


def norm_of(tensors: Iterable[torch.Tensor]) -> torch.Tensor:
    """The Euclidean norm of all of them, in one go for those of a kind; it stays on the device."""
    there = [one.coalesce().values() if one.is_sparse else one for one in tensors]
    if not there:
        return torch.zeros(())
    norm: torch.Tensor = torch.linalg.vector_norm(torch.stack([one.float() for one in torch._foreach_norm(there)]))
    return norm


__all__ = ["Watch", "norm_of"]
