"""Checks of a script's arguments to a session, so that unsupported use fails at once."""

import math
from collections.abc import Iterable, Mapping
from typing import Any

import torch
from torch.optim.lr_scheduler import ReduceLROnPlateau
from torch.utils.data import BatchSampler, DataLoader, IterableDataset, RandomSampler, SequentialSampler

from poise.errors import Misused

TAKEN = ("model", "optimizer", "exchange", "watch", "scheduler", "place", "past", "drawn", "kept")
"""Reserved names in a state, not allowed in `also`."""

SESSION = "poise.Session(model, optimizer, data)"


def misused(what: str, *, field: str = "", need: str = "", have: str = "", hint: str = "") -> Misused:
    return Misused(what, field=field, need=need, have=have, hint=hint)


def wants(name: str, value: object, kind: type | tuple[type, ...], need: str, hint: str) -> None:
    """Raises Misused if the value has another type; booleans do not count as numbers."""
    kinds = kind if isinstance(kind, tuple) else (kind,)
    if not isinstance(value, kinds) or (isinstance(value, bool) and bool not in kinds):
        raise misused(f"`{name}` is of another kind", field=name, need=need, have=_told(value), hint=hint)


def check_model(model: object, optimizer: object) -> None:
    wants("model", model, torch.nn.Module, "a torch.nn.Module", SESSION)
    wants("optimizer", optimizer, torch.optim.Optimizer, "a torch.optim.Optimizer", SESSION)
    if isinstance(optimizer, torch.optim.LBFGS):
        raise misused(
            "this optimizer works out gradients itself, as often as it likes, and a step here is one gradient",
            field="optimizer",
            have="LBFGS",
            hint="torch.optim.AdamW(model.parameters())",
        )


def check_distributed(model: torch.nn.Module, optimizer: torch.optim.Optimizer) -> None:
    """Refuse wrappers that distribute training themselves, because a session splits samples and sums gradients."""
    for name, module in model.named_modules():
        for kind in _WRAPPERS.keys() & {one.__name__ for one in type(module).__mro__}:
            raise misused(
                f"{kind} {_WRAPPERS[kind]}, and a session does that itself",
                field=f"model.{name}" if name else "model",
                need="the plain model",
                have=type(module).__name__,
                hint="poise.Session(model.module, optimizer, data), and no wrapper around the model",
            )
    sharded = [name for name, one in model.named_parameters() if type(one).__name__ == "DTensor"]
    if sharded:
        raise misused(
            "the parameters are sharded over several devices (FSDP2 or tensor parallel), and a session keeps all of "
            "them on each worker",
            field=f"model.{sharded[0]}",
            need="plain tensors",
            have=f"{len(sharded)} of DTensor",
            hint="leave out `fully_shard(model)`, or train with your own loop under --workers",
        )
    if type(optimizer).__module__.partition(".")[0] == "accelerate":
        raise misused(
            "Accelerate has prepared it for a loop of its own",
            field="optimizer",
            need="a torch.optim.Optimizer",
            have=type(optimizer).__name__,
            hint="leave out `accelerator.prepare(...)`, or keep your loop and run it under --workers without a session",
        )


_WRAPPERS = {
    "DistributedDataParallel": "adds gradients up",
    "FullyShardedDataParallel": "shards the model and adds gradients up",
}


def check_for_gang(optimizer: torch.optim.Optimizer, kept: Mapping[str, object]) -> None:
    """Refuse features that work with one worker, but diverge between the workers of a gang."""
    for name, one in kept.items():
        if isinstance(one, torch.optim.Optimizer) and one is not optimizer:
            raise another_optimizer(one, f"also.{name}")
    ones = parameters_of(optimizer)
    for module in (one for one in kept.values() if isinstance(one, torch.nn.Module)):
        for name, part in module.named_modules():
            if getattr(part, "sparse", False) is True and any(id(one) in ones for one in part.parameters()):
                raise misused(
                    "its gradients are sparse, and the workers of a gang add up dense ones",
                    field=name or "model",
                    need="sparse=False",
                    have=f"{type(part).__name__}(sparse=True)",
                    hint=f"torch.nn.{type(part).__name__}(..., sparse=False), or train with one worker",
                )


