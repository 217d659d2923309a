"""Draws docs/images/demo.svg: the real demo, as `poise demo` prints it at its end.

python docs/make_picture.py           run the demo's graph and draw what came out (a few minutes)
python docs/make_picture.py --again   draw the same runs anew, without running them
"""

import argparse
import sys
from pathlib import Path

import msgspec
from rich.console import Console
from rich.terminal_theme import TerminalTheme
from rich.text import Text

from poise.cli import demo

ROOT = Path(__file__).resolve().parent.parent
PICTURE = ROOT / "docs" / "images" / "demo.svg"
RUNS = ROOT / ".bench" / "picture.json"
COLUMNS = 120
WHY = 33

GREY, WHITE, FAINT = (13, 17, 23), (230, 237, 243), (110, 118, 129)
RED, GREEN, YELLOW, BLUE = (255, 123, 114), (63, 185, 80), (227, 179, 65), (88, 166, 255)
MAGENTA, CYAN = (188, 140, 255), (57, 197, 207)
COLOURS = [RED, GREEN, YELLOW, BLUE, MAGENTA, CYAN, WHITE]
THEME = TerminalTheme(GREY, WHITE, [GREY, *COLOURS], [FAINT, *COLOURS])

# As rich has it, without the fonts that it fetches from elsewhere: a picture in a page may load nothing.
FORMAT = """\
<svg class="rich-terminal" viewBox="0 0 {width} {height}" xmlns="http://www.w3.org/2000/svg">
    <style>
    .{unique_id}-matrix {{
        font-family: ui-monospace, SFMono-Regular, Menlo, Consolas, "DejaVu Sans Mono", monospace;
        font-size: {char_height}px;
        line-height: {line_height}px;
    }}
    .{unique_id}-title {{ font-size: 18px; font-weight: bold; font-family: sans-serif; }}
    {styles}
    </style>
    <defs>
    <clipPath id="{unique_id}-clip-terminal">
      <rect x="0" y="0" width="{terminal_width}" height="{terminal_height}" />
    </clipPath>
    {lines}
    </defs>
    {chrome}
    <g transform="translate({terminal_x}, {terminal_y})" clip-path="url(#{unique_id}-clip-terminal)">
    {backgrounds}
    <g class="{unique_id}-matrix">
    {matrix}
    </g>
    </g>
</svg>
"""


def main() -> int:
    parser = argparse.ArgumentParser(description="draw docs/images/demo.svg")
    parser.add_argument("--again", action="store_true", help="draw the runs of the last time")
    options = parser.parse_args()
    runs = msgspec.json.decode(RUNS.read_bytes(), type=list[demo.Run]) if options.again else _run_all()
    picture = Console(record=True, width=COLUMNS, file=sys.stderr, force_terminal=True, color_system="truecolor")
    killed = next(run for run in runs if run.killed)
    picture.print(Text("$ poise demo", style="bold"), Text("…", style="dim"))
    tasks = demo.task_table(killed, killed.policy)
    tasks.columns[-1].no_wrap, tasks.columns[-1].max_width, tasks.columns[-1].overflow = True, WHY, "ellipsis"
    picture.print(tasks)
    picture.print()
    picture.print(demo.comparison(runs), demo._verdict(runs, all(run.results == runs[0].results for run in runs)))
    PICTURE.write_text(
        picture.export_svg(title="poise demo", theme=THEME, code_format=FORMAT, unique_id="poise"), encoding="utf-8"
    )
    print(PICTURE.relative_to(ROOT))
    return 0


def _run_all() -> list[demo.Run]:
    console = Console(stderr=True)
    runs = []
    for policy, disturb in (("poise", False), ("poise", True), *((name, False) for name in demo.BASELINES)):
        with demo._place(False, console) as folder:
            runs.append(demo._run(policy, disturb, folder, console))
    RUNS.parent.mkdir(exist_ok=True)
    RUNS.write_bytes(msgspec.json.encode(runs))
    return runs


if __name__ == "__main__":
    sys.exit(main())
