"""A unit and its state.

Its life: waiting (for `needs`) → pending → active → done | failed | cancelled, or skipped when something it needs
failed. A unit that serves calls rests as *waiting* while there is nothing for it to do. A lost attempt brings it back
to pending, under its retry policy. While its node is silent an attempt is `recovering`: it goes on if the node comes
back, and is placed again elsewhere if its retry policy allows that.

A unit's `epoch` counts its placements, and the times that it grew in place. An attempt has the epoch in which its task
was started; whatever carries an older one is history. A gang that resizes loses members, lets some go and gets new ones
while the others run on. Those are its members who have joined and are not leaving, ranked by the epoch in which they
joined, and then by their number.
"""

from collections.abc import Iterator
from copy import copy
from typing import Literal, get_args

import msgspec

from poise.kernel.ledger.tasks import TaskState
from poise.model.deadlines import Missed
from poise.model.decisions import Cause, Reason, Why
from poise.model.events import Lagging, Preempted, Resized, Straggling
from poise.model.jobs import ALL, Ending, Outcome, Speedups, Unit
from poise.model.messages import Attempt
from poise.model.resources import Shape
from poise.model.training import HUNDREDTH, Orders, Training
from poise.units import format_duration

UnitStatus = Literal["waiting", "pending", "active", "done", "failed", "cancelled", "skipped"]

OVER: frozenset[str] = frozenset({"done", "failed", "cancelled", "skipped"})
"""Statuses of units that nothing will change."""

CAUSES: tuple[str, ...] = get_args(Cause)

PAST_ORDERS = 8
"""Orders to yield that are kept per unit; the log has them all."""