def another_optimizer(one: torch.optim.Optimizer, field: str = "") -> Misused:
    """Make the error for a second optimizer, whose gradients are not summed over the gang."""
    return misused(
        "in a gang a session adds up the gradients of its own optimizer only, and this one would train another model on"
        " each worker",
        field=field,
        need="one optimizer for all trained parameters",
        have=f"{type(one).__name__} beside it, over {len(parameters_of(one))} parameters",
        hint='Adam([{"params": a.parameters()}, {"params": b.parameters()}]), or train with one worker',
    )


def parameters_of(optimizer: torch.optim.Optimizer) -> set[int]:
    """Return the ids of the optimizer's parameters."""
    return {id(one) for group in optimizer.param_groups for one in group["params"]}


def trained(optimizer: torch.optim.Optimizer, kept: Iterable[object]) -> list[torch.nn.Parameter]:
    """Return the parameters that the optimizer trains now, once each, in the same order on all workers."""
    ones = parameters_of(optimizer)
    modules = [one for one in kept if isinstance(one, torch.nn.Module)]
    every = (one for module in modules for one in module.parameters())
    return list(dict.fromkeys(one for one in every if one.requires_grad and id(one) in ones))


def check_parameters(optimizer: torch.optim.Optimizer, modules: Mapping[str, object]) -> None:
    """Check that all parameters of the optimizer belong to modules whose state is saved and broadcast."""
    known = {
        id(one) for module in modules.values() if isinstance(module, torch.nn.Module) for one in module.parameters()
    }
    ones = [one for group in optimizer.param_groups for one in group["params"]]
    others = sum(id(one) not in known for one in ones)
    if others:
        raise misused(
            "the optimizer changes parameters that are not the model's, which nobody would keep or add up",
            field="optimizer",
            need="parameters of the model, or of a module in `also`",
            have=f"{others} of {len(ones)} are of neither",
            hint='poise.Session(model, optimizer, data, also={"head": head})',
        )
    if not any(one.requires_grad for one in ones):
        raise misused(
            "the optimizer has no parameter that is to be trained",
            field="optimizer",
            have=f"{len(ones)} parameters, none with `requires_grad`",
            hint="torch.optim.AdamW(model.parameters())",
        )


def check_data(data: Any, loader: DataLoader[Any] | None) -> None:
    if isinstance(data, IterableDataset) or not hasattr(data, "__len__") or not hasattr(data, "__getitem__"):
        raise misused(
            "data that comes as a stream cannot be shared out by place",
            field="data",
            need="a Dataset with `__len__` and `__getitem__`",
            have=type(data).__name__,
            hint="torch.utils.data.TensorDataset(inputs, targets)",
        )
    if not len(data):
        raise misused("there is no data", field="data", need="1 sample or more", have="0", hint="len(data)")
    if loader is not None:
        _check_loader(loader)


def _check_loader(loader: DataLoader[Any]) -> None:
    sampler, all_of_them = loader.sampler, len(loader.dataset)  # type: ignore[arg-type]
    wrong = ""
    if loader.batch_sampler is None:
        wrong = "batch_size=None"
    elif type(loader.batch_sampler) is not BatchSampler or loader.batch_sampler.sampler is not sampler:
        wrong = f"batch_sampler={type(loader.batch_sampler).__name__}"
    elif not isinstance(sampler, RandomSampler | SequentialSampler):
        wrong = type(sampler).__name__
    elif isinstance(sampler, RandomSampler) and (sampler.replacement or len(sampler) != all_of_them):
        wrong = f"RandomSampler(replacement={sampler.replacement}, num_samples={len(sampler)})"
    if wrong:
        raise misused(
            "the session takes each sample once in a pass, in an order and in batches of its own",
            field="data",
            need="a DataLoader with `batch_size` and perhaps `shuffle`",
            have=wrong,
            hint="torch.utils.data.DataLoader(dataset, batch_size=64, shuffle=True)",
        )


def check_numbers(**numbers: object) -> None:
    for name, value in numbers.items():
        if type(value) is not int or value < 0:
            raise misused(
                f"`{name}` is out of range", field=name, need="a whole number from 0", have=_told(value), hint="0"
            )


