from typing import Any

import pytest

from poise.errors import ErrorRecord, SpecError
from poise.model.arrays import MAX_PARTS, part_of
from poise.model.job_fields import MAX_TASKS
from poise.model.spec import compile_spec
from poise.model.sweep import values_in


def tried(sweep: Any, **fields: Any) -> list[dict[str, str]]:
    made = compile_spec({"run": "x", "sweep": sweep} | fields, wall=0.0)
    return [values_in(unit.tasks[0].env) for unit in made.units if not unit.name.endswith(".merge")]


def refused(sweep: Any, **fields: Any) -> ErrorRecord:
    with pytest.raises(SpecError) as caught:
        tried(sweep, **fields)
    assert not caught.value.record.others
    return caught.value.record


def test_every_value_with_every_other() -> None:
    assert tried({"lr": [0.1, 1e-5], "seed": "1..3"}) == [
        {"lr": lr, "seed": seed} for lr in ("0.1", "1e-05") for seed in ("1", "2", "3")
    ]


def test_side_by_side_and_as_listed() -> None:
    both = [{"lr": "0.1", "fast": "true"}, {"lr": "0.01", "fast": "false"}]
    assert tried({"zip": {"lr": [0.1, 0.01], "fast": [True, False]}}) == both
    assert tried([{"lr": 0.1, "fast": True}, {"lr": 0.01, "fast": False}]) == both
    assert len(tried({"zip": {"lr": [0.1, 0.01], "n": "1..2"}, "seed": "0..99:2"})) == 100


def test_a_list_of_words_gets_the_values_and_a_text_gets_variables() -> None:
    made = compile_spec({"run": ["t.py", "--lr=${lr}", "{lr}", "{other}"], "sweep": {"lr": ["a b"]}}, wall=0.0)
    assert made.units[0].tasks[0].argv == ("t.py", "--lr=a b", "a b", "{other}")
    made = compile_spec({"run": "t.py --lr ${lr} ${HOME}", "sweep": {"lr": ["a; rm x"]}}, wall=0.0)
    assert made.units[0].tasks[0].argv[2] == "t.py --lr ${POISE_SWEEP_LR} ${HOME}"


@pytest.mark.parametrize("kind", ["job", "graph"])
def test_the_environment_is_filled_in(kind: str) -> None:
    task: dict[str, Any] = {"run": "x", "sweep": {"lr": [1, 2]}, "env": {"OUT": "out/{lr}", "A": "a"}}
    made = compile_spec(task if kind == "job" else {"kind": "graph", "tasks": {"main": task}}, wall=0.0)
    seen = [made.env | unit.tasks[0].env for unit in made.units]
    assert [env["OUT"] for env in seen] == ["out/1", "out/2"]
    assert {env["A"] for env in seen} == {"a"}


def test_a_sweep_is_cut_into_parts_and_can_be_merged() -> None:
    made = compile_spec({"run": "x", "sweep": {"n": "1..3"}, "merge": "y", "at_most": 2}, wall=0.0)
    assert [unit.name for unit in made.units] == ["main[0]", "main[1]", "main[2]", "main.merge"]
    assert [(unit.tasks[0].part, unit.tasks[0].parts, unit.at_most) for unit in made.units[:3]] == [
        (0, 3, 2),
        (1, 3, 2),
        (2, 3, 2),
    ]
    assert made.units[3].at_most == 0


@pytest.mark.parametrize(
    ("sweep", "code", "field"),
    [
        ({}, "E103", "sweep"),
        ([], "E103", "sweep"),
        ({"lr": []}, "E103", "sweep.lr"),
        ({"lr": "1-5"}, "E103", "sweep.lr"),
        ({"lr": "5..1"}, "E103", "sweep.lr"),
        ({"lr": "1..5:0"}, "E103", "sweep.lr"),
        ({"lr": "0..999999999999"}, "E103", "sweep.lr"),
        ({"a": "1..1000", "b": "1..1001"}, "E103", "sweep"),
        ({"LR": [1]}, "E107", "sweep.LR"),
        ({"zip": [1]}, "E107", "sweep.zip"),
        ({"zip": {"a": [1, 2], "b": [1]}}, "E103", "sweep.zip"),
        ({"zip": {"a": [1, 2]}, "a": [1]}, "E107", "sweep"),
        ({"lr": {"a": [1]}}, "E102", "sweep.lr"),
        ([{"a": 1}, {"b": 1}], "E102", "sweep[1]"),
        ([{}], "E103", "sweep[0]"),
        ({"lr": ["a\0"]}, "E102", "sweep"),
        ({"lr": [None]}, "E102", "sweep.lr[0]"),
        ({"lr": [[1]]}, "E102", "sweep.lr[0]"),
    ],
)
def test_what_is_wrong_with_a_sweep(sweep: Any, code: str, field: str) -> None:
    record = refused(sweep)
    assert (record.code, record.field) == (code, field)


def test_a_task_is_cut_in_one_way() -> None:
    assert refused({"a": [1, 2]}, parts=2).field == "sweep"
    assert refused({"a": [1, 2]}, workers=2).message == "a task is a gang or cut by data, not both"


def test_as_many_as_a_job_may_have() -> None:
    assert len(tried({"n": f"1..{MAX_TASKS}"})) == MAX_TASKS
    assert refused({"n": f"0..{MAX_PARTS}"}).need == f"at most {MAX_PARTS}"


def test_a_larger_one_is_a_rule() -> None:
    spec = {"run": ["x", "{lr}"], "sweep": {"lr": [0.1, 0.2], "n": f"1..{MAX_TASKS}"}, "merge": "y"}
    compiled = compile_spec(spec, wall=0.0)
    assert compiled.array is not None
    assert (compiled.size, len(compiled.units)) == (2 * MAX_TASKS + 1, 1)
    part = part_of(compiled.array, MAX_TASKS + 2)
    assert part.tasks[0].argv == ("x", "0.2")
    assert part.tasks[0].env == {"POISE_SWEEP_LR": "0.2", "POISE_SWEEP_N": "3"}


def test_at_most_is_of_parts() -> None:
    with pytest.raises(SpecError, match="`at_most` limits several tasks"):
        compile_spec({"run": "x", "at_most": 2}, wall=0.0)


@pytest.mark.parametrize("word", ["{lrr}", "--lr=${lrr}"])
def test_a_placeholder_that_is_nearly_a_name_of_the_sweep_is_refused(word: str) -> None:
    record = refused({"lr": [1, 2]}, run=["echo", word])
    assert (record.field, record.hint) == ("run", "did you mean `lr`?")
    assert refused({"lr": [1, 2]}, env={"OUT": word}).field == "env.OUT"
    tried({"lr": [1, 2]}, run="echo ${lrr}")  # a variable of the shell's own


def test_an_output_file_can_be_named_by_the_values() -> None:
    spec = {"run": ["true"], "sweep": {"lr": [0.1, "5%"], "seed": "1..2"}, "output": "out/${lr}_{seed}.log"}
    units = compile_spec(spec, wall=0.0).units
    assert [unit.output for unit in units] == ["out/0.1_1.log", "out/0.1_2.log", "out/5%%_1.log", "out/5%%_2.log"]
    for output, said in (("{lr}.log", "write to the same file"), ("{lr}_{seeds}_%r", "no sweep has this name")):
        with pytest.raises(SpecError, match=said):
            compile_spec(spec | {"output": output}, wall=0.0)
