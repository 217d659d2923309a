"""What `poise report` tells of a stretch of the log: figures, a timeline, every decision with its reason.

`begins` is a moment in seconds since 1970; every other time is nanoseconds, and every `at`, `since` and `until` counts
from there. Parts of a whole are thousandths.
"""

import msgspec

from poise.model.incidents import IncidentReport


class Spread(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """How durations are spread; all 0 where there are none. Percentiles are of the nearest rank."""

    count: int = 0
    mean: int = 0
    p50: int = 0
    p95: int = 0
    p99: int = 0
    longest: int = 0


class Use(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What became of an amount that the nodes offered while they were there, in thousandths of it; none offered: None.

    `held` by attempts, `used` as far as attempts that have ended measured it, `good` held by attempts that count: that
    are done, or still go on, or yielded and keep that much at their checkpoint.
    """

    offered: int
    held: int | None = None
    used: int | None = None
    good: int | None = None


class Span(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """An attempt of a task on its node. `outcome` is empty while it goes on, `waited` since it could be placed."""

    task: str
    job: str
    epoch: int
    node: str
    devices: tuple[int, ...] = ()
    priority: str = ""
    since: int = 0
    until: int = 0
    waited: int = 0
    outcome: str = ""
    note: str = ""
    why: str = ""
    artifact: str = ""


class Lane(msgspec.Struct, frozen=True, kw_only=True):
    """One row of the timeline of a node: a device, or a place for one attempt without a device."""

    node: str
    name: str
    spans: tuple[Span, ...]


class Level(msgspec.Struct, frozen=True, array_like=True):
    """How many units waited for room, and how many held room, from `at` on: the most in its stretch of the timeline."""

    at: int
    pending: int
    active: int


class Happening(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A decision or something that forced one: the record of the log in words, with its reason."""

    at: int
    revision: int
    kind: str
    subject: str
    text: str


class Failure(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """An attempt that ended otherwise than done or as it was told to; `again`: it was, or will be, tried again."""

    at: int
    task: str
    epoch: int
    node: str
    outcome: str
    run: int = 0
    note: str = ""
    again: bool = False


class Yielding(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A unit that was asked to end early: for whom (`to`) or for its own good, and what was weighed."""

    at: int
    unit: str
    epoch: int
    cause: str
    to: str = ""
    why: str = ""


class ClassRuns(msgspec.Struct, frozen=True, kw_only=True):
    """Attempts of one class of work: how long those that are done ran, and how many failed."""

    name: str
    run: Spread
    failed: int = 0


class Waste(msgspec.Struct, frozen=True, kw_only=True):
    """Room that brought nothing, by its cause: nanoseconds of a core, and of a whole device."""

    cause: str
    cpu: int
    devices: int


class TenantUse(msgspec.Struct, frozen=True, kw_only=True):
    """What a tenant's work took: nanoseconds of a core and of a whole device that its attempts held, and of both what
    was in vain; `energy` in joules above that of idle devices, `price` in dollars of the devices it held.
    """

    tenant: str
    statuses: dict[str, int]
    attempts: int
    failed: int
    waiting: Spread
    cpu: int
    devices: int
    vain_cpu: int
    vain_devices: int
    energy: float
    price: float


class ClassWaits(msgspec.Struct, frozen=True, kw_only=True):
    """How long attempts of a priority class waited for room."""

    name: str
    waiting: Spread


class Bill(msgspec.Struct, frozen=True, kw_only=True):
    """What devices drew and cost while they were there: `energy` in joules by the model of `model/power.py`, of the
    `powered` of all `devices` whose power cap is known; `co2` in kg; `price` in dollars of all, `paid` of what was
    held, of the `priced` devices.
    """

    energy: float
    co2: float
    price: float
    paid: float
    devices: int
    powered: int
    priced: int


class NodeBill(msgspec.Struct, frozen=True):
    """The bill of one node."""

    node: str
    bill: Bill


class JobLine(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A job at a glance: `took` from its submission to its end, or until now; `waited` until its first task ran; how
    many `calls` of functions have returned. `energy` and `price` are those of a `TenantUse`.
    """

    id: str
    name: str
    user: str
    status: str
    command: str
    tasks: int
    submitted: int
    took: int
    tenant: str = ""
    waited: int | None = None
    attempts: int = 0
    calls: int = 0
    energy: float = 0.0
    price: float = 0.0


class RunReport(msgspec.Struct, frozen=True, kw_only=True):
    """A stretch of the log. `first` and `last` are its revisions. `completion` is of the jobs that ended, from their
    submission; `waiting` of every attempt that started, from when it could be placed; `makespan` from the first
    submission to the last end. `asked` names the jobs it is about; empty: all.

    `waste`, `bill`, `nodes` and `incidents` are of the whole fleet, whichever jobs it is about; a report of one
    `tenant` has none of them. `nodes` names those first whose devices drew most.

    `left_out` counts, by part, what is not in the lists because it is much; the figures are of all.
    """

    version: str
    policy: str
    asked: tuple[str, ...]
    begins: float
    length: int
    first: int
    last: int
    statuses: dict[str, int]
    tasks: int
    attempts: int
    failed: int
    retried: int
    yielded: int
    makespan: int
    completion: Spread
    waiting: Spread
    cpu: Use
    devices: Use
    jobs: tuple[JobLine, ...]
    lanes: tuple[Lane, ...]
    levels: tuple[Level, ...]
    happenings: tuple[Happening, ...]
    failures: tuple[Failure, ...]
    yields: tuple[Yielding, ...]
    classes: tuple[ClassRuns, ...]
    left_out: dict[str, int]
    tenant: str = ""
    tenants: tuple[TenantUse, ...] = ()
    waits: tuple[ClassWaits, ...] = ()
    waste: tuple[Waste, ...] = ()
    incidents: tuple[IncidentReport, ...] = ()
    bill: Bill | None = None
    nodes: tuple[NodeBill, ...] = ()
