"""Replaces a model's `forward`, to use the chosen precision and to handle running out of memory.

The training loop calls the model directly. So that it need not change, `model.forward` is replaced during a session:

* It computes in the chosen precision, and returns fp32.
* If it runs out of memory in training, it computes the same input again without a graph for backward, which takes a
  fraction of the memory. The loop continues with correct outputs; the step is then repeated in smaller micro-batches,
  and this one is discarded. If that fails too, or the loss runs out of memory, the error leaves the loop:
  `run.step(lambda: loss_fn(model(batch)))` lets the session handle all of it.
"""

import copy
import functools
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn

from poise.drivers.memory import Counted
from poise.model.precision import AS_IT_IS
from poise_train.batch import is_short, release
from poise_train.precision import Precision


@contextmanager
def answering(
    model: nn.Module,
    precision: Precision,
    memory: Counted,
    short: Callable[[], bool],
    evaluates: Callable[[], object] = bool,
) -> Iterator[None]:
    """Replace `model.forward` in this block. `short` is called when memory runs out, and returns whether the step can
    be repeated; otherwise the error is raised. `evaluates` is called before each forward of an evaluation.
    """
    plain = model.forward
    own = "forward" in vars(model)
    model.forward = _Forward(model, plain, precision, memory, short, evaluates)
    try:
        yield
    finally:
        if own:
            model.forward = plain
        else:
            del model.forward


class _Forward:
    """The replaced `forward` of a model. Copies and pickles of the model get the original `forward`, bound to
    themselves, so a pickle can be loaded without Poise.
    """

    def __init__(
        self,
        model: nn.Module,
        plain: Callable[..., Any],
        precision: Precision,
        memory: Counted,
        short: Callable[[], bool],
        evaluates: Callable[[], object],
    ) -> None:
        functools.update_wrapper(self, plain)
        self._model, self._plain, self._precision = model, plain, precision
        self._memory, self._short, self._evaluates = memory, short, evaluates
        self._own = "forward" in vars(model)

    def __call__(self, *args: Any, **named: Any) -> Any:
        if not (torch.is_grad_enabled() and self._model.training):
            self._evaluates()
            return self._computed(*args, **named)
        try:
            return self._computed(*args, **named)
        except Exception as error:
            if not (is_short(error) and self._short()):
                raise
        release(self._memory)  # only now: the error holds the frames in which the memory is
        with torch.no_grad():
            return mapped(self._computed(*args, **named), _with_gradient)

    def _computed(self, *args: Any, **named: Any) -> Any:
        if self._precision.name == AS_IT_IS:
            return self._plain(*args, **named)
        with self._precision.computing():
            return in_fp32(self._plain(*args, **named))

    def __deepcopy__(self, memo: dict[int, Any]) -> Any:
        if self._own:
            return copy.deepcopy(self._plain, memo)
        return copy.deepcopy(self._model, memo).forward  # the copy is in `memo` already, and has no `forward` yet

    def __reduce__(self) -> tuple[Any, ...]:
        return (functools.partial, (self._plain,)) if self._own else (getattr, (self._model, "forward"))


def in_fp32(output: Any) -> Any:
    """Convert 16-bit tensors to fp32, because losses are computed in fp32."""
    return mapped(output, lambda one: one.float() if one.dtype in (torch.float16, torch.bfloat16) else one)


def mapped(value: Any, change: Callable[[torch.Tensor], torch.Tensor]) -> Any:
    """Apply a function to each tensor of a structure; unknown types stay unchanged."""
    if isinstance(value, torch.Tensor):
        return change(value)
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        return type(value)(*(mapped(one, change) for one in value))
    if isinstance(value, list | tuple):
        return type(value)(mapped(one, change) for one in value)
    if type(value) is dict:
        return {name: mapped(one, change) for name, one in value.items()}
    if isinstance(value, Mapping) and hasattr(value, "__setitem__"):  # outputs of Hugging Face's models
        for name in list(value):
            value[name] = mapped(value[name], change)
    return value


def _with_gradient(one: torch.Tensor) -> torch.Tensor:
    """Set `requires_grad`, which loops may check."""
    return one.requires_grad_() if one.is_floating_point() else one


__all__ = ["answering", "in_fp32", "mapped"]
