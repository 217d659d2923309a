"""How many replicas, against numbers computed by hand; and what holds for every service and every load."""

import subprocess
import sys
from collections.abc import Iterator, Sequence
from itertools import takewhile
from math import ceil
from typing import Any

import hypothesis.strategies as st
import msgspec
import pytest
from hypothesis import given, settings

from poise.model.scaling import BECAUSES, Announced, Scale, ScaleMemory, ScaleRules, ScaleView, Window
from poise.policy.replicas import DEFAULT_SCALER, SCALERS, scaler_named
from poise.units import DAY, HOUR, MILLISECOND, MINUTE, SECOND

WIDE = ScaleRules(signals=("rate",), least=1, most=1000, fall=0)
"""Of which only the rate speaks, and nothing is held back."""


def seen(*rates: float, length: int = MINUTE, **fields: Any) -> tuple[Window, ...]:
    """Windows of these rates, one after the other, and everything else as told."""
    return tuple(Window(at=(place + 1) * length, rate=rate, **fields) for place, rate in enumerate(rates))


def view(rules: ScaleRules = WIDE, windows: Sequence[Window] = (), there: int = 2, **fields: Any) -> ScaleView:
    """A service whose replicas take 10 requests/s each, at the end of its last window."""
    now = windows[-1].at if windows else 0
    given = {"now": now, "window": MINUTE, "replicas": (10.0,) * there, "capacity": 10.0, **fields}
    return ScaleView(rules=rules, windows=tuple(windows), **given)


def follow(name: str, rates: Sequence[float], rules: ScaleRules = WIDE, there: int = 2, **fields: Any) -> list[Scale]:
    """What it decides window by window, its memory handed back each time and its number carried out at once."""
    return list(_follow(name, rates, rules, there, fields))


def _follow(
    name: str, rates: Sequence[float], rules: ScaleRules, there: int, fields: dict[str, Any]
) -> Iterator[Scale]:
    memory, length = ScaleMemory(), fields.get("window", MINUTE)
    for window in seen(*rates, length=length):
        shown = view(rules, [msgspec.structs.replace(window, replicas=there)], there, memory=memory, **fields)
        scale = SCALERS[name].decide(shown)
        memory, there = scale.memory, scale.replicas
        yield scale


def numbers(scales: Sequence[Scale]) -> list[int]:
    return [scale.replicas for scale in scales]


# --- by hand, rule by rule -------------------------------------------------------------------------------------------


def test_a_decision_is_explained_in_a_sentence() -> None:
    """49 requests/s at 70 % of what replicas can take are 70: seven replicas of ten."""
    scale = scaler_named("last-value").decide(view(windows=seen(49.0)))
    assert (scale.policy, scale.replicas) == ("last-value", 7)
    assert scale.sentence() == "7 replicas: 49 requests/s (70 with room)"


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("last-value", [4, 8, 2, 2, 2, 2, 2]),  # 28 / 0.7 = 40; 56 -> 80; 14 -> 20
        ("ewma", [4, 6, 4, 3, 3, 3, 3]),  # 28, 42, 28, 21, 17.5, 15.75, 14.875, each over 0.7
        ("max-of-six", [4, 8, 8, 8, 8, 8, 8]),
        ("hpa", [4, 8, 2, 2, 2, 2, 2]),  # in proportion to how many there are
        ("static", [1000] * 7),
    ],
)
def test_each_rule_on_a_load_that_doubles_and_falls(name: str, expected: list[int]) -> None:
    assert numbers(follow(name, [28, 56, 14, 14, 14, 14, 14])) == expected


def test_max_of_six_forgets_the_seventh() -> None:
    assert numbers(follow("max-of-six", [56, *[14] * 6]))[-2:] == [8, 2]


def test_hpa_leaves_alone_what_is_near_its_target() -> None:
    """Ten of ten requests/s at 75 requests/s: 107 % of the target, within the tolerance of 10 %."""
    scale = scaler_named("hpa").decide(view(windows=seen(75.0), there=10))
    assert scale.sentence() == "10 replicas: 107% of the target, which is near enough"
    assert scaler_named("hpa").decide(view(windows=seen(78.0), there=10)).replicas == ceil(10 * 78 / 70)


