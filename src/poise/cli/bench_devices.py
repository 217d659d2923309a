"""`poise bench-devices`."""

import time
from collections.abc import Sequence

import click

from poise.cli import output
from poise.cli.output import Column, Shown
from poise.cli.render import say
from poise.client import current_home
from poise.config import Home
from poise.control.start import connected, running
from poise.drivers.devices import Inventory, processor_name
from poise.drivers.measured import measure, save_measured
from poise.drivers.probes import Answer
from poise.drivers.process import visible
from poise.drivers.security import ensure_home
from poise.errors import Conflict, Fault
from poise.model.measured import Measured, Sample, processor_key
from poise.units import format_flops

WITH_TORCH = ("cuda", "rocm", "cann")
"""Backends that torch supports."""


@click.command("bench-devices")
@click.option("--quick", is_flag=True, help="Measure for a few seconds only, less exactly.")
@click.option("--no-save", is_flag=True, help="Show the results without saving them.")
@output.forms(*output.ROWS)
def bench_devices(quick: bool, no_save: bool, form: str) -> int:
    """Measure the CPUs of this machine, and its accelerators if torch is installed: matrix products by precision,
    memory, links. The results are stored in this home, and override the catalogue's figures. Refused while commands run
    here, unless you use --no-save: other work makes the measured rates too low.
    """
    home = current_home()
    if not no_save:
        _check_idle(home)
    ensure_home(home)
    inventory = Inventory("this machine", home)
    node = inventory.look()
    say("poise: measuring the CPUs …")
    found = _measured("processor", {}, [(processor_key(processor_name(), node.cpu), processor_name())], "", quick=quick)
    devices = {device.index: device for device in node.devices}
    for answer in inventory.answers:
        indices = [device.index for device in answer.finding.devices]
        if indices and (problem := _cannot(answer)):
            say(f"poise: the devices of {answer.probe.name} are not measured: {problem}")
        elif indices:
            say(f"poise: measuring {len(indices)} devices of {answer.probe.name} …")
            named = [(devices[index].uuid or devices[index].model, devices[index].model) for index in indices]
            try:
                found += _measured("accelerators", visible(indices, devices), named, answer.finding.driver, quick=quick)
            except Fault as error:
                say(f"poise: the devices of {answer.probe.name} are not measured: {error.record.have or error}")
    for one in () if no_save else found:
        save_measured(home.profiles, one)
    output.show(lambda: _shown(found), form, False)
    if not no_save and form == "table":
        say(f"poise: kept in {home.profiles}; `poise nodes --json` shows the measured figures")
    return 0


def _check_idle(home: Home) -> None:
    if not running(home):
        return
    busy = [node.name for node in connected(home).nodes() if node.running]
    if busy:
        raise Conflict(
            "commands run on this machine, so figures would be too low",
            have=", ".join(busy),
            hint="wait until they are done (`poise ls`), or measure without saving: `poise bench-devices --no-save`",
        )


def _cannot(answer: Answer) -> str:
    backends = {device.backend for device in answer.finding.devices}
    return "" if backends <= set(WITH_TORCH) else f"torch has no backend `{', '.join(sorted(backends))}`"


def _measured(
    what: str, hidden: dict[str, str], named: Sequence[tuple[str, str]], driver: str, *, quick: bool
) -> list[Measured]:
    """Measure devices, given by their driver's name and model. Raises `Fault`."""
    reports = measure("processor" if what == "processor" else "accelerators", hidden, devices=len(named), quick=quick)
    if len(reports) != len(named):
        raise Fault("not all devices were measured", need=str(len(named)), have=f"torch sees {len(reports)} of them")
    return [
        Measured(
            device=device,
            model=model,
            driver=driver,
            library=report.library,
            at=time.time(),
            rates=report.rates,
            bandwidth=report.bandwidth,
            links=report.links,
            left_out=report.left_out,
        )
        for (device, model), report in zip(named, reports, strict=True)
    ]


def _shown(found: Sequence[Measured]) -> Shown:
    rows = []
    for one in found:
        for name, sample in one.rates.items():
            rows.append((one.model, name, f"{format_flops(sample.median)}/s", _spread(sample), one.library))
        memory = {"memory": one.bandwidth} if one.bandwidth is not None else {}
        for name, sample in (memory | one.links).items():
            rows.append((one.model, name, f"{sample.median / 10**9:.1f} GB/s", _spread(sample), one.library))
    titles = ("DEVICE", "WHAT", "MEDIAN", "SPREAD", "WITH")
    cells = zip(*rows, strict=True) if rows else ((),) * len(titles)
    columns = [Column(title, of, title in ("MEDIAN", "SPREAD")) for title, of in zip(titles, cells, strict=True)]
    left_out = [f"poise: {one.model}: {name} is left out: {why}" for one in found for name, why in one.left_out.items()]
    return Shown(found, [f"{row[0]} {row[1]}" for row in rows], columns, notes=left_out)


def _spread(sample: Sample) -> str:
    """Return the range of a sample as a percentage of its median."""
    return f"{(sample.most - sample.least) / max(1, sample.median):.0%}"
