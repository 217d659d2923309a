"""Rows 1, 2, 4, 5 and 17: commands, node side and control plane are killed, and two of them want one home."""

import contextlib
import functools
import random
import shutil
import signal
import subprocess
import tempfile
import threading
import time
from pathlib import Path

import harness
import restart
import uvloop
from harness import say
from system.dying import STEPS
from system.living import PATIENCE, Diary, Living, alive, kill, until

from chaos import TESTS
from chaos.turns import SLEEP, SMALL, Observer, Stage, Turn, program, replaced, running, stopped, untouched
from poise.config import Home
from poise.drivers.sqlite import SqliteStore
from poise.errors import PoiseError
from poise.model.events import Event

EVENTS = 100_000
SUBMISSIONS = 20
SUBMITTERS = 4
KILL_WITHIN = 1.5
"""Seconds within which a control plane of those that are killed at random is killed."""


# --- 1: a command ----------------------------------------------------------------------------------------------------


def command_killed(living: Stage) -> Turn:
    """It retries in the next epoch."""
    living.up()
    observer = Observer(living)
    job, pid = running(living, {"run": SLEEP})
    killed = time.monotonic()
    kill(pid)
    noticed, finished = observer.until("finished", task=f"{job}.main", epoch=1)
    again, _ = observer.until("started", task=f"{job}.main", epoch=2)
    assert finished["ending"]["outcome"] == "killed", finished
    return Turn([noticed - killed], [again - noticed])


def member_killed(living: Stage) -> Turn:
    """A gang runs whole or not at all: the other member is stopped before any is started again."""
    living.up()
    observer = Observer(living)
    job = living.client().submit({"run": SLEEP, "workers": 2, "resources": {"cpu": 0.5}})
    tasks = [task.task for task in living.client().job(job).tasks]
    pids = [observer.until("started", task=task, epoch=1)[1]["pid"] for task in tasks]
    killed = time.monotonic()
    kill(pids[0])
    noticed, _ = observer.until("finished", task=tasks[0], epoch=1)
    both = [observer.until("started", task=task, epoch=2)[0] for task in tasks]
    stopped, _ = observer.until("finished", task=tasks[1], epoch=1)
    assert not alive(pids[1]) and stopped < min(both), "a member ran beside those of the next epoch"
    return Turn([noticed - killed], [max(both) - noticed])


# --- 2: the node side ------------------------------------------------------------------------------------------------


def agent_killed(living: Stage) -> Turn:
    """The supervisor starts another, which adopts what runs."""
    living.up()
    job, pid = running(living, {"run": SLEEP, "resources": {"cpu": 0.1}})
    agent = living.pid("agent")
    killed = time.monotonic()
    kill(agent)
    replaced(living, "agent", agent)
    noticed = time.monotonic()
    client = living.client()
    assert client.wait(client.submit(SMALL), PATIENCE).status == "done"
    untouched(living, job, pid)
    return Turn([noticed - killed], [time.monotonic() - noticed])


def agent_away(living: Stage) -> Turn:
    """Nobody starts another until the node has been given up."""
    living.up()
    observer = Observer(living)
    job, pid = running(living, {"run": SLEEP})
    agent = living.pid("agent")
    with stopped(living.pid("supervisor")):
        killed = time.monotonic()
        kill(agent)
        lost, _ = observer.until("lost")
    replaced(living, "agent", agent)
    back = time.monotonic()
    until(lambda: living.client().nodes()[0].status == "up", "the node is taken back")
    adopted = time.monotonic()
    untouched(living, job, pid)
    return Turn([lost - killed], [adopted - back])


# --- 4, 5: the control plane -----------------------------------------------------------------------------------------