def test_the_first_forecast_has_the_headroom_that_the_target_asks_for() -> None:
    scale = scaler_named("forecast").decide(view(windows=seen(49.0)))
    [line] = scale.because
    assert (scale.replicas, line.code) == (8, "FORECAST")  # a little more than 70: a calm hour is no promise
    assert line.sentence().startswith("8 replicas: 49 ± ")


def test_of_a_steady_load_the_forecast_learns_that_little_headroom_is_needed() -> None:
    steady = numbers(follow("forecast", [70.0] * 300))
    assert steady[0] == 11
    assert steady[-1] == 8


def test_of_a_restless_load_it_provides_for_more() -> None:
    """70 in the mean as well, every other window 100."""
    calm, restless = (numbers(follow("forecast", rates))[-2:] for rates in ([70.0] * 200, [40.0, 100.0] * 100))
    assert min(restless) >= 10 > max(calm)


def test_what_comes_back_each_hour_is_foreseen() -> None:
    """In windows of ten minutes, the fourth of each hour has three times the load of the others."""
    hours = follow("forecast", [10.0, 10.0, 10.0, 30.0, 10.0, 10.0] * 48, window=10 * MINUTE)
    foreseen = [float(scale.because[0].have.split()[0]) for scale in hours[-6:]]
    assert foreseen[2] == pytest.approx(30, rel=0.1)  # decided at the end of the third window
    assert numbers(hours)[-4] >= 3


@pytest.mark.parametrize(
    ("signal", "fields", "expected", "code"),
    [
        ("cpu", {"cpu": 0.91}, 6, "CPU"),  # 4 * 0.91 / 0.7 = 5.2
        ("cpu", {"cpu": 0.72}, 4, "ON_TARGET"),
        ("cpu", {"cpu": 0.35}, 2, "CPU"),
        ("devices", {"devices": 1.0}, 6, "DEVICES"),  # 5.7
        ("latency", {"p99": 300 * MILLISECOND}, 6, "LATENCY"),  # 4 * 300 / 200
        ("latency", {"p99": 100 * MILLISECOND, "mean": 100 * MILLISECOND}, 8, "LATENCY"),  # 4 * 100 / 50
        ("latency", {}, 4, "NOTHING_SEEN"),
        ("queue", {"queue": 9.0}, 5, "QUEUE"),  # two may wait for each
        ("queue", {"queue": 8.4}, 4, "ON_TARGET"),
        ("rate", {}, 2, "RATE"),
    ],
)
def test_each_signal_alone(signal: Any, fields: dict[str, Any], expected: int, code: str) -> None:
    rules = ScaleRules(
        signals=(signal,), latency_p99=200 * MILLISECOND, latency_mean=50 * MILLISECOND, waiting=2.0, fall=0
    )
    scale = scaler_named("last-value").decide(view(rules, seen(14.0, replicas=4, **fields), there=4))
    assert (scale.replicas, scale.because[0].code) == (expected, code)


def test_the_largest_wish_wins_and_every_signal_is_heard() -> None:
    rules = ScaleRules(signals=("cpu", "rate", "queue"), fall=0)
    scale = scaler_named("last-value").decide(view(rules, seen(14.0, replicas=4, cpu=0.91, queue=3), there=4))
    assert scale.sentence() == (
        "6 replicas: CPU is 91% busy, 70% is aimed at; 3 replicas: 3 requests wait, 1 may for each replica; "
        "2 replicas: 14 requests/s (20 with room)"
    )


def test_unequal_replicas_count_for_what_they_can_take() -> None:
    """Of 40 and 10 the fast one alone takes 28 / 0.7; a third takes what a usual one does; what is not learned counts
    as usual.
    """
    of = [
        scaler_named("last-value").decide(view(windows=seen(rate), replicas=replicas)).replicas
        for rate, replicas in ((28.0, (10.0, 40.0)), (35.0, (10.0, 40.0)), (36.0, (10.0, 40.0)), (14.0, (0.0, 0.0)))
    ]
    assert of == [1, 2, 3, 2]


def test_nothing_is_changed_for_a_rate_as_long_as_nobody_knows_what_a_replica_can_take() -> None:
    scale = scaler_named("forecast").decide(view(windows=seen(500.0), replicas=(0.0,) * 3, capacity=0.0))
    assert scale.sentence() == "3 replicas: what a replica can take is not known yet"


