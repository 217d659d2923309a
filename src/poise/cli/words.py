"""Refuses an empty value of a flag that selects something: with a variable without a value in a script, the flag would
select everything.
"""

import click
from click.core import ParameterSource


def filled(context: click.Context, option: click.Parameter, value: str) -> str:
    """Return the value of a flag. Raises click.BadParameter if an empty one was typed."""
    if not value and context.get_parameter_source(option.name or "") is ParameterSource.COMMANDLINE:
        raise click.BadParameter("it is empty. Leave the flag out, or check the variable that its value is from.")
    return value


__all__ = ["filled"]
