"""Deadlines: whether one can still be met, and what becomes of work that cannot meet its own.

    can_meet(due=90 * SECOND, now=60 * SECOND, left=40 * SECOND)     # False: at least 40 s of work, 30 s of time

A deadline is lost as soon as the least work that is left takes longer than there is time: that no policy can change.
What is said here holds for every policy, for the ledger and for reports alike.
"""

from typing import Literal

import msgspec

IfLate = Literal["refuse", "run", "cancel"]
"""What becomes of work whose deadline cannot be met.

`refuse` the submission is refused unless the deadline is likely to be met; once accepted it is as `run` · `run` it goes
on as work without a deadline · `cancel` it is cancelled as soon as the deadline is lost.
"""

LIKELY = 500
"""Thousandths: the least chance with which a deadline of `if-late: refuse` is accepted. Below one half it is missed
more often than met. A higher limit would refuse most work of which only a declared time is known: such times are so
uncertain that a deadline of twice as much is met in six of seven cases."""


def can_meet(due: int, now: int, left: int) -> bool:
    """Whether work that takes at least `left` nanoseconds from `now` on can end by the instant `due` (0: none)."""
    return not due or now + left <= due


class Missed(msgspec.Struct, frozen=True, array_like=True):
    """A unit that is cancelled because of a deadline: its id, and the least time in nanoseconds that was `left` until
    its end. With `of` the deadline is that of another unit, which alone needs this one.
    """

    unit: str
    left: int = 0
    of: str = ""