def test_what_starts_slowly_is_asked_for_earlier() -> None:
    """The hour's peak is in the fourth window; a replica that takes 25 minutes is asked for after the first."""
    hours = follow("forecast", [10.0, 10.0, 10.0, 30.0, 10.0, 10.0] * 48, window=10 * MINUTE, start_up=25 * MINUTE)
    assert numbers(hours)[-6] > numbers(hours)[-2]


def test_a_collapse_is_not_believed_at_once() -> None:
    """The fault may be before the service: all of it comes back in one window, and is provided for."""
    before, *during, back = numbers(follow("forecast", [*[70.0] * 50, *[0.0] * 5])[-6:])
    assert min([*during, back]) >= 7
    assert before == 8
    believed = follow("forecast", [*[70.0] * 50, *[0.0] * 300])
    assert numbers(believed)[-1] == 1


# --- bounds, stabilisation, zero, what is announced ------------------------------------------------------------------


def test_two_to_ten_unless_told_otherwise() -> None:
    rules = ScaleRules(signals=("rate",), fall=0)
    assert numbers(follow("last-value", [1.0, 500.0], rules)) == [2, 10]
    low, high = follow("last-value", [1.0, 500.0], rules)
    assert low.because[-1].sentence() == "2 replicas: there are never fewer"
    assert high.because[-1].sentence() == "10 replicas: there are never more; 72 were wished"


def test_a_fall_waits_until_nothing_lately_wished_for_more() -> None:
    """Windows of a minute, five minutes of stabilisation: what was wished in the second is held until the seventh."""
    rules = msgspec.structs.replace(WIDE, fall=5 * MINUTE)
    scales = follow("last-value", [14, 56, 14, 14, 14, 14, 14, 14], rules)
    assert numbers(scales) == [2, 8, 8, 8, 8, 8, 2, 2]
    assert scales[2].because[-1].sentence() == "8 replicas: more were needed within the last 5m0s; 2 were wished"
    assert scales[2].until == 7 * MINUTE


def test_a_rise_waits_until_everything_lately_wished_for_more() -> None:
    rules = msgspec.structs.replace(WIDE, rise=2 * MINUTE)
    scales = follow("last-value", [14, 56, 63, 63, 63], rules)
    assert numbers(scales) == [2, 2, 8, 9, 9]
    assert scales[1].until == 3 * MINUTE


def test_to_zero_when_nothing_comes_and_back_as_soon_as_something_waits() -> None:
    rules = ScaleRules(signals=("rate",), least=0, fall=0, idle=3 * MINUTE)
    for name in SCALERS:
        scales = follow(name, [7, 0, 0, 0], rules, there=1)
        last = scales[-1]
        assert last.replicas == 0, name
        assert last.because[-1].sentence() == "0 replicas: nothing has come for 3m0s"
        assert scales[1].replicas >= 1
        quiet = view(rules, [], 0, now=5 * MINUTE, memory=last.memory)
        assert scaler_named(name).decide(quiet).replicas == 0
        woken = scaler_named(name).decide(msgspec.structs.replace(quiet, waiting=1))
        assert woken.replicas >= 1
        assert woken.because[-1].code == "COLD_START"
        again = msgspec.structs.replace(quiet, now=5 * MINUTE + SECOND, memory=woken.memory, replicas=(10.0,))
        assert scaler_named(name).decide(again).replicas >= 1  # it starts, and is not taken away at once


def test_what_is_announced_is_prepared_for_in_time() -> None:
    """Ready when it begins: asked for a start-up and a window before, and kept until it is over."""
    event = Announced(at=HOUR, rate=63.0, until=HOUR + 10 * MINUTE)

    def at(now: int) -> Scale:
        shown = view(windows=seen(7.0), now=now, announced=(event,), start_up=5 * MINUTE)
        return scaler_named(DEFAULT_SCALER).decide(shown)

    assert at(HOUR - 6 * MINUTE - 1).replicas < 9
    assert at(HOUR - 6 * MINUTE - 1).until == HOUR - 6 * MINUTE
    assert at(HOUR - 6 * MINUTE).replicas == 9
    assert at(HOUR - 6 * MINUTE).because[0].sentence() == "9 replicas: 63 requests/s are announced in 6m0s"
    assert at(HOUR + 9 * MINUTE).replicas == 9
    assert at(HOUR + 10 * MINUTE).replicas < 9


