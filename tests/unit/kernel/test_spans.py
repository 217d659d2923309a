"""The log as spans: one trace per job."""

from collections import Counter
from itertools import pairwise
from pathlib import Path

import pytest

from poise.drivers.logfile import open_log
from poise.drivers.tracing import sampled
from poise.kernel.ledger import Ledger
from poise.kernel.spans import Spans
from poise.model.events import Began, Event, decode_event
from poise.model.traces import TRACEPARENT, TRACESTATE, Context, Span
from poise.testing import World
from poise.units import MINUTE, SECOND

PARENT = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"
UNSAMPLED = PARENT[:-1] + "0"
LOGS = sorted((Path(__file__).parents[2] / "golden").glob("*/*.log"))


def told(log: list[Event]) -> list[Span]:
    spans = Spans(Ledger())
    return [span for event in log for span in spans.add(event)]


def named(spans: list[Span], name: str) -> Span:
    (found,) = [span for span in spans if span.name == name]
    return found


def test_a_job_is_one_trace() -> None:
    world = (
        World().nodes(1, cpu=1).job("train").after("2s").start("train").after("3s").finish("train", code=0, run="3s")
    )
    spans = told(world.log)
    assert [span.name for span in spans] == ["submit", "queued main", "launch main", "run main", "job train"]
    assert len({span.context.trace for span in spans}) == 1
    assert len({span.context.span for span in spans}) == 5
    root, run = spans[-1], spans[-2]
    assert root.context.parent == b"" and {span.context.parent for span in spans[:-1]} == {root.context.span}
    assert all(root.start <= span.start <= span.end <= root.end for span in spans)
    assert run.end - run.start == pytest.approx(3 * SECOND, abs=1000)
    assert run.attributes["poise.outcome"] == "done" and run.attributes["host.name"] == "n1"
    assert named(spans, "launch main").end == run.start
    assert root.attributes["poise.status"] == "done" and not root.error


def test_a_repeat_gives_the_same_spans_and_other_submissions_other_traces() -> None:
    def world(key: str) -> World:
        return World().nodes(1).submit({"run": ["true"]}, key=key).round().finish("j1")

    assert told(world("a").log) == told(world("a").log)
    assert told(world("a").log)[0].context.trace != told(world("b").log)[0].context.trace


def test_the_submitter_is_the_parent() -> None:
    env = {TRACEPARENT: PARENT, TRACESTATE: "vendor=1"}
    root = named(told(World().nodes(1).job("a", env=env).round().finish("a").log), "job a")
    parent = Context.parse(PARENT)
    assert parent is not None
    assert (root.context.trace, root.context.parent, root.context.state) == (parent.trace, parent.span, "vendor=1")


def test_a_trace_that_is_not_sampled_stays_so() -> None:
    spans = told(World().nodes(1).job("a", env={TRACEPARENT: UNSAMPLED}).round().finish("a").log)
    assert not any(span.context.sampled for span in spans)
    assert list(sampled(spans)) == []


@pytest.mark.parametrize(
    "text",
    ["", "00-xyz", PARENT.upper(), PARENT + "-more", "ff" + PARENT[2:], f"00-{32 * '0'}-{16 * '1'}-01"],
)
def test_what_is_no_trace_context_begins_a_trace_of_its_own(text: str) -> None:
    assert Context.parse(text) is None
    root = told(World().nodes(1).job("a", env={TRACEPARENT: text}).log)[0].context
    assert any(root.trace)


def test_a_later_version_of_trace_context_is_read() -> None:
    parsed = Context.parse("cc" + PARENT[2:] + "-what-comes")
    assert parsed is not None and parsed.sampled


def test_why_it_was_queued_and_each_change_of_that() -> None:
    world = World().nodes(1, cpu=1).job("first").round().start("first").job("second").round().after("5s")
    world = world.drain("n1").round().after("5s").drain("n1", on=False).finish("first").round().start("second")
    queued = [span for span in told(world.finish("second").log) if span.name == "queued main"][1]
    reasons = [str(event.attributes["poise.reasons"]) for event in queued.events]
    assert "CPU free" in reasons[0] and any("is drained" in reason for reason in reasons[1:])
    assert all(queued.start <= event.at <= queued.end for event in queued.events)


def test_attempts_are_linked_and_a_back_off_is_no_waiting() -> None:
    world = World().nodes(1).job("a", retry={"limit": 1, "backoff": "4s", "when": ["failed"]}).round().start("a")
    world = world.after("1s").finish("a", outcome="failed", code=3).after("5s").start("a").after("1s").finish("a")
    spans = told(world.log)
    first, second = [span for span in spans if span.name == "run main"]
    assert first.error.startswith("failed") and first.attributes["process.exit.code"] == 3
    assert [link.to.span for link in second.links] == [first.context.span]
    assert [span.end - span.start < SECOND for span in spans if span.name == "queued main"] == [True, True]
    assert not named(spans, "job a").error


def test_tasks_of_a_graph_are_linked_and_not_nested() -> None:
    world = World().nodes(1).graph("g", tasks={"a": {}, "b": {}, "c": {"needs": ["a", "b"]}}).round()
    world = world.finish("g.a", "g.b").round().finish("g.c")
    spans = told(world.log)
    links = {link.to.span for link in named(spans, "run c").links}
    assert links == {named(spans, "run a").context.span, named(spans, "run b").context.span}
    assert named(spans, "run c").context.parent == named(spans, "job g").context.span


