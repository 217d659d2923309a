"""Reports of the limits and the use of tenants: quotas, budgets, shares, reservations."""

from typing import Any

import msgspec


class BudgetReport(msgspec.Struct, frozen=True, kw_only=True):
    """A budget in its period. `amount`, `spent` and `rate` (per hour, at present) are in its `unit`; `share` is the
    spent fraction. `begins`, `ends` and `runs_out` are in seconds since 1970; it `runs_out` at the mean rate since the
    start of counting (0: not within the period). `holding` is the number of jobs on hold because of it.
    """

    name: str
    tenant: str
    project: str
    user: str
    unit: str
    amount: float
    spent: float
    share: float
    rate: float
    every: str
    time_zone: str
    begins: float
    ends: float
    runs_out: float
    alerts: tuple[int, ...]
    reached: int
    at_limit: str
    holding: int


class BudgetsRequest(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """All budgets, as the content of a file of budgets."""

    document: Any


class QuotaReport(msgspec.Struct, frozen=True, kw_only=True):
    """The quota of a tenant in force now (None: no limit), and its current use. CPU is in milli-CPU, memory in bytes,
    and `gpu` in devices, where a share of a device is a fraction. `hours` are hours with other amounts, `now_in` those
    in force.
    """

    tenant: str
    cpu: int | None
    memory: int | None
    gpu: float | None
    cpu_held: int
    memory_held: int
    gpu_held: float
    hours: tuple[str, ...] = ()
    time_zone: str = ""
    now_in: str = ""


class ShareReport(msgspec.Struct, frozen=True, kw_only=True):
    """A node in the tree of fair shares. `within` is the name of its parent, and `depth` the number of its ancestors.
    Amounts are numbers of devices by model, `gpu` for any model, and `cpu` for the cores of work without devices.
    `share` is its fraction of the weights of its siblings and itself. `used` is its fraction of their total debt (None:
    there is no debt). `borrows` is in dollars per hour, `debt` in dollars. `rank` is its position among its siblings; 1
    is served first.
    """

    name: str
    kind: str
    within: str
    depth: int
    weight: float
    share: float
    guaranteed: dict[str, float]
    limit: dict[str, float]
    lends: bool
    held: dict[str, float]
    borrows: float
    debt: float
    used: float | None
    rank: int
    waiting: int


class SharesReport(msgspec.Struct, frozen=True, kw_only=True):
    """The fair shares in force; each follows its parent. `half_life` is in nanoseconds; `prices` are in dollars per
    hour, by device model. `notes` lists inconsistencies.
    """

    shares: tuple[ShareReport, ...] = ()
    half_life: int = 0
    prices: dict[str, float] = {}
    notes: tuple[str, ...] = ()


class SharesRequest(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The content of a shares file."""

    document: dict[str, Any]


class ShareForeseen(msgspec.Struct, frozen=True, kw_only=True):
    """The forecast for a share with waiting work. `units` is the number of units examined. `now` and `then` are their
    median waiting times from now on, in nanoseconds, under the current shares and under the proposed ones; None:
    unknown.
    """

    name: str
    units: int
    now: int | None
    then: int | None


class SharesForeseen(msgspec.Struct, frozen=True, kw_only=True):
    """The forecast effect of other shares, from `futures` simulated by the digital twin."""

    shares: tuple[ShareForeseen, ...]
    futures: int


class ReservationReport(msgspec.Struct, frozen=True, kw_only=True):
    """A reservation, and its current or next window, from `begins` to `ends` (seconds since 1970; 0: no end). `places`
    are its nodes (`n1`) or devices (`n1:0`) then. `windows` is the number of windows to come, and `elsewhere` how many
    of them have other places than usual. `release_after` is in nanoseconds. `chance` is the probability in thousandths
    that the places are free of other work at the start (None: not computed), from `futures` simulated futures.
    `without` are the excluded starts to come. Only its own tenant and operators see more than its id, times and places.
    """

    id: str
    begins: float
    ends: float
    places: tuple[str, ...]
    name: str = ""
    tenant: str = ""
    maintenance: bool = False
    wants: str = ""
    soft: bool = False
    every: str = ""
    time_zone: str = ""
    windows: int = 1
    elsewhere: int = 0
    begun: bool = False
    known: bool = False
    release_after: int = 0
    lacks: tuple[str, ...] = ()
    without: tuple[float, ...] = ()
    chance: int | None = None
    futures: int = 0


class ReservationsRequest(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The content of a reservations file."""

    document: Any


class UsageRow(msgspec.Struct, frozen=True, kw_only=True):
    """Resources used by work: `device_hours`, and `core_hours` of work without devices. `charge` is in dollars. Device
    prices come from the fleet file, otherwise from the shares, otherwise from the catalogue. `energy` is that of the
    held devices above their idle power, in joules by the power model, `co2` its CO2e in kg, and `electricity` its price
    in dollars; `hourly` is its part in hours that have a value in `intensity.yaml`. Fields that were not requested are
    empty. `day` is a date in UTC.
    """

    day: str = ""
    tenant: str = ""
    project: str = ""
    user: str = ""
    model: str = ""
    attempts: int = 0
    device_hours: float = 0.0
    core_hours: float = 0.0
    charge: float = 0.0
    energy: float = 0.0
    co2: float = 0.0
    electricity: float = 0.0
    hourly: float = 0.0