def test_what_is_announced_does_not_wait_for_a_slow_rise() -> None:
    rules = msgspec.structs.replace(WIDE, rise=HOUR)
    event = Announced(at=2 * MINUTE, rate=63.0, until=HOUR)
    assert numbers(follow("forecast", [7.0], rules, announced=(event,))) == [9]


@pytest.mark.parametrize(("ends", "expected"), [(8 * MINUTE, 30.0), (HOUR, 90.0)])
def test_events_multiply_one_another_only_where_they_overlap(ends: int, expected: float) -> None:
    """10 requests/s as usual, three times as many since the second minute; in the eighth, another event begins."""
    events = [Announced(2 * MINUTE, 0.0, ends, 3.0), Announced(8 * MINUTE, 0.0, HOUR, 3.0)]
    told = follow("last-value", [10.0, 10.0, 30.0, 30.0, 30.0], announced=events, start_up=5 * MINUTE)
    assert [float(why.have) for why in told[-1].because if why.code == "ANNOUNCED"] == [expected]


# --- for every load --------------------------------------------------------------------------------------------------

RATES = st.lists(st.one_of(st.just(0.0), st.floats(0.01, 1000)), min_size=1, max_size=25)
RULES = st.builds(
    ScaleRules,
    signals=st.just(("cpu", "devices", "rate", "latency", "queue")),
    least=st.integers(0, 3),
    most=st.integers(3, 40),
    share=st.sampled_from((0.01, 0.05)),
    rise=st.sampled_from((0, 3 * MINUTE)),
    fall=st.sampled_from((0, 5 * MINUTE)),
    idle=st.sampled_from((MINUTE, 10 * MINUTE)),
)
NAMES = st.sampled_from([*SCALERS])


@settings(max_examples=60)
@given(NAMES, RATES, RULES, st.integers(0, 5))
def test_bounds_are_kept_and_each_answer_has_its_reasons(
    name: str, rates: list[float], rules: ScaleRules, there: int
) -> None:
    for scale in follow(name, rates, rules, there):
        assert rules.least <= scale.replicas <= rules.most
        assert all(line.code in BECAUSES for line in scale.because)
        # each line speaks for a number; what held it last is the number itself
        assert scale.replicas in {line.wish for line in scale.because}


@settings(max_examples=60)
@given(NAMES, RATES, RULES)
def test_nothing_flaps_within_the_stabilisation(name: str, rates: list[float], rules: ScaleRules) -> None:
    """What has risen stays for `fall`, what has fallen for `rise`; but the last goes, and the first comes, at once."""
    counts = numbers(follow(name, rates, rules, rules.least))
    for place, (before, count) in enumerate(zip([rules.least, *counts], counts, strict=False)):
        late = (rules.fall if count > before else rules.rise) // MINUTE
        held = [*takewhile(bool, counts[place : place + late])]
        assert count == before or all((later >= count) if count > before else (later <= count) for later in held)


@settings(max_examples=40)
@given(NAMES, RATES, RULES)
def test_same_view_same_verdict_and_memory_travels(name: str, rates: list[float], rules: ScaleRules) -> None:
    """Also after a journey through a file."""
    memory = follow(name, rates, rules)[-1].memory
    windows = [Window(at=(len(rates) + 1) * MINUTE, rate=5.0, replicas=2)]
    shown = view(rules, windows, memory=memory)
    carried = msgspec.json.decode(msgspec.json.encode(shown), type=ScaleView)
    first = scaler_named(name).decide(shown)
    assert first == scaler_named(name).decide(shown) == scaler_named(name).decide(carried)


@settings(max_examples=60)
@given(NAMES, RATES, st.floats(1, 4))
def test_more_load_is_never_given_less(name: str, rates: list[float], factor: float) -> None:
    """Of the same load on a larger scale: as many or more, in every window."""
    rules = ScaleRules(signals=("rate",), least=1, most=10_000, tolerance=0.0, fall=0)
    less = numbers(follow(name, rates, rules))
    more = numbers(follow(name, [rate * factor for rate in rates], rules))
    assert all(large >= small for small, large in zip(less, more, strict=True))


