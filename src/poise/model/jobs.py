"""A job as the ledger keeps it: compiled, with every quantity an integer and every reference resolved.

A *job* is what a user submits; it holds *tasks*; tasks that must be placed together form one *unit*: a task alone, or a
gang. `model/spec.py` compiles what people write into these records.
"""

from collections.abc import Iterable, Iterator
from enum import IntEnum
from typing import Any, Literal

import msgspec

from poise.model.deadlines import IfLate
from poise.model.notices import Notify
from poise.model.resources import Shape
from poise.model.tenants import DEFAULT
from poise.model.trees import Tree
from poise.units import SECOND

Outcome = Literal[
    "done", "failed", "killed", "signal", "oom", "hung", "timeout", "lost", "stopped", "returned", "unstartable"
]
"""How an attempt ended.

`done` exit code 0 · `failed` another exit code · `killed` SIGKILL that Poise did not send, or SIGTERM that Poise did
not send and after which training saved a checkpoint · `signal` another signal · `oom` over its memory limit · `hung`
silent for longer than its limit · `timeout` over its time limit · `lost` its node or keeper was lost · `stopped` Poise
stopped it: by preemption, after a failure in its gang, or when it was cancelled · `returned` stopped before its process
started, which does not count as a try · `unstartable` the command could not be executed.
"""

FAILED: tuple[Outcome, ...] = ("failed", "killed", "signal", "oom", "hung", "timeout", "lost", "unstartable")
"""Outcomes of attempts that were in vain."""

Lease = Literal["fenced", "exclusive"]
"""What holds while it is not known whether work still runs on a node that is silent.

`fenced` it goes on there and may be placed elsewhere at once: the older copy can no longer report · `exclusive` its
node stops it in time, and it is placed elsewhere only when no copy can be left.
"""

RETRYABLE: tuple[Outcome, ...] = ("failed", "killed", "signal", "oom", "hung", "timeout", "lost")

ANY_FAILURE: frozenset[Outcome] = frozenset(("failed", "killed", "signal", "oom", "hung"))
"""Outcomes that a number of retries is about where nothing else is said. A time limit is a limit: it is not among them.
"""


class Priority(IntEnum):
    """Priority classes; a lower number goes first."""

    URGENT = 0
    HIGH = 1
    MEDIUM = 2
    LOW = 3


CLASS_WEIGHT = (8, 4, 2, 1)
"""By priority class: how many of the class below a second of it is worth, doubled each time."""


