"""The faults of the matrix that one machine can have, done to a live Poise with real kills, and timed.

    python benchmarks/live_faults.py [--rows 1,2,4,…] [--repeats 3] [--outage 5] [--no-peers] [--json]

Each turn brings up a home of its own, brings it work, does the fault, and looks. *noticed*: from the fault until
somebody says so. *recovered*: from then until what should run runs again, or what should be accepted is. Who says so is
in the figure's note: an event, by when an observer that follows `poise events` has read it; or the wall clock of
whoever looks from outside. What must hold is checked in each turn, and a turn in which it does not is a broken promise.

The rows, what must hold and the targets are those of docs/explanation/fault-matrix.md.
"""

import argparse
import contextlib
import functools
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import harness
import peers
import restart
import uvloop
from harness import Figure, say

from poise.config import Home
from poise.drivers.lock import holder
from poise.drivers.sqlite import SqliteStore
from poise.errors import PoiseError
from poise.kernel.controller import ROUND
from poise.model.events import Event
from poise.model.times import Times
from poise.units import SECOND

TESTS = Path(__file__).parent.parent / "tests"
sys.path.append(str(TESTS))  # what kills in the tests kills here
sys.path.append(str(peers.SCRIPTS))
import killing  # noqa: E402
from system.damage import NotHere, cut, fill, filled, flip, history, small_disk, tear  # noqa: E402
from system.dying import STEPS  # noqa: E402
from system.living import PATIENCE, Diary, Living, alive, kill, until  # noqa: E402
from system.theirs import install_theirs  # noqa: E402

EVENTS = 100_000
SUBMISSIONS = 20
FLIPS = 5
SLEEP = ["sleep", "600"]
ONE_ROUND = (Times().decide + ROUND) / SECOND
"""Seconds of a round at the longest: the wait for it, and the time that a policy of others has for its plan."""

Spec = dict[str, Any]


@dataclass
class Turn:
    """Seconds, of one fault or of several of a kind."""

    noticed: list[float] = field(default_factory=list)
    recovered: list[float] = field(default_factory=list)


@dataclass(frozen=True)
class Case:
    """One way to do the fault of a row; the limits are the targets of its row, in seconds, and `by` who says so."""

    row: int
    fault: str
    turn: Callable[[Living], Turn]
    by: str
    notice: float | None = None
    recover: float | None = None


class Observer:
    """Follows the events of a home, as `poise events --follow` does, and notes when it has read each."""

    def __init__(self, living: Living) -> None:
        self._living = living
        self._seen: list[tuple[float, dict[str, Any]]] = []
        threading.Thread(target=self._read, daemon=True).start()

    def until(self, kind: str, **fields: object) -> tuple[float, dict[str, Any]]:
        """The first event of this kind with these fields, and when it was read."""
        found: tuple[float, dict[str, Any]] = until(
            lambda: next((seen for seen in self._seen if _is(seen[1], kind, fields)), None),
            f"{kind} {fields}",
            lambda: [event for _, event in self._seen][-10:],
        )
        return found

    def _read(self) -> None:
        with contextlib.suppress(PoiseError), self._living.client() as client:  # the home is gone, the turn is over
            for line in client.events(after=0):
                self._seen.append((time.monotonic(), json.loads(line)["event"]))


def _is(event: dict[str, Any], kind: str, fields: dict[str, object]) -> bool:
    return event["type"] == kind and all(event.get(name) == value for name, value in fields.items())


# --- 1: a command ----------------------------------------------------------------------------------------------------


def command_killed(living: Living) -> Turn:
    """It is tried again in the next epoch."""
    living.up()
    observer = Observer(living)
    job, pid = running(living, {"run": SLEEP})
    killed = time.monotonic()
    kill(pid)
    noticed, finished = observer.until("finished", task=f"{job}.main", epoch=1)
    again, _ = observer.until("started", task=f"{job}.main", epoch=2)
    assert finished["ending"]["outcome"] == "killed", finished
    return Turn([noticed - killed], [again - noticed])


def member_killed(living: Living) -> Turn:
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


