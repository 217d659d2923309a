"""Data of `poise report` for a section of the log: figures, a timeline, every decision with its reason.

`begins` is a time in seconds since 1970; every other time is in nanoseconds, and every `at`, `since` and `until` counts
from there. Fractions are in thousandths.
"""

from typing import Literal

import msgspec

from poise.model.incidents import IncidentReport
from poise.model.intensity import IntensityUnit


class Spread(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Distribution of durations; all 0 if there are none. Percentiles are of the nearest rank."""

    count: int = 0
    mean: int = 0
    p50: int = 0
    p95: int = 0
    p99: int = 0
    longest: int = 0


class Use(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Use of an amount that the nodes offered while they were present, in thousandths of it; None if nothing was
    offered.

    `held` by attempts, `used` as measured by ended attempts, `good` held by useful attempts: those that are done, still
    run, or were preempted and keep that much in their checkpoint.
    """

    offered: int
    held: int | None = None
    used: int | None = None
    good: int | None = None


class Span(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """An attempt of a task on its node. `outcome` is empty while it runs, `waited` counts from when it could be
    placed.
    """

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
    """One row of a node's timeline: a device, or a slot for one attempt without a device."""

    node: str
    name: str
    spans: tuple[Span, ...]


class Level(msgspec.Struct, frozen=True, array_like=True):
    """Maximum numbers of pending and of active units in a stretch of the timeline that begins at `at`."""

    at: int
    pending: int
    active: int


class Happening(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A decision or an event that forced one: the record of the log in words, with its reason."""

    at: int
    revision: int
    kind: str
    subject: str
    text: str


class Failure(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """An attempt that neither was done nor was stopped on purpose; `again`: it was or will be retried."""

    at: int
    task: str
    epoch: int
    node: str
    outcome: str
    run: int = 0
    note: str = ""
    again: bool = False


class Yielding(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A preempted unit: for whom (`to`) or for its own good, and the weighing."""

    at: int
    unit: str
    epoch: int
    cause: str
    to: str = ""
    why: str = ""


class ClassRuns(msgspec.Struct, frozen=True, kw_only=True):
    """Attempts of one class of work: run times of the done ones, and the number of failed ones."""

    name: str
    run: Spread
    failed: int = 0


class Waste(msgspec.Struct, frozen=True, kw_only=True):
    """Wasted resources by cause: nanoseconds of a core, and of a whole device."""

    cause: str
    cpu: int
    devices: int


class TenantUse(msgspec.Struct, frozen=True, kw_only=True):
    """Resources of a tenant's work: nanoseconds of a core and of a whole device that its attempts held, and the wasted
    part of both; `energy` in joules above that of idle devices, its `co2` in kg and its price (`electricity`) in
    dollars, `price` in dollars of the devices it held.
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
    co2: float = 0.0
    electricity: float = 0.0


class ClassWaits(msgspec.Struct, frozen=True, kw_only=True):
    """Waiting times of the attempts of a priority class."""

    name: str
    waiting: Spread


class Bill(msgspec.Struct, frozen=True, kw_only=True):
    """Energy and cost of devices while they were present: `energy` in joules by the model of `model/power.py`, of the
    `powered` devices with a known power cap; `co2` of it in kg, and its price (`electricity`) in dollars; `hourly` is
    the energy of the hours that have a value in `intensity.yaml`. `price` in dollars of all and `paid` of the held
    part, of the `priced` devices. `devices` counts all.
    """

    energy: float
    co2: float
    price: float
    paid: float
    devices: int
    powered: int
    priced: int
    electricity: float = 0.0
    hourly: float = 0.0


class NodeBill(msgspec.Struct, frozen=True):
    """The bill of one node."""

    node: str
    bill: Bill


class JobLine(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Summary of a job: `took` from its submission to its end, or until now; `waited` until its first task ran; the
    number of returned function `calls`. `energy`, `co2`, `electricity` and `price` as in `TenantUse`.
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
    co2: float = 0.0
    electricity: float = 0.0


class RunReport(msgspec.Struct, frozen=True, kw_only=True):
    """A section of the log. `first` and `last` are its revisions. `completion` covers the jobs that ended, from their
    submission; `waiting` every attempt that started, from when it could be placed; `makespan` is the time from the
    first submission to the last end. `asked` names the requested jobs; empty: all.

    `waste`, `bill`, `nodes` and `incidents` always cover the whole fleet; a report of one `tenant` has none of them.
    `nodes` lists the nodes with the largest energy use first. `hourly` is the unit of `intensity.yaml`, if the home has
    one; `kg_per_kwh` is the CO2e of a kWh in hours to which it gives none.

    `left_out` counts, by part, entries that were left out of long lists; the figures cover all entries.
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
    kg_per_kwh: float = 0.0
    hourly: IntensityUnit | Literal[""] = ""


ALL = 0.9999
"""Part of some energy that counts as all of it: times of a second are rounded."""


def basis_of_co2(unit: str, kg_per_kwh: float, energy: float = 0.0, hourly: float = 0.0) -> str:
    """Return the source of the CO2e of some energy, for people: the unit of `intensity.yaml` (empty without one), the
    CO2e of a kWh in hours to which it gives none, and the part of the energy in hours to which it gives a value.
    """
    constant = f"{kg_per_kwh:g} kg per kWh"
    if unit != "kg/kWh":
        return f"CO2e at {constant}"
    if not energy:
        return f"CO2e by hour from `intensity.yaml`, else at {constant}"
    partly = _partly(energy, hourly)
    return f"CO2e by hour from `intensity.yaml`{partly}{f', the rest at {constant}' if partly else ''}"


def price_of_electricity(unit: str, dollars: float, energy: float, hourly: float) -> str:
    """Return the price of some energy, for people; empty if no hour has a price. The arguments are as above."""
    if unit != "$/kWh" or not energy:
        return ""
    return f"${dollars:,.2f}, by hour from `intensity.yaml`{_partly(energy, hourly)}"


def _partly(energy: float, hourly: float) -> str:
    """Return ` for 62 % of the energy` if some of it was used in hours without a value; else nothing."""
    return f" for {100 * hourly / energy:.3g} % of the energy" if hourly < energy * ALL else ""
