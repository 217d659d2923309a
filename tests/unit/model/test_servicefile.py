"""What people write of a service, its scaling and its precision, and what they are told of it."""

from typing import Any

import pytest

from poise.errors import SpecError
from poise.model.scaling import Announced
from poise.model.servicefile import DeclaredService, check_processes, compile_service
from poise.units import MILLISECOND, MINUTE, SECOND

PROMISED = {"latency_p99": "200ms"}


def compiled(**fields: Any) -> DeclaredService:
    return compile_service({"kind": "service", "name": "digits", "model": "app.py:Model"} | fields)


def test_scaling_beside_training() -> None:
    made = compiled(replicas="1..4", objective=PROMISED, scaling={"shared": True, "window": "2s", "fall": "1m"})
    assert made.rules is not None
    assert (made.rules.shared, made.rules.fall, made.rules.latency_p99) == (True, MINUTE, 200 * MILLISECOND)
    assert made.window == 2 * SECOND
    assert compiled(replicas="1..4").window == 10 * SECOND


@pytest.mark.parametrize(
    ("fields", "field", "need"),
    [
        ({"replicas": "1..4", "scaling": {"shared": True}}, "scaling.shared", "an objective"),
        ({"replicas": "1..4", "scaling": {"window": "100ms"}}, "scaling.window", "1s or more"),
        ({"replicas": "1..4", "scaling": {"window": "soon"}}, "scaling.window", ""),
        ({"batch_wait": "soon"}, "batch_wait", ""),
        ({"replicas": 4, "objective": PROMISED, "scaling": {"shared": True}}, "scaling", "replicas: 1..8"),
        ({"process": "small", "replicas": "1..4"}, "replicas", "a number"),
        ({"process": "small", "workers": 2}, "workers", "1"),
        ({"process": "Not a name"}, "process", ""),
    ],
)
def test_what_is_wrong_is_told(fields: dict[str, Any], field: str, need: str) -> None:
    with pytest.raises(SpecError) as caught:
        compiled(**fields)
    assert caught.value.record.field == field
    assert need in caught.value.record.need


def test_models_of_one_process_want_the_same_one() -> None:
    small = {"process": "small", "resources": {"cpu": 1}}
    alike = [compiled(name="a", **small), compiled(name="b", **small, batch=2), compiled(name="c")]
    check_processes(alike)
    with pytest.raises(SpecError, match="`a` and `d` share the process `small`, but differ in replicas, resources"):
        check_processes([*alike, compiled(name="d", process="small", replicas=2)])


def test_a_batch_waits_as_long_as_the_file_says_and_not_at_all_without() -> None:
    assert compiled(batch_wait="5ms").limits.wait == 5 * MILLISECOND
    assert compiled().limits.wait == 0


def test_what_is_known_to_come_is_announced() -> None:
    event = {"at": "2026-12-01T13:00:00+01:00", "lasts": "30m", "rate": 500}
    (announced,) = compiled(replicas="1..4", scaling={"announced": [event]}).announced
    noon = 1_796_126_400 * SECOND
    assert announced == Announced(at=noon, rate=500, until=noon + 30 * MINUTE)


@pytest.mark.parametrize(
    ("event", "field"),
    [
        ({"at": "tomorrow", "rate": 1}, "at"),
        ({"at": "2026-12-01T13:00:00", "rate": 1}, "at"),
        ({"rate": 1}, "at"),
        ({"at": "2026-12-01T13:00:00Z"}, "rate"),
        ({"at": "2026-12-01T13:00:00Z", "rate": 1, "lasts": "500d"}, "lasts"),
    ],
)
def test_what_cannot_be_announced_is_told(event: dict[str, Any], field: str) -> None:
    with pytest.raises(SpecError) as caught:
        compiled(replicas="1..4", scaling={"announced": [event]})
    assert caught.value.record.field == f"scaling.announced[0].{field}"


def test_a_model_computes_in_what_the_service_says_or_else_in_what_its_devices_must_be_able_to() -> None:
    def asked(**said: Any) -> str:
        return compile_service({"kind": "service", "name": "digits", "model": "app.py:Model"} | said).precision

    assert asked() == ""
    assert asked(resources={"precision": "bf16"}) == "bf16"
    assert asked(resources={"precision": "bf16"}, precision="auto") == "auto"


def test_another_precision_may_be_what_is_on_trial() -> None:
    said = {"kind": "service", "name": "digits", "model": "app.py:Model", "precision": "fp32"}
    declared = compile_service(said | {"canary": {"precision": "int8"}})
    assert declared.canary is not None
    assert (declared.precision, declared.canary.precision) == ("fp32", "int8")
    declared = compile_service(said | {"canary": {"model": "newer.py:Model"}})
    assert declared.canary is not None and declared.canary.precision == "fp32"


def test_replicas_have_secrets_and_a_file_holds_no_value() -> None:
    document = {"kind": "service", "name": "s", "model": "app.py:M", "secrets": {"A": {"file": "token.txt"}}}
    assert compile_service(document).job["secrets"] == {"A": {"file": "token.txt"}}
    for wrong in ({"secrets": {"A": "hf_abc"}}, {"env": {"A": 1}}, {"canary": {"env": {"A": 1}, "share": ["5%"]}}):
        with pytest.raises(SpecError) as raised:
            compile_service(document | wrong)
        assert raised.value.record.field in ("secrets.A", "canary.secrets.A")
        assert "hf_abc" not in repr(raised.value.record)


def test_a_file_without_a_name_or_a_model_names_what_is_missing() -> None:
    with pytest.raises(SpecError) as caught:
        compile_service({"replicas": 2})
    assert {one.field: one.message for one in caught.value.record.all()} == {
        "kind": "this file is not a service",
        "name": "the field `name` is missing",
        "model": "the field `model` is missing",
    }
    assert [one.hint for one in caught.value.record.all()][1:] == ["name: digits", "model: app.py:Model"]
