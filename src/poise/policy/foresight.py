"""How much will come in the next window, and how much more to provide for so that it is rarely too little.

*Foreseen* is the larger of a moving mean and the last rate, changed as it usually changes at this point of the hour,
the day and the week. A season counts only where it has proved better on past windows than doing without. *Headroom* is
so many spreads: a spread is how far forecasts were off lately and in the long run (as round-trip times are in TCP:
Jacobson, 1988), and how many spreads it takes is read off how often rates exceeded past forecasts by how many. That is
an empirical quantile, as in conformal prediction (Gibbs and Candès, 2021), begun with an exponential prior.

Two things move the quantile. `credit`: who has been violated less than is allowed may be violated more, and the other
way round. And a window less certain than usual may be violated more often, as to be safe there costs more: where tails
are exponential, the same share of violations is cheapest when the risk of each is in proportion to its spread.

Learned from `poise.model.scaling.Learned` to the next `Learned`; nothing is kept here.
"""

from collections.abc import Iterator
from itertools import pairwise
from math import exp, log

import msgspec

from poise.model.scaling import Learned, Outlook, ScaleRules, Season
from poise.units import DAY, HOUR

PERIODS = (HOUR, DAY, 7 * DAY)
PARTS = 1008
"""At most so many parts of a period are told apart: a week in 10 minutes."""

RECENCY = 0.8
"""Weight of the newest rate in the moving mean."""

SOON, LONG = 0.35, 0.03
"""Weights of the newest error in the two means whose mean is the spread: some three windows, and some thirty."""

BLUR = 0.02
"""Of the foreseen rate, added to the spread: a calm hour is no promise."""

SEASONAL = 0.15
"""Weight of the newest change in what a part of a season is known for, once there have been some."""

PROVEN = 0.97
"""A season is used if errors with it are below so much of those without."""

COMPARING = 0.02
"""Weight of the newest window in the mean errors with and without a season."""

USUAL = 0.01
"""Weight of the newest spread in what is usual."""

PRIOR = 300.0
"""How many windows the prior weighs."""

SPREADS = tuple(0.25 * 1.12**step for step in range(44))
"""By how many spreads a rate exceeds the forecast is told apart in these steps, up to 33."""

CORRECTION = 0.1
"""A violated window too many makes the next so much rarer, in the logarithm of their share."""

LEAST_RISK, MOST_RISK = 0.25, 4.0
"""Bounds of what credit makes of the allowed share."""

DARING = 0.7
"""Exponent of the spread over the usual one in the risk of a window: 1 would be best if every tail were exponential."""

MOST_DARING = 3.0
"""A window is taken for at most so many times as uncertain as usual."""

COLLAPSED = 0.1
"""Below so much of the last rate, a rate is not believed at once."""

STEEPEST = log(10)
"""No season tells of a steeper change from one window to the next."""


def begin(rate: float, rules: ScaleRules) -> Learned:
    """From the first rate: the spread is such that its headroom is the one that the target asks for."""
    tail = _prior()
    spread = rate * max(0.0, 1 / rules.target - 1) / _spreads(tail, PRIOR, rules.share)
    return Learned(last=rate, level=rate, soon=spread, long=spread, usual=spread, tail=tail, counted=PRIOR)


def learn(learned: Learned, at: int, rate: float, rules: ScaleRules, window: int) -> Learned:
    """What the window that ended at `at` teaches."""
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
        seasons=_seasons(learned, at, rate, window),
    )


def at_rest(learned: Learned) -> Learned:
    """After the last replica has gone: nothing is foreseen from the rates before, and no rate is doubted any longer.
    Seasons, and how often forecasts were exceeded, are kept.
    """
    return msgspec.structs.replace(learned, last=0.0, level=0.0, soon=0.0, long=0.0, usual=0.0, doubted=None)


def foresee(learned: Learned, ended: int, ahead: int, rules: ScaleRules, window: int) -> Outlook:
    """Of the window `ahead` of the one that ended last (1: the next), with all between: the most that is foreseen."""
    change, most = 0.0, 0.0
    for step in range(1, ahead + 1):
        change += sum(_guess(season, ended + step * window, window) for season in learned.seasons)
        most = max(most, learned.last * exp(change))
    rate = max(most, learned.level)
    spread = (learned.soon + learned.long) / 2 + BLUR * rate
    enough = rate + spread * _spreads(learned.tail, learned.counted, _risk(learned, spread, rules))
    return Outlook(ended + ahead * window, rate, spread, enough)


def decided(learned: Learned, outlook: Outlook) -> Learned:
    """What was decided on is remembered, to be judged when that window has ended."""
    others = tuple(one for one in learned.outlooks if one.at != outlook.at)
    return msgspec.structs.replace(learned, outlooks=(*others, outlook))


# --- how often it was too little -------------------------------------------------------------------------------------


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
    """The share of violated windows to aim at in this one."""
    allowed = rules.share * min(MOST_RISK, max(LEAST_RISK, exp(CORRECTION * learned.credit)))
    daring = min(MOST_DARING, spread / learned.usual) ** DARING if learned.usual > 0 else 1.0
    return min(0.5, allowed * daring)


def _spreads(tail: tuple[float, ...], counted: float, risk: float) -> float:
    """How many spreads above the forecast are exceeded with this risk: interpolated within a step."""
    left = risk * counted
    for place in range(len(tail) - 1, -1, -1):
        if tail[place] >= left:
            upper = SPREADS[place] if place < len(SPREADS) else 2 * SPREADS[-1]
            lower = SPREADS[place - 1] if place else 0.0
            return upper - (upper - lower) * left / tail[place]
        left -= tail[place]
    return 0.0


def _prior() -> tuple[float, ...]:
    """Half of the windows stay below the forecast, the others exceed it exponentially, by one spread in the mean."""
    beyond = [1.0, *(exp(-step) for step in SPREADS), 0.0]
    return tuple(PRIOR / 2 * (above - below) for above, below in pairwise(beyond))


# --- seasons ---------------------------------------------------------------------------------------------------------


def _seasons(learned: Learned, at: int, rate: float, window: int) -> tuple[Season, ...]:
    """Each learns from what the ones before it leave unexplained."""
    seasons = learned.seasons or tuple(_blank(window))
    if rate <= 0 or learned.last <= 0:
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
    """The change into the window that ends at `at`; none as long as the season has not proved its worth."""
    if season.compared < len(season.changes) or season.shaped >= PROVEN * season.plain:
        return 0.0
    return season.changes[_part(season, at, window)]


def _part(season: Season, at: int, window: int) -> int:
    return (at - window) % season.period * len(season.changes) // season.period


__all__ = ["at_rest", "begin", "decided", "foresee", "learn"]
