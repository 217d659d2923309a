"""Render a run as one self-contained HTML page: no script, no network, no other file.

Reasons appear as titles of the bars (shown on hover, read aloud) and as rows of collapsible tables.
"""

from collections.abc import Sequence
from datetime import UTC, datetime

from poise.model.history import (
    Bill,
    ClassWaits,
    JobLine,
    Level,
    RunReport,
    Spread,
    TenantUse,
    Use,
    basis_of_co2,
    price_of_electricity,
)
from poise.units import HOUR, format_duration
from poise_lab.page import CURVE, WIDTH, Page, along, ticks, timeline

PARTS = {
    "jobs": "earlier jobs",
    "attempts": "shorter attempts in the timeline",
    "happenings": "earlier decisions",
    "failures": "earlier failures",
    "yields": "earlier orders to yield",
    "classes": "classes that ran less",
    "nodes": "nodes that drew less",
}


def render(report: RunReport) -> str:
    """Return the page. Never raises: every report can be rendered."""
    what = (
        f"Run of {', '.join(report.asked[:5])}"
        if report.asked
        else f"Run of {report.tenant}"
        if report.tenant
        else "Run"
    )
    what += f" and {len(report.asked) - 5} more" if len(report.asked) > 5 else ""
    page = Page(what)
    _head(page, report)
    _figures(page, report)
    _period(page, report)
    _timeline(page, report)
    _queue(page, report)
    _tables(page, report)
    return page.text()


def _head(page: Page, report: RunReport) -> None:
    begins, ends = (_moment(report.begins + after / 1e9) for after in (0, report.length))
    text = f"{begins} to {ends}, {format_duration(report.length)}; policy {report.policy or 'none yet'}; "
    text += f"records {report.first} to {report.last} of the log"
    page.tag("p", f"{text}; made by Poise {report.version}" if report.version else text, class_="faint")
    if report.left_out:
        said = ", ".join(f"{count} {PARTS[name]}" for name, count in report.left_out.items())
        page.tag("p", f"Left out of the lists, since it is much: {said}. The figures are of all.", class_="faint")


def _figures(page: Page, report: RunReport) -> None:
    page.raw("<dl>\n")
    statuses = ", ".join(f"{count} {status}" for status, count in report.statuses.items())
    page.figure("jobs", str(sum(report.statuses.values())), statuses)
    page.figure("tasks", str(report.tasks), f"{report.attempts} attempts")
    page.figure("makespan", format_duration(report.makespan), "first submission to last end")
    _spread(page, "completion of a job", report.completion)
    _spread(page, "waiting for room", report.waiting)
    _use(page, "CPU", report.cpu)
    _use(page, "devices", report.devices)
    page.figure("failed attempts", str(report.failed), f"{report.retried} tried again")
    page.figure("asked to yield", str(report.yielded), "")
    page.raw("</dl>\n")


def _spread(page: Page, name: str, of: Spread) -> None:
    if of.count:
        more = f"mean; P50 {format_duration(of.p50)}, P95 {format_duration(of.p95)}, P99 {format_duration(of.p99)}"
        page.figure(name, format_duration(of.mean), more)


def _use(page: Page, name: str, of: Use) -> None:
    if of.held is not None:
        page.figure(f"{name} held", _percent(of.held), f"{_percent(of.good)} goodput, {_percent(of.used)} measured")


def _period(page: Page, report: RunReport) -> None:
    """Show the use and the waste by tenant."""
    page.tag("h2", "Tenants")
    heads = (
        "tenant",
        "jobs",
        "attempts",
        "failed",
        "waiting: mean",
        "P95",
        "device hours",
        "in vain",
        "core hours",
        "in vain",
    )
    rows = [
        (
            one.tenant,
            ", ".join(f"{count} {status}" for status, count in one.statuses.items()),
            str(one.attempts),
            str(one.failed),
            format_duration(one.waiting.mean) if one.waiting.count else "-",
            format_duration(one.waiting.p95) if one.waiting.count else "-",
            *(_hours(amount) for amount in (one.devices, one.vain_devices, one.cpu, one.vain_cpu)),
            *_spent(one),
        )
        for one in report.tenants
    ]
    page.table((*heads, "kWh", "kg CO2e", "$"), rows)
    if report.waits:
        page.tag("h2", "Waiting by priority class")
        page.table(("class", "started", "mean", "P50", "P95", "P99", "longest"), [_waited(one) for one in report.waits])
    if report.waste:
        page.tag("h2", "Room that brought nothing, by cause")
        page.table(
            ("cause", "device hours", "core hours"),
            [(one.cause, _hours(one.devices), _hours(one.cpu)) for one in report.waste],
        )
    if report.incidents:
        page.tag("h2", "Incidents")
        page.table(
            ("incident", "opened", "closed", "what", "likely cause", "what to do"),
            [
                (
                    one.id,
                    _moment(one.opened),
                    _moment(one.closed) if one.closed else "open",
                    one.title,
                    str(one.cause.element),
                    one.hint,
                )
                for one in report.incidents
            ],
        )
    if report.bill is not None and (report.bill.powered or report.bill.priced):
        _bill(page, report, report.bill)


