"""What the core decides, from the user's side: a fleet of the examples, files of the examples, real commands."""

import re
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from system.living import Living, until

EXAMPLES = Path(__file__).resolve().parent.parent.parent / "examples"


@pytest.fixture(scope="module")
def lab() -> Iterator[Living]:
    living = Living()
    try:
        shutil.copytree(EXAMPLES, living.work / "examples")
        assert living.poise("up", "--port", "0", "--fleet", "examples/fleet.yaml").code == 0
        up = lambda: sum(node.status == "up" for node in living.client().nodes()) == 6  # noqa: E731
        until(up, "all nodes have joined", living.messages)
        yield living
    except BaseException:
        living.destroy()
        raise
    living.close()


def submitted(lab: Living, *arguments: str) -> str:
    done = lab.poise("submit", *arguments)
    assert done.code == 0, done.err
    return done.text.strip()


def ended(lab: Living, job: str) -> dict[str, Any]:
    lab.poise("wait", job)
    report: dict[str, Any] = lab.poise("show", job, "--json").value
    assert report["status"] == "done", report
    return report


def test_the_artifact_that_is_done_first_is_started_on_the_device_it_was_built_for(lab: Living) -> None:
    job = submitted(lab, "examples/artifacts.yaml")
    [task] = ended(lab, job)["tasks"]
    assert task["node"].startswith("hopper")
    assert "by roofline" in task["why"]
    assert task["artifact"] == "cuda"
    assert "as cuda; " in lab.poise("show", job).text
    assert lab.poise("logs", job).text.startswith("as CUDA on ")


def test_work_is_cut_and_merged_in_order(lab: Living) -> None:
    def parts(job: str) -> int:
        tasks = ended(lab, job)["tasks"]
        assert lab.poise("logs", f"{job}.main.merge").text.strip() == str(sum(range(100)))
        return len([task for task in tasks if "[" in task["name"]])

    assert parts(submitted(lab, "examples/split.yaml")) == 10
    busy = submitted(lab, "--workers", "7", "--cpu", "8", "--", "sleep", "60")
    until(lambda: lab.client().job(busy).status == "running", "half is taken", lab.messages)
    assert parts(submitted(lab, "examples/split.yaml")) == 20
    assert sorted(path.name for path in (lab.work / "examples").glob("split.*")) == ["split.yaml"]
    lab.poise("cancel", busy)
    lab.poise("wait", busy)


def test_an_elastic_gang_takes_what_there_is_up_to_its_most(lab: Living) -> None:
    job = submitted(lab, "examples/elastic.yaml")
    report = ended(lab, job)
    members = [task for task in report["tasks"] if task["started"]]
    assert len(members) == 4
    assert len({task["node"] for task in members}) == 1, "one node has room for all of them"
    assert sorted(lab.poise("logs", job).text.splitlines())[0].startswith("[rank 0] member 0 of 4, on GPU ")


def test_a_share_of_a_device_leaves_room_for_others(lab: Living) -> None:
    jobs = [
        submitted(
            lab, "-g", "1", "--gpu-share", "0.4", "--gpu-model", "A100", "--gpu-memory", "10GiB", "--", "sleep", "8"
        )
        for _ in range(2)
    ]
    tasks = [ended(lab, job)["tasks"][0] for job in jobs]
    assert {(task["node"], *task["devices"]) for task in tasks} == {("ampere", 0)}
    first, second = ((task["started"], task["started"] + task["run"] / 1e9) for task in tasks)
    assert second[0] < first[1], "they ran side by side"


def test_a_device_that_lacks_an_operator_is_not_taken(lab: Living) -> None:
    lab.file("ops.yaml", "run: 'true'\nresources: {gpu: 1, ops: [attention], gpu_model: [edge-gpu]}\n")
    refused = lab.poise("submit", "ops.yaml", "--json")
    assert refused.code == 1
    assert refused.error["code"] == "E110"


