"""How large a micro-batch is."""

from dataclasses import dataclass

import pytest
from hypothesis import given
from hypothesis import strategies as st

from poise_train.policy.tuning import (
    LEAST,
    MOST,
    Keep,
    Resize,
    Short,
    TrainView,
    Tuning,
    effective_of,
    evened,
    rate_for,
)

MIB = 1 << 20
decide = Tuning().decide


@dataclass
class Worker:
    """One that has `free` bytes for a micro-batch, of which a sample takes `each`. It thinks that it takes `thinks`."""

    free: int
    each: int
    thinks: int
    share: int = 512
    batch: int = 8
    short: Short | None = None
    failures: int = 0

    def step(self) -> int:
        """One step: a try, and what is made of it. Returns the samples of a micro-batch afterwards."""
        failed = self.batch * self.each > self.free
        self.failures += failed
        tried = self.batch if failed else 0
        verdict = decide(
            TrainView(
                share=self.share, batch=self.batch, each=self.thinks, free=self.free, tried=tried, short=self.short
            )
        )
        self.short = verdict.short
        if isinstance(verdict, Resize):
            assert verdict.batch * verdict.accumulation >= self.share
            assert verdict.batch * (verdict.accumulation - 1) < self.share
            self.batch = verdict.batch
        return self.batch


def test_it_doubles_until_the_share_is_one_micro_batch() -> None:
    worker = Worker(free=2000 * MIB, each=MIB, thinks=MIB)
    assert [worker.step() for _ in range(8)] == [16, 32, 64, 128, 256, 512, 512, 512]


def test_it_keeps_to_four_fifths_of_what_is_free() -> None:
    worker = Worker(free=100 * MIB, each=MIB, thinks=MIB)
    sizes = [worker.step() for _ in range(8)]
    assert sizes[-1] == 74  # 7 micro-batches of 512 samples: the smallest that are no more than those of 80
    assert not worker.failures


def test_it_is_halved_where_memory_was_short_and_the_effective_batch_is_the_same() -> None:
    view = TrainView(share=256, batch=64, free=MIB, tried=64, rate=0.1, effective=512)
    assert decide(view) == Resize(32, 8, 0.1, Short(64, MIB))


def test_samples_that_take_more_than_was_thought_are_met_a_few_times_only() -> None:
    worker = Worker(free=100 * MIB, each=MIB, thinks=MIB // 10)
    sizes = [worker.step() for _ in range(40)]
    assert worker.failures <= 4
    assert len(set(sizes[-20:])) == 1, "it settles"
    assert 50 <= sizes[-1] <= 100


def test_it_grows_again_when_much_more_is_free_and_shrinks_when_less_is() -> None:
    worker = Worker(free=100 * MIB, each=MIB, thinks=MIB // 10)
    for _ in range(40):
        worker.step()
    worker.free = 1000 * MIB
    assert [worker.step() for _ in range(6)][-1] == 512
    assert worker.short is None
    worker.thinks = MIB
    worker.free = 50 * MIB
    assert worker.step() <= 50


def test_nothing_is_changed_by_a_little_more_memory() -> None:
    view = TrainView(share=512, batch=74, each=MIB, free=100 * MIB)
    assert decide(view) == Keep()
    assert decide(TrainView(share=512, batch=74, each=MIB, free=105 * MIB)) == Keep()


def test_one_sample_is_the_least() -> None:
    assert decide(TrainView(share=4, batch=1, each=MIB, free=0, tried=1)) == Keep(Short(1, 0))
    assert decide(TrainView(share=4, batch=2, each=MIB, free=0)) == Resize(1, 4, 0.0)


def test_where_nothing_is_known_of_samples_it_stays() -> None:
    assert decide(TrainView(share=64, batch=16, free=MIB)) == Keep()


def test_a_smaller_share_is_no_longer_cut_as_before() -> None:
    assert decide(TrainView(share=40, batch=64)) == Resize(40, 1, 0.0)


@pytest.mark.parametrize(("rule", "rate"), [("linear", 0.4), ("sqrt", 0.2), ("none", 0.1)])
def test_the_learning_rate_goes_with_an_effective_batch_that_is_asked_for(rule: str, rate: float) -> None:
    verdict = decide(TrainView(share=64, batch=64, rate=0.1, effective=256, asked=1024, rule=rule))  # type: ignore[arg-type]
    assert verdict == (Keep() if rate == 0.1 else Resize(64, 1, rate))
    assert rate_for(0.1, 0, 1024, "linear") == 0.1


@given(st.integers(1, 5000), st.integers(1, 5000))
def test_micro_batches_are_of_one_size_and_as_few(share: int, batch: int) -> None:
    size, count = evened(share, batch)
    assert size <= batch
    assert size * (count - 1) < share <= size * count
    assert count == -(-share // min(batch, share))


@given(st.integers(1, 1 << 20), st.integers(1, 64))
def test_the_effective_batch_is_within_its_range(fits: int, world: int) -> None:
    size = effective_of(fits, world)
    assert LEAST <= size <= MOST
    assert size & (size - 1) == 0
    assert size <= max(LEAST, fits * world)


@given(
    st.integers(1, 2048), st.integers(1, 1 << 30), st.integers(1, 1 << 30), st.integers(1, 1 << 36), st.integers(1, 64)
)
def test_it_always_settles(share: int, each: int, thinks: int, free: int, batch: int) -> None:
    """Whatever samples take and whatever is thought of that: the size is the same for ever after a while."""
    worker = Worker(free=free, each=each, thinks=thinks, share=share, batch=min(batch, share))
    sizes = [worker.step() for _ in range(80)]
    assert len(set(sizes[-20:])) == 1
    assert sizes[-1] == 1 or sizes[-1] * each <= free
