"""Phases of training: told in order, once each, whatever the scale and the noise, and from a memory of bounded size."""

import math
from itertools import pairwise
from random import Random

import msgspec
from hypothesis import given, settings
from hypothesis import strategies as st

from poise.model.training import Phase
from poise_train.model.phases import Pace, PhaseMemory, PhaseRules, PhaseView, Step
from poise_train.policy.phases import POINTS, Phases, is_due, pace_of

TOTAL = 800
ORDER: tuple[Phase, ...] = ("convergence", "fine-tuning")


def fall(*, seed: int = 0, noise: float = 0.03, knee: int = 25, total: int = TOTAL, scale: float = 1.0) -> list[Step]:
    """A loss that falls fast, then in inverse proportion to the steps, and a gradient that goes with it."""
    draw = Random(seed)  # noqa: S311
    steps = []
    for step in range(total):
        loss = 0.1 + 1.7 * math.exp(-step / knee) + 0.5 / (1 + step / knee)
        seen = loss * (1 + noise * draw.gauss(0, 1))
        steps.append(Step(step=step, loss=scale * seen, norm=scale * loss * (1 + draw.random()), rate=0.1))
    return steps


def told(steps: list[Step], *, total: int = TOTAL) -> list[tuple[int, Phase]]:
    return list(Phases().decide(PhaseView(steps=tuple(steps), total=total)).changes)


def test_a_run_goes_through_its_phases_in_order() -> None:
    (knee, first), (level, second) = told(fall())
    assert (first, second) == ORDER
    assert 40 < knee < 120
    assert 180 < level < 360


@settings(max_examples=40, deadline=None)
@given(
    st.integers(0, 10**6), st.floats(0.0, 0.15), st.integers(10, 60), st.integers(500, 1500), st.sampled_from([0, 1])
)
def test_nothing_changes_back_and_forth_under_noise(seed: int, noise: float, knee: int, total: int, known: int) -> None:
    phases = [phase for _, phase in told(fall(seed=seed, noise=noise, knee=knee, total=total), total=known * total)]
    assert phases == list(ORDER[: len(phases)])


@settings(max_examples=30, deadline=None)
@given(st.integers(0, 10**6), st.lists(st.floats(allow_nan=True, allow_infinity=True), min_size=1, max_size=300))
def test_whatever_the_losses_are_a_phase_follows_only_its_own(seed: int, losses: list[float]) -> None:
    draw = Random(seed)  # noqa: S311
    steps = [
        Step(step=3 * number, loss=loss, norm=draw.choice([-1.0, 0.0, 1e200, math.inf, math.nan]), rate=draw.random())
        for number, loss in enumerate(losses)
    ]
    phases: list[Phase] = ["initial", *(phase for _, phase in told(steps))]
    follows = {"initial": "convergence", "convergence": "fine-tuning"}
    assert all(now in ("initial", follows.get(before)) for before, now in pairwise(phases))


@settings(max_examples=30, deadline=None)
@given(st.integers(0, 10**6), st.integers(1, TOTAL - 1))
def test_a_run_that_is_gone_on_with_is_told_as_if_it_had_not_stopped(seed: int, stop: int) -> None:
    """And the memory comes through a checkpoint; steps that are done again do not count twice."""
    steps = fall(seed=seed)
    whole = Phases().decide(PhaseView(steps=tuple(steps), total=TOTAL))
    first = Phases().decide(PhaseView(steps=tuple(steps[:stop]), total=TOTAL))
    kept = msgspec.json.decode(msgspec.json.encode(first.memory), type=PhaseMemory)
    again = steps[max(0, stop - 30) :]
    second = Phases().decide(PhaseView(steps=tuple(again), total=TOTAL, memory=kept))
    assert second.memory == whole.memory
    assert first.changes + second.changes == whole.changes


@settings(max_examples=20, deadline=None)
@given(st.integers(0, 10**6), st.sampled_from([2.0**-40, 2.0**-3, 2.0**20]))
def test_the_scale_of_the_loss_makes_no_difference(seed: int, scale: float) -> None:
    assert told(fall(seed=seed, scale=scale)) == told(fall(seed=seed))


