"""Pending units, and the reasons why they wait."""

from collections.abc import Iterable
from itertools import chain, islice

from poise.kernel.ledger.active import Active
from poise.kernel.ledger.changes import Changes
from poise.kernel.ledger.jobs import Jobs
from poise.kernel.ledger.order import amounts_in, by_amounts, ordinal, rank
from poise.kernel.ledger.profiles import Profiles
from poise.kernel.ledger.room import Handlers, Room, hold, hold_same
from poise.kernel.ledger.state import JobState, State, queue_of_unit
from poise.kernel.ledger.units import PAST_ORDERS, UnitState
from poise.model import events
from poise.model.decisions import Reason
from poise.model.events import Preempted, Resized
from poise.model.jobs import Priority
from poise.model.views import LEAST_SHOWN

HEAD = 128
"""Units of one queue in a snapshot; the rest follow as these are placed. The policy `static` sees all units: it assigns
places by the unit's number, so a later unit may start while the head waits.
"""

SHOWN = 4096
"""Units in a snapshot, if there are many queues; of each queue at least `LEAST_SHOWN`."""

OWN = 128
"""Number of queues from which on a unit of a class without history gets no queue of its own: it joins those of other
such classes that are alike otherwise and declare about the same run time. Else each round would look at thousands of
queues of one unit each where every command of a campaign is a class of its own.
"""

SHARED = "~"
"""Begins, in the name of a shared queue, what stands in place of the class."""


def shared_queue(unit: UnitState) -> str:
    """Return the name of the queue that this unit shares with others, by the magnitude of the declared run time."""
    declared = unit.spec.declared.bit_length()
    return f"{unit.queue.removesuffix(f'{unit.spec.kind}/')}{SHARED}{declared}/"


def is_sharing(unit: UnitState) -> bool:
    """Return whether the unit is in a shared queue: there, its class is not in the name of its queue."""
    return unit.queue.endswith("/") and not unit.queue.endswith(f"/{unit.spec.kind}/")


