"""Pending and active units, as a snapshot shows them."""

from bisect import bisect_left, insort
from collections.abc import Collection, Iterable, Mapping
from itertools import islice

from poise.kernel.ledger.active import Active
from poise.kernel.ledger.changes import Changes
from poise.kernel.ledger.jobs import Jobs
from poise.kernel.ledger.nodes import Nodes
from poise.kernel.ledger.order import ordinal
from poise.kernel.ledger.queues import Queues
from poise.kernel.ledger.quotas import Quotas
from poise.kernel.ledger.room import Room
from poise.kernel.ledger.training import Training
from poise.kernel.ledger.units import UnitState
from poise.model.fleet import Phased, Resident, Straggler, model_under
from poise.model.progress import ALL
from poise.model.views import Candidate

_Head = tuple[int | None, dict[str, Candidate]]
"""The shown units of a queue by id, and the limit on their number."""

SORT_ANEW = 16
"""Sort all shown units if more than 1/16 of them changed; below that, updating the order costs less."""


class Shown(Room):
    """Builds candidates and residents when they are shown, and caches them until they change."""

    def __init__(
        self,
        jobs: Jobs,
        active: Active,
        queues: Queues,
        nodes: Nodes,
        quotas: Quotas,
        training: Training,
        changes: Changes,
    ) -> None:
        self._jobs, self._active, self._queues, self._nodes = jobs, active, queues, nodes
        self._quotas, self._training, self._changes = quotas, training, changes
        self._heads: dict[str, _Head] = {}
        self._backed_off = False  # whether a unit was in back-off and left out at the last look
        self._order: list[Candidate] = []  # the heads of all queues, in order of submission
        self._ordered: tuple[Candidate, ...] = ()  # the same, as last shown

    # --- what waits --------------------------------------------------------------------------------------------------

    def waiting(self, now: int, *, everything: bool) -> tuple[Candidate, ...]:
        """Return the candidates: the head of each queue, and recovering units, in order of submission. Returns the same
        object until something changes.
        """
        self._queues.sort()
        backing_off = {unit_id for unit_id, unit in self._queues.delayed.items() if unit.free_at > now}
        self._look_at_heads({} if everything else self._queues.heads(), backing_off)
        recovering = [
            self.candidate(unit, recovering=True) for unit in self._active.recovering.values() if unit.free_at <= now
        ]
        return tuple(sorted((*self._ordered, *recovering), key=ordinal)) if recovering else self._ordered

    def _look_at_heads(self, limits: Mapping[str, int], without: Collection[str]) -> None:
        """Update the heads of changed queues; of all queues while a unit is in back-off, because its return is no
        event.
        """
        before, heads, changed = self._heads, dict[str, _Head](), self._changes.queues
        look_at_all, self._backed_off = bool(without) or self._backed_off, bool(without)
        gone: list[Candidate] = []
        come: list[Candidate] = []
        for name, queue in self._queues.items():
            limit, head = limits.get(name), before.get(name)
            if head is None or head[0] != limit or name in changed or look_at_all:
                units: Iterable[tuple[str, UnitState]] = queue.items()
                if without:
                    units = (item for item in units if item[0] not in without)
                known = head[1] if head is not None else {}
                head = limit, {unit_id: self._as_shown(unit_id, unit) for unit_id, unit in islice(units, limit)}
                gone += [one for unit_id, one in known.items() if head[1].get(unit_id) is not one]
                come += [one for unit_id, one in head[1].items() if known.get(unit_id) is not one]
            heads[name] = head
        changed.clear()
        gone += [one for name in before.keys() - heads.keys() for one in before[name][1].values()]
        if gone or come:
            self._reorder(gone, come, heads)
        self._heads = heads

    def _reorder(self, gone: Collection[Candidate], come: Collection[Candidate], heads: Mapping[str, _Head]) -> None:
        """Remove candidates that are no longer shown from the order, and insert new ones."""
        order = self._order
        if (len(gone) + len(come)) * SORT_ANEW > len(order):
            order = self._order = [one for _, head in heads.values() for one in head.values()]
            if len(heads) != 1 or not next(iter(heads)).endswith("/"):
                order.sort(key=ordinal)
        else:
            for one in gone:
                del order[bisect_left(order, one.ordinal, key=ordinal)]
            for one in come:
                insort(order, one, key=ordinal)
        self._ordered = tuple(order)

    def _as_shown(self, unit_id: str, unit: UnitState) -> Candidate:
        """Return the candidate of a pending unit; built when the unit reaches the head of its queue."""
        candidate = self._changes.candidates.get(unit_id)
        if candidate is None:
            candidate = self._changes.candidates[unit_id] = self.candidate(unit)
        return candidate

    def candidate(self, unit: UnitState, *, recovering: bool = False) -> Candidate:
        """Return a new candidate of a unit."""
        spec, job = unit.spec, self._jobs[unit.job]
        return Candidate(
            unit=unit.id,
            job=unit.job,
            ordinal=unit.ordinal,
            priority=int(spec.priority),
            kind=spec.kind,
            shape=unit.shape_of(0),
            tasks=unit.most_tasks,
            submitted=job.submitted,
            ready=unit.ready,
            tail=unit.tail,
            critical=unit.slack == 0 and job.is_graph,
            queue=unit.queue,
            expected=unit.expected,
            declared=spec.declared,
            due=unit.due,
            recovering=recovering,
            recalled=unit.recalled,
            least=spec.least,
            others=tuple(unit.shape_of(number + 1) for number in range(len(spec.variants))),
            attained=unit.attained,
            preempted=unit.preempted,
            depth=unit.depth,
            followers=len(self._jobs.dependents.get(unit.id, ())),
            weight=spec.weight,
            work=spec.work,
            avoid=unit.avoid,
            saved=unit.saved,
            progress=unit.progress,
            left=unit.left,
            outlived=unit.outlived,
            ran_out=unit.ran_out,
            tenant=self._quotas.limited_tenant(job),
            leaf=job.leaf,
            serves=spec.serves,
            preemptible=spec.preemptible,
            checkpoint=spec.checkpoint,
            restore=spec.restore,
            moved=unit.moved,
            limit=spec.time_limit,
            grace=spec.grace,
        )

    # --- what runs ---------------------------------------------------------------------------------------------------

    def elastic(self) -> tuple[Resident, ...]:
        """Return elastic units that are not stopping."""
        units = sorted(self._active.elastic.values(), key=ordinal)
        return tuple([self.resident(unit) for unit in units if not unit.stopping])

    def stragglers(self) -> tuple[Straggler, ...]:
        """Return units that take longer than others of their class, or that wait for such a member in each step."""
        return tuple(
            Straggler(
                resident=self.resident(unit),
                node=unit.lags.node if unit.lags is not None else task.node,
                expected=unit.lags.usual if unit.lags is not None else task.straggles,
                computes=unit.lags.computes if unit.lags is not None else 0,
            )
            for unit in sorted(self._training.stragglers.values(), key=ordinal)
            if (task := unit.first).status == "running" and not unit.stopping
        )

    def phased(self) -> tuple[Phased, ...]:
        """Return units whose training is in a phase that needs another shape."""
        return tuple(
            Phased(
                resident=self.resident(unit),
                phase=unit.phase_told,
                shape=unit.shape_to_be,
                nodes=tuple(task.node for task in unit.tasks if task.active),
            )
            for unit in sorted(self._training.phased.values(), key=ordinal)
            if not unit.stopping
        )

    def resident_on(self, unit: UnitState, index: int) -> Resident:
        """Return one attempt of a unit; the same object until it changes."""
        known = self._changes.residents.setdefault(unit.id, {})
        resident = known.get(index)
        if resident is None:
            resident = known[index] = self.resident(unit, index)
        return resident

    def resident(self, unit: UnitState, index: int = -1) -> Resident:
        """Return one attempt of a unit, by the index of the task; by default that of rank 0."""
        index = next(iter(unit.members), 0) if index < 0 else index
        spec, task = unit.spec, unit.tasks[index]
        known = self._nodes.get(task.node)  # it may have ended on a node that has been removed
        model = model_under(known.node, task.devices) if known is not None else ""
        saved = unit.training.checkpoint if unit.training is not None and unit.told >= unit.placed else None
        return Resident(
            unit=unit.id,
            ordinal=unit.ordinal,
            priority=int(spec.priority),
            shape=unit.shape,
            kind=spec.kind,
            since=max(task.started or unit.placed, unit.resized),
            model=model,
            declared=spec.declared,
            devices=task.devices,
            checkpoint=(saved.every if saved is not None else 0) or spec.checkpoint,
            kept=max(unit.kept, task.started or unit.placed) if saved is not None else 0,
            restore=spec.restore,
            preempted=unit.preempted,
            moved=unit.moved,
            preemptible=spec.preemptible,
            stopping=bool(unit.stopping) or task.leaving,
            running=task.status == "running",
            size=unit.size,
            least=spec.least,
            most=unit.size if _has_failed_device(unit) else unit.most_tasks,
            attained=unit.attained,
            work=spec.work,
            saved=unit.saved + unit.carried,
            progress=unit.progress,
            foreseen=_foreseen(unit),
            outlived=unit.outlived,
            due=unit.due,
            weight=spec.weight,
            tenant=self._quotas.limited_tenant(self._jobs[unit.job]),
            leaf=self._jobs[unit.job].leaf,
            serves=spec.serves,
            task=index,
            resizes=unit.resizes and unit.is_whole,
            resized=unit.resized,
            losses=unit.losses,
            gains=_gains(unit),
        )


def _gains(unit: UnitState) -> int:
    """Return the speed of an elastic unit relative to its least tasks, in thousandths, from its reported speedups."""
    if unit.speedups is None or not unit.spec.least or unit.size == unit.spec.least:
        return 0
    apart = len({unit.tasks[index].node for index in unit.members}) > 1
    told = unit.speedups.apart if apart and unit.speedups.apart else unit.speedups.together
    alone = unit.speedups.together[min(unit.spec.least, len(unit.speedups.together)) - 1] if told else 0
    return told[min(unit.size, len(told)) - 1] * 1000 // alone if told and alone else 0


def _foreseen(unit: UnitState) -> int:
    """Return the expected run time in its current size, in nanoseconds since its start or last resize; 0 if unknown."""
    whole, size = unit.whole_by_pace * (ALL - unit.progress) // ALL, max(1, unit.size)
    return max(1, (whole * (unit.spec.least or size) - unit.carried) // size) if whole else 0


def _has_failed_device(unit: UnitState) -> bool:
    """Return whether a device has failed a running gang: the gang's current shape does not exclude that device."""
    return unit.resizes and any(epoch >= unit.placed_in for epoch in unit.barred.values())
