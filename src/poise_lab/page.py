"""Build self-contained HTML pages with drawings: no script, no network, no other file.

`Page` escapes every user text; it is the only place that makes HTML from values. The content security policy of a page
allows only its one style sheet, by its hash, so that even an unescaped text could do no harm.
"""

import base64
import hashlib
from collections.abc import Callable, Iterable, Sequence
from html import escape

from poise.model.history import Lane, Span
from poise.model.jobs import FAILED
from poise.units import format_duration

WIDTH = 1000
"""Width of the timeline in its own units; the page scales it."""

ROW, GAP, CURVE = 14, 22, 120
"""Heights of a lane, of a node's name above its lanes, and of the curve."""

TICKS = 8

STYLE = """
:root { color-scheme: light dark; --ink: #1a1c1e; --paper: #ffffff; --faint: #5c6370; --line: #d9dde3; --wash: #f4f6f8;
  --done: #2f7d4f; --running: #1f6fb2; --failed: #c0392b; --stopped: #b7791f; --pending: #b7791f; --active: #1f6fb2; }
@media (prefers-color-scheme: dark) { :root { --ink: #e6e8eb; --paper: #15181c; --faint: #9aa3af; --line: #333a43;
  --wash: #1d2127; --done: #4fae78; --running: #5aa9e6; --failed: #ef6a5b; --stopped: #e0a94a; --pending: #e0a94a;
  --active: #5aa9e6; } }
body { font: 15px/1.5 system-ui, sans-serif; color: var(--ink); background: var(--paper); margin: 0 auto; padding: 24px;
  max-width: 1200px; }
h1 { font-size: 24px; margin: 0 0 4px; } h2 { font-size: 18px; margin: 32px 0 8px; } p { margin: 4px 0; }
.faint { color: var(--faint); }
dl { display: grid; grid-template-columns: repeat(auto-fill, minmax(170px, 1fr)); gap: 12px; margin: 16px 0; }
dl div { background: var(--wash); border-radius: 6px; padding: 8px 12px; }
dt { color: var(--faint); font-size: 13px; } dd { margin: 0; font-size: 20px; font-variant-numeric: tabular-nums; }
dd small { display: block; font-size: 12px; color: var(--faint); }
table { border-collapse: collapse; width: 100%; font-size: 13px; font-variant-numeric: tabular-nums; }
th, td { text-align: left; vertical-align: top; padding: 4px 10px 4px 0; border-bottom: 1px solid var(--line);
  overflow-wrap: anywhere; }
th { color: var(--faint); font-weight: 600; } .wide { overflow-x: auto; }
summary { cursor: pointer; padding: 6px 0; } details { margin: 4px 0; }
svg { width: 100%; height: auto; display: block; background: var(--wash); border-radius: 6px; }
svg text { fill: var(--faint); font: 11px system-ui, sans-serif; }
.tick { stroke: var(--line); } .done { fill: var(--done); } .running { fill: var(--running); }
.failed { fill: var(--failed); } .stopped { fill: var(--stopped); }
.bar { stroke: var(--wash); stroke-width: 0.5; } .bar:hover { opacity: 0.7; }
.pending { fill: none; stroke: var(--pending); stroke-width: 1.5; }
.active { fill: none; stroke: var(--active); stroke-width: 1.5; }
.key { display: inline-block; margin-right: 16px; font-size: 13px; }
.key svg { display: inline-block; width: 10px; height: 10px; border-radius: 2px; vertical-align: baseline; }
@media print { :root { color-scheme: light; --ink: #000; --paper: #fff; --faint: #444; --line: #bbb; --wash: #fff; }
  body { padding: 0; max-width: none; } h2, tr, dl div { break-inside: avoid; }
  details::details-content { content-visibility: visible; block-size: auto; } }
"""


