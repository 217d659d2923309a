"""Models that can be pickled: they are in a module."""

from types import MethodType

import torch
from torch import nn


class Line(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.line = nn.Linear(1, 1, bias=False)
        nn.init.constant_(self.line.weight, 0.5)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        answer: torch.Tensor = self.line(x)
        return answer


def with_a_forward_of_its_own() -> Line:
    """As tools leave it that wrap `forward`."""
    model = Line()
    model.forward = MethodType(Line.forward, model)  # type: ignore[method-assign]
    return model
