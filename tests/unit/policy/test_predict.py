"""How long work runs on a model of device: what is known goes before what is foreseen, with its uncertainty."""

from math import sqrt
from typing import Any

import hypothesis.strategies as st
import numpy as np
import pytest
from hypothesis import given
from msgspec.structs import replace

from poise.model.fleet import DeviceModel, Resident
from poise.model.jobs import Ending, Work
from poise.model.profiles import COMBINED, DEFAULT_RUN, Estimate, Profile, estimate_run
from poise.model.resources import Device, Shape
from poise.policy.predict import Speeds, bound, likely, likely_each
from poise.testing import World, node
from poise.units import MINUTE, SECOND

TERA = 10**12
GIGA = 10**9

CPU = DeviceModel("cpu", "epyc", rates=(("fp32", 4 * TERA),), bandwidth=400 * GIGA)
FAST = DeviceModel("gpu", "fast", rates=(("fp16", 400 * TERA), ("fp32", 100 * TERA)), bandwidth=3200 * GIGA)
SLOW = DeviceModel("gpu", "slow", rates=(("fp16", 100 * TERA), ("fp32", 25 * TERA)), bandwidth=800 * GIGA)
BLANK = DeviceModel("gpu", "blank")
MODELS = (CPU, FAST, SLOW, BLANK)


def seen(run: int, count: int = 1) -> Profile:
    profile = Profile()
    for _ in range(count):
        profile = profile.observe(Ending(outcome="done", run=run))
    return profile


def estimates(
    *,
    profiles: dict[str, Profile] | None = None,
    table: dict[str, float] | None = None,
    declared: int = 0,
    work: Work | None = None,
    precision: str = "",
    devices: bool = True,
) -> dict[str, Estimate]:
    """Of class `k`, by name of the model."""
    speeds = Speeds(MODELS, profiles or {}, table or {})
    found = speeds.of("k", precision, declared, work or Work(), devices=devices)
    return {model.name: estimate for model, estimate in zip(MODELS, found, strict=True)}


def test_the_device_that_is_known_to_be_faster_is_chosen() -> None:
    """The user's view: a class that ran in 10 s on one model and in 40 s on the other goes to the first."""
    found = estimates(profiles={"k@fast": seen(10 * SECOND), "k@slow": seen(40 * SECOND)})
    assert found["fast"] == Estimate(10 * SECOND, 5 * SECOND, "history")
    assert found["slow"] == Estimate(40 * SECOND, 20 * SECOND, "history")


# --- what goes first -------------------------------------------------------------------------------------------------


