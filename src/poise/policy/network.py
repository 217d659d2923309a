"""The network of a learned policy: scores the shapes that could start next, and leaving the choice to `poise`.

One scorer is shared by all shapes, beside a context that pools them, so their order does not matter and their number is
free. Weights and activations are integers (`UNIT` stands for 1), so the result is the same on any machine.
"""

from hashlib import sha256
from typing import Annotated, NamedTuple

import msgspec
import numpy as np

from poise.model.fleet import Floats, Ints

SHAPE_FEATURES = ("run", "size", "waited", "attained", "worth", "alike", "fills", "rank", "preempted")
ROOM_FEATURES = ("free", "waiting", "fitting", "demand", "running", "left", "fit")
LIMIT = 4.0
"""Features are clipped to plus and minus this."""

UNIT = 4096
"""Fixed-point 1 of weights and activations."""

MAX_WIDTH = 64
"""Maximum width of a layer."""

MOST_WEIGHT = 8 * UNIT
"""Maximum weight: with it no sum exceeds 64 bits."""

Rows = list[list[Annotated[int, msgspec.Meta(ge=-MOST_WEIGHT, le=MOST_WEIGHT)]]]
Range = list[float]


class Network(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A trained network. `arrays` are its layers in fixed point (`layers_of`), `low` and `high` the ranges of the
    features in training, first those of shapes and then those of the room. `study` says how it was trained.
    """

    arrays: dict[str, Rows]
    low: Range
    high: Range
    study: dict[str, str] = {}

    def digest(self) -> str:
        """Return sixteen hexadecimal digits that identify the arrays and ranges."""
        return sha256(msgspec.msgpack.encode([sorted(self.arrays.items()), self.low, self.high])).hexdigest()[:16]


def layers_of(hidden: int) -> dict[str, tuple[int, int]]:
    """Return the layers of a network by name, with their rows and columns; `hidden` is its width."""
    return {
        "shape": (len(SHAPE_FEATURES), hidden),
        "shape_bias": (1, hidden),
        "room": (hidden + len(ROOM_FEATURES), hidden),
        "room_bias": (1, hidden),
        "score": (2 * hidden, hidden),
        "score_bias": (1, hidden),
        "pick": (hidden, 1),
        "pick_bias": (1, 1),
        "leave": (hidden, 1),
        "leave_bias": (1, 1),
    }


class Seen(NamedTuple):
    """A choice: one row of features for each slot, and the features of the room; `units` names the unit of each."""

    shapes: Floats
    room: Floats
    units: tuple[str, ...]


class Answer(NamedTuple):
    """The slot to start next; -1 leaves the rest of the round to `poise`, and `why` gives the reason."""

    slot: int
    why: str = ""


LEAVE = Answer(-1)


def check(network: Network) -> dict[str, Ints]:
    """Return the layers of a network as arrays. Raises `ValueError` if they, or its ranges, do not fit together."""
    features = len(SHAPE_FEATURES) + len(ROOM_FEATURES)
    if not len(network.low) == len(network.high) == features:
        raise ValueError(f"ranges of {features} features are needed, and there are {len(network.low)}")
    if not np.isfinite([network.low, network.high]).all():
        raise ValueError("the ranges of features must be finite numbers")
    layers = {name: np.array(rows, np.int64) for name, rows in network.arrays.items()}
    hidden = layers["shape_bias"].shape[-1] if "shape_bias" in layers else 1
    if not 1 <= hidden <= MAX_WIDTH:
        raise ValueError(f"a layer has {hidden} columns; at most {MAX_WIDTH} are possible")
    sizes = layers_of(hidden)
    if layers.keys() != sizes.keys():
        raise ValueError(f"the layers are {', '.join(sorted(layers)) or 'none'}; needed are {', '.join(sizes)}")
    for name, size in sizes.items():
        if layers[name].shape != size:
            raise ValueError(f"`{name}` is {layers[name].shape}, and {size} is needed")
    return layers


class Brain:
    """A network ready to choose. Raises `ValueError` if its arrays do not fit together."""

    def __init__(self, network: Network) -> None:
        self._layers = check(network)
        self._low, self._high = np.array(network.low), np.array(network.high)

    def choose(self, seen: Seen) -> Answer:
        """Return the slot with the highest score, if it is above that of leaving the rest to `poise`; leave it outside
        the range of the training.
        """
        if outside := self._outside(seen):
            return Answer(-1, outside)
        scores = self.scores(seen)
        best = int(scores.argmax())
        return Answer(best - 1) if best else LEAVE

    def scores(self, seen: Seen) -> Ints:
        """Return (1 + S,): the score of leaving the rest to `poise`, then of each slot."""
        of = self._layers
        shapes, room = _fixed(seen.shapes), _fixed(seen.room)
        each = _relu(_times(shapes, of["shape"]) + of["shape_bias"])
        pooled = np.concatenate([each.sum(axis=0) // len(each), room])[None]
        context = _relu(_times(pooled, of["room"]) + of["room_bias"])
        both = np.concatenate([each, np.broadcast_to(context, each.shape)], axis=1)
        hidden = _relu(_times(both, of["score"]) + of["score_bias"])
        picks = _times(hidden, of["pick"]) + of["pick_bias"]
        leave = _times(context, of["leave"]) + of["leave_bias"]
        found: Ints = np.concatenate([leave[:, 0], picks[:, 0]])
        return found

    def _outside(self, seen: Seen) -> str:
        """Return which feature is outside the range of the training, and its value; "" if none is."""
        count = len(SHAPE_FEATURES)
        tops = (
            np.concatenate([seen.shapes.min(axis=0), seen.room]),
            np.concatenate([seen.shapes.max(axis=0), seen.room]),
        )
        wrong = np.flatnonzero((tops[0] < self._low - ROUNDING) | (tops[1] > self._high + ROUNDING))
        if not len(wrong):
            return ""
        at = int(wrong[0])
        name = (SHAPE_FEATURES + ROOM_FEATURES)[at]
        value = tops[0][at] if tops[0][at] < self._low[at] - ROUNDING else tops[1][at]
        where = "a shape" if at < count else "the fleet"
        return f"`{name}` of {where} is {value:.3g}, and {self._low[at]:.3g} to {self._high[at]:.3g} in training"


ROUNDING = 1e-6
"""Tolerance of the ranges."""


def _fixed(values: Floats) -> Ints:
    found: Ints = np.rint(np.clip(values, -LIMIT, LIMIT) * UNIT).astype(np.int64)
    return found


def _times(values: Ints, weights: Ints) -> Ints:
    product: Ints = (values @ weights) // UNIT
    return product


def _relu(values: Ints) -> Ints:
    found: Ints = np.maximum(values, 0)
    return found
