"""Waiting work by its request, for a system that allocates machines.

Pure and bounded: with very many kinds of work, the report has the first ones in the order of service. Tasks of other
kinds count as the mean of the reported kinds with the same request.
"""

from collections import Counter
from collections.abc import Sequence
from hashlib import sha256
from itertools import chain, islice
from typing import Literal

import msgspec

from poise.kernel.explain import known_run
from poise.kernel.lasting import must_last
from poise.kernel.ledger import Ledger, UnitState
from poise.model.profiles import estimate_run, remaining
from poise.model.reports.demand import Demand, DemandReport, Opening, Quote
from poise.model.resources import ALLOCATED, ANYWHERE
from poise.model.tenants import Bearer
from poise.policy.feasible import ability

Amount = Literal["tasks", "cpu", "memory", "gpus"]
Extent = Literal["waiting", "unfinished"]

KINDS = 64
"""Maximum number of kinds of work in a report. Beyond it, only kinds with a new request are reported, up to this number
of requests.
"""

COUNTED = 4096
"""Maximum number of waiting units to examine one by one; further ones of a queue count like its last examined one. The
same limit applies to running units.
"""

OPENINGS = 64
"""Maximum number of openings in a quote for existing nodes."""

_Request = tuple[str, int]
"""The shape of each task, and the number of tasks that start together."""

_Kind = tuple[_Request, str]


def demand(ledger: Ledger, now: int, counted: int = COUNTED) -> DemandReport:
    """Report the waiting work, and for how long the nodes are busy."""
    return DemandReport(waits=tuple(_waits(ledger, now, counted)), busy=_busy(ledger, now, counted))


def key_of(unit: UnitState) -> str:
    """Return the key of a unit's kind of work: that of its demand."""
    return _text_of(_kind_of(unit))


