"""Reads Shockwave's traces, which are like Gavel's, but with jobs that enlarge their batches while they train.

Columns are separated by TABs, without a header: Gavel's columns, with a mode after the devices, and a run time
(ignored) before the arrival. The mode is `static`; `accordion`, with the largest batches that fit except in the epochs
that are critical to learning; or `gns`, where batches double at given epochs, as the gradient's noise allows. The table
gives the time of a step for the batch size of its epoch. The work is the number of samples in all steps.

Source: Zheng et al., "Shockwave", NSDI 2023; github.com/uw-mad-dash/shockwave, scheduler/traces (MIT). When batches
grow is from its scheduler/utils.py (Agarwal et al., "Accordion", MLSys 2021; McCandlish et al., "An Empirical Model of
Large-Batch Training", 2018): figures of its own that it does not derive.
"""

import math
import re
from collections.abc import Mapping
from itertools import groupby
from pathlib import Path

import msgspec

from poise.model.workload import Seats, Workload
from poise_lab.traces.gavel import deadline_of, rates_of, wants, weight_of
from poise_lab.traces.making import Maker, Said
from poise_lab.traces.options import Options
from poise_lab.traces.rates import Rates, Size, table_for
from poise_lab.traces.rows import BadRow, Row, short, tabbed

COLUMNS = (
    "type", "command", "folder", "flag", "needs data", "steps", "devices", "mode", "weight", "slo", "duration",
    "arrival",
)  # fmt: skip
MODES = ("static", "accordion", "gns")
MAX_EPOCHS = 100_000

SAMPLES = {"ResNet-18": 50_000, "ResNet-50": 100_000, "Transformer": 10_000, "LM": 59_675, "Recommendation": 117_907}
"""Number of samples in an epoch, by model."""

LARGEST = {"ResNet-18": 256, "ResNet-50": 128, "Transformer": 128, "LM": 80, "Recommendation": 8192}
"""Maximum batch size, by model."""

DOUBLED: dict[tuple[str, int, int], tuple[int, ...]] = {
    ("ResNet-18", 16, 1): (31, 41, 51, 71),
    ("ResNet-18", 32, 1): (21, 31, 51),
    ("ResNet-18", 64, 1): (11, 31),
    ("ResNet-18", 128, 1): (11,),
    ("ResNet-18", 16, 2): (21, 31, 91, 111),
    ("ResNet-18", 32, 2): (11, 21, 41),
    ("ResNet-18", 64, 2): (21, 41),
    ("ResNet-18", 128, 2): (41,),
    ("ResNet-18", 16, 4): (11, 21, 81, 91),
    ("ResNet-18", 32, 4): (21, 31, 61),
    ("ResNet-18", 64, 4): (11, 61),
    ("ResNet-18", 128, 4): (11,),
    ("ResNet-50", 64, 1): (101,),
    ("ResNet-50", 32, 2): (101, 111),
    ("ResNet-50", 64, 2): (81,),
    ("ResNet-50", 32, 4): (131, 221),
    ("ResNet-50", 64, 4): (191,),
    ("LM", 5, 1): (31, 41, 61, 71),
    ("LM", 10, 1): (11, 21, 41),
    ("LM", 20, 1): (11, 41),
    ("LM", 40, 1): (11,),
    ("LM", 5, 2): (31, 51, 61, 71),
    ("LM", 10, 2): (11, 31, 41),
    ("LM", 20, 2): (31, 41),
    ("LM", 40, 2): (11,),
    ("LM", 5, 4): (11, 31, 71, 91),
    ("LM", 10, 4): (11, 31, 61),
    ("LM", 20, 4): (11, 61),
    ("LM", 40, 4): (61,),
    ("Recommendation", 512, 1): (21, 41, 71, 91),
    ("Recommendation", 1024, 1): (21, 51, 91),
    ("Recommendation", 2048, 1): (21, 41),
    ("Recommendation", 4096, 1): (41,),
}
"""Epochs at which the batches of `gns` double, by model, batch size and devices; other batches stay constant."""

_TYPE = re.compile(r"(\S+) \(batch size ([0-9]{1,6})\)")


class Phases(msgspec.Struct, frozen=True):
    """The pace of a job with several phases: `ends` are the progress values at which the phases end, and `seconds` the
    duration of each phase, by device model. An unknown model counts as the best one. A gang is as fast as its slowest
    device.
    """

    ends: tuple[float, ...]
    seconds: Mapping[str, tuple[float, ...]]

    def left(self, progress: float, seats: Seats, /) -> float:
        total, begin = 0.0, 0.0
        for end, taken in zip(self.ends, self._taken(seats), strict=True):
            if progress < end:
                total += taken * (end - max(progress, begin)) / (end - begin)
            begin = end
        return total

    def reached(self, progress: float, seats: Seats, seconds: float, /) -> float:
        begin = 0.0
        for end, taken in zip(self.ends, self._taken(seats), strict=True):
            if progress < end:
                left = taken * (end - max(progress, begin)) / (end - begin)
                if seconds < left:
                    return max(progress, begin) + (end - begin) * seconds / taken
                seconds -= left
                progress = end
            begin = end
        return 1.0

    def _taken(self, seats: Seats) -> tuple[float, ...]:
        best = min(self.seconds.values(), key=sum)
        models = sorted(set(seats.models))
        if len(models) == 1:
            return self.seconds.get(models[0], best)
        return tuple(map(max, zip(*(self.seconds.get(model, best) for model in models), strict=True)))


