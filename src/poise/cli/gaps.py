"""Output that is gone before it is read: a log keeps only the newest part of each stream."""

from collections.abc import Iterator

from poise.cli.render import say
from poise.model.reports.streams import LogLine, LogPiece


def telling_gaps(lines: Iterator[LogLine], *, whole: bool) -> Iterator[LogLine]:
    """Yield lines of output as they are, and print one message for each attempt that has lost some of its output.

    With `whole`, the lines are from the beginning of the output; otherwise each stream begins with its first piece.
    """
    ends: dict[tuple[str, int, str], int] = {}
    told: set[tuple[str, int]] = set()
    for line in lines:
        if isinstance(line, LogPiece) and line.offset >= 0:
            stream, attempt = (line.task, line.epoch, line.stream), (line.task, line.epoch)
            if line.offset > ends.get(stream, 0 if whole else line.offset) and attempt not in told:
                told.add(attempt)
                say(
                    f"poise: a part of the output of {line.task} is gone: a log keeps at most the last 64 MiB of each "
                    "stream; `--output FILE` at submission keeps all of it"
                )
            ends[stream] = line.offset + len(line.data)
        yield line
