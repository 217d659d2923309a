"""Token bucket of an allowance: it refills evenly, and may go below zero for costs known only afterwards."""

from poise.model.keys import Allowance


class Bucket:
    """Token bucket with a capacity of `amount`, which refills over `window`. Instants are nanoseconds."""

    def __init__(self, allowance: Allowance, now: int) -> None:
        self._allowance = allowance
        self._left = float(allowance.amount)
        self._at = now

    def become(self, allowance: Allowance, now: int) -> None:
        """Use another allowance. Spent tokens stay spent, but the debt does not grow."""
        self._refill(now)
        self._left = max(allowance.amount - (self._allowance.amount - self._left), min(self._left, 0.0))
        self._allowance = allowance

    def wait(self, now: int) -> int:
        """Return nanoseconds until one token is available; 0 if it is now."""
        self._refill(now)
        if self._left >= 1:
            return 0
        return int((1 - self._left) * self._allowance.window / self._allowance.amount) + 1

    def spend(self, amount: int, now: int) -> None:
        """Spend tokens, even more than are left; then `wait` until the debt has refilled."""
        self._refill(now)
        self._left -= amount

    def _refill(self, now: int) -> None:
        allowance = self._allowance
        flowed = max(0, now - self._at) * allowance.amount / allowance.window
        self._left = min(float(allowance.amount), self._left + flowed)
        self._at = now


__all__ = ["Bucket"]
