"""Sessions one after another in one script: each has its own gang and its own checkpoints."""

import json
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import pytest

pytest.importorskip("torch", reason="needs poise-scheduler[torch]")

from poise_train.restoring import listed
from train import gangs
from train.gangs import HERE, Ran, Workers, until

SCRIPT = HERE / "folds.py"
STEPS = {1: 16, 2: 24}
"""Of 128 samples, 16 in each step: two passes, and three."""


@pytest.fixture
def workers(tmp_path: Path) -> Iterator[Workers]:
    gang = Workers(tmp_path, SCRIPT)
    yield gang
    gang.end()


def folds(folder: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (folder / "out.folds").read_text().splitlines()]


def run(folder: Path, **env: str) -> Ran:
    return gangs.run(folder, SCRIPT, OUT=str(folder / "out"), **env)  # type: ignore[arg-type]  # no variable is `patience`


@cache
def undisturbed() -> list[Any]:
    """What each session comes to in a process of its own, that keeps nothing."""
    with TemporaryDirectory() as folder:
        done = run(Path(folder))
        assert done.returncode == 0, done.stderr
        return [fold["weights"] for fold in folds(Path(folder))]


def come_to_the_same(told: list[dict[str, Any]]) -> bool:
    return [fold["fold"] for fold in told] == [1, 2] and all(
        fold["steps"] == STEPS[fold["fold"]] and np.allclose(fold["weights"], weights, atol=1e-5)
        for fold, weights in zip(told, undisturbed(), strict=True)
    )


def test_each_session_of_a_script_goes_on_from_its_own_checkpoints(tmp_path: Path) -> None:
    checkpoints = tmp_path / "checkpoints"
    options = json.dumps({"every": 1})
    killed = run(tmp_path, POISE_CHECKPOINTS=str(checkpoints), OPTIONS=options, DIE="2 13")
    assert killed.returncode == -9, killed.stderr
    assert run(tmp_path, POISE_CHECKPOINTS=str(checkpoints), OPTIONS=options).returncode == 0
    _, *again = folds(tmp_path)
    assert come_to_the_same(again)
    first, second = again
    assert first["began"] == 16, "it is done"
    assert 1 <= second["began"] <= 13
    assert second["restored"].startswith(f"the checkpoint of step {second['began']}, of ")
    assert (max(listed(checkpoints)), max(listed(checkpoints / "session-2"))) == (16, 24)


def test_what_lies_in_a_folder_that_the_user_has_named_stays_there(tmp_path: Path) -> None:
    precious = tmp_path / "ours" / "sub" / "thesis.txt"
    precious.parent.mkdir(parents=True)
    precious.write_text("years of work")
    for job in ("j1", "j2"):
        named = {"POISE_CHECKPOINTS": str(tmp_path / "ours"), "POISE_UNIT": f"{job}.main-5", "POISE_EPOCH": "1"}
        done = run(tmp_path, **named)
        assert done.returncode == 0, done.stderr
    assert [fold["began"] for fold in folds(tmp_path)] == [0, 0, 16, 24], "the second job goes on from the first"
    assert precious.read_text() == "years of work"


def test_a_folder_is_used_again_after_a_job_that_was_tried_again(tmp_path: Path) -> None:
    """By other jobs, and by hand: their attempts are counted each for itself."""
    options = json.dumps({"checkpoint": str(tmp_path / "ours"), "epochs": 4})
    jobs = [{"POISE_UNIT": "j1.main-5", "POISE_EPOCH": "2"}, {"POISE_UNIT": "j1.main-9", "POISE_EPOCH": "1"}, {}]
    for job in jobs:
        done = run(tmp_path, OPTIONS=options, **job)
        assert done.returncode == 0, done.stderr
    late = run(tmp_path, OPTIONS=options, **jobs[0])
    assert late.returncode == 1
    assert "another training has begun in this folder of checkpoints" in late.stderr
    assert "another folder" in late.stderr


def test_sessions_that_name_one_folder_share_it(tmp_path: Path) -> None:
    """So a script can go on with what it has trained before."""
    done = run(tmp_path, OPTIONS=json.dumps({"checkpoint": str(tmp_path / "one")}))
    assert done.returncode == 0, done.stderr
    assert [fold["began"] for fold in folds(tmp_path)] == [0, 16]
    assert not (tmp_path / "one" / "session-2").exists()


def test_each_session_of_a_gang_has_all_its_workers(workers: Workers) -> None:
    workers.start("a", "b", orders=False)
    assert workers.wait("a", "b") == [0, 0], workers.said("a") + workers.said("b")
    assert come_to_the_same(folds(workers.folder))
    assert {world for _, _, world, _ in workers.steps("b")} == {2}


def test_a_gang_shrinks_in_its_second_session(workers: Workers) -> None:
    workers.options["pause"] = 0.05
    workers.start("a", "b", "c")
    until(lambda: workers.steps("c") and workers.steps("c")[-1][3] == 2)
    workers.become("a", "c")
    assert workers.wait("a", "b", "c") == [0, 143, 0], workers.said("a")
    assert come_to_the_same(folds(workers.folder))
    assert workers.steps("a")[-1][2:] == [2, 2]


@pytest.mark.parametrize("lost", [False, True])
def test_who_comes_in_the_second_session_has_what_the_first_came_to(workers: Workers, lost: bool) -> None:
    """To make the gang larger, or for a worker that was killed."""
    workers.options |= {"pause": 0.05, "lasting": 4}
    env = {"POISE_CHECKPOINTS": str(workers.folder / "checkpoints")}
    workers.start("a", "b", env=env)
    until(lambda: workers.steps("b") and workers.steps("b")[-1][3] == 2)
    if lost:
        workers.kill("b")
        workers.become("a", "c", env=env)
        names = ["a", "c"]
    else:
        workers.become("a", "b", "c", env=env)
        names = ["a", "b", "c"]
    workers.after("c", 1)
    workers.hurry()
    assert workers.wait(*names) == [0] * len(names), workers.said("c")
    assert come_to_the_same(folds(workers.folder))
    assert {fold for _, _, _, fold in workers.steps("c")} == {2}
    assert workers.steps("a")[-1][2] == len(names)


@pytest.mark.slow
@pytest.mark.parametrize("turn", range(3))
def test_each_session_under_torchrun_has_all_its_workers(tmp_path: Path, turn: int) -> None:
    """More than once: the second one used to race for what the first had left."""
    options = ("--standalone", "--nproc-per-node", "2", str(SCRIPT))
    done = gangs.run(tmp_path, "torch.distributed.run", *options, OUT=str(tmp_path / "out"))
    assert done.returncode == 0, done.stderr
    told = folds(tmp_path)
    assert come_to_the_same(told)
    assert [fold["world"] for fold in told] == [2, 2]
