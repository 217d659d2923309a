"""Numbers as flags take them: in the digits 0 to 9. Python, and click with it, also takes `1_000` and digits of other
scripts.
"""

from math import isnan
from typing import Any

import click
from click.types import FloatParamType, IntParamType

from poise.units import is_plain


class Whole(IntParamType):
    """A whole number."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        return super().convert(_plain(self, value, param, ctx), param, ctx)


class WholeRange(click.IntRange):
    """A whole number in a range."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        return super().convert(_plain(self, value, param, ctx), param, ctx)


class Number(FloatParamType):
    """Any number."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        return super().convert(_plain(self, value, param, ctx), param, ctx)


class NumberRange(click.FloatRange):
    """A number in a range, in which `nan` is not: no comparison refuses it."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        found = super().convert(_plain(self, value, param, ctx), param, ctx)
        if isnan(found):
            self.fail(f"{value!r} is not a number in the range {self._describe_range()}.", param, ctx)
        return found


def _plain(kind: Any, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
    """The value as it is. Fails where it is not written in plain digits."""
    if isinstance(value, str) and not is_plain(value):
        kind.fail(f"{value!r} is not a number in plain digits (0 to 9, without `_`).", param, ctx)
    return value