def test_a_gang_is_queued_once_and_runs_as_many_times_as_it_has_members() -> None:
    world = World().nodes(2, cpu=2).job("g", workers=4, cpu=1).round()
    spans = told(world.finish(*(f"g.main[{rank}]" for rank in range(4))).log)
    assert Counter(span.name for span in spans) == {
        "submit": 1, "queued main": 1, "launch main": 4, "run main": 4, "job g": 1
    }  # fmt: skip


def test_a_job_that_comes_after_others_or_repeats_one_is_linked_to_it() -> None:
    world = World().nodes(1).job("a").round().finish("a", outcome="failed", code=1)
    spans = told(world.retry("j1").round().finish("j2").log)
    first, second = [span for span in spans if span.name == "job a"]
    assert [link.to.span for link in second.links] == [first.context.span]
    world = World().nodes(1).job("a").job("b", after=["a"])
    spans = told(world.log)
    assert [[link.to.trace for link in span.links] for span in spans] == [[], [spans[0].context.trace]]


def test_what_is_cancelled_while_it_is_queued() -> None:
    world = World().nodes(1, cpu=1).job("a").round().start("a").job("b").round().after("3s").cancel("b")
    spans = told(world.log)
    queued, root = spans[-2:]
    assert (queued.name, queued.attributes["poise.status"]) == ("queued main", "cancelled")
    assert (root.name, root.attributes["poise.status"], root.error) == ("job b", "cancelled", "")


def test_progress_of_a_long_job_at_growing_intervals() -> None:
    world = World().nodes(1, cpu=1).job("long").round().start("long").job("next").round()
    spans = Spans(Ledger())
    for event in world.log:
        spans.add(event)
    instants = [world.now + minutes * MINUTE for minutes in range(301)]
    told = [span for since, now in pairwise(instants) for span in spans.progress(since, now)]
    lengths = [round((span.end - span.start) / MINUTE) for span in told if span.attributes["poise.status"] == "running"]
    assert lengths == [1, 2, 4, 8, 16, 32, 60, 60, 60]
    assert len({span.context.span for span in told}) == len(told) == 18
    waits = [span for span in told if span.attributes["poise.status"] == "pending"]
    assert all("CPU free" in str(span.attributes["poise.reasons"]) for span in waits)


def test_an_instant_has_one_time_whatever_the_clocks_say_later() -> None:
    world = World().nodes(1).job("a").round().start("a").after("2s")
    submitted = told(world.log)[0].start
    world.ahead = 3600.0
    world = world.restart().nodes(1)
    root = named(told(world.finish("a", run="2s").log), "job a")
    assert root.start == submitted


def test_a_tracer_that_begins_at_a_checkpoint_tells_the_rest() -> None:
    world = World().nodes(1).job("a").round().start("a").after("2s")
    seen = len(world.log)
    late = Spans(Ledger.decode(world.ledger.encode()))
    world = world.finish("a", run="2s")
    rest = [span for event in world.log[seen:] for span in late.add(event)]
    assert rest == told(world.log)[-len(rest) :] and [span.name for span in rest] == ["run main", "job a"]


@pytest.mark.parametrize("path", LOGS, ids=lambda path: f"{path.parent.name}-{path.stem}")
def test_a_ledger_that_plans_nothing_tells_the_same(path: Path) -> None:
    with open_log(path, decode_event) as recording:
        whole, without = Spans(Ledger()), Spans(Ledger(plans=False))
        for event in recording.events:
            assert without.add(event) == whole.add(event)


@pytest.mark.parametrize("path", LOGS, ids=lambda path: f"{path.parent.name}-{path.stem}")
def test_every_golden_log_has_one_root_for_each_job_that_ended(path: Path) -> None:
    with open_log(path, decode_event) as recording:
        spans = Spans(Ledger())
        events = list(recording.events)
    made = [span for event in events for span in spans.add(event)]
    roots = {span.context.span: span for span in made if span.name.startswith("job")}
    assert len(roots) == spans.ledger.jobs.ends
    assert len({(span.context.trace, span.context.span) for span in made}) == len(made)
    if sum(isinstance(event, Began) for event in events) == 1:  # the wall clock of a world stands still at its restart
        inside = [(span, roots[span.context.parent]) for span in made if span.context.parent in roots]
        assert all(root.start <= span.start <= span.end <= root.end for span, root in inside)


def test_the_environment_of_an_attempt_carries_its_span_where_traces_are_exported() -> None:
    world = World(traced=True).nodes(2, cpu=1).job("g", workers=2, cpu=1, env={TRACEPARENT: PARENT}).round()
    env = {at.task: launch.env[TRACEPARENT] for of in world.held.values() for at, launch in of.items()}
    spans = told(world.finish("g.main[0]", "g.main[1]").log)
    runs = {span.attributes["poise.task"]: span.context.text for span in spans if span.name == "run main"}
    assert env == runs and all(PARENT[3:35] in text for text in env.values())
    world = World().nodes(1).job("a", env={TRACEPARENT: PARENT}).round()
    assert [launch.env[TRACEPARENT] for launch in world.held["n1"].values()] == [PARENT]
