"""Compile the file of a machine's devices (`devices.yaml` of a home).

    kind: devices
    devices:
      - {type: GPU, compute_power: 20 TFLOPS}          # every GPU that is found here
      - {model: A10, price: 0.6}                       # every A10
      - {index: 0, memory: 20GB, bandwidth: 500GB/s}   # device 0; with an index, `model` is what it is to be called
    processor: {compute_power: 2 TFLOPS, bandwidth: 200GB/s}
    zone: eu
    labels: {team: vision}

Entries override detected, measured or catalogue figures, figure by figure; the last matching entry wins. They complete
devices and never add any: no command could use a device that no probe finds.
"""

from typing import Any

import msgspec

from poise.errors import SpecError
from poise.model.declared import Declared, Place, Said
from poise.model.document import Findings
from poise.model.fleetfile import (
    DeviceSpec,
    ProcessorSpec,
    check_place,
    check_range,
    example,
    figures_of,
    labels_from,
    processor_figures,
)
from poise.model.resources import MAX_DEVICES


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


def compile_devices(document: Any) -> Declared:
    """Compile a parsed file. Raises `SpecError` with every error: the path of the field, the expected value and
    a hint.
    """
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