def recognises(lines: list[str]) -> bool:
    """Return whether a file with these first lines is such a trace."""
    cells = lines[0].split("\t") if lines else []
    return len(cells) == len(COLUMNS) and cells[7] in MODES


def read(path: Path, options: Options) -> Workload:
    """Read a trace. Raises `SpecError` if the file has another format, or there is no table of throughputs."""
    maker = Maker("shockwave", path, options)
    rates = table_for(path, options.throughputs)
    for row in tabbed(path, maker.tally, COLUMNS):
        try:
            maker.add(_said(row, maker, rates))
        except BadRow as why:
            maker.tally.bad(row.line, why)
    return maker.workload()


def _said(row: Row, maker: Maker, rates: Rates) -> Said:
    size = Size(row.text("type"), row.devices("devices"))
    by_model = rates_of(size, rates)
    pace = _pace(row, size, by_model, rates)
    seconds = min(pace.left(0.0, Seats((model,))) for model in pace.seconds)
    maker.throughputs |= {f"{size.kind}@{model}": rate for model, rate in by_model.items()}
    tasks, gpus = maker.gang(size.devices)
    return Said(
        at=row.number("arrival"),
        seconds=seconds,
        tasks=tasks,
        gpus=gpus,
        wants=wants({model: by_model[model] for model in pace.seconds}, rates[size]),
        kind=size.kind,
        pace=pace,
        weight=weight_of(row),
        deadline=deadline_of(row, seconds),
    )


def _pace(row: Row, size: Size, by_model: Mapping[str, float], rates: Rates) -> Phases:
    """Return the pace of a job, on the device models on which all of its batch sizes fit."""
    mode, match = row.text("mode"), _TYPE.fullmatch(size.type)
    if mode not in MODES:
        raise BadRow("the mode is not known", "mode", ", ".join(MODES), short(mode))
    if match is None or match[1] not in SAMPLES or not int(match[2]):
        if mode != "static":
            raise BadRow("a job type whose epochs are not known", "type", ", ".join(SAMPLES), short(size.type))
        steps = row.number("steps")
        return Phases((1.0,), {model: (steps / rate,) for model, rate in by_model.items()})
    model, batch = match[1], int(match[2])
    epochs = row.number("steps") / math.ceil(SAMPLES[model] / batch)
    if epochs > MAX_EPOCHS:
        raise BadRow("the epochs are absurd", "steps", f"at most {MAX_EPOCHS} epochs", f"{epochs:.0f}")
    parts = [
        (used, float(len(list(group)))) for used, group in groupby(batches(mode, model, batch, size.devices, epochs))
    ]
    if not parts:
        return Phases((1.0,), dict.fromkeys(by_model, (0.0,)))
    parts[-1] = (parts[-1][0], parts[-1][1] - (math.ceil(epochs) - epochs))  # the last epoch may be partial
    fitting = set(by_model)
    for used, _ in parts:
        fitting &= set(rates_of(Size(f"{model} (batch size {used})", size.devices), rates))
    if not fitting:
        raise BadRow("its batches grow beyond every device of the table", "mode", "static", mode)
    done, ends = 0.0, []
    for _, count in parts:
        done += count
        ends.append(min(1.0, done / epochs))
    return Phases(
        (*ends[:-1], 1.0),
        {
            device: tuple(
                count * SAMPLES[model] / used / rates[Size(f"{model} (batch size {used})", size.devices)][device]
                for used, count in parts
            )
            for device in sorted(fitting)
        },
    )


def batches(mode: str, model: str, batch: int, devices: int, epochs: float) -> list[int]:
    """Return the batch size of each epoch; the last epoch may be partial.

    >>> batches("gns", "LM", 40, 1, 13)
    [40, 40, 40, 40, 40, 40, 40, 40, 40, 40, 40, 80, 80]
    """
    count = math.ceil(epochs)
    if mode == "accordion" and model != "Transformer":
        return [batch if _critical(model, batch, at) or at <= 0.3 * count else LARGEST[model] for at in range(count)]
    if mode == "gns":
        doubled = DOUBLED.get((model, batch, devices), ())
        sizes = [min(LARGEST[model], batch << sum(at >= one for one in doubled)) for at in range(count)]
        if len(doubled) > 1 and count > doubled[1]:
            sizes[-1] = batch  # Shockwave's own loop does not double the last epoch if it has doubled before
        return sizes
    return [batch] * count


def _critical(model: str, batch: int, epoch: int) -> bool:
    """Return whether batches stay small in an epoch."""
    match model:
        case "ResNet-18":
            return epoch < (20 if batch == 256 else 10) or 150 <= epoch < 160 or 250 <= epoch < 260
        case "ResNet-50":
            return epoch < 600 and epoch % 30 < 10
        case "LM":
            return epoch < 10
        case _:
            least = {512: 30, 1024: 30, 2048: 40}.get(batch, 10)
            return epoch < least or 60 <= epoch < 70 or 80 <= epoch < 90
