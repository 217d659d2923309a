"""Pollux's workloads: an excerpt of one application gives the times that were published of its jobs."""

import json
from pathlib import Path
from typing import Any

import pytest

from poise.cli.main import main
from poise.errors import SpecError
from poise.kernel.controller import Settings
from poise.model.resources import Device, Node
from poise.model.workload import Seats
from poise.policy.suites import policy_named
from poise.units import SECOND
from poise_lab.traces.formats import read_trace
from poise_lab.traces.options import Options
from poise_lab.trial import simulate

PLACEMENTS = """\
placement,local_bsz,step_time,sync_time
1,4,0.45532354712486267,0.013738612174987792
1,12,0.9215156733989716,0.013695754051208497
4444,4,1.798159420490265,1.390545997619629
4444,12,1.8881946355104446,0.9953583183288576
"""
SCALABILITY = """\
num_nodes,num_replicas,local_bsz,step_time,sync_time
16,16,4,1.5666148960590363,1.1543935852050782
16,16,12,1.8259641081094742,0.9623201637268065
16,64,4,1.8735220730304718,1.4277545623779295
16,64,12,2.231521874666214,1.3427189025878903
"""
VALIDATION = {
    12: "7387.0,7387,86.70941580662803,195590723287826.75,6894015304034181.0\n"
    "14774.0,14774,88.61300061544314,408336357954.4091,38257633123936.53\n",
    384: "7397.863848103167,244,84.80774176088966,6509198881259.403,6086044601707605.0\n"
    "14789.671295127398,480,88.08353900323218,43032304393.29889,45868579275033.31\n",
}
WORKLOAD = """\
name,time,application,num_replicas,batch_size
bert-31,5750,bert,16,384
bert-78,17646,bert,16,384
"""
"""github.com/petuum/adaptdl @ c793c70 (Apache-2.0): rows of simulator/traces/bert and of simulator/workloads, of
workload-2 and workload-3. In the published results (results-jobload/tiresias-1.0) these took 1,364 s and 1,408 s."""


def excerpt(tmp_path: Path, workload: str = WORKLOAD) -> Path:
    bert = tmp_path / "profiles" / "bert"
    bert.mkdir(parents=True)
    (bert / "placements.csv").write_text(PLACEMENTS)
    (bert / "scalability.csv").write_text(SCALABILITY)
    for size, rows in VALIDATION.items():
        (bert / f"validation-{size}.csv").write_text("progress,iteration,metric,grad_sqr,grad_var\n" + rows)
    (tmp_path / "workloads").mkdir()
    path = tmp_path / "workloads" / "workload-1.csv"
    path.write_text(workload)
    return path


def node(name: str) -> Node:
    devices = tuple(Device(index=at, memory=2**34, uuid=f"{name}-{at}", model="T4") for at in range(4))
    return Node(name=name, incarnation="1", cpu=1000, memory=2**34, devices=devices)


def test_jobs_take_as_long_as_published(tmp_path: Path) -> None:
    workload = read_trace(excerpt(tmp_path), Options(information="none"))
    nodes = [node(f"n{number}") for number in range(4)]
    settings = Settings(every=60 * SECOND, poll=0, dead_after=0)
    trial = simulate(workload, nodes, policy_named("tiresias"), settings)
    assert trial.completions == [1364, 1408]


def test_an_elastic_job_chooses_the_batch_that_is_best(tmp_path: Path) -> None:
    """On one device the smallest batch of 12 takes 0.9215 s a step. The gradient's noise is 35 and then 94 times its
    square, so that a batch of 384 is nearly worth 32 of these in the second epoch, and in 32 rounds of 12 that
    exchange once costs 0.9078 s each.
    """
    [first, _] = read_trace(excerpt(tmp_path), Options(elastic=True)).arrivals
    unit, pace = first.units[0], first.truths["main"].pace
    assert (unit.least, len(unit.tasks), unit.kind) == (1, 64, "bert")
    alone = pace.left(0.0, Seats(("T4",)))
    assert 0.9 * 14774 * 0.9078 < alone < 14774 * 0.9215
    assert pace.left(0.0, Seats(("T4",) * 16, 4, 1, (4, 4, 4, 4))) < alone / 4


