"""What a session does with memory and precision: samples of a step, micro-batches, and what it computes in."""

import torch
from torch import nn
from torch.utils.data import TensorDataset

import poise

torch.manual_seed(0)
torch.set_num_threads(1)
inputs, targets = torch.randn(4096, 64), torch.randint(0, 10, (4096,))
model = nn.Sequential(nn.Linear(64, 256), nn.ReLU(), nn.Linear(256, 10))
optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
data = TensorDataset(inputs, targets)

with poise.Session(model, optimizer, data, batch=512, micro=128, clip=1.0, precision="bf16") as run:
    for x, y in run:
        run.step(nn.functional.cross_entropy(model(x), y))
    told = run.training()
    parts = f"{told.batch} x {told.accumulation} at once"
    print(f"{told.step} steps of {told.effective} samples, {parts}, in {run.precision}")
