"""Bodies in memory that two processes see: as they were written, whatever their sizes, and never beyond its end."""

import os
from collections.abc import Iterator

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from poise_serve import shared
from poise_serve.shared import SHARED_FROM, Reader, Writer, make_buffer
from poise_serve.wire import Place

MIB = 1 << 20


@pytest.fixture
def buffer() -> Iterator[int]:
    made = make_buffer()
    yield made
    os.close(made)


def ends(buffer: int) -> tuple[Writer, Reader]:
    return Writer(os.dup(buffer)), Reader(os.dup(buffer))


def memory(buffer: int) -> int:
    """Bytes of it that take memory."""
    return os.fstat(buffer).st_blocks * 512


@settings(deadline=None, max_examples=40)
@given(
    st.lists(st.tuples(st.lists(st.integers(0, 5 * SHARED_FROM), max_size=6), st.booleans()), min_size=1, max_size=5)
)
def test_what_is_read_is_what_was_written_also_while_the_next_batch_is_written_beside_it(
    batches: list[tuple[list[int], bool]],
) -> None:
    buffer = make_buffer()
    writer, reader = ends(buffer)
    before: tuple[list[bytes | memoryview], list[bytes | memoryview]] = [], []
    for batch, beside in batches:
        bodies: list[bytes | memoryview] = [os.urandom(size) for size in batch]
        sent, places = writer.place(bodies, beside=beside)
        assert not beside or before[0] == before[1]
        read: list[bytes | memoryview] = list(sent)
        for place in places:
            assert sent[place.number] == b"" and place.at % shared.ALIGNED == 0
            read[place.number] = reader.at(place)
        assert read == bodies
        before = read, bodies
        assert all(len(body) < SHARED_FROM for body in sent), "what is large is not sent"
    writer.close()
    reader.close()
    os.close(buffer)


def test_a_small_batch_beside_a_large_one_leaves_it_whole(buffer: int) -> None:
    """The reader may still need the large one, also if it is no larger than the least that is shared."""
    writer, reader = ends(buffer)
    for size in (SHARED_FROM, SHARED_FROM + 1, MIB + 1):
        body = os.urandom(size)
        _, places = writer.place([body])
        assert writer.place([b"small"], beside=True) == ([b"small"], [])
        assert reader.at(places[0]) == body
        for _ in range(200):
            writer.place([b"small"])
        assert memory(buffer) == 0


def test_memory_is_used_again_and_given_back_when_it_was_far_too_much(buffer: int) -> None:
    writer, reader = ends(buffer)
    writer.place([b"x" * (32 * MIB)])
    assert memory(buffer) == 32 * MIB
    writer.place([b"y" * (32 * MIB)])
    assert memory(buffer) == 32 * MIB
    for _ in range(200):
        _, places = writer.place([b"z" * MIB])
    assert memory(buffer) <= 5 * MIB
    assert reader.at(places[0]) == b"z" * MIB
    _, places = writer.place([b"x" * (32 * MIB)])
    assert reader.at(places[0]) == b"x" * (32 * MIB), "and it grows again"


def test_memory_is_given_back_where_only_small_bodies_come_after_large_ones(buffer: int) -> None:
    writer, _ = ends(buffer)
    writer.place([b"x" * (32 * MIB)])
    for _ in range(1000):
        writer.place([b"small"])
    assert memory(buffer) == 0


def test_nobody_can_make_it_smaller_or_read_beyond_its_end(buffer: int) -> None:
    writer, reader = ends(buffer)
    writer.place([b"x" * MIB])
    with pytest.raises(PermissionError):
        os.ftruncate(buffer, 0)
    for place in (Place(0, 0, MIB + 1), Place(0, MIB, 1), Place(0, -1, 5), Place(0, 5, -1), Place(0, 1 << 62, 1)):
        with pytest.raises(ValueError, match="place"):
            reader.at(place)


def test_a_view_outlives_its_reader(buffer: int) -> None:
    writer, reader = ends(buffer)
    _, places = writer.place([b"x" * MIB])
    view = reader.at(places[0])
    reader.close()
    writer.close()
    assert bytes(view[:3]) == b"xxx"
    with pytest.raises(TypeError):
        view[0] = 1
