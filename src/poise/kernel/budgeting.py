"""The part of the controller that renews budgets, records alerts, and holds new work of spent budgets.

Periods follow the wall clock, through the calendar of the shell. Each renewal, alert and hold is an event, so a replay
needs no calendar. Running work is never stopped because of a budget.
"""

from collections.abc import Callable, Iterable
from datetime import UTC, datetime

from poise.errors import PoiseError
from poise.kernel.ledger import JobState, Ledger
from poise.kernel.timetable import Calendar
from poise.model.budgets import BEGINS
from poise.model.events import BudgetReached, BudgetsSet, BudgetTurned, Event, JobHeld, JobSubmitted, Noticed
from poise.units import HOUR, SECOND

LOOK_AT_WALL = 60 * SECOND
"""Maximum interval between checks, because wall clocks can be set."""

LOOK_AT_RATES = 1 * SECOND
"""Minimum interval between checks because of changed rates."""


class Budgeting:
    """The controller's budgets. The controller replaces `ledger` when it reloads the durable state."""

    def __init__(self, ledger: Ledger, calendar: Calendar | None, *, commit: Callable[[Event], None]) -> None:
        """Without a `calendar`, as in forecasts, budgets stay as they are."""
        self.ledger = ledger
        self._calendar, self._commit = calendar, commit
        self._turn_at = self._look_at = self._looked = self._changes = 0
        self._spent: frozenset[str] = frozenset()
        self._all, self._new = True, list[str]()

    def look_again(self) -> None:
        """Check all budgets and all jobs at the next tick."""
        self._turn_at, self._look_at, self._all, self._new = 0, 0, True, []

    def after(self, event: Event) -> None:
        """Note an event that concerns budgets."""
        match event:
            case BudgetsSet():
                self.look_again()
            case JobSubmitted() if self._spent:
                self._new.append(event.job.id)
            case JobHeld() if self._spent and not event.on and not event.budget:
                self._new.append(event.job)

    def wakeup(self) -> int | None:
        """Return when to check the budgets next."""
        if self._calendar is None or not (self.ledger.budgets or self._all):
            return None
        soon = self._looked + LOOK_AT_RATES if self._changes != self.ledger.budgets.changes else self._look_at
        return 0 if self._new else min(soon, self._look_at)

    def tick(self, now: int, wall: int) -> None:
        """Renew budgets, record alerts, and hold or release jobs. `wall` is in nanoseconds since 1970."""
        due = self.wakeup()
        if self._calendar is None or due is None or now < due:
            return
        if now >= self._look_at or now >= self._looked + LOOK_AT_RATES:
            if now >= self._turn_at:
                self._turn(now, wall, self._calendar)
            self._look(now)
        jobs = self.ledger.jobs
        if self._all:
            self._hold((job for job in list(jobs.values()) if not job.ended), now)
        else:
            self._hold((jobs[name] for name in self._new if name in jobs), now)
        self._all, self._new = False, []

    def _turn(self, now: int, wall: int, calendar: Calendar) -> None:
        """Begin the periods that are due."""
        self._turn_at = now + LOOK_AT_WALL
        for name, state in sorted(self.ledger.budgets.items()):
            try:
                begins, ends = calendar(BEGINS[state.budget.every], state.budget.zone, wall)
            except PoiseError:  # the time zone is not known on this machine any more
                continue
            if begins > state.begins:
                since = max(0, now - (wall - begins))
                self._commit(BudgetTurned(at=now, budget=name, begins=begins, ends=ends, since=since))
                if state.reached:
                    self._notice(name, f"budget {name} is renewed", now, over=True)
            self._turn_at = min(self._turn_at, now + ends - wall)

    def _look(self, now: int) -> None:
        """Record alerts, and note which budgets are spent."""
        budgets, next_look, spent = self.ledger.budgets, self._turn_at, set()
        for name, state in sorted(budgets.items()):
            next_look = min(next_look, self._alert(name, now))
            if state.budget.holds and budgets.spent(name, now) >= state.budget.amount:
                spent.add(name)
        self._look_at, self._looked, self._changes = next_look, now, budgets.changes
        if spent != self._spent:
            self._spent, self._all = frozenset(spent), True

    def _alert(self, name: str, now: int) -> int:
        """Record the share that a budget has reached. Return when it reaches the next one, at its current rate."""
        budgets = self.ledger.budgets
        state, spent, rate = budgets[name], budgets.spent(name, now), budgets.rate(name)
        budget = state.budget
        shares = sorted({*budget.alerts, *((100,) if budget.holds else ())})
        reached = max((share for share in budget.alerts if spent * 100 >= share * budget.amount), default=0)
        if reached != state.reached:
            self._commit(BudgetReached(at=now, budget=name, share=reached, spent=spent))
            text = f"budget {name}: {budget.told(spent)} of {budget.told(budget.amount)} is spent, {reached}% reached"
            if reached > state.reached:
                self._notice(name, text, now)
            elif not reached:
                self._notice(name, f"the amount of budget {name} was raised", now, over=True)
        short = (share * budget.amount - 100 * spent for share in shares)
        left = min((one for one in short if one > 0), default=0)
        return now + -(-left * HOUR // (100 * rate)) if left and rate else now + LOOK_AT_WALL

    def _notice(self, name: str, text: str, now: int, *, over: bool = False) -> None:
        """Open an incident, or close it; targets of incidents are notified."""
        self._commit(Noticed(at=now, kind="budget-reached", subject=name, text=text, over=over))

    def _hold(self, jobs: Iterable[JobState], now: int) -> None:
        """Hold the jobs of spent budgets that have not started completely, and release those whose budget is no longer
        spent.
        """
        for job in jobs:
            if job.budget and job.budget not in self._spent:
                self._commit(JobHeld(at=now, job=job.id, on=False, budget=job.budget))
            name = next((one for one in self.ledger.budgets.covering(job) if one in self._spent), "")
            if name and not job.hold and job.calls is None and _is_waiting(job):
                self._commit(JobHeld(at=now, job=job.id, on=True, why=why_held(self.ledger, name, now), budget=name))


def why_held(ledger: Ledger, name: str, now: int) -> str:
    """Return why a spent budget holds work, for people."""
    budget, ends = ledger.budgets[name].budget, ledger.budgets[name].ends
    renewed = datetime.fromtimestamp(ends // SECOND, UTC)
    spent = budget.told(ledger.budgets.spent(name, now))
    return f"{spent} of {budget.told(budget.amount)} is spent; it renews at {renewed:%Y-%m-%d %H:%M} UTC"


def _is_waiting(job: JobState) -> bool:
    return not job.ended and (job.array is not None or any(unit.status in ("waiting", "pending") for unit in job.units))
