"""Requests of users for submitted jobs: hold, change, retry, remove. Each function checks a request, and changes
nothing.
"""

from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from fnmatch import fnmatchcase
from itertools import chain
from typing import NamedTuple

import msgspec

from poise.errors import Conflict
from poise.kernel.find import Found, check_exist, find
from poise.kernel.fitting import check_all
from poise.kernel.ledger import ArrayState, JobState, Ledger, UnitState
from poise.kernel.needs import Needs
from poise.kernel.owners import check_enter
from poise.model.arrays import each, first_unit, number_at, size_of, spans_of
from poise.model.changing import AT_START, CHANGEABLE, HELD, MEMORY, changed
from poise.model.events import JobChanged, JobsRemoved
from poise.model.fleet import MEMORY as FREE_MEMORY
from poise.model.jobs import Array, Priority, Unit
from poise.model.reports.jobs import Changed
from poise.model.resources import WHOLE
from poise.model.rule_actions import Relimit, Reprioritize
from poise.model.spec import Compiled
from poise.model.tenants import Bearer, declared_class


def to_hold(ledger: Ledger, name: str, bearer: Bearer) -> JobState:
    """Return the job to hold or release. Raises `NotFound` and `Conflict`."""
    found = find(ledger, name, bearer=bearer)
    job = found.job
    if not found.whole:
        raise Conflict("a job is held as a whole", field="job", have=found.name, hint=f"`poise hold {job.id}`")
    _check_unfinished(found)
    if job.calls is not None:
        what, hint = f"{job.id} serves calls, and its workers start as calls come", f"`poise cancel {job.id}`"
        raise Conflict(what, field="job", hint=hint)
    return job


def change(
    ledger: Ledger, name: str, compiled: Compiled, fields: Collection[str], now: int, bearer: Bearer
) -> tuple[JobChanged, Changed]:
    """Return the event that gives these fields of a job, or of some of its tasks, their values in a compiled job, and
    the reply. A deadline counts from now. Raises `NotFound`, `Conflict`, and `SpecError` for a unit that no node could
    run.
    """
    found = find(ledger, name, bearer=bearer)
    _check_unfinished(found)
    check_exist(ledger, found)
    job, units = found.job, [unit for unit in found.units if not unit.over]
    paths = tuple(path for field in fields for path in CHANGEABLE[field])
    sizes = any(path.startswith(HELD) for path in paths)
    if sizes and any(unit.spec.variants for unit in units):
        what, hint = "each artifact of it asks for something else", f"`poise cancel {job.id}`, and submit it anew"
        raise Conflict(what, field="resources", hint=hint)
    like = compiled.units[0]
    if like.deadline:  # the ledger counts it from submission
        like = msgspec.structs.replace(like, deadline=like.deadline + now - job.submitted)
    before = [unit.next_spec or unit.spec for unit in units]
    anew = [changed(spec, like, paths, at_rest=True) for spec in before]
    check_all(anew, ledger.columns.room(), job.tenant, ledger.quotas.get(job.tenant))
    for spec in anew:
        shape = spec.shape
        if not shape.gpus and (shape.gpu_memory or shape.share != WHOLE or shape.wants.models):
            what, hint = f"{spec.name} asks for no device", f"poise set {found.name} gpu=1"
            raise Conflict(what, field="resources", need="gpu", hint=hint)
    differ = [unit for unit, old, new in zip(units, before, anew, strict=True) if old != new]
    if found.whole and job.array is not None:  # the parts that are still to be made may differ
        differ = units
    names = tuple(unit.id for unit in differ)
    grow = Growth(ledger).take(differ, like.shape.memory) if MEMORY in paths else ()
    later = [path for path in paths if path.startswith(HELD) or path in AT_START]
    grown = grow if later == [MEMORY] else ()
    running = sum(unit.status == "active" and unit.id not in grown for unit in units) if later else 0
    event = JobChanged(at=now, job=job.id, units=names, like=like, paths=paths, by=bearer.token, grow=grow)
    return event, Changed(job=found.name, units=len(names), running=running)


