"""Work the answer out.

As a service: `poise serve reason.py:Reason`; a question is what `align` has answered.
"""

import math
from collections.abc import Callable

from records import Answered, Meant, Region, read, step

OF_DIGITS: dict[str, Callable[[list[int]], int]] = {
    "sum": sum,
    "product": math.prod,
    "largest": max,
    "smallest": min,
    "count": len,
    "read": lambda digits: digits[0],
    "difference": lambda digits: digits[0] - digits[1],
}
OF_PLACES: dict[str, Callable[[Region, Region], bool]] = {
    "left of": lambda first, second: first.x < second.x,
    "above": lambda first, second: first.y < second.y,
}


class Reason:
    """Operations on regions."""

    def predict(self, batch: list[Meant]) -> list[Answered | Exception]:
        return [answered(meant) for meant in batch]


def answered(meant: Meant) -> Answered | Exception:
    regions = [one for group in meant.groups for one in group]
    if not all(meant.groups):
        return Answered(None)
    if meant.operation in OF_DIGITS:
        return Answered(OF_DIGITS[meant.operation]([one.digit for one in regions]))
    if meant.operation in OF_PLACES:
        return Answered(OF_PLACES[meant.operation](*regions[:2]))
    return ValueError(f"there is no operation `{meant.operation}`")


if __name__ == "__main__":
    step("answers", Reason().predict, read("meant", Meant))
