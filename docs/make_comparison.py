"""Draws docs/images/compare.svg: the plots of a page that `poise compare --report` writes, of the example trace.

python docs/make_comparison.py [--policies fifo,sjf,las,poise]

The plots are those of the page; here they stand one below the other, with names and colours of their own, since a
picture in a page may load nothing.
"""

import argparse
import re
from html import escape
from pathlib import Path

from poise_lab.compare import Asked, compare
from poise_lab.page import WIDTH
from poise_lab.panels import COLOURS, render
from poise_lab.traces.options import Options

ROOT = Path(__file__).resolve().parent.parent
PICTURE = ROOT / "docs" / "images" / "compare.svg"
COLUMNS = {"submit": "created", "duration": "seconds", "gpus": "gpus", "kind": "class", "tenant": "team"}
TITLES = ("Jobs that had ended after so long", "Jobs that waited", "Devices that were held, of all")
MARGIN, TITLE = 24, 34
STYLE = (
    "svg { font: 11px system-ui, sans-serif; } text { fill: #5c6370; } .title { font-size: 15px; fill: #1a1c1e; }"
    " .tick { stroke: #d9dde3; } .paper { fill: #ffffff; } .wash { fill: #f4f6f8; }"
)


def main() -> None:
    parser = argparse.ArgumentParser(description="draw docs/images/compare.svg")
    parser.add_argument("--policies", default="fifo,sjf,las,poise", help="names, with commas between them")
    policies = parser.parse_args().policies.split(",")
    asked = Asked(
        trace=ROOT / "examples" / "trace.csv",
        fleet=ROOT / "examples" / "cluster.yaml",
        world=ROOT / "examples" / "world.yaml",
        options=Options(columns=COLUMNS),
    )
    page = render(compare(asked, policies))
    plots = re.findall(r'<svg viewBox="0 0 \d+ (\d+)"[^>]*>(.*?)</svg>', page, re.DOTALL)
    plots = [(int(height), drawn) for height, drawn in plots if "<polyline" in drawn][: len(TITLES)]
    PICTURE.write_text("\n".join(picture(policies, plots)) + "\n", encoding="utf-8")
    print(PICTURE.relative_to(ROOT))


def picture(policies: list[str], plots: list[tuple[int, str]]) -> list[str]:
    """The plots below each other, and above them which colour is whose."""
    height = 2 * MARGIN + TITLE + sum(of + TITLE for of, _ in plots)
    hues = "".join(
        f" .c{hue} {{ stroke: {colour}; fill: none; stroke-width: 1.5; }} rect.c{hue} {{ fill: {colour}; }}"
        for hue, colour in enumerate(COLOURS)
    )
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH + 2 * MARGIN} {height}" role="img">',
        f"<style>{STYLE}{hues}</style>",
        f'<rect class="paper" width="{WIDTH + 2 * MARGIN}" height="{height}"/>',
    ]
    for number, name in enumerate(policies):
        left = MARGIN + number * 140
        lines.append(f'<rect class="c{number % len(COLOURS)}" x="{left}" y="{MARGIN}" width="12" height="12"/>')
        lines.append(f'<text class="title" x="{left + 18}" y="{MARGIN + 11}">{escape(name)}</text>')
    top = MARGIN + TITLE
    for title, (tall, drawn) in zip(TITLES, plots, strict=True):
        lines.append(f'<text class="title" x="{MARGIN}" y="{top + 18}">{title}</text>')
        lines.append(f'<g transform="translate({MARGIN}, {top + TITLE - 8})">')
        lines += [f'<rect class="wash" width="{WIDTH}" height="{tall - 20}"/>', drawn.strip(), "</g>"]
        top += tall + TITLE
    return [*lines, "</svg>"]


if __name__ == "__main__":
    main()
