"""Tables of throughputs as Gavel keeps them: steps per second by model of device, job type and number of devices.

    {"v100": {"('ResNet-18 (batch size 64)', 2)": {"null": 70.1, "('LM (batch size 5)', 1)": [60.2, 11.0]}}}

`null` is the job alone; other entries are of two jobs that share a device, which are not read. A rate of 0 means that
the work does not fit there. Tables of `…_unconsolidated` devices hold the rates of gangs whose devices are spread over
more nodes than they need.

Source: Narayanan et al., OSDI 2020, github.com/stanford-futuredata/gavel, scheduler/simulation_throughputs.json (MIT).
"""

import re
from functools import lru_cache
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from poise.twin.traces.rows import fault, opened, short

SPREAD = "_unconsolidated"
BESIDE = ("simulation_throughputs.json", "tacc_throughputs.json", "physical_cluster_throughputs.json")
"""What Gavel and Shockwave call their tables."""

_KEY = re.compile(r"\('(.+)', (\d+)\)")


class Size(NamedTuple):
    """A job type on so many devices."""

    type: str
    devices: int

    @property
    def kind(self) -> str:
        """The class of such work."""
        return f"{self.type} x{self.devices}"


class Table(NamedTuple):
    """Steps per second of a whole job by size and model of device; `spread` where its devices are."""

    together: dict[Size, dict[str, float]]
    spread: dict[Size, dict[str, float]]


def table_for(trace: Path, given: Path | None) -> Table:
    """The table that was given, or the one that lies beside the trace or in a folder above. Raises `SpecError`."""
    if given is not None:
        return read_table(given)
    folders = [trace.absolute().parent, *trace.absolute().parents[1:3]]
    for folder in folders:
        for name in BESIDE:
            if (folder / name).is_file():
                return read_table(folder / name)
    raise fault(
        "a trace of steps needs a table of steps per second", trace,
        need=" or ".join(BESIDE), have="no such file beside it", hint="`--throughputs FILE`",
    )  # fmt: skip


@lru_cache(maxsize=4)
def read_table(path: Path) -> Table:
    """Raises `SpecError` for what is no such table."""
    with opened(path) as file:
        content = file.read()
    try:
        tables = msgspec.json.decode(content, type=dict[str, dict[str, dict[str, Any]]])
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise fault("the file is no table of throughputs", path, have=short(str(error))) from None
    made = Table({}, {})
    for device, sizes in tables.items():
        into = made.spread if device.endswith(SPREAD) else made.together
        model = device.removesuffix(SPREAD).upper()
        for key, entries in sizes.items():
            match, rate = _KEY.fullmatch(key), entries.get("null")
            if match is None or not isinstance(rate, int | float) or not 0 <= rate < 1e15:
                raise fault(
                    "the table of throughputs has an entry that cannot be read", path, field=short(f"{device}.{key}"),
                    need="a rate named `null`, of a key such as ('LM (batch size 5)', 2)", have=short(str(rate)),
                )  # fmt: skip
            into.setdefault(Size(match[1], int(match[2])), {})[model] = float(rate)
    if not made.together:
        raise fault("the table of throughputs is empty", path)
    return made
