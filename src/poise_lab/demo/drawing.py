"""Terminal output of `poise demo`: device use, events, promises, and the table of the twin."""

import contextlib
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

from rich.console import Console, Group
from rich.live import Live as Redrawn
from rich.table import Table
from rich.text import Text

if TYPE_CHECKING:
    from poise_lab.demo.compared import Standing
    from poise_lab.demo.live import Live, Moment, Scene

CELLS = 72
"""Width of the strip that shows the use of a device, in cells."""

ABOVE_STORY = 11
"""Lines of the display that do not belong to the events."""

MARKS = {"service": ("░", "blue"), "training": ("▒", "cyan"), "urgent": ("█", "magenta"), "": ("·", "dim")}
STYLES = {"service": "blue", "training": "cyan", "urgent": "magenta", "kill": "red", "": ""}


@contextlib.contextmanager
def shown(console: Console) -> "Iterator[Callable[[Scene], None]]":
    """Show scenes: a redrawn display on a terminal, else one line per event."""
    if not console.is_terminal:
        told, linked = 0, False

        def tell(scene: "Scene") -> None:
            nonlocal told, linked
            if scene.link and not linked:
                console.print(_look(scene), soft_wrap=True)
                linked = True
            for moment in scene.moments[told:]:
                console.print(_line(moment), soft_wrap=True)
            told = len(scene.moments)

        yield tell
        return
    with Redrawn(console=console, transient=True, auto_refresh=False, vertical_overflow="crop") as redrawn:

        def redraw(scene: "Scene") -> None:
            latest = scene.moments[-max(1, console.height - ABOVE_STORY) :]
            above = [_look(scene)] if scene.link else []
            below = Text(scene.status, style="dim"), *map(_line, latest)
            redrawn.update(Group(*above, strips(scene), *below), refresh=True)

        yield redraw


def _look(scene: "Scene") -> Text:
    return Text(f"dashboard: {scene.link}", style="bold", no_wrap=True, overflow="ignore")


# --- results ---------------------------------------------------------------------------------------------------------


def live_parts(told: "Live", *, story: bool) -> list[Any]:
    """Return the results of the live part: the use of the devices, the events (`story`), and each promise."""
    from poise_lab.demo.promises import promises

    table = Table(box=None, pad_edge=False)
    table.add_column("promise", no_wrap=True)
    table.add_column("what came of it", overflow="fold")
    table.add_column("kept", no_wrap=True)
    for name, text, kept in promises(told):
        table.add_row(name, text, Text(kept, style="bold red" if kept == "NO" else "green"))
    lines = [Text(), *map(_line, told.scene.moments)] if story else []
    return [
        Text("live, on four declared devices with emulated speeds", style="bold"),
        strips(told.scene),
        *lines,
        "",
        table,
    ]


def twin_parts(rows: "Sequence[Standing]") -> list[Any]:
    """Return the table of the twin, with the best value of each column marked."""
    from poise_lab.demo.compared import ABOUT, BASELINES, TABLE, best

    table = Table(box=None, pad_edge=False, collapse_padding=True)
    table.add_column("policy", no_wrap=True)
    for column in TABLE:
        table.add_column(column.title, justify="right")
    for row in rows:
        cells = []
        for column in TABLE:
            is_best = column.value(row) == best(column, rows)
            cells.append(Text(f"{column.text(row)} {'*' if is_best else ' '}", style="bold green" if is_best else ""))
        table.add_row(row.policy, *cells)
    return [
        "",
        Text("a week of a real cluster, in the twin: simulated time, the same scheduler", style="bold"),
        Text(f"{ABOUT}.", style="dim"),
        table,
        Text(f"* the best of its column; {BASELINES}.", style="dim"),
    ]


def strips(scene: "Scene") -> Table:
    """Return the use of each device over time, and the times of the kills."""
    from poise_lab.demo.live import DEVICES

    table = Table(box=None, pad_edge=False, show_header=False)
    table.add_column(no_wrap=True)
    table.add_column(no_wrap=True)
    legend = Text()
    for who, (mark, style) in MARKS.items():
        legend.append(f"{mark} {who or 'idle'}   ", style=style)
    table.add_row("", legend)
    length = max(scene.at, 1.0)
    for device in DEVICES:
        strip = Text()
        looks = iter(scene.held)
        held: Any = {}
        upcoming = next(looks, None)
        for cell in range(CELLS):
            while upcoming is not None and upcoming[0] <= (cell + 1) * length / CELLS:
                held = upcoming[1]
                upcoming = next(looks, None)
            mark, style = MARKS[held.get(device, "")]
            strip.append(mark, style=style)
        table.add_row(device, strip)
    kills = [moment.at for moment in scene.moments if moment.text.startswith("kill -9")]
    cells = {min(CELLS - 1, int(at / length * CELLS)) for at in kills}
    marks = "".join("✕" if cell in cells else " " for cell in range(CELLS))
    table.add_row("kill -9", Text(marks, style="bold red"))
    table.add_row("", Text(f"{'0 s':<{CELLS - 8}}{scene.at:>6.1f} s", style="dim"))
    return table


def _line(moment: "Moment") -> Text:
    """Format an event: `  9.4 s  urgent: done, 4.1 s before its deadline`."""
    return Text.assemble((f"{moment.at:5.1f} s  ", "dim"), (moment.text, STYLES[moment.kind]))
