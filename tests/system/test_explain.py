"""`poise explain`, `plan` and `submit --if-revision` as typed, on a living fleet of two nodes."""

import json
import os
from collections.abc import Iterator
from typing import Any

import pytest

from poise.errors import Conflict
from system.living import Living, until

FLEET = """
kind: fleet
name: pair
nodes:
  left: {cpu: 4, memory: 8GiB, devices: [{model: H100, count: 1}]}
  right: {cpu: 4, memory: 8GiB, devices: [{model: H100, count: 1}]}
"""

LATE = """
name: late
run: "true"
resources: {cpu: 1, gpu: 1}
"""


@pytest.fixture(scope="module")
def pair() -> Iterator[Living]:
    """Both devices are taken for an hour; `late` waits for one of them."""
    living = Living()
    try:
        living.file("fleet.yaml", FLEET)
        living.file("late.yaml", LATE)
        done = living.poise("up", "--port", "0", "--fleet", "fleet.yaml")
        assert done.code == 0, done.err
        until(lambda: _up(living) == 2, "both nodes have joined", living.messages)
        for name in ("first", "second"):
            holder = ("--gpu", "1", "--expect", "1h", "--name", name, "--", "sleep", "600")
            assert living.poise("submit", *holder).code == 0
        until(lambda: _running(living) == 2, "both devices are taken", living.messages)
        assert living.poise("submit", "late.yaml").code == 0
        until(lambda: living.client().job("late").tasks[0].reasons, "it is told why it waits", living.messages)
        yield living
        living.poise("cancel", "first", "second", "late")
        living.poise("wait", "first", "second", "late")
    except BaseException:
        living.destroy()
        raise
    living.close()


def _up(living: Living) -> int:
    return sum(node.status == "up" for node in living.client().nodes())


def _running(living: Living) -> int:
    return sum(job.status == "running" for job in living.client().jobs())


def test_a_waiting_job_is_explained(pair: Living) -> None:
    done = pair.poise("explain", "late")
    assert done.code == 0, done.err
    for said in (
        "left: fitting devices free: 0, needed: 1",
        "right: fitting",
        "waits until ",
        "expected start  in ",
    ):
        assert said in done.text, done.text
    told = pair.poise("explain", "--json", "--all", "late").value
    [waiting] = told["waiting"]
    assert {reason["code"] for reason in waiting["reasons"]} == {"GPU_BUSY"}
    assert {name for refusing in waiting["refusing"] for name in refusing["nodes"]} == {"left", "right"}
    assert 0 < waiting["start"]["earliest"] < waiting["start"]["likely"] < waiting["start"]["latest"]
    [frees] = waiting["frees"]
    assert frees["unit"] in ("j1.main", "j2.main"), "whichever has started first"
    assert frees["left"]["source"] == "declared"


def test_a_running_job_tells_why_there_and_what_is_left(pair: Living) -> None:
    told = pair.client().explain("first")
    [going] = told.running
    assert going.why is not None
    assert going.left.source == "declared"
    assert "why there" in pair.poise("explain", "first").text


def test_a_task_may_be_named_where_a_job_is(pair: Living) -> None:
    [task], [job] = (pair.client().explain(name).waiting for name in ("late.main", "late"))
    assert (task.named, task.reasons) == (job.named, job.reasons)
    of_task = pair.poise("explain", "late.main", "--node", "left").text
    assert of_task == pair.poise("explain", "late", "--node", "left").text
    assert pair.client().unblock("late.main").unit.endswith(".main")
    assert pair.poise("explain", "--unblock", "late.nope", "--json").error["code"] == "E120"


