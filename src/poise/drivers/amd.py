"""AMD devices, from the output of `amd-smi --json`.

Written from recorded outputs (`tests/drivers/recorded/`), never run on real hardware. The output format has varied: a
list, or an object with the list as `gpu_data`. Amounts are `{"value": 1, "unit": "MB"}`, or `N/A` if unknown. `MB` and
`GB` are binary there. The runtime numbers devices in the order of their nodes (`node_id`).
"""

from collections.abc import Mapping, Sequence
from typing import Any

from poise.drivers.probes import Finding, NoAnswerError, Use, ask, parse_json
from poise.model.catalogue import device_found
from poise.model.resources import Device
from poise.model.usage import UNKNOWN

_SCALES = {"B": 1, "KB": 2**10, "MB": 2**20, "GB": 2**30, "TB": 2**40, "W": 1000, "GB/S": 10**9, "%": 10}
"""Factors from units to ours: bytes, milliwatts, bytes per second, thousandths."""


class AmdSmi:
    """Devices in the runtime's order."""

    name = "amd-smi"
    hint = "install ROCm with `amd-smi`; `amd-smi list` must print devices"
    rest = 5.0

    def find(self) -> Finding:
        try:
            listed = parse_json(ask("amd-smi", "list", "--json"))
            static = parse_json(ask("amd-smi", "static", "--asic", "--vram", "--limit", "--driver", "--json"))
            devices, driver = devices_of(listed, static)
        except NoAnswerError as error:
            return error.finding()
        return Finding(devices, "" if devices else "`amd-smi` answers, but there is no device", driver)

    def use(self, indices: Sequence[int]) -> dict[int, Use]:
        order = _order(parse_json(ask("amd-smi", "list", "--json")))
        metric = parse_json(ask("amd-smi", "metric", "--usage", "--mem-usage", "--power", "--json"))
        return {order[gpu]: use for gpu, use in uses_of(metric).items() if order.get(gpu) in indices}


def devices_of(listed: Any, static: Any) -> tuple[tuple[Device, ...], str]:
    """Return devices and driver version from `amd-smi list` and `amd-smi static`. Raises `NoAnswerError`."""
    order = _order(listed)
    uuids = {gpu: str(entry.get("uuid", "")) for gpu, entry in _entries(listed).items()}
    found = []
    drivers = []
    for gpu, entry in _entries(static).items():
        name = _text(entry, "asic", "market_name")
        memory = _amount(entry, "vram", "size")
        if gpu not in order or not name or not memory:
            raise NoAnswerError(f"`amd-smi` does not say what device {gpu} is")
        known = {
            "power": _amount(entry, "limit", "ppt0", "socket_power_limit")
            or _amount(entry, "limit", "socket_power")
            or _amount(entry, "limit", "max_power"),
            "bandwidth": _amount(entry, "vram", "max_bandwidth"),
        }
        known = {figure: value for figure, value in known.items() if value}
        drivers.append(_text(entry, "driver", "version"))
        found.append(
            device_found(name, order[gpu], kind="gpu", backend="rocm", memory=memory, uuid=uuids.get(gpu, ""), **known)
        )
    return tuple(sorted(found, key=lambda device: device.index)), next(iter(drivers), "")


def uses_of(metric: Any) -> dict[int, Use]:
    """Return device use by `amd-smi`'s own numbers, from `amd-smi metric`."""
    return {
        gpu: Use(
            _amount(entry, "usage", "gfx_activity"),
            _amount(entry, "mem_usage", "used_vram"),
            _amount(entry, "usage", "umc_activity") if _at(entry, ("usage", "umc_activity")) else UNKNOWN,
            _amount(entry, "power", "socket_power") or UNKNOWN,
        )
        for gpu, entry in _entries(metric).items()
    }


def _order(listed: Any) -> dict[int, int]:
    """Return the runtime's number for each number of `amd-smi`."""
    entries = _entries(listed)
    places = sorted(entries, key=lambda gpu: (_whole(entries[gpu].get("node_id"), gpu), gpu))
    return {gpu: place for place, gpu in enumerate(places)}


def _entries(document: Any) -> dict[int, Mapping[str, Any]]:
    entries = document.get("gpu_data") if isinstance(document, dict) else document
    if not isinstance(entries, list):
        raise NoAnswerError("`amd-smi` answers in a shape that is not known")
    found: dict[int, Mapping[str, Any]] = {}
    for entry in entries:
        if not isinstance(entry, dict):
            raise NoAnswerError("`amd-smi` answers in a shape that is not known")
        gpu = _whole(entry.get("gpu"), -1)
        if gpu >= 0:
            found[gpu] = entry
    return found


def _at(entry: Mapping[str, Any], path: Sequence[str]) -> Any:
    value: Any = entry
    for name in path:
        value = value.get(name) if isinstance(value, dict) else None
    return value


def _text(entry: Mapping[str, Any], *path: str) -> str:
    value = _at(entry, path)
    return value if isinstance(value, str) and value != "N/A" else ""


def _amount(entry: Mapping[str, Any], *path: str) -> int:
    """Return an amount in our units; 0 if it is missing."""
    value = _at(entry, path)
    if not isinstance(value, dict) or isinstance(value.get("value"), bool):
        return 0
    scale = _SCALES.get(str(value.get("unit", "")).upper(), 0)
    number = value.get("value")
    return max(0, int(number * scale)) if isinstance(number, int | float) and abs(number) < 2**60 else 0


def _whole(value: Any, otherwise: int) -> int:
    return value if isinstance(value, int) and not isinstance(value, bool) else otherwise
