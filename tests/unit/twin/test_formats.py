"""Formats of which no whole trace is small: excerpts, each with where it is from."""

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import msgspec
import pytest

from poise.drivers.logfile import write_log
from poise.engine.futures import UNCHANGED
from poise.engine.twin import Twin
from poise.errors import SpecError
from poise.kernel.controller import Settings
from poise.kernel.messages import ChangeJob, HoldJob, Message
from poise.model.events import encode_event
from poise.model.jobs import Priority, Task, Unit
from poise.model.resources import Device, Node, Shape
from poise.model.spec import compile_spec
from poise.model.workload import APART, Arrival, Pace, Seats, Steady, Truth, Workload
from poise.policy.suites import policy_named
from poise.ports import StoredCheckpoint
from poise.units import SECOND
from poise_lab.compare import Asked, compare
from poise_lab.traces.formats import FORMATS, format_of, read_trace
from poise_lab.traces.options import Options
from poise_lab.traces.shockwave import Phases, batches
from poise_lab.trial import simulate
from poise_lab.what_if import recorded_in, replay_changed

HELIOS = """\
job_id,user,vc,gpu_num,cpu_num,node_num,state,submit_time,start_time,end_time,duration,queue
1425511,uXBbc,vcJkd,1,1,1,COMPLETED,2020-06-09 18:41:01,2020-06-09 18:41:01,2020-06-10 04:55:09,36848,0
1425512,uVMrF,vchbv,4,16,1,FAILED,2020-06-09 18:41:27,2020-06-09 18:41:27,2020-06-09 18:45:36,249,0
1425513,uzqls,vcpDC,1,1,1,CANCELLED,2020-06-09 18:41:28,2020-06-09 18:41:28,2020-06-17 14:15:21,675233,0
"""
"""The example of github.com/S-Lab-System-Group/HeliosData @ 106713b, README.md (for academic purposes)."""

PAI_FLAT = """\
job_id,user,num_gpu,num_cpu,submit_time,num_inst,duration,group_gpu_dur
1,ae8ed1,0.5,6,100,1,38,40
2,58540f,2,8,160,3,2553,
3,58540f,0,4,161,1,10,
"""
"""The columns that cluster-trace-gpu-v2020/simulator/utils.py reads (github.com/alibaba/clusterdata @ 8a7216f); rows
are ours, for its traces/ folder is not in the repository."""

PAI_JOBS = """\
4b3f04b66a525d2df903eb16,8cb3bec23d14dbde320b6613452e768cbbf35b8bd64ee28fcceb77d3c47d,58540f191766,Terminated,4550879.0,4551416.0
4f057009a5d481acec67b088,8cb3bec23d14,58540f191766,Terminated,1739100.0,1739200.0
"""
PAI_TASKS = """\
4f057009a5d481acec67b088,tensorflow,1.0,Terminated,1739162.0,1739200.0,600.0,29.296875,50.0,MISC
4f057009a5d481acec67b088,ps,1.0,Terminated,1739162.0,1739200.0,400.0,10.0,,CPU
4b3f04b66a525d2df903eb16,worker,2.0,Failed,4550900.0,4551400.0,600.0,29.296875,200.0,V100
4b3f04b66a525d2df903eb16,evaluator,2.0,Running,4550900.0,,600.0,29.296875,200.0,V100
nowhere,worker,2.0,Failed,4550900.0,4551400.0,600.0,29.296875,200.0,V100
"""
"""The example entries of cluster-trace-gpu-v2020/README.md @ 02a1be1 (first rows), and what goes with them (ours)."""

ELASTICFLOW = """\
job_id,submit_time,iteration,model_name,ddl,batch_size,num_gpu,duration
0,3715485,2011,cifar10,3719996,4096,1,5644
1,3717550,1548,ncf,3717583,32768,8,66
138,3821474,14577,yolov3,3832082,64,16,17119
"""
"""Three rows of github.com/pkusys/ElasticFlow @ ce1bf52, ElasticFlow/traces_for_ElasticFlow/elasticVpollux_e.csv (no
licence is stated there)."""

AZURE = """\
TIMESTAMP,ContextTokens,GeneratedTokens
2023-11-16 18:15:46.6805900,374,44
2023-11-16 18:15:50.9951690,396,109
"""
"""github.com/Azure/AzurePublicDataset, data/AzureLLMInferenceTrace_conv.csv (CC BY 4.0)."""

