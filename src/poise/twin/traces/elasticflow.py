"""ElasticFlow's traces: jobs of iterations of a model, each with a deadline.

Columns `job_id,submit_time,iteration,model_name,ddl,batch_size,num_gpu,duration`, times in seconds; `duration` is the
run time on `num_gpu` devices, `ddl` an instant. Jobs have the devices that the trace gives them: that they could do
with fewer or more of them (its throughputs_*/ tables) is not read.

Source: Gu et al., ASPLOS 2023; github.com/pkusys/ElasticFlow, ElasticFlow/traces_for_ElasticFlow.
"""

from pathlib import Path

from poise.model.workload import Workload
from poise.twin.traces.making import Maker, Said
from poise.twin.traces.options import Options
from poise.twin.traces.rows import BadRow, table

COLUMNS = ("submit_time", "iteration", "model_name", "ddl", "batch_size", "num_gpu", "duration")


def read(path: Path, options: Options) -> Workload:
    """Raises `SpecError` for what is no such file."""
    maker = Maker("elasticflow", path, options)
    for row in table(path, maker.tally, COLUMNS):
        try:
            devices, submitted, due = row.devices("num_gpu"), row.number("submit_time"), row.number("ddl")
            if due <= submitted:
                raise BadRow("the deadline is before the submission", "ddl", f"above {submitted:g}", f"{due:g}")
            tasks, gpus = maker.gang(devices)
            maker.add(
                Said(
                    at=submitted,
                    seconds=row.seconds("duration"),
                    tasks=tasks,
                    gpus=gpus,
                    kind=f"{row.text('model_name')} (batch size {row.whole('batch_size')}) x{devices}",
                    deadline=due - submitted,
                )
            )
        except BadRow as why:
            maker.tally.bad(row.line, why)
    return maker.workload()
