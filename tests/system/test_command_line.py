"""The command line as typed: exit codes, what goes to stdout and to stderr, one JSON value, hints that can be typed."""

import getpass
import json
import os
import re
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from poise.drivers.lock import is_ending
from system.living import PATIENCE, POISE, Diary, Living, ended, until

EVERY_BYTE = bytes(range(256)) * 300


# --- poise run -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("command", "code"),
    [
        ("exit 0", 0),
        ("exit 7", 7),
        ("exit 255", 255),
        ("kill -TERM $$", 143),
        ("kill -9 $$", 137),
        ("kill -SEGV $$", 139),
    ],
)
def test_run_gives_the_code_of_its_command(shared: Living, command: str, code: int) -> None:
    done = shared.poise("run", "--retries", "0", "--", "sh", "-c", command)
    assert done.code == code
    assert done.out == b""


def test_run_streams_bytes_as_they_are_and_keeps_the_two_streams_apart(shared: Living) -> None:
    (shared.work / "bytes").write_bytes(EVERY_BYTE)
    done = shared.poise("run", "--", "sh", "-c", "cat bytes; printf 'to stderr' >&2")
    assert done == (0, EVERY_BYTE, "to stderr")


def test_run_cancels_its_job_when_nobody_reads_the_output_as_a_local_command_would_end(shared: Living) -> None:
    running = shared.start("run", "--name", "unread", "--", "sh", "-c", "while echo x; do sleep 0.1; done")
    assert running.stdout is not None
    assert running.stdout.readline() == b"x\n"
    running.stdout.close()
    running.stdout = None
    done, job = ended(running), shared.client().job("unread").id
    assert (done.code, done.err) == (141, f"poise: nobody reads the output; cancelling {job}\n")
    assert shared.poise("wait", "unread").err.endswith("cancelled\n")


def test_run_says_that_its_job_goes_on_when_the_output_cannot_be_written(shared: Living) -> None:
    with Path("/dev/full").open("wb") as full:
        command = [POISE, "run", "--name", "unwritten", "--", "sh", "-c", "while echo x; do sleep 0.1; done"]
        done = subprocess.run(
            command, stdout=full, stderr=subprocess.PIPE, text=True, cwd=shared.work, env=shared.environment(),
            stdin=subprocess.DEVNULL, check=False, timeout=PATIENCE,
        )  # fmt: skip
    job = shared.client().job("unwritten").id
    assert done.returncode == 125
    assert f"{job} keeps running" in done.stderr
    assert "No space left on device" in done.stderr
    assert shared.poise("cancel", "unwritten").code == 0


def test_run_streams_while_the_command_runs(shared: Living) -> None:
    running = shared.start("run", "--", "sh", "-c", "echo first; sleep 30")
    assert running.stdout is not None
    assert running.stdout.readline() == b"first\n"
    running.send_signal(signal.SIGINT)
    assert ended(running).code == 130


@pytest.mark.parametrize(
    ("arguments", "code"),
    [
        (("run", "--", "no-such-command-anywhere"), 127),
        (("run", "--", "/etc/hostname"), 126),
        (("run",), 125),
        (("run", "--no-such-flag", "--", "true"), 125),
        (("run", "--cpu", "many", "--", "true"), 125),
        (("run", "--cpu", "100000", "--", "true"), 125),
        (("wait", "no-such-job"), 125),
        (("wait",), 125),
        (("show", "no-such-job"), 1),
        (("logs", "no-such-job"), 1),
        (("explain", "no-such-job.main"), 1),
        (("why-not", "no-such-job", "n"), 1),
        (("unblock", "no-such-job"), 1),
        (("up", "--policy", "none"), 1),
        (("cancel", "no-such-job"), 1),
        (("drain", "no-such-node"), 1),
        (("submit", "no-such-file.yaml"), 1),
        (("submit",), 1),
        (("ls", "--no-such-flag"), 1),
        (("shwo", "j1"), 1),
        (("up", "--policy", "best"), 1),
        (("--help",), 0),
        (("run", "--help"), 0),
        (("--version",), 0),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, tuple) else None,
)
def test_documented_exit_codes(shared: Living, arguments: tuple[str, ...], code: int) -> None:
    """125 is a failure of Poise in `run` and `wait`; elsewhere 1 is the user's input, and it is always explained."""
    done = shared.poise(*arguments)
    assert done.code == code, done.err
    if code in (1, 125):
        assert re.match(r"error\[E\d\d\d\]: [^A-Z]", done.err), done.err
        assert "\nhint: " in done.err
        assert "Traceback" not in done.err
        assert done.out == b""


