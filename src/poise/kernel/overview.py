"""The summary for `poise top`: the fleet, running tasks, and waiting units with the reasons.

Pure and bounded: it is requested every second. Only shown items are built; the others are only counted.
"""

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Sequence
from itertools import islice
from typing import NamedTuple

from poise.kernel.explain import known_run, reasons, task_status
from poise.kernel.ledger import Ledger, NodeState, UnitState
from poise.model.events import Event, Finished, Placed, Returned
from poise.model.load import LEVELS, Load
from poise.model.reports.status import NodeUse, Overview, TaskUse, UnitWait
from poise.model.tenants import HOME, Bearer
from poise.units import SECOND

SHOWN = 64
"""Maximum number of nodes, of tasks and of waiting units to show."""

WINDOW = 10 * SECOND
"""Window over which rates are counted."""


class Rates(NamedTuple):
    """Tasks placed, tasks ended and calls returned, per second."""

    starts: float = 0.0
    ends: float = 0.0
    returns: float = 0.0


def rates(latest_first: Iterable[Event], now: int) -> Rates:
    """Count rates over the window, or from the oldest of these events if they begin later."""
    starts = ends = returns = 0
    since = now
    for event in latest_first:
        if event.at < now - WINDOW:
            since = now - WINDOW
            break
        since = event.at
        match event:
            case Placed():
                starts += len(event.spots)
            case Finished():
                ends += event.ending.outcome != "returned"
            case Returned():
                returns += 1
    seconds = max(now - since, SECOND) / SECOND
    return Rates(*(round(count / seconds, 3) for count in (starts, ends, returns)))


def overview(
    ledger: Ledger,
    now: int,
    load_of: Callable[[str], Load | None],
    measured: Rates,
    bearer: Bearer = HOME,
    *,
    accepting: bool,
) -> Overview:
    """Return the summary as of `now`; `load_of` returns the last load report of a node. A bearer limited to one tenant
    sees only that tenant's work, and no rates.
    """
    nodes = sorted(ledger.nodes.values(), key=_fullest_first)
    seen = _all_of(ledger) if bearer.sees_all else _of_tenant(ledger, bearer.tenant)
    measured = measured if bearer.sees_all else Rates()
    queue, active = seen.queue, seen.active
    running = [
        _task(ledger, unit, index, now)
        for unit in islice(active, SHOWN)
        for index, task in enumerate(unit.tasks)
        if task.active
    ]
    waiting = [_waiting(ledger, unit, now) for unit in seen.waiting]
    pending = sum(queue.values())
    return Overview(
        policy=ledger.leader.policy,
        revision=ledger.revision,
        accepting=accepting,
        unfinished=seen.jobs,
        nodes_up=sum(state.status == "up" for state in nodes),
        nodes_lost=sum(state.status == "lost" for state in nodes),
        queue=queue,
        blocked=max(0, seen.unfinished - len(seen.active) - pending),
        starts=measured.starts,
        ends=measured.ends,
        returns=measured.returns,
        nodes=tuple(_node(state, load_of(state.node.name)) for state in nodes[:SHOWN]),
        running=tuple(running[:SHOWN]),
        waiting=tuple(waiting),
        more_nodes=max(0, len(nodes) - SHOWN),
        more_running=max(0, seen.tasks - min(SHOWN, len(running))),
        more_waiting=pending - len(waiting),
    )


class _Seen(NamedTuple):
    """The visible part of a ledger: counts of unfinished jobs and units and of active tasks, waiting units by class,
    active units, and the first waiting units.
    """

    jobs: int
    unfinished: int
    tasks: int
    queue: dict[str, int]
    active: Collection[UnitState]
    waiting: Sequence[UnitState]


def _all_of(ledger: Ledger) -> _Seen:
    return _Seen(
        jobs=ledger.jobs.unfinished(),
        unfinished=ledger.jobs.unfinished_units(),
        tasks=ledger.active.attempts(),
        queue={priority.name.lower(): count for priority, count in ledger.queues.by_class().items()},
        active=ledger.active.values(),
        waiting=ledger.queues.first(SHOWN),
    )


def _of_tenant(ledger: Ledger, tenant: str) -> _Seen:
    jobs = [job for job in ledger.jobs.values() if job.tenant == tenant and not job.ended]
    units = [unit for job in jobs for unit in job.units if not unit.over]
    active = [unit for unit in units if unit.status == "active"]
    waiting = sorted((unit for unit in units if unit.status == "pending"), key=_first_served)
    counts = Counter(unit.spec.priority for unit in waiting)
    return _Seen(
        jobs=len(jobs),
        unfinished=len(units),
        tasks=sum(task.active for unit in active for task in unit.tasks),
        queue={priority.name.lower(): counts[priority] for priority in sorted(counts)},
        active=active,
        waiting=waiting[:SHOWN],
    )


def _first_served(unit: UnitState) -> tuple[int, int]:
    return int(unit.spec.priority), unit.ordinal


def _fullest_first(state: NodeState) -> tuple[bool, float, str]:
    """Return the sort key of a node: lost nodes first, then the fullest."""
    node = state.node
    parts = [state.used_cpu / max(1, node.cpu), state.used_memory / max(1, node.memory)]
    if node.devices:
        parts.append(_held(state) / len(node.devices))
    return state.status != "lost", -max(parts), node.name


def _held(state: NodeState) -> int:
    return len(state.devices.keys() | state.shares.keys())


def _node(state: NodeState, load: Load | None) -> NodeUse:
    slots = sum(pool.slots for pool in state.pools.values())
    return NodeUse(
        name=state.node.name,
        status=state.condition,
        level=LEVELS[state.level] if load is not None else "",
        load=load,
        cpu=state.node.cpu,
        cpu_used=state.used_cpu,
        memory=state.node.memory,
        memory_used=state.used_memory,
        devices=len(state.node.devices),
        devices_used=_held(state),
        running=slots,
        queued=sum(pool.attempts for pool in state.pools.values()) - slots,
    )


def _task(ledger: Ledger, unit: UnitState, index: int, now: int) -> TaskUse:
    task, spec = unit.tasks[index], unit.spec.tasks[index]
    return TaskUse(
        task=f"{unit.job}.{spec.name}",
        user=ledger.jobs[unit.job].user,
        status=task_status(ledger.jobs[unit.job], unit, task),
        priority=unit.spec.priority.name.lower(),
        node=task.node,
        devices=task.devices,
        cpus=task.cpus,
        pid=task.pid or None,
        run=now - task.started if task.started else 0,
        expected=known_run(ledger, unit),
        command=" ".join(spec.argv)[:200],
    )


def _waiting(ledger: Ledger, unit: UnitState, now: int) -> UnitWait:
    job = ledger.jobs[unit.job]
    why = reasons(ledger, job, unit, now)
    return UnitWait(
        unit=unit.id,
        user=job.user,
        priority=unit.spec.priority.name.lower(),
        wait=max(0, now - unit.ready),
        why=why[0].sentence() if why else "",
    )


__all__ = ["SHOWN", "Rates", "overview", "rates"]
