"""The intensity of electricity by hour: means, and the best time to start."""

from math import isnan
from random import Random
from typing import Any

import pytest

from poise.errors import SpecError
from poise.model.intensity import USUAL_RUN, Intensity, Start, compile_intensity, started_well
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


def test_work_starts_in_a_clean_time_that_it_may_wait_for() -> None:
    evening = MONDAY + 20 * 3600
    starts = [NIGHT.good_start(evening, 12 * 3600, 2 * 3600, place / 10) for place in range(10)]
    assert [start.now for start in starts] == pytest.approx([0.4] * 10)
    assert all(start.value <= 0.4 - 0.6 * 0.2 + 1e-9 for start in starts)
    assert len({start.after for start in starts}) == 10, "not all at once"
    assert 3 * 3600 < min(start.after for start in starts) < max(start.after for start in starts) < 10 * 3600
    assert NIGHT.good_start(evening, 3 * 3600, 600, 0.0).after == 0, "no clean hour is near enough"
    partly = NIGHT.good_start(evening, 3 * 3600, 2 * 3600, 1.0)
    assert tuple(partly) == pytest.approx((3 * 3600, 0.3, 0.4))
    assert NIGHT.good_start(MONDAY, 12 * 3600, 3600, 0.0).after == 0, "now is clean"


def test_a_start_gains_most_of_what_the_best_gains() -> None:
    random = Random(1)  # noqa: S311
    for _ in range(200):
        of = Intensity(hours=tuple(random.uniform(0.1, 0.6) for _ in range(random.choice((24, 168)))))
        now, within, run = random.uniform(0, 1e7), random.uniform(0, 1e5), random.uniform(60, 1e5)
        start = of.good_start(now, within, run, random.random())
        assert 0 <= start.after <= within
        best = min(of.mean(now + step * 900, run) for step in range(int(within / 900) + 1))
        assert start.now - start.value >= 0.6 * (start.now - best) - 0.03 * start.now


def units(**fields: Any) -> Any:
    return compile_spec({"run": "x", **fields}, wall=0.0).units


def started(flexible: int, usual: int = USUAL_RUN, place: float = 0.0, **fields: Any) -> tuple[int, Start]:
    """The earliest start of a job that is submitted in the evening."""
    evening = MONDAY + 20 * 3600.0
    made, start = started_well(units(**fields), flexible, NIGHT, evening, lambda kind: usual, place)
    return made[0].begin, start


def test_a_deadline_is_kept() -> None:
    begin, start = started(12 * HOUR, expect="2h", place=0.5)
    assert 4 * HOUR <= begin <= 8 * HOUR
    assert start.after == begin / SECOND
    begin, _ = started(12 * HOUR, expect="2h", deadline="5h", place=1.0)
    assert begin == 3 * HOUR, "it begins so that it ends in time"
    assert started(12 * HOUR, expect="2h", deadline="1h")[0] == 0
    begin, _ = started(12 * HOUR, usual=30 * 60 * SECOND, begin="1h", place=0.5)
    assert 4 * HOUR <= begin <= 10 * HOUR


def dated(*values: float, begins: str = "1970-01-05T02:00", hours: tuple[float, ...] = ()) -> Intensity:
    """Values of single hours, by default of the first Monday from two o'clock on."""
    some = {"hours": [*hours]} if hours else {}
    return compile_intensity({"kind": "intensity", "dated": [{"from": begins, "hours": [*values]}]} | some)


def test_values_of_single_hours_replace_those_of_the_day() -> None:
    of = dated(0.5, 1.0, hours=NIGHT.hours)
    assert of.mean(MONDAY + 2 * 3600, 3600) == pytest.approx(0.5)
    assert of.mean(MONDAY + 2.5 * 3600, 2 * 3600) == pytest.approx((0.25 + 1.0 + 0.1) / 2)
    assert of.mean(MONDAY, 24 * 3600) == pytest.approx((0.35 * 24 + 0.3 + 0.8) / 24)
    assert of.mean(MONDAY + 86400, 24 * 3600) == pytest.approx(0.35), "the next day is as usual"
    assert dated(0.5, begins="1970-01-05T04:00+02:00") == dated(0.5)


def test_of_two_values_of_an_hour_the_later_one_in_the_file_counts() -> None:
    values = [{"from": "1970-01-05T02:00", "hours": [0.5, 0.6]}, {"from": "1970-01-05T02:00", "hours": [0.1]}]
    of = compile_intensity({"kind": "intensity", "dated": values})
    assert (of.mean(MONDAY + 2 * 3600, 3600), of.mean(MONDAY + 3 * 3600, 3600)) == pytest.approx((0.1, 0.6))


def test_an_hour_without_a_value_is_not_taken_for_a_clean_one() -> None:
    of = dated(0.5, 0.1)
    assert isnan(of.mean(MONDAY + 1.5 * 3600, 3600))
    assert of.known(MONDAY + 10 * 3600) - of.known(MONDAY + 1.5 * 3600) == pytest.approx(2 * 3600)
    assert of.good_start(MONDAY + 2 * 3600, 10 * 3600, 3600, 0.9).after == 3600, "the last start with known values"
    assert of.good_start(MONDAY + 1.5 * 3600, 10 * 3600, 3600, 0.0).after == 0, "whether now is clean is not known"


def test_a_file_is_refused_with_its_field() -> None:
    hours = [0.3] * 24
    for wrong, field in (
        ({"hours": hours[1:]}, "hours"),
        ({"hours": [*hours[1:], 11]}, "hours[23]"),
        ({"kind": "job"}, "kind"),
        ({"unit": "g/kWh"}, "unit"),
        ({"hours": []}, "hours"),
        ({"dated": [{"from": "soon", "hours": hours}]}, "dated[0].from"),
        ({"dated": [{"from": "2026-12-01T00:30", "hours": hours}]}, "dated[0].from"),
        ({"dated": [{"from": "2026-12-01", "hours": [0.3, -1]}]}, "dated[0].hours[1]"),
        ({"dated": [{"from": "2026-12-01", "hours": [0.3] * 20_001}]}, "dated"),
    ):
        with pytest.raises(SpecError) as caught:
            compile_intensity({"kind": "intensity", "hours": hours} | wrong)
        assert [record.field for record in caught.value.record.all()] == [field]