@pytest.mark.parametrize(
    "arguments",
    [
        ("run", "--json", "--", "true"),
        ("run", "--json", "--", "false"),
        ("run", "--json", "--cpu", "many", "--", "true"),
        ("run", "--json"),
        ("submit", "--json", "--", "true"),
        ("submit", "--json", "no-such-file.yaml"),
        ("up", "--json"),
        ("up", "--json", "--policy", "none"),
        ("status", "--json"),
        ("ls", "--json"),
        ("ls", "--json", "--all"),
        ("show", "--json", "no-such-job"),
        ("show", "--json"),
        ("logs", "--json", "no-such-job"),
        ("wait", "--json", "no-such-job"),
        ("cancel", "--json", "no-such-job"),
        ("nodes", "--json"),
        ("drain", "--json", "no-such-node"),
        ("events", "--json"),
        ("events", "--json", "--decisions"),
        ("down", "--json", "--no-such-flag"),
        ("no-such-command", "--json"),
    ],
    ids=" ".join,
)
def test_json_is_exactly_one_value_on_stdout_also_of_an_error(shared: Living, arguments: tuple[str, ...]) -> None:
    done = shared.poise(*arguments)
    assert done.value is not None
    if done.code not in (0, 1) or (done.code == 1 and "false" not in arguments):
        assert set(done.error) <= {"code", "message", "field", "need", "have", "hint"}
        assert re.fullmatch(r"E\d\d\d", done.error["code"])
        assert done.error["hint"]


def test_json_after_the_command_belongs_to_the_command(shared: Living) -> None:
    assert shared.poise("run", "echo", "--json") == (0, b"--json\n", "")
    done = shared.poise("run", "--cpu", "many", "echo", "--json")
    assert (done.code, done.out) == (125, b"")


def test_run_keeps_what_it_says_and_nothing_else(shared: Living) -> None:
    given = {"VIRTUAL_ENV": "/v", "CONDA_PREFIX": "/c", "CONDA_X": "1", "LANG": "C.UTF-8", "SECRET": "s", "PASSED": "p"}
    done = shared.poise("run", "--env", "PASSED", "--env", "SET=a=b", "--", "env", "-0", **given)
    seen = dict(pair.split("=", 1) for pair in done.text.split("\0") if pair)
    ours = {name for name in seen if name.startswith("POISE_")}
    assert {"POISE_TASK", "POISE_JOB", "POISE_EPOCH"} <= ours
    assert "POISE_HOME" not in ours
    kept = ("PATH", "HOME", "VIRTUAL_ENV", "CONDA_PREFIX", "CONDA_X", "LANG", "PASSED")
    expected = {name: shared.environment(**given)[name] for name in kept} | {"SET": "a=b"}
    devices = {name for name in seen if name.endswith("_VISIBLE_DEVICES")}
    assert {name: value for name, value in seen.items() if name not in ours | devices} == expected
    assert shared.poise("run", "--", "pwd").text == f"{shared.work}\n"


def test_submit_keeps_only_what_is_declared(shared: Living) -> None:
    shared.file("declared.yaml", "run: [env, '-0']\nenv: {TAKEN: null, SET: 1}\n")
    job = shared.poise("submit", "declared.yaml", TAKEN="t", OTHER="s", VIRTUAL_ENV="/v").text.strip()
    assert shared.poise("wait", job).code == 0
    seen = dict(pair.split("=", 1) for pair in shared.poise("logs", job).text.split("\0") if pair)
    assert seen["TAKEN"] == "t"
    assert seen["SET"] == "1"
    assert not {"OTHER", "VIRTUAL_ENV", "POISE_HOME", "LANG"} & set(seen)
    missing = shared.poise("submit", "declared.yaml")
    assert missing.code == 1
    assert "env.TAKEN" in missing.err


def test_what_only_the_submitter_s_path_finds_is_hinted_at(shared: Living) -> None:
    tool = shared.file("a-tool", "#!/bin/sh\n")
    tool.chmod(0o755)
    path = f"{shared.work}:{os.environ['PATH']}"
    shared.poise("submit", "--name", "pathless", "--", "a-tool", PATH=path)
    assert shared.poise("wait", "pathless").code == 127
    assert "`poise submit --env PATH`" in (told := shared.poise("show", "pathless", PATH=path)).text + told.err
    assert "--env PATH" not in shared.poise("show", "pathless").err
    shared.poise("submit", "--name", "pathful", "--env", "PATH", "--", "a-tool", PATH=path)
    assert shared.poise("wait", "pathful").code == 0


def test_ctrl_c_cancels_once_and_the_command_is_gone(shared: Living) -> None:
    running = shared.start("run", "--", "sh", "-c", "trap 'echo cleaned up; exit 3' TERM; echo ready; sleep 60 & wait")
    assert running.stdout is not None
    assert running.stdout.readline() == b"ready\n"
    running.send_signal(signal.SIGINT)
    done = ended(running)
    assert done.code == 130
    assert done.text == "cleaned up\n"
    assert "cancelling" in done.err
    until(lambda: not shared.tasks(), "the command has ended", shared.tasks)


def test_out_of_memory_is_told_apart(shared: Living) -> None:
    eat = "x = [bytearray(1 << 20) for _ in range(600)]; import time; time.sleep(5)"
    done = shared.poise("run", "--memory", "100MiB", "--retries", "0", "--", sys.executable, "-c", eat)
    assert done.code == 137
    assert "oom: peak" in done.err
    assert "limit 100 MiB" in done.err
    job = shared.poise("ls", "--json").value[-1]["id"]
    task = shared.poise("show", job, "--json").value["tasks"][0]
    assert (task["outcome"], task["limit"]) == ("oom", 100 << 20)
    assert task["peak"] > 50 << 20
    assert "out of memory" in shared.poise("show", job).text


