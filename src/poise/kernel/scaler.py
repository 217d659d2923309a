"""How many replicas a service has, as its load goes: what is measured in windows, and what a scaler says to that."""

from collections.abc import Callable
from typing import Protocol

import msgspec

from poise.kernel.batcher import Batcher
from poise.model.scaling import Scale, ScaleMemory, ScaleRules, ScaleView, Window
from poise.policy.replicas import ReplicaPolicy
from poise.units import MILLISECOND, SECOND

LOOK_EVERY = 500 * MILLISECOND
"""Between two looks at how many replicas there shall be."""

WINDOW = 10 * SECOND
"""What is decided on is seen over so long; what waits for a replica where there is none is seen at once."""


class Seen(msgspec.Struct):
    """What has come of a service since it was last asked: how often it was asked, what answers took, and for how long
    replicas worked, in nanoseconds.
    """

    asked: int = 0
    took: list[int] = []
    busy: int = 0


class Followed(Protocol):
    """The service whose load is followed. `replicas`: how many are ready."""

    name: str
    batcher: Batcher

    @property
    def replicas(self) -> int: ...

    def seen(self) -> Seen:
        """What has come since this was last asked."""
        ...


class Scaler:
    """Asked now and then, says how many replicas there shall be; `say` is told why, whenever that changes."""

    def __init__(
        self, service: Followed, rules: ScaleRules, policy: ReplicaPolicy, say: Callable[[str], None], now: int
    ) -> None:
        self.wanted = max(1, rules.least)
        self._service = service
        self._rules = rules
        self._policy = policy
        self._say = say
        self._memory = ScaleMemory()
        self._since = now
        self._waited = 0.0  # requests that waited, times nanoseconds
        self._looked = now

    def look(self, now: int, start_up: int) -> int:
        """How many there shall be now. `start_up`: how long a replica takes until it is ready."""
        service = self._service
        self._waited += service.batcher.waiting * (now - self._looked)
        self._looked = now
        wakes = self.wanted == 0 and service.batcher.waiting > 0
        if now - self._since < WINDOW and not wakes:
            return self.wanted
        windows = () if wakes else (self._window(now),)
        paces = [replica.curve.pace() for replica in service.batcher.replicas.values()]
        able = tuple(SECOND / pace if pace else 0.0 for pace in paces)
        verdict = self._policy.decide(
            ScaleView(
                now=now,
                rules=self._rules,
                window=WINDOW,
                windows=windows,
                replicas=(*able, *[max(able, default=0.0)] * (self.wanted - len(able))),
                capacity=max(able, default=0.0),
                start_up=start_up,
                waiting=service.batcher.waiting,
                memory=self._memory,
            )
        )
        self._take(verdict)
        return self.wanted

    def _take(self, verdict: Scale) -> None:
        self._memory = verdict.memory
        if verdict.replicas != self.wanted:
            self._say(f"{self._service.name}: from {self.wanted} to {verdict.replicas}: {verdict.sentence()}")
        self.wanted = verdict.replicas

    def _window(self, now: int) -> Window:
        seen, length = self._service.seen(), now - self._since
        took = sorted(seen.took)
        replicas = self._service.replicas
        window = Window(
            at=now,
            rate=seen.asked * SECOND / length,
            mean=sum(took) // len(took) if took else 0,
            p99=took[int(0.99 * len(took))] if took else 0,
            queue=self._waited / length,
            devices=min(1.0, seen.busy / (length * replicas)) if replicas else 0.0,
            replicas=replicas,
        )
        self._since, self._waited = now, 0.0
        return window


__all__ = ["Followed", "Scaler", "Seen"]
