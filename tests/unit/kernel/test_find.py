"""Jobs and tasks by the names that people type."""

from typing import Any

import pytest

from poise.errors import NotFound
from poise.kernel.find import find, find_node, found_report, names
from poise.model.tenants import Bearer, Role
from poise.testing import World

TASKS: dict[str, dict[str, Any]] = {
    "fetch": {"run": "true"},
    "shard": {"run": "true", "parts": 2, "merge": "true"},
    "gang": {"workers": 2},
}


def world() -> World:
    return World().nodes(1).graph("train", tasks=TASKS).job("exp.1").round()


@pytest.mark.parametrize(
    ("name", "job", "tasks"),
    [
        ("train", "j1", {"fetch", "shard[0]", "shard[1]", "shard.merge", "gang[0]", "gang[1]"}),
        ("j1.fetch", "j1", {"fetch"}),
        ("train.shard", "j1", {"shard[0]", "shard[1]"}),
        ("train.shard[1]", "j1", {"shard[1]"}),
        ("train.shard.merge", "j1", {"shard.merge"}),
        ("train.gang", "j1", {"gang[0]", "gang[1]"}),
        ("train.gang[1]", "j1", {"gang[1]"}),
        ("exp.1", "j2", {"main"}),
        ("exp.1.main", "j2", {"main"}),
        ("tr", "j1", {"fetch", "shard[0]", "shard[1]", "shard.merge", "gang[0]", "gang[1]"}),
        ("ex", "j2", {"main"}),
        ("exp.1.m", "j2", {"main"}),
        ("tr.fe", "j1", {"fetch"}),
        ("j1.g", "j1", {"gang[0]", "gang[1]"}),
    ],
)
def test_what_a_name_means(name: str, job: str, tasks: set[str]) -> None:
    found = find(world().ledger, name)
    assert (found.job.id, set(found.tasks)) == (job, tasks)


def test_a_task_may_be_named_apart() -> None:
    ledger = world().ledger
    assert find(ledger, "train", "fetch").tasks == find(ledger, "train", "j1.fetch").tasks == {"fetch"}


@pytest.mark.parametrize(
    ("name", "message", "hint"),
    [
        ("trian", "there is no job `trian`", "did you mean `train`?"),
        ("zzz.main", "there is no job `zzz.main`", "`poise ls --all` lists the jobs"),
        ("train.fecth", "job j1 has no task `fecth`", "did you mean `fetch`?"),
        ("train.zzz", "job j1 has no task `zzz`", "`poise show j1` lists its tasks"),
        ("train.1", "job j1 has no task `1`", "did you mean `shard[1]`?"),
        ("train.[1]", "job j1 has no task `[1]`", "did you mean `shard[1]`?"),
        ("train.9", "job j1 has no task `9`", "`poise show j1` lists its tasks"),
        ("", "there is no job ``", "`poise ls --all` lists the jobs"),
    ],
)
def test_what_is_not_there_is_told_with_what_was_meant(name: str, message: str, hint: str) -> None:
    with pytest.raises(NotFound) as refused:
        find(world().ledger, name)
    record = refused.value.record
    assert (record.code, record.message, record.hint) == ("E120", message, hint)


@pytest.mark.parametrize("name", ["j1", "j1.fetch"])
def test_a_job_that_is_no_longer_kept_is_to_be_looked_for_in_the_log(name: str) -> None:
    made = World(history=0).nodes(1, cpu=1)
    for number in range(1, 21):
        made.job().round().finish(f"j{number}")
    assert "j1" not in made.ledger.jobs
    with pytest.raises(NotFound) as refused:
        find(made.ledger, name)
    assert "of one that is no longer kept the log tells: `poise show j1 --at 1h`" in refused.value.record.hint


def test_a_report_shows_what_was_asked_for() -> None:
    made = world()
    report = found_report(made.ledger, find(made.ledger, "train.fetch"), made.now)
    assert [task.name for task in report.tasks] == ["fetch"]
    assert report.critical_path


