"""Each field of a job is declared once."""

from typing import Any

import msgspec
import pytest

from poise.drivers.yamlfile import parse_yaml
from poise.errors import SpecError
from poise.model.fields import Declared, declared
from poise.model.job_fields import RECORDS, JobSpec, TaskSpec, flagged
from poise.model.jobs import Limits, Unit
from poise.model.spec import compile_spec

BESIDE: dict[str, dict[str, Any]] = {
    "run": {},
    "tasks": {"kind": "graph"},
    "kind": {"tasks": {"a": {"run": "x"}}},
    "merge": {"run": "x", "parts": 2},
    "at_most": {"run": "x", "parts": 2},
    "phases": {"run": "x", "resources": {"cpu": 8}},
    "artifacts": {},
    "notify-on": {"run": "x", "notify": ["command:mail"]},
    "time-zone": {"run": "x", "cron": "0 3 * * *"},
    "overlap": {"run": "x", "every": "1h"},
    "allow-failed": {"run": "x", "parts": 4},
}
"""What an example of a field needs beside it; `run` where nothing is said."""


def test_every_field_is_declared() -> None:
    for record in RECORDS:
        assert list(declared(record)) == [field.encode_name for field in msgspec.structs.fields(record)]


@pytest.mark.parametrize("of", [of for of in declared(JobSpec).values() if of.name != "needs"], ids=lambda of: of.name)
def test_a_hint_is_a_line_that_is_taken(of: Declared) -> None:
    line = parse_yaml(f"{of.name}: {of.field.example}", "hint")
    compile_spec(BESIDE.get(of.name, {"run": "x"}) | line, wall=0.0)


def test_no_two_flags_have_one_name() -> None:
    names = [name for _, _, flag in flagged() for name in (flag.name, flag.short) if name]
    assert len(names) == len(set(names))


def test_what_is_read_by_its_declaration_is_kept_under_its_name() -> None:
    assert {of.attribute for of in declared(TaskSpec).values() if of.field.read} <= set(Unit.__struct_fields__)
    assert set(Limits.__struct_fields__) <= set(Unit.__struct_fields__)


def test_a_value_that_is_read_names_its_field_and_a_default_costs_nothing() -> None:
    with pytest.raises(SpecError) as caught:
        compile_spec({"run": "x", "expect": "soon", "weight": 0}, wall=0.0)
    assert [one.field for one in caught.value.record.all()] == ["expect", "weight"]
    assert [one.hint for one in caught.value.record.all()] == ["expect: 10m", "weight: 2.5"]
    [unit] = compile_spec({"run": "x", "expect": "90s", "hang": "2s", "weight": 2}, wall=0.0).units
    assert (unit.expect, unit.hang, unit.weight) == (90 * 10**9, 2 * 10**9, 2000)
