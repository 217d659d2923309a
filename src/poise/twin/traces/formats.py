"""The formats of traces, and which of them a file is of: by what is in it, not by its name.

read_trace(Path("philly.csv.gz"), Options(jobs=1000))
"""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

from poise.errors import SpecError
from poise.model.workload import Workload
from poise.twin.traces import gavel, openb, philly, plain
from poise.twin.traces.options import Options
from poise.twin.traces.rows import fault, head_of, short


class Head(NamedTuple):
    """What a file begins with: its bytes, its lines, and the columns that the first of them may name."""

    content: bytes
    lines: list[str]
    columns: tuple[str, ...]

    def names(self, *columns: str) -> bool:
        """Whether the first line names these columns, and perhaps others."""
        return set(columns) <= set(self.columns)


class Format(NamedTuple):
    """A format: what it is called, what it is, how it is recognised and read."""

    name: str
    about: str
    recognises: Callable[[Head], bool]
    read: Callable[[Path, Options], Workload]


FORMATS = {
    format.name: format
    for format in (
        Format("philly", "Microsoft Philly, flat CSV", lambda head: head.names(*philly.RECOGNISED), philly.read),
        Format("openb", "Alibaba 2023, pods that share GPUs", lambda head: head.names(*openb.PODS), openb.read),
        Format("gavel", "Gavel, jobs of steps", lambda head: gavel.recognises(head.lines), gavel.read),
    )
}
PLAIN = Format("plain", "any CSV, with a mapping of its columns", lambda head: False, plain.read)


def read_trace(path: Path, options: Options | None = None, format: str = "") -> Workload:
    """The workload that a file holds. It is of the `format` that is named, else of a plain CSV where a mapping of its
    columns is given, else of that which is found out. Raises `SpecError` and `NotFound`.
    """
    options = options or Options()
    options.check()
    return format_of(path, options, format).read(path, options)


def format_of(path: Path, options: Options, named: str = "") -> Format:
    """The format that a file is read in. Raises `SpecError` where it is of none that is known."""
    known = FORMATS | {PLAIN.name: PLAIN}
    if named:
        if named not in known:
            raise SpecError(
                "there is no such format", field="format", need=", ".join(known), have=short(named),
                hint=f"`--format {PLAIN.name} --map submit=COLUMN,duration=COLUMN,gpus=COLUMN`",
            )  # fmt: skip
        return known[named]
    if options.columns:
        return PLAIN
    head = _head(path)
    for one in FORMATS.values():
        if one.recognises(head):
            return one
    if b"\0" in head.content:
        raise fault("the file is not text", path, have="a byte 0", hint=f"`file {path}`")
    if not head.lines:
        raise fault("the trace has no rows", path, have="an empty file", hint=f"`ls -l {path}`")
    raise fault(
        "the trace is of no format that is known", path, 1, need=", ".join(known), have=short(head.lines[0], 200),
        hint="`--map submit=COLUMN,duration=COLUMN,gpus=COLUMN` for a CSV of your own",
    )  # fmt: skip


def _head(path: Path) -> Head:
    content = head_of(path)
    lines = list(_text(content))
    first = lines[0] if lines else ""
    return Head(content, lines, tuple(cell.strip() for cell in first.split(",")))


def _text(content: bytes) -> Iterator[str]:
    for line in content.decode("utf-8-sig", errors="replace").splitlines():
        if line.strip():
            yield line
