"""Find jobs, tasks and nodes by the names that users type: `j7`, `train`, `train.prepare`, `j7.shard[2]`.

A name may contain dots, so the longest prefix that names a job is the job. A unique prefix of a name is enough, and a
full name always wins. An id cannot be shortened, because `j1` and `j12` are different jobs, even if the ledger no
longer has `j1`.
"""

from collections import deque
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from fnmatch import fnmatchcase
from itertools import islice
from typing import NamedTuple

import msgspec

from poise.errors import Conflict, NotFound
from poise.kernel.explain import LastWord, idle_in_log, job_report, logged, task_report, units_exit_code
from poise.kernel.ledger import ArrayState, JobState, Ledger, UnitState, job_status, units_status
from poise.model.document import near, some
from poise.model.reports.jobs import JobReport
from poise.model.tenants import HOME, Bearer

FEW = 12
"""Maximum number of known names in an error about an unknown one."""


MANY = 100
"""Maximum number of names for completion."""


def listed(
    jobs: Iterable[JobState],
    *,
    statuses: Collection[str] = (),
    name: str = "",
    user: str = "",
    latest: int = 0,
    after: str = "",
) -> Iterator[JobState]:
    """Yield the jobs that have one of the `statuses`, a `name` or id that matches the pattern (`train-*`), and this
    `user`, as far as these are given. Yield only the `latest` ones (0: all), and of these only those `after` an id, in
    order of submission.
    """
    found = (
        job
        for job in jobs
        if (not statuses or job_status(job) in statuses)
        and (not name or fnmatchcase(job.name, name) or fnmatchcase(job.id, name))
        and (not user or job.user == user)
    )
    if not latest:
        return found
    number = int(after[1:] or 0)
    return (job for job in deque(found, latest) if int(job.id[1:]) > number)


class Found(NamedTuple):
    """A job and its requested parts: some units, and the names of some of their tasks. `name` is the full name of the
    parts, `j7` or `j7.prepare`.
    """

    job: JobState
    units: tuple[UnitState, ...]
    tasks: frozenset[str]
    name: str

    @property
    def whole(self) -> bool:
        """Whether the whole job was requested, and not some of its tasks."""
        return self.name == self.job.id


def find(ledger: Ledger, name: str, task: str = "", bearer: Bearer = HOME) -> Found:
    """Resolve `JOB` or `JOB.TASK`, or `task` of the job `name`; each may be a unique prefix. A gang, or all parts of a
    task, have the name of the task. Work that the bearer may not see does not exist for it. Raises NotFound, also if
    the name is ambiguous.
    """
    splits = [(name, task)] if task else list(_splits(name))
    for job_name, rest in splits:
        job = ledger.jobs.find(job_name, bearer)
        if job is not None:
            return _narrowed(job, rest)
    ids = {job.name: job.id for job in ledger.jobs.values() if job.name and job.tenant == bearer.tenant}
    for job_name, rest in splits:
        begun = "" if _is_id(job_name) else only(job_name, ids, "job")
        job = ledger.jobs.find(begun, bearer) if begun else None
        if job is not None:
            return _narrowed(job, rest)
    seen = [job for job in reversed(ledger.jobs.values()) if bearer.sees(job.tenant)]
    for job_name, rest in splits:
        theirs = next((job for job in seen if job.name == job_name), None)
        if theirs is not None:  # a name is valid only within its tenant, but lists show it to others
            raise NotFound(
                f"there is no job `{name}` of tenant `{bearer.tenant}`; use its id for that of `{theirs.tenant}`",
                field="job",
                have=name,
                hint=f"`poise show {theirs.id}{f'.{rest}' if rest else ''}`",
            )
    if number := next((one for one, _ in splits if _is_id(one)), ""):
        past = f"of one that is no longer kept the log tells: `poise show {number} --at 1h`"
        hint = f"`poise ls --all` lists the jobs; {past}"
        raise NotFound(f"there is no job `{name}`", field="job", have=name, hint=hint)
    known = dict.fromkeys(
        name for job in seen for name in (job.name if job.tenant == bearer.tenant else "", job.id) if name
    )
    hint = near(name.partition(".")[0], known) or "`poise ls --all` lists the jobs"
    raise NotFound(f"there is no job `{name}`", field="job", have=name, hint=hint)


