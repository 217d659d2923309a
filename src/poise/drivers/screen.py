"""Lines that are redrawn in a terminal: in place, or on the alternate screen.

A line may be styled by SGR sequences, as `click.style` writes them. Lines are cropped to the terminal's size. The
cursor is hidden while drawing, and always restored.
"""

import contextlib
import re
import shutil
import time
import unicodedata
from collections.abc import Callable, Iterator, Sequence
from typing import TextIO

RESET = "\x1b[0m"
BAR = 40
"""Columns of a progress bar."""

EVERY = 0.1
"""Minimum seconds between two drawings of progress."""

_STYLE = re.compile(r"(\x1b\[[0-9;]*m)")


class Screen:
    """Draws lines over the ones that it drew before."""

    def __init__(self, out: TextIO) -> None:
        self._out = out
        self._drawn = 0

    @property
    def size(self) -> tuple[int, int]:
        """Columns and lines."""
        columns, lines = shutil.get_terminal_size()
        return columns, lines

    def draw(self, lines: Sequence[str]) -> None:
        """Replace the lines drawn before by these."""
        columns, height = self.size
        shown = [cropped(line, columns) for line in lines[: height - 1]]
        up = f"\x1b[{self._drawn}A" if self._drawn else ""
        text = "".join(f"\x1b[2K{line}\n" for line in shown)
        self._out.write(f"{up}\r{text}\x1b[J")
        self._out.flush()
        self._drawn = len(shown)


@contextlib.contextmanager
def drawing(out: TextIO, *, whole: bool = False, transient: bool = False) -> Iterator[Screen]:
    """Yield a screen to draw on. With `whole` it uses the alternate screen, and restores the terminal; with `transient`
    it clears its lines at the end.
    """
    screen = Screen(out)
    out.write("\x1b[?1049h\x1b[H\x1b[?25l" if whole else "\x1b[?25l")
    try:
        yield screen
    finally:
        if transient:
            screen.draw([])
        out.write("\x1b[?25h\x1b[?1049l" if whole else "\x1b[?25h")
        out.flush()


class Progress:
    """Progress bars for several items, drawn at most ten times a second."""

    def __init__(self, screen: Screen, names: Sequence[str], clock: Callable[[], float] = time.monotonic) -> None:
        self._screen = screen
        self._names = names
        self._clock = clock
        self._began = clock()
        self._drawn = float("-inf")
        self._state: list[tuple[int, int | None, str]] = [(0, None, "")] * len(names)

    def at(self, number: int, done: int, total: int | None, said: str = "") -> None:
        """Set the progress of the item with this number: `done` of `total` (None: unknown)."""
        self._state[number] = (done, total, said)
        if self._clock() - self._drawn >= EVERY:
            self.draw()

    def draw(self) -> None:
        self._drawn = self._clock()
        width = max(map(len, self._names), default=0)
        elapsed = int(self._drawn - self._began)
        clock = f"{elapsed // 3600}:{elapsed // 60 % 60:02}:{elapsed % 60:02}"
        rows = zip(self._names, self._state, strict=True)
        self._screen.draw(
            [
                f"{name:<{width}}  {bar(done, total)}  {done}/{'?' if total is None else total}  {said}  {clock}"
                for name, (done, total, said) in rows
            ]
        )


def bar(done: int, total: int | None) -> str:
    """Return a bar of a fixed width.

    >>> bar(1, 4) == 10 * "━" + 30 * "─", bar(3, None) == 40 * "─"
    (True, True)
    """
    full = BAR * min(done, total) // total if total else 0
    return "━" * full + "─" * (BAR - full)


def cropped(line: str, width: int) -> str:
    """Return the line cropped to this number of columns, with its styles.

    >>> cropped("\\x1b[1mabcdef\\x1b[0m", 3)
    '\\x1b[1mabc\\x1b[0m'
    """
    kept, left = [], width
    for part in _STYLE.split(line):
        if _STYLE.fullmatch(part):
            kept.append(part)
            continue
        for letter in part:
            wide = _columns(letter)
            if wide > left:
                return "".join([*kept, RESET] if len(kept) and "\x1b" in line else kept)
            kept.append(letter)
            left -= wide
    return "".join(kept)


def _columns(letter: str) -> int:
    if unicodedata.combining(letter) or unicodedata.category(letter) in ("Cc", "Cf"):
        return 0
    return 2 if unicodedata.east_asian_width(letter) in "WF" else 1
