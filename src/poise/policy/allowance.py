"""The remaining quotas while a round places work."""

from collections.abc import Mapping, Sequence

from poise.model.decisions import Reason
from poise.model.quotas import Amounts, asked
from poise.model.resources import Shape
from poise.model.views import Candidate


class Allowance:
    """Remaining quotas by tenant; placements reduce them. What a unit still holds on a lost node is counted already."""

    def __init__(self, left: Mapping[str, Amounts]) -> None:
        self._left = dict(left)
        self._needs: dict[str, Amounts] = {}  # by queue: its units have equal requests

    @property
    def left(self) -> Mapping[str, Amounts]:
        """The remaining quotas by tenant."""
        return self._left

    def room_for(self, tenant: str, shape: Shape, most: int) -> int:
        """Return for how many tasks of a shape the quota has room, at most `most`."""
        left = self._left.get(tenant)
        return most if left is None else min(most, left.room_for(asked(shape)))

    def room_of(self, candidate: Candidate, shape: Shape) -> int:
        """Return for how many tasks of the unit, in this artifact, the quota has room."""
        tenant = "" if candidate.recovering else candidate.tenant
        return self.room_for(tenant, shape, candidate.tasks)

    def against(self, candidate: Candidate) -> tuple[Reason, ...]:
        """Return why none of a unit's artifacts is within the quota, in the least size; nothing if one is."""
        left = self._left.get(candidate.tenant)
        if left is None or left.holds(self._need(candidate)):
            return ()
        refused = [self.against_artifact(candidate, shape) for shape in (candidate.shape, *candidate.others)]
        return tuple(reason for reasons in refused for reason in reasons) if all(refused) else ()

    def against_artifact(self, candidate: Candidate, shape: Shape) -> tuple[Reason, ...]:
        """Return why one artifact is not within the quota, in the least size; nothing if it is."""
        needed = candidate.least or candidate.tasks
        if self.room_of(candidate, shape) >= needed:
            return ()
        return (self._left[candidate.tenant].refusal(candidate.tenant, asked(shape, needed)),)

    def take(self, candidate: Candidate, shape: Shape, tasks: int) -> None:
        if not candidate.recovering:
            self.use(candidate.tenant, shape, tasks)

    def use(self, tenant: str, shape: Shape, tasks: int) -> None:
        """Reduce a tenant's remaining quota, if it has one."""
        if tenant in self._left:
            self._left[tenant] = self._left[tenant].plus(asked(shape, tasks), -1)

    def share_out(self, ordered: Sequence[Candidate]) -> tuple[list[Candidate], dict[str, tuple[Reason, ...]]]:
        """Return the candidates within their quotas, the first in order before others, and why the queues of the rest
        wait. The quotas are not reduced. Units with several artifacts are included, since their artifact is not known
        yet.
        """
        left = {tenant: list(amounts) for tenant, amounts in self._left.items()}
        within: list[Candidate] = []
        over: dict[str, tuple[Reason, ...]] = {}
        needs = self._needs
        for candidate in ordered:  # tens of thousands in bulk
            have = left.get(candidate.tenant) if candidate.tenant and not candidate.others else None
            if have is not None:
                cpu, memory, gpus = need = needs.get(candidate.queue) or self._need(candidate)
                if cpu > have[0] or memory > have[1] or gpus > have[2]:
                    if candidate.queue not in over:
                        over[candidate.queue] = (Amounts(*have).refusal(candidate.tenant, need),)
                    continue
                have[0] -= cpu
                have[1] -= memory
                have[2] -= gpus
            within.append(candidate)
        return within, over

    def _need(self, candidate: Candidate) -> Amounts:
        need = self._needs.get(candidate.queue)
        if need is None:
            need = self._needs[candidate.queue] = asked(candidate.shape, candidate.least or candidate.tasks)
        return need


__all__ = ["Allowance"]
