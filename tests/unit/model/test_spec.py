import math
from typing import Any

import hypothesis.strategies as st
import msgspec
import pytest
from hypothesis import given

from poise.errors import CODES, ErrorRecord, SpecError
from poise.model.events import JobSubmitted, decode_event, encode_event
from poise.model.jobs import Job, Priority, Task, Unit, Variant, Work
from poise.model.resources import Shape, Wants
from poise.model.spec import Compiled, Cut, compile_spec
from poise.units import HOUR, MINUTE, SECOND

WALL = 1_700_000_000.0  # 2023-11-14T22:13:20Z


def compiled(**document: Any) -> Compiled:
    return compile_spec(document, wall=WALL)


def graph(**tasks: Any) -> dict[str, Unit]:
    made = compile_spec({"kind": "graph", "tasks": tasks}, wall=WALL)
    return {unit.name: unit for unit in made.units}


def refused(document: Any) -> ErrorRecord:
    with pytest.raises(SpecError) as caught:
        compile_spec(document, wall=WALL)
    record = caught.value.record
    assert record.code in CODES
    assert not record.message.endswith(".")
    return record


# --- what is right ---------------------------------------------------------------------------------------------------


def test_what_is_not_said_is_as_if_it_were_said() -> None:
    said = compiled(run="x", resources={"cpu": "1", "memory": "0B"}, retry=None, grace="10s")
    assert compiled(run="x") == said


def test_a_job_in_one_line() -> None:
    [unit] = compiled(run="echo hello", name="greet", resources={"cpu": "500m", "memory": "1GiB"}).units
    assert unit.tasks == (Task(name="main", argv=("/bin/sh", "-c", "echo hello")),)
    assert unit.shape == Shape(cpu=500, memory=2**30)
    assert unit.priority is Priority.MEDIUM


def test_a_list_is_run_as_it_is() -> None:
    assert compiled(run=["python", "train.py", "a b"]).units[0].tasks[0].argv == ("python", "train.py", "a b")


def test_workers_make_a_gang() -> None:
    [gang] = graph(train={"run": "x", "workers": 2}).values()
    assert [(task.name, task.rank, task.world) for task in gang.tasks] == [("train[0]", 0, 2), ("train[1]", 1, 2)]


def test_parts_are_merged_and_followers_wait_for_the_merge() -> None:
    units = graph(cut={"run": "x", "parts": 2, "merge": "y"}, then={"run": "z", "needs": ["cut"]})
    assert list(units) == ["cut[0]", "cut[1]", "cut.merge", "then"]
    assert [(units[f"cut[{part}]"].tasks[0].part, units[f"cut[{part}]"].tasks[0].parts) for part in (0, 1)] == [
        (0, 2),
        (1, 2),
    ]
    assert units["cut.merge"].needs == ("cut[0]", "cut[1]")
    assert units["then"].needs == ("cut.merge",)


def test_without_a_merge_followers_wait_for_every_part() -> None:
    units = graph(cut={"run": "x", "parts": 2}, then={"run": "z", "parts": 2, "needs": ["cut", "cut"]})
    assert units["then[0]"].needs == units["then[1]"].needs == ("cut[0]", "cut[1]")


