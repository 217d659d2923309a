"""The largest micro-batch for which there is memory, and a step that is made again where there was too little.

    fitting = Fitting(model, Budget(device), share=128)
    before = Before(model)
    before.keep()                      # before the first micro-batch of a step
    fitting.begin(samples)             # before the samples of a micro-batch are loaded
    fitting.end(samples)               # after its backward
    fitting.adapt()                    # between two steps: `fitting.batch` may be larger from now on, or smaller

Where memory is short (`is_short`), `fitting.short(samples)` makes micro-batches smaller and `before.put_back()` brings
back what the step has changed, so that it can be made again from the same samples, with the same weights, and with the
same random numbers: it becomes the step that it would have been with the smaller micro-batches from its start. What
was changed besides buffers and random numbers (a list that the model keeps, say) is not brought back.

What a sample takes is looked at when a micro-batch was larger than any before, and else now and then: before it, the
process gives back what it does not use, so that its peak shows all that was taken. That it has to ask for all of it
again makes one step a tenth slower, so looks become rarer while nothing changes. Whether others have taken or left
memory is seen once a second. How large the next micro-batches are is decided in `policy.tuning`.
"""

import gc
import time
from collections.abc import Callable

import torch
from torch import nn

from poise.drivers.memory import Counted
from poise.errors import MemoryShort
from poise_train.policy.tuning import Keep, Short, TrainView, Tuning, evened
from poise_train.randomness import Randomness

START = 64
"""Samples of the first micro-batch at most where memory that is short ends the process, and nothing is known of what
they take. A GPU says so, and the first that does not fit is halved.
"""

EVERY = 1.0
"""Seconds from one look to the next at first, and from one question to the next how much memory is free."""

RARELY = 30.0
"""Seconds from one look to the next at most: twice as long each time that micro-batches stay as large as they are."""

FADES = 0.8
"""What is left of the most that a sample took, from one look to the next."""

LARGE = 1 << 16
"""Elements of a buffer, from which on it is not copied where PyTorch says that nothing was written to it: masks and
tables of positions. It does not say so of the statistics of a batch normalisation, which are smaller.
"""

SHORT_OF_MEMORY = (
    "can't allocate memory",  # c10's allocator for CPUs
    "out of memory",  # of a device, and what the kernel says for ENOMEM in libraries below
    "Cannot allocate memory",
    "bad_alloc",
    "could not create a memory object",  # oneDNN
    "CUBLAS_STATUS_ALLOC_FAILED",
    "CUDNN_STATUS_ALLOC_FAILED",
)
"""By which a RuntimeError is told that has no class of its own."""


