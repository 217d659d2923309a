"""A unit and its state.

Status: waiting (for `needs`) → pending → active → done | failed | cancelled, or skipped if something it needs failed. A
worker of a job that serves calls is *waiting* while there are no calls for it. After a lost attempt a unit is pending
again, under its retry policy. While its node is silent an attempt is `recovering`: it resumes if the node comes back,
and is placed elsewhere if its retry policy allows that.

A unit's `epoch` counts its placements, and the times that it grew in place. An attempt has the epoch in which its task
was started; anything with an older epoch is outdated. A gang that resizes loses, releases and adds members while the
others run. Its members have joined and are not leaving. Their rank follows the epoch in which they joined, then their
number.
"""

from collections.abc import Iterator
from copy import copy
from typing import Literal, get_args

import msgspec

from poise.kernel.ledger.tasks import TaskState
from poise.model.deadlines import Missed
from poise.model.decisions import Cause, Reason, Why
from poise.model.events import Lagging, Preempted, Resized, Straggling
from poise.model.jobs import Ending, Outcome, Unit
from poise.model.messages import Attempt
from poise.model.progress import ALL, Speedups
from poise.model.resources import Shape
from poise.model.training import HUNDREDTH, Orders, Training
from poise.units import format_duration

UnitStatus = Literal["waiting", "pending", "active", "done", "failed", "cancelled", "skipped"]

OVER: frozenset[str] = frozenset({"done", "failed", "cancelled", "skipped"})
"""Final statuses of units."""

CAUSES: tuple[str, ...] = get_args(Cause)

PAST_ORDERS = 8
"""Number of preemption orders retained per unit; the log has all of them."""


class Suspension(msgspec.Struct, frozen=True, array_like=True):
    """A unit was suspended at this instant. It was last in use at the instant `since`, and gets these devices back."""

    at: int
    since: int
    devices: tuple[int, ...] = ()


class UnitState(msgspec.Struct, gc=False):
    """The state of a unit.

    Stops: `stopping` is the reason why its attempts are being stopped: `cancel`, `gang`, the cause of a preemption, or
    empty. A change of an active unit waits in `next_spec` for the next attempt. `missed`: cancelled because a deadline
    could no longer be met. `yielded` are the latest preemption orders to it, `gained` those to others for its sake.
    `limited` is the epoch of its placement when its time limit changed while it was active.

    Placement: `size` tasks were placed, in artifact `variant`. `queued` and `brief` are as placed. `recalled`: it came
    back unstarted from a node's queue, and is not queued again. `queue` names the units that are alike for placement.
    `avoid` is a node to avoid if another will do. `barred` maps devices that failed it to the epoch of the failure.
    `leases` maps a node to the instant until which an earlier copy of exclusive work may run there.

    Suspended: while it is `suspended`, its processes are stopped, and it holds only its memory.

    Counts: `attained` is the service (run time times devices) of preempted attempts, `preempted` their number, `moved`
    the number of stops for its own good. `lost` counts lost attempts that do not count as `tries`.

    Memory: `ooms` are the epochs in which it ran out of memory, `ran_out` is the least amount it had asked for then.
    The next attempt is smaller if possible: an elastic unit has at most `most` tasks (0: all). `lowered_from` is the
    limit of its attempt before that was lowered in place (0: it was not, or has its limit again), `regained` the limit
    to which such a limit was raised again (0: never). No rule fits a lower one.

    Times: `expected`, `tail` and `slack` are nanoseconds of the critical path method. `due` is the latest end with
    which every later deadline can be met (0: none). `saved` is the run time of its tasks up to the last checkpoint,
    which need not be repeated. `straggled` are the latest straggler reports, `lags` is that of a member that delays its
    gang.

    Training: `progress` is the work done as reported by the last attempt, in millionths. `speedups` is its reported
    scaling, `training` its latest report, received at `told`. `kept` is when its newest checkpoint became known,
    `phase` the phase in which it was placed. `left` is the remaining run time with its least tasks, from the progress
    that the last attempt reported (0: none).

    Resizing: `generation` counts the changes in size since its placement in epoch `founded` (0: the latest), the last
    at `resized`. `losses` counts losses of members since it was steady. `carried` is the work in this placement before
    that, in nanoseconds of one task.
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
    suspended: Suspension | None = None
    lowered_from: int = 0
    regained: int = 0

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
        """Epoch of its latest placement."""
        return self.founded or self.epoch

    @property
    def members(self) -> list[int]:
        """Numbers of the tasks that are members of the gang, by rank."""
        those = [index for index, task in enumerate(self.tasks) if task.status != "idle" and not task.leaving]
        return sorted(those, key=self.epoch_of) if self.founded else those

    @property
    def first(self) -> TaskState:
        """Return the task of rank 0; without attempts, the first task."""
        return self.tasks[next(iter(self.members), 0)]

    def epoch_of(self, index: int) -> int:
        """Return the epoch in which a task was last started."""
        return self.tasks[index].epoch or self.epoch

    def run_in_size(self, task: TaskState) -> int:
        """Return how long an ended task ran since the last resize of its gang."""
        run = task.ending.run if task.ending is not None else 0
        return max(0, run - max(0, self.resized - task.started)) if self.resized else run

    @property
    def most_tasks(self) -> int:
        """Maximum number of tasks in its next placement."""
        return self.most or len(self.spec.tasks)

    @property
    def free_at(self) -> int:
        """Instant from which it may be placed: its back-off is over and no earlier copy can still run."""
        return max(self.not_before, *self.leases.values()) if self.leases else self.not_before

    @property
    def shape(self) -> Shape:
        """Shape of the artifact in which it was placed; while it is suspended, what it keeps of that."""
        plain = not (self.variant or self.barred or self.spec.phases)
        shape = self.spec.shape if plain else self.shape_of(self.variant)
        return shape if self.suspended is None else shape.suspended

    @property
    def phase_told(self) -> str:
        """The phase in the latest report of its training."""
        return self.training.phase if self.training is not None else ""

    @property
    def shape_to_be(self) -> Shape:
        """Shape of the artifact in which it was placed, for the current phase of its training."""
        now, shape = self.spec.shape_in(self.phase_told, self.variant), self.shape
        return msgspec.structs.replace(shape, cpu=now.cpu, gpu_memory=now.gpu_memory)

    def shape_of(self, variant: int) -> Shape:
        """Return the shape of artifact `variant` for its training phase, without the devices that failed it. While it
        is active, both are as of its placement, because it holds those resources.
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
        """Estimated nanoseconds for all of its work with its least tasks, at the pace of this attempt's training; 0 if
        it has reported too little.
        """
        if self.training is None or self.told < self.placed or not (started := self.first.started):
            return 0
        done, since = self.training.progress - self.progress, max(started, self.resized)
        if done < HUNDREDTH or self.told <= since:
            return 0
        return ((self.told - since) * self.size + self.carried) * ALL // done // (self.spec.least or self.size)

    def count_try(self, outcome: Outcome) -> None:
        """Count a failed attempt: against its retries, or as lost."""
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
        self.carried = self.lowered_from = 0


def leased(unit: UnitState, now: int) -> list[Reason]:
    """Return a reason for every node on which an earlier copy of it may still run."""
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