# --- submitting and following ----------------------------------------------------------------------------------------


def test_a_job_from_submission_to_its_logs(shared: Living) -> None:
    job = shared.poise("submit", "--name", "hello", "--", "sh", "-c", "echo out; echo err >&2; exit 4").text.strip()
    waited = shared.poise("wait", "hello")
    assert waited.code == 4
    assert waited.out == b""
    assert shared.poise("logs", "-f", job) == (0, b"out\n", "err\n")
    assert shared.poise("logs", f"{job}.main").text == "out\n"
    assert shared.poise("logs", "--tail", "0", job) == (0, b"", "")
    shown = shared.poise("show", "hello", "--json").value
    assert (shown["id"], shown["status"], shown["exit_code"]) == (job, "failed", 4)
    assert job in shared.poise("ls").text
    only = ("--user", getpass.getuser(), "--limit", "1", "-o", "name")
    assert shared.poise("ls", "--status", "failed", "--name", "hel*", *only).text == f"{job}\n"
    assert shared.poise("ls", "--name", "hel").err == "poise: no jobs match\n"
    logged = shared.poise("logs", "hello", "--json").value
    assert {(piece["stream"], piece["text"]) for piece in logged} == {("out", "out\n"), ("err", "err\n")}


def test_a_task_that_is_not_there_is_an_error_and_not_silence(shared: Living) -> None:
    job = shared.poise("submit", "--name", "exp.1", "--", "echo", "hello").text.strip()
    assert shared.poise("wait", job).code == 0
    assert shared.poise("logs", "exp.1").out == shared.poise("logs", "exp.1.main").out == b"hello\n"
    for arguments in (("logs", f"{job}.mian"), ("logs", job, "--task", "mian"), ("explain", f"{job}.mian")):
        done = shared.poise(*arguments, "--json")
        assert (done.code, done.error["code"], done.error["have"]) == (1, "E120", "main")
        assert done.error["hint"] == "did you mean `main`?"
    assert shared.poise("explain", f"{job}.main").text.startswith(f"{job} exp.1  done")
    assert [task["name"] for task in shared.poise("show", f"{job}.main", "--json").value["tasks"]] == ["main"]


@pytest.mark.parametrize("command", ["show", "logs", "wait", "cancel", "explain", "unblock", "drain", "why-not n1"])
def test_an_empty_name_is_nobody_s(shared: Living, command: str) -> None:
    """It is what an unset variable leaves: `poise wait "$JOB"`."""
    done = shared.poise(*command.split(), "", "--json")
    failed = 125 if command == "wait" else 1  # `wait` ends as the job does
    assert (done.code, done.error["code"], done.error["message"]) == (failed, "E102", "the name is empty")


@pytest.mark.parametrize(
    ("command", "lists"),
    [
        ("show", "ls --all"),
        ("schedules rm", "schedules"),
        ("quota --none", "quota"),
        ("incidents", "incidents"),
        ("drain", "nodes"),
        ("why-not j1", "nodes"),
        ("token rm", "token ls"),
        ("reserve cancel", "reserve"),
        ("shadow stop", "shadow"),
    ],
)
def test_a_path_is_no_name(shared: Living, command: str, lists: str) -> None:
    done = shared.poise(*command.split(), "examples/report.yaml", "--json")
    assert (done.code, done.error["message"], done.error["have"], done.error["hint"]) == (
        1,
        "a name cannot contain `/`",
        "examples/report.yaml",
        f"`poise {lists}` lists the names",
    )


def test_up_sets_another_policy_where_it_is_up_already(shared: Living) -> None:
    control = shared.pid("control")
    for policy in ("fifo", "fifo", "poise"):
        assert shared.poise("up", "--policy", policy, "--json").value["policy"] == policy
        assert f"policy {policy}" in shared.poise("up").err
    assert shared.pid("control") == control


def test_status_tells_who_decides(shared: Living) -> None:
    value = shared.poise("status", "--json").value
    assert (value["up"], value["policy"], value["fleet"], value["nodes"], value["lost"]) == (True, "poise", "", 1, 0)
    assert value["phases"].keys() >= {"append", "sync"}
    assert "\npolicy  poise\nfleet   this machine\nnodes   1\n" in shared.poise("status").text


