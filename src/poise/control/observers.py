"""Observers of a control plane, each on its own thread. `Timings` keeps recent durations of rounds and commits.

    observers = Observers()
    observers.add(Timings())
    host.observe = observers.tell

The loop only puts events into queues. An observer that is too slow misses the newest events; one that raises still
gets the later ones.
"""

import contextlib
import logging
import queue
import threading
from collections import deque

from poise.model.observed import CommitTook, Observed, RoundTook
from poise.model.reports.status import PhaseTimes
from poise.ports import Observer

WAITING = 10_000
"""Queue length of one observer: a few minutes of a busy control plane."""

LATELY = 1_000
"""Number of recent rounds and commits to keep durations of."""

_log = logging.getLogger("poise.control")


class Observers:
    """All observers of one control plane. Call `add`, `tell` and `close` on the loop's thread."""

    def __init__(self) -> None:
        self._listening: list[_Listening] = []

    def add(self, observer: Observer) -> None:
        """Add an observer; it gets all later events."""
        self._listening.append(_Listening(observer))

    def tell(self, observed: Observed) -> None:
        """Pass an event to all observers. Returns at once and never raises."""
        for listening in self._listening:
            listening.put(observed)

    def missed(self) -> int:
        """Return how many events slow observers have missed."""
        return sum(listening.missed for listening in self._listening)

    def close(self) -> None:
        """Stop all observers, without waiting for those that are busy."""
        for listening in self._listening:
            listening.close()
        self._listening.clear()


class _Listening:
    """One observer, its queue and its thread."""

    def __init__(self, observer: Observer) -> None:
        self.missed = 0
        self._observer = observer
        self._queue: queue.Queue[Observed | None] = queue.Queue(WAITING)
        self._closed = False
        threading.Thread(target=self._listen, name=f"observer {type(observer).__name__}", daemon=True).start()

    def put(self, observed: Observed) -> None:
        try:
            self._queue.put_nowait(observed)
        except queue.Full:
            self.missed += 1

    def close(self) -> None:
        self._closed = True
        with contextlib.suppress(queue.Full):  # then the thread sees `_closed` after its current event
            self._queue.put_nowait(None)

    def _listen(self) -> None:
        while (observed := self._queue.get()) is not None and not self._closed:
            try:
                self._observer.observe(observed)
            except Exception:  # no error of an observer may stop the fleet
                _log.exception("the observer %s failed", type(self._observer).__name__)


class Timings:
    """Recent durations of each phase of rounds and commits."""

    def __init__(self) -> None:
        self._rounds: deque[RoundTook] = deque(maxlen=LATELY)
        self._commits: deque[CommitTook] = deque(maxlen=LATELY)

    def observe(self, observed: Observed, /) -> None:
        match observed:
            case RoundTook():
                self._rounds.append(observed)
            case CommitTook():
                self._commits.append(observed)

    def phases(self) -> dict[str, PhaseTimes]:
        """Return durations by phase; empty before the first round and commit. Thread-safe."""
        rounds, commits = list(self._rounds), list(self._commits)
        found = {
            "view": [of.view for of in rounds],
            "decide": [of.decide for of in rounds],
            "wait": [of.wait for of in rounds],
            "apply": [of.apply for of in rounds],
            "append": [of.append for of in commits],
            "sync": [of.sync for of in commits],
        }
        return {name: _times(taken) for name, taken in found.items() if taken}


def _times(taken: list[int]) -> PhaseTimes:
    taken.sort()
    last = len(taken) - 1
    return PhaseTimes(len(taken), taken[last // 2], taken[-(-last * 99 // 100)], taken[last])
