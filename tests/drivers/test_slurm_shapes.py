"""Which allocations are asked for, by what waits and what there is; and how Slurm's answers are read."""

import pytest

from poise.errors import InputError
from poise.model.reports.demand import Demand
from poise.units import HOUR, MINUTE, SECOND
from poise_slurm.commands import Job, Kind, Turns, parse_job, parse_kind
from poise_slurm.pilot import devices_in, memory_in
from poise_slurm.settings import Settings, parse_settings
from poise_slurm.shapes import Shape, Standing, wanted

MAIN = Kind("main", limit=86400, nodes=100, idle=0, cpus=16, memory=64 * 1024, gpus=0)
SHORT = MAIN._replace(partition="short", limit=1800)
GPU = MAIN._replace(partition="gpu", gpus=4)
SETTINGS = Settings()


def demand(tasks: int, run: int, *, together: int = 1, cpu: int = 1000, gpus: int = 0, longest: int = 0) -> Demand:
    return Demand(
        tasks=tasks,
        together=together,
        cpu=cpu,
        memory=0,
        gpus=gpus,
        where="",
        work=tasks * run,
        longest=longest or run * 2,
        unknown=0 if run else tasks,
    )


def ask(
    work: Demand, *standing: Standing, kinds: tuple[Kind, ...] = (MAIN,), settings: Settings = SETTINGS
) -> list[Shape]:
    return wanted([work], kinds, standing, settings)[0]


def test_a_brief_task_gets_the_smallest_and_shortest_allocation() -> None:
    [shape] = ask(demand(1, SECOND))
    assert (shape.nodes, shape.cpus, shape.minutes) == (1, 1, 10)


def test_many_brief_tasks_get_no_more_nodes_than_there_is_work_for() -> None:
    shapes = ask(demand(10_000, SECOND))
    assert len(shapes) == 3, "10,000 s of work on 16 CPUs each are about 200 s on three nodes"
    assert {(shape.nodes, shape.cpus) for shape in shapes} == {(1, 16)}


def test_brief_tasks_of_many_classes_share_an_allocation() -> None:
    work = [demand(1, SECOND) for _ in range(10)]
    shapes, refused = wanted(work, [MAIN], [], SETTINGS)
    assert ([shape.cpus for shape in shapes], refused) == ([10], [])


def test_idle_nodes_are_used_for_less_work() -> None:
    idle = MAIN._replace(idle=5)
    assert len(ask(demand(1000, SECOND))) == 1
    assert len(ask(demand(400, SECOND), kinds=(idle,))) == 3
    assert len(ask(demand(10_000, SECOND), kinds=(idle,))) == 5


def test_long_tasks_get_as_many_nodes_as_they_can_use_up_to_the_bound() -> None:
    shapes = ask(demand(1000, HOUR))
    assert len(shapes) == SETTINGS.nodes
    assert all(shape.minutes > 120 for shape in shapes), "what nearly all stay under fits at least once"


def test_what_is_there_counts_unless_it_is_busy_or_ends_too_soon() -> None:
    work = demand(1, 10 * MINUTE)
    [shape] = ask(work)
    assert ask(work, Standing(shape, 3600)) == []
    assert ask(work, Standing(shape, 3600, busy=1800)) == [shape]
    assert ask(work, Standing(shape, 1200)) == [shape], "20 minutes for the task, and one to drain"


def test_a_gang_gets_all_its_nodes_in_one_allocation() -> None:
    [shape] = ask(demand(4, MINUTE, together=4, cpu=16_000))
    assert shape.nodes == 4
    assert ask(demand(4, MINUTE, together=4, cpu=16_000), settings=Settings(nodes=3)) == []


def test_the_partition_is_one_with_idle_nodes_else_the_one_of_short_jobs_where_the_task_fits() -> None:
    kinds = (MAIN, SHORT)
    assert ask(demand(1, MINUTE), kinds=kinds)[0].partition == "short"
    assert ask(demand(1, HOUR), kinds=kinds)[0].partition == "main"
    assert ask(demand(1, MINUTE), kinds=(MAIN._replace(idle=2), SHORT))[0].partition == "main"
    only = Settings(partitions=("main",))
    assert ask(demand(1, MINUTE), kinds=kinds, settings=only)[0].partition == "main"


def test_gpus_are_asked_for_where_they_are() -> None:
    [shape] = ask(demand(2, MINUTE, gpus=2), kinds=(MAIN, GPU))
    assert (shape.partition, shape.gpus) == ("gpu", 4)


