"""Jobs and tasks by the names that people give: `j7`, `train`, `train.prepare`, `j7.shard[2]`.

A name may hold dots itself, so the longest beginning that is a job's is the job's.
"""

from collections.abc import Iterator
from typing import NamedTuple

import msgspec

from poise.errors import NotFound
from poise.kernel.explain import job_report
from poise.kernel.ledger import JobState, Ledger, UnitState
from poise.model.reports import JobReport
from poise.model.spec import near

FEW = 12
"""Names that are told where the right one is not known."""


class Found(NamedTuple):
    """A job and what of it was asked for: some units, and the names of some of their tasks."""

    job: JobState
    units: tuple[UnitState, ...]
    tasks: frozenset[str]


def find(ledger: Ledger, name: str, task: str = "") -> Found:
    """What `JOB` or `JOB.TASK` means, or `task` of the job `name`. A gang, or all parts of a task, go by the name that
    they were given. Raises NotFound.
    """
    found = [(name, task)] if task else _splits(name)
    for job_name, rest in found:
        job = ledger.find_job(job_name)
        if job is not None:
            return _narrowed(job, rest)
    known = dict.fromkeys(name for job in reversed(ledger.jobs.values()) for name in (job.name, job.id) if name)
    hint = near(name.partition(".")[0], known) or "`poise ls --all` lists the jobs"
    raise NotFound(f"there is no job `{name}`", field="job", have=name, hint=hint)


def found_report(ledger: Ledger, found: Found, now: int) -> JobReport:
    """A job as of `now`, with the tasks that were asked for."""
    report = job_report(ledger, ledger.jobs.get(found.job.id, found.job), now, tasks=True)
    tasks = tuple(task for task in report.tasks if task.name in found.tasks)
    return msgspec.structs.replace(report, tasks=tasks)


def _splits(name: str) -> Iterator[tuple[str, str]]:
    yield name, ""
    for place in reversed([place for place, letter in enumerate(name) if letter == "."]):
        yield name[:place], name[place + 1 :]


def _narrowed(job: JobState, name: str) -> Found:
    every = frozenset(task.name for unit in job.units for task in unit.spec.tasks)
    if not name:
        return Found(job, tuple(job.units), every)
    name = name.removeprefix(f"{job.id}.")
    units = [unit for unit in job.units if _is_of(unit.spec.name, name)]
    tasks = {task.name for unit in units for task in unit.spec.tasks}
    if not units:
        units = [unit for unit in job.units if any(task.name == name for task in unit.spec.tasks)]
        tasks = {name}
    if not units:
        names = list(dict.fromkeys(unit.spec.name for unit in job.units))
        more = ", …" if len(names) > FEW else ""
        hint = near(name, sorted(every.union(names))) or f"`poise show {job.id}` lists its tasks"
        raise NotFound(
            f"job {job.id} has no task `{name}`", field="task", have=", ".join(names[:FEW]) + more, hint=hint
        )
    return Found(job, tuple(units), frozenset(tasks))


def _is_of(unit: str, name: str) -> bool:
    return unit == name or unit.startswith(f"{name}[")


__all__ = ["Found", "find", "found_report"]
