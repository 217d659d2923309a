"""The work that waits for room, by what it asks for: what a system that allocates machines has to know of it.

Pure, and bounded: of very many kinds of work the first ones are told, in the order in which they are served.
"""

from itertools import islice

from poise.kernel.explain import known_run
from poise.kernel.lasting import must_last
from poise.kernel.ledger import Ledger, UnitState
from poise.model.profiles import estimate_run, remaining
from poise.model.reports import Demand, DemandReport
from poise.model.resources import ANYWHERE

KINDS = 64
"""Kinds of work that are told."""

COUNTED = 4096
"""Units that are looked at one by one; the others of a queue count as the last one of it that was. As many running
units are looked at.
"""


def demand(ledger: Ledger, now: int, counted: int = COUNTED) -> DemandReport:
    """What waits, and for how long the nodes are busy."""
    return DemandReport(waits=tuple(_waits(ledger, now, counted)), busy=_busy(ledger, now, counted))


def _waits(ledger: Ledger, now: int, counted: int) -> list[Demand]:
    """Work of one shape, of one number of tasks that start together, and of one class is one entry."""
    found: dict[tuple[str, int, str], Demand] = {}
    left = counted
    for unit in islice(ledger.active.recovering.values(), counted):  # what a lost node held
        if unit.free_at <= now:
            _count(found, ledger, unit, 1)
    for unit in islice(ledger.active.values(), counted):  # what a node that is drained shall hand over
        if unit.spec.preemptible and any(_hands_over(ledger, task.node) for task in unit.tasks if task.active):
            _count(found, ledger, unit, 1)
    for queue in ledger.queues.values():
        seen = 0
        for unit in queue.values():
            if seen and left <= 0:
                break
            seen, left = seen + 1, left - 1
            if unit.free_at <= now:
                _count(found, ledger, unit, 1)
        if seen < len(queue):
            _count(found, ledger, unit, len(queue) - seen)
        if len(found) >= KINDS:
            break
    return list(found.values())


def _hands_over(ledger: Ledger, node: str) -> bool:
    return node in ledger.nodes and ledger.nodes[node].condition == "emptying"


def _busy(ledger: Ledger, now: int, counted: int) -> dict[str, int]:
    """Of very many attempts the first ones say it."""
    found: dict[str, int] = {}
    for unit in islice(ledger.active.values(), counted):
        estimate = estimate_run(ledger.profiles.get(unit.spec.kind), unit.spec.declared)
        for task in unit.tasks:
            if task.active and task.status != "recovering":
                left = remaining(now - (task.started or now), estimate.mean, estimate.deviation)
                found[task.node] = min(left, found.get(task.node, left))
    return found


def _count(found: dict[tuple[str, int, str], Demand], ledger: Ledger, unit: UnitState, units: int) -> None:
    shape, tasks = unit.shape, len(unit.tasks)
    together = unit.spec.least or tasks
    run = known_run(ledger, unit)
    longest = must_last(ledger.shown.candidate(unit), ledger.profiles)
    key = shape.key(), together, unit.spec.kind
    before = found.get(key)
    found[key] = Demand(
        tasks=tasks * units + (before.tasks if before else 0),
        together=together,
        cpu=shape.cpu,
        memory=shape.memory,
        gpus=shape.gpus,
        where="" if shape.where == ANYWHERE else shape.where.describe(),
        work=run * tasks * units + (before.work if before else 0),
        longest=max(longest, before.longest if before else 0),
        unknown=(0 if run else tasks * units) + (before.unknown if before else 0),
        shape=shape,
    )
