"""A run as one page of HTML that needs nothing else: no script, no network, no other file.

Every text of a user is escaped by `_Page`, the only place that makes HTML of values. The page's own policy allows its
one style sheet, by its hash, and nothing else, so that a text that slipped through could still do nothing. Reasons are
titles of the bars (shown on hover, read aloud) and rows of tables that fold.
"""

import base64
import hashlib
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime
from html import escape

from poise.kernel.history import FAILED
from poise.model.history import Lane, Level, RunReport, Span, Spread, Use
from poise.units import format_duration

WIDTH = 1000
"""Units of the timeline's width; the page stretches it."""

ROW, GAP, CURVE = 14, 22, 120
"""Heights: of a lane, of a node's name above its lanes, of the curve."""

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

PARTS = {
    "jobs": "earlier jobs",
    "attempts": "shorter attempts in the timeline",
    "happenings": "earlier decisions",
    "failures": "earlier failures",
    "yields": "earlier orders to yield",
    "classes": "classes that ran less",
}


def render(report: RunReport) -> str:
    """The page. Raises nothing: any report makes one."""
    page = _Page()
    _head(page, report)
    _figures(page, report)
    _timeline(page, report)
    _queue(page, report)
    _tables(page, report)
    page.raw("</main>\n</body>\n</html>\n")
    return page.text()


class _Page:
    """HTML as it grows. `text` arguments are escaped, tags are ours."""

    def __init__(self) -> None:
        self._parts: list[str] = []

    def raw(self, html: str) -> None:
        """Markup that holds nothing of a user."""
        self._parts.append(html)

    def tag(self, name: str, text: str, **attributes: str | float) -> None:
        given = "".join(f' {key.rstrip("_")}="{escape(str(value))}"' for key, value in attributes.items())
        self._parts.append(f"<{name}{given}>{escape(text)}</{name}>\n")

    def table(self, heads: Sequence[str], rows: Iterable[Sequence[str]]) -> None:
        """A table that scrolls by itself where it is too wide."""
        self.raw('<div class="wide"><table>\n<tr>')
        for head in heads:
            self.tag("th", head)
        self.raw("</tr>\n")
        for row in rows:
            self.raw("<tr>" + "".join(f"<td>{escape(cell)}</td>" for cell in row) + "</tr>\n")
        self.raw("</table></div>\n")

    def text(self) -> str:
        return "".join(self._parts)


def _head(page: _Page, report: RunReport) -> None:
    digest = base64.b64encode(hashlib.sha256(STYLE.encode()).digest()).decode()
    policy = f"default-src 'none'; style-src 'sha256-{digest}'; base-uri 'none'; form-action 'none'"
    what = f"Run of {', '.join(report.asked[:5])}" if report.asked else "Run"
    what += f" and {len(report.asked) - 5} more" if len(report.asked) > 5 else ""
    page.raw('<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n')
    page.raw(f'<meta http-equiv="Content-Security-Policy" content="{escape(policy)}">\n')
    page.raw('<meta name="viewport" content="width=device-width, initial-scale=1">\n')
    page.tag("title", what)
    page.raw(f"<style>{STYLE}</style>\n</head>\n<body>\n<main>\n")
    page.tag("h1", what)
    begins, ends = (_moment(report.begins + after / 1e9) for after in (0, report.length))
    text = f"{begins} to {ends}, {format_duration(report.length)}; policy {report.policy or 'none yet'}; "
    text += f"records {report.first} to {report.last} of the log"
    page.tag("p", f"{text}; made by Poise {report.version}" if report.version else text, class_="faint")
    if report.left_out:
        said = ", ".join(f"{count} {PARTS[name]}" for name, count in report.left_out.items())
        page.tag("p", f"Left out of the lists, since it is much: {said}. The figures are of all.", class_="faint")


def _figures(page: _Page, report: RunReport) -> None:
    page.raw("<dl>\n")
    statuses = ", ".join(f"{count} {status}" for status, count in report.statuses.items())
    _figure(page, "jobs", str(sum(report.statuses.values())), statuses)
    _figure(page, "tasks", str(report.tasks), f"{report.attempts} attempts")
    _figure(page, "makespan", format_duration(report.makespan), "first submission to last end")
    _spread(page, "completion of a job", report.completion)
    _spread(page, "waiting for room", report.waiting)
    _use(page, "CPU", report.cpu)
    _use(page, "devices", report.devices)
    _figure(page, "failed attempts", str(report.failed), f"{report.retried} tried again")
    _figure(page, "asked to yield", str(report.yielded), "")
    page.raw("</dl>\n")


def _figure(page: _Page, name: str, value: str, more: str) -> None:
    page.raw("<div>")
    page.tag("dt", name)
    page.raw(f"<dd>{escape(value)}")
    page.tag("small", more)
    page.raw("</dd></div>\n")


def _spread(page: _Page, name: str, of: Spread) -> None:
    if of.count:
        more = f"mean; P50 {format_duration(of.p50)}, P95 {format_duration(of.p95)}, P99 {format_duration(of.p99)}"
        _figure(page, name, format_duration(of.mean), more)


def _use(page: _Page, name: str, of: Use) -> None:
    if of.held is not None:
        _figure(page, f"{name} held", _percent(of.held), f"{_percent(of.good)} goodput, {_percent(of.used)} measured")


