"""The control plane that has the log: which it is, its clock, and what its policy wants to remember."""

from typing import Any

import msgspec

from poise.kernel.ledger.queues import Queues
from poise.kernel.ledger.room import Handlers, Room
from poise.kernel.ledger.state import State, encoder
from poise.model.events import Began, PolicyFailed, Remembered, Round, StopAsked, Triggered


class Leader(Room):
    """As of the latest `Began`. Owns `term`, `policy`, `history`, `began`, `memory` and the `anchor_…` of its clock."""

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
        """Whether the policy gives each unit one place only: it is shown all that waits and all that runs."""
        began = self._state.began
        return began is not None and began.fixed

    @property
    def fair(self) -> bool:
        """Whether the history is shared out among tenants."""
        began = self._state.began
        return began is not None and began.fair

    @property
    def history(self) -> int:
        """How many finished jobs are kept."""
        return self._state.history

    @property
    def began(self) -> Began | None:
        """What it said when it took the log; None in an empty log and in old states."""
        return self._state.began

    @property
    def memory(self) -> dict[str, Any]:
        """What its policy said last that it wants to remember."""
        return self._state.memory

    def wall(self, instant: int) -> float:
        """Seconds since 1970 for people, from where it began; 0 for an instant of 0."""
        return self._state.anchor_wall + (instant - self._state.anchor_at) / 1e9 if instant else 0.0

    def resume_at(self, boot: str, boottime: int, wall: float) -> int:
        """The instant it is now, continuing the log: by the boot's clock, or after a reboot by the wall's. Never
        earlier.
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
            Remembered: self._remembered,
            PolicyFailed: self._only_recorded,
            Round: self._only_recorded,
            StopAsked: self._only_recorded,
            Triggered: self._only_recorded,
        }

    def _began(self, event: Began) -> None:
        state = self._state
        if event.boot != state.anchor_boot:
            self._queues.stretch_leases(state.now, event.at - state.now)
        state.term, state.policy, state.began, state.history = event.term, event.policy, event, event.history
        state.memory = {}
        state.anchor_at, state.anchor_wall = event.at, event.wall
        state.anchor_boot, state.anchor_boottime = event.boot, event.boottime

    def _remembered(self, event: Remembered) -> None:
        self._state.memory = msgspec.msgpack.decode(encoder.encode(event.memory))  # as it would be after a restart

    def _only_recorded(self, event: PolicyFailed | Round | StopAsked | Triggered) -> None:
        """It says why what stands beside it in the log was decided, and changes nothing."""