def test_the_graphs_deadline_holds_for_its_ends_and_priority_for_all() -> None:
    made = compile_spec(
        {
            "kind": "graph",
            "deadline": "1h",
            "priority": "high",
            "tasks": {
                "a": {"run": "x"},
                "b": {"run": "x", "needs": ["a"], "priority": "low"},
                "c": {"run": "x", "needs": ["a"], "deadline": "30m"},
            },
        },
        wall=WALL,
    )
    assert {unit.name: unit.deadline // MINUTE for unit in made.units} == {"a": 0, "b": 60, "c": 30}
    assert [unit.priority.name for unit in made.units] == ["HIGH", "LOW", "HIGH"]


def test_an_absolute_deadline_counts_from_submission() -> None:
    assert compiled(run="x", deadline="2023-11-14T22:14:20Z").units[0].deadline == 60 * SECOND
    assert compiled(run="x", deadline="2023-11-14T23:14:20+01:00").units[0].deadline == 60 * SECOND


def test_a_deadline_says_what_becomes_of_work_that_is_late() -> None:
    """As in the documentation: `deadline: {by: 30m, if-late: cancel}`."""
    [unit] = compiled(run="x", deadline={"by": "30m", "if-late": "cancel"}).units
    assert (unit.deadline, unit.if_late) == (30 * MINUTE, "cancel")
    for plain in ("30m", {"by": "30m"}, {"by": "30m", "if-late": "run"}):
        [unit] = compiled(run="x", deadline=plain).units
        assert (unit.deadline, unit.if_late) == (30 * MINUTE, "run")
        assert b"if_late" not in msgspec.msgpack.encode(unit), "as in logs of old"
    [moment] = compiled(run="x", deadline={"by": "2023-11-14T22:14:20Z", "if-late": "refuse"}).units
    assert (moment.deadline, moment.if_late) == (60 * SECOND, "refuse")


def test_what_becomes_of_late_work_goes_with_its_deadline() -> None:
    """That of the graph with the graph's, that of a task with its own; parts and their merge share one."""
    tasks = {
        "a": {"run": "x"},
        "b": {"run": "x", "needs": ["a"]},
        "c": {"run": "x", "needs": ["a"], "deadline": "30m"},
        "d": {"run": "x", "deadline": {"by": "10m", "if-late": "refuse"}},
    }
    made = compiled(kind="graph", deadline={"by": "1h", "if-late": "cancel"}, tasks=tasks)
    assert {unit.name: unit.if_late for unit in made.units} == {"a": "run", "b": "cancel", "c": "run", "d": "refuse"}
    assert made.due_by == {"b": "deadline", "c": "tasks.c.deadline", "d": "tasks.d.deadline"}
    assert [unit.name for unit in made.strict] == ["d"]
    cut = compiled(run="x", parts=2, merge="y", deadline={"by": "1h", "if-late": "cancel"})
    assert [unit.if_late for unit in cut.units] == ["cancel"] * 3


@pytest.mark.parametrize(
    ("fields", "code", "field"),
    [
        ({"deadline": {"if-late": "cancel"}}, "E102", "deadline.by"),
        ({"deadline": {"by": "1h", "if-late": "panic"}}, "E102", "deadline.if-late"),
        ({"deadline": {"by": "1h", "if_late": "run"}}, "E102", "deadline.if_late"),
        ({"deadline": {"by": "soon"}}, "E103", "deadline.by"),
        ({"deadline": {"by": "0s", "if-late": "cancel"}}, "E108", "deadline.by"),
        ({"deadline": {"by": "1h", "if-late": "cancel"}, "begin": "2h"}, "E102", "deadline"),
        ({"deadline": {"by": "1h", "if-late": "cancel"}, "calls": True, "parts": 2}, "E105", "deadline.if-late"),
    ],
)
def test_a_deadline_that_cannot_be_read_names_its_place(fields: dict[str, Any], code: str, field: str) -> None:
    with pytest.raises(SpecError) as caught:
        compiled(run="x", **fields)
    record = caught.value.record
    assert (record.code, record.field) == (code, field)
    assert record.hint or record.need


def test_a_job_may_begin_later() -> None:
    assert {unit.begin for unit in compiled(run="x", begin="2h", parts=2).units} == {2 * HOUR}
    assert compiled(run="x", begin="2023-11-14T22:14:20Z").units[0].begin == 60 * SECOND
    tasks = {"a": {"run": "x"}, "b": {"run": "x", "needs": ["a"]}}
    assert {unit.begin for unit in compiled(kind="graph", begin="1m", tasks=tasks).units} == {MINUTE}


@pytest.mark.parametrize(
    ("fields", "field", "message"),
    [
        ({"begin": "2020-01-01T00:00:00Z"}, "begin", "the begin has passed already"),
        ({"begin": "soon"}, "begin", ""),
        ({"begin": "2h", "deadline": "1h"}, "deadline", "`begin` is later than the deadline"),
        ({"kind": "graph", "tasks": {"a": {"run": "x", "begin": "1h"}}}, "tasks.a", ""),
    ],
)
def test_a_begin_that_cannot_be_is_refused(fields: dict[str, Any], field: str, message: str) -> None:
    with pytest.raises(SpecError) as caught:
        compiled(**{"run": "x"} | fields if "tasks" not in fields else fields)
    assert caught.value.record.field.startswith(field)
    assert message in str(caught.value)


def test_classes_name_what_is_learned_together() -> None:
    assert compiled(run=["/usr/bin/python", "/w/train.py", "--lr", "3"]).units[0].kind == "python train.py"
    assert compiled(run="python train.py --lr 3").units[0].kind == "sh python train.py"
    assert compiled(run=["python", "-u", "/w/train.py"]).units[0].kind == "python train.py"
    assert compiled(run=["/bin/sh", "-c", "sleep 5; echo done"]).units[0].kind == "sh sleep 5;"
    assert compiled(run=["python", "-m", "http.server"]).units[0].kind == "python http.server"
    assert compiled(run=["sh"]).units[0].kind == "sh"
    assert compiled(run="x", **{"class": "mine"}).units[0].kind == "mine"
    made = compile_spec({"kind": "graph", "name": "nightly", "tasks": {"a": {"run": "x"}}}, wall=WALL)
    assert made.units[0].kind == "nightly/a"


def test_what_says_that_it_gets_on_may_hang() -> None:
    part, _, merge = compiled(run="x", hang="1m", parts=2, merge="y").units
    assert (part.hang, merge.hang) == (MINUTE, 0)
    assert compiled(run="x", hang="0s").units == compiled(run="x").units
    gang = compiled(kind="graph", tasks={"a": {"run": "x", "workers": 2, "hang": 90}}).units[0]
    assert gang.hang == 90 * SECOND


def test_retry_and_grace() -> None:
    [unit] = compiled(run="x", grace="1m", retry={"limit": 2, "backoff": "5s", "when": ["oom", "oom"]}).units
    assert (unit.grace, unit.retry.limit, unit.retry.backoff, unit.retry.when) == (MINUTE, 2, 5 * SECOND, ("oom",))


def test_devices_can_be_asked_for_by_what_they_are() -> None:
    resources = {
        "gpu": 2,
        "gpu_share": 0.25,
        "gpu_memory": "10GiB",
        "gpu_model": ["A100", "my-card"],
        "backend": "cuda",
        "precision": "bf16",
        "ops": ["flash-attention"],
        "network": "10Gbit",
    }
    [unit] = compiled(run="x", resources=resources).units
    assert unit.shape == Shape(
        cpu=1000,
        gpus=2,
        share=250,
        gpu_memory=10 * 2**30,
        network=10**10,
        wants=Wants(
            models=("A100-40", "A100-80", "my-card"), backend="cuda", precision="bf16", ops=("flash-attention",)
        ),
    )


@pytest.mark.parametrize("workers", ["2..4", " 2 .. 4 ", {"min": 2, "max": 4}])
def test_an_elastic_gang_starts_with_its_least_and_can_use_its_most(workers: Any) -> None:
    [gang] = compiled(run="x", workers=workers).units
    assert (gang.least, len(gang.tasks), gang.tasks[3].world) == (2, 4, 4)


def test_a_gang_whose_bounds_are_equal_is_not_elastic() -> None:
    assert compiled(run="x", workers="3..3").units[0] == compiled(run="x", workers=3).units[0]


def test_several_artifacts_are_variants_of_one_unit() -> None:
    artifacts = {
        "cuda": {"run": "train-cuda", "resources": {"gpu": 1}},
        "cann": {"run": ["train-cann"], "resources": {"gpu": 1, "gpu_kind": "npu"}},
        "cpu": {"run": ["train"], "resources": {"cpu": 8}},
    }
    [unit] = compiled(artifacts=artifacts).units
    assert (unit.tasks[0].argv, unit.shape.wants) == (("/bin/sh", "-c", "train-cuda"), Wants(backend="cuda"))
    assert [unit.artifact_of(number) for number in range(3)] == ["cuda", "cann", "cpu"]
    assert unit.variants == (
        Variant(
            name="cann",
            argv=("train-cann",),
            shape=Shape(cpu=1000, gpus=1, wants=Wants(kind="npu", backend="cann")),
        ),
        Variant(name="cpu", argv=("train",), shape=Shape(cpu=8000)),
    )


def test_a_split_gives_each_part_its_items_and_its_share_of_the_work() -> None:
    split = {"items": 10, "size": 4}
    made = compiled(run="x", split=split, expect="9m", work={"flops": "3 TFLOP"}, merge="y", **{"class": "c"}).units
    assert [unit.tasks[0].env for unit in made[:3]] == [
        {"POISE_ITEMS_FROM": "0", "POISE_ITEMS_TO": "3"},
        {"POISE_ITEMS_FROM": "3", "POISE_ITEMS_TO": "6"},
        {"POISE_ITEMS_FROM": "6", "POISE_ITEMS_TO": "10"},
    ]
    assert {(unit.expect, unit.work, unit.kind) for unit in made[:3]} == {(3 * MINUTE, Work(flops=10**12), "c*4")}
    assert made[3].needs == ("main[0]", "main[1]", "main[2]")


def test_what_is_said_of_the_parts_says_nothing_of_their_merge() -> None:
    for cut in ({"parts": 3}, {"split": {"items": 9, "size": 3}}):
        made = compiled(run="x", merge="y", expect="9m", work={"flops": "3 TFLOP"}, checkpoint="1m", **cut).units
        merge = made[-1]
        assert (merge.expect, merge.work, merge.checkpoint, merge.kind) == (0, Work(), 0, "sh x.merge")


def test_a_deadline_is_known_by_the_field_it_was_written_in() -> None:
    tasks: dict[str, Any] = {
        "a": {"run": "x", "deadline": "1m", "parts": 2},
        "b": {"run": "x", "needs": ["a"]},
    }
    made = compile_spec({"kind": "graph", "tasks": tasks, "deadline": "1h"}, wall=WALL)
    assert made.due_by == {"a[0]": "tasks.a.deadline", "a[1]": "tasks.a.deadline", "b": "deadline"}
    assert compiled(run="x", deadline="1h").due_by == {"main": "deadline"}


@pytest.mark.parametrize(
    ("cut", "size"),
    [
        (Cut(), 10),  # floor(10 (1 - 0))
        (Cut(load=0.35), 6),  # floor(6.5)
        (Cut(load=1.0), 1),
        (Cut(spread=1.0), 5),  # one node is twice as fast as another
        (Cut(load=0.35, spread=9.0), 1),  # 6 / (1 + 3)
        (Cut(finer=4), 2),  # floor(10 / 4)
    ],
)
def test_a_busy_or_uneven_fleet_gets_smaller_parts(cut: Cut, size: int) -> None:
    made = compile_spec({"run": "x", "split": {"items": 100}}, wall=WALL, cut=lambda devices: cut)
    assert len(made.units) == -(-100 // size)
    bounded = {"run": "x", "split": {"items": 100, "min": 4, "max": 5}}
    made = compile_spec(bounded, wall=WALL, cut=lambda devices: cut)
    assert len(made.units) == -(-100 // min(5, max(4, size)))


def test_what_a_unit_loses_when_it_yields_can_be_said() -> None:
    [unit] = compiled(run="x", checkpoint={"every": "5m", "restore": "30s"}, preemptible=False, weight=2.5).units
    assert (unit.checkpoint, unit.restore, unit.preemptible, unit.weight) == (5 * MINUTE, 30 * SECOND, False, 2500)
    assert compiled(run="x", checkpoint="5m").units[0].checkpoint == 5 * MINUTE


def test_what_serves_says_so() -> None:
    assert compiled(run="x", serves="digits-1 serves digits").units[0].serves == "digits-1 serves digits"
    for text in ("x" * 2000, "a\0b"):
        assert refused({"run": "x", "serves": text}).field == "serves"


def test_exclusive_work_has_a_second_to_end() -> None:
    [fenced], [exclusive] = compiled(run="x").units, compiled(run="x", lease="exclusive").units
    assert (fenced.lease, fenced.grace) == ("fenced", 10 * SECOND)
    assert (exclusive.lease, exclusive.grace) == ("exclusive", 1 * SECOND)
    assert compiled(run="x", lease="exclusive", grace="500ms").units[0].grace == SECOND // 2


def test_exclusive_work_that_wants_more_time_to_end_is_refused() -> None:
    with pytest.raises(SpecError) as raised:
        compiled(run="x", lease="exclusive", grace="10s")
    record = raised.value.record
    assert (record.field, record.need, record.have, record.hint) == ("grace", "at most 1s", "10s", "grace: 1s")


# --- what is wrong ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("fields", "code", "field"),
    [
        ({"resources": {"gpu_share": 0.5}}, "E102", "resources.gpu_share"),
        ({"resources": {"gpu": 1, "gpu_share": 1.1}}, "E103", "resources.gpu_share"),
        ({"resources": {"gpu": 1, "gpu_share": 0}}, "E103", "resources.gpu_share"),
        ({"resources": {"gpu_model": "H100"}}, "E102", "resources.gpu_model"),
        ({"resources": {"gpu": 1, "precision": "fp17"}}, "E102", "resources.precision"),
        ({"resources": {"network": "10 apples"}}, "E103", "resources.network"),
        ({"workers": "4..2"}, "E103", "workers"),
        ({"workers": "many"}, "E103", "workers"),
        ({"workers": {"min": 0, "max": 2}}, "E103", "workers"),
        ({"workers": 2, "split": {"items": 3}}, "E102", "parts"),
        ({"split": {"items": 0}}, "E103", "split.items"),
        ({"split": {"items": 5, "size": 0}}, "E103", "split.size"),
        ({"split": {"items": 5, "min": 3, "max": 2}}, "E103", "split.min"),
        ({"split": {"items": 2_000_000, "size": 1}}, "E103", "split.size"),
        ({"parts": 2, "split": {"items": 5}}, "E102", "split"),
        ({"artifacts": {"cpu": {"run": "y"}}}, "E102", "run"),
        ({"weight": 0}, "E103", "weight"),
        ({"weight": math.nan}, "E103", "weight"),
        ({"checkpoint": "soon"}, "E103", "checkpoint"),
        ({"work": {"flops": "much"}}, "E103", "work.flops"),
    ],
)
def test_what_makes_no_sense_is_refused_where_it_stands(fields: dict[str, Any], code: str, field: str) -> None:
    error = refused({"run": "x"} | fields)
    assert (error.code, error.field) == (code, field)


def test_an_artifact_for_the_cpu_has_no_devices() -> None:
    error = refused({"artifacts": {"cuda": {"run": "x"}, "cpu": {"run": "y"}}, "resources": {"gpu": 1}})
    assert (error.field, error.hint) == ("artifacts.cpu.resources.gpu", "gpu: 0")


def test_a_cycle_is_named() -> None:
    tasks = {"a": {"run": "x", "needs": ["c"]}, "b": {"run": "x", "needs": ["a"]}, "c": {"run": "x", "needs": ["b"]}}
    error = refused({"kind": "graph", "tasks": tasks})
    assert (error.code, error.message) == ("E106", "the graph has a cycle: a -> b -> c -> a")
    assert error.field == "tasks.a.needs[0]"
    assert "`c` from `tasks.a.needs`" in error.hint


def test_a_task_cannot_need_itself() -> None:
    error = refused({"kind": "graph", "tasks": {"a": {"run": "x", "needs": ["a"]}}})
    assert error.message == "the graph has a cycle: a -> a"


def test_dangling_needs_name_a_near_miss() -> None:
    error = refused({"kind": "graph", "tasks": {"prepare": {"run": "x"}, "b": {"run": "x", "needs": ["prepair"]}}})
    assert (error.code, error.field, error.have) == ("E105", "tasks.b.needs[0]", "prepair")
    assert error.hint == "did you mean `prepare`?"
    error = refused({"kind": "graph", "tasks": {"prepare": {"run": "x"}, "b": {"run": "x", "needs": ["zzz"]}}})
    assert error.hint == "the graph has: prepare, b"


@pytest.mark.parametrize(
    ("tasks", "twice"),
    [
        ({"a": {"run": "x", "parts": 2, "merge": "y"}, "a.merge": {"run": "x"}}, "a.merge"),
        ({"a": {"run": "x", "parts": 1, "merge": "y"}, "a.merge": {"run": "x", "workers": 2}}, "a.merge"),
    ],
)
def test_made_names_do_not_meet_written_ones(tasks: Any, twice: str) -> None:
    error = refused({"kind": "graph", "tasks": tasks})
    assert (error.code, error.have, error.field) == ("E107", twice, f"tasks.{twice}")


@pytest.mark.parametrize("name", ["", "a[0]", "-a", "a b", "a/b", "a" * 64, "ä", "a\n"])
def test_names_that_could_be_mistaken_are_refused(name: str) -> None:
    error = refused({"kind": "graph", "tasks": {name: {"run": "x"}}})
    assert (error.code, error.field) == ("E107", f"tasks.{name}")


def test_a_job_cannot_be_named_like_an_id() -> None:
    assert refused({"run": "x", "name": "j17"}).code == "E107"
    assert compiled(run="x", name="j17b").name == "j17b"


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("cpu", -1), ("cpu", "-1"), ("cpu", math.nan), ("cpu", math.inf), ("cpu", "1e9"), ("cpu", 10**9),
        ("cpu", 10**400), ("cpu", "2 apples"), ("memory", "12 parsecs"), ("memory", "-1GiB"), ("memory", "99999TiB"),
        ("memory", "12Gb/s"), ("memory", math.nan), ("gpu_memory", "lots"), ("memory", "9" * 5000),
    ],
)  # fmt: skip
def test_absurd_quantities_name_the_field(field: str, value: Any) -> None:
    error = refused({"run": "x", "resources": {"gpu": 1, field: value}})
    assert (error.code, error.field) == ("E103", f"resources.{field}")
    assert error.need and error.have
    assert len(error.need) < 300 and len(error.have) <= 80