def test_when_it_starts_is_foreseen_in_many_futures(pair: Living) -> None:
    told = pair.poise("eta", "late", "--futures", "40", "--json").value
    [eta] = told["jobs"]
    assert told["futures"] == 40
    assert told["sources"] == {"declared": 2, "default": 1}
    assert 0 < eta["start"]["p10"] < eta["start"]["p50"] < eta["start"]["p90"]
    assert eta["start"]["p50"] < 3600 * 10**9  # the first of two that take an hour or so each
    assert (eta["unknown"], eta["finish"]) == ("end", {"p10": None, "p50": None, "p90": None}), "its own run time"
    done = pair.poise("eta", "--futures", "2")
    assert done.text.splitlines()[0].split()[:3] == ["JOB", "NAME", "STATUS"]
    assert [line.split()[1] for line in done.text.splitlines()[1:]] == ["first", "second", "late"]
    assert "nothing more is submitted" in done.err
    assert pair.poise("eta", "nope", "--json").error["code"] == "E120"
    assert pair.poise("eta", "--budget", "soon", "--json").error["hint"] == "--budget 30s"


def test_one_more_device_would_start_it_now(pair: Living) -> None:
    told = pair.poise("what-if", "--add", "1xH100", "late", "--futures", "5", "--json").value
    figures = {figure["figure"]: figure for figure in told["figures"]}
    assert figures["late starts in"]["now"]["p50"] > 0
    assert figures["late starts in"]["then"]["p50"] == 0
    assert figures["late ends in"]["difference"]["p90"] < 0
    done = pair.poise("what-if", "--without", "left", "--priority", "late=urgent", "--futures", "2")
    assert "if: without left, j3 urgent" in done.text
    assert "nothing has changed" in done.err
    assert pair.client().job("late").tasks[0].priority == "medium"
    assert len(pair.client().nodes()) == 2
    assert "`poise what-if --add" in pair.poise("what-if", "--json").error["hint"]
    assert pair.poise("what-if", "--priority", "late=first", "--json").error["hint"] == "--priority late=high"


def test_a_device_that_nobody_has_is_told_with_what_was_meant(pair: Living) -> None:
    done = pair.poise("submit", "-g", "1", "--gpu-model", "H1000", "--json", "--", "true")
    assert (done.code, done.error["field"]) == (1, "--gpu-model")
    assert "did you mean `H100`?" in done.error["hint"]
    done = pair.poise("run", "-g", "1", "--gpu-kind", "npu", "--", "true")
    assert (done.code, "no node has a device of kind `npu`" in done.err) == (125, True)


def test_a_finished_job_is_a_story(pair: Living) -> None:
    assert pair.poise("run", "--cpu", "1", "--", "true").code == 0
    job = pair.client().jobs(everything=True)[-1].id
    text = pair.poise("explain", job).text
    assert "submitted" in text
    assert "main was done" in text
    assert "over: done, exit code 0" in text


def test_a_command_that_only_this_shell_finds_is_hinted_at_by_every_command_that_shows_it(pair: Living) -> None:
    folder = pair.work / "mine"
    folder.mkdir()
    (folder / "only-here").write_text("#!/bin/sh\n")
    (folder / "only-here").chmod(0o755)
    job = pair.poise("submit", "--", "only-here").text.strip()
    pair.file("line.yaml", "name: line\nrun: only-here | cat; only-here\n")
    pair.file("other.yaml", "name: other\nrun: echo one | not-here\n")
    for file in ("line.yaml", "other.yaml"):
        assert pair.poise("submit", file).code == 0
    hint = "your PATH finds `only-here`; what is submitted has it with `poise submit --env PATH`"
    for command in ("wait", "show", "explain", "logs"):
        done = pair.poise(command, job, PATH=f"{folder}:{os.environ['PATH']}")
        assert "main: `only-here`: command not found" in done.err, command
        assert hint in done.err
        assert "your PATH" not in pair.poise(command, job).err, "where it does not, nothing is hinted at"
    for command in ("wait", "show", "explain"):
        assert hint in pair.poise(command, "line", PATH=f"{folder}:{os.environ['PATH']}").err, "in a line of shell too"
        assert "your PATH" not in pair.poise(command, "other", PATH=f"{folder}:{os.environ['PATH']}").err


