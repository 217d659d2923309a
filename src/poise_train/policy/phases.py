"""Detects the phase of a training run, initial, convergence or fine-tuning, from its loss and its gradients.

It reads the loss curve as a person would, but online. The curve is stored as at most 64 means of equal numbers of
steps, which are merged in pairs when there are more. So it covers a run of any length, and the rules are relative to
its height and its age.

*Initial* ends after the knee: the point furthest below the straight line from the first loss to the latest, once the
slope after it is a small fraction of the slope before it (Satopaa and others, "Finding a Kneedle in a Haystack", 2011,
use the same point). *Convergence* ends when little decrease is left. The recent loss is fitted as c + b/spent over the
later half of the current segment, where `spent` is the sum of the learning rates; the decrease until the end of the run
follows from b and the recent decay of the rate. If the end is unknown, the run is assumed to be half done, which is the
median for a random time (Gott, "Implications of the Copernican Principle", 1993). A drop of the rate starts a new
segment. A lasting jump of the loss starts a new run, *initial* again.

The variance of the last ten gradient norms is a second signal. Absolute thresholds of 0.1 (above: initial) and 0.01
(below: fine-tuning) have no common meaning for all losses and models. So they are fractions of the highest variance of
the run itself: above the first, fine-tuning requires less remaining decrease, below the second it allows more.

Phases do not oscillate: they follow each other, and only a jump of the loss leads back.
"""

from collections.abc import Sequence
from math import exp, log, pi, sqrt
from statistics import median

import msgspec

from poise.model.training import Phase
from poise.policy.protocol import Policy
from poise_train.model.phases import Pace, PhaseMemory, PhaseRules, PhaseVerdict, PhaseView, Point, Slope, Step

PhasePolicy = Policy[PhaseView, PhaseVerdict]

POINTS = 64
"""Maximum number of means stored for a curve."""

FIRST = 3
"""The initial loss is the median of this number of losses, which ignores one outlier."""

LOOK = 5
"""The phase is evaluated every this many sampled steps."""

CLEAR = 4.0
"""A decrease is clear above this multiple of the noise of the loss."""

JITTER = 0.05
"""Weight of the latest change in the noise estimate."""

SHORTEST = 0.25
"""The remaining steps count as at least this fraction of those so far; otherwise the end would always look flat."""

EVEN = 0.01
"""A total decay of the rate below this counts as constant."""

HUGE = 1e100
"""Losses and norms from here on count as infinite, and are ignored."""

SPIKE = 5.0
"""Losses are clipped to this multiple of the usual change around the recent median."""

SURE = 0.7
"""Evidence, from 0 to 1, required for the next phase."""

FAR = 4.0
"""A change counts as at most this multiple of the usual one in the noise estimate."""


class Phases:
    name = "phases"

    def decide(self, view: PhaseView, /) -> PhaseVerdict:
        memory = view.memory
        changes: list[tuple[int, Phase]] = []
        for step in view.steps:
            if step.step <= memory.seen or not abs(step.loss) < HUGE:
                continue  # repeated after a restart, or not a usable loss
            before = memory.phase
            memory = _judged(_seen(memory, step, view.rules), view)
            if memory.phase != before:
                changes.append((step.step, memory.phase))
        pace = pace_of(memory.phase, view.rules)
        return PhaseVerdict(phase=memory.phase, pace=pace, memory=memory, changes=tuple(changes))


def pace_of(phase: Phase, rules: PhaseRules) -> Pace:
    """Return the rules for this phase."""
    return {"convergence": rules.convergence, "fine-tuning": rules.tuning}.get(phase, rules.initial)


def is_due(step: int, memory: PhaseMemory, rules: PhaseRules) -> bool:
    """Return whether to sample this step."""
    return step % pace_of(memory.phase, rules).look == 0


# --- memory ----------------------------------------------------------------------------------------------------------