def control_killed(living: Stage) -> Turn:
    """With a long log; what was acknowledged an instant before is there, and what ran is not touched."""
    shutil.copytree(Path(long_log().name) / "home", living.home.root)
    living.up()
    client = living.client()
    until(lambda: "lost" in {node.status for node in client.nodes()}, "the node of the log's past is given up")
    job, pid = running(living, {"run": SLEEP, "resources": {"cpu": 0.1}})
    before = {report.id: report.status for report in client.jobs(everything=True)}
    acknowledged = [client.submit(SMALL) for _ in range(SUBMISSIONS)]
    control = living.pid("control")
    killed = time.monotonic()
    kill(control)
    successor = replaced(living, "control", control)
    noticed = time.monotonic()
    until(lambda: harness.ready(living.home, successor), "it is ready", living.messages)
    ready = time.monotonic()
    untouched(living, job, pid)
    for name in acknowledged:
        assert client.wait(name, PATIENCE).status == "done", f"{name} was acknowledged"
    after = {report.id: report.status for report in client.jobs(everything=True)}
    gone = [name for name, status in before.items() if after.get(name, status) != status]
    assert not gone, f"jobs that are not what they were: {gone[:5]}"
    return Turn([noticed - killed], [ready - noticed])


def outage(seconds: float, living: Stage) -> Turn:
    """Nobody starts another meanwhile: what runs goes on, and what ends is told when it is over."""
    living.up()
    ends, _ = running(living, {"run": ["sleep", f"{seconds / 2:g}"], "resources": {"cpu": 0.1}})
    job, pid = running(living, {"run": SLEEP, "resources": {"cpu": 0.1}})
    control = living.pid("control")
    with stopped(living.pid("supervisor")):
        kill(control)
        time.sleep(seconds)
        assert alive(pid)
    over = time.monotonic()
    successor = replaced(living, "control", control)
    until(lambda: harness.ready(living.home, successor), "it is ready", living.messages)
    ready = time.monotonic()
    report = living.client().wait(ends, PATIENCE)
    assert (report.status, report.tasks[0].epoch) == ("done", 1), report
    untouched(living, job, pid)
    return Turn([], [ready - over])


def killed_at_each_step(living: Stage) -> Turn:
    """At each step of a commit: what was acknowledged is there, once, and has run once."""
    agent = program(living, "-m", "poise.agent", str(living.home.root))
    diary = Diary(living.work / "diary")
    acknowledged: dict[str, str] = {}
    recovered = [_killed_at(step, living, diary, acknowledged) for step in STEPS]
    assert len(set(acknowledged.values())) == len(acknowledged)
    assert set(acknowledged) <= set(diary.endings())
    diary.check()
    agent.terminate()
    agent.wait(PATIENCE)
    return Turn([], recovered)


def _until_at_work(living: Living, control: "subprocess.Popen[bytes]", acknowledged: dict[str, str]) -> None:
    """It is ready, and somebody is told so by a job that is acknowledged."""
    before = len(acknowledged)
    until(lambda: harness.ready(living.home, control.pid), "it is ready", living.messages)
    until(lambda: len(acknowledged) > before, "a job is acknowledged", living.messages)


def _killed_at(step: str, living: Living, diary: Diary, acknowledged: dict[str, str]) -> float:
    """Seconds from the start of the next control plane until it is ready."""
    stop = threading.Event()
    submitter = threading.Thread(target=_submit_until, args=(living, diary, step, acknowledged, stop))
    submitter.start()
    try:
        dying = program(living, str(TESTS / "system" / "dying.py"), step, "2", str(living.home.root), "--port", "0")
        assert dying.wait(PATIENCE) == -signal.SIGKILL, f"it did not die at {step}"
        begun = time.monotonic()
        control = program(living, "-m", "poise.control", str(living.home.root), "--port", "0")
        until(lambda: harness.ready(living.home, control.pid), f"it is ready after {step}", living.messages)
        seconds = time.monotonic() - begun
        enough = len(acknowledged) + 3
        until(lambda: len(acknowledged) >= enough, f"it accepts jobs after {step}", living.messages)
    finally:
        stop.set()
        submitter.join()
    client = living.client()
    for key, job in acknowledged.items():
        report = client.wait(job, PATIENCE)
        assert (report.name, report.status) == (key, "done"), f"{key} was acknowledged before {step}"
    control.terminate()
    assert control.wait(PATIENCE) == 0
    return seconds


def _submit_until(living: Living, diary: Diary, step: str, acknowledged: dict[str, str], stop: threading.Event) -> None:
    """Goes on submitting, each job under its key until it is acknowledged."""
    client = living.client()
    number = 0
    while not stop.wait(0.02):
        key = f"{step}-{number}"
        spec = {"run": diary.command(0.02, key), "name": key, "resources": {"cpu": 0.1}}
        with contextlib.suppress(PoiseError):
            acknowledged[key] = client.submit(spec, key=key)
            number += 1


