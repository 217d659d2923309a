"""Shared base of the callbacks for training frameworks. A framework has its own loop, data and checkpoints; it reports
its progress to Poise, and Poise asks it to save and stop.
"""

import signal
import statistics
import threading
import time
from collections import deque
from collections.abc import Callable
from types import FrameType
from typing import Any

import torch
import torch.distributed as dist

from poise.drivers.heartbeat import step as beat
from poise.model.training import ENDED_AS_ASKED, Saved, Training
from poise_train.session import RECENT_STEPS
from poise_train.telling import Teller

MILLION = 1_000_000


class Follower:
    """Follows a framework's loop. Call `begin` before the first step, `step` after each, and `end` after the last."""

    def __init__(self) -> None:
        self.stopping = False
        self.checkpoint: Saved | None = None
        self.loss = 0.0
        self._teller = Teller()
        self._training: Callable[[], Training] | None = None
        self._restored = ""
        self._times: deque[float] = deque(maxlen=RECENT_STEPS)
        self._moment = self._began = 0.0
        self._first = 0
        self._handler: Any = None

    def begin(self, step: int) -> None:
        """Record that training starts, or resumes after `step` steps."""
        if step:
            self.checkpoint, self._restored = Saved(step=step), f"what the trainer saved at step {step}"
        self._first, self._began, self._moment = step, time.time(), time.perf_counter()
        if threading.current_thread() is threading.main_thread():
            self._handler = signal.signal(signal.SIGTERM, self._asked_to_end)

    def step(self, step: int, *, steps: int, batch: int, accumulation: int = 1, precision: str = "fp32") -> bool:
        """Report that `step` of `steps` steps are done (`steps` 0: unknown). Return whether to save and stop here; all
        workers get the same answer at the same step.
        """
        moment = time.perf_counter()
        self._times.append(moment - self._moment)
        self._moment = moment
        beat()
        world = dist.get_world_size() if dist.is_initialized() else 1
        effective = batch * accumulation * world

        def training() -> Training:
            median = statistics.median(self._times)
            elapsed = time.time() - self._began
            return Training(
                step=step,
                samples=step * effective,
                progress=min(MILLION, MILLION * step // steps) if steps > 0 else -1,
                safe=MILLION * self.checkpoint.step // steps if steps > 0 and self.checkpoint else -1,
                world=world,
                batch=batch,
                accumulation=accumulation,
                effective=effective,
                loss=self.loss,
                precision=precision,
                step_time=int(median * 1e9),
                throughput=int(1000 * effective / median) if median else 0,
                goodput=int(1000 * (step - self._first) * effective / elapsed) if elapsed > 0 else 0,
                checkpoint=self.checkpoint,
                restored=self._restored,
            )

        self._training = training
        self._agree(world)
        self._teller.tell(training, now=step == steps)
        return self.stopping

    def rests(self) -> None:
        """Report a pause in steps, for example while the framework saves; no step counts as missed."""
        beat()
        self._teller.rests()

    def evaluates(self) -> None:
        """Report an evaluation. Call it before the evaluation and for each of its batches."""
        beat()
        self._teller.evaluates()

    def saved(self, step: int) -> None:
        """Record that the framework has saved a checkpoint of this step."""
        self.checkpoint = Saved(step=step, at=time.time())

    def end(self) -> None:
        """Finish the reports after training. If the process was asked to stop, exit with code 143."""
        if self._handler is not None:
            signal.signal(signal.SIGTERM, self._handler)
            self._handler = None
        if self._training is not None:  # report the last step, and the checkpoint after it
            self._teller.tell(self._training, now=True)
            self._teller.rests()
        if self.stopping:
            raise SystemExit(ENDED_AS_ASKED)

    def _agree(self, world: int) -> None:
        """Agree on whether any worker was asked to stop, since the signal may reach them in different steps. Also
        average the loss, because frameworks may report it per worker.
        """
        if world > 1:
            device = "cuda" if dist.get_backend() == "nccl" else "cpu"
            votes = torch.tensor([float(self.stopping), self.loss / world], dtype=torch.float64, device=device)
            dist.all_reduce(votes)
            asked, self.loss = votes.tolist()
            self.stopping = bool(asked)

    def _asked_to_end(self, number: int, frame: FrameType | None) -> None:
        self.stopping = True


__all__ = ["Follower"]
