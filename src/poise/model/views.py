"""What a policy sees: an immutable snapshot of the ledger, with estimates and never truths."""

from collections.abc import Mapping
from typing import Any

import msgspec

from poise.model.fleet import Fleet, Phased, PoolView, Resident, Straggler
from poise.model.jobs import NO_WORK, WEIGHT, Speedups, Work
from poise.model.profiles import Profile
from poise.model.quotas import Amounts
from poise.model.resources import Shape
from poise.model.share_tree import ShareView


class Candidate(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """A unit that could be placed now.

    `expected` is the foreseen run time, `declared` what its user said of it (0: nothing) and `tail` the foreseen length
    of the longest path from this unit's start to the end of its graph, in nanoseconds; `due` is the instant by which it
    must end for every deadline after it, 0 for none. `queue` names the units that are alike to placement. `recovering`
    units are still held by a lost node; a `recalled` one was queued behind its like in vain, and needs room of its own.
    `tasks` is how many it can use and `least` how many it must have (0: all). `others` are the shapes of its further
    artifacts. `attained` is the run time of its earlier attempts that were asked to yield, `preempted` their number,
    `saved` what of their work need not be done again, in nanoseconds of one task, and `progress` what it
    said of that itself, in millionths of all its work, and `left` how long the rest takes with its least tasks by what
    it said (nanoseconds, 0: nothing); `outlived` how long its work is
    known to take at least; `ran_out` the least memory that it asked for and ran out of (0: it never did). `tenant` is
    whose quota it counts against, where there is one, `leaf` the share, where any are declared. What `serves` has no
    end that could be foreseen: the text says what it answers for, and why it was asked for.
    Once it is placed, it may be asked to yield if it is `preemptible`; `checkpoint`, `restore` and `moved` are as of a
    `Resident`, whose fields of the same names are the same.
    `depth` counts the units before it on its longest path, `followers` those that need it, `weight` is its business
    weight in thousandths.
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


LEAST_SHOWN = 4
"""Units that a snapshot shows of each queue at least, as far as they may be placed."""


class Snapshot(msgspec.Struct, frozen=True, kw_only=True):
    """All a cluster policy may read. Candidates come in order of submission; of a long queue only the head is shown.

    `profiles` holds what was learned, by class and by `class@device model`; `throughputs` declared
    speeds, by the same keys. `speedups` is how units scale that have said it themselves, by unit. `elastic` has one
    entry for each running unit that could use more tasks or fewer, `stragglers` for each of one task that takes longer
    than its like, or gang that waits for a member, and `phased` for each that asks for more or less than it has by the
    phase of its training; `yielded` says which units have yielded to which that still wait, `quotas` how much more the
    work of a tenant with a quota may take, `running` how many attempts of each shape there are on nodes. `shares` are
    there where any are declared.
    `triggers` names what forced this round."""

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
