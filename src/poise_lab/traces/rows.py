"""Files of rows that somebody else wrote: opened, and read to their end or not at all.

A row that cannot be read is a `BadRow`, which `Tally` counts by reason, or raises where every row must be good. What is
wrong with a whole file (cut short, no text, another header) is always raised: a trace is never half-read in silence.
"""

import csv
import gzip
import io
import math
import zlib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import IO, NamedTuple

import msgspec

from poise.errors import NotFound, SpecError
from poise.units import format_bytes, is_plain

CODE = "E109"
HEAD = 65_536
"""Bytes of a file that are looked at to find out what it is."""

MAX_SECONDS = 1e9
"""Of a run time: thirty years."""

MAX_DEVICES = 65_536
"""Of one job."""

MAX_ROW = 1 << 24
"""Characters of one row; Mooncake's lists of blocks are long. A packed file of 1 MB can hold a line of 1 GB."""

MAX_COLUMNS = 4096
"""Of one row."""

MAX_TABLE = 1 << 26
"""Bytes, unpacked, of a file that is read as one value; Gavel's table of throughputs has 1.2 MB."""

csv.field_size_limit(MAX_ROW)


class BadRow(Exception):
    """A row that cannot be read: why, as it is counted, and what was needed and found in which field."""

    def __init__(self, reason: str, field: str = "", need: str = "", have: str = "") -> None:
        super().__init__(reason)
        self.reason, self.field, self.need, self.have = reason, field, need, have


class Tally:
    """Counts what is left out, by reason. With `strict` the first bad row is an error that tells its line."""

    def __init__(self, path: Path, *, strict: bool = False) -> None:
        self.counts: dict[str, int] = {}
        self._path = path
        self._strict = strict

    def bad(self, line: int, why: BadRow) -> None:
        """A row that cannot be read."""
        if self._strict:
            raise fault(
                why.reason, self._path, line, field=why.field, need=why.need, have=why.have,
                hint="without `--strict` such rows are counted and left out",
            )  # fmt: skip
        self.leave_out(why.reason)

    def leave_out(self, reason: str, count: int = 1) -> None:
        """A row that can be read and is not wanted."""
        self.counts[reason] = self.counts.get(reason, 0) + count


def fault(
    message: str, path: Path, line: int = 0, *, field: str = "", need: str = "", have: str = "", hint: str = ""
) -> SpecError:
    """What is wrong with a file, or a line of it."""
    error = SpecError(message, code=CODE, field=field, need=need, have=have, hint=hint)
    error.record = msgspec.structs.replace(error.record, at=f"{path}:{line}" if line else str(path))
    return error


# --- files -----------------------------------------------------------------------------------------------------------


@contextmanager
def opened(path: Path) -> Iterator[IO[bytes]]:
    """A file as it was before it was packed, if it is: by what it begins with and not by its name. What goes wrong
    while it is read, also in the body of the `with`, is raised as `SpecError`.
    """
    if not path.exists():
        raise NotFound("this trace does not exist", field=str(path), hint=f"`ls -l {path.parent}`")
    if not (path.is_file() or path.is_dir()):
        raise fault(
            "this is no file: it is read more than once", path, need="a file", have="a pipe or a device",
            hint="`cat > trace.csv` keeps what comes through a pipe",
        )  # fmt: skip
    try:
        with path.open("rb") as file:
            packed = file.read(2) == b"\x1f\x8b"
            file.seek(0)
            if packed:
                with gzip.GzipFile(fileobj=file) as unpacked:
                    yield unpacked  # type: ignore[misc]
            else:
                yield file
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise fault("the file is cut short or damaged", path, have=str(error), hint=f"`gzip -t {path}`") from None
    except UnicodeDecodeError as error:
        raise fault("the file is not text", path, need="UTF-8", have=str(error), hint=f"`file {path}`") from None
    except OSError as error:
        raise fault(
            f"the file cannot be read: {error.strerror or error}", path, hint=f"`ls -l {path.parent}`"
        ) from None


def head_of(path: Path) -> bytes:
    """What a file begins with."""
    with opened(path) as file:
        return file.read(HEAD)


def content_of(path: Path) -> bytes:
    """All of a file that is one value. Raises `SpecError` where it is larger than such a file could be."""
    with opened(path) as file:
        content = file.read(MAX_TABLE + 1)
    if len(content) > MAX_TABLE:
        raise fault(
            "the file is too large", path, need=f"at most {format_bytes(MAX_TABLE)} unpacked", have="more",
            hint=f"`zcat -f {path} | wc -c`",
        )  # fmt: skip
    return content


