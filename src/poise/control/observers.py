"""Observers of a control plane, each on a thread of its own; one keeps how long rounds and commits took lately.

    observers = Observers()
    observers.add(Timings())
    host.observe = observers.tell

The loop only puts what happened into a queue. An observer that is too slow misses what is newest, and one that raises
is told the rest.
"""

import contextlib
import logging
import queue
import threading
from collections import deque

from poise.model.observed import CommitTook, Observed, RoundTook
from poise.model.reports import PhaseTimes
from poise.ports import Observer

WAITING = 10_000
"""What one observer may have before it: some minutes of a busy control plane."""

LATELY = 1_000
"""Rounds and commits over which times are told."""

_log = logging.getLogger("poise.control")


class Observers:
    """All observers of one control plane. `add`, `tell` and `close` are called on the loop's thread."""

    def __init__(self) -> None:
        self._listening: list[_Listening] = []

    def add(self, observer: Observer) -> None:
        """Tell it what happens from now on."""
        self._listening.append(_Listening(observer))

    def tell(self, observed: Observed) -> None:
        """Tell all of them; returns at once, and raises nothing."""
        for listening in self._listening:
            listening.put(observed)

    def missed(self) -> int:
        """How often an observer missed something, as it was too slow."""
        return sum(listening.missed for listening in self._listening)

    def close(self) -> None:
        """Tell nobody anything more. What an observer is doing is not waited for."""
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
        with contextlib.suppress(queue.Full):  # then it looks when it has come to the next
            self._queue.put_nowait(None)

    def _listen(self) -> None:
        while (observed := self._queue.get()) is not None and not self._closed:
            try:
                self._observer.observe(observed)
            except Exception:  # whatever an observer does, the fleet goes on
                _log.exception("the observer %s failed", type(self._observer).__name__)


class Timings:
    """How long each phase of rounds and commits took lately."""

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
        """By phase; empty before the first round and commit. May be called on any thread."""
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
