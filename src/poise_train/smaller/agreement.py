"""What a candidate keeps: three ways to count the share of what a model is good for that its answers still have.

Each takes the outputs of the model as it is and those of the candidate, with one row for each input; of models with
several outputs the first. Write another as a function of the same form: the name of the function is told.
"""

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from poise.errors import InputError

Agreement = Callable[[NDArray[Any], NDArray[Any]], float]


def top1(reference: NDArray[Any], outputs: NDArray[Any]) -> float:
    """The share of rows whose largest number is in the same place: of classifiers, that are told the same class."""
    return float(np.mean(reference.argmax(-1) == outputs.argmax(-1)))


def accuracy(labels: ArrayLike) -> Agreement:
    """How many are told the right class, over how many the model as it is tells the right one."""
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
    """Of embeddings: the share of rows whose nearest other row, by the angle between them, is the same."""
    return float(np.mean(_nearest(reference) == _nearest(outputs)))


def _nearest(rows: NDArray[Any]) -> NDArray[Any]:
    flat = rows.reshape(len(rows), -1).astype(np.float64)
    flat /= np.linalg.norm(flat, axis=1, keepdims=True)
    alike = flat @ flat.T
    np.fill_diagonal(alike, -np.inf)
    nearest: NDArray[Any] = alike.argmax(1)
    return nearest


__all__ = ["Agreement", "accuracy", "neighbours", "top1"]