def killed_at_random(kills: int, living: Stage) -> Turn:
    """Again and again, while jobs are submitted and run: every other time at any moment from its start on, and else at
    any moment once it has acknowledged a job. Each that was acknowledged has run once, by what it has written down
    itself: none is lost, none has run twice. *recovered*: from its start until it has acknowledged one.
    """
    program(living, "-m", "poise.agent", str(living.home.root))
    diary = Diary(living.work / "diary")
    acknowledged: dict[str, str] = {}
    recovered: list[float] = []
    chance = random.Random(living.home.root.name)
    stop = threading.Event()
    submitters = [
        threading.Thread(target=_submit_until, args=(living, diary, f"of-{number}", acknowledged, stop))
        for number in range(SUBMITTERS)
    ]
    for submitter in submitters:
        submitter.start()
    try:
        for number in range(kills):
            begun = time.monotonic()
            control = program(living, "-m", "poise.control", str(living.home.root), "--port", "0")
            if number % 2:
                _until_at_work(living, control, acknowledged)
                recovered.append(time.monotonic() - begun)
            time.sleep(chance.uniform(0, KILL_WITHIN))
            assert control.poll() is None, living.messages()[-2000:]
            control.kill()
            control.wait()
        control = program(living, "-m", "poise.control", str(living.home.root), "--port", "0")
        until(lambda: harness.ready(living.home, control.pid), "it is ready", living.messages)
    finally:
        stop.set()
        for submitter in submitters:
            submitter.join()
    until(lambda: set(acknowledged) <= set(diary.endings()), "all that was acknowledged has run", living.messages)
    begun_once = [name for word, name, _ in diary.entries() if word == "start"]
    assert len(acknowledged) > kills, f"{len(acknowledged)} jobs are no load"
    assert len(set(acknowledged.values())) == len(acknowledged), "one job was acknowledged as two"
    assert sorted(diary.endings()) == sorted(set(begun_once)) == sorted(begun_once), "a job ran twice"
    diary.check()
    say(f"{kills} kills: {len(acknowledged):,} jobs acknowledged, each has run once")
    return Turn([], recovered)


# --- 17: two control planes ------------------------------------------------------------------------------------------


def second_control_plane(living: Stage) -> Turn:
    """It is refused, and told who holds the home, which notices nothing."""
    living.up()
    control = living.pid("control")
    begun = time.monotonic()
    second = program(living, "-m", "poise.control", str(living.home.root), "--port", "0")
    code = second.wait(PATIENCE)
    noticed = time.monotonic() - begun
    assert code == 1 and f"process {control}" in living.messages(), living.messages()[-500:]
    assert living.poise("run", "--", "echo", "here").text == "here\n"
    assert living.pid("control") == control
    return Turn([noticed], [])


def lock_removed(living: Stage) -> Turn:
    """Its file was removed, so that another can take it. Who held it leaves, and everybody finds the other."""
    living.up()
    job, pid = running(living, {"run": SLEEP, "resources": {"cpu": 0.1}})
    client = living.client()
    before = [client.submit(SMALL) for _ in range(SUBMISSIONS)]
    first = living.pid("control")
    living.home.lock.unlink()
    begun = time.monotonic()
    program(living, "-m", "poise.control", str(living.home.root), "--port", "0")
    while alive(first):
        before.append(client.submit(SMALL))  # on its connection to the first
        assert time.monotonic() < begun + PATIENCE, living.messages()
    noticed = time.monotonic()
    before.append(living.client().submit(SMALL))
    accepted = time.monotonic()
    assert living.pid("control") not in (0, first)
    for name in before:
        assert living.client().wait(name, PATIENCE).status == "done", f"{name} was acknowledged"
    untouched(living, job, pid)
    return Turn([noticed - begun], [accepted - noticed])


@functools.cache
def long_log() -> "tempfile.TemporaryDirectory[str]":
    """A folder with a home whose log is long, made once."""
    folder = tempfile.TemporaryDirectory(prefix="poise-bench-")
    say(f"making a log of {EVENTS:,} events")
    uvloop.run(restart.make_log(Home(Path(folder.name) / "home"), EVENTS, SqliteStore[Event]))
    return folder
