"""A training loop that can be stopped, resized and resumed, with three changed lines in a plain PyTorch script.

    with poise.Session(model, optimizer, data) as run:      # restores, joins, watches
        for batch in run:                                   # the right shard, of the right size
            run.step(loss_fn(model(batch)))                 # accumulates, all-reduces, clips, steps

The loop sees micro-batches; the weights change at the end of each *step*: the next `batch` samples of the epoch, over
all workers. The loss is a mean over its micro-batch, and is weighted so that the optimizer gets the gradient of the
mean over the step, for any number of workers and any micro-batch size.

All collective operations happen at the end of a step, in a fixed order. There the workers also vote, with a few numbers
summed beside the gradients, on actions that need all of them: save, stop, or re-form the gang.

A step is repeated before it changes the weights if memory ran out or 16-bit gradients overflowed. Then the loop gets
the same samples again, perhaps in smaller micro-batches, with buffers and random states restored. The other workers
wait for a worker that repeats its part.
"""

import hashlib
import math
import os
import signal
import statistics
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from operator import attrgetter
from types import FrameType, TracebackType
from typing import Any, Literal, Protocol, get_args

import torch
import torch.distributed as dist
from torch.optim.optimizer import register_optimizer_step_pre_hook
from torch.utils.data import DataLoader, Dataset, RandomSampler

from poise.drivers.heartbeat import step as beat
from poise.errors import GangBroken
from poise.model.precision import AS_IT_IS
from poise.model.precision import VARIABLE as PRECISION
from poise.model.progress import Speedups
from poise.model.training import ENDED_AS_ASKED, Training
from poise_train import given, shards, state
from poise_train.advise import Adviser, Named, exchange_named
from poise_train.batch import Before, Fitting, is_short
from poise_train.energy import Meter
from poise_train.exchange import Exchange
from poise_train.forward import answering
from poise_train.gang import Gang, Leaving, WorkerLost, next_session
from poise_train.given import misused
from poise_train.keeping import Keeping
from poise_train.loading import loaded, loading_of, moved
from poise_train.memory import Budget, Shares
from poise_train.model.phases import PhaseRules
from poise_train.policy.checkpoints import Keep
from poise_train.precision import checked, chosen, finite
from poise_train.randomness import Randomness
from poise_train.reducer import Reducer
from poise_train.telling import EVERY_SECONDS, Teller
from poise_train.topology import add_up
from poise_train.watch import Watch, norm_of

BATCH = 32
"""Default samples per step, if neither the session nor a DataLoader sets it."""

REGROUP_SECONDS = 60.0
"""Seconds that workers wait for new orders after the loss of another one."""

RECENT_STEPS = 64
"""Number of recent steps for median times."""

LOSS_STEPS = 8
"""On a GPU, the loss is summed over the workers and reported every this many steps."""

METER_SECONDS = 1.0
"""Interval of energy readings."""

_entered: list["Session"] = []
"""Active sessions of this process."""

_NEWER, _STOP, _SAVE, _OVERFLOWS, _LOWERS, _ENERGY, _STEP_LOSS, _UNUSED, _VOTES = range(9)
"""Indices of the values that are summed over the workers in each step; losses for the watch follow, when it is due."""

_WANTS_GRADIENT = attrgetter("requires_grad")

Scaling = Literal["constant", "linear", "sqrt"]
SCALINGS = get_args(Scaling)


class Keeps(Protocol):
    """An object with a state to save and load, such as a model, an optimizer or a scheduler."""

    def state_dict(self) -> Any: ...

    def load_state_dict(self, state_dict: Any, /) -> Any: ...


