"""`poise top`: the fleet, running work, and waiting work with its reasons, redrawn every second.

It makes one request a second, regardless of keys. The load of a task is read from this machine's processes, if it runs
here; Poise does not store it. Without a terminal it prints one frame.
"""

import contextlib
import os
import select
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import click

from poise.cli.output import TEXT, forms
from poise.cli.render import aligned, harmless, print_json, widths_of
from poise.client import Client, current_home
from poise.control.start import connected
from poise.errors import Unreachable
from poise.model.reports.status import NodeUse, Overview, TaskUse, UnitWait
from poise.units import SECOND, format_bytes, format_cpu, format_duration

EVERY = 1.0
"""Seconds between two requests."""

SMALLEST = 12
"""Minimum number of lines of a frame; a smaller terminal cuts it."""

UP, DOWN, END = "up", "down", "end"
KEYS = {b"q": END, b"Q": END, b"\x1b[A": UP, b"k": UP, b"\x1b[B": DOWN, b"j": DOWN}


class Use(NamedTuple):
    """Resources that a task's processes use: milli-CPU and bytes."""

    cpu: int
    memory: int


class Meter:
    """Measures tasks of this machine since the last look; at the first look, since they started."""

    def __init__(self) -> None:
        self._last: dict[str, tuple[int, int]] = {}

    def look(self, tasks: Sequence[TaskUse]) -> dict[str, Use]:
        """Return the usage by task, without tasks that run elsewhere or have ended."""
        from poise.drivers.system import tree

        used: dict[str, Use] = {}
        seen: dict[str, tuple[int, int]] = {}
        for task in tasks:
            if not task.pid or not _is_here(task):
                continue
            processes = list(tree([task.pid]))
            now, cpu = time.monotonic_ns(), sum(process.cpu for process in processes)
            then, before = self._last.get(task.task, (now - task.run, 0))
            seen[task.task] = (now, cpu)
            busy = 1000 * max(0, cpu - before) // max(1, now - then)
            used[task.task] = Use(busy, sum(process.memory for process in processes))
        self._last = seen
        return used


def _is_here(task: TaskUse) -> bool:
    """Return whether this process belongs to the task: the same number may exist on another machine."""
    try:
        return f"POISE_TASK={task.task}".encode() in Path(f"/proc/{task.pid}/environ").read_bytes().split(b"\0")
    except OSError:
        return False


@click.command()
@forms(*TEXT)
@click.option("--once", is_flag=True, help="Print one frame; this is the default without a terminal.")
def top(once: bool, form: str) -> int:
    """Show nodes and their use, running and waiting work with its reasons, and the rates of starts and ends, every
    second.

    Arrows scroll, `q` ends it.
    """
    home = current_home()
    client = connected(home)
    if form == "json":
        print_json(client.overview())
    elif once or not sys.stdout.isatty():
        told = client.overview()
        click.echo("\n".join(frame(told, Meter().look(told.running))))
    else:
        _live(Client(home, patience=0.0))
    return 0


def _live(client: Client) -> None:
    from poise.drivers.screen import drawing

    meter = Meter()
    told, note, scroll = client.overview(), "", 0
    use = meter.look(told.running)
    asked = time.monotonic()
    with _keys() as fd, drawing(sys.stdout, whole=True) as screen:
        while True:
            columns, lines = screen.size
            screen.draw(frame(told, use, columns, lines - 1, scroll, note))
            key = _pressed(fd, asked + EVERY - time.monotonic())
            if key == END:
                return
            if key:
                scroll = max(0, min(scroll + (1 if key == DOWN else -1), len(told.running) + len(told.nodes)))
                continue
            asked = time.monotonic()
            try:
                told, note = client.overview(), ""
                use = meter.look(told.running)
            except Unreachable:
                note = "no control plane answers; this is what was last heard"


@contextlib.contextmanager
def _keys() -> Iterator[int | None]:
    """Yield keys as they are pressed; none without a terminal."""
    import termios
    import tty

    if not sys.stdin.isatty():
        yield None
        return
    fd = sys.stdin.fileno()
    before = termios.tcgetattr(fd)
    tty.setcbreak(fd)
    try:
        yield fd
    finally:
        termios.tcsetattr(fd, termios.TCSADRAIN, before)


def _pressed(fd: int | None, seconds: float) -> str:
    """Return the key pressed within these seconds, if it has a meaning."""
    end = time.monotonic() + seconds
    while (left := end - time.monotonic()) > 0:
        if not select.select([fd] if fd is not None else [], [], [], left)[0] or fd is None:
            return ""
        read = os.read(fd, 16)
        if not read:
            return END  # the terminal is gone
        if read in KEYS:
            return KEYS[read]
    return ""


# --- output ----------------------------------------------------------------------------------------------------------