class Queues(Room, dict[str, dict[str, UnitState]]):
    """Pending units by queue, and by id in each queue. `sort` puts each queue in the order of ranks. Owns `held` and
    `yielded`.
    """

    def __init__(self, state: State, jobs: Jobs, active: Active, profiles: Profiles, changes: Changes) -> None:
        super().__init__()
        self._state, self._jobs, self._active, self._changes = state, jobs, active, changes
        self._profiles = profiles
        self.pending = 0
        """Number of pending units, including those in back-off."""
        self.delayed: dict[str, UnitState] = {}
        """Pending units that became pending with a back-off, a lease or a `begin`."""
        self._sharing: dict[str, dict[str, UnitState]] = {}  # the units in shared queues, by class and id
        self._unsorted: set[str] = set()
        self._has_new_queue = False  # since the last sort by name
        self._first_in_line = (-1, "")  # the revision of the cached result, and the unit
        for unit in jobs.units.values():
            if unit.status == "pending":
                self._enter(unit)

    # --- what waits --------------------------------------------------------------------------------------------------

    def held_for(self, unit: UnitState) -> tuple[Reason, ...]:
        """Return the logged reasons for the queue in which this unit waits."""
        return self._state.held.get(unit.queue, ())

    def held(self, queue: str) -> tuple[Reason, ...]:
        return self._state.held.get(queue, ())

    def first_in_line(self) -> str:
        """Return the first unit held for its own, changeable reasons; units that may not overtake it wait behind it.
        Empty if there is none.
        """
        revision, found = self._first_in_line
        if revision != self._state.revision:
            heads = [
                next(iter(self[queue].values()))
                for queue, reasons in self._state.held.items()
                if any(reason.code not in ("BEHIND", "QUOTA") and reason.fixable != "never" for reason in reasons)
            ]
            found = min(heads, key=ordinal).id if heads else ""
            self._first_in_line = self._state.revision, found
        return found

    def by_class(self) -> dict[Priority, int]:
        """Return the number of pending units of each priority class that has any, the most urgent first."""
        counts: dict[int, int] = {}
        for queue in self.values():
            priority = int(next(iter(queue.values())).spec.priority)
            counts[priority] = counts.get(priority, 0) + len(queue)
        return {Priority(priority): counts[priority] for priority in sorted(counts)}

    def first(self, most: int) -> list[UnitState]:
        """Return the first `most` pending units by class and arrival; with very many queues, the heads only."""
        each = max(1, min(most, SHOWN // max(1, len(self))))
        first = [unit for queue in self.values() for unit in islice(queue.values(), each)]
        first.sort(key=lambda unit: (unit.spec.priority, unit.ordinal))
        return first[:most]

    def wakeup(self, after: int) -> int | None:
        """Return the next instant after `after` at which a back-off or a lease ends."""
        if not self.delayed and not self._active.recovering:
            return None
        back = chain(self.delayed.values(), self._active.recovering.values())
        ends = (unit.free_at for unit in back if unit.free_at > after)
        return min(ends, default=None)

    def backlog(self) -> dict[str, int]:
        """Return the number of pending units of each queue, in the order of names. Sorts only if a queue was added."""
        if self._has_new_queue:
            in_order = sorted(self.items(), key=by_amounts)
            self.clear()
            self.update(in_order)
            self._has_new_queue = False
        return {queue: len(units) for queue, units in self.items()}

    # --- what a snapshot shows of them -------------------------------------------------------------------------------

    def head(self) -> int:
        """Return the number of units of each queue to show in a snapshot."""
        return max(LEAST_SHOWN, min(HEAD, SHOWN // 2 // max(1, len(self))))

    def heads(self) -> dict[str, int]:
        """Return the number of units of each queue to show. The rest of the limit goes to the classes above the lowest,
        in order: a policy places no unit of a lower class while a higher class has units that are not shown.
        """
        head = self.head()
        left = SHOWN - head * len(self)
        heads = dict.fromkeys(self, head)
        classes: dict[int, list[str]] = {}
        for name, units in self.items():
            classes.setdefault(int(next(iter(units.values())).spec.priority), []).append(name)
        for priority in sorted(classes)[:-1]:
            longer = [name for name in classes[priority] if len(self[name]) > head]
            names = sorted(longer, key=lambda name: (len(self[name]), amounts_in(name)))
            for number, name in enumerate(names):
                more = max(0, min(len(self[name]) - head, left // (len(names) - number)))
                heads[name] += more
                left -= more
        return heads

    def sort(self) -> None:
        """Sort each queue whose ranks have changed."""
        for name in self._unsorted:
            self[name] = dict(sorted(self[name].items(), key=lambda item: rank(item[1])))
        self._unsorted.clear()

    # --- coming and going --------------------------------------------------------------------------------------------

    def make_pending(self, unit: UnitState, at: int) -> None:
        begins = self._jobs[unit.job].submitted + unit.spec.begin
        if unit.spec.begin and at < begins:
            unit.not_before, at = max(unit.not_before, begins), begins
        unit.status, unit.ready = "pending", at
        self.add(unit)

    def add(self, unit: UnitState) -> None:
        """Add a pending unit to its queue, or to a shared one."""
        if len(self) >= OWN and unit.queue not in self and self._may_share(unit):
            unit.queue = shared_queue(unit)
        self._enter(unit)

    def _may_share(self, unit: UnitState) -> bool:
        """Return whether only its class sets the unit's queue apart, and the class has no history."""
        kind = unit.spec.kind
        return bool(kind) and unit.queue.endswith(f"/{kind}/") and kind not in self._profiles

    def part(self, kind: str) -> None:
        """Move the units of a class that has history now from shared queues to their own."""
        for unit in list(self._sharing.get(kind, {}).values()):
            self.remove(unit)
            self.add(unit)

    def _enter(self, unit: UnitState) -> None:
        self.pending += 1
        self._changes.queues.add(unit.queue)
        if unit.free_at:
            self.delayed[unit.id] = unit
        if is_sharing(unit):
            self._sharing.setdefault(unit.spec.kind, {})[unit.id] = unit
        queue = self.get(unit.queue)
        if queue is None:
            self[unit.queue] = {unit.id: unit}
            self._has_new_queue = True
            return
        if rank(unit) < rank(next(reversed(queue.values()))):
            self._unsorted.add(unit.queue)
        queue[unit.id] = unit

    def remove(self, unit: UnitState) -> None:
        """Remove a unit that is no longer pending."""
        self.pending -= 1
        unit_id, queue = unit.id, self[unit.queue]
        if self.delayed:
            self.delayed.pop(unit_id, None)
        self._changes.mark_pending(unit)
        del queue[unit_id]
        if not queue:
            del self[unit.queue]
            self._unsorted.discard(unit.queue)
            self._state.held.pop(unit.queue, None)
        if is_sharing(unit):
            self._stop_sharing(unit)

    def _stop_sharing(self, unit: UnitState) -> None:
        of_class = self._sharing[unit.spec.kind]
        del of_class[unit.id]
        if not of_class:
            del self._sharing[unit.spec.kind]
        unit.queue = queue_of_unit(self._jobs[unit.job], unit)

    def rank_anew(self, job: JobState) -> None:
        """Update ranks and candidates of the job's pending units."""
        for unit in job.units:
            if unit.status == "pending":
                self._changes.mark_pending(unit)
                self._unsorted.add(unit.queue)

    # --- who yielded to whom -----------------------------------------------------------------------------------------

    @property
    def yielded(self) -> dict[str, str]:
        """Pending unit by the id of the unit that was preempted for it."""
        return self._state.yielded

    def note_order(self, unit: UnitState, event: Preempted | Resized) -> None:
        """Record a preemption order with the unit that gains by it."""
        unit.yielded = (*unit.yielded[1 - PAST_ORDERS :], event)
        gaining = self._jobs.units.get(event.to)
        if gaining is not None:
            self._state.yielded[unit.id] = event.to
            gaining.gained = (*gaining.gained[1 - PAST_ORDERS :], event)

    def forget_yields(self, unit: UnitState) -> None:
        """Remove a unit from `yielded`, on either side."""
        if self._state.yielded:
            kept = {who: to for who, to in self._state.yielded.items() if unit.id not in (who, to)}
            self._state.yielded = kept

    # --- leases of earlier copies ------------------------------------------------------------------------------------

    def end_leases(self, node: str) -> None:
        """End all leases on a node whose machine has rebooted."""
        for unit in self._leased():
            unit.leases.pop(node, None)
        for unit in [unit for unit in self.delayed.values() if not unit.free_at]:
            del self.delayed[unit.id]

    def stretch_leases(self, since: int, gap: int) -> None:
        """Keep the remaining time of each lease after a reboot of this machine: there the wall clock sets the log's
        time, and it may be wrong.
        """
        for unit in self._leased():
            for node, until in unit.leases.items():
                if until > since:
                    unit.leases[node] = until + gap

    def _leased(self) -> Iterable[UnitState]:
        return (*self._active.values(), *self.delayed.values())

    # --- events and self-check ---------------------------------------------------------------------------------------

    def handlers(self) -> Handlers:
        return {events.Held: self._held}

    def _held(self, event: events.Held) -> None:
        if event.reasons and event.queue in self:
            self._state.held[event.queue] = event.reasons
        else:
            self._state.held.pop(event.queue, None)

    def check(self, anew: "Queues") -> None:
        for unit in self._jobs.units.values():
            if unit.status == "pending":
                known = unit.id in self.delayed or unit.id in self.get(unit.queue, {})
                hold(known, f"{unit.id} is pending and in no queue")
        hold_same("delayed", self.delayed.keys(), anew.delayed.keys())
        hold_same("queues", self, anew)
        hold_same("pending", self.pending, anew.pending)
        hold_same("units in shared queues", self._sharing, anew._sharing)
        hold(self._state.held.keys() <= self.keys(), "reasons are kept for a queue in which nothing waits")
