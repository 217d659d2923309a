"""The log's disk: one control plane at a time, a disk that is full, a log that is damaged."""

import contextlib
import os
import re
import shutil
import signal
import sqlite3
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager

import pytest

from poise.errors import PoiseError, Unreachable
from poise.model.record import FORMAT
from system.calls import Caller
from system.damage import NotHere, cut, fill, filled, flip, history, small_disk, tear
from system.living import PATIENCE, Living, alive, until

# --- two control planes ----------------------------------------------------------------------------------------------


def test_a_second_control_plane_is_refused_and_told_who_holds_the_home(living: Living) -> None:
    living.up()
    for program in ("poise.control", "poise.agent"):
        done = subprocess.run(
            [sys.executable, "-m", program, living.home.root],
            capture_output=True,
            text=True,
            check=False,
            timeout=PATIENCE,
        )
        assert done.returncode == 1
        holder = living.pid(program.removeprefix("poise."))
        assert f"E204: another {'control plane' if 'control' in program else 'agent'} holds this home" in done.stderr
        assert f"process {holder}" in done.stderr
    assert living.poise("run", "--", "echo", "still here") == (0, b"still here\n", "")
    assert living.poise("up", "--foreground").code == 1
    assert not living.home.failure.exists()


def test_who_has_lost_lock_and_log_to_another_leaves_them_to_it(living: Living) -> None:
    """The file of the lock was removed, so that two can take it. Who held it leaves, and everybody finds the other."""
    living.up()
    client = living.client()
    job = client.submit({"run": ["sleep", "60"], "resources": {"cpu": 0.1}})
    until(living.tasks, "it runs")
    first, supervisor = living.pid("control"), living.pid("supervisor")
    os.kill(supervisor, signal.SIGSTOP)  # else the one that it starts may be sooner than the other
    living.home.lock.unlink()
    program = [sys.executable, "-m", "poise.control", str(living.home.root), "--port", "0"]

    def another() -> subprocess.Popen[bytes]:
        with living.home.messages.open("ab") as messages:
            return subprocess.Popen(program, stderr=messages)

    second = another()

    def has_left() -> bool:
        with contextlib.suppress(Unreachable):  # the first has left, and the other does not answer yet
            client.submit({"run": ["true"], "resources": {"cpu": 0.1}})  # on its connection to the first
        return not alive(first)

    def has_it() -> bool:
        nonlocal second
        if second.poll() is not None:  # the first wrote between its reading of the log and its first record
            second = another()
        return living.pid("control") == second.pid

    until(has_left, "who held it has left", living.messages)
    until(has_it, "the other has it", living.messages)
    os.kill(supervisor, signal.SIGCONT)
    assert living.poise("run", "--cpu", "0.1", "--", "echo", "goes on") == (0, b"goes on\n", "")
    assert living.pid("control") == second.pid
    task = living.client().job(job).tasks[0]
    assert (task.status, task.epoch, task.attempts) == ("running", 1, ())
    assert living.poise("down", "--cancel").code == 0
    second.wait(PATIENCE)


def test_who_has_lost_the_lock_leaves_though_it_has_nothing_to_write(living: Living) -> None:
    """It would keep its agents and answer their beats, while the other one gives them up."""
    living.up()
    first = living.pid("control")
    living.home.lock.unlink()
    until(lambda: not alive(first), "it has left", living.messages, seconds=5)
    until(lambda: living.pid("control"), "its supervisor has started another", living.messages)
    assert living.poise("run", "--cpu", "0.1", "--", "echo", "goes on") == (0, b"goes on\n", "")


def test_when_the_home_has_gone_everything_leaves(living: Living) -> None:
    """A control plane that was started again there would make a home where there is to be none."""
    living.up()
    held = [living.pid(what) for what in ("control", "agent", "supervisor")]
    elsewhere = living.home.root.rename(living.home.root.with_name("elsewhere"))
    until(lambda: not any(map(alive, held)), "all have left")
    assert not living.home.root.exists()
    elsewhere.rename(living.home.root)