@pytest.mark.parametrize(
    ("work", "why"),
    [
        (demand(1, MINUTE, cpu=32_000), "no partition has such nodes: 32 CPU"),
        (demand(1, 48 * HOUR), "allocations last 86400 s at most"),
        (demand(1, MINUTE, gpus=1), "1 GPU"),
        (demand(9, MINUTE, together=9, cpu=16_000), "`nodes=8` is too few"),
    ],
)
def test_work_that_no_allocation_can_hold_is_named_with_the_reason(work: Demand, why: str) -> None:
    shapes, [refused] = wanted([work], [MAIN], [], SETTINGS)
    assert shapes == []
    assert why in refused.why


def test_no_allocation_is_longer_than_its_partition_and_the_setting_allow() -> None:
    assert ask(demand(1000, HOUR), kinds=(MAIN._replace(limit=3 * 3600),))[0].minutes == 180
    assert ask(demand(100, MINUTE), settings=Settings(time=1200, nodes=1))[0].minutes <= 20


def test_lines_of_squeue_are_read_and_those_of_other_jobs_are_left_out() -> None:
    line = "17|RUNNING|1-02:03:04|1795836312|main|None|poise:abc"
    assert parse_job(line) == Job("17", "abc", "RUNNING", 93784, 1795836312, "main", "None")
    waits = parse_job("18|PENDING|10:00|N/A|main|Resources|poise:abc")
    assert waits is not None
    assert (waits.left, waits.start, waits.reason) == (0, 0, "Resources")
    assert parse_job("19|RUNNING|10:00|1|main|None|theirs") is None
    assert parse_job("20|COMPLETING|10:00|1|main|None|poise:abc") is None


def test_lines_of_sinfo_are_read() -> None:
    line = "gpu|up|1-00:00:00|12|64+|256000+|gpu:a100:4(S:0-1),nic:2|8/4"
    assert parse_kind(line) == Kind("gpu", 86400, 12, 4, 64, 256000, 4)
    endless = parse_kind("main|up|infinite|1|2|1|(null)|0/1")
    assert endless is not None
    assert (endless.gpus, endless.memory) == (0, 1)
    assert parse_kind("main|drain|infinite|1|2|1|(null)|0/1") is None


def test_where_a_site_counts_no_memory_none_is_asked_for() -> None:
    assert ask(demand(1, SECOND), kinds=(MAIN._replace(memory=1),))[0].memory == 0


def test_devices_are_those_that_slurm_names_and_never_those_from_0_on() -> None:
    assert devices_in({"CUDA_VISIBLE_DEVICES": "2,3", "SLURM_JOB_GPUS": "6,7"}) == ("2", "3")
    assert devices_in({"CUDA_VISIBLE_DEVICES": "GPU-1a,MIG-2b"}) == ("GPU-1a", "MIG-2b")
    assert devices_in({"SLURM_JOB_GPUS": "1-2,5"}) == ("1", "2", "5")
    assert devices_in({"CUDA_VISIBLE_DEVICES": "NoDevFiles"}) == ()
    assert devices_in({}) == ()


def test_memory_is_that_of_the_allocation() -> None:
    assert memory_in({"SLURM_MEM_PER_NODE": "4096"}, 2) == 4096
    assert memory_in({"SLURM_MEM_PER_CPU": "1024"}, 2) == 2048
    assert memory_in({}, 2) == 0


def test_slurm_is_asked_at_most_two_times_in_any_minute() -> None:
    clock = [0.0]
    turns = Turns(lambda: clock[0])
    taken = []
    for second in range(600):
        clock[0] = float(second)
        if turns.take():
            taken.append(second)
    assert taken[:4] == [0, 1, 60, 90]
    assert all(sum(start <= at < start + 60 for at in taken) <= 2 for start in range(600))
    assert len(taken) == 20


def test_settings_are_partitions_and_named_values() -> None:
    assert parse_settings("") == Settings()
    told = parse_settings("gpu,short,nodes=4,time=2h,account=physics")
    assert told == Settings(("gpu", "short"), nodes=4, time=7200, options=("--account=physics",))


@pytest.mark.parametrize(
    ("argument", "problem", "hint"),
    [
        ("nods=4", "no setting `nods`", "nodes"),
        ("nodes=many", "a number from 1", "nodes=8"),
        ("time=soon", "time", "time=10m"),
        ("gpu;rm", "no name of a partition", "slurm:"),
        ("account=a b", "no value of `account`", "account"),
    ],
)
def test_settings_that_cannot_be_are_refused(argument: str, problem: str, hint: str) -> None:
    with pytest.raises(InputError) as refused:
        parse_settings(argument)
    assert problem in str(refused.value)
    assert hint in refused.value.record.hint
