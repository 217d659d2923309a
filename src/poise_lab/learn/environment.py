"""A Gymnasium environment over the twin: at each choice of a learned policy, start a shape or leave it to `poise`.

An episode is one workload in the twin. Observations, choices and guards are those of the policy itself
(`poise.policy.learned`), so a network acts here as it will act live. Only the check of the training range is missing,
since the range is measured here (`low`, `high`).

Action 0 leaves the rest of a round to `poise`; action k starts the shape in slot k - 1. An empty slot counts as 0. The
reward is minus the time of all unfinished jobs since the last action, plus the same of `poise` on this workload up to
the same instants, over the mean completion time of `poise`. So an episode under `poise` has a return of 0, and a return
of -1.6 with 160 jobs is a mean that is 1 % longer.
"""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import gymnasium
import msgspec
import numpy as np
from numpy.typing import NDArray

from poise.engine.twin import Twin
from poise.kernel.controller import Settings
from poise.model.decisions import Place, Plan
from poise.model.events import Event, Finished, JobSubmitted
from poise.model.resources import Node
from poise.model.views import Snapshot
from poise.model.workload import Workload
from poise.policy.learned import SLOTS, Deciding, deciding
from poise.policy.network import LEAVE, LIMIT, ROOM_FEATURES, SHAPE_FEATURES, Answer, Seen
from poise.policy.suites import Suite
from poise.units import SECOND
from poise_lab.trial import simulate

Observed = NDArray[np.float32]

WIDTH = len(SHAPE_FEATURES) + 1
"""Numbers for a slot: its features, and 1 if it is taken."""

LONGEST = 100_000
"""Maximum number of choices in an episode."""


class Episode(NamedTuple):
    """A workload, and what `poise` made of it: instants (ns), the time of all unfinished jobs up to each (job seconds),
    and the mean completion time in seconds.
    """

    workload: Workload
    instants: NDArray[np.float64]
    unfinished: NDArray[np.float64]
    mean: float


def episode_of(workload: Workload, nodes: Sequence[Node], suite: Suite, settings: Settings) -> Episode:
    """Return the episode of a workload, after a trial under `poise`."""
    jobs = simulate(workload, nodes, suite, settings).jobs
    begins = np.array([job.submitted for job in jobs], np.float64)
    ends = np.array([job.ended for job in jobs], np.float64)
    instants = np.unique(np.concatenate([[0.0], begins, ends]))
    unfinished = np.array([(np.clip(at, begins, ends) - begins).sum() for at in instants.tolist()]) / SECOND
    return Episode(workload, instants, unfinished, float((ends - begins).mean()) / SECOND)


class Starts(gymnasium.Env[Observed, np.int64]):
    """The environment. Each reset draws one of the `episodes` by its seed."""

    metadata = {"render_modes": []}  # noqa: RUF012 as gymnasium declares it

    def __init__(self, episodes: Sequence[Episode], nodes: Sequence[Node], suite: Suite, settings: Settings) -> None:
        size = SLOTS * WIDTH + len(ROOM_FEATURES)
        self.observation_space = gymnasium.spaces.Box(-LIMIT, LIMIT, (size,), np.float32)
        self.action_space = gymnasium.spaces.Discrete(SLOTS + 1)
        features = len(SHAPE_FEATURES) + len(ROOM_FEATURES)
        self.low, self.high = np.full(features, np.inf), np.full(features, -np.inf)
        self._episodes, self._nodes, self._suite, self._settings = episodes, nodes, suite, settings
        self._trial: _Trial | None = None

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Observed, dict[str, Any]]:
        """Begin the episode that the seed draws, or that `options["episode"]` names."""
        super().reset(seed=seed)
        number = int(self.np_random.integers(len(self._episodes)))
        number = int(options["episode"]) if options and "episode" in options else number
        self._trial = _Trial(self._episodes[number], self._nodes, self._suite, self._settings)
        self._trial.go_on()
        return self._observe(), {"episode": number}

    def step(self, action: np.int64) -> tuple[Observed, float, bool, bool, dict[str, Any]]:
        """Take an action, and run to the next choice."""
        trial = self._trial
        if trial is None:
            raise gymnasium.error.ResetNeeded("call `reset` first")
        if trial.over:
            return self._observe(), 0.0, True, False, {}
        trial.answer(int(action) - 1)
        trial.go_on()
        return self._observe(), trial.reward(), trial.over, trial.choices >= LONGEST, {}

    @property
    def seen(self) -> Seen | None:
        """The open choice, as the policy sees it; None once all jobs are over."""
        return None if self._trial is None else self._trial.seen

    def advice(self) -> int:
        """Return the action that `poise` would take."""
        return 0 if self._trial is None else self._trial.advice()

    def _observe(self) -> Observed:
        seen = self.seen
        if seen is None:
            return np.zeros(self.observation_space.shape or (), np.float32)
        least = np.concatenate([seen.shapes.min(axis=0), seen.room])
        most = np.concatenate([seen.shapes.max(axis=0), seen.room])
        self.low, self.high = np.minimum(self.low, least), np.maximum(self.high, most)
        return observed(seen)


