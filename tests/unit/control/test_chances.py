"""Deadlines that are asked about: before a job is accepted, and after."""

import asyncio
import json
import re
import subprocess
import sys
from typing import Any

import msgspec
import pytest

from poise.control.chances import MOST_WAITING, Chances, refusal
from poise.errors import Busy, SpecError
from poise.model.chances import DeadlineQuestion
from poise.model.events import JobSubmitted
from poise.model.reports.questions import DeadlineForecast
from poise.model.tenants import Role
from poise.testing import World
from poise.units import MINUTE
from unit.control.desk import Desk

STRICT = {"run": "x", "expect": "10m", "deadline": {"by": "15m", "if-late": "refuse"}}


@pytest.fixture
def desk() -> Desk:
    return Desk(World(check=False).nodes(1, cpu=1))


def submit(desk: Desk, spec: Any, key: str = "", who: str = "home") -> Any:
    return desk.call("POST", "/v1/jobs", {"spec": spec, "key": key}, who=who)


def busy(desk: Desk) -> None:
    desk.world.job("busy", expect="2h", preemptible=False).round().start("busy")


# --- before it is accepted -------------------------------------------------------------------------------------------


def test_a_strict_deadline_that_is_likely_to_be_met_is_accepted(desk: Desk) -> None:
    assert submit(desk, STRICT).value == {"job": "j1", "note": "", "caller_key": ""}
    [question] = desk.chances.asked
    assert (question.units, question.known) == (("main",), "")


def test_one_that_is_unlikely_is_refused_with_the_chance_and_what_would_fit(desk: Desk) -> None:
    busy(desk)
    before = desk.world.ledger.encode()
    answer = submit(desk, STRICT)
    assert (answer.status, answer.code) == (422, "E108")
    error = answer.value["error"]
    assert error["message"] == "the deadline is unlikely to be met"
    assert (error["field"], error["need"]) == ("deadline", "a chance of 50 % or more")
    assert re.fullmatch(r"[0-9] % for 15m0s; P50 end in [12]h[0-9]+m, P90 in [2-9]h[0-9]+m", error["have"])
    assert error["hint"].startswith("by: ")
    fits = int(error["hint"].removeprefix("by: ").removesuffix("s"))
    assert 7200 < fits < 36_000
    assert desk.world.ledger.encode() == before, "nothing is recorded of what was refused"
    fitting = STRICT | {"deadline": {"by": f"{fits}s", "if-late": "refuse"}}
    assert submit(desk, fitting).status == 201


def test_the_same_deadline_is_accepted_where_it_is_not_strict(desk: Desk) -> None:
    busy(desk)
    for how in ("run", "cancel"):
        assert submit(desk, STRICT | {"deadline": {"by": "15m", "if-late": how}}).status == 201
    assert submit(desk, STRICT | {"deadline": "15m"}).status == 201
    assert desk.chances.asked == []


def test_a_deadline_below_the_bound_is_refused_at_once(desk: Desk) -> None:
    answer = submit(desk, STRICT | {"deadline": {"by": "5m", "if-late": "refuse"}})
    assert (answer.status, answer.code) == (422, "E108")
    assert answer.value["error"]["need"] == "at least 10m0s"
    assert desk.chances.asked == []


def test_what_is_refused_for_another_reason_is_so_at_once(desk: Desk) -> None:
    assert submit(desk, STRICT | {"resources": {"memory": "1TiB"}}).code == "E110"
    assert submit(desk, STRICT | {"after": ["j77"]}).code == "E105"
    assert desk.chances.asked == []


def test_where_nothing_is_known_of_run_times_an_estimate_is_asked_for(desk: Desk) -> None:
    answer = submit(desk, {"run": "x", "deadline": {"by": "15m", "if-late": "refuse"}})
    assert (answer.status, answer.code) == (422, "E108")
    assert answer.value["error"]["hint"] == "expect: 10m"


def test_where_no_node_has_joined_nothing_is_promised() -> None:
    desk = Desk(World())
    answer = submit(desk, STRICT)
    assert (answer.status, answer.code) == (503, "E205")
    assert answer.value["error"]["have"] == "no node has joined yet"


def test_a_submission_that_is_repeated_is_not_refused_for_what_it_did_itself(desk: Desk) -> None:
    assert submit(desk, STRICT, key="once").value["job"] == "j1"
    assert submit(desk, STRICT, key="once").value["job"] == "j1"
    assert len(desk.chances.asked) == 1
    assert submit(desk, STRICT, key="twice").code == "E108", "another one would come behind it"