@pytest.mark.parametrize(
    ("command", "text", "kind", "hint"),
    [
        ("submit", "kind: fleet\nnodes: {a: {cpu: 1, memory: 1GiB}}", "fleet", "`poise up --fleet wrong.yaml`"),
        ("plan", "nodes: {a: {cpu: 1, memory: 1GiB}}", "fleet", "`poise up --fleet wrong.yaml`"),
        ("submit", "kind: policy\nname: mine", "policy", "`poise up --policy wrong.yaml`"),
        ("up --fleet", "run: echo hello", "job", "`poise submit wrong.yaml`"),
        ("nodes --fleet", "kind: policy\nextends: fifo", "policy", "`poise up --policy wrong.yaml`"),
        ("up --policy", "kind: graph\ntasks: {a: {run: echo}}", "job", "`poise submit wrong.yaml`"),
    ],
)
def test_a_file_of_another_kind_is_told_apart(shared: Living, command: str, text: str, kind: str, hint: str) -> None:
    shared.file("wrong.yaml", text + "\n")
    done = shared.poise(*command.split(), "wrong.yaml", "--json")
    assert (done.code, done.error["code"], done.error["hint"]) == (1, "E102", hint)
    assert done.error["message"].startswith(f"this looks like a {kind} file")


def test_flags_reach_the_job(shared: Living) -> None:
    first = shared.poise("submit", "--name", "first", "--", "sleep", "0.3").text.strip()
    flags = (
        "--after",
        "first",
        "--priority",
        "high",
        "--deadline",
        "30m",
        "--cpu",
        "500m",
        "--memory",
        "64MiB",
        "--workers",
        "2",
    )
    done = shared.poise("submit", *flags, "--json", "--", "sh", "-c", "echo $RANK of $WORLD_SIZE; sleep 0.2")
    job = done.value["job"]
    assert shared.poise("wait", first, job).code == 0
    shown = shared.poise("show", job, "--json").value
    assert [task["priority"] for task in shown["tasks"]] == ["high", "high"]
    assert sorted(shared.poise("logs", job).text.splitlines()) == ["[rank 0] 0 of 2", "[rank 1] 1 of 2"]
    before = shared.poise("show", first, "--json").value
    assert min(task["started"] for task in shown["tasks"]) >= before["tasks"][0]["ended"] - 0.01


def test_what_comes_after_a_failed_job_is_not_run(shared: Living) -> None:
    failed = shared.poise("submit", "--", "false").text.strip()
    after = shared.poise("submit", "--after", failed, "--", "touch", "never").text.strip()
    assert shared.poise("wait", after).code != 0
    assert not (shared.work / "never").exists()


def test_a_name_is_taken_while_its_job_is_unfinished(shared: Living) -> None:
    held = shared.poise("submit", "--name", "taken", "--", "sleep", "60").text.strip()
    again = shared.poise("submit", "--name", "taken", "--json", "--", "true")
    assert again.code == 1
    assert (again.error["code"], again.error["field"], again.error["have"]) == ("E107", "--name", held)
    _type(shared, again.error["hint"])  # `poise cancel taken`
    assert shared.poise("wait", held).code == 130
    assert shared.poise("run", "--name", "taken", "--", "true").code == 0


def _type(living: Living, hint: str) -> None:
    """Type what a hint says."""
    typed = re.findall(r"`poise ([^`]+)`", hint)
    assert typed, hint
    assert living.poise(*typed[0].split()).code == 0


@pytest.mark.timed
def test_wait_gives_up_after_its_timeout(shared: Living) -> None:
    jobs = [shared.poise("submit", "--cpu", "0.1", "--", "sleep", "60").text.strip() for _ in range(3)]
    before = time.monotonic()
    waited = shared.poise("wait", "--timeout", "1s", *jobs)
    assert waited.code == 125
    assert time.monotonic() - before < 2.5, "the timeout is for all of them together"
    assert waited.err.count("not over yet") == 3
    assert shared.poise("wait", "--timeout", "soon", jobs[0]).code == 125
    assert shared.poise("cancel", *jobs).code == 0
    assert shared.poise("wait", *jobs).code == 130


def test_a_job_may_begin_later(shared: Living) -> None:
    job = shared.poise("submit", "--begin", "2s", "--", "true").text.strip()
    [task] = shared.poise("show", job, "--json").value["tasks"]
    assert task["status"] == "pending"
    [reason] = task["reasons"]
    assert reason.startswith("begins in ")
    assert shared.poise("wait", job).code == 0
    assert shared.poise("show", job, "--json").value["tasks"][0]["wait"] < 10**9, "it waited for nobody"


def test_of_several_that_are_cancelled_none_starts_in_place_of_another(shared: Living) -> None:
    whole = ("--cpu", str(os.cpu_count()), "--", "sleep", "60")
    runs, *wait = [shared.poise("submit", *whole).text.strip() for _ in range(4)]
    assert shared.poise("cancel", runs, "no-such-job").code != 0
    assert shared.poise("show", runs, "--json").value["status"] in ("placed", "running"), "all or none"
    assert shared.poise("cancel", runs, *wait).err == f"cancelling {', '.join((runs, *wait))}\n"
    assert shared.poise("wait", runs, *wait).code == 130
    for job in wait:
        assert [task["epoch"] for task in shared.poise("show", job, "--json").value["tasks"]] == [0]


def test_a_drained_node_takes_no_new_work(shared: Living) -> None:
    node = shared.poise("nodes", "--json").value[0]["name"]
    assert shared.poise("drain", node).code == 0
    job = shared.poise("submit", "--", "true").text.strip()
    assert shared.poise("wait", "--timeout", "500ms", job).code == 125
    reasons = shared.poise("show", job, "--json").value["tasks"][0]["reasons"]
    assert reasons and "drain" in " ".join(reasons)
    assert shared.poise("drain", "--undo", node).code == 0
    assert shared.poise("wait", job).code == 0


