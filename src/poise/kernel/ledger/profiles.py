"""Run times of each class of work, learned from its runs."""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from poise.kernel.ledger.room import Room
from poise.kernel.ledger.state import State
from poise.kernel.ledger.units import UnitState
from poise.model.jobs import Ending
from poise.model.profiles import Profile, is_brief
from poise.model.progress import ALL

MAX_PROFILES = 4096
"""Maximum number of profiles; the least recently used are removed first."""

_UNKNOWN = Profile()


class Run(NamedTuple):
    """The run of a task: how long it took, how it ended, and the model of its devices."""

    time: int
    ending: Ending
    model: str


class Profiles(Room, dict[str, Profile]):
    """Profiles by class, and by `class@model` of the device. Owns `profiles`."""

    def __init__(self, state: State) -> None:
        super().__init__(state.profiles)
        self._state, state.profiles = state, self
        self._shown: dict[str, Profile] | None = None  # the copy in the last snapshot, if still current

    def shown(self) -> Mapping[str, Profile]:
        """Return a copy for snapshots; the same object until a profile changes."""
        if self._shown is None:
            self._shown = dict(self)
        return self._shown

    def is_brief(self, unit: UnitState) -> bool:
        """Return whether the unit is expected to end within one round."""
        return is_brief(self.get(unit.spec.kind), unit.spec.shape, len(unit.spec.tasks))

    def failed(self, kind: str) -> None:
        """Record a failed run of a known class."""
        if kind in self:
            self._shown = None
            self[kind] = self[kind].failed(self._state.revision)

    def learn(self, unit: UnitState, runs: Sequence[Run]) -> None:
        """Record a run of a class, and of the class on the models of its devices: the longest of the `runs` of its
        tasks, and what each of them used. The run time includes the work saved by earlier attempts; for an elastic unit
        it is the time with its least tasks.
        """
        if unit.progress > ALL // 2:
            return  # the rest is too short to estimate the whole run on this model
        longest, *others = sorted(runs, key=_longest_first)
        spec, run = unit.spec, longest.time
        if unit.progress:
            run = (unit.carried + run * unit.size) * ALL // ((ALL - unit.progress) * (spec.least or unit.size))
        elif spec.least or unit.saved:
            run = (unit.saved + unit.carried + run * unit.size) // (spec.least or unit.size)

        def with_these(known: Profile) -> Profile:
            learned = known.observe(longest.ending, self._state.revision, run, spec.declared)
            for other in others:
                learned = learned.observe_use(other.ending)
            return learned

        self._shown = None
        kind, known = spec.kind, self.get(spec.kind, _UNKNOWN)
        learned = self[kind] = with_these(known)
        for model in dict.fromkeys(one.model for one in runs):
            there = self.get(f"{kind}@{model}", _UNKNOWN)
            self[f"{kind}@{model}"] = learned if there == known else with_these(there)  # alike on its only model
        if len(self) > MAX_PROFILES:
            by_age = sorted(self, key=lambda name: (self[name].seen, name))
            for name in by_age[: MAX_PROFILES // 4]:  # in batches, since this sorts
                del self[name]


def _longest_first(run: Run) -> int:
    return -run.time
