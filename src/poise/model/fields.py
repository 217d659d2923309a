"""Declarations of job fields: each once, in its record, and used by all code that needs it.

    hang: Annotated[
        Quantity,
        Field(
            "Kill the task as hung after this long without progress.",
            example="60s",
            form=DURATION,
            flag=Flag("--hang", "TIME", "Kill the task as hung after this long without progress."),
            read=duration,
        ),
    ] = 0

A declaration generates the JSON Schema and the reference page (`drivers/schemas.py`), the flag of `run`, `submit` and
`plan`, the directive of a script, hints of errors (`cli/asking.py`, `cli/directives.py`), and the ledger's value
(`model/spec.py`). `model/job_fields.py` has the declarations. Every command imports this module at its start, so it
stays small.
"""

from collections.abc import Callable, Mapping
from functools import cache
from typing import Any, NamedTuple, get_type_hints

import msgspec

from poise.errors import SpecError
from poise.model.document import shown
from poise.units import (
    DAY,
    duration_meant,
    duration_of_slurm,
    format_bytes,
    format_cpu,
    format_duration,
    format_rate,
    parse_bytes,
    parse_cpu,
    parse_duration,
    parse_rate,
)

Quantity = str | int | float
Schema = dict[str, Any]

MAX_CPU = 100_000 * 1000
MAX_BYTES = 2**50
MAX_FLOPS = 2**62
LEAST_MEMORY = 2**20
"""Below this a command cannot even be executed (`SMALLEST_LIMIT` of the keeper)."""

MAX_DURATION = 3650 * DAY

NAME = "[A-Za-z0-9][A-Za-z0-9._-]{0,62}"
"""A regular expression for names of jobs, tasks, services, tenants."""


# --- declarations ----------------------------------------------------------------------------------------------------


def as_text(value: Any, environ: Mapping[str, str]) -> Any:
    """Return the value of a flag as written. A quantity stays text: it is parsed in one place, with one error."""
    return value


def as_number(value: Any, environ: Mapping[str, str]) -> int | float | str:
    """Return a number as a number, and other text as written."""
    for kind in (int, float):
        try:
            return kind(value)
        except ValueError:
            continue
    return str(value)


def as_texts(value: Any, environ: Mapping[str, str]) -> list[str]:
    """Return the values of a repeatable flag."""
    return list(value)


class Flag(NamedTuple):
    """A flag of the command line. `reads` converts the text and the caller's environment to the field's value.

    Without a `metavar` the flag takes no value. `in_service` marks flags that `poise serve` has too. `example` is a
    value for hints, used if the field's own example is a mapping.
    """

    name: str
    metavar: str
    help: str
    reads: Callable[[Any, Mapping[str, str]], Any] = as_text
    short: str = ""
    repeatable: bool = False
    in_service: bool = False
    example: str = ""

    @property
    def keyword(self) -> str:
        """The flag as a Python keyword and as the name of a directive."""
        return self.name.removeprefix("--").replace("-", "_")


class Field(NamedTuple):
    """A field of a record that users write.

    `meaning` is its line in the reference, `example` a value for hints (or a whole line with the field's name), `form`
    the part of its JSON Schema beyond its type. `read` compiles the ledger's value, in a field of the same name of
    `Unit`; a field without `read` is compiled by hand. A graph passes `inherited` fields on to its tasks. `calls` is
    false if the field is invalid for workers that serve calls. `python` makes it an option of `poise.task`.
    """

    meaning: str
    example: str = ""
    form: Schema | None = None
    flag: Flag | None = None
    read: Callable[[Any, str], int] | None = None
    inherited: bool = False
    calls: bool = True
    python: bool = False


class Declared(NamedTuple):
    """A declared field: its name in a file, its attribute, its type, its default and its declaration."""

    name: str
    attribute: str
    type: Any
    default: Any
    field: Field


@cache
def declared(kind: type[msgspec.Struct]) -> Mapping[str, Declared]:
    """Return the declared fields of a record in order, by their names in a file."""
    hints = get_type_hints(kind, include_extras=True)
    found: dict[str, Declared] = {}
    for one in msgspec.structs.fields(kind):
        said = next((of for of in getattr(hints[one.name], "__metadata__", ()) if isinstance(of, Field)), None)
        if said is not None:
            made = one.default_factory() if one.default_factory is not msgspec.NODEFAULT else one.default
            found[one.encode_name] = Declared(one.encode_name, one.name, hints[one.name].__origin__, made, said)
    return found


# --- values of a field -----------------------------------------------------------------------------------------------

