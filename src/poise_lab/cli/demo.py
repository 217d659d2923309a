"""`poise demo`: real jobs on four declared devices, with kills; then a week of a real cluster in the twin."""

import contextlib
import importlib.util
import shutil
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from poise.cli.output import check_page, write_page
from poise.cli.render import print_json, say
from poise.errors import DISTRIBUTION, InputError, extra

if TYPE_CHECKING:
    from rich.console import Console

    from poise_lab.demo.live import Live

FILE_WIDTH = 120
"""Width in columns if the output is not a terminal."""


@click.command()
@click.option("--json", "as_json", is_flag=True, help="Print one JSON value.")
@click.option("--keep", is_flag=True, help="Keep the folder of the live part, and print its path.")
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
    """Show Poise live on four declared devices, and then on a week of a real cluster in the twin.

    Live, a service answers a steady load, elastic training uses every idle device and gives way to an urgent job with a
    deadline; then a worker, an agent and the control plane are killed with kill -9. The devices are declared and their
    speeds emulated; no GPU is needed. While it runs, it prints a link to the dashboard, and it keeps a page of the
    dashboard beside the report. The twin runs the trace under poise, fifo, static and round-robin. Exits with 2
    if a promise of the live part was not kept.
    """
    if examples is not None:
        copied = _copy_examples(examples)
        if as_json:
            print_json({"examples": str(examples), "files": copied})
        return 0
    if any(importlib.util.find_spec(module) is None for module in ("sklearn", "rich")):
        raise InputError("the demo needs scikit-learn and rich", hint=extra("demo"))
    check_page(report, "--report")
    from rich.console import Console

    from poise_lab.demo import compared, live
    from poise_lab.demo.drawing import live_parts, shown, twin_parts
    from poise_lab.demo.page import render

    console, out = Console(stderr=True), Console()
    if not out.is_terminal:
        out.width = FILE_WIDTH
    with _place(keep, console) as folder, shown(console) as show:
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
    dashboard = report.with_name(f"{report.stem}-dashboard.html")
    write_page(dashboard, told.dashboard, "--report")
    if as_json:
        print_json({"live": _public(told), "twin": rows, "page": str(report), "dashboard": str(dashboard)})
    return 0 if told.kept else 2


def _public(told: "Live") -> dict[str, Any]:
    """Return the results of the live part, without the sampled placements."""
    value = {
        name: getattr(told, name) for name in told.__struct_fields__ if name not in ("scene", "report", "dashboard")
    }
    return {**value, "kept": told.kept, "story": told.scene.moments}


@contextlib.contextmanager
def _place(keep: bool, console: "Console") -> Iterator[Path]:
    """Create a folder for the live part; keep it after a failure."""
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


def _copy_examples(to: Path) -> list[str]:
    """Copy the examples of the installed package, or of the clone; returns their names. Raises `InputError`."""
    clone = Path(__file__).resolve().parents[3] / "examples"
    found = next((one for one in (Path(sys.prefix) / "share" / "poise" / "examples", clone) if one.is_dir()), None)
    if found is None:
        raise InputError("the examples are not installed", hint=f"pip install --force-reinstall {DISTRIBUTION}")
    try:
        shutil.copytree(found, to)
    except FileExistsError:
        raise InputError("this folder exists already", field="--examples", have=str(to), hint="another") from None
    except (OSError, shutil.Error) as error:
        raise InputError(f"the examples cannot be copied: {error}", field="--examples", have=str(to)) from None
    say(f"poise: copied the examples to {to}; try `poise submit {to / 'hello.yaml'}`")
    return sorted(str(path.relative_to(to)) for path in to.rglob("*") if path.is_file())