def of_rank(found: Found, rank: int) -> frozenset[str]:
    """Return the names of the tasks with this rank in a gang; all of them for -1, but none of an array as a whole: its
    output is read by part. Raises NotFound.
    """
    if found.whole and found.job.array is not None:
        return frozenset()
    if rank < 0:
        return found.tasks
    members = [task for unit in found.units for task in unit.spec.tasks if task.world > 1 and task.name in found.tasks]
    named = frozenset(task.name for task in members if task.rank == rank)
    if not named:
        have = f"ranks 0 to {max(task.rank for task in members)}" if members else "no gang"
        hint = f"`poise show {found.job.id}` lists its tasks"
        raise NotFound(f"{found.name} has no rank {rank}", field="rank", have=have, hint=hint)
    return named


def find_node(known: Iterable[str], name: str) -> str:
    """Return the node with this name or unique prefix. Raises NotFound, also if the name is ambiguous."""
    names = list(known)
    found = name if name in names else only(name, dict.fromkeys(names, ""), "node")
    if not found:
        have = some(names, FEW) or "none has joined yet"
        raise NotFound(f"there is no node `{name}`", field="node", have=have, hint=near(name, names) or "`poise nodes`")
    return found


def only(typed: str, known: Mapping[str, str], what: str) -> str:
    """Return the one of the `known` names that begins with `typed`; empty if there is none, or `typed` is empty.
    `known` maps names to their alternatives. Raises NotFound if several match.
    """
    begun = [name for name in known if name.startswith(typed)] if typed else []
    if len(begun) < 2:
        return begun[0] if begun else ""
    raise NotFound(
        f"`{typed}` is ambiguous: {len(begun)} names begin with it",
        code="E123",
        field=what,
        need=f"enough of one {what}'s name",
        have=some([f"{name} ({known[name]})" if known[name] else name for name in begun], FEW),
        hint=f"a full name always works: `{begun[0]}`",
    )


def names(ledger: Ledger, kind: str, typed: str, bearer: Bearer = HOME) -> list[str]:
    """Return completions of a name, at most `MANY`: names of `kind` job, node, tenant or schedule that the bearer may
    see. The latest jobs come first; tasks follow once their job is typed.
    """
    if kind == "node":
        known: Iterable[str] = ledger.nodes
    elif kind == "schedule":
        seen = [of for of in ledger.schedules.values() if bearer.sees(of.job.tenant)]
        known = (*(of.job.name for of in seen if of.job.tenant == bearer.tenant), *(of.id for of in seen))
    elif kind == "tenant":
        known = sorted(filter(bearer.sees, _tenants(ledger)))
    else:
        known = _job_names(ledger, typed, bearer)
    return list(islice((name for name in known if name.startswith(typed)), MANY))


def quota_note(ledger: Ledger, tenant: str, *, lifted: bool) -> str:
    """Return a warning before the quota of a tenant is set or `lifted`: the tenant is unknown, or has no quota; else
    empty. Setting it is possible anyway: the tenant may get tokens later.
    """
    if lifted:
        known, said = set(ledger.quotas), f"tenant `{tenant}` has no quota"
    else:
        known, said = _tenants(ledger) | {HOME.tenant}, f"no token or job is of tenant `{tenant}`"
    if tenant in known:
        return ""
    return "; ".join(filter(None, (said, near(tenant, sorted(known)))))


def _tenants(ledger: Ledger) -> set[str]:
    """Return the tenants of quotas, jobs, and tokens that are not revoked."""
    tenants = {*ledger.quotas, *(job.tenant for job in ledger.jobs.values())}
    tenants.update(token.tenant for token in ledger.tokens.values() if not token.revoked)
    return tenants


def found_report(
    ledger: Ledger,
    found: Found,
    now: int,
    heard: Callable[[UnitState], LastWord | None] = logged,
    idle: Callable[[UnitState], int] = idle_in_log,
) -> JobReport:
    """Report a job as of `now`, with the requested tasks, the training that was `heard`, and since when it is `idle`.
    For some tasks, status and exit code are those of their units.
    """
    job = ledger.jobs.get(found.job.id, found.job)
    report = job_report(ledger, job, now, tasks=True, heard=heard, idle=idle)
    if found.whole:
        return report
    asked = {unit.id for unit in found.units}
    if job.array is None:
        units = [unit for unit in job.units if unit.id in asked]
        tasks = tuple(task for task in report.tasks if task.name in found.tasks)
    else:
        units = [part for unit in found.units if (part := part_named(job, job.array, unit.spec.name)) is not None]
        tasks = tuple(task_report(ledger, job, unit, 0, now, unit.slack) for unit in units)
    counts: dict[str, int] = {}
    for task in tasks:
        counts[task.status] = counts.get(task.status, 0) + 1
    return msgspec.structs.replace(
        report,
        status=units_status(units),
        exit_code=units_exit_code(units),
        counts=counts,
        tasks=tasks,
        training=tuple(one for one in report.training if one.unit in asked),
        array=None,
    )