def agent_killed(living: Living) -> Turn:
    """The supervisor starts another, which adopts what runs."""
    living.up()
    job, pid = running(living, {"run": SLEEP, "resources": {"cpu": 0.1}})
    agent = living.pid("agent")
    killed = time.monotonic()
    kill(agent)
    replaced(living, "agent", agent)
    noticed = time.monotonic()
    client = living.client()
    assert client.wait(client.submit({"run": ["true"], "resources": {"cpu": 0.1}}), PATIENCE).status == "done"
    untouched(living, job, pid)
    return Turn([noticed - killed], [time.monotonic() - noticed])


def agent_away(living: Living) -> Turn:
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


# --- 3: a machine ----------------------------------------------------------------------------------------------------

FLEET = "kind: fleet\nname: two\nnodes: {one: {cpu: 1, memory: 1GiB}, other: {cpu: 1, memory: 1GiB}}\n"


def machine_gone(living: Living) -> Turn:
    """Of two declared nodes one loses its agent, its keepers and its commands at once, and nobody starts them again."""
    living.up("--fleet", str(living.file("fleet.yaml", FLEET)))
    observer = Observer(living)
    until(lambda: len(living.client().nodes()) == 2, "both nodes have joined", living.messages)
    job, pid = running(living, {"run": SLEEP})
    folder = str(living.home.nodes / living.client().job(job).tasks[0].node)
    with stopped(living.pid("supervisor")):
        gone = time.monotonic()
        for process in [holder(Path(folder) / "lock"), pid, *_named(living, f"{folder}/")]:
            kill(process)
        noticed, _ = observer.until("lost")
        again, _ = observer.until("started", task=f"{job}.main", epoch=2)
        assert str(living.home.nodes / living.client().job(job).tasks[0].node) != folder
    return Turn([noticed - gone], [again - noticed])


def _named(living: Living, text: str) -> list[int]:
    return [pid for pid, arguments in living.processes().items() if text in arguments]


# --- 4, 5: the control plane -----------------------------------------------------------------------------------------


def control_killed(living: Living) -> Turn:
    """With a long log; what was acknowledged an instant before is there, and what ran is not touched."""
    shutil.copytree(Path(long_log().name) / "home", living.home.root)
    living.up()
    client = living.client()
    until(lambda: "lost" in {node.status for node in client.nodes()}, "the node of the log's past is given up")
    job, pid = running(living, {"run": SLEEP, "resources": {"cpu": 0.1}})
    before = {report.id: report.status for report in client.jobs(everything=True)}
    acknowledged = [client.submit({"run": ["true"], "resources": {"cpu": 0.1}}) for _ in range(SUBMISSIONS)]
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


def outage(seconds: float, living: Living) -> Turn:
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


def killed_at_each_step(living: Living) -> Turn:
    """At each step of a commit: what was acknowledged is there, once, and has run once."""
    agent = program(living, "-m", "poise.agent", str(living.home.root))
    diary = Diary(living.work / "diary")
    acknowledged: dict[str, str] = {}
    recovered = [_killed_at(step, living, diary, acknowledged) for step in STEPS]
    assert len(set(acknowledged.values())) == len(acknowledged)
    assert {f"{job}.main" for job in acknowledged.values()} <= set(diary.endings())
    diary.check()
    agent.terminate()
    agent.wait(PATIENCE)
    return Turn([], recovered)


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
        with contextlib.suppress(PoiseError):
            acknowledged[key] = client.submit({"run": diary.command(0.02), "name": key}, key=key)
            number += 1


# --- 9, 10: the log's disk -------------------------------------------------------------------------------------------


def disk_full(living: Living) -> Turn:
    """New work is refused and reading goes on; nobody is restarted, and what was accepted is done."""
    with small_disk(living, "6m"):
        living.up()
        pids = living.pid("control"), living.pid("agent")
        job, pid = running(living, {"run": SLEEP, "resources": {"cpu": 0.1}})
        ballast = filled(living, leaving=1_200_000)
        assert fill(living).record.code == "E202"
        client = living.client()
        begun = time.monotonic()
        refused = living.poise("submit", "--json", "--", "true")
        noticed = time.monotonic() - begun
        assert refused.error["code"] == "E202", refused
        accepted = [report.id for report in client.jobs(everything=True)]
        assert job in accepted and client.job(job).tasks and client.nodes()
        ballast.unlink()
        freed = time.monotonic()
        until(lambda: _accepts(living), "it accepts work again", living.messages)
        recovered = time.monotonic() - freed
        assert (living.pid("control"), living.pid("agent")) == pids, "somebody was restarted"
        untouched(living, job, pid)
        for name in accepted:
            assert name == job or client.wait(name, PATIENCE).status == "done", f"{name} was accepted"
        living.poise("down", "--cancel")
    return Turn([noticed], [recovered])


