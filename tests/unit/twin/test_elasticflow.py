"""ElasticFlow's traces: as gangs, and with its tables as jobs that take any size."""

import json
from pathlib import Path
from typing import Any

import msgspec
import pytest

from poise.cli.main import main
from poise.errors import SpecError
from poise.kernel.controller import Settings
from poise.model.events import Event, SpeedupsTold
from poise.model.progress import Speedups
from poise.model.resources import Device, Node
from poise.model.workload import APART, ONE_NODE, Arrival, Seats, Workload
from poise.policy.suites import policy_named
from poise.units import SECOND
from poise_lab.traces.curves import Curve, read_curves
from poise_lab.traces.formats import format_of, read_trace
from poise_lab.traces.options import Options
from poise_lab.trial import simulate

EXCERPT = Path(__file__).parent / "elasticflow"
TRACE = EXCERPT / "cluster03.csv"
TABLES = EXCERPT / "throughputs_A100"
ELASTIC = Options(information="oracle", elastic=True, throughputs=TABLES)

HEADER = "job_id,submission_time,num_iteration,model_name,deadline,batch_size,num_gpu,duration\n"


def node(name: str, devices: int = 8) -> Node:
    made = tuple(Device(index=at, memory=2**34, uuid=f"{name}-{at}", model="A100-80") for at in range(devices))
    return Node(name=name, incarnation="1", cpu=64_000, memory=2**38, devices=made)


def trace(tmp_path: Path, *rows: str) -> Path:
    path = tmp_path / "trace.csv"
    path.write_text(HEADER + "".join(f"{number},{row}\n" for number, row in enumerate(rows)))
    return path


def seconds(arrival: Arrival, devices: int, nodes: int = 1) -> float:
    seats = Seats(("A100-80",) * devices, nodes, APART if nodes > 1 else ONE_NODE)
    return arrival.truths["main"].pace.left(0.0, seats)


def of_kind(read: Workload, kind: str) -> Arrival:
    return next(arrival for arrival in read.arrivals if arrival.units[0].kind.startswith(kind))


def test_microsofts_files_are_recognised_and_are_gangs() -> None:
    assert format_of(TRACE, Options()).name == "elasticflow"
    read = read_trace(TRACE, Options(information="oracle"))
    assert (len(read.arrivals), read.skipped, read.notes) == (60, {}, ())
    first, second = read.arrivals[:2]
    assert second.at == (2037797 - 911907) * SECOND
    assert first.units[0].kind == "deepspeech2 (batch size 32) x32"
    assert (len(first.units[0].tasks), first.units[0].shape.gpus, first.units[0].least) == (4, 8, 0)
    assert first.units[0].expect == 709 * SECOND
    assert first.units[0].deadline == (912694 - 911907) * SECOND


def test_deadlines_are_instants_on_the_clock_of_submissions() -> None:
    """Each is 0.5 to 1.5 run times after it."""
    for arrival in read_trace(TRACE, Options(information="oracle")).arrivals:
        [unit] = arrival.units
        assert 0.5 <= unit.deadline / unit.expect <= 1.5


def test_run_times_are_those_of_the_iterations_on_the_devices_that_are_given() -> None:
    curves, checked = read_curves(TABLES), 0
    for line in TRACE.read_text().splitlines()[1:]:
        _, _, iterations, model, _, batch, devices, duration = line.split(",")
        if (curve := curves.get((model, int(batch)))) is not None:
            assert int(iterations) / curve.rate(int(devices)) == pytest.approx(int(duration), rel=2e-3)
            checked += 1
    assert checked == 20


def test_the_old_columns_are_read_as_before(tmp_path: Path) -> None:
    path = tmp_path / "trace.csv"
    path.write_text(
        "job_id,submit_time,iteration,model_name,ddl,batch_size,num_gpu,duration\n0,10,99,bert,50,64,2,30\n"
    )
    [arrival] = read_trace(path, ELASTIC).arrivals
    assert (arrival.units[0].deadline, arrival.units[0].least) == (40 * SECOND, 1)


