"""`poise demo`: real work on four declared devices, with kills; then a week of a real cluster in the twin."""

import contextlib
import importlib.util
import shutil
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from rich.console import Console, Group
from rich.live import Live as Redrawn
from rich.table import Table
from rich.text import Text

from poise.cli.output import check_page, write_page
from poise.cli.render import print_json, say
from poise.errors import DISTRIBUTION, InputError, extra

if TYPE_CHECKING:
    from poise.demo.compared import Standing
    from poise.demo.live import Live, Moment, Scene

FILE_WIDTH = 120
"""Columns when the output is no terminal."""

CELLS = 72
"""Of the strip that shows who held a device."""

ABOVE_STORY = 10
"""Lines of the picture that are not of the story."""

MARKS = {"service": ("░", "blue"), "training": ("▒", "cyan"), "urgent": ("█", "magenta"), "": ("·", "dim")}
STYLES = {"service": "blue", "training": "cyan", "urgent": "magenta", "kill": "red", "": ""}


@click.command()
@click.option("--json", "as_json", is_flag=True, help="Print one JSON value.")
@click.option("--keep", is_flag=True, help="Keep the folder of the live part, and say where it is.")
@click.option(
    "--report",
    type=click.Path(path_type=Path),
    default=Path("poise-demo.html"),
    show_default=True,
    metavar="FILE",
    help="Write the page here.",
)
@click.option(
    "--examples",
    type=click.Path(path_type=Path),
    metavar="FOLDER",
    help="Copy the example files to FOLDER, and run nothing.",
)
def demo(as_json: bool, keep: bool, report: Path, examples: Path | None) -> int:
    """Show what Poise does: live on four declared devices, then on a week of a real cluster in the twin.

    Live, a service answers a steady load, elastic training uses every idle device and gives way to an urgent job with a
    deadline; then a worker, an agent and the control plane are killed with kill -9. The devices are declared and their
    speeds emulated; no GPU is needed. The twin runs the trace under poise, fifo, static and round-robin. Exits with 2
    if a promise of the live part was not kept.
    """
    if examples is not None:
        copied = _copy_examples(examples)
        if as_json:
            print_json({"examples": str(examples), "files": copied})
        return 0
    if importlib.util.find_spec("sklearn") is None:
        raise InputError("the demo's work needs scikit-learn", hint=extra("demo"))
    check_page(report, "--report")
    from poise.demo import compared, live
    from poise.demo.page import render

    console, out = Console(stderr=True), Console()
    if not out.is_terminal:
        out.width = FILE_WIDTH
    with _place(keep, console) as folder, _shown(console) as show:
        told = live.run(folder, show)
    if not as_json:
        for part in live_parts(told, story=console.is_terminal):
            out.print(part)
    console.print("twin: a week of a real trace under four policies …", style="dim")
    comparison = compared.run()
    rows = compared.standings(comparison)
    if not as_json:
        for part in twin_parts(rows):
            out.print(part)
    write_page(report, render(told, comparison), "--report")
    if as_json:
        print_json({"live": _public(told), "twin": rows, "page": str(report)})
    return 0 if told.kept else 2


def _public(told: "Live") -> dict[str, Any]:
    """What came of the live part, without who held what when."""
    value = {name: getattr(told, name) for name in told.__struct_fields__ if name not in ("scene", "report")}
    return {**value, "kept": told.kept, "story": told.scene.moments}


@contextlib.contextmanager
def _place(keep: bool, console: Console) -> Iterator[Path]:
    """A folder for the live part; one that fails is kept."""
    folder = Path(tempfile.mkdtemp(prefix="poise-demo-"))
    try:
        yield folder
    except Exception:
        keep = True
        raise
    finally:
        if keep:
            console.print(f"kept: {folder}", soft_wrap=True)
        else:
            shutil.rmtree(folder, ignore_errors=True)


@contextlib.contextmanager
def _shown(console: Console) -> "Iterator[Callable[[Scene], None]]":
    """In a terminal a picture that is drawn again and again, elsewhere a line for each thing that happens."""
    if not console.is_terminal:
        told = 0

        def tell(scene: "Scene") -> None:
            nonlocal told
            for moment in scene.moments[told:]:
                console.print(_line(moment), soft_wrap=True)
            told = len(scene.moments)

        yield tell
        return
    with Redrawn(console=console, transient=True, auto_refresh=False, vertical_overflow="crop") as redrawn:

        def redraw(scene: "Scene") -> None:
            latest = scene.moments[-max(1, console.height - ABOVE_STORY) :]
            redrawn.update(Group(strips(scene), Text(scene.status, style="dim"), *map(_line, latest)), refresh=True)

        yield redraw


# --- what is printed -------------------------------------------------------------------------------------------------


def _copy_examples(to: Path) -> list[str]:
    """Copy the examples of the installed package, or of the clone; returns their names. Raises `InputError`."""
    clone = Path(__file__).resolve().parents[3] / "examples"
    found = next((one for one in (Path(sys.prefix) / "share" / "poise" / "examples", clone) if one.is_dir()), None)
    if found is None:
        raise InputError("the examples are not installed", hint=f"pip install --force-reinstall {DISTRIBUTION}")
    try:
        shutil.copytree(found, to)
    except FileExistsError:
        raise InputError("there is such a folder already", field="--examples", have=str(to), hint="another") from None
    except (OSError, shutil.Error) as error:
        raise InputError(f"the examples cannot be copied: {error}", field="--examples", have=str(to)) from None
    say(f"poise: copied the examples to {to}; try `poise submit {to / 'hello.yaml'}`")
    return sorted(str(path.relative_to(to)) for path in to.rglob("*") if path.is_file())


def live_parts(told: "Live", *, story: bool) -> list[Any]:
    """What came of the live part: who held the devices, the `story`, and each promise."""
    from poise.demo.promises import promises

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
    """The table of the twin, with the best of each column marked."""
    from poise.demo.compared import ABOUT, BASELINES, TABLE, best

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
    """Who held each device over time, and when something was killed."""
    from poise.demo.live import DEVICES

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
    """`  9.4 s  urgent: done, 4.1 s before its deadline`."""
    return Text.assemble((f"{moment.at:5.1f} s  ", "dim"), (moment.text, STYLES[moment.kind]))
