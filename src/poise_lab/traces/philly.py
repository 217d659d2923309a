"""Read Microsoft's Philly trace, 2017, as one flat CSV: `timestamp,duration,num_gpus,gpu_time,cluster`.

This is the table that adaptdl and others derived from the trace of Jeon et al. (USENIX ATC 2019; CC BY 4.0,
github.com/msr-fiddle/philly-traces). Local times are used unchanged. The purpose of a job is unknown, so its tenant is
its virtual cluster, and its class is its size.
"""

from pathlib import Path

from poise.model.workload import Workload
from poise_lab.traces.making import Maker, Said, named
from poise_lab.traces.options import Options
from poise_lab.traces.rows import BadRow, table

COLUMNS = ("timestamp", "duration", "num_gpus")
RECOGNISED = (*COLUMNS, "gpu_time", "cluster")


def read(path: Path, options: Options) -> Workload:
    """Read a trace. Raises `SpecError` if the file has another format."""
    maker = Maker("philly", path, options)
    for row in table(path, maker.tally, COLUMNS):
        try:
            devices = row.devices("num_gpus")
            tasks, gpus = maker.gang(devices)
            tenant = named(row.text("cluster"))
            maker.add(
                Said(
                    at=row.instant("timestamp"),
                    seconds=row.seconds("duration"),
                    tasks=tasks,
                    gpus=gpus,
                    kind=f"job x{devices}",
                    tenant=tenant,
                )
            )
        except BadRow as why:
            maker.tally.bad(row.line, why)
    return maker.workload()