def test_a_node_is_emptied_as_far_as_it_may_be(shared: Living) -> None:
    """There is no other node: what runs goes on where it is until the node is opened again."""
    stays = shared.poise("submit", "--no-preempt", "--", "sleep", "60").text.strip()
    goes = shared.poise("submit", "--", "sleep", "60").text.strip()

    def both_run() -> bool:
        return [shared.client().job(job).status for job in (stays, goes)] == ["running"] * 2

    until(both_run, "both run")
    node = shared.poise("nodes", "-o", "name").text.strip()
    told = shared.poise("drain", "--move", node)
    assert told.err == (
        f"{node} takes no new work; 1 task goes on elsewhere once there is room, 1 goes on there to its end; "
        f"`poise drain --undo {node}` opens it\n"
    )
    assert shared.poise("drain", "--move", "--json", node).value == {
        "node": node, "drained": True, "moves": 1, "stays": 1,
    }  # fmt: skip
    assert shared.poise("nodes", "--json").value[0]["status"] == "emptying"
    assert shared.poise("drain", "--move", "--undo", node, "--json").error["code"] == "E102"
    assert shared.poise("drain", "--undo", "--json", node).value == {"node": node, "drained": False}
    assert both_run()
    assert shared.poise("cancel", stays, goes).code == 0


def test_a_graph_from_a_file(shared: Living) -> None:
    shared.file(
        "graph.yaml",
        """
        kind: graph
        name: graph
        tasks:
          first: {run: echo 1 >> order}
          second: {run: echo 2 >> order, needs: [first]}
          parts: {run: 'echo part $POISE_PART of $POISE_PARTS', parts: 3, merge: echo merged, needs: [second]}
        """,
    )
    job = shared.poise("submit", "graph.yaml").text.strip()
    assert shared.poise("wait", job).code == 0
    assert (shared.work / "order").read_text() == "1\n2\n"
    assert shared.poise("logs", f"{job}.parts[1]").text == "part 1 of 3\n"
    assert shared.poise("logs", job, "--task", "parts.merge").text == "merged\n"
    assert "critical path: first → second" in shared.poise("show", job).text


def test_events_are_followed_through_a_restart(shared: Living) -> None:
    """Each record once and in order, though the control plane dies between them."""
    following = shared.start("events", "--follow", "--after", "0")
    shared.poise("run", "--", "true")
    os.kill(shared.pid("control"), signal.SIGKILL)
    job = until(lambda: shared.poise("submit", "--", "true").text.strip(), "it is back")
    shared.poise("wait", job)
    time.sleep(0.3)
    following.send_signal(signal.SIGINT)
    done = ended(following)
    assert done.code == 130
    revisions = [json.loads(line)["revision"] for line in done.out.splitlines()]
    assert revisions == list(range(1, len(revisions) + 1))
    assert len([line for line in done.out.splitlines() if b'"type":"began"' in line]) >= 2


def test_closed_pipes_are_no_error(shared: Living) -> None:
    script = f"{POISE} events | head -n 1"
    done = subprocess.run(
        ["sh", "-c", script], env=shared.environment(), capture_output=True, check=False, timeout=PATIENCE
    )
    assert (done.returncode, done.stderr) == (0, b"")


@pytest.mark.parametrize(
    ("typed", "code", "told"),
    [
        ("status", 2, "the disk is full: the output cannot be written"),
        ("status --json", 2, "the disk is full: the output cannot be written"),
        ("--help", 2, "the disk is full: the output cannot be written"),
        ("show nobody --json", 1, "there is no job `nobody`"),
        ("nothing --json", 1, "there is no command `nothing`"),
    ],
)
def test_what_cannot_be_printed_on_a_full_disk_is_told(shared: Living, typed: str, code: int, told: str) -> None:
    environment = shared.environment()
    with Path("/dev/full").open("wb") as full:
        done = subprocess.run(
            [POISE, *typed.split()], env=environment, stdout=full, stderr=subprocess.PIPE, check=False, timeout=PATIENCE
        )
    assert done.returncode == code
    assert told in done.stderr.decode()
    assert b"Traceback" not in done.stderr and b"Exception" not in done.stderr


@pytest.mark.parametrize(("typed", "code"), [("submit --cpu 0.1 -- true", 0), ("show nobody", 1), ("nothing", 1)])
def test_messages_that_cannot_be_printed_change_no_exit_code(shared: Living, typed: str, code: int) -> None:
    environment = shared.environment()
    with Path("/dev/full").open("wb") as full:
        done = subprocess.run(
            [POISE, *typed.split()], env=environment, stdout=subprocess.PIPE, stderr=full, check=False, timeout=PATIENCE
        )
    assert (done.returncode, done.stdout[:1]) == (code, b"j" if code == 0 else b"")