def _accepts(living: Living) -> bool:
    with contextlib.suppress(PoiseError):
        return bool(living.client().submit({"run": ["true"], "resources": {"cpu": 0.1}}))
    return False


def bits_flipped(living: Living) -> Turn:
    """Each flipped bit is found when the log is read, the file is left alone, and nobody goes on with it."""
    history(living)
    whole = living.home.log.read_bytes()
    chance = random.Random(living.home.root.name)
    turn = Turn()
    for revision in chance.sample(range(1, 150), FLIPS):
        flip(living.home, revision)
        damaged = living.home.log.read_bytes()
        begun = time.monotonic()
        refused = living.poise("up", "--json")
        turn.noticed.append(time.monotonic() - begun)
        assert (refused.code, refused.error["code"]) == (2, "E203"), refused
        assert str(revision) in refused.error["message"], refused
        assert living.home.log.read_bytes() == damaged, "the file was changed"
        living.home.log.write_bytes(whole)
    return turn


def tail_torn(living: Living) -> Turn:
    """What was acknowledged is there; what is cut is said."""
    jobs = history(living)
    living.up()
    running(living, {"run": SLEEP})
    tear(living)
    begun = time.monotonic()
    living.up()
    recovered = time.monotonic() - begun
    left = {report.id for report in living.client().jobs(everything=True)}
    assert set(jobs) <= left, "what was acknowledged is gone"
    assert "the log is taken to end at revision" in living.messages(), "nothing was said of it"
    assert living.poise("run", "--", "echo", "on").text == "on\n"
    return Turn([], [recovered])


def log_cut(living: Living) -> Turn:
    """What was acknowledged is missing: only a person may go on."""
    history(living)
    cut(living.home)
    begun = time.monotonic()
    refused = living.poise("up", "--json")
    assert (refused.code, refused.error["code"]) == (2, "E203"), refused
    return Turn([time.monotonic() - begun], [])


# --- 12, 14: what commands do ----------------------------------------------------------------------------------------

EATS = """\
import os, pathlib, sys, time
if os.environ["POISE_EPOCH"] == "1":
    pathlib.Path(sys.argv[1]).write_text(str(time.monotonic()))
    eaten = bytearray(512 << 20)
    time.sleep(600)
time.sleep(600)
"""


def memory_always_exceeded(living: Living) -> Turn:
    """At most two retries, whatever is asked for."""
    living.up()
    command = [sys.executable, "-c", EATS.replace('== "1"', '!= ""'), str(living.work / "begins")]
    retry = {"limit": 5, "backoff": "10ms", "when": ["oom"]}
    client = living.client()
    job = client.submit({"run": command, "resources": {"memory": "64MiB"}, "retry": retry})
    report = client.wait(job, PATIENCE)
    outcomes = [attempt.outcome for attempt in report.tasks[0].attempts] + [report.tasks[0].outcome]
    assert outcomes == ["oom"] * 3, outcomes
    return Turn()


def memory_exceeded(living: Living) -> Turn:
    """It ends `oom`, with its peak and its limit, and is tried again."""
    living.up()
    observer = Observer(living)
    begins = living.work / "begins"
    command = [sys.executable, "-c", EATS, str(begins)]
    spec = {"run": command, "resources": {"memory": "64MiB"}, "retry": {"when": ["oom"]}}
    job = living.client().submit(spec)
    noticed, finished = observer.until("finished", task=f"{job}.main", epoch=1)
    again, _ = observer.until("started", task=f"{job}.main", epoch=2)
    ending = finished["ending"]
    assert ending["outcome"] == "oom" and ending["limit"] == 64 << 20, ending
    assert ending["peak"] >= ending["limit"] // 2, ending
    return Turn([noticed - float(begins.read_text())], [again - noticed])


