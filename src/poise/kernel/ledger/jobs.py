"""Jobs and their units, and the indexes to find them."""

from bisect import bisect_right
from collections import Counter
from collections.abc import Collection, Iterator
from copy import copy
from heapq import heapify, heappop, heappush
from itertools import islice

from poise.kernel.book import CallBook
from poise.kernel.ledger.arrays import ArrayState
from poise.kernel.ledger.room import Handlers, Room, hold, hold_same
from poise.kernel.ledger.state import JobState, State, first_parts, queue_of
from poise.kernel.ledger.tasks import TaskState
from poise.kernel.ledger.units import UnitState
from poise.model.events import JobsRemoved, JobSubmitted, Notified
from poise.model.messages import Attempt
from poise.model.tenants import DEFAULT, HOME, Bearer


class Jobs(Room, dict[str, JobState]):
    """Jobs by id, in order of submission. Owns `jobs`, `finished`, `jobs_ever` and `units_ever`. Higher rooms change
    the units, and call this room when a unit or a job ends.
    """

    def __init__(self, state: State) -> None:
        super().__init__(sorted(state.jobs.items(), key=lambda item: _number_of(item[0])))
        self._state, state.jobs = state, self
        self.units: dict[str, UnitState] = {}
        """All units by id."""
        self.tasks: dict[str, tuple[UnitState, int]] = {}
        """The unit and the index of each task, by `job.task`."""
        self.dependents: dict[str, list[UnitState]] = {}
        """Units that need a unit, by the id of that unit."""
        self.awaited_by: dict[str, dict[str, None]] = {}
        """Unfinished jobs that wait for a job (`after`), by the id of that job."""
        self.cancelling: dict[str, JobState] = {}
        """Unfinished jobs, by id, with a unit to cancel if its deadline cannot be met."""
        self.notifying: dict[str, int] = {}
        """Jobs with due notices, by id, and the revision at which these became due."""
        self._names: dict[tuple[str, str], str] = {}
        self._keys: dict[tuple[str, str], str] = {}
        self._unfinished = 0
        self._unfinished_of: Counter[str] = Counter()  # units by tenant
        self._ends = 0
        self._ended_of: dict[str, dict[str, int]] = {}
        self._tasks_of: Counter[str] = Counter()  # tasks of finished jobs, by tenant
        self._tasks_kept = 0  # tasks of all finished jobs
        for job_id in state.finished:
            self._note_end(self[job_id])
        for job in self.values():
            self._index(job)
            if job.calls is not None:
                job.calls.restore_order()
            if job.unfinished:
                self.count(job, job.unfinished if job.array is None else job.array.open)

    def handlers(self) -> Handlers:
        return {JobsRemoved: self._removed, Notified: self._notified}

    # --- finding -----------------------------------------------------------------------------------------------------

    def next_id(self) -> str:
        return f"j{self._state.jobs_ever + 1}"

    def submitted_under(self, key: str, tenant: str = DEFAULT) -> str | None:
        """Return the id of the job that an earlier submission of this tenant with this key created."""
        return self._keys.get((tenant, key))

    def named(self, name: str, tenant: str = DEFAULT) -> JobState | None:
        """Return the tenant's unfinished job with this name. A name is free again once its job has ended."""
        found = self._names.get((tenant, name))
        return self.get(found) if found else None

    def find(self, name: str, bearer: Bearer = HOME) -> JobState | None:
        """Return a job by id, or by name within the bearer's tenant: the unfinished job, else the latest with the name.
        None for a job that the bearer may not see.
        """
        job, tenant = self.get(name), bearer.tenant
        if job is not None and bearer.sees(job.tenant):
            return job
        latest = (job for job in reversed(self.values()) if job.name == name and job.tenant == tenant)
        return self.named(name, tenant) or next(latest, None)

    def unit(self, unit_id: str) -> UnitState | None:
        return self.units.get(unit_id)

    def is_over(self, unit_id: str) -> bool:
        """Return whether the unit has ended or is no longer retained."""
        unit = self.units.get(unit_id)
        if unit is not None:
            return unit.over
        job_id, _, name = unit_id.partition(".")
        job = self.get(job_id)
        return job is None or job.array is None or job.array.is_over(name)

    def task(self, task_id: str) -> tuple[UnitState, TaskState] | None:
        """Return the unit and the state of task `job.task`."""
        found = self.tasks.get(task_id)
        return (found[0], found[0].tasks[found[1]]) if found else None

    def node_of(self, attempt: Attempt) -> str:
        """Return the node of an attempt, past or present; empty if the attempt is unknown."""
        found = self.tasks.get(attempt.task)
        if found is None:
            return ""
        unit, index = found
        task = unit.tasks[index]
        if unit.epoch_of(index) == attempt.epoch:
            return task.node
        return next((past.node for past in task.past if past.epoch == attempt.epoch), "")

    # --- counting and listing ----------------------------------------------------------------------------------------

    @property
    def ends(self) -> int:
        """Number of jobs that have ended since this ledger was created; `latest_ended` names the latest."""
        return self._ends

    def unfinished(self) -> int:
        return len(self) - len(self._state.finished)

    def unfinished_units(self, tenant: str | None = None) -> int:
        """Return the number of unfinished units that exist, of one tenant or of all."""
        return self._unfinished if tenant is None else self._unfinished_of[tenant]

    def unfinished_by_tenant(self) -> Counter[str]:
        """Return the number of unfinished units of each tenant that has any."""
        return self._unfinished_of.copy()

    def has_others(self, tenant: str) -> bool:
        """Return whether another tenant has an unfinished unit."""
        return bool(self._unfinished_of.keys() - {tenant})

    def recent(self, finished: int) -> list[JobState]:
        """Return the latest `finished` finished jobs and all unfinished ones, in order of submission."""
        latest = set(self._state.finished[-finished:] if finished else ())
        return [job for job in self.values() if not job.ended or job.id in latest]

    def after(self, job_id: str) -> Iterator[JobState]:
        """Return the jobs submitted after this one, which need not exist, in order; all if `job_id` is empty."""
        if not job_id:
            return iter(self.values())
        jobs = list(self.values())
        return islice(jobs, bisect_right(jobs, _number_of(job_id), key=lambda job: _number_of(job.id)), None)

    def latest_ended(self, number: int, tenant: str | None = None) -> list[str]:
        """Return the latest `number` finished jobs, of a tenant or of all, the latest first."""
        latest = reversed(self._state.finished) if tenant is None else reversed(self._ended_of.get(tenant, {}))
        return list(islice(latest, number))

    # --- coming and going --------------------------------------------------------------------------------------------

    def add(self, event: JobSubmitted) -> JobState:
        """Add a new job. All of its units are waiting."""
        job, state = event.job, self._state
        state.jobs_ever += 1
        array = None
        if job.array is not None:
            array = ArrayState(job.array, state.units_ever + 1)
            state.units_ever += array.left
        units = []
        first, turns = first_parts(job.units)
        for unit in job.units if array is None else ():
            state.units_ever += 1
            units.append(
                UnitState(
                    spec=unit,
                    job=job.id,
                    ordinal=state.units_ever,
                    queue=queue_of(job, unit),
                    missing=len(set(unit.needs)) + (unit.at_most > 0 and unit.name not in first),
                    tasks=[TaskState() for _ in unit.tasks],
                )
            )
        made = self[job.id] = JobState(
            id=job.id,
            name=job.name,
            user=job.user,
            folder=job.folder,
            env=job.env,
            after=job.after,
            submitted=event.at,
            units=units,
            key=event.key,
            unfinished=len(units) if array is None else array.left,
            awaited=sum(1 for other in job.after if other in self and not self[other].ended) + job.hold,
            note=job.note,
            calls=CallBook() if job.calls else None,
            tenant=job.tenant,
            after_any=job.after_any,
            after_failure=job.after_failure,
            hold=job.hold,
            retry_of=job.retry_of,
            secrets=job.secrets,
            project=job.project,
            notify=job.notify,
            tree=job.tree,
            turns=turns,
            allow_failed=job.allow_failed,
            array=array,
        )
        self._index(made)
        self.count(made, len(units))
        return made

    def index_late(self, job: JobState) -> None:
        """Index the job if a unit of it is to be cancelled when its deadline is lost."""
        if any(unit.spec.if_late == "cancel" for unit in job.units) and not job.ended:
            self.cancelling[job.id] = job
        else:
            self.cancelling.pop(job.id, None)

    def index_notices(self, job: JobState) -> None:
        """Index the job if it has due notices."""
        if job.notices:
            self.notifying.setdefault(job.id, self._state.revision)
        else:
            self.notifying.pop(job.id, None)

    def _notified(self, event: Notified) -> None:
        job = self[event.job]
        if job.ended:  # forks share it
            job = self[event.job] = copy(job)
        job.notified = {**job.notified, event.notice: event.failed}
        self.index_notices(job)

    def count_over(self, job: JobState) -> None:
        """Count a unit of this job that has ended."""
        job.unfinished -= 1
        self.count(job, -1)

    def end(self, job: JobState, at: int) -> Collection[str]:
        """End a job. Returns the ids of the unfinished jobs that come after it."""
        job.ended = at
        self.cancelling.pop(job.id, None)
        if job.calls is not None:
            job.calls.forget()
        self._state.finished.append(job.id)
        self._note_end(job)
        if job.notify is not None:
            self.index_notices(job)
        if job.name:
            self._names.pop((job.tenant, job.name), None)
        for other in job.after:  # a cancelled job no longer waits for them
            self._stop_awaiting(other, job.id)
        return self.awaited_by.pop(job.id, ())

    def has_too_many(self, history: int) -> bool:
        """Return whether to call `forget_old`, which copies a list and therefore works in batches."""
        return len(self._state.finished) - history > max(16, history // 16)

    def forget_old(self, history: int, *, fair: bool) -> None:
        """Remove the oldest finished jobs until `history` are left. The log still has them."""
        finished = self._state.finished
        self._forget(self._oldest_of_the_most(history) if fair else finished[: len(finished) - history])

    def has_too_many_tasks(self, tasks: int) -> bool:
        """Return whether to call `forget_largest`; a limit of 0 `tasks` means no limit."""
        return tasks > 0 and self._tasks_kept - tasks > max(16, tasks // 16)

    def forget_largest(self, tasks: int) -> None:
        """Remove finished jobs until the others have at most `tasks` tasks. Each time, remove the oldest job of the
        tenant whose finished jobs have the most tasks. The job that ended last stays, whatever its size.
        """
        excess = self._tasks_kept - tasks
        largest = [(-self._tasks_of[tenant], _first(own), tenant) for tenant, own in self._ended_of.items()]
        oldest = {tenant: iter(own) for tenant, own in self._ended_of.items()}
        heapify(largest)
        leaving: list[str] = []
        while excess > 0 and largest:
            have, _, tenant = heappop(largest)
            job_id = next(oldest[tenant], "")
            if not job_id or job_id == self._state.finished[-1]:
                continue
            leaving.append(job_id)
            excess -= (size := self[job_id].count_tasks())
            heappush(largest, (have + size, self._ended_of[tenant][job_id], tenant))
        self._forget(leaving)

    def _removed(self, event: JobsRemoved) -> None:
        self._forget(event.jobs)

    def _forget(self, leaving: Collection[str]) -> None:
        """Remove finished jobs and all indexes of them."""
        for job_id in leaving:
            job = self.pop(job_id)
            self.notifying.pop(job_id, None)
            ended = self._ended_of[job.tenant]
            del ended[job_id]
            self._count_kept(job, -1)
            if not ended:
                del self._ended_of[job.tenant], self._tasks_of[job.tenant]
            if job.key:
                self._keys.pop((job.tenant, job.key), None)
            for unit in job.units:
                self.forget_unit(job, unit)
        finished = self._state.finished
        if list(leaving) == finished[: len(leaving)]:
            del finished[: len(leaving)]
        else:
            gone = frozenset(leaving)
            self._state.finished = [job_id for job_id in finished if job_id not in gone]

    def forget_unit(self, job: JobState, unit: UnitState) -> None:
        """Remove a unit from all indexes."""
        unit_id = unit.id
        del self.units[unit_id]
        if self.dependents:
            self.dependents.pop(unit_id, None)
        for task in unit.spec.tasks:
            del self.tasks[f"{job.id}.{task.name}"]

    def _oldest_of_the_most(self, history: int) -> list[str]:
        """Return the jobs to remove so that tenants share the history equally."""
        leaving: list[str] = []
        room = history
        fewest_first = sorted(self._ended_of.values(), key=_number_and_first)
        for left, own in zip(range(len(fewest_first), 0, -1), fewest_first, strict=True):
            kept = min(len(own), room // left)
            room -= kept
            leaving += islice(own, len(own) - kept)
        return leaving

    def _note_end(self, job: JobState) -> None:
        """Number the ends, so that ends of jobs of different tenants can be compared."""
        self._ends += 1
        self._ended_of.setdefault(job.tenant, {})[job.id] = self._ends
        self._count_kept(job, 1)

    def _count_kept(self, job: JobState, sign: int) -> None:
        """Count the tasks of a finished job that is now retained (`sign` 1) or removed (-1)."""
        self._tasks_of[job.tenant] += sign * job.count_tasks()
        self._tasks_kept += sign * job.count_tasks()

    def _stop_awaiting(self, other: str, job_id: str) -> None:
        waiting = self.awaited_by.get(other)
        if waiting is not None:
            waiting.pop(job_id, None)
            if not waiting:
                del self.awaited_by[other]

    def count(self, job: JobState, units: int) -> None:
        self._unfinished += units
        self._unfinished_of[job.tenant] += units
        if not self._unfinished_of[job.tenant]:
            del self._unfinished_of[job.tenant]

    def _index(self, job: JobState) -> None:
        if job.name and not job.ended:
            self._names[job.tenant, job.name] = job.id
        if job.key:
            self._keys[job.tenant, job.key] = job.id
        for other in job.after:
            if not job.ended and other in self and not self[other].ended:
                self.awaited_by.setdefault(other, {})[job.id] = None
        for unit in job.units:
            self.index_unit(job, unit)
        self.index_late(job)
        if job.notify is not None:
            self.index_notices(job)
        for unit in job.units:
            for need in dict.fromkeys(unit.spec.needs):
                self.dependents.setdefault(f"{job.id}.{need}", []).append(unit)

    def index_unit(self, job: JobState, unit: UnitState) -> None:
        unit_id = unit.id
        self.units[unit_id] = unit
        for index, task in enumerate(unit.spec.tasks):
            task_id = unit_id if task.name == unit.spec.name else f"{job.id}.{task.name}"
            self.tasks[task_id] = (unit, index)

    # --- self-check --------------------------------------------------------------------------------------------------

    def check(self, anew: "Jobs") -> None:
        for job in self.values():
            left = sum(1 for unit in job.units if not unit.over)
            if job.array is not None and not job.array.rest:
                left += job.array.left
            hold(job.unfinished == left, f"{job.id} counts {job.unfinished} unfinished units, has {left}")
            hold(bool(job.ended) == (left == 0), f"{job.id} ended={job.ended} with {left} units left")
        for index in ("units", "tasks", "dependents", "cancelling", "notifying"):
            hold_same(index, getattr(self, index).keys(), getattr(anew, index).keys())
        for index in ("awaited_by", "_names", "_keys", "_unfinished", "_unfinished_of", "_tasks_of", "_tasks_kept"):
            hold_same(index, getattr(self, index), getattr(anew, index))
        ended = [{tenant: list(jobs) for tenant, jobs in of._ended_of.items()} for of in (self, anew)]
        hold_same("finished jobs by tenant", *ended)


def _number_of(job_id: str) -> int:
    """Return the number in a job id, by which jobs sort: j12 comes after j2."""
    return int(job_id[1:])


def _number_and_first(ended: dict[str, int]) -> tuple[int, int]:
    return len(ended), _first(ended)


def _first(ended: dict[str, int]) -> int:
    return next(iter(ended.values()))
