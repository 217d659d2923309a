"""How long work of each class takes, as learned from its runs."""

from collections.abc import Mapping

from poise.kernel.ledger.room import Room
from poise.kernel.ledger.state import State
from poise.kernel.ledger.units import UnitState
from poise.model.jobs import ALL, Ending
from poise.model.profiles import Profile, is_brief

MAX_PROFILES = 4096
"""Classes whose run times are kept; of more, those not seen for longest are forgotten."""

_UNKNOWN = Profile()


class Profiles(Room, dict[str, Profile]):
    """By class, and by `class@model` of the device where they differ. Owns `profiles`."""

    def __init__(self, state: State) -> None:
        super().__init__(state.profiles)
        self._state, state.profiles = state, self
        self._shown: dict[str, Profile] | None = None  # as in the last snapshot, if nothing was learned since

    def shown(self) -> Mapping[str, Profile]:
        """The very same as in the last snapshot if nothing was learned since."""
        if self._shown is None:
            self._shown = dict(self)
        return self._shown

    def is_brief(self, unit: UnitState) -> bool:
        """Whether what has been learned says that the unit ends within one round."""
        return is_brief(self.get(unit.spec.kind), unit.spec.shape, len(unit.spec.tasks))

    def failed(self, kind: str) -> None:
        """A run of a class that is known has failed."""
        if kind in self:
            self._shown = None
            self[kind] = self[kind].failed(self._state.revision)

    def learn(self, unit: UnitState, run: int, ending: Ending, model: str) -> None:
        """What a run tells of its class, and of its class on this model of device. What earlier attempts saved is part
        of it; an elastic unit's is what its least tasks would have taken.
        """
        kind, spec, declared = unit.spec.kind, unit.spec, unit.spec.declared
        if unit.progress > ALL // 2:
            return  # what is left is too little to tell what all of it would have taken there
        if unit.progress:
            run = (unit.carried + run * unit.size) * ALL // ((ALL - unit.progress) * (spec.least or unit.size))
        elif spec.least or unit.saved:
            run = (unit.saved + unit.carried + run * unit.size) // (spec.least or unit.size)
        self._shown = None
        known, there = self.get(kind, _UNKNOWN), self.get(f"{kind}@{model}", _UNKNOWN)
        learned = self[kind] = known.observe(ending, self._state.revision, run, declared)
        if there != known:  # else all of the class has run on this model
            learned = there.observe(ending, self._state.revision, run, declared)
        self[f"{kind}@{model}"] = learned
        if len(self) > MAX_PROFILES:
            by_age = sorted(self, key=lambda name: (self[name].seen, name))
            for name in by_age[: MAX_PROFILES // 4]:  # in batches, since this sorts
                del self[name]
