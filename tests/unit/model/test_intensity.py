"""The intensity of electricity by hour: means, and the best time to start."""

from random import Random
from typing import Any

import pytest

from poise.errors import SpecError
from poise.model.intensity import USUAL_RUN, Intensity, compile_intensity, started_best
from poise.model.spec import compile_spec
from poise.units import HOUR, SECOND

NIGHT = Intensity(hours=(*[0.2] * 6, *[0.4] * 18))
"""Clean from midnight to six."""

MONDAY = 4 * 24 * 3600
"""The first Monday after the beginning of 1970, a Thursday."""


def test_means_are_weighted_by_time() -> None:
    assert NIGHT.mean(MONDAY, 24 * 3600) == pytest.approx(0.35)
    assert NIGHT.mean(MONDAY + 5.5 * 3600, 3600) == pytest.approx(0.3)
    week = Intensity(hours=(1.0, *[0.0] * 167))
    assert week.mean(MONDAY, 3600) == pytest.approx(1.0)
    assert week.mean(MONDAY + 7 * 86400, 7200) == pytest.approx(0.5)
    assert week.mean(MONDAY + 86400, 86400) == 0


def test_work_starts_in_the_cleanest_time_that_it_may_wait_for() -> None:
    evening = MONDAY + 20 * 3600
    start = NIGHT.best_start(evening, 12 * 3600, 2 * 3600)
    assert tuple(start) == pytest.approx((4 * 3600, 0.2, 0.4))
    assert NIGHT.best_start(evening, 3 * 3600, 600).after == 0, "no clean hour is near enough"
    partly = NIGHT.best_start(evening, 3 * 3600, 2 * 3600)
    assert tuple(partly) == pytest.approx((3 * 3600, 0.3, 0.4))
    assert NIGHT.best_start(MONDAY, 12 * 3600, 3600).after == 0, "now is clean"


def test_no_start_is_better_than_the_best() -> None:
    random = Random(1)  # noqa: S311
    for _ in range(200):
        of = Intensity(hours=tuple(random.uniform(0.1, 0.6) for _ in range(random.choice((24, 168)))))
        now, within, run = random.uniform(0, 1e7), random.uniform(0, 1e5), random.uniform(60, 1e5)
        start = of.best_start(now, within, run)
        assert 0 <= start.after <= within
        tried = min(of.mean(now + random.uniform(0, within), run) for _ in range(50))
        assert start.value <= tried + 0.03 * start.now + 1e-9


def units(**fields: Any) -> Any:
    return compile_spec({"run": "x", **fields}, wall=0.0).units


def test_a_deadline_is_kept() -> None:
    evening = MONDAY + 20 * 3600.0
    made, start = started_best(units(expect="2h"), 12 * HOUR, NIGHT, evening, lambda kind: USUAL_RUN)
    assert (made[0].begin, start.after) == (4 * HOUR, 4 * 3600)
    made, _ = started_best(units(expect="2h", deadline="5h"), 12 * HOUR, NIGHT, evening, lambda kind: USUAL_RUN)
    assert made[0].begin == 3 * HOUR, "it begins so that it ends in time"
    made, _ = started_best(units(expect="2h", deadline="1h"), 12 * HOUR, NIGHT, evening, lambda kind: USUAL_RUN)
    assert made[0].begin == 0
    made, _ = started_best(units(begin="1h"), 12 * HOUR, NIGHT, evening, lambda kind: 30 * 60 * SECOND)
    assert made[0].begin == 4 * HOUR


def test_a_file_is_refused_with_its_field() -> None:
    hours = [0.3] * 24
    for wrong, field in (
        ({"hours": hours[1:]}, "hours"),
        ({"hours": [*hours[1:], 11]}, "hours[23]"),
        ({"kind": "job"}, "kind"),
        ({"unit": "g/kWh"}, "unit"),
    ):
        with pytest.raises(SpecError) as caught:
            compile_intensity({"kind": "intensity", "hours": hours} | wrong)
        assert [record.field for record in caught.value.record.all()] == [field]
