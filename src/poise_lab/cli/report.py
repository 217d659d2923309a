"""`poise report`."""

import time
from collections.abc import Iterator
from pathlib import Path

import click

from poise.cli import output
from poise.cli.electricity import CO2, rates_of
from poise.cli.moments import time_of
from poise.cli.output import Column, Shown
from poise.client import current_home
from poise.errors import SpecError
from poise.model.history import (
    Bill,
    JobLine,
    RunReport,
    Spread,
    TenantUse,
    Use,
    basis_of_co2,
    price_of_electricity,
)
from poise.model.spec import check_name
from poise.units import HOUR, format_duration, format_energy

FEW = 8
"""Maximum number of nodes, and of jobs, to list with energy and price; `--json` and the page have more."""


@click.command()
@click.option(
    "--html",
    "page",
    type=click.Path(path_type=Path, allow_dash=True),
    metavar="FILE",
    help="Write a page that needs no network and runs no script; `-` is stdout.",
)
@click.option(
    "--since", metavar="TIME", help="Begin here: 7d (seven days ago), 2026-12-01, … [default: the log's start]"
)
@click.option("--until", metavar="TIME", help="End here. [default: now]")
@click.option("--tenant", metavar="NAME", help="Only this tenant's work, without names of other tenants' work.")
@CO2
@output.forms(*output.TEXT)
@click.argument("jobs", nargs=-1, metavar="[JOB...]")
def report(
    jobs: tuple[str, ...],
    page: Path | None,
    since: str | None,
    until: str | None,
    tenant: str | None,
    co2: float,
    form: str,
) -> int:
    """Report on each JOB, or on all, for a period. The figures are run times, waiting, and use of the nodes by tenant;
    waste by cause; energy and cost by node, tenant and job. The page adds a timeline of attempts, failures,
    preemptions, and every decision with its reason. It reads the log, with or without a running control plane.
    """
    if form == "json" and page == Path("-"):
        raise click.UsageError("`-o json` and `--html -` both want stdout")
    if tenant is not None:
        check_name(tenant, "--tenant")  # an empty one would report on all tenants
    begin = time_of(since, "--since") if since is not None else 0.0
    end = time_of(until, "--until") if until is not None else time.time()
    if end <= begin:
        raise SpecError("the end is not after the beginning", field="--until", have=until or "now", hint="`--since 7d`")
    from poise.cli import offline

    told = offline.report(current_home(), jobs, begin, end, tenant or "", rates_of(current_home(), co2))
    if page is not None:
        from poise_lab.report import render

        if page == Path("-"):
            click.echo(render(told), nl=False)
        else:
            output.write_page(page, render(told), "--html")
    return output.show(lambda: _shown(told), form, False) if page is None or form == "json" else 0


def _shown(told: RunReport) -> Shown:
    """Return the figures for a terminal."""
    statuses = ", ".join(f"{count} {status}" for status, count in told.statuses.items()) or "none"
    rows = [
        ("jobs", statuses),
        ("attempts", f"{told.attempts}, of which {told.failed} failed ({told.retried} tried again)"),
        ("asked to yield", str(told.yielded)),
        ("makespan", format_duration(told.makespan)),
        ("completion", _spread(told.completion)),
        ("waiting", _spread(told.waiting)),
        ("CPU", _use(told.cpu)),
        ("devices", _use(told.devices)),
        *((f"waiting, {one.name}", _spread(one.waiting)) for one in told.waits if len(told.waits) > 1),
        *((f"tenant {one.tenant}", _tenant(one)) for one in told.tenants if len(told.tenants) > 1),
        *((f"waste: {one.cause}", _hours(one.devices, one.cpu)) for one in told.waste),
        *((f"incident {one.id}", f"{one.title}{'' if one.closed else ' (open)'}") for one in told.incidents),
        *(_bill(told, told.bill) if told.bill is not None else ()),
        *((f"node {one.node}", _spent(one.bill)) for one in told.nodes[:FEW]),
        *((f"job {one.id}", _spent(one)) for one in _dearest(told)),
    ]
    names = [name for name, _ in rows]
    columns = [Column("FIGURE", names), Column("VALUE", [value for _, value in rows])]
    return Shown(told, names, columns, notes=["\nhint: `poise report --html FILE` has the timeline and every decision"])


def _spread(of: Spread) -> str:
    if not of.count:
        return "-"
    names = (("mean", of.mean), ("P50", of.p50), ("P95", of.p95), ("P99", of.p99), ("longest", of.longest))
    return ", ".join(f"{name} {format_duration(time)}" for name, time in names)


def _tenant(of: TenantUse) -> str:
    statuses = ", ".join(f"{count} {status}" for status, count in of.statuses.items())
    vain = f", {_hours(of.vain_devices, of.vain_cpu)} in vain" if of.vain_devices or of.vain_cpu else ""
    return f"{statuses}; {_hours(of.devices, of.cpu)} held{vain}"


def _hours(devices: int, cpu: int) -> str:
    """`3.2 device hours, 10.0 core hours`; `5m0s of a device` below an hour."""
    parts = ((devices, "device"), (cpu, "core"))
    texts = (
        f"{amount / HOUR:,.1f} {what} hours" if amount >= HOUR else f"{format_duration(amount)} of a {what}"
        for amount, what in parts
        if amount
    )
    return ", ".join(texts) or "-"


def _bill(told: RunReport, of: Bill) -> Iterator[tuple[str, str]]:
    if of.powered:
        partly = f", for {of.powered} of {of.devices} devices" if of.powered < of.devices else ""
        amounts = f"{of.energy / 3.6e6:.1f} kWh, {of.co2:.1f} kg CO2e"
        basis = basis_of_co2(told.hourly, told.kg_per_kwh, of.energy, of.hourly)
        yield "energy", f"{amounts} (by the power model{partly}; {basis})"
    if price := price_of_electricity(told.hourly, of.electricity, of.energy, of.hourly):
        yield "electricity", price
    if of.priced:
        partly = f", for {of.priced} of {of.devices} devices" if of.priced < of.devices else ""
        yield "cost", f"${of.price:,.2f}, of which ${of.paid:,.2f} for held devices{partly}"


def _dearest(told: RunReport) -> list[JobLine]:
    """Return the jobs that used most energy or cost most."""
    spent = [one for one in told.jobs if one.energy or one.price]
    return sorted(spent, key=lambda one: (-one.energy, -one.price))[:FEW]


def _spent(of: Bill | JobLine) -> str:
    """`3.2 kWh, 1.01 kg CO2e, electricity $0.42, $7.10`: only what is known."""
    energy = (format_energy(round(of.energy * 1000)), f"{of.co2:,.3g} kg CO2e") if of.energy else ()
    electricity = (f"electricity ${of.electricity:,.2f}",) if of.electricity else ()
    return ", ".join([*energy, *electricity, *([f"${of.price:,.2f}"] if of.price else [])]) or "-"


def _use(of: Use) -> str:
    if of.held is None:
        return "-"
    parts = ((of.held, "held"), (of.good, "goodput"), (of.used, "measured"))
    return ", ".join(f"{(part or 0) / 10:.1f} % {name}" for part, name in parts)
