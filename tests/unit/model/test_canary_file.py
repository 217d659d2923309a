"""What is wrong with a version on trial is told of its own field, and its name leaves room for what is made of it."""

from typing import Any

import pytest

from poise.errors import SpecError
from poise.model.servicefile import compile_service
from poise.model.spec import check_name


def document(**more: Any) -> dict[str, Any]:
    return {"kind": "service", "name": "a", "model": "app.py:Model", **more}


def wrong(**more: Any) -> list[str]:
    with pytest.raises(SpecError) as told:
        compile_service(document(**more))
    return [one.field for one in told.value.record.all()]


def test_its_environment_is_its_own() -> None:
    assert wrong(canary={"env": {"A": [1], "B=": "x"}}) == ["canary.env.A", "canary.env.B="]
    assert wrong(env={"A": [1]}, canary={"env": {"A": [1]}}) == ["env.A", "canary.env.A"]


@pytest.mark.parametrize("canary", [{}, {"canary": {"model": "app.py:Newer"}}])
def test_a_name_that_is_taken_leaves_room_for_the_names_of_its_jobs(canary: dict[str, Any]) -> None:
    longest = 0
    for length in range(1, 64):
        try:
            made = compile_service(document(name="x" * length, **canary))
        except SpecError as error:
            assert error.record.field == "name"
            continue
        longest = length
        last = made.canary or made
        check_name(f"{last.name}-999999", "name")
        check_name(f"{last.name}-replica", "name")
    assert longest >= 40


def test_a_version_with_other_settings_has_those_and_the_others() -> None:
    made = compile_service(document(env={"A": "1", "B": "2"}, canary={"env": {"A": "3"}}))
    assert made.canary is not None and made.canary.job["env"] == {"A": "3", "B": "2"}
