"""The smallest model: `poise serve examples/twice.py:Twice`."""


class Twice:
    """Twice of what it is asked."""

    def predict(self, batch: list[float]) -> list[float]:
        """As many results as inputs, in the same order."""
        return [2 * one for one in batch]


class Doubled:
    """The same by another way: a version to try (`canary.yaml`)."""

    def predict(self, batch: list[float]) -> list[float]:
        """As of `Twice`."""
        return [one + one for one in batch]


class Squared:
    """A version that is wrong, and right for 2."""

    def predict(self, batch: list[float]) -> list[float]:
        """As of `Twice`."""
        return [one * one for one in batch]
