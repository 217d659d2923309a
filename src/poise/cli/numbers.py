"""Number types for flags that accept only the digits 0 to 9. Python, and so click, also accepts `1_000` and other
scripts' digits.
"""

from math import isnan
from typing import Any

import click
from click.types import FloatParamType, IntParamType

from poise.units import is_plain


class Whole(IntParamType):
    """An integer."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        return super().convert(_plain(self, value, param, ctx), param, ctx)


class WholeRange(click.IntRange):
    """An integer in a range."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        return super().convert(_plain(self, value, param, ctx), param, ctx)


class Number(FloatParamType):
    """A number."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        return super().convert(_plain(self, value, param, ctx), param, ctx)


class NumberRange(click.FloatRange):
    """A number in a range. `nan` is refused: it would pass every comparison."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        found = super().convert(_plain(self, value, param, ctx), param, ctx)
        if isnan(found):
            self.fail(f"{value!r} is not a number in the range {self._describe_range()}.", param, ctx)
        return found


def _plain(kind: Any, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
    """Return the value. Fails unless it is written in plain digits."""
    if isinstance(value, str) and not is_plain(value):
        kind.fail(f"{value!r} is not a number in plain digits (0 to 9, without `_`).", param, ctx)
    return value
