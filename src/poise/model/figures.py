"""Who said a figure of a device, and who is believed where several did.

    declared     a file that a person wrote: `devices.yaml` of a home, a fleet file
    measured     `poise bench-devices` on this very device, under the driver that it has now
    driver       what the driver says of the device: its memory, its power cap
    catalogue    the maker's data sheet for its model

The first in this order that says a figure is believed, figure by figure. A person goes first, because there must be a
way to correct all others: a measurement may have been taken while the device was busy, and nobody else knows that half
of its memory is to be left alone. What was measured is what this device does in practice, so it goes before a peak.
"""

from collections.abc import Mapping
from typing import Any, Literal

import msgspec

from poise.model.catalogue import entry_of
from poise.model.resources import Device, Node

Source = Literal["declared", "measured", "driver", "catalogue"]

SOURCES: tuple[Source, ...] = ("declared", "measured", "driver", "catalogue")

_FIGURES = ("memory", "bandwidth", "power", "price", "ops")


def with_figures(device: Device, figures: Mapping[str, Any], source: Source) -> Device:
    """The device with these fields of `Device` in place of its own. `rates` replaces the precisions that it names only;
    a rate of 0 is a precision that the device lacks.
    """
    made = dict(figures)
    sources = device.sources | {name: source for name in figures if name in _FIGURES}
    if "rates" in made:
        made["rates"], said = _rates(device.rates, made["rates"], source)
        sources = sources | said
    return msgspec.structs.replace(device, sources=sources, **made)


def with_processor(node: Node, figures: Mapping[str, Any], source: Source) -> Node:
    """The same for the CPUs of a node: `model`, `rates`, `bandwidth`."""
    made = dict(figures)
    sources = node.sources | {name: source for name in figures if name in _FIGURES}
    if "rates" in made:
        made["rates"], said = _rates(node.rates, made["rates"], source)
        sources = sources | said
    return msgspec.structs.replace(node, sources=sources, **made)


def sources_of(one: Device | Node) -> dict[str, str]:
    """Who said each figure that is known: where nobody is named, the catalogue, if it knows the model."""
    entry = entry_of(one.model) if isinstance(one, Device) else None
    known = [name for name in _FIGURES if getattr(one, name, None) and (isinstance(one, Device) or name == "bandwidth")]
    known += [f"rates.{name}" for name in one.rates]
    return {name: one.sources.get(name, "catalogue") for name in known if name in one.sources or entry is not None}


def _rates(known: Mapping[str, int], said: Mapping[str, int], source: Source) -> tuple[dict[str, int], dict[str, str]]:
    rates = {name: rate for name, rate in {**known, **said}.items() if rate}
    return rates, {f"rates.{name}": source for name in said if name in rates}
