"""A convolutional network learns to read handwritten digits: a plain PyTorch script."""

import sys

import torch
from sklearn.datasets import load_digits
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(0)
torch.set_num_threads(1)
images, labels = load_digits(return_X_y=True)
inputs, targets = torch.tensor(images / 16, dtype=torch.float32).view(-1, 1, 8, 8), torch.tensor(labels)
loader = DataLoader(TensorDataset(inputs[:1400], targets[:1400]), batch_size=64, shuffle=True)
epochs = int(sys.argv[1]) if len(sys.argv) > 1 else 10

model = nn.Sequential(
    nn.Conv2d(1, 64, 3, padding=1), nn.ReLU(), nn.Conv2d(64, 128, 3, padding=1), nn.ReLU(),
    nn.Flatten(), nn.Linear(128 * 64, 128), nn.ReLU(), nn.Linear(128, 10),
)  # fmt: skip
optimizer = torch.optim.Adam(model.parameters(), lr=3e-4)


def accuracy() -> float:
    return float((model(inputs[1400:]).argmax(1) == targets[1400:]).float().mean())


for epoch in range(epochs):
    for x, y in loader:
        loss = nn.functional.cross_entropy(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    print(f"epoch {epoch}: {accuracy():.1%} of unseen digits", flush=True)