def test_of_some_tasks_status_and_exit_code_are_theirs() -> None:
    made = World().nodes(4).graph("train", tasks=TASKS).round().start("train.fetch").finish("train.fetch")
    report = found_report(made.ledger, find(made.ledger, "train.fetch"), made.now)
    assert (report.status, report.exit_code, report.counts) == ("done", 0, {"done": 1})
    assert found_report(made.ledger, find(made.ledger, "train"), made.now).exit_code is None


def test_a_beginning_of_several_names_lists_them_and_a_whole_name_wins() -> None:
    ledger = World().nodes(1).job("train").job("train-2").job("train-3").round().ledger
    assert find(ledger, "train").job.id == "j1"
    with pytest.raises(NotFound) as refused:
        find(ledger, "tra")
    record = refused.value.record
    assert (record.code, record.have) == ("E123", "train (j1), train-2 (j2), train-3 (j3)")
    assert record.hint == "a full name always works: `train`"
    many = World().nodes(1)
    for number in range(30):
        many.job(f"run-{number}")
    with pytest.raises(NotFound) as refused:
        find(many.ledger, "run")
    assert refused.value.record.have.endswith("run-11 (j12) and 18 more")


def test_tasks_that_begin_alike_are_told_apart() -> None:
    with pytest.raises(NotFound) as refused:
        find(world().ledger, "train.sh")
    assert refused.value.record.have == "shard, shard.merge"


def test_an_id_is_never_short_for_another_job() -> None:
    """`j1` may be a job that the ledger has forgotten: a script that waits for it must not wait for another."""
    made = World().nodes(1)
    for _ in range(12):
        made.job("j1x" if _ == 4 else "")
    del made.ledger.jobs["j1"]
    with pytest.raises(NotFound):
        find(made.ledger, "j1")


def test_nodes_by_their_beginning() -> None:
    assert find_node(["n1", "n12", "west"], "n1") == "n1"
    assert find_node(["n1", "n12", "west"], "w") == "west"
    for name, code in (("n", "E123"), ("x", "E120"), ("", "E120")):
        with pytest.raises(NotFound) as refused:
            find_node(["n1", "n12", "west"], name)
        assert refused.value.record.code == code


@pytest.mark.parametrize(
    ("kind", "typed", "expected"),
    [
        ("job", "", ["exp.1", "train", "j2", "j1"]),
        ("job", "t", ["train"]),
        ("job", "train.", ["train.fetch", "train.shard", "train.shard.merge", "train.gang"]),
        ("job", "j1.shard[", ["j1.shard[0]", "j1.shard[1]"]),
        ("job", "exp.1.m", ["exp.1.main"]),
        ("job", "zzz", []),
        ("node", "", ["n1"]),
        ("tenant", "", ["ann", "default"]),
    ],
)
def test_names_that_can_be_completed(kind: str, typed: str, expected: list[str]) -> None:
    made = World().nodes(1).graph("train", tasks=TASKS).job("exp.1").quota("ann", cpu=1)
    offered = names(made.ledger, kind, typed)
    assert [name for name in offered if typed != "train." or "[" not in name] == expected


@pytest.mark.parametrize(("name", "hint"), [("mine", "`poise show j1`"), ("mine.main", "`poise show j1.main`")])
def test_the_name_of_a_job_of_another_tenant_leads_to_its_id(name: str, hint: str) -> None:
    """An operator sees it listed; the name alone counts for its own tenant."""
    ledger = World().nodes(1).submit({"name": "mine", "run": "true"}, tenant="ann").ledger
    with pytest.raises(NotFound) as refused:
        find(ledger, name, bearer=Bearer("ops", Role.OPERATOR))
    assert refused.value.record.hint == hint
    with pytest.raises(NotFound) as refused:
        find(ledger, name, bearer=Bearer("bob", Role.SUBMITTER))
    assert "j1" not in str(refused.value.record)