BURSTGPT = """\
Timestamp,Model,Request tokens,Response tokens,Total tokens,Log Type
5,ChatGPT,472,18,490,Conversation log
45,ChatGPT,1087,230,1317,Conversation log
118,GPT-4,417,0,417,Conversation log
"""
"""github.com/HPMLL/BurstGPT, data/BurstGPT_1.csv; the failure of the last is ours."""

MOONCAKE = """\
{"timestamp": 0, "input_length": 8192, "output_length": 0, "hash_ids": [46, 47]}
{"timestamp": 10535, "input_length": 672, "output_length": 52, "hash_ids": [46, 47]}
"""
"""In the form of github.com/kvcache-ai/Mooncake, FAST25-release/traces/*.jsonl (Apache-2.0); figures are ours."""

SHOCKWAVE = [
    "LM (batch size 10)\tmain.py\tlanguage_modeling\t--steps\t1\t134583\t1\tgns\t1\t-1.000000\t1418\t0",
    "ResNet-18 (batch size 32)\tmain.py\timage_classification\t--num_steps\t1\t143450\t1\taccordion\t1\t-1\t3338\t55",
    "ResNet-50 (batch size 64)\tmain.py\timage_classification\t--steps\t1\t41840\t1\tstatic\t1\t-1.000000\t13462\t64",
]
"""github.com/uw-mad-dash/shockwave @ 8a44f4a, scheduler/traces/shockwave/120_*_dynamic.trace (MIT); commands are
shortened, and the mode of the last is ours."""

RATES: dict[str, Any] = {
    "v100": {
        **{f"('LM (batch size {size})', 1)": {"null": 100.0} for size in (10, 20, 40, 80)},
        **{f"('ResNet-18 (batch size {size})', 1)": {"null": 50.0} for size in (32, 256)},
        "('ResNet-50 (batch size 64)', 1)": {"null": 4.0},
    },
    "k80": {"('LM (batch size 10)', 1)": {"null": 10.0}, "('ResNet-50 (batch size 64)', 1)": {"null": 2.0}},
}

ORACLE = Options(information="oracle")


def write(tmp_path: Path, content: str, name: str = "trace") -> Path:
    path = tmp_path / name
    path.write_text(content)
    return path


def pace(arrival: Arrival) -> Pace:
    return arrival.truths["main"].pace


def seconds(read: Workload, model: str = "") -> list[float]:
    return [pace(one).left(0.0, Seats((model,) * len(one.units[0].tasks))) for one in read.arrivals]


def test_helios(tmp_path: Path) -> None:
    read = read_trace(write(tmp_path, HELIOS), ORACLE)
    assert read.name == "helios"
    assert [arrival.at / SECOND for arrival in read.arrivals] == [0, 26, 27]
    assert seconds(read) == [36848, 249, 675233]
    assert [arrival.truths["main"].outcome for arrival in read.arrivals] == ["done", "failed", "failed"]
    assert [arrival.tenant for arrival in read.arrivals] == ["vcJkd", "vchbv", "vcpDC"]


def test_work_without_a_device_is_left_out_unless_it_is_wanted(tmp_path: Path) -> None:
    path = write(tmp_path, HELIOS.replace("vchbv,4,16,1", "vchbv,0,16,2"))
    assert read_trace(path).skipped == {"no device is asked for": 1}
    assert len(read_trace(path, Options(strict=True)).arrivals) == 2  # there is nothing wrong with it
    unit = read_trace(path, Options(cpu_work=True)).arrivals[1].units[0]
    assert (len(unit.tasks), unit.shape.gpus, unit.shape.cpu) == (2, 0, 8000)


def test_pai_of_its_simulator(tmp_path: Path) -> None:
    read = read_trace(write(tmp_path, PAI_FLAT))
    shared, gang = (arrival.units[0] for arrival in read.arrivals)
    assert (shared.shape.gpus, shared.shape.share, shared.shape.cpu) == (1, 500, 6000)
    assert (len(gang.tasks), gang.shape.gpus) == (3, 2)
    assert shared.expect == 40 * SECOND  # what the trace itself foresaw
    assert seconds(read) == [38, 2553]


