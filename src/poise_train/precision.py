"""The precision in which a worker computes: 16 bits if they are faster on its device, otherwise fp32.

    precision = chosen("auto", device, model)
    with precision.computing():
        loss = loss_fn(model(batch))
    precision.scaled(loss).backward()          # fp16 only: small gradients would be none
    precision.unscale(gradients)               # before they are exchanged
    if precision.accepts(finite(gradients)):   # after it; else the step is made again, or left out
        optimizer.step()

Weights, gradients and exchanged data are always fp32, so workers of one gang may use different precisions. Gradients
that overflow on one worker are infinite or NaN, and so is their sum on all workers: each of them sees from the same
numbers that the step must be skipped, without extra messages.

`auto` uses the rates of the device's model in the catalogue. Without them, as for CPUs, it times the largest matrix
product of the model, forward and backward, in each precision.
"""

import time
from collections.abc import Iterable, Mapping
from contextlib import AbstractContextManager, nullcontext
from typing import Any, Literal, cast, get_args

import torch
from torch import nn

from poise.errors import InputError
from poise.model.catalogue import device_found
from poise.model.precision import AUTO
from poise_train.policy.precision import worth_training_in

Name = Literal["fp32", "bf16", "fp16"]
KINDS: dict[str, torch.dtype] = {"bf16": torch.bfloat16, "fp16": torch.float16}

SCALE, GROWTH, BACKOFF, STEADY = 2.0**16, 2.0, 0.5, 2000
"""Loss scale in fp16: the initial value, its growth after `STEADY` consecutive good steps, and its backoff after a bad
step, as in `torch.amp.GradScaler`.
"""

ROWS = 256
"""Rows of the input matrix in the timed product."""

LARGEST = 2048
"""Maximum rows and columns of the weight matrix: ratios of rates do not change beyond."""

TRIES = 5
LONGEST = 0.5
"""Seconds after which the timing of one precision is not repeated."""


class Precision:
    """The precision of one worker. `why`: the reason for `name`. If it `follows`, phases of the training may change
    it.
    """

    def __init__(self, name: Name, device: torch.device, why: str, *, follows: bool = False) -> None:
        self.name = self._own = name
        self.why = why
        self._follows = follows
        self._begin()
        self._device = device

    def _begin(self) -> None:
        self.scale = SCALE if self.name == "fp16" else 1.0
        self._fine = 0

    def follow(self, phase: str) -> None:
        """Use the precision that a phase requests, from the next micro-batch on; empty: the chosen one. Raises
        InputError for an unknown precision.
        """
        name = checked(phase) if phase else self._own
        if self._follows and name != self.name:
            self.name = name
            self._begin()

    @property
    def overflows(self) -> bool:
        """Whether gradients must be checked for overflow; in a gang, if this is true on any worker."""
        return self.name == "fp16"

    @property
    def lowers(self) -> bool:
        """Whether the loss scale can be reduced, so that an overflowed step is worth repeating."""
        return self.scale > 1.0

    def computing(self) -> AbstractContextManager[Any]:
        kind = KINDS.get(self.name)
        return nullcontext() if kind is None else torch.autocast(self._device.type, kind)

    def scaled(self, loss: torch.Tensor) -> torch.Tensor:
        return loss if self.scale == 1.0 else loss * self.scale

    def unscale(self, gradients: torch.Tensor) -> None:
        """In place."""
        if self.scale != 1.0:
            gradients.mul_(1 / self.scale)

    def accepts(self, fine: bool) -> bool:
        """Update the loss scale. Returns whether to make the step."""
        if self.overflows:
            self._fine = self._fine + 1 if fine else 0
            if not fine:
                self.scale = max(1.0, self.scale * BACKOFF)
            elif self._fine == STEADY:
                self.scale, self._fine = self.scale * GROWTH, 0
        return fine

    def state(self) -> dict[str, float]:
        """Return the state for a checkpoint."""
        return {"scale": self.scale} if self.overflows else {}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Restore the state, even of a worker with another precision."""
        if self.overflows:
            self.scale = float(state.get("scale", self.scale))


def chosen(asked: str, device: torch.device, model: nn.Module) -> Precision:
    """The precision `asked` for: one by name, or `auto`. Raises InputError for another."""
    if asked != AUTO:
        return Precision(checked(asked), device, "as it was asked for")
    rates, by = rates_of(device, model)
    name, why = worth_training_in(rates)
    return Precision(name, device, f"{why} ({by})", follows=True)


def checked(asked: str) -> Name:
    """Return the precision's name. Raises InputError for an unknown one."""
    if asked not in get_args(Name):
        need = ", ".join((AUTO, *get_args(Name)))
        raise InputError(
            "this precision is not supported for training", field="precision", have=asked, need=need, hint="`auto`"
        )
    return cast(Name, asked)


def rates_of(device: torch.device, model: nn.Module) -> tuple[dict[str, float], str]:
    """Return operations per second by precision, and their source."""
    if device.type == "cuda":
        found = torch.cuda.get_device_properties(device)
        known = device_found(found.name, device.index or 0, memory=found.total_memory)
        if known.rates:
            return dict(known.rates), f"peaks of {known.model}"
    if device.type in ("cpu", "cuda"):
        rows, columns = largest_product(model)
        if rows:
            tried = {"fp32": _tried("fp32", device, rows, columns)}
            if device.type == "cuda" or torch.ops.mkldnn._is_mkldnn_bf16_supported():
                tried["bf16"] = _tried("bf16", device, rows, columns)
            return tried, f"measured with a layer of {columns} to {rows}"
    return {}, f"nothing is known of {device.type}"


def largest_product(model: nn.Module) -> tuple[int, int]:
    """Return rows and columns of the model's largest matrix, limited to `LARGEST`; (0, 0) if it has none."""
    weights = [
        (one.shape[0], one[0].numel())
        for module in model.modules()
        if not isinstance(module, nn.Embedding | nn.EmbeddingBag)
        for one in module.parameters(recurse=False)
        if one.dim() >= 2 and one.is_floating_point()
    ]
    rows, columns = max(weights, key=lambda shape: shape[0] * shape[1], default=(0, 0))
    return min(rows, LARGEST), min(columns, LARGEST)


def finite(gradients: Iterable[torch.Tensor]) -> bool:
    """Whether all gradients are finite: a sum is infinite or NaN if one of its terms is."""
    sums = [one.sum(dtype=torch.float32) for one in gradients]
    return not sums or bool(torch.stack(sums).isfinite().all())


def _tried(name: Name, device: torch.device, rows: int, columns: int) -> float:
    """Measure operations per second of one layer, forward and backward, including the overhead of its precision."""
    precision = Precision(name, device, "")
    generator = torch.Generator(device).manual_seed(0)  # does not affect the random state of the training
    weight = torch.randn(rows, columns, device=device, generator=generator, requires_grad=True)
    inputs = torch.randn(ROWS, columns, device=device, generator=generator, requires_grad=True)

    def once() -> float:
        began = time.perf_counter()
        with precision.computing():
            loss = nn.functional.linear(inputs, weight).sum()
        torch.autograd.grad(loss, (inputs, weight))
        if device.type == "cuda":
            torch.cuda.synchronize(device)
        return time.perf_counter() - began

    spent = best = once()  # the first sets up
    for _ in range(TRIES):
        if spent > LONGEST:
            break
        took = once()
        best, spent = min(best, took), spent + took
    return 3 * 2 * ROWS * rows * columns / max(best, 1e-9)


__all__ = ["Name", "Precision", "checked", "chosen", "finite", "largest_product", "rates_of"]
