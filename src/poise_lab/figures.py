"""Format the figures of trials for terminals, pages and JSON."""

from collections.abc import Callable
from typing import Any, Literal

import msgspec

from poise.model.history import Spread
from poise.units import format_duration, format_flops
from poise_lab.compare import Comparison
from poise_lab.measures import CPU, Measures, Ratios

Cell = Callable[[Measures], str]


def summary(told: Comparison) -> dict[str, Any]:
    """Return a comparison for JSON: every figure and curve, without the lists of jobs and attempts."""
    value: dict[str, Any] = msgspec.to_builtins(msgspec.structs.replace(told, trials=()))
    value["trials"] = [
        {
            "policy": trial.policy,
            "measures": msgspec.to_builtins(trial.measures),
            "refused": trial.refused,
            "stuck": trial.stuck,
            "later": trial.later,
            "curves": msgspec.to_builtins(trial.curves),
        }
        for trial in told.trials
    ]
    return value


def figures(of: Measures) -> list[tuple[str, str]]:
    """Return the name and value of every figure."""
    unfinished = f", {of.unfinished:,} not ended" if of.unfinished else ""
    refused = f", {of.refused:,} refused" if of.refused else ""
    preempted = ", ".join(f"{count:,} {cause}" for cause, count in of.preemptions.items()) or "none"
    rows = [
        ("jobs", f"{of.done:,} done, {of.failed:,} failed{unfinished}{refused}"),
        ("makespan", format_duration(of.makespan)),
        ("completion", _spread(of.completion)),
        ("waiting", _spread(of.waiting)),
        ("until the first start", _spread(of.starting)),
        ("slowdown", _ratios(of.slowdown)),
        ("fairness", f"Jain {of.jain:.3f} over slowdowns" if of.slowdown.count else "-"),
        ("finish-time rho", f"{_ratios(of.rho)}; {percent(of.unfair)} unfair" if of.rho.count else "-"),
    ]
    rows += [(f"use of {name}", use_text(of, name)) for name in of.use]
    rows += [
        ("stranded", f"{percent(of.stranded)} of the devices, {percent(of.fragmentation)} of the free ones"),
        ("preemptions", f"{preempted}; {of.migrations:,} went on elsewhere"),
        ("overhead", overhead_text(of)),
    ]
    if of.deadlines:
        rows.append(("deadlines met", f"{of.met:,} of {of.deadlines:,} ({percent(of.met / of.deadlines)})"))
    rows.append(("energy", energy_text(of)))
    if of.price:
        rows.append(("money", f"${of.paid:,.2f} for what was held, ${of.price:,.2f} for all of the fleet"))
    rows.append(("attempts", f"{of.attempts:,}; {of.rounds:,} rounds"))
    return rows


def use_text(of: Measures, name: str) -> str:
    """Describe the use of one device model."""
    use = of.use[name]
    what = "cores" if name == CPU else "devices"
    return f"{percent(use.held)} of {use.there:,.6g} {what} held, {percent(use.good)} goodput"


def overhead_text(of: Measures) -> str:
    """Describe the resources that were held without progress."""
    over = of.overhead
    parts = (("restoring", over.restoring), ("saving", over.saving), ("standing still", over.stalled))
    said = [f"{hours:,.1f} device-hours {what}" for what, hours in (*parts, ("lost", over.lost)) if hours]
    return f"{percent(over.share)} of what was held{': ' if said else ''}{', '.join(said)}"


def energy_text(of: Measures) -> str:
    """Describe the energy of the devices of known power."""
    if not _has_power(of):
        return "not known: the fleet tells no device's power"
    unknown = f"; without {of.powerless:,} devices of which no power is known" if of.powerless else ""
    per_watt = f", {format_flops(round(of.per_watt))}S/W" if of.per_watt else ""
    return f"{of.energy:,.1f} kWh, {of.co2:,.1f} kg CO2e{per_watt}{unknown}"


def _has_power(of: Measures) -> bool:
    """Return whether the power of any device is known."""
    return of.energy > 0 or (not of.powerless and any(name != CPU for name in of.use))


def devices_held(of: Measures) -> float:
    """Return the fraction of all devices that was held; of the cores if there are no devices."""
    kinds = [use for name, use in of.use.items() if name != CPU] or list(of.use.values())
    there = sum(use.there for use in kinds)
    return sum(use.there * use.held for use in kinds) / there if there else 0.0


def percent(share: float) -> str:
    """Format a fraction as `12.5 %`."""
    return f"{share * 100:.1f} %"


def _spread(of: Spread) -> str:
    if not of.count:
        return "-"
    names = (("mean", of.mean), ("P50", of.p50), ("P95", of.p95), ("P99", of.p99), ("longest", of.longest))
    return ", ".join(f"{name} {format_duration(time)}" for name, time in names)


def _ratios(of: Ratios) -> str:
    if not of.count:
        return "-"
    return f"mean {of.mean:.2f}, P50 {of.p50:.2f}, P95 {of.p95:.2f}, P99 {of.p99:.2f}, worst {of.worst:.2f}"


def _after(ended: Callable[[Measures], Spread | Ratios], cell: Cell) -> Cell:
    """Return a cell that shows `-` if no job has ended."""
    return lambda of: cell(of) if ended(of).count else "-"


def _time(part: Callable[[Measures], Spread], name: str) -> Cell:
    return _after(part, lambda of: format_duration(getattr(part(of), name)))


COLUMNS: tuple[tuple[str, Literal["", "wide"], Cell], ...] = (
    ("DONE", "", lambda of: f"{of.done:,}"),
    ("MEAN JCT", "", _time(lambda of: of.completion, "mean")),
    ("P50", "wide", _time(lambda of: of.completion, "p50")),
    ("P95", "wide", _time(lambda of: of.completion, "p95")),
    ("P99", "", _time(lambda of: of.completion, "p99")),
    ("MEAN WAIT", "wide", _time(lambda of: of.waiting, "mean")),
    ("P99 WAIT", "", _time(lambda of: of.waiting, "p99")),
    ("SLOWDOWN", "", _after(lambda of: of.slowdown, lambda of: f"{of.slowdown.mean:.2f}")),
    ("MAKESPAN", "", lambda of: format_duration(of.makespan)),
    ("HELD", "", lambda of: percent(devices_held(of))),
    ("STRANDED", "wide", lambda of: percent(of.stranded)),
    ("JAIN", "wide", _after(lambda of: of.slowdown, lambda of: f"{of.jain:.3f}")),
    ("RHO", "", _after(lambda of: of.rho, lambda of: f"{of.rho.worst:.2f}")),
    ("UNFAIR", "wide", _after(lambda of: of.rho, lambda of: percent(of.unfair))),
    ("DEADLINES", "wide", lambda of: f"{of.met:,}/{of.deadlines:,}" if of.deadlines else "-"),
    ("PREEMPTED", "", lambda of: f"{sum(of.preemptions.values()):,}"),
    ("OVERHEAD", "wide", lambda of: percent(of.overhead.share)),
    ("KWH", "", lambda of: f"{of.energy:,.1f}" if _has_power(of) else "-"),
    ("CO2E KG", "wide", lambda of: f"{of.co2:,.1f}" if _has_power(of) else "-"),
    ("PAID", "wide", lambda of: f"${of.paid:,.0f}" if of.price else "-"),
)
"""Columns of a table of trials: title, whether only the wide table has it, and its value."""
