"""Traces: what is read of each format, and what is refused. Each excerpt says where it is from."""

import bz2
import gzip
import json
import lzma
import os
import tracemalloc
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from poise.errors import NotFound, PoiseError, SpecError
from poise.model.jobs import Priority
from poise.model.workload import Arrival, Seats
from poise.units import DAY, SECOND
from poise_lab.traces import rows
from poise_lab.traces.formats import read_trace
from poise_lab.traces.openb import read_nodes
from poise_lab.traces.options import Options
from poise_lab.traces.plain import parse_mapping
from poise_lab.traces.rows import MAX_ROW

PHILLY = """\
timestamp,duration,num_gpus,gpu_time,cluster
2017-10-09 07:01:55,66.0,1,66.0,11cb48
2017-10-09 06:13:03,2951.0,1,2951.0,6214e9
2017-09-29 07:58:32,860662.0,1,860662.0,6c71a0
"""
"""github.com/petuum/adaptdl @ c793c70, simulator/traces/philly.csv; the trace is CC BY 4.0 (Jeon et al., ATC 2019)."""

GAVEL = [
    "ResNet-18 (batch size 128)\tmain.py\timage_classification/cifar10\t--num_steps\t1\t925982\t4\t1\t-1.000000\t0",
    "Transformer (batch size 128)\ttrain.py\ttranslation\t-step\t1\t44334\t2\t1\t-1.000000\t0",
    "Transformer (batch size 256)\ttrain.py\ttranslation\t-step\t1\t1271\t1\t1\t-1.000000\t1520",
]
"""github.com/stanford-futuredata/gavel @ c4fa400, scheduler/traces/physical_cluster/max_min_fairness.trace (MIT);
commands are shortened, and the last arrival is ours."""

RATES: dict[str, dict[str, dict[str, Any]]] = {
    "v100": {
        "('ResNet-18 (batch size 128)', 4)": {"null": 50.0, "('LM (batch size 5)', 1)": [20.0, 1.0]},
        "('Transformer (batch size 128)', 2)": {"null": 10.0},
        "('Transformer (batch size 256)', 1)": {"null": 4.0},
    },
    "k80": {
        "('ResNet-18 (batch size 128)', 4)": {"null": 10.0},
        "('Transformer (batch size 128)', 2)": {"null": 20.0},
        "('Transformer (batch size 256)', 1)": {"null": 0.0},
    },
    "v100_unconsolidated": {"('ResNet-18 (batch size 128)', 4)": {"null": 30.0}},
}
"""In the layout of scheduler/simulation_throughputs.json of the same commit; the figures are ours, to be divided by."""

PODS = """\
name,cpu_milli,memory_mib,num_gpu,gpu_milli,gpu_spec,qos,pod_phase,creation_time,deletion_time,scheduled_time
openb-pod-0000,12000,16384,1,1000,,LS,Running,0,12537496,0
openb-pod-0001,6000,12288,1,460,V100M16|V100M32,BE,Running,427061,12902960,427061
openb-pod-0017,88000,327680,8,1000,,LS,Running,9437497,12902960,9437497
"""
"""github.com/hkust-adsl/kubernetes-scheduler-simulator @ 8f3d641, data/csv/openb_pod_list_default.csv (Apache-2.0); the
models and the class of service of the second are ours."""

ORACLE = Options(information="oracle")


def write(tmp_path: Path, content: str, name: str = "trace") -> Path:
    path = tmp_path / name
    path.write_text(content)
    return path


def gavel(tmp_path: Path, lines: list[str] = GAVEL, rates: object = RATES) -> Path:
    (tmp_path / "simulation_throughputs.json").write_text(json.dumps(rates))
    return write(tmp_path, "".join(f"{line}\n" for line in lines))


def kinds(arrivals: Sequence[Arrival]) -> list[str]:
    return [arrival.units[0].kind for arrival in arrivals]


def instants(arrivals: Sequence[Arrival]) -> list[float]:
    return [arrival.at / SECOND for arrival in arrivals]


def seconds(arrivals: Sequence[Arrival], model: str = "") -> list[float]:
    """How long each takes, with all of its tasks on devices of one model."""
    return [
        arrival.truths["main"].pace.left(0.0, Seats((model,) * len(arrival.units[0].tasks))) for arrival in arrivals
    ]


def expected(arrivals: Sequence[Arrival]) -> list[float]:
    return [arrival.units[0].expect / SECOND for arrival in arrivals]


