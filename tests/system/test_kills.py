"""kill -9 of every process of a working system, at random moments: what runs goes on, and all of it ends right."""

import os
import random
import signal
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from poise.client import Client, Receipt
from poise.errors import SpecError, Unreachable
from poise.model.reports.jobs import JobReport
from system.living import Diary, Living, alive, ended, kill, until

SHORT, LONG = 30, 2


def _killed_control(living: Living, chance: random.Random) -> list[int]:
    return [living.pid("control")]


def _killed_agent(living: Living, chance: random.Random) -> list[int]:
    return [living.pid("agent")]


def _killed_supervisor(living: Living, chance: random.Random) -> list[int]:
    return [living.pid("supervisor")]


def _killed_both(living: Living, chance: random.Random) -> list[int]:
    return [living.pid("control"), living.pid("agent")]


def _killed_everything(living: Living, chance: random.Random) -> list[int]:
    return [living.pid("supervisor"), living.pid("control"), living.pid("agent")]


def _killed_keeper(living: Living, chance: random.Random) -> list[int]:
    return [chance.choice(keepers)] if (keepers := living.keepers()) else []


def _killed_task(living: Living, chance: random.Random) -> list[int]:
    return [chance.choice(tasks)] if (tasks := living.tasks()) else []


Victims = Callable[[Living, random.Random], list[int]]


@pytest.mark.parametrize(
    ("victims", "untouched"),
    [
        (_killed_control, True),
        (_killed_agent, True),
        (_killed_supervisor, True),
        pytest.param(_killed_both, True, marks=pytest.mark.slow),
        (_killed_everything, True),
        (_killed_keeper, False),
        (_killed_task, False),
    ],
    ids=lambda value: value.__name__.removeprefix("_killed_") if callable(value) else "",
)
def test_all_jobs_end_right_whoever_is_killed(shared: Living, victims: Victims, untouched: bool) -> None:
    """`untouched`: no command may notice that its superiors died. Else what died with a keeper is run again."""
    living, who = shared, victims.__name__
    living.up()
    chance = random.Random(who)  # noqa: S311 — a seed, not a secret
    diary = Diary(living.work / f"diary{who}")
    client = living.client()
    retry = {"limit": 20, "backoff": "50ms", "when": ["lost", "killed", "signal"]}
    long = [
        client.submit({"run": diary.command(3), "resources": {"cpu": 0.25}, "retry": retry, "priority": "high"})
        for _ in range(LONG)
    ]
    short: list[str] = []

    def submit() -> None:
        own = living.client()
        for number in range(SHORT):
            spec = {"run": diary.command(0.05), "resources": {"cpu": 0.25}, "retry": retry, "name": f"n{number}"}
            short.append(_until_acknowledged(own, spec, f"{who}-{number}"))
            time.sleep(0.03)

    until(lambda: all(client.job(job).status == "running" for job in long), "the long ones run")
    pids = {job: _pid_of(living, job) for job in long}
    submitter = threading.Thread(target=submit)
    submitter.start()
    for _ in range(3):
        time.sleep(chance.uniform(0.05, 0.4))
        for pid in victims(living, chance):
            kill(pid)
        if victims is _killed_everything:
            living.up()
    submitter.join()
    reports = [client.wait(job, 60) for job in (*long, *short)]
    assert [report.status for report in reports] == ["done"] * len(reports), _story(reports)
    assert [report.name for report in reports[LONG:]] == [f"n{number}" for number in range(SHORT)]
    endings = diary.endings()  # one that ended just before its keeper was killed is lost, and ends once more
    assert sorted(endings if untouched else set(endings)) == sorted(f"{report.id}.main" for report in reports)
    if untouched:
        for job in long:
            task = client.job(job).tasks[0]
            assert (task.epoch, task.attempts) == (1, ()), _story([client.job(job)])
            assert _started_pid(living, job) == pids[job]
        diary.check()
    else:
        retried = {report.tasks[0].task for report in reports if report.tasks[0].epoch > 1}
        diary.check(killed=retried)
        outcomes = {attempt.outcome for report in reports for attempt in report.tasks[0].attempts}
        assert outcomes <= ({"lost", "returned"} if victims is _killed_keeper else {"killed"}), _story(reports)
    # A supervisor that was killed is replaced by the next command that needs one.
    living.up()
    assert living.pid("supervisor")
    assert not living.tasks()


def _until_acknowledged(client: Client, spec: dict[str, Any], key: str) -> str:
    """Again under the same key, for as long as nobody is there."""
    while True:
        try:
            return client.submit(spec, key=key)
        except Unreachable:
            time.sleep(0.05)


def _pid_of(living: Living, job: str) -> int:
    """The process of a command, as the machine shows it."""
    wanted = f"POISE_JOB={job}\0".encode()

    def shells() -> list[int]:
        return [pid for pid, text in living.processes(wanted).items() if text.startswith("/bin/sh")]

    return int(until(lambda: len(found := shells()) == 1 and found[0], "it is no copy of itself about to be `sleep`"))


def _started_pid(living: Living, job: str) -> int:
    """The process that the log says has run a job to its end."""
    started = [
        record["event"]["pid"]
        for record in living.poise("events", "--json").value
        if record["event"]["type"] == "started" and record["event"]["task"] == f"{job}.main"
    ]
    assert len(started) == 1
    return int(started[0])