def test_of_a_graph_the_strict_tasks_alone_are_looked_at(desk: Desk) -> None:
    strict = {"by": "20m", "if-late": "refuse"}
    tasks = {
        "a": {"run": "x", "expect": "10m", "deadline": strict},
        "b": {"run": "x", "expect": "10m", "needs": ["a"], "deadline": "21m"},
    }
    busy(desk)
    answer = submit(desk, {"kind": "graph", "tasks": tasks})
    assert (answer.code, answer.value["error"]["field"]) == ("E108", "tasks.a.deadline")
    assert desk.chances.asked[0].units == ("a",)


def test_lines_of_a_stream_are_answered_in_order(desk: Desk) -> None:
    busy(desk)
    specs = [{"run": "x"}, STRICT, {"run": "y"}]
    lines = b"\n".join(json.dumps({"spec": spec}).encode() for spec in specs)
    answer = desk.call("POST", "/v1/jobs", lines, kind="application/x-ndjson")
    first, refused, last = map(json.loads, answer.body.splitlines())
    assert (first["job"], refused["error"]["code"], last["job"]) == ("j2", "E108", "j3")
    assert [event.job.id for event in desk.world.log if isinstance(event, JobSubmitted)] == ["j1", "j2", "j3"]


# --- after it was accepted -------------------------------------------------------------------------------------------


def test_the_chance_of_a_job_that_waits(desk: Desk) -> None:
    desk.world.job("due", expect="10m", deadline="30m").job("plain").job("f", parts=2, calls=True)
    told = desk.call("GET", "/v1/jobs/due/deadline").value
    assert (told["job"], told["deadlines"], told["due"]) == ("j1", 1, 30 * MINUTE)
    assert told["chance"] > 900
    assert desk.chances.asked[0].known == "j1"
    assert desk.call("GET", "/v1/jobs/plain/deadline").code == "E121"
    assert desk.call("GET", "/v1/jobs/f/deadline").status == 400
    desk.world.cancel("due")
    assert desk.call("GET", "/v1/jobs/due/deadline").code == "E121"


def test_another_tenants_job_is_not_there(desk: Desk) -> None:
    desk.world.job("due", expect="10m", deadline="30m")
    desk.token("ann", "ann", Role.ADMIN)
    desk.token("bob", "bob", Role.SUBMITTER)
    assert desk.call("GET", "/v1/jobs/j1/deadline", who="bob").status == 404


# --- bounds ----------------------------------------------------------------------------------------------------------


def test_so_many_questions_wait_and_no_more(desk: Desk) -> None:
    told = DeadlineForecast(job="j1", deadlines=1, due=1)

    class Quick(Chances):
        def answer(self, question: DeadlineQuestion) -> DeadlineForecast:
            return told

    async def ask(count: int) -> list[Any]:
        asking = Quick(desk.plane, desk.home)
        questions = [asking._ask(("main",), known="j1") for _ in range(count)]
        return await asyncio.gather(*questions, return_exceptions=True)

    answers = asyncio.run(ask(MOST_WAITING + 2))
    assert answers[:MOST_WAITING] == [told] * MOST_WAITING
    assert all(isinstance(refused, Busy) for refused in answers[MOST_WAITING:])
    assert asyncio.run(ask(1)) == [told]


def test_what_is_told_of_each_forecast() -> None:
    known = DeadlineForecast(
        job="j1", deadlines=1, due=30 * MINUTE, chance=930, p50=21 * MINUTE, p90=26 * MINUTE, futures=100
    )

    def of(**fields: Any) -> DeadlineForecast:
        return msgspec.structs.replace(known, **fields)

    assert of().sentence() == "deadline in 30m0s: 93 % likely (P50 end in 21m0s, P90 in 26m0s)"
    assert of(deadlines=3).sentence().startswith("3 deadlines, the last in 30m0s: 93 % likely that all are met (P50")
    assert of(due=-MINUTE, p90=None).sentence() == "deadline 1m0s ago: 93 % likely (P50 end in 21m0s, P90 never)"
    assert of(unknown="run times").sentence().endswith("nothing is known of how long it runs; `--expect` tells it")
    assert refusal(of(), "deadline", 30 * MINUTE) is None
    refused = refusal(of(chance=499, p90=None), "deadline", 30 * MINUTE)
    assert isinstance(refused, SpecError)
    assert refused.record.hint == "if-late: run"
    assert isinstance(refusal(of(unknown="time"), "deadline", MINUTE), Busy)


def test_the_process_that_answers_ends_where_there_is_no_log(tmp_path: Any) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "poise.control.deadlines", str(tmp_path)],
        input=b"\xc1",
        capture_output=True,
        check=False,
    )
    assert done.returncode != 0
    assert done.stdout == b""
