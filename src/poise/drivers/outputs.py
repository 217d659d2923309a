"""How the output of failed tasks ends: the template of the last lines, and what device error codes in them mean."""

from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from poise.drivers import logs as joblogs
from poise.kernel.templates import Templates
from poise.model.device_codes import known

MOST_TASKS = 16
"""Outputs that are read at most."""

TAIL = 4096
"""Bytes that are read of each."""

LINES = 5
"""Last lines of each output in which device error codes are looked for."""

MOST_TEXT = 200


def endings(logs: Path, tasks: Sequence[str]) -> tuple[str, ...]:
    """The most frequent last line of the latest attempts of these tasks, and the device error codes, in sentences."""
    tails = [tail for task in tasks[:MOST_TASKS] if (tail := _tail(logs, task))]
    if not tails:
        return ()
    templates, count = Templates(), Counter[str]()
    for lines in tails:
        templates.take(lines[-1])
    for lines in tails:
        count[templates.take(lines[-1]).text] += 1
    text, many = max(count.items(), key=lambda of: (of[1], of[0]))
    told = [f"{many} of {len(tails)} outputs end with: {text[:MOST_TEXT]}"]
    codes = [code for lines in tails if (code := next(filter(None, map(known, reversed(lines))), None)) is not None]
    told += [f"{code.code}: {code.meaning}; {code.advice}" for code in dict.fromkeys(codes)]
    return tuple(told)


def _tail(logs: Path, task: str) -> list[str]:
    """The last lines of the latest attempt: of its errors, or else of its output."""
    job, _, name = task.partition(".")
    for stream in ("err", "out"):
        found = sorted((logs / job).glob(f"{_literal(name)}.*.{stream}"), key=_epoch)
        if found:
            try:
                size = found[-1].stat().st_size
                data = joblogs.read(found[-1], max(0, size - TAIL), TAIL)
            except OSError:
                continue
            lines = [plain(line) for line in data.decode(errors="replace").splitlines() if line.strip()]
            if lines:
                return lines[-LINES:]
    return []


def plain(line: str) -> str:
    """A line without what a terminal would obey."""
    return "".join(letter if letter.isprintable() else " " for letter in line)


def _literal(name: str) -> str:
    """A name in which no character has a meaning for glob."""
    return "".join(f"[{letter}]" if letter in "*?[" else letter for letter in name)


def _epoch(path: Path) -> int:
    epoch = path.name.split(".")[-2]
    return int(epoch) if epoch.isdecimal() else 0
