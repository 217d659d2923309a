"""The argument of `--on slurm`: partitions, and settings as `NAME=VALUE`."""

import re
from typing import NamedTuple

from poise.errors import InputError
from poise.model.document import near
from poise.units import SECOND, parse_duration

PASSED_ON = ("account", "qos", "constraint", "reservation")
"""Options of `sbatch` that are passed on as they are."""

_WORD = re.compile(r"[A-Za-z0-9][A-Za-z0-9._+&|*-]{0,127}")


class Settings(NamedTuple):
    """Limits for allocations: the `partitions` to use (empty: all that are open to this user), the maximum number of
    `nodes` at a time, and the longest `time`. An allocation is given back after `idle` without work, and drained for
    `drain` before it ends. Times in seconds. `options` are passed on to `sbatch`.
    """

    partitions: tuple[str, ...] = ()
    nodes: int = 8
    time: int = 24 * 3600
    idle: int = 60
    drain: int = 60
    options: tuple[str, ...] = ()


def parse_settings(argument: str) -> Settings:
    """Parse settings such as `gpu,short,nodes=4,time=2h,account=physics`. Raises `InputError`."""
    partitions: list[str] = []
    options: list[str] = []
    told: dict[str, int] = {}
    for part in argument.split(",") if argument else ():
        name, equals, value = part.partition("=")
        if not equals:
            if not _WORD.fullmatch(name):
                raise _wrong(argument, f"`{name}` is no name of a partition", "slurm:gpu,short")
            partitions.append(name)
        elif name in PASSED_ON:
            if not _WORD.fullmatch(value):
                raise _wrong(argument, f"`{value}` is no value of `{name}`", f"slurm:{name}=NAME")
            options.append(f"--{name}={value}")
        elif name == "nodes":
            if not (value.isascii() and value.isdigit() and 1 <= int(value) <= 10_000):
                raise _wrong(argument, "`nodes` is a number from 1 to 10000", "slurm:nodes=8")
            told[name] = int(value)
        elif name in ("time", "idle", "drain"):
            told[name] = _seconds(argument, name, value)
        else:
            known = ("nodes", "time", "idle", "drain", *PASSED_ON)
            raise _wrong(argument, f"there is no setting `{name}`", near(name, known) or f"known: {', '.join(known)}")
    return Settings(tuple(partitions), options=tuple(options), **told)


def _seconds(argument: str, name: str, value: str) -> int:
    try:
        return -(-parse_duration(value) // SECOND)
    except ValueError as error:
        raise _wrong(argument, f"`{name}`: {error}", f"slurm:{name}=10m") from None


def _wrong(argument: str, what: str, hint: str) -> InputError:
    return InputError(what, field="--on", have=f"slurm:{argument}", hint=hint)
