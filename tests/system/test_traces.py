"""Traces of real jobs, as a collector of OpenTelemetry gets them."""

import os
import signal
from collections import Counter
from collections.abc import Iterator
from secrets import token_hex

import pytest

pytest.importorskip("google.protobuf", reason="protobuf is not installed")

from poise.drivers.lock import holder
from system.collector import Collector, attributes
from system.living import Living
from system.serving import Serving


def traceparent() -> str:
    return f"00-{token_hex(16)}-{token_hex(8)}-01"


def of(parent: str) -> str:
    """The id of its trace."""
    return parent.split("-")[1]


@pytest.fixture(scope="module")
def collector() -> Iterator[Collector]:
    collector = Collector()
    collector.open()
    yield collector
    collector.close()


@pytest.fixture(scope="module")
def traced(collector: Collector) -> Iterator[Living]:
    living = Living()
    living.variables["OTEL_EXPORTER_OTLP_HEADERS"] = "authorization=Bearer%20secret"
    living.variables["OTEL_BSP_SCHEDULE_DELAY"] = "100"
    try:
        living.up("--traces", collector.url)
        yield living
    except BaseException:
        living.destroy()
        raise
    living.close()


def test_a_job_is_a_part_of_the_trace_of_who_submits_it(traced: Living, collector: Collector) -> None:
    parent = traceparent()
    done = traced.poise(
        "run", "--", "sh", "-c", "echo $TRACEPARENT; echo $TRACESTATE", TRACEPARENT=parent, TRACESTATE="a=b"
    )
    inner, state = done.text.split("\n")[:2]
    collector.wait(lambda: any(span.name == "job" for span in collector.trace(of(parent))))
    spans = {span.name: span for span in collector.trace(of(parent))}
    assert list(spans) == ["submit", "queued main", "launch main", "run main", "job"]
    assert spans["job"].parent_span_id.hex() == parent.split("-")[2]
    assert {span.parent_span_id for name, span in spans.items() if name != "job"} == {spans["job"].span_id}
    assert inner == f"00-{of(parent)}-{spans['run main'].span_id.hex()}-01"
    assert state == spans["job"].trace_state == "a=b"
    assert attributes(spans["run main"])["poise.outcome"] == "done"
    assert collector.headers[-1]["authorization"] == "Bearer secret"
    assert collector.resources[-1]["service.name"] == "poise"


def test_submitted_from_python_and_from_within_a_task(traced: Living, collector: Collector) -> None:
    parent = traceparent()
    script = traced.file(
        "inner.py", "import poise.client as c\nc.Client().wait(c.Client().submit({'name': 'inner', 'run': ['true']}))\n"
    )
    import sys

    done = traced.poise(
        "submit",
        "-q",
        "--name",
        "outer",
        "--env",
        f"POISE_HOME={traced.home.root}",
        "--env",
        f"PYTHONPATH={os.environ.get('PYTHONPATH', '')}",
        "--",
        sys.executable,
        str(script),
        TRACEPARENT=parent,
    )
    assert done.code == 0, done.err
    assert traced.poise("wait", "outer").code == 0, traced.poise("logs", "outer").err
    collector.wait(lambda: any(span.name == "job outer" for span in collector.trace(of(parent))))
    spans = {span.name: span for span in collector.trace(of(parent))}
    outer = next(
        span
        for span in collector.trace(of(parent))
        if span.parent_span_id == spans["job outer"].span_id and span.name == "run main"
    )
    assert spans["job inner"].parent_span_id == outer.span_id


def test_a_failed_job_and_its_attempts(traced: Living, collector: Collector) -> None:
    parent = traceparent()
    flags = ("--name", "fails", "--retries", "1")
    assert traced.poise("run", *flags, "--", "sh", "-c", "exit 3", TRACEPARENT=parent).code == 3
    collector.wait(lambda: any(span.name == "job fails" for span in collector.trace(of(parent))))
    spans = collector.trace(of(parent))
    runs = [span for span in spans if span.name == "run main"]
    assert [(attributes(run)["poise.epoch"], attributes(run)["process.exit.code"]) for run in runs] == [(1, 3), (2, 3)]
    assert [link.span_id for link in runs[1].links] == [runs[0].span_id]
    assert {span.status.code for span in spans if span.name in ("run main", "job fails")} == {2}