# --- elastic ---------------------------------------------------------------------------------------------------------


def test_a_job_of_the_tables_takes_any_size(tmp_path: Path) -> None:
    """Rates of bert with a batch of 64: 6.03, 8.64, 10.36, 11.06 with 1, 2, 4, 8 devices, and less with more."""
    [arrival] = read_trace(trace(tmp_path, "100,0,bert,900,64,2,600"), ELASTIC).arrivals
    [unit] = arrival.units
    assert (unit.least, len(unit.tasks), unit.shape.gpus) == (1, 8, 1)
    assert unit.kind == "bert (batch size 64)"
    assert unit.deadline == 800 * SECOND
    assert seconds(arrival, 2) == pytest.approx(600)
    assert seconds(arrival, 1) == pytest.approx(600 * 8.643477263279834 / 6.030661553957379)
    assert (
        seconds(arrival, 8) == seconds(arrival, 8, nodes=2) == pytest.approx(600 * 8.643477263279834 / 11.0601732061343)
    )
    assert seconds(arrival, 3) == pytest.approx(
        600 * 8.643477263279834 / ((8.643477263279834 + 10.356284859349557) / 2)
    )
    assert unit.expect / SECOND == pytest.approx(seconds(arrival, 1))


def test_it_goes_on_where_it_was_in_another_size(tmp_path: Path) -> None:
    [arrival] = read_trace(trace(tmp_path, "100,0,resnet50,900,256,4,600"), ELASTIC).arrivals
    pace, four = arrival.truths["main"].pace, Seats(("A100-80",) * 4)
    progress = pace.reached(0.0, four, 300.0)
    assert progress == pytest.approx(0.5)
    assert pace.left(progress, Seats(("A100-80",))) == pytest.approx(seconds(arrival, 1) / 2)


def test_it_says_how_it_scales(tmp_path: Path) -> None:
    [arrival] = read_trace(trace(tmp_path, "100,0,bert,900,64,2,600"), ELASTIC).arrivals
    telling = arrival.truths["main"].telling
    assert telling is not None
    told = telling.speedups(0.0, Seats(("A100-80",)), 4, spread=False)
    assert told == Speedups((1000, 1433, 1575, 1717), (1000, 1433, 1575, 1717))
    assert telling.speedups(0.5, Seats(("A100-80",) * 8), 8, spread=True).apart[7] == 1834


def test_a_job_that_is_not_in_the_tables_stays_a_gang(tmp_path: Path) -> None:
    """Its model is not there, its batch size, or how fast it was on as many devices."""
    rows = ("1,0,gpt2,900,128,16,600", "2,0,bert,900,63,16,600", "3,0,bert,900,64,128,600", "4,0,bert,900,64,16,600")
    read = read_trace(trace(tmp_path, *rows), ELASTIC)
    assert [len(arrival.units[0].tasks) for arrival in read.arrivals] == [2, 2, 16, 8]
    assert [arrival.units[0].least for arrival in read.arrivals] == [0, 0, 0, 1]
    assert [arrival.truths["main"].telling is None for arrival in read.arrivals] == [True, True, True, False]
    [note] = read.notes
    assert note == (
        "3 of 4 jobs of the trace stay gangs: the tables have no rate of their model, batch size and number of devices"
    )
    assert read.skipped == {}
    assert read_trace(trace(tmp_path, *rows)).notes == ()


