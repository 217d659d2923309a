"""Converts PyTorch modules to other precisions, and prunes their weights.

int8 is dynamic: weights of linear and recurrent layers and of embeddings are stored in int8, and inputs of the layers
are converted batch by batch, on CPUs only. bf16 and fp16 convert all weights; mixed keeps them, and computes products
in bf16 (autocast). Inputs and outputs have the types of the original model, so callers need no change.
"""

import contextlib
import copy
import itertools
import warnings
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch
from numpy.typing import NDArray
from torch import nn
from torch.ao import quantization
from torch.nn.utils import prune

from poise.errors import InputError
from poise_train.smaller.measure import Way, growth

LAYERS = (nn.Linear, nn.Conv1d, nn.Conv2d, nn.Conv3d)
"""Layers to prune."""

KEEP_ZERO = (
    *(nn.ReLU, nn.ReLU6, nn.LeakyReLU, nn.PReLU, nn.ELU, nn.GELU, nn.SiLU, nn.Mish, nn.Tanh, nn.Hardswish),
    *(nn.Dropout, nn.Dropout2d, nn.Identity, nn.MaxPool1d, nn.MaxPool2d, nn.AvgPool1d, nn.AvgPool2d),
)
"""Modules that map zeros to zeros, channel by channel: a zero unit before one of them can be removed."""


class Modules:
    """Makes candidates of one module, without changing it."""

    def __init__(self, module: nn.Module) -> None:
        kinds = {one.dtype for one in module.parameters() if one.is_floating_point()}
        if kinds - {torch.float32}:
            have = ", ".join(sorted(str(kind).removeprefix("torch.") for kind in kinds))
            raise InputError("the original model must be in fp32", field="model", have=have)
        self._module = module
        self.ways = (Way("int8", int8), Way("bf16", bf16), Way("fp16", fp16), Way("mixed", mixed))

    def as_it_is(self) -> "Running":
        return Running(self._module.eval())

    def made(self, way: Way) -> "Running":
        return Running(way.make(copy.deepcopy(self._module).eval()))


class Running:
    """Runs one module."""

    def __init__(self, module: nn.Module) -> None:
        self.model = module
        self.weights = _bytes(module.state_dict(), set())
        self._device = next((one.device for one in module.parameters()), torch.device("cpu"))

    def answer(self, batch: Any) -> list[NDArray[Any]]:
        with torch.inference_mode():
            if isinstance(batch, Mapping):
                outputs = self.model(**batch)
            elif isinstance(batch, tuple):
                outputs = self.model(*batch)
            else:
                outputs = self.model(batch)
            return [one.float().cpu().numpy() for one in _tensors(outputs)]

    def peak(self, batch: Any) -> int:
        """Return the growth of device memory as PyTorch counts it; on CPUs, that of the process."""
        if self._device.type == "cuda":
            before = torch.cuda.memory_allocated(self._device)
            torch.cuda.reset_peak_memory_stats(self._device)
            self.answer(batch)
            return int(torch.cuda.max_memory_allocated(self._device) - before)
        with growth() as grown:
            self.answer(batch)
            return grown()


def int8(module: nn.Module) -> nn.Module:
    """Quantize with `torch.ao`, deprecated in favour of torchao, which is slower on CPUs (its issue 4365)."""
    if any(one.device.type != "cpu" for one in module.parameters()):
        raise ValueError("dynamic int8 of PyTorch is for CPUs")
    held = nn.ModuleList([module])  # a layer is replaced in its parent
    kinds = dict.fromkeys((nn.LSTM, nn.GRU), quantization.default_dynamic_qconfig)
    kinds |= {nn.Linear: quantization.per_channel_dynamic_qconfig}  # a scale per output: closer to fp32
    kinds |= {nn.Embedding: quantization.float_qparams_weight_only_qconfig}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # its deprecation
        quantization.quantize_dynamic(held, kinds, inplace=True)
    return _within(held[0], _no_fast_path)


def bf16(module: nn.Module) -> nn.Module:
    return _within(module.to(torch.bfloat16), contextlib.nullcontext, torch.bfloat16)


def fp16(module: nn.Module) -> nn.Module:
    return _within(module.to(torch.float16), contextlib.nullcontext, torch.float16)


def mixed(module: nn.Module) -> nn.Module:
    kind = next((one.device.type for one in module.parameters()), "cpu")
    return _within(module, lambda: torch.autocast(kind, torch.bfloat16))


def _within(
    module: nn.Module,
    context: Callable[[], contextlib.AbstractContextManager[Any]],
    dtype: torch.dtype | None = None,
) -> nn.Module:
    """Run the module's forward within this context, and convert its inputs to `dtype`, if any. Outputs are fp32."""
    inner = module.forward

    def forward(*args: Any, **named: Any) -> Any:
        if dtype is not None:
            args, named = _as(dtype, args), _as(dtype, named)
        with context():
            return _as(torch.float32, inner(*args, **named))

    module.forward = forward
    return module