class UnitState(msgspec.Struct, gc=False):
    """A unit's life. `stopping` says why its attempts are being stopped: `cancel`, `gang`, the cause of a preemption,
    or not at all. What was changed of a unit that runs is in its `next_spec` until it is tried again. `size` tasks were
    placed, in the artifact `variant`. `attained` is the service (run time times
    devices) of attempts that yielded, `preempted` their number (and `moved` that of the stops for its own good),
    `saved` the run time of their tasks up to the last checkpoint, which need not be done again, and `progress` what
    its last attempt itself said of that, in millionths of all its work; `yielded` are the latest orders to it, and
    `gained` those to others for its sake; `avoid` is a node to stay away from if another will do.

    `leases` says until when an earlier copy of exclusive work may still run, by the node it was on.

    `queued` and `brief` are as it was placed; `recalled`: it was queued once, came back unstarted, and is queued no
    more. `queue` names the units that are alike to placement. `expected`, `tail` and `slack` are nanoseconds of the
    critical path method; `due` is the instant by which the unit must end for every deadline after it to be met, 0 if
    there is none. `ooms` are the epochs in which it ran out of memory, `ran_out` is the least that it had asked for
    then; what it is tried in next is smaller where it can be: an elastic unit has at most `most` tasks (0: all).
    `barred` are the identities of devices that have failed it, with the epoch in which each did; `straggled` the latest
    reports of attempts that took longer than their like, `lags` that of a member for which its gang waits. `speedups`
    is how it scales, if it has said so; `training` what it said last of its training, at the instant `told`, `kept`
    when it was first known of its newest checkpoint, `phase` the one in which it was placed, and `left` how long the
    rest of its work takes with its least tasks, by what the last attempt had said of its progress (0: it had not).

    One that resizes changes its size in place, and `generation` counts how often since it was placed, in the epoch
    `founded` (0: the latest), the last time at the instant `resized`; `losses` is how often it has lost members since
    it was steady.
    `carried` is what it did in this placement before that, in nanoseconds of one task. One that was `missed` is
    cancelled, since a deadline could not be met any more. `lost` counts the attempts that were, where they do not count
    as `tries`. `limited` is the epoch in which it was placed when its time limit changed while it was active.
    """

    spec: Unit
    job: str
    ordinal: int
    queue: str
    status: UnitStatus = "waiting"
    epoch: int = 0
    tries: int = 0
    missing: int = 0
    ready: int = 0
    not_before: int = 0
    placed: int = 0
    ended: int = 0
    queued: bool = False
    brief: bool = False
    recalled: bool = False
    stopping: str = ""
    why: Why | None = None
    expected: int = 0
    tail: int = 0
    slack: int = 0
    due: int = 0
    tasks: list[TaskState] = []
    size: int = 0
    variant: int = 0
    attained: int = 0
    preempted: int = 0
    moved: int = 0
    yielded: tuple[Preempted | Resized, ...] = ()
    gained: tuple[Preempted | Resized, ...] = ()
    avoid: str = ""
    depth: int = 0
    saved: int = 0
    progress: int = 0
    outlived: int = 0
    ooms: tuple[int, ...] = ()
    ran_out: int = 0
    most: int = 0
    barred: dict[str, int] = {}
    straggled: tuple[Straggling, ...] = ()
    lags: Lagging | None = None
    speedups: Speedups | None = None
    training: Training | None = None
    phase: str = ""
    next_spec: Unit | None = None
    told: int = 0
    kept: int = 0
    left: int = 0
    generation: int = 0
    founded: int = 0
    resized: int = 0
    losses: int = 0
    carried: int = 0
    missed: Missed | None = None
    lost: int = 0
    leases: dict[str, int] = {}
    limited: int = 0

    def fork(self) -> "UnitState":
        """Return an independent copy."""
        made = copy(self)
        made.tasks, made.leases = [copy(task) for task in self.tasks], self.leases.copy()
        return made

    @property
    def resizes(self) -> bool:
        """Return whether the unit has reported, since its placement, that it can resize without a restart."""
        of = self.training
        return of is not None and of.resizes and self.told >= self.placed and self.spec.least > 0

    @property
    def placed_in(self) -> int:
        """The epoch in which it was placed last."""
        return self.founded or self.epoch

    @property
    def members(self) -> list[int]:
        """Numbers of the tasks that make up a gang, by rank."""
        those = [index for index, task in enumerate(self.tasks) if task.status != "idle" and not task.leaving]
        return sorted(those, key=self.epoch_of) if self.founded else those

    @property
    def first(self) -> TaskState:
        """Return the task of rank 0; without attempts, the first task."""
        return self.tasks[next(iter(self.members), 0)]

    def epoch_of(self, index: int) -> int:
        """The epoch in which a task was started last."""
        return self.tasks[index].epoch or self.epoch

    def run_in_size(self, task: TaskState) -> int:
        """For how long a task ran that has ended since its gang was resized last."""
        run = task.ending.run if task.ending is not None else 0
        return max(0, run - max(0, self.resized - task.started)) if self.resized else run

    @property
    def most_tasks(self) -> int:
        """How many tasks it may have when it is placed next."""
        return self.most or len(self.spec.tasks)

    @property
    def free_at(self) -> int:
        """The instant from which it may be placed: its back-off has ended, and no earlier copy can be left."""
        return max(self.not_before, *self.leases.values()) if self.leases else self.not_before

    @property
    def shape(self) -> Shape:
        """The shape of the artifact it was placed in."""
        plain = not (self.variant or self.barred or self.spec.phases)
        return self.spec.shape if plain else self.shape_of(self.variant)

    @property
    def phase_told(self) -> str:
        """The phase that its training said last that it is in."""
        return self.training.phase if self.training is not None else ""

    @property
    def shape_to_be(self) -> Shape:
        """The shape of the artifact it was placed in, for the phase that its training is in by now."""
        now, shape = self.spec.shape_in(self.phase_told, self.variant), self.shape
        return msgspec.structs.replace(shape, cpu=now.cpu, gpu_memory=now.gpu_memory)

    def shape_of(self, variant: int) -> Shape:
        """The shape of its artifact number `variant`, in the phase of its training and without the devices that have
        failed it: while it is placed, as that was when it was, since that is the room it holds.
        """
        shape = self.spec.shape_of(variant)
        if self.spec.phases:
            shape = self.spec.shape_in(self.phase if self.status == "active" else self.phase_told, variant)
        if not self.barred or not shape.gpus:
            return shape
        placed = self.status == "active"
        since = self.placed_in
        without = tuple(sorted(device for device, epoch in self.barred.items() if not placed or epoch < since))
        wants = msgspec.structs.replace(shape.wants, without=without)
        return msgspec.structs.replace(shape, wants=wants) if without else shape

    @property
    def id(self) -> str:
        return f"{self.job}.{self.spec.name}"

    @property
    def over(self) -> bool:
        return self.status in OVER

    @property
    def is_whole(self) -> bool:
        """Return whether the unit is active with all of its members, and is not being stopped."""
        return (
            self.status == "active"
            and not self.stopping
            and all(self.tasks[index].status in ("queued", "running") for index in self.members)
        )

    @property
    def whole_by_pace(self) -> int:
        """Nanoseconds that all of its work takes with its least tasks, at the pace that its training shows in this
        attempt; 0 where it has said too little.
        """
        if self.training is None or self.told < self.placed or not (started := self.first.started):
            return 0
        done, since = self.training.progress - self.progress, max(started, self.resized)
        if done < HUNDREDTH or self.told <= since:
            return 0
        return ((self.told - since) * self.size + self.carried) * ALL // done // (self.spec.least or self.size)

    def count_try(self, outcome: Outcome) -> None:
        """One more attempt has failed: it counts against its retries, or was lost."""
        if self.spec.retry.counts(outcome):
            self.tries += 1
        else:
            self.lost += 1

    def make_smaller(self) -> None:
        """Reduce a unit that ran out of memory: half the tasks if it is elastic, else an artifact that needs less."""
        self.ooms += (self.epoch,)
        self.ran_out = min(self.ran_out or self.shape.memory, self.shape.memory)
        if self.spec.least:
            self.most = max(self.spec.least, self.size // 2)

    def forget_member(self, index: int) -> None:
        """Reset a task that has ended, so that it is no longer a member of its gang."""
        task = self.tasks[index]
        if task.ending is not None:
            task.keep(self.epoch_of(index), task.ending, task.ended)
        task.status, task.pid, task.started, task.ended, task.straggles = "idle", 0, 0, 0, 0
        task.ending, task.epoch, task.leaving = None, 0, False

    def clear(self) -> None:
        """Prepare the unit for another attempt; keep the record of the last one."""
        for index in range(len(self.tasks)):
            self.forget_member(index)
        self.stopping = ""
        self.carried = 0


def leased(unit: UnitState, now: int) -> list[Reason]:
    """Every node on which an earlier copy of it may still run."""
    return [
        Reason(code="LEASE", subject=node, need=format_duration(until - now))
        for node, until in sorted(unit.leases.items())
        if until > now
    ]


def attempt_of(unit: UnitState, index: int) -> Attempt:
    return Attempt(f"{unit.job}.{unit.spec.tasks[index].name}", unit.epoch_of(index))


def orders_of(unit: UnitState) -> Iterator[tuple[int, Orders]]:
    """Yield the orders for each active task of a gang, by task index."""
    members = unit.members
    for rank, index in enumerate(members):
        if unit.tasks[index].active:
            yield index, Orders(generation=unit.generation, world=len(members), rank=rank)
    for index, task in enumerate(unit.tasks):
        if task.leaving:
            yield index, Orders(generation=unit.generation, world=len(members), rank=-1)


def deciding_ending(unit: UnitState) -> Ending:
    """Return the ending that decides a unit whose attempts have all ended: the first own failure, before those that
    were stopped because of it; `done` only if all are.
    """
    if len(unit.tasks) == 1 and (only := unit.tasks[0].ending) is not None:
        return only
    endings = sorted(
        ((task.ended, index, task.ending) for index, task in enumerate(unit.tasks) if task.ending is not None),
        key=lambda entry: entry[:2],
    )
    by_outcome = {ending.outcome: ending for _, _, ending in reversed(endings)}
    failed = [ending for _, _, ending in endings if ending.outcome not in ("done", "stopped", "returned")]
    return failed[0] if failed else by_outcome.get("stopped") or by_outcome.get("returned") or by_outcome["done"]
