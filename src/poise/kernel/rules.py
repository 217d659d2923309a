"""The rule engine: evaluates rules at fixed instants, on the recorded log only.

Evaluations are due at multiples of `every`, in the time of the log. An evaluation sees all events before its instant.
So the same log gives the same firings, live and in a test of rules on the past:

    for event in events:
        for firing in engine.until(event.at, ledger): ...
        ledger.apply(event)
        engine.saw(event)

All subjects are evaluated together, as columns. A missing value is NaN. A condition is 1, 0, or NaN if it is unknown.
An unknown condition neither fires a rule nor ends it.
"""

import math
from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

import numpy as np

from poise.kernel.ledger import Ledger
from poise.kernel.signals import FLEET, names_in, values_of
from poise.model.events import Began, Event, NodesMeasured, RuleFired, RuleSteered
from poise.model.expressions import SIGNALS, Both, Compare, Condition, Not, Read, Scope, reads_of
from poise.model.fleet import Floats, Ints
from poise.model.rule_actions import Control
from poise.model.rules import Rule, Rules
from poise.model.served import service_in_full
from poise.units import HOUR, SECOND

ENOUGH = 0.5
"""Share of a window's samples that must exist; with fewer, its value is unknown."""


class Change(NamedTuple):
    """A rule fired for a subject at the instant `due`, or is `over` for it. `have` describes the values it read."""

    rule: str
    subject: str
    due: int
    over: bool
    have: str = ""


class Standing(NamedTuple):
    """Whether a rule has fired for a subject, and the instant of the last change."""

    fired: bool
    since: int


class _Track:
    """State of one rule: by subject, since when its trigger (or its clear condition) holds (-1: it does not), and
    whether it has fired.
    """

    __slots__ = ("held", "names", "rows", "since", "standing")

    def __init__(self) -> None:
        self.names: Sequence[str] = ()
        self.rows: dict[str, int] = {}
        self.since: Floats = np.zeros(0)
        self.standing: dict[str, Standing] = {}
        self.held = 0


