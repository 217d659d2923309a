"""Read training rates by number of devices in ElasticFlow's format: a folder with a CSV per model.

    global_batch_size,1,2,4,8,16,32,64
    64,6.03,8.64,10.36,11.06,10.99,10.61,9.25

The file name is the model. Its values are iterations per second of a job with that batch size over all of its devices;
an empty value, 0 or `nan` was not profiled. Rates between two profiled numbers of devices are interpolated linearly.

Source: Gu et al., ASPLOS 2023; github.com/pkusys/ElasticFlow, ElasticFlow/scheduler/throughputs_A100 and …_T4
(Apache-2.0).
"""

from itertools import pairwise
from pathlib import Path

from poise.model.progress import Speedups
from poise.model.workload import ONE_NODE, Scaling, Seats
from poise.units import is_plain
from poise_lab.traces.rows import BadRow, Row, Tally, fault, header_of, short, table

BATCH = "global_batch_size"
MOST_DEVICES = 1024


class Curve(Scaling, frozen=True, kw_only=True):
    """The speed of a job with 1, 2, … devices: `rates` in iterations per second, 0 below the smallest profiled number
    of devices. Devices of one node and of several count alike, because the tables do not distinguish them.
    """

    rates: tuple[float, ...]

    @property
    def least(self) -> int:
        """Return the smallest profiled number of devices."""
        return next(devices for devices, rate in enumerate(self.rates, start=1) if rate)

    @property
    def most(self) -> int:
        """Return the smallest number of devices with the highest rate: more devices would gain nothing."""
        return self.rates.index(max(self.rates)) + 1

    def rate(self, devices: int) -> float:
        """Return the iterations per second; 0 if not profiled."""
        return self.rates[devices - 1] if 1 <= devices <= len(self.rates) else 0.0

    def speedup(self, tasks: int, apart: int = ONE_NODE) -> float:
        """Return the speedup over the smallest profiled number of devices."""
        return self.rate(tasks) / self.rate(self.least)

    def speedups(self, progress: float, seats: Seats, most: int, /, *, spread: bool) -> Speedups:
        """Return the table relative to the rate of one device. If that was not profiled, scale the smallest profiled
        number of devices down proportionally.
        """
        one = self.rate(self.least) / self.least
        told = tuple(round(1000 * rate / one) for rate in self.rates[:most])
        return Speedups(told, told)


Curves = dict[tuple[str, int], Curve]
"""Curves by model and batch size."""


def read_curves(folder: Path) -> Curves:
    """Read all tables of a folder. Raises `SpecError` if there are none, or if one is unreadable: an incomplete table
    is useless.
    """
    found: Curves = {}
    files = (
        sorted(path for path in folder.iterdir() if path.name.endswith((".csv", ".csv.gz"))) if folder.is_dir() else []
    )
    for path in files:
        model = path.name.removesuffix(".gz").removesuffix(".csv")
        sizes = _sizes(path)
        tally = Tally(path, strict=True)
        for row in table(path, tally, (BATCH,)):
            try:
                batch, curve = row.whole(BATCH, least=1, most=10**9), _curve(row, sizes)
            except BadRow as why:
                tally.bad(row.line, why)
                continue
            if (model, batch) in found:
                raise fault("a batch size is there twice", path, row.line, field=BATCH, have=str(batch))
            if curve is not None:
                found[model, batch] = curve
    if not found:
        raise fault(
            "the folder has no rates by number of devices", folder, need=f"MODEL.csv with columns {BATCH},1,2,4,…",
            have="no such file", hint=f"`ls {folder}`",
        )  # fmt: skip
    return found


def _sizes(path: Path) -> dict[str, int]:
    """Return the number of devices of each column, in ascending order; empty without a column of batch sizes."""
    header = header_of(path)
    if BATCH not in header:
        return {}
    names = [name for name in header if name != BATCH]
    sizes = {name: int(name) for name in names if is_plain(name) and name.isdigit() and len(name) < 10}
    wrong = [name for name in names if not 1 <= sizes.get(name, 0) <= MOST_DEVICES]
    if wrong or not sizes or len({*sizes.values()}) < len(names):
        raise fault(
            "a column is no number of devices", path, 1, field=short(wrong[0]) if wrong else "",
            need=f"{BATCH}, and numbers from 1 to {MOST_DEVICES}, each once", have=short(", ".join(names), 200),
        )  # fmt: skip
    return dict(sorted(sizes.items(), key=lambda item: item[1]))


def _curve(row: Row, sizes: dict[str, int]) -> Curve | None:
    """Return the curve of a row; None if nothing was profiled."""
    known = [(devices, rate) for name, devices in sizes.items() if (rate := _rate(row, name))]
    if not known:
        return None
    rates = [0.0] * (known[0][0] - 1) + [known[0][1]]
    for (fewer, slow), (more, fast) in pairwise(known):
        rates += [slow + (fast - slow) * (devices - fewer) / (more - fewer) for devices in range(fewer + 1, more + 1)]
    return Curve(rates=tuple(rates))


def _rate(row: Row, name: str) -> float:
    return 0.0 if row.text(name) in ("", "nan", "NaN") else row.number(name, most=1e9)
