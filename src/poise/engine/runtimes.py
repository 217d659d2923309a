"""The error of estimated run times, learned from the runs that have ended: a random-effects model of its logarithm.

    log(actual / foreseen) = level + slope * x + effect of its group + spread of its group * noise

`x` is the logarithm of the estimate, centred. The slope matters where users declare run times: long declared times are
more often too long, so that one mean factor for all makes every forecast of a queue too long. Groups are classes of
work. Groups with few runs borrow from the others (Laird and Ware, 1982): effects are normal around 0, and spreads are
shrunk towards the overall spread. Noise is empirical, divided by the spread of its group.

The level, the slope and the effects are uncertain, and an error in them is common to all work. So a future draws them
once (`Learned.draw`), and then the noise of each run. Unfinished runs count as longer than they have run so far (a
Tobit model, fitted by expectation maximisation; Dempster, Laird and Rubin, 1977).
"""

from collections.abc import Iterable, Mapping, Sequence
from math import exp, log, sqrt
from random import Random
from statistics import NormalDist
from typing import NamedTuple

from poise.engine.noise import SHAPE, Errors, Seen, Unseen

ROUNDS = 8
"""Rounds of expectation maximisation; further rounds change spreads by less than 1 %."""

SLOPE = 0.25
"""Standard deviation of the slope before any run is seen."""

PULL = 3.0
"""Weight, in runs, of the overall spread in the spread of a group, where there are too few groups to estimate it."""

LEAST_PULL, MOST_PULL = 1.0, 50.0
ENOUGH_GROUPS = 4
"""Minimum number of groups with three runs or more for estimating how much their spreads differ."""

LEAST_SPREAD = 0.01

_NORMAL = NormalDist()


class Run(NamedTuple):
    """One run: its group, the logarithm `x` of the estimate, and the logarithm `error` of actual over estimated time.
    For a run that is not `over`, `error` is a lower limit.
    """

    group: str
    x: float
    error: float
    over: bool = True


class _Group:
    """The runs of a group, and the estimates for it."""

    def __init__(self, runs: Sequence[Run]) -> None:
        self.runs = runs
        self.errors = [run.error for run in runs]
        self.extra = [0.0] * len(runs)  # variance of unfinished runs
        self.over = sum(run.over for run in runs)
        self.free = len(runs) - 1.0
        self.squares = 0.0
        self.variance = 1.0
        self.sum_x = self.sum_xx = 0.0
        self.mean, self.uncertain = 0.0, 1.0


class Means(NamedTuple):
    """One draw of the uncertain parameters: the expected logarithmic error of a run."""

    level: float
    slope: float
    effects: Mapping[str, float]


