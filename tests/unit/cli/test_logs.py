"""How output is printed: as it is, or line by line with what each begins with."""

import pytest

from poise.cli.logs import Printer, TimedLines
from poise.model.reports.streams import LogPiece


def piece(data: bytes, rank: int = -1, at: float = 0.0, stream: str = "out", task: str = "j1.main") -> LogPiece:
    return LogPiece(task, 1, stream, data, 0, at, rank)


def printed(
    capsysbinary: pytest.CaptureFixture[bytes], *pieces: LogPiece, timestamps: bool = False, label: bool | None = None
) -> tuple[bytes, bytes]:
    printer = Printer(timestamps=timestamps, label=label)
    for one in pieces:
        printer.print(one)
    printer.close()
    return capsysbinary.readouterr()


def test_output_is_printed_as_it_is(capsysbinary: pytest.CaptureFixture[bytes]) -> None:
    pieces = (piece(b"a\xff"), piece(b"oh", stream="err"), piece(b"b\r\n"))
    assert printed(capsysbinary, *pieces) == (b"a\xffb\r\n", b"oh")


def test_lines_of_several_ranks_are_told_apart(capsysbinary: pytest.CaptureFixture[bytes]) -> None:
    first, second = "j1.main[0]", "j1.main[1]"
    pieces = (
        piece(b"one\ntw", 0, task=first),
        piece(b"other\n", 1, task=second),
        piece(b"o\nlast", 0, task=first),
        piece(b"oh\n", 1, stream="err", task=second),
    )
    lines = b"[rank 0] one\n[rank 1] other\n[rank 0] two\n[rank 0] last\n"
    assert printed(capsysbinary, *pieces) == (lines, b"[rank 1] oh\n")
    assert printed(capsysbinary, *pieces, label=False)[0] == b"one\ntwother\no\nlast"


def test_tasks_are_told_apart_when_asked_for(capsysbinary: pytest.CaptureFixture[bytes]) -> None:
    pieces = (piece(b"one\n", task="j1.fetch"), piece(b"two\n", task="j1.write"))
    assert printed(capsysbinary, *pieces, label=True)[0] == b"[fetch] one\n[write] two\n"


def test_each_line_has_the_time_at_which_it_began(capsysbinary: pytest.CaptureFixture[bytes]) -> None:
    pieces = (piece(b"one\ntw", at=0.25), piece(b"o\n", at=90), piece(b"\n"))
    assert printed(capsysbinary, *pieces, timestamps=True)[0] == (
        b"1970-01-01T00:00:00.250Z one\n1970-01-01T00:00:00.250Z two\n-                        \n"
    )


def test_a_line_that_does_not_end_is_not_held_back_for_ever(capsysbinary: pytest.CaptureFixture[bytes]) -> None:
    printer = Printer(timestamps=False, label=True)
    printer.print(piece(b"x" * 100_000))
    assert len(capsysbinary.readouterr().out) == len("[main] ") + 100_001


def test_each_line_has_its_time_in_json_too() -> None:
    timed = TimedLines()
    for one in (piece(b"one\ntw", at=0.25), piece(b"o\r\n", at=90), piece(b"\nlast", at=91)):
        timed.add(one)
    assert timed.all() == [
        {"at": 0.25, "text": "one"},
        {"at": 0.25, "text": "two\r"},
        {"at": 91, "text": ""},
        {"at": 91, "text": "last"},
    ]
