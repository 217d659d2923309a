"""What a service file says is what its replicas are told."""

from typing import Any

from poise.model.servicefile import compile_service


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
