"""Signals between events: sustained load, failed heartbeats, slow responses, a full fleet.

A *level* is logged once it has lasted for a while, so that the log does not follow every sample. A node becomes *hot*
after a sustained window above a threshold. It cools down after an equally long window below a lower threshold. A
*trigger* fires when its signal crosses the threshold, and again only after the signal was clearly below. A trigger
forces a round. Pure: the caller passes the time.
"""

from collections.abc import Collection, Iterator
from heapq import heapify, heappop, heappush
from typing import NamedTuple

from poise.model.load import Load, Upkeep, level_of
from poise.model.triggers import Triggers
from poise.units import MILLISECOND

REARM = 0.9
"""A trigger may fire again once its signal has been at nine tenths of the threshold or less."""

SMOOTH = 8
"""A response moves the mean by 1/8 of the difference (as TCP smooths its round trips)."""


class Change(NamedTuple):
    """A node has a new level, or has become hot or cool."""

    node: str
    level: int
    hot: bool


class Fired(NamedTuple):
    """A trigger that fired, its subject, and the measured value as text."""

    trigger: str
    subject: str
    have: str


class _Watched:
    """One node: its last load, its reported level, and since when the current level or heat differs."""

    __slots__ = ("hot", "hot_since", "level", "level_since", "load", "upkeep")

    def __init__(self) -> None:
        self.load = Load()
        self.upkeep: Upkeep | None = None
        self.level, self.hot = 0, False
        self.level_since = self.hot_since = 0


class Watch:
    """Call `load` for each sample, `settled` periodically, and the other methods when their signal changes."""

    def __init__(self, triggers: Triggers) -> None:
        self._triggers = triggers
        self._nodes: dict[str, _Watched] = {}
        self._silent: set[str] = set()
        self._settling: list[tuple[int, str]] = []  # heap: when a change may have settled, and the node
        self._response = 0
        self._slow = False
        self._full_since = 0
        self._full = False

    @property
    def triggers(self) -> Triggers:
        """Thresholds of the triggers."""
        return self._triggers

    @triggers.setter
    def triggers(self, triggers: Triggers) -> None:
        self._triggers = triggers
        self._settling = [(at, name) for name, watched in self._nodes.items() for at in self._times(watched)]
        heapify(self._settling)

    def load_of(self, node: str) -> Load | None:
        """Return the last sample of a node."""
        watched = self._nodes.get(node)
        return watched.load if watched else None

    def loads(self) -> Iterator[tuple[str, Load]]:
        """Return the last sample of each node."""
        return ((name, watched.load) for name, watched in self._nodes.items())

    def upkeep_of(self, node: str) -> Upkeep | None:
        """Return the last reported overhead of the node's agent."""
        watched = self._nodes.get(node)
        return watched.upkeep if watched else None

    def upkeep(self, node: str, upkeep: Upkeep) -> None:
        self._nodes.setdefault(node, _Watched()).upkeep = upkeep

    def load(self, node: str, load: Load, now: int) -> None:
        """Record a sample. `settled` reports a change of level once the change has lasted long enough."""
        watched = self._nodes.setdefault(node, _Watched())
        watched.load = load
        known = self._times(watched)
        differs = level_of(load, self.triggers.limits) != watched.level
        watched.level_since = (watched.level_since or now) if differs else 0
        threshold = self.triggers.cool_below if watched.hot else self.triggers.hot_above
        differs = (load.cpu > threshold) != watched.hot
        watched.hot_since = (watched.hot_since or now) if differs else 0
        for at in self._times(watched):
            if at not in known:
                heappush(self._settling, (at, node))

    def settled(self, now: int) -> list[Change]:
        """Return nodes whose level or heat has changed for long enough."""
        changes = []
        while self._settling and self._settling[0][0] <= now:
            _, name = heappop(self._settling)
            watched, changed = self._nodes.get(name), False
            if watched is None:
                continue
            if watched.level_since and now - watched.level_since >= self.triggers.settles:
                watched.level, watched.level_since, changed = level_of(watched.load, self.triggers.limits), 0, True
            if watched.hot_since and now - watched.hot_since >= self.triggers.hot_for:
                watched.hot, watched.hot_since, changed = not watched.hot, 0, True
            if changed:
                changes.append(Change(name, watched.level, watched.hot))
        return changes

    def due(self) -> int | None:
        """Return the next instant at which a change may have lasted long enough."""
        settling = self._settling
        while settling and settling[0][0] not in self._times(self._nodes.get(settling[0][1])):
            heappop(settling)  # a short change
        times = [settling[0][0]] if settling else []
        if self._full_since and not self._full:
            times.append(self._full_since + self.triggers.use_for)
        return min(times, default=None)

    def forget(self, node: str) -> None:
        """Forget a lost node. It reports its load again when it rejoins."""
        self._nodes.pop(node, None)
        self._silent.discard(node)

    @property
    def patience(self) -> int:
        """The silence, in nanoseconds, after which enough heartbeats have failed in a row."""
        return self.triggers.failed_checks * self.triggers.heartbeat

    def silent(self, node: str, silence: int) -> Fired | None:
        """Record how long a node has been silent. Fires once per series of enough failed heartbeats."""
        if silence < self.patience:
            self._silent.discard(node)
        elif node not in self._silent:
            self._silent.add(node)
            return Fired("failed-checks", node, f"{silence // self.triggers.heartbeat} in a row")
        return None

    def silent_at(self, node: str, heard: int) -> int | None:
        """Return the instant at which a node without further heartbeats counts as silent; None if it already does."""
        return None if node in self._silent else heard + self.patience

    def heard_all_but(self, late: Collection[str]) -> None:
        """Record that all nodes but the `late` ones have sent heartbeats, and can be reported as silent again."""
        self._silent.intersection_update(late)

    def response(self, nanoseconds: int) -> Fired | None:
        """Record the response time of a short task: from when it could start to its end."""
        self._response += (nanoseconds - self._response) // SMOOTH
        if self._slow:
            self._slow = self._response > REARM * self.triggers.response_above
            return None
        self._slow = self._response > self.triggers.response_above
        return Fired("response", "", f"{self._response // MILLISECOND} ms in the mean") if self._slow else None

    def use(self, share: int, now: int) -> Fired | None:
        """Record the used share of the fleet's CPUs or devices, whichever is larger, in thousandths."""
        if share <= REARM * self.triggers.use_above:
            self._full_since, self._full = 0, False
        elif share > self.triggers.use_above:
            self._full_since = self._full_since or now
        if self._full or not self._full_since or now - self._full_since < self.triggers.use_for:
            return None
        self._full = True
        return Fired("use", "", f"{share / 10:g} %")

    def is_long_full(self, now: int) -> bool:
        """Return whether fleet use, as reported to `use`, has been above the threshold for long enough."""
        return not self._full and 0 < self._full_since <= now - self.triggers.use_for

    def _times(self, watched: _Watched | None) -> tuple[int, ...]:
        """Return the instants at which current differences will have lasted long enough."""
        if watched is None or not (watched.level_since or watched.hot_since):
            return ()
        level = (watched.level_since + self.triggers.settles,) if watched.level_since else ()
        return (*level, watched.hot_since + self.triggers.hot_for) if watched.hot_since else level
