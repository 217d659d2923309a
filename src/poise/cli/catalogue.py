"""`poise catalogue`."""

import click

from poise.cli.render import print_json, print_table
from poise.model.catalogue import CATALOGUE, TERA, device_of, per_watt

SHOWN = ("fp64", "fp32", "bf16", "fp16", "int8")


@click.command()
@click.option("--json", "as_json", is_flag=True, help="Print one JSON value, with rates by precision and sources.")
def catalogue(as_json: bool) -> int:
    """List the models of devices whose figures are known, from their makers' documents. Rates are peaks in 10^12
    operations a second, without sparsity; `-` is what no document says. Devices of other models can be declared, or
    measured.
    """
    if as_json:
        print_json(
            [
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
        )
        return 0
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
    print_table(headers, rows, right=headers[3:])
    return 0