@settings(max_examples=40)
@given(NAMES, RATES, st.floats(0.1, 1000), st.floats(1, 1000))
def test_a_larger_last_rate_asks_for_no_fewer(name: str, rates: list[float], last: float, more: float) -> None:
    rules = ScaleRules(signals=("rate",), least=1, most=10_000, tolerance=0.0, fall=0, patience=0)
    memory = follow(name, rates, rules)[-1].memory
    low, high = (
        scaler_named(name).decide(
            view(rules, [Window(at=(len(rates) + 1) * MINUTE, rate=rate, replicas=2)], memory=memory)
        )
        for rate in (last, last + more)
    )
    assert high.replicas >= low.replicas


def test_memory_does_not_grow_for_ever() -> None:
    scales = follow("forecast", [50 + place % 7 for place in range(3000)], window=10 * MINUTE, start_up=HOUR)
    sizes = [len(msgspec.json.encode(scale.memory)) for scale in (scales[2100], scales[-1])]
    assert sizes[1] <= sizes[0] * 1.05
    assert sizes[1] < 64_000


def test_a_week_that_repeats_is_learned_and_proved() -> None:
    """Two hours each Sunday have five times the load; after two of them the third is foreseen."""
    week = [10.0] * 1008
    week[900:912] = [50.0] * 12
    scales = follow("forecast", week * 3, window=10 * MINUTE)
    assert scales[2 * 1008 + 899].replicas >= 5
    learned = scales[-1].memory.learned
    assert learned is not None
    assert {season.period for season in learned.seasons} == {HOUR, DAY, 7 * DAY}


# --- names and rules -------------------------------------------------------------------------------------------------