def lines_of(path: Path) -> Iterator[tuple[int, str]]:
    """Lines that hold something, with their numbers from 1."""
    with opened(path) as file:
        lines = _Lines(path, io.TextIOWrapper(file, encoding="utf-8-sig", newline=None))
        for line in lines:
            lines.room = MAX_ROW
            if "\0" in line:
                raise fault("the file is not text", path, lines.number, have="a byte 0", hint=f"`file {path}`")
            if line.strip():
                yield lines.number, line.rstrip("\n")


class _Lines:
    """The lines of a file, each read only as far as there is `room` for its row: a row in quotes can have several
    lines. Whoever reads a row sets the room for the next one.
    """

    def __init__(self, path: Path, text: io.TextIOWrapper) -> None:
        self.number = 0
        self.room = MAX_ROW
        self._path = path
        self._text = text

    def __iter__(self) -> Iterator[str]:
        return self

    def __next__(self) -> str:
        line = self._text.readline(self.room + 1)
        if not line:
            raise StopIteration
        self.number += 1
        self.room -= len(line)
        if self.room < 0:
            raise fault(
                "the row is too long", self._path, self.number, need=f"at most {MAX_ROW:,} characters", have="more",
                hint=f"`zcat -f {self._path} | head -c 300`",
            )  # fmt: skip
        return line


# --- rows ------------------------------------------------------------------------------------------------------------


class Row(NamedTuple):
    """One row: its line, and its cells by name of column. Every reader of a cell raises `BadRow`."""

    line: int
    columns: Mapping[str, int]
    cells: Sequence[str]

    def text(self, name: str) -> str:
        """As it stands there, without the space around it; empty where there is no such column."""
        place = self.columns.get(name)
        return "" if place is None else self.cells[place].strip()

    def number(self, name: str, *, least: float = 0.0, most: float = 1e15) -> float:
        return number(self.text(name), name, least=least, most=most)

    def whole(self, name: str, *, least: int = 0, most: int = 1_000_000) -> int:
        """A whole number; `4.0` is one."""
        value = self.number(name, least=least, most=most)
        if value != int(value):
            raise BadRow(f"`{name}` is not a whole number", name, "a whole number", short(self.text(name)))
        return int(value)

    def devices(self, name: str, *, least: int = 1) -> int:
        """How many devices a job has."""
        return self.whole(name, least=least, most=MAX_DEVICES)

    def seconds(self, name: str, scale: float = 1.0) -> float:
        """A run time, in seconds of which its unit has `scale`."""
        value = self.number(name) * scale
        if value > MAX_SECONDS:
            raise BadRow(f"`{name}` is absurd", name, f"at most {MAX_SECONDS:.0f} s", short(self.text(name)))
        return value

    def instant(self, name: str, scale: float = 1.0) -> float:
        """Seconds since some beginning: a number, or a date (taken as UTC where it does not say), since 1970."""
        return instant(self.text(name), name, scale)


def number(text: str, name: str, *, least: float = 0.0, most: float = 1e15) -> float:
    """A number from a cell. Raises `BadRow`."""
    try:
        value = float(text)
    except ValueError:
        what = "is missing" if not text else "is not a number"
        raise BadRow(f"`{name}` {what}", name, "a number", short(text)) from None
    if not math.isfinite(value):
        raise BadRow(f"`{name}` is not a number", name, "a number", short(text))
    if not is_plain(text):
        raise _not_plain(text, name)
    if value < least:
        reason = f"`{name}` is negative" if least == 0 else f"`{name}` is below {least:g}"
        raise BadRow(reason, name, f"{least:g} or more", short(text))
    if value > most:
        raise BadRow(f"`{name}` is absurd", name, f"at most {most:g}", short(text))
    return value


def instant(text: str, name: str, scale: float = 1.0) -> float:
    """Seconds since some beginning, from a cell. Raises `BadRow`."""
    if text[:1].isdigit() and text[4:5] == "-":
        try:
            if len(text) > 26 and text[26:].isdigit():
                text = text[:26]  # drop digits below 1 µs, as in Azure's timestamps
            date = datetime.fromisoformat(text)
            return (date if date.tzinfo else date.replace(tzinfo=UTC)).timestamp()
        except (ValueError, OverflowError):
            pass
    try:
        value = float(text) * scale
    except ValueError:
        what = "is missing" if not text else "is neither a number nor a date"
        raise BadRow(f"`{name}` {what}", name, "2017-10-09 07:01:55, or a number", short(text)) from None
    if not math.isfinite(value) or abs(value) > 1e13:
        raise BadRow(f"`{name}` is absurd", name, "an instant", short(text))
    if not is_plain(text):
        raise _not_plain(text, name)
    return value


