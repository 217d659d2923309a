"""`poise budgets`."""

from pathlib import Path
from typing import Any

import click

from poise.cli.render import print_json, say
from poise.client import current_home
from poise.control.start import connected
from poise.errors import located


@click.group()
def budgets() -> None:
    """Set budgets of tenants, projects and users. `poise usage --budgets` lists them."""


@budgets.command()
@click.argument("file", type=click.Path(path_type=Path))
@click.option("--json", "as_json", is_flag=True, help="Print one JSON value.")
def apply(file: Path, as_json: bool) -> int:
    """Set all budgets from FILE, and remove those that it lacks.

    A budget whose name, unit, period and coverage are unchanged keeps the amount spent. Use before a budget is set does
    not count. Running work is never stopped because of a budget.
    """
    from poise.drivers.yamlfile import load_kind, place_in_file

    document: dict[str, Any] = load_kind(file, "budgets")
    with located(place_in_file(file)):
        told = connected(current_home()).set_budgets(document)
    if as_json:
        print_json(told)
    else:
        say(f"poise: budgets in force: {', '.join(of.name for of in told) or 'none'}")
    return 0
