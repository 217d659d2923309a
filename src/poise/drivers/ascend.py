"""Ascend devices, from the table that `npu-smi info` prints.

Written from recorded outputs (`tests/drivers/recorded/`), never run on real hardware. Each chip is a device. Its first
line has number, name, health and power; its second line has bus address, utilization, and memory in MiB. Chips are
numbered from 0 in the order of the table, as the runtime numbers its visible chips: in a container, `npu-smi` shows the
host's number 5 for the chip that is device 0 there.
"""

import re
from collections.abc import Sequence
from typing import NamedTuple

from poise.drivers.probes import Finding, NoAnswerError, Use, ask
from poise.model.catalogue import device_found
from poise.model.usage import UNKNOWN

USABLE = frozenset({"OK", "Warning"})
"""Health values of chips that can take work."""

_VERSION = re.compile(r"\|\s*npu-smi\s+\S+\s+Version:\s*(\S+)")
_FIRST = re.compile(r"\|\s*(\d+)\s+(\S[^|]*?)\s*\|\s*(\S+)\s*\|\s*(\d+(?:\.\d+)?)?")
_SECOND = re.compile(
    r"\|\s*\d+(?:\s+\d+)?\s*\|\s*([0-9A-Fa-f:.]+)\s*\|\s*(\d+)\s+(\d+)\s*/\s*(\d+)(?:\s+(\d+)\s*/\s*(\d+))?\s*\|"
)


class Chip(NamedTuple):
    """One chip of the table: memory in bytes, `busy` in thousandths, `power` in milliwatts (-1: unknown)."""

    name: str
    health: str
    bus: str
    busy: int
    used: int
    memory: int
    power: int


class NpuSmi:
    """Devices in the order of the table. Unhealthy chips are left out, and keep their number."""

    name = "npu-smi"
    hint = "install the Ascend driver; `npu-smi info` must print a table"
    rest = 5.0

    def find(self) -> Finding:
        try:
            text = ask("npu-smi", "info")
            chips = chips_of(text)
        except NoAnswerError as error:
            return error.finding()
        devices = tuple(
            device_found(_model(chip), index, kind="npu", backend="cann", memory=chip.memory, uuid=chip.bus)
            for index, chip in enumerate(chips)
            if chip.health in USABLE
        )
        ill = [f"device {index} says {chip.health}" for index, chip in enumerate(chips) if chip.health not in USABLE]
        found = _VERSION.search(text)
        return Finding(devices, "; ".join(ill) or "no chip is in its table", found[1] if found else "")

    def use(self, indices: Sequence[int]) -> dict[int, Use]:
        chips = chips_of(ask("npu-smi", "info"))
        return {
            index: Use(chips[index].busy, chips[index].used, power=chips[index].power)
            for index in indices
            if index < len(chips)
        }


def chips_of(text: str) -> list[Chip]:
    """Return the chips of the table. Raises `NoAnswerError` if there is no table, or if a line is malformed."""
    if "| NPU" not in text or "Health" not in text:
        raise NoAnswerError("`npu-smi info` prints no table of chips")
    chips = []
    first: re.Match[str] | None = None
    for line in text.splitlines():
        if "Process id" in line:
            break
        second = _SECOND.match(line)
        if second is not None and first is not None:
            bus, busy, used, memory, hbm_used, hbm = second.groups()
            power = round(float(first[4]) * 1000) if first[4] else UNKNOWN
            amounts = int(hbm_used or used) << 20, int(hbm or memory) << 20
            chips.append(Chip(first[2], first[3], bus, int(busy) * 10, *amounts, power))
            first = None
        elif (found := _FIRST.match(line)) is not None:
            if first is not None:
                raise NoAnswerError(f"`npu-smi info` does not say what chip {first[1]} has")
            first = found
    if first is not None:
        raise NoAnswerError("`npu-smi info` ends in the middle of its table")
    return chips


def _model(chip: Chip) -> str:
    """Return `Ascend910B3` for `910B3`. An `Ascend910` with 64 GiB is a die of a later generation, not the first."""
    name = chip.name if chip.name.startswith("Ascend") else f"Ascend{chip.name}"
    return "Ascend910C" if name == "Ascend910" and chip.memory > 48 << 30 else name
