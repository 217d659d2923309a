"""Read SenseTime's Helios trace, 2020: the `cluster_log.csv` of one cluster.

Columns `job_id,user,vc,gpu_num,cpu_num,node_num,state,submit_time,start_time,end_time,duration,queue`. A job that did
not complete fails after the same run time. The purpose of a job is unknown, so its class is its user and its size.

Source: Hu et al., SC 2021; github.com/S-Lab-System-Group/HeliosData.
"""

from pathlib import Path

from poise.model.jobs import Outcome
from poise.model.workload import Workload
from poise_lab.traces.making import Maker, Said, named
from poise_lab.traces.options import Options
from poise_lab.traces.rows import BadRow, Row, short, table

COLUMNS = ("user", "vc", "gpu_num", "cpu_num", "node_num", "state", "submit_time", "duration")

OUTCOMES: dict[str, Outcome] = {
    "COMPLETED": "done",
    "FAILED": "failed",
    "CANCELLED": "failed",
    "TIMEOUT": "failed",
    "NODE_FAIL": "failed",
}
"""Outcomes by state. An incomplete job still ends, and is not retried."""


def read(path: Path, options: Options) -> Workload:
    """Read a trace. Raises `SpecError` if the file has another format."""
    maker = Maker("helios", path, options)
    for row in table(path, maker.tally, COLUMNS):
        try:
            devices = row.devices("gpu_num", least=0)
            if not devices and not options.cpu_work:
                maker.tally.leave_out("no device is asked for")
                continue
            maker.add(_said(row, devices, maker))
        except BadRow as why:
            maker.tally.bad(row.line, why)
    return maker.workload()


def _said(row: Row, devices: int, maker: Maker) -> Said:
    state = row.text("state")
    if state not in OUTCOMES:
        raise BadRow("the state is not known", "state", ", ".join(OUTCOMES), short(state))
    tasks, gpus = maker.gang(devices)
    if not devices:
        tasks = row.whole("node_num", least=1, most=10_000)
    return Said(
        at=row.instant("submit_time"),
        seconds=row.seconds("duration"),
        tasks=tasks,
        gpus=gpus,
        cpu=0 if devices else max(1, row.whole("cpu_num", most=10**7) * 1000 // tasks),
        kind=f"{row.text('user')} x{devices}",
        tenant=named(row.text("vc")),
        outcome=OUTCOMES[state],
    )
