"""Checkpoints of a gang: written in the background, atomic, and verified when loaded.

    checkpoints = Checkpoints(Path("checkpoints"), rank=rank, world=world)
    restored = checkpoints.restore()
    ...
    checkpoints.save({"model": model.state_dict(), "optimizer": optimizer.state_dict()}, step=step, optimizer=optimizer)

Every worker of the gang calls `save` at the same step, with the same state, and writes its part of it (`pieces`).
Training stops only while its part is copied to a staging buffer; tensors that only the optimizer changes are copied
while the next gradients are computed, and the optimizer's next step waits for the rest. A thread writes the copy.
Worker 0's thread waits for all parts, writes the manifest, and renames the folder:
`poise_train/model/checkpoints.py` documents the layout. The threads of a gang communicate only through the folder,
which must be shared: messages would interfere with the collectives of training.

* A partial checkpoint never has the name of a checkpoint. Listed checkpoints are verified when read; a damaged one is
  skipped, set aside and reported, and the previous one is used (`restoring`).
* An older attempt cannot publish after a newer one has begun in the folder, nor a training after another (`fence`).
* One checkpoint is being written and one may wait, each in its own staging buffer. A third blocks training: all workers
  write the same checkpoints, so none may drop one that another has written.
* A full or failing disk costs a checkpoint and not the training: its files are removed, the previous one stays, and the
  failure is reported. Other errors in the thread are raised by the next call.
"""

import sys
import threading
from collections.abc import Callable, Collection, Iterable, Mapping
from pathlib import Path
from time import monotonic_ns, perf_counter_ns
from typing import Any

import msgspec
import torch

from poise import __version__
from poise.errors import DISTRIBUTION, Conflict, Misused
from poise.model.training import Saved
from poise_train.drafts import Draft, storage
from poise_train.model.checkpoints import FORMAT, Kind
from poise_train.pieces import Damaged, Laid, Staging, cut, lay_out, uncut
from poise_train.policy.checkpoints import Keep
from poise_train.publishing import PATIENCE, Publisher
from poise_train.restoring import Foreign, Restored, listed, load, passed, reason, restored
from poise_train.trees import Taken

STAGES = 2
"""Number of staging buffers: one being written, one waiting."""

NEVER_FINISHED = "it was never finished"