class Learned:
    """Forecasts runs from those of several groups. Needs at least one run that has ended."""

    def __init__(self, runs: Iterable[Run], usual: float, *, between: float, slope: float = SLOPE) -> None:
        by_group: dict[str, list[Run]] = {}
        for run in runs:
            by_group.setdefault(run.group, []).append(run)
        self._groups = {name: _Group(of) for name, of in sorted(by_group.items())}
        count = sum(len(group.runs) for group in self._groups.values())
        self.count = sum(group.over for group in self._groups.values())
        self._centre = sum(run.x for of in by_group.values() for run in of) / count
        self._prior = 1 / slope**2 if slope else 1e9
        self._usual = usual**2
        self._all = usual**2
        self._between = self._usual_between = between**2
        for group in self._groups.values():
            group.variance = self._all
            group.sum_x = sum(run.x - self._centre for run in group.runs)
            group.sum_xx = sum((run.x - self._centre) ** 2 for run in group.runs)
        for _ in range(ROUNDS):
            self._fit_means()
            self._fit_spreads()
        self._fit_means()
        self.noise = Seen(*self._noise(), usual=0.8)

    # --- forecasts ---

    def spread(self, group: str) -> float:
        """Return the standard deviation of a run's logarithm around its mean."""
        known = self._groups.get(group)
        return sqrt(known.variance if known is not None else self._all)

    def uncertainty(self, group: str, x: float) -> float:
        """Return the total variance of the logarithm of the next run."""
        known, at = self._groups.get(group), x - self._centre
        (aa, ab), (_, bb) = self._covariance
        if known is None:
            return self._all + self._between + aa + 2 * at * ab + at * at * bb
        # the effect of a group with runs offsets an error of the level: only the rest of it counts
        kept = known.uncertain / self._between
        tilt = at - (1 - kept) * known.sum_x / len(known.runs)
        return known.variance + known.uncertain + kept * kept * aa + 2 * kept * tilt * ab + tilt * tilt * bb

    def draw(self, random: Random, groups: Iterable[str]) -> Means:
        """Draw the level, the slope, and the effects of these groups."""
        (aa, ab), (_, bb) = self._covariance
        first, second = random.gauss(0.0, 1.0), random.gauss(0.0, 1.0)
        root = sqrt(aa)
        level = self._level + root * first
        slope = self._slope + ab / root * first + sqrt(max(0.0, bb - ab * ab / aa)) * second
        effects = {}
        for name in groups:
            known, own = self._groups.get(name), random.gauss(0.0, 1.0)
            if known is None:
                effects[name] = sqrt(self._between) * own
            else:
                effects[name] = self._effect(known, level, slope) + sqrt(known.uncertain) * own
        return Means(level, slope, effects)

    def factor(self, means: Means, group: str, x: float, chance: float, beyond: float) -> float:
        """Return actual over estimated time at the quantile `chance` of the runs with more than `beyond`."""
        mean = means.level + means.slope * (x - self._centre) + means.effects[group]
        return _factor(mean, self.spread(group), self.noise, chance, beyond)

    def knows(self, group: str) -> bool:
        """Return whether a run of the group is over."""
        known = self._groups.get(group)
        return known is not None and known.over > 0

    # --- estimation ---

    def _effect(self, group: _Group, level: float, slope: float) -> float:
        rest = sum(group.errors) - len(group.runs) * level - slope * group.sum_x
        return rest / group.variance * group.uncertain

    def _fit_means(self) -> None:
        """Fit level and slope by generalised least squares, and the effects given these."""
        a = b = ab = ya = yb = 0.0
        b = self._prior
        for group in self._groups.values():
            count, weight = len(group.runs), 1 / group.variance
            shared = self._between / (group.variance + count * self._between)
            total = sum(group.errors)
            product = sum(error * (run.x - self._centre) for error, run in zip(group.errors, group.runs, strict=True))
            a += weight * (count - shared * count * count)
            ab += weight * group.sum_x * (1 - shared * count)
            b += weight * (group.sum_xx - shared * group.sum_x**2)
            ya += weight * total * (1 - shared * count)
            yb += weight * (product - shared * group.sum_x * total)
            group.uncertain = 1 / (1 / self._between + count * weight)
        determinant = a * b - ab * ab
        self._level, self._slope = (b * ya - ab * yb) / determinant, (a * yb - ab * ya) / determinant
        self._covariance = ((b / determinant, -ab / determinant), (-ab / determinant, a / determinant))
        for group in self._groups.values():
            group.mean = self._effect(group, self._level, self._slope)

    def _fit_spreads(self) -> None:
        """Update the unfinished runs, then the spreads within groups, overall, and between groups."""
        for group in self._groups.values():
            for place, run in enumerate(group.runs):
                if not run.over:
                    group.errors[place], group.extra[place] = _at_least(
                        run.error, self._expected(group, run), sqrt(group.variance + group.uncertain)
                    )
        for group in self._groups.values():
            group.squares = self._squares(group)
        squares = sum(group.squares for group in self._groups.values())
        free = sum(group.free for group in self._groups.values())
        if free >= PULL:
            self._all = max(LEAST_SPREAD**2, squares / free)
        else:
            self._all = (squares + PULL * self._usual) / (free + PULL)
        self._pull, self._typical = self._pull_of_all()
        for group in self._groups.values():
            pulled = (group.squares + self._pull * self._typical) / (group.free + self._pull)
            group.variance = max(LEAST_SPREAD**2, pulled)
        effects = sum(group.mean**2 + group.uncertain for group in self._groups.values())
        self._between = max(LEAST_SPREAD**2, (effects + self._usual_between) / (len(self._groups) + 1))

    def _pull_of_all(self) -> tuple[float, float]:
        """Return the weight, in runs, of the typical variance in that of a group, and that variance. The more the
        spreads of groups differ beyond chance, the lower the weight (Smyth, 2004, section 6.2; digamma and trigamma by
        their series).
        """
        logs, chance = [], 0.0
        for group in self._groups.values():
            half = group.free / 2
            if half >= 1:
                logs.append(log(max(LEAST_SPREAD**2, group.squares / group.free)) + 1 / (2 * half) + 1 / (12 * half**2))
                chance += 1 / half + 1 / (2 * half**2)
        if len(logs) < ENOUGH_GROUPS:
            return PULL, self._all
        mean = sum(logs) / len(logs)
        differ = (sum((each - mean) ** 2 for each in logs) - chance * (1 - 1 / len(logs))) / (len(logs) - 1)
        pull = MOST_PULL
        if differ > 0:
            pull = min(MOST_PULL, max(LEAST_PULL, (1 + sqrt(1 + 2 * differ)) / differ))
        return pull, exp(mean - 1 / pull - 1 / (3 * pull**2))

    def _squares(self, group: _Group) -> float:
        """Return the squared deviations from the mean of the group's own runs."""
        rests = [
            error - self._slope * (run.x - self._centre) for error, run in zip(group.errors, group.runs, strict=True)
        ]
        mean = sum(rests) / len(rests)
        return sum((rest - mean) ** 2 for rest in rests) + sum(group.extra) * (1 - 1 / len(rests))

    def _expected(self, group: _Group, run: Run) -> float:
        return self._level + self._slope * (run.x - self._centre) + group.mean

    def _noise(self) -> tuple[list[float], list[float]]:
        """Return the factors by which finished runs differed from their expectation, where one spread is a factor of e;
        and the lower limits of these factors for unfinished runs.
        """
        over, going = [], []
        for group in self._groups.values():
            counts = len(group.runs)
            kept = max(0.25, 1 - group.uncertain / group.variance)
            for run, error in zip(group.runs, group.errors, strict=True):
                off = error - self._expected(group, run)
                if not run.over:
                    going.append(
                        exp(max(-30.0, min(30.0, (run.error - self._expected(group, run)) / sqrt(group.variance))))
                    )
                    continue
                # divide by the spread of the other runs alone: otherwise no run would be far off
                others = max(0.0, group.squares - off**2 * counts / max(1, counts - 1)) if counts > 1 else 0.0
                variance = (others + self._pull * self._typical) / (max(0.0, group.free - 1) + self._pull)
                spread = sqrt(kept * max(LEAST_SPREAD**2, variance))
                over.append(exp(max(-30.0, min(30.0, off / spread))))
        return over, going