def test_where_nothing_is_known_all_are_alike() -> None:
    assert set(estimates().values()) == {Estimate(DEFAULT_RUN, DEFAULT_RUN, "default")}
    assert set(estimates(declared=MINUTE).values()) == {Estimate(MINUTE, MINUTE // 2, "declared")}
    assert set(estimates(profiles={"k": seen(MINUTE)}).values()) == {Estimate(MINUTE, MINUTE // 2, "history elsewhere")}


def test_history_of_a_device_goes_before_its_table_and_its_roofline() -> None:
    found = estimates(
        profiles={"k@fast": seen(8 * SECOND)}, table={"k@fast": 1.0, "k@slow": 0.5}, work=Work(flops=TERA)
    )
    assert found["fast"] == Estimate(8 * SECOND, 4 * SECOND, "history")
    assert found["slow"] == Estimate(16 * SECOND, 8 * SECOND, "throughput table")


def test_what_is_declared_of_this_run_goes_before_its_like_unless_these_are_known_more_closely() -> None:
    table = {"k@fast": 1.0, "k@slow": 0.5}
    once = estimates(profiles={"k@fast": seen(8 * SECOND)}, table=table, declared=MINUTE)
    assert once["fast"] == Estimate(MINUTE, MINUTE // 4, "throughput table")
    always = Profile(count=9, mean=8 * SECOND, deviation=SECOND)
    often = estimates(profiles={"k@fast": always}, table=table, declared=MINUTE)
    assert often["fast"] == Estimate(8 * SECOND, SECOND, "history")


@pytest.mark.parametrize(
    ("missed_by", "source", "seconds", "varies"),
    [(0.3, "throughput table", 60, 0.254), (1.4, COMBINED, 60 * (8 / 60) ** (14 / 16), 0.471)],
)
def test_a_table_carries_over_what_is_declared_only_if_the_class_keeps_to_that(
    missed_by: float, source: str, seconds: float, varies: float
) -> None:
    """After nine runs of 8 s, with a mean deviation of 4 s, 0.832 of the weight is of what was seen. Where runs miss
    what is declared by 0.3 of it in the mean, a declared time is off by (0.25 + 0.3 - 0.084) / 1.832 = 0.254; by 1.4,
    (0.25 + 1.4 - 0.084) / 1.832 = 0.855, more than what both say together: 1 / sqrt(1 / 0.5^2 + 1 / 1.4^2) = 0.471.
    """
    profile = Profile(
        count=9, mean=8 * SECOND, deviation=4 * SECOND, ratio=1000, ratio_deviation=round(1000 * missed_by)
    )
    found = estimates(profiles={"k@fast": profile}, table={"k@fast": 1.0, "k@slow": 0.5}, declared=MINUTE)
    assert found["fast"].source == source
    assert found["fast"].mean == pytest.approx(seconds * SECOND)
    assert found["fast"].deviation == pytest.approx(varies * found["fast"].mean, rel=0.01)
    assert found["slow"].mean == 2 * found["fast"].mean


def test_a_class_that_keeps_to_what_is_declared_is_foreseen_by_that() -> None:
    profile = Profile()
    for declared in (10 * SECOND, 100 * SECOND, 1000 * SECOND) * 4:
        profile = profile.observe(Ending(outcome="done", run=2 * declared), declared=declared)
    found = estimate_run(profile, 50 * SECOND)
    assert found.mean == 100 * SECOND  # its runs differ so much that their mean has no weight
    assert found.source == "declared"


def test_a_table_of_speeds_does_not_make_a_guess_certain() -> None:
    found = estimates(table={"k@fast": 1.0, "k@slow": 0.25})
    assert found["fast"] == Estimate(DEFAULT_RUN, DEFAULT_RUN, "default")
    assert found["slow"] == Estimate(4 * DEFAULT_RUN, 4 * DEFAULT_RUN, "default")


def test_a_table_carries_a_declared_time_over_from_its_fastest() -> None:
    found = estimates(table={"k@fast": 8.0, "k@slow": 2.0}, declared=MINUTE)
    assert found["fast"] == Estimate(MINUTE, MINUTE // 4, "throughput table")
    assert found["slow"] == Estimate(4 * MINUTE, MINUTE, "throughput table")


def test_a_table_goes_before_the_roofline() -> None:
    found = estimates(table={"k@slow": 2.0}, work=Work(flops=100 * TERA), declared=MINUTE)
    assert (found["slow"].source, found["fast"].source) == ("throughput table", "roofline")


# --- the roofline ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("work", "precision", "seconds"),
    [
        ({"flops": 400 * TERA}, "fp16", 1.0),
        ({"flops": 400 * TERA}, "", 4.0),  # a precision that is not said is fp32
        ({"flops": 400 * TERA}, "fp8", 1.0),  # it has none, and takes fp16
        ({"bytes": 6400 * GIGA}, "", 2.0),
        ({"flops": 400 * TERA, "bytes": 6400 * GIGA}, "fp16", 2.0),
        ({"flops": 1200 * TERA, "bytes": 6400 * GIGA}, "fp16", 3.0),
        ({}, "fp16", 0.0),
    ],
)
def test_the_bound_is_compute_or_transfer_whichever_is_longer(
    work: dict[str, Any], precision: str, seconds: float
) -> None:
    assert bound(FAST, precision, Work(**work)) == seconds
    assert bound(BLANK, precision, Work(**work)) == 0


def test_a_bound_is_reached_to_a_half_and_is_as_uncertain_as_it_is_long() -> None:
    found = estimates(work=Work(flops=400 * TERA), precision="fp16")
    assert found["fast"] == Estimate(2 * SECOND, 2 * SECOND, "roofline")
    assert found["slow"] == Estimate(8 * SECOND, 8 * SECOND, "roofline")
    assert found["fast"].most == 6 * SECOND


def test_a_measured_run_is_carried_over_by_peak_and_bandwidth() -> None:
    """Four times the rate and four times the bandwidth: sqrt(4 x 4) times as long."""
    found = estimates(profiles={"k@fast": seen(10 * SECOND)})
    assert found["slow"] == Estimate(int(10 * SECOND * sqrt(16)), 40 * SECOND, "history on fast, scaled")
    assert found["blank"].source == "default"


def test_what_was_declared_goes_before_what_was_measured_on_another_model() -> None:
    found = estimates(profiles={"k": seen(SECOND), "k@fast": seen(SECOND)}, declared=MINUTE)
    assert found["fast"].source == "history"
    assert found["slow"] == found["blank"] == Estimate(MINUTE, MINUTE // 2, "declared")


def running(**fields: Any) -> Resident:
    shape = Shape(gpus=1)
    return Resident(unit="u", ordinal=1, priority=2, shape=shape, kind="k", since=0, model="fast", **fields)


def test_an_elastic_unit_takes_proportionally_less_in_more_tasks() -> None:
    """Its user says 60 s: with the two that it must have. With four, of which nothing is done yet, it is 30 s."""
    speeds = Speeds(MODELS, {}, {})
    assert speeds.of_attempt(running(declared=MINUTE, least=2, size=2, most=4)).mean == MINUTE
    assert speeds.of_attempt(running(declared=MINUTE, least=2, size=4, most=4)) == (
        30 * SECOND,
        15 * SECOND,
        "declared",
    )


def test_what_earlier_attempts_saved_is_not_done_again() -> None:
    """Ten seconds of two tasks leave 100 of 120 seconds of work: 25 for four, and coming back takes a second."""
    speeds = Speeds(MODELS, {}, {})
    grown = running(declared=MINUTE, least=2, size=4, most=4, saved=20 * SECOND, restore=SECOND)
    assert speeds.of_attempt(grown).mean == 26 * SECOND
    assert speeds.of_attempt(running(declared=MINUTE, saved=20 * SECOND)).mean == 40 * SECOND


def test_work_without_devices_is_foreseen_by_processor() -> None:
    found = estimates(work=Work(flops=4 * TERA), devices=False)
    assert found["epyc"] == Estimate(2 * SECOND, 2 * SECOND, "roofline")
    assert estimates(work=Work(flops=4 * TERA))["fast"].source == "roofline"


def test_many_runs_are_more_certain_than_one() -> None:
    once, often = (estimates(profiles={"k@fast": seen(SECOND, count)})["fast"] for count in (1, 30))
    assert often.deviation < once.deviation / 10


def test_a_throughput_table_of_the_settings_decides_where_work_goes() -> None:
    world = World(throughputs={"k@slow": 1.0, "k@fast": 4.0})
    for name, model in (("n1", "slow"), ("n2", "fast")):
        world.join(replace(node(name), devices=(Device(index=0, model=model),)))
    world.job("a", gpu=1, expect="1m", **{"class": "k"}).round()
    why = world.unit("a").why
    assert world.where("a") == ["n2"]
    assert why is not None
    assert why.speed == "1m0s ± 15.0 s by throughput table"


@given(
    st.dictionaries(st.sampled_from(["k", "k@fast", "k@slow", "k@epyc"]), st.integers(1, 10**12).map(seen)),
    st.dictionaries(st.sampled_from(["k@fast", "k@slow", "k@blank"]), st.floats(0.01, 100)),
    st.integers(0, 10**12),
    st.builds(Work, flops=st.integers(0, 10**18), bytes=st.integers(0, 10**15)),
    st.sampled_from(["", "fp16", "fp8", "fp64"]),
    st.booleans(),
)
def test_whatever_is_known_every_estimate_is_a_time(
    profiles: dict[str, Profile], table: dict[str, float], declared: int, work: Work, precision: str, devices: bool
) -> None:
    found = estimates(
        profiles=profiles, table=table, declared=declared, work=work, precision=precision, devices=devices
    )
    for name, estimate in found.items():
        assert estimate.mean >= 1
        assert estimate.deviation >= 0
        measured = (name != "epyc") == devices and f"k@{name}" in profiles
        assert not measured or estimate.source in ("history", *(("throughput table", "declared") if declared else ()))


@pytest.mark.parametrize(("deviation", "expected"), [(49, 100), (51, 98), (75, 50), (100, 12)])
def test_an_estimate_gets_shorter_as_it_gets_uncertain_and_does_not_jump(deviation: int, expected: int) -> None:
    """Up to a deviation of one half it counts as it is; with one as large as the mean, as an eighth."""
    assert likely(Estimate(100, deviation, "history")).mean == expected
    means, _ = likely_each(np.array([100]), np.array([deviation]))
    assert means.tolist() == [expected]