def _seen(memory: PhaseMemory, step: Step, rules: PhaseRules) -> PhaseMemory:
    if not memory.start:
        memory = msgspec.structs.replace(memory, born=step.step, slope=Slope(step.step), changed=step.step)
    norms, loudest = memory.norms, memory.loudest
    if 0 <= step.norm < HUGE:
        norms = (*norms, step.norm)[-rules.window :]
        loudest = max(loudest, _variance(norms)) if len(norms) == rules.window else loudest
    dropped, warms_up = step.rate < rules.dropped * memory.rate, _warms_up(memory, step)
    spent = memory.spent + _rate(step.rate) * (step.step - memory.seen if memory.start else 1)
    recent = (*memory.recent, step.loss)[-LOOK:]
    width, curve = _drawn(memory, step, spent, _clipped(step.loss, recent, memory))
    return msgspec.structs.replace(
        memory,
        seen=step.step,
        count=memory.count + 1,
        width=width,
        curve=curve,
        start=memory.start if len(memory.start) == FIRST else (*memory.start, step.loss),
        recent=recent,
        norms=norms,
        loudest=loudest,
        jitter=_jitter(memory, step.loss),
        rate=step.rate,
        peak=max(memory.peak, step.rate),
        spent=spent,
        judged=step.step if warms_up else memory.judged,
        evidence=0.0 if warms_up else memory.evidence,
        slope=Slope(step.step, memory.spent) if dropped else memory.slope,
    )


def _warms_up(memory: PhaseMemory, step: Step) -> bool:
    """Whether the learning rate is at a new maximum: during warm-up, a flat loss is no sign of convergence."""
    return memory.phase == "initial" and step.rate > memory.peak >= 0


def _jitter(memory: PhaseMemory, loss: float) -> float:
    """Update the noise estimate. Limit the effect of an outlier, which may be a spike or a jump of the loss."""
    if not memory.recent:
        return 0.0
    change, usual = abs(loss - memory.recent[-1]), memory.jitter
    return usual + JITTER * (min(change, FAR * usual) - usual) if len(memory.start) == FIRST else max(usual, change)


def _clipped(loss: float, recent: Sequence[float], memory: PhaseMemory) -> float:
    """Clip a spike to the range of the noise. A lasting change passes once the median of recent losses follows it."""
    if len(memory.start) < FIRST:
        return loss
    level, reach = median(recent), SPIKE * memory.jitter
    return min(level + reach, max(level - reach, loss))


def _drawn(memory: PhaseMemory, step: Step, spent: float, loss: float) -> tuple[int, tuple[Point, ...]]:
    at, width, curve = step.step - memory.born + 0.5, memory.width, memory.curve
    if curve and curve[-1].at // width == at // width:
        return width, (*curve[:-1], _joined(curve[-1], Point(at, loss, spent, 1)))
    curve = (*curve, Point(at, loss, spent, 1))
    while len(curve) > POINTS:
        width *= 2
        joined: list[Point] = []
        for point in curve:
            if joined and joined[-1].at // width == point.at // width:
                joined[-1] = _joined(joined[-1], point)
            else:
                joined.append(point)
        curve = tuple(joined)
    return width, curve


def _joined(one: Point, other: Point) -> Point:
    count = one.count + other.count
    share = other.count / count
    return Point(
        one.at + share * (other.at - one.at),
        one.loss + share * (other.loss - one.loss),
        one.spent + share * (other.spent - one.spent),
        count,
    )


# --- judgement -------------------------------------------------------------------------------------------------------


def _judged(memory: PhaseMemory, view: PhaseView) -> PhaseMemory:
    age = memory.seen - memory.born + 1
    if memory.count % LOOK or age < 2 * view.rules.least:
        return memory
    if _leapt(memory, view.rules):
        return _begun_again(memory)
    speaks = {"initial": _behind_knee, "convergence": _little_left}.get(memory.phase)
    if speaks is None:
        return memory
    passed = memory.seen - memory.judged if memory.judged >= memory.born else 0
    weight = min(1.0, passed / max(view.rules.least, view.rules.hold * age))
    evidence = memory.evidence + weight * (speaks(memory, view) - memory.evidence)
    if evidence < SURE:
        return msgspec.structs.replace(memory, evidence=evidence, judged=memory.seen)
    phase: Phase = "convergence" if memory.phase == "initial" else "fine-tuning"
    return msgspec.structs.replace(memory, phase=phase, changed=memory.seen, judged=memory.seen, evidence=0.0)


def _begun_again(memory: PhaseMemory) -> PhaseMemory:
    """Begin a new run with the losses since the jump."""
    since = memory.seen + 1 - len(memory.recent)
    return PhaseMemory(
        born=since,
        seen=memory.seen,
        changed=memory.seen,
        start=memory.recent[:FIRST],
        recent=memory.recent,
        rate=memory.rate,
        peak=memory.rate,
        slope=Slope(since),
        spent=len(memory.recent) * _rate(memory.rate),
    )


