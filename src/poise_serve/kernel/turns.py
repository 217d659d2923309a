"""Decides which batches of the models in one process may run at the same time.

Batches of different models run side by side. A suspect is a request that was in a process when the process was lost. It
runs alone in its process, while no model is being loaded there. So if the process is lost again, that request is the
cause, and no other model is blamed. Batches start in the order in which they arrived. While a model is being loaded,
others pass a suspect.
"""

from collections import deque
from collections.abc import Callable
from typing import NamedTuple

Who = tuple[str, str]
"""A service, and the slot of its replica, or `LOADING`."""

LOADING = ""
"""Used instead of a slot while the model is being loaded."""


class _Waiting(NamedTuple):
    who: Who
    alone: bool
    begin: Callable[[], None]


class Turns:
    """The batches of one process."""

    def __init__(self) -> None:
        self.lost: set[str] = set()
        """Services whose batches were lost. While there are any, nothing starts: the process may be gone."""
        self._running: set[Who] = set()
        self._is_alone = False
        self._waiting: deque[_Waiting] = deque()

    @property
    def serving(self) -> set[str]:
        """Services whose batches run."""
        return {service for service, slot in self._running if slot != LOADING}

    def enter(self, who: Who, alone: bool, begin: Callable[[], None]) -> None:
        """Call `begin` as soon as this batch may run."""
        self._waiting.append(_Waiting(who, alone, begin))
        self._grant()

    def leave(self, who: Who, *, lost: bool = False) -> None:
        """End a batch, or its wait. `lost`: its replica has disconnected."""
        if who in self._running:
            self._running.discard(who)
            self._is_alone = False
            if lost:
                self.lost.add(who[0])
        else:
            self._waiting = deque(one for one in self._waiting if one.who != who)
        self._grant()

    def go_on(self) -> None:
        """The process is still there: start batches again."""
        self.lost.clear()
        self._grant()

    def _grant(self) -> None:
        while not self.lost and not self._is_alone and (one := self._first()) is not None:
            self._waiting.remove(one)
            self._running.add(one.who)
            self._is_alone = one.alone
            one.begin()

    def _first(self) -> _Waiting | None:
        """Return what may begin now. While a model is loaded, others pass a suspect: loading may take minutes."""
        is_loading = any(slot == LOADING for _, slot in self._running)
        one = next((one for one in self._waiting if not (one.alone and is_loading)), None)
        return None if one is not None and one.alone and self._running else one


__all__ = ["LOADING", "Turns", "Who"]
