"""Deadlines: whether one can still be met, and what happens to work that cannot meet its own.

    can_meet(due=90 * SECOND, now=60 * SECOND, left=40 * SECOND)     # False: at least 40 s of work, 30 s of time

A deadline is lost as soon as the minimum remaining work takes longer than the time left: no policy can change that.
This module applies to every policy, to the ledger and to reports alike.
"""

from typing import Literal

import msgspec

IfLate = Literal["refuse", "run", "cancel"]
"""What happens to work whose deadline cannot be met.

`refuse` the submission is refused unless the deadline is likely to be met; once accepted it is treated as `run` · `run`
it continues as work without a deadline · `cancel` it is cancelled as soon as the deadline is lost.
"""

LIKELY = 500
"""Thousandths: the minimum probability for accepting a deadline with `if-late: refuse`. Below one half it is missed
more often than met. A higher limit would refuse most work with only a declared run time: such times are so uncertain
that a deadline of twice as much is met in six of seven cases.
"""


def can_meet(due: int, now: int, left: int) -> bool:
    """Whether work that takes at least `left` nanoseconds from `now` can end by the instant `due` (0: no deadline)."""
    return not due or now + left <= due


class Missed(msgspec.Struct, frozen=True, array_like=True):
    """A unit that is cancelled because of a deadline: its id, and the minimum time in nanoseconds that was `left` until
    its end. With `of` the deadline belongs to another unit, the only one that needs this one.
    """

    unit: str
    left: int = 0
    of: str = ""
