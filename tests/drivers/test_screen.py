"""Lines that are drawn over and over, as a terminal shows them."""

import io
import re

import pytest

from poise.drivers.screen import Progress, Screen, bar, cropped, drawing


def shows(written: str) -> list[str]:
    """The lines that a terminal shows after this, styles left out. It knows the sequences that `Screen` writes."""
    lines, at = [""], 0
    for part in re.findall(r"\x1b\[[?0-9;]*[A-Za-z]|\r|\n|[^\x1b\r\n]+", written):
        if part == "\n":
            at += 1
            lines += [""] * (at + 1 - len(lines))
        elif part.endswith("A") and part[0] == "\x1b":
            at -= int(part[2:-1])
        elif part == "\x1b[2K":
            lines[at] = ""
        elif part == "\x1b[J":
            lines[at:] = [""]
        elif part[0] not in "\x1b\r":
            lines[at] += part
    return lines[:-1]


@pytest.fixture(autouse=True)
def terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "20")
    monkeypatch.setenv("LINES", "5")


def test_what_is_drawn_takes_the_place_of_what_was() -> None:
    out = io.StringIO()
    screen = Screen(out)
    screen.draw(["one", "two", "three"])
    assert shows(out.getvalue()) == ["one", "two", "three"]
    screen.draw(["four", "\x1b[1mfive\x1b[0m"])
    assert shows(out.getvalue()) == ["four", "five"]
    screen.draw([])
    assert shows(out.getvalue()) == []


def test_what_is_too_wide_or_too_high_is_cut() -> None:
    out = io.StringIO()
    Screen(out).draw([str(number) * 30 for number in range(9)])
    assert shows(out.getvalue()) == [str(number) * 20 for number in range(4)]


@pytest.mark.parametrize(
    ("line", "width", "kept"),
    [
        ("plain", 9, "plain"),
        ("plain", 2, "pl"),
        ("\x1b[31mred\x1b[0m and", 2, "\x1b[31mre\x1b[0m"),
        ("\x1b[31mred\x1b[0m and", 5, "\x1b[31mred\x1b[0m a\x1b[0m"),
        ("一二三", 5, "一二"),
        ("e\u0301e\u0301e\u0301", 2, "e\u0301e\u0301"),
    ],
)
def test_a_line_is_cut_by_its_columns(line: str, width: int, kept: str) -> None:
    assert cropped(line, width) == kept


def test_the_terminal_is_given_back_however_it_ends() -> None:
    out = io.StringIO()
    with pytest.raises(KeyboardInterrupt), drawing(out, whole=True) as screen:
        screen.draw(["one"])
        raise KeyboardInterrupt
    written = out.getvalue()
    assert written.startswith("\x1b[?1049h") and written.endswith("\x1b[?25h\x1b[?1049l")
    out = io.StringIO()
    with drawing(out, transient=True) as screen:
        screen.draw(["one"])
    assert shows(out.getvalue()) == []


def test_progress_is_drawn_ten_times_a_second_at_most_and_in_the_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "100")
    out, now = io.StringIO(), 0.0
    progress = Progress(Screen(out), ["fifo", "poise"], clock=lambda: now)
    progress.at(0, 1, 4)
    progress.at(1, 9, None, "5s")
    assert shows(out.getvalue())[1] == f"poise  {bar(0, None)}  0/?    0:00:00"
    now = 61.0
    progress.at(0, 2, 4)
    assert shows(out.getvalue()) == [
        f"fifo   {bar(2, 4)}  2/4    0:01:01",
        f"poise  {bar(9, None)}  9/?  5s  0:01:01",
    ]
    progress.at(0, 4, 4)
    progress.draw()
    assert shows(out.getvalue())[0] == f"fifo   {'━' * 40}  4/4    0:01:01"
