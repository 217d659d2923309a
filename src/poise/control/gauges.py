"""The state of the control plane as metrics, read at each scrape.

Reads happen on the loop's thread; they cost one pass over the queues and a few over the columns of the fleet. Counters
that grow with history are elsewhere (`control/tally.py`).
"""

import asyncio
import shutil
from collections import Counter
from collections.abc import Iterable
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np

from poise.control import metrics
from poise.control.plane import Plane
from poise.control.tally import Minutes
from poise.kernel.ledger import Ledger, UnitState
from poise.model.decisions import REASONS
from poise.model.fleet import CONDITIONS, CORDONED, CPU, DEVICES, LOST, MEMORY, NETWORK, Fleet
from poise.model.jobs import Priority
from poise.model.load import LEVELS
from poise.model.metrics import OTHER, Families, Labels, Metric
from poise.model.resources import WHOLE, Node, Shape
from poise.model.tenants import Bearer, tenant_of_queue
from poise.model.usage import SIGNALS
from poise.units import SECOND

QUEUES_AT_ONCE = 1000
"""Queues processed before the loop serves others: a few milliseconds."""

SHAPES = 64
"""Maximum number of different shapes at the heads of queues that free devices are checked against."""

DEVICE, POWER, DEVICE_POWER = (SIGNALS.index(name) for name in ("device", "power", "device_power"))

DEVICE_STATES = ("held", "shared", "free", "fragmented", "cordoned", "drained", "unfit", "suspect", "lost")
HELD, SHARED, FREE, FRAGMENTED, CORDON = range(5)

_OF_CONDITION = np.array([DEVICE_STATES.index({"up": "free", "emptying": "drained"}.get(of, of)) for of in CONDITIONS])
"""The state of an unused device by the condition of its node."""


def _budgets(ledger: Ledger, now: int) -> dict[Labels, float]:
    """Return the spent part of the most spent budgets."""
    spent = {name: ledger.budgets.spent(name, now) / of.budget.amount for name, of in ledger.budgets.items()}
    most = sorted(spent.items(), key=lambda one: (-one[1], one[0]))[: metrics.SHOWN_TENANTS]
    return {(name,): share for name, share in sorted(most)}


def standing(plane: Plane, version: str) -> Families:
    """Return the metrics that every control plane has, including a standby."""
    leads = plane.behind is None
    return {
        metrics.INFO: {(version, plane.controller.settings.fleet): 1},
        metrics.LEADER: {(): int(leads)},
        metrics.ACCEPTING: {(): int(plane.accepting)},
        metrics.TERM: {(): plane.ledger.leader.term},
        metrics.STORE_UP: {(): int(not plane.away)},
        metrics.REVISION: {(): plane.ledger.revision},
    }


def log_size(path: Path, limit: int) -> Families:
    """Return the size of a log file and the space left for it, up to `limit` bytes (0: its disk). Reads the disk."""
    try:
        beside = path.with_name(f"{path.name}-wal")
        used = path.stat().st_size + (beside.stat().st_size if beside.exists() else 0)
        free = shutil.disk_usage(path.parent).free
    except OSError:  # the log is elsewhere, or its disk is away: leave the metrics out
        return {}
    available = min(free, max(0, limit - used)) if limit else free
    return {metrics.STORE_USED: {(): used}, metrics.STORE_AVAILABLE: {(): available}}


