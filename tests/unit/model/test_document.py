from itertools import chain, count
from typing import Any

import hypothesis.strategies as st
import msgspec
import pytest
from hypothesis import given, settings

from poise.errors import ErrorRecord, SpecError
from poise.model.document import MAX_FOUND, MAX_TOLD, Findings, near
from poise.model.fields import parse_or_raise
from poise.model.fleetfile import compile_fleet
from poise.model.job_fields import JobSpec, ResourcesSpec
from poise.model.spec import compile_spec
from poise.policy.recipe import compile_recipe
from poise.units import parse_cpu


def told(document: Any, compile_document: Any = None) -> dict[str, ErrorRecord]:
    with pytest.raises(SpecError) as caught:
        (compile_document or (lambda given: compile_spec(given, wall=0.0)))(document)
    records = caught.value.record.all()
    assert len({record.field for record in records}) == len(records)
    assert all(record.hint for record in records)
    return {record.field: record for record in records}


def test_everything_wrong_is_told_at_once() -> None:
    found = Findings()
    spec = found.convert({"gpus": 1, "cpu": "many"}, ResourcesSpec, "resources")
    assert spec is not None
    found.get(1000, parse_or_raise, parse_cpu, spec.cpu, "resources.cpu", 10**9)
    with pytest.raises(SpecError) as caught:
        found.check()
    first, second = caught.value.record.all()
    assert (first.field, first.hint) == ("resources.gpus", "did you mean `gpu`?")
    assert (second.field, second.code, second.have) == ("resources.cpu", "E103", "many")


def test_a_job_with_several_mistakes() -> None:
    records = told(
        {
            "run": ["python", 1],
            "priority": "hihg",
            "array": 3,
            "retry": {"limit": -1, "when": ["los"]},
            "env": {"A": True, "1": "x"},
            "grace": "soon",
            "resources": {"memory": "12 parsecs", "gpu_model": "H100"},
        }
    )
    assert set(records) == {
        "run[1]", "priority", "array", "retry.limit", "retry.when[0]", "env.A", "env.1",
        "resources.memory", "resources.gpu_model", "grace",
    }  # fmt: skip
    assert (records["run[1]"].need, records["run[1]"].have) == ("a text", "1")
    assert records["run[1]"].hint == "put it in quotes"
    assert records["array"].hint == "did you mean `parts`?"


def test_what_is_wrong_in_a_misspelt_mapping_is_told_too() -> None:
    records = told({"run": "x", "resorces": {"gpus": 1, "memory": "lots", "cpu": 2}, "retyr": {"limit": -1}})
    assert set(records) == {"resorces", "resorces.gpus", "resorces.memory", "retyr", "retyr.limit"}
    assert records["resorces"].hint == "did you mean `resources`?"
    assert set(told({"run": "x", "resorces": {"cpu": "many"}, "resources": {"cpu": 1}})) == {"resorces"}


def test_a_duration_with_long_units_is_told_in_short_ones() -> None:
    records = told({"run": "x", "time-limit": "7days", "grace": "1 hour 30 minutes", "expect": "soon"})
    assert records["time-limit"].hint == "did you mean `7d`?"
    assert records["grace"].hint == "did you mean `1h30m`?"
    assert "did you mean" not in records["expect"].hint


def test_a_graph_tells_of_every_task_and_of_every_cycle() -> None:
    tasks = {
        "a": {"run": "x", "needs": ["b", "nobody"], "gpu": 1},
        "b": {"rn": "x", "needs": ["a"]},
        "c": {"run": "x", "needs": ["d"], "workers": 0},
        "d": {"run": " ", "needs": ["c"]},
    }
    records = told({"kind": "graph", "tasks": tasks})
    assert set(records) == {
        "tasks.a.gpu", "tasks.b.rn", "tasks.a.needs[1]", "tasks.a.needs[0]", "tasks.c.needs[0]",
        "tasks.c.workers", "tasks.d.run",
    }  # fmt: skip
    assert records["tasks.a.gpu"].hint == "it belongs in `resources`: `resources: {gpu: …}`"


@pytest.mark.parametrize(
    ("document", "fields"),
    [
        ({"run": "x", "resources": {"gpu": "one", "gpu_share": 0.5, "gpu_memory": "1GB"}}, ["resources.gpu"]),
        ({"run": "x", "parts": "four", "merge": "y", "at_most": 2}, ["parts"]),
        ({"run": "x", "split": {"size": 3}, "merge": "y"}, ["split.items"]),
        ({"run": "x", "sweep": {"lr": "fast"}, "merge": "y"}, ["sweep.lr"]),
        ({"rn": "x"}, ["rn"]),
        ({"run": 5}, ["run"]),
        ({"kind": "grph", "tasks": {"a": {"run": "x"}}}, ["kind"]),
        ({"kind": "graph", "tasks": {"a": 5, "b": {"run": "x", "needs": ["a"]}}}, ["tasks.a"]),
        ({"artifacts": {"cuda": 5}}, ["artifacts.cuda"]),
    ],
)
def test_what_only_follows_from_a_mistake_is_not_told(document: Any, fields: list[str]) -> None:
    assert list(told(document)) == fields