def _can_resize(ledger: Ledger, unit: UnitState) -> bool:
    """Return whether the memory limit of the running attempts of a unit can change."""
    spec = unit.spec
    if not unit.is_whole or unit.suspended or spec.image or spec.variants or spec.phases or unit.stopping:
        return False
    tasks = [unit.tasks[index] for index in unit.members]
    return all(task.status == "running" and ledger.nodes[task.node].node.grows for task in tasks)


def memory_wish(ledger: Ledger, unit: UnitState) -> int:
    """Return the smaller memory limit that the running attempt of a unit of one task should get; 0 if there is none."""
    if unit.next_spec is None or len(unit.members) != 1 or not _can_resize(ledger, unit):
        return 0
    wish = unit.next_spec.shape.memory
    return wish if 0 < wish < unit.spec.shape.memory else 0


def sized(unit: UnitState, memory: int, by: str, now: int, *, at_once: bool = True) -> JobChanged:
    """Return the event that gives the running attempts of a unit this much memory each, or only its next ones."""
    like, units = _with_value(unit.spec, MEMORY, memory), (unit.id,)
    grow = units if at_once else ()
    return JobChanged(at=now, job=unit.job, units=units, like=like, paths=(MEMORY,), by=by, grow=grow)


class Growth:
    """Decides which units get a larger memory limit at once, from the currently free room."""

    def __init__(self, ledger: Ledger) -> None:
        self._ledger = ledger
        self._taken: Counter[str] = Counter()
        self._by_tenant: Counter[str] = Counter()

    def take(self, units: Iterable[UnitState], memory: int) -> tuple[str, ...]:
        """Return the ids of those units whose attempts can have this much memory each, and take it. All tasks of the
        unit must run on nodes that can raise a limit, and that have room. The quota must allow it.
        """
        return tuple(unit.id for unit in units if self._takes(unit, memory))

    def _takes(self, unit: UnitState, memory: int) -> bool:
        more = memory - unit.shape.memory
        if not 0 < unit.shape.memory < memory or not _can_resize(self._ledger, unit):
            return False
        tasks = [unit.tasks[index] for index in unit.members]
        ledger, tenant = self._ledger, self._ledger.jobs[unit.job].tenant
        room = ledger.columns.room()
        wanted = Counter({node: more * count for node, count in Counter(task.node for task in tasks).items()})
        for node, bytes_more in wanted.items():
            free = int(room.free[FREE_MEMORY, room.rows[node]]) - self._taken[node]
            if free < bytes_more:
                return False
        if (quota := ledger.quotas.get(tenant)) is not None:
            left = quota.amounts.memory - ledger.quotas.held(tenant).memory - self._by_tenant[tenant]
            if left < wanted.total():
                return False
        self._taken += wanted
        self._by_tenant[tenant] += wanted.total()
        return True


MAX_ADJUSTED = 1_000
"""Maximum number of units that one action of a rule changes."""

Adjustment = Mapping[str, Sequence[int]]
"""The value of a field before and after a change, by unit."""


def adjustment(ledger: Ledger, wanted: Reprioritize | Relimit, node: str = "") -> Adjustment:
    """Return how an action of a rule changes the unfinished units that it concerns; with a `node`, those that hold room
    there. Units that have the value already are left out. Raises `Conflict` if there are too many.
    """
    found: dict[str, Sequence[int]] = {}
    path = "priority" if isinstance(wanted, Reprioritize) else MEMORY
    units = list(_concerned(ledger, wanted, node))
    needs = Needs(ledger, units) if isinstance(wanted, Relimit) and wanted.fit else None
    for unit in units:
        before = _value(unit, path)
        if isinstance(wanted, Reprioritize):
            after = int(wanted.to)
        else:
            after = wanted.to or (needs.limit(unit, before, wanted) if needs else _raised(before, wanted))
        if after != before:
            found[unit.id] = [before, after]
            if len(found) > MAX_ADJUSTED:
                what, hint = "the action concerns too many units", "name a class, a tenant or a pattern"
                raise Conflict(what, field="rule", need=f"at most {MAX_ADJUSTED}", hint=hint)
    return found


