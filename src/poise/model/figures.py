"""Sources of a device's figures, and their precedence.

    declared     a file that a person wrote: `devices.yaml` of a home, a fleet file
    measured     `poise bench-devices` on this very device, under the driver that it has now
    driver       what the driver says of the device: its memory, its power cap
    catalogue    the maker's data sheet for its model

The first source in this order wins, figure by figure. Declarations come first, because there must be a way to correct
all others: a measurement may have been taken while the device was busy, and only a person knows that half of its memory
must stay free. Measurements show what this device does in practice, so they precede peak figures.
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
    """Return the device with these fields of `Device` replaced. `rates` replaces only the listed precisions; a rate of
    0 means that the device lacks the precision.
    """
    made = dict(figures)
    sources = device.sources | {name: source for name in figures if name in _FIGURES}
    if "rates" in made:
        made["rates"], said = _rates(device.rates, made["rates"], source)
        sources = sources | said
    return msgspec.structs.replace(device, sources=sources, **made)


def with_processor(node: Node, figures: Mapping[str, Any], source: Source) -> Node:
    """Return the node with these figures of its CPUs replaced: `model`, `rates`, `bandwidth`."""
    made = dict(figures)
    sources = node.sources | {name: source for name in figures if name in _FIGURES}
    if "rates" in made:
        made["rates"], said = _rates(node.rates, made["rates"], source)
        sources = sources | said
    return msgspec.structs.replace(node, sources=sources, **made)


def sources_of(one: Device | Node) -> dict[str, str]:
    """Return the source of each known figure: by default the catalogue, if it has the model."""
    entry = entry_of(one.model) if isinstance(one, Device) else None
    known = [name for name in _FIGURES if getattr(one, name, None) and (isinstance(one, Device) or name == "bandwidth")]
    known += [f"rates.{name}" for name in one.rates]
    return {name: one.sources.get(name, "catalogue") for name in known if name in one.sources or entry is not None}


def _rates(known: Mapping[str, int], said: Mapping[str, int], source: Source) -> tuple[dict[str, int], dict[str, str]]:
    rates = {name: rate for name, rate in {**known, **said}.items() if rate}
    return rates, {f"rates.{name}": source for name in said if name in rates}
