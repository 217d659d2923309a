"""The results of all parts of a job, as rows.

The ledger has the tasks of a job and their results. Of an array it has what is exceptional; the rest is in the log.
"""

from collections.abc import Iterable, Iterator

from poise.kernel.explain import ending_code, result_of, task_report
from poise.kernel.ledger import ArrayState, JobState, Ledger
from poise.kernel.ledger.arrays import DONE, Over
from poise.model.events import Event, Finished, Placed
from poise.model.jobs import Ending
from poise.model.reports.jobs import PartReport
from poise.model.sweep import values_in
from poise.units import SECOND


def results_of(ledger: Ledger, job: JobState, now: int) -> list[PartReport]:
    """Return a row for each task of a job that is over and that is no array, in order."""
    over = [(unit, index) for unit in job.units if unit.over for index in range(len(unit.tasks))]
    reports = [task_report(ledger, job, unit, index, now, unit.slack) for unit, index in over]
    return [
        PartReport(
            task=of.name,
            sweep=of.sweep,
            status=of.status,
            exit_code=of.exit_code,
            run=of.run,
            ended=of.ended,
            node=of.node,
            epoch=of.epoch,
            result=of.result,
        )
        for of in reports
    ]


class Results:
    """The rows of an array as of its current state. It may be used on another thread: it shares nothing that changes.

        for event in log:
            rows += results.add(event)
        rows += results.rest()

    Rows come in the order in which the parts ended; those that were never started come last.
    """

    def __init__(self, ledger: Ledger, job: JobState, array: ArrayState) -> None:
        self.last = ledger.revision
        """Revision of the last event that matters."""
        self.since = job.submitted
        self._job = job.id
        self._prefix = f"{job.id}."
        self._array = array.fork() if not job.ended else array
        self._open = {unit.ordinal - array.ordinal for unit in job.existing}
        self._anchor = ledger.leader.wall(job.submitted) - job.submitted / SECOND
        self._nodes: dict[str, str] = {}
        self._told: set[int] = set()

    def add(self, event: Event) -> Iterator[PartReport]:
        """Yield the row of a part if the event ended it."""
        if isinstance(event, Placed):
            if event.unit.startswith(self._prefix):
                self._nodes[event.unit] = event.spots[0].node
        elif isinstance(event, Finished) and event.task.startswith(self._prefix):
            node = self._nodes.pop(event.task, "")
            place = self._array.place_named(event.task.removeprefix(self._prefix))
            if place is None or place in self._open or place >= self._array.made:
                return
            over = self._array.odd.get(str(place), DONE)
            if over.epoch == event.epoch:
                self._told.add(place)
                yield self._row(place, over, event.ending, event.at, node)

    def rest(self) -> Iterator[PartReport]:
        """Yield the rows of parts that are over and of which the log has no end."""
        array = self._array
        for place in sorted({*map(int, array.odd)} - self._told - self._open):
            over = array.odd[str(place)]
            yield self._row(place, over, over.ending, 0, over.node)
        if array.rest:
            rest = Over(array.rest)
            yield from (self._row(place, rest, None, 0, "") for place in range(array.made, array.made + array.left))

    def _row(self, place: int, over: Over, ending: Ending | None, at: int, node: str) -> PartReport:
        [task] = self._array.spec(place).tasks
        return PartReport(
            task=task.name,
            sweep=values_in(task.env),
            status=over.status,
            exit_code=None if ending is None else ending_code(ending),
            run=0 if ending is None else ending.run,
            ended=self._anchor + at / SECOND if at else 0.0,
            node=node,
            epoch=over.epoch,
            result=None if ending is None else result_of(ending.result),
        )


def gathered(results: Results, events: Iterable[tuple[int, Event]]) -> Iterator[PartReport]:
    """Yield all rows; `events` are those of the log with their revisions."""
    for revision, event in events:
        if revision > results.last:
            break
        yield from results.add(event)
    yield from results.rest()
