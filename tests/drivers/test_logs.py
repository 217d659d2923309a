"""Reading, following and pruning what commands wrote."""

import asyncio
import os
from pathlib import Path

import pytest

from poise.drivers import keeper
from poise.drivers.keeper import note_time, punch
from poise.drivers.logs import Moments, Piece, follow, last_lines, line_at, prune, read


def test_a_log_is_read_in_parts(tmp_path: Path) -> None:
    path = tmp_path / "x.out"
    path.write_bytes(b"0123456789")
    assert read(path) == b"0123456789"
    assert read(path, 4, 3) == b"456"
    assert read(path, -3) == b"789"
    assert read(path, -100) == b"0123456789"
    assert read(path, 10) == b""
    assert read(tmp_path / "none") == b""


def test_it_is_known_when_a_byte_was_written(tmp_path: Path) -> None:
    path = tmp_path / "x.out"
    moments = Moments(path)
    assert (moments.at(0)[0], moments.since(5)) == (0, 0)
    path.write_bytes(b"one\ntwo\nthree\n")
    os.utime(path, ns=(9_000, 9_000))
    assert moments.at(3)[0] == 9_000
    note_time(str(path), 4, 1_000)
    note_time(str(path), 8, 2_000)
    note_time(str(path), 8, 3_000)  # said again
    assert [moments.at(offset) for offset in (0, 3, 4, 7)] == [(1_000, 4)] * 2 + [(2_000, 8)] * 2
    assert moments.at(8)[0] == 9_000
    assert [moments.since(time) for time in (1, 1_000, 1_001, 2_000, 2_001, 9_000, 9_001)] == [0, 0, 4, 4, 8, 8, 14]


def test_the_index_of_a_log_is_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(keeper, "TIMES_LIMIT", 1600)
    path = tmp_path / "x.out"
    path.write_bytes(bytes(1000))
    for size in range(1, 1001):
        note_time(str(path), size, 10 * size)
    index = Path(f"{path}{keeper.TIMES}")
    assert 0 < index.stat().st_size <= 1600
    moments = Moments(path)
    times = [moments.at(offset)[0] for offset in range(1000)]
    assert times == sorted(times)
    assert all(10 * (offset + 1) <= time <= 10 * (offset + 1 + 60) for offset, time in enumerate(times[:-60]))
    with index.open("ab") as file:
        file.write(b"torn")
    note_time(str(path), 1001, 10_010)
    assert Moments(path).at(1000)[0] == 10_010


def test_a_line_is_found_by_a_place_in_it(tmp_path: Path) -> None:
    path = tmp_path / "x.out"
    path.write_bytes(b"one\ntwo\nthree")
    assert [line_at(path, offset) for offset in (0, 3, 4, 6, 7, 8, 13)] == [0, 0, 4, 4, 4, 8, 8]
    path.write_bytes(b"x" * 200_000)
    assert line_at(path, 150_000) == 150_000


def test_the_index_goes_with_its_log(tmp_path: Path) -> None:
    for job in ("j1", "j2"):
        path = tmp_path / job / "main.1.out"
        path.parent.mkdir()
        path.write_bytes(b"some")
        note_time(str(path), 2, 1)
        os.utime(path, (int(job[1:]), int(job[1:])))
    assert prune(tmp_path, 2**30, 1).left_files == 1
    assert sorted(path.name for path in tmp_path.glob("*/*")) == ["main.1.out", "main.1.out.times"]


def test_the_log_of_a_quiet_command_that_runs_is_not_pruned(tmp_path: Path) -> None:
    paths = [tmp_path / job / "main.1.out" for job in ("j1", "j2", "j3")]
    for number, path in enumerate(paths, 1):
        path.parent.mkdir()
        path.write_bytes(b"some")
        os.utime(path, (number, number))
    with paths[0].open("ab") as output:
        assert prune(tmp_path, 2**30, 1).files == 2
        output.write(b" more")
    assert paths[0].read_bytes() == b"some more"
    assert prune(tmp_path, 2**30, 0).left_files == 0


