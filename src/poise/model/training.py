"""Reports of a training gang while it runs, and the orders to it.

Worker 0 writes a `Training` as JSON to the file that POISE_REPORT names, at most once a second, atomically; the agent
reads it there and forwards it. The agent writes the `Orders` to a worker to the file that POISE_ORDERS names; the
worker reads it between two steps. Times are nanoseconds, sizes bytes, energy millijoules.
"""

from typing import Annotated, Literal

import msgspec

from poise.decoding import json_decoder
from poise.model.progress import ALL, Speedups
from poise.units import SECOND

REPORT = "POISE_REPORT"
"""The variable that names the file for worker 0's training report."""

ORDERS = "POISE_ORDERS"
"""The variable that names the file with the gang membership of a worker."""

CHECKPOINTS = "POISE_CHECKPOINTS"
"""The variable that names the folder for a gang's checkpoints, if its script names none."""

UNIT = "POISE_UNIT"
"""The variable that identifies a task or a gang: the same in all its attempts, and different in every other job of any
home.
"""

PHASE, THREADS, DEVICE_MEMORY = "POISE_PHASE", "POISE_THREADS", "POISE_DEVICE_MEMORY"
"""Variables for a task of a job with `phases`: the phase in which it was placed, the number of threads to use, and the
fraction of its devices' memory that it may use (0.6).
"""

LIBRARY_THREADS = "OMP_NUM_THREADS"
"""Read by numerical libraries; set for a job with `phases` that does not set it itself."""

ENDED_AS_ASKED = 128 + 15
"""The exit code of training that ended in order after SIGTERM."""

Phase = Literal["", "initial", "convergence", "fine-tuning"]
"""Phase of training, as detected from its gradients and its loss; empty: not known yet."""

MOST = 2**62
"""Maximum of all reported counts, sizes and times."""

MOST_BYTES = 64 << 10
"""Maximum size of a report."""

Count = Annotated[int, msgspec.Meta(ge=0, le=MOST)]
Part = Annotated[int, msgspec.Meta(ge=-1, le=ALL)]
"""Millionths of all the work; -1: unknown."""

Figure = Annotated[float, msgspec.Meta(ge=-1e30, le=1e30)]
Word = Annotated[str, msgspec.Meta(max_length=40, pattern=r"^[ -~]*$(?!\n)")]
Sentence = Annotated[str, msgspec.Meta(max_length=500, pattern=r"^[^\x00-\x1f\x7f-\x9f]*$(?!\n)")]


class Saved(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The newest checkpoint: its step, its publication time (seconds since 1970), its write time, the time that
    training waited for it, its size, and the number of stored checkpoints. `slowed`: by how much all steps from its
    start to its end took longer than usual, including that wait. `every`: the checkpoint interval.
    """

    step: Count
    at: Figure = 0.0
    took: Count = 0
    stall: Count = 0
    slowed: Count = 0
    bytes: Count = 0
    kept: Count = 1
    every: Count = 0


class Training(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Progress of training.

    `step` counts updates of the weights and `samples` their samples, over all attempts, without repeated work;
    `progress` is the done fraction of all the work, and `safe` the fraction in a checkpoint, both in millionths (-1:
    unknown). In one step each of `world` workers takes `accumulation` times `batch` samples, all together `effective`.
    `step_time` is the median of recent steps (0: it makes no steps now, and none is expected; with `evaluating` because
    it evaluates), `goodput` milli-samples per second since the first attempt, including all losses, and `throughput`
    the same of recent steps. `loss` is the mean over a whole step, of all workers; 0 if unknown or not a number.

    Each worker `sent` this many bytes per step in this attempt, and `plain` would be the number without compression;
    `route` is the method by which the largest part of a gradient is reduced, unless it is a plain ring. `energy` was
    used since the first attempt, measured by `energy_source` (nvml, rapl, model). `memory` is the peak of a worker on
    its device (without a GPU: of its process), `budget` its limit. `restored` names the checkpoint from which it
    resumed, and the skipped ones with the reasons. `resizes`: it follows orders without a restart. `advice` is the
    recommendation of the communication adviser.

    Worker 0 reports all fields. Every other worker may write a report of its own with its `step`, its `step_time` and
    its `compute`: its own compute time in a step, without waiting for others (the median of recent steps). A straggling
    worker is detected by it.
    """

    step: Count
    samples: Count = 0
    progress: Part = -1
    safe: Part = -1
    world: Annotated[int, msgspec.Meta(ge=1, le=65536)] = 1
    batch: Count = 0
    accumulation: Count = 1
    effective: Count = 0
    rate: Figure = 0.0
    loss: Figure = 0.0
    precision: Word = ""
    phase: Phase = ""
    step_time: Count = 0
    evaluating: bool = False
    compute: Count = 0
    goodput: Count = 0
    throughput: Count = 0
    sent: Count = 0
    plain: Count = 0
    route: Word = ""
    energy: Count = 0
    energy_source: Word = ""
    memory: Count = 0
    budget: Count = 0
    checkpoint: Saved | None = None
    restored: Sentence = ""
    resizes: bool = False
    speedups: Speedups | None = None
    advice: Sentence = ""


class Orders(msgspec.Struct, frozen=True, kw_only=True):
    """Gang membership from now on: this worker is `rank` of `world`; -1: it must leave. `generation` counts the gang's
    orders from 0, its start. Remaining members keep their order, and new ones come after them.
    """

    generation: int
    world: int
    rank: int


TELL_EVERY = 5 * SECOND
"""Minimum interval between records of training progress in the log."""

_SAID = (
    *("phase", "batch", "accumulation", "effective", "precision", "world", "resizes", "budget"),
    *("energy_source", "restored", "advice", "route", "evaluating"),
)
"""Fields whose every change is reported."""

_MEASURED = ("step_time", "compute", "goodput", "throughput", "memory", "sent", "plain")
NOTICEABLE = 0.2
"""Relative change of a measured value that is news; progress is news"""

HUNDREDTH = ALL // 100
"""... after a hundredth of the whole, or after a tenth of the done work if the whole is unknown."""

_decoder = json_decoder(Training)


def decode(text: bytes) -> Training:
    """Decode a worker's report. Raises msgspec.DecodeError, which says what is wrong and where."""
    if len(text) > MOST_BYTES:
        raise msgspec.DecodeError(f"it is longer than {MOST_BYTES >> 10} KiB")
    try:
        return _decoder.decode(text)
    except RecursionError:
        raise msgspec.DecodeError("it is nested too deeply") from None


def is_news(now: Training, known: Training) -> bool:
    """Whether a value that a policy or a person reads has changed noticeably."""
    if any(getattr(now, name) != getattr(known, name) for name in _SAID):
        return True
    if (now.checkpoint and now.checkpoint.step) != (known.checkpoint and known.checkpoint.step):
        return True
    if now.step < known.step or now.safe < known.safe:
        return True
    if any(abs(getattr(now, name) - getattr(known, name)) > NOTICEABLE * getattr(known, name) for name in _MEASURED):
        return True
    if now.progress >= 0:
        return abs(now.progress - known.progress) >= HUNDREDTH
    return now.step > known.step + known.step // 10
