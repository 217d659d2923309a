"""Find the nodes and jobs that events have changed, so that a reader of the state reloads only these. Pure.

Some changes have no event with the name: the load of a node, and a job that starts or is skipped because an earlier job
has ended. So a reader must also reload everything periodically.
"""

from collections.abc import Iterable
from typing import NamedTuple

from poise.kernel.ledger import Ledger, UnitState
from poise.model import events as of
from poise.model.events import Event


class Touched(NamedTuple):
    """Names of nodes and ids of jobs; some of them may have been removed since."""

    nodes: set[str]
    jobs: set[str]


def touched(ledger: Ledger, events: Iterable[Event]) -> Touched:
    """Return the names that these events changed; `ledger` is the state after them."""
    found = Touched(set(), set())
    for event in events:
        _add(ledger, event, found)
    return found


def _add(ledger: Ledger, event: Event, found: Touched) -> None:
    nodes, jobs = found
    match event:
        case of.Placed():
            jobs.add(_job(event.unit))
            nodes.update(spot.node for spot in event.spots)
            nodes.update(_nodes_of(ledger.jobs.unit(event.unit)))  # a lost attempt releases its resources only now
        case of.Preempted() | of.Resized() | of.Suspended() | of.Resumed() | of.TrainingTold() | of.SpeedupsTold():
            jobs.add(_job(event.unit))
            nodes.update(_nodes_of(ledger.jobs.unit(event.unit)))
        case of.Started() | of.Finished() | of.Straggling() | of.Lagging():
            jobs.add(_job(event.task))
            known = ledger.jobs.task(event.task)
            nodes.update(_nodes_of(known[0] if known is not None else None))
        case of.JobSubmitted():
            jobs.add(event.job.id)
        case of.JobCancelled() | of.UnitsCancelled() | of.JobHeld() | of.JobChanged():
            jobs.add(event.job)
            nodes.update(name for unit in _units(ledger, event.job) for name in _nodes_of(unit))
        case of.Notified() | of.DeadlinesMissed() | of.CallsClosed() | of.Called() | of.Returned():
            jobs.add(event.job)
        case of.JobsCancelled():
            jobs.update(event.jobs)
            nodes.update(name for job in event.jobs for unit in _units(ledger, job) for name in _nodes_of(unit))
        case of.JobsRemoved():
            jobs.update(event.jobs)
        case of.NodeLost() | of.NodeForgotten() | of.NodeSuspected() | of.NodeTrusted() | of.NodeUnfit():
            nodes.add(event.name)
            jobs.update(unit.job for unit in ledger.active.values() if event.name in _nodes_of(unit))
        case of.NodeLevelled() | of.NodeDrained():
            nodes.add(event.name)
        case of.NodeJoined():
            nodes.add(event.node.name)
        case of.DeviceCordoned() | of.DeviceDrained():
            nodes.add(event.node)


def _job(name: str) -> str:
    """Return the job of a unit or a task."""
    return name.partition(".")[0]


def _units(ledger: Ledger, job: str) -> Iterable[UnitState]:
    known = ledger.jobs.get(job)
    return known.units if known is not None else ()


def _nodes_of(unit: UnitState | None) -> set[str]:
    """Return the nodes of the latest attempts of a unit, and of the attempts before them, which may have just ended."""
    if unit is None:
        return set()
    latest = {task.node for task in unit.tasks if task.node}
    return latest | {task.past[-1].node for task in unit.tasks if task.past}
