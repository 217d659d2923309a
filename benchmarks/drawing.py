"""Draw curves as a self-contained SVG picture."""

from collections.abc import Mapping, Sequence
from html import escape

WIDTH, HEIGHT = 720, 300
LEFT, TOP, BOTTOM = 56, 44, 36
COLOURS = ("#9aa4b2", "#d1495b", "#30638e")
STYLE = (
    "svg { font: 11px system-ui, sans-serif; } text { fill: #5c6370; } .title { font-size: 14px; fill: #1a1c1e; }"
    " .paper { fill: #ffffff; } .tick { stroke: #d9dde3; } .mark { stroke: #1a1c1e; stroke-dasharray: 3 3; }"
    " polyline { fill: none; stroke-width: 1.4; stroke-opacity: 0.85; }"
)


def drawn(curves: Mapping[str, Sequence[Sequence[float]]], *, marks: Sequence[float] = (), title: str) -> str:
    """Draw families of curves over 1, 2, 3, …, each family in one color; `marks` are vertical lines."""
    every = [curve for family in curves.values() for curve in family]
    last, highest = max(map(len, every)), max(map(max, every))

    def x(at: float) -> float:
        return round(LEFT + (WIDTH - LEFT - 16) * at / last, 1)

    def y(value: float) -> float:
        return round(HEIGHT - BOTTOM - (HEIGHT - TOP - BOTTOM) * value / highest, 1)

    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" role="img">',
        f"<title>{escape(title)}</title><style>{STYLE}</style>",
        f'<rect class="paper" width="{WIDTH}" height="{HEIGHT}"/>',
        f'<text class="title" x="{LEFT}" y="20">{escape(title)}</text>',
    ]
    for part in range(5):
        value, step = highest * part / 4, last * part // 4
        lines.append(f'<line class="tick" x1="{LEFT}" x2="{WIDTH - 16}" y1="{y(value)}" y2="{y(value)}"/>')
        lines.append(f'<text x="{LEFT - 8}" y="{y(value) + 4}" text-anchor="end">{value:.2f}</text>')
        lines.append(f'<text x="{x(step)}" y="{HEIGHT - BOTTOM + 18}" text-anchor="middle">{step}</text>')
    for number, (name, family) in enumerate(curves.items()):
        hue = COLOURS[number % len(COLOURS)]
        for curve in family:
            points = " ".join(f"{x(at)},{y(value)}" for at, value in enumerate(curve, start=1))
            lines.append(f'<polyline stroke="{hue}" points="{points}"/>')
        lines.append(f'<rect fill="{hue}" x="{WIDTH - 400 + 190 * number}" y="11" width="10" height="10"/>')
        lines.append(f'<text x="{WIDTH - 385 + 190 * number}" y="20">{escape(name)}</text>')
    ends = f'y1="{TOP}" y2="{HEIGHT - BOTTOM}"'
    marked = [f'<line class="mark" x1="{x(mark)}" x2="{x(mark)}" {ends}/>' for mark in marks]
    return "\n".join([*lines, *marked, "</svg>", ""])


__all__ = ["drawn"]