def check_also(also: Mapping[str, Any]) -> None:
    wants("also", also, Mapping, "names, and what has a state", 'also={"average": average}')
    for name, one in also.items():
        if name in TAKEN or not isinstance(name, str):
            raise misused(
                "this name is taken",
                field="also",
                need=f"none of {', '.join(TAKEN)}",
                have=_told(name),
                hint='also={"average": average}',
            )
        if not (hasattr(one, "state_dict") and hasattr(one, "load_state_dict")):
            raise misused(
                "it has no state to keep",
                field=f"also.{name}",
                need="`state_dict` and `load_state_dict`",
                have=_told(one),
                hint='also={"average": torch.optim.swa_utils.AveragedModel(model)}',
            )


def check_clip(clip: object) -> None:
    if isinstance(clip, bool) or not isinstance(clip, int | float) or not 0 <= clip < math.inf:
        raise misused("`clip` is out of range", field="clip", need="a number from 0", have=_told(clip), hint="1.0")


def plateau_of(scheduler: Any) -> ReduceLROnPlateau | None:
    """Return the scheduler if it is a ReduceLROnPlateau. Raises Misused for one that the session cannot step."""
    if scheduler is None or (hasattr(scheduler, "step") and not isinstance(scheduler, ReduceLROnPlateau)):
        return None
    if not isinstance(scheduler, ReduceLROnPlateau):
        hint = "torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, steps)"
        have = type(scheduler).__name__
        raise misused("a scheduler has a `step`, and this has none", field="scheduler", have=have, hint=hint)
    if scheduler.mode != "min":
        raise misused(
            "the session gives it the mean loss of each pass, and it waits for what grows",
            field="scheduler",
            need='mode="min"',
            have=f'mode="{scheduler.mode}"',
            hint='poise.Session(..., also={"plateau": scheduler}), and step it yourself',
        )
    return scheduler


def check_pace(scheduler: Any, epochs: int, steps: int) -> None:
    """Raises Misused for a scheduler whose length suggests a step per pass, without `each="pass"`."""
    name, length = _plan_of(scheduler)
    if 1 < length <= epochs < steps:
        raise misused(
            "the scheduler would be at its end after a few steps: it seems to be made for passes",
            field="scheduler",
            need=f'each="pass" for {epochs:,} passes, or each="step" for {steps:,} steps',
            have=f"{type(scheduler).__name__}({name}={length})",
            hint='poise.Session(..., scheduler=scheduler, each="pass")',
        )


def _plan_of(scheduler: Any) -> tuple[str, int]:
    """Return the name and value of the setting with a PyTorch scheduler's length in steps; 0 if there is none."""
    for name in ("T_max", "T_0", "total_iters", "step_size"):
        if isinstance(length := getattr(scheduler, name, None), int):
            return name, length
    milestones = list(getattr(scheduler, "milestones", ()) or getattr(scheduler, "_milestones", ()))
    return "milestones", max((one for one in milestones if isinstance(one, int)), default=0)


def check_loss(loss: torch.Tensor) -> None:
    """Check that the loss is a scalar with a gradient. Raises Misused."""
    hint = "run.step(loss_fn(model(batch)))"
    wants("loss", loss, torch.Tensor, "a tensor", hint)
    if loss.dim():
        have = f"shape {tuple(loss.shape)}"
        raise misused("the loss is no single number", need="a mean over the batch", have=have, hint="loss.mean()")
    if not loss.requires_grad:
        have = "no gradient: it was detached, or made without one"
        raise misused("this loss has no gradient", need="the output of the model", have=have, hint=hint)


def _told(value: object) -> str:
    return value.__name__ if isinstance(value, type) else repr(value)[:60]


__all__ = [
    "another_optimizer",
    "check_also",
    "check_clip",
    "check_data",
    "check_distributed",
    "check_for_gang",
    "check_loss",
    "check_model",
    "check_numbers",
    "check_pace",
    "check_parameters",
    "misused",
    "parameters_of",
    "plateau_of",
    "trained",
    "wants",
]
