"""Budgets, and the amount spent of each in its period."""

import msgspec

from poise.kernel.ledger.active import Active
from poise.kernel.ledger.jobs import Jobs
from poise.kernel.ledger.nodes import Nodes
from poise.kernel.ledger.room import Handlers, Room, hold_same
from poise.kernel.ledger.shares import Shares
from poise.kernel.ledger.state import BudgetState, JobState, State
from poise.kernel.ledger.units import UnitState
from poise.model.budgets import Rates, rates_of, used
from poise.model.events import BudgetReached, BudgetsSet, BudgetTurned
from poise.model.jobs import Job

Payer = tuple[str, str, str]
"""Tenant, project and user of a job."""


class Budgets(Room, dict[str, BudgetState]):
    """Budgets by name. Owns `budgets`. Rates are derived from what work holds, and sums are settled when a rate
    changes. Work counts once for each budget that covers it. An attempt that is queued counts from its start.
    """

    def __init__(self, state: State, jobs: Jobs, active: Active, nodes: Nodes, shares: Shares) -> None:
        super().__init__(state.budgets)
        self._jobs, self._active, self._nodes, self._shares, state.budgets = jobs, active, nodes, shares, self
        self._at = state.now
        self.changes = 0
        """Counts changes of rates and budgets."""
        self._index()

    def at(self, now: int) -> None:
        """Set the instant of the event that is being applied."""
        self._at = now

    def spent(self, name: str, now: int) -> int:
        """Return the amount spent of a budget in its period until now."""
        state = self[name]
        return state.spent + used(self._rates[name], state.at, now)

    def rate(self, name: str) -> int:
        """Return the current spending of a budget in an hour."""
        return self._rates[name]

    def holding(self, job: JobState | Job, now: int) -> str:
        """Return the first spent budget that holds new work of a job; empty if there is none."""
        spent = (name for name in self.covering(job) if self.spent(name, now) >= self[name].budget.amount)
        return next((name for name in spent if self[name].budget.holds), "")

    def covering(self, job: JobState | Job) -> tuple[str, ...]:
        """Return the names of the budgets that cover a job, in order."""
        payer = job.tenant, job.project, job.user
        known = self._covering.get(payer)
        if known is None:
            known = self._covering[payer] = tuple(name for name in sorted(self) if self[name].budget.covers(*payer))
        return known

    def count(self, unit: UnitState, index: int) -> None:
        """Count an attempt that begins to hold resources."""
        names = self.covering(self._jobs[unit.job]) if self else ()
        if names and index not in self._of.get(unit.id, {}):
            for name in names:
                self._settle(name)
            self._count(names, unit, index)
            self.changes += 1

    def discount(self, unit: UnitState, index: int) -> None:
        """Stop counting an attempt."""
        of_unit = self._of.get(unit.id, {})
        if index in of_unit:
            rates = of_unit.pop(index)
            for name in self.covering(self._jobs[unit.job]):
                self._settle(name)
                self._rates[name] -= rates.of(self[name].budget.unit)
            self.changes += 1
            if not of_unit:
                del self._of[unit.id]

    def recount(self) -> None:
        """Settle all sums, and count again: prices or devices may have changed."""
        if self:
            for name in self:
                self._settle(name)
            self._index()

    def handlers(self) -> Handlers:
        return {BudgetsSet: self._set, BudgetTurned: self._turned, BudgetReached: self._reached}

    # --- inside ------------------------------------------------------------------------------------------------------

    def _set(self, event: BudgetsSet) -> None:
        for name in self:
            self._settle(name)
        before = dict(self)
        self.clear()
        for budget in event.budgets:
            known = before.get(budget.name)
            if known is not None and known.budget.counts_like(budget):
                self[budget.name] = msgspec.structs.replace(known, budget=budget)
            else:
                self[budget.name] = BudgetState(budget=budget, at=event.at, since=event.at)
        self._index()

    def _turned(self, event: BudgetTurned) -> None:
        known = self[event.budget]
        first = not known.begins  # what was spent since it was set counts for its first period
        since = event.since or event.at
        late = used(self._rates[event.budget], max(known.at, since), event.at)
        self[event.budget] = msgspec.structs.replace(
            known,
            spent=self.spent(event.budget, event.at) if first else late,
            at=event.at,
            begins=event.begins,
            ends=event.ends,
            since=known.since if first else since,
            reached=known.reached if first else 0,
        )
        self.changes += 1

    def _reached(self, event: BudgetReached) -> None:
        self[event.budget] = msgspec.structs.replace(self[event.budget], reached=event.share)

    def _index(self) -> None:
        """Rebuild the rates from the active units."""
        self._covering: dict[Payer, tuple[str, ...]] = {}
        self._rates = dict.fromkeys(self, 0)
        self._of: dict[str, dict[int, Rates]] = {}
        self.changes += 1
        for unit in self._active.values() if self else ():
            names = self.covering(self._jobs[unit.job])
            for index, task in enumerate(unit.tasks if names else ()):
                if task.active and (task.started or not unit.queued):
                    self._count(names, unit, index)

    def _count(self, names: tuple[str, ...], unit: UnitState, index: int) -> None:
        task = unit.tasks[index]
        rates = rates_of(unit.shape, self._nodes[task.node].node, task.devices, self._shares.tree)
        self._of.setdefault(unit.id, {})[index] = rates
        for name in names:
            self._rates[name] += rates.of(self[name].budget.unit)

    def _settle(self, name: str) -> None:
        """Update a sum to the instant of the event that is being applied."""
        state = self[name]
        if state.at < self._at:
            self[name] = msgspec.structs.replace(state, spent=self.spent(name, self._at), at=self._at)

    def check(self, anew: "Budgets") -> None:
        hold_same("rates by budget", self._rates, anew._rates)
        hold_same("charged by unit", self._of, anew._of)


__all__ = ["Budgets"]