def _waited(one: ClassWaits) -> tuple[str, ...]:
    of = one.waiting
    return one.name, str(of.count), *(format_duration(time) for time in (of.mean, of.p50, of.p95, of.p99, of.longest))


def _hours(nanoseconds: int) -> str:
    return f"{nanoseconds / HOUR:,.2f}"


def _bill(page: Page, report: RunReport, bill: Bill) -> None:
    page.tag("h2", "Energy and cost of the devices")
    basis = basis_of_co2(report.hourly, report.kg_per_kwh, bill.energy, bill.hourly)
    page.tag(
        "p",
        f"Energy by the power model, for {bill.powered} of {bill.devices} devices with a known power limit; {basis}. "
        f"Prices are known for {bill.priced} devices. Energy and price of tenants and jobs are those of the devices "
        "that they held, without idle.",
        class_="faint",
    )
    page.raw("<dl>\n")
    page.figure("energy", f"{bill.energy / 3.6e6:,.1f} kWh", f"{bill.co2:,.1f} kg CO2e")
    if price := price_of_electricity(report.hourly, bill.electricity, bill.energy, bill.hourly):
        page.figure("electricity", *price.split(", ", 1))
    page.figure("price", f"${bill.price:,.2f}", f"${bill.paid:,.2f} for held devices")
    page.raw("</dl>\n")
    if report.nodes:
        rows = [(one.node, *_spent(one.bill), f"{one.bill.paid:,.2f}") for one in report.nodes]
        page.table(("node", "kWh", "kg CO2e", "$", "$ of held devices"), rows)
    jobs = (one for one in report.jobs if one.energy or one.price)
    spent = sorted(jobs, key=lambda one: (-one.energy, -one.price))
    if spent:
        page.table(("job", "tenant", "kWh", "kg CO2e", "$"), [(one.id, one.tenant, *_spent(one)) for one in spent])


def _spent(of: Bill | JobLine | TenantUse) -> tuple[str, str, str]:
    """Format energy as kWh, CO2e and dollars."""
    return f"{of.energy / 3.6e6:.2f}", f"{of.co2:.2f}", f"{of.price:,.2f}"


def _timeline(page: Page, report: RunReport) -> None:
    page.tag("h2", "Attempts, by node and device")
    if not report.lanes:
        page.tag("p", "Nothing has started.", class_="faint")
        return
    timeline(page, report.lanes, report.length)


def _queue(page: Page, report: RunReport) -> None:
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
    page.key((("stopped", "waited"), ("running", "held room")))
    height = CURVE + 24
    page.raw(f'<svg viewBox="0 0 {WIDTH} {height}" role="img" aria-label="what waited and what ran over time">\n')
    ticks(page, report.length, height)
    for name in ("active", "pending"):
        points = _steps(report.levels, name, most, report.length)
        page.raw(f'<polyline class="{name}" points="{points}"/>\n')
    page.raw("</svg>\n")


def _steps(levels: Sequence[Level], name: str, most: int, length: int) -> str:
    points: list[str] = []
    height = CURVE
    for level in levels:
        across = along(level.at, length)
        points.append(f"{across:g},{height:g}")
        height = round(CURVE - (CURVE - 6) * (level.pending if name == "pending" else level.active) / most)
        points.append(f"{across:g},{height:g}")
    points.append(f"{WIDTH},{height:g}")
    return " ".join(points)


def _tables(page: Page, report: RunReport) -> None:
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
    page: Page, title: str, heads: Sequence[str], rows: Sequence[Sequence[str]], *, open_: bool = False
) -> None:
    page.tag("h2", title)
    if not rows:
        page.tag("p", "None.", class_="faint")
        return
    page.raw(f"<details{' open' if open_ else ''}>")
    page.tag("summary", f"{len(rows)} rows" if len(rows) > 1 else "1 row")
    page.table(heads, rows)
    page.raw("</details>\n")


def _moment(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%d %H:%M:%S UTC")


def _percent(thousandths: int | None) -> str:
    return "-" if thousandths is None else f"{thousandths / 10:.1f} %"