def test_a_deadline_that_cannot_be_met_is_refused_and_one_that_may_not_is_told(lab: Living) -> None:
    refused = lab.poise("submit", "--expect", "10m", "--deadline", "5m", "--", "sleep", "1")
    assert refused.code == 1
    assert "E108" in refused.err
    assert "at least 10m0s" in refused.err
    assert "--deadline 600s" in refused.err
    fits = lab.poise("submit", "--expect", "10m", "--deadline", "11m", "--", "true")
    assert "may be late" not in fits.err
    cores = sum(node["cpu"] for node in lab.poise("nodes", "--json").value) // 1000
    busy = submitted(lab, "--workers", str(cores // 8), "--cpu", "8", "--expect", "2h", "--", "sleep", "60")
    told = lab.poise("submit", "--expect", "10m", "--deadline", "11m", "--", "sleep", "60")
    assert told.code == 0
    assert "it may be late: " in told.err
    assert "it may be late: " in lab.poise("show", told.text.strip()).text
    for job in (busy, told.text.strip()):
        lab.poise("cancel", job)


def test_a_deadline_is_told_with_its_chance_and_may_refuse_or_cancel(living: Living) -> None:
    """On a fleet of one CPU, which is held for ten minutes."""
    living.up("--fleet", str(living.file("fleet.yaml", "kind: fleet\nnodes: {n1: {cpu: 1, memory: 1GiB}}\n")))
    told = living.poise("submit", "--expect", "10m", "--deadline", "1h", "--no-preempt", "--", "sleep", "600")
    assert (told.code, told.text) == (0, "j1\n")
    chance = r"poise: deadline in (1h0m|59m5\ds): (9\d) % likely \(P50 end in [\dm]+s, P90 in [\dhm]+s?\)"
    assert re.fullmatch(chance, told.err.splitlines()[-1]), told.err
    until(lambda: living.client().job("j1").status == "running", "it runs", living.messages)
    quiet = living.poise("submit", "--quiet", "--expect", "10m", "--deadline", "1h", "--", "sleep", "600")
    assert (quiet.text, quiet.err) == ("j2\n", "")
    machine = living.poise("submit", "--json", "--expect", "10m", "--deadline", "2h", "--", "sleep", "600").value
    assert machine["job"] == machine["deadline"]["job"] == "j3"
    assert machine["deadline"]["chance"] > 700
    strict = ("--expect", "10m", "--deadline", "15m", "--if-late", "refuse")
    refused = living.poise("submit", *strict, "--", "sleep", "600")
    assert refused.code == 1
    assert "error[E108]: the deadline is unlikely to be met" in refused.err
    hint = re.search(r"hint: --deadline (\d+)s$", refused.err.strip())
    assert hint, refused.err
    assert int(hint[1]) > 1500
    assert living.client().status().unfinished == 3, "nothing was accepted"
    late = ("--name", "late", "--expect", "10m", "--deadline", "601s", "--if-late", "cancel")
    assert living.poise("submit", "--quiet", *late, "--", "sleep", "600").text == "j4\n"
    assert living.poise("wait", "late").code == 130
    said = "its deadline of 10m1s could not be met any more (at least 10m0s of work were left)"
    assert f"cancelled: {said}" in living.poise("show", "late").text
    assert f"main cancelled: {said}" in living.poise("explain", "late").text
    ran = living.poise("run", "--deadline", "1s", "--if-late", "cancel", "--", "sleep", "600")
    assert ran.code == 130
    assert "j5.main cancelled: its deadline of 1.0 s could not be met any more" in ran.err
    assert "deadlines-missed" in living.poise("events", "--after", "0", "--decisions").text


def test_a_quota_holds_back_the_work_of_one_tenant_alone(living: Living) -> None:
    living.up()
    me = "default"
    assert living.poise("quota", me, "--cpu", "1").code == 0
    first = living.poise("submit", "--json", "--", "sleep", "600").value["job"]
    until(lambda: living.client().job(first).status == "running", "it runs")
    second = living.poise("submit", "--json", "--", "echo", "ran").value["job"]
    until(lambda: "quota" in living.poise("show", second).text, "it says why it waits")
    [told] = living.poise("quota", "--json").value
    assert (told["tenant"], told["cpu"], told["cpu_held"], told["gpu"]) == (me, 1000, 1000, None)
    refused = living.poise("submit", "--json", "--cpu", "2", "--", "true")
    assert (refused.error["code"], refused.error["have"]) == ("E110", "a quota of 1 CPU")
    for words in (("quota",), ("quota", me), ("quota", me, "--none", "--cpu", "1"), ("quota", "--cpu", "1")):
        assert living.poise(*words).code == (0 if words == ("quota",) else 1)
    wrong = living.poise("quota", me, "--cpu", "many", "--json")
    assert (wrong.code, wrong.error["field"]) == (1, "cpu")
    assert living.poise("quota", me, "--none", "--json").value == []
    assert living.poise("wait", second).code == 0
    living.poise("cancel", first)


def test_all_that_was_decided_here_is_decided_the_same_again(lab: Living, tmp_path: Path) -> None:
    """Beside the control plane that runs, and elsewhere from a file."""
    told = lab.poise("replay")
    assert (told.code, told.err) == (0, "")
    assert told.text.startswith("revisions 1 to ")
    assert told.text.endswith(" decisions, all the same\n")
    told = lab.poise("replay", "--policy", "random", "--json")
    assert told.code == 0
    assert 0 < told.value["different"] <= told.value["rounds"]
    assert lab.poise("replay", "--export", str(tmp_path / "lab.log")).code == 0
    assert lab.poise("replay", str(tmp_path / "lab.log")).text.endswith("all the same\n")
