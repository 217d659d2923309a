"""Splits layers over the devices of a node, with PyTorch's tensor parallelism.

    split(block, {"wide": "columns", "narrow": "rows"})

The first of two linear layers is split by its outputs (*columns* of its weights), the second by its inputs (*rows*):
each device computes a part of the intermediate activations, and the parts are added up once, after the second layer
(Shoeybi et al., *Megatron-LM*, 2019, section 3). The same works for attention, if the layers before it are split at
whole heads. Each pair sends one all-reduce of activations per direction, and the devices wait for it. Links inside a
node are fast enough for that; links between nodes rarely are.
"""

from collections.abc import Mapping
from typing import Literal

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor
from torch.distributed.tensor.parallel import ColwiseParallel, ParallelStyle, RowwiseParallel, parallelize_module

from poise.errors import Misused
from poise_train.pipeline import together

How = Literal["columns", "rows"]


def split(model: nn.Module, how: Mapping[str, How], *, group: dist.ProcessGroup | None = None) -> nn.Module:
    """The same model, in place, with each layer named (`layers.0.wide`) split over the workers of the group, which must
    start with the same weights. Raises Misused if a layer is missing, or its size is not a multiple of the workers.
    """
    device = next((one.device for one in model.parameters()), torch.device("cpu"))
    together(device)
    world = dist.get_world_size(group)
    for name, way in how.items():
        _check(model, name, way, world)
    mesh = DeviceMesh.from_group(group or dist.distributed_c10d._get_default_group(), device.type)
    styles: dict[str, ParallelStyle] = {
        name: ColwiseParallel() if way == "columns" else RowwiseParallel() for name, way in how.items()
    }
    return parallelize_module(model, mesh, styles)


def _check(model: nn.Module, name: str, way: How, world: int) -> None:
    try:
        layer = model.get_submodule(name)
    except AttributeError:
        known = ", ".join(name for name, one in model.named_modules() if isinstance(one, nn.Linear))
        raise Misused(f"the model has no layer `{name}`", have=known) from None
    if not isinstance(layer, nn.Linear):
        raise Misused(f"layer `{name}` is not split", need="a linear layer", have=type(layer).__name__)
    size = layer.out_features if way == "columns" else layer.in_features
    if size % world:
        raise Misused(f"layer `{name}` cannot be split", need=f"{way}: a multiple of {world}", have=str(size))


def whole(tensor: torch.Tensor) -> torch.Tensor:
    """The unsplit weight, or its gradient; all workers call it."""
    return tensor.full_tensor() if isinstance(tensor, DTensor) else tensor


__all__ = ["split", "whole"]