def test_looking_at_a_lock_never_keeps_anybody_from_taking_it(living: Living) -> None:
    """Commands look whether somebody holds the home while a control plane is about to take it."""
    stop = threading.Event()

    def look() -> None:
        while not stop.is_set():
            living.pid("control"), living.pid("agent"), living.pid("supervisor")

    lookers = [threading.Thread(target=look) for _ in range(2)]
    for looker in lookers:
        looker.start()
    try:
        for _ in range(2):
            living.up()
            assert living.poise("down").code == 0
    finally:
        stop.set()
        for looker in lookers:
            looker.join()
    assert "holds this home" not in living.messages()


# --- a full disk -----------------------------------------------------------------------------------------------------


@contextmanager
def _bounded_log(living: Living) -> Iterator[None]:
    """A limit on the log's size, which is how a disk without room looks to SQLite."""
    living.home.root.mkdir(mode=0o700)
    agent = subprocess.Popen([sys.executable, "-m", "poise.agent", living.home.root], stderr=subprocess.DEVNULL)
    program = [sys.executable, "-m", "poise.control", str(living.home.root), "--port", "0", "--log-limit", "1000000"]
    with living.home.messages.open("ab") as messages:
        control = subprocess.Popen(program, stderr=messages)
    try:
        until(lambda: living.pid("control") and living.home.endpoint.exists(), "it is ready", living.messages)
        until(lambda: living.client().nodes(), "the node has joined", living.messages)
        yield
    finally:
        for process in (control, agent):
            process.terminate()
            process.wait(PATIENCE)


def _is_refused_clearly_and_still_read(living: Living, error: PoiseError) -> None:
    assert error.record.code == "E202"
    assert "df -h" in error.record.hint
    done = living.poise("submit", "--json", "--", "true")
    assert (done.code, done.error["code"]) == (2, "E202")
    caller = Caller(living)
    answer = caller.submit({"run": ["true"]})
    assert (answer.status, answer.error["code"]) == (507, "E202")
    lines = b'{"spec": {"run": ["true"]}}\n' * 3
    streamed = caller.call("POST", "/v1/jobs", lines, Content_Type="application/x-ndjson")
    assert streamed.body.count(b"E202") == 3
    assert caller.call("GET", "/healthz").value["accepting"] is False
    jobs = living.poise("ls", "--json", "--all").value
    assert len(jobs) > 5
    assert living.poise("show", jobs[0]["id"], "--json").value["tasks"]
    assert living.poise("logs", jobs[0]["id"]).code == 0
    assert living.poise("nodes", "--json").value
    assert living.poise("events", "--json").value


def test_a_log_at_its_limit_refuses_new_work_and_is_read(living: Living) -> None:
    with _bounded_log(living):
        _is_refused_clearly_and_still_read(living, fill(living))
        before = {job.id for job in living.client().jobs(everything=True)}
    living.up()
    client = living.client()
    assert {job.id for job in client.jobs(everything=True)} == before
    for job in before:
        assert client.wait(job, 60).status == "done"
    assert living.poise("run", "--", "echo", "room again") == (0, b"room again\n", "")


@pytest.mark.root
@pytest.mark.skipif(os.geteuid() != 0 or not shutil.which("mount"), reason="mounts a small disk: needs root")
def test_a_full_disk_refuses_and_goes_on_when_there_is_room(living: Living) -> None:
    """A disk of 6 MB for the home. Nobody is restarted; within 5 s of there being room, work is accepted again."""
    try:
        with small_disk(living, "6m"):
            _a_disk_fills_and_is_freed(living)
    except NotHere as why:
        pytest.skip(str(why))


