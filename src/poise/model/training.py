"""What a gang that trains says of itself while it runs, and what it is told.

Worker 0 writes a `Training` as JSON to the file that POISE_REPORT names, at most once a second, whole or not at all;
the agent reads it there and passes it on. What a worker is told of its gang, `Orders`, the agent writes to the file
that POISE_ORDERS names; the worker looks at it between two steps. Times are nanoseconds, sizes bytes, energy
millijoules.
"""

from typing import Literal

import msgspec

from poise.model.jobs import Speedups

REPORT = "POISE_REPORT"
"""The variable that names the file in which worker 0 tells of its training."""

ORDERS = "POISE_ORDERS"
"""The variable that names the file in which a worker is told who belongs to its gang."""

CHECKPOINTS = "POISE_CHECKPOINTS"
"""The variable that names the folder in which a gang keeps its checkpoints, if its script names none."""

Phase = Literal["", "initial", "convergence", "fine-tuning"]
"""Where training is, as far as its gradients and its loss tell; empty: not known yet."""


class Saved(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The newest checkpoint: of which step, when it was published (seconds since 1970), how long it was being written,
    for how long training stood still for it, how large it is, and how many are kept. `every`: how often one is made.
    """

    step: int
    at: float = 0.0
    took: int = 0
    stall: int = 0
    bytes: int = 0
    kept: int = 1
    every: int = 0


class Training(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """How training gets on.

    `step` counts updates of the weights and `samples` what they were made from, over all attempts, without what had to
    be done again; `progress` is how much of all the work is done, and `safe` how much of that is in a checkpoint, both
    in millionths (-1: not known). In one step each of `world` workers takes `accumulation` times `batch` samples, all
    together `effective`. `step_time` is the median of recent steps, `goodput` milli-samples a second since the first
    attempt, with all that was lost, and `throughput` the same of recent steps.

    `sent` bytes went out per step and worker, where `plain` would have without compression. `energy` was used since
    the first attempt, as `energy_source` tells (nvml, rapl, model). `memory` is the most that a worker held on its
    device, `budget` what it may. `restored` says from which checkpoint it went on, and which were passed over and why.
    `resizes`: it follows orders without being started anew. `advice` is what the adviser of communication recommends.
    """

    step: int
    samples: int = 0
    progress: int = -1
    safe: int = -1
    world: int = 1
    batch: int = 0
    accumulation: int = 1
    effective: int = 0
    rate: float = 0.0
    loss: float = 0.0
    precision: str = ""
    phase: Phase = ""
    step_time: int = 0
    goodput: int = 0
    throughput: int = 0
    sent: int = 0
    plain: int = 0
    energy: int = 0
    energy_source: str = ""
    memory: int = 0
    budget: int = 0
    checkpoint: Saved | None = None
    restored: str = ""
    resizes: bool = False
    speedups: Speedups | None = None
    advice: str = ""


class Orders(msgspec.Struct, frozen=True, kw_only=True):
    """Who belongs to the gang from now on: this worker is `rank` of `world`; -1: it is to leave. `generation` counts
    the gang's orders from 0, which is what it was started with.
    """

    generation: int
    world: int
    rank: int