def test_why_not_names_every_reason_of_a_node(pair: Living) -> None:
    done = pair.poise("explain", "late", "--node", "left")
    assert done.code == 0, done.err
    assert "fitting devices free: 0, needed: 1" in done.text
    assert pair.poise("explain", "--json", "late", "--node", "left").value["reasons"][0]["code"] == "GPU_BUSY"
    there = pair.client().explain("first").running[0].nodes[0]
    assert "it is there" in pair.poise("explain", "first", "--node", there).text
    done = pair.poise("explain", "--json", "late", "--node", "middle")
    assert (done.code, done.error["code"], done.error["have"]) == (1, "E120", "left, right")


def test_a_plan_changes_nothing_and_comes_true(pair: Living) -> None:
    """Should a node report another load between the two, the plan is made anew."""
    jobs = [job.id for job in pair.client().jobs(everything=True)]
    command = ("--cpu", "2", "--", "sleep", "600")

    def planned_and_submitted() -> tuple[Any, str]:
        plan = pair.poise("plan", "--json", *command).value
        assert [job.id for job in pair.client().jobs(everything=True)] == jobs
        done = pair.poise("submit", "--json", "--if-revision", str(plan["revision"]), *command)
        return plan, done.value.get("job", "")

    plan, job = until(lambda: (found := planned_and_submitted())[1] and found, "it is as planned", pair.messages)
    until(lambda: pair.client().job(job).tasks[0].node, "it is placed", pair.messages)
    [place] = plan["places"]
    assert pair.client().job(job).tasks[0].node == place["spots"][0][0]
    assert place["named"] == [f"{job}.main"]
    pair.poise("cancel", job)
    pair.poise("wait", job)


def test_a_plan_of_what_would_wait_says_for_what(pair: Living) -> None:
    done = pair.poise("plan", "late.yaml", "--name", "later")
    assert done.code == 0, done.err
    assert "expected start" in done.text
    assert "--if-revision" in done.err
    done = pair.poise("plan", "--json", "--cpu", "500", "--", "true")
    assert (done.code, done.error["code"]) == (1, "E110")


def test_a_submission_is_refused_once_the_world_has_moved(pair: Living) -> None:
    revision = pair.client().plan({"run": "true"}).revision
    pair.poise("run", "--", "true")
    done = pair.poise("submit", "--json", "--if-revision", str(revision), "--", "true")
    assert done.code == 1
    assert done.error["need"] == f"revision {revision}"
    assert "poise plan" in done.error["hint"]
    with pytest.raises(Conflict):
        pair.client().submit({"run": "true"}, if_revision=revision)


def test_the_old_names_are_the_same_commands(pair: Living) -> None:
    for old, new in (
        (("why-not", "late", "left"), ("explain", "late", "--node", "left")),
        (("unblock", "late"), ("explain", "late", "--unblock")),
    ):
        assert pair.poise(*old).text == pair.poise(*new).text
        as_before, now = (pair.poise(*typed, "--json").value for typed in (old, new))
        assert as_before.keys() == now.keys()


def test_what_unblocks_it_unblocks_it(pair: Living) -> None:
    job = pair.poise("submit", "--json", "--cpu", "4", "--name", "large", "--", "true").value["job"]
    until(lambda: pair.client().job(job).tasks[0].reasons, "it waits", pair.messages)
    done = pair.poise("explain", "large", "--unblock")
    assert "`--cpu 3`" in done.text, done.text
    suggestions = pair.poise("explain", "--unblock", "--json", job).value["suggestions"]
    cpu = next(suggestion for suggestion in suggestions if suggestion["kind"] == "cpu")
    smaller = pair.poise("submit", "--json", *cpu["command"].split(), "--", "sleep", "600").value["job"]
    until(lambda: pair.client().job(smaller).tasks[0].node, "it is placed", pair.messages)
    assert pair.client().job(smaller).tasks[0].node in cpu["nodes"]
    pair.poise("cancel", smaller, job)
    pair.poise("wait", smaller, job)