def _a_disk_fills_and_is_freed(living: Living) -> None:
    living.up()
    control, agent = living.pid("control"), until(lambda: living.pid("agent"), "its agent runs", living.messages)
    running = living.poise("submit", "--cpu", "0.1", "--", "sh", "-c", "sleep 6; echo survived > survived").text.strip()
    until(living.tasks, "it runs")
    ballast = filled(living.home.root, leaving=1_200_000)
    _is_refused_clearly_and_still_read(living, fill(living))
    accepted = {job.id for job in living.client().jobs(everything=True)}
    time.sleep(6)
    assert living.poise("ls").code == 0
    ballast.unlink()
    freed = time.monotonic()
    until(lambda: living.poise("submit", "--", "true").code == 0, "it accepts work again", living.messages, seconds=30)
    assert time.monotonic() - freed < 5
    assert (living.pid("control"), living.pid("agent")) == (control, agent)
    client = living.client()
    assert accepted <= {job.id for job in client.jobs(everything=True)}
    assert {client.wait(job, 60).status for job in accepted} == {"done"}, "what could not be recorded is handed back"
    assert running in accepted and client.job(running).tasks[0].epoch == 1
    assert (living.work / "survived").read_text() == "survived\n"
    until(lambda: not client.status().unfinished, "the last one has ended too")
    assert living.poise("down").code == 0
    until(lambda: not living.processes(), "every process has ended", living.processes)


# --- a damaged log ---------------------------------------------------------------------------------------------------


def test_a_flipped_bit_is_told_with_its_place_and_nothing_is_changed(living: Living) -> None:
    history(living)
    flip(living.home, 40)
    content = living.home.log.read_bytes()
    for command in (("up", "--json"), ("run", "--json", "--", "true")):
        done = living.poise(*command)
        assert done.code == (2 if command[0] == "up" else 125)
        assert done.error["code"] == "E203"
        assert re.search(r"\b40\b", json_text(done.error)), done.error
        assert "`" in done.error["hint"]
        assert living.home.log.read_bytes() == content, "the file is kept as it is"
        until(lambda: not living.processes(), "nobody goes on trying", living.processes)
    assert "error[E203]" in living.poise("up").err
    assert living.poise("ls", "--json").error["code"] == "E203"


def json_text(error: dict[str, str]) -> str:
    return " ".join(error.values())


@pytest.mark.slow
def test_a_torn_tail_is_cut_and_said_loudly(living: Living) -> None:
    """The last commit was cut short by a power cut: what it held was never acknowledged."""
    jobs = history(living)
    living.up()
    extra = living.poise("submit", "--", "sleep", "60").text.strip()
    until(living.tasks, "it runs")
    tear(living)
    living.up()
    assert living.poise("run", "--", "echo", "goes on") == (0, b"goes on\n", "")
    assert set(jobs) <= {job["id"] for job in living.poise("ls", "--json", "--all").value}
    living.poise("cancel", extra)


@pytest.mark.slow
def test_a_log_cut_before_what_was_acknowledged_is_refused(living: Living) -> None:
    history(living)
    cut(living.home)
    done = living.poise("up", "--json")
    assert (done.code, done.error["code"]) == (2, "E203")
    assert done.error["hint"]


def test_a_log_of_a_future_version_is_refused_by_every_command_with_what_to_do(living: Living) -> None:
    assert living.poise("run", "--", "true").code == 0
    assert living.poise("down").code == 0
    with closing(sqlite3.connect(living.home.log)) as log, log:
        log.execute(f"PRAGMA user_version = {FORMAT + 1}")
        log.execute("UPDATE about SET value = '9.1.0' WHERE name = 'written_by'")
    before = living.home.log.read_bytes()
    for command in ("ls", "show j1", "explain j1", "report", "replay", "eta", "status", "submit -- true", "up"):
        done = living.poise(*command.split()[:1], "--json", *command.split()[1:])
        error = done.error
        assert (done.code, error["code"], error["need"]) == (2, "E206", "9.1.0"), (command, done)
        assert error["hint"] == "use Poise 9.1.0 or newer, which wrote this log"
    assert living.home.log.read_bytes() == before, "and nothing is changed"
