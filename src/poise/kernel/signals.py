"""Signals of rules, read from a ledger: of its nodes, of its services and of the fleet."""

import math
from collections.abc import Mapping, Sequence

import numpy as np

from poise.kernel.ledger import Ledger
from poise.model.expressions import SIGNALS, Scope
from poise.model.fleet import CPU, LOST, MEMORY, OPEN, SUSPECT, UNFIT, Floats
from poise.model.load import Load
from poise.model.resources import WHOLE
from poise.model.served import KNOWN_FOR, Served
from poise.units import SECOND

Names = Mapping[Scope, Sequence[str]]
"""The subjects of rules by scope."""

FLEET = ("",)
"""The only subject of a rule about the fleet."""

MEASURES: Mapping[str, str] = {
    "cpu_usage": "cpu",
    "memory_usage": "memory",
    "disk_usage": "disk",
    "network_usage": "network",
    "load": "load1",
}
"""Field of `Load` for each measured signal."""


def values_of(
    ledger: Ledger, signals: Sequence[str], names: Names, measured: Mapping[str, tuple[int, ...]], now: int
) -> dict[str, Floats]:
    """Return the signals of a ledger at an instant as columns, in the order of the `names` of their scope. NaN for a
    node that does not answer, and for a service without a recent report.
    """
    made: dict[str, Floats] = {}
    by_scope = {scope: [signal for signal in signals if SIGNALS[signal].scope == scope] for scope in names}
    if by_scope["node"]:
        made |= _of_nodes(ledger, by_scope["node"], names["node"], measured)
    if by_scope["service"]:
        known = [ledger.services[name] for name in names["service"]]
        states = [of.state if now - of.at <= KNOWN_FOR else None for of in known]
        for signal in by_scope["service"]:
            made[signal] = np.array([math.nan if of is None else _of_service(of, signal) for of in states], np.float64)
    for signal in by_scope["fleet"]:
        made[signal] = np.array([_of_fleet(ledger, signal)])
    return made


def names_in(ledger: Ledger, scope: Scope) -> tuple[str, ...]:
    """Return the subjects of rules of this scope."""
    match scope:
        case "node":
            return tuple(ledger.nodes)
        case "service":
            return tuple(sorted(ledger.services))
    return FLEET


def _of_service(state: Served, signal: str) -> float:
    match signal:
        case "service_rate":
            return state.rate / 1000
        case "service_p99":
            return state.p99 / SECOND if state.p99 else math.nan
        case "service_p99_of_objective":
            return state.p99 / state.objective if state.p99 and state.objective else math.nan
        case "service_refused":
            return state.refused / 1000
        case "service_waiting":
            return float(state.waiting)
    return float(state.ready if signal == "service_replicas" else state.wanted)


def _of_nodes(
    ledger: Ledger, signals: Sequence[str], names: Sequence[str], measured: Mapping[str, tuple[int, ...]]
) -> dict[str, Floats]:
    made: dict[str, Floats] = {}
    fleet = ledger.columns.room()
    rows = np.array([fleet.rows[name] for name in names], np.int64)
    away = np.isin(fleet.closed[rows], (LOST, SUSPECT, UNFIT))
    table = np.zeros((len(names), len(Load.__struct_fields__)))
    if any(SIGNALS[signal].measured for signal in signals):
        unknown = (math.nan,) * len(Load.__struct_fields__)
        table = np.array([measured.get(name, unknown) for name in names], np.float64).reshape(table.shape) / 1000
    for signal in signals:
        match signal:
            case "cpu_reserved" | "memory_reserved":
                place = CPU if signal == "cpu_reserved" else MEMORY
                value = 1 - fleet.free[place, rows] / np.maximum(fleet.total[place, rows], 1)
            case "gpu_utilization":
                there = (fleet.device_model[rows] >= 0) & (fleet.device_share[rows] >= 0)
                left = np.where(there, fleet.device_share[rows], 0).sum(axis=1)
                devices = there.sum(axis=1)
                value = np.where(devices > 0, 1 - left / (np.maximum(devices, 1) * WHOLE), np.nan)
            case "failures":
                value = fleet.failures[rows]
            case "hot":
                value = np.array([ledger.nodes[name].hot for name in names], np.float64)
            case _:
                value = table[:, Load.__struct_fields__.index(MEASURES[signal])]
        made[signal] = np.where(away, np.nan, value)
    return made


def _of_fleet(ledger: Ledger, signal: str) -> float:
    match signal:
        case "waiting":
            return float(ledger.queues.pending)
        case "running":
            return float(ledger.active.attempts())
        case "fleet_use":
            return ledger.columns.use() / 1000
        case "out_of_memory":
            unfinished = (unit for job in ledger.jobs.values() if not job.ended for unit in job.units)
            return float(sum(bool(unit.ooms) and not unit.over for unit in unfinished))
        case "shadow_better":
            return float(bool(ledger.rules.shadow_better))
    closed = ledger.columns.room().closed
    return float((closed == OPEN).sum() if signal == "nodes_up" else ((closed == LOST) | (closed == SUSPECT)).sum())


__all__ = ["FLEET", "Names", "names_in", "values_of"]