def observed(seen: Seen) -> Observed:
    """Return a choice as one row of numbers: the slots, then the room."""
    slots = np.zeros((SLOTS, WIDTH))
    slots[: len(seen.shapes), :-1] = seen.shapes
    slots[: len(seen.shapes), -1] = 1
    found: Observed = np.clip(np.concatenate([slots.ravel(), seen.room]), -LIMIT, LIMIT).astype(np.float32)
    return found


class _Trial:
    """One episode in the twin, which it decides for; `seen` is the open choice, None once all jobs are over."""

    def __init__(self, episode: Episode, nodes: Sequence[Node], suite: Suite, settings: Settings) -> None:
        self.choices = 0
        self.seen: Seen | None = None
        self._suite, self._episode = suite, episode
        self._view: Snapshot | None = None
        self._round: tuple[Deciding, Callable[[Plan], None]] | None = None
        self._picked: set[str] = set()
        self._present: set[str] = set()
        self._to_come = len(episode.workload.arrivals)
        self._unfinished = self._rewarded = 0.0
        self._at = 0
        settings = msgspec.structs.replace(settings, throughputs=settings.throughputs | episode.workload.throughputs)
        self._twin = Twin(suite, settings, observe=self._take, decider=self)
        self._twin.add_nodes(nodes)
        self._twin.arrive_in_turn(episode.workload.arrivals)

    @property
    def over(self) -> bool:
        return self.seen is None

    def go_on(self) -> None:
        """Run to the next choice, or to the end of the last job."""
        while self.seen is None and (self._to_come or self._present):
            if self._twin.run(watch=self._goes_on):
                break  # nothing is left to happen: the rest waits for ever

    def answer(self, slot: int) -> None:
        """Take a slot of the open choice, or leave the rest of its round to `poise`."""
        if self.seen is None or self._round is None:
            raise ValueError("there is no open choice")
        taken = 0 <= slot < len(self.seen.units)
        if taken:
            self._picked.add(self.seen.units[slot])
        self.choices += 1
        self._send(Answer(slot) if taken else LEAVE)

    def advice(self) -> int:
        """Return the action that `poise` would take: the first of the slots that it would place."""
        if self.seen is None or self._view is None:
            return 0
        places = {unit: slot for slot, unit in enumerate(self.seen.units, 1)}
        decisions = self._suite.decide(self._view).decisions
        placed = (one.unit for one in decisions if isinstance(one, Place) and one.unit not in self._picked)
        return next((places[unit] for unit in placed if unit in places), 0)

    def reward(self) -> float:
        """Return the reward since the last one."""
        episode, at = self._episode, np.inf if self.over else float(self._at)
        of_poise = float(np.interp(at, episode.instants, episode.unfinished))
        value = (of_poise - self._unfinished) / episode.mean
        reward, self._rewarded = value - self._rewarded, value
        return reward

    # --- the decider of the twin -------------------------------------------------------------------------------------

    def decide(self, view: Snapshot, answer: Callable[[Plan], None], /) -> None:
        self._view = view
        self._picked.clear()
        self._round = deciding(self._suite, view), answer
        self._send(None)

    def close(self) -> None:
        """Do nothing: there is no process to stop."""

    def _send(self, answer: Answer | None) -> None:
        """Continue the round to its next choice, or to its plan."""
        if self._round is None:
            return
        of, tell = self._round
        self.seen = None
        try:
            self.seen = next(of) if answer is None else of.send(answer)
        except StopIteration as end:
            self._round = None
            tell(end.value)

    # --- jobs --------------------------------------------------------------------------------------------------------

    def _goes_on(self) -> bool:
        return self.seen is None and bool(self._to_come or self._present)

    def _take(self, event: Event) -> None:
        """Add up the time of unfinished jobs."""
        if not isinstance(event, JobSubmitted | Finished):
            return
        at = event.at - self._twin.began
        self._unfinished += len(self._present) * (at - self._at) / SECOND
        self._at = at
        if isinstance(event, JobSubmitted):
            self._present.add(event.job.id)
            self._to_come -= 1
            return
        job = event.task.partition(".")[0]
        state = self._twin.ledger.jobs.get(job)
        if state is None or state.ended:
            self._present.discard(job)
