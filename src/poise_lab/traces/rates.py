"""Read tables of throughputs in Gavel's format: steps per second by device model, job type and number of devices.

    {"v100": {"('ResNet-18 (batch size 64)', 2)": {"null": 70.1, "('LM (batch size 5)', 1)": [60.2, 11.0]}}}

`null` is the job alone; other entries, of two jobs that share a device, are ignored. A rate of 0 means that the work
does not fit. The tables of `…_unconsolidated` devices are ignored too: they apply to gangs on more nodes than
necessary, and here a job that fits on one node is a single task.

Source: Narayanan et al., OSDI 2020, github.com/stanford-futuredata/gavel, scheduler/simulation_throughputs.json (MIT).
"""

import re
from functools import lru_cache
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from poise.decoding import json_decoder
from poise_lab.traces.rows import content_of, fault, short

SPREAD = "_unconsolidated"
BESIDE = ("simulation_throughputs.json", "tacc_throughputs.json", "physical_cluster_throughputs.json")
"""File names of the tables of Gavel and Shockwave."""

_KEY = re.compile(r"\('(.+)', ([0-9]{1,9})\)")


class Size(NamedTuple):
    """A job type and a number of devices."""

    type: str
    devices: int

    @property
    def kind(self) -> str:
        """Return the class name of such work."""
        return f"{self.type} x{self.devices}"


Rates = dict[Size, dict[str, float]]
"""Steps per second of a whole job, by size and device model."""


def table_for(trace: Path, given: Path | None) -> Rates:
    """Return the given table, or the one beside the trace or in a folder above. Raises `SpecError`."""
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
def read_table(path: Path) -> Rates:
    """Read a table. Raises `SpecError` if the file has another format."""
    content = content_of(path)
    try:
        tables = json_decoder(dict[str, dict[str, dict[str, Any]]]).decode(content)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise fault("the file is no table of throughputs", path, have=short(str(error))) from None
    made: Rates = {}
    for device, sizes in tables.items():
        if device.endswith(SPREAD):
            continue
        for key, entries in sizes.items():
            match, rate = _KEY.fullmatch(key), entries.get("null")
            if match is None or not isinstance(rate, int | float) or not 0 <= rate < 1e15:
                raise fault(
                    "the table of throughputs has an entry that cannot be read", path, field=short(f"{device}.{key}"),
                    need="a rate named `null`, of a key such as ('LM (batch size 5)', 2)", have=short(str(rate)),
                )  # fmt: skip
            made.setdefault(Size(match[1], int(match[2])), {})[device.upper()] = float(rate)
    if not made:
        raise fault("the table of throughputs is empty", path)
    return made
