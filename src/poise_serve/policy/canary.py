"""Judges whether a canary is as good as the stable version, from the observations of both in one stage.

The policy compares errors, latency (the quantile `QUANTILE` as clients saw it) and answers. A canary fails as soon as
it is significantly worse than the rules allow, at a one-sided confidence of 99.9 % for each bound: repeated tests of
two equal versions must not end in a false alarm. It passes once it has answered `after` requests and all observations
are within the rules. If they are outside the rules, but not significantly, it has until `PATIENCE` times `after`
requests, and then fails because it was not shown to be as good.

Shares of errors and of equal answers are bounded by Wilson's interval (Wilson 1927; Brown, Cai, DasGupta 2001), a
quantile by its order statistics (the number of n observations below the quantile q is binomial, with standard
deviation sqrt(n q (1 - q)); Conover 1999, 3.2).
"""

from collections.abc import Collection, Mapping, Sequence
from math import ceil, inf, isclose, sqrt
from typing import Any

from poise.model.canary import Judgement, Stage, Tally, TrialRules
from poise.units import MILLISECOND

CONFIDENCE = 3.09
"""Standard deviations: one-sided 99.9 %."""

QUANTILE = 0.95

PATIENCE = 4

MOST_COMPARED = 10**300
"""Larger numbers are compared exactly, because larger integers overflow floating point."""

NOTHING = 2 * MILLISECOND
"""Smaller latency differences are ignored."""


def judge(
    rules: TrialRules, stage: Stage, stable: Tally, canary: Tally, *, over: bool = False, endless: bool = False
) -> Judgement:
    """Judge the canary. `over`: this stage gets no more observations. `endless`: continue for any number of
    observations, unless the canary is significantly worse.
    """
    findings = [_errors(rules, stable, canary), _latency(rules, stable, canary)]
    if stage.kind != "share":
        findings.append(_answers(rules, canary))
    reasons = tuple(text for _, _, text in findings)
    known_worse = [text for worse, _, text in findings if worse]
    if known_worse:
        return Judgement("fail", tuple(known_worse))
    if endless or (canary.answered < rules.after and not over):
        return Judgement("go on", reasons)
    unproven = [text for _, within, text in findings if not within]
    if not unproven:
        return Judgement("pass", reasons)
    if canary.answered < PATIENCE * rules.after and not over:
        return Judgement("go on", reasons)
    return Judgement("fail", tuple(f"not shown to be as good: {text}" for text in unproven))


_Finding = tuple[bool, bool, str]
"""Whether it is significantly worse than allowed, whether the observation is within the rules, and a description."""


def _errors(rules: TrialRules, stable: Tally, canary: Tally) -> _Finding:
    _, most = wilson(stable.errors, stable.answered)
    least, _ = wilson(canary.errors, canary.answered)
    mine, its = _part(canary.errors, canary.answered), _part(stable.errors, stable.answered)
    text = f"errors {mine:.2%} beside {its:.2%} ({rules.errors:.2%} more allowed)"
    return least > most + rules.errors, mine <= its + rules.errors, text


def _latency(rules: TrialRules, stable: Tally, canary: Tally) -> _Finding:
    if not stable.took or not canary.took:
        return False, not canary.answered or bool(canary.took), "no latency to compare"
    _, its, most = quantile(sorted(stable.took))
    least, mine, _ = quantile(sorted(canary.took))
    text = f"P95 {mine / MILLISECOND:.1f} ms beside {its / MILLISECOND:.1f} ms ({rules.latency:g} times allowed)"
    worse = least > rules.latency * most and least - most > NOTHING
    return worse, mine <= rules.latency * its or mine - its <= NOTHING, text


def _answers(rules: TrialRules, canary: Tally) -> _Finding:
    _, most = wilson(canary.agreed, canary.compared)
    same = _part(canary.agreed, canary.compared)
    text = f"{same:.2%} of {canary.compared} answers the same ({rules.agreement:.2%} wanted)"
    return most < rules.agreement, bool(canary.compared) and same >= rules.agreement, text


def _part(some: int, of: int) -> float:
    return some / of if of else 0.0


def wilson(some: int, of: int) -> tuple[float, float]:
    """Return the confidence interval of a share of which `some` of `of` were observed.

    >>> [round(bound, 3) for bound in wilson(5, 100)]
    [0.014, 0.165]
    """
    if not of:
        return 0.0, 1.0
    square = CONFIDENCE**2
    middle = (some + square / 2) / (of + square)
    reach = CONFIDENCE / (of + square) * sqrt(some * (of - some) / of + square / 4)
    return middle - reach if some else 0.0, middle + reach if some < of else 1.0


def quantile(ordered: Sequence[int]) -> tuple[int, int, float]:
    """Return the lower bound, the observed value and the upper bound of the quantile; with fewer than 182 observations
    the upper bound is infinite.

    >>> quantile(range(1000))
    (928, 949, 971)
    >>> quantile(range(100))
    (88, 94, inf)
    """
    count = len(ordered)
    middle, reach = count * QUANTILE, CONFIDENCE * sqrt(count * QUANTILE * (1 - QUANTILE))
    least, seen, most = (ceil(place) - 1 for place in (middle - reach, middle, middle + reach))
    return ordered[max(least, 0)], ordered[seen], ordered[most] if most < count else inf


def agrees(one: Any, other: Any, close: float) -> bool:
    """Whether two JSON values are equal: numbers within the relative tolerance `close`, all else exactly.

    >>> agrees({"p": [0.1, 0.9]}, {"p": [0.10001, 0.9]}, 1e-3), agrees([1], [1, 2], 1e-3)
    (True, False)
    """
    if _is_number(one) and _is_number(other):
        if max(abs(one), abs(other)) > MOST_COMPARED:
            return bool(one == other)
        return isclose(one, other, rel_tol=close, abs_tol=close * 1e-3)
    if isinstance(one, Mapping) and isinstance(other, Mapping):
        return _same_keys(one, other) and all(agrees(one[key], other[key], close) for key in one)
    if isinstance(one, list) and isinstance(other, list):
        return len(one) == len(other) and all(agrees(a, b, close) for a, b in zip(one, other, strict=True))
    return type(one) is type(other) and bool(one == other)


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _same_keys(one: Collection[Any], other: Collection[Any]) -> bool:
    return len(one) == len(other) and set(one) == set(other)


__all__ = ["agrees", "judge", "quantile", "wilson"]