class Page:
    """An HTML page under construction. `text` arguments are escaped; tags come from the code."""

    def __init__(self, title: str, style: str = STYLE) -> None:
        self._parts: list[str] = []
        digest = base64.b64encode(hashlib.sha256(style.encode()).digest()).decode()
        policy = f"default-src 'none'; style-src 'sha256-{digest}'; base-uri 'none'; form-action 'none'"
        self.raw('<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n')
        self.raw(f'<meta http-equiv="Content-Security-Policy" content="{escape(policy)}">\n')
        self.raw('<meta name="viewport" content="width=device-width, initial-scale=1">\n')
        self.tag("title", title)
        self.raw(f"<style>{style}</style>\n</head>\n<body>\n<main>\n")
        self.tag("h1", title)

    def raw(self, html: str) -> None:
        """Append markup that contains no user text."""
        self._parts.append(html)

    def tag(self, name: str, text: str, **attributes: str | float) -> None:
        given = "".join(f' {key.rstrip("_")}="{escape(str(value))}"' for key, value in attributes.items())
        self._parts.append(f"<{name}{given}>{escape(text)}</{name}>\n")

    def table(self, heads: Sequence[str], rows: Iterable[Sequence[str]]) -> None:
        """Append a table that scrolls horizontally if it is too wide."""
        self.raw('<div class="wide"><table>\n<tr>')
        for head in heads:
            self.tag("th", head)
        self.raw("</tr>\n")
        for row in rows:
            self.raw("<tr>" + "".join(f"<td>{escape(cell)}</td>" for cell in row) + "</tr>\n")
        self.raw("</table></div>\n")

    def figure(self, name: str, value: str, more: str) -> None:
        """Append one figure to a list of figures (`dl`)."""
        self.raw("<div>")
        self.tag("dt", name)
        self.raw(f"<dd>{escape(value)}")
        self.tag("small", more)
        self.raw("</dd></div>\n")

    def key(self, entries: Iterable[tuple[str, str]]) -> None:
        """Append the color key: class and label."""
        self.raw("<p>")
        for kind, words in entries:
            self.raw(f'<span class="key"><svg viewBox="0 0 1 1"><rect class="{kind}" width="1" height="1"/></svg> ')
            self.raw(f"{escape(words)}</span>")
        self.raw("</p>\n")

    def text(self) -> str:
        """Return the whole page."""
        return "".join([*self._parts, "</main>\n</body>\n</html>\n"])


def timeline(page: Page, lanes: Sequence[Lane], length: int, link: Callable[[Span], str] = lambda span: "") -> None:
    """Draw attempts by place and time, for `length` nanoseconds. `link` returns the anchor on the page for a bar."""
    page.key([(kind, kind) for kind in ("done", "running", "failed", "stopped")])
    nodes = list(dict.fromkeys(lane.node for lane in lanes))
    height = len(nodes) * GAP + len(lanes) * ROW + 24
    page.raw(f'<svg viewBox="0 0 {WIDTH} {height}" role="img" aria-label="timeline of attempts">\n')
    ticks(page, length, height)
    top = 0
    for node in nodes:
        page.tag("text", node, x=4, y=top + GAP - 7)
        top += GAP
        for lane in lanes:
            if lane.node == node:
                _lane(page, lane, top, length, link)
                top += ROW
    page.raw("</svg>\n")


def _lane(page: Page, lane: Lane, top: int, length: int, link: Callable[[Span], str]) -> None:
    for span in lane.spans:
        left, right = along(span.since, length), along(span.until, length)
        width = max(1.0, right - left)
        to = link(span)
        page.raw(f'<a href="#{escape(to)}">' if to else "")
        page.raw(f'<rect class="bar {_kind(span)}" x="{left:g}" y="{top}" width="{width:g}" height="{ROW - 2}">')
        page.tag("title", "\n".join(_told(span)))
        page.raw(f"</rect>{'</a>' if to else ''}\n")
    if lane.name:
        page.tag("text", lane.name, x=WIDTH - 60, y=top + ROW - 4)


def _told(span: Span) -> Iterable[str]:
    artifact = f" as {span.artifact}" if span.artifact else ""
    devices = f", device {', '.join(map(str, span.devices))}" if span.devices else ""
    yield f"{span.task}, attempt {span.epoch}{artifact} on {span.node}{devices}"
    how = span.outcome or "still runs"
    yield f"{how}{f': {span.note}' if span.note else ''}; {format_duration(span.until - span.since)}"
    yield f"waited {format_duration(span.waited)}; {span.priority}"
    if span.why:
        yield span.why


def _kind(span: Span) -> str:
    if not span.outcome:
        return "running"
    return "failed" if span.outcome in FAILED else span.outcome if span.outcome == "done" else "stopped"


def ticks(page: Page, length: int, height: int) -> None:
    """Draw time marks below a drawing of `length` nanoseconds."""
    for tick in range(1, TICKS):
        at = WIDTH * tick // TICKS
        page.raw(f'<line class="tick" x1="{at}" x2="{at}" y1="0" y2="{height - 16}"/>\n')
        page.tag("text", format_duration(length * tick // TICKS), x=at + 3, y=height - 5)


def along(at: float, length: float, least: float = 1.0) -> float:
    """Return the horizontal position of `at` in a drawing of `length`, which counts as at least `least`."""
    return round(WIDTH * min(max(at, 0), length) / max(least, length), 2)
