"""Find lost deadlines: compare the least time that unfinished work still takes with the remaining time.

The least time is a lower bound, never an estimate. It assumes the most suitable devices, all the tasks that the work
can use, and no waiting; run times are measured (minus their uncertainty) or declared. A task of a graph takes the
longest path of its needs. If no run times are known the bound is 0, and a deadline is lost when it has passed.

`Lateness` finds work to cancel when its deadline is lost (`if-late: cancel`). It is level-triggered: the result depends
on the ledger and the time alone, so a restarted control plane finds the same. `lost_deadlines` reports all other work
with a lost deadline, which continues as work without one.
"""

from collections.abc import Iterable, Iterator
from typing import NamedTuple

from poise.kernel.ledger import JobState, Ledger, UnitState
from poise.kernel.schedulable import shortest_run
from poise.model import graph
from poise.model.deadlines import Missed, can_meet
from poise.model.decisions import Reason
from poise.model.events import DeadlinesMissed
from poise.model.jobs import Unit
from poise.model.progress import ALL
from poise.policy.predict import Speeds
from poise.units import MILLISECOND, SECOND, format_duration

LOOK_EVERY, PER_UNIT = 1 * SECOND, MILLISECOND // 2
"""While the ledger changes, work that its deadline may cancel is checked at this interval, or less often with many
units. A check takes 10 µs per unit of such a job: at most 2 % of the time.
"""

NEVER = 2**62


class Least:
    """The least time in nanoseconds that units of a ledger still run. Use it at once: it does not follow changes."""

    def __init__(self, ledger: Ledger) -> None:
        began = ledger.leader.began
        self._fleet = ledger.columns.fleet()
        self._speeds = Speeds(self._fleet.models, ledger.profiles, began.throughputs if began is not None else {})
        self._whole: dict[object, int] = {}

    def left(self, unit: UnitState, now: int) -> int:
        """Return the remaining time with all the tasks that it can use; 0 if its run time is unknown."""
        if unit.over or not (whole := self._shortest(unit.spec)):
            return 0
        most, said = len(unit.spec.tasks), unit.training
        part, since = unit.progress, _running_since(unit)
        done = 0
        if since:
            if said is not None and unit.told >= max(since, unit.placed) and said.progress > part:
                part, since = said.progress, unit.told
            else:
                done = unit.carried
            done += max(0, now - since) * unit.size
        work = whole * most * (ALL - part) // ALL if part else whole * most - unit.saved
        return max(0, work - done) // most

    def _shortest(self, spec: Unit) -> int:
        like = (
            spec.kind,
            spec.expect,
            spec.time_limit,
            spec.work,
            spec.least,
            len(spec.tasks),
            spec.shape,
            spec.variants,
        )
        found = self._whole.get(like)
        if found is None:
            found = self._whole[like] = shortest_run(spec, self._speeds, self._fleet)
        return found


def _running_since(unit: UnitState) -> int:
    """Return the instant since which it has run in its current size; 0 if it does not run."""
    if unit.status != "active":
        return 0
    began = [task.started for index in unit.members if (task := unit.tasks[index]).active and task.started]
    return max(min(began), unit.resized) if began else 0


class End(NamedTuple):
    """The earliest possible end of a unit. `rest` is the part of the remaining time, in nanoseconds, that does not
    shrink as time passes. It `creeps` if work on the way runs with fewer tasks than it could use.
    """

    at: int
    rest: int
    creeps: bool


def ends(job: JobState, least: Least, now: int, order: Iterable[str] = ()) -> dict[str, End]:
    """Return the earliest end of each unit, by name. `order` names every unit after all it needs, if already known."""
    units = {unit.spec.name: unit for unit in job.units}
    found: dict[str, End] = {}
    for name in order or in_order(job):
        unit = units[name]
        if unit.over:
            found[name] = End(now, 0, creeps=False)
            continue
        needed = [found[need] for need in unit.spec.needs]
        begins = max(unit.not_before, job.submitted + unit.spec.begin, now)
        start = max([begins, *(need.at for need in needed)])
        left, running = least.left(unit, now), bool(_running_since(unit))
        short = running and unit.size < len(unit.spec.tasks)
        rest = 0 if running and not short else left + max((need.rest for need in needed), default=0)
        found[name] = End(start + left, rest, creeps=short or any(need.creeps for need in needed))
    return found


def in_order(job: JobState) -> list[str]:
    """Return the names of its units, each after all it needs."""
    if not any(unit.spec.needs for unit in job.units):
        return [unit.spec.name for unit in job.units]
    return graph.topological_order({unit.spec.name: unit.spec.needs for unit in job.units})


# --- what is cancelled -----------------------------------------------------------------------------------------------


