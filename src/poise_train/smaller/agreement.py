"""Three measures of the share of a model's quality that a candidate keeps.

Each takes the outputs of the original model and those of the candidate, with one row per input; for models with several
outputs, the first output. To add one, write a function with the same signature; reports contain its name.
"""

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from poise.errors import InputError

Agreement = Callable[[NDArray[Any], NDArray[Any]], float]


def top1(reference: NDArray[Any], outputs: NDArray[Any]) -> float:
    """Return the share of rows with the largest number in the same place: for classifiers, with the same class."""
    return float(np.mean(reference.argmax(-1) == outputs.argmax(-1)))


def accuracy(labels: ArrayLike) -> Agreement:
    """Return a measure: the candidate's number of correct classes, divided by that of the original model."""
    right = np.asarray(labels)

    def accuracy(reference: NDArray[Any], outputs: NDArray[Any]) -> float:
        if right.shape != reference.shape[:-1]:
            raise InputError(
                "each input needs a label", field="labels", have=str(right.shape), need=f"{len(reference)}"
            )
        before = np.mean(reference.argmax(-1) == right)
        return float(np.mean(outputs.argmax(-1) == right) / before) if before else 0.0

    return accuracy


def neighbours(reference: NDArray[Any], outputs: NDArray[Any]) -> float:
    """Return the share of embeddings whose nearest other embedding, by the angle between them, is the same."""
    return float(np.mean(_nearest(reference) == _nearest(outputs)))


def _nearest(rows: NDArray[Any]) -> NDArray[Any]:
    flat = rows.reshape(len(rows), -1).astype(np.float64)
    flat /= np.linalg.norm(flat, axis=1, keepdims=True)
    alike = flat @ flat.T
    np.fill_diagonal(alike, -np.inf)
    nearest: NDArray[Any] = alike.argmax(1)
    return nearest


__all__ = ["Agreement", "accuracy", "neighbours", "top1"]
