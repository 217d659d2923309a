"""What is kept of answers, and for how long."""

from hypothesis import given
from hypothesis import strategies as st

from poise.kernel.cache import OVERHEAD, Cache


def test_the_latest_used_stay() -> None:
    cache: Cache[str] = Cache(3 * (OVERHEAD + 10), ttl=100)
    for key in (b"a", b"b", b"c"):
        cache.put(key, key.decode(), 10, 0)
    assert cache.get(b"a", 1) == "a"
    cache.put(b"d", "d", 10, 1)
    assert [cache.get(key, 2) for key in (b"a", b"b", b"c", b"d")] == ["a", None, "c", "d"]


def test_nothing_is_told_that_is_too_old() -> None:
    cache: Cache[str] = Cache(10_000, ttl=100)
    cache.put(b"a", "a", 1, 0)
    assert cache.get(b"a", 99) == "a"
    assert cache.get(b"a", 100) is None
    assert cache.size == 0


def test_what_is_too_large_alone_is_not_kept_and_costs_nobody_a_place() -> None:
    cache: Cache[str] = Cache(1000, ttl=100)
    cache.put(b"a", "a", 1, 0)
    cache.put(b"b", "b", 1000, 0)
    assert (cache.get(b"a", 1), cache.get(b"b", 1)) == ("a", None)


@given(st.lists(st.tuples(st.integers(0, 9), st.integers(0, 900)), max_size=60))
def test_it_is_never_larger_than_it_may_be(puts: list[tuple[int, int]]) -> None:
    cache: Cache[int] = Cache(2000, ttl=30)
    for now, (key, size) in enumerate(puts):
        cache.put(bytes([key]), size, size, now)
        assert cache.size <= 2000
        assert cache.get(bytes([key]), now) in (size, None)
    assert cache.size == sum(kept.size for kept in cache._kept.values())