def test_all_of_the_excerpt(tmp_path: Path) -> None:
    read = read_trace(TRACE, ELASTIC)
    elastic = [arrival for arrival in read.arrivals if arrival.units[0].least]
    assert (len(read.arrivals), len(elastic)) == (60, 20)
    assert read.notes[0].startswith("40 of 60 jobs")
    by_size = {unit.kind: len(unit.tasks) for arrival in elastic for unit in arrival.units}
    assert by_size == {
        "bert (batch size 64)": 8,
        "bert (batch size 128)": 16,
        "resnet50 (batch size 64)": 32,
        "resnet50 (batch size 128)": 64,
        "resnet50 (batch size 256)": 64,
    }
    gangs = read_trace(TRACE, Options(information="oracle", throughputs=TABLES))
    assert not any(arrival.units[0].least for arrival in gangs.arrivals)
    assert [arrival.at for arrival in gangs.arrivals] == [arrival.at for arrival in read.arrivals]


def test_elastic_jobs_need_their_tables(tmp_path: Path) -> None:
    with pytest.raises(SpecError) as raised:
        read_trace(TRACE, Options(elastic=True))
    assert raised.value.record.hint == "`--elastic --throughputs FOLDER`"
    for folder in (tmp_path, tmp_path / "nowhere", TRACE):
        with pytest.raises(SpecError, match="the folder has no rates by number of devices"):
            read_trace(TRACE, Options(elastic=True, throughputs=folder))


def test_in_the_twin_it_tells_its_speeds_once_and_ends_as_soon_as_the_table_says(tmp_path: Path) -> None:
    told: list[SpeedupsTold] = []

    def observe(event: Event) -> None:
        if isinstance(event, SpeedupsTold):
            told.append(event)

    workload = read_trace(trace(tmp_path, "100,0,bert,900,64,1,3600"), ELASTIC)
    settings = Settings(every=60 * SECOND, poll=0, dead_after=0)
    trial = simulate(workload, [node("n1")], policy_named("goodput"), settings, observe=observe)
    rates = read_curves(TABLES)["bert", 64].rates
    assert len(told) == 1
    assert told[0].speedups.together == tuple(round(1000 * rate / rates[0]) for rate in rates[:8])
    [completion] = trial.completions
    fastest = seconds(workload.arrivals[0], 8)
    assert fastest < completion < seconds(workload.arrivals[0], 2)


class Counting(msgspec.Struct, frozen=True):
    """A curve that counts how often it is asked."""

    curve: Curve
    asked: list[float]

    def speedups(self, progress: float, seats: Seats, most: int, /, *, spread: bool) -> Speedups:
        self.asked.append(progress)
        return self.curve.speedups(progress, seats, most, spread=spread)


def test_a_table_that_does_not_change_is_looked_at_once_for_each_start(tmp_path: Path) -> None:
    workload = read_trace(trace(tmp_path, "100,0,bert,900,64,1,3600"), ELASTIC)
    [arrival] = workload.arrivals
    telling = Counting(read_curves(TABLES)["bert", 64], [])
    truth = msgspec.structs.replace(arrival.truths["main"], telling=telling)
    workload = msgspec.structs.replace(workload, arrivals=(msgspec.structs.replace(arrival, truths={"main": truth}),))
    simulate(workload, [node("n1", devices=1)], policy_named("fifo"), Settings(poll=0, dead_after=0))
    assert telling.asked == [0.0]


def test_as_typed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    fleet = tmp_path / "fleet.yaml"
    devices = ", ".join(["{model: A100-80}"] * 8)
    fleet.write_text(f"kind: fleet\nnodes: {{n: {{cpu: 64, memory: 512GiB, devices: [{devices}]}}}}\n")
    path = trace(tmp_path, "0,0,bert,9000,64,8,600", "0,0,resnet50,9000,256,8,600", "0,0,ours,9000,1,1,600")
    typed = ["compare", str(path), "--fleet", str(fleet), "--policies", "goodput", "--every", "60s", "--json"]
    assert main([*typed, "--elastic", "--throughputs", str(TABLES)]) == 0
    value: dict[str, Any] = json.loads(capsys.readouterr().out)
    assert value["notes"] == [
        "1 of 3 jobs of the trace stay gangs: the tables have no rate of their model, batch size and number of devices"
    ]
    assert value["trials"][0]["measures"]["completion"]["count"] == 3