def quotes_here(ledger: Ledger, waits: Sequence[Demand], now: int, counted: int = COUNTED) -> dict[str, Quote]:
    """Return the room for waiting work on nodes that no other system allocates on request, after the work there has
    ended. Nodes without work are left out, because the waiting work cannot run there now.
    """
    fleet = ledger.columns.room()
    rows = [
        (fleet.rows[name], left)
        for name, left in _left_by_node(ledger, now, counted).items()
        if name in fleet.rows and not fleet.closed[fleet.rows[name]]
    ]
    rows = [(row, left) for row, left in rows if ALLOCATED not in fleet.nodes[row].labels]
    rows.sort(key=lambda one: sum(one[1]) // len(one[1]))
    each = max(1, -(-len(rows) // OPENINGS))
    found = {}
    for work in waits:
        room = ability(fleet, work.shape).by_row(fleet) if rows else ()
        openings = []
        for first in range(0, len(rows), each):
            some = [(min(int(room[row]), work.tasks), left) for row, left in rows[first : first + each]]
            if slots := sum(here for here, _ in some):
                times = [time for here, left in some if here for time in left]
                mean, most = sum(times) // len(times), max(times)
                openings.append(Opening(slots=slots, delay=mean, late=most, asked=True))
        if openings:
            found[work.key] = Quote(key=work.key, openings=tuple(openings))
    return found


def backlog(
    ledger: Ledger,
    bearer: Bearer,
    *,
    of: Amount = "tasks",
    state: Extent = "unfinished",
    tenant: str = "",
    project: str = "",
    class_: str = "",
    service: str = "",
) -> int:
    """Return how many tasks wait for room or run (`unfinished`), or wait for it (`waiting`), that the bearer may see
    and that match every filter; or what they request together: milli-CPU, bytes of memory, or devices. Tasks that wait
    for others do not count. A `service` has the tasks of its replicas.
    """
    waiting = (unit for queue in ledger.queues.values() for unit in queue.values())
    units = chain(waiting, ledger.active.recovering.values() if state == "waiting" else ledger.active.values())
    total = 0
    for unit in units:
        job = ledger.jobs[unit.job]
        if (
            bearer.sees(job.tenant)
            and tenant in ("", job.tenant)
            and project in ("", job.project)
            and class_ in ("", unit.spec.kind)
            and (not service or service in unit.spec.serves.partition(":")[0].split(" "))
        ):
            shape = unit.shape
            each = {"tasks": 1, "cpu": shape.cpu, "memory": shape.memory, "gpus": shape.gpus}[of]
            total += each * len(unit.tasks)
    return total


def _waits(ledger: Ledger, now: int, counted: int) -> list[Demand]:
    """Return the waiting work. Work of one shape, one number of tasks that start together, and one class is one
    entry.
    """
    found: dict[_Kind, Demand] = {}
    more: Counter[_Request] = Counter()  # tasks of further kinds
    left = counted
    for unit in islice(ledger.active.recovering.values(), counted):  # work of lost nodes
        if unit.free_at <= now:
            _count(found, ledger, unit, 1)
    for unit in islice(ledger.active.values(), counted):  # work to move off drained nodes
        if unit.spec.preemptible and any(_hands_over(ledger, task.node) for task in unit.tasks if task.active):
            _count(found, ledger, unit, 1)
    requests = {request for request, _ in found}
    later = {name for name, unit in ledger.queues.delayed.items() if unit.free_at > now}
    for queue in ledger.queues.values():
        seen, kind = 0, _kind_of(next(iter(queue.values())))
        request, _ = kind
        if kind not in found and len(found) >= KINDS and (request in requests or len(requests) >= KINDS):
            more[request] += sum(len(unit.tasks) for name, unit in queue.items() if name not in later)
            continue
        for unit in queue.values():
            if seen and left <= 0:
                break
            seen, left = seen + 1, left - 1
            if unit.id not in later:
                _count(found, ledger, unit, 1)
                requests.add(request)
        if unseen := sum(name not in later for name in islice(queue, seen, None)):
            _count(found, ledger, unit, unseen)
    for request, tasks in more.items():
        _count_further(found, request, tasks)
    return [msgspec.structs.replace(work, key=_text_of(kind)) for kind, work in found.items()]


def _count_further(found: dict[_Kind, Demand], request: _Request, tasks: int) -> None:
    """Count tasks of unreported kinds in the first entry with the same request, by the mean of all such entries."""
    same = {kind: work for kind, work in found.items() if kind[0] == request}
    if same:
        kind, work = next(iter(same.items()))
        known = sum(one.tasks for one in same.values())
        found[kind] = msgspec.structs.replace(
            work,
            tasks=work.tasks + tasks,
            work=work.work + sum(one.work for one in same.values()) * tasks // known,
            longest=max(one.longest for one in same.values()),
            unknown=work.unknown + sum(one.unknown for one in same.values()) * tasks // known,
        )


def _hands_over(ledger: Ledger, node: str) -> bool:
    return node in ledger.nodes and ledger.nodes[node].condition == "emptying"


def _busy(ledger: Ledger, now: int, counted: int) -> dict[str, int]:
    """Return for each node the least remaining time of its attempts; with very many attempts, of the first ones
    only.
    """
    return {node: min(left) for node, left in _left_by_node(ledger, now, counted).items()}


def _left_by_node(ledger: Ledger, now: int, counted: int) -> dict[str, list[int]]:
    """Return the remaining times of the attempts on each node."""
    found: dict[str, list[int]] = {}
    for unit in islice(ledger.active.values(), counted):
        estimate = estimate_run(ledger.profiles.get(unit.spec.kind), unit.spec.declared)
        for task in unit.tasks:
            if task.active and task.status != "recovering":
                left = remaining(now - (task.started or now), estimate.mean, estimate.deviation)
                found.setdefault(task.node, []).append(left)
    return found


def _kind_of(unit: UnitState) -> _Kind:
    return (unit.shape.key(), unit.spec.least or len(unit.tasks)), unit.spec.kind


def _text_of(kind: _Kind) -> str:
    return sha256(repr(kind).encode()).hexdigest()[:16]


def _count(found: dict[_Kind, Demand], ledger: Ledger, unit: UnitState, units: int) -> None:
    shape, tasks = unit.shape, len(unit.tasks)
    run = known_run(ledger, unit)
    longest = must_last(ledger.shown.candidate(unit), ledger.profiles)
    key = _kind_of(unit)
    before = found.get(key)
    found[key] = Demand(
        tasks=tasks * units + (before.tasks if before else 0),
        together=unit.spec.least or tasks,
        cpu=shape.cpu,
        memory=shape.memory,
        gpus=shape.gpus,
        where="" if shape.where == ANYWHERE else shape.where.describe(),
        work=run * tasks * units + (before.work if before else 0),
        longest=max(longest, before.longest if before else 0),
        unknown=(0 if run else tasks * units) + (before.unknown if before else 0),
        shape=shape,
    )
