"""Poise on a real Slurm: pilots in allocations, with the rights of a user."""

import contextlib
import re
import shutil
import subprocess
from collections.abc import Iterator

import pytest

from poise.drivers.lock import holder
from system.living import Living, kill, until
from system.onslurm import OnSlurm
from system.slurm_cluster import slurm

WAITS = "until [ -e {} ]; do sleep 0.1; done; echo epoch $POISE_EPOCH"


@pytest.fixture(scope="module")
def on() -> Iterator[OnSlurm]:
    with slurm() as cluster:
        living = Living()
        try:
            on = OnSlurm(cluster, living)
            on.up("slurm:main,nodes=3,idle=600")
            yield on
            assert living.poise("down", "--cancel").code == 0
            until(lambda: not cluster.jobs(), "all allocations have ended", on.messages)
            until(lambda: not living.processes(), "nothing is left", living.processes)
        finally:
            living.destroy()


def test_work_that_waits_gets_an_allocation_and_nobody_else_can_read_the_token(on: OnSlurm) -> None:
    job = on.submit("echo $POISE_JOB", expect="1s")
    assert on.living.poise("wait", job).code == 0
    node = on.living.client().job(job).tasks[0].node
    assert node in on.cluster.names
    assert on.living.poise("logs", job).text == f"{job}\n"
    [allocation] = on.cluster.jobs()
    [report] = on.living.client().nodes()
    assert report.labels["allocation"] == allocation
    token = (on.living.home.root / "slurm" / "token").read_text()
    told = on.cluster.call("scontrol", "show", "job", allocation)
    told += on.cluster.call("scontrol", "write", "batch_script", allocation, "-")
    assert token not in told
    [folder] = on.allocations()
    assert re.search(f"Comment=poise:{folder.name}", told)
    holding = [path for path in folder.iterdir() if token.encode() in path.read_bytes()]
    assert holding
    assert {path.stat().st_mode & 0o077 for path in (*holding, folder)} == {0}


def test_doctor_says_whether_a_cluster_can_be_used_and_what_it_has(on: OnSlurm) -> None:
    done = on.living.poise("doctor", "--on", "slurm:main", "--json")
    checks = {check["name"]: check for check in done.value["checks"]}
    [allocation] = on.cluster.jobs()
    assert done.code == 0
    assert "3 nodes of 2 CPUs" in checks["partition main"]["text"]
    assert checks["shared folder"]["status"] in ("ok", "warn")
    assert "left" in checks[f"job {allocation}"]["text"]
    done = on.living.poise("doctor", "--on", "slurm:nowhere", "--json")
    assert done.code == 1
    assert {check["name"]: check["status"] for check in done.value["checks"]}["partition nowhere"] == "fail"


def test_a_command_is_handed_to_slurm_as_one_job_of_its_own(on: OnSlurm) -> None:
    out = on.living.work / "handed"
    options = ("submit", "--via", "slurm", "--json", "--output", str(out))
    done = on.living.poise(*options, "--memory", "64MiB", "--", "hostname")
    assert done.code == 0, done.err
    assert done.value["partition"] == "main"
    assert done.value["starts"]
    until(lambda: done.value["job"] not in on.cluster.jobs(), "it has run", on.messages)
    assert out.read_text()
    lines = ("#!/bin/sh", "#SBATCH --partition=short --mem=64M", "echo $SLURM_JOB_PARTITION $SLURM_JOB_ID", "")
    script = on.living.file("job.sh", "\n".join(lines))
    done = on.living.poise(*options, str(script))
    assert done.value["partition"] == "short"
    until(lambda: out.read_text() == f"short {done.value['job']}\n", "it has run", on.messages)
    refused = on.living.poise(*options, "--cpu", "64", "--", "true")
    assert refused.code == 2
    assert "not available" in refused.error["have"]
    assert on.living.client().status().unfinished == 0