def test_a_closed_output_is_no_error(shared: Living) -> None:
    done = subprocess.run(
        ["sh", "-c", f"{POISE} status >&-"],
        env=shared.environment(),
        capture_output=True,
        check=False,
        timeout=PATIENCE,
    )
    assert (done.returncode, done.stderr) == (0, b"")


# --- coming and going ------------------------------------------------------------------------------------------------


def test_two_runs_share_one_control_plane_which_leaves_after_the_last(living: Living) -> None:
    first = living.start("run", "--cpu", "0.5", "--", "sh", "-c", "echo one; sleep 1.5")
    second = living.start("run", "--cpu", "0.5", "--", "sh", "-c", "echo two; sleep 2.5")
    assert ended(first)[:2] == (0, b"one\n")
    control = living.pid("control")
    assert ended(second)[:2] == (0, b"two\n")
    assert living.pid("control") == control
    assert [job["status"] for job in living.poise("ls", "--json").value] == ["done", "done"]
    until(lambda: not living.processes(), "it has left", living.processes, seconds=20)
    assert living.messages().count("Traceback") == 0


def test_run_finds_a_control_plane_while_another_leaves(living: Living) -> None:
    """Commands that come just as an idle control plane goes away all work."""
    assert living.poise("run", "--", "true").code == 0
    time.sleep(3.0)
    done = living.poise("run", "--", "echo", "hello")
    assert done == (0, b"hello\n", ""), living.messages()[-3000:]


def test_what_only_looks_works_while_an_idle_control_plane_leaves(living: Living) -> None:
    assert living.poise("run", "--", "true").code == 0
    while living.processes():
        assert (looked := living.poise("ls", "--all")).code == 0, looked.err
    assert looked.text.startswith("JOB")


def test_what_was_started_for_one_run_stays_when_asked_to(living: Living) -> None:
    """`poise up` is remembered by the control plane that replaces one that was killed."""
    assert living.poise("run", "--", "true").code == 0
    living.up()
    os.kill(living.pid("control"), signal.SIGKILL)
    time.sleep(5)
    assert living.poise("ls").code == 0
    assert living.pid("control")


def test_much_works_without_a_control_plane(living: Living) -> None:
    assert living.poise("ls", "--json").value == []
    assert living.poise("nodes", "--json").value[0]["cpu"] > 0
    assert living.home.root.stat().st_mode & 0o777 == 0o700
    job = living.poise("run", "--json", "--", "echo", "hello").value["id"]
    assert living.poise("down").code == 0
    assert not living.pid("control")
    assert living.poise("ls", "--json").value[0]["id"] == job
    assert living.poise("show", job, "--json").value["status"] == "done"
    assert living.poise("show", job).text.startswith(job)
    assert living.poise("logs", job).out == b"hello\n"
    assert living.poise("logs", "j99").code == 1
    assert living.poise("nodes", "--json").value[0]["cpu"] > 0
    for command in (("submit", "--if-revision", "1", "--", "true"), ("cancel", job), ("drain", "n"), ("events",)):
        done = living.poise(*command)
        assert done.code == 2
        assert "hint: `poise up`" in done.err
    assert living.poise("wait", job).code == 0
    assert living.poise("wait", job, "j99").code == 125
    assert living.poise("down", "--json").value == {"stopped": False}
    assert living.poise("status", "--json").value["up"] is False
    assert "not up" in living.poise("status").text


def test_the_first_command_is_refused_if_this_machine_can_never_run_it(living: Living) -> None:
    refused = living.poise("run", "--node", "nowhere", "--", "true")
    assert (refused.code, refused.out) == (125, b"")
    assert "error[E110]: `main`: no node has the name `nowhere`\n  where   --node" in refused.err


def test_submit_checks_a_file_before_it_starts_a_control_plane_for_it(living: Living) -> None:
    living.file("wrong.yaml", "kind: graph\nname: -x\ntasks:\n  a: {run: x, cpus: 2}\n  b: {run: x, needs: [c]}\n")
    refused = living.poise("submit", "--json", "wrong.yaml")
    assert refused.code == 1
    error: Any = refused.error
    errors = [error, *error["others"]]
    assert sorted(error["at"] for error in errors) == ["wrong.yaml:2:1", "wrong.yaml:4:15", "wrong.yaml:5:23"]
    refused = living.poise("run", "--json", "--cpu", "-1", "--memory", "much", "--", "true")
    error = refused.error
    assert refused.code == 125 and [error["field"], error["others"][0]["field"]] == ["--cpu", "--memory"]
    assert not living.home.log.exists() and not living.processes(), "nothing was started"

    living.file("right.yaml", "kind: graph\ntasks:\n  a: {run: echo one}\n  b: {run: echo two, needs: [a]}\n")
    job = living.poise("submit", "right.yaml").text.strip()
    assert living.poise("wait", job).code == 0
    failing = living.poise("submit", "--", "sh", "-c", "exit 7").text.strip()
    until(lambda: not living.processes(), "it has left", living.processes, seconds=20)
    assert living.poise("wait", job).code == 0, "also when no control plane is left to ask"
    assert living.poise("wait", failing, job).code == 7


