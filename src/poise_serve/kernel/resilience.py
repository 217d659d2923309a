"""What keeps one bad server from spoiling the rest: breaker, retry budget, health and concurrency as small machines.

Time is an argument, in nanoseconds; nothing here waits, draws or sends. One `Breaker`, one `Health` and, where it is
to follow, one `Concurrency` for each server, one `RetryBudget` for all of them.

    breaker: closed --failures in a row--> ejected --its pause is over--> on trial --success--> closed
                                              ^--------- failure, for longer ----------|
"""

from collections.abc import Sequence
from math import exp, log
from statistics import median
from typing import Literal

from poise.model.serving_upstreams import Ejection, Following, Probing, Retries
from poise.units import SECOND
from poise_serve.policy.pid import Gains, Pid

WINDOW = 10 * SECOND
"""Of which requests the budget counts, as Finagle's does."""

SLICES = 10
"""Parts of the window that are forgotten together."""

SPARE = 10
"""Tries again in a window that need no requests before: a share of few requests would be none (Finagle's 10 a second
are for services; a front before models may see one request a second)."""


STEP = 1 * SECOND
"""The concurrency of a server is looked at so often at most. A step is one of so long, however long it took to have
enough answers: the integral would else go far on what is seen once."""

TELLING = 20
"""Answers of which a P99 is told, at least; of so few it is the largest."""

GAINS = Gains(proportional=0.2, integral=0.3)
"""With a plant of gain 1 that answers a step later, `u' = u + 0.3 e + 0.2 (e - e_before)` comes to its target without
swinging, and goes from 1 to 64 in some ten steps; no derivative, since a P99 of few answers is rough."""


class Breaker:
    """Whether a server may be sent requests, by how the last ones went.

    Failures in a row eject it. When its pause is over, one request is sent on trial: success closes the breaker, a
    failure ejects again for twice as long, up to the longest. Once it has gone well for the longest pause, the next
    ejection is a first one again. The defaults (5 failures, 30 s, 5 min) are Envoy's outlier detection's.
    """

    def __init__(self, rules: Ejection) -> None:
        self._rules = rules
        self._failures = 0
        self._pause = 0
        self._until = 0
        self._ejected = False
        self._trial = False

    @property
    def until(self) -> int:
        """When the pause is over; 0 without one."""
        return self._until

    @property
    def is_ejected(self) -> bool:
        """Until a trial went well."""
        return self._ejected

    def is_open_to(self, now: int) -> bool:
        """Whether a request may be sent there."""
        return now >= self._until and not self._trial

    def on_sent(self) -> None:
        self._trial = self._ejected

    def on_success(self, now: int) -> None:
        if now < self._until:  # sent before it was ejected: it tells nothing of now
            return
        self._failures = 0
        self._ejected = self._trial = False

    def on_failure(self, now: int, may_eject: bool) -> bool:
        """Whether this ejects it. Not if it may not: where no other could take over, requests are better off trying."""
        if now < self._until:
            return False
        self._failures += 1
        if not self._ejected and (self._failures < self._rules.failures or not may_eject):
            return False
        was = self._until
        first = now - was > self._rules.longest or not was
        self._pause = self._rules.pause if first else min(2 * self._pause, self._rules.longest)
        self._until = now + self._pause
        self._ejected, self._trial, self._failures = True, False, 0
        return True

    def on_neither(self) -> None:
        """Nobody waited for the outcome: the next request is the trial."""
        self._trial = False


class RetryBudget:
    """Tries again are at most a share of the requests of the last ten seconds, so that a fleet that fails is not sent
    a multiple of its load. After Finagle's.
    """

    def __init__(self, rules: Retries) -> None:
        self._rules = rules
        self._slices: list[tuple[int, int, int]] = []  # index of the slice, requests, retries

    def on_request(self, now: int) -> None:
        self._add(now, 1, 0)

    def take(self, now: int) -> bool:
        """Whether one may be tried again; then it counts."""
        self._add(now, 0, 0)
        asked = sum(requests for _, requests, _ in self._slices)
        again = sum(tries for _, _, tries in self._slices)
        if self._rules.share == 0 or again >= SPARE + self._rules.share * asked:
            return False
        self._add(now, 0, 1)
        return True

    def _add(self, now: int, requests: int, tries: int) -> None:
        number = now * SLICES // WINDOW
        while self._slices and self._slices[0][0] <= number - SLICES:
            self._slices.pop(0)
        if not self._slices or self._slices[-1][0] != number:
            self._slices.append((number, 0, 0))
        _, before, again = self._slices[-1]
        self._slices[-1] = (number, before + requests, again + tries)


class Health:
    """What probes say of a server: `starting` until the first that goes well, or until misses count; then `healthy`,
    and `unhealthy` after misses in a row. A server that starts is probed like any other; its misses do not count.
    """

    def __init__(self, rules: Probing, now: int) -> None:
        self._rules = rules
        self._began = now
        self._misses = 0
        self.state: Literal["starting", "healthy", "unhealthy"] = "starting"

    def on_probe(self, now: int, went_well: bool) -> None:
        if went_well:
            self._misses = 0
            self.state = "healthy"
        elif self.state != "starting" or now - self._began >= self._rules.delay:
            self._misses += 1
            if self._misses >= self._rules.failures:
                self.state = "unhealthy"


class Concurrency:
    """How many requests a server is sent at once, so that the P99 of its answers comes to a target.

    A PID controller of both in logarithms: where a server is full, twice as many requests take twice as long, and where
    it is not, no longer; so a step in the one is at most as large a step in the other, whatever the server is, and one
    set of gains does for all. A step is made from the answers of a second or more. A limit that was not reached is not
    raised: it says nothing of what would be.
    """

    def __init__(self, rules: Following, most: int, now: int) -> None:
        self._target = rules.target
        self._pid = Pid(GAINS, log(rules.least), log(most))
        self._memory = self._pid.begin(log(rules.least))
        self._took: list[int] = []
        self._busiest = 0
        self._since = now
        self.limit = rules.least
        self.p99 = 0
        """Of the answers that the last step was made from, in nanoseconds; 0 before the first."""

    def on_sent(self, running: int) -> None:
        """It has so many requests now."""
        self._busiest = max(self._busiest, running)

    def on_over(self, took: int, now: int, *, answered: bool) -> None:
        """A request is over there. One in vain tells something only if it took too long for an answer as well."""
        if not answered and took <= self._target:
            return
        self._took.append(max(1, took))
        if len(self._took) < TELLING or now - self._since < STEP:
            return
        took_sorted = sorted(self._took)
        self.p99 = took_sorted[int(0.99 * len(took_sorted))]
        if self.p99 > self._target or self._busiest >= self.limit:
            self._memory = self._pid.step(self._memory, log(self._target), log(self.p99), STEP)
            self.limit = round(exp(self._memory.output))
        self._took, self._busiest, self._since = [], 0, now


def is_slow(took: int, others: Sequence[float], rules: Ejection) -> bool:
    """Whether an answer took so long that it counts as a failure: against what one like it takes at the other servers
    (`others`, nanoseconds), at their median. Unequal devices are no outliers: a tenth of the speed is.
    """
    if not others or not rules.slower or took < rules.least:
        return False
    return took > rules.slower * median(others)