def test_pai_of_its_tables(tmp_path: Path) -> None:
    write(tmp_path, PAI_JOBS, "pai_job_table.csv")
    write(tmp_path, PAI_TASKS, "pai_task_table.csv")
    read = read_trace(tmp_path, ORACLE)
    first, second = read.arrivals
    assert seconds(read) == [38, 500]
    assert second.at == (4550879 - 1739100) * SECOND
    assert (first.units[0].shape.share, first.units[0].shape.wants.models) == (500, ())
    assert (len(second.units[0].tasks), second.units[0].shape.gpus) == (2, 2)
    assert second.units[0].shape.wants.models == ("V100",)
    assert second.truths["main"].outcome == "failed"
    assert read.skipped == {
        "no device is asked for": 1,
        "it had not ended": 1,
        "the table of jobs does not know it": 1,
    }
    (tmp_path / "pai_task_table.csv").unlink()
    with pytest.raises(Exception, match="this trace does not exist"):
        read_trace(tmp_path)


def test_elasticflow_has_deadlines(tmp_path: Path) -> None:
    read = read_trace(write(tmp_path, ELASTICFLOW), ORACLE)
    units = [arrival.units[0] for arrival in read.arrivals]
    assert [unit.deadline // SECOND for unit in units] == [4511, 33, 10608]
    assert [len(unit.tasks) * unit.shape.gpus for unit in units] == [1, 8, 16]
    assert units[0].kind == "cifar10 (batch size 4096) x1"
    assert seconds(read) == [5644, 66, 17119]


def test_requests_are_brief_work(tmp_path: Path) -> None:
    read = read_trace(write(tmp_path, AZURE), ORACLE)
    assert read.name == "azure"
    assert read.arrivals[1].at == pytest.approx(4.314579 * SECOND, abs=1000)
    assert seconds(read, "H100")[0] == pytest.approx(374 * 1.04e-4 + 44 * 0.0298)
    assert seconds(read, "A100-80")[0] == pytest.approx(374 * 1.89e-4 + 44 * 0.0449)
    assert read.arrivals[0].units[0].shape.share == 100
    read = read_trace(write(tmp_path, BURSTGPT), ORACLE)
    assert (read.name, read.skipped) == ("burstgpt", {"the request failed": 1})
    assert [arrival.at / SECOND for arrival in read.arrivals] == [0, 40]
    read = read_trace(write(tmp_path, MOONCAKE), ORACLE)
    assert read.name == "mooncake"
    assert read.arrivals[1].at == 10.535 * SECOND
    assert seconds(read, "H100")[0] == pytest.approx(0.852, abs=0.001)
    mended = write(tmp_path, "arrival_ms,input_tokens,output_tokens,prefix_block_ids\n0,40160,6,0 1 2\n7,1,1,3\n")
    assert [arrival.at for arrival in read_trace(mended).arrivals] == [0, 7_000_000]


# --- Shockwave -------------------------------------------------------------------------------------------------------


def test_shockwave_grows_its_batches(tmp_path: Path) -> None:
    (tmp_path / "tacc_throughputs.json").write_text(json.dumps(RATES))
    read = read_trace(write(tmp_path, "".join(f"{line}\n" for line in SHOCKWAVE)), ORACLE)
    assert read.name == "shockwave"
    grown, accordion, static = seconds(read, "V100")
    # 134,583 steps of 10 are 22.55 epochs of 59,675: 11 at 10, 10 at 20, one at 40, and what is left of one at 10.
    epoch, left = 59675 / 10 / 100, 134583 / 5968 - 22
    assert grown == pytest.approx(epoch * (11 + 10 / 2 + 1 / 4 + left))
    # 91.78 epochs: 28 (the first three tenths) at 32, the others at 256.
    assert accordion == pytest.approx(50000 / 32 / 50 * (28 + (143450 / 1563 - 28) / 8))
    assert static == pytest.approx(41840 / 1563 * 100000 / 64 / 4)
    assert read.arrivals[0].units[0].shape.wants.models == ("V100",)  # no larger batch is known of the other
    assert seconds(read, "K80")[2] == pytest.approx(2 * static)


def test_phases_go_on_where_they_were() -> None:
    pace = Phases((0.5, 0.75, 1.0), {"a": (10.0, 20.0, 40.0), "b": (20.0, 20.0, 20.0)})
    one, both = Seats(("a",)), Seats(("a", "b"), 2, APART)
    assert (pace.left(0.0, one), pace.left(0.0, both)) == (70.0, 80.0)
    assert pace.reached(0.0, one, 20.0) == 0.625
    progress = 0.0
    for _ in range(70):
        progress = pace.reached(progress, one, 1.0)
    assert progress == pytest.approx(1.0)
    assert pace.left(pace.reached(0.2, both, 33.0), both) == pytest.approx(pace.left(0.2, both) - 33.0)


def test_batches_by_epoch() -> None:
    assert batches("gns", "ResNet-18", 128, 1, 13.2)[9:] == [128, 128, 256, 256, 256]
    assert batches("gns", "Transformer", 16, 1, 40) == [16] * 40
    assert set(batches("gns", "LM", 5, 1, 200)) == {5, 10, 20, 40, 80}
    assert batches("accordion", "Recommendation", 512, 1, 62)[28:] == [512] * 2 + [8192] * 30 + [512] * 2


# --- Poise's own log -------------------------------------------------------------------------------------------------


def node(name: str, model: str) -> Node:
    device = Device(index=0, memory=2**34, uuid=name, model=model)
    return Node(name=name, incarnation="1", cpu=2**20, memory=2**40, devices=(device,))


def logged(
    tmp_path: Path,
    arrivals: list[Arrival],
    until: float = 0,
    speeds: dict[str, float] | None = None,
    asked: Sequence[tuple[float, Callable[[int], Message]]] = (),
) -> Path:
    """The log of a control plane that was given this, and `asked` something at some instants."""
    events: list[bytes] = []
    settings = Settings(throughputs=speeds or {})
    twin = Twin(policy_named("fifo"), settings, observe=lambda event: events.append(encode_event(event)))
    twin.add_nodes([node("n1", "V100"), node("n2", "K80")])
    for arrival in arrivals:
        twin.arrive(arrival)
    for at, make in asked:
        twin.ask(make, round(at * SECOND))
    twin.run(round(until * SECOND) or None)
    path = tmp_path / "recorded"
    write_log(path, events, start=None, written_by="test")
    return path


def arrival(at: float, length: float, kind: str, **truth: Any) -> Arrival:
    unit = Unit(name="main", tasks=(Task(name="main", argv=("work",)),), shape=Shape(gpus=1), kind=kind, expect=SECOND)
    pace = Steady(length, 1, {"V100": 1.0, "K80": 0.25})
    return Arrival(at=round(at * SECOND), units=(unit,), truths={"main": Truth(pace=pace, **truth)})


def test_a_log_of_ones_own(tmp_path: Path) -> None:
    """Two at a time, one on each model; the third takes the device that is free first."""
    path = logged(tmp_path, [arrival(0, 10, "a"), arrival(1, 10, "a"), arrival(2, 8, "b", outcome="failed")])
    read = read_trace(path, ORACLE)
    assert read.name == "poise"
    assert [one.at for one in read.arrivals] == [0, SECOND, 2 * SECOND]
    assert seconds(read, "V100") == [10, 10, 8]
    assert seconds(read, "K80") == [40, 40, 8]  # of the last nothing is known on another model
    assert [one.truths["main"].outcome for one in read.arrivals] == ["done", "done", "failed"]
    assert read_trace(path).arrivals[0].units[0].expect == SECOND  # what its user said
    again = simulate(read, [node("n1", "V100"), node("n2", "K80")], policy_named("fifo"))
    assert [job.ended / SECOND for job in again.jobs] == [10, 41, 18]
    assert compare(Asked(trace=path, fleet=None), ["fifo"]).notes == (
        "nothing tells how fast 1 of 3 jobs are on K80: taken for as fast as on the fastest device",
    )


def test_run_times_of_a_log_are_those_on_the_model_that_ran_it(tmp_path: Path) -> None:
    """`b` ran on the slow model only, and the fleet file gives its speeds: there it takes as long as it did."""
    speeds = {"b@V100": 4.0, "b@K80": 1.0, "b@A100": 8.0, "a@V100": 1.0, "a@A100": 2.0}
    path = logged(tmp_path, [arrival(0, 10, "a"), arrival(1, 10, "b")], speeds=speeds)
    for told in (
        compare(Asked(trace=path, fleet=None, options=ORACLE), ["fifo"]).trials[0].measures,
        replay_changed(path, recorded_in(path), (policy_named("fifo"),) * 2, UNCHANGED, []).now,
    ):
        assert told.makespan == 41 * SECOND
    read = read_trace(path, msgspec.structs.replace(ORACLE, speeds=speeds))
    assert seconds(read, "V100") == [10, 10]
    assert seconds(read, "K80")[1] == 40
    assert seconds(read, "A100") == [5, 5]
    assert [one.units[0].expect for one in read.arrivals] == [5 * SECOND, 5 * SECOND]


def test_a_job_of_a_log_that_was_held_and_changed_arrives_as_it_was_started(tmp_path: Path) -> None:
    like = compile_spec({"run": "true", "priority": "high", "resources": {"gpu": 1, "memory": "8GiB"}}, wall=0)
    fields = ("priority", "resources.memory")
    path = logged(
        tmp_path,
        [arrival(0, 100, "a"), arrival(0, 100, "a"), arrival(1, 10, "b")],
        asked=[
            (2, lambda request: HoldJob(request, "j3", on=True)),
            (3, lambda request: ChangeJob(request, "j3", like, fields)),
            (500, lambda request: HoldJob(request, "j3", on=False)),
            (505, lambda request: ChangeJob(request, "j3", compile_spec({"run": "true"}, wall=0), fields)),
        ],
    )
    third = read_trace(path).arrivals[2]
    assert third.at == 500 * SECOND
    assert (third.units[0].priority, third.units[0].shape.memory, third.units[0].shape.gpus) == (
        Priority.HIGH,
        8 << 30,
        1,
    )


def test_a_job_of_which_units_were_skipped_has_ended(tmp_path: Path) -> None:
    whole = arrival(0, 10, "a", outcome="failed")
    [first] = whole.units
    second = msgspec.structs.replace(first, name="second", needs=("main",))
    third = msgspec.structs.replace(first, name="third", needs=("second",))
    truths = dict.fromkeys(("main", "second", "third"), whole.truths["main"])
    path = logged(tmp_path, [msgspec.structs.replace(whole, units=(third, second, first), truths=truths)])
    read = read_trace(path)
    assert (len(read.arrivals), read.skipped) == (1, {})
    again = simulate(read, [node("n1", "V100")], policy_named("fifo")).measures
    assert (again.failed, again.attempts, again.makespan) == (1, 1, 10 * SECOND)


def test_what_had_not_ended_is_left_out(tmp_path: Path) -> None:
    path = logged(tmp_path, [arrival(0, 10, "a"), arrival(1, 1000, "a")], until=100)
    read = read_trace(path)
    assert len(read.arrivals) == 1
    assert read.skipped == {"it had not ended": 1}
    path.unlink()
    with pytest.raises(SpecError) as raised:
        read_trace(logged(tmp_path, [arrival(1, 1000, "a")], until=100))
    assert "had not ended" in raised.value.record.have
    assert "poise ls --all" in raised.value.record.hint


def test_a_log_that_was_pruned_says_so(tmp_path: Path) -> None:
    path = logged(tmp_path, [arrival(0, 10, "a")])
    content = path.read_bytes()
    assert format_of(path, Options()).name == "poise"
    path.write_bytes(content[:-5])
    with pytest.raises(Exception, match="damaged"):
        read_trace(path)
    pruned = tmp_path / "pruned"
    write_log(pruned, [], start=StoredCheckpoint(7, b""), written_by="test")
    with pytest.raises(SpecError) as raised:
        read_trace(pruned)
    assert "before the log begins" in raised.value.record.have


def test_a_format_can_be_named(tmp_path: Path) -> None:
    path = write(tmp_path, HELIOS)
    assert read_trace(path, format="helios").name == "helios"
    with pytest.raises(SpecError, match="column is missing"):
        read_trace(path, format="philly")
    with pytest.raises(SpecError) as raised:
        read_trace(path, format="slurm")
    assert all(name in raised.value.record.need for name in FORMATS)
