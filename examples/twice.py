"""The smallest model: `poise serve examples/twice.py:Twice`."""


class Twice:
    """Twice of what it is asked."""

    def predict(self, batch: list[float]) -> list[float]:
        """As many results as inputs, in the same order."""
        return [2 * one for one in batch]
