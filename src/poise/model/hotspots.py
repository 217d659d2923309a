"""Where the time of jobs goes: by class of work and step, how often and for how long."""

from typing import Literal, get_args

import msgspec

Step = Literal["waiting", "starting", "running", "lost", "saving"]
"""`waiting` from when it may start to its placement · `starting` from there to its start · `running` attempts that are
done · `lost` attempts that are not: what they did is done again, but for what they had saved · `saving` training that
stood still for a checkpoint.
"""

STEPS: tuple[Step, ...] = get_args(Step)

Order = Literal["total", "mean", "count"]
ORDERS: tuple[Order, ...] = get_args(Order)


class HotSpot(msgspec.Struct, frozen=True, kw_only=True):
    """One step of one class of work: how often, and nanoseconds in all, on the mean and at the most. `where` is the
    attempt or the unit that took longest, `why` what is known of that. `share` is its part of the time of all steps, in
    thousandths.
    """

    kind: str
    step: Step
    count: int
    total: int
    mean: int
    longest: int
    share: int
    where: str
    why: str = ""


class HotSpots(msgspec.Struct, frozen=True, kw_only=True):
    """The hot spots of a log from an instant on (seconds since 1970), the hottest first; `left_out` are more that are
    not listed.
    """

    since: float
    spots: tuple[HotSpot, ...]
    left_out: int = 0