def test_a_fleet_with_several_mistakes() -> None:
    document = {
        "kind": "fleet",
        "name": "-",
        "nodes": {
            "a": {"cpu": "some", "devices": [{"model": "H100", "count": 0}, {"model": "Abacus", "rates": {"fb16": 1}}]},
            "b": {"cpu": 1, "memory": "1GiB", "links": [{"a": 0, "b": 1}], "labels": {"x": []}},
        },
        "throughputs": {"resnet": {"H100": 0, "Sundial": 1.0}},
    }
    assert set(told(document, compile_fleet)) == {
        "name", "nodes.a.memory", "nodes.a.cpu", "nodes.a.devices[0].count", "nodes.a.devices[1].memory",
        "nodes.a.devices[1].rates.fb16", "nodes.b.links[0].a", "nodes.b.links[0].b", "nodes.b.labels.x",
        "throughputs.resnet.H100", "throughputs.resnet.Sundial",
    }  # fmt: skip


def test_a_policy_with_several_mistakes() -> None:
    document = {
        "kind": "policy",
        "extends": "poisse",
        "order": {"waitin": 1, "urgency": "much"},
        "preempt": {"by": "klass", "budget": -1},
        "triggers": {"use_above": "140%"},
        "elastc": True,
    }
    assert set(told(document, compile_recipe)) == {
        "name", "extends", "order.waitin", "order.urgency", "preempt.by", "preempt.budget", "triggers.use_above",
        "elastc",
    }  # fmt: skip


def test_of_very_many_errors_so_many_are_told() -> None:
    with pytest.raises(SpecError) as caught:
        compile_spec({"kind": "graph", "tasks": {f"t{n}": {"run": n} for n in range(MAX_TOLD + 50)}}, wall=0.0)
    records = caught.value.record.all()
    assert (len(records), records[-1].message) == (MAX_TOLD + 1, "and 50 more errors")


@pytest.mark.parametrize("wrong", [1, {"run": "true", "x": 1}])
def test_a_document_of_nothing_but_errors_is_not_looked_at_to_its_end(wrong: Any) -> None:
    """A request of 4 MiB may hold hundreds of thousands."""
    with pytest.raises(SpecError) as caught:
        compile_spec({"kind": "graph", "tasks": dict.fromkeys(map(str, range(2 * MAX_FOUND)), wrong)}, wall=0.0)
    assert caught.value.record.others[-1].message == f"and at least {MAX_FOUND - MAX_TOLD} more errors"


def test_tasks_beyond_all_bounds_are_counted_and_not_looked_at() -> None:
    with pytest.raises(SpecError, match="the job has too many tasks") as caught:
        compile_spec({"kind": "graph", "tasks": {f"{n} ": {"run": ["true"]} for n in range(10_001)}}, wall=0.0)
    assert not caught.value.record.others


def test_errors_travel_together() -> None:
    with pytest.raises(SpecError) as caught:
        compile_spec({"rn": "x", "priorty": "high"}, wall=0.0)
    sent = msgspec.json.encode(caught.value.record)
    assert msgspec.json.decode(sent, type=ErrorRecord) == caught.value.record
    assert len(msgspec.json.decode(sent)["others"]) == 1


NAMES = ["run", "kind", "tasks", "needs", "resources", "gpu", "cpu", "env", "sweep", "workers", "min", "retry", "when"]
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-5, 5) | st.floats() | st.sampled_from(["x", "graph", "1..3", "lost"]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(NAMES), inner, max_size=4),
    max_leaves=12,
)


@settings(max_examples=150, deadline=None)
@given(st.dictionaries(st.sampled_from(NAMES), VALUES, max_size=5))
def test_what_is_refused_is_found_field_by_field(document: Any) -> None:
    found = Findings()
    found.convert(document, JobSpec)
    try:
        found.check()
    except SpecError as error:
        assert not any("$" in record.message or "`str`" in record.message for record in error.record.all())
    else:
        msgspec.convert(document, JobSpec, strict=True, str_keys=True)


def test_a_hint_is_looked_for_among_the_first_names_however_many_there_are() -> None:
    names = chain(["train"], (f"j{number}" for number in count()))
    assert near("trian", names) == "did you mean `train`?"
