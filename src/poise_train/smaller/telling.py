"""Formats a report for people: a table, then the reasons."""

from collections.abc import Iterator

from poise.model.precision import Measured, Report
from poise.units import MILLISECOND, format_bytes


def lines(report: Report) -> Iterator[str]:
    """Yield the lines about a comparison for stderr."""
    sizes = sorted(report.measured[0].takes)
    heads = [
        "",
        "weights",
        "peak",
        *(f"batch of {size}" for size in sizes),
        f"kept ({report.by})",
        "at most",
        "on average",
    ]
    rows = [heads, *(_row(one, sizes) for one in report.measured if not one.failed)]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    yield f"precision: {report.asked} is asked for, {report.kept:.1%} must be kept"
    for first, *others in rows:
        cells = (cell.rjust(width) for cell, width in zip(others, widths[1:], strict=True))
        yield "  ".join((first.ljust(widths[0]), *cells))
    yield from report.why


def _row(one: Measured, sizes: list[int]) -> list[str]:
    times = [f"{one.takes[size] / MILLISECOND:.3g} ms" for size in sizes]
    differs = f"{one.largest:.2%}", f"{one.mean:.2%}"
    return [one.name, format_bytes(one.weights), format_bytes(one.peak), *times, f"{one.kept:.1%}", *differs]


__all__ = ["lines"]
