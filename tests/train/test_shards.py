"""A pass takes each sample once, whoever takes it."""

from hypothesis import given
from hypothesis import strategies as st

from poise_train import shards


def test_two_workers_take_halves_of_a_step_in_micro_batches() -> None:
    step = shards.Step(100, 110)
    assert step.share(0, 2, 3) == [shards.Micro(100, 102, False), shards.Micro(102, 105, True)]
    assert step.share(1, 2, 3) == [shards.Micro(105, 107, False), shards.Micro(107, 110, True)]


@given(
    samples=st.integers(1, 300),
    effective=st.integers(1, 64),
    batch=st.integers(1, 64),
    worlds=st.lists(st.integers(1, 9), min_size=1),
)
def test_whatever_the_gang_is_in_each_step_all_samples_are_taken_once(
    samples: int, effective: int, batch: int, worlds: list[int]
) -> None:
    taken = []
    for number, step in enumerate(shards.steps(samples, effective)):
        world = worlds[number % len(worlds)]
        shares = [step.share(rank, world, batch) for rank in range(world)]
        for share in shares:
            assert [micro.last for micro in share] == [False] * (len(share) - 1) + [True] * bool(share)
            assert all(0 < micro.samples <= batch for micro in share)
        counts = [sum(micro.samples for micro in share) for share in shares]
        assert max(counts) - min(counts) <= 1
        taken += [place for share in shares for micro in share for place in range(micro.start, micro.stop)]
    assert taken == list(range(samples))


def test_the_order_of_a_pass_is_its_own_and_comes_again() -> None:
    first = shards.order(50, seed=1, turn=0, shuffle=True).tolist()
    assert sorted(first) == list(range(50))
    assert first == shards.order(50, seed=1, turn=0, shuffle=True).tolist()
    assert first != shards.order(50, seed=1, turn=1, shuffle=True).tolist()
    assert first != shards.order(50, seed=2, turn=0, shuffle=True).tolist()
    assert shards.order(50, seed=1, turn=0, shuffle=False).tolist() == list(range(50))
