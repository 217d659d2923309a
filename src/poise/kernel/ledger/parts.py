"""Parts of arrays: they exist only while they may start soon, or run."""

from bisect import bisect_left

from poise.kernel.ledger.jobs import Jobs
from poise.kernel.ledger.order import ordinal
from poise.kernel.ledger.room import Room, hold
from poise.kernel.ledger.state import JobState, queue_of
from poise.kernel.ledger.tasks import TaskState
from poise.kernel.ledger.units import UnitState, UnitStatus


class Parts(Room):
    """Only this room writes `JobState.array`, except for changes by users."""

    def __init__(self, jobs: Jobs) -> None:
        self._jobs = jobs

    def make(self, job: JobState) -> UnitState | None:
        """Make the next part of an array if it may exist now. It is waiting."""
        array = job.array
        spec = array.next(job.allow_failed) if array is not None else None
        if array is None or spec is None:
            return None
        unit = UnitState(
            spec=spec,
            job=job.id,
            ordinal=array.take(),
            queue=queue_of(job, spec),
            tasks=[TaskState() for _ in spec.tasks],
        )
        job.units.append(unit)
        self._jobs.index_unit(job, unit)
        self._jobs.count(job, 1)
        return unit

    def drop(self, job: JobState, unit: UnitState) -> None:
        """Remove a part of an array that is over; only its record stays. The last one stays as an example."""
        array = job.array
        if array is None:
            return
        array.end(unit)
        if not array.open and array.next(job.allow_failed) is None:  # too many have failed for a merge
            self.give_up(job, "skipped")
        if job.unfinished:
            del job.units[bisect_left(job.units, unit.ordinal, key=ordinal)]
            self._jobs.forget_unit(job, unit)

    def give_up(self, job: JobState, status: UnitStatus) -> None:
        """Make no more parts of an array: those that do not exist yet get this status."""
        if job.array is None or job.array.rest or not job.array.left:
            return
        job.array.rest = status
        job.unfinished -= job.array.left

    def freeze(self) -> None:
        """Make no more parts of any array, in a forecast: it covers the units that exist."""
        for job in self._jobs.values():
            if job.array is not None and not job.ended:
                job.array.rest = job.array.rest or "waiting"

    def check(self, anew: "Parts") -> None:
        for job in self._jobs.values():
            if job.array is None:
                continue
            left = [unit for unit in job.units if not unit.over]
            fresh = sum(1 for unit in left if unit.epoch == 0)
            hold(job.array.open == len(left), f"{job.id} counts {job.array.open} open parts, has {len(left)}")
            hold(job.array.fresh == fresh, f"{job.id} counts {job.array.fresh} fresh parts, has {fresh}")
            hold(len(job.units) == max(len(left), 1), f"{job.id} keeps parts that are over")
