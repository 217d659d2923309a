"""How a field of a job is declared: once, where its record is, and read by all that needs to know of it.

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

From a declaration come the JSON Schema and the reference page (`drivers/schemas.py`), the flag of `run`, `submit` and
`plan`, the directive of a script, hints of errors (`cli/asking.py`, `cli/directives.py`), and the value that the ledger
keeps (`model/spec.py`). `model/job_fields.py` holds the declarations. A command imports this module when it starts, so
it stays small.
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
    """The value of a flag as written. A quantity stays a text: one place reads it, with one error."""
    return value


def as_number(value: Any, environ: Mapping[str, str]) -> int | float | str:
    """A number as a number, anything else as written."""
    for kind in (int, float):
        try:
            return kind(value)
        except ValueError:
            continue
    return str(value)


def as_texts(value: Any, environ: Mapping[str, str]) -> list[str]:
    """The values of a flag that may be repeated."""
    return list(value)


class Flag(NamedTuple):
    """A flag of the command line. `reads` makes the field's value from what was typed and the caller's environment.

    Without a `metavar` the flag takes no value. `in_service` marks the flags that `poise serve` has, too. `example` is
    a value for hints, where the field's own example is a mapping.
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
        """The flag as a keyword of Python and the name of a directive."""
        return self.name.removeprefix("--").replace("-", "_")


class Field(NamedTuple):
    """A field of a record that people write.

    `meaning` is its line in the reference, `example` a value that a hint can offer (or a whole line with the field's
    name), `form` what its JSON Schema takes beyond its type. `read` makes what the ledger keeps, in a field of the same
    name of `Unit`; a field without one is compiled by hand. A graph passes on to its tasks what is `inherited`.
    `calls` is false where workers that serve calls have no use for it. `python` makes it an option of `poise.task`.
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
    """A declared field: the name it has in a file, its attribute, its type, its default and its declaration."""

    name: str
    attribute: str
    type: Any
    default: Any
    field: Field


@cache
def declared(kind: type[msgspec.Struct]) -> Mapping[str, Declared]:
    """The declared fields of a record, by the name that they have in a file, in order."""
    hints = get_type_hints(kind, include_extras=True)
    found: dict[str, Declared] = {}
    for one in msgspec.structs.fields(kind):
        said = next((of for of in getattr(hints[one.name], "__metadata__", ()) if isinstance(of, Field)), None)
        if said is not None:
            made = one.default_factory() if one.default_factory is not msgspec.NODEFAULT else one.default
            found[one.encode_name] = Declared(one.encode_name, one.name, hints[one.name].__origin__, made, said)
    return found


# --- what a field takes ----------------------------------------------------------------------------------------------

_NUMBER = r"[0-9]{1,40}(?:\.[0-9]{1,40})?"
_TIME_UNIT = "(?:[nN][sS]|[uU][sS]|[mM][sS]|[sS]|[mM]|[mM][iI][nN]|[hH]|[dD])"


def quantity(pattern: str, *examples: str) -> Schema:
    """The JSON Schema of a number with a unit."""
    return {
        "type": ["string", "number"],
        "pattern": rf"^\s*{pattern}\s*$",
        "patternErrorMessage": f"a quantity such as {' or '.join(examples)}",  # for editors that know it
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
    """Parse a quantity, bounded; errors name the field."""
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
    """Bytes. A few bytes are refused: who writes `4` means 4 GiB."""
    amount = parse_or_raise(parse_bytes, value, field, MAX_BYTES)
    if 0 < amount < LEAST_MEMORY and (not isinstance(value, str) or value.strip()[-1].isdigit()):
        name = field.rpartition(".")[2]
        what, need, have = f"`{shown(value)}` is a number of bytes", "a unit such as GiB", format_bytes(amount)
        raise SpecError(what, code="E103", field=field, need=need, have=have, hint=f"{name}: {shown(value)}GiB")
    return amount


def duration(value: Quantity, field: str) -> int:
    """Nanoseconds."""
    return parse_or_raise(parse_duration, value, field, MAX_DURATION)


def duration_with_unit(value: Quantity, field: str) -> int:
    """Nanoseconds. A text that Slurm reads otherwise is refused: `5` is five minutes there, `1:30:00` 90 minutes."""
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
