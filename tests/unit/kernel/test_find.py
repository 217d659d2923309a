"""Jobs and tasks by the names that people type."""

from typing import Any

import pytest

from poise.errors import NotFound
from poise.kernel.find import find, found_report
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
    ],
)
def test_what_is_not_there_is_told_with_what_was_meant(name: str, message: str, hint: str) -> None:
    with pytest.raises(NotFound) as refused:
        find(world().ledger, name)
    record = refused.value.record
    assert (record.code, record.message, record.hint) == ("E120", message, hint)


def test_a_report_shows_what_was_asked_for() -> None:
    made = world()
    report = found_report(made.ledger, find(made.ledger, "train.fetch"), made.now)
    assert [task.name for task in report.tasks] == ["fetch"]
    assert report.critical_path