def _not_plain(text: str, name: str) -> BadRow:
    return BadRow(f"`{name}` is not written in plain digits", name, "digits 0 to 9, without `_`", short(text))


def header_of(path: Path) -> tuple[str, ...]:
    """The columns that the first line of a CSV names."""
    for _, cells in _csv(path, ","):
        return tuple(cell.strip() for cell in cells)
    raise fault("the file is empty", path, need="a line that names the columns", hint=f"`zcat -f {path} | head -3`")


def table(path: Path, tally: Tally, needed: Sequence[str], *, header: Sequence[str] = ()) -> Iterator[Row]:
    """The rows of a CSV whose first line names its columns, or of one without such a line, which has those of `header`.
    Raises `SpecError` if a needed column is not there, or there is no row at all.
    """
    rows = _csv(path, ",")
    found, line = list(header), 0
    if not header:
        line, cells = next(rows, (0, []))
        found = [cell.strip() for cell in cells]
    if missing := [name for name in needed if name not in found]:
        raise fault(
            "a column is missing", path, line or 1, field=missing[0], need=", ".join(needed),
            have=short(", ".join(found), 200) or "an empty file", hint=f"`zcat -f {path} | head -3`",
        )  # fmt: skip
    if twice := sorted({name for name in needed if found.count(name) > 1}):
        raise fault("a column is there twice", path, line, field=twice[0], have=short(", ".join(found), 200))
    yield from _whole(path, tally, rows, {name: place for place, name in enumerate(found)})


def tabbed(path: Path, tally: Tally, columns: Sequence[str]) -> Iterator[Row]:
    """The rows of a file of columns between TABs, without a line that names them."""
    rows = ((line, _cells(path, line, text)) for line, text in lines_of(path))
    yield from _whole(path, tally, rows, {name: place for place, name in enumerate(columns)})


def _cells(path: Path, line: int, text: str) -> list[str]:
    cells = text.split("\t", MAX_COLUMNS)
    if len(cells) > MAX_COLUMNS:
        raise _too_wide(path, line, text.count("\t") + 1)
    return cells


def _whole(
    path: Path, tally: Tally, rows: Iterator[tuple[int, list[str]]], columns: Mapping[str, int]
) -> Iterator[Row]:
    width, count = len(columns), 0
    for line, cells in rows:
        count += 1
        if len(cells) == width:
            yield Row(line, columns, cells)
        else:
            reason = "the row has too few columns" if len(cells) < width else "the row has too many columns"
            tally.bad(line, BadRow(reason, need=f"{width} columns", have=str(len(cells))))
    if not count:
        raise fault("the trace has no rows", path, need="one row a job", hint=f"`zcat -f {path} | head -3`")


def _csv(path: Path, delimiter: str) -> Iterator[tuple[int, list[str]]]:
    """Rows that hold something, with the line that each ends on."""
    with opened(path) as file:
        lines = _Lines(path, io.TextIOWrapper(file, encoding="utf-8-sig", newline=""))
        reader = csv.reader(lines, delimiter=delimiter, strict=True)
        try:
            for cells in reader:
                lines.room = MAX_ROW
                if not cells:
                    continue
                if len(cells) > MAX_COLUMNS:
                    raise _too_wide(path, reader.line_num, len(cells))
                if "\0" in "".join(cells):
                    raise fault("the file is not text", path, reader.line_num, have="a byte 0", hint=f"`file {path}`")
                yield reader.line_num, cells
        except csv.Error as error:
            raise fault("the row cannot be taken apart", path, reader.line_num, have=str(error)) from None


def _too_wide(path: Path, line: int, columns: int) -> SpecError:
    return fault(
        "the row has too many columns", path, line, need=f"at most {MAX_COLUMNS:,}", have=f"{columns:,}",
        hint=f"`zcat -f {path} | head -c 300`",
    )  # fmt: skip


def short(text: str, most: int = 60) -> str:
    """So much of what somebody else wrote as an error can show."""
    return text if len(text) <= most else f"{text[:most]}…"