class Lateness:
    """Finds work to cancel because its deadline is lost, and when to check again."""

    def __init__(self) -> None:
        self._next = 0
        self._looked = 0
        self._revision = -1
        self._every = LOOK_EVERY
        self._fresh: list[str] = []
        self._orders: dict[str, list[str]] = {}

    def submitted(self, job: str) -> None:
        """Record an accepted job that a deadline may cancel."""
        self._fresh.append(job)

    def missed(self, ledger: Ledger, now: int) -> Iterator[DeadlinesMissed]:
        """Yield lost deadlines that cancel work, by job. Apply each before you ask for the next."""
        if not self._fresh and not ledger.jobs.cancelling:
            return
        everything = now >= self._next or (self._has_changed(ledger) and now - self._looked >= self._every)
        jobs = list(ledger.jobs.cancelling) if everything else self._fresh
        self._fresh = []
        if everything:
            self._next, self._looked, self._revision = NEVER, now, ledger.revision
            self._orders = {job: order for job, order in self._orders.items() if job in ledger.jobs.cancelling}
            self._every = max(LOOK_EVERY, PER_UNIT * sum(len(job.units) for job in ledger.jobs.cancelling.values()))
        least = Least(ledger) if jobs else None
        for job_id in jobs:
            job = ledger.jobs.cancelling.get(job_id)
            if job is None or least is None:
                continue
            found, again = self._look_at(job, least, now)
            self._next = min(self._next, again)
            if found:
                yield DeadlinesMissed(at=now, job=job.id, units=tuple(found))

    def wakeup(self, ledger: Ledger) -> int | None:
        """Return when to check next if nothing happens before."""
        if not ledger.jobs.cancelling:
            return None
        return min(self._next, self._looked + self._every) if self._has_changed(ledger) else self._next

    def _has_changed(self, ledger: Ledger) -> bool:
        return ledger.revision != self._revision

    def _look_at(self, job: JobState, least: Least, now: int) -> tuple[list[Missed], int]:
        """Return the units of a job to cancel, and the first instant at which more may follow."""
        order = self._orders.get(job.id)
        if order is None:
            order = self._orders[job.id] = in_order(job)
        found = ends(job, least, now, order)
        late: dict[str, Missed] = {}
        again = NEVER
        for unit in job.units:
            if not unit.spec.deadline or unit.spec.if_late != "cancel" or unit.over or unit.stopping == "cancel":
                continue
            due, end = job.submitted + unit.spec.deadline, found[unit.spec.name]
            if can_meet(due, now, end.at - now):
                lost_at = due - end.rest + 1
                again = min(again, max(lost_at, now + LOOK_EVERY) if end.creeps else lost_at)
            else:
                late[unit.spec.name] = Missed(unit.id, end.at - now)
        return _with_what_only_they_need(job, order, late) if late else [], again


def _with_what_only_they_need(job: JobState, order: Iterable[str], late: dict[str, Missed]) -> list[Missed]:
    """Return late units, and units that only late units and their dependents would use. A unit with a deadline that
    does not cancel it is useful by itself.
    """
    units = {unit.spec.name: unit for unit in job.units}
    followers = graph.dependents_of({name: unit.spec.needs for name, unit in units.items()})
    gone = {name: missed.unit for name, missed in late.items()}  # the unit whose deadline it was
    ordered = list(order)
    for name in ordered:
        because = next((gone[need] for need in units[name].spec.needs if need in gone), "")
        if because and name not in gone:
            gone[name] = because
    useless: dict[str, Missed] = {}
    for name in reversed(ordered):
        unit = units[name]
        wanted = unit.spec.deadline and unit.spec.if_late != "cancel"
        if name in gone or unit.over or unit.stopping == "cancel" or wanted:
            continue
        because = next((gone[follower] for follower in followers[name] if follower in gone), "")
        if because and all(other in gone or _came_to_nothing(units[other]) for other in followers[name]):
            gone[name] = because
            useless[name] = Missed(unit.id, of=because)
    found = late | useless
    return [found[unit.spec.name] for unit in job.units if unit.spec.name in found]


def _came_to_nothing(unit: UnitState) -> bool:
    return unit.over and unit.status != "done"


# --- what goes on as work without a deadline -------------------------------------------------------------------------


def lost_deadlines(ledger: Ledger, job: JobState, now: int) -> dict[str, Reason]:
    """Return a reason, by id, for each unfinished unit that is treated as work without a deadline: its own deadline is
    lost, or only units with lost deadlines need it.
    """
    if not any(unit.due for unit in job.units):
        return {}
    order = in_order(job)
    found = ends(job, Least(ledger), now, order)
    units = {unit.spec.name: unit for unit in job.units}
    followers = graph.dependents_of({name: unit.spec.needs for name, unit in units.items()})
    lost: dict[str, Reason] = {}
    may_be_met: set[str] = set()
    for name in reversed(order):
        unit = units[name]
        if unit.over or unit.missed is not None:
            continue
        after = [other for other in followers[name] if not units[other].over]
        own = unit.spec.deadline
        in_time = own and can_meet(job.submitted + own, now, found[name].at - now)
        if in_time or any(other in may_be_met for other in after):
            may_be_met.add(name)
        elif own:
            lost[unit.id] = _lost(own, job.submitted + own - now, found[name].at - now)
        else:
            follower = next((units[other] for other in after if units[other].id in lost), None)
            if follower is not None:
                reason = lost[follower.id]
                whose = reason.subject or follower.spec.name
                lost[unit.id] = Reason(code="LATE_FOR", subject=whose, need=reason.need, have=reason.have)
    return lost


def _lost(deadline: int, time: int, left: int) -> Reason:
    """Return the reason. `time` is the time left, below 0 once the deadline has passed; `left` is the least work
    left.
    """
    have = f"at least {format_duration(left)} of work are left, and {format_duration(time)} of time"
    if time < 0:
        have = f"it passed {format_duration(-time)} ago"
    return Reason(code="LATE", need=format_duration(deadline), have=have)


__all__ = ["End", "Lateness", "Least", "ends", "in_order", "lost_deadlines"]
