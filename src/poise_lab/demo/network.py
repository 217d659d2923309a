"""The small network that `train.py mlp` and `elastic.py` train on the digits, in numpy: one hidden layer.

Weights are one row of numbers, so that processes can exchange them and add up gradients as plain arrays.
"""

from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Labels = NDArray[np.uint8]

LAYERS = (64, 128, 10)  # pixels, hidden, digits


def initial(rng: np.random.Generator) -> Floats:
    """Return the initial random weights."""
    return np.concatenate([rng.normal(0, (2 / a) ** 0.5, (a + 1) * b) for a, b in pairwise(LAYERS)])


def gradient(weights: Floats, images: Floats, labels: Labels) -> Floats:
    """Return the gradient of the summed cross-entropy loss, in one row like the weights."""
    (into, bias), (out, tilt) = layers(weights)
    hidden = np.maximum(images @ into + bias, 0)
    scores = hidden @ out + tilt
    odds = np.exp(scores - scores.max(axis=1, keepdims=True))
    error = odds / odds.sum(axis=1, keepdims=True) - np.eye(LAYERS[-1])[labels]
    blame = (error @ out.T) * (hidden > 0)
    pieces = images.T @ blame, blame.sum(axis=0), hidden.T @ error, error.sum(axis=0)
    return np.concatenate([piece.ravel() for piece in pieces])


def accuracy(weights: Floats, images: Floats, labels: Labels) -> float:
    """Return the share of the images that the network reads correctly."""
    (into, bias), (out, tilt) = layers(weights)
    scores = np.maximum(images @ into + bias, 0) @ out + tilt
    return float(np.mean(scores.argmax(axis=1) == labels))


def layers(weights: Floats) -> list[tuple[Floats, Floats]]:
    """Return a view of the weights as a matrix and a bias per layer, without copies."""
    found = []
    for a, b in pairwise(LAYERS):
        found.append((weights[: a * b].reshape(a, b), weights[a * b : (a + 1) * b]))
        weights = weights[(a + 1) * b :]
    return found