def test_what_is_handed_to_slurm_may_wait_for_other_jobs_there(on: OnSlurm) -> None:
    handed = ("submit", "--via", "slurm", "-q")
    first = on.living.poise(*handed, "--hold", "--", "true")
    assert first.code == 0, first.err
    options = ("--after", first.text.strip(), "--exclude-node", "n3", "--retries", "0", "--begin", "1h")
    then = on.living.poise(
        *handed, *options, "--deadline", "9h", "--if-late", "cancel", "--time-limit", "1h", "--", "true"
    )
    assert then.code == 0, then.err
    told = on.cluster.call("scontrol", "show", "job", then.text.strip())
    for field in (f"Dependency=afterok:{first.text.strip()}", "ExcNodeList=n3", "Requeue=0", "Deadline=2"):
        assert field in told
    assert "JobHeldUser" in on.cluster.call("scontrol", "show", "job", first.text.strip())
    on.cluster.call("scancel", first.text.strip(), then.text.strip())


def test_an_allocation_is_used_by_all_work_that_fits(on: OnSlurm) -> None:
    before, asked = on.cluster.jobs(), on.cluster.calls("sbatch")
    jobs = [on.submit("true", expect="1s") for _ in range(20)]
    assert [on.living.poise("wait", job).code for job in jobs] == [0] * 20
    assert on.cluster.jobs() == before
    assert on.cluster.calls("sbatch") == asked


def test_running_work_does_not_notice_that_slurmctld_is_killed(on: OnSlurm) -> None:
    released = on.living.work / "control"
    job = on.submit(WAITS.format(released), expect="5s")
    on.until_running(job)
    on.cluster.kill("slurmctld")
    released.touch()
    assert on.living.poise("wait", job).code == 0
    assert on.living.poise("logs", job).text == "epoch 1\n"
    on.cluster.start_control()
    until(lambda: on.cluster.jobs() != {}, "the allocation is there", on.messages)


def test_work_runs_again_when_its_allocation_is_cancelled_and_nothing_of_it_goes_on(on: OnSlurm) -> None:
    job = on.submit("[ $POISE_EPOCH = 2 ] || exec sleep 1000; echo again", expect="5s")
    on.until_running(job)
    assert len(on.living.tasks()) == 1
    on.cluster.cancel()
    assert on.living.poise("wait", job).code == 0
    assert on.living.poise("logs", job).text == "again\n"
    until(lambda: on.living.tasks() == [], "the first one has been ended", on.living.processes)


def test_work_of_a_cancelled_allocation_begins_elsewhere_only_when_it_has_ended_there(on: OnSlurm) -> None:
    told = on.living.work / "told"
    ends = f"trap 'sleep 2; echo ends $POISE_EPOCH >> {told}; exit 0' TERM; touch {told}; while :; do sleep 0.1; done"
    job = on.submit(f"[ $POISE_EPOCH = 1 ] || exec echo begins $POISE_EPOCH >> {told}; {ends}", expect="5s")
    there = on.until_running(job)
    until(told.exists, "it can be stopped", on.messages)
    beside = on.submit("sleep 1000", resources={"cpu": 2}, expect="5s")  # this one needs another allocation
    on.until_running(beside)
    on.living.poise("cancel", beside)
    on.cluster.call("scancel", f"--nodelist={there}")
    assert on.living.poise("wait", job).code == 0, on.messages()
    assert told.read_text() == "ends 1\nbegins 2\n"
    on.cluster.cancel()
    until(lambda: not on.cluster.jobs(), "all allocations have ended", on.messages)


@pytest.mark.slow
def test_work_of_a_requeued_job_runs_again_though_the_job_keeps_its_id(on: OnSlurm) -> None:
    job = on.submit("[ $POISE_EPOCH = 2 ] || exec sleep 1000; echo again", expect="5s")
    on.until_running(job)
    [allocation] = on.cluster.jobs()
    [folder] = [path for path in on.allocations() if (path / "job").read_text() == allocation]
    on.cluster.call("scontrol", "requeue", allocation)

    def begins_again() -> bool:
        """Slurm waits for two minutes with what it has requeued, unless it is told not to."""
        if on.cluster.jobs().get(allocation) == "PENDING":
            with contextlib.suppress(subprocess.CalledProcessError):  # it has just begun
                on.cluster.call("scontrol", "update", f"JobId={allocation}", "StartTime=now")
        return (folder / "state-0-1.json").exists()

    until(begins_again, "it begins again", on.messages)
    assert on.living.poise("wait", job).code == 0
    assert on.living.poise("logs", job).text == "again\n"
    on.cluster.cancel()


