"""Workloads that are drawn: the same from the same seed, and of the shape that was asked for."""

import hashlib
import itertools
import math
import os
import statistics
import subprocess
import sys
from typing import Any

import pytest

from poise.errors import SpecError
from poise.model.workload import Seats, Workload
from poise_lab.traces.formats import read_trace
from poise_lab.traces.options import Options
from poise_lab.traces.synthetic import SPREAD, parse

SHOW = """
import hashlib
from poise_lab.traces.formats import read_trace
print(hashlib.sha256(repr(read_trace("bursty:jobs=200,speeds=V100:1+K80:0.25")).encode()).hexdigest())
"""


def runs(read: Workload) -> list[float]:
    return sorted(one.truths["main"].pace.left(0.0, Seats(("",) * len(one.units[0].tasks))) for one in read.arrivals)


def gaps(read: Workload) -> list[float]:
    instants = [one.at / 1e9 for one in read.arrivals]
    return [after - before for before, after in itertools.pairwise(instants)]


def variation(read: Workload) -> float:
    """The squared coefficient of variation of the times between arrivals: 1 for a Poisson process."""
    return statistics.pvariance(gaps(read)) / statistics.mean(gaps(read)) ** 2


def test_the_same_seed_is_the_same_workload() -> None:
    assert read_trace("poisson:jobs=100") == read_trace("poisson:jobs=100")
    assert read_trace("poisson:jobs=100") != read_trace("poisson:jobs=100", Options(seed=1))


def test_and_so_under_any_hash_seed() -> None:
    read = read_trace("bursty:jobs=200,speeds=V100:1+K80:0.25")
    own = hashlib.sha256(repr(read).encode()).hexdigest()
    command = [sys.executable, "-c", SHOW]
    other = subprocess.run(
        command, env=os.environ | {"PYTHONHASHSEED": "77"}, capture_output=True, text=True, check=True
    )
    assert other.stdout.strip() == own


def test_jobs_arrive_as_often_as_was_asked_for() -> None:
    for arriving, least, most in (("poisson", 0.9, 1.1), ("bursty", 1.5, 9), ("diurnal", 1.1, 9)):
        read = read_trace(f"{arriving}:jobs=5000,rate=120,lasting=120")
        assert statistics.mean(gaps(read)) == pytest.approx(30, rel=0.15), arriving
        assert least < variation(read) < most, arriving


def test_a_day_has_its_hours() -> None:
    read = read_trace("diurnal:jobs=5000,rate=100,swing=0.9")
    hours = [one.at / 3.6e12 % 24 for one in read.arrivals]
    night = sum(1 for hour in hours if hour < 3 or hour >= 21)
    noon = sum(1 for hour in hours if 9 <= hour < 15)
    assert noon > 4 * night


def test_run_times_and_sizes_are_like_phillys() -> None:
    read = read_trace("poisson:jobs=5000")
    median = runs(read)[2500]
    assert median == pytest.approx(1144, rel=0.1)
    assert runs(read)[4950] > 100 * median
    sizes = [len(one.units[0].tasks) * one.units[0].shape.gpus for one in read.arrivals]
    assert sizes.count(1) / 5000 == pytest.approx(76627 / 82247, abs=0.01)
    assert max(sizes) >= 32
    assert math.log(254_758 / 1_144) / 2.3263 == pytest.approx(SPREAD, abs=1e-3)


def test_pareto_has_a_heavy_tail() -> None:
    read = runs(read_trace("poisson:jobs=5000,times=pareto,alpha=1.5"))
    assert read[0] >= 60
    assert read[2500] == pytest.approx(60 * 2 ** (1 / 1.5), rel=0.05)
    assert read[4950] == pytest.approx(60 * 100 ** (1 / 1.5), rel=0.3)


def test_some_have_deadlines() -> None:
    read = read_trace("poisson:jobs=1000,deadlines=0.25,slack=2")
    slack = [
        one.units[0].deadline / 1e9 / one.truths["main"].pace.left(0.0, Seats(("",) * len(one.units[0].tasks)))
        for one in read.arrivals
    ]
    assert len([of for of in slack if of == pytest.approx(2)]) == pytest.approx(250, abs=40)
    assert len([of for of in slack if of]) < 300


def test_speeds_are_known_by_class_and_model() -> None:
    read = read_trace("poisson:jobs=50,speeds=V100:1+K80:0.25,classes=3,tenants=1")
    assert sorted(read.throughputs)[:2] == ["class-0@K80", "class-0@V100"]
    one = read.arrivals[0]
    kind, tasks = one.units[0].kind, len(one.units[0].tasks)
    taken = {model: one.truths["main"].pace.left(0.0, Seats((model,) * tasks)) for model in ("V100", "K80")}
    ratio = read.throughputs[f"{kind}@V100"] / read.throughputs[f"{kind}@K80"]
    assert taken["K80"] / taken["V100"] == pytest.approx(ratio)


@pytest.mark.parametrize(
    ("text", "field"),
    [
        ("poisson:rate=0", "rate"),
        ("poisson:rate=nan", "rate"),
        ("poisson:jobs=1.5", "jobs"),
        ("poisson:jobs=1e99", "jobs"),
        ("poisson:swing=2", "swing"),
        ("poisson:times=cauchy", "times"),
        ("poisson:speeds=V100", "speeds"),
        ("poisson:speeds=V100:fast", "speeds"),
        ("poisson:colour=red", "colour"),
        ("poisson:jobs", "jobs"),
    ],
)
def test_what_cannot_be_drawn_is_refused(text: str, field: str) -> None:
    with pytest.raises(SpecError) as raised:
        parse(text)
    record: Any = raised.value.record
    assert record.field.startswith(field)
    assert record.need
    assert record.hint