@contextlib.contextmanager
def _no_fast_path() -> Iterator[None]:
    """Disable the fast path of PyTorch's encoders, which would read the weights of layers that were replaced."""
    before = torch.backends.mha.get_fastpath_enabled()
    torch.backends.mha.set_fastpath_enabled(False)
    try:
        yield
    finally:
        torch.backends.mha.set_fastpath_enabled(before)


def _as(dtype: torch.dtype, value: Any) -> Any:
    """Convert all floating-point tensors in a nested value to this type."""
    if isinstance(value, torch.Tensor):
        return value.to(dtype) if value.is_floating_point() else value
    if isinstance(value, dict):
        converted = copy.copy(value)  # keeps the class: outputs of some libraries are dicts with attributes
        for name, one in value.items():
            converted[name] = _as(dtype, one)
        return converted
    if type(value) in (tuple, list):
        return type(value)(_as(dtype, one) for one in value)
    return value


def _tensors(value: Any) -> Iterator[torch.Tensor]:
    if isinstance(value, torch.Tensor):
        yield value
    elif isinstance(value, Mapping | tuple | list):
        for one in value.values() if isinstance(value, Mapping) else value:
            yield from _tensors(one)


def _bytes(value: Any, seen: set[int]) -> int:
    """Return the bytes of all tensors, each counted once. Layers in int8 hold packed tensors, some of them in script
    objects that unpack them in `__getstate__`.
    """
    if isinstance(value, torch.Tensor):
        if value.is_quantized:
            scales = value.q_per_channel_scales().nbytes if value.qscheme() in _BY_CHANNEL else 0
            return value.numel() * value.element_size() + scales
        new = value.data_ptr() not in seen
        seen.add(value.data_ptr())
        return value.numel() * value.element_size() if new else 0
    if isinstance(value, torch.ScriptObject):
        return _bytes(value.__getstate__(), seen)
    if isinstance(value, Mapping | tuple | list):
        inner = value.values() if isinstance(value, Mapping) else value
        return sum(_bytes(one, seen) for one in inner)
    return 0


_BY_CHANNEL = (torch.per_channel_affine, torch.per_channel_affine_float_qparams)


# --- pruning ---------------------------------------------------------------------------------------------------------


def pruning(share: float, *, rows: bool) -> Callable[[nn.Module], nn.Module]:
    """Return a function that prunes that share of the weights, or with `rows` of the units of hidden layers."""
    return lambda module: _without_rows(module, share) if rows else _with_zeros(module, share)


def _with_zeros(module: nn.Module, share: float) -> nn.Module:
    layers = [(one, "weight") for one in module.modules() if isinstance(one, LAYERS)]
    if not layers:
        raise ValueError("it has no linear or convolutional layer")
    prune.global_unstructured(layers, prune.L1Unstructured, amount=share)
    for layer, name in layers:
        prune.remove(layer, name)
    return module


def _without_rows(module: nn.Module, share: float) -> nn.Module:
    pairs = [pair for one in module.modules() if isinstance(one, nn.Sequential) for pair in _pairs(one)]
    if not pairs:
        raise ValueError("no two layers follow one another in a Sequential of it, with nothing but activations between")
    for first, second in pairs:
        prune.ln_structured(first, "weight", amount=share, n=2, dim=0)
        left = first.weight_mask.flatten(1).any(1).nonzero().flatten()
        prune.remove(first, "weight")
        _keep(first, left, 0)
        _keep(second, left, 1)
    return module


def _pairs(of: nn.Sequential) -> Iterator[tuple[Any, Any]]:
    """Yield consecutive layers of one kind, where each unit of the first is an input of the second only."""
    relevant = [one for one in of if not isinstance(one, KEEP_ZERO)]
    for first, second in itertools.pairwise(relevant):
        alike = isinstance(first, LAYERS) and type(first) is type(second)
        if alike and getattr(first, "groups", 1) == getattr(second, "groups", 1) == 1:
            yield first, second


def _keep(layer: Any, left: torch.Tensor, dim: int) -> None:
    """Keep only these units of a layer (`dim` 0), or only these inputs (`dim` 1)."""
    layer.weight = nn.Parameter(layer.weight.detach().index_select(dim, left).clone())
    if dim == 0 and layer.bias is not None:
        layer.bias = nn.Parameter(layer.bias.detach()[left].clone())
    names = ("out_features", "out_channels") if dim == 0 else ("in_features", "in_channels")
    for name in names:
        if hasattr(layer, name):
            setattr(layer, name, len(left))


__all__ = ["Modules", "pruning"]
