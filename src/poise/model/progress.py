"""How far work is, and how fast it progresses."""

import msgspec

ALL = 1_000_000
"""The whole work, in millionths."""

MAX_TASKS_TOLD = 1024
"""Maximum number of sizes for which a unit reports its speed."""

NOTICEABLE = 0.05
"""Smallest relative change of a speed that is reported again."""


class Speedups(msgspec.Struct, frozen=True, array_like=True):
    """Progress rate of a unit with 1, 2, ... tasks, in thousandths of its rate with one task, as it reports itself:
    with all tasks on one node (`together`), or on as few nodes as possible but more than one (`apart`). Progress
    counts, not steps. Beyond the listed sizes the rate is that of the largest.
    """

    together: tuple[int, ...]
    apart: tuple[int, ...]

    def within(self, tasks: int) -> "Speedups":
        """Return the entries for at most `tasks` tasks, with negative values set to 0."""
        most = min(tasks, MAX_TASKS_TOLD)
        return Speedups(tuple(max(0, of) for of in self.together[:most]), tuple(max(0, of) for of in self.apart[:most]))

    def differs(self, other: "Speedups") -> bool:
        """Whether any entry has changed noticeably."""
        if len(self.together) != len(other.together) or len(self.apart) != len(other.apart):
            return True
        pairs = zip(self.together + self.apart, other.together + other.apart, strict=True)
        return any(abs(mine - theirs) > NOTICEABLE * theirs for mine, theirs in pairs)