def test_a_float_of_bytes_is_a_quantity_too() -> None:
    assert compiled(run="x", resources={"memory": 1.5e9}).units[0].shape.memory == 1_500_000_000


@pytest.mark.parametrize(
    ("document", "code", "field"),
    [
        ({"run": "x", "resources": {"gpu": -1}}, "E103", "resources.gpu"),
        ({"run": "x", "resources": {"gpu": 10**6}}, "E103", "resources.gpu"),
        ({"run": "x", "resources": {"gpu_memory": "1GiB"}}, "E102", "resources.gpu_memory"),
        ({"run": "x", "workers": 0}, "E103", "workers"),
        ({"run": "x", "workers": -3}, "E103", "workers"),
        ({"run": "x", "workers": 10**30}, "E103", "workers"),
        ({"run": "x", "workers": 2.5}, "E102", "workers"),
        ({"run": "x", "parts": -1}, "E103", "parts"),
        ({"run": "x", "parts": 2, "workers": 2}, "E102", "parts"),
        ({"run": "x", "merge": "y"}, "E102", "merge"),
        ({"run": "x", "parts": 2, "merge": " "}, "E104", "merge"),
        ({"run": "x", "retry": {"limit": -1}}, "E103", "retry.limit"),
        ({"run": "x", "retry": {"backoff": "soon"}}, "E103", "retry.backoff"),
        ({"run": "x", "grace": "-1s"}, "E103", "grace"),
        ({"run": "x", "hang": "0.5s"}, "E103", "hang"),
        ({"run": "x", "hang": "1m", "calls": True}, "E105", "hang"),
        ({"run": "x", "expect": "a while"}, "E103", "expect"),
        ({"run": "x", "deadline": 0}, "E108", "deadline"),
        ({"run": "x", "deadline": "2020-01-01T00:00:00Z"}, "E108", "deadline"),
        ({"run": "x", "deadline": "2020-13-01T00:00:00Z"}, "E103", "deadline"),
        ({"run": "x", "deadline": "2030-01-01T00:00:00"}, "E103", "deadline"),
        ({"run": "x", "deadline": "9999-01-01T00:00:00Z"}, "E103", "deadline"),
        ({"run": "x", "deadline": "99999d"}, "E103", "deadline"),
        ({"run": "x", "deadline": 10**400}, "E103", "deadline"),
        ({}, "E104", "run"),
        ({"run": ""}, "E104", "run"),
        ({"run": "  \n"}, "E104", "run"),
        ({"run": []}, "E104", "run"),
        ({"run": ["", "a"]}, "E104", "run"),
        ({"run": "a\0b"}, "E104", "run"),
        ({"run": ["a", "\ud800"]}, "E104", "run"),
        ({"run": ["a" * 200_000]}, "E103", "run"),
        ({"run": ["a", 1]}, "E102", "run[1]"),
        ({"run": None}, "E102", "run"),
        ({"run": {"a": 1}}, "E102", "run"),
        ({"run": "x", "env": {"A": "a\0b"}}, "E102", "env.A"),
        ({"run": "x", "env": {"A": True}}, "E102", "env.A"),
        ({"run": "x", "env": {"A": [1]}}, "E102", "env.A"),
        ({"run": "x", "env": {"A": None}}, "E102", "env.A"),
        ({"run": "x", "env": {"1A": "x"}}, "E107", "env.1A"),
        ({"run": "x", "env": {"A\0": "x"}}, "E107", "env.A\0"),
        ({"run": "x", "env": {1: "x"}}, "E102", "env"),
        ({"run": "x", "folder": "/a\0b"}, "E102", "folder"),
        ({"run": "x", "class": "k" * 1000}, "E103", "class"),
        ({"run": "x", "after": "a"}, "E102", "after"),
        ({"run": "x", "needs": ["a"]}, "E105", "needs"),
        ({"run": "x", "resources": None}, "E102", "resources"),
        ({"run": "x", "tasks": {"a": {}}}, "E102", "kind"),
        ({"kind": "graph"}, "E104", "tasks"),
        ({"kind": "graph", "tasks": {"a": None}}, "E102", "tasks.a"),
        ({"kind": "graph", "tasks": {"a": {}}}, "E104", "tasks.a.run"),
        ({"kind": "graph", "tasks": {"a": {"run": 1}}}, "E102", "tasks.a.run"),
        ({"kind": "graph", "tasks": {"a": {"run": "x", "resources": {"cpu": "x"}}}}, "E103", "tasks.a.resources.cpu"),
        ({"kind": "graph", "tasks": {1: {"run": "x"}}}, "E102", "tasks"),
        ({"kind": "graph", "run": "x", "tasks": {"a": {"run": "x"}}}, "E102", "run"),
        ({"kind": "graph", "resources": {"gpu": 1}, "tasks": {"a": {"run": "x"}}}, "E102", "resources"),
        ({"kind": "graph", "class": "x", "tasks": {"a": {"run": "x"}}}, "E102", "class"),
        (None, "E102", ""), ([], "E102", ""), ("run: x", "E102", ""), ({1: "x"}, "E102", ""),
    ],
)  # fmt: skip
def test_each_mistake_names_its_code_and_field(document: Any, code: str, field: str) -> None:
    error = refused(document)
    assert (error.code, error.field) == (code, field)


