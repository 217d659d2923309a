"""Every command, as it stands in the list of commands: one JSON value, and the documented exit codes.

Commands run in this process where they can, which is ten times as quick as starting each anew. A new command gets a
line in `WORKS`.
"""

import json
import os
import signal
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from poise.cli.main import COMMANDS, GIVES_CHILD_CODE, OWN_FAILURE, main
from system.living import POISE, Diary, Done, Living, ended, until

ROOT = Path(__file__).resolve().parents[2]
TRACE = (
    f"--fleet {ROOT}/examples/cluster.yaml --map submit=created,duration=seconds,gpus=gpus {ROOT}/examples/trace.csv"
)
REHEARSED = f"{ROOT}/examples/rehearsed"
WORKS = {
    "run": "run --json -- true",
    "up": "up --json",
    "down": "down --json --leave",
    "status": "status --json",
    "submit": "submit --json -- true",
    "services": "services --json",
    "ls": "ls --json",
    "show": "show --json JOB",
    "explain": "explain --json JOB",
    "why-not": "why-not --json WAITS NODE",
    "eta": "eta --json --futures 2",
    "what-if": "what-if --policy fifo --futures 2 --json",
    "plan": "plan --json -- true",
    "unblock": "unblock --json JOB",
    "logs": "logs --json JOB",
    "attach": "attach --json JOB",
    "results": "results --json JOB",
    "get": "get --json over:some.txt copied.txt",
    "exec": "exec --json RUNS -- true",
    "capture": "capture --json JOB --list",
    "top": "top --json",
    "wait": "wait --json JOB",
    "cancel": "cancel --json WAITS",
    "hold": "hold --json WAITS",
    "release": "release --json WAITS",
    "set": "set --json WAITS --priority high",
    "retry": "retry --json WAITS",
    "schedules": "schedules --json",
    "rm": "rm --json WAITS",
    "nodes": "nodes --json",
    "profile": "profile --json",
    "incidents": "incidents --json",
    "drain": "drain --json --undo NODE",
    "policy": "policy show --json",
    "shadow": "shadow ls --json",
    "promote": "promote --json --force fifo",
    "rollback": "rollback --json",
    "rules": "rules --json",
    "forecast": "forecast --json",
    "quota": "quota --json",
    "shares": "shares --json",
    "reserve": "reserve --json",
    "usage": "usage --json",
    "budgets": "budgets apply --json BUDGETS",
    "token": "token ls --json",
    "whoami": "whoami --json",
    "audit": "audit --json",
    "events": "events --json",
    "completion": "completion --json bash",
    "doctor": "doctor --json",
    "catalogue": "catalogue --json",
    "faults": "faults --seeds 2 --processes 1 --json",
    "replay": "replay --json",
    "report": "report --json",
    "hotspots": "hotspots --json",
    "timeline": "timeline --json",
    "decisions": "decisions --json",
    "schema": "schema --json job",
    "simulate": f"simulate --json --policy fifo --jobs 5 {TRACE}",
    "rehearse": f"rehearse --json {REHEARSED}-service.yaml poisson:requests=50 --world {REHEARSED}-replicas.yaml",
    "compare": f"compare --json --policies fifo --jobs 5 {TRACE}",
}
LONG = {
    "login",
    "logout",
    "forward",
    "shell",
    "ssh",
    "demo",
    "learn",
    "tune",
    "bench-devices",
    "serve",
    "service",
    "join",
    "dashboard",
}
"""Take long, go on until they are told to end, or need a gateway, and have tests of their own."""

ASKS = (
    "submit --if-revision 1 -- true",
    "cancel JOB",
    "drain NODE",
    "quota",
    "policy show",
    "shadow",
    "rules",
    "events",
    "top",
    "dashboard --no-browser",
    "ls --watch",
    "wait JOB",
    "show -w JOB",
)
"""What a control plane has to be there for."""


@pytest.fixture(scope="module")
def names(shared: Living) -> Iterator[dict[str, str]]:
    """A job that is over, one that waits, one that runs, and the node."""
    shared.file("some.txt", "in the folder of the job")
    job = shared.poise("run", "--json", "--name", "over", "--", "true").value["id"]
    node = shared.poise("nodes", "-o", "name").text.strip()
    shared.poise("drain", node)
    waits = shared.poise("submit", "--", "true").text.strip()
    shared.poise("drain", "--undo", node, "--json")
    runs = shared.poise("submit", "--cpu", "10m", "--", "sleep", "600").text.strip()
    until(lambda: shared.client().job(runs).status == "running", "it runs")
    shared.poise("quota", "ann", "--cpu", "1")
    for policy in ("fifo", "poise"):  # so that there is one to go back to
        shared.poise("policy", "set", policy)
    shared.poise("shadow", "start", "fifo")
    budgets = str(shared.file("budgets.yaml", "kind: budgets\nbudgets: []\n"))
    yield {"JOB": job, "WAITS": waits, "RUNS": runs, "NODE": node, "BUDGETS": budgets}
    if shared.pid("control"):
        shared.client().cancel(runs)


class Here:
    """`poise …` in this process."""

    def __init__(self, capsysbinary: pytest.CaptureFixture[bytes]) -> None:
        self._captured = capsysbinary

    def poise(self, line: str, names: dict[str, str]) -> Done:
        code = main([names.get(word, word) for word in line.split()])
        out, err = self._captured.readouterr()
        return Done(code, out, err.decode())


@pytest.fixture
def here(shared: Living, capsysbinary: pytest.CaptureFixture[bytes], monkeypatch: pytest.MonkeyPatch) -> Here:
    monkeypatch.setenv("POISE_HOME", str(shared.home.root))
    monkeypatch.chdir(shared.work)
    return Here(capsysbinary)


