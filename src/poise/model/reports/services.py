"""Reports of services, their load, and what rules ask of them."""

from collections.abc import Mapping

import msgspec


class ServiceOrder(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A demand of a rule on a service, while the rule has fired: `by` replicas more than the service would have
    (negative: fewer), or a copy of a `share` of its requests to the service `to`.
    """

    service: str
    rule: str
    by: int = 0
    to: str = ""
    share: float = 0.0


class ServiceLeftOut(msgspec.Struct, frozen=True, kw_only=True):
    """A service that a gateway reported and the control plane did not record, and why."""

    service: str
    why: str


class OrdersReport(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The answer to a report of a gateway: what rules ask of the services of its tenant, and the reported services that
    were `left_out`.
    """

    orders: tuple[ServiceOrder, ...] = ()
    left_out: tuple[ServiceLeftOut, ...] = ()


class Endpoint(msgspec.Struct, frozen=True, kw_only=True):
    """The place of a running attempt of a task; of a gang, that of its first member. `part` is its number in an array.
    `address` is that of its node, empty if the node is the machine of the control plane and no other machine joins.
    """

    task: str
    epoch: int
    part: int
    node: str
    address: str


class EndpointsReport(msgspec.Struct, frozen=True, kw_only=True):
    """The tasks of a job that run and are not asked to end. `known` identifies this answer. It is not `complete` while
    nodes of some tasks have not connected yet, after the control plane has started.
    """

    known: str
    complete: bool
    endpoints: tuple[Endpoint, ...]


class LoadWindow(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The forecast of one window that begins `at` (seconds since 1970): the expected load with its interval, of which
    `announced` comes at known times. Without enough history, `low` and `high` are unknown. `events` are the names of
    those events of a calendar that change it.
    """

    at: float
    expected: float
    low: float | None = None
    high: float | None = None
    announced: float = 0.0
    events: tuple[str, ...] = ()


class LoadAccuracy(msgspec.Struct, frozen=True, kw_only=True):
    """How good past forecasts were, `ahead` seconds before the end of the window: the number of `judged` intervals and
    the part of them that held the load. `error` is the mean absolute error, beside that of the load one season before
    (`naive`) and of the largest of the last six windows.
    """

    ahead: float
    judged: int
    coverage: float
    error: float
    naive: float
    max_of_six: float


class LoadForecast(msgspec.Struct, frozen=True, kw_only=True):
    """The forecast of the load of a `subject` by window; `counted` are units, devices, cores, or requests per second.
    `seen` is the number of past windows, `level` that of the intervals. `seasonal`: the time of the day or of the week
    matters.
    """

    subject: str
    counted: str
    window: float
    seen: int
    level: float
    seasonal: bool
    windows: tuple[LoadWindow, ...]
    accuracy: tuple[LoadAccuracy, ...] = ()


class ServiceReport(msgspec.Struct, frozen=True, kw_only=True):
    """A service, or its version on trial, with figures for the last `window` nanoseconds. `rate` is the number of
    responses per second, including those from the cache. `answered` counts responses of the model, `failed` those of
    them with an error, `faulty` those with status 500 and above, and `cached` responses from the cache. `p50`, `p95`
    and `p99` are latencies from the arrival of a request to its response, in nanoseconds; 0 without responses. Deferred
    requests and responses from the cache do not count. `refused` counts requests without a response, by reason.
    `objective` is the limit for `p99`; 0: none. `waiting` and `serving` count current requests. `replicas` is the
    number of ready replicas, `started` that of the requested ones; `jobs` has their ids. `foreseen` is the rate that
    the scaler expects in the next window, and `spread` its mean error; 0 without a scaler, or before its first window.
    `wait_mean` is the mean time that a request waited for its batch, in nanoseconds.
    """

    service: str
    url: str
    window: int
    rate: float
    answered: int
    failed: int
    cached: int
    p50: int
    p95: int
    p99: int
    objective: int
    refused: Mapping[str, int]
    replicas: int
    started: int
    waiting: int
    serving: int
    batches: int
    batch_mean: float
    batch_max: int
    jobs: tuple[str, ...] = ()
    faulty: int = 0
    foreseen: float = 0.0
    spread: float = 0.0
    wait_mean: int = 0

    @property
    def met(self) -> bool:
        """Return whether the objective holds in this window; True if there are no responses, or no objective."""
        return not self.objective or self.p99 <= self.objective