def hung(living: Living) -> Turn:
    """It says that it gets on, and then it is busy and does not: it is ended `hung`, and tried again."""
    living.up()
    observer = Observer(living)
    busy = 'touch "$POISE_PROGRESS"; while :; do :; done'
    job = living.client().submit({"run": busy, "hang": "2s", "retry": {"backoff": "100ms"}})
    started, _ = observer.until("started", task=f"{job}.main", epoch=1)
    noticed, finished = observer.until("finished", task=f"{job}.main", epoch=1)
    again, _ = observer.until("started", task=f"{job}.main", epoch=2)
    assert finished["ending"]["outcome"] == "hung", finished
    return Turn([noticed - started], [again - noticed])


# --- 17: two control planes ------------------------------------------------------------------------------------------


def second_control_plane(living: Living) -> Turn:
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


def lock_removed(living: Living) -> Turn:
    """Its file was removed, so that another can take it. Who held it leaves, and everybody finds the other."""
    living.up()
    job, pid = running(living, {"run": SLEEP, "resources": {"cpu": 0.1}})
    client = living.client()
    before = [client.submit({"run": ["true"], "resources": {"cpu": 0.1}}) for _ in range(SUBMISSIONS)]
    first = living.pid("control")
    living.home.lock.unlink()
    begun = time.monotonic()
    program(living, "-m", "poise.control", str(living.home.root), "--port", "0")
    while alive(first):
        before.append(client.submit({"run": ["true"], "resources": {"cpu": 0.1}}))  # on its connection to the first
        assert time.monotonic() < begun + PATIENCE, living.messages()
    noticed = time.monotonic()
    before.append(living.client().submit({"run": ["true"], "resources": {"cpu": 0.1}}))
    accepted = time.monotonic()
    assert living.pid("control") not in (0, first)
    for name in before:
        assert living.client().wait(name, PATIENCE).status == "done", f"{name} was acknowledged"
    untouched(living, job, pid)
    return Turn([noticed - begun], [accepted - noticed])


# --- 27: policies of others ------------------------------------------------------------------------------------------


def policy_fails(policy: str, says: str, living: Living) -> Turn:
    """The safe policy takes over; the log says what happened; nobody is restarted."""
    packages = living.work / "packages"
    packages.mkdir()
    install_theirs(packages)
    paths = os.pathsep.join([str(packages), os.environ.get("PYTHONPATH", "")]).strip(os.pathsep)
    up = living.poise("up", "--port", "0", "--policy", policy, PYTHONPATH=paths)
    assert up.code == 0, up.err
    until(lambda: living.client().nodes(), "the node has joined", living.messages)
    control = living.pid("control")
    observer = Observer(living)
    begun = time.monotonic()
    job = living.client().submit({"run": ["true"]})
    noticed, failed = observer.until("policy-failed")
    placed, decision = observer.until("placed", unit=f"{job}.main")
    assert "POLICY_FAILED" in failed["error"] and says in failed["error"], failed
    assert decision["why"]["policy"] == "fifo", decision
    assert living.client().wait(job, PATIENCE).status == "done"
    assert living.pid("control") == control
    return Turn([noticed - begun], [max(0.0, placed - noticed)])


# --- what they share -------------------------------------------------------------------------------------------------


def running(living: Living, spec: Spec) -> tuple[str, int]:
    """A job of one task that runs, and its process."""
    client = living.client()
    job = client.submit(spec)
    until(lambda: client.job(job).status == "running", "it runs", living.messages)
    return job, client.job(job).tasks[0].pid or 0


def untouched(living: Living, job: str, pid: int) -> None:
    """The same process, under the same epoch."""
    task = until(
        lambda: next((task for task in living.client().job(job).tasks if task.status == "running"), None),
        f"{job} runs",
        lambda: living.client().job(job),
    )
    assert (task.pid, task.epoch, task.attempts) == (pid, 1, ()), task
    assert alive(pid)


def replaced(living: Living, what: str, killed: int) -> int:
    """Wait for another process in the place of one that was killed; returns which."""
    found: int = until(lambda: (pid := living.pid(what)) != killed and pid, f"another {what}", living.messages)
    return found


@contextlib.contextmanager
def stopped(pid: int) -> Any:
    """The process stands still meanwhile."""
    os.kill(pid, signal.SIGSTOP)
    try:
        yield
    finally:
        os.kill(pid, signal.SIGCONT)


