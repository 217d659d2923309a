"""Rows 1, 12, 14, 15 and 19: what commands do, and training."""

import contextlib
import os
import signal
import sys
import threading
import time
from typing import Any

from system.living import PATIENCE, kill, until

from chaos.turns import SLEEP, Observer, Stage, Turn
from poise.kernel.straggle import FEWEST

EATS = """\
import os, pathlib, sys, time
if os.environ["POISE_EPOCH"] == "1":
    pathlib.Path(sys.argv[1]).write_text(str(time.monotonic()))
    eaten = bytearray(512 << 20)
    time.sleep(600)
time.sleep(600)
"""


def memory_always_exceeded(living: Stage) -> Turn:
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


def memory_exceeded(living: Stage) -> Turn:
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
    living.client().cancel(job)
    return Turn([noticed - float(begins.read_text())], [again - noticed])


def hung(living: Stage) -> Turn:
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


PARTS = FEWEST + 2
STEPS = 250
STANDS = 1.0
"""Seconds for which it stands still, and goes on, in turns."""


def half_speed(living: Stage) -> Turn:
    """One of several parts, alike but for that, goes on for half of the time only. It is reported, and no other is.
    *noticed*: from its start, as there is nothing to be seen before the others have ended.
    """
    living.up()
    observer = Observer(living)
    client = living.client()
    run = f"i=0; while [ $i -lt {STEPS} ]; do sleep 0.1; i=$((i + 1)); done"
    job = client.submit({"run": run, "parts": PARTS, "resources": {"cpu": 0.1}})
    name = client.job(job).tasks[0].task
    started, begun = observer.until("started", task=name, epoch=1)
    stop = threading.Event()
    slow = threading.Thread(target=_stand_still_in_turns, args=(begun["pid"], stop))
    slow.start()
    try:
        noticed, found = observer.until("straggling")
    finally:
        stop.set()
        slow.join()
    assert found["task"] == name and found["siblings"] == PARTS - 1, found
    assert client.wait(job, PATIENCE).status == "done"
    return Turn([noticed - started], [])


def _stand_still_in_turns(pid: int, stop: threading.Event) -> None:
    while not stop.wait(STANDS):
        with contextlib.suppress(ProcessLookupError):
            os.killpg(pid, signal.SIGSTOP)
            time.sleep(STANDS)
            os.killpg(pid, signal.SIGCONT)


# --- training --------------------------------------------------------------------------------------------------------

WORKERS = 3
ENDLESS: dict[str, Any] = {"pause": 0.05, "epochs": 100_000}
"""A worker may take long to begin; training is not over before that."""


def worker_killed(living: Stage) -> Turn:
    """One of three that train together: the others go on in their processes. *recovered*: until steps that follow were
    made.
    """
    from system.test_elastic_training import Trained  # PyTorch may not be here

    training = Trained(living, f"1..{WORKERS}", **ENDLESS)
    observer = Observer(living)
    training.until_step(5, world=WORKERS)
    first = training.running()
    victim = first.pop(f"main[{WORKERS - 1}]")
    step = training.said().step
    killed = time.monotonic()
    kill(victim.pid)
    noticed, _ = observer.until("finished", task=victim.task, epoch=1)
    training.until_step(step + 2)
    again = time.monotonic()
    until(lambda: len(training.running()) == WORKERS, "it is replaced", living.messages)
    now = training.running()
    assert {name: now[name].pid for name in first} == {name: task.pid for name, task in first.items()}
    training.client.cancel(training.id)
    return Turn([noticed - killed], [again - noticed])


def worker_asked_to_end(living: Stage) -> Turn:
    """One of three that train together gets SIGTERM, from a person or a machine that goes down: all save and end
    together, and the job is retried. *recovered*: until steps that follow were made.
    """
    from system.test_elastic_training import Trained

    training = Trained(living, f"1..{WORKERS}", **ENDLESS)
    observer = Observer(living)
    training.until_step(5, world=WORKERS)
    victim = training.running()[f"main[{WORKERS - 1}]"]
    assert victim.pid
    asked = time.monotonic()
    os.kill(victim.pid, signal.SIGTERM)
    noticed, finished = observer.until("finished", task=victim.task, epoch=1)
    step = training.said().step
    training.until_step(step + 2, world=WORKERS)
    again = time.monotonic()
    assert step >= 5, "it began from the start"
    assert training.client.job(training.id).status == "running", finished
    training.client.cancel(training.id)
    return Turn([noticed - asked], [again - noticed])


def resized(living: Stage) -> Turn:
    """Training of three gives room to urgent work as it runs, and takes it back. *recovered*: from when the urgent work
    is submitted, and from when it has ended, until steps were made in the new size.
    """
    from system.test_elastic_training import Trained

    training = Trained(living, f"1..{WORKERS}", **ENDLESS)
    training.until_step(5, world=WORKERS)
    client = living.client()
    asked = time.monotonic()
    urgent = client.submit({"run": SLEEP, "priority": "urgent", "resources": {"cpu": WORKERS}})
    until(lambda: client.job(urgent).status == "running", "it makes room", living.messages)
    training.until_step(training.said().step + 1, world=1)
    smaller = time.monotonic()
    client.cancel(urgent)
    client.wait(urgent, PATIENCE)
    over = time.monotonic()
    training.until_step(training.said().step + 1, world=WORKERS)
    larger = time.monotonic()
    training.client.cancel(training.id)
    return Turn([], [smaller - asked, larger - over])
