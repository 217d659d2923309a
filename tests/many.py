"""How many worlds, seeds and examples a test draws: few in `make test`, many in `make test-slow` (`MANY=1`)."""

import os


def many(few: int, all_of_them: int) -> int:
    """Return the first number, or the second if the environment has `MANY`."""
    return all_of_them if os.environ.get("MANY") else few
