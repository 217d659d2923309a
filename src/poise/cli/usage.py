"""`poise usage`."""

import csv
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING

import click

from poise.cli import output
from poise.cli.electricity import CO2, rates_of
from poise.cli.moments import time_of
from poise.cli.output import Column, Shown
from poise.client import current_home
from poise.control.start import connected
from poise.errors import SpecError
from poise.model.document import near
from poise.model.history import basis_of_co2
from poise.model.spec import check_name

if TYPE_CHECKING:  # the ledger imports numpy
    from poise.model.reports.tenants import BudgetReport, UsageRow

BY = ("day", "tenant", "project", "user", "model")
FIGURES = ("attempts", "device_hours", "core_hours", "charge", "energy", "co2", "electricity")
BUDGET = (
    *("name", "tenant", "project", "user", "unit", "amount", "spent", "share", "rate", "every", "begins", "ends"),
    *("runs_out", "reached", "at_limit", "holding"),
)
FORMS = ("table", "json", "csv", "openmetrics")


@click.command()
@click.option("--since", metavar="TIME", default="30d", show_default=True, help="Begin here: 7d, 2026-12-01, …")
@click.option(
    "--by",
    "fields",
    metavar="FIELDS",
    default="day,tenant,model",
    show_default=True,
    help="Fields to count by: day, tenant, project, user, model.",
)
@click.option("--tenant", metavar="NAME", help="Only the work of this tenant.")
@click.option(
    "--budgets",
    is_flag=True,
    help="List budgets instead, with the amount spent and the time at which each will run out.",
)
@CO2
@output.forms(*FORMS)
def usage(since: str, fields: str, tenant: str | None, budgets: bool, co2: float, form: str) -> int:
    """Show who used what, and the charge: device hours, and core hours of work without devices. It reads the log, with
    or without a running control plane.

    A device is charged by its price in the fleet file, else in the shares, else by the catalogue. Energy is that of
    held devices above their idle power, by the power model; CO2e, and the price of electricity, are those of the hours
    in which it was used, by `intensity.yaml`. Days are in UTC.
    """
    if tenant is not None:
        check_name(tenant, "--tenant")
    by = list(dict.fromkeys(field.strip() for field in fields.split(",") if field.strip()))
    for field in by:
        if field not in BY:
            hint = near(field, BY) or f"known: {', '.join(BY)}"
            raise SpecError(f"usage is not counted by `{field}`", field="--by", have=field, hint=hint)
    if budgets:
        return _print_budgets(tenant or "", form)
    from poise.cli import offline

    rates = rates_of(current_home(), co2)
    told = offline.usage(current_home(), time_of(since, "--since"), by, tenant or "", rates)
    if form == "csv":
        _print_csv(told, by)
    elif form == "openmetrics":
        click.echo(open_metrics(told, by), nl=False)
    else:
        amounts = (sum(row.energy for row in told), sum(row.hourly for row in told))
        basis = f"energy above idle, by the power model; {basis_of_co2(rates.unit, co2, *amounts)}"
        return output.show(lambda: _shown(told, by, basis), form, watch=False)
    return 0


def _print_budgets(tenant: str, form: str) -> int:
    told = [of for of in connected(current_home()).budgets() if tenant in ("", of.tenant)]
    if form == "csv":
        writer = csv.writer(sys.stdout, lineterminator="\n")
        writer.writerow(BUDGET)
        for of in told:
            writer.writerow(
                [_number(value) if isinstance(value := getattr(of, name), float) else value for name in BUDGET]
            )
    elif form == "openmetrics":
        families = [("spent", "Spent part of a budget, in its unit"), ("amount", "Amount of a budget, in its unit")]
        lines = []
        for figure, about in families:
            lines += [f"# HELP poise_budget_{figure} {about}.", f"# TYPE poise_budget_{figure} gauge"]
            labels = ((of, f'budget="{_escaped(of.name)}",unit="{of.unit}"') for of in told)
            lines += [f"poise_budget_{figure}{{{label}}} {_number(getattr(of, figure))}" for of, label in labels]
        click.echo("\n".join([*lines, "# EOF"]))
    else:
        return output.show(lambda: _budgets_shown(told), form, watch=False)
    return 0


