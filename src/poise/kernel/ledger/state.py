"""The state of the ledger in a checkpoint, and its encoding."""

import zlib
from collections.abc import Collection, Iterable, Iterator, Sequence
from copy import copy
from typing import Any

import msgspec

from poise.decoding import msgpack_decoder
from poise.kernel.book import CallBook
from poise.kernel.ledger.arrays import ArrayState
from poise.kernel.ledger.places import Cordon, NodeState
from poise.kernel.ledger.room import InvariantBroken
from poise.kernel.ledger.units import OVER, UnitState
from poise.model.arrays import units_in
from poise.model.budgets import Budget
from poise.model.decisions import Reason, Spot
from poise.model.events import Began
from poise.model.jobs import Job, Unit, Work
from poise.model.notices import Notify
from poise.model.profiles import Profile
from poise.model.quotas import Quota
from poise.model.recurring import Rule
from poise.model.reservations import Reservation
from poise.model.served import ServiceState
from poise.model.share_tree import ShareTree
from poise.model.tenants import DEFAULT, Token
from poise.model.trees import Tree

NO_WORK = Work()

COMPRESSED = b"\x78"
"""First byte of zlib data. A state that is not compressed begins with a MessagePack map."""


class JobState(msgspec.Struct, gc=False):
    """A job and its units.

    `unfinished` counts units that have not ended. `awaited` counts the jobs it waits for, plus one while it is on
    `hold`; no unit becomes pending before it is 0. `held_for` is why Poise put it on hold, empty if a user did;
    `budget` is the one that is spent. `notified` are the completed notices, each with the reason if delivery failed.
    For a job that serves calls, `calls` is their book and the units are its workers. `turns` is, by task with a
    concurrency limit, how many parts have had their turn beyond the first ones. `secrets` are sealed; `tree` is its
    uploaded folder. Its use counts for `project`, if set, and for the share `leaf`, if shares are declared. It is done
    although `allow_failed` parts have failed. Of an `array`, `units` has the parts that exist, and the last one of all
    once it is over.
    """

    id: str
    name: str
    user: str
    folder: str
    env: dict[str, str]
    after: tuple[str, ...]
    submitted: int
    units: list[UnitState]
    key: str = ""
    unfinished: int = 0
    awaited: int = 0
    ended: int = 0
    cancelled_by: str = ""
    note: str = ""
    calls: CallBook | None = None
    turns: dict[str, int] = {}
    tenant: str = DEFAULT
    after_any: tuple[str, ...] = ()
    after_failure: tuple[str, ...] = ()
    hold: bool = False
    retry_of: str = ""
    secrets: dict[str, str] = {}
    held_for: str = ""
    budget: str = ""
    notify: Notify | None = None
    notified: dict[str, str] = {}
    tree: Tree | None = None
    project: str = ""
    leaf: str = ""
    allow_failed: int = 0
    array: ArrayState | None = None

    def sealed_texts(self) -> Iterator[str]:
        """Yield the sealed secrets of the job and of its units."""
        for secrets in (self.secrets, *(unit.spec.secrets for unit in self.units)):
            yield from secrets.values()

    def count_tasks(self) -> int:
        """Return the number of tasks that the ledger keeps of the job. Of an array it keeps the parts that exist, and
        those that were not done in their first attempt.
        """
        odd = len(self.array.odd) if self.array is not None else 0
        return sum(len(unit.tasks) for unit in self.units) + odd

    @property
    def account(self) -> str:
        """The Unix account as which its commands run; empty: the user of the node's agent."""
        unit = self.units[0].spec if self.array is None else self.array.rule.like
        return unit.shape.where.account

    @property
    def size(self) -> int:
        """Number of tasks of the whole job."""
        return units_in(self.array.rule) if self.array is not None else self.count_tasks()

    @property
    def existing(self) -> list[UnitState]:
        """The units, without the last part of an array that is over."""
        return [] if self.array is not None and not self.unfinished else self.units

    @property
    def is_graph(self) -> bool:
        """Whether the job has units of which one may delay the others: it has a critical path."""
        return len(self.units) > 1 and self.calls is None and self.array is None

    def may_fail(self) -> bool:
        """Return whether no more parts have failed than the job allows."""
        return 0 < self.allow_failed >= self.unit_counts().get("failed", 0)

    def unit_counts(self) -> dict[str, int]:
        """Return the number of units by status, including the parts of an array that do not exist."""
        counts = self.array.counts if self.array is not None else {}
        for unit in self.existing:
            counts[unit.status] = counts.get(unit.status, 0) + 1
        return counts

    def fork(self) -> "JobState":
        """Return an independent copy."""
        made = copy(self)
        made.units, made.turns = [unit.fork() for unit in self.units], self.turns.copy()
        made.calls = self.calls.fork() if self.calls is not None else None
        made.array = self.array.fork() if self.array is not None else None
        return made

    @property
    def notices(self) -> list[str]:
        """Notices that are due and not in `notified`: `end/0` is for its first target."""
        if self.notify is None:
            return []
        on, status = self.notify.on, job_status(self) if self.ended else ""
        due = ["start"] if "start" in on and _has_run(self) else []
        if status and "end" in on:
            due.append("end")
        elif status == "failed" and "failure" in on:
            due.append("failure")
        names = (f"{moment}/{place}" for moment in due for place in range(len(self.notify.targets)))
        return [name for name in names if name not in self.notified]

    @property
    def calls_closed(self) -> bool:
        """Whether the job accepts no more calls."""
        return self.calls is None or bool(self.calls.closed)

    @property
    def serving(self) -> CallBook:
        """The book of calls. Raises `InvariantBroken` if the job does not serve calls."""
        if self.calls is None:
            raise InvariantBroken(f"{self.id} serves no calls")
        return self.calls