def _concerned(ledger: Ledger, wanted: Reprioritize | Relimit, node: str) -> Iterable[UnitState]:
    """Yield the unfinished units that an action of a rule concerns."""
    which, held = wanted.jobs, {unit.id for unit, _ in ledger.active.on(node)} if node else None
    for job in ledger.jobs.values():
        if job.ended or (which.tenant and job.tenant != which.tenant):
            continue
        if which.name and not fnmatchcase(job.name, which.name) and not fnmatchcase(job.id, which.name):
            continue
        for unit in job.units:
            if unit.over or (held is not None and unit.id not in held):
                continue
            if which.kind and declared_class(unit.spec.kind) != which.kind:
                continue
            if isinstance(wanted, Relimit) and unit.spec.variants:  # each artifact asks for something else
                continue
            yield unit


def undoing(ledger: Ledger, path: str, made: Adjustment) -> Adjustment:
    """Return the changes that undo an adjustment, for unfinished units that still have the value that it set."""
    return {name: (after, before) for name, (before, after) in made.items() if has_value(ledger, name, path, after)}


def has_value(ledger: Ledger, name: str, path: str, value: int) -> bool:
    """Return whether a unit is unfinished and its field has this value."""
    unit = ledger.jobs.unit(name)
    return unit is not None and not unit.over and _value(unit, path) == value


def check_adjustment(ledger: Ledger, path: str, made: Adjustment) -> None:
    """Raise `SpecError` for a unit that no node could run after an adjustment, or that would exceed its quota."""
    if not path.startswith(HELD):
        return
    units: dict[str, list[Unit]] = {}
    for name, (_, after) in made.items():
        unit = ledger.jobs.units[name]
        units.setdefault(ledger.jobs[unit.job].tenant, []).append(_with_value(unit.next_spec or unit.spec, path, after))
    for tenant, changed_units in units.items():
        check_all(changed_units, ledger.columns.room(), tenant, ledger.quotas.get(tenant))


def adjusting(ledger: Ledger, path: str, made: Adjustment, by: str, now: int) -> list[JobChanged]:
    """Return the events that make an adjustment: one for each job and value."""
    groups: dict[tuple[str, int], list[UnitState]] = {}
    for name, (_, after) in made.items():
        unit = ledger.jobs.units[name]
        groups.setdefault((unit.job, after), []).append(unit)
    events, growth = [], Growth(ledger)
    for (job, value), units in groups.items():
        like = _with_value(units[0].next_spec or units[0].spec, path, value)
        names = tuple(unit.id for unit in units)
        grow = growth.take(units, value) if path == MEMORY else ()
        events.append(JobChanged(at=now, job=job, units=names, like=like, paths=(path,), by=by, grow=grow))
    return events


def _value(unit: UnitState, path: str) -> int:
    spec = unit.next_spec or unit.spec
    return int(spec.priority) if path == "priority" else spec.shape.memory