def _leapt(memory: PhaseMemory, rules: PhaseRules) -> bool:
    if memory.phase == "initial":
        return False
    start, lowest = median(memory.start), _lowest(memory)
    return median(memory.recent) > lowest + max(rules.lost * (start - lowest), CLEAR * _noise(memory))


def _behind_knee(memory: PhaseMemory, view: PhaseView) -> bool:
    start, end = median(memory.start), memory.curve[-2]
    if start - end.loss < CLEAR * _noise(memory):
        return False
    chord = (start - end.loss) / end.at
    knee = max(memory.curve[:-2], key=lambda point: start - chord * point.at - point.loss)
    if start - knee.loss <= 0 or end.at - knee.at < view.rules.least:
        return False
    return (knee.loss - end.loss) / (end.at - knee.at) < view.rules.flatter * (start - knee.loss) / knee.at


def _little_left(memory: PhaseMemory, view: PhaseView) -> bool:
    """Return whether little decrease is left, by a least-squares fit of c + b/spent, where `spent` is the learning rate
    summed over the steps.
    """
    rules, slope = view.rules, memory.slope
    if memory.seen - memory.changed < rules.rest * (memory.changed - memory.born):
        return False
    spent = memory.spent - slope.spent
    late = [point for point in memory.curve if point.spent - slope.spent >= spent / 2]
    if len(late) < 4 or late[0].spent <= slope.spent or memory.seen + 1 - slope.step < 2 * rules.least:
        return False
    inverse = [1 / (point.spent - slope.spent) for point in late]
    mean, level = _mean(inverse, late), _mean([point.loss for point in late], late)
    square = sum(point.count * (x - mean) ** 2 for x, point in zip(inverse, late, strict=True))
    if square <= 0:  # the rate is zero
        return False
    product = sum(point.count * (x - mean) * (point.loss - level) for x, point in zip(inverse, late, strict=True))
    steep = product / square + rules.doubt * _noise(memory) / sqrt(square)
    left = steep * (1 / spent - 1 / (spent + _to_spend(memory, view, late)))
    return left < rules.left * _lean(memory, rules) * (median(memory.start) - level)


def _to_spend(memory: PhaseMemory, view: PhaseView, late: Sequence[Point]) -> float:
    """Return the sum of the learning rate over the remaining steps, if the rate keeps its recent decay per step."""
    age = memory.seen + 1 - memory.slope.step
    steps = max(view.total - memory.seen - 1, SHORTEST * age) if view.total else float(age)
    first, middle = late[0], late[len(late) // 2]
    early, now = (middle.spent - first.spent) / (middle.at - first.at), _rate(memory.rate)
    falls = (
        log(early / now) / (memory.seen - memory.born - (first.at + middle.at) / 2) if early > 0 and now > 0 else 0.0
    )
    return now * (1 - exp(-falls * steps)) / falls if falls * steps > EVEN else now * steps


def _lean(memory: PhaseMemory, rules: PhaseRules) -> float:
    """Return by how much the gradients relax the limit on the remaining decrease of the loss."""
    if len(memory.norms) < rules.window or memory.loudest <= 0:
        return 1.0
    variance = _variance(memory.norms)
    if variance > rules.loud * memory.loudest:
        return 1 / rules.lean
    return rules.lean if variance < rules.quiet * memory.loudest else 1.0


def _mean(values: Sequence[float], points: Sequence[Point]) -> float:
    return sum(value * point.count for value, point in zip(values, points, strict=True)) / sum(
        point.count for point in points
    )


def _lowest(memory: PhaseMemory) -> float:
    return min(point.loss for point in memory.curve[:-1])


def _noise(memory: PhaseMemory) -> float:
    """Standard deviation of the loss: two normal samples differ by 2/√π of it in the mean."""
    return memory.jitter * sqrt(pi) / 2


def _variance(values: Sequence[float]) -> float:
    mean = sum(values) / len(values)
    return sum((value - mean) ** 2 for value in values) / len(values)


def _rate(rate: float) -> float:
    """Return the learning rate, or 1 if it is unknown, so that all steps count alike."""
    return rate if rate >= 0 else 1.0


__all__ = ["PhasePolicy", "Phases", "is_due", "pace_of"]