def test_the_last_lines_are_found(tmp_path: Path) -> None:
    path = tmp_path / "x.out"
    assert last_lines(path, 3) == 0
    for text, lines, then in (
        (b"", 1, b""),
        (b"a\nb\nc\n", 0, b""),
        (b"a\nb\nc\n", 2, b"b\nc\n"),
        (b"a\nb\nc", 2, b"b\nc"),
        (b"a\n\n", 1, b"\n"),
        (b"a\nb\n", 9, b"a\nb\n"),
        (b"x" * 200_000 + b"\n" + b"y" * 100_000, 1, b"y" * 100_000),
        (b"no newline", 1, b"no newline"),
    ):
        path.write_bytes(text)
        assert text[last_lines(path, lines) :] == then
    path.write_bytes(b"old\n" * 16384 + b"end\n")
    with path.open("r+b") as file:
        assert punch(file.fileno(), 0, 65536)
    assert read(path, last_lines(path, 5)) == b"end\n"


def test_holes_are_passed_over(tmp_path: Path) -> None:
    path = tmp_path / "x.out"
    path.write_bytes(b"a" * 65536 + b"end")
    with path.open("r+b") as file:
        assert punch(file.fileno(), 0, 65536)
    assert read(path) == b"end"
    os.truncate(path, 1 << 20)
    assert read(path, 1 << 19) == b""


def test_following_gives_both_streams_until_the_end(tmp_path: Path) -> None:
    out, err = tmp_path / "x.out", tmp_path / "x.err"
    ended = False
    pieces: list[Piece] = []

    async def write() -> None:
        nonlocal ended
        await asyncio.sleep(0.02)
        out.write_bytes(b"one ")
        await asyncio.sleep(0.05)
        err.write_bytes(b"wrong")
        with out.open("ab") as file:
            file.write(b"two")
        ended = True

    async def story() -> None:
        writing = asyncio.ensure_future(write())
        pieces.extend([piece async for piece in follow(out, err, lambda: ended)])
        await writing

    asyncio.run(asyncio.wait_for(story(), 5))
    assert b"".join(one.data for one in pieces if one.stream == "out") == b"one two"
    assert b"".join(one.data for one in pieces if one.stream == "err") == b"wrong"


def test_following_goes_on_from_where_it_was(tmp_path: Path) -> None:
    out = tmp_path / "x.out"
    out.write_bytes(b"a" * 200_000)

    async def story() -> list[Piece]:
        return [piece async for piece in follow(out, tmp_path / "none", lambda: True, (100_000, 0))]

    pieces = asyncio.run(story())
    assert sum(len(one.data) for one in pieces) == 100_000
    assert [one.offset for one in pieces] == [100_000, 165_536]


def test_a_log_that_was_cut_is_read_from_its_start(tmp_path: Path) -> None:
    path = tmp_path / "x.out"
    path.write_bytes(b"new")
    assert read(path, 1000) == b"new"


def test_the_oldest_logs_go_first(tmp_path: Path) -> None:
    for number in range(6):
        path = tmp_path / f"j{number // 2}" / f"t{number}.out"
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(b"x" * 4096)
        os.utime(path, (number, number))
    (tmp_path / ".slot-0.out").write_bytes(b"")
    held = tmp_path / "j0" / "t0.out"
    pruned = prune(tmp_path, keep_bytes=1 << 30, keep_files=3, held=[held])
    assert pruned.files == 3
    left = sorted(path.name for path in tmp_path.glob("*/*"))
    assert left == ["t0.out", "t4.out", "t5.out"]
    assert not (tmp_path / "j1").exists()
    assert prune(tmp_path, keep_bytes=4096, keep_files=100).left_files == 1
    assert (tmp_path / ".slot-0.out").exists()
