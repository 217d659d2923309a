"""How much of an allowance is left: it refills evenly, and what was spent without having been foreseen is made up."""

from poise.model.keys import Allowance


class Bucket:
    """Holds `amount` at most, which flows in over a `window`. Instants are nanoseconds."""

    def __init__(self, allowance: Allowance, now: int) -> None:
        self._allowance = allowance
        self._left = float(allowance.amount)
        self._at = now

    def wait(self, now: int) -> int:
        """Nanoseconds until one may be spent; 0 where it may be now."""
        self._refill(now)
        if self._left >= 1:
            return 0
        return int((1 - self._left) * self._allowance.window / self._allowance.amount) + 1

    def spend(self, amount: int, now: int) -> None:
        """More than is left as well: then nothing may be spent until that has flowed in."""
        self._refill(now)
        self._left -= amount

    def _refill(self, now: int) -> None:
        allowance = self._allowance
        flowed = max(0, now - self._at) * allowance.amount / allowance.window
        self._left = min(float(allowance.amount), self._left + flowed)
        self._at = now


__all__ = ["Bucket"]
