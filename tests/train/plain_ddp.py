"""A user's script that knows nothing of Poise: PyTorch's own way to train together, as it runs under torchrun."""

import os
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

dist.init_process_group("gloo")
assert (dist.get_rank(), dist.get_world_size()) == (int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"]))
model = DistributedDataParallel(nn.Linear(1, 1))
model(torch.tensor([[float(dist.get_rank())]])).sum().backward()
Path(f"{os.environ['OUT']}.{dist.get_rank()}").write_text(str(model.module.weight.grad.item()))
del model  # after the group has gone it may wait for its threads for ever
dist.destroy_process_group()
