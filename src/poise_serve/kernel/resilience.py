"""Circuit breaker, retry budget, health and adaptive concurrency, as small state machines.

Time is an argument, in nanoseconds; there is no I/O and no randomness here. Each server has a `Breaker`, a `Health` and
optionally a `Concurrency`; all servers share one `RetryBudget`.

    breaker: closed --failures in a row--> ejected --its pause is over--> on trial --success--> closed
                                              ^--------- failure, for longer ----------|
"""

from collections.abc import Sequence
from math import exp, log
from statistics import median
from typing import Literal

from poise.model.serving_upstreams import Ejection, Following, Probing, Retries
from poise.policy.pid import Damping, Gains, Pid, damped
from poise.units import SECOND

WINDOW = 10 * SECOND
"""Time window of the retry budget, as in Finagle."""

SLICES = 10
"""Number of slices of the window; each expires as a whole."""

SPARE = 10
"""Minimum number of retries per window, as a share of few requests would be none. (Finagle's 10 per second are for
services; a front for models may get one request per second.)"""


STEP = 1 * SECOND
"""Minimum interval between two control steps. A step always counts as this long, even if it took longer to collect the
answers: otherwise a single observation would move the integral too far."""

TELLING = 20
"""Minimum number of answers for a P99; of this few it is the largest."""

GAINS = Gains(proportional=0.2, integral=0.3)
"""For a plant of gain 1 with a delay of one step, `u' = u + 0.3 e + 0.2 (e - e_before)` converges without oscillation,
and rises from 1 to 64 in about ten steps; no derivative, because a P99 of few answers is noisy."""

NOISE = 0.35
"""Deviation of the logarithm of a P99 from that of the target that chance explains: 40 %."""

AT_FIRST = 8
"""Maximum number of concurrent requests to a server in its first second after it was down."""

SECONDS_TO_ALL = 14
"""Seconds after which only its own limit applies: 8 times 2 to the 14th is above any limit."""


class Breaker:
    """Circuit breaker of one server.

    Consecutive failures eject the server. After the pause, one request is sent on trial: success closes the breaker, a
    failure ejects it again for twice as long, up to the longest pause. After the longest pause without an ejection, the
    next one starts with the first pause again. The defaults (5 failures, 30 s, 5 min) are those of Envoy's outlier
    detection.

    The outcomes of other gateways' requests count too. Their successes do not end a row of own failures: this gateway
    may be the one that cannot reach the server.
    """

    def __init__(self, rules: Ejection) -> None:
        self.rules = rules
        self._failures = self._own_failures = 0
        self._pause = 0
        self._until = 0
        self._ejected = False
        self._trial = False

    @property
    def until(self) -> int:
        """Instant at which the pause ends; 0 without a pause."""
        return self._until

    @property
    def pause(self) -> int:
        """Nanoseconds of the latest pause."""
        return self._pause

    @property
    def is_ejected(self) -> bool:
        """Whether the server is ejected, which lasts until a trial succeeds."""
        return self._ejected

    def is_open_to(self, now: int) -> bool:
        """Whether a request may be sent to the server."""
        return now >= self._until and not self._trial

    def on_sent(self) -> None:
        self._trial = self._ejected

    def on_success(self, now: int, *, own: bool = True) -> None:
        if now < self._until:  # sent before the ejection: no evidence of the present
            return
        self._failures = 0
        self._own_failures = 0 if own else self._own_failures
        self._ejected = self._trial = False

    def on_failure(self, now: int, may_eject: bool, *, own: bool = True) -> bool:
        """Record a failure. Returns whether it ejects the server. Without another server, `may_eject` is false."""
        if now < self._until:
            return False
        self._failures += 1
        self._own_failures += own
        failures = max(self._failures, self._own_failures)
        if not self._ejected and (failures < self.rules.failures or not may_eject):
            return False
        was = self._until
        first = now - was > self.rules.longest or not was
        self._pause = self.rules.pause if first else min(2 * self._pause, self.rules.longest)
        self.eject(now + self._pause, self._pause)
        return True

    def eject(self, until: int, pause: int) -> None:
        """Eject the server, as another gateway has, for a pause that ends at this instant."""
        self._until, self._pause, self._ejected, self._trial = until, pause, True, False
        self._failures = self._own_failures = 0

    def on_neither(self) -> None:
        """Record a request with an unknown outcome: the next request is the trial."""
        self._trial = False


