"""Which prompts a server is believed to keep."""

from random import Random
from statistics import fmean

import hypothesis.strategies as st
import pytest
from hypothesis import given

from poise_serve.model.prefixes import MOST_BLOCKS, Prefixes, blocks_of

BLOCK = 10.0


def use(kept: Prefixes, *blocks: int) -> None:
    kept.use(blocks, BLOCK)


def test_prompts_that_begin_alike_have_the_same_first_blocks() -> None:
    one, other = (blocks_of(text, 4, 100) for text in (b"abcdefgh1234", b"abcdefgh1235tail"))
    assert len(one) == 3
    assert one[:2] == other[:2]
    assert one[2] != other[2]
    assert blocks_of(b"xxxxefgh", 4, 100)[1] != one[1], "a block is named by all that is before it"


def test_only_whole_blocks_count_and_only_so_many() -> None:
    assert len(blocks_of(b"abcdefg", 4, 100)) == 1
    assert len(blocks_of(b"a" * 1000, 4, 7)) == 7
    assert blocks_of(b"", 4, 100) == ()


def test_another_seed_gives_other_blocks() -> None:
    assert blocks_of(b"abcd", 4, 100, b"m") != blocks_of(b"abcd", 4, 100, b"n")


def test_a_prompt_that_was_sent_is_kept_and_so_is_what_begins_like_it() -> None:
    kept = Prefixes(1000)
    assert kept.cached((1, 2, 3)) == 0
    use(kept, 1, 2, 3)
    assert kept.cached((1, 2, 3)) == 3
    assert kept.cached((1, 2, 9)) == 2
    assert kept.cached((9, 12, 13)) == 0
    kept.forget()
    assert kept.cached((1, 2, 3)) == 0


def test_the_least_recently_used_is_forgotten_first_and_the_end_of_a_prompt_before_its_start() -> None:
    kept = Prefixes(50)
    use(kept, 1, 2)
    use(kept, 3, 4)
    use(kept, 1, 2)
    assert kept.cached((3, 4)) == 2
    use(kept, 5, 6, 7, 8)
    assert kept.cached((3, 4)) == 0
    assert kept.cached((1, 2)) == 1
    assert kept.found((1, 2)) == (1, 2), "it is noted that it was there"


def test_what_is_kept_takes_no_room_again() -> None:
    kept = Prefixes(50)
    for _ in range(100):
        use(kept, 1, 2, 3)
    use(kept, 4)
    assert kept.cached((1, 2, 3)) == 3


def test_a_server_that_keeps_nothing_has_nothing() -> None:
    kept = Prefixes(0)
    use(kept, 1, 2)
    use(kept, 3)
    assert kept.cached((1, 2)) == 0


@pytest.mark.parametrize(("believed", "true"), [(400, 80), (40, 320), (300, 0)])
def test_the_size_is_learned_from_what_servers_tell(believed: float, true: float) -> None:
    """Prompts of forty tokens, of which some come again soon and some late."""
    kept, server, random = Prefixes(believed), Prefixes(true), Random(1)  # noqa: S311
    sizes = []
    for _ in range(1000):
        prompt = min(int(random.expovariate(0.2)), 19)
        blocks = tuple(range(prompt * 4, prompt * 4 + 4))
        before, cached = kept.found(blocks), server.cached(blocks)
        use(kept, *blocks)
        use(server, *blocks)
        kept.told(before, cached)
        sizes.append(kept.size)
    assert fmean(sizes[500:]) == pytest.approx(true, rel=0.5, abs=20)


def test_a_server_with_larger_blocks_is_not_taken_for_a_smaller_one() -> None:
    """It tells whole blocks of its own: vLLM's have 128 tokens on CPUs, which are two of ours."""
    kept = Prefixes(1000)
    for length in range(1, 40):
        before = kept.found(range(length))
        use(kept, *range(length))
        kept.told(before, (length - 1) // 2 * 2)
    assert kept.size == 1000


def test_what_is_noted_is_bounded() -> None:
    kept = Prefixes(1e12)
    for prompt in range(60):
        blocks = tuple(range(prompt * 4096, (prompt + 1) * 4096))
        use(kept, *blocks)
    assert kept.cached(tuple(range(4096))) == 0, f"at most {MOST_BLOCKS} blocks are noted"
    assert kept.cached(blocks) == 4096


@given(
    st.lists(st.tuples(st.sampled_from(["use", "told"]), st.lists(st.integers(0, 9), max_size=6), st.integers(0, 9))),
    st.floats(0, 1e9),
)
def test_whatever_is_told_what_is_kept_is_a_beginning(steps: list[tuple[str, list[int], int]], size: float) -> None:
    """A block is named by all that is before it: no two prompts have the same blocks in another order."""
    kept = Prefixes(size)
    for what, drawn, cached in steps:
        blocks = tuple(blocks_of(bytes(drawn), 1, 100))
        if what == "use":
            use(kept, *blocks)
        else:
            kept.told(kept.found(blocks), cached)
        found = kept.cached(blocks)
        assert 0 <= found <= len(blocks)
        assert all(kept.cached(blocks[:length]) == min(found, length) for length in range(len(blocks)))
        assert kept.size >= 0