class Checkpoints:
    """The checkpoints of one gang in one folder. Every worker makes an instance before the gang's first collective, and
    a new one when its rank or the gang changes.

    All attempts of a `training` share its number, and a later attempt has a higher `epoch`. `tell` gets one sentence
    for each failure; the default is stderr. Raises `Conflict` if a newer attempt, or another training, has begun.
    """

    def __init__(
        self,
        folder: Path,
        *,
        rank: int = 0,
        world: int = 1,
        epoch: int = 0,
        training: int = 0,
        keep: Keep = Keep(),  # noqa: B008  it is frozen
        patience: int = PATIENCE,
        tell: Callable[[str], None] | None = None,
    ) -> None:
        self.folder = folder
        self._rank, self._world = rank, world
        self._tell = tell or _on_stderr
        self._publisher = Publisher(folder, rank, world, epoch, training, keep, patience, self._tell)
        self._changed = threading.Condition()
        self._spare = [Staging() for _ in range(STAGES)]
        self._waiting: list[Draft] = []
        self._writing: Draft | None = None
        self._newest: Draft | None = None
        self._thread: threading.Thread | None = None
        self._ending = False
        self._broken: BaseException | None = None
        self._saved: Saved | None = None
        self._step = -1
        self._at_once = False
        self._laid: list[Laid] = []
        self._laid_for: tuple[int, frozenset[int], list[Kind]] = (0, frozenset(), [])
        self._hooks: dict[int, tuple[torch.optim.Optimizer, Any]] = {}
        self.note = ""
        """Explanation if `restore` skipped all checkpoints."""
        self._unfinished = dict.fromkeys(self._publisher.begin(), NEVER_FINISHED) if rank == 0 else {}

    # --- called by training

    def save(
        self,
        state: Mapping[str, Any],
        *,
        step: int,
        score: float | None = None,
        own: Any = None,
        optimizer: torch.optim.Optimizer | None = None,
        single: Iterable[torch.Tensor] = (),
    ) -> int:
        """Begin a checkpoint of `step`, unless it was begun before or restored. Returns the nanoseconds that training
        was stopped; `Saved.stall` includes the wait of the optimizer's next step too.

        `score`: quality, larger is better. `own`: this worker's own state. `optimizer`: only its next step changes its
        parameters and state; without it, all tensors are copied at once. `single`: tensors that differ between workers,
        such as a model's buffers; those of worker 0 are saved. Raises `SpecError` for a state that cannot be saved,
        `Conflict` after a newer attempt or training has begun, and unexpected errors of the thread.
        """
        began = perf_counter_ns()
        self._raise_broken()
        if self._ending:
            raise Conflict("these checkpoints are closed", field=str(self.folder))
        self.settle()
        if step == self._step:
            return perf_counter_ns() - began
        self._publisher.join()
        draft = self._draft(state, own, step, score, {storage(one) for one in single})
        is_busy = self._take_staging(draft)
        try:
            draft.copy(None if is_busy or self._at_once else optimizer)
        except BaseException:
            self._give_back(draft)
            raise
        if draft.later and optimizer is not None:
            self._hook(optimizer)
        draft.stall = perf_counter_ns() - began
        with self._changed:
            self._step, self._newest = step, draft
            self._waiting.append(draft)
            self._changed.notify_all()
        if self._thread is None:
            self._thread = threading.Thread(target=self._work, name="poise-checkpoints", daemon=True)
            self._thread.start()
        return draft.stall

    def settle(self) -> None:
        """Wait until all is copied. The optimizer given to `save` does this before its step. Call it before you change
        its parameters in another way.
        """
        draft = self._newest
        if draft is not None and not draft.copied.is_set():
            began = perf_counter_ns()
            draft.copied.wait()
            draft.stall += perf_counter_ns() - began

    def wait(self) -> None:
        """Wait until this worker's part of all begun checkpoints is done, published or failed."""
        with self._changed:
            self._changed.wait_for(lambda: not self._waiting and self._writing is None)
        self._raise_broken()

    def close(self, patience: int | None = None) -> None:
        """Wait, and release all resources. Give up on missing parts of other workers after `patience` nanoseconds, for
        a gang that has lost a worker.
        """
        with self._changed:
            self._ending = True
            self._publisher.give_up_at = 0 if patience is None else monotonic_ns() + patience
            self._changed.notify_all()
        if self._thread is not None:
            self._thread.join()
        for _, hook in self._hooks.values():
            hook.remove()
        self._hooks.clear()
        self._spare.clear()
        self._newest = None
        self._raise_broken()

    def published(self) -> Saved | None:
        """Return the latest checkpoint that this gang has published; None except on worker 0."""
        with self._changed:
            return self._saved

    @property
    def is_busy(self) -> bool:
        """Whether a checkpoint is being written or waits."""
        with self._changed:
            return self._writing is not None or bool(self._waiting)

    def restore(self) -> Restored | None:
        """Return the newest whole checkpoint; None if there is none. In a gang, worker 0 calls this, and the others
        `load` the step that it found. Worker 0 sets damaged checkpoints aside, so that a new one can have their name.

        Damaged checkpoints are reported. Raises `Misused` for a checkpoint of another version of Poise.
        """
        wrong = dict(self._unfinished)
        for step in reversed(listed(self.folder)):
            try:
                found = restored(self.folder, step, {one: why for one, why in wrong.items() if one > step})
            except Foreign as error:  # or training would restart or go back, and it would be deleted
                raise Misused(
                    f"the checkpoint of step {step} cannot be read: {error}",
                    field=str(self.folder),
                    need=error.need,
                    have=f"Poise {__version__}, which reads format {FORMAT}",
                    hint=f"pip install --upgrade {DISTRIBUTION}",
                ) from None
            except (Damaged, OSError) as error:
                wrong[step] = reason(error)
                if self._rank == 0 and isinstance(error, Damaged):  # other errors may be temporary
                    self._publisher.set_aside(step)
                continue
            self.go_on_from(step)
            if wrong != self._unfinished:
                self._tell(f"training goes on from {found.note}")
            return found
        if wrong:
            self.note = "; ".join(["no checkpoint was restored", *passed(wrong)])
            self._tell(f"training begins anew: {self.note}")
        return None

    def load(self, step: int) -> Restored:
        """Load the checkpoint of this step. Raises `StoreDamaged` and `NotFound`."""
        found = load(self.folder, step)
        self.go_on_from(step)
        return found

    def go_on_from(self, step: int) -> None:
        """Continue from the checkpoint of this step. It is not saved again, and it is kept until the next one is
        published, because other workers may still be reading it.
        """
        self._step = step
        self._publisher.reading = {step}

    # --- in the training thread

    def _draft(
        self, state: Mapping[str, Any], own: Any, step: int, score: float | None, single: Collection[int]
    ) -> Draft:
        taken = Taken()
        tree = msgspec.json.encode(taken.tree(state))
        shared = len(taken.kinds)
        own_tree = msgspec.json.encode(taken.tree(own, "own"))
        first = frozenset(number for number, one in enumerate(taken.tensors[:shared]) if storage(one) in single)
        if (shared, first, taken.kinds) != self._laid_for:  # usually unchanged
            alike = cut(taken.kinds[:shared], self._rank, self._world, first)
            self._laid = lay_out([*alike, *uncut(taken.kinds, shared)], taken.kinds)
            self._laid_for = shared, first, taken.kinds
        return Draft(step, score, tree, own_tree, taken, shared, first, self._laid)

    def _take_staging(self, draft: Draft) -> bool:
        """Take a staging buffer. Returns whether the thread is busy, and cannot copy now."""
        with self._changed:
            self._changed.wait_for(lambda: self._spare)
            draft.staging = self._spare.pop()
            return self._writing is not None or bool(self._waiting)

    def _give_back(self, draft: Draft) -> None:
        with self._changed:
            self._writing = None if self._writing is draft else self._writing
            self._spare.append(draft.staging)
            self._changed.notify_all()

    def _hook(self, optimizer: torch.optim.Optimizer) -> None:
        if id(optimizer) not in self._hooks:
            hook = optimizer.register_step_pre_hook(lambda *_: self.settle())
            self._hooks[id(optimizer)] = (optimizer, hook)

    def _raise_broken(self) -> None:
        with self._changed:
            broken, self._broken = self._broken, None
        if broken is not None:
            raise broken

    # --- in the writer thread

    def _work(self) -> None:
        while (draft := self._next()) is not None:
            try:
                self._write(draft)
            except (OSError, Damaged) as error:
                self._publisher.failed(draft, reason(error))
            except BaseException as error:
                self._publisher.failed(draft, reason(error))
                with self._changed:
                    self._broken = error
            finally:
                draft.copied.set()
                self._give_back(draft)

    def _next(self) -> Draft | None:
        with self._changed:
            self._changed.wait_for(lambda: self._waiting or self._ending)
            self._writing = self._waiting.pop(0) if self._waiting else None
            return self._writing

    def _write(self, draft: Draft) -> None:
        try:
            draft.copy_later()
        except Damaged:
            self._at_once = True  # the state was changed during the copy, and will be again
            raise
        saved = self._publisher.write(draft)
        with self._changed:
            self._saved = saved


def _on_stderr(text: str) -> None:
    sys.stderr.write(f"poise: {text}\n")


__all__ = ["Checkpoints"]
