"""Effects of a change of shares: simulate the same futures under the current and the proposed shares."""

from collections.abc import Callable
from statistics import median_low

from poise.engine.lookahead import Clock, LookAhead
from poise.kernel.ledger import Ledger
from poise.model.events import SharesSet
from poise.model.reports.questions import Start
from poise.model.reports.tenants import ShareForeseen, SharesForeseen
from poise.model.share_tree import ShareTree
from poise.policy.suites import ClusterPolicy

EACH = 4
"""Number of units considered per share, the first in its queues."""

MOST = 64
"""Total number of units considered."""


def foresee(
    ledger: Ledger, tree: ShareTree | None, now: int, clock: Clock
) -> Callable[[ClusterPolicy], SharesForeseen]:
    """Return a function to call on any thread; the ledger is already forked for it."""
    other = ledger.fork()
    other.apply(SharesSet(at=max(1, now, ledger.now), tree=tree))
    units: dict[str, list[str]] = {}
    for queue in other.queues.values():
        for unit in queue.values():
            job = other.jobs[unit.job]
            mine = units.setdefault(job.leaf or job.tenant, [])
            if len(mine) < EACH:
                mine.append(unit.id)
    chosen = [(share, unit) for share in sorted(units) for unit in units[share]][:MOST]
    ahead = [LookAhead(one, now, clock) for one in (ledger, other)]

    def answer(policy: ClusterPolicy) -> SharesForeseen:
        groups = [[unit] for _, unit in chosen]
        both = [one.starts(policy, groups) for one in ahead] if groups else [[], []]
        rows = []
        for share in dict.fromkeys(share for share, _ in chosen):
            places = [place for place, (of, _) in enumerate(chosen) if of == share]
            then = [_median([starts[place] for place in places]) for starts in both]
            rows.append(ShareForeseen(name=share, units=len(places), now=then[0], then=then[1]))
        return SharesForeseen(shares=tuple(rows), futures=min((one.futures for of in both for one in of), default=0))

    return answer


def _median(starts: list[Start]) -> int | None:
    """Return the median of the likely starts; None if at least half of the units are not likely to start."""
    told = sorted((one.likely is None, one.likely or 0) for one in starts)
    missing, likely = median_low(told)
    return None if missing else likely
