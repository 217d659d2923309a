"""Checkpoints as a session uses them: when it saves, its reports, and where it resumes.

Worker 0 decides when the next one is due: after a set number of steps or time, or by `poise_train/policy/checkpoints`
from the cost of a checkpoint and the failure rate of this training over all attempts. All workers save at the same
step. Before the first one that is due, early ones are made after 10 s and each time this has doubled, so that a failure
loses at most half of the work. A re-formed gang saves after its first step, because the checkpoint that was being
written was abandoned.
"""

import contextlib
import errno
import os
import statistics
import sys
import time
from collections.abc import Callable, Collection, Mapping
from pathlib import Path
from time import monotonic_ns, perf_counter_ns
from typing import Any

import msgspec
import torch

from poise.errors import Fault, Misused, NotFound
from poise.model.training import CHECKPOINTS, Saved
from poise.units import SECOND, parse_duration
from poise_train.checkpoints import Checkpoints
from poise_train.given import TAKEN
from poise_train.policy.checkpoints import LEAST, Keep, between_failures, interval
from poise_train.restoring import Restored, listed, load, newest, part_of, reason

LAST_PATIENCE = 8 * SECOND
"""Maximum wait for a worker's last checkpoint, as it has ten seconds to exit after SIGTERM."""

ANOTHER = 'poise.Session(..., checkpoint="another folder")'
"""Hint for checkpoint errors."""

FULL = (errno.ENOSPC, errno.EDQUOT)

LOOK_SECONDS = 0.1
"""Polling interval for a checkpoint that another worker publishes."""


