"""The probability that the places of a reservation are free of other work when its window begins."""

from typing import NamedTuple

from poise.engine.lookahead import Bounds, Clock, Futures, followed, view_settings
from poise.kernel.ledger import Ledger
from poise.kernel.reserved import others_on
from poise.model.reservations import Window
from poise.policy.suites import ClusterPolicy

BOUNDS = Bounds(futures=100, seconds=4.0)


class Chance(NamedTuple):
    """In how many of the simulated futures the places are free."""

    free: int
    futures: int

    @property
    def thousandths(self) -> int:
        """The probability, by the rule of succession: no number of futures makes anything certain."""
        return 1000 * (self.free + 1) // (self.futures + 2)


def chance_of(
    ledger: Ledger,
    policy: ClusterPolicy,
    window: Window,
    now: int,
    clock: Clock,
    *,
    bounds: Bounds = BOUNDS,
    seed: int = 0,
) -> Chance:
    """Simulate futures of a ledger up to the start of a window. Raises `InputError` if there is no time for one."""
    if window.begin <= now:
        return Chance(int(not others_on(ledger, window)), 1)

    def make(most: int) -> Futures:
        return Futures(ledger, view_settings(ledger), now, clock, seed=seed, most=most)

    def follow(futures: Futures, number: int, deadline: float) -> bool | None:
        state = futures.state_at(policy, number, deadline, window.begin)
        return None if state is None else not others_on(state, window)

    _, seen = followed(make, follow, bounds, "future", clock)
    return Chance(sum(seen), len(seen))
