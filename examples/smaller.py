"""A model that is measured in other precisions when it is loaded: `poise serve examples/smaller.yaml`."""

from typing import Annotated

import msgspec
import torch
from sklearn.datasets import load_digits
from torch import nn

from poise_train.smaller import accuracy, smaller

KNOWN = 1300
"""So many digits it is trained with; with the others it is measured."""

Pixels = Annotated[list[float], msgspec.Meta(min_length=64, max_length=64)]


class Digits:
    """A perceptron that reads handwritten digits of 8 by 8 pixels from 0 to 16."""

    def load(self) -> None:
        images, labels = (torch.tensor(one) for one in load_digits(return_X_y=True))
        images = images.float()
        model = trained(images[:KNOWN], labels[:KNOWN])
        self.model = smaller(model, images[KNOWN:], by=accuracy(labels[KNOWN:]), seconds=1.0).model

    def predict(self, batch: list[Pixels]) -> list[int]:
        with torch.inference_mode():
            return self.model(torch.tensor(batch)).argmax(1).tolist()

    def example(self) -> Pixels:
        return [8.0] * 64


def trained(images: torch.Tensor, labels: torch.Tensor) -> nn.Module:
    """Yours would be read from a file."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(64, 1024), nn.ReLU(), nn.Linear(1024, 1024), nn.ReLU(), nn.Linear(1024, 10))
    weights = list(model.parameters())
    for _ in range(20):
        slopes = torch.autograd.grad(nn.functional.cross_entropy(model(images / 16), labels), weights)
        with torch.no_grad():
            for one, slope in zip(weights, slopes, strict=True):
                one.sub_(slope)
    with torch.no_grad():
        weights[0].div_(16)
    return model
