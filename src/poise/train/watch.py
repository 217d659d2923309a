"""What a session sees of its own training: the loss and the gradients, and the phase that follows from them.

Cheap enough to be always on: the loss is added up where it is, without waiting for the device, and fetched with the
norm of the gradient only at the steps that are looked at. The norm is of what the optimizer gets, so it is the same at
all workers; the loss is that of all of them. So all workers see alike, and come to the same phase at the same step.
"""

from collections.abc import Iterable, Mapping
from typing import Any

import msgspec
import torch

from poise.decoding import convert
from poise.model.phases import Pace, PhaseMemory, PhaseRules, PhaseView, Step
from poise.model.training import Phase
from poise.policy.phases import Phases, is_due, pace_of


class Watch:
    """Tells the phase of a run from its steps. `due` says whether a step is to be looked at, and then `see` is called
    with what it showed. What is remembered is kept in checkpoints. Without `rules` it sees nothing.
    """

    def __init__(self, rules: PhaseRules | None = None) -> None:
        self._rules = rules
        self._policy = Phases()
        self._memory = PhaseMemory()

    @property
    def phase(self) -> Phase:
        """Empty before the first step, and where it does not watch."""
        return self._memory.phase if self._memory.looks or self._memory.seen >= 0 else ""

    @property
    def pace(self) -> Pace:
        """What the phase asks for."""
        return Pace() if self._rules is None else pace_of(self._memory.phase, self._rules)

    @property
    def precision(self) -> str:
        """The precision that the phase asks for; empty: the one that is used."""
        return self.pace.precision

    def due(self, step: int) -> bool:
        """Whether this step is to be looked at. The same at all workers."""
        return self._rules is not None and is_due(step, self._memory, self._rules)

    def see(self, step: int, *, loss: float, norm: float, rate: float, total: int = 0) -> Phase:
        """What a step showed: the mean loss since the last look, the norm of the gradient, the learning rate; and how
        many steps the whole run has, if that is known.
        """
        if self._rules is not None:
            seen = Step(step=step, loss=loss, norm=norm, rate=rate)
            view = PhaseView(steps=(seen,), total=total, rules=self._rules, memory=self._memory)
            self._memory = self._policy.decide(view).memory
        return self.phase

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