_NUMBER = r"[0-9]{1,40}(?:\.[0-9]{1,40})?"
_TIME_UNIT = "(?:[nN][sS]|[uU][sS]|[mM][sS]|[sS]|[mM]|[mM][iI][nN]|[hH]|[dD])"


def quantity(pattern: str, *examples: str) -> Schema:
    """Return the JSON Schema of a number with a unit."""
    return {
        "type": ["string", "number"],
        "pattern": rf"^\s*{pattern}\s*$",
        "patternErrorMessage": f"a quantity such as {' or '.join(examples)}",  # for editors that support it
        "minimum": 0,
        "examples": list(examples),
    }


DURATION = quantity(rf"(?:{_NUMBER}|(?:{_NUMBER}\s*{_TIME_UNIT}\s*)+)", "90s", "30m", "1h30m")
BYTES = quantity(rf"{_NUMBER}\s*(?:[bB]|[kKmMgGtTpP](?:[bB]|[iI][bB]?)?)?", "8GiB", "500MB")
CPU = quantity(rf"{_NUMBER}\s*m?", "4", "500m")
RATE = quantity(rf"{_NUMBER}\s*[kKMGTP]?(?:bit|b|B|Byte|bps)(?:/s|ps)?", "10Gbit", "900GB/s")
FLOPS = quantity(
    r"[0-9]{1,20}(?:\.[0-9]{1,20})?(?:e[0-9]{1,2})?\s*(?:[kKMGTPE]?(?:FLOPS?|OPS?)(?:/s)?)?", "312 TFLOPS", "2 PFLOP"
)
SHARE = quantity(r"[0-9]{1,20}(?:\.[0-9]{1,20})?\s*%?", "90%")
MOMENT: Schema = {
    "type": ["string", "number"],
    "pattern": f"{DURATION['pattern']}|^[0-9]{{4}}-[0-9]{{2}}-[0-9]{{2}}.+$",
    "minimum": 0,
    "examples": ["30m", "2026-12-01T12:00:00Z"],
}
NAMES: Schema = {"pattern": f"^{NAME}$"}


def parse_or_raise(parse: Any, value: Quantity, field: str, limit: int) -> int:
    """Parse a quantity with an upper limit; errors name the field."""
    try:
        parsed = int(parse(value))
    except ValueError as error:
        have = shown(value)
        meant = duration_meant(value) if parse is parse_duration else ""
        hint = f"did you mean `{meant}`?" if meant else ""
        raise SpecError(
            "the quantity cannot be read", code="E103", field=field, need=str(error), have=have, hint=hint
        ) from None
    if parsed > limit:
        have = shown(value)
        need = f"at most {_WRITTEN.get(parse, str)(limit)}"
        raise SpecError("the quantity is absurd", code="E103", field=field, have=have, need=need)
    return parsed


_WRITTEN: dict[Any, Callable[[int], str]] = {
    parse_bytes: format_bytes,
    parse_cpu: format_cpu,
    parse_duration: format_duration,
    parse_rate: format_rate,
}


def memory(value: Quantity, field: str) -> int:
    """Parse bytes. A few bytes are refused: `4` means 4 GiB to its writer."""
    amount = parse_or_raise(parse_bytes, value, field, MAX_BYTES)
    if 0 < amount < LEAST_MEMORY and (not isinstance(value, str) or value.strip()[-1].isdigit()):
        name = field.rpartition(".")[2]
        what, need, have = f"`{shown(value)}` is a number of bytes", "a unit such as GiB", format_bytes(amount)
        raise SpecError(what, code="E103", field=field, need=need, have=have, hint=f"{name}: {shown(value)}GiB")
    return amount


def duration(value: Quantity, field: str) -> int:
    """Parse a duration in nanoseconds."""
    return parse_or_raise(parse_duration, value, field, MAX_DURATION)


def duration_with_unit(value: Quantity, field: str) -> int:
    """Parse a duration in nanoseconds. Refuse text that Slurm reads differently: there, `5` is five minutes and
    `1:30:00` is 90 minutes.
    """
    text = value.strip() if isinstance(value, str) else ""
    try:
        meant = duration_of_slurm(text)
    except ValueError:
        meant = ""
    if not meant or not text.strip("0:-"):
        return duration(value, field)
    name = field.rpartition(".")[2]
    if text.isdigit():
        what, need = f"`{shown(text)}` has no unit", f"a unit: `{text}s`, `{text}m` or `{text}h`"
        raise SpecError(what, code="E103", field=field, need=need, have=text, hint=f"{name}: {text}m")
    what, need = "a time limit is written with units", f"`{meant}`"
    raise SpecError(what, code="E103", field=field, need=need, have=text, hint=f"{name}: {meant}")