@pytest.mark.parametrize(
    ("document", "field", "hint"),
    [
        ({"run": "x", "resorces": {}}, "resorces", "did you mean `resources`?"),
        ({"run": "x", "memry": "8GiB"}, "memry", "did you mean `resources: {memory: …}`?"),
        ({"run": "x", "retries": 2}, "retries", "retry: {limit: 2}"),
        ({"run": "x", "resources": {"cpus": 1}}, "resources.cpus", "did you mean `cpu`?"),
        ({"run": "x", "retry": {"limits": 1}}, "retry.limits", "did you mean `limit`?"),
        ({"kind": "graph", "tasks": {"a": {"run": "x", "need": []}}}, "tasks.a.need", "did you mean `needs`?"),
        ({"kind": "grph", "run": "x"}, "kind", "did you mean `graph`?"),
        ({"run": "x", "priority": "hihg"}, "priority", "did you mean `high`?"),
        ({"run": "x", "retry": {"when": ["oom", "los"]}}, "retry.when[1]", "did you mean `lost`?"),
    ],
)
def test_what_is_unknown_has_a_near_miss(document: Any, field: str, hint: str) -> None:
    error = refused(document)
    assert (error.code, error.field, error.hint) == ("E102", field, hint)


def test_a_choice_says_what_there_is() -> None:
    assert refused({"run": "x", "priority": "now"}).need == "urgent, high, medium, low"


