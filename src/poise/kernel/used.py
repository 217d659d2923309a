"""Use, waste, energy and cost of a window of a log, from attempts and from nodes while they were up.

CPU amounts are milli-CPU, device amounts thousandths of a device (`WHOLE`); both are multiplied by nanoseconds.
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

import msgspec

from poise.kernel.follow import Seen
from poise.kernel.metering import Electricity, Meter, Spent, spent, spent_held
from poise.model.history import Bill, ClassWaits, JobLine, Level, NodeBill, Spread, TenantUse, Use, Waste
from poise.model.jobs import FAILED, Priority
from poise.model.resources import WHOLE, Node
from poise.units import HOUR, SECOND

CPU = 1000
"""Milli-CPU per core."""


class Stretch(msgspec.Struct):
    """A node while it was up: instants, milli-CPU, devices, their maximum power (milliwatts) and their price
    (micro-dollars per hour).
    """

    since: int
    until: int
    cpu: int
    devices: int
    power: int
    price: int
    powered: int
    priced: int


def stretch_of(node: Node, at: int) -> Stretch:
    """Return the stretch of a node that has just joined."""
    powers, prices = ([getattr(device, name) for device in node.devices] for name in ("power", "price"))
    return Stretch(
        since=at,
        until=0,
        cpu=node.cpu,
        devices=len(node.devices),
        power=sum(powers),
        price=sum(prices),
        powered=sum(power > 0 for power in powers),
        priced=sum(price > 0 for price in prices),
    )


class Window(NamedTuple):
    """The reported time: two instants."""

    since: int
    until: int

    def has(self, instant: int) -> bool:
        return self.since <= instant <= self.until

    def meets(self, begin: int, end: int) -> bool:
        """Return whether a time from `begin` to `end` (0: not ended) overlaps the window."""
        return begin <= self.until and (end or self.until) >= self.since

    def part(self, begin: int, end: int) -> int:
        """Return the nanoseconds of the window between two instants; an end of 0 is in the future."""
        return max(0, min(end or self.until, self.until) - max(begin, self.since))

    def run(self, attempt: Seen) -> int:
        """Return how long an attempt ran in the window, without the time in which it was suspended."""
        return self.part(attempt.started, attempt.ended) - self.away(attempt) if attempt.started else 0

    def away(self, attempt: Seen) -> int:
        """Return how long an attempt was suspended in the window."""
        return sum(self.part(gone, back) for gone, back in attempt.away)

    def holding(self, attempt: Seen) -> Iterator[tuple[int, int]]:
        """Yield the times in which an attempt held resources in the window: from its start if it was queued, else from
        its placement, without the times in which it was suspended.
        """
        if attempt.started or not attempt.queued:
            for begin, end in attempt.holding(self.until):
                if max(begin, self.since) < end:
                    yield max(begin, self.since), end

    def held(self, attempt: Seen) -> int:
        """Return how long an attempt held resources in the window."""
        return sum(end - begin for begin, end in self.holding(attempt))

    def vain(self, attempt: Seen) -> int:
        """Return how long an attempt ran in vain: it failed, or was stopped after its last checkpoint."""
        run = self.run(attempt)
        return 0 if not attempt.ended else run if attempt.outcome in FAILED else run - min(run, attempt.counts)


def spread(durations: Iterable[int]) -> Spread:
    """Return the mean, the percentiles and the maximum of durations.

    >>> spread([1, 2, 3, 10]).p50, spread([1, 2, 3, 10]).p95
    (2, 10)
    """
    ordered = sorted(durations)
    if not ordered:
        return Spread()
    count = len(ordered)
    p50, p95, p99 = (ordered[-(-count * part // 100) - 1] for part in (50, 95, 99))  # the nearest rank
    return Spread(count=count, mean=sum(ordered) // count, p50=p50, p95=p95, p99=p99, longest=ordered[-1])


def use_of_cpu(stretches: Sequence[Stretch], attempts: Sequence[Seen], window: Window) -> Use:
    used = sum(_cpu_used(attempt, window) for attempt in attempts)
    return _use(_offered(stretches, window).cpu, used, [(one, one.shape.cpu) for one in attempts], window)


def use_of_devices(stretches: Sequence[Stretch], attempts: Sequence[Seen], window: Window) -> Use:
    used = sum(attempt.device * len(attempt.devices) * window.run(attempt) for attempt in attempts)
    return _use(_offered(stretches, window).devices, used, [(one, _devices(one)) for one in attempts], window)


def tenants(
    attempts: Iterable[Seen], jobs: Iterable[JobLine], window: Window, electricity: Electricity
) -> list[TenantUse]:
    """Return the use by tenant, the largest use of devices first, then of cores."""
    statuses: dict[str, Counter[str]] = {}
    for line in jobs:
        statuses.setdefault(line.tenant, Counter())[line.status] += 1
    of: dict[str, list[Seen]] = {tenant: [] for tenant in statuses}
    for attempt in attempts:
        of.setdefault(attempt.tenant, []).append(attempt)
    found = [_tenant(tenant, seen, statuses.get(tenant, Counter()), window, electricity) for tenant, seen in of.items()]
    return sorted(found, key=lambda one: (-one.devices, -one.cpu, one.tenant))


def waits(attempts: Iterable[Seen], window: Window) -> list[ClassWaits]:
    """Return the waits by priority class, the most urgent first, of attempts that started in the window."""
    waited: dict[str, list[int]] = {}
    for attempt in attempts:
        if attempt.first and attempt.started and window.has(attempt.started):
            waited.setdefault(attempt.priority, []).append(attempt.started - attempt.ready)
    classes = (priority.name.lower() for priority in Priority)
    return [ClassWaits(name=name, waiting=spread(waited[name])) for name in classes if name in waited]


def waste(
    stretches: Sequence[Stretch], attempts: Sequence[Seen], levels: Sequence[Level], window: Window
) -> list[Waste]:
    """Return wasted resources by cause, as a part of all offered resources; causes without waste are left out."""
    found: dict[str, list[int]] = {}

    def add(cause: str, cpu: int, devices: int) -> None:
        both = found.setdefault(cause, [0, 0])
        both[0] += cpu
        both[1] += devices

    for attempt in attempts:
        cpu, devices, vain = attempt.shape.cpu, _devices(attempt), window.vain(attempt)
        failed = attempt.outcome in FAILED
        add("attempts that failed" if failed else "stopped after their last checkpoint", cpu * vain, devices * vain)
        starting = window.held(attempt) - window.run(attempt)
        add("held before the start", cpu * starting, devices * starting)
        good = window.run(attempt) - vain
        idle = devices * good * (WHOLE - attempt.device) // WHOLE if attempt.device else 0
        spare = max(0, cpu * good - _cpu_used(attempt, window)) if attempt.cpu and not vain else 0
        add("held and not used, as measured", spare, idle)
    for waiting, amounts in _free(stretches, attempts, levels, window).items():
        add("free while work waited" if waiting else "free, and nothing waited", *amounts)
    return [
        Waste(cause=cause, cpu=cpu // CPU, devices=devices // WHOLE)
        for cause, (cpu, devices) in found.items()
        if cpu // CPU or devices // WHOLE
    ]


def bill(stretches: Sequence[Stretch], attempts: Iterable[Seen], window: Window, electricity: Electricity) -> Bill:
    """Return energy, CO2e and price of all devices while they were up."""
    drawn, held = Meter(electricity), Meter(electricity)
    priced = paid = 0
    for one in stretches:
        drawn.add(one.power, max(one.since, window.since), min(one.until or window.until, window.until))
        priced += one.price * window.part(one.since, one.until)
    for attempt in attempts:
        _meter(held, attempt, window)
        paid += attempt.price * window.held(attempt)
    total = spent(electricity, drawn, held)
    there = [one for one in stretches if window.part(one.since, one.until)]
    return Bill(
        energy=total.energy,
        co2=total.co2,
        electricity=total.electricity,
        hourly=total.hourly,
        price=_dollars(priced),
        paid=_dollars(paid),
        devices=sum(one.devices for one in there),
        powered=sum(one.powered for one in there),
        priced=sum(one.priced for one in there),
    )


def bills_by_node(
    stretches: Mapping[str, Sequence[Stretch]], attempts: Iterable[Seen], window: Window, electricity: Electricity
) -> list[NodeBill]:
    """Return the bill of each node with a device of known power or price, the highest energy first."""
    of: dict[str, list[Seen]] = {node: [] for node in stretches}
    for attempt in attempts:
        if attempt.devices:
            of.setdefault(attempt.node, []).append(attempt)
    found = [NodeBill(node, bill(there, of[node], window, electricity)) for node, there in stretches.items()]
    known = [one for one in found if one.bill.powered or one.bill.priced]
    return sorted(known, key=lambda one: (-one.bill.energy, -one.bill.price, one.node))


class SpentByJob(NamedTuple):
    """Energy of the devices that a job held, above their idle power, with its CO2e; and their price in dollars."""

    spent: Spent
    price: float


def spent_by_job(attempts: Iterable[Seen], window: Window, electricity: Electricity) -> dict[str, SpentByJob]:
    """Return what each job spent that held a device of known power or price."""
    meters: dict[str, Meter] = {}
    price: Counter[str] = Counter()
    for attempt in attempts:
        if attempt.power or attempt.price:
            _meter(meters.setdefault(attempt.job, Meter(electricity)), attempt, window)
            price[attempt.job] += attempt.price * window.held(attempt)
    return {job: SpentByJob(spent_held(electricity, meter), _dollars(price[job])) for job, meter in meters.items()}


def _meter(meter: Meter, attempt: Seen, window: Window) -> None:
    for begin, end in window.holding(attempt):
        meter.add(attempt.power, begin, end)


def _dollars(price: int) -> float:
    """Convert micro-dollars per hour times nanoseconds to dollars."""
    return price / 1e6 / HOUR


class _Amounts(NamedTuple):
    cpu: int
    devices: int


def _devices(attempt: Seen) -> int:
    """Return thousandths of a device."""
    return len(attempt.devices) * attempt.shape.share


def _cpu_used(attempt: Seen, window: Window) -> int:
    """Return the measured CPU time of an attempt, for the part of its run in the window."""
    run = attempt.ended - attempt.started
    return CPU * attempt.cpu * window.run(attempt) // run if attempt.ended and run > 0 else 0


def _offered(stretches: Iterable[Stretch], window: Window) -> _Amounts:
    cpu = devices = 0
    for one in stretches:
        time = window.part(one.since, one.until)
        cpu += one.cpu * time
        devices += one.devices * WHOLE * time
    return _Amounts(cpu, devices)


def _use(offered: int, used: int, attempts: Iterable[tuple[Seen, int]], window: Window) -> Use:
    if not offered:
        return Use(offered=0)
    held = good = 0
    for attempt, amount in attempts:
        time = window.run(attempt)
        held += amount * time
        good += amount * (min(time, attempt.counts) if attempt.ended else time)
    return Use(
        offered=offered // SECOND,
        held=held * 1000 // offered,
        used=used * 1000 // offered,
        good=good * 1000 // offered,
    )


def _tenant(
    tenant: str, attempts: Sequence[Seen], statuses: Counter[str], window: Window, electricity: Electricity
) -> TenantUse:
    meter = Meter(electricity)
    cpu = devices = vain_cpu = vain_devices = price = 0
    for attempt in attempts:
        held, vain = window.held(attempt), window.vain(attempt)
        cpu += attempt.shape.cpu * held
        devices += _devices(attempt) * held
        vain_cpu += attempt.shape.cpu * vain
        vain_devices += _devices(attempt) * vain
        _meter(meter, attempt, window)
        price += attempt.price * held
    total = spent_held(electricity, meter)
    started = (one for one in attempts if one.first and one.started and window.has(one.started))
    return TenantUse(
        tenant=tenant,
        statuses=dict(sorted(statuses.items())),
        attempts=len(attempts),
        failed=sum(one.outcome in FAILED and window.has(one.ended) for one in attempts),
        waiting=spread(one.started - one.ready for one in started),
        cpu=cpu // CPU,
        devices=devices // WHOLE,
        vain_cpu=vain_cpu // CPU,
        vain_devices=vain_devices // WHOLE,
        energy=total.energy,
        co2=total.co2,
        electricity=total.electricity,
        price=_dollars(price),
    )


def _free(
    stretches: Sequence[Stretch], attempts: Iterable[Seen], levels: Sequence[Level], window: Window
) -> dict[bool, _Amounts]:
    """Return the free resources, separately for times with and without waiting work."""
    changes: list[tuple[int, int, int, int]] = []

    def between(begin: int, end: int, cpu: int, devices: int) -> None:
        begin, end = max(begin, window.since), min(end or window.until, window.until)
        if begin < end:
            changes.append((begin, cpu, devices, 0))
            changes.append((end, -cpu, -devices, 0))

    for one in stretches:
        between(one.since, one.until, one.cpu, one.devices * WHOLE)
    for attempt in attempts:
        if attempt.started or not attempt.queued:
            for begin, end in attempt.holding(window.until):
                between(begin, end, -attempt.shape.cpu, -_devices(attempt))
    pending = 0
    for level in levels:
        changes.append((max(level.at, window.since), 0, 0, level.pending - pending))
        pending = level.pending
    free = {True: [0, 0], False: [0, 0]}
    at, cpu, devices, waiting = window.since, 0, 0, 0
    for instant, more_cpu, more_devices, more_waiting in sorted(changes):
        time = min(instant, window.until) - at
        if time > 0:
            free[waiting > 0][0] += max(0, cpu) * time
            free[waiting > 0][1] += max(0, devices) * time
            at += time
        cpu, devices, waiting = cpu + more_cpu, devices + more_devices, waiting + more_waiting
    return {is_waiting: _Amounts(*amounts) for is_waiting, amounts in free.items()}
