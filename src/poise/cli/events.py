"""`poise events`: the log; with `--decisions` only scheduling decisions."""

import sys

import click

from poise.cli.numbers import Whole
from poise.client import current_home
from poise.control.start import connected


@click.command()
@click.option("--after", type=Whole(), default=0, metavar="REVISION", help="Only events after this revision.")
@click.option("--decisions", is_flag=True, help="Print only decisions and their triggers.")
@click.option("-f", "--follow", is_flag=True, help="Follow the log; with --json, print one line per record.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON value: a list of records.")
def events(after: int, decisions: bool, follow: bool, as_json: bool) -> int:
    """Print the log from its start: one record per line, as JSON. With --json, print one list for export."""
    found = connected(current_home()).events(after=after, decisions=decisions, follow=follow)
    if as_json and not follow:
        sys.stdout.buffer.write(b"[\n" + b",\n".join(found) + b"\n]\n")
        return 0
    for record in found:
        sys.stdout.buffer.write(record + b"\n")
        sys.stdout.buffer.flush()
    return 0