class Gauges:
    """Metrics of a leading control plane. State between scrapes is only a cache, or keeps the set of names stable."""

    def __init__(self, plane: Plane, minutes: Minutes) -> None:
        self._plane = plane
        self._minutes = minutes
        self._nodes = Busiest(metrics.SHOWN_NODES)
        self._tenants = Busiest(metrics.SHOWN_TENANTS)
        self._models = Busiest(metrics.SHOWN_MODELS)
        self._prices = Prices()

    async def now(self, bearer: Bearer) -> Families:
        """Return the current state as metrics, as far as this bearer may see it."""
        ledger, now = self._plane.ledger, self._plane.clock.now()
        queues = await _Queues.of(ledger, bearer, now)
        await asyncio.sleep(0)
        of_work = self._work(ledger, queues, bearer) | {metrics.BUDGET_SPENT: _budgets(ledger, now)}
        return self._control(ledger, now) | of_work | self._fleet(ledger, queues)

    def _control(self, ledger: Ledger, now: int) -> Families:
        vitals = self._plane.controller.vitals(now)
        return {
            metrics.POLICY: {(ledger.leader.policy,): 1},
            metrics.DECIDING: {(): vitals.deciding / SECOND},
            metrics.REJECTED: _folded_reasons(self._plane.controller.deciding.rejections),
            metrics.LOG_LAG: {(): ledger.revision - self._plane.controller.durable},
            metrics.OUTBOX: {(): vitals.outbox},
            metrics.MISSED: {(): self._plane.observers.missed()},
            metrics.CONNECTED: {(): vitals.connected},
            metrics.HEARTBEAT: {(): vitals.silence / SECOND},
        }

    def _work(self, ledger: Ledger, queues: "_Queues", bearer: Bearer) -> Families:
        unfinished, pending, active = ledger.jobs.unfinished_units(), ledger.queues.pending, len(ledger.active)
        blocked = max(0, unfinished - pending - active)
        of_tenants: dict[str, int] = ledger.jobs.unfinished_by_tenant()
        if bearer.sees_all:
            shown = self._tenants.of(of_tenants)
        else:
            of_tenants, shown = {bearer.tenant: of_tenants.get(bearer.tenant, 0)}, {bearer.tenant}
        return {
            metrics.JOBS: {(): ledger.jobs.unfinished()},
            metrics.UNITS: {("pending",): pending, ("active",): active, ("blocked",): blocked},
            metrics.PENDING: queues.pending,
            metrics.QUEUE_AGE: {(priority,): age / SECOND for priority, age in queues.ages.items()},
            metrics.TENANT_UNITS: _folded(of_tenants, shown),
            metrics.TENANT_PENDING: _folded(queues.tenants, shown),
        }

    # --- the fleet ---------------------------------------------------------------------------------------------------

    def _fleet(self, ledger: Ledger, queues: "_Queues") -> Families:
        fleet = ledger.columns.room()
        up = fleet.closed == 0
        states = _device_states(fleet, queues.shapes)
        conditions = np.bincount(fleet.closed, minlength=len(CONDITIONS)).tolist()
        levels = np.bincount(fleet.levels[fleet.closed != LOST], minlength=len(LEVELS) + 1).tolist()
        lost = islice((name for name, state in ledger.nodes.items() if state.status == "lost"), metrics.SHOWN_LOST)
        return {
            metrics.NODES: {(name,): count for name, count in zip(CONDITIONS, conditions, strict=True)},
            metrics.LOST: {(name,): 1 for name in lost} if conditions[LOST] else {},
            metrics.LOAD: {(name,): count for name, count in zip((*LEVELS, "hot"), levels, strict=True)},
            metrics.CPU: _amounts(fleet, CPU, up, 1000),
            metrics.MEMORY: _amounts(fleet, MEMORY, up, 1),
            metrics.DEVICES: self._devices(fleet, states),
            metrics.PRICE: self._prices.of(fleet, states),
            **self._agents(ledger),
            **self._minutes.told(),
        }

    def _devices(self, fleet: Fleet, states: "np.ndarray[Any, Any]") -> dict[Labels, float]:
        there = fleet.device_model >= 0
        kinds = len(DEVICE_STATES)
        counts = np.bincount(fleet.device_model[there].astype(np.int64) * kinds + states[there]).tolist()
        found: Counter[tuple[str, str]] = Counter()
        for place, count in enumerate(counts):
            if count:
                found[fleet.models[place // kinds].called, DEVICE_STATES[place % kinds]] += count
        of_models: Counter[str] = Counter()
        for (model, _), count in found.items():
            of_models[model] += count
        shown = self._models.of(of_models)
        folded: Counter[Labels] = Counter()
        for (model, state), count in found.items():
            folded[model if model in shown else OTHER, state] += count
        return dict(folded)

    def _agents(self, ledger: Ledger) -> Families:
        """Return the agents' metrics of the busiest nodes."""
        minutes, controller = self._minutes, self._plane.controller
        minutes.keep_only(ledger.nodes)
        loads = dict(controller.watch.loads())
        found: dict[Metric, dict[Labels, float]] = {metric: {} for metric in _OF_NODES}
        for name in sorted(self._nodes.of({name: load.cpu for name, load in loads.items()})):
            load, minute, upkeep, label = loads[name], minutes.latest(name), controller.watch.upkeep_of(name), (name,)
            found[metrics.NODE_CPU][label] = load.cpu / 1000
            found[metrics.NODE_LOAD1][label] = load.load1 / 1000
            found[metrics.NODE_MEMORY][label] = load.memory / 1000
            found[metrics.NODE_DISK][label] = load.disk / 1000
            found[metrics.NODE_NETWORK][label] = load.network / 1000
            if (state := ledger.nodes.get(name)) is not None:
                found[metrics.NODE_FAILURES][label] = state.failures / 1000
            if upkeep is not None:
                found[metrics.AGENT_CPU][label] = upkeep.cpu / 1e6
                found[metrics.AGENT_SENT][label] = upkeep.sent
            if minute is None:
                continue
            if minute.mean[DEVICE] >= 0:
                found[metrics.NODE_DEVICES][label] = minute.mean[DEVICE] / 1000
            power = [minute.mean[signal] for signal in (POWER, DEVICE_POWER) if minute.mean[signal] >= 0]
            if power:
                found[metrics.NODE_POWER][label] = sum(power) / 1000
        return dict(found)


_OF_NODES = (
    metrics.NODE_CPU, metrics.NODE_LOAD1, metrics.NODE_MEMORY, metrics.NODE_DISK, metrics.NODE_NETWORK,
    metrics.NODE_DEVICES, metrics.NODE_POWER, metrics.NODE_FAILURES, metrics.AGENT_CPU, metrics.AGENT_SENT,
)  # fmt: skip


def _amounts(fleet: Fleet, row: int, up: "np.ndarray[Any, Any]", unit: int) -> dict[Labels, float]:
    """Return the held, free and closed amounts of one resource, converted by `unit`."""
    total, free = fleet.total[row], fleet.free[row]
    held = int((total - free).sum())
    open_, closed = int(free[up].sum()), int(free[~up].sum())
    return {("held",): held / unit, ("free",): open_ / unit, ("closed",): closed / unit}


def _device_states(fleet: Fleet, shapes: Iterable[Shape]) -> "np.ndarray[Any, Any]":
    """Return the state of each device as an index into `DEVICE_STATES`; entries without a device are undefined."""
    share, closed = fleet.device_share, fleet.closed[:, None]
    unused = np.where(_usable(fleet, shapes)[:, None], FREE, FRAGMENTED)
    unused = np.where(closed == 0, unused, _OF_CONDITION[fleet.closed][:, None])
    states = np.where(share >= WHOLE, unused, np.where(share > 0, SHARED, HELD))
    states = np.where(share == CORDONED, CORDON, states)
    return np.where(closed == LOST, DEVICE_STATES.index("lost"), states)


def _usable(fleet: Fleet, shapes: Iterable[Shape]) -> "np.ndarray[Any, Any]":
    """Return for each node whether some waiting shape fits its free resources; True for all if none waits."""
    usable, free = None, fleet.free
    for shape in shapes:
        devices = shape.gpus if shape.share == WHOLE else 0
        fits = (free[DEVICES] >= devices) & (free[CPU] >= shape.cpu) & (free[MEMORY] >= shape.memory)
        fits &= free[NETWORK] >= shape.network
        usable = fits if usable is None else usable | fits
    return np.ones(len(fleet), bool) if usable is None else usable


class _Queues:
    """The waiting work, from one pass over the queues that a bearer may see."""

    def __init__(self) -> None:
        self.pending: Counter[Labels] = Counter()
        self.tenants: Counter[str] = Counter()
        self.ages = dict.fromkeys((priority.name.lower() for priority in Priority), 0)
        self.shapes: dict[Shape, None] = {}

    @staticmethod
    async def of(ledger: Ledger, bearer: Bearer, now: int) -> "_Queues":
        found = _Queues()
        for number, name in enumerate(list(ledger.queues), start=1):
            if number % QUEUES_AT_ONCE == 0:
                await asyncio.sleep(0)
            units = ledger.queues.get(name)
            tenant = tenant_of_queue(name)
            if units and bearer.sees(tenant):
                found._add(ledger, name, tenant, units, now)
        return found

    def _add(self, ledger: Ledger, name: str, tenant: str, units: dict[str, UnitState], now: int) -> None:
        head = next(iter(units.values()))
        priority = head.spec.priority.name.lower()
        reasons = ledger.queues.held(name)
        code = reasons[0].code if reasons else _back(head, now)
        self.pending[priority, code if code in REASONS else OTHER] += len(units)
        self.tenants[tenant] += len(units)
        self.ages[priority] = max(self.ages[priority], now - max(head.ready, head.not_before))
        if head.spec.shape.gpus and len(self.shapes) < SHAPES:
            self.shapes[head.spec.shape] = None


def _back(head: UnitState, now: int) -> str:
    """Return why a unit waits before any round has given a reason."""
    if head.free_at <= now:
        return "NEXT_ROUND"
    return "LEASE" if head.not_before <= now else "BACKOFF" if head.epoch else "BEGINS"


class Busiest:
    """The names with their own series: those with the largest amounts. A shown name stays until it falls out of the top
    `2 * most`, so that series do not come and go with every scrape.
    """

    def __init__(self, most: int) -> None:
        self._most = most
        self._shown: set[str] = set()

    def of(self, amounts: dict[str, int]) -> set[str]:
        if len(amounts) <= self._most:
            self._shown = set(amounts)
            return self._shown
        first = sorted(amounts, key=amounts.__getitem__, reverse=True)[: 2 * self._most]
        kept = [name for name in first if name in self._shown][: self._most]
        others = (name for name in first if name not in self._shown)
        self._shown = {*kept, *islice(others, self._most - len(kept))}
        return self._shown


def _folded(amounts: dict[str, int], shown: set[str]) -> dict[Labels, float]:
    """Return amounts by name, with the sum of all names that are not shown as `other`."""
    found: dict[Labels, float] = {(name,): amounts.get(name, 0) for name in sorted(shown)}
    rest = sum(amounts.values()) - sum(found.values())
    return found | {(OTHER,): rest} if rest else found


def _folded_reasons(rejections: Counter[tuple[str, str]]) -> dict[Labels, float]:
    found: Counter[Labels] = Counter()
    for (decision, code), count in rejections.items():
        found[decision, code if code in REASONS else OTHER] += count
    return dict(found)


class Prices:
    """Total prices of devices, as far as they are known. Prices are cached until a node's record changes."""

    def __init__(self) -> None:
        self._of: dict[str, tuple[Node, list[int]]] = {}
        self._nodes: tuple[Node, ...] = ()
        self._prices: np.ndarray[Any, Any] | None = None

    def of(self, fleet: Fleet, states: "np.ndarray[Any, Any]") -> dict[Labels, float]:
        if self._nodes is not fleet.nodes:
            self._look(fleet)
        if self._prices is None:
            return {}
        held = (states == HELD) | (states == SHARED)
        micro = {"held": int(self._prices[held].sum()), "unused": int(self._prices[~held].sum())}
        return {(state,): price / 1e6 for state, price in micro.items()}

    def _look(self, fleet: Fleet) -> None:
        known = self._of
        self._of = {
            node.name: of
            if (of := known.get(node.name)) is not None and of[0] is node
            else (node, [device.price for device in node.devices])
            for node in fleet.nodes
        }
        prices = np.zeros(fleet.device_model.shape, np.int64)
        for row, (_, of_node) in enumerate(self._of.values()):
            if any(of_node):
                prices[row, : len(of_node)] = of_node
        self._nodes, self._prices = fleet.nodes, prices if prices.any() else None


__all__ = ["Busiest", "Gauges", "Prices", "log_size", "standing"]
