"""Render a comparison of policies as one page: figures side by side, curves, and a timeline of the fleet per policy.

A bar of a timeline links to the panel of its job, which shows where and why its attempts ran. This needs no script: a
panel is visible while the page address names it.
"""

import math
from collections.abc import Iterable, Mapping, Sequence

from poise.model.history import Lane, Span
from poise.units import DAY, HOUR, MINUTE, SECOND, format_duration, format_flops
from poise_lab.compare import Comparison
from poise_lab.figures import COLUMNS, devices_held, figures, percent
from poise_lab.measures import CPU, JobResult
from poise_lab.page import CURVE, STYLE, WIDTH, Page, along, ticks, timeline
from poise_lab.trial import Result, remarks

LANES = 600
"""Maximum number of rows of a timeline."""

HUES = 8
"""Number of policies with different colors; then the colors repeat."""

DOTS = 300
"""Number of points to draw for a distribution."""

MARKS = tuple(
    one * unit
    for unit, ones in ((SECOND, (1, 10)), (MINUTE, (1, 10)), (HOUR, (1, 6)), (DAY, (1, 7, 30, 365)))
    for one in ones
)
"""Tick marks on the axis of completion times."""

POINTS = 250
"""Number of points to draw for a curve."""

COLOURS = ("#1f6fb2", "#c0392b", "#2f7d4f", "#b7791f", "#7d4fb0", "#16808a", "#b0447a", "#5c6370")
_PALE = ("#5aa9e6", "#ef6a5b", "#4fae78", "#e0a94a", "#b392e0", "#4dc0ca", "#e58bb6", "#9aa3af")

PANELS = (
    STYLE
    + "".join(
        f".c{hue} {{ stroke: {colour}; fill: none; stroke-width: 1.5; }} rect.c{hue} {{ fill: {colour}; }}\n"
        for hue, colour in enumerate(COLOURS)
    )
    + "@media (prefers-color-scheme: dark) {"
    + "".join(
        f".c{hue} {{ stroke: {colour}; }} rect.c{hue} {{ fill: {colour}; }}\n" for hue, colour in enumerate(_PALE)
    )
    + """}
td.best { font-weight: 700; } td.number, th.number { text-align: right; }
.panel { display: none; position: fixed; right: 0; top: 0; bottom: 0; width: min(560px, 92vw); overflow-y: auto;
  background: var(--paper); border-left: 1px solid var(--line); box-shadow: 0 0 24px #0004; padding: 16px 20px; }
.panel:target { display: block; } .panel h3 { margin: 0; font-size: 16px; } .panel a { color: var(--running); }
a .bar { cursor: pointer; }
@media print { .panel { display: none; } }
"""
)
"""The page style including the classes that `draw` uses."""


def render(told: Comparison) -> str:
    """Return the page. Never raises: every comparison can be rendered."""
    page = Page(f"{told.trace} on {told.fleet}", PANELS)
    draw(page, told)
    return page.text()


def draw(page: Page, told: Comparison) -> None:
    """Add the comparison to a page that has the style `PANELS`."""
    _head(page, told)
    _figures(page, told)
    _distribution(page, told.trials)
    _curves(page, told.trials)
    for number, trial in enumerate(told.trials):
        _timeline(page, number, trial)
    for number, trial in enumerate(told.trials):
        _panels(page, number, trial)


def _head(page: Page, told: Comparison) -> None:
    devices = ", ".join(f"{count} {name}" for name, count in told.devices.items()) or "no devices"
    text = f"{told.nodes} nodes with {devices}; run times {told.information}; load {told.load:g}; seed {told.seed}"
    page.tag("p", text, class_="faint")
    for note in told.notes:
        page.tag("p", note, class_="faint")
    for failure in told.failed:
        page.tag("p", f"The trial of {failure.policy} came to no end: {failure.error.message}.")
    for remark in (remark for trial in told.trials for remark in remarks(trial)):
        page.tag("p", f"{remark}.", class_="faint")
    if told.skipped:
        left = ", ".join(f"{count:,} for: {reason}" for reason, count in told.skipped.items())
        page.tag("p", f"Left out of the trace: {left}.", class_="faint")


# --- figures ---------------------------------------------------------------------------------------------------------


def _figures(page: Page, told: Comparison) -> None:
    page.tag("h2", "Figures")
    page.raw('<div class="wide"><table>\n<tr>')
    page.tag("th", "policy")
    for title, _, _ in COLUMNS:
        page.tag("th", title.lower().replace("jct", "completion"), class_="number")
    page.raw("</tr>\n")
    for trial in told.trials:
        page.raw("<tr>")
        page.tag("td", trial.policy)
        for _, _, cell in COLUMNS:
            page.tag("td", cell(trial.measures), class_="number")
        page.raw("</tr>\n")
    page.raw("</table></div>\n")
    for trial in told.trials:
        page.raw("<details>")
        page.tag("summary", f"Every figure of {trial.policy}")
        page.table(("figure", "value"), figures(trial.measures))
        page.raw("</details>\n")


