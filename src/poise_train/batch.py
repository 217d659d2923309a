"""Finds the largest micro-batch that fits in memory, and restores the state before a step that ran out of memory.

    fitting = Fitting(model, Budget(device), share=128)
    before = Before(model)
    before.keep()                      # before the first micro-batch of a step
    fitting.begin(samples)             # before the samples of a micro-batch are loaded
    fitting.end(samples)               # after its backward
    fitting.adapt()                    # between two steps: `fitting.batch` may be larger from now on, or smaller

If memory runs out (`is_short`), `fitting.short(samples)` reduces the micro-batch size and `before.put_back()` restores
the buffers and random states. So the step can be repeated with the same samples, weights and random numbers, as if it
had used the smaller micro-batches from the start. Other changes (such as a list in the model) are not restored.

Memory per sample is measured for a micro-batch larger than any before, and otherwise at intervals: before it, the
process releases unused memory, so that its peak shows all use. Allocating it again makes one step 10 % slower, so
measurements become less frequent while sizes do not change. Free memory is checked once a second. `policy.tuning`
decides the next size.
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
"""Maximum samples of the first micro-batch on the host, where running out of memory kills the process. On a GPU it
raises an error, and the micro-batch is halved.
"""

EVERY = 1.0
"""Initial measuring interval, and interval of free memory checks, in seconds."""

RARELY = 30.0
"""Maximum measuring interval in seconds: it doubles while the micro-batch size does not change."""

FADES = 0.8
"""Decay of the maximum memory per sample from one measurement to the next."""

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
"""Texts of RuntimeErrors that mean out of memory."""


class Fitting:
    """Micro-batch size of this worker: at most `batch` samples, of its `share` of a step.

    `most`: upper limit (0: as many as fit). `careful`: start small. The result of a model with batch normalization
    depends on the size, so there it is as large as allowed, unless memory runs out.
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
        self._held = 0  # before the measured micro-batch
        self._short: Short | None = None
        self.largest = 0
        """Size of the largest completed micro-batch."""
        self.shortages = 0
        self.share = self.batch = self.accumulation = 1
        self.resize(share, most or (START if careful and not self._fixed else share))

    def resize(self, share: int, batch: int = 0) -> None:
        """Set a new share of the worker."""
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
        """Adapt the size between two steps, after a measurement or a second. Returns whether it changed."""
        if self._first:  # optimizers allocate their state in it: measure the next step before deciding
            self._first, self._news, self._asked, self._looked = False, False, self._now(), -RARELY
        if self._fixed or not (self._news or self._now() >= self._asked + EVERY):
            return False
        self._asked, self._news = self._now(), False
        return self._decide(0)

    def short(self, samples: int) -> None:
        """Reduce the size after a micro-batch of `samples` ran out of memory.

        Raises MemoryShort for a single sample.
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
        """Decide the size. Memory cached by the process since its last release counts as free."""
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
    """State before a step, besides the weights: the model's buffers and the random states."""

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
    """Whether the error means that a device or the process is out of memory."""
    if isinstance(error, torch.OutOfMemoryError | MemoryError):
        return True
    return isinstance(error, RuntimeError) and any(told in str(error) for told in SHORT_OF_MEMORY)


def release(memory: Counted) -> None:
    """Release unused memory. Reference cycles of frames keep a failed computation alive, so collect garbage first."""
    gc.collect()
    if torch.cuda.is_initialized():
        torch.cuda.empty_cache()
    memory.give_back()


__all__ = ["Before", "Fitting", "is_short", "release"]
