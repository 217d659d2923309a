import pytest

from poise import errors
from poise.errors import CODES, ErrorRecord, PoiseError, from_record, together


def _kinds(kind: type[PoiseError]) -> list[type[PoiseError]]:
    return [kind, *(below for child in kind.__subclasses__() for below in _kinds(child))]


@pytest.mark.parametrize("kind", _kinds(PoiseError))
def test_every_error_has_a_known_code_and_an_exit_code(kind: type[PoiseError]) -> None:
    assert kind("something").record.code in CODES
    assert kind.exit_code == (1 if issubclass(kind, errors.InputError) else 2)
    assert (kind.status < 500) == issubclass(kind, errors.InputError)


@pytest.mark.parametrize("kind", _kinds(PoiseError))
def test_an_error_survives_its_journey(kind: type[PoiseError]) -> None:
    sent = kind("it is so", field="tasks.a.run", need="more", have="less", hint="try")
    received = from_record(sent.record, kind.status)
    assert (received.record, received.exit_code) == (sent.record, kind.exit_code)


def test_a_traceback_shows_everything_that_is_wrong() -> None:
    first = ErrorRecord(code="E102", message="it is so", field="run", hint="run: x")
    second = ErrorRecord(code="E103", message="too much", field="cpu", at="job.yaml:3:7", need="less")
    assert together([first, second]).__notes__ == [
        "where: run", "hint: run: x", "also: too much", "where: cpu (job.yaml:3:7)", "need: less",
    ]  # fmt: skip
    received = from_record(together([first, second]).record, 422)
    assert received.__notes__ == together([first, second]).__notes__


def test_an_unknown_answer_is_the_callers_fault_below_500_and_ours_above() -> None:
    record = ErrorRecord(code="E140", message="too large")
    assert from_record(record, 413).exit_code == 1
    assert from_record(record, 599).exit_code == 2


def test_the_tree_at_the_top_names_every_error() -> None:
    for kind in (kind for kind in _kinds(PoiseError) if kind.__module__ == errors.__name__):
        assert kind.__name__ in (errors.__doc__ or "")