def _raised(before: int, wanted: Relimit) -> int:
    """Return a raised limit. A unit without a limit gets none, and no limit is lowered."""
    return max(before, min(wanted.most, before + before * wanted.by // 1000)) if before else 0


def _with_value(spec: Unit, path: str, value: int) -> Unit:
    if path == "priority":
        return msgspec.structs.replace(spec, priority=Priority(value))
    return msgspec.structs.replace(spec, shape=msgspec.structs.replace(spec.shape, memory=value))


def to_retry(ledger: Ledger, name: str, bearer: Bearer) -> tuple[Compiled, str]:
    """Return the unfinished part of an ended job as a new job, and the user of the job. It runs as the account of the
    job. Raises `NotFound`, `Conflict`, and `Forbidden` unless the bearer may run code as this account.
    """
    found = find(ledger, name, bearer=bearer)
    job = found.job
    check_enter(ledger, job.account, bearer)
    if not found.whole:
        what, hint = "a job is tried again as a whole: what of it was not done", f"`poise retry {job.id}`"
        raise Conflict(what, field="job", have=found.name, hint=hint)
    if not job.ended:
        raise Conflict(f"job {job.id} is not over", field="job", hint=f"`poise wait {job.id}`")
    if job.calls is not None:
        raise Conflict(f"{job.id} served calls, which only its caller can repeat", field="job")
    if any(unit.spec.stdin or unit.spec.tty for unit in job.units):
        what, hint = f"job {job.id} was given input, which nobody gives again", "`poise run` it anew"
        raise Conflict(what, field="job", hint=hint)
    again = next((one for one in reversed(ledger.jobs.values()) if one.retry_of == job.id and not one.ended), None)
    if again is not None:
        raise Conflict(f"{again.id} already retries {job.id}", field="job", hint=f"`poise show {again.id}`")
    done = {unit.spec.name for unit in job.units if unit.status == "done"}
    left = [unit.next_spec or unit.spec for unit in job.units if unit.spec.name not in done]
    array = None if job.array is None else _left_of(job.array)
    if job.array is not None:
        left = [] if array is None else [first_unit(array)]
    if not left:
        raise Conflict(f"all of job {job.id} is done", field="job", hint=f"`poise show {job.id}`")
    units = tuple(
        msgspec.structs.replace(
            unit, needs=tuple(need for need in unit.needs if need not in done), deadline=0, if_late="run", begin=0
        )
        for unit in left
    )
    note = f"retry of {job.id}"
    compiled = Compiled(
        job.name,
        job.folder,
        job.env,
        units,
        note=note,
        tenant=job.tenant,
        retry_of=job.id,
        secrets=job.secrets,
        notify=job.notify,
        tree=job.tree,
        project=job.project,
        allow_failed=job.allow_failed,
        array=array,
    )
    return compiled, job.user


def _left_of(state: ArrayState) -> Array | None:
    """Return the parts that an ended array has not done, with its merge; None if all is done."""
    rule, parts = state.rule, size_of(state.rule)
    undone = sorted(int(place) for place, over in state.odd.items() if over.status != "done")
    if not undone and not state.left:
        return None
    places = chain((place for place in undone if place < parts), range(state.made, parts))
    left = msgspec.structs.replace(rule, spans=spans_of(number_at(rule, place) for place in places))
    return each(left, deadline=0, begin=0)


def to_remove(ledger: Ledger, names: Iterable[str], bearer: Bearer) -> list[JobState]:
    """Return the ended jobs with these names, each once. Raises `NotFound` and `Conflict`."""
    jobs: dict[str, JobState] = {}
    for name in names:
        found = find(ledger, name, bearer=bearer)
        job = found.job
        if not found.whole:
            what, hint = "a job is removed as a whole", f"`poise rm {job.id}`"
            raise Conflict(what, field="job", have=found.name, hint=hint)
        if not job.ended:
            what, hint = f"job {job.id} has not ended", f"`poise cancel {job.id}`, then `poise wait {job.id}`"
            raise Conflict(what, field="job", hint=hint)
        jobs[job.id] = job
    return list(jobs.values())


class Removal(NamedTuple):
    """The events that remove `jobs`, and by node the jobs whose output it may have."""

    jobs: tuple[str, ...]
    events: tuple[JobsRemoved, ...]
    by_node: dict[str, dict[str, None]]


def remove(ledger: Ledger, names: Iterable[str], now: int, bearer: Bearer) -> Removal:
    """Return the removal of the ended jobs with these names. Each tenant has its own event, which hides other tenants.
    Raises `NotFound` and `Conflict`.
    """
    jobs = to_remove(ledger, names, bearer)
    by_node: dict[str, dict[str, None]] = {}
    for job in jobs:
        for node in job.array.nodes if job.array is not None else ():
            by_node.setdefault(node, {})[job.id] = None
        for task in (task for unit in job.units for task in unit.tasks):
            for node in (task.node, *(past.node for past in task.past)):
                by_node.setdefault(node, {})[job.id] = None
    events = []
    for tenant in sorted({job.tenant for job in jobs}):
        own = tuple(job.id for job in jobs if job.tenant == tenant)
        events.append(JobsRemoved(at=now, jobs=own, tenant=tenant, by=bearer.token))
    return Removal(tuple(job.id for job in jobs), tuple(events), by_node)


def _check_unfinished(found: Found) -> None:
    if all(unit.over for unit in found.units):
        what = f"job {found.job.id}" if found.whole else found.name
        raise Conflict(f"{what} is over already", field="job", hint=f"`poise show {found.name}`")