class Fitting:
    """How many samples the micro-batches of this worker have: at most `batch`, of its `share` of a step.

    `most`: so many they may have (0: as many as fit). `careful`: to begin with few. A model with batch normalisation
    computes something else in micro-batches of another size: they are as large as they may be, unless memory is short.
    """

    def __init__(
        self,
        model: nn.Module,
        memory: Counted,
        share: int,
        *,
        most: int = 0,
        careful: bool = True,
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        self._fixed = any(isinstance(one, nn.modules.batchnorm._NormBase) for one in model.modules())
        self._memory = memory
        self._most = most
        self._now = now
        self._each = 0.0
        self._looked, self._asked = -RARELY, self._now()
        self._first = True
        self._pause = EVERY
        self._looking = self._news = False
        self._held = 0  # before the micro-batch that was looked at
        self._short: Short | None = None
        self.largest = 0
        """Of the micro-batches that were worked out to their end."""
        self.shortages = 0
        self.share = self.batch = self.accumulation = 1
        self.resize(share, most or (START if careful and not self._fixed else share))

    def resize(self, share: int, batch: int = 0) -> None:
        """The worker takes another share from now on."""
        if self._fixed and not self._most and not self._short:
            batch = share
        self.share = max(1, share)
        self.batch, self.accumulation = evened(self.share, batch or self.batch)

    def begin(self, samples: int) -> None:
        self._looking = samples > self.largest or self._now() >= self._looked + self._pause
        if self._looking:
            self._memory.give_back()
            self._memory.forget()
            self._held = self._memory.held()

    def end(self, samples: int) -> None:
        if not self._looking:
            return
        taken = max(0, self._memory.peak() - self._held) / samples
        self._each = taken if samples > self.largest else max(taken, FADES * self._each)
        self.largest = max(self.largest, samples)
        self._looked, self._news, self._looking = self._now(), True, False
        self._pause = min(2 * self._pause, RARELY)

    def adapt(self) -> bool:
        """Whether micro-batches have another size from now on. Asked between two steps; looks at what is free where
        something was learned since the last time, or a second has gone.
        """
        if self._first:  # with which optimizers make what they keep: the next is looked at before anything is decided
            self._first, self._news, self._asked, self._looked = False, False, self._now(), -RARELY
        if self._fixed or not (self._news or self._now() >= self._asked + EVERY):
            return False
        self._asked, self._news = self._now(), False
        return self._decide(0)

    def short(self, samples: int) -> None:
        """A micro-batch of so many ran out of memory: they are smaller from now on.

        Raises MemoryShort where it was a single sample.
        """
        self.shortages += 1
        release(self._memory)
        if samples <= 1:
            raise MemoryShort(
                "there is not enough memory for the gradient of a single sample",
                have=f"{self._memory.free()} bytes free",
                hint="a smaller model or optimizer state, `torch.utils.checkpoint` in the model, or more memory",
            )
        self._decide(samples)

    def _decide(self, tried: int) -> bool:
        """What the process has kept for later since it gave all back is free for it."""
        verdict = Tuning().decide(
            TrainView(
                share=self.share,
                batch=self.batch,
                most=self._most,
                each=int(self._each),
                free=self._memory.free() + max(0, self._memory.held() - self._held),
                tried=tried,
                short=self._short,
            )
        )
        self._short = verdict.short
        if isinstance(verdict, Keep):
            return False
        self.batch, self.accumulation = verdict.batch, verdict.accumulation
        self._pause = EVERY
        return True


class Before:
    """What a step begins with, besides the weights: the model's buffers and what has been drawn at random."""

    def __init__(self, model: nn.Module) -> None:
        self._places = [(module, name) for module in model.modules() for name in module._buffers]
        self._buffers: list[torch.Tensor | None] = []
        self._copies: list[torch.Tensor] = []
        self._versions: list[int] = []
        self._random: Randomness | None = None

    def keep(self) -> None:
        if self._places:
            self._keep_buffers()
        self._random = Randomness.now()

    def _keep_buffers(self) -> None:
        now = [module._buffers.get(name) for module, name in self._places]
        if len(now) != len(self._buffers) or any(a is not b for a, b in zip(now, self._buffers, strict=True)):
            self._buffers = now
            self._copies = [one.detach().clone() for one in now if one is not None]
        else:
            self._copy(self._copies, self._there())
        self._versions = [one._version for one in self._there()]

    def put_back(self) -> None:
        for (module, name), buffer in zip(self._places, self._buffers, strict=False):
            module._buffers[name] = buffer
        self._copy(self._there(), self._copies)
        self._versions = [one._version for one in self._there()]
        if self._random is not None:
            self._random.put_back()

    def _there(self) -> list[torch.Tensor]:
        return [one for one in self._buffers if one is not None]

    def _copy(self, targets: list[torch.Tensor], sources: list[torch.Tensor]) -> None:
        changed = [
            one.numel() <= LARGE or one._version != version
            for one, version in zip(self._there(), self._versions, strict=True)
        ]
        if any(changed):
            with torch.no_grad():
                torch._foreach_copy_(
                    [one for one, has in zip(targets, changed, strict=True) if has],
                    [one for one, has in zip(sources, changed, strict=True) if has],
                )


def is_short(error: BaseException) -> bool:
    """Whether it says that memory was short, of a device or of the process."""
    if isinstance(error, torch.OutOfMemoryError | MemoryError):
        return True
    return isinstance(error, RuntimeError) and any(told in str(error) for told in SHORT_OF_MEMORY)


def release(memory: Counted) -> None:
    """Give back what is not used: a failed computation is kept alive by cycles of its frames."""
    gc.collect()
    if torch.cuda.is_initialized():
        torch.cuda.empty_cache()
    memory.give_back()


__all__ = ["Before", "Fitting", "is_short", "release"]