def test_a_spike_is_no_new_run_and_a_leap_that_stays_is() -> None:
    steps = fall()
    spiked = [msgspec.structs.replace(one, loss=50.0) if one.step % 97 == 0 and one.step else one for one in steps]
    assert [phase for _, phase in told(spiked)] == list(ORDER)
    leapt = [msgspec.structs.replace(one, step=one.step + TOTAL) for one in steps]
    changes = told(steps + leapt, total=2 * TOTAL)
    assert [phase for _, phase in changes] == [*ORDER, "initial", *ORDER]
    assert TOTAL <= changes[2][0] < TOTAL + 20


def test_a_level_that_a_lower_learning_rate_makes_is_told() -> None:
    """The loss keeps on falling at one rate, until that drops."""
    steps = [
        Step(step=step, loss=3 * math.exp(-step / 20) + 1 - min(step, 500) / 1000, rate=0.1 if step < 500 else 0.01)
        for step in range(TOTAL)
    ]
    (_, first), (level, second) = told(steps)
    assert (first, second) == ORDER
    assert 500 < level < 680


def test_while_the_rate_has_never_been_so_high_a_run_has_only_begun() -> None:
    """As under OneCycleLR: it rises for a third of the run, and the loss has been level for long by then."""
    warm = TOTAL // 3

    def rate(step: int) -> float:
        return 0.1 * (0.04 + 0.96 * (step / warm if step < warm else (TOTAL - step) / (TOTAL - warm)))

    (begun, first), (level, second) = told([msgspec.structs.replace(one, rate=rate(one.step)) for one in fall()])
    assert (first, second) == ORDER
    assert warm < begun < warm + TOTAL // 10
    assert level > TOTAL // 2
    stairs = [msgspec.structs.replace(one, rate=0.004 * min(26, 1 + one.step // 10)) for one in fall()]
    assert [250 < told(stairs)[0][0] < 290, told(stairs)[0][1]] == [True, "convergence"]


def test_loud_gradients_put_fine_tuning_off_and_quiet_ones_bring_it_nearer() -> None:
    rules = PhaseRules(lean=2.0)

    def level(late: float) -> int:
        draw = Random(1)  # noqa: S311
        steps = []
        for one in fall():
            spread = 1.0 if one.step < 100 else late
            steps.append(msgspec.structs.replace(one, norm=5 + spread * draw.random()))
        verdict = Phases().decide(PhaseView(steps=tuple(steps), total=TOTAL, rules=rules))
        return {phase: at for at, phase in verdict.changes}.get("fine-tuning", TOTAL)

    assert level(0.01) < level(0.2) < level(1.0)


def test_the_memory_stays_small() -> None:
    memory = PhaseMemory()
    for start in range(0, 20_000, 500):
        steps = tuple(Step(step=start + step, loss=1 / (1 + start + step), norm=1.0) for step in range(500))
        memory = Phases().decide(PhaseView(steps=steps, memory=memory)).memory
    assert len(memory.curve) <= POINTS
    assert len(msgspec.json.encode(memory)) < 8000


def test_fine_tuning_is_looked_at_and_told_of_more_rarely_and_in_full_precision() -> None:
    rules = PhaseRules()
    tuning, before = pace_of("fine-tuning", rules), pace_of("initial", rules)
    assert tuning.look > before.look
    assert tuning.tell > before.tell
    assert (before.precision, tuning.precision) == ("", "fp32")
    own = PhaseRules(tuning=Pace(look=100, precision="bf16"))
    assert Phases().decide(PhaseView(steps=(), rules=own, memory=PhaseMemory(phase="fine-tuning"))).pace == own.tuning


def test_of_some_steps_the_gradient_is_looked_at() -> None:
    rules = PhaseRules()
    assert [step for step in range(12) if is_due(step, PhaseMemory(), rules)] == [0, 4, 8]
    tuning = PhaseMemory(phase="fine-tuning")
    assert [step for step in range(20) if is_due(step, tuning, rules)] == [0, 8, 16]