def program(living: Living, *arguments: str) -> "subprocess.Popen[bytes]":
    """A Python program on the home; what it says goes where Poise's messages go."""
    living.home.root.mkdir(mode=0o700, exist_ok=True)
    with living.home.messages.open("ab") as messages:
        return subprocess.Popen(
            [sys.executable, *arguments], stdin=subprocess.DEVNULL, stdout=messages, stderr=messages,
            env=living.environment(),
        )  # fmt: skip


@functools.cache
def long_log() -> "tempfile.TemporaryDirectory[str]":
    """A folder with a home whose log is long, made once."""
    folder = tempfile.TemporaryDirectory(prefix="poise-bench-")
    say(f"making a log of {EVENTS:,} events")
    uvloop.run(restart.make_log(Home(Path(folder.name) / "home"), EVENTS, SqliteStore[Event]))
    return folder


# --- beside the peers ------------------------------------------------------------------------------------------------

DELAYS = (0, 3)
PEER_TURNS = 2
POISE = "Poise"


def beside(repeats: int) -> list[Figure]:
    """The same two kills for the peers that are installed, and for Poise in the same turns.

    Of twenty commands of half a second, each acknowledged, how many were done in the end, when the control plane was
    killed so many seconds after the last one and started again; and how soon work runs again whose worker was killed,
    under the defaults of each system (Poise pauses for a second before the first retry).
    """
    systems = [POISE, *(peer.name for peer in peers.PEERS.values() if peer.killed)]
    killed = {f"{delay} s": ("control", str(delay)) for delay in DELAYS} | {"worker": ("worker",)}
    values: dict[tuple[str, str], list[float]] = {}
    notes: dict[tuple[str, str], str] = {}
    for _ in range(repeats):
        for what, arguments in killed.items():
            for system in systems:
                try:
                    answer = _own(*arguments) if system == POISE else _theirs(system, *arguments)
                except peers.Absent as why:
                    notes[system, what] = f"absent: {why}"
                    continue
                value = answer["again" if what == "worker" else "done"]
                if value is None:
                    notes[system, what] = "not run again while it was looked at"
                else:
                    values.setdefault((system, what), []).append(value)
                say(f"{system}, {what}: {answer}")
    figures = []
    for what in killed:
        for system in systems:
            found, note = values.get((system, what), []), notes.get((system, what), "")
            if what == "worker":
                name = f"kill -9 of a worker, its work runs again: {system}"
                figures.append(Figure(name=name, unit="s", values=found, note=note))
            else:
                name = f"{SUBMISSIONS} acknowledged, control plane killed {what} later, done in the end: {system}"
                limit = float(SUBMISSIONS) if system == POISE else None
                figures.append(Figure(name=name, unit="", values=found, limit=limit, larger=True, note=note))
    return figures


def _theirs(system: str, *arguments: str) -> dict[str, Any]:
    return peers.ask(peers.FOLDER, system, peers.PEERS[system].killed, *arguments)


def _own(what: str, delay: str = "0") -> dict[str, Any]:
    living = Living()
    try:
        living.up()
        client = living.client()
        if what == "worker":
            noted = living.work / "noted"
            client.submit({"run": killing.once(noted)})
            return {"again": killing.again_after_kill(noted)}
        for number in range(SUBMISSIONS):
            client.submit({"run": killing.command(living.work, number)})
        time.sleep(float(delay))
        kill(living.pid("control"))
        return {"done": float(killing.done_in_the_end(living.work))}
    finally:
        living.destroy()


# --- the rows --------------------------------------------------------------------------------------------------------

EVENT = "by events"
CLOCK = "by the observer's clock"