class Keeping:
    """The checkpoints of a session in `folder`, or in POISE_CHECKPOINTS; without both, none are written. All sessions
    of a script share POISE_CHECKPOINTS: those after the first have subfolders.

    `every`: a number of steps, or a time such as `5m`; without it, the cost decides. Raises Misused.
    """

    def __init__(self, folder: str | os.PathLike[str] | None, keep: Keep, every: int | str) -> None:
        given = folder or os.environ.get(CHECKPOINTS, "")
        self.folder = self._given = Path(given) if given else None
        self._for_all = not folder
        self.restored = ""
        self.safe = -1
        self._keep = keep
        self._steps, self._time = _every(every)
        self._checkpoints: Checkpoints | None = None
        self._world = 1
        self._leads = True
        self._since = perf_counter_ns()
        self._worked = self._failures = 0
        self._progress: dict[int, int] = {}
        self._due = False
        self._last: Saved | None = None
        self._stall = 0
        self._slowed = 0  # nanoseconds that the checkpoint in progress has slowed training
        self._was_busy = False
        self._wanted = -1  # step of the last checkpoint begun
        self._early = LEAST  # nanoseconds until the next early checkpoint; 0: none
        self._began = perf_counter_ns()

    def of_session(self, number: int) -> None:
        """Set the session's number in its script, from 1. Call this before `open`."""
        if self._for_all and self._given is not None and number > 1:
            self.folder = self._given / f"session-{number}"

    def open(self, rank: int, world: int, epoch: int, training: int) -> None:
        """Set this worker's place in its gang, the gang's epoch and the number of the training. Call this before the
        gang's first collective operation.
        """
        self._count_work()
        self._due = self._checkpoints is not None
        self.close(0)
        self._world, self._leads = world, rank == 0
        if self.folder is None:
            return
        try:
            self._checkpoints = Checkpoints(
                self.folder, rank=rank, world=world, epoch=epoch, training=training, keep=self._keep
            )
        except OSError as error:
            raise Misused(
                f"checkpoints cannot be kept there: {_why(error)}",
                field=CHECKPOINTS if self._for_all else "checkpoint",
                need="a writable folder that exists or can be created",
                have=str(self.folder),
                hint=f"df -h {_there(self.folder)}" if error.errno in FULL else ANOTHER,
            ) from None

    def restore(self) -> tuple[Mapping[str, Any], tuple[Any, ...]] | None:
        """Return the latest saved state and each worker's own state, or None. Worker 0 broadcasts them to the
        others.
        """
        if self._checkpoints is None:
            return None
        if (found := self._checkpoints.restore()) is not None:
            self._early = 0
            return self._taken(found)
        self.restored = self._checkpoints.note
        return None

    def outcome(self, step: int) -> tuple[Mapping[str, Any], tuple[Any, ...]] | None:
        """Return the same for a training that ended at this step, for a worker that joins too late; None if it is not
        found. Waits, because it may still be being written.
        """
        until = monotonic_ns() + LAST_PATIENCE
        while self.folder is not None:
            with contextlib.suppress(NotFound):
                return self._taken(load(self.folder, step))
            if monotonic_ns() > until:
                break
            time.sleep(LOOK_SECONDS)
        return None

    def _taken(self, found: Restored) -> tuple[Mapping[str, Any], tuple[Any, ...]]:
        past = found.state.get("past") if isinstance(found.state, dict) else None
        if past is None:
            raise Misused(
                "this folder has checkpoints of other training",
                field="checkpoint",
                have=str(self.folder),
                hint=ANOTHER,
            )
        self.restored = found.note
        self._worked, self._failures = past["worked"], past["failures"] + (not past["parted"])
        return {name: one for name, one in found.state.items() if name != "past"}, found.own

    def compare(self, saved: Collection[str], kept: Collection[str]) -> None:
        """Report the objects that only the restored checkpoint has, and those that only the session has. Neither is an
        error: a script may add an average of the weights, or drop a schedule.
        """
        named = [{one for one in names if one not in TAKEN or one == "scheduler"} for names in (saved, kept)]
        said = [f"it has no state of `{one}`" for one in sorted(named[1] - named[0])]
        said += [f"its `{one}` is not used, and later ones lack it" for one in sorted(named[0] - named[1])]
        if said:
            self.restored = "; ".join([self.restored, *said])
            sys.stderr.write(f"poise: {self.restored}\n")

    def known(self) -> dict[str, Any]:
        """Return what a joining worker needs to know, as it may become worker 0."""
        self._count_work()
        return {"restored": self.restored, "worked": self._worked, "failures": self._failures}

    def learn(self, known: Mapping[str, Any]) -> None:
        """Apply the `known` of another worker after joining."""
        self.restored, self._worked, self._failures = known["restored"], known["worked"], known["failures"]

    def go_on_from(self, step: int) -> None:
        """Continue from this step, restored or broadcast. Worker 0 reads the latest checkpoint from disk, because a
        previous worker 0 may not have reported it.
        """
        if self._checkpoints is None:
            return
        if not self._due:
            self._checkpoints.go_on_from(step)
        found = newest(self._checkpoints.folder, step) if self._leads else None
        past = part_of(found, "past") if found is not None else None
        if found is not None and past is not None:
            kept = len(listed(self._checkpoints.folder))
            self._last = Saved(
                step=found.step, at=found.at, took=found.took, stall=found.stall, bytes=found.size, kept=kept
            )
            self.safe = past["progress"]

    def lost(self) -> None:
        """Record the loss of a worker."""
        self._failures += 1

    def due(self, step: int) -> bool:
        """On worker 0: whether all workers should save at the end of this step."""
        if self._checkpoints is None:
            return False
        now = perf_counter_ns()
        is_due = step % self._steps == 0 if self._steps else now - self._since >= self.every
        if is_due:
            self._early = 0
        elif self._early and now - self._began >= self._early:
            self._early, is_due = 2 * (now - self._began), True
        return self._due or is_due

    def save(
        self,
        state: Callable[[], Mapping[str, Any]],
        *,
        step: int,
        progress: int,
        parting: bool,
        optimizer: torch.optim.Optimizer | None = None,
        **options: Any,
    ) -> None:
        """Save a checkpoint. All workers call it at the same step. `parting`: they exit after it, without a failure.
        Raises Fault if the weights that the optimizer changes are not finite: no later step can mend them, and the
        checkpoint would replace good ones.
        """
        if self._checkpoints is None:
            return
        if optimizer is not None:
            self._check_finite(step, optimizer)
        self._count_work()
        past = {"worked": self._worked, "failures": self._failures, "parted": parting, "progress": progress}
        self._wanted = step
        self._slowed, self._was_busy = 0, True
        self._stall = self._checkpoints.save({**state(), "past": past}, step=step, optimizer=optimizer, **options)
        self._progress = {one: done for one, done in self._progress.items() if one >= self._newest()} | {step: progress}
        self._due = False

    @property
    def every(self) -> int:
        """Interval between checkpoints in nanoseconds, unless it is set in steps."""
        last = self.saved
        between = between_failures(self._failures, self._worked, self._world)
        cost, took = (max(last.stall, last.slowed), last.took) if last is not None else (self._stall, 0)
        return self._time or interval(cost, between, took)

    @property
    def saved(self) -> Saved | None:
        """The latest checkpoint that this process has seen published."""
        if self._checkpoints is not None:
            self._look(self._checkpoints)
        return self._last

    def said(self) -> Saved | None:
        """Return the latest checkpoint for reports, with the interval."""
        found = self.saved
        return msgspec.structs.replace(found, every=0 if self._steps else self.every) if found is not None else None

    def close(self, patience: int = LAST_PATIENCE) -> None:
        """Finish the checkpoint in progress. Wait at most `patience` nanoseconds for the parts of other workers."""
        if self._checkpoints is not None:
            closing, self._checkpoints = self._checkpoints, None
            try:
                closing.close(patience)
            finally:
                self._look(closing)

    def stepped(self, seconds: float, before: Collection[float]) -> None:
        """Record the time of a step in seconds; `before` are the times of earlier steps."""
        is_busy = self._checkpoints is not None and self._checkpoints.is_busy
        if before and (is_busy or self._was_busy):
            self._slowed += max(0, int((seconds - statistics.median(before)) * SECOND))
        self._was_busy = is_busy

    def check_last(self) -> None:
        """Raises Fault if the script has named the folder and the last checkpoint that was begun is not in it."""
        if self._leads and not self._for_all and self._newest() < self._wanted:
            kept = f"step {self._newest()}" if self._newest() >= 0 else "none"
            raise Fault(
                "training is done, but its last checkpoint could not be written",
                code="E219",
                field=str(self.folder),
                need=f"the checkpoint of step {self._wanted}",
                have=f"the newest one is {kept}",
                hint=f"df -h {_there(self.folder)}" if self.folder is not None else "",
            )

    def _check_finite(self, step: int, optimizer: torch.optim.Optimizer) -> None:
        weights = [one for group in optimizer.param_groups for one in group["params"] if one.requires_grad]
        finite = [one.detach().isfinite().all() for one in weights]  # on a GPU, all of this before the first wait
        broken = sum(not one for one in finite)
        if broken:
            before = max(self._wanted, self._newest())
            raise Fault(
                "the weights are not finite: training has diverged",
                code="E220",
                field=f"step {step}",
                need="finite weights" + (f", as in the checkpoint of step {before}" if before >= 0 else ""),
                have=f"NaN or infinite values in {broken} of {len(weights)} tensors that the optimizer changes",
                hint="poise.Session(..., clip=1.0), or a lower learning rate",
            )

    def _look(self, checkpoints: Checkpoints) -> None:
        found = checkpoints.published()
        if found is not None:
            if found.step == self._wanted:
                found = msgspec.structs.replace(found, slowed=self._slowed)
            self._last = found
            self.safe = self._progress.get(found.step, self.safe)

    def _count_work(self) -> None:
        now = perf_counter_ns()
        self._worked += (now - self._since) * self._world
        self._since = now

    def _newest(self) -> int:
        return self._last.step if self._last is not None else -1


def _why(error: OSError) -> str:
    """Describe the error. For a path that is not a folder, the system says only that it exists."""
    return "it is no folder" if isinstance(error, FileExistsError | NotADirectoryError) else reason(error)


def _there(folder: Path) -> Path:
    """Return the nearest existing folder of the path."""
    return next(one for one in (folder, *folder.parents) if one.is_dir())


def _every(every: int | str) -> tuple[int, int]:
    """Parse an interval to steps and nanoseconds; at least one of them is 0."""
    try:
        if isinstance(every, str):
            return 0, parse_duration(every) if every else 0
        if every >= 0:
            return every, 0
    except ValueError:
        pass
    raise Misused(
        "this is not an interval", field="every", need="steps, or a time", have=repr(every), hint='every="5m"'
    )


__all__ = ["Keeping"]