class ScheduleState(msgspec.Struct, gc=False):
    """A schedule. `due` is as of `Schedule`. `number` counts its submitted jobs; `last` is the latest, `unfinished` are
    those that had not ended at the last turn. `last_due` is when that turn was due, `refused` why it submitted no job,
    or why Poise holds the schedule.
    """

    id: str
    rule: Rule
    job: Job
    due: int
    added: int
    key: str = ""
    by: str = ""
    held: bool = False
    number: int = 0
    last: str = ""
    last_due: int = 0
    refused: str = ""
    unfinished: list[str] = []

    @property
    def called(self) -> str:
        """Name of its job, or else its id."""
        return self.job.name or self.id


class ReservationState(msgspec.Struct, gc=False):
    """A reservation. Its windows take these `places`; the windows in `elsewhere`, by their start in seconds since 1970,
    take others. The windows that start at the times in `released` have ended early.
    """

    reservation: Reservation
    places: tuple[Spot, ...]
    added: int
    elsewhere: dict[str, tuple[Spot, ...]] = {}
    released: list[int] = []
    by: str = ""


class Firing(msgspec.Struct, frozen=True):
    """The name of its job, or else its id."""

    at: int
    since: int
    outcome: str
    have: str = ""
    actions: tuple[str, ...] = ()
    failed: str = ""
    before: dict[str, Any] = {}
    over: bool = False


class Debt(msgspec.Struct, frozen=True, array_like=True):
    """Debt of a share, in nano-dollars, as of an instant."""

    value: int
    at: int


