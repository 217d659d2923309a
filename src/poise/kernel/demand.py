"""The work that waits for room, by what it asks for: what a system that allocates machines has to know of it.

Pure, and bounded: of very many kinds of work the first ones are told, in the order in which they are served.
"""

from poise.kernel.ledger import Ledger, UnitState
from poise.model.decisions import UNKNOWN
from poise.model.profiles import estimate_run
from poise.model.reports import Demand
from poise.model.resources import ANYWHERE

KINDS = 64
"""Kinds of work that are told."""

COUNTED = 4096
"""Units that are looked at one by one; the others of a queue count as the last one of it that was."""


def demand(ledger: Ledger, now: int, counted: int = COUNTED) -> list[Demand]:
    """Work of one shape, and of one number of tasks that start together, is one entry."""
    found: dict[tuple[str, int], Demand] = {}
    left = counted
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


def _count(found: dict[tuple[str, int], Demand], ledger: Ledger, unit: UnitState, units: int) -> None:
    shape, tasks = unit.shape, len(unit.tasks)
    together = unit.spec.least or tasks
    estimate = estimate_run(ledger.profiles.get(unit.spec.kind), unit.spec.declared)
    known = bool(unit.left) or estimate.source != UNKNOWN
    run = unit.expected if known else 0
    longest = max(run, run * estimate.most // max(1, estimate.mean))
    if unit.spec.time_limit and known:
        longest = min(longest, unit.spec.time_limit)
    before = found.get((shape.key(), together))
    found[shape.key(), together] = Demand(
        tasks=tasks * units + (before.tasks if before else 0),
        together=together,
        cpu=shape.cpu,
        memory=shape.memory,
        gpus=shape.gpus,
        where="" if shape.where == ANYWHERE else shape.where.describe(),
        work=run * tasks * units + (before.work if before else 0),
        longest=max(longest, before.longest if before else 0),
        unknown=(0 if known else tasks * units) + (before.unknown if before else 0),
    )