HOLD = "import fcntl, os, signal, sys; f = open(sys.argv[1], 'w'); fcntl.flock(f, fcntl.LOCK_EX); \
print(os.getpid(), file=f, flush=True); print(flush=True); signal.pause()"


def test_down_is_content_with_one_that_is_leaving_for_want_of_work(living: Living) -> None:
    """It may go between the look at who is there and the question what is unfinished."""
    living.up()
    assert living.poise("down").code == 0
    living.home.left.touch()
    command = [sys.executable, "-c", HOLD, str(living.home.node / "lock")]
    with subprocess.Popen(command, stdout=subprocess.PIPE, env=living.environment()) as agent:
        assert agent.stdout is not None and agent.stdout.readline()
        try:
            assert living.poise("down", "--json").value == {"stopped": True}
            assert agent.wait(5) == -signal.SIGTERM
        finally:
            agent.kill()


@pytest.mark.parametrize("flags", [[], ["--cancel"]])
def test_several_downs_at_once_all_succeed(living: Living, flags: list[str]) -> None:
    living.up()
    if flags:
        living.poise("submit", "--", "sleep", "100")
    downs = [living.start("down", "--json", *flags) for _ in range(4)]
    assert [ended(down).code for down in downs] == [0, 0, 0, 0]
    assert not living.processes()


def test_down_refuses_leaves_or_cancels(living: Living) -> None:
    living.up()
    diary = Diary(living.work / "diary")
    living.file("long.yaml", f"run: '{diary.held()}'\n")
    job = living.poise("submit", "long.yaml").text.strip()
    until(lambda: list(diary.entries()), "it runs")
    task = living.tasks()
    refused = living.poise("down", "--json")
    assert refused.code == 1
    assert (refused.error["code"], refused.error["have"]) == ("E121", job)
    assert living.pid("control")
    assert living.poise("down", "--leave").code == 0
    assert not any(living.pid(what) for what in ("control", "agent", "supervisor"))
    assert living.tasks() == task
    living.up()
    assert living.tasks() == task
    diary.release()
    assert living.poise("wait", job).code == 0
    assert diary.endings() == [f"{job}.main"]
    another = living.poise("submit", "--", "sleep", "60").text.strip()
    assert living.poise("down", "--cancel").code == 0
    assert living.poise("show", another, "--json").value["exit_code"] == 130
    assert not any(check["name"] == "left over" for check in living.poise("doctor", "--json").value["checks"])


def test_what_down_left_running_is_cancelled_by_another_down(living: Living) -> None:
    diary = Diary(living.work / "diary")
    living.file("long.yaml", f"run: '{diary.held()}'\n")
    job = living.poise("submit", "long.yaml").text.strip()
    until(lambda: list(diary.entries()), "it runs")
    assert living.poise("down", "--leave").code == 0
    assert f"one job is unfinished ({job})" in living.poise("down").err
    assert living.tasks()
    assert living.poise("down", "--cancel", "--json").value == {"stopped": True}
    assert not living.tasks() and not living.processes()
    assert living.poise("show", job, "--json").value["exit_code"] == 130


def test_up_keeps_the_flags_of_the_last_start(living: Living) -> None:
    living.up("--no-agent", "--listen", "127.0.0.1:0", "--policy", "fifo")
    assert living.poise("down").code == 0
    said = living.poise("up").err
    for flag in ("`--no-agent`", "`--listen 127.0.0.1:0`", "`--policy fifo`", "`--port 0`"):
        assert flag in said.partition("kept from the last start: ")[2]
    assert "policy fifo" in said and "POISE_ADDRESS=" in said and not living.pid("agent")
    assert "kept" not in living.poise("up").err, "it is up already"
    later = living.poise("up", "--decide-within", "2s").err
    assert "`--decide-within 2s` counts from the next start" in later
    assert living.poise("down").code == 0
    other = living.poise("up", "--policy", "poise").err
    assert "policy poise" in other and "POISE_ADDRESS=" in other and "`--decide-within 2s`" in other
    reset = living.poise("up", "--reset", "--port", "0").err.partition("it is up already, with ")[2]
    assert "`--no-agent`" in reset and "`--reset` counts from the next start" in reset
    assert living.poise("down").code == 0
    alone = living.poise("up", "--reset", "--port", "0").err
    assert "kept" not in alone and "POISE_ADDRESS" not in alone and living.pid("agent")


def test_a_policy_file_is_kept_as_it_was(living: Living) -> None:
    policy = living.file("mine.yaml", "kind: policy\nname: mine\nextends: fifo\n")
    living.up("--policy", "mine.yaml")
    label = living.poise("status", "--json").value["policy"]
    assert label.startswith("mine@") and living.poise("down").code == 0
    policy.unlink()
    assert f"`--policy {policy}`" in living.poise("up").err
    assert living.poise("status", "--json").value["policy"] == label


