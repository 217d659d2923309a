"""Quotas of tenants, and their use."""

import msgspec

from poise.kernel.ledger.active import Active
from poise.kernel.ledger.changes import Changes
from poise.kernel.ledger.jobs import Jobs
from poise.kernel.ledger.room import Handlers, Room, hold_same
from poise.kernel.ledger.state import JobState, State
from poise.kernel.ledger.units import UnitState
from poise.model.decisions import Reason
from poise.model.events import QuotaSet, QuotaTurned
from poise.model.quotas import Amounts, Quota, asked
from poise.model.resources import Shape


class Quotas(Room, dict[str, Quota]):
    """Quotas by tenant. Owns `quotas`."""

    def __init__(self, state: State, jobs: Jobs, active: Active, changes: Changes) -> None:
        super().__init__(state.quotas)
        self._jobs, self._active, self._changes, state.quotas = jobs, active, changes, self
        self._held: dict[str, Amounts] = {}
        self._any_hours = any(quota.hours for quota in self.values())
        self._count_held()

    @property
    def any_hours(self) -> bool:
        """Whether a quota differs by the hour."""
        return self._any_hours

    def held(self, tenant: str) -> Amounts:
        """Return the amounts that the work of a tenant with a quota holds."""
        return self._held[tenant]

    def left(self) -> dict[str, Amounts]:
        """Return the remaining amounts of each tenant with a quota, in the order of their names."""
        return {tenant: self[tenant].amounts.plus(self._held[tenant], -1) for tenant in sorted(self)}

    def limited_tenant(self, job: JobState) -> str:
        """Return the tenant whose quota the job counts against; empty if there is none."""
        return job.tenant if job.tenant in self else ""

    def refusals(self, unit: UnitState, shape: Shape, tasks: int) -> list[Reason]:
        """Return a reason if this many tasks exceed the quota of the tenant. The unit's own resources do not count."""
        tenant = self._jobs[unit.job].tenant
        if tenant not in self:
            return []
        own = asked(unit.shape, sum(task.active for task in unit.tasks))
        left = self[tenant].amounts.plus(self._held[tenant], -1).plus(own)
        need = asked(shape, tasks)
        return [] if left.holds(need) else [left.refusal(tenant, need)]

    def count(self, unit: UnitState, shape: Shape, sign: int) -> None:
        """Count an attempt that begins (+1) or ceases (-1) to hold resources."""
        if self._held:
            tenant = self._jobs[unit.job].tenant
            held = self._held.get(tenant)
            if held is not None:
                self._held[tenant] = held.plus(asked(shape), sign)

    def handlers(self) -> Handlers:
        return {QuotaSet: self._set, QuotaTurned: self._turned}

    def _turned(self, event: QuotaTurned) -> None:
        self[event.tenant] = msgspec.structs.replace(self[event.tenant], turn=event.turn)

    def _set(self, event: QuotaSet) -> None:
        if event.quota is None:
            self.pop(event.tenant, None)
        else:
            self[event.tenant] = event.quota
        self._count_held()
        self._any_hours = any(quota.hours for quota in self.values())
        for job in self._jobs.values():
            if job.tenant == event.tenant and not job.ended:
                for unit in job.units:
                    self._changes.mark_pending(unit)
                    self._changes.mark(unit)

    def _count_held(self) -> None:
        self._held = dict.fromkeys(self, Amounts())
        for unit in self._active.values() if self._held else ():
            for task in unit.tasks:
                if task.active:
                    self.count(unit, unit.shape, 1)

    def check(self, anew: "Quotas") -> None:
        hold_same("held by tenant", self._held, anew._held)
        hold_same("quotas with hours", self._any_hours, anew._any_hours)