def refused(path: Path, **options: Any) -> PoiseError:
    with pytest.raises(PoiseError) as raised:
        read_trace(path, Options(**options))
    return raised.value


# --- formats ---------------------------------------------------------------------------------------------------------


def test_philly_arrives_in_order_of_submission(tmp_path: Path) -> None:
    read = read_trace(write(tmp_path, PHILLY), ORACLE)
    assert read.name == "philly"
    assert instants(read.arrivals) == [0, 857671, 860603]
    assert seconds(read.arrivals) == expected(read.arrivals) == [860662, 2951, 66]
    assert [arrival.tenant for arrival in read.arrivals] == ["6c71a0", "6214e9", "11cb48"]
    assert kinds(read.arrivals)[0] == "6c71a0:job x1"


def test_a_header_in_quotes_is_recognised(tmp_path: Path) -> None:
    head, *rows = PHILLY.splitlines()
    quoted = ",".join(f'"{name}"' for name in head.split(","))
    assert len(read_trace(write(tmp_path, "\n".join([quoted, *rows]))).arrivals) == 3


def test_gavel_takes_as_long_as_its_table_says(tmp_path: Path) -> None:
    read = read_trace(gavel(tmp_path), ORACLE)
    assert read.name == "gavel"
    assert instants(read.arrivals) == [0, 0, 1520]
    assert kinds(read.arrivals)[0] == "ResNet-18 (batch size 128) x4"
    assert seconds(read.arrivals, "V100") == pytest.approx([925982 / 50, 4433.4, 317.75])
    assert seconds(read.arrivals, "K80")[:2] == pytest.approx([92598.2, 2216.7])
    assert expected(read.arrivals) == pytest.approx([925982 / 50, 2216.7, 317.75])  # on the device that suits it best
    assert read.throughputs["Transformer (batch size 128) x2@K80"] == 20.0
    assert read.arrivals[2].units[0].shape.wants.models == ("V100",)  # it does not fit on the other


def test_openb_shares_devices(tmp_path: Path) -> None:
    read = read_trace(write(tmp_path, PODS), ORACLE)
    assert read.name == "openb"
    shapes = [arrival.units[0].shape for arrival in read.arrivals]
    assert [(shape.cpu, shape.memory >> 30, shape.gpus, shape.share) for shape in shapes] == [
        (12000, 16, 1, 1000),
        (6000, 12, 1, 460),
        (88000, 320, 8, 1000),
    ]
    assert shapes[1].wants.models == ("V100M16", "V100M32")
    assert read.arrivals[1].units[0].priority == Priority.LOW
    assert seconds(read.arrivals) == [12537496, 12475899, 3465463]


def test_openb_nodes_are_a_fleet(tmp_path: Path) -> None:
    """Lines of data/csv/openb_node_list_all_node.csv of the same commit."""
    rows = "sn,cpu_milli,memory_mib,gpu,model\nopenb-node-0000,32000,262144,0,\nopenb-node-0227,96000,786432,8,G2\n"
    bare, full = read_nodes(write(tmp_path, rows))
    assert (bare.cpu, bare.memory >> 30, bare.devices) == (32000, 256, ())
    assert [device.model for device in full.devices] == ["G2"] * 8
    with pytest.raises(SpecError):
        read_nodes(write(tmp_path, rows.replace("8,G2", "8,")))


def test_a_csv_of_ones_own_with_a_mapping(tmp_path: Path) -> None:
    path = write(
        tmp_path,
        "id,created,hours,n,mem,who,class,urgency,due,guess,how\n"
        "a,2026-01-01T00:00:00+01:00,2,16,128GiB,ann,train,high,2026-01-01T05:00:00+01:00,3,ok\n"
        "b,2025-12-31T23:30:00Z,0.5,1,,bob,eval,,,,FAILED\n".replace(",eval,,", ",eval,2,"),
    )
    mapping = "submit=created,duration=hours:h,gpus=n,memory=mem,tenant=who,kind=class,priority=urgency,deadline=due"
    columns = parse_mapping(f"{mapping},expect=guess:h,state=how")
    read = read_trace(path, Options(columns=columns))
    assert instants(read.arrivals) == [0, 1800]
    first, second = (arrival.units[0] for arrival in read.arrivals)
    assert (len(first.tasks), first.shape.gpus, first.shape.memory >> 30) == (2, 8, 64)
    assert (first.kind, first.priority, first.deadline) == ("ann:train x16", Priority.HIGH, 5 * 3600 * SECOND)
    assert first.expect == 3 * 3600 * SECOND  # its user's own estimate
    assert seconds(read.arrivals) == [7200, 1800]
    assert [arrival.truths["main"].outcome for arrival in read.arrivals] == ["done", "failed"]
    assert second.deadline == 0