def test_what_was_up_and_was_killed_is_brought_back_with_its_flags_by_any_command(living: Living) -> None:
    living.up("--policy", "fifo", "--listen", "127.0.0.1:0")
    for what in ("supervisor", "control", "agent"):
        os.kill(living.pid(what), signal.SIGKILL)
    assert living.poise("run", "--", "true").code == 0
    status = living.poise("status")
    assert "policy  fifo" in status.text and "address" in status.text
    assert "kept" not in living.poise("up", "--policy", "fifo").err
    assert living.poise("down").code == 0
    assert living.poise("run", "--", "true").code == 0
    assert "policy  fifo" in living.poise("status").text, "the log keeps it"
    assert "`--listen 127.0.0.1:0`" in living.poise("up").err, "they count from the next start"
    for what in ("supervisor", "control", "agent"):
        os.kill(living.pid(what), signal.SIGKILL)
    until(lambda: not any(map(living.pid, ("supervisor", "control", "agent"))), "all are gone")
    assert living.poise("down", "--json").value == {"stopped": False}
    assert living.poise("run", "--", "true").code == 0
    assert "policy  fifo" in living.poise("status").text


def test_up_while_an_earlier_one_is_ending_starts_another(living: Living) -> None:
    living.up()
    agent = living.pid("agent")
    os.kill(agent, signal.SIGSTOP)  # its supervisor gives it five seconds, and then kills it
    ending = living.start("down")
    until(lambda: is_ending(living.home.supervisor), "the supervisor is ending", seconds=5)
    done = living.poise("up", "--no-agent")
    assert done.code == 0 and "poise is up: " in done.err, done.err
    assert ended(ending).code == 0 and not living.pid("agent")
    assert living.poise("status", "--json").value["up"] is True


def test_what_was_asked_for_wrongly_ends_with_1_also_where_the_control_plane_finds_out(living: Living) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        done = living.poise("up", "--port", "0", "--listen", f"127.0.0.1:{taken.getsockname()[1]}", "--json")
    assert (done.code, done.error["code"]) == (1, "E102")


def test_a_home_with_a_long_path_works(living: Living) -> None:
    long = living.root / "home" / ("long" * 30)
    done = living.poise("run", "--", "echo", "hello", POISE_HOME=str(long))
    assert done == (0, b"hello\n", "")
    assert living.poise("down", POISE_HOME=str(long)).code == 0


# --- starting quickly ------------------------------------------------------------------------------------------------


def test_help_imports_little() -> None:
    code = "import sys; from poise.cli.main import main; main(['--help']); print(*sys.modules, file=sys.stderr)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    loaded = set(done.stderr.split())
    assert "poise.cli.main" in loaded
    assert not loaded & {"click", "msgspec", "asyncio", "rich", "yaml", "numpy", "uvicorn", "http.client"}


def test_no_command_imports_what_it_does_not_need() -> None:
    commands = (
        "import importlib; from poise.cli.main import COMMANDS;"
        "[importlib.import_module(module) for name, (module, _) in COMMANDS.items() if name != 'demo']"
    )
    heavy = {"torch", "ray", "kubernetes", "sklearn", "pickle5"}
    assert not modules(commands) & (heavy | {"numpy", "uvicorn"})
    assert not modules("import poise.agent.__main__") & (heavy | {"numpy", "uvicorn"})
    assert not modules("import poise.control.__main__") & (heavy | {"yaml", "http.client", "poise.drivers.process"})


def modules(code: str, **environ: str) -> set[str]:
    done = subprocess.run(
        [sys.executable, "-c", f"{code}; import sys; print(*sys.modules, file=sys.stderr)"],
        capture_output=True,
        text=True,
        check=True,
        env={**os.environ, **environ},
    )
    return set(done.stderr.splitlines()[-1].split())


@pytest.mark.parametrize(
    "command", ["ls", "show seen", "logs seen", "nodes", "explain seen", "status", "up", "submit -- true", "run true"]
)
def test_a_command_imports_nothing_to_decide_with_and_nothing_for_other_machines(shared: Living, command: str) -> None:
    if not any(job.name == "seen" for job in shared.client().jobs(everything=True)):
        assert shared.poise("run", "--name", "seen", "--", "true").code == 0
    code = f"from poise.cli.main import main; assert main({command.split()}) == 0"
    loaded = modules(code, **shared.environment())
    assert "poise.client" in loaded
    assert not loaded & {"numpy", "asyncio", "sqlite3", "poise.kernel.ledger", "poise.policy.suites"}
    assert not loaded & {"ssl", "http.client", "email", "hashlib", "random", "yaml", "importlib.metadata"}


@pytest.mark.timed
def test_help_starts_within_five_times_of_bare_python() -> None:
    """The better of twenty runs each, taken in turn: on a busy machine the best run is what the program costs."""

    def seconds(*command: str) -> float:
        before = time.perf_counter()
        subprocess.run(command, stdout=subprocess.DEVNULL, check=True)
        return time.perf_counter() - before

    pairs = [(seconds(sys.executable, "-c", "pass"), seconds(POISE, "--help")) for _ in range(20)]
    bare, helped = (min(pair[side] for pair in pairs) for side in (0, 1))
    assert helped < 5 * bare, f"{helped * 1000:.0f} ms against {bare * 1000:.0f} ms"
