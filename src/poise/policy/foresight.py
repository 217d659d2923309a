"""Forecast of the request rate in the next window, and of the headroom that is rarely exceeded.

The *forecast* is the larger of a moving mean and the last rate, changed as usual at this point of the hour, the day and
the week. A season is used only if it has reduced errors on past windows. *Headroom* is a number of spreads. A spread is
the mean error of forecasts, recent and long-term (as for round-trip times in TCP: Jacobson, 1988). The number of
spreads is read off how often rates exceeded past forecasts by how many: an empirical quantile, as in conformal
prediction (Gibbs and Candès, 2021), started with an exponential prior.

Two things shift the quantile. `credit`: a service with fewer violations than allowed may have more, and vice versa. And
a window less certain than usual may be violated more often, since safety costs more there: with exponential tails, a
given share of violations is cheapest if each window's risk is proportional to its spread.

Announced events multiply the forecast, and make a day like another day of the week. A season does not learn
the effect of an event.

Pure functions from `poise.model.scaling.Learned` to the next `Learned`; there is no other state.
"""

from collections.abc import Iterator, Sequence
from itertools import pairwise
from math import exp, log

import msgspec

from poise.model.scaling import Announced, Learned, Outlook, ScaleRules, Season, days_in, times_in
from poise.units import DAY, HOUR

PERIODS = (HOUR, DAY, 7 * DAY)
PARTS = 1008
"""Maximum number of parts of a period: a week in 10 minutes."""

RECENCY = 0.8
"""Weight of the newest rate in the moving mean."""

SOON, LONG = 0.35, 0.03
"""Weights of the newest error in the two means that the spread averages: over about three windows, and about thirty."""

BLUR = 0.02
"""Part of the forecast added to the spread: a calm hour is no promise."""

SEASONAL = 0.15
"""Weight of the newest change in the estimate of a part of a season, once there have been some."""

PROVEN = 0.97
"""A season is used if its errors are below this part of those without it."""

COMPARING = 0.02
"""Weight of the newest window in the mean errors with and without a season."""

USUAL = 0.01
"""Weight of the newest spread in the usual spread."""

PRIOR = 300.0
"""Weight of the prior, in windows."""

SPREADS = tuple(0.25 * 1.12**step for step in range(44))
"""Steps of the histogram of how many spreads a rate exceeds the forecast by, up to 33."""

CORRECTION = 0.1
"""Decrease of the logarithm of the allowed share of violations per excess violation."""

LEAST_RISK, MOST_RISK = 0.25, 4.0
"""Limits of the factor that credit applies to the allowed share."""

DARING = 0.7
"""Exponent of the relative spread in a window's risk: 1 would be best if every tail were exponential."""

MOST_DARING = 3.0
"""Maximum uncertainty of a window, relative to the usual one."""

COLLAPSED = 0.1
"""A rate below this part of the last rate is not believed at once."""

STEEPEST = log(10)
"""Maximum logarithmic change that a season learns from one window to the next."""


def begin(rate: float, rules: ScaleRules) -> Learned:
    """Start from the first rate, with a spread whose headroom is that of the target."""
    tail = _prior()
    spread = rate * max(0.0, 1 / rules.target - 1) / _spreads(tail, PRIOR, rules.share)
    return Learned(last=rate, level=rate, soon=spread, long=spread, usual=spread, tail=tail, counted=PRIOR)


def learn(
    learned: Learned, at: int, rate: float, rules: ScaleRules, window: int, announced: Sequence[Announced] = ()
) -> Learned:
    """Learn from the window that ended at `at`."""
    outlook = next((one for one in learned.outlooks if one.at == at), None)
    learned = msgspec.structs.replace(learned, outlooks=tuple(one for one in learned.outlooks if one.at > at))
    if outlook is not None:
        learned = _judged(learned, outlook, rate, rules)
    if rate < COLLAPSED * learned.last:
        doubted = at if learned.doubted is None else learned.doubted
        if at - doubted < rules.patience:
            return msgspec.structs.replace(learned, doubted=doubted)
    error = None if outlook is None else abs(rate - outlook.rate)
    return msgspec.structs.replace(
        learned,
        last=rate,
        level=learned.level + RECENCY * (rate - learned.level),
        soon=learned.soon if error is None else learned.soon + SOON * (error - learned.soon),
        long=learned.long if error is None else learned.long + LONG * (error - learned.long),
        doubted=None,
        seasons=_seasons(learned, at, rate, window, announced),
    )


def at_rest(learned: Learned) -> Learned:
    """Reset rates after the last replica has ended: no forecast uses earlier rates, and no rate is doubted. Keep
    seasons and the history of exceeded forecasts.
    """
    return msgspec.structs.replace(learned, last=0.0, level=0.0, soon=0.0, long=0.0, usual=0.0, doubted=None)


