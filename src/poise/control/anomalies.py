"""Finds members of gangs that differ from the others, by their nodes' reports, and records them.

Agents send the usage of their nodes for each minute. Once a minute the nodes of each running gang are compared on a
thread. Only gangs that have their nodes to themselves are compared: on a shared node a difference has a good reason.
Findings go into the log, from which incidents are derived: when a member starts and stops to differ.
"""

import asyncio
import logging
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from poise.control.plane import Plane
from poise.kernel import messages
from poise.kernel.ledger import UnitState
from poise.kernel.peers import FEWEST, Differs, Peers, Values
from poise.model.events import Noticed
from poise.model.usage import MINUTE, SIGNALS, UNKNOWN, Window

EVERY = 60.0
"""Seconds between two comparisons."""

SETTLED = 20.0
"""Seconds after a minute by which all nodes have reported it."""

COMPARED = tuple(name for name in SIGNALS if name != "failures")

MOST_GANGS = 256
"""Maximum number of gangs compared; more wait."""

_log = logging.getLogger("poise.control")


class _Gang(NamedTuple):
    """A gang under comparison, and its tasks that were reported to differ."""

    peers: Peers
    nodes: tuple[str, ...]
    told: set[str]


class Anomalies:
    """Compares the members of one control plane's gangs. Call all methods on the loop's thread."""

    def __init__(self, plane: Plane) -> None:
        self._plane = plane
        self._windows: dict[str, dict[int, Window]] = {}
        self._gangs: dict[tuple[str, int], _Gang] = {}

    def take(self, node: str, windows: Sequence[Window]) -> None:
        """Store a node's reported minutes; a later report of a minute replaces an earlier one."""
        known = self._windows.setdefault(node, {})
        known.update((window.at, window) for window in windows)
        for at in sorted(known)[:-2]:
            del known[at]

    async def run(self) -> None:
        """Compare every minute until this is cancelled."""
        while True:
            now = self._plane.clock.wall()
            await asyncio.sleep(EVERY - (now - SETTLED) % EVERY)
            if self._plane.behind is not None:
                self._gangs.clear()
                continue
            try:
                await self.compare(int(self._plane.clock.wall()) // MINUTE * MINUTE - MINUTE)
            except Exception:  # no error here may stop the fleet
                _log.exception("members of gangs could not be compared")

    async def compare(self, minute: int) -> None:
        """Compare the nodes of each gang over one minute."""
        nodes = self._plane.ledger.nodes
        for name in [name for name in self._windows if name not in nodes]:
            del self._windows[name]
        current = {(unit.id, unit.epoch): unit for unit in self._running()}
        for key in self._gangs.keys() - current.keys():
            del self._gangs[key]
        for unit in list(current.values())[:MOST_GANGS]:
            gang = self._gang(unit)
            found = await asyncio.to_thread(gang.peers.take, self._values(gang.nodes, minute))
            self._record(unit, gang, found)

    def _running(self) -> list[UnitState]:
        """Return the running gangs that have each node to themselves."""
        active = self._plane.ledger.active
        found = []
        for unit in list(active.values()):
            if len(unit.tasks) < FEWEST or any(task.status != "running" for task in unit.tasks):
                continue
            names = [task.node for task in unit.tasks]
            if len(set(names)) == len(names) and all(len(active.on(name)) == 1 for name in names):
                found.append(unit)
        return found

    def _gang(self, unit: UnitState) -> _Gang:
        nodes = tuple(task.node for task in unit.tasks)
        known = self._gangs.get((unit.id, unit.epoch))
        if known is None or known.nodes != nodes:
            known = self._gangs[unit.id, unit.epoch] = _Gang(Peers(len(nodes), len(COMPARED)), nodes, set())
        return known

    def _values(self, nodes: Sequence[str], minute: int) -> Values:
        values = np.full((len(nodes), len(COMPARED)), np.nan)
        for row, name in enumerate(nodes):
            window = self._windows.get(name, {}).get(minute)
            if window is not None:
                mean = dict(zip(SIGNALS, window.mean, strict=True))
                values[row] = [np.nan if mean[signal] == UNKNOWN else mean[signal] for signal in COMPARED]
        return values

    def _record(self, unit: UnitState, gang: _Gang, found: Sequence[Differs]) -> None:
        names = [f"{unit.job}.{task.name}" for task in unit.spec.tasks]
        differs = {names[of.member]: of for of in found}
        for name in sorted(differs.keys() - gang.told):
            of = differs[name]
            signal = COMPARED[of.signal]
            text = f"{name} on {gang.nodes[of.member]} differs from its gang: {signal.replace('_', ' ')} "
            text += f"{_amount(signal, of.value)}, the others {_amount(signal, of.others)}"
            self._say(Noticed(at=0, kind="member-differs", subject=name, text=text))
        for name in sorted(gang.told - differs.keys()):
            self._say(Noticed(at=0, kind="member-differs", subject=name, text=f"{name} is like its gang", over=True))
        gang.told.clear()
        gang.told.update(differs)

    def _say(self, noticed: Noticed) -> None:
        self._plane.post(messages.Saw(noticed))


def _amount(signal: str, value: float) -> str:
    """Format a value: `42 %` or `310 W`."""
    return f"{value / 1000:.0f} W" if signal.endswith("power") else f"{value / 10:.0f} %"