@pytest.mark.parametrize(
    "document",
    [
        {"run": "x", "workers": 10_001},
        {"kind": "graph", "tasks": {f"t{n}": {"run": "x", "parts": 10_000} for n in range(200)}},
        {"run": "x" * 100_000, "parts": 10_000},
        {"kind": "graph", "tasks": {"a": {"run": "x", "parts": 10_000, "env": {"A": "x" * 100_000}}}},
        {
            "kind": "graph",
            "tasks": {"a": {"run": "x", "parts": 4000}, "b": {"run": "x", "parts": 4000, "needs": ["a"]}},
        },
    ],
)
def test_a_small_file_cannot_ask_for_the_memory_of_the_machine(document: Any) -> None:
    assert refused(document).code == "E103"


# --- anything --------------------------------------------------------------------------------------------------------

_words = st.sampled_from(
    ["run", "tasks", "needs", "a", "b", "a.merge", "kind", "graph", "resources", "cpu", "gpu", "parts", "merge",
     "retry", "when", "deadline", "by", "if-late", "cancel", "env", "class", "workers", "1h", "-1", "priority", "high"]
)  # fmt: skip
_values = st.recursive(
    st.none() | st.booleans() | st.integers(-3, 5) | st.integers() | st.floats() | _words | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(_words | st.text(max_size=3), inner, max_size=4),
    max_leaves=12,
)


