"""Sessions that people open with `poise shell`: a prompt, what happens when nobody uses them, and Jupyter by a link."""

import json
import os
import stat
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest

from system.living import PATIENCE, Living, ended, kill, until
from system.test_terminals import Screen, screens

__all__ = ["screens"]

SERVER = """#!{python}
import http.server, json, os, sys
name = os.path.basename(sys.argv[0])
if name == "jupyter":  # server list --json
    for path in sorted(os.listdir({folder!r})):
        if path.startswith("server-"):
            print(open(os.path.join({folder!r}, path)).read())
    sys.exit(0)

class Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        right = self.path.endswith("token=" + os.environ["JUPYTER_TOKEN"])
        self.send_response(200 if right else 403)
        self.end_headers()
        self.wfile.write(b"a notebook" if right else b"no")
    def log_message(self, *_):
        pass

server = http.server.HTTPServer(("127.0.0.1", 0), Handler)
told = {{"port": server.server_port, "base_url": "/", "token": os.environ["JUPYTER_TOKEN"]}}
with open(os.path.join({folder!r}, "new"), "w") as file:
    json.dump(told, file)
os.rename(os.path.join({folder!r}, "new"), os.path.join({folder!r}, f"server-{{os.getpid()}}"))
server.serve_forever()
"""
"""In the place of Jupyter, which the tests do not install: a server with its token, and the list of such servers."""


def printed(process: subprocess.Popen[bytes]) -> bytes:
    """The first JSON object that it prints."""
    lines: list[bytes] = []
    while lines[-1:] != [b"}\n"]:
        assert process.stdout is not None
        lines.append(process.stdout.readline())
        assert lines[-1], "it ended"
    return b"".join(lines)


def stopped(pid: int) -> bool:
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "T"


def test_a_shell_gives_a_prompt_and_ends_when_one_leaves(shared: Living, screens: list[Screen]) -> None:
    screen = Screen(shared, "shell", "--name", "desk", "--env", "PS1=ready> ", "--", "sh", "-i")
    screens.append(screen)
    screen.until(b"ready> ")
    task = shared.client().job("desk").tasks[0]
    assert (task.priority, task.time_limit) == ("high", 8 * 3600 * 10**9)
    screen.type(b"exit 4\r")
    assert screen.code() == 4


def test_an_idle_shell_is_suspended_after_a_notice_and_goes_on_at_a_key(shared: Living, screens: list[Screen]) -> None:
    command = ["--env", "PS1=ready> ", "--", "bash", "--norc", "-i"]
    screen = Screen(shared, "shell", "--name", "night", "--idle", "3s", *command)
    screens.append(screen)
    screen.until(b"ready> ")
    screen.type(b"x=42; sleep 1000 & child=$!; cat\r")
    screen.until(b"unless it is used")
    screen.until(b"press a key")
    pid = shared.client().job("night").tasks[0].pid or 0
    until(lambda: stopped(pid), "its processes are stopped")
    told = shared.poise("show", "night").text
    assert "suspended, idle since" in told and "poise attach" in told
    told = shared.poise("explain", "night").text
    assert "is suspended" in told and "idle since" in told
    screen.type(b"typed while suspended\r")
    screen.until(b"typed while suspended\r\ntyped")  # `cat` is in front as before, and has lost nothing
    assert not shared.client().job("night").suspended
    screen.type(b"\x04")
    screen.type(b"echo $((x + 1)); kill $child; exit 0\r")
    screen.until(b"43")
    assert screen.code() == 0


def test_a_session_that_is_used_is_not_suspended_and_one_that_must_end_ends(shared: Living) -> None:
    busy = shared.poise("submit", "--idle", "2s", "--", "sh", "-c", "while :; do :; done").text.strip()
    ends = shared.poise("submit", "--idle", "2s", "--if-idle", "end", "--", "sleep", "1000").text.strip()
    report = shared.client().wait(ends)
    assert (report.tasks[0].outcome, report.exit_code) == ("timeout", 124)
    assert "idle for 2.0 s" in report.tasks[0].note
    assert not shared.client().job(busy).suspended
    shared.poise("cancel", busy)


def test_a_suspended_job_stays_so_without_its_agent_and_a_command_beside_it_resumes_it(shared: Living) -> None:
    job = shared.poise("submit", "--idle", "1s", "--", "sleep", "1000").text.strip()
    until(lambda: shared.client().job(job).suspended, "it is suspended")
    assert "(suspended)" in shared.poise("ls").text
    pid = shared.client().job(job).tasks[0].pid or 0
    until(lambda: stopped(pid), "its processes are stopped")
    agent = shared.pid("agent")
    kill(agent)
    until(lambda: shared.pid("agent") not in (0, agent), "there is another agent")
    assert stopped(pid) and shared.client().job(job).suspended
    hello = "exec", job, "--", "echo", "hello"
    until(lambda: shared.poise(*hello).text == "hello\n", "a command runs beside it, once the agent is connected")
    assert "resumed" in shared.poise("audit").text
    until(lambda: not stopped(pid), "its processes go on")
    shared.poise("cancel", job)


@pytest.fixture
def jupyter(tmp_path: Path) -> Iterator[str]:
    """A `PATH` with a Jupyter."""
    for name in ("jupyter", "jupyter-lab"):
        program = tmp_path / name
        program.write_text(SERVER.format(python=sys.executable, folder=str(tmp_path)))
        program.chmod(program.stat().st_mode | stat.S_IXUSR)
    yield f"{tmp_path}:{os.environ['PATH']}"


def test_jupyter_by_a_link_with_a_token_of_its_own(shared: Living, jupyter: str) -> None:
    process = shared.start("shell", "--jupyter", "--json", "--name", "notes", PATH=jupyter)
    told = json.loads(printed(process))
    with urllib.request.urlopen(told["url"], timeout=PATIENCE) as answer:  # noqa: S310 — its own
        assert answer.read() == b"a notebook"
    token = told["url"].partition("token=")[2]
    said = shared.poise("show", "--json", told["job"]).text + shared.poise("events").text
    assert len(token) >= 32 and token not in said, "it is a secret"
    process.send_signal(2)
    assert ended(process).code == 0
    assert shared.client().wait(told["job"]).status == "cancelled"


def test_without_jupyter_the_error_says_what_to_install(shared: Living) -> None:
    done = shared.poise("shell", "--jupyter", PATH="/usr/bin:/bin")
    assert (done.code, "pip install jupyterlab" in done.err) == (125, True), done.err
    refused = shared.poise("shell", "--jupyter", "--json", "-g", "1.5").error
    assert refused["field"] == "--gpu"
    assert shared.poise("shell", "--json").code == 125