def frame(
    told: Overview, use: dict[str, Use], width: int = 0, height: int = 0, scroll: int = 0, note: str = ""
) -> list[str]:
    """Return one frame of at most `height` lines and `width` columns (0: unlimited)."""
    parts = [
        (_node_rows(told.nodes), told.more_nodes),
        (_task_rows(told.running, use), told.more_running),
        (_wait_rows(told.waiting), told.more_waiting),
    ]
    head = _head(told, note)
    shown = [min(len(rows) - 1, _MOST) for rows, _ in parts]
    if height:
        shown = _shared(max(height, SMALLEST) - len(head) - 2 * len(parts), shown)
    lines = list(head)
    for (rows, more), count in zip(parts, shown, strict=True):
        start = min(scroll, max(0, len(rows) - 1 - count)) if height else 0
        left = len(rows) - 1 - count + more
        lines += ["", *_table([rows[0], *rows[1 + start : 1 + start + count]], left, width)]
    return [line[:width] if width and "\x1b" not in line else line for line in lines][: height or None]


_MOST = 1000


def _shared(lines: int, wanted: list[int]) -> list[int]:
    """Divide lines among the parts: each gets what it wants, or an even share of what is left."""
    given = [0] * len(wanted)
    while lines > 0 and (hungry := [place for place, want in enumerate(wanted) if given[place] < want]):
        for place in hungry[:lines]:
            given[place] += 1
        lines -= len(hungry)
    return given


def _head(told: Overview, note: str) -> list[str]:
    lost = f", {told.nodes_lost} lost" if told.nodes_lost else ""
    by_class = ", ".join(f"{count} {name}" for name, count in told.queue.items())
    waiting = f"{sum(told.queue.values())} wait{f' ({by_class})' if by_class else ''}"
    blocked = f", {told.blocked} for others" if told.blocked else ""
    returned = f", {told.returns:g} calls/s" if told.returns else ""
    full = "" if told.accepting else "; the log cannot be written: nothing new is accepted"
    lines = [
        f"poise, policy {told.policy}; nodes: {told.nodes_up} up{lost}; unfinished jobs: {told.unfinished}{full}",
        f"{waiting}{blocked}; {told.starts:g} starts/s, {told.ends:g} ends/s{returned}; revision {told.revision}",
    ]
    return [*lines, note] if note else lines


def _table(rows: list[list[str]], left: int, width: int) -> list[str]:
    """Format a table; a title with a leading space is right-aligned. The head has the number of hidden rows."""
    right = [title.startswith(" ") for title in rows[0]]
    rows = [[cell.strip() for cell in row] for row in rows]
    widths = widths_of(rows)
    lines = [aligned(row, widths, right) for row in rows]
    if left:
        lines[0] += f"   (+ {left})"
    lines[0] = click.style(lines[0][: width or None], bold=True)
    return lines


def _node_rows(nodes: Sequence[NodeUse]) -> list[list[str]]:
    head = ["NODE", "STATUS", " CPU", " MEMORY", " DEVICES", " BUSY", " LOAD", " RUNNING", " QUEUED"]
    return [
        head,
        *(
            [
                node.name,
                node.status,
                f"{format_cpu(node.cpu_used)}/{format_cpu(node.cpu)}",
                f"{format_bytes(node.memory_used)}/{format_bytes(node.memory)}",
                f"{node.devices_used}/{node.devices}" if node.devices else "-",
                f"{node.load.cpu / 10:.0f} %" if node.load else "-",
                f"{node.load.load1 / 1000:.2f}" if node.load else "-",
                str(node.running),
                str(node.queued),
            ]
            for node in nodes
        ),
    ]


def _task_rows(tasks: Sequence[TaskUse], use: dict[str, Use]) -> list[list[str]]:
    rows = [["TASK", "STATUS", "NODE", "GPU", " CPU", " MEMORY", " RAN", " LEFT", "USER", "COMMAND"]]
    for task in tasks:
        used = use.get(task.task)
        rows.append(
            [
                task.task,
                task.status,
                task.node,
                ",".join(map(str, task.devices)) or "-",
                f"{used.cpu / 10:.0f} %" if used else "-",
                format_bytes(used.memory // 2**20 * 2**20) if used else "-",
                _whole(task.run) if task.run else "-",
                _whole(task.expected - task.run) if task.expected > task.run else "-",
                task.user or "-",
                harmless(" ".join(task.command.split())),
            ]
        )
    return rows


def _wait_rows(waiting: Sequence[UnitWait]) -> list[list[str]]:
    head = ["WAITS", "CLASS", "USER", " FOR", "WHY"]
    return [head, *([unit.unit, unit.priority, unit.user or "-", _whole(unit.wait), unit.why] for unit in waiting)]


def _whole(duration: int) -> str:
    """Format a duration of a second or more in whole seconds, since frames are a second apart."""
    return format_duration(duration // SECOND * SECOND if duration >= SECOND else duration)