class Retry(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """When a failed unit is tried again: at most `limit` times, after `backoff` nanoseconds doubled each time; of these
    at most `ooms` times after it ran out of memory, and then smaller where it can be (0, as in logs of old: as after
    anything else). A unit that was lost is tried again at most `losses` times in addition (0, as in logs of old: it
    counts as anything else).
    """

    limit: int = 3
    backoff: int = 1 * SECOND
    when: tuple[Outcome, ...] = ("lost", "killed", "hung")
    ooms: int = 0
    losses: int = 0

    def counts(self, outcome: Outcome) -> bool:
        """Whether an attempt that ended so counts against `limit`, and not as a loss."""
        return outcome != "lost" or not self.losses

    def allows(self, outcome: Outcome, tries: int, ooms: int, lost: int) -> bool:
        """Whether it is tried again after this many `tries` that count against `limit`, of which `ooms` ran out of
        memory, and after it was `lost` this many times in addition to them.
        """
        if outcome not in RETRYABLE or outcome not in self.when or (outcome == "oom" and 0 < self.ooms < ooms):
            return False
        return tries <= self.limit if self.counts(outcome) else lost <= self.losses

    def sentence(self) -> str:
        """What is tried again, for people: `any failure 2 times; lost work 3 times in addition`."""
        outcomes = [one for one in RETRYABLE if one in self.when and not (one == "lost" and self.losses)]
        named = "any failure" if set(outcomes) == ANY_FAILURE else ", ".join(outcomes)
        times = f"{named} {self.limit} time{'' if self.limit == 1 else 's'}" if outcomes and self.limit else ""
        lost = f"lost work {self.losses} times in addition" if "lost" in self.when and self.losses else ""
        return "; ".join(part for part in (times, lost) if part) or "none"

    def delay(self, tries: int) -> int:
        """Nanoseconds to wait after the `tries`-th failure (1 is the first); capped at one minute."""
        return min(self.backoff << min(tries - 1, 16), max(self.backoff, 60 * SECOND))


def retries_of(retries: Iterable[Retry]) -> str:
    """What is retried of all units of a job, for people; empty where that is the default, or differs among them."""
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
    """What one task has to do, as far as its user says: floating-point operations, bytes of device memory it moves,
    bytes of input and bytes of its model. From these come its weight and, where nothing was learned, its speed.
    """

    flops: int = 0
    bytes: int = 0
    input: int = 0
    model: int = 0


RETRY = Retry()

LOSSES = 3
"""How often a unit is placed again after it was lost, at least: what brings down each of its nodes must end."""

INTERRUPTED = Retry(losses=LOSSES)
"""What is tried again of a job that says nothing of it."""

NEVER = Retry(limit=0)
"""Started once, even if lost."""

ALL = 1_000_000
"""Millionths of its work: all of it."""

GRACE = 10 * SECOND
"""Time between SIGTERM and SIGKILL, unless a task says otherwise."""

EXCLUSIVE_GRACE = 1 * SECOND
"""The same for exclusive work, and the most that it may have: it is stopped when its lease has all but run out."""

NO_WORK = Work()

WEIGHT = 1000
"""The business weight of what was given none, in thousandths."""


MAX_TASKS_TOLD = 1024
"""In how many sizes a unit says its speed."""

NOTICEABLE = 0.05
"""A speed that has changed by less is not told again."""


class Speedups(msgspec.Struct, frozen=True, array_like=True):
    """How fast a unit gets on with 1, 2, ... tasks, in thousandths of what it does with one, as it says itself: with
    all of them on one node (`together`), or on as few nodes as hold them where one does not (`apart`). It is the
    progress that counts, not the steps. With more tasks than that it is as fast as with the most.
    """

    together: tuple[int, ...]
    apart: tuple[int, ...]

    def within(self, tasks: int) -> "Speedups":
        """Of so many tasks at most, and nothing that is no speed."""
        most = min(tasks, MAX_TASKS_TOLD)
        return Speedups(tuple(max(0, of) for of in self.together[:most]), tuple(max(0, of) for of in self.apart[:most]))

    def differs(self, other: "Speedups") -> bool:
        """Whether any of it has changed noticeably."""
        if len(self.together) != len(other.together) or len(self.apart) != len(other.apart):
            return True
        pairs = zip(self.together + self.apart, other.together + other.apart, strict=True)
        return any(abs(mine - theirs) > NOTICEABLE * theirs for mine, theirs in pairs)


class Variant(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One more artifact of the same work, for other devices: another command, in another shape."""

    name: str
    argv: tuple[str, ...]
    shape: Shape


FIRST_PHASE = "initial"
"""What training is in until it says otherwise."""


class InPhase(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Resources of a task during a phase of its training: at most `cpu` milli-CPU (0: its usual request), and `memory`
    thousandths of the device memory that it requests or has.
    """

    phase: str
    cpu: int = 0
    memory: int = 1000


class Unit(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, gc=False):
    """What is placed together: one task, or the tasks of a gang. All tasks of a unit have one shape.

    `needs` names units of the same job. `kind` is the class by which run times are learned. `begin` (not before) and
    `deadline` in nanoseconds after submission, `expect` in nanoseconds (0: not said). An elastic unit starts with
    `least` tasks or more (0: all). `artifact` names its own artifact where it has several, `variants` the others; the
    placer chooses one. `checkpoint` is how often the work saves itself (0: never, so that all it did is lost when it
    ends) and `restore` what coming back costs, in nanoseconds; `preemptible` whether it may be asked to yield. `weight`
    is its business weight in thousandths. Of the parts of one task that have an `at_most` so many are placed at once
    (0: any number). Its commands say at least every `hang` nanoseconds that they get on (0: they say nothing). Of what
    has an exclusive `lease` no two copies run at once, whatever happens to its node. What `serves` answers requests
    until it is ended: the text says for which service, and why it was asked for. What trains may ask for less in some
    of its `phases`. `if_late` says what becomes of it when its deadline cannot be met. An attempt of a task may run for
    `time_limit` nanoseconds (0: for any time). Its first task has `stdin` kept open for whoever gives it input, or a
    terminal of the size `tty`, as `terminal_size` makes it (0: none). What its tasks write is copied to the file
    `output`, where `%j` and others stand for what tells them apart (empty: nowhere).
    Its `secrets` add to the job's.
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

    @property
    def declared(self) -> int:
        """The run time in nanoseconds to plan with until history says more: what is expected, at most the time limit;
        the limit itself where nothing is expected; 0 where nothing is said.
        """
        return min(self.expect or self.time_limit, self.time_limit) if self.time_limit else self.expect

    def shape_of(self, variant: int) -> Shape:
        """The shape of its artifact number `variant`; 0 is the unit's own."""
        return self.variants[variant - 1].shape if variant else self.shape

    def in_phase(self, phase: str) -> InPhase | None:
        """What it asks for in a phase of its training, where that is not what it asks for in any."""
        phase = phase or FIRST_PHASE
        return next((one for one in self.phases if one.phase == phase), None)

    def shape_in(self, phase: str, variant: int) -> Shape:
        """The shape of its artifact number `variant` in a phase of its training."""
        shape, asks = self.shape_of(variant), self.in_phase(phase)
        if asks is None:
            return shape
        cpu = min(shape.cpu, asks.cpu) if asks.cpu else shape.cpu
        return msgspec.structs.replace(shape, cpu=cpu, gpu_memory=shape.gpu_memory * asks.memory // 1000)

    def artifact_of(self, variant: int) -> str:
        """The name of its artifact number `variant`; empty where it has none to choose from."""
        return self.variants[variant - 1].name if variant else self.artifact


class Limits(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, gc=False):
    """What a node holds a running command to; each field is one of `Unit` too. `grace` nanoseconds pass between SIGTERM
    and SIGKILL. A command has hung when it has been silent for `hang` nanoseconds (0: it is not watched). It is stopped
    when it has run for `time_limit` nanoseconds (0: it may run for any time). `stdin` and `tty` are what the first task
    of a unit reads from, `output` the file that gets a copy of what each writes.
    """

    grace: int = 0
    hang: int = 0
    time_limit: int = 0
    stdin: bool = False
    tty: int = 0
    output: str = ""


def terminal_size(rows: int, columns: int) -> int:
    """The size of a terminal as one number."""
    return rows << 16 | columns


def limits_of(held: "Unit | Limits") -> dict[str, Any]:
    """The fields of `Limits`, to make another record that has them."""
    return {name: getattr(held, name) for name in Limits.__struct_fields__}


class Job(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, gc=False):
    """A compiled job. `name` is empty unless the user gave one. `after` holds ids of jobs that must be over first:
    those of `after_any` however they end, those of `after_failure` by failing, and all others by being done;
    `note` is what the user was told when it was submitted, `user` who the client says its user is, for people to read.
    With `calls` its units are workers that serve calls of functions. One on `hold` waits until it is released.
    `retry_of` is the job of which it runs again what was not done. `secrets` are variables of all its units, as sealed
    texts (`model/secrets.py`). `notify` says who is told of it. With a `tree` its commands run in a copy of
    files that were sent with it. It counts for a `project` of its tenant, where one is named.
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

    def sealed_texts(self) -> Iterator[str]:
        """Those of the job and of its units."""
        for secrets in (self.secrets, *(unit.secrets for unit in self.units)):
            yield from secrets.values()


class Ending(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, gc=False):
    """How one attempt ended, as its keeper saw it.

    Times in nanoseconds, `peak` resident memory in bytes, `limit` the memory limit it had. `device` is the mean use of
    its devices in thousandths and `device_peak` the most memory it held on one, where they could be measured. `result`
    is what the task wrote to its result file: JSON text of at most 64 KiB. `progress` is how much of all its work is
    done and need not be done again, in millionths, if it says so itself (-1: it does not).
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