def _budgets_shown(told: "list[BudgetReport]") -> Shown:
    from poise.drivers.past import time_text  # it imports the ledger

    return Shown(
        told,
        [of.name for of in told],
        [
            Column("BUDGET", [of.name for of in told]),
            Column("COVERS", [_covers(of) for of in told]),
            Column("SPENT", [_amount(of, of.spent) for of in told], right=True, moving=True),
            Column("OF", [_amount(of, of.amount) for of in told], right=True),
            Column("SHARE", [f"{of.share:.0%}" for of in told], right=True, moving=True),
            Column("PER HOUR", [_amount(of, of.rate) for of in told], right=True, moving=True),
            Column("RUNS OUT", [time_text(of.runs_out) if of.runs_out else "-" for of in told], moving=True),
            Column("RENEWS", [time_text(of.ends) if of.ends else "-" for of in told]),
            Column("AT LIMIT", [of.at_limit for of in told]),
            Column("ON HOLD", [str(of.holding) if of.holding else "" for of in told], bare=True, right=True),
        ],
        nothing="poise: no budgets; `poise budgets apply FILE` sets some",
    )


def _covers(of: "BudgetReport") -> str:
    return ", ".join(f"{kind} {name}" for kind in ("tenant", "project", "user") if (name := getattr(of, kind)))


def _amount(of: "BudgetReport", value: float) -> str:
    return f"${value:,.2f}" if of.unit == "dollars" else f"{value:,.2f}h"


def _print_csv(rows: "Sequence[UsageRow]", by: Sequence[str]) -> None:
    writer = csv.writer(sys.stdout, lineterminator="\n")
    writer.writerow([*by, *FIGURES])
    for row in rows:
        writer.writerow([*(getattr(row, field) for field in by), *(_number(getattr(row, name)) for name in FIGURES)])


def open_metrics(rows: "Sequence[UsageRow]", by: Sequence[str]) -> str:
    """Return the text of OpenMetrics 1.0: gauges with a label for each field."""
    families = (
        ("poise_usage_device_hours", "Device hours that work held", "device_hours"),
        ("poise_usage_core_hours", "Core hours that work without devices held", "core_hours"),
        ("poise_usage_charge_dollars", "Charge for what work held", "charge"),
        ("poise_usage_energy_joules", "Energy of held devices above their idle power, by the power model", "energy"),
        ("poise_usage_hourly_joules", "Part of this energy in hours that have a value in intensity.yaml", "hourly"),
        ("poise_usage_co2e_kilograms", "CO2e of this energy, by the hour in which it was used", "co2"),
        ("poise_usage_electricity_dollars", "Price of this energy, by the hour in which it was used", "electricity"),
    )
    lines = []
    for name, about, figure in families:
        lines += [f"# HELP {name} {about}.", f"# TYPE {name} gauge"]
        for row in rows:
            labels = ",".join(f'{field}="{_escaped(str(getattr(row, field)))}"' for field in by)
            lines.append(f"{name}{{{labels}}} {_number(getattr(row, figure))}")
    return "\n".join([*lines, "# EOF", ""])


def _escaped(text: str) -> str:
    return text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")


def _number(value: float) -> str:
    return str(value) if isinstance(value, int) else f"{value:.6f}".rstrip("0").rstrip(".")


def _shown(rows: "list[UsageRow]", by: Sequence[str], basis: str) -> Shown:
    columns = [Column(field.upper(), [getattr(row, field) or "-" for row in rows]) for field in by]
    columns += [
        Column("ATTEMPTS", [str(row.attempts) for row in rows], right=True),
        Column("DEVICE HOURS", [f"{row.device_hours:,.2f}" for row in rows], right=True),
        Column("CORE HOURS", [f"{row.core_hours:,.2f}" for row in rows], right=True),
        Column("CHARGE", [f"${row.charge:,.2f}" for row in rows], right=True),
    ]
    has_energy = any(row.energy for row in rows)
    if has_energy:
        columns += [
            Column("KWH", [f"{row.energy / 3.6e6:,.2f}" for row in rows], right=True),
            Column("KG CO2E", [f"{row.co2:,.2f}" for row in rows], right=True),
        ]
    if any(row.electricity for row in rows):
        columns.append(Column("ELECTRICITY", [f"${row.electricity:,.2f}" for row in rows], right=True))
    names = [" ".join(getattr(row, field) or "-" for field in by) for row in rows]
    nothing = "poise: nothing was used in this time; `--since 90d` looks further back"
    return Shown(rows, names, columns, notes=[f"poise: {basis}"] if has_energy else [], nothing=nothing)
