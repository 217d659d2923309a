"""The message about output that is gone, because a log keeps only the newest part of each stream."""

import contextlib
from collections.abc import Iterator
from types import SimpleNamespace
from typing import cast

import msgspec
import pytest

from poise.cli.gaps import telling_gaps
from poise.client import streams
from poise.client.link import Link
from poise.model.reports.streams import LogEnd, LogLine, LogPiece


def piece(offset: int, data: bytes, stream: str = "out", epoch: int = 1) -> LogPiece:
    return LogPiece("j1.main", epoch, stream, data, offset)


def messages(capsys: pytest.CaptureFixture[str], *lines: LogLine, whole: bool = True) -> int:
    assert list(telling_gaps(iter(lines), whole=whole)) == list(lines)
    said = capsys.readouterr().err
    assert all("a part of the output of j1.main is gone" in line for line in said.splitlines())
    return len(said.splitlines())


def test_output_without_gaps_has_no_message(capsys: pytest.CaptureFixture[str]) -> None:
    lines = piece(0, b"one"), piece(0, b"oh", "err"), piece(3, b"two"), piece(0, b"again", epoch=2), LogEnd(0)
    assert not messages(capsys, *lines)


def test_output_of_unknown_position_has_no_message(capsys: pytest.CaptureFixture[str]) -> None:
    assert not messages(capsys, piece(-1, b"one"), piece(-1, b"two"))


def test_output_whose_beginning_is_gone_has_a_message(capsys: pytest.CaptureFixture[str]) -> None:
    assert messages(capsys, piece(4096, b"last"), LogEnd(0)) == 1


def test_output_that_a_slow_reader_has_missed_has_one_message(capsys: pytest.CaptureFixture[str]) -> None:
    lines = piece(0, b"one"), piece(4096, b"two"), piece(8192, b"three"), piece(4096, b"oh", "err")
    assert messages(capsys, *lines) == 1


def test_the_last_lines_alone_have_no_message(capsys: pytest.CaptureFixture[str]) -> None:
    assert not messages(capsys, piece(4096, b"last\n"), piece(4101, b"one"), whole=False)
    assert messages(capsys, piece(4096, b"last\n"), piece(8192, b"one"), whole=False) == 1


class BrokenOnce:
    """A link whose first connection ends after three bytes of output."""

    turn = 0
    home = SimpleNamespace(doors=())

    def __init__(self) -> None:
        self._answers: list[list[LogLine]] = [[piece(0, b"one")], [piece(0, b"onetwo"), piece(6, b"three"), LogEnd(0)]]

    def find_leader(self) -> None:
        pass

    def status(self) -> None:
        pass

    @contextlib.contextmanager
    def stream(self, path: str) -> Iterator[list[bytes]]:
        yield [msgspec.json.encode(line) for line in self._answers.pop(0)]


def test_a_lost_connection_makes_no_gap(capsys: pytest.CaptureFixture[str]) -> None:
    lines = list(streams.logs(cast(Link, BrokenOnce()), "j1", follow=True))
    assert not messages(capsys, *lines)
    assert [line.data for line in lines if isinstance(line, LogPiece)] == [b"one", b"two", b"three"]
