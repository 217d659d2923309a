"""Chronus's traces: two weeks of jobs, some with a deadline and the others best-effort.

Columns `job_id,user,num_gpu,submit_time,iterations,model_name,duration,interval,expect_time_list,expect_value_list,
best_effort,job_type`.

All times are in minutes. The artifact's scheduler takes the hour of the day from them so (`time_aware_with_lease.py`:
`cur_lease_index * lease_term_interval // 60 % 24`). Philly, where the jobs come from, confirms it: 23,005 of the 30,940
rows of `trace_job_Philly_MIX1` (74 %) agree with a Philly job in submission and run time, each within one minute, when
the trace begins on 2017-10-12 at 07:02. With the beginning a day, a week or 777 minutes off, 1 % to 3 % agree. The last
submission is at 20,151 (two weeks are 20,160 minutes); run times are from 20 to 4,317 (three days are 4,320 minutes).

`expect_time_list` is relative to the submission: the artifact adds `submit_time` to it. In each of the 21,724 strict
rows it is 1.1 to 5 run times, and in 20,483 of these it is less than `submit_time`, so it cannot be an instant. A
best-effort row repeats its `submit_time` there and has no deadline. A `soft` row has several (`159-189-229-289`) and
loses value after each; its deadline is the first, up to which it has its full value.

The artifact drew users and models at random, and `iterations` has no relation to the run time: `duration` is the run
time. The slowdown of a model that is spread over nodes (`model_info.json`) is not read.

Source: Gao et al., "Chronus", SoCC 2021; github.com/S-Lab-System-Group/ChronusArtifact, code/data/exp (MIT). Philly is
CC BY 4.0 (Jeon et al., ATC 2019).
"""

from pathlib import Path

from poise.model.workload import Workload
from poise_lab.traces.making import Maker, Said, named
from poise_lab.traces.options import Options
from poise_lab.traces.rows import BadRow, Row, number, short, table

COLUMNS = ("user", "num_gpu", "submit_time", "model_name", "duration", "expect_time_list", "best_effort")
RECOGNISED = (*COLUMNS, "expect_value_list", "job_type")

MINUTE = 60.0
"""Seconds per minute."""


def read(path: Path, options: Options) -> Workload:
    """Read a trace. Raises `SpecError` if the file has another format."""
    maker = Maker("chronus", path, options)
    for row in table(path, maker.tally, COLUMNS):
        try:
            devices = row.devices("num_gpu", least=0)
            if not devices and not options.cpu_work:  # the artifact leaves these out too
                maker.tally.leave_out("no device is asked for")
                continue
            maker.add(_said(row, devices, maker))
        except BadRow as why:
            maker.tally.bad(row.line, why)
    return maker.workload()


def _said(row: Row, devices: int, maker: Maker) -> Said:
    tasks, gpus = maker.gang(devices) if devices else (1, 0)
    return Said(
        at=row.number("submit_time") * MINUTE,
        seconds=row.seconds("duration", MINUTE),
        tasks=tasks,
        gpus=gpus,
        kind=f"{row.text('model_name')} x{devices}",
        tenant=named(row.text("user")),
        deadline=_deadline(row),
    )


def _deadline(row: Row) -> float:
    """Return the seconds from submission to deadline; 0 without a deadline."""
    best_effort = row.text("best_effort")
    if best_effort not in ("0", "1"):
        raise BadRow("`best_effort` is neither 0 nor 1", "best_effort", "0 or 1", short(best_effort))
    if best_effort == "1":
        return 0.0
    minutes = number(row.text("expect_time_list").partition("-")[0], "expect_time_list")
    if not minutes:
        raise BadRow("the deadline is before the submission", "expect_time_list", "above 0", "0")
    return minutes * MINUTE
