"""Sharing of devices between a service and training, by weights from measurements.

The preset is

    training  1 / (latency_ratio + 1e-5)
    service   device_use + 0.5 * (1 - latency_ratio)

each over the sum of both. `latency_ratio` is latency over objective, 0 without latency and 1 at the objective.
`device_use` is the part of the time in which the service's devices are busy. So training's weight falls as latency
rises. (With objective over latency instead, training would get more the later answers are, and no clamp could correct
that.) The service's weight has a second term that falls as latency rises; its *share* rises all the same, as long as
`latency_ratio < device_use + 0.5`. Beyond that the service's devices idle while its answers are late, so more of them
would not help and the share falls, as intended. A ratio above 1 makes no sense: the service's weight would fall to 0
and below, just when its objective is missed. So ratio and use are clamped to 0..1, and the caller gives a missed
objective precedence over all weights (`policy.replicas`).
"""

from typing import NamedTuple

EPSILON = 1e-5
"""Keeps training's weight finite without any latency."""


class Weights(NamedTuple):
    """The shares of both; they add up to 1."""

    training: float
    service: float


def weights(use: float, ratio: float) -> Weights:
    """Return the shares from the use of the service's devices and the ratio of its latency to its objective."""
    use, ratio = min(1.0, max(0.0, use)), min(1.0, max(0.0, ratio))
    training = 1 / (ratio + EPSILON)
    service = use + 0.5 * (1 - ratio)
    return Weights(training / (training + service), service / (training + service))


__all__ = ["Weights", "weights"]
