"""`poise catalogue`."""

import click

from poise.cli import output
from poise.cli.output import Column, Shown
from poise.model.catalogue import CATALOGUE, TERA, device_of, per_watt

SHOWN = ("fp64", "fp32", "bf16", "fp16", "int8")


@click.command()
@output.forms(*output.ROWS)
def catalogue(form: str) -> int:
    """List the device models in the catalogue, with figures from their makers' documents. Rates are peaks in 10^12
    operations a second, without sparsity; `-` means unknown. You can declare or measure devices of other models.
    """
    value = [
        {
            "name": entry.name,
            "kind": entry.kind,
            "backend": entry.backend,
            "memory": entry.memory,
            "bandwidth": entry.bandwidth,
            "rates": entry.rates,
            "power": entry.power,
            "per_watt": per_watt(device_of(entry.name, 0, memory=entry.memory)),
            "source": entry.source,
        }
        for entry in CATALOGUE
    ]
    rows = []
    for entry in CATALOGUE:
        rates = [f"{entry.rates[name] / TERA:g}" if name in entry.rates else "-" for name in SHOWN]
        rows.append(
            (
                entry.name,
                entry.kind,
                entry.backend,
                f"{entry.memory / 10**9:.0f} GB" if entry.memory else "-",
                f"{entry.bandwidth / 10**9:.0f} GB/s" if entry.bandwidth else "-",
                *rates,
                f"{entry.power // 1000} W" if entry.power else "-",
            )
        )
    headers = ("MODEL", "KIND", "BACKEND", "MEMORY", "BANDWIDTH", *(name.upper() for name in SHOWN), "POWER")
    columns = [
        Column(title, cells, title in headers[3:])
        for title, cells in zip(headers, zip(*rows, strict=True), strict=True)
    ]
    return output.show(lambda: Shown(value, [entry.name for entry in CATALOGUE], columns), form, False)