class Session:
    """Training of `model` by `optimizer` on `data`, a Dataset with a length or a DataLoader of one.

    A step takes `batch` samples (without one, those of the DataLoader), in micro-batches of at most `micro` on each
    worker (0: as many as the memory allows). They adapt to the memory. It makes `epochs` passes over the data, each in
    an order drawn from `seed` (`shuffle`: by default that of the DataLoader). `scheduler` steps after each step, or
    with `each="pass"` after each pass, like a ReduceLROnPlateau by its mean loss. Gradients are clipped to a norm of
    `clip` (0: no clipping). `also` names other objects with a state to save. `precision` is `fp32`, `bf16`, `fp16`, or
    `auto`: 16 bits if they are faster on this worker's device, unless the phase of the training requires another.
    `memory` divides its memory. `phases` has the rules of its phases; None disables them.

    `scaling` is the effect of another number of workers. `constant`: none; a step has the same samples, split over more
    or fewer workers. `linear` and `sqrt`: each worker takes `batch` samples. The learning rate is multiplied by the
    number of workers (Goyal et al., 2017) or its square root (Krizhevsky, 2014).

    `checkpoint` is the folder of its checkpoints (default: POISE_CHECKPOINTS; without it, none are written), `keep` the
    rule that selects the kept ones, and `every` the interval: a number of steps, a time such as `5m`, or automatic.

    `exchange` is the method to sum gradients: "plain", "fp16", "bf16", "powersgd", "topk", or an Exchange object with
    other settings; "auto" measures them and takes the fastest for this job.

    Raises Misused for unsupported use, GangBroken if a worker is lost and no orders come to continue. At SIGTERM it
    ends after the step, with exit code 143.
    """

    def __init__(
        self,
        model: torch.nn.Module,
        optimizer: torch.optim.Optimizer,
        data: Dataset[Any] | DataLoader[Any],
        *,
        batch: int = 0,
        micro: int = 0,
        epochs: int = 1,
        seed: int = 0,
        shuffle: bool | None = None,
        scheduler: Keeps | None = None,
        each: Literal["", "step", "pass"] = "",
        clip: float = 0.0,
        scaling: Scaling = "constant",
        exchange: Exchange | Named | Literal["auto"] = "plain",
        also: Mapping[str, Keeps] | None = None,
        phases: PhaseRules | None = PhaseRules(),  # noqa: B008 - frozen
        checkpoint: str | os.PathLike[str] | None = None,
        keep: Keep = Keep(),  # noqa: B008  it is frozen
        every: int | str = "",
        precision: str = "",
        memory: Shares | None = None,
    ) -> None:
        loader = data if isinstance(data, DataLoader) else None
        self.data: Dataset[Any] = loader.dataset if loader is not None else data  # type: ignore[assignment]
        given.check_model(model, optimizer)
        given.check_distributed(model, optimizer)
        given.check_data(self.data, loader)
        given.check_numbers(batch=batch, micro=micro, epochs=epochs, seed=seed)
        given.check_clip(clip)
        given.check_also(also or {})
        if scaling not in SCALINGS:
            raise misused("this scaling is not known", field="scaling", have=repr(scaling), hint='scaling="linear"')
        if each not in ("", "step", "pass"):
            raise misused("it is neither", field="each", need="step or pass", have=repr(each), hint='each="pass"')
        for name, value, kind in (
            ("keep", keep, Keep),
            ("memory", memory or Shares(), Shares),
            ("phases", phases or PhaseRules(), PhaseRules),
        ):
            given.wants(name, value, kind, kind.__name__, f"from {kind.__module__} import {kind.__name__}")
        given.wants("shuffle", shuffle or False, bool, "True or False", "shuffle=False")
        given.wants("every", every, (int, str), "steps, or a time", 'every="5m"')
        given.wants("checkpoint", checkpoint or "", (str, os.PathLike), "a folder", 'checkpoint="checkpoints"')
        given.wants("precision", precision, str, "fp32, bf16, fp16 or auto", 'precision="auto"')
        if not isinstance(exchange, str):
            given.wants("exchange", exchange, Exchange, "a name or an Exchange", 'exchange="fp16"')
        self.model, self.optimizer, self.scheduler = model, optimizer, scheduler
        self.device = next((one.device for one in model.parameters()), torch.device("cpu"))
        self._moves = self.device.type != "cpu"
        self.seed, self.clip, self.scaling = seed, clip, scaling
        self.batch = batch or (loader.batch_size if loader is not None else 0) or BATCH
        self.micro = micro
        self.exchange: Exchange = exchange_named(exchange) if isinstance(exchange, str) else exchange
        self._shuffle = shuffle if shuffle is not None else loader is None or isinstance(loader.sampler, RandomSampler)
        self._loading = loading_of(loader)
        self._samples = len(self.data)  # type: ignore[arg-type]
        self._drops = loader is not None and loader.drop_last
        self.watch = Watch(phases)
        self._kept: dict[str, Keeps] = {
            "model": model,
            "optimizer": optimizer,
            "exchange": self.exchange,
            "watch": self.watch,
            **(also or {}),
        }
        if scheduler is not None:
            self._kept["scheduler"] = scheduler
        self._plateau = given.plateau_of(scheduler)
        self._each = each
        self._pass_loss = 0.0  # summed over the samples of this pass, if the scheduler needs it
        self._epochs = self._until = epochs
        given.check_parameters(optimizer, self._kept)
        self._ones: list[torch.nn.Parameter] = []  # the optimizer's parameters
        self._groups, self._trained = 0, list[bool]()
        self._parameters = given.trained(optimizer, self._kept.values())

        self.epoch = self.steps = self.samples = 0
        self._taken = 0  # samples of this pass
        self._goes_on = False  # restored from a checkpoint, before the first step
        self._over = False  # the others had finished when this worker joined
        self._began = time.time()
        self._synced = False
        self._changed = False  # the remaining micro-batches must be planned again

        self._gang = Gang(self.device)
        self._reducer: Reducer | None = None
        self._at: tuple[shards.Step, shards.Micro] | None = None
        self._budget = Budget(self.device, memory)
        self._fitting = Fitting(model, self._budget, self._share, most=micro, careful=self.device.type == "cpu")
        self._before = Before(model)
        self._drawn: list[Any] = []  # random state of each worker in the restored checkpoint
        self._again = False  # the next step is a repetition
        self._short = False  # this micro-batch ran out of memory
        self._voted = False  # the votes of this step are sent
        self._precision = chosen(precision or os.environ.get(PRECISION, "") or AS_IT_IS, self.device, model)
        if phases is not None:  # report errors now, not when a phase begins
            for pace in (phases.initial, phases.convergence, phases.tuning):
                checked(pace.precision or AS_IT_IS)
        self._meter = Meter(self.device)
        self._meter_next = 0.0
        self._energy = self._told = 0  # millijoules: of all workers and attempts; reported by this worker
        self._answering = ExitStack()

        self._wishes = [0.0] * _VOTES
        self._vote: Callable[[], list[float]] | None = None
        self._stopping = False
        self._handler: Any = None
        self._teller = Teller()
        self._gang.waits_long = self._teller.rests
        self._keeping = Keeping(checkpoint, keep, every)
        self._score: float | None = None
        self._loss: torch.Tensor | float = 0.0
        self._loss_share = 0.0
        self._witness: torch.nn.Parameter | None = None  # a parameter with a gradient after the previous micro-batch
        self._last_loss = 0.0  # of the latest reported step, over all workers
        self._asks_loss = False  # whether this step's loss is summed over the workers
        self._made = 0  # steps of this process
        self._looks = False  # whether the watch evaluates this step
        self._times: deque[float] = deque(maxlen=RECENT_STEPS)
        self._computes: deque[float] = deque(maxlen=RECENT_STEPS)
        self._waited = 0.0  # seconds spent waiting for the other workers in this step
        self._moment = 0.0
        self._entered = self._stepping = self._fresh = False

    # --- public interface --------------------------------------------------------------------------------------------

    @property
    def rank(self) -> int:
        """This worker's number, from 0; worker 0 writes and prints."""
        return self._gang.rank

    @property
    def world(self) -> int:
        """Current number of workers."""
        return self._gang.world

    @property
    def effective(self) -> int:
        """Samples of one step."""
        return self.batch if self.scaling == "constant" else self.batch * self.world

    @property
    def _share(self) -> int:
        """Maximum number of samples that one worker takes in a step."""
        return -(-self.effective // self.world)

    @property
    def _whole(self) -> int:
        """Number of samples in a pass, without an incomplete last batch if the DataLoader drops it."""
        return self._samples - self._samples % self.effective if self._drops else self._samples

    @property
    def precision(self) -> str:
        """Precision of this worker."""
        return self._precision.name

    def __enter__(self) -> "Session":
        if threading.current_thread() is threading.main_thread():
            self._handler = signal.signal(signal.SIGTERM, self._asked_to_end)
        if any(one._in_gang for one in _entered):
            raise misused(
                "a session has begun inside another, and the workers of a gang would get their steps in another order",
                need="one session at a time, in a gang",
                have=f"{len(_entered)} that {'has' if len(_entered) == 1 else 'have'} begun and not ended",
                hint="one session, with one optimizer for all trained parameters; or train with one worker",
            )
        self._gang.session = next_session()
        self._keeping.of_session(self._gang.session)
        try:
            self._join()
            self._entered = True
            _entered.append(self)
            self._answering.callback(_entered.remove, self)
            self._answering.callback(register_optimizer_step_pre_hook(self._steps_here).remove)
            self._answering.enter_context(
                answering(self.model, self._precision, self._budget, self._short_in_forward, self._evaluates)
            )
        except BaseException:
            with ExitStack() as last:
                last.callback(self._leave)
                last.callback(self._keeping.close, 0)
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        try:
            if error is not None and is_short(error):
                error.add_note(
                    "hint: what `run.step(lambda: loss_fn(model(batch)))` works out is repeated in smaller parts"
                )
            if kind is None:
                self._save(parting=True)
            if kind is None or (isinstance(error, SystemExit) and not error.code):
                self._gang.conclude(self.steps)
            self._keeping.close()
            if kind is None or isinstance(error, SystemExit):  # after the last checkpoint, to include it
                self._teller.tell(self.training, now=True)
                self._teller.rests()
            if kind is None:
                self._keeping.check_last()
        finally:
            self._leave()

    def _leave(self) -> None:
        """Release all resources of the session, each one even if another fails."""
        with ExitStack() as last:  # callbacks run in reverse order
            last.callback(self._gang.disband)
            last.callback(self._drop_reducer)
            last.callback(self._answering.close)
            if self._handler is not None:
                handler, self._handler = self._handler, None
                last.callback(signal.signal, signal.SIGTERM, handler)
            self._entered = False

    def epochs(self, count: int = 0) -> Iterator[int]:
        """The remaining passes of `count` (default: those of the session), by number; a loop over the session inside
        makes the rest of that pass.
        """
        given.check_numbers(epochs=count)
        self._epochs = count or self._epochs
        self._say_if_done()
        while self.epoch < self._epochs and not self._over:
            now = self.epoch
            self._until = now + 1
            yield now
            if self.epoch == now:
                raise misused("a pass was not made to its end", hint="for batch in run: run.step(...)")

    def __iter__(self) -> Iterator[Any]:
        """Iterate over this worker's micro-batches, to the end of the last pass."""
        if not self._entered:
            raise misused("training has not begun", hint="with poise.Session(model, optimizer, data) as run:")
        self._say_if_done()
        while self.epoch < self._until and not self._over:
            yield from self._rest_of_the_pass()
        self._teller.rests()  # no time limit for the script's work between passes

    def step(self, loss: torch.Tensor | Callable[[], torch.Tensor]) -> None:
        """Compute the gradients of a mean loss over the micro-batch; the last one of a step updates the weights. `loss`
        may also be a function that returns the loss.
        """
        if self._at is None:
            raise misused("`step` is called once for each batch", hint="for batch in run: run.step(loss)")
        (step, micro), self._at = self._at, None
        try:
            if not self._short:
                self._backward(loss, step, micro)
        except Exception as error:
            if not is_short(error):
                raise
            self._short = True
        if not self._short:
            self._fitting.end(micro.samples)
        else:
            if isinstance(loss, torch.Tensor) and loss.grad_fn is not None:
                loss.detach_()  # free the graph, which the script may still reference
            self._fitting.short(micro.samples)
            if self._make_again():
                return
        if micro.last:
            self._finish(step)

    @contextmanager
    def evaluating(self) -> Iterator[None]:
        """Announce an evaluation, so that its time does not count as a hang and `poise show` reports it:

            with run.evaluating():
                accuracy = accuracy_on(validation)

        Without it an evaluation is recognized by its calls of the model.
        """
        beat()
        with self._teller.evaluating():
            yield
        beat()

    def score(self, value: float) -> None:
        """Set the current score, larger is better, for `Keep(best=…)`. A checkpoint with this score is written at the
        end of the next step, or at the end of training. The score of worker 0 counts.
        """
        if isinstance(value, bool | str) or not math.isfinite(value):
            raise misused("this is no score", field="score", need="a finite number", have=repr(value), hint="0.9")
        self._score = float(value)

    def training(self) -> Training:
        """Reported progress of the training."""
        elapsed = time.time() - self._began
        median = statistics.median(self._times) if self._times else 0.0
        saved = self._keeping.said()
        return Training(
            step=self.steps,
            samples=self.samples,
            progress=self._progress(),
            safe=self._keeping.safe,
            world=self.world,
            batch=self._fitting.batch,
            accumulation=self._fitting.accumulation,
            effective=self.effective,
            rate=float(self.optimizer.param_groups[0]["lr"]),
            loss=self._last_loss,
            precision=self._precision.name,
            phase=self.watch.phase,
            step_time=int(median * 1e9),
            compute=int(statistics.median(self._computes) * 1e9) if self._computes else 0,
            goodput=int(1000 * self.samples / elapsed) if elapsed > 0 else 0,
            throughput=int(1000 * self.effective / median) if median else 0,
            sent=self.exchange.sent // max(1, self._made),
            plain=self.exchange.plain // max(1, self._made),
            route=self._reducer.route if self._reducer is not None else "",
            checkpoint=saved,
            restored=self._keeping.restored,
            energy=self._energy,
            energy_source=self._meter.source,
            memory=self._budget.most,
            budget=self._budget.total,
            resizes=self._gang.resizes,
            advice=self.exchange.advice,
            speedups=self._speedups(),
        )

    def _progress(self) -> int:
        """Completed share of the training, in millionths; -1 if unknown."""
        passes = self._epochs * self._whole
        done = self.epoch * self._whole + self._taken
        return min(1_000_000, 1_000_000 * done // passes) if passes else -1

    def _speedups(self) -> Speedups | None:
        """Return speedups if they were measured and the step size does not depend on the number of workers."""
        if isinstance(self.exchange, Adviser) and self.scaling == "constant":
            return self.exchange.speedups(self.effective)
        return None

    def _say_if_done(self) -> None:
        """Explain why a script restarted after completed training exits at once. Also check the scheduler's length,
        because the number of passes is first known here.
        """
        if self.scheduler is not None and self._plateau is None and not self._each:
            given.check_pace(self.scheduler, self._epochs, self._all_steps())
        if self._goes_on and self.rank == 0 and self.epoch >= self._epochs:
            passes = "1 pass was" if self._epochs == 1 else f"{self._epochs:,} passes were"
            sys.stderr.write(
                f"poise: this training is done: {passes} made, in {self.steps:,} steps ({self._keeping.restored})\n"
                "hint: `epochs=` for more of them, or `checkpoint=` another folder to begin anew\n"
            )
        self._goes_on = False

    # --- one step ----------------------------------------------------------------------------------------------------

    def _rest_of_the_pass(self) -> Iterator[Any]:
        """Iterate over this worker's share, until the pass ends or its share changes."""
        self._changed = False
        if not self._again:  # a loop before this one may have been left in the middle of a step
            self._at, self._witness, self._loss, self._loss_share = None, None, 0.0, 0.0
            self._clear()
        places = shards.order(self._samples, seed=self.seed, turn=self.epoch, shuffle=self._shuffle)
        taken, effective, rank, world = self._taken, self.effective, self.rank, self.world
        most = self._fitting.batch

        def plan() -> Iterator[tuple[shards.Step, list[shards.Micro]]]:
            for step in shards.steps(self._whole, effective, begin=taken):
                yield step, step.share(rank, world, most)

        indices = (places[micro.start : micro.stop].tolist() for _, share in plan() for micro in share)
        # draw seeds of loader processes from a separate generator, so that they do not affect the training
        drawn = torch.Generator().manual_seed(self.seed + self.steps)
        batches = iter(loaded(self.data, indices, drawn, self._loading))
        self._moment = time.perf_counter()
        for step, share in plan():
            if self._reducer is None:
                self.optimizer.zero_grad(set_to_none=True)
            if self._again:
                self._before.put_back()
            else:
                self._draw_on()
                self._before.keep()
                self._fresh = True
            self._again = False
            for micro in share:
                if self._at is not None:
                    raise misused("a batch was taken and no step was made", hint="run.step(loss) for each batch")
                self._fitting.begin(micro.samples)
                batch = next(batches)
                if self._moves:
                    batch = moved(batch, self.device)
                self._at = step, micro
                yield batch
                del batch
                if self._changed:
                    return
            if not share:
                self._last_backward()
                self._finish(step)
                if self._changed:
                    return
        if self._at is not None:
            raise misused("a batch was taken and no step was made", hint="run.step(loss) for each batch")
        self.epoch, self._taken = self.epoch + 1, 0

    def _backward(
        self, loss: torch.Tensor | Callable[[], torch.Tensor], step: shards.Step, micro: shards.Micro
    ) -> None:
        """Add the gradients of a micro-batch to those of the step."""
        value = loss() if callable(loss) else loss
        if self._short:  # it was computed without a graph for backward
            return
        if not isinstance(value, torch.Tensor) or value.dim() or not value.requires_grad:
            given.check_loss(value)
        if self._witness is not None and self._witness.grad is None:
            raise misused(
                "the gradients were cleared in the middle of a step",
                need="those of all micro-batches",
                have="`zero_grad` between two of them",
                hint="leave out `optimizer.zero_grad()`: the session clears gradients",
            )
        if self._fresh:
            self._fresh = False
            self._look_at_parameters()
        weight = micro.samples / step.samples
        part = value.detach() if weight == 1.0 else value.detach() * weight
        self._loss = self._loss + part if self._loss_share else part
        self._loss_share += weight
        if micro.last:
            self._last_backward(early=micro.samples <= self._fitting.largest)
        self._precision.scaled(value * weight if weight != 1.0 else value).backward()
        self._witness = None if micro.last else next((one for one in self._parameters if one.grad is not None), None)

    def _last_backward(self, *, early: bool = True) -> None:
        """Send the votes of this step, then prepare to send gradients as the last backward produces them."""
        if self._voted:
            if self._reducer is not None:
                self._reducer.begin(early=early)
            return
        self._voted = True
        moment = time.monotonic()
        if moment >= self._meter_next:
            self._meter_next = moment + METER_SECONDS
            used = self._meter.read()
            self._wishes[_ENERGY] += used - self._told
            self._told = used
        self._wishes[_OVERFLOWS] = float(self._precision.overflows)
        self._wishes[_LOWERS] = float(self._precision.lowers)
        self._wishes[_NEWER] = float(self._gang.is_to_change())
        self._wishes[_UNUSED] = float(self._reducer is not None and self._reducer.skips)
        is_due = self._score is not None or self._keeping.due(self.steps + 1)
        self._wishes[_SAVE] = float(self.rank == 0 and is_due)
        self._wishes[_STOP] = float(self._stopping and not self._gang.leaves())
        # reading the loss from a GPU blocks the step; on a CPU it is free
        self._asks_loss = self._plateau is not None or not self._moves or self.steps % LOSS_STEPS == 0
        self._wishes[_STEP_LOSS] = float(self._loss) if self._asks_loss else 0.0
        self.watch.note(self.steps, self._loss, float(self.optimizer.param_groups[0]["lr"]) * self._rate_factor())
        self._looks = self.watch.due(self.steps)
        self._wishes[_VOTES:] = self.watch.losses() if self._looks else ()
        if self._reducer is not None:
            self._vote = _counted(self._wishes)
            self._reducer.begin(early=early)

    def _finish(self, step: shards.Step) -> None:
        """Finish a step whose local gradients are complete: all-reduce them, update the weights, act on the votes."""
        self._voted = False
        votes, lost = self._added_up()
        if lost:  # roll back to before this step
            self._before.put_back()
            self._regroup(lost)
            return
        before = self.watch.phase
        self._energy += int(votes[_ENERGY])
        self._wishes[_ENERGY] = 0.0
        if self._reducer is None and votes[_OVERFLOWS]:
            for one in self._gradients():
                self._precision.unscale(one)
        if not votes[_OVERFLOWS] or self._precision.accepts(finite(self._gradients())):
            self._update(votes[_VOTES:])
        elif votes[_LOWERS]:  # some worker's loss scale was too large
            self._begin_again()
            self._clear()
            return
        self._clear()
        if self.watch.phase != before:
            self._precision.follow(self.watch.precision)
        self._taken += step.samples
        if self._plateau is not None:
            self._pass_loss += votes[_STEP_LOSS] * step.samples
            if self._taken == self._whole:
                self._plateau.step(self._pass_loss / self._whole)
                self._pass_loss = 0.0
        elif self.scheduler is not None and self._each == "pass" and self._taken == self._whole:
            self._step_scheduler()
        self.samples += step.samples
        self.steps += 1
        lost = self._exchange_hears(bool(votes[_NEWER] or votes[_STOP] or votes[_SAVE]))
        self._made += 1
        moment = time.perf_counter()
        self._keeping.stepped(moment - self._moment, self._times)
        self._times.append(moment - self._moment)
        self._computes.append(moment - self._moment - self._waited)
        self._moment = moment
        if self._asks_loss:
            self._last_loss = votes[_STEP_LOSS]
        self._loss, self._loss_share = 0.0, 0.0
        beat()
        if (votes[_SAVE] or votes[_STOP]) and not lost:
            self._save(parting=bool(votes[_STOP]))
        self._teller.tell(self.training, now=self.watch.phase != before, every=self.watch.pace.tell)
        if self._fitting.adapt():
            self._changed = True
        if votes[_STOP]:
            raise SystemExit(ENDED_AS_ASKED)
        if votes[_NEWER] or lost:
            self._regroup(lost)

    def _exchange_hears(self, something_comes: bool) -> str:
        """Notify the exchange of the step, and even it out before a save, a stop or a change of the gang. Returns the
        error if a worker is lost.
        """
        if self._reducer is not None:
            try:
                with self._gang.waiting():
                    self.exchange.updated(self.optimizer)
                    if something_comes:
                        self.exchange.even_out()
            except (WorkerLost, RuntimeError) as error:
                return str(error) or "it has gone"
        return ""

    def _added_up(self) -> tuple[list[float], str]:
        """Wait for the summed gradients. Returns the summed votes, and the error as text if a worker is lost. Keeps no
        exception: its frames would hold open connections on which other workers wait.
        """
        if self._reducer is None:
            self._waited = 0.0
            return self._wishes.copy(), ""
        counted, self._vote = self._vote, None
        began = time.perf_counter()
        try:
            with self._gang.waiting():
                votes = counted() if counted is not None else [0.0] * len(self._wishes)
                self._reducer.finish(careful=bool(votes[_UNUSED]))
        except (WorkerLost, RuntimeError) as error:
            return [], str(error) or "it has gone"
        self._waited = time.perf_counter() - began
        return votes, ""

    def _update(self, losses: Sequence[float]) -> None:
        """Update the weights. `losses`: those since the watch's last evaluation, if it evaluates this step."""
        norm = torch.nn.utils.clip_grad_norm_(self._parameters, self.clip) if self.clip else None
        factor = self._rate_factor()
        if self._looks:
            norm = self._norm() if norm is None else norm
            self.watch.see(losses, norm=float(norm), total=self._all_steps())
        rates = [group["lr"] for group in self.optimizer.param_groups] if factor != 1.0 else ()
        for group, rate in zip(self.optimizer.param_groups, rates, strict=False):
            group["lr"] = rate * factor
        self._stepping = True
        try:
            self.optimizer.step()
        finally:
            self._stepping = False
        for group, rate in zip(self.optimizer.param_groups, rates, strict=False):
            group["lr"] = rate
        if self.scheduler is not None and self._plateau is None and self._each != "pass":
            self._step_scheduler()

    def _step_scheduler(self) -> None:
        try:
            self.scheduler.step()  # type: ignore[union-attr]
        except ValueError as error:  # PyTorch raises this at the end of the schedule
            need = self._epochs if self._each == "pass" else self._all_steps()
            raise misused(
                "the scheduler was made for fewer steps than are made",
                field="scheduler",
                need=f"{need:,} steps",
                have=str(error),
                hint=f"OneCycleLR(optimizer, ..., total_steps={need})",
            ) from None

    def _gradients(self) -> list[torch.Tensor]:
        if self._reducer is not None:
            return [bucket.flat for bucket in self._reducer.buckets]
        return [one.grad for one in self._parameters if one.grad is not None]

    def _clear(self) -> None:
        """Clear the reducer's gradients. A single worker clears its gradients before the next step instead, as in a
        plain loop: freed at the end of a step, their memory would have to be allocated again.
        """
        if self._reducer is not None:
            self._reducer.clear()

    def _norm(self) -> torch.Tensor:
        """Norm of the gradient that the optimizer gets."""
        if self._reducer is not None:
            return norm_of(bucket.flat for bucket in self._reducer.buckets)
        return norm_of(one.grad for one in self._parameters if one.grad is not None)

    def _all_steps(self) -> int:
        """Total number of steps at the end of the last pass, if the number of workers does not change."""
        this, others = self._whole - self._taken, max(0, self._epochs - self.epoch - 1)
        return self.steps - (-this // self.effective) - (-self._whole // self.effective) * others

    def _evaluates(self) -> None:
        """Handle a forward outside a step: send a heartbeat, and report an evaluation if no step is recent."""
        beat()
        if self._at is None and time.perf_counter() > self._moment + EVERY_SECONDS:
            self._teller.evaluates()

    def _short_in_forward(self) -> bool:
        """Note that a forward ran out of memory. Returns whether it belongs to a micro-batch, which can be repeated."""
        self._short = self._at is not None
        return self._short

    def _make_again(self) -> bool:
        """Repeat the step in smaller micro-batches. Returns false if all its gradients were computed and sent before
        memory ran out.
        """
        if self._reducer is not None and self._reducer.all_out:
            self._short = False
            return False
        if self._reducer is not None:
            self._reducer.again()
        self._begin_again()
        return True

    def _begin_again(self) -> None:
        self._again, self._short, self._witness = True, False, None
        self._changed, self._at = True, None
        self._loss, self._loss_share = 0.0, 0.0

    def _rate_factor(self) -> float:
        if self.scaling == "linear":
            return float(self.world)
        return math.sqrt(self.world) if self.scaling == "sqrt" else 1.0

    # --- the gang ----------------------------------------------------------------------------------------------------

    def _join(self) -> None:
        """Form the gang and synchronize its state; retry when workers are lost or join meanwhile."""
        self._drop_reducer()
        while lost := self._formed():
            self._await_orders(lost)
        self._fitting.resize(self._share)
        self._teller.silent = self._over or (self.rank != 0 and not self._gang.watched)  # all share one file
        if self._in_gang:
            given.check_for_gang(self.optimizer, self._kept)
        if self._gang.together:
            self.exchange.share(self.world)
            self._renew_reducer()
        else:
            self.exchange.load_state_dict({})  # discard residuals: there are no other workers

    def _formed(self) -> str:
        """Form the gang once. Returns the error if a worker is lost meanwhile."""
        try:
            self._gang.form(self._while_waiting)
            with self._gang.waiting():
                self._agree()
                self._keeping.open(self.rank, self.world, *self._gang.agreed())
                self._restore()
                self._sync()
            self._keeping.go_on_from(self.steps)
        except Leaving as leaving:
            if leaving.over_at < 0:
                raise SystemExit(ENDED_AS_ASKED) from None
            self._take_outcome(leaving.over_at)
        except (WorkerLost, RuntimeError) as error:
            return str(error) or "it has gone"
        return ""

    def _agree(self) -> None:
        """Check that all workers have the same settings. Raises Misused on all of them otherwise."""
        if not self._gang.together:
            return
        ours = {
            **self._order(),
            "batch": self.batch,
            "scaling": SCALINGS.index(self.scaling),
            "drop_last": int(self._drops),
            "exchange": _number_of(self.exchange.name),
            "optimizer": _number_of(type(self.optimizer).__name__),
            "model": _number_of([(name, tuple(one.shape)) for name, one in self.model.named_parameters()]),
        }
        mine = torch.tensor(list(ours.values()))
        theirs = [torch.zeros_like(mine) for _ in range(self.world)]
        dist.all_gather(theirs, mine)
        for place, name in enumerate(ours):
            values = [int(one[place]) for one in theirs]
            if other := next((rank for rank, value in enumerate(values) if value != values[0]), 0):
                told = name in ("samples", "batch", "seed")
                raise misused(
                    "the workers of a gang run one script with the same settings, and these differ",
                    field=name,
                    need=f"{values[0]}, as worker 0 has" if told else "as worker 0 has it",
                    have=f"{values[other]} at worker {other}" if told else f"worker {other} has another",
                    hint="print it on all workers: it may depend on the environment, the host or randomness",
                )

    def _take_outcome(self, step: int) -> None:
        """Load the final checkpoint of a session that the other workers have finished, so that this worker can continue
        with the rest of the script. Exits if there is no such checkpoint.
        """
        if (found := self._keeping.outcome(step)) is None:
            raise SystemExit(0)
        self._over = True
        self._load(found[0])

    def _sync(self) -> None:
        """Broadcast the state of the worker that is furthest ahead. New workers have no state, and a worker lost within
        a step may have left others one step behind.
        """
        if self._gang.together:
            mine = self.steps if self._synced or self.rank == 0 else -1
            steps = [torch.zeros(1, dtype=torch.int64) for _ in range(self.world)]
            dist.all_gather(steps, torch.tensor([mine]))
            ahead = max(range(self.world), key=lambda rank: int(steps[rank]))
            if any(int(one) != int(steps[ahead]) for one in steps):
                more = {"drawn": self._drawn, "kept": self._keeping.known()}
                whole = {**self._state(), **more} if self.rank == ahead else None
                found = state.broadcast(whole, ahead, self.rank, self.device)
                if self.rank != ahead:
                    self._load(found)
                    self._drawn = found["drawn"]
                    self._keeping.learn(found["kept"])
        self._synced = True

    def _regroup(self, lost: str) -> None:
        if lost:
            self._keeping.lost()
            self.exchange.abandon()
        self._changed, self._at, self._witness = True, None, None
        self._loss, self._loss_share = 0.0, 0.0
        self.watch.forget()
        self._await_orders(lost)
        self._join()
        self._teller.tell(self.training, now=True)

    def _await_orders(self, lost: str) -> None:
        """Wait for orders with the new members of the gang. Raises GangBroken if none arrive."""
        self._gang.disband(broken=bool(lost))
        if self._gang.watched and self._gang.await_newer(REGROUP_SECONDS, self._while_waiting):
            return
        if self._gang.is_over:
            raise GangBroken(
                "another worker has left training, and this one is in the middle of it",
                need="all workers leave after the same step",
                have=f"this one has made {self.steps:,} steps",
                hint="leave the loop on a condition that is equal on all workers, such as `run.steps`",
            )
        raise GangBroken(
            "a worker of the gang was lost, and no orders came to continue without it",
            have=(lost or "no newer orders").splitlines()[0],
            hint="poise run --workers 1..4 -- python train.py",
        )

    def _while_waiting(self) -> None:
        beat()
        if self._stopping and self._gang.newer() is None:
            raise SystemExit(ENDED_AS_ASKED)

    def _steps_here(self, optimizer: torch.optim.Optimizer, *_: object) -> None:
        """Refuse the script's own optimizer steps. In a gang, other optimizers may step only plain tensors."""
        if self._stepping:
            return
        if optimizer is self.optimizer:
            raise misused("the session steps the optimizer", hint="leave out `optimizer.step()`: run.step(loss)")
        ones = (one for group in optimizer.param_groups for one in group["params"])
        if self._in_gang and any(isinstance(one, torch.nn.Parameter) for one in ones):
            raise given.another_optimizer(optimizer)

    @property
    def _in_gang(self) -> bool:
        """Whether other workers train with this one, or may join."""
        return self._gang.together or self._gang.resizes

    def _look_at_parameters(self) -> None:
        """Detect parameters that the script has frozen or unfrozen. All workers must do so in the same step."""
        groups = self.optimizer.param_groups
        trained = list(map(_WANTS_GRADIENT, self._ones))
        if trained != self._trained or len(groups) != self._groups:
            given.check_parameters(self.optimizer, self._kept)
            changed, self._groups = self._groups > 0, len(groups)
            self._ones = [one for group in groups for one in group["params"]]
            self._trained = list(map(_WANTS_GRADIENT, self._ones))
            if changed:
                self._parameters = given.trained(self.optimizer, self._kept.values())
                self._renew_reducer()

    def _renew_reducer(self) -> None:
        self._drop_reducer()
        if self._gang.together:
            self._reducer = Reducer(
                self._parameters, self.exchange, ready=self._precision.unscale, kept=self._budget.kept
            )

    def _drop_reducer(self) -> None:
        if self._reducer is not None:
            self._reducer.close()
            self._reducer = None

    def _asked_to_end(self, number: int, frame: FrameType | None) -> None:
        self._stopping = True

    # --- state and checkpoints ----------------------------------------------------------------------------------------

    def _state(self) -> dict[str, Any]:
        place = {
            "epoch": self.epoch,
            "taken": self._taken,
            "steps": self.steps,
            "samples": self.samples,
            "began": self._began,
            "energy": self._energy,
            "pass_loss": self._pass_loss,
            "loss": self._last_loss,
            "order": self._order(),
            "optimizer": type(self.optimizer).__name__,
            **self._precision.state(),
        }
        return {"place": place, **{name: one.state_dict() for name, one in self._kept.items()}}

    def _order(self) -> dict[str, int]:
        """Values that determine the order of samples in a pass."""
        return {"samples": self._samples, "seed": self.seed, "shuffle": int(self._shuffle)}

    def _check_place(self, place: Mapping[str, Any]) -> None:
        """Check that a checkpoint within a pass has the same sample order: otherwise its position is meaningless."""
        kind = type(self.optimizer).__name__
        if place.get("optimizer", kind) != kind:
            raise misused(
                "what was saved is of another model or optimizer",
                field="checkpoint",
                need=place["optimizer"],
                have=kind,
                hint='poise.Session(..., checkpoint="another folder")',
            )
        before, now = place.get("order", {}), self._order()
        for name, value in before.items() if place["taken"] else ():
            if value != now[name]:
                raise misused(
                    "a pass started in another order, and would use some samples twice and others never",
                    field="data" if name == "samples" else name,
                    need=f"{name} {value}, to the end of pass {place['epoch']}",
                    have=str(now[name]),
                    hint='poise.Session(..., checkpoint="another folder")',
                )

    def _load(self, found: Mapping[str, Any]) -> None:
        place = found["place"]
        self.epoch, self._taken = place["epoch"], place["taken"]
        self.steps, self.samples, self._began = place["steps"], place["samples"], place["began"]
        self._energy = int(place.get("energy", 0))
        self._pass_loss = float(place.get("pass_loss", 0.0))
        self._last_loss = float(place.get("loss", 0.0))
        for name, one in self._kept.items():
            if name in found:
                one.load_state_dict(found[name])
        self._precision.follow(self.watch.precision)
        self._precision.restore(place)

    def _restore(self) -> None:
        """Load the latest checkpoint on worker 0, at the start only. The others get the state from worker 0."""
        if self._synced or self.rank != 0 or (found := self._keeping.restore()) is None:
            return
        whole, self._drawn = found[0], list(found[1])
        self._check_place(whole["place"])
        self._goes_on, made_for = True, _length_of(self.scheduler)
        try:
            self._load(whole)
        except (RuntimeError, ValueError, LookupError) as error:  # PyTorch raises these for a mismatch
            raise misused(
                "what was saved is of another model or optimizer",
                field="checkpoint",
                have=str(error).strip().splitlines()[-1].strip(),
                hint='poise.Session(..., checkpoint="another folder")',
            ) from None
        self._keeping.compare(whole, self._kept)
        if (lasts := _length_of(self.scheduler)) < made_for:
            raise misused(
                "the learning rate that was saved follows a plan for fewer steps",
                field="scheduler",
                need=f"{made_for:,} steps",
                have=f"{lasts:,} steps",
                hint='as many epochs as before, or poise.Session(..., checkpoint="another folder")',
            )

    def _draw_on(self) -> None:
        """Restore this worker's random state from the checkpoint, if the gang has the same size."""
        if self._drawn:
            mine = self._drawn[self.rank] if len(self._drawn) == self.world else None
            if mine is not None:
                Randomness.of(mine).put_back()
            self._drawn = []

    def _save(self, *, parting: bool = False) -> None:
        score, self._score = self._score, None
        self._keeping.save(
            self._state,
            step=self.steps,
            progress=self._progress(),
            parting=parting,
            score=score,
            own=Randomness.now().state(),
            optimizer=self.optimizer,
            single=[
                one for module in self._kept.values() if isinstance(module, torch.nn.Module) for one in module.buffers()
            ],
        )


def _number_of(what: object) -> int:
    """Hash an object's repr to a number that is equal on all workers."""
    return int.from_bytes(hashlib.sha256(repr(what).encode()).digest()[:7], "big")


def _length_of(scheduler: Any) -> int:
    """Number of steps that the scheduler was made for; 0 if unknown."""
    length = getattr(scheduler, "total_steps", 0)
    return length if isinstance(length, int) else 0


def _counted(wishes: list[float]) -> Callable[[], list[float]]:
    """Start summing the votes of all workers. The returned function waits for the sum, or raises WorkerLost."""
    votes, lost = torch.tensor(wishes, dtype=torch.float64), ""
    wait: Callable[[], object] = bool
    try:
        wait, _ = add_up(votes)
    except RuntimeError as error:
        lost = str(error)

    def count() -> list[float]:
        if lost:
            raise WorkerLost(lost)
        wait()
        return votes.tolist()

    return count


__all__ = ["Session"]
