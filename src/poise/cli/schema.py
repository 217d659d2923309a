"""`poise schema`."""

import click

from poise.cli import output
from poise.cli.output import Column, Shown
from poise.cli.render import print_json
from poise.errors import NotFound
from poise.model.document import near


@click.command()
@click.option("--list", "listing", is_flag=True, help="List the kinds of files instead.")
@output.forms(*output.ROWS)
@click.argument("kind", required=False, metavar="[KIND]")
def schema(kind: str | None, listing: bool, form: str) -> int:
    """Print the JSON Schema of the files of a KIND: job (and graph), fleet, policy or devices. Editors use it to
    complete and check files. It needs no control plane.
    """
    from poise.drivers.schemas import FILES, schema_of

    if listing or kind is None:
        columns = [Column("KIND", list(FILES)), Column("FILES", list(FILES.values()))]
        return output.show(lambda: Shown(FILES, list(FILES), columns), form, False)
    wanted = "job" if kind == "graph" else kind
    if wanted not in FILES:
        known = ", ".join(FILES)
        hint = near(kind, FILES) or "`poise schema --list`"
        raise NotFound(f"there is no kind of file `{kind}`", field="KIND", need=known, have=kind, hint=hint)
    print_json(schema_of(wanted))
    return 0