def test_states_of_a_csv_are_those_of_other_formats(tmp_path: Path) -> None:
    """A job that was cancelled or timed out is not done, however `sacct` writes it."""
    states = {
        "COMPLETED": "done", "": "done", "CANCELLED by 1000": "failed", "cancelled+": "failed", "TIMEOUT": "failed",
        "OUT_OF_MEMORY": "failed", "Killed": "failed",
    }  # fmt: skip
    path = write(tmp_path, "at,took,state\n" + "".join(f"0,1,{state}\n" for state in states))
    read = read_trace(path, Options(columns=parse_mapping("submit=at,duration=took,state=state")))
    assert [arrival.truths["main"].outcome for arrival in read.arrivals] == list(states.values())


def test_a_mapping_that_cannot_be_read_says_what_could_be() -> None:
    for text in ("", "submit", "submit=", "begin=a", "submit=a,submit=b"):
        with pytest.raises(SpecError) as raised:
            parse_mapping(text)
        assert raised.value.record.hint


def test_a_csv_of_ones_own_needs_a_mapping(tmp_path: Path) -> None:
    path = write(tmp_path, "a,b\n1,2\n")
    assert "--map" in refused(path).record.hint
    assert refused(path, columns={"submit": "a"}).record.field == "map"
    assert refused(path, columns={"submit": "a", "duration": "c"}).record.field == "c"
    assert refused(path, columns={"submit": "a", "duration": "b:weeks"}).record.have == "weeks"


# --- what users say, and how it is read ------------------------------------------------------------------------------


