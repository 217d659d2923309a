"""What a command is given: each byte has its place, and what may be asked for again is kept."""

import os
import threading
from pathlib import Path

import pytest

from poise.drivers.giving import AT_ONCE, Bytes, Giving, Source, comes_in
from poise.errors import Fault


def whole(source: Source) -> bytes:
    """All that a source gives, as a command would take it that takes at most 1000 bytes of each piece."""
    taken, end = b"", False
    while not end:
        data, end = source.next(len(taken))
        taken, end = taken + data[:1000], end and len(data) <= 1000
    return taken


def piped(data: bytes) -> int:
    """The end of a pipe from which this comes."""
    reads, writes = os.pipe()

    def write() -> None:
        with open(writes, "wb") as file:  # noqa: PTH123 — a file descriptor
            file.write(data)

    threading.Thread(target=write).start()
    return reads


def test_a_file_is_given_from_where_it_is_and_again(tmp_path: Path) -> None:
    path = tmp_path / "x"
    path.write_bytes(b"skipped" + bytes(5000))
    with path.open("rb", buffering=0) as file:
        file.seek(7)
        giving = Giving(file.fileno(), kept=10)
        assert whole(giving) == whole(giving) == bytes(5000)


def test_a_pipe_is_given_again_as_far_as_it_is_kept() -> None:
    data = os.urandom(100_000)
    giving = Giving(piped(data))
    assert whole(giving) == whole(giving) == data
    assert giving.next(len(data)) == (b"", True)


def test_what_is_no_longer_kept_is_told() -> None:
    data = os.urandom(3 * AT_ONCE)
    giving = Giving(piped(data), kept=AT_ONCE)
    assert whole(giving) == data, "what was not taken is kept in any case"
    with pytest.raises(Fault, match="was restarted"):
        giving.next(0)


def test_where_nothing_comes_for_a_while_nothing_is_given(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("poise.drivers.giving.LOOK_SECONDS", 0.01)
    reads, writes = os.pipe()
    giving = Giving(reads)
    assert giving.next(0) == (b"", False)
    os.write(writes, b"x")
    assert giving.next(0) == (b"x", False)
    os.close(writes)
    assert giving.next(1) == (b"", True)
    assert giving.next(0) == (b"x", True)


@pytest.mark.parametrize("size", [0, 1, AT_ONCE, AT_ONCE + 1])
def test_bytes_are_given_to_their_end(size: int) -> None:
    assert whole(Bytes(bytes(size))) == bytes(size)


def test_a_file_and_a_pipe_come_in_and_nothing_else_does(tmp_path: Path) -> None:
    reads, writes = os.pipe()
    os.close(writes)
    null, main = os.open("/dev/null", os.O_RDONLY), os.openpty()[1]
    file = os.open(tmp_path / "x", os.O_CREAT | os.O_RDONLY)
    assert [comes_in(fd) for fd in (reads, file, null, main, 9999)] == [True, True, False, False, False]


def test_a_device_without_end_gives_input() -> None:
    """`poise run -- head -c 5 < /dev/zero` used to get none, without a word."""
    with open("/dev/zero", "rb", buffering=0) as zero, open("/dev/null", "rb", buffering=0) as null:  # noqa: PTH123
        assert [comes_in(zero.fileno()), comes_in(null.fileno())] == [True, False]
        assert Giving(zero.fileno()).next(0) == (bytes(AT_ONCE), False)