def _distribution(page: Page, trials: Sequence[Result]) -> None:
    """Draw the distribution of completion times on a logarithmic axis, because they differ by orders of magnitude."""
    times = [sorted(max(1, job.completion) for job in trial.jobs if job.ended >= 0) for trial in trials]
    page.tag("h2", "Completion times")
    if not any(times):
        page.tag("p", "No job has ended.", class_="faint")
        return
    page.tag("p", "The part of all jobs that had ended after so long; the axis is logarithmic.", class_="faint")
    _names(page, [trial.policy for trial in trials])
    least = math.log10(min(of[0] for of in times if of))
    most = max(math.log10(max(of[-1] for of in times if of)), least + 0.01)
    height = CURVE * 2
    page.raw(f'<svg viewBox="0 0 {WIDTH} {height + 24}" role="img" aria-label="distribution of completion times">\n')
    for mark in MARKS:
        if least <= math.log10(mark) <= most:
            x = along(math.log10(mark) - least, most - least, 0.01)
            page.raw(f'<line class="tick" x1="{x}" x2="{x}" y1="0" y2="{height}"/>\n')
            page.tag("text", _short(mark), x=x + 3, y=height + 16)
    for part in (0.25, 0.5, 0.75):
        y = height * (1 - part)
        page.raw(f'<line class="tick" x1="0" x2="{WIDTH}" y1="{y:g}" y2="{y:g}"/>\n')
        page.tag("text", f"{part:.0%}", x=3, y=y - 3)
    for number, (trial, of) in enumerate(zip(trials, times, strict=True)):
        count = len(trial.jobs)
        places = sorted({round(dot * (len(of) - 1) / DOTS) for dot in range(DOTS + 1)}) if of else []
        points = [
            f"{along(math.log10(of[place]) - least, most - least, 0.01):g},{height * (1 - (place + 1) / count):.1f}"
            for place in places
        ]
        page.raw(f'<polyline class="{_hue(number)}" points="{" ".join(points)}"/>\n')
    page.raw("</svg>\n")


def _short(mark: int) -> str:
    """Format a tick mark: `10m`, `1h`, `7d`."""
    unit, name = next(
        (unit, name) for unit, name in ((DAY, "d"), (HOUR, "h"), (MINUTE, "m"), (SECOND, "s")) if mark >= unit
    )
    return f"{mark // unit}{name}"


def _curves(page: Page, trials: Sequence[Result]) -> None:
    length = max(trial.curves.width * len(trial.curves.waiting) for trial in trials)
    names = [trial.policy for trial in trials]
    plot(page, "Jobs that waited", "queue length over time", names, [_thin(_waiting(of)) for of in trials], length)
    models = list(dict.fromkeys(name for trial in trials for name in trial.curves.held if name != CPU))
    text = "Devices that were held, of all" if models else "Cores held, of all"
    held = [_thin(_held(of, models or [CPU])) for of in trials]
    plot(page, text, "use over time", names, held, length, most=1.0)
    for model in models if len(models) > 1 else ():
        held = [_thin(_held(of, [model])) for of in trials]
        plot(page, f"{model} that were held", "use of one model over time", names, held, length, most=1.0)


Curve = list[tuple[float, float]]
"""Instants in nanoseconds, and the value from each instant on."""


def _waiting(trial: Result) -> Curve:
    return [(at * trial.curves.width, value) for at, value in enumerate(trial.curves.waiting)]


def _held(trial: Result, kinds: Sequence[str]) -> Curve:
    """Return the fraction of the devices of these kinds that was held."""
    there = sum(trial.measures.use[name].there for name in kinds if name in trial.measures.use) or 1.0
    held = zip(*(trial.curves.held[name] for name in kinds if name in trial.curves.held), strict=True)
    return [(at * trial.curves.width, sum(values) / there) for at, values in enumerate(held)]


def _thin(curve: Curve) -> Curve:
    """Reduce a long curve to the means of neighbouring points."""
    step = math.ceil(len(curve) / POINTS) or 1
    groups = (curve[at : at + step] for at in range(0, len(curve), step))
    return [(group[0][0], sum(value for _, value in group) / len(group)) for group in groups]


def plot(
    page: Page,
    title: str,
    label: str,
    names: Sequence[str],
    curves: Sequence[Curve],
    length: int,
    most: float = 0.0,
) -> None:
    """Draw curves over `length` nanoseconds, each with its name. `most` is the top of the scale; 0: the largest."""
    page.tag("h2", title)
    most = most or max((value for curve in curves for _, value in curve), default=0.0)
    if not most:
        page.tag("p", "None.", class_="faint")
        return
    page.tag("p", f"At most {percent(most) if most == 1.0 else f'{most:,.4g}'} on this scale.", class_="faint")
    _names(page, names)
    page.raw(f'<svg viewBox="0 0 {WIDTH} {CURVE + 24}" role="img" aria-label="{label}">\n')
    ticks(page, length, CURVE + 24)
    for number, curve in enumerate(curves):
        points = [f"{along(at, length):g},{CURVE - (CURVE - 6) * min(1.0, value / most):.1f}" for at, value in curve]
        page.raw(f'<polyline class="{_hue(number)}" points="{" ".join(points)}"/>\n')
    page.raw("</svg>\n")


