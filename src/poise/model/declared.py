"""The compiled `devices.yaml` of a home, and how it applies to the devices found. `devicefile` compiles it."""

from collections.abc import Iterable, Sequence
from typing import Any

import msgspec

from poise.model.catalogue import device_of, models_named
from poise.model.figures import with_figures
from poise.model.resources import Device, Node


class Said(msgspec.Struct, frozen=True):
    """Figures of one entry, and its devices: the one with an index, or those of a model and a kind (empty: any)."""

    index: int | None
    model: str
    kind: str
    figures: dict[str, Any]

    def is_about(self, device: Device) -> bool:
        if self.index is not None:
            return device.index == self.index
        return self.kind in ("", device.kind) and (not self.model or _same_model(self.model, device.model))


class Place(msgspec.Struct, frozen=True):
    """Location and labels of the machine."""

    zone: str = ""
    rack: str = ""
    labels: dict[str, str] = {}

    def of(self, node: Node) -> Node:
        """Return the node with this location and these labels in addition to its own."""
        return msgspec.structs.replace(node, zone=self.zone, rack=self.rack, labels=node.labels | self.labels)


class Declared(msgspec.Struct, frozen=True):
    """A compiled file."""

    devices: tuple[Said, ...] = ()
    processor: dict[str, Any] = {}
    place: Place = Place()

    def unused(self, devices: Iterable[Device]) -> list[str]:
        """Return the fields of entries that match none of these devices."""
        found = list(devices)
        return [f"devices[{place}]" for place, one in enumerate(self.devices) if not any(map(one.is_about, found))]


def with_declared(devices: Sequence[Device], declared: Declared) -> tuple[Device, ...]:
    """Return the devices with the file's figures."""
    made = []
    for device in devices:
        for one in declared.devices:
            if one.is_about(device):
                if one.index is not None and one.model:
                    device = device_of(one.model, device.index, **_own(device))
                device = with_figures(device, one.figures, "declared")
        made.append(device)
    return tuple(made)


def _own(device: Device) -> dict[str, Any]:
    """Return the figures of the device itself, without those of its supposed model."""
    figures = {name.partition(".")[0] for name in device.sources}
    kept = {"kind", "backend", "uuid", "driver_index", "socket", "sources", *figures}
    return {name: getattr(device, name) for name in kept}


def _same_model(said: str, model: str) -> bool:
    return said == model or model in {entry.name for entry in models_named(said)}
