"""The trace of who submits a job is passed on with it."""

from typing import Any

import pytest

from poise.client import with_context
from poise.model.traces import LONGEST_STATE, TRACEPARENT, TRACESTATE

PARENT = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"
ENVIRON = {TRACEPARENT: PARENT, TRACESTATE: "a=b", "HOME": "/home/ann"}


def test_it_is_added_to_the_environment_of_the_job() -> None:
    assert with_context({"run": "true"}, ENVIRON)["env"] == {TRACEPARENT: PARENT, TRACESTATE: "a=b"}
    assert with_context({"env": {"A": "1"}}, {TRACEPARENT: PARENT})["env"] == {"A": "1", TRACEPARENT: PARENT}


@pytest.mark.parametrize(
    "spec",
    [
        {"env": {TRACEPARENT: ""}},
        {"secrets": [TRACEPARENT, {"A": {"file": "x"}}]},
        {"secrets": {TRACEPARENT: "x"}},
        {"every": "1h"},
        {"cron": "0 3 * * *"},
        {"env": ["not", "a", "mapping"]},
    ],
)
def test_what_the_job_says_itself_stands_and_a_schedule_has_traces_of_its_own(spec: dict[str, Any]) -> None:
    assert with_context(spec, ENVIRON) == spec


@pytest.mark.parametrize("environ", [{}, {TRACEPARENT: "00-zz"}, {TRACESTATE: "a=b"}])
def test_without_a_valid_context_nothing_is_added(environ: dict[str, str]) -> None:
    assert with_context({"run": "true"}, environ) == {"run": "true"}


def test_a_state_that_is_too_long_is_left_out() -> None:
    environ = {TRACEPARENT: PARENT, TRACESTATE: "a" * (LONGEST_STATE + 1)}
    assert with_context({}, environ)["env"] == {TRACEPARENT: PARENT}