def test_an_elastic_job_finds_out_what_being_spread_costs(tmp_path: Path) -> None:
    """It supposes at first that it costs nothing; four tasks on four nodes exchange for 1 s a step."""
    [first, _] = read_trace(excerpt(tmp_path), Options(elastic=True)).arrivals
    telling = first.truths["main"].telling
    assert telling is not None
    hopes = telling.speedups(0.0, Seats(("T4",)), 16, spread=False)
    assert hopes.together == hopes.apart
    knows = telling.speedups(0.0, Seats(("T4",) * 16, 4, 1, (4, 4, 4, 4)), 16, spread=True)
    assert knows.together[0] == knows.apart[0] == 1000
    assert knows.apart[15] < knows.together[15]


def test_progress_goes_on_where_it_was(tmp_path: Path) -> None:
    [first, _] = read_trace(excerpt(tmp_path), Options()).arrivals
    pace, seats = first.truths["main"].pace, Seats(("T4",) * 16, 4, 1, (4, 4, 4, 4))
    whole = pace.left(0.0, seats)
    for seconds in (0, 1, 1000, int(whole) - 1):
        assert pace.left(pace.reached(0.0, seats, seconds), seats) == whole - seconds
    assert pace.reached(0.0, seats, whole) == 1.0


def test_what_users_say_is_the_truth_or_near_it_or_nothing(tmp_path: Path) -> None:
    path = excerpt(tmp_path)

    def said(**options: Any) -> list[float]:
        return [arrival.units[0].expect / SECOND for arrival in read_trace(path, Options(**options)).arrivals]

    assert said(information="none") == [0, 0]
    assert said(information="oracle") == [1324, 1324]
    assert said(information="estimated") == said(information="estimated", seed=0) != said(seed=1)
    with_one_device = read_trace(path, Options(elastic=True)).arrivals[0].truths["main"].pace.left(0.0, Seats(("T4",)))
    assert said(information="oracle", elastic=True) == [with_one_device] * 2


def test_both_ways_as_typed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    fleet = tmp_path / "fleet.yaml"
    node = "{cpu: 8, memory: 64GiB, devices: [{model: T4}, {model: T4}, {model: T4}, {model: T4}]}"
    fleet.write_text("kind: fleet\nnodes: {" + ", ".join(f"n{number}: {node}" for number in range(4)) + "}\n")
    typed = ["compare", str(excerpt(tmp_path)), "--fleet", str(fleet), "--every", "60s", "--json"]
    means = []
    for policy, flags in (("tiresias", ()), ("goodput", ("--elastic",))):
        assert main([*typed, "--policies", policy, *flags]) == 0
        [trial] = json.loads(capsys.readouterr().out)["trials"]
        means.append(trial["measures"]["completion"]["mean"] / SECOND)
    assert means[0] == (1364 + 1408) / 2
    assert means[0] < means[1] < 14774 * 0.9215 / 4  # it begins with one device and tries twice as many each minute


def test_what_was_not_profiled_is_left_out_and_counted(tmp_path: Path) -> None:
    path = excerpt(tmp_path, WORKLOAD + "gpt-2,10,gpt,1,8\n")
    assert read_trace(path).skipped == {"the application was not profiled": 1}
    with pytest.raises(SpecError) as raised:
        read_trace(path, Options(strict=True))
    assert raised.value.record.at.endswith("workload-1.csv:4")


def test_half_a_profile_is_none(tmp_path: Path) -> None:
    path = excerpt(tmp_path)
    (tmp_path / "profiles" / "bert" / "placements.csv").write_text("placement,local_bsz\n1,4\n")
    with pytest.raises(SpecError) as raised:
        read_trace(path)
    assert "step_time" in raised.value.record.need


def test_a_file_of_another_name_is_no_profile(tmp_path: Path) -> None:
    path = excerpt(tmp_path)
    for name in ("validation-old.csv", "validation-1_2.csv", "validation-\uff11.csv"):
        (tmp_path / "profiles" / "bert" / name).write_text("not read\n")
    assert len(read_trace(path).arrivals) == 2