def cases(outage_seconds: float) -> list[Case]:
    long = f"{EVENTS:,} events in its log"
    away = functools.partial(outage, outage_seconds)
    policies = {
        "raises": ("raises", "LookupError"),
        "loops": ("spins", "no plan within"),
        "takes 10 s": ("waits", "no plan within"),
        "returns nonsense": ("no-plan", "not a Plan"),
        "over-allocates": ("lies", "devices"),
    }
    return [
        Case(1, "kill -9 of a command", command_killed, EVENT, 1.0, 5.0),
        Case(1, "kill -9 of a member of a gang", member_killed, EVENT, 1.0, 5.0),
        Case(2, "kill -9 of the agent", agent_killed, CLOCK, 10.0, 5.0),
        Case(2, "kill -9 of the agent, back after it was given up", agent_away, f"{EVENT}; back: {CLOCK}", 10.0, 5.0),
        Case(3, "a node is gone, of two on this machine", machine_gone, EVENT, 3.0, 2.0),
        Case(4, f"kill -9 of the control plane, {long}", control_killed, CLOCK, None, 3.0),
        Case(4, f"the control plane is away for {outage_seconds:g} s", away, CLOCK, None, 3.0),
        Case(5, f"kill -9 at each of {len(STEPS)} steps of a commit", killed_at_each_step, CLOCK, None, 3.0),
        Case(9, "the log's disk is full", disk_full, f"{CLOCK}: one refused `poise submit`", None, 5.0),
        Case(10, f"{FLIPS} flipped bits", bits_flipped, f"{CLOCK}: one refused `poise up`"),
        Case(10, "a torn tail", tail_torn, f"{CLOCK}: one `poise up`"),
        Case(10, "a log cut before what was acknowledged", log_cut, f"{CLOCK}: one refused `poise up`"),
        Case(12, "a command exceeds its memory", memory_exceeded, EVENT, 1.0, 5.0),
        Case(12, "a command exceeds its memory each time", memory_always_exceeded, EVENT),
        Case(14, "a command hangs, `hang: 2s`", hung, EVENT, 60.0, 60.0),
        Case(17, "a second control plane", second_control_plane, CLOCK),
        Case(17, "a second control plane, the lock removed", lock_removed, CLOCK),
        *(
            Case(27, f"a policy {what}", functools.partial(policy_fails, *policy), EVENT, ONE_ROUND, ONE_ROUND)
            for what, policy in policies.items()
        ),
    ]


def measure(rows: Sequence[int], repeats: int, outage_seconds: float, *, with_peers: bool) -> list[Figure]:
    """All turns of the cases of these rows; no rows: of all."""
    figures = []
    for case in cases(outage_seconds):
        if not rows or case.row in rows:
            figures += _measured(case, repeats)
    return figures + (beside(min(repeats, PEER_TURNS)) if with_peers else [])


def _measured(case: Case, repeats: int) -> list[Figure]:
    name = f"fault {case.row}: {case.fault}"
    turns: list[Turn] = []
    broken: list[str] = []
    for _ in range(repeats):
        living = Living()
        try:
            turns.append(case.turn(living))
        except NotHere as why:
            return [harness.absent(name, str(why))]
        except (AssertionError, PoiseError) as story:
            broken.append(" ".join(str(story).split()))
            say(f"{name}: BROKEN: {story}")
        finally:
            living.destroy()
    noticed = [round(value, 4) for turn in turns for value in turn.noticed]  # nobody looks more often
    recovered = [round(value, 4) for turn in turns for value in turn.recovered]
    figures = []
    if noticed:
        figures.append(Figure(name=f"{name}, noticed", unit="s", values=noticed, limit=case.notice, note=case.by))
    if recovered:
        figures.append(Figure(name=f"{name}, recovered", unit="s", values=recovered, limit=case.recover, note=case.by))
    note = broken[0][:200] if broken else f"in {repeats} turns"
    count = float(len(broken))
    figures.append(Figure(name=f"{name}, promises broken", unit="", values=[count], limit=0.0, note=note))
    say(harness.table(figures))
    return figures


def main() -> int:
    parser = argparse.ArgumentParser(description="faults done to a live Poise, timed")
    parser.add_argument("--rows", default="", help="rows of the matrix, with commas between [all]")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--outage", type=float, default=5.0, help="seconds without a control plane")
    parser.add_argument("--no-peers", action="store_true", help="without the peers under the same kills")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    rows = [int(row) for row in options.rows.split(",") if row]
    known = {case.row for case in cases(options.outage)}
    if unknown := [str(row) for row in rows if row not in known]:
        parser.error(f"no such row: {', '.join(unknown)}; there are {', '.join(map(str, sorted(known)))}")
    with_peers = not options.no_peers
    return harness.program(
        lambda: measure(rows, options.repeats, options.outage, with_peers=with_peers), as_json=options.json
    )


if __name__ == "__main__":
    sys.exit(main())
