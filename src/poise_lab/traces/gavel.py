"""Read Gavel's traces: jobs with a number of steps, and a table of steps per second by device model.

Columns are TAB-separated, without a header: job type, command, working directory, flag for the steps, whether it needs
data, steps, devices, weight, SLO (-1: none), arrival in seconds. A job takes `steps / rate` seconds on a device model.

Source: Narayanan et al., "Heterogeneity-Aware Cluster Scheduling Policies for Deep Learning Workloads", OSDI 2020;
github.com/stanford-futuredata/gavel, scheduler/traces (MIT).
"""

from pathlib import Path

from poise.model.resources import Wants
from poise.model.workload import Workload
from poise_lab.traces.making import Maker, Said
from poise_lab.traces.options import Options
from poise_lab.traces.rates import Rates, Size, table_for
from poise_lab.traces.rows import BadRow, Row, tabbed

COLUMNS = ("type", "command", "folder", "flag", "needs data", "steps", "devices", "weight", "slo", "arrival")


def recognises(lines: list[str]) -> bool:
    """Return whether a file with these first lines is such a trace."""
    cells = lines[0].split("\t") if lines else []
    return len(cells) == len(COLUMNS) and cells[5].isdigit() and cells[6].isdigit()


def read(path: Path, options: Options) -> Workload:
    """Read a trace. Raises `SpecError` if the file has another format, or has no table of throughputs."""
    maker = Maker("gavel", path, options)
    rates = table_for(path, options.throughputs)
    for row in tabbed(path, maker.tally, COLUMNS):
        try:
            maker.add(_said(row, maker, rates))
        except BadRow as why:
            maker.tally.bad(row.line, why)
    return maker.workload()


def _said(row: Row, maker: Maker, rates: Rates) -> Said:
    size = Size(row.text("type"), row.devices("devices"))
    steps, by_model = row.number("steps"), rates_of(size, rates)
    best = max(by_model.values())
    maker.throughputs |= {f"{size.kind}@{model}": rate for model, rate in by_model.items()}
    tasks, gpus = maker.gang(size.devices)
    return Said(
        at=row.number("arrival"),
        seconds=steps / best,
        tasks=tasks,
        gpus=gpus,
        wants=wants(by_model, rates[size]),
        kind=size.kind,
        rates={model: rate / best for model, rate in by_model.items()},
        weight=weight_of(row),
        deadline=deadline_of(row, steps / best),
    )


def rates_of(size: Size, rates: Rates) -> dict[str, float]:
    """Return the steps per second on each device model on which the work fits. Raises `BadRow` if there are none."""
    fitting = {model: rate for model, rate in rates.get(size, {}).items() if rate > 0}
    if not fitting:
        raise BadRow("the table of throughputs does not know it", "type", "a type and size of the table", size.kind)
    return fitting


def wants(fitting: dict[str, float], known: dict[str, float]) -> Wants:
    """Return the models that the work requires; no constraint if it fits on all known models."""
    return Wants() if len(fitting) == len(known) else Wants(models=tuple(sorted(fitting)))


def weight_of(row: Row) -> int:
    """Return the business weight of a job in thousandths."""
    return max(1, round(row.number("weight", most=1e6) * 1000))


def deadline_of(row: Row, seconds: float) -> float:
    """Return the deadline in seconds after the arrival: the SLO is a multiple of the run time on the fastest device; 0
    without one.
    """
    slo = row.number("slo", least=-1.0, most=1e6)
    return slo * seconds if slo > 0 else 0.0
