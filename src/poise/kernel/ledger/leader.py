"""The control plane that writes the log: its policy, its clock, and the memory of the policy."""

from typing import Any

import msgspec

from poise.kernel.ledger.queues import Queues
from poise.kernel.ledger.room import Handlers, Room
from poise.kernel.ledger.state import State, encoder
from poise.model.events import (
    Began,
    ClockSet,
    Configured,
    IncidentTold,
    Noticed,
    PolicyFailed,
    Remembered,
    Round,
    StopAsked,
    Triggered,
    configured,
)
from poise.model.tenants import RULE
from poise.policy.split import split_in


class Leader(Room):
    """Set by the latest `Began`, and by later changes of the configuration. Owns `term`, `policy`, `history`, `began`,
    `before`, `configured`, `configured_by`, `memory` and `anchor_*`.
    """

    def __init__(self, state: State, queues: Queues) -> None:
        self._state, self._queues = state, queues

    @property
    def term(self) -> int:
        return self._state.term

    @property
    def policy(self) -> str:
        return self._state.policy

    @property
    def fixed(self) -> bool:
        """Whether the policy gives each unit a fixed place. It sees all pending and all active units."""
        began = self._state.began
        return began is not None and began.fixed

    @property
    def fair(self) -> bool:
        """Whether tenants share the history equally."""
        began = self._state.began
        return began is not None and began.fair

    @property
    def learning(self) -> int:
        """The number of the rules by which run times are learned and expected."""
        began = self._state.began
        return began.learning if began is not None else 0

    @property
    def history(self) -> int:
        """Maximum number of finished jobs."""
        return self._state.history

    @property
    def history_tasks(self) -> int:
        """Maximum number of tasks of all finished jobs together; 0 for no limit."""
        began = self._state.began
        return began.history_tasks if began is not None else 0

    @property
    def began(self) -> Began | None:
        """The event with which this control plane began to write the log, with the latest configured policy. None in an
        empty log and in old states.
        """
        return self._state.began

    @property
    def before(self) -> dict[str, Any]:
        """The previous policy, with the fields of `Configured`; empty if there was none."""
        return self._state.before

    @property
    def since(self) -> int:
        """The instant at which the current policy was set; 0 if it never was, and in old states."""
        return self._state.configured

    @property
    def is_set_by_user(self) -> bool:
        """Whether a user set the current policy, not a rule. False in old states."""
        by = self._state.configured_by
        return by is not None and not by.startswith(RULE)

    @property
    def now(self) -> dict[str, Any]:
        """The current policy, with the fields of `Configured`; empty in an empty log and in old states."""
        began = self._state.began
        return {} if began is None else {"policy": began.policy, "recipe": began.recipe, "code": began.code}

    @property
    def memory(self) -> dict[str, Any]:
        """Memory that the policy returned with its last plan."""
        return self._state.memory

    def wall(self, instant: int) -> float:
        """Return seconds since 1970, for display; 0 for an instant of 0."""
        return self._state.anchor_wall + (instant - self._state.anchor_at) / 1e9 if instant else 0.0

    @property
    def anchor(self) -> tuple[int, float]:
        """An instant, and the wall clock at it in seconds since 1970."""
        return self._state.anchor_at, self._state.anchor_wall

    def instant(self, wall: float) -> int:
        """Return the instant of the log at a time in seconds since 1970."""
        return self._state.anchor_at + round((wall - self._state.anchor_wall) * 1e9)

    def resume_at(self, boot: str, boottime: int, wall: float) -> int:
        """Return the current instant of the log: from the clock of the boot, or after a reboot from the wall clock.
        Never earlier than the last event.
        """
        state = self._state
        if not state.anchor_wall:
            return max(state.now, 1)
        elapsed = (
            boottime - state.anchor_boottime if boot == state.anchor_boot else int((wall - state.anchor_wall) * 1e9)
        )
        return max(state.now, state.anchor_at + elapsed)

    def handlers(self) -> Handlers:
        return {
            Began: self._began,
            Configured: self._configured,
            ClockSet: self._clock_set,
            Remembered: self._remembered,
            PolicyFailed: self._only_recorded,
            Round: self._only_recorded,
            StopAsked: self._only_recorded,
            Triggered: self._only_recorded,
            Noticed: self._only_recorded,
            IncidentTold: self._only_recorded,
        }

    def _began(self, event: Began) -> None:
        state = self._state
        if event.boot != state.anchor_boot:
            self._queues.stretch_leases(state.now, event.at - state.now)
        self._keep_policy(event.policy)
        if state.began is not None and state.policy != event.policy:
            state.configured, state.configured_by = event.at, ""
        state.term, state.policy, state.began, state.history = event.term, event.policy, event, event.history
        state.memory = {}
        state.anchor_at, state.anchor_wall = event.at, event.wall
        state.anchor_boot, state.anchor_boottime = event.boot, event.boottime

    def _clock_set(self, event: ClockSet) -> None:
        state = self._state
        state.anchor_boottime += event.at - state.anchor_at
        state.anchor_at, state.anchor_wall = event.at, event.wall

    def _configured(self, event: Configured) -> None:
        state = self._state
        self._keep_policy(event.policy)
        if state.began is not None:
            state.began = configured(state.began, event)
        state.configured, state.configured_by = event.at, event.by
        if event.policy != state.policy:
            state.policy, state.memory = event.policy, {}

    def _keep_policy(self, following: str) -> None:
        """Record the current policy as the previous one, before another takes over. A trial on a part of the nodes that
        goes on, with other nodes or all of them, is no policy to go back to: the one before it remains.
        """
        began = self._state.began
        if began is None or began.policy == following:
            return
        split = split_in(began.recipe)
        if split is None or split.rest.policy == following:
            self._state.before = self.now

    def _remembered(self, event: Remembered) -> None:
        self._state.memory = msgspec.msgpack.decode(encoder.encode(event.memory))  # as decoded after a restart

    def _only_recorded(self, event: PolicyFailed | Round | StopAsked | Triggered | Noticed | IncidentTold) -> None:
        """Change nothing: the event explains others in the log."""
