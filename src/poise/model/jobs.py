"""Compiled jobs, as the ledger stores them: every quantity is an integer and every reference is resolved.

A *job* is what a user submits; it holds *tasks*; tasks that must be placed together form one *unit*: a single task or a
gang. `model/spec.py` compiles job files into these records.
"""

from collections.abc import Iterable, Iterator
from enum import IntEnum
from typing import Any, Literal

import msgspec

from poise.model.deadlines import IfLate
from poise.model.notices import Notify
from poise.model.resources import Shape
from poise.model.sweep import Axis
from poise.model.tenants import DEFAULT
from poise.model.trees import Tree
from poise.units import SECOND

Outcome = Literal[
    "done", "failed", "killed", "signal", "oom", "hung", "timeout", "lost", "stopped", "returned", "unstartable"
]
"""How an attempt ended.

`done` exit code 0 · `failed` another exit code · `killed` SIGKILL that Poise did not send, or SIGTERM that Poise did
not send and after which training saved a checkpoint · `signal` another signal · `oom` over its memory limit · `hung`
silent for longer than its limit · `timeout` over its time limit or its idle limit · `lost` its node or keeper was lost
· `stopped` Poise stopped it: by preemption, after a failure in its gang, or when it was cancelled · `returned` stopped
before its process started, which does not count as a try · `unstartable` the command could not be executed.
"""

FAILED: tuple[Outcome, ...] = ("failed", "killed", "signal", "oom", "hung", "timeout", "lost", "unstartable")
"""Outcomes of failed attempts."""

IfIdle = Literal["suspend", "end"]
"""Action for a session that is idle: its processes are stopped and most of its resources released, or it ends."""

Lease = Literal["fenced", "exclusive"]
"""Guarantee while it is unknown whether work still runs on a silent node.

`fenced` the work continues there and may be placed elsewhere at once: the older copy can no longer report · `exclusive`
its node stops it in time, and it is placed elsewhere only when no copy can be running.
"""

RETRYABLE: tuple[Outcome, ...] = ("failed", "killed", "signal", "oom", "hung", "timeout", "lost")

ANY_FAILURE: frozenset[Outcome] = frozenset(("failed", "killed", "signal", "oom", "hung"))
"""Outcomes that a retry limit covers by default. A time limit is final, so `timeout` is not included."""


class Priority(IntEnum):
    """Priority classes; a lower number goes first."""

    URGENT = 0
    HIGH = 1
    MEDIUM = 2
    LOW = 3


CLASS_WEIGHT = (8, 4, 2, 1)
"""By priority class, the weight of a second of its work; each class weighs twice as much as the class below."""


