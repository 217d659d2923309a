"""Draws docs/images/demo.svg: the real demo, as `poise demo` prints it at its end.

python docs/make_picture.py           run the demo and draw what came out (about a minute)
python docs/make_picture.py --again   draw the same run anew, without running it
"""

import argparse
import sys
import tempfile
from pathlib import Path

import msgspec
from rich.console import Console
from rich.terminal_theme import TerminalTheme
from rich.text import Text

from poise_lab.cli.demo import live_parts, twin_parts
from poise_lab.demo import compared, live

ROOT = Path(__file__).resolve().parent.parent
PICTURE = ROOT / "docs" / "images" / "demo.svg"
RUNS = ROOT / ".bench" / "picture.json"
COLUMNS = 112

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


class Shown(msgspec.Struct, frozen=True):
    """What one run of the demo showed."""

    live: live.Live
    twin: list[compared.Standing]


def main() -> int:
    parser = argparse.ArgumentParser(description="draw docs/images/demo.svg")
    parser.add_argument("--again", action="store_true", help="draw the run of the last time")
    options = parser.parse_args()
    shown = msgspec.json.decode(RUNS.read_bytes(), type=Shown) if options.again else _run()
    picture = Console(record=True, width=COLUMNS, file=sys.stderr, force_terminal=True, color_system="truecolor")
    picture.print(Text("$ poise demo", style="bold"))
    for part in (*live_parts(shown.live, story=True), *twin_parts(shown.twin)):
        picture.print(part)
    PICTURE.write_text(
        picture.export_svg(title="poise demo", theme=THEME, code_format=FORMAT, unique_id="poise"), encoding="utf-8"
    )
    print(PICTURE.relative_to(ROOT))
    return 0


def _run() -> Shown:
    with tempfile.TemporaryDirectory(prefix="poise-demo-") as folder:
        told = live.run(Path(folder), lambda scene: None)
    shown = Shown(told, compared.standings(compared.run()))
    RUNS.parent.mkdir(exist_ok=True)
    RUNS.write_bytes(msgspec.json.encode(shown))
    return shown


if __name__ == "__main__":
    sys.exit(main())
