"""Ended jobs are removed, with the files that Poise keeps of them."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from poise.model.tenants import Role
from poise.testing import World
from poise.units import MINUTE
from unit.control.desk import Answer, Desk

FOLDERS = ("logs", "values", "meetings", "checkpoints")


@pytest.fixture
def desk(tmp_path: Path) -> Desk:
    """Of `home` j1 (done) and j2 (failed, a minute later), of `ann` j3 (cancelled); j4 runs. Each has output."""
    world = World().nodes(1, cpu=8).job("train-a").job("train-b", retry={"limit": 0}).round().start("j1", "j2")
    world.finish("j1").after("1m").finish("j2", outcome="failed").job("x", tenant="ann").cancel("j3").job("y").round()
    desk = Desk(world, tmp_path)
    desk.token("ann", "ann", Role.SUBMITTER)
    for job in world.ledger.jobs:
        for name in FOLDERS:
            folder = desk.home.root / name / job
            folder.mkdir(parents=True)
            (folder / "main.1.out").write_text("hello")
    return desk


def remove(desk: Desk, asked: Mapping[str, Any], who: str = "home") -> Answer:
    return desk.call("POST", "/v1/remove", dict(asked), who=who)


def kept(desk: Desk) -> list[str]:
    """Jobs that have their files."""
    folders = [sorted(path.name for path in (desk.home.root / name).iterdir()) for name in FOLDERS]
    assert all(folder == folders[0] for folder in folders)
    return folders[0]


def test_the_job_and_its_files_are_gone(desk: Desk) -> None:
    assert remove(desk, {"jobs": ["train-a"]}).value == {"removed": ["j1"]}
    assert kept(desk) == ["j2", "j3", "j4"]
    assert desk.call("GET", "/v1/jobs/j1").status == 404
    told = desk.call("GET", "/v1/audit?after=0&follow=false").body.decode()
    assert "removed j1 of default" in told


@pytest.mark.parametrize("jobs", [["j1", "j4"], ["j1", "nobody"], ["j1", "j2.main"], ["j1", "../../etc"]])
def test_what_is_refused_leaves_everything(desk: Desk, jobs: list[str]) -> None:
    assert remove(desk, {"jobs": jobs}).status in (404, 409)
    assert kept(desk) == ["j1", "j2", "j3", "j4"]
    assert list(desk.world.ledger.jobs) == ["j1", "j2", "j3", "j4"]


@pytest.mark.parametrize(
    ("asked", "removed"),
    [
        ({"all": True}, ["j1", "j2", "j3"]),
        ({"statuses": ["failed", "cancelled"]}, ["j2", "j3"]),
        ({"name": "train-*"}, ["j1", "j2"]),
        ({"older_than": MINUTE / 10**9 / 2}, ["j1"]),
        ({"older_than": "30s", "statuses": ["failed"]}, []),
        ({"all": True, "user": "nobody"}, []),
    ],
)
def test_a_filter_removes_all_ended_jobs_that_match(desk: Desk, asked: dict[str, Any], removed: list[str]) -> None:
    assert remove(desk, asked).value == {"removed": removed}
    assert list(desk.world.ledger.jobs) == [job for job in ("j1", "j2", "j3", "j4") if job not in removed]


def test_a_tenant_removes_jobs_of_its_own_only(desk: Desk) -> None:
    assert remove(desk, {"jobs": ["j1"]}, who="ann").status == 404
    assert remove(desk, {"all": True}, who="ann").value == {"removed": ["j3"]}
    assert kept(desk) == ["j1", "j2", "j4"]


@pytest.mark.parametrize("asked", [{}, {"jobs": ["j1"], "all": True}, {"older_than": "soon"}, {"statuses": ["over"]}])
def test_it_is_said_what_is_asked_wrongly(desk: Desk, asked: dict[str, Any]) -> None:
    assert remove(desk, asked).status == 422
    assert len(desk.world.ledger.jobs) == 4