# --- tables ----------------------------------------------------------------------------------------------------------


def table(folder: Path, text: str, name: str = "bert.csv") -> Path:
    folder.mkdir(exist_ok=True)
    (folder / name).write_text(text)
    return folder


@pytest.mark.parametrize("blank", ["", "0", "nan", " "])
def test_what_was_not_profiled(tmp_path: Path, blank: str) -> None:
    """At the end, between two, and with few devices, on which it does not fit."""
    folder = table(
        tmp_path / "tables",
        f"global_batch_size,1,2,4,8\n1,1,2,4,{blank}\n2,1,2,{blank},8\n3,{blank},2,3,4\n4,{blank},{blank},{blank},{blank}\n",
    )
    curves = read_curves(folder)
    assert curves["bert", 1].rates == (1, 2, 3, 4)
    assert curves["bert", 2].rates == (1, 2, 3, 4, 5, 6, 7, 8)
    few = curves["bert", 3]
    assert (few.rates, few.least, few.most) == ((0, 2, 2.5, 3, 3.25, 3.5, 3.75, 4), 2, 8)
    assert few.speedups(0.0, Seats(("A100-80",) * 2), 8, spread=False).together[:3] == (0, 2000, 2500)
    assert ("bert", 4) not in curves
    [arrival] = read_trace(trace(tmp_path, "0,0,bert,900,3,4,600"), Options(elastic=True, throughputs=folder)).arrivals
    assert (arrival.units[0].least, len(arrival.units[0].tasks)) == (2, 8)
    assert seconds(arrival, 2) == 900
    assert seconds(arrival, 1) == float("inf")


def test_with_which_devices_it_is_fastest() -> None:
    assert Curve(rates=(5.0,)).most == 1
    assert Curve(rates=(1.0, 2.0, 2.0, 1.5)).most == 2
    assert Curve(rates=(28.6, 27.6, 28.2, 28.7)).most == 4
    assert [Curve(rates=(0.0, 2.0)).rate(devices) for devices in (0, 1, 2, 3)] == [0, 0, 2, 0]


def test_a_job_that_gains_nothing_has_one_task(tmp_path: Path) -> None:
    folder = table(tmp_path / "tables", "global_batch_size,1,2\n64,4,2\n")
    [arrival] = read_trace(trace(tmp_path, "0,0,bert,900,64,2,600"), Options(elastic=True, throughputs=folder)).arrivals
    assert (arrival.units[0].least, len(arrival.units[0].tasks), seconds(arrival, 1)) == (0, 1, 300)
    assert arrival.truths["main"].telling is None


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("global_batch_size,1,two\n64,1,2\n", "a column is no number of devices"),
        ("global_batch_size,1,0\n64,1,2\n", "a column is no number of devices"),
        ("global_batch_size,1,\uff12\n64,1,2\n", "a column is no number of devices"),
        ("global_batch_size,1,9999\n64,1,2\n", "a column is no number of devices"),
        ("global_batch_size,1,01\n64,1,2\n", "a column is no number of devices"),
        ("global_batch_size\n64\n", "a column is no number of devices"),
        ("batch,1,2\n64,1,2\n", "a column is missing"),
        ("global_batch_size,1,1\n64,1,2\n", "a column is no number of devices"),
        ("global_batch_size,1,2\n64,1,-2\n", "`2` is negative"),
        ("global_batch_size,1,2\n64,1,many\n", "`2` is not a number"),
        ("global_batch_size,1,2\n64,1\n", "the row has too few columns"),
        ("global_batch_size,1,2\n64,1,2\n64,1,2\n", "a batch size is there twice"),
        ("", "the file is empty"),
    ],
)
def test_half_a_table_is_none(tmp_path: Path, text: str, message: str) -> None:
    with pytest.raises(SpecError) as raised:
        read_curves(table(tmp_path, text))
    assert raised.value.record.message == message
    assert raised.value.record.at.startswith(str(tmp_path / "bert.csv"))
