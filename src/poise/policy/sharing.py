"""How a service and training share devices: by weights that follow what is measured.

The preset is

    training  1 / (latency_ratio + 1e-5)
    service   device_use + 0.5 * (1 - latency_ratio)

each over the sum of both. `latency_ratio` is latency over objective here, 0 where nothing is felt and 1 where the
objective is used up, and `device_use` the part of the time in which the service's devices work. That way training's
weight falls as latency rises. (Were the ratio objective over latency, training would get the more the later answers
are, and no clamp could mend that.) The service's weight has a second term that falls as latency rises; its *share*
rises all the same, as long as `latency_ratio < device_use + 0.5`. Beyond that the devices of the service idle while its
answers are late, so that more of them would not help, and the share falls: that is kept. What makes no sense is a ratio
above 1: from there the service's weight falls to nothing and below, just as its promise is broken. So ratio and use are
clamped to 0..1, and whoever asks knows that an objective which is missed comes before all weights (`policy.replicas`).
"""

from typing import NamedTuple

EPSILON = 1e-5
"""Without any latency, training's weight is large and not infinite."""


class Weights(NamedTuple):
    """The shares of both, adding up to 1."""

    training: float
    service: float


def weights(use: float, ratio: float) -> Weights:
    """From the use of the service's devices and its latency over its objective."""
    use, ratio = min(1.0, max(0.0, use)), min(1.0, max(0.0, ratio))
    training = 1 / (ratio + EPSILON)
    service = use + 0.5 * (1 - ratio)
    return Weights(training / (training + service), service / (training + service))


__all__ = ["Weights", "weights"]