class RetryBudget:
    """Limits retries to a share of the requests of the last ten seconds, so that retries do not multiply the load of
    failing servers. Modelled on Finagle's.
    """

    def __init__(self, rules: Retries) -> None:
        self.rules = rules
        self._slices: list[tuple[int, int, int]] = []  # index of the slice, requests, retries

    def on_request(self, now: int) -> None:
        self._add(now, 1, 0)

    def on_retry(self, now: int) -> None:
        """Count a retry of another gateway with the same budget."""
        self._add(now, 0, 1)

    def take(self, now: int) -> bool:
        """Take a retry from the budget. Returns whether there was one."""
        self._add(now, 0, 0)
        asked = sum(requests for _, requests, _ in self._slices)
        again = sum(tries for _, _, tries in self._slices)
        if self.rules.share == 0 or again >= SPARE + self.rules.share * asked:
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
    """Health of a server by its probes: `starting` until the first success, or until the start delay is over; then
    `healthy`, or `unhealthy` after consecutive failures. Failures of a starting server do not count. A server that
    refuses a connection is unhealthy at once: no process listens there.
    """

    def __init__(self, rules: Probing, now: int) -> None:
        self.rules = rules
        self._began = now
        self._misses = 0
        self._was_down = False  # its first probes failed
        self._up = 0
        self.state: Literal["starting", "healthy", "unhealthy"] = "starting"

    def may_have(self, now: int, limit: int) -> int:
        """Return the maximum number of concurrent requests to the server, at most its `limit`. A server that has just
        come up begins with a few, and the number doubles every second, so that the requests that waited for it do not
        all reach it at once.
        """
        seconds = (now - self._up) // SECOND
        return min(limit, AT_FIRST << seconds) if self._up and seconds < SECONDS_TO_ALL else limit

    def come_up(self, now: int) -> None:
        """The server was down, and is up again."""
        self._up = now

    def on_refused(self) -> None:
        """Record a refused connection."""
        self.state = "unhealthy"

    def on_probe(self, now: int, went_well: bool, *, is_doubted: bool = False) -> None:
        """Record a probe. `is_doubted`: another gateway has found the server unhealthy, so one failure confirms it."""
        if went_well:
            if self.state == "unhealthy" or self._was_down:
                self.come_up(now)
            self._misses, self._was_down = 0, False
            self.state = "healthy"
            return
        if self.state == "starting":
            self._was_down = True
        if self.state != "starting" or now - self._began >= self.rules.delay:
            self._misses += 1
            if is_doubted or self._misses >= self.rules.failures:
                self.state = "unhealthy"


class Concurrency:
    """Adapts the concurrency limit of a server so that its P99 latency reaches a target.

    It is a PID controller on logarithms of both: on a saturated server twice the requests take twice as long, otherwise
    no longer. So a change of the limit changes the latency by at most the same factor on most servers, and one set of
    gains fits. Where latency rises faster than that, or follows late, the controller damps its own oscillation. A step
    uses the answers of a second or more. A limit that was not reached is not raised, because its effect is unknown.
    """

    def __init__(self, rules: Following, most: int, now: int) -> None:
        self._target = rules.target
        self._pid = Pid(GAINS, log(rules.least), log(most))
        self._memory = self._pid.begin(log(rules.least))
        self._damping = Damping()
        self._took: list[int] = []
        self._busiest = 0
        self._since = now
        self.limit = rules.least
        self.p99 = 0
        """P99 in nanoseconds of the answers of the last step; 0 before the first."""

    def on_sent(self, running: int) -> None:
        """Record the current number of requests."""
        self._busiest = max(self._busiest, running)

    def on_over(self, took: int, now: int, *, answered: bool) -> None:
        """Record a finished request. One without an answer counts only if it took longer than the target."""
        if not answered and took <= self._target:
            return
        self._took.append(max(1, took))
        if len(self._took) < TELLING or now - self._since < STEP:
            return
        took_sorted = sorted(self._took)
        self.p99 = took_sorted[int(0.99 * len(took_sorted))]
        if self.p99 > self._target or self._busiest >= self.limit:
            target, measured = log(self._target), log(self.p99)
            self._damping = damped(self._damping, target - measured, NOISE)
            self._memory = self._pid.step(self._memory, target, measured, STEP, self._damping.factor)
            self.limit = round(exp(self._memory.output))
        self._took, self._busiest, self._since = [], 0, now


def is_slow(took: int, others: Sequence[float], rules: Ejection) -> bool:
    """Whether an answer was slow enough to count as a failure, compared to the median of the estimates for the other
    servers (`others`, in nanoseconds). Unequal devices are no outliers; a tenth of the speed is.
    """
    if not others or not rules.slower or took < rules.least:
        return False
    return took > rules.slower * median(others)
