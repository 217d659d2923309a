"""How many replicas a service has, as its load goes: what is measured in windows, and what a scaler says to that."""

from collections.abc import Callable, Sequence
from typing import Protocol

import msgspec

from poise.model.scaling import Announced, Scale, ScaleMemory, ScaleRules, ScaleView, Window
from poise.policy.replicas import ReplicaPolicy
from poise.units import MILLISECOND, SECOND
from poise_serve.kernel.batcher import Batcher, Why

LOOK_EVERY = 500 * MILLISECOND
"""Between two looks at how many replicas there shall be."""

SOON = 1 * SECOND
"""An objective that is missed is seen after so long, and looked for as often; what waits for a replica where there is
none is seen at once."""

ENOUGH = 20
"""Latencies from which a P99 or a mean is told. Fewer are kept until there are as many."""

UNLUCKY = 0.01
"""The share of requests that may miss the objective: it is one for the P99."""


NO_ROOM = frozenset({"full", "late", "expired"})
"""Refusals that more replicas would have spared."""


class Seen(msgspec.Struct):
    """The record of a service since a window began: how often it was asked, what answers took to which the objective
    holds, and for how long replicas worked, in nanoseconds. Among what answers took is what those were foreseen to take
    that were `refused` for want of room. Requests that waited for the first replica to start are not among them: more
    replicas would not have been ready sooner. `peak`: the most requests that were there at one time.
    """

    asked: int = 0
    took: list[int] = []
    busy: int = 0
    refused: int = 0
    peak: int = 0

    def ask(self, there: int) -> None:
        """A request has come: `there` are waiting or being served now."""
        self.asked += 1
        self.peak = max(self.peak, there)

    def refuse(self, why: Why, took: int) -> None:
        """A request was refused that had taken, or was foreseen to take, so long."""
        if why in NO_ROOM:
            self.refused += 1
            self.took.append(took)

    def after(self) -> "Seen":
        """An empty record, with the latencies that were too few to be judged."""
        return Seen(took=self.took if len(self.took) < ENOUGH else [])


class Followed(Protocol):
    """The service whose load is followed. `replicas`: how many are ready; `seen`: its record, which the scaler
    replaces when a window ends.
    """

    name: str
    batcher: Batcher
    seen: Seen

    @property
    def replicas(self) -> int: ...


class Scaler:
    """Asked now and then, says how many replicas there shall be; `say` is told why, whenever that changes."""

    def __init__(
        self,
        service: Followed,
        rules: ScaleRules,
        window: int,
        policy: ReplicaPolicy,
        say: Callable[[str], None],
        now: int,
        there: int = 0,
        announced: Sequence[Announced] = (),
    ) -> None:
        """What is decided on is seen over a `window`, in nanoseconds. So many replicas are `there`, of a gateway that
        was killed: they count as wished for now. `announced`: what is known to come, by the clock of `now`.
        """
        self._announced = tuple(announced)
        self.wanted = min(rules.most, max(1, rules.least, there))
        self.why = ""
        """What asked for as many, when there were last to be more."""
        self._service = service
        self._rules = rules
        self._length = window
        self._policy = policy
        self._say = say
        self._memory = ScaleMemory(wishes=((now, self.wanted),) if there else ())
        self._since = now
        self._waited = 0.0  # requests that waited, times nanoseconds
        self._looked = self._decided = now

    def look(self, now: int, start_up: int) -> int:
        """How many there shall be now. `start_up`: how long a replica takes until it is ready."""
        service = self._service
        starting = service.batcher.started(now) > now
        self._waited += 0 if starting else service.batcher.waiting * (now - self._looked)
        self._looked = now
        wakes = self.wanted == 0 and service.batcher.waiting > 0
        ended = now - self._since >= self._length and not wakes
        if not (wakes or ended or self._is_missed(now)):
            return self.wanted
        window = None if wakes else self._window(now)
        paces = [replica.curve.pace() for replica in service.batcher.replicas.values()]
        able = tuple(SECOND / pace if pace else 0.0 for pace in paces)
        verdict = self._policy.decide(
            ScaleView(
                now=now,
                rules=self._rules,
                window=self._length,
                windows=(window,) if ended and window is not None else (),
                latest=None if ended else window,
                replicas=(*able, *[max(able, default=0.0)] * (self.wanted - len(able))),
                capacity=max(able, default=0.0),
                start_up=start_up,
                waiting=service.batcher.waiting,
                starting=starting,
                announced=self._announced,
                memory=self._memory,
            )
        )
        self._take(verdict)
        self._decided = now
        if ended:
            service.seen = service.seen.after()
            self._since, self._waited = now, 0.0
        return self.wanted

    def _is_missed(self, now: int) -> bool:
        """Whether an objective is being missed, and there may be more replicas."""
        objective, took = self._rules.latency_p99, self._service.seen.took
        if not objective or self.wanted >= self._rules.most or now - max(self._since, self._decided) < SOON:
            return False
        return len(took) >= ENOUGH and _p99(sorted(took)) > objective

    def _take(self, verdict: Scale) -> None:
        self._memory = verdict.memory
        if verdict.replicas != self.wanted:
            self._say(f"{self._service.name}: from {self.wanted} to {verdict.replicas}: {verdict.sentence()}")
        if verdict.replicas > self.wanted:
            self.why = verdict.cause()
        self.wanted = verdict.replicas

    def _window(self, now: int) -> Window:
        seen, length = self._service.seen, now - self._since
        took = sorted(seen.took) if len(seen.took) >= ENOUGH else []
        replicas = self._service.replicas
        return Window(
            at=now,
            rate=seen.asked * SECOND / length,
            mean=sum(took) // len(took) if took else 0,
            p99=_p99(took),
            queue=self._waited / length,
            devices=min(1.0, seen.busy / (length * replicas)) if replicas else 0.0,
            replicas=replicas,
            refused=seen.refused / seen.asked if seen.asked else 0.0,
            peak=seen.peak,
        )


def _p99(took: Sequence[int]) -> int:
    """Of latencies in order; 0 of none. The largest alone decides nothing."""
    return took[min(int((1 - UNLUCKY) * len(took)), len(took) - 2)] if took else 0


__all__ = ["Followed", "Scaler", "Seen"]