@pytest.mark.slow
def test_a_gang_gets_its_nodes_in_one_allocation(on: OnSlurm) -> None:
    until(lambda: not on.cluster.jobs(), "all is given back", on.messages)
    asked = on.cluster.calls("sbatch")
    job = on.submit("true", workers=3, resources={"cpu": 2}, expect="5s")
    assert on.living.poise("wait", job).code == 0, on.messages()
    assert sorted(task.node for task in on.living.client().job(job).tasks) == on.cluster.names
    assert on.cluster.calls("sbatch") == asked + 1


def test_a_keeper_that_is_killed_while_it_submits_asks_for_nothing_twice(on: OnSlurm) -> None:
    on.cluster.cancel()
    until(lambda: not on.cluster.jobs(), "all is given back", on.messages)
    known = on.allocations()
    sbatch = on.cluster.bin / "sbatch"
    kept = shutil.copy(sbatch, on.cluster.run / "sbatch")
    let = on.living.work / "let"
    sbatch.write_text(sbatch.read_text().replace("exec ", "") + f"until [ -e {let} ]; do sleep 0.1; done\n")
    released = on.living.work / "twice"
    job = on.submit(WAITS.format(released), expect="5s")
    until(lambda: len(on.cluster.jobs()) == 1, "it is submitted", on.messages)
    lock = on.living.home.root / "slurm" / "lock"
    before = holder(lock)
    kill(before)
    shutil.copy(kept, sbatch)
    until(lambda: holder(lock) not in (0, before), "there is another keeper", on.messages)
    on.until_running(job)
    assert len(on.cluster.jobs()) == 1
    [folder] = [path for path in on.allocations() if path not in known]
    until((folder / "job").exists, "its id is known again", on.messages)
    assert [(folder / "job").read_text()] == [*on.cluster.jobs()]
    let.touch()
    released.touch()
    assert on.living.poise("wait", job).code == 0
    assert on.living.poise("logs", job).text == "epoch 1\n"


@pytest.mark.slow
def test_an_allocation_on_which_nothing_runs_is_given_back_and_one_that_ends_is_drained_before(on: OnSlurm) -> None:
    """The shortest time that Slurm knows is a minute."""
    assert on.living.poise("down", "--cancel").code == 0
    until(lambda: not on.cluster.jobs(), "all is given back", on.messages)
    on.up("slurm:short,idle=3,drain=20")
    brief = on.submit("true", expect="1s")
    assert on.living.poise("wait", brief).code == 0
    until(lambda: not on.cluster.jobs(), "it is given back", on.messages)
    runs = on.submit("[ $POISE_EPOCH = 2 ] || exec sleep 1000; echo moved", expect="10s", checkpoint="5s")
    on.until_running(runs)
    [allocation] = on.cluster.jobs()
    waits = on.submit("true", expect="55s", **{"class": "long"})  # 110 s at most, and 20 to drain
    until(
        lambda: "NODE_ENDS" in on.living.poise("explain", waits, "--json").text, "it would not end in time", on.messages
    )
    until(lambda: on.living.client().job(runs).status == "done", "it moves", on.messages, seconds=300)
    assert on.living.poise("logs", runs).text == "moved\n"
    assert on.cluster.call("squeue", "-h", "-j", allocation, "-t", "all", "-o", "%T").strip() != "TIMEOUT"


def test_work_that_no_partition_can_hold_is_told_by_doctor_and_explain(on: OnSlurm) -> None:
    job = on.submit("true", resources={"cpu": 64})
    text = "no allocation for 1 task: no partition has such nodes: 64 CPU"
    until(lambda: text in on.living.poise("explain", job).err, "the keeper has looked", on.messages)
    checks = on.living.poise("doctor", "--json").value["checks"]
    assert [one["status"] for one in checks if text in one["text"]] == ["warn"]
    assert on.living.poise("cancel", job).code == 0
