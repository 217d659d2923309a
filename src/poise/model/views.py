"""The view of a policy: an immutable snapshot of the ledger, with estimates instead of true run times."""

from collections.abc import Mapping
from typing import Any

import msgspec

from poise.model.fleet import Fleet, Phased, PoolView, Resident, Straggler
from poise.model.jobs import NO_WORK, WEIGHT, Work
from poise.model.profiles import Profile
from poise.model.progress import Speedups
from poise.model.quotas import Amounts
from poise.model.resources import Shape
from poise.model.share_tree import ShareView


class Candidate(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """A unit that could be placed now.

    `expected` is the predicted run time, `declared` the declared one (0: none) and `tail` the predicted length of the
    longest path from this unit's start to the end of its graph, in nanoseconds; `due` is the instant by which it must
    end to meet every later deadline, 0 for none. `queue` identifies units that are equal for placement. `recovering`
    units are still held by a lost node; a `recalled` unit was queued behind similar work in vain, and needs its own
    resources. `tasks` is the maximum and `least` the minimum number of tasks (0: all). `others` are the shapes of its
    other artifacts. `attained` is the run time of its preempted attempts, `preempted` their number, `saved` the part of
    their work that need not be repeated, in nanoseconds of one task, `progress` the progress that it reported, in
    millionths of all its work, and `left` the reported time for the rest with its least tasks (nanoseconds, 0: not
    reported); `outlived` is the known minimum run time of its work; `ran_out` the smallest memory request with which it
    ran out of memory (0: never). `tenant` is the tenant whose quota it counts against, if any, `leaf` its share, if
    shares are declared. A unit that `serves` has no predictable end: the text names the service and the reason for the
    replica. Once placed, it may be preempted if it is `preemptible`, and runs for at most `limit` nanoseconds (0: no
    limit); when it is stopped, it has `grace` nanoseconds to end. `checkpoint`, `restore`, `moved` and other fields
    that `Resident` has too are as defined there. `depth` counts the units before it on its longest path, `followers`
    those that need it, `weight` is its business weight in thousandths.
    """

    unit: str
    job: str
    ordinal: int
    priority: int
    kind: str
    shape: Shape
    tasks: int
    submitted: int
    ready: int
    tail: int
    queue: str
    expected: int = 0
    declared: int = 0
    due: int = 0
    critical: bool = False
    recovering: bool = False
    recalled: bool = False
    least: int = 0
    others: tuple[Shape, ...] = ()
    attained: int = 0
    preempted: int = 0
    depth: int = 0
    followers: int = 0
    weight: int = WEIGHT
    work: Work = NO_WORK
    avoid: str = ""
    saved: int = 0
    progress: int = 0
    left: int = 0
    outlived: int = 0
    ran_out: int = 0
    tenant: str = ""
    leaf: str = ""
    serves: str = ""
    preemptible: bool = True
    checkpoint: int = 0
    restore: int = 0
    moved: int = 0
    limit: int = 0
    grace: int = 0


LEAST_SHOWN = 4
"""Minimum number of units that a snapshot shows of each queue, if they may be placed."""


class Snapshot(msgspec.Struct, frozen=True, kw_only=True):
    """All data that a cluster policy may read. Candidates are in order of submission; of a long queue only the head is
    shown.

    `profiles` has learned data, by class and by `class@device model`; `throughputs` has declared speeds, by the same
    keys. `speedups` has the reported scaling of units, by unit. `elastic` has one entry for each running unit that
    could use more or fewer tasks, `stragglers` for each unit of one task that is slower than similar ones and each gang
    that waits for a member, and `phased` for each unit whose training phase requests more or less than it holds.
    `yielded` maps preempted units to the units that they yielded to and that still wait, `quotas` has the remaining
    quota of tenants, `running` the number of attempts of each shape on nodes. `shares` is set if shares are declared.
    `triggers` names the triggers that forced this round. If the fleet is only a part of the nodes, `elsewhere` has the
    free thousandths of devices of all others, by model.
    """

    revision: int
    now: int
    fleet: Fleet
    candidates: tuple[Candidate, ...]
    backlog: Mapping[str, int]
    profiles: Mapping[str, Profile]
    throughputs: Mapping[str, float] = {}
    memory: Mapping[str, Any] = {}
    speedups: Mapping[str, Speedups] = {}
    elastic: tuple[Resident, ...] = ()
    stragglers: tuple[Straggler, ...] = ()
    phased: tuple[Phased, ...] = ()
    yielded: Mapping[str, str] = {}
    quotas: Mapping[str, Amounts] = {}
    running: Mapping[Shape, int] = {}
    shares: ShareView | None = None
    elsewhere: Mapping[str, int] = {}
    triggers: tuple[str, ...] = ()
    seed: int = 0


__all__ = [
    "LEAST_SHOWN",
    "Candidate",
    "Fleet",
    "PoolView",
    "Resident",
    "Snapshot",
    "Straggler",
]