def foresee(
    learned: Learned, ended: int, ahead: int, rules: ScaleRules, window: int, announced: Sequence[Announced] = ()
) -> Outlook:
    """Return the forecast for the window `ahead` of the last one that ended (1: the next): the highest up to and
    including it.
    """
    change, most = 0.0, 0.0
    plain = without_events(learned, ended, window, announced)
    for step in range(1, ahead + 1):
        at = ended + step * window
        days = days_in(announced, at - window, at)
        change += sum(
            _guess(season, at - days * DAY if season.period > DAY else at, window) for season in learned.seasons
        )
        most = max(most, plain * exp(change) * times_in(announced, at - window, at))
    rate = max(most, learned.level)
    spread = (learned.soon + learned.long) / 2 + BLUR * rate
    enough = rate + spread * _spreads(learned.tail, learned.counted, _risk(learned, spread, rules))
    return Outlook(ended + ahead * window, rate, spread, enough)


def without_events(learned: Learned, ended: int, window: int, announced: Sequence[Announced]) -> float:
    """Return the last rate, of the window that ended at `ended`, as it would be without the events in this window."""
    return learned.last / (times_in(announced, ended - window, ended) or 1.0)


def decided(learned: Learned, outlook: Outlook) -> Learned:
    """Record the outlook of a decision, to be judged when its window has ended."""
    others = tuple(one for one in learned.outlooks if one.at != outlook.at)
    return msgspec.structs.replace(learned, outlooks=(*others, outlook))


# --- headroom --------------------------------------------------------------------------------------------------------


def _judged(learned: Learned, outlook: Outlook, rate: float, rules: ScaleRules) -> Learned:
    tail, counted = learned.tail, learned.counted
    if outlook.spread > 0:
        exceeded = (rate - outlook.rate) / outlook.spread
        counted += 1
        if exceeded > 0:
            place = sum(exceeded > step for step in SPREADS)
            tail = (*tail[:place], tail[place] + 1, *tail[place + 1 :])
    furthest = log(MOST_RISK) / CORRECTION
    credit = learned.credit + rules.share - (rate > outlook.enough)
    return msgspec.structs.replace(
        learned,
        tail=tail,
        counted=counted,
        credit=min(furthest, max(-furthest, credit)),
        usual=learned.usual + (USUAL if learned.usual > 0 else 1.0) * (outlook.spread - learned.usual),
    )


def _risk(learned: Learned, spread: float, rules: ScaleRules) -> float:
    """Return the target share of violated windows for this one."""
    allowed = rules.share * min(MOST_RISK, max(LEAST_RISK, exp(CORRECTION * learned.credit)))
    daring = min(MOST_DARING, spread / learned.usual) ** DARING if learned.usual > 0 else 1.0
    return min(0.5, allowed * daring)


def _spreads(tail: tuple[float, ...], counted: float, risk: float) -> float:
    """Return how many spreads above the forecast are exceeded with this risk; interpolated within a step."""
    left = risk * counted
    for place in range(len(tail) - 1, -1, -1):
        if tail[place] >= left:
            upper = SPREADS[place] if place < len(SPREADS) else 2 * SPREADS[-1]
            lower = SPREADS[place - 1] if place else 0.0
            return upper - (upper - lower) * left / tail[place]
        left -= tail[place]
    return 0.0


def _prior() -> tuple[float, ...]:
    """Return the prior: half of the windows stay below the forecast, the others exceed it exponentially, by one spread
    in the mean.
    """
    beyond = [1.0, *(exp(-step) for step in SPREADS), 0.0]
    return tuple(PRIOR / 2 * (above - below) for above, below in pairwise(beyond))


# --- seasons ---------------------------------------------------------------------------------------------------------


def _seasons(learned: Learned, at: int, rate: float, window: int, announced: Sequence[Announced]) -> tuple[Season, ...]:
    """Update the seasons; each learns from what the ones before it leave unexplained."""
    seasons = learned.seasons or tuple(_blank(window))
    before, after = (times_in(announced, end - window, end) for end in (at - window, at))
    if rate <= 0 or learned.last <= 0 or before != after or days_in(announced, at - window, at):
        return seasons
    change = min(STEEPEST, max(-STEEPEST, log(rate / learned.last)))
    found = []
    for season in seasons:
        found.append(_shaped(season, _part(season, at, window), change))
        change -= _guess(season, at, window)
    return tuple(found)


def _blank(window: int) -> Iterator[Season]:
    for period in PERIODS:
        parts = min(PARTS, period // window)
        if parts > 1:
            yield Season(period, (0.0,) * parts, (0,) * parts)


def _shaped(season: Season, part: int, change: float) -> Season:
    known, seen = season.changes[part], season.seen[part]
    moved = known + max(SEASONAL, 1 / (seen + 1)) * (change - known)
    compared = season.compared + (seen > 0)
    return Season(
        season.period,
        (*season.changes[:part], moved, *season.changes[part + 1 :]),
        (*season.seen[:part], seen + 1, *season.seen[part + 1 :]),
        season.plain + COMPARING * (abs(change) - season.plain) if seen else season.plain,
        season.shaped + COMPARING * (abs(change - known) - season.shaped) if seen else season.shaped,
        compared,
    )


def _guess(season: Season, at: int, window: int) -> float:
    """Return the season's change into the window that ends at `at`; 0 until the season has reduced errors."""
    if season.compared < len(season.changes) or season.shaped >= PROVEN * season.plain:
        return 0.0
    return season.changes[_part(season, at, window)]


def _part(season: Season, at: int, window: int) -> int:
    return (at - window) % season.period * len(season.changes) // season.period


__all__ = ["at_rest", "begin", "decided", "foresee", "learn", "without_events"]
