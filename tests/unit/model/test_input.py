"""Input, terminals and output files, as a job asks for them."""

from typing import Any

import pytest

from poise.drivers.process import output_path
from poise.errors import SpecError
from poise.model.jobs import NEVER, Retry, terminal_size
from poise.model.messages import Attempt, Launch
from poise.model.resources import Shape
from poise.model.spec import compile_spec


def unit(**spec: Any) -> Any:
    return compile_spec({"run": ["true"], **spec}, wall=0.0).units[0]


def refused(**spec: Any) -> SpecError:
    with pytest.raises(SpecError) as caught:
        unit(**spec)
    return caught.value


def test_a_job_takes_no_input_unless_it_asks_for_it() -> None:
    assert (unit().stdin, unit().tty) == (False, 0)
    assert unit(stdin=True).stdin


@pytest.mark.parametrize(("said", "size"), [(True, (24, 80)), ("50x120", (50, 120)), (" 1 x 9999 ", (1, 9999))])
def test_a_terminal_has_a_size(said: bool | str, size: tuple[int, int]) -> None:
    assert unit(tty=said).tty == terminal_size(*size)


@pytest.mark.parametrize("said", ["50", "50x", "0x80", "24x0", "24x10000", "big", "24x80x2", "", "-1x80"])
def test_what_is_no_size_is_refused(said: str) -> None:
    assert refused(tty=said).record.field == "tty"


def test_a_job_with_a_terminal_is_neither_preempted_nor_retried_unless_it_says_so() -> None:
    assert (unit(tty=True).preemptible, unit(tty=True).retry) == (False, NEVER)
    assert unit(tty=True, retry={"limit": 2}).retry.limit == 2
    assert unit(stdin=True).preemptible
    assert not NEVER.allows("killed", 1, 0, 0)
    assert not NEVER.allows("lost", 1, 0, 1)
    assert Retry().allows("lost", 1, 0, 1)


@pytest.mark.parametrize("several", [{"parts": 2}, {"sweep": {"a": [1, 2]}}, {"workers": "1..2"}])
@pytest.mark.parametrize("given", ["stdin", "tty"])
def test_input_is_for_one_command(several: dict[str, Any], given: str) -> None:
    assert refused(**several, **{given: True}).record.field == given
    assert unit(workers=2, **{given: True})


@pytest.mark.parametrize(
    ("said", "why"),
    [
        ({"output": "%x"}, "unknown placeholder"),
        ({"output": "a%"}, "unknown placeholder"),
        ({"output": "a\0"}, "zero byte"),
        ({"output": "a", "workers": 2}, "several tasks"),
        ({"output": "%j%%r", "parts": 2}, "several tasks"),
    ],
)
def test_a_file_for_output_is_for_one_task(said: dict[str, Any], why: str) -> None:
    error = refused(**said)
    assert (error.record.field, why in error.record.message) == ("output", True)


def test_the_merge_writes_to_no_file_of_a_part() -> None:
    units = compile_spec({"run": ["true"], "parts": 2, "merge": "true", "output": "%r"}, wall=0.0).units
    assert [one.output for one in units] == ["%r", "%r", ""]


def launch(output: str, **more: Any) -> Launch:
    attempt = Attempt("j7.main[3]", 2)
    return Launch(attempt=attempt, argv=("true",), shape=Shape(), slots=1, folder="/data", output=output, **more)


def test_the_name_of_the_file() -> None:
    assert output_path(launch(""), "/data") == ""
    assert output_path(launch("out/%j.%t.%a.%%r"), "/data") == "/data/out/j7.main[3].2.%r"
    assert output_path(launch("%r", gang="j7.main", rank=3), "/data") == "/data/3"
    assert output_path(launch("%r", part=4, parts=5), "/copy") == "/copy/4"
    assert output_path(launch("/else/where"), "/data") == "/else/where"