def _job_names(ledger: Ledger, typed: str, bearer: Bearer) -> Iterator[str]:
    """Yield names and ids of jobs, and tasks of jobs that are fully named."""
    for job in reversed(ledger.jobs.values()):
        if job.name and job.tenant == bearer.tenant and ledger.jobs.find(job.name, bearer) is job:
            yield job.name
    yield from (job.id for job in reversed(ledger.jobs.values()) if bearer.sees(job.tenant))
    for job_name, rest in _splits(typed):
        found = ledger.jobs.find(job_name, bearer)
        if found is not None and job_name != typed:
            given = dict.fromkeys(_given(unit) for unit in found.units)
            whole = (task.name for unit in found.units for task in unit.spec.tasks)
            yield from (f"{job_name}.{task}" for task in dict.fromkeys((*(() if "[" in rest else given), *whole)))


def _is_id(name: str) -> bool:
    return name[:1] == "j" and name[1:].isdecimal()


def _given(unit: UnitState) -> str:
    """Return the name of the task in the job file, for a part of a task or for a gang."""
    return unit.spec.name.partition("[")[0]


def _splits(name: str) -> Iterator[tuple[str, str]]:
    yield name, ""
    for place in reversed([place for place, letter in enumerate(name) if letter == "."]):
        yield name[:place], name[place + 1 :]


def part_named(job: JobState, array: ArrayState, name: str) -> UnitState | None:
    """Return a part of an array, `main[7]`; what is known of it if it does not exist. None if there is no such part."""
    place = array.place_named(name)
    if place is None:
        return None
    existing = (unit for unit in job.existing if unit.ordinal == array.ordinal + place)
    return next(existing, None) or array.past(job.id, place)


def check_exist(ledger: Ledger, found: Found, wish: str = "changed or cancelled") -> None:
    """Raise `Conflict` if a requested part of an array has not been made, so that the `wish` is impossible."""
    unknown = next((unit for unit in found.units if not unit.over and ledger.jobs.unit(unit.id) is None), None)
    if unknown is not None:
        what = f"{unknown.id} is made when it may start soon, and cannot be {wish} before"
        raise Conflict(what, field="job", have=found.name, hint=f"`poise show {found.job.id}`")


def _narrowed(job: JobState, name: str) -> Found:
    every = frozenset(task.name for unit in job.units for task in unit.spec.tasks)
    if not name:
        return Found(job, tuple(job.units), every, job.id)
    name = name.removeprefix(f"{job.id}.")
    part = None if job.array is None else part_named(job, job.array, name)
    if part is not None:
        return Found(job, (part,), frozenset(task.name for task in part.spec.tasks), f"{job.id}.{name}")
    given = dict.fromkeys((*map(_given, job.units), *(unit.spec.name for unit in job.units)), "")
    if name not in given and name not in every:
        name = only(name, dict.fromkeys(map(_given, job.units), ""), "task") or name
    units = [unit for unit in job.units if name in (unit.spec.name, _given(unit))]
    tasks = {task.name for unit in units for task in unit.spec.tasks}
    if not units:
        units = [unit for unit in job.units if any(task.name == name for task in unit.spec.tasks)]
        tasks = {name}
    if not units:
        raise _no_task(job, name, sorted(every.union(given)))
    return Found(job, tuple(units), frozenset(tasks), f"{job.id}.{name}")


def _no_task(job: JobState, name: str, known: list[str]) -> NotFound:
    """Return the error for an unknown task of a job. Of an array it names no part because that part exists now."""
    have = some(list(dict.fromkeys(unit.spec.name for unit in job.units)), FEW)
    tasks = dict.fromkeys(map(_given, job.units))
    if job.array is not None:
        rule = job.array.rule
        (first, _), (begin, count) = rule.spans[0], rule.spans[-1]
        task = rule.like.name
        have, tasks = f"{task}[{first}] to {task}[{begin + count - 1}]", {task: None}
        known = [task] if rule.merge is None else [task, rule.merge.name]
    parts = [f"{task}[{name.strip('[]')}]" for task in tasks]
    meant = next((part for part in parts if part in known or (job.array and part_named(job, job.array, part))), "")
    hint = f"did you mean `{meant}`?" if meant else near(name, known) or f"`poise show {job.id}` lists its tasks"
    return NotFound(f"job {job.id} has no task `{name}`", field="task", have=have, hint=hint)


__all__ = ["Found", "find", "find_node", "found_report", "names", "of_rank", "only"]
