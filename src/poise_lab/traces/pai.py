"""Alibaba's PAI trace, 2020: its tables, or the flat CSV of its simulator.

The flat file has one job per row: `job_id,user,num_gpu,num_cpu,submit_time,num_inst,duration`, and the run time that
was predicted from its group of jobs (`group_gpu_dur`). Devices and CPUs are per instance; the instances of a job are
placed together.

The tables have no header, and lie in a folder: `pai_job_table.csv` (`job_name,inst_id,user,status,start_time,end_time`)
and `pai_task_table.csv` (`job_name,task_name,inst_num,status,start_time,end_time,plan_cpu,plan_mem,plan_gpu,gpu_type`).
The submission of a job is its `start_time`. Each of its tasks becomes a job, with as many gang members as it has
instances. CPUs and devices are in percent, memory in GB. `pai_instance_table.csv`, the placement of instances, is not
needed.

Source: Weng et al., "MLaaS in the Wild", NSDI 2022; github.com/alibaba/clusterdata, cluster-trace-gpu-v2020.
"""

from pathlib import Path
from typing import NamedTuple

from poise.model.jobs import Outcome
from poise.model.resources import WHOLE, Wants
from poise.model.workload import Workload
from poise_lab.traces.making import Maker, Said, named
from poise_lab.traces.options import Options
from poise_lab.traces.rows import BadRow, Row, Tally, short, table

FLAT = ("job_id", "user", "num_gpu", "num_cpu", "submit_time", "num_inst", "duration")
JOBS = ("job_name", "inst_id", "user", "status", "start_time", "end_time")
TASKS = (
    "job_name", "task_name", "inst_num", "status", "start_time", "end_time", "plan_cpu", "plan_mem", "plan_gpu",
    "gpu_type",
)  # fmt: skip
JOB_TABLE, TASK_TABLE = "pai_job_table.csv", "pai_task_table.csv"
STATUSES: dict[str, Outcome] = {"Terminated": "done", "Failed": "failed"}
GUESSES = ("group_gpu_dur", "group_dur", "user_dur")
"""Columns with a predicted run time, the best first."""

GB = 2**30
MAX_INSTANCES = 10_000


class _Job(NamedTuple):
    submitted: float
    user: str


def recognises(path: Path) -> bool:
    """Return whether `path` is a folder with the tables of this trace."""
    return path.is_dir() and (path / JOB_TABLE).is_file()


def read(path: Path, options: Options) -> Workload:
    """Read a flat file or a folder of tables. Raises `SpecError` if `path` is neither."""
    maker = Maker("pai", path, options)
    if path.is_dir():
        _read_tables(path, maker, options)
    else:
        _read_flat(path, maker, options)
    return maker.workload()


def _read_flat(path: Path, maker: Maker, options: Options) -> None:
    for row in table(path, maker.tally, FLAT):
        try:
            gpus, share = _devices(row, "num_gpu", 1.0)
            if not gpus and not options.cpu_work:
                maker.tally.leave_out("no device is asked for")
                continue
            maker.add(
                Said(
                    at=row.number("submit_time"),
                    seconds=row.seconds("duration"),
                    tasks=row.whole("num_inst", least=1, most=MAX_INSTANCES),
                    gpus=gpus,
                    share=share,
                    cpu=round(row.number("num_cpu", most=1e5) * 1000),
                    kind=f"{row.text('group') or row.text('user')} x{row.text('num_gpu')}",
                    tenant=named(row.text("user")),
                    guess=_guess(row),
                )
            )
        except BadRow as why:
            maker.tally.bad(row.line, why)


def _guess(row: Row) -> float:
    for name in GUESSES:
        if row.text(name):
            return row.seconds(name)
    return 0.0


def _read_tables(folder: Path, maker: Maker, options: Options) -> None:
    """Read the tables. Each task becomes a job with its own run time, status and devices."""
    jobs = _jobs(folder / JOB_TABLE, Tally(folder / JOB_TABLE, strict=options.strict), maker)
    tally = Tally(folder / TASK_TABLE, strict=options.strict)
    for row in table(folder / TASK_TABLE, tally, TASKS, header=TASKS):
        try:
            if (said := _task(row, jobs, maker, options)) is not None:
                maker.add(said)
        except BadRow as why:
            tally.bad(row.line, why)
    for reason, count in tally.counts.items():
        maker.tally.leave_out(reason, count)


def _jobs(path: Path, tally: Tally, maker: Maker) -> dict[str, _Job]:
    """Return the submission and the user of each job, by name."""
    jobs: dict[str, _Job] = {}
    for row in table(path, tally, JOBS, header=JOBS):
        try:
            jobs[row.text("job_name")] = _Job(row.number("start_time"), row.text("user"))
        except BadRow as why:
            tally.bad(row.line, why)
    for reason, count in tally.counts.items():
        maker.tally.leave_out(f"of the jobs: {reason}", count)
    return jobs


def _task(row: Row, jobs: dict[str, _Job], maker: Maker, options: Options) -> Said | None:
    status = row.text("status")
    if status not in STATUSES:
        maker.tally.leave_out("it had not ended")
        return None
    job = jobs.get(row.text("job_name"))
    if job is None:
        raise BadRow(
            "the table of jobs does not know it", "job_name", f"a job of {JOB_TABLE}", short(row.text("job_name"))
        )
    started, ended = row.number("start_time"), row.number("end_time")
    if ended < started:
        raise BadRow("it ended before it started", "end_time", f"{started:g} or more", f"{ended:g}")
    gpus, share = _devices(row, "plan_gpu", 100.0) if row.text("plan_gpu") else (0, WHOLE)
    if not gpus and not options.cpu_work:
        maker.tally.leave_out("no device is asked for")
        return None
    return Said(
        at=job.submitted,
        seconds=ended - started,
        tasks=row.whole("inst_num", least=1, most=MAX_INSTANCES),
        gpus=gpus,
        share=share,
        cpu=round(row.number("plan_cpu", most=1e7) * 10) if row.text("plan_cpu") else 0,
        memory=round(row.number("plan_mem", most=1e6) * GB) if row.text("plan_mem") else 0,
        wants=_wants(row.text("gpu_type")),
        kind=f"{job.user} {row.text('task_name')}",
        tenant=named(job.user),
        outcome=STATUSES[status],
    )


def _devices(row: Row, name: str, whole: float) -> tuple[int, int]:
    """Return the number of devices, and the thousandths of each: a fraction below 1 is a shared device, larger amounts
    are rounded up to whole devices.
    """
    amount = row.number(name, most=1e5) / whole
    if amount >= 1 or not amount:
        return -int(-amount // 1), WHOLE
    return 1, max(1, round(amount * WHOLE))


def _wants(model: str) -> Wants:
    """Return the model constraint. `MISC` means any of several older models, and `CPU` means no device."""
    return Wants(models=(model,)) if model not in ("", "MISC", "CPU") else Wants()
