"""Draws docs/images/architecture.svg from the imports of `src`: which part uses which, the used one below.

`docs/generate.py` calls it. A part is a folder of the scheduler, or another package as a whole; what only stands for a
moved module is left out. An arrow that follows from two others is left out too.
"""

import ast
from collections.abc import Iterator
from functools import cache
from pathlib import Path

SOURCE = Path(__file__).resolve().parent.parent / "src"
BASE = {"config", "decoding", "errors", "units"}
SDK = {"calls", "sdk", "testing"}
WIDTH, HEIGHT, GAP, STEP = 108, 30, 16, 62

Graph = dict[str, set[str]]


def picture() -> str:
    """The SVG."""
    parts = reduced(imports())
    levels = {part: _level(part, parts) for part in parts}
    rows = [sorted(part for part in parts if levels[part] == level) for level in range(max(levels.values()) + 1)][::-1]
    across = max(map(len, rows)) * (WIDTH + GAP) + GAP
    at = {
        part: (across / 2 + (number - len(row) / 2) * (WIDTH + GAP) + GAP / 2, GAP + STEP * below)
        for below, row in enumerate(rows)
        for number, part in enumerate(row)
    }
    lines = [
        f'<line x1="{at[part][0] + WIDTH / 2:g}" y1="{at[part][1] + HEIGHT}" x2="{at[used][0] + WIDTH / 2:g}"'
        f' y2="{at[used][1] - 5}"/>'
        for part in sorted(parts)
        for used in sorted(parts[part])
    ]
    boxes = [
        f'<rect class="{"product" if part.startswith("poise_") else "part"}" x="{x:g}" y="{y}" width="{WIDTH}"'
        f' height="{HEIGHT}" rx="5"/><text x="{x + WIDTH / 2:g}" y="{y + 20}">{part}</text>'
        for part, (x, y) in at.items()
    ]
    size = f"{across} {STEP * len(rows) + GAP - (STEP - HEIGHT) + GAP}"
    return "\n".join(
        (
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {size}" role="img" aria-label="Imports of Poise">',
            "<style>text{font:13px ui-monospace,Menlo,Consolas,monospace;text-anchor:middle;fill:#1f2328}"
            "line{stroke:#8c959f;marker-end:url(#to)}rect{stroke:#8c959f}.part{fill:#f6f8fa}.product{fill:#ddf4ff}</style>",
            '<defs><marker id="to" viewBox="0 0 8 8" refX="4" refY="4" markerWidth="7" markerHeight="7" orient="auto">'
            '<path d="M0 0L8 4L0 8z" fill="#8c959f"/></marker></defs>',
            '<rect width="100%" height="100%" style="fill:#fff;stroke:none"/>',
            *lines,
            *boxes,
            "</svg>\n",
        )
    )


def imports() -> Graph:
    """The parts, and for each the parts that its modules import."""
    found: Graph = {}
    for path in sorted(SOURCE.glob("poise*/**/*.py")):
        part = _part(".".join(path.relative_to(SOURCE).with_suffix("").parts))
        text = path.read_text(encoding="utf-8")
        if part and not text.startswith('"""Former name of'):
            used = {_part(name) for name in _imported(ast.parse(text))}
            found.setdefault(part, set()).update(used - {part, ""})
    return found


def reduced(parts: Graph) -> Graph:
    """Without the arrows that follow from two others."""
    return {part: used - {far for near in used for far in _below(near, parts)} for part, used in parts.items()}


def _below(part: str, parts: Graph) -> set[str]:
    return {one for used in parts[part] for one in (used, *_below(used, parts))}


def _level(part: str, parts: Graph) -> int:
    return 1 + max((_level(used, parts) for used in parts[part]), default=-1)


@cache
def _part(module: str) -> str:
    package, _, rest = module.partition(".")
    room = rest.partition(".")[0].removeprefix("__init__")
    if package != "poise":
        return package if package.startswith("poise_") else ""
    if room in BASE:
        return "base"
    if room in SDK:
        return "sdk"
    place = SOURCE / "poise" / room
    return room if room and (place.is_dir() or place.with_suffix(".py").exists()) else ""


def _imported(tree: ast.AST) -> Iterator[str]:
    """What its statements import; a walk through all of its expressions would take as long as to parse it."""
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.Import):
            yield from (one.name for one in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            yield from (f"{node.module}.{one.name}" for one in node.names)
        elif not isinstance(node, ast.expr):
            yield from _imported(node)