class Unlearned:
    """The same interface where only the mean deviation of an estimate is known. Half of the variance is common to all
    work.
    """

    def __init__(self, deviation: float) -> None:
        self.noise = Unseen(deviation)
        self._common = sqrt(0.5) * self.noise.sigma

    def draw(self, random: Random, groups: Iterable[str]) -> Means:
        return Means(self._common * random.gauss(0.0, 1.0), 0.0, {})

    def factor(self, means: Means, group: str, x: float, chance: float, beyond: float) -> float:
        return _factor(means.level, sqrt(0.5), self.noise, chance, beyond)


def _factor(mean: float, spread: float, noise: Errors, chance: float, beyond: float) -> float:
    if beyond <= 0:
        return exp(mean + spread * log(noise.draw(chance, 0.0)))
    off = exp(max(-50.0, min(50.0, (log(beyond) - mean) / spread)))
    if off > noise.ends:
        return beyond * exp(-SHAPE * log(1 - chance))
    return exp(mean + spread * log(noise.draw(chance, off)))


def _at_least(bound: float, mean: float, spread: float) -> tuple[float, float]:
    """Return mean and variance of a normal variable that is known to exceed a lower limit."""
    at = (bound - mean) / spread
    if at > 6:
        return bound + spread / at, (spread / at) ** 2
    hazard = _NORMAL.pdf(at) / (1 - _NORMAL.cdf(at))
    return mean + spread * hazard, spread**2 * max(0.0, 1 + at * hazard - hazard**2)
