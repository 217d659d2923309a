"""Hot spots: the time that jobs spend, by class of work and step, with counts."""

from typing import Literal, get_args

import msgspec

Step = Literal["waiting", "starting", "running", "lost", "saving"]
"""`waiting` from the earliest start to the placement · `starting` from there to the start · `running` attempts that are
done · `lost` attempts that are not: their work is repeated, except what was checkpointed · `saving` training that
waited for a checkpoint.
"""

STEPS: tuple[Step, ...] = get_args(Step)

Order = Literal["total", "mean", "count"]
ORDERS: tuple[Order, ...] = get_args(Order)


class HotSpot(msgspec.Struct, frozen=True, kw_only=True):
    """One step of one class of work: its count, and nanoseconds in total, in the mean and at most. `where` is the
    attempt or the unit that took longest, `why` what is known about that. `share` is its fraction of the time of all
    steps, in thousandths.
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
    """The hot spots of a log since an instant (seconds since 1970), hottest first; `left_out` counts more that are not
    listed.
    """

    since: float
    spots: tuple[HotSpot, ...]
    left_out: int = 0
