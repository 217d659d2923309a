"""Summarizes the output of failed tasks: the template of the last lines, and the meaning of device error codes."""

from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from poise.drivers import logs as joblogs
from poise.kernel.templates import Templates
from poise.model.device_codes import known

MOST_TASKS = 16
"""Maximum number of outputs to read."""

TAIL = 4096
"""Bytes to read from the end of each."""

LINES = 5
"""Number of last lines of each output that are searched for device error codes."""

MOST_TEXT = 200


def endings(logs: Path, tasks: Sequence[str]) -> tuple[str, ...]:
    """Return the most frequent last line of these tasks' latest attempts, and the device error codes, as sentences."""
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
    """Return the last lines of the latest attempt: of its stderr, or else of its stdout."""
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
    """Return a line without terminal control characters."""
    return "".join(letter if letter.isprintable() else " " for letter in line)


def _literal(name: str) -> str:
    """Escape the glob characters in a name."""
    return "".join(f"[{letter}]" if letter in "*?[" else letter for letter in name)


def _epoch(path: Path) -> int:
    epoch = path.name.split(".")[-2]
    return int(epoch) if epoch.isdecimal() else 0
