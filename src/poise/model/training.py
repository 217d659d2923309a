"""What a gang that trains says of itself while it runs, and what it is told.

Worker 0 writes a `Training` as JSON to the file that POISE_REPORT names, at most once a second, whole or not at all;
the agent reads it there and passes it on. What a worker is told of its gang, `Orders`, the agent writes to the file
that POISE_ORDERS names; the worker looks at it between two steps. Times are nanoseconds, sizes bytes, energy
millijoules.
"""

from typing import Annotated, Literal

import msgspec

from poise.decoding import json_decoder
from poise.model.jobs import ALL, Speedups
from poise.units import SECOND

REPORT = "POISE_REPORT"
"""The variable that names the file in which worker 0 tells of its training."""

ORDERS = "POISE_ORDERS"
"""The variable that names the file in which a worker is told who belongs to its gang."""

CHECKPOINTS = "POISE_CHECKPOINTS"
"""The variable that names the folder in which a gang keeps its checkpoints, if its script names none."""

UNIT = "POISE_UNIT"
"""The variable that names what is run, a task or a gang: alike in all its attempts, and in no other job of any home."""

PHASE, THREADS, DEVICE_MEMORY = "POISE_PHASE", "POISE_THREADS", "POISE_DEVICE_MEMORY"
"""By these a task of a job with `phases` is told in which it was placed, how many threads it should use, and which part
of the memory of its devices it may (0.6)."""

LIBRARY_THREADS = "OMP_NUM_THREADS"
"""Heeded by libraries that compute; set for a job with `phases` that does not set it itself."""

ENDED_AS_ASKED = 128 + 15
"""The exit code of training that was asked to end, by SIGTERM, and did so in order."""

Phase = Literal["", "initial", "convergence", "fine-tuning"]
"""Where training is, as far as its gradients and its loss tell; empty: not known yet."""

MOST = 2**62
"""No count, size or time that is told is larger."""

MOST_BYTES = 64 << 10
"""A report is no longer."""

Count = Annotated[int, msgspec.Meta(ge=0, le=MOST)]
Part = Annotated[int, msgspec.Meta(ge=-1, le=ALL)]
"""Millionths of all the work; -1: not known."""

Figure = Annotated[float, msgspec.Meta(ge=-1e30, le=1e30)]
Word = Annotated[str, msgspec.Meta(max_length=40, pattern=r"^[ -~]*$(?!\n)")]
Sentence = Annotated[str, msgspec.Meta(max_length=500, pattern=r"^[^\x00-\x1f\x7f-\x9f]*$(?!\n)")]


class Saved(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The newest checkpoint: of which step, when it was published (seconds since 1970), how long it was being written,
    how long training waited for it, how large it is, and how many are kept. `slowed`: by how much all steps from its
    beginning to its end took longer than usual, that wait included. `every`: how often one is made.
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
    """How training gets on.

    `step` counts updates of the weights and `samples` what they were made from, over all attempts, without what had to
    be done again; `progress` is how much of all the work is done, and `safe` how much of that is in a checkpoint, both
    in millionths (-1: not known). In one step each of `world` workers takes `accumulation` times `batch` samples, all
    together `effective`. `step_time` is the median of recent steps (0: it makes none now, and none is missed; with
    `evaluating` because it evaluates), `goodput` milli-samples a second since the first attempt, with all that was
    lost, and `throughput` the same of recent steps. `loss` is the mean over a whole step, of all workers; 0 is not
    known, or no number.

    `sent` bytes went out per step and worker, in this attempt, where `plain` would have without compression; `route` is
    the way by which the largest part of a gradient is added up, where that is not simply a ring. `energy` was used
    since the first attempt, as `energy_source` tells (nvml, rapl, model). `memory` is the most that a worker held on
    its device (without a GPU: that its process held), `budget` what it may. `restored` says from which checkpoint it
    went on, and which were passed over and why. `resizes`: it follows orders without being started anew. `advice` is
    what the adviser of communication recommends.

    Worker 0 tells all of it. Every other worker may write a report of its own with its `step`, its `step_time` and its
    `compute`: for how long it computes in a step itself, without what it waits for others (the median of recent steps),
    by which a worker is found that is slower than the rest.
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
    """Who belongs to the gang from now on: this worker is `rank` of `world`; -1: it is to leave. `generation` counts
    the gang's orders from 0, which is what it was started with. Those who stay keep their order, and those who join
    come after them.
    """

    generation: int
    world: int
    rank: int


TELL_EVERY = 5 * SECOND
"""What has changed of training is told to the log no more often."""

_SAID = (
    *("phase", "batch", "accumulation", "effective", "precision", "world", "resizes", "budget"),
    *("energy_source", "restored", "advice", "route", "evaluating"),
)
"""What is news whenever it has changed."""

_MEASURED = ("step_time", "compute", "goodput", "throughput", "memory", "sent", "plain")
NOTICEABLE = 0.2
"""What is measured is news when it has changed by such a share, and how far it has come when that is"""

HUNDREDTH = ALL // 100
"""... a hundredth of the whole further, or a tenth of what was done where the whole is not known."""

_decoder = json_decoder(Training)


def decode(text: bytes) -> Training:
    """What a worker wrote. Raises msgspec.DecodeError, which says what is wrong and where."""
    if len(text) > MOST_BYTES:
        raise msgspec.DecodeError(f"it is longer than {MOST_BYTES >> 10} KiB")
    try:
        return _decoder.decode(text)
    except RecursionError:
        raise msgspec.DecodeError("it is nested too deeply") from None


def is_news(now: Training, known: Training) -> bool:
    """Whether anything has changed noticeably that a policy or a person reads."""
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
