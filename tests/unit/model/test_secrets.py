"""Secrets in documents: names and sources in files, values in requests, sealed texts in what is compiled."""

from typing import Any

import pytest

from poise.errors import SpecError
from poise.model.job_fields import JobSpec
from poise.model.secrets import MAX_SECRET, MAX_SECRETS, Sealed, named, sealed
from poise.model.spec import Compiled, compile_spec

VALUE = "hf_correct-horse-battery"
GRAPH: dict[str, Any] = {"kind": "graph", "tasks": {"a": {"run": "true"}, "b": {"run": "true", "needs": ["a"]}}}


def seal(name: str, value: str) -> Sealed:
    return Sealed(f"<{name}>")


def compiled(document: Any) -> Compiled:
    return compile_spec(document, wall=0.0)


def refused(document: Any, *, seals: bool = True) -> SpecError:
    with pytest.raises(SpecError) as raised:
        compiled(sealed(document, seal) if seals else document)
    told = repr([raised.value.record, raised.value.__notes__, raised.value.args])
    assert VALUE not in told and "horse" not in told
    return raised.value


def test_a_request_is_compiled_with_its_secrets_sealed() -> None:
    job = compiled(sealed({"run": "true", "secrets": {"A": VALUE, "B": "x"}}, seal)).job("j1", {})
    assert job.secrets == {"A": "<A>", "B": "<B>"}
    assert [unit.secrets for unit in job.units] == [{}]


def test_a_task_of_a_graph_has_its_own_beside_those_of_the_job() -> None:
    tasks = {"a": {"run": "true", "secrets": {"B": VALUE}}, "b": {"run": "true"}}
    job = compiled(sealed({"kind": "graph", "secrets": {"A": VALUE}, "tasks": tasks}, seal)).job("j1", {})
    assert (job.secrets, [unit.secrets for unit in job.units]) == ({"A": "<A>"}, [{"B": "<B>"}, {}])


@pytest.mark.parametrize("secrets", [["A"], {"A": None}, {"A": {"file": "token.txt"}}])
def test_what_a_file_says_is_compiled_without_values(secrets: Any) -> None:
    assert dict(compiled({"run": "true", "secrets": secrets}).secrets) == {"A": ""}
    assert dict(compiled(named({"run": "true", "secrets": {"A": VALUE}})).secrets) == {"A": ""}


@pytest.mark.parametrize("secrets", [["A"], {"A": None}, {"A": {"file": "token.txt"}}, {"A": 7}, {"A": [VALUE]}])
def test_a_request_without_a_value_is_refused(secrets: Any) -> None:
    assert refused({"run": "true", "secrets": secrets}).record.field == "secrets.A"


def test_a_value_that_was_not_sealed_is_not_compiled() -> None:
    assert refused({"run": "true", "secrets": {"A": VALUE}}, seals=False).record.hint == "secrets: [A]"
    task = {"run": "true", "secrets": {"A": VALUE}}
    assert refused({"kind": "graph", "tasks": {"a": task}}, seals=False).record.field == "tasks.a.secrets.A"


def test_a_sealed_text_that_a_client_sends_is_a_value_like_any_other() -> None:
    told = sealed({"run": "true", "secrets": {"A": "ab12cd34.AAAA"}}, seal)
    assert told["secrets"] == {"A": Sealed("<A>")}
    with pytest.raises(SpecError):
        sealed({"run": "true", "secrets": {"A": {"text": "ab12cd34.AAAA"}}}, seal)


@pytest.mark.parametrize(
    ("secrets", "field"),
    [
        (VALUE, "secrets"),
        ({VALUE: "x"}, "secrets"),
        ({"A": ""}, "secrets.A"),
        ({"A": f"{VALUE}\0"}, "secrets.A"),
        ({"A": f"{VALUE}\ud800"}, "secrets.A"),
        ({"A": VALUE * MAX_SECRET}, "secrets.A"),
        ({f"A{number}": VALUE for number in range(MAX_SECRETS + 1)}, "secrets"),
        ({"POISE_TOKEN": VALUE}, "secrets.POISE_TOKEN"),
        ([VALUE, {"A": VALUE}], "secrets"),
    ],
)
def test_what_is_wrong_is_told_without_the_value(secrets: Any, field: str) -> None:
    assert refused({"run": "true", "secrets": secrets}).record.field == field
    task = {"run": "true", "secrets": secrets}
    assert refused({"kind": "graph", "tasks": {"a": task}}).record.field == f"tasks.a.{field}"


def test_all_that_is_wrong_is_told_at_once() -> None:
    error = refused({"run": "true", "secrets": {"A": "", "B": None, "C": VALUE}})
    assert [one.field for one in error.record.all()] == ["secrets.A", "secrets.B"]


@pytest.mark.parametrize(
    ("document", "field"),
    [
        ({"run": "true", "env": {"A": "1"}, "secrets": {"A": VALUE}}, "secrets.A"),
        (GRAPH | {"env": {"A": "1"}, "secrets": {"A": VALUE}}, "secrets.A"),
        ({"kind": "graph", "secrets": {"A": VALUE}, "tasks": {"a": {"run": "true", "env": {"A": 1}}}}, "secrets.A"),
        (
            {"kind": "graph", "env": {"A": 1}, "tasks": {"a": {"run": "true", "secrets": {"A": VALUE}}}},
            "tasks.a.secrets.A",
        ),
    ],
)
def test_a_name_is_a_secret_or_a_variable(document: Any, field: str) -> None:
    assert refused(document).record.field == field


def test_gangs_parts_and_sweeps_have_them_too() -> None:
    for more in ({"workers": 3}, {"parts": 3}, {"sweep": {"lr": [1, 2, 3]}}, {"parts": 2, "merge": "true"}):
        job = compiled(sealed({"run": "true", "secrets": {"A": VALUE}} | more, seal)).job("j1", {})
        assert job.secrets == {"A": "<A>"}
    graph = {"kind": "graph", "tasks": {"a": {"run": "true", "secrets": {"A": VALUE}, "parts": 2, "merge": "true"}}}
    assert [unit.secrets for unit in compiled(sealed(graph, seal)).units] == [{"A": "<A>"}] * 3


def test_other_documents_are_left_as_they_are() -> None:
    documents: list[Any] = [{"run": "true"}, GRAPH, [], "text", {"tasks": {"a": 1}}, {"tasks": 7}]
    for document in documents:
        assert sealed(document, seal) is document and named(document) is document


def test_the_field_has_no_default_that_two_jobs_share() -> None:
    first, second = JobSpec(), JobSpec()
    assert first.secrets == [] and first.secrets is not second.secrets


def test_values_that_no_process_could_start_with_are_refused_together() -> None:
    few = {f"S{number}": "x" * 30_000 for number in range(3)}
    error = refused({"run": "true", "secrets": few})
    assert (error.record.message, error.record.field) == ("the secrets are too large together", "secrets")
    compiled(sealed({"run": "true", "secrets": {"A": "x" * 60_000}}, seal))


def test_each_part_carries_the_secrets_of_its_job() -> None:
    document = {"run": "true", "secrets": {"A": VALUE}}

    def large(name: str, value: str) -> Sealed:
        return Sealed("x" * 80_000)

    compiled(sealed(document | {"parts": 100}, large))
    with pytest.raises(SpecError, match="too many bytes of commands, environments and secrets"):
        compiled(sealed(document | {"parts": 300}, large))
