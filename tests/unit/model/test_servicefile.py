"""What people write of a service and its scaling, and what they are told of it."""

from typing import Any

import pytest

from poise.errors import SpecError
from poise.model.servicefile import DeclaredService, compile_service
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
        ({"replicas": 4, "objective": PROMISED, "scaling": {"shared": True}}, "scaling", "replicas: 1..8"),
    ],
)
def test_what_is_wrong_is_told(fields: dict[str, Any], field: str, need: str) -> None:
    with pytest.raises(SpecError) as caught:
        compiled(**fields)
    assert caught.value.record.field == field
    assert need in caught.value.record.need