def test_a_dead_collector_costs_nothing_and_gets_everything_later(traced: Living, collector: Collector) -> None:
    parent = traceparent()
    collector.close()
    try:
        assert traced.poise("run", "--", "true", TRACEPARENT=parent).code == 0
        collector.wait(lambda: "does not answer" in traced.poise("status").text)
        exporter = holder(traced.home.traces / "lock")
        os.kill(exporter, signal.SIGKILL)  # what it had read and not sent is read again
    finally:
        collector.open()
    collector.wait(lambda: any(span.name == "job" for span in collector.trace(of(parent))))
    collector.wait(lambda: "waits" not in traced.poise("status").text)
    names = Counter(span.name for span in collector.trace(of(parent)))
    assert names == {"submit": 1, "queued main": 1, "launch main": 1, "run main": 1, "job": 1}
    ids = Counter((span.trace_id, span.span_id) for span in collector.spans)
    assert set(ids.values()) == {1}


def test_spans_that_the_collector_refuses_are_counted_and_not_sent_again(traced: Living, collector: Collector) -> None:
    parent = traceparent()
    collector.status = 400
    try:
        assert traced.poise("run", "--", "true", TRACEPARENT=parent).code == 0
        collector.wait(lambda: "refused" in traced.poise("status").text)
    finally:
        collector.status = 200
    later = traceparent()
    assert traced.poise("run", "--name", "later", "--", "true", TRACEPARENT=later).code == 0
    collector.wait(lambda: any(span.name == "job later" for span in collector.trace(of(later))))


def test_without_an_exporter_the_context_of_the_submitter_is_passed_on(living: Living) -> None:
    parent = traceparent()
    assert living.poise("run", "--", "sh", "-c", "echo $TRACEPARENT", TRACEPARENT=parent).text.strip() == parent
    assert living.poise("run", "--", "sh", "-c", "echo ${TRACEPARENT-none}").text.strip() == "none"


def test_what_is_no_collector_is_refused_before_anything_starts(living: Living) -> None:
    done = living.poise("up", "--port", "0", "--traces", "ftp://collector", "--json")
    assert (done.code, done.error["field"], done.error["need"]) == (1, "--traces", "http(s)://HOST:PORT")
    done = living.poise("up", "--port", "0", "--traces", "env", "--json")
    assert (done.code, done.error["field"]) == (1, "OTEL_EXPORTER_OTLP_ENDPOINT")
    assert not living.processes()


MODEL = """
import os

class Model:
    def predict(self, batch: list) -> list:
        return [os.environ.get("TRACEPARENT", "") for _ in batch]
"""


def test_a_request_and_its_batch_have_spans_that_are_linked(traced: Living, collector: Collector) -> None:
    traced.file("traced.py", MODEL)
    serving = Serving(traced, "traced.py:Model", "--trace-share", "0")
    parent, unsampled = traceparent(), traceparent()[:-1] + "0"
    inside = serving.ask(1, traceparent=parent).value
    assert of(inside) not in (of(parent), of(unsampled))
    outside = [serving.ask(1, **more).value for more in ({}, {"traceparent": unsampled})]
    collector.wait(lambda: bool(collector.trace(of(inside)) and collector.trace(of(parent))))
    (request,), (batch,) = collector.trace(of(parent)), collector.trace(of(inside))
    assert (request.name, request.kind, attributes(request)["http.response.status_code"]) == ("POST /predict", 2, 200)
    assert request.parent_span_id.hex() == parent.split("-")[2]
    assert [link.span_id for link in request.links] == [batch.span_id]
    assert [link.span_id for link in batch.links] == [request.span_id]
    assert inside == f"00-{of(inside)}-{batch.span_id.hex()}-01"
    assert len({of(one) for one in outside}) == 1 and not collector.trace(
        of(unsampled)
    )  # that of the replica's own job
    serving.end()


def test_all_requests_have_traces_where_the_share_is_one(traced: Living, collector: Collector) -> None:
    traced.file("traced.py", MODEL)
    serving = Serving(traced, "traced.py:Model", "--trace-share", "1", "--name", "all")
    before = len([span for span in collector.spans if span.name == "POST /predict"])
    for _ in range(3):
        serving.ask(1)
    collector.wait(lambda: len([span for span in collector.spans if span.name == "POST /predict"]) == before + 3)
    serving.end()


def test_an_exporter_whose_supervisor_was_killed_ends_with_poise_down(living: Living, collector: Collector) -> None:
    living.up("--traces", collector.url)
    collector.wait(lambda: holder(living.home.traces / "lock") != 0)
    os.kill(living.pid("supervisor"), signal.SIGKILL)
    assert living.poise("down").code == 0
    collector.wait(lambda: not living.processes())  # it gives its lock back just before it ends
