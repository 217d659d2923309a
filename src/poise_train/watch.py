"""Observes a session's loss and gradients, and derives the training phase from them.

It is cheap enough to be always on: losses stay on the device without a wait, and are fetched with the gradient norm
only at the sampled steps. The norm is that of the gradients for the optimizer, so it is equal on all workers; losses
are those over all workers. So all workers observe the same, and enter the same phase at the same step.
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
    """A step that was not evaluated yet: this worker's part of its loss, and the learning rate."""

    step: int
    loss: torch.Tensor | float
    rate: float


class Watch:
    """Derives the phase of a run from its steps. Call `note` for each step; if `due` returns True, call `see` with the
    losses of the noted steps. Checkpoints contain its memory. Without `rules` it observes nothing.
    """

    def __init__(self, rules: PhaseRules | None = None) -> None:
        self._rules = rules
        self._policy = Phases()
        self._memory = PhaseMemory()
        self._noted: list[Noted] = []

    @property
    def phase(self) -> Phase:
        """The current phase; empty before the first step, and without rules."""
        return self._memory.phase if self._memory.count or self._memory.seen >= 0 else ""

    @property
    def pace(self) -> Pace:
        """The requests of the current phase."""
        return Pace() if self._rules is None else pace_of(self._memory.phase, self._rules)

    @property
    def precision(self) -> str:
        """The precision requested by the phase; empty: the current one."""
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
        """Return this worker's losses of the steps noted since the last evaluation."""
        return [float(one.loss) for one in self._noted]

    def see(self, losses: Sequence[float], *, norm: float, total: int = 0) -> Phase:
        """Evaluate the noted steps and return the phase. `losses`: of each step, over all workers. `norm`: norm of the
        gradient of the last step. `total`: number of steps of the whole run (0: unknown).
        """
        noted, self._noted = self._noted, []
        if self._rules is not None and noted:
            seen = [Step(step=one.step, loss=loss, rate=one.rate) for one, loss in zip(noted, losses, strict=True)]
            seen[-1] = msgspec.structs.replace(seen[-1], norm=norm)
            view = PhaseView(steps=tuple(seen), total=total, rules=self._rules, memory=self._memory)
            self._memory = self._policy.decide(view).memory
        return self.phase

    def forget(self) -> None:
        """Discard noted steps that were not evaluated, because a new worker has not noted them."""
        self._noted = []

    def state_dict(self) -> dict[str, Any]:
        """Return the memory as numbers, texts and lists."""
        found: dict[str, Any] = msgspec.to_builtins(self._memory)
        return found

    def load_state_dict(self, found: Mapping[str, Any]) -> None:
        """Load the memory. If another version wrote it and it is unreadable, derive the phase from the start again."""
        try:
            self._memory = convert(dict(found), PhaseMemory)
        except msgspec.ValidationError:
            self._memory = PhaseMemory()


def norm_of(tensors: Iterable[torch.Tensor]) -> torch.Tensor:
    """Return the Euclidean norm of all tensors together, batched by kind; the result stays on the device."""
    there = [one.coalesce().values() if one.is_sparse else one for one in tensors]
    if not there:
        return torch.zeros(())
    norm: torch.Tensor = torch.linalg.vector_norm(torch.stack([one.float() for one in torch._foreach_norm(there)]))
    return norm


__all__ = ["Watch", "norm_of"]
