"""Changes of running work, and the limits that its nodes have set."""

from collections.abc import Callable, Iterable

from poise.kernel import changing
from poise.kernel.controller.attempts import LiveAttempts
from poise.kernel.controller.cadence import Cadence
from poise.kernel.controller.tellings import is_current
from poise.kernel.ledger import Ledger, UnitState
from poise.kernel.refitting import fitting_of, raised, resized
from poise.kernel.steering import acting_as
from poise.model.changing import LIVE, MEMORY
from poise.model.decisions import NO_POLICY
from poise.model.events import Event, JobChanged
from poise.model.messages import Sized
from poise.units import format_bytes


class LiveLimits:
    """The part of the controller that changes limits of running attempts."""

    def __init__(
        self, ledger: Ledger, cadence: Cadence, attempts: LiveAttempts, *, commit: Callable[[Event], None]
    ) -> None:
        self.ledger = ledger
        self._cadence = cadence
        self._attempts = attempts
        self._commit = commit

    def change(self, event: JobChanged) -> None:
        """Commit a change of a job, and send nodes the new limits of its attempts."""
        self._commit(event)
        if limited := event.units if {LIVE, MEMORY}.intersection(event.paths) else event.grow:
            self._attempts.limit(limited)
        self._cadence.want()

    def take_sized(self, name: str, sized: Iterable[Sized], now: int) -> None:
        """Free the memory by which a node has lowered the limit of an attempt. Raise a lowered limit that is too low,
        if there is room.
        """
        for one in sized:
            found = self.ledger.jobs.task(one.attempt.task)
            if found is None or not is_current(self.ledger, one.attempt, name):
                continue
            unit = found[0]
            if one.short and one.memory < unit.shape.memory:  # its room is reserved
                self._attempts.limit([unit.id], lower=False)
            elif one.short:
                memory = raised(self.ledger, unit, one.used)
                if changing.Growth(self.ledger).take([unit], memory):
                    self._resize(unit, memory, f"it uses {format_bytes(one.used)}", now)
            elif one.memory == changing.memory_wish(self.ledger, unit):
                self._resize(unit, one.memory, f"it has used at most {format_bytes(one.used)} so far", now)
            elif one.memory < unit.shape.memory:  # a larger limit was set in the meantime
                self._attempts.limit([unit.id])

    def _resize(self, unit: UnitState, memory: int, why: str, now: int) -> None:
        """Record the new limit of a running attempt, also with the rule that has set its limit, if one has. A larger
        limit that a user has set for the next attempt stays.
        """
        by, fitting = NO_POLICY, fitting_of(self.ledger, unit)
        waits = unit.next_spec.shape.memory if unit.next_spec is not None else 0
        if fitting is not None:
            by = acting_as(fitting.rule).token
            self._commit(resized(fitting, unit, memory, why, now))
        self.change(changing.sized(unit, memory, by, now))
        if waits > memory:
            self.change(changing.sized(unit, waits, by, now, at_once=False))