class Engine:
    """Evaluates rules. Call `until` before each event is applied, `saw` after it. `standing` is the initial state by
    rule and subject, `spent` are the instants of the actions in the last hour.
    """

    def __init__(
        self,
        rules: Rules,
        now: int,
        standing: Mapping[tuple[str, str], Standing] | None = None,
        spent: Iterable[int] = (),
    ) -> None:
        self.rules = rules
        self.evaluated = 0
        """Instant of the last evaluation."""
        self.evaluations = 0
        self.due = self._next(now)
        self._tracks = {rule.name: _Track() for rule in rules.rules}
        for (name, subject), stands in (standing or {}).items():
            if name in self._tracks:
                self._tracks[name].standing[subject] = stands
        self._spent = deque(spent)
        self._spent_in_shadow: deque[int] = deque()
        self._measured: dict[str, tuple[int, ...]] = {}
        active = [rule for rule in rules.rules if rule.mode != "off"]
        reads = {read for rule in active for read in rule.reads}
        self._signals = sorted({read.signal for read in reads})
        self._windows = {
            signal: max((read.window for read in reads if read.signal == signal), default=0) for signal in self._signals
        }
        self._past: dict[str, deque[tuple[int, Floats]]] = {signal: deque() for signal in self._signals}
        self._names: dict[Scope, tuple[str, ...]] = {"node": (), "service": (), "fleet": FLEET}
        self._active = active
        self.sensed: dict[str, float] = {}
        """Signal of the control loop of each rule at the last evaluation; NaN if it is unknown."""

    def taking_over(self, old: "Engine", now: int) -> "Engine":
        """Continue from the engine of another set of rules: it keeps the state of common rules and drops no
        evaluation.
        """
        self.due = old.due if old.rules.every == self.rules.every else self._next(now)
        self._measured, self._spent_in_shadow = old._measured, old._spent_in_shadow
        same = {rule.name for rule in self.rules.rules if rule in old.rules.rules}
        self._tracks |= {name: old._tracks[name] for name in same}
        if self.rules.every == old.rules.every:
            self._past |= {signal: past for signal, past in old._past.items() if signal in self._past}
            self._names = old._names
        return self

    def _next(self, now: int) -> int:
        every = self.rules.every
        return (now // every + 1) * every

    @property
    def spent(self) -> int:
        """Number of actions in the hour before the last evaluation that count against the budget."""
        return len(self._spent)

    @property
    def active(self) -> bool:
        """Whether any rule is evaluated."""
        return bool(self._active)

    @property
    def measured(self) -> Mapping[str, tuple[int, ...]]:
        """The last recorded load of nodes, in the order of the fields of `Load`."""
        return self._measured

    def rule(self, name: str) -> Rule | None:
        """Return the rule with this name; None if there is none."""
        return next((rule for rule in self.rules.rules if rule.name == name), None)

    def saw(self, event: Event) -> None:
        """Read an event that was applied."""
        match event:
            case NodesMeasured():
                self._measured.update(event.nodes)
            case RuleSteered() | RuleFired(outcome="adjusted"):
                self._spent.append(event.due)
            case Began():  # nothing was evaluated in between, and the measurements are old
                self._measured.clear()
                for past in self._past.values():
                    past.clear()
                for track in self._tracks.values():
                    track.since.fill(-1)
                self.due = self._next(event.at)

    def until(self, instant: int, ledger: Ledger) -> list[Change]:
        """Evaluate what is due up to an instant, on a ledger with all earlier events, and return the changes."""
        if self.due > instant:
            return []
        if not self._active:
            self.due = self._next(instant)
            return []
        changes: list[Change] = []
        while self.due <= instant:
            changes += self._evaluate(ledger, self.due)
            self.due += self.rules.every
        return changes

    def unsettled(self, rule: str) -> Iterator[tuple[str, int]]:
        """Yield subjects for which a change of a rule is pending, and since when."""
        track = self._tracks[rule]
        for row, name in enumerate(track.names):
            if row < len(track.since) and track.since[row] >= 0:
                yield name, int(track.since[row])

    def held_back(self, rule: str) -> int:
        """Return the number of subjects for which the budget prevented the rule from firing at the last evaluation."""
        return self._tracks[rule].held

    # --- inside ------------------------------------------------------------------------------------------------------

    def _evaluate(self, ledger: Ledger, due: int) -> list[Change]:
        self.evaluated = due
        self.evaluations += 1
        for scope in sorted({SIGNALS[signal].scope for signal in self._signals}):
            if (names := names_in(ledger, scope)) != self._names[scope]:
                self._follow(scope, names)
        values = values_of(ledger, self._signals, self._names, self._measured, due)
        for signal, value in values.items():
            past, window = self._past[signal], self._windows[signal]
            if window:
                past.append((due, value))
                while past and past[0][0] < due - window:
                    past.popleft()
        found: dict[Read, Floats] = {}
        for spent in (self._spent, self._spent_in_shadow):
            while spent and spent[0] <= due - HOUR:
                spent.popleft()
        changes: list[Change] = []
        for rule in self._active:
            changes += self._judge(rule, due, values, found)
            if rule.control is not None:
                self.sensed[rule.name] = self._sense(rule.control, values, found)
        return changes

    def _sense(self, control: Control, values: Mapping[str, Floats], found: dict[Read, Floats]) -> float:
        """Return the signal of a control loop: of the fleet, or of the service whose replicas it sets."""
        read = control.target.read
        names = self._names[SIGNALS[read.signal].scope]
        subject = service_in_full(control.of) if SIGNALS[read.signal].scope == "service" else ""
        return float(self._read(read, values, found)[names.index(subject)]) if subject in names else math.nan

    def _follow(self, scope: Scope, names: tuple[str, ...]) -> None:
        """Rearrange the past values after nodes or services have joined or left."""
        rows = {name: row for row, name in enumerate(self._names[scope])}
        before = np.array([rows.get(name, -1) for name in names], np.int64)
        for signal, past in self._past.items():
            if SIGNALS[signal].scope == scope:
                moved = [(at, _moved(values, before)) for at, values in past]
                past.clear()
                past.extend(moved)
        self._names[scope] = names

    def _judge(self, rule: Rule, due: int, values: Mapping[str, Floats], found: dict[Read, Floats]) -> Iterator[Change]:
        track, names = self._tracks[rule.name], self._names[rule.scope]
        if track.names != names:
            before = np.array([track.rows.get(name, -1) for name in names], np.int64)
            track.since = _moved(track.since, before, -1.0)
            track.names, track.rows = names, {name: row for row, name in enumerate(names)}
        if rule.scope == "service":
            for name in [name for name, of in track.standing.items() if of.fired and name not in track.rows]:
                track.standing[name] = Standing(False, due)
                yield Change(rule.name, name, due, True, "the service is gone")
        trigger = self._holds(rule.trigger, values, found)
        fired_rows = [track.rows[name] for name, of in track.standing.items() if of.fired and name in track.rows]
        wanted = trigger
        if fired_rows:
            wanted = trigger.copy()
            wanted[fired_rows] = self._holds(rule.clear, values, found)[fired_rows]
        since, unknown = track.since, np.isnan(wanted)
        since[unknown & (since >= 0)] += self.rules.every  # time without data does not count
        since[wanted == 0] = -1
        since[(wanted == 1) & (since < 0)] = due
        track.held = 0
        ripe = np.flatnonzero((wanted == 1) & (due - since >= rule.sustained_for))
        if not len(ripe):
            return
        spent = self._spent_in_shadow if rule.mode == "shadow" else self._spent
        for row in ripe.tolist():
            name = names[row]
            stands = track.standing.get(name)
            if stands is not None and stands.fired:
                track.standing[name], since[row] = Standing(False, due), -1
                yield Change(rule.name, name, due, True, _seen(rule.clear, row, values, found))
                continue
            if rule.subjects is not None and name not in rule.subjects:
                continue
            if stands is not None and due - stands.since < rule.cool_down:
                continue
            if len(spent) + len(rule.actions) > self.rules.budget:
                track.held += 1
                continue
            spent.extend([due] * len(rule.actions))
            track.standing[name], since[row] = Standing(True, due), -1
            yield Change(rule.name, name, due, False, _seen(rule.trigger, row, values, found))

    def _holds(self, condition: Condition, values: Mapping[str, Floats], found: dict[Read, Floats]) -> Floats:
        match condition:
            case Not():
                return 1 - self._holds(condition.of, values, found)
            case Both():
                left, right = self._holds(condition.left, values, found), self._holds(condition.right, values, found)
                sure = 1.0 if condition.any else 0.0
                return np.where((left == sure) | (right == sure), sure, np.where(np.isnan(left), left, right))
            case Compare():
                value = self._read(condition.read, values, found)
                told: Floats = np.where(np.isnan(value), np.nan, _COMPARE[condition.operator](value, condition.value))
                return told
        return self._read(condition.read, values, found)

    def _read(self, read: Read, values: Mapping[str, Floats], found: dict[Read, Floats]) -> Floats:
        if not read.function:
            return values[read.signal]
        if read not in found:
            found[read] = self._over(read, values[read.signal])
        return found[read]

    def _over(self, read: Read, now: Floats) -> Floats:
        """Apply a function to a window. The result is unknown until the window is covered, and if too few samples are
        known.
        """
        first = self.evaluated - read.window
        samples = [values for at, values in self._past[read.signal] if at >= first]
        whole = read.window // self.rules.every + 1
        if len(samples) < whole:
            return np.full(len(now), np.nan)
        table = np.stack(samples)
        known = ~np.isnan(table)
        enough = known.mean(axis=0) >= ENOUGH
        if read.function == "rate":
            rate: Floats = (table[-1] - table[0]) / (read.window / SECOND)
            return rate
        filled = np.where(known, table, 0)
        count = np.maximum(known.sum(axis=0), 1)
        mean = filled.sum(axis=0) / count
        if read.function == "avg_over":
            return np.where(enough, mean, np.nan)
        if read.function == "changed":
            differs = (np.where(known, table, -np.inf).max(axis=0) != np.where(known, table, np.inf).min(axis=0)) * 1.0
            return np.where(enough, differs, np.nan)
        ordered = np.sort(table, axis=0)  # missing values come last
        rank = np.floor(read.quantile * (count - 1) + 0.5).astype(np.int64)
        return np.where(enough, np.take_along_axis(ordered, rank[None, :], axis=0)[0], np.nan)


_COMPARE = {
    ">": np.greater,
    ">=": np.greater_equal,
    "<": np.less,
    "<=": np.less_equal,
    "==": np.equal,
    "!=": np.not_equal,
}


def _moved(values: Floats, before: Ints, missing: float = np.nan) -> Floats:
    made = np.full(len(before), missing)
    known = before >= 0
    made[known] = values[before[known]]
    return made


def _seen(condition: Condition, row: int, values: Mapping[str, Floats], found: Mapping[Read, Floats]) -> str:
    """Return the values that a condition reads for one subject, for people."""
    told = []
    for read in dict.fromkeys(reads_of(condition)):
        value = float((found[read] if read in found else values[read.signal])[row])
        name = f"{read.function}({read.signal})" if read.function else read.signal
        share = SIGNALS[read.signal].kind == "share" and read.function not in ("rate", "changed")
        told.append(f"{name} " + ("unknown" if math.isnan(value) else f"{value:.0%}" if share else f"{value:g}"))
    return ", ".join(told)