@given(_values)
def test_any_document_compiles_or_is_refused_with_a_code(document: Any) -> None:
    """And what compiles can be written to the log and read back."""
    for given_document in (document, {"run": "x", **document} if isinstance(document, dict) else document):
        try:
            made = compile_spec(given_document, wall=WALL)
        except SpecError as error:
            assert error.record.code in CODES
            continue
        event = JobSubmitted(at=1, job=made.job("j1", {}))
        assert decode_event(encode_event(event)) == event


@given(
    st.dictionaries(
        st.sampled_from("abcdef"),
        st.fixed_dictionaries(
            {"run": st.just("x")},
            optional={
                "needs": st.lists(st.sampled_from("abcdef"), max_size=3),
                "parts": st.integers(0, 3),
                "merge": st.just("y"),
                "workers": st.integers(1, 3),
            },
        ),
        min_size=1,
    )
)
def test_a_compiled_graph_is_whole(tasks: dict[str, Any]) -> None:
    """Names are unique, every need is there, and there is an order."""
    try:
        made = compile_spec({"kind": "graph", "tasks": tasks}, wall=WALL)
    except SpecError:
        return
    names = [unit.name for unit in made.units]
    assert len(set(names)) == len(names)
    assert all(need in names for unit in made.units for need in unit.needs)
    tasks_made = [task.name for unit in made.units for task in unit.tasks]
    assert len(set(tasks_made)) == len(tasks_made)
    assert isinstance(msgspec.to_builtins(Job(id="j1", units=made.units)), dict)