class BudgetState(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A budget in its period, which `begins` and `ends` at times of the wall clock, in nanoseconds since 1970 (0: not
    yet). Use counts `since` an instant; `spent` is the sum as of `at`. `reached` is the highest alert, in percent.
    """

    budget: Budget
    spent: int = 0
    at: int = 0
    begins: int = 0
    ends: int = 0
    since: int = 0
    reached: int = 0


class State(msgspec.Struct):
    """All state in a checkpoint. `yielded` maps preempted units to the units that they made room for and that still
    wait. `quotas` are by tenant, `cordons` by the identity of a device, `firings` by `RULE/SUBJECT`. `actions_spent`
    are the instants of the actions of rules in the last hour. `debts` are by the name of a node of the `share_tree`.
    `configured` is the instant at which the policy was last set and `configured_by` the token that set it (None in
    states of old versions), `before` is the previous one, as in `Configured`;
    `shadow_better` is as in `ShadowJudged`. `accounts`: whether a token has ever named a Unix account. `services` are
    by name, as in `ServicesMeasured`.
    """

    revision: int = 0
    now: int = 0
    term: int = 0
    policy: str = ""
    history: int = 1000
    anchor_at: int = 0
    anchor_wall: float = 0.0
    anchor_boot: str = ""
    anchor_boottime: int = 0
    jobs_ever: int = 0
    units_ever: int = 0
    jobs: dict[str, JobState] = {}
    finished: list[str] = []
    nodes: dict[str, NodeState] = {}
    profiles: dict[str, Profile] = {}
    held: dict[str, tuple[Reason, ...]] = {}
    memory: dict[str, Any] = {}
    yielded: dict[str, str] = {}
    quotas: dict[str, Quota] = {}
    tokens: dict[str, Token] = {}
    tokens_ever: int = 0
    accounts: bool = False
    cordons: dict[str, Cordon] = {}
    began: Began | None = None
    schedules: dict[str, ScheduleState] = {}
    schedules_ever: int = 0
    rules: dict[str, Any] = {}
    rule_policies: dict[str, dict[str, Any]] = {}
    firings: dict[str, Firing] = {}
    actions_spent: list[int] = []
    share_tree: ShareTree | None = None
    debts: dict[str, Debt] = {}
    before: dict[str, Any] = {}
    reservations: dict[str, ReservationState] = {}
    reservations_ever: int = 0
    shadow_better: dict[str, str] = {}
    budgets: dict[str, BudgetState] = {}
    services: dict[str, ServiceState] = {}
    configured: int = 0
    configured_by: str | None = None

    def fork(self, jobs: Collection[str] | None = None) -> "State":
        """Return an independent copy, with all jobs or with these. It shares unchanging parts: ended jobs, and records
        that are only replaced as a whole.
        """
        made = copy(self)
        made.jobs, made.finished = self.jobs, self.finished.copy()
        if jobs is not None:
            made.jobs = {job_id: job for job_id, job in self.jobs.items() if job_id in jobs}
            made.finished = [job_id for job_id in self.finished if job_id in jobs]
        made.jobs = {job_id: job if job.ended else job.fork() for job_id, job in made.jobs.items()}
        made.nodes = {name: node.fork() for name, node in self.nodes.items()}
        made.profiles, made.held, made.memory = dict(self.profiles), self.held.copy(), self.memory.copy()
        made.yielded, made.quotas, made.tokens = dict(self.yielded), dict(self.quotas), dict(self.tokens)
        made.cordons, made.firings = dict(self.cordons), dict(self.firings)
        made.rules, made.rule_policies = dict(self.rules), dict(self.rule_policies)
        made.actions_spent, made.debts = self.actions_spent.copy(), dict(self.debts)
        made.shadow_better, made.budgets = dict(self.shadow_better), dict(self.budgets)
        made.services = dict(self.services)
        made.schedules = {schedule_id: copy(schedule) for schedule_id, schedule in self.schedules.items()}
        made.reservations = {name: copy(of) for name, of in self.reservations.items()}
        return made


encoder = msgspec.msgpack.Encoder(order="deterministic")
_decoder = msgpack_decoder(State)


def decode(data: bytes) -> State:
    """Decode a state, compressed or not."""
    return _decoder.decode(zlib.decompress(data) if data.startswith(COMPRESSED) else data)


def queue_of_unit(job: JobState, unit: UnitState) -> str:
    """Return the current queue of a unit. A unit barred from a device has its own queue."""
    return queue_of(job, unit.spec) + (f"/{unit.id}" if unit.barred else "")


def may_follow(job: Job | JobState, other: str, status: str) -> bool:
    """Return whether a job may begin after a job of its `after` that ended with this status."""
    if other in job.after_any:
        return True
    return status == ("failed" if other in job.after_failure else "done")


def _has_run(job: JobState) -> bool:
    if job.array is not None and job.array.ended:
        return True
    return any(task.started or task.ending is not None or task.past for unit in job.units for task in unit.tasks)


def job_status(job: JobState) -> str:
    """Return the status of a job: done, failed, cancelled, skipped, running, placed, pending, waiting or idle."""
    serves = job.calls is not None and not job.ended and not job.calls.open
    if serves and all(unit.status != "pending" for unit in job.units):
        return "idle"
    if job.array is None and not job.allow_failed:
        return units_status(job.units)
    counts = job.unit_counts()
    if counts.keys() == {"done", "failed"} and job.may_fail():
        return "done"
    return _status(counts, job.units)


def units_status(units: Sequence[UnitState]) -> str:
    """Return the status of a job with these units."""
    return _status({unit.status for unit in units}, units)


def _status(statuses: Collection[str], units: Sequence[UnitState]) -> str:
    """Return the status of a job whose units have these statuses; `units` are those that exist."""
    if OVER.issuperset(statuses):
        if len(statuses) == 1 and ("done" in statuses or "skipped" in statuses):
            return next(iter(statuses))
        return "cancelled" if "cancelled" in statuses and "failed" not in statuses else "failed"
    if "active" in statuses:
        if all(task.status != "running" for unit in units for task in unit.tasks if task.active):
            return "placed"
        return "running"
    return "pending" if "pending" in statuses else "waiting"


def first_parts(units: Iterable[Unit]) -> tuple[set[str], dict[str, int]]:
    """Return, for tasks with a concurrency limit, the parts that may run at first. Also return by task how many more
    parts have had their turn if the job lacks some parts.
    """
    first: set[str] = set()
    turns: dict[str, int] = {}
    parts: dict[str, list[Unit]] = {}
    for unit in units:
        if unit.at_most:
            parts.setdefault(unit.name.partition("[")[0], []).append(unit)
    for task, of in parts.items():
        begin = sorted(of, key=lambda unit: unit.tasks[0].part)[: of[0].at_most]
        first.update(unit.name for unit in begin)
        passed = begin[-1].tasks[0].part + 1 - of[0].at_most
        if passed > 0:
            turns[task] = passed
    return first, turns


def queue_of(job: Job | JobState, unit: Unit) -> str:
    """Name of the queue of a unit. Units in one queue are alike for placement and are served in order; tenants, shares,
    graphs, deadlines and gangs have queues of their own."""
    apart = (
        len(job.units) > 1
        or job.array is not None
        or unit.deadline
        or len(unit.tasks) > 1
        or unit.variants
        or unit.weight != 1000
    )
    own = job.id if apart or unit.work != NO_WORK or unit.serves else ""
    own = f"{job.id}.{unit.name}" if unit.phases else own
    leaf = job.leaf if isinstance(job, JobState) else ""
    whose = f"{job.tenant}:{leaf}:" if leaf else "" if job.tenant == DEFAULT else f"{job.tenant}:"
    return f"{whose}{int(unit.priority)}/{unit.shape.key()}/{unit.kind}/{own}"