def _timeline(page: _Page, report: RunReport) -> None:
    page.tag("h2", "Attempts, by node and device")
    if not report.lanes:
        page.tag("p", "Nothing has started.", class_="faint")
        return
    _key(page, [(kind, kind) for kind in ("done", "running", "failed", "stopped")])
    nodes = list(dict.fromkeys(lane.node for lane in report.lanes))
    height = len(nodes) * GAP + len(report.lanes) * ROW + 24
    page.raw(f'<svg viewBox="0 0 {WIDTH} {height}" role="img" aria-label="timeline of attempts">\n')
    _ticks(page, report.length, height)
    top = 0
    for node in nodes:
        page.tag("text", node, x=4, y=top + GAP - 7)
        top += GAP
        for lane in report.lanes:
            if lane.node == node:
                _lane(page, lane, top, report.length)
                top += ROW
    page.raw("</svg>\n")


def _key(page: _Page, entries: Iterable[tuple[str, str]]) -> None:
    """What the colours mean."""
    page.raw("<p>")
    for kind, words in entries:
        page.raw(f'<span class="key"><svg viewBox="0 0 1 1"><rect class="{kind}" width="1" height="1"/></svg> ')
        page.raw(f"{escape(words)}</span>")
    page.raw("</p>\n")


def _lane(page: _Page, lane: Lane, top: int, length: int) -> None:
    for span in lane.spans:
        left, right = _across(span.since, length), _across(span.until, length)
        width = max(1.0, right - left)
        page.raw(f'<rect class="bar {_kind(span)}" x="{left:g}" y="{top}" width="{width:g}" height="{ROW - 2}">')
        page.tag("title", "\n".join(_told(span)))
        page.raw("</rect>\n")
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


def _queue(page: _Page, report: RunReport) -> None:
    page.tag("h2", "What waited, what ran")
    most = max((max(level.pending, level.active) for level in report.levels), default=0)
    if not most:
        page.tag("p", "Nothing waited and nothing ran.", class_="faint")
        return
    page.tag(
        "p",
        f"Units of all jobs that waited for room, and that held room; at most "
        f"{max(level.pending for level in report.levels)} and {max(level.active for level in report.levels)} at once.",
        class_="faint",
    )
    _key(page, (("stopped", "waited"), ("running", "held room")))
    height = CURVE + 24
    page.raw(f'<svg viewBox="0 0 {WIDTH} {height}" role="img" aria-label="what waited and what ran over time">\n')
    _ticks(page, report.length, height)
    for name in ("active", "pending"):
        points = _steps(report.levels, name, most, report.length)
        page.raw(f'<polyline class="{name}" points="{points}"/>\n')
    page.raw("</svg>\n")


def _steps(levels: Sequence[Level], name: str, most: int, length: int) -> str:
    points: list[str] = []
    height = CURVE
    for level in levels:
        across = _across(level.at, length)
        points.append(f"{across:g},{height:g}")
        height = round(CURVE - (CURVE - 6) * (level.pending if name == "pending" else level.active) / most)
        points.append(f"{across:g},{height:g}")
    points.append(f"{WIDTH},{height:g}")
    return " ".join(points)


def _ticks(page: _Page, length: int, height: int) -> None:
    for tick in range(1, TICKS):
        across = WIDTH * tick // TICKS
        page.raw(f'<line class="tick" x1="{across}" x2="{across}" y1="0" y2="{height - 16}"/>\n')
        page.tag("text", format_duration(length * tick // TICKS), x=across + 3, y=height - 5)


def _tables(page: _Page, report: RunReport) -> None:
    _folded(
        page,
        "Jobs",
        ("job", "name", "user", "status", "at", "waited", "took", "tasks", "attempts", "calls", "command"),
        [
            (
                job.id,
                job.name,
                job.user,
                job.status,
                format_duration(job.submitted),
                format_duration(job.waited),
                format_duration(job.took),
                str(job.tasks),
                str(job.attempts),
                str(job.calls) if job.calls else "",
                job.command,
            )
            for job in report.jobs
        ],
        open_=True,
    )
    _folded(
        page,
        "Failures and retries",
        ("at", "task", "attempt", "node", "outcome", "ran", "tried again", "note"),
        [
            (
                format_duration(one.at),
                one.task,
                str(one.epoch),
                one.node,
                one.outcome,
                format_duration(one.run),
                "yes" if one.again else "no",
                one.note,
            )
            for one in report.failures
        ],
        open_=True,
    )
    _folded(
        page,
        "What was asked to yield, and why",
        ("at", "unit", "attempt", "cause", "for", "why"),
        [(format_duration(one.at), one.unit, str(one.epoch), one.cause, one.to, one.why) for one in report.yields],
        open_=True,
    )
    _folded(
        page,
        "Run times by class",
        ("class", "done", "failed", "mean", "P50", "P95", "longest"),
        [
            (
                one.name,
                str(one.run.count),
                str(one.failed),
                *(format_duration(time) for time in (one.run.mean, one.run.p50, one.run.p95, one.run.longest)),
            )
            for one in report.classes
        ],
        open_=True,
    )
    _folded(
        page,
        "Every decision, with its reason",
        ("at", "record", "what", "of", "why"),
        [(format_duration(one.at), str(one.revision), one.kind, one.subject, one.text) for one in report.happenings],
    )


def _folded(
    page: _Page, title: str, heads: Sequence[str], rows: Sequence[Sequence[str]], *, open_: bool = False
) -> None:
    page.tag("h2", title)
    if not rows:
        page.tag("p", "None.", class_="faint")
        return
    page.raw(f"<details{' open' if open_ else ''}>")
    page.tag("summary", f"{len(rows)} rows" if len(rows) > 1 else "1 row")
    page.table(heads, rows)
    page.raw("</details>\n")


def _across(at: int, length: int) -> float:
    return round(WIDTH * min(max(at, 0), length) / max(1, length), 2)


def _percent(thousandths: int | None) -> str:
    return "-" if thousandths is None else f"{thousandths / 10:.1f} %"


def _moment(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%d %H:%M:%S UTC")