@pytest.mark.parametrize(
    ("fields", "field"),
    [
        ({"split": {"items": 5, "size": "x"}}, "split.size"),
        ({"resources": {"gpu": 1, "gpu_share": 1e308}}, "resources.gpu_share"),
        ({"resources": {"gpu": 1, "gpu_share": float("nan")}}, "resources.gpu_share"),
        ({"resources": {"gpu": 1, "gpu_share": 0}}, "resources.gpu_share"),
        ({"retry": {"when": ["failed", "x"]}}, "retry.when[1]"),
    ],
)
def test_what_is_no_number_or_no_known_word_is_refused_by_its_field(fields: dict[str, Any], field: str) -> None:
    with pytest.raises(SpecError) as refused:
        compile_spec({"run": "true", **fields}, wall=WALL)
    assert refused.value.record.field == field


def test_a_number_of_workers_may_be_text() -> None:
    assert len(compile_spec({"run": "true", "workers": "3"}, wall=WALL).units[0].tasks) == 3


def test_the_hint_for_a_date_without_a_zone_can_be_typed() -> None:
    with pytest.raises(SpecError) as caught:
        compile_spec({"run": "x", "deadline": "2026-12-01"}, wall=0.0)
    assert caught.value.record.hint == "2026-12-01T00:00:00Z"
