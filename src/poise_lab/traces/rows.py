"""Read third-party files of rows, completely or not at all.

An unreadable row is a `BadRow`, which `Tally` counts by reason, or raises if every row must be valid. A fault of a
whole file (truncated, not text, a different header) is always raised: a trace is never read partially without notice.
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
"""Number of bytes to inspect when detecting the format of a file."""

MAX_SECONDS = 1e9
"""Maximum run time: about thirty years."""

MAX_DEVICES = 65_536
"""Maximum number of devices of one job."""

MAX_ROW = 1 << 24
"""Maximum number of characters in a row. Mooncake's block lists are long; a compressed file of 1 MB can contain a line
of 1 GB.
"""

MAX_COLUMNS = 4096
"""Maximum number of columns in a row."""

MAX_TABLE = 1 << 26
"""Maximum uncompressed size in bytes of a file that is read as one value; Gavel's table of throughputs has 1.2 MB."""

PACKED = {
    b"\x28\xb5\x2f\xfd": ("zstd", "zstd -d"),
    b"\xfd7zXZ\0": ("xz", "xz -dk"),
    b"BZh9": ("bzip2", "bzip2 -dk"),
    b"PK\x03\x04": ("zip", "unzip"),
}
"""First bytes of compressed files that cannot be read: their format, and the command that unpacks them."""

csv.field_size_limit(MAX_ROW)


class BadRow(Exception):
    """An unreadable row: the reason under which it is counted, the field, and what was needed and found there."""

    def __init__(self, reason: str, field: str = "", need: str = "", have: str = "") -> None:
        super().__init__(reason)
        self.reason, self.field, self.need, self.have = reason, field, need, have


class Tally:
    """Counts the rows that were left out, by reason. With `strict`, the first bad row is an error with its
    line number.
    """

    def __init__(self, path: Path, *, strict: bool = False) -> None:
        self.counts: dict[str, int] = {}
        self._path = path
        self._strict = strict

    def bad(self, line: int, why: BadRow) -> None:
        """Count an unreadable row, or raise if `strict`."""
        if self._strict:
            raise fault(
                why.reason, self._path, line, field=why.field, need=why.need, have=why.have,
                hint="without `--strict` such rows are counted and left out",
            )  # fmt: skip
        self.leave_out(why.reason)

    def leave_out(self, reason: str, count: int = 1) -> None:
        """Count a readable row that is not wanted."""
        self.counts[reason] = self.counts.get(reason, 0) + count


def fault(
    message: str, path: Path, line: int = 0, *, field: str = "", need: str = "", have: str = "", hint: str = ""
) -> SpecError:
    """Return an error about a file, or about one of its lines."""
    error = SpecError(message, code=CODE, field=field, need=need, have=have, hint=hint)
    error.record = msgspec.structs.replace(error.record, at=f"{path}:{line}" if line else str(path))
    return error


# --- files -----------------------------------------------------------------------------------------------------------


@contextmanager
def opened(path: Path) -> Iterator[IO[bytes]]:
    """Open a file, decompressed if it is gzip; its first bytes decide, not its name. Errors while reading it, also in
    the body of the `with`, are raised as `SpecError`.
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
            begin = file.read(6)
            file.seek(0)
            for magic, (name, unpack) in PACKED.items():
                if begin.startswith(magic):
                    need = "text, or a file of gzip"
                    raise fault("the file is compressed", path, need=need, have=name, hint=f"`{unpack} {path}`")
            if begin.startswith(b"\x1f\x8b"):
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
    """Return the first bytes of a file."""
    with opened(path) as file:
        return file.read(HEAD)


def content_of(path: Path) -> bytes:
    """Return the whole content of a file. Raises `SpecError` if it is larger than `MAX_TABLE`."""
    with opened(path) as file:
        content = file.read(MAX_TABLE + 1)
    if len(content) > MAX_TABLE:
        raise fault(
            "the file is too large", path, need=f"at most {format_bytes(MAX_TABLE)} unpacked", have="more",
            hint=f"`zcat -f {path} | wc -c`",
        )  # fmt: skip
    return content


def lines_of(path: Path) -> Iterator[tuple[int, str]]:
    """Return the non-empty lines, with their numbers from 1."""
    with opened(path) as file:
        lines = _Lines(path, io.TextIOWrapper(file, encoding="utf-8-sig", newline=None))
        for line in lines:
            lines.room = MAX_ROW
            if "\0" in line:
                raise fault("the file is not text", path, lines.number, have="a byte 0", hint=f"`file {path}`")
            if line.strip():
                yield lines.number, line.rstrip("\n")


class _Lines:
    """The lines of a file, each read only up to the `room` left for its row, because a quoted row can span lines. The
    consumer resets `room` after each row.
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
    """One row: its line number, and its cells by column name. Every cell accessor raises `BadRow`."""

    line: int
    columns: Mapping[str, int]
    cells: Sequence[str]

    def text(self, name: str) -> str:
        """Return the text without surrounding spaces; empty if the column does not exist."""
        place = self.columns.get(name)
        return "" if place is None else self.cells[place].strip()

    def number(self, name: str, *, least: float = 0.0, most: float = 1e15) -> float:
        return number(self.text(name), name, least=least, most=most)

    def whole(self, name: str, *, least: int = 0, most: int = 1_000_000) -> int:
        """Return a whole number; `4.0` is accepted."""
        value = self.number(name, least=least, most=most)
        if value != int(value):
            raise BadRow(f"`{name}` is not a whole number", name, "a whole number", short(self.text(name)))
        return int(value)

    def devices(self, name: str, *, least: int = 1) -> int:
        """Return the number of devices of a job."""
        return self.whole(name, least=least, most=MAX_DEVICES)

    def seconds(self, name: str, scale: float = 1.0) -> float:
        """Return a run time in seconds; `scale` is the unit of the column in seconds."""
        value = self.number(name) * scale
        if value > MAX_SECONDS:
            raise BadRow(f"`{name}` is absurd", name, f"at most {MAX_SECONDS:.0f} s", short(self.text(name)))
        return value

    def instant(self, name: str, scale: float = 1.0) -> float:
        """Return the seconds since an arbitrary origin for a number, or since 1970 for a date (UTC unless it has a
        zone).
        """
        return instant(self.text(name), name, scale)


def number(text: str, name: str, *, least: float = 0.0, most: float = 1e15) -> float:
    """Parse a number. Raises `BadRow`."""
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
    """Parse an instant, in seconds since an arbitrary origin. Raises `BadRow`."""
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
    """Return the column names in the first line of a CSV."""
    for _, cells in _csv(path, ","):
        return tuple(cell.strip() for cell in cells)
    raise fault("the file is empty", path, need="a line that names the columns", hint=f"`zcat -f {path} | head -3`")


def table(path: Path, tally: Tally, needed: Sequence[str], *, header: Sequence[str] = ()) -> Iterator[Row]:
    """Return the rows of a CSV whose first line names its columns; without such a line, `header` names them. Raises
    `SpecError` if a needed column is missing, or if there are no rows.
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
    """Return the rows of a file with TAB-separated columns and no header line."""
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
    """Return the non-empty rows, with the number of the line on which each ends."""
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
    """Shorten third-party text for an error message."""
    return text if len(text) <= most else f"{text[:most]}…"