def test_scalers_are_known_by_name() -> None:
    assert [*SCALERS] == ["forecast", "hpa", "last-value", "ewma", "max-of-six", "static"]
    assert all(scaler_named(name).name == name for name in SCALERS)
    with pytest.raises(KeyError, match="there is no scaler `best`; known: forecast, hpa"):
        scaler_named("best")


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"least": 3, "most": 2}, "not 3..2"),
        ({"least": -1}, "not -1..10"),
        ({"least": 0, "most": 0}, "not 0..0"),
        ({"target": 0.0}, "a target above 0"),
        ({"share": 0.0}, "a share of windows"),
        ({"waiting": 0.0}, "how many may wait"),
    ],
)
def test_rules_that_make_no_sense_are_refused(fields: dict[str, Any], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        ScaleRules(**fields)


def test_hash_seeds_change_nothing() -> None:
    """The verdict as text, from two processes with different seeds."""
    program = (
        "import msgspec; from poise.model.scaling import *; from poise.policy.replicas import SCALERS;"
        "v = ScaleView(now=60, rules=ScaleRules(), window=60, windows=(Window(at=60, rate=49.0, cpu=0.5, replicas=2),),"
        "replicas=(10.0, 20.0), capacity=10.0);"
        "print([msgspec.json.encode(s.decide(v)) for s in SCALERS.values()])"
    )
    said = {
        subprocess.run([sys.executable, "-c", program], env={"PYTHONHASHSEED": seed, "PYTHONPATH": ":".join(sys.path)},
                       capture_output=True, text=True, check=True).stdout
        for seed in ("1", "2")
    }  # fmt: skip
    assert len(said) == 1


# --- beside training -------------------------------------------------------------------------------------------------

SHARED = ScaleRules(signals=("queue",), least=1, most=5, fall=MINUTE, latency_p99=100 * MILLISECOND, shared=True)


@pytest.mark.parametrize(
    ("fields", "replicas", "code"),
    [
        ({"p99": 50, "devices": 0.5, "rate": 9.0}, 2, "SHARED"),  # 0.75 / 2.75 of four, and one: 2.09
        ({"p99": 100, "devices": 1.0, "rate": 9.0}, 3, "SHARED"),  # half of four, and one
        ({"p99": 50, "devices": 0.5, "rate": 39.0}, 4, "SHARED"),  # 39 requests/s, of which each takes ten
        ({"p99": 101, "devices": 0.1, "rate": 9.0}, 5, "MOST"),  # the objective is missed
        ({"p99": 0, "devices": 0.0, "rate": 0.0}, 1, "SHARED"),  # nothing was asked
    ],
)
def test_beside_training_a_service_has_its_weights_part_and_all_where_its_objective_is_missed(
    fields: dict[str, Any], replicas: int, code: str
) -> None:
    last = msgspec.structs.replace(Window(at=MINUTE, replicas=1, **fields), p99=fields["p99"] * MILLISECOND)
    scale = SCALERS["hpa"].decide(view(SHARED, [last], 1, waiting=20))
    assert scale.replicas == replicas
    assert scale.because[-1].code == code


def test_of_the_replicas_that_there_are_as_many_stay_as_take_what_comes_with_room() -> None:
    """Of 70 % of ten requests/s each: 15 are more than two take so, and 13 are not."""
    for there, rate, replicas in ((1, 15.0, 2), (3, 15.0, 3), (3, 13.0, 2)):
        last = Window(at=MINUTE, rate=rate, p99=10 * MILLISECOND, devices=0.5, replicas=there)
        assert SCALERS["hpa"].decide(view(SHARED, [last], there, waiting=20)).replicas == replicas


def test_what_training_has_is_given_back_after_the_fall_and_not_before() -> None:
    missed = Window(at=MINUTE, rate=15.0, p99=150 * MILLISECOND, devices=1.0, replicas=1)
    first = SCALERS["hpa"].decide(view(SHARED, [missed], 1, waiting=20))
    assert (first.replicas, first.cause()) == (5, "20 requests wait, 1 may for each replica")
    calm = Window(at=MINUTE + 10 * SECOND, rate=1.0, p99=10 * MILLISECOND, devices=0.1, replicas=5)
    for later, replicas in ((10, 5), (59, 5), (60, 1)):
        window = msgspec.structs.replace(calm, at=MINUTE + later * SECOND)
        found = SCALERS["hpa"].decide(view(SHARED, [window], 5, memory=first.memory))
        assert found.replicas == replicas


def test_a_missed_objective_cannot_wait_for_the_end_of_a_window_and_nothing_is_learned_of_it() -> None:
    rules = msgspec.structs.replace(SHARED, signals=("rate", "latency"))
    latest = Window(at=SECOND, rate=30.0, p99=210 * MILLISECOND, devices=1.0, replicas=1, refused=0.25)
    scale = SCALERS[DEFAULT_SCALER].decide(view(rules, [], 1, latest=latest))
    assert scale.replicas == 3
    assert scale.cause() == "P99 is 210 ms with 25% of the requests refused, the objective is 100 ms"
    assert (scale.memory.seen, scale.memory.recent, scale.memory.learned) == (None, (), None)


def test_an_objective_that_is_missed_by_a_little_is_missed() -> None:
    rules = ScaleRules(signals=("latency",), least=1, most=4, latency_p99=100 * MILLISECOND)
    for p99, replicas in ((95, 2), (101, 3)):
        window = Window(at=MINUTE, rate=1.0, p99=p99 * MILLISECOND, replicas=2)
        assert SCALERS["hpa"].decide(view(rules, [window], 2)).replicas == replicas


def test_a_missed_objective_asks_for_no_more_replicas_than_there_were_requests_at_one_time() -> None:
    rules = ScaleRules(signals=("latency",), least=1, most=84, latency_p99=100 * MILLISECOND)
    window = Window(at=MINUTE, rate=1.0, p99=8 * SECOND, replicas=1, peak=3)
    scale = SCALERS["hpa"].decide(view(rules, [window], 1))
    assert scale.replicas == 3
    assert scale.cause().endswith("the objective is 100 ms, and no more than 3 requests were there at one time")


def test_requests_that_wait_for_a_start_ask_for_one_replica() -> None:
    rules = ScaleRules(signals=("queue",), least=0, most=84)
    for starting, replicas in ((True, 1), (False, 40)):
        assert SCALERS["hpa"].decide(view(rules, [], 0, waiting=40, starting=starting)).replicas == replicas
