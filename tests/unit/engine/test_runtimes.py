"""What past runs tell of how wrong the next estimate is."""

from collections.abc import Callable
from math import exp, log
from random import Random

import pytest

from poise.engine.runtimes import Learned, Run


def estimated(random: Random, count: int) -> list[Run]:
    """Runs of 20 classes, with estimates that are wrong by a factor of two for one of five."""
    typical = [6 + random.gauss(0.0, 1.0) for _ in range(20)]
    runs = []
    for _ in range(count):
        group = random.randrange(20)
        actual = typical[group] + random.gauss(0.0, 0.8)
        said = actual + random.gauss(0.0, 0.54)
        runs.append(Run(f"class-{group}", said, actual - said))
    return runs


def unsaid(random: Random, count: int) -> list[Run]:
    return [Run(run.group, 0.0, run.x + run.error) for run in estimated(random, count)]


def learned(runs: list[Run]) -> Learned:
    said = any(run.x for run in runs)
    return Learned(runs, 0.65, between=0.2) if said else Learned(runs, 1.0, between=1.0, slope=0.0)


def draws(known: Learned, run: Run, beyond: float = 0.0) -> list[float]:
    """Logarithms, in order."""
    random = Random(1)  # noqa: S311
    made = []
    for _ in range(99):
        means = known.draw(random, [run.group])
        made.append(log(known.factor(means, run.group, run.x, random.random(), beyond)))
    return sorted(made)


@pytest.mark.parametrize("make", [estimated, unsaid])
@pytest.mark.parametrize("count", [10, 50])
def test_eight_of_ten_runs_lie_within(make: Callable[[Random, int], list[Run]], count: int) -> None:
    within = 0
    for seed in range(200):
        *past, run = make(Random(seed), count + 1)  # noqa: S311
        drawn = draws(learned(past), run)
        within += drawn[9] <= run.error <= drawn[89]
    assert 0.74 <= within / 200 <= 0.86


def test_a_long_queue_is_not_foreseen_too_long() -> None:
    """What is declared long is more often declared too long: one mean factor for all would be 15 % too much or more."""
    ratios = []
    for seed in range(60):
        runs = estimated(Random(seed), 200)  # noqa: S311
        known, random = learned(runs[:80]), Random(2)  # noqa: S311
        sums = []
        for _ in range(9):
            means = known.draw(random, sorted({run.group for run in runs}))
            sums.append(
                sum(exp(run.x) * known.factor(means, run.group, run.x, random.random(), 0.0) for run in runs[80:])
            )
        ratios.append(log(sorted(sums)[4] / sum(exp(run.x + run.error) for run in runs[80:])))
    assert sum(ratios) / len(ratios) == pytest.approx(0.0, abs=0.07)


def test_runs_that_go_on_count_as_longer() -> None:
    over = [Run("a", 0.0, 0.01 * number) for number in range(5)]
    going = [Run("a", 0.0, 2.0, over=False)] * 20
    assert draws(learned(over + going), over[0])[49] > draws(learned(over), over[0])[49] + 0.25
    brief = [Run("a", 0.0, -5.0, over=False)] * 20
    assert draws(learned(over + brief), over[0])[49] == pytest.approx(draws(learned(over), over[0])[49], abs=0.05)


def test_classes_keep_their_own_spread() -> None:
    """Narrow classes stay narrow beside wide ones, and the other way round."""
    random = Random(4)  # noqa: S311
    runs = [Run(f"wide-{number % 4}", 0.0, random.gauss(0.0, 1.5)) for number in range(60)]
    runs += [Run(f"narrow-{number % 4}", 0.0, random.gauss(0.0, 0.05)) for number in range(60)]
    known = learned(runs)
    assert known.spread("narrow-1") < 0.2
    assert known.spread("wide-1") > 0.8
    assert 0.2 < known.spread("not seen yet") < 1.5


def test_what_overruns_all_that_was_seen_takes_as_long_again() -> None:
    runs = [Run("a", 0.0, 0.1 * number) for number in range(10)]
    late = draws(learned(runs), runs[0], beyond=exp(20.0))
    assert late[0] >= 20.0
    assert late[49] == pytest.approx(20.0 + log(2) / 2, abs=0.1)
