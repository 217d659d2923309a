"""The model's own `forward`, in the precision that was chosen, and answering even where memory is short.

A loop calls its model itself, outside of all calls of ours. So that it can stay as it is, `model.forward` is replaced
while a session lasts:

* It is computed in the chosen precision, and what comes out is in fp32, whatever happened inside.
* Where it runs out of memory while training, it answers the same question once more without what the backward pass
  would need, which takes a fraction of the memory. The loop goes on with numbers that are right; the step that they
  belong to is then made again in smaller micro-batches, and nothing is learned from this one. Where even that fails,
  or the loss does, the error leaves the loop: `run.step(lambda: loss_fn(model(batch)))` has all of it within our reach.
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
    """While this lasts, `model.forward` is as above. `short` is told when memory was short, and says whether what is
    computed can be made again: else it is an error. `evaluates` is called before each answer of an evaluation.
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
    """The replaced `forward` of a model. It stays with that model: copies of the model, and pickles of it, get the
    plain one, bound to themselves, and a pickle needs no Poise to be loaded.
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
    """The same with numbers of 16 bits made longer: losses are worked out in fp32."""
    return mapped(output, lambda one: one.float() if one.dtype in (torch.float16, torch.bfloat16) else one)


def mapped(value: Any, change: Callable[[torch.Tensor], torch.Tensor]) -> Any:
    """The same structure with each tensor changed; what is not known to hold tensors stays as it is."""
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
    """Loops may ask whether it has one."""
    return one.requires_grad_() if one.is_floating_point() else one


__all__ = ["answering", "in_fp32", "mapped"]
