"""What is kept of answers, and for how long."""

from hypothesis import given
from hypothesis import strategies as st

from poise_serve.kernel.cache import OVERHEAD, Cache


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


def test_room_is_taken_from_whoever_holds_the_most() -> None:
    cache: Cache[str] = Cache(4 * (OVERHEAD + 10), ttl=100)
    cache.put(b"a", "a", 10, 0, "ann")
    for key in (b"1", b"2", b"3", b"4", b"5"):
        cache.put(key, key.decode(), 10, 0, "bob")
    assert cache.get(b"a", 1) == "a", "bob makes room for himself"
    assert [cache.get(key, 1) for key in (b"1", b"2", b"3", b"4", b"5")] == [None, None, "3", "4", "5"]
    assert cache.evicted == 2
    cache.put(b"b", "b", 10, 1, "ann")
    assert [cache.get(key, 2) for key in (b"a", b"b", b"3", b"4", b"5")] == ["a", "b", None, "4", "5"]


def test_what_is_forgotten_leaves_nothing() -> None:
    cache: Cache[str] = Cache(1000, ttl=100)
    cache.put(b"a", "a", 10, 0, "ann")
    cache.clear()
    assert (cache.get(b"a", 1), cache.size, len(cache)) == (None, 0, 0)
    cache.put(b"a", "b", 10, 0, "bob")
    assert cache.get(b"a", 1) == "b"


OWNERS = ("ann", "bob", "cy")
MOST = 3000

uses = st.tuples(st.sampled_from(OWNERS), st.integers(0, 9), st.integers(0, 900), st.booleans())


@given(st.lists(uses, max_size=80))
def test_nobody_loses_to_others_what_is_within_a_fair_share(asked: list[tuple[str, int, int, bool]]) -> None:
    """Sizes of ann's are such that all she ever has is a third; the others do what they like."""
    cache: Cache[int] = Cache(MOST, ttl=1000)
    anns: dict[bytes, int] = {}
    for now, (owner, number, size, only_look) in enumerate(asked):
        key = f"{owner}{number % 3 if owner == 'ann' else number}".encode()
        if not only_look:
            size = size % (MOST // 9 - OVERHEAD) if owner == "ann" else size
            cache.put(key, now, size, now, owner)
            if owner == "ann":
                anns[key] = now
        else:
            cache.get(key, now)
        assert cache.size <= MOST
        assert all(cache.get(one, now) == value for one, value in anns.items())


@given(st.lists(uses, max_size=80), st.integers(1, 20))
def test_what_is_held_is_what_is_counted(asked: list[tuple[str, int, int, bool]], ttl: int) -> None:
    cache: Cache[int] = Cache(MOST, ttl=ttl)
    for now, (owner, number, size, only_look) in enumerate(asked):
        key = f"{owner}{number}".encode()
        if only_look:
            cache.get(key, now)
        else:
            cache.put(key, size, size, now, owner)
        by_owner = {one: sum(kept.size for kept in cache._kept.values() if kept.owner == one) for one in OWNERS}
        assert cache._held == {one: size for one, size in by_owner.items() if size}
        assert cache.size == sum(by_owner.values())
        assert {one: set(used) for one, used in cache._used.items()} == {
            one: {key for key, kept in cache._kept.items() if kept.owner == one} for one in cache._held
        }