def _story(reports: list[JobReport]) -> str:
    return "\n".join(
        f"{report.id} {report.status} epoch {task.epoch} {task.note} {task.attempts}"
        for report in reports
        for task in report.tasks
        if report.status != "done" or task.attempts
    )


def test_a_lost_keeper_is_told_and_its_work_runs_again(living: Living) -> None:
    living.up()
    done = living.poise("submit", "--retries", "2", "--", "sh", "-c", "test $POISE_EPOCH -gt 1 || sleep 60")
    job = done.text.strip()
    until(living.tasks, "it runs")
    task = living.tasks()
    for keeper in living.keepers():
        kill(keeper)
    report = living.client().wait(job, 30)
    assert report.status == "done"
    assert [attempt.outcome for attempt in report.tasks[0].attempts] == ["lost"]
    assert report.tasks[0].epoch == 2
    assert not any(alive(pid) for pid in task), "what the keeper ran has ended with it"


def test_results_of_an_outage_are_accepted_when_it_is_over(living: Living) -> None:
    """The control plane is away for longer than it takes to give a node up. What ran goes on; what ended is told."""
    living.up()
    diary = Diary(living.work / "diary")
    client = living.client()
    ends_in_outage = client.submit({"run": diary.command(1.5), "resources": {"cpu": 0.25}})
    outlives_it = client.submit({"run": diary.command(6), "resources": {"cpu": 0.25}})
    until(lambda: len(list(diary.entries())) == 2, "both run")
    kill(living.pid("supervisor"))
    kill(living.pid("control"))
    time.sleep(4)
    assert diary.endings() == [f"{ends_in_outage}.main"]
    assert len(living.tasks()) >= 1
    living.up()
    for job in (ends_in_outage, outlives_it):
        report = living.client().wait(job, 30)
        assert (report.status, report.tasks[0].epoch) == ("done", 1)
    diary.check()


def test_a_command_that_is_waited_for_outlives_the_control_plane(living: Living) -> None:
    """`poise run` goes on reading, and gives the code, though the control plane dies. Nothing is printed twice."""
    command = "i=0; while test $i -lt 20; do echo line $i; i=$((i+1)); sleep 0.1; done; exit 9"
    running = living.start("run", "--", "sh", "-c", command)
    until(living.tasks, "it runs")
    for _ in range(2):
        time.sleep(0.7)
        kill(living.pid("control"))
    done = ended(running)
    assert done.code == 9
    assert done.text.split("\n") == [f"line {number}" for number in range(20)] + [""]


def test_a_stream_of_submissions_outlives_the_control_plane(living: Living) -> None:
    living.up()
    client, count = living.client(), 60

    def specs() -> Iterator[dict[str, Any]]:
        for number in range(count):
            if number in (20, 40):
                living.client().status()  # it is back
                kill(living.pid("control"))
            yield {"run": ["true"], "resources": {"cpu": 0.1}}

    receipts = list(client.submit_stream(specs()))
    assert [receipt.error for receipt in receipts] == [None] * count
    assert len({receipt.job for receipt in receipts}) == count
    assert {job.id for job in client.jobs(everything=True)} == {receipt.job for receipt in receipts}
    assert [client.wait(receipt.job, 30).exit_code for receipt in receipts] == [0] * count


def test_what_fails_in_making_a_stream_is_raised_once_the_rest_is_acknowledged(living: Living) -> None:
    living.up()
    client = living.client()

    def specs() -> Iterator[dict[str, Any]]:
        yield {"run": ["true"]}
        yield {"runs": ["true"]}
        raise ValueError("no more")

    receipts: list[Receipt] = []
    with pytest.raises(ValueError, match="no more"):
        receipts.extend(client.submit_stream(specs()))
    first, second = receipts
    assert client.wait(first.job).exit_code == 0
    assert second.error is not None and second.error.code == "E102"
    with pytest.raises(SpecError):
        list(client.submit_stream([{"run": ["\ud800"]}]))


def test_run_says_so_when_everything_is_gone(living: Living) -> None:
    running = living.start("run", "--", "sleep", "30")
    until(living.tasks, "it runs")
    for what in ("supervisor", "control", "agent"):
        kill(living.pid(what))
    done = ended(running, 10)
    assert done.code == 125
    assert "error[E201]" in done.err
    assert "poise up" in done.err
    assert living.tasks(), "the command goes on without it"
    living.up()


@pytest.mark.parametrize("what", ["control", "agent"])
def test_what_was_stopped_for_a_while_goes_on(living: Living, what: str) -> None:
    """SIGSTOP for longer than a node may be silent. A control plane does not give up nodes that went on talking, and a
    node that was given up is taken back when it speaks again. Either way what runs is left alone."""
    living.up()
    job = living.client().submit({"run": ["sleep", "5"]})
    until(living.tasks, "it runs")
    process = living.pid(what)
    os.kill(process, signal.SIGSTOP)
    time.sleep(4)
    os.kill(process, signal.SIGCONT)
    report = living.client().wait(job, 30)
    assert (report.status, report.tasks[0].epoch, report.tasks[0].attempts) == ("done", 1, ())
