"""Errors of files tell the line and column of each field."""

import os
from pathlib import Path

import msgspec
import pytest

from poise.cli.directives import no_flags
from poise.cli.nodes import read_fleet
from poise.cli.render import show_error
from poise.cli.submit import asked_for
from poise.drivers.yamlfile import load_yaml, parse_yaml, place_in_file
from poise.errors import SpecError, located
from poise.model.spec import compile_spec

JOB = """\
kind: graph
tasks:
  prepare:
    run: [python, prepare.py]
  train:
    needs:
      - prepare
      - prepair
    resources: {gpus: 1, memory: lots}
    run: x
"""


def test_each_error_has_line_and_column(tmp_path: Path) -> None:
    path = tmp_path / "job.yaml"
    path.write_text(JOB)
    with pytest.raises(SpecError) as caught, located(place_in_file(path)):
        compile_spec(load_yaml(path), wall=0.0)
    assert {record.field: record.at for record in caught.value.record.all()} == {
        "tasks.train.resources.gpus": f"{path}:9:17",
        "tasks.train.needs[1]": f"{path}:8:9",
        "tasks.train.resources.memory": f"{path}:9:26",
    }


def test_they_are_shown_in_the_order_of_the_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "fleet.yaml"
    path.write_text("kind: fleet\nthroughputs: {a: {Sundial: 1}}\nnodes:\n  n: {cpu: 8, memory: much}\n")
    with pytest.raises(SpecError) as caught:
        read_fleet(path)
    show_error(caught.value, as_json=False)
    shown = capsys.readouterr().err
    assert shown.index("fleet.yaml:2:19") < shown.index("fleet.yaml:4:15")
    assert shown.endswith("2 errors\n")


def test_a_flag_has_no_place_in_the_file(tmp_path: Path) -> None:
    path = tmp_path / "job.yaml"
    path.write_text("run: x\nresources: {cpu: 1, memory: 1GiB}\nenv: {A: 1}\n")
    spec, place = asked_for([str(path)], no_flags() | {"cpu": "many", "priority": "low"})
    assert spec["resources"] == {"cpu": "many", "memory": "1GiB"}
    assert (place("resources.cpu"), place("priority"), place("folder")) == ("", "", "")
    assert (place("resources.memory"), place("env.B")) == (f"{path}:2:21", f"{path}:3:1")


def test_keys_given_twice_are_told_together(tmp_path: Path) -> None:
    path = tmp_path / "job.yaml"
    path.write_text("run: x\nrun: y\nenv: {A: 1, A: 2, 3: x, [1]: y}\n[2]: z\n")
    with pytest.raises(SpecError) as caught:
        load_yaml(path)
    assert [record.field.removeprefix(f"{path}:") for record in caught.value.record.all()] == [
        "2:1", "3:13", "3:19", "3:25", "4:1",
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("text", "hint"),
    [
        ("run: echo a: b\n", 'run: "echo a: b"'),
        ("run: true\n\tname: x\n", "look at line 2: `name: x`"),
    ],
)
def test_what_is_not_yaml_hints_at_the_line(text: str, hint: str) -> None:
    with pytest.raises(SpecError, match="this is not YAML") as caught:
        parse_yaml(text, "job.yaml")
    assert caught.value.record.hint == hint


def test_values_that_become_text_arrive_as_written() -> None:
    """A number may have an alias in a field for numbers."""
    text = """\
run: "echo ${lr} ${on}"
at_most: &two 2
env: {A: 12.10, B: 012, C: 1e3, D: -0, E: 2024-01-01, F: .inf, G: 0x10, H: *two, I: 1_000}
sweep: {lr: [1e-3, 0.10], on: [True, true, 1.0]}
"""
    document = parse_yaml(text, "job.yaml")
    assert document["env"] == {
        "A": "12.10", "B": "012", "C": "1e3", "D": "-0", "E": "2024-01-01", "F": ".inf", "G": "0x10", "H": "2",
        "I": "1_000",
    }  # fmt: skip
    assert document["sweep"] == {"lr": ["1e-3", "0.10"], "on": ["True", "true", "1.0"]}
    assert document["at_most"] == 2
    compile_spec(document, wall=0.0)


def test_values_of_a_task_and_of_a_canary_arrive_as_written() -> None:
    task = "env: {run: x, env: {A: 1.50}, resources: {cpu: 1.50}}"
    assert parse_yaml(f"tasks: {{{task}}}", "job.yaml")["tasks"] == {
        "env": {"run": "x", "env": {"A": "1.50"}, "resources": {"cpu": 1.5}}
    }
    assert parse_yaml("canary: {env: {A: 1.50}}", "service.yaml") == {"canary": {"env": {"A": "1.50"}}}


@pytest.mark.parametrize("value", ["true", "null"])
def test_values_of_variables_that_yaml_would_change_are_refused_with_quotes_in_the_hint(value: str) -> None:
    with pytest.raises(SpecError) as caught:
        compile_spec(parse_yaml(f"run: x\nenv: {{A: {value}}}", "job.yaml"), wall=0.0)
    assert caught.value.record.field == "env.A"
    assert f'A: "{value}"' in caught.value.record.hint


@pytest.mark.parametrize("value", [".nan", ".inf", "-.inf", "1e400"])
def test_a_number_that_is_not_finite_is_named(value: str) -> None:
    """JSON has no such number: it becomes `null` on its way to the control plane."""
    document = parse_yaml(f"run: x\ntime-limit: {value}\nat_most: {value}\nresources: {{cpu: {value}}}", "job.yaml")
    with pytest.raises(SpecError) as caught:
        compile_spec(msgspec.json.decode(msgspec.json.encode(document)), wall=0.0)
    have = {record.field: record.have for record in caught.value.record.all()}
    assert set(have) == {"time-limit", "at_most", "resources.cpu"}
    assert all(value in one for one in have.values())


@pytest.mark.parametrize("kind", ["pipe", "device"])
def test_a_pipe_or_a_device_is_not_read_again_for_places(kind: str, tmp_path: Path) -> None:
    """`poise serve /dev/zero` read until the memory was full, and a named pipe was waited for without end."""
    path = Path("/dev/zero")
    if kind == "pipe":
        path = tmp_path / "job.yaml"
        os.mkfifo(path)
    assert place_in_file(path)("run") == ""
