"""What people write of a real machine and its devices (`devices.yaml` of a home), and which devices it is about.

    kind: devices
    devices:
      - {type: GPU, compute_power: 20 TFLOPS}          # every GPU that is found here
      - {model: A10, price: 0.6}                       # every A10
      - {index: 0, memory: 20GB, bandwidth: 500GB/s}   # device 0; with an index, `model` is what it is to be called
    processor: {compute_power: 2 TFLOPS, bandwidth: 200GB/s}
    zone: eu
    labels: {team: vision}

Entries take the place of what was found, measured, or known of the model, figure by figure; the last one goes first.
They complete devices and never make them: what no probe finds, no command could use.
"""

from collections.abc import Iterable, Sequence
from typing import Any

import msgspec

from poise.errors import SpecError
from poise.model.catalogue import device_of, models_named
from poise.model.document import Findings
from poise.model.figures import with_figures
from poise.model.fleetfile import (
    MAX_DEVICES,
    DeviceSpec,
    ProcessorSpec,
    check_place,
    check_range,
    example,
    figures_of,
    labels_from,
    processor_figures,
)
from poise.model.resources import Device, Node


class FoundSpec(DeviceSpec, forbid_unknown_fields=True):
    """Figures of the device with this `index`, of all devices of a model or a kind, or of all devices."""

    index: int | None = None


class DevicesSpec(msgspec.Struct, forbid_unknown_fields=True):
    """The file."""

    kind: str = "devices"
    devices: list[FoundSpec] = []
    processor: ProcessorSpec | None = None
    zone: str = ""
    rack: str = ""
    labels: dict[str, Any] = {}


class Said(msgspec.Struct, frozen=True):
    """What one entry says, of which devices: that of an index, or those of a model and a kind (empty: of any)."""

    index: int | None
    model: str
    kind: str
    figures: dict[str, Any]

    def is_about(self, device: Device) -> bool:
        if self.index is not None:
            return device.index == self.index
        return self.kind in ("", device.kind) and (not self.model or _same_model(self.model, device.model))


class Place(msgspec.Struct, frozen=True):
    """Where the machine is, and its labels."""

    zone: str = ""
    rack: str = ""
    labels: dict[str, str] = {}

    def of(self, node: Node) -> Node:
        """The node with what is said here, beside what was found."""
        return msgspec.structs.replace(node, zone=self.zone, rack=self.rack, labels=node.labels | self.labels)


class Declared(msgspec.Struct, frozen=True):
    """A compiled file."""

    devices: tuple[Said, ...] = ()
    processor: dict[str, Any] = {}
    place: Place = Place()

    def unused(self, devices: Iterable[Device]) -> list[str]:
        """Fields of entries that are about none of these devices."""
        found = list(devices)
        return [f"devices[{place}]" for place, one in enumerate(self.devices) if not any(map(one.is_about, found))]


def compile_devices(document: Any) -> Declared:
    """Raises `SpecError` with everything that is wrong: the path of each field, what was expected and a hint."""
    found = Findings()
    top = found.convert(document, DevicesSpec)
    made = None if top is None else _compile(top, found)
    found.check(lambda field: example(field) if field else "devices: [{model: A10, price: 0.6}]")
    if made is None:
        raise AssertionError("a document that is not compiled has something wrong in it")
    return made


def _compile(top: DevicesSpec, found: Findings) -> Declared:
    if top.kind != "devices":
        what = "this file is not about devices"
        found.add(SpecError(what, field="kind", need="devices", have=top.kind, hint="kind: devices"))
    said = []
    for place, spec in enumerate(top.devices):
        at = f"devices[{place}]"
        if spec.count != 1:
            found.add(SpecError("an entry cannot add devices", field=f"{at}.count", hint="remove `count`"))
        if spec.index is not None:
            found.get(None, check_range, spec.index, 0, MAX_DEVICES - 1, f"{at}.index")
        figures = figures_of(spec, at, found)
        kind = figures.pop("kind", "") if spec.index is None else ""
        said.append(Said(spec.index, spec.model, kind, figures))
    return Declared(tuple(said), processor_figures(top.processor, "processor", found), _place(top, found))


def _place(top: DevicesSpec, found: Findings) -> Place:
    check_place(top.zone, top.rack, "", found)
    return Place(top.zone, top.rack, labels_from(top.labels, "labels", found))


def with_declared(devices: Sequence[Device], declared: Declared) -> tuple[Device, ...]:
    """The devices with what the file says of them."""
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
    """What is known of a device itself, and not of the model that it was taken for."""
    figures = {name.partition(".")[0] for name in device.sources}
    kept = {"kind", "backend", "uuid", "driver_index", "socket", "sources", *figures}
    return {name: getattr(device, name) for name in kept}


def _same_model(said: str, model: str) -> bool:
    return said == model or model in {entry.name for entry in models_named(said)}