def _names(page: Page, names: Sequence[str]) -> None:
    page.key((_hue(number), name) for number, name in enumerate(names))


def _hue(number: int) -> str:
    return f"c{number % HUES}"


# --- timelines and job panels ----------------------------------------------------------------------------------------


def _timeline(page: Page, number: int, trial: Result) -> None:
    page.tag("h2", f"The fleet under {trial.policy}", id=f"p{number}")
    lanes, left = _lanes(trial.spans)
    if not lanes:
        page.tag("p", "Nothing has run.", class_="faint")
        return
    text = "A bar is an attempt; it leads to its job: where that ran, and why."
    if trial.forgotten or left:
        text += f" {trial.forgotten + left:,} shorter attempts, or such as found no row, are left out."
    page.tag("p", f"{percent(devices_held(trial.measures))} of the devices were held. {text}", class_="faint")
    length = max(span.until for span in trial.spans)
    timeline(page, lanes, length, link=lambda span: f"p{number}-{span.job}")


def _lanes(spans: Iterable[Span]) -> tuple[list[Lane], int]:
    """Return one lane per device, plus as few lanes as needed for attempts without devices, and the number of attempts
    without a lane.
    """
    rows: dict[tuple[str, int, int], list[Span]] = {}
    left = 0
    for span in spans:
        places = [(span.node, 0, device) for device in span.devices] or [(span.node, 1, _row(rows, span))]
        if len(rows) >= LANES and not all(place in rows for place in places):
            left += 1
            continue
        for place in places:
            rows.setdefault(place, []).append(span)
    lanes = [
        Lane(node=node, name="" if kind else f"device {device}", spans=tuple(of))
        for (node, kind, device), of in sorted(rows.items())
    ]
    return lanes, left


def _row(rows: Mapping[tuple[str, int, int], list[Span]], span: Span) -> int:
    """Return the first row of the node that is free when the attempt begins."""
    row = 0
    while (taken := rows.get((span.node, 1, row))) and taken[-1].until > span.since:
        row += 1
    return row


def _panels(page: Page, number: int, trial: Result) -> None:
    """Add a panel for each job with a drawn attempt."""
    of: dict[str, list[Span]] = {}
    for span in trial.spans:
        of.setdefault(span.job, []).append(span)
    for job in trial.jobs:
        if job.id in of:
            _panel(page, number, trial, job, of[job.id])


def _panel(page: Page, number: int, trial: Result, job: JobResult, spans: Sequence[Span]) -> None:
    page.raw(f'<section class="panel" id="p{number}-{job.id}">')
    page.raw(f'<p><a href="#p{number}">close</a></p>')
    page.tag("h3", f"{job.id} {job.name} under {trial.policy}")
    how = f"{job.outcome}, {format_duration(job.ended - job.submitted)}" if job.ended >= 0 else "not over"
    alone = f"; {format_duration(job.alone)} by itself" if job.alone else ""
    page.tag("p", f"{how} after its submission at {format_duration(job.submitted)}{alone}")
    per_watt = f", {format_flops(round(job.per_watt))}S/W" if job.per_watt else ""
    rows = [
        ("class, tenant", f"{job.kind or '-'}, {job.tenant}"),
        ("devices", str(job.devices)),
        ("waited", format_duration(job.completion - job.run) if job.ended >= 0 else "-"),
        ("ran", format_duration(job.run)),
        ("slowdown, rho", f"{job.slowdown:.2f}, {job.rho:.2f}" if job.slowdown else "-"),
        ("attempts", f"{job.attempts}, {job.preempted} times preempted, {job.moved} times elsewhere"),
        ("held in vain", f"{job.wasted / max(1, job.service) * 100:.1f} % of its device time"),
        ("energy", f"{job.energy / 3.6e6:,.3g} kWh{per_watt}"),
    ]
    if job.price:
        rows.append(("money", f"${job.price:,.2f}"))
    page.table(("", ""), rows)
    page.table(
        ("attempt", "where", "from", "for", "outcome", "why"),
        [
            (
                f"{span.task.partition('.')[2]} {span.epoch}",
                f"{span.node}{list(span.devices) if span.devices else ''}",
                format_duration(span.since),
                format_duration(span.until - span.since),
                span.outcome or "still runs",
                span.why,
            )
            for span in spans[:50]
        ],
    )
    page.raw("</section>\n")