def test_decisions_of_every_kind_are_in_the_stream(pair: Living) -> None:
    records: list[dict[str, Any]] = pair.poise("events", "--json", "--decisions").value
    kinds = {record["event"]["type"] for record in records}
    assert {"placed", "held"} <= kinds <= {"placed", "held", "preempted", "levelled", "triggered", "policy-failed"}
    placed = next(record["event"] for record in records if record["event"]["type"] == "placed")
    assert placed["why"]["base"] > 0
    assert placed["why"]["policy"] == "poise"


def test_unknown_jobs_are_told(pair: Living) -> None:
    for command in (("explain", "nobody"), ("explain", "nobody", "--node", "left"), ("explain", "nobody", "--unblock")):
        done = pair.poise(*command, "--json")
        assert (done.code, done.error["code"]) == (1, "E120"), done


def test_without_a_control_plane_this_machine_is_planned_on(living: Living) -> None:
    done = living.poise("plan", "--json", "--", "true")
    assert done.code == 0, done.err
    assert json.loads(done.out)["places"][0]["spots"][0][0] == "this machine"
    assert "no control plane is running" in done.err
    assert not living.processes()


def _asked(living: Living, job: str) -> str:
    """Whose decision is explained: the safe policy's, where the other one took too long."""
    return living.client().explain(job).policy.partition("@")[0]


def test_a_policy_of_ones_own_is_asked(living: Living) -> None:
    """One that is a file, which the control plane itself carries out, and one in Python, which it never runs."""
    policy = living.file("ours.yaml", "kind: policy\nname: ours\norder: run\nscore: {load: 1}\n")
    package = living.work / "theirs-1.0.dist-info"
    package.mkdir()
    package.joinpath("METADATA").write_text("Metadata-Version: 2.1\nName: theirs\nVersion: 1.0\n")
    package.joinpath("entry_points.txt").write_text("[poise.policies]\ntheirs = theirs:THEIRS\n")
    living.file("theirs.py", THEIRS)
    for name in (str(policy), "theirs"):
        done = living.poise("up", "--port", "0", "--policy", name, PYTHONPATH=str(living.work))
        assert done.code == 0, done.err
        until(lambda: _up(living) == 1, "this machine has joined", living.messages)
        holder = living.poise(
            "submit", "--json", "--cpu", str(_cpus(living)), "--expect", "10m", "--", "sleep", "600"
        ).value["job"]
        until(lambda: living.client().job(holder).status == "running", "it runs", living.messages)  # noqa: B023
        late = living.poise("submit", "--json", "--", "true").value["job"]
        until(lambda: _asked(living, late) in ("ours", "theirs"), "it has decided in time")  # noqa: B023
        [waiting] = living.client().explain(late).waiting
        assert {reason.code for reason in waiting.reasons} == {"CPU_BUSY"}
        assert waiting.start is not None
        assert waiting.start.likely is not None
        assert bool(waiting.place) == (name != "theirs"), "only its own code knows the order in which it serves"
        found = {suggestion.kind: suggestion.command for suggestion in living.client().unblock(late).suggestions}
        assert found["end"] == f"poise cancel {holder}"
        assert living.client().why_not(late, waiting.refusing[0].nodes[0]).reasons
        living.poise("cancel", holder, late)
        living.poise("wait", holder, late)
        assert living.poise("events", "--json", "--decisions").code == 0
        assert not [line for line in living.poise("events").text.splitlines() if "policy-failed" in line]
        assert living.poise("down").code == 0


def _cpus(living: Living) -> int:
    return int(living.poise("nodes", "--json").value[0]["cpu"]) // 1000


THEIRS = """
from poise.policy.suites import policy_named


class Theirs:
    name = "theirs"

    def decide(self, view):
        return policy_named("fifo").decide(view)


THEIRS = Theirs()
"""