def test_what_users_say(tmp_path: Path) -> None:
    path = write(tmp_path, PHILLY.replace("11cb48", "11cb48\n" + "\n".join(["2017-11-01,1000,1,1000,x"] * 2000)))
    assert set(expected(read_trace(path, Options(information="none")).arrivals)) == {0}
    errors = sorted(
        said / true
        for said, true in zip(expected(read_trace(path).arrivals), seconds(read_trace(path).arrivals), strict=True)
    )
    assert errors[len(errors) // 2] == pytest.approx(1, abs=0.05)
    assert errors[len(errors) * 9 // 10] == pytest.approx(2, abs=0.15)
    assert expected(read_trace(path).arrivals) == expected(read_trace(path).arrivals)
    assert expected(read_trace(path).arrivals) != expected(read_trace(path, Options(seed=1)).arrivals)


def test_the_first_jobs_and_a_higher_load(tmp_path: Path) -> None:
    read = read_trace(write(tmp_path, PHILLY), Options(jobs=2, load=2.0))
    assert instants(read.arrivals) == [0, 857671 / 2]


def test_the_last_jobs(tmp_path: Path) -> None:
    """Of a higher load they are the same, and nothing is said to be left out where nothing is."""
    for load in (1.0, 2.0):
        read = read_trace(write(tmp_path, PHILLY), Options(last=DAY, load=load))
        assert instants(read.arrivals) == [0, (860603 - 857671) / load]
        assert read.skipped == {"it was submitted before `--last`": 1}
    assert read_trace(write(tmp_path, PHILLY), Options(last=30 * DAY)).skipped == {}


def test_gangs_are_as_wide_as_a_node(tmp_path: Path) -> None:
    rows = "".join(f"2017-10-09,60,{devices},60,x\n" for devices in (1, 4, 5, 8, 9))
    path = write(tmp_path, f"timestamp,duration,num_gpus,gpu_time,cluster\n{rows}")
    made = [arrival.units[0] for arrival in read_trace(path, Options(devices_per_node=4)).arrivals]
    assert [(len(unit.tasks), unit.shape.gpus) for unit in made] == [(1, 1), (1, 4), (2, 4), (2, 4), (3, 4)]
    assert [task.name for task in made[2].tasks] == ["main[0]", "main[1]"]


@pytest.mark.parametrize(
    ("content", "format", "unpack"),
    [
        (b"\x28\xb5\x2f\xfd\x24\x2d", "zstd", "zstd -d"),
        (lzma.compress(PHILLY.encode()), "xz", "xz -dk"),
        (bz2.compress(PHILLY.encode()), "bzip2", "bzip2 -dk"),
        (b"PK\x03\x04\x14\x00", "zip", "unzip"),
    ],
)
def test_a_file_packed_otherwise_says_how_to_unpack_it(
    tmp_path: Path, content: bytes, format: str, unpack: str
) -> None:
    path = tmp_path / "philly.csv"
    path.write_bytes(content)
    record = refused(path).record
    assert (record.message, record.have, record.hint) == ("the file is compressed", format, f"`{unpack} {path}`")


def test_a_packed_trace_is_unpacked_whatever_its_name(tmp_path: Path) -> None:
    path = tmp_path / "trace.csv"
    path.write_bytes(gzip.compress(PHILLY.encode()))
    assert len(read_trace(path).arrivals) == 3


@pytest.mark.parametrize(
    "options",
    [
        {"load": 0.0},
        {"load": float("nan")},
        {"jobs": -1},
        {"devices_per_node": 0},
        {"load": 1e-300},
        {"jobs": 1, "last": DAY},
    ],
)
def test_options_that_make_no_sense_are_refused(tmp_path: Path, options: dict[str, Any]) -> None:
    assert refused(write(tmp_path, PHILLY), **options).record.field in (*options, "load")


# --- bad rows, and bad files -----------------------------------------------------------------------------------------

BAD = [
    ("2017-10-09 07:01:55,-66,1,66.0,a", "`duration` is negative"),
    ("2017-10-09 07:01:55,nan,1,66.0,a", "`duration` is not a number"),
    ("2017-10-09 07:01:55,inf,1,66.0,a", "`duration` is not a number"),
    ("2017-10-09 07:01:55,1e12,1,66.0,a", "`duration` is absurd"),
    ("2017-10-09 07:01:55,,1,66.0,a", "`duration` is missing"),
    ("2017-10-09 07:01:55,66,1.5,66.0,a", "`num_gpus` is not a whole number"),
    ("2017-10-09 07:01:55,66,0,66.0,a", "`num_gpus` is below 1"),
    ("2017-10-09 07:01:55,66,99999999999,66.0,a", "`num_gpus` is absurd"),
    ("2017-10-09 07:01:55,1_000,1,66.0,a", "`duration` is not written in plain digits"),
    ("2017-10-09 07:01:55,66,\uff11\uff12,66.0,a", "`num_gpus` is not written in plain digits"),
    ("1_507_532_515,66,1,66.0,a", "`timestamp` is not written in plain digits"),
    ("yesterday,66,1,66.0,a", "`timestamp` is neither a number nor a date"),
    ("2017-10-09 07:01:55,66,1", "the row has too few columns"),
    ("2017-10-09 07:01:55,66,1,66.0,a,b", "the row has too many columns"),
]


def test_bad_rows_are_counted_by_reason(tmp_path: Path) -> None:
    read = read_trace(write(tmp_path, PHILLY + "".join(f"{row}\n" for row, _ in BAD)))
    assert len(read.arrivals) == 3
    assert sum(read.skipped.values()) == len(BAD)
    assert set(read.skipped) == {reason for _, reason in BAD}
    assert read.skipped["`duration` is not a number"] == 2


@pytest.mark.parametrize(("row", "reason"), BAD)
def test_strictly_the_first_bad_row_is_an_error_with_its_line(tmp_path: Path, row: str, reason: str) -> None:
    path = write(tmp_path, f"{PHILLY}{row}\n")
    record = refused(path, strict=True).record
    assert (record.message, record.at) == (reason, f"{path}:5")
    assert record.need
    assert record.code == "E109"


def test_a_trace_is_never_half_read(tmp_path: Path) -> None:
    whole = gzip.compress(PHILLY.encode() * 100)
    for name, content, said in (
        ("cut", whole[: len(whole) // 2], "cut short"),
        ("damaged", whole[:-8] + bytes(8), "cut short or damaged"),
        ("binary", bytes(range(256)) * 10, "not text"),
        ("latin", PHILLY.encode() + "2017-10-09,66,1,66.0,ä\n".encode("latin-1"), "not text"),
        ("empty", b"", "no rows"),
        ("header", PHILLY.splitlines()[0].encode(), "no rows"),
        ("other", b"timestamp;duration;num_gpus\n1;2;3\n", "no format"),
        ("quote", PHILLY.encode() + b'"2017-10-09,66,1,66.0,a\n', "cannot be taken apart"),
    ):
        path = tmp_path / name
        path.write_bytes(content)
        error = refused(path)
        assert said in str(error), (name, str(error))
        assert error.record.code == "E109"


@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize("format", ["philly", "gavel", "mooncake"])
def test_a_line_without_an_end_is_not_read_to_its_end(tmp_path: Path, format: str, packed: bool) -> None:
    """It would take nine times its length of memory. A packed one of 1 GB is 1 MB long."""
    content = b"," * (MAX_ROW + MAX_ROW // 4)
    path = tmp_path / "trace"
    path.write_bytes(gzip.compress(content, 1) if packed else content)
    (tmp_path / "simulation_throughputs.json").write_text(json.dumps(RATES))
    tracemalloc.start()
    try:
        with pytest.raises(SpecError) as raised:
            read_trace(path, format=format)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert (raised.value.record.message, raised.value.record.at) == ("the row is too long", f"{path}:1")
    assert raised.value.record.need == "at most 16,777,216 characters"
    assert peak < 8 * MAX_ROW


def test_nor_is_a_row_of_many_lines(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each line is short, and the row has no end: there is a line break in every cell."""
    monkeypatch.setattr(rows, "MAX_ROW", 1000)
    path = write(tmp_path, PHILLY + '"' + '\n","' * 1000)
    assert refused(path).record.message == "the row is too long"
    assert len(read_trace(write(tmp_path, PHILLY + "2017-10-09 07:01:55,66,1,66.0,a\n" * 100)).arrivals) == 103


@pytest.mark.parametrize("format", ["philly", "gavel"])
def test_a_row_of_too_many_columns_is_no_row_of_a_trace(tmp_path: Path, format: str) -> None:
    between = "\t" if format == "gavel" else ","
    (tmp_path / "simulation_throughputs.json").write_text(json.dumps(RATES))
    path = write(tmp_path, (between.join("a" * 5000) + "\n") * 2)
    with pytest.raises(SpecError) as raised:
        read_trace(path, format=format)
    assert (raised.value.record.need, raised.value.record.have) == ("at most 4,096", "5,000")


def test_a_table_without_an_end_is_not_read_to_its_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rows, "MAX_TABLE", 10_000)
    path = tmp_path / "table.json"
    path.write_bytes(gzip.compress(b" " * 20_000))
    record = refused(gavel(tmp_path), throughputs=path).record
    assert (record.message, record.at) == ("the file is too large", str(path))


def test_a_trace_that_is_not_there(tmp_path: Path) -> None:
    assert isinstance(refused(tmp_path / "nothing"), NotFound)
    assert refused(tmp_path).exit_code == 1


def test_a_pipe_is_refused_and_not_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    record = refused(tmp_path / "pipe").record
    assert (record.code, record.have) == ("E109", "a pipe or a device")
    assert record.hint.startswith("`cat > trace.csv`")


def test_a_trace_of_which_nothing_is_left(tmp_path: Path) -> None:
    error = refused(write(tmp_path, PHILLY.splitlines()[0] + "\n2017-10-09,-1,1,1,a\n"))
    assert error.record.have == "1 of: `duration` is negative"


def test_a_trace_of_steps_needs_its_table(tmp_path: Path) -> None:
    path = gavel(tmp_path)
    (tmp_path / "simulation_throughputs.json").unlink()
    assert "--throughputs" in refused(path).record.hint
    broken = ("[]", "{}", "{", '{"v100": {"LM": {"null": 1}}}', '{"v100": {"(\'LM\', 1)": {"null": -1}}}')
    for count, table in enumerate(broken):
        assert refused(path, throughputs=write(tmp_path, table, f"table{count}.json")).record.code == "E109"


def test_steps_of_which_the_table_says_nothing_are_left_out(tmp_path: Path) -> None:
    read = read_trace(gavel(tmp_path, [*GAVEL, GAVEL[0].replace("ResNet-18", "A3C")]))
    assert len(read.arrivals) == 3
    assert read.skipped == {"the table of throughputs does not know it": 1}


def test_what_would_last_for_ever_is_no_job(tmp_path: Path) -> None:
    path = gavel(tmp_path, [GAVEL[0].replace("925982", "1" + "0" * 13), GAVEL[1].replace("-1.000000", "1000000")])
    read = read_trace(path)
    assert read.skipped == {"the run time is absurd": 1}
    assert read.arrivals[0].units[0].deadline == pytest.approx(2216.7e6 * SECOND)


def test_dates_across_a_day(tmp_path: Path) -> None:
    rows = "timestamp,duration,num_gpus,gpu_time,cluster\n2017-10-09,1,1,1,a\n2017-10-10T00:00:00,1,1,1,a\n"
    assert read_trace(write(tmp_path, rows)).arrivals[1].at == DAY
