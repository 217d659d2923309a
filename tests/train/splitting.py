"""A worker that has a part of each layer, for `test_split.py`; it leaves what it found beside OUT."""

import os
from pathlib import Path

import torch
import torch.distributed as dist
from safetensors.torch import save_file
from torch import nn
from torch.nn.functional import gelu, scaled_dot_product_attention

from poise_train.split import split, whole

WIDTH, HEADS = 32, 4
HOW = {
    **dict.fromkeys(("query", "key", "value", "wide"), "columns"),
    **dict.fromkeys(("mixed", "narrow"), "rows"),
}


class Block(nn.Module):
    """A block of a transformer, with as many heads as it has columns for."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.query, self.key, self.value, self.mixed = (nn.Linear(WIDTH, WIDTH) for _ in range(4))
        self.wide, self.narrow = nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(4 * WIDTH, WIDTH)

    def forward(self, row: torch.Tensor) -> torch.Tensor:
        normed = self.first(row)
        query, key, value = (
            one(normed).unflatten(2, (-1, WIDTH // HEADS)).transpose(1, 2) for one in (self.query, self.key, self.value)
        )
        seen = scaled_dot_product_attention(query, key, value, is_causal=True)
        row = row + self.mixed(seen.transpose(1, 2).flatten(2))
        made: torch.Tensor = row + self.narrow(gelu(self.wide(self.second(row))))
        return made


def block() -> Block:
    torch.manual_seed(0)
    return Block()


def rows() -> torch.Tensor:
    return torch.randn(2, 16, WIDTH, generator=torch.Generator().manual_seed(1))


def trained(model: nn.Module) -> dict[str, torch.Tensor]:
    """Two steps: what it gives, and its weights and gradients then."""
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    for _ in range(2):
        optimizer.zero_grad()
        output = model(rows())
        output.square().mean().backward()
        optimizer.step()
    weights = {name: whole(one).detach() for name, one in model.named_parameters()}
    slopes = {f"{name}/slope": whole(one.grad) for name, one in model.named_parameters() if one.grad is not None}
    return {"output": output.detach(), **weights, **slopes}


if __name__ == "__main__":
    torch.set_num_threads(1)
    model = split(block(), HOW)  # type: ignore[arg-type]
    part = model.get_parameter("wide.weight")
    found = trained(model)
    save_file({**found, "part": part.to_local()}, Path(os.environ["OUT"]).with_name(f"found.{dist.get_rank()}"))  # type: ignore[attr-defined]