class Retry(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Retry rule of a unit: at most `limit` retries, after `backoff` nanoseconds, doubled each time; of these at most
    `ooms` after running out of memory, then smaller if possible (0, as in old logs: no separate limit). A lost
    unit is retried at most `losses` times in addition (0, as in old logs: losses count against `limit`).
    """

    limit: int = 3
    backoff: int = 1 * SECOND
    when: tuple[Outcome, ...] = ("lost", "killed", "hung")
    ooms: int = 0
    losses: int = 0

    def counts(self, outcome: Outcome) -> bool:
        """Whether an attempt with this outcome counts against `limit`, and not as a loss."""
        return outcome != "lost" or not self.losses

    def allows(self, outcome: Outcome, tries: int, ooms: int, lost: int) -> bool:
        """Whether to retry after `tries` that count against `limit`, of which `ooms` ran out of memory, and `lost`
        losses in addition to them.
        """
        if outcome not in RETRYABLE or outcome not in self.when or (outcome == "oom" and 0 < self.ooms < ooms):
            return False
        return tries <= self.limit if self.counts(outcome) else lost <= self.losses

    def sentence(self) -> str:
        """Describe the rule for people: `any failure 2 times; lost work 3 times in addition`."""
        outcomes = [one for one in RETRYABLE if one in self.when and not (one == "lost" and self.losses)]
        named = "any failure" if set(outcomes) == ANY_FAILURE else ", ".join(outcomes)
        times = f"{named} {self.limit} time{'' if self.limit == 1 else 's'}" if outcomes and self.limit else ""
        lost = f"lost work {self.losses} times in addition" if "lost" in self.when and self.losses else ""
        return "; ".join(part for part in (times, lost) if part) or "none"

    def delay(self, tries: int) -> int:
        """Nanoseconds to wait after the `tries`-th failure (1 is the first); capped at one minute."""
        return min(self.backoff << min(tries - 1, 16), max(self.backoff, 60 * SECOND))


def retries_of(retries: Iterable[Retry]) -> str:
    """Describe the retry rule of all units of a job; empty if it is the default or differs between units."""
    first, *others = dict.fromkeys(retries)
    return "" if others or first == INTERRUPTED else first.sentence()


class Task(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, gc=False):
    """One command to run to its end. `env` adds to the job's. `rank`/`world` in a gang, `part`/`parts` when cut by
    data.
    """

    name: str
    argv: tuple[str, ...]
    env: dict[str, str] = {}
    rank: int = 0
    world: int = 1
    part: int = 0
    parts: int = 0


class Work(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, gc=False, cache_hash=True):
    """Work of one task, as declared by its user: floating-point operations, bytes of device memory traffic, bytes of
    input and bytes of its model. They determine its weight and, without learned run times, its speed estimate.
    """

    flops: int = 0
    bytes: int = 0
    input: int = 0
    model: int = 0


RETRY = Retry()

LOSSES = 3
"""Minimum number of placements after a loss: work that brings down each of its nodes must end."""

INTERRUPTED = Retry(losses=LOSSES)
"""Retry rule of a job that declares none."""

NEVER = Retry(limit=0)
"""Started once, even if lost."""

GRACE = 10 * SECOND
"""Time between SIGTERM and SIGKILL, unless a task says otherwise."""

EXCLUSIVE_GRACE = 1 * SECOND
"""Grace of exclusive work, and its maximum: it is stopped shortly before its lease expires."""

NO_WORK = Work()

WEIGHT = 1000
"""Default business weight, in thousandths."""


class Variant(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Another artifact of the same work, for other devices: another command with another shape."""

    name: str
    argv: tuple[str, ...]
    shape: Shape


FIRST_PHASE = "initial"
"""Training phase until the task reports one."""


class InPhase(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Resources of a task during a phase of its training: at most `cpu` milli-CPU (0: its usual request), and `memory`
    thousandths of the device memory that it requests or has.
    """

    phase: str
    cpu: int = 0
    memory: int = 1000


class Unit(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, gc=False):
    """The unit of placement: one task, or the tasks of a gang. All tasks of a unit have one shape.

    `needs` names units of the same job. `kind` is the class by which run times are learned. `begin` (earliest start)
    and `deadline` are nanoseconds after submission, `expect` is in nanoseconds (0: not declared). An elastic unit
    starts with `least` tasks or more (0: all). `artifact` names its own artifact if it has several, `variants` the
    others; the placer chooses one. `checkpoint` is the checkpoint interval (0: none, so all progress is lost when it
    ends) and `restore` the cost of resuming, in nanoseconds; `preemptible` is whether it may be preempted. `weight` is
    its business weight in thousandths. `at_most` limits how many parts of one task are placed at once (0: unlimited).
    Its commands report progress at least every `hang` nanoseconds (0: they do not report). With an exclusive `lease` no
    two copies run at once, whatever happens to its node. A unit that `serves` answers requests until it is stopped: the
    text names the service and the reason for the replica. Training may request less in some of its `phases`. `if_late`
    is the action when its deadline cannot be met. `time_limit` limits the run time of an attempt in nanoseconds (0:
    unlimited). Its first task has an open `stdin` for input, or a terminal of size `tty`, as `terminal_size` returns it
    (0: none). The output of its tasks is copied to the file `output`, with placeholders such as `%j` (empty: no copy).
    Its `secrets` add to the job's. Its tasks run in containers of an `image`, if it names one. After `idle` nanoseconds
    without use (0: never) `if_idle` is the action.
    """

    name: str
    tasks: tuple[Task, ...]
    shape: Shape = Shape()
    needs: tuple[str, ...] = ()
    priority: Priority = Priority.MEDIUM
    begin: int = 0
    deadline: int = 0
    expect: int = 0
    retry: Retry = RETRY
    kind: str = ""
    grace: int = GRACE
    least: int = 0
    artifact: str = ""
    variants: tuple[Variant, ...] = ()
    work: Work = NO_WORK
    checkpoint: int = 0
    restore: int = 0
    preemptible: bool = True
    weight: int = WEIGHT
    at_most: int = 0
    hang: int = 0
    lease: Lease = "fenced"
    serves: str = ""
    phases: tuple[InPhase, ...] = ()
    if_late: IfLate = "run"
    time_limit: int = 0
    stdin: bool = False
    tty: int = 0
    output: str = ""
    secrets: dict[str, str] = {}
    image: str = ""
    idle: int = 0
    if_idle: IfIdle = "suspend"

    @property
    def declared(self) -> int:
        """The run time in nanoseconds to plan with until there is history: the declared run time, at most the time
        limit; the limit itself if no run time is declared; 0 without either.
        """
        return min(self.expect or self.time_limit, self.time_limit) if self.time_limit else self.expect

    def shape_of(self, variant: int) -> Shape:
        """Return the shape of artifact number `variant`; 0 is the unit's own."""
        return self.variants[variant - 1].shape if variant else self.shape

    def in_phase(self, phase: str) -> InPhase | None:
        """Return the request for a training phase, if it differs from the unit's usual request."""
        phase = phase or FIRST_PHASE
        return next((one for one in self.phases if one.phase == phase), None)

    def shape_in(self, phase: str, variant: int) -> Shape:
        """Return the shape of artifact number `variant` in a training phase."""
        shape, asks = self.shape_of(variant), self.in_phase(phase)
        if asks is None:
            return shape
        cpu = min(shape.cpu, asks.cpu) if asks.cpu else shape.cpu
        return msgspec.structs.replace(shape, cpu=cpu, gpu_memory=shape.gpu_memory * asks.memory // 1000)

    def artifact_of(self, variant: int) -> str:
        """Return the name of artifact number `variant`; empty if the unit has only one."""
        return self.variants[variant - 1].name if variant else self.artifact


class Limits(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, gc=False):
    """Limits that a node enforces on a running command; each field is also a field of `Unit`. `grace` is the time
    between SIGTERM and SIGKILL in nanoseconds. A command is hung after `hang` nanoseconds without progress (0: not
    watched). It is stopped after `time_limit` nanoseconds (0: unlimited). `stdin` and `tty` are the input of the first
    task of a unit, `output` is the file for a copy of each task's output. A node runs the command in a container of
    `image`. It measures whether the command is idle for `idle` nanoseconds (0: it does not), for the action `if_idle`.
    """

    grace: int = 0
    hang: int = 0
    time_limit: int = 0
    stdin: bool = False
    tty: int = 0
    output: str = ""
    image: str = ""
    idle: int = 0
    if_idle: IfIdle = "suspend"


def terminal_size(rows: int, columns: int) -> int:
    """Return the size of a terminal as one number."""
    return rows << 16 | columns


def limits_of(held: "Unit | Limits") -> dict[str, Any]:
    """Return the fields of `Limits`, for constructing another record."""
    return {name: getattr(held, name) for name in Limits.__struct_fields__}


class Array(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, gc=False):
    """Many parts of one command, of which only those that may start soon exist as units (`model/arrays.py`).

    `like` is the unit that the parts have in common, with the name of the task. There are `parts` of them. `spans` has
    the parts that this job runs, each as the first one and their number; a retry runs some of them only. `axes` are the
    values of a sweep, which become variables if the command is a text for a `shell`. `items` are cut into equal shares
    (0: no items). The unit `merge` runs after the last part.
    """

    like: Unit
    parts: int
    spans: tuple[tuple[int, int], ...]
    axes: tuple[Axis, ...] = ()
    shell: bool = False
    items: int = 0
    merge: Unit | None = None


class Job(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, gc=False):
    """A compiled job. `name` is empty unless the user set one. `after` holds ids of jobs that must be over first: those
    in `after_any` with any outcome, those in `after_failure` by failing, and all others by being done. `note` is the
    message shown at submission, `user` the user name that the client sent, for display only. With `calls` its units are
    workers that serve function calls. A job on `hold` waits until it is released. `retry_of` is the job whose
    unfinished work it runs again. `secrets` are variables of all its units, as sealed texts (`model/secrets.py`).
    `notify` lists the notification targets. With a `tree` its commands run in a copy of the files that were sent with
    it. `project` is the project of its tenant that it is accounted to, if any. The job is done although at most
    `allow_failed` parts have failed. If it is an `array`, `units` has the first part only, as an example.
    """

    id: str
    units: tuple[Unit, ...]
    name: str = ""
    folder: str = ""
    env: dict[str, str] = {}
    after: tuple[str, ...] = ()
    user: str = ""
    note: str = ""
    calls: bool = False
    tenant: str = DEFAULT
    after_any: tuple[str, ...] = ()
    after_failure: tuple[str, ...] = ()
    hold: bool = False
    retry_of: str = ""
    secrets: dict[str, str] = {}
    notify: Notify | None = None
    tree: Tree | None = None
    project: str = ""
    allow_failed: int = 0
    array: Array | None = None

    @property
    def account(self) -> str:
        """The Unix account as which its commands run; empty: the user of the node's agent."""
        return (self.units[0] if self.array is None else self.array.like).shape.where.account

    def sealed_texts(self) -> Iterator[str]:
        """Yield the sealed texts of the job and of its units."""
        for secrets in (self.secrets, *(unit.secrets for unit in self.units)):
            yield from secrets.values()


class Ending(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, gc=False):
    """How one attempt ended, as observed by its keeper.

    Times in nanoseconds, `peak` resident memory in bytes, `limit` its memory limit. `device` is the mean use of its
    devices in thousandths and `device_peak` its peak memory on one device, if they could be measured. `result` is the
    content of the task's result file: JSON text of at most 64 KiB. `progress` is the fraction of all its work that is
    done and saved, in millionths, if the task reports it (-1: it does not).
    """

    outcome: Outcome
    code: int = 0
    signal: int = 0
    run: int = 0
    cpu: int = 0
    peak: int = 0
    limit: int = 0
    device: int = 0
    device_peak: int = 0
    note: str = ""
    result: str = ""
    progress: int = -1
