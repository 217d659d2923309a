"""Read ElasticFlow's traces: jobs with iterations of a model and a deadline.

Microsoft's own files, of ten clusters in 2021, have the columns `job_id,submission_time,num_iteration,model_name,
deadline,batch_size,num_gpu,duration`. Those of the artifact have `job_id,submit_time,iteration,model_name,ddl,
batch_size,num_gpu,duration`. Times are in seconds. The deadline is an instant on the clock of the submission: in
clusters 01 to 03 every job is due 0.5 to 1.5 run times after its submission. `duration` is the run time on `num_gpu`
devices: in each of their 10,384 rows it equals the iterations over the rate in throughputs_A100, to within a second.

Jobs are gangs of the size in the trace. With `elastic` and the tables of rates (`curves.py`), a job whose model and
batch size have a rate there has one task per device. It runs with any number of devices, from the smallest profiled
number to the fastest one. With n devices it takes `duration * rate(num_gpu) / rate(n)`, and it reports these speeds
when it first runs.

Sources: Gu et al., ASPLOS 2023; github.com/microsoft/elasticflow-traces (MIT) and github.com/pkusys/ElasticFlow,
ElasticFlow/traces_for_ElasticFlow.
"""

from pathlib import Path
from typing import NamedTuple

from poise.errors import SpecError
from poise.model.workload import Steady, Workload
from poise_lab.traces.curves import Curve, Curves, read_curves
from poise_lab.traces.making import Maker, Said
from poise_lab.traces.options import Options
from poise_lab.traces.rows import BadRow, Row, header_of, table

COLUMNS = ("submit_time", "iteration", "model_name", "ddl", "batch_size", "num_gpu", "duration")
MICROSOFT = ("submission_time", "num_iteration", "model_name", "deadline", "batch_size", "num_gpu", "duration")

NOT_PROFILED = "the tables have no rate of their model, batch size and number of devices"


class _Times(NamedTuple):
    """Column names of the submission and of the deadline."""

    submitted: str
    due: str


def read(path: Path, options: Options) -> Workload:
    """Read a trace. Raises `SpecError` if the file has another format, or if elastic jobs have no tables."""
    maker = Maker("elasticflow", path, options)
    columns = MICROSOFT if set(MICROSOFT) <= set(header_of(path)) else COLUMNS
    times = _Times(columns[0], columns[3])
    curves = _curves(options)
    jobs = fixed = 0
    for row in table(path, maker.tally, columns):
        try:
            curve = _curve(row, curves)
            maker.add(_gang(row, times, maker) if curve is None else _elastic(row, times, curve))
            jobs, fixed = jobs + 1, fixed + (curve is None)
        except BadRow as why:
            maker.tally.bad(row.line, why)
    if options.elastic and fixed:
        maker.notes.append(f"{fixed:,} of {jobs:,} jobs of the trace stay gangs: {NOT_PROFILED}")
    return maker.workload()


def _curves(options: Options) -> Curves:
    if not options.elastic:
        return {}
    if options.throughputs is None:
        raise SpecError(
            "elastic jobs need their rates by number of devices", code="E103", field="throughputs",
            need="a folder with MODEL.csv for each model", have="none", hint="`--elastic --throughputs FOLDER`",
        )  # fmt: skip
    return read_curves(options.throughputs)


def _curve(row: Row, curves: Curves) -> Curve | None:
    """Return the scaling of a job; None if the tables have no rate for its number of devices."""
    curve = curves.get((row.text("model_name"), _batch(row)))
    return curve if curve is not None and curve.rate(row.devices("num_gpu")) else None


def _batch(row: Row) -> int:
    return row.whole("batch_size", most=10**9)


def _gang(row: Row, times: _Times, maker: Maker) -> Said:
    devices = row.devices("num_gpu")
    tasks, gpus = maker.gang(devices)
    at, deadline = _due(row, times)
    return Said(
        at=at,
        seconds=row.seconds("duration"),
        tasks=tasks,
        gpus=gpus,
        kind=f"{row.text('model_name')} (batch size {_batch(row)}) x{devices}",
        deadline=deadline,
    )


def _elastic(row: Row, times: _Times, curve: Curve) -> Said:
    at, deadline = _due(row, times)
    seconds = row.seconds("duration") * curve.rate(row.devices("num_gpu")) / curve.rate(curve.least)
    scales = curve.least < curve.most
    return Said(
        at=at,
        seconds=seconds,
        tasks=curve.most,
        least=curve.least if scales else 0,
        gpus=1,
        kind=f"{row.text('model_name')} (batch size {_batch(row)})",
        pace=Steady(seconds, curve.least, scaling=curve),
        telling=curve if scales else None,
        deadline=deadline,
    )


def _due(row: Row, times: _Times) -> tuple[float, float]:
    """Return the submission, and the seconds from there to the deadline."""
    submitted, due = row.number(times.submitted), row.number(times.due)
    if due <= submitted:
        raise BadRow("the deadline is before the submission", times.due, f"above {submitted:g}", f"{due:g}")
    return submitted, due - submitted
