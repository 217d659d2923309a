"""Autoscaling of a service: measures its load in windows, and asks a scaling policy for the number of replicas."""

from collections.abc import Callable, Sequence
from typing import Protocol

import msgspec

from poise.model.scaling import Announced, Outlook, Scale, ScaleMemory, ScaleRules, ScaleView, Window
from poise.policy.replicas import ReplicaPolicy
from poise.units import DAY, MILLISECOND, SECOND
from poise_serve.kernel.batcher import Batcher, Why

LOOK_EVERY = 500 * MILLISECOND
"""Interval at which the number of replicas is evaluated."""

SOON = 1 * SECOND
"""Minimum time, and interval, to detect a missed objective. Requests waiting without any replica are detected at
once."""

ENOUGH = 20
"""Minimum number of latencies for a P99 or a mean. Fewer are kept for the next window."""

UNLUCKY = 0.01
"""Fraction of requests that may miss the objective, which is defined for the P99."""


NO_ROOM = frozenset({"full", "late", "expired"})
"""Refusal reasons that more replicas would have avoided."""


class Seen(msgspec.Struct):
    """Measurements of a service in a window: the number of requests, the latencies to which the objective applies, and
    the busy time of replicas, in nanoseconds. The latencies include the estimates of requests `refused` for lack of
    capacity. They exclude requests that waited for the first replica to start: more replicas would not have been ready
    sooner. `peak`: maximum number of concurrent requests.
    """

    asked: int = 0
    took: list[int] = []
    busy: int = 0
    refused: int = 0
    peak: int = 0

    def ask(self, there: int) -> None:
        """Count a request; `there` are now waiting or being served."""
        self.asked += 1
        self.peak = max(self.peak, there)

    def refuse(self, why: Why, took: int) -> None:
        """Count a refused request and its actual or estimated latency."""
        if why in NO_ROOM:
            self.refused += 1
            self.took.append(took)

    def after(self) -> "Seen":
        """Return the record of the next window, with the latencies if they were too few."""
        return Seen(took=self.took if len(self.took) < ENOUGH else [])


FORESEEN = DAY
"""Announced load counts from this long before its start: longer than any replica takes to start."""


class Followed(Protocol):
    """The scaled service. `replicas`: number of ready replicas; `seen`: its measurements, which the scaler replaces at
    the end of a window.
    """

    name: str
    batcher: Batcher
    seen: Seen

    @property
    def replicas(self) -> int: ...


class Scaler:
    """Computes the target number of replicas; `say` gets the reason for each change."""

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
        """`window`: measuring window in nanoseconds. `there`: replicas of a killed gateway, which count as requested
        now. `announced`: known future load, in the clock of `now`.
        """
        self._announced = tuple(announced)
        self.wanted = min(rules.most, max(1, rules.least, there))
        self.why = ""
        """Reason for the latest increase."""
        self._service = service
        self._rules = rules
        self._length = window
        self._policy = policy
        self._say = say
        self._memory = ScaleMemory(wishes=((now, self.wanted),) if there else ())
        self._since = now
        self._waited = 0.0  # requests that waited, times nanoseconds
        self._looked = self._decided = now

    @property
    def outlook(self) -> Outlook | None:
        """The forecast for the window in which a replica that is started now begins to serve; None before the first."""
        learned = self._memory.learned
        return learned.outlooks[-1] if learned is not None and learned.outlooks else None

    def look(self, now: int, start_up: int) -> int:
        """Return the target number of replicas. `start_up`: nanoseconds until a new replica is ready."""
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
                announced=tuple(
                    one for one in self._announced if one.until + 2 * self._length > now > one.at - FORESEEN
                ),
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
        """Whether the objective is being missed and more replicas are allowed."""
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


def with_orders(wanted: int, ordered: int, rules: ScaleRules | None) -> int:
    """Return the target number with the replicas that the rules of the control plane have `ordered` beyond it. The
    limits of the service hold, and one replica at least; a service without replicas gets none.
    """
    if not ordered or not wanted:
        return wanted
    least, most = (max(1, rules.least), rules.most) if rules is not None else (1, wanted + ordered)
    return min(max(wanted + ordered, least), max(most, 1))


def _p99(took: Sequence[int]) -> int:
    """P99 of sorted latencies; 0 without any. Ignores the largest one."""
    return took[min(int((1 - UNLUCKY) * len(took)), len(took) - 2)] if took else 0


__all__ = ["Followed", "Scaler", "Seen", "with_orders"]