def test_no_command_is_left_out() -> None:
    assert WORKS.keys() | LONG == COMMANDS.keys()


IN_A_ROW = ("why-not", "hold", "release", "set", "cancel", "retry", "rm", "drain")
"""What changes a job that waits, in an order in which each can."""


@pytest.mark.parametrize("name", [name for name in WORKS if name not in ("down", *IN_A_ROW[:-1])])
def test_it_works_and_prints_one_value(here: Here, names: dict[str, str], name: str) -> None:
    done = here.poise(WORKS[name], names)
    assert (done.code, done.value is not None) == (0, True), done


def test_what_changes_the_world_prints_one_value(here: Here, shared: Living, names: dict[str, str]) -> None:
    """In a row, since each takes what the one before left."""
    shared.poise("drain", names["NODE"])
    waits = {**names, "WAITS": shared.poise("submit", "--", "true").text.strip()}
    for name in IN_A_ROW:
        done = here.poise(WORKS[name], waits)
        assert (done.code, done.value is not None) == (0, True), done


@pytest.mark.parametrize("name", COMMANDS)
def test_a_usage_error_is_one_value_too(here: Here, name: str) -> None:
    done = here.poise(f"{name} --json --no-such-flag", {})
    assert done.code == (OWN_FAILURE if name in GIVES_CHILD_CODE else 1)
    assert done.error["code"] == "E102"
    assert f"`poise {name} --help`" in done.error["hint"] or "--no-such-flag" in done.error["message"]
    assert done.err == ""


@pytest.mark.parametrize("line", ASKS)
def test_where_no_control_plane_runs_it_is_our_fault(
    here: Here, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, line: str
) -> None:
    monkeypatch.setenv("POISE_HOME", str(tmp_path))
    done = here.poise(line, {"JOB": "j1", "NODE": "n"})
    assert done.code == (OWN_FAILURE if line.split()[0] in GIVES_CHILD_CODE else 2)
    assert done.out == b""
    assert "hint: `poise up`" in done.err


@pytest.mark.parametrize("line", ["down --json", "completion --json zsh", "nodes --json", "ls --json", "status --json"])
def test_what_needs_no_control_plane(here: Here, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, line: str) -> None:
    monkeypatch.setenv("POISE_HOME", str(tmp_path))
    assert here.poise(line, {}).code == 0


@pytest.mark.parametrize(
    "line",
    ["ls -o name", "ls -o wide", "show over -o name", "show ov", "nodes -o name", "nodes -o wide", "quota -o name"],
)
def test_forms_agree_with_the_json(here: Here, names: dict[str, str], line: str) -> None:
    done = here.poise(line, names)
    assert done.code == 0
    if line.endswith("name"):
        value = here.poise(line.replace("name", "json"), names).value
        items = value["tasks"] if isinstance(value, dict) else value
        key = {"ls": "id", "show": "task", "nodes": "name", "quota": "tenant"}[line.split()[0]]
        assert done.text.split() == [item[key] for item in items] != []


def test_ctrl_c_ends_what_goes_on_with_130(shared: Living, names: dict[str, str]) -> None:
    waits = shared.poise("submit", "--name", "long", "--", "sleep", "60").text.strip()
    started = [shared.start(*line.split()) for line in (f"wait {waits}", "ls --watch", "events --follow", "top")]
    for process in started[1:3]:
        assert process.stdout is not None
        assert process.stdout.readline()
    time.sleep(0.5)  # `wait` says nothing until it is over
    codes = []
    for process in started:
        process.send_signal(signal.SIGINT)
        codes.append(ended(process).code)
    assert codes == [130, 130, 130, 0], "without a terminal, `top` is one frame"
    assert shared.poise("wait", "--timeout", "100ms", waits).code == OWN_FAILURE
    assert shared.poise("cancel", f"{waits}.main").err == f"cancelling {waits}.main\n"
    assert shared.poise("wait", f"{waits}.main").code == 130


@pytest.mark.parametrize(
    "line", ["--help", "ls", "ls --json", "ls -w", "nodes --help", "events", "completion bash", "top"]
)
def test_whoever_reads_may_have_had_enough(shared: Living, names: dict[str, str], line: str) -> None:
    """The end of a pipe that nobody reads: no failure, and nothing is said of it."""
    reading, writing = os.pipe()
    os.close(reading)
    done = subprocess.run(
        [POISE, *line.split()],
        stdout=writing,
        stderr=subprocess.PIPE,
        env=shared.environment(),
        timeout=30,
        check=False,
    )
    os.close(writing)
    assert (done.returncode, done.stderr) == (0, b"")


def test_watching_without_a_terminal_appends(shared: Living, names: dict[str, str]) -> None:
    held = Diary(shared.work / "watched")
    job = shared.poise("submit", "--", "sh", "-c", held.held()).text.strip()
    watching = shared.start("show", job, "--watch")
    assert watching.stdout is not None
    statuses = []
    for line in watching.stdout:
        if line.startswith(b"main"):
            statuses.append(line.split()[1].decode())
            if statuses[-1] == "running" and "running" not in statuses[:-1]:
                held.release()
    assert ended(watching).code == 0
    assert statuses[-2:] == ["running", "done"]


def test_json_of_top_is_the_overview(shared: Living, names: dict[str, str]) -> None:
    value = json.loads(shared.poise("top", "--json").out)
    assert value["nodes"][0]["name"] == names["NODE"]
    assert shared.poise("top").text.startswith("poise, policy poise; nodes: 1 up; unfinished jobs: ")
