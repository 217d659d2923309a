"""A session and its checkpoints: killed, resized and asked to end, training comes to where it would have come."""

import errno
import json
import os
import threading
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch", reason="needs poise-scheduler[torch]")
pytest.importorskip("sklearn", reason="needs poise-scheduler[demo]")


import torch

from poise.errors import Fault, Misused, NotFound
from poise.units import MINUTE, SECOND
from poise_train import Session, load, pieces, publishing
from poise_train.checkpoints import Checkpoints
from poise_train.keeping import Keeping
from poise_train.pieces import shard_file
from poise_train.policy.checkpoints import LEAST, Keep
from poise_train.restoring import folder_of, listed

from . import keeping
from .gangs import run

torch.set_num_threads(1)


@pytest.fixture(autouse=True)
def alone(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("POISE_GANG_DIR", "POISE_CHECKPOINTS", "POISE_EPOCH", "POISE_REPORT"):
        monkeypatch.delenv(name, raising=False)


def test_killed_resized_and_asked_to_end_it_comes_to_the_same(tmp_path: Path) -> None:
    done = run(tmp_path, keeping.__file__, str(tmp_path))
    assert done.returncode == 0, done.stderr
    killed, ended, finished = json.loads((tmp_path / "ended").read_text())
    assert (killed, ended, finished) == ([-9, -9], [143, 143, 143], [0])
    undisturbed = keeping.train()
    alone = json.loads((tmp_path / "done3.0").read_text())
    # the gang that was asked to end saved after the step in which all had heard of it
    first = keeping.ENDED_IN + 1
    assert alone["began"][:2] == [first, first * keeping.BATCH - 64 + (1797 % 64)]
    assert alone["restored"].startswith(f"the checkpoint of step {first}, of ")
    assert "was passed over" not in alone["restored"]
    assert alone["ended"] == [*undisturbed["ended"][:3], 1_000_000]
    assert alone["saved"] == [undisturbed["ended"][0], 2]
    for step, loss in alone["losses"].items():
        assert loss == pytest.approx(undisturbed["losses"][int(step)], rel=1e-3)
    for one, other in zip(alone["weights"], undisturbed["weights"], strict=True):
        assert torch.allclose(torch.tensor(one), torch.tensor(other), atol=1e-4)
    past = load(tmp_path / "checkpoints").state["past"]
    assert (past["failures"], past["parted"]) == (1, True)  # it was killed once, and asked to end once
    assert past["worked"] > 0


def test_what_is_done_is_not_done_again_and_that_is_said(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    first = keeping.train(checkpoint=tmp_path)
    assert capsys.readouterr().err == ""
    again = keeping.train(checkpoint=tmp_path)
    said = capsys.readouterr().err
    assert said.startswith(
        "poise: this training is done: 2 passes were made, in 58 steps (the checkpoint of step 58, of "
    )
    assert "hint: `epochs=`" in said
    assert again["losses"] == {}
    assert again["weights"] == first["weights"]
    assert again["ended"] == [*first["ended"][:3], 1_000_000]


def test_without_a_folder_none_are_made(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert keeping.train()["saved"] == []
    assert list(tmp_path.iterdir()) == []


def test_a_score_and_a_time_are_followed(tmp_path: Path) -> None:
    done = keeping.train(checkpoint=tmp_path, every=20, keep=Keep(last=1, best=0, every=20))
    assert listed(tmp_path) == [20, 40, done["ended"][0]]


def test_how_often_follows_from_cost_and_failures(tmp_path: Path) -> None:
    given = Keeping(tmp_path, Keep(), "5m")
    assert given.every == 5 * MINUTE
    found = Keeping(tmp_path, Keep(), "")
    found.open(0, 1, 0, 0)
    assert found.every == LEAST  # nothing is known of what one costs, and the first tells
    assert not found.due(1)
    found.save(lambda: {"weights": torch.zeros(10)}, step=1, progress=0, parting=False)
    found._stall = 10 * LEAST
    often = found.every
    for _ in range(1000):
        found.lost()
    assert LEAST < found.every < often
    found.close()


def test_before_the_first_that_is_due_some_are_made_early(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What fails before the first one would lose all of its work."""
    moment = 0

    def saves(found: Keeping, steps: range) -> list[int]:
        """At which of these steps, of a second each, one is due."""
        nonlocal moment
        due = []
        for step in steps:
            moment += SECOND
            if found.due(step):
                due.append(step)
                found.save(lambda: {"weights": torch.zeros(1)}, step=step, progress=0, parting=False)
        return due

    monkeypatch.setattr("poise_train.keeping.perf_counter_ns", lambda: moment)
    first = Keeping(tmp_path, Keep(), 300)
    first.open(0, 1, 0, 1)
    assert saves(first, range(1, 700)) == [10, 20, 40, 80, 160, 300, 600]
    first.close()
    again = Keeping(tmp_path, Keep(), "5m")
    again.open(0, 1, 1, 1)
    assert again.restore() is not None
    assert saves(again, range(601, 1000)) == [900], "half of its work is not lost"
    again.close()


def test_what_a_checkpoint_adds_to_the_steps_beside_it_is_published(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    going_on = threading.Event()
    real = pieces.write

    def slow(*args: Any) -> Any:
        assert going_on.wait(60)
        return real(*args)

    monkeypatch.setattr(publishing, "write", slow)
    found = Keeping(tmp_path, Keep(), 1)
    found.open(0, 1, 0, 1)
    found.stepped(9.0, [1.0])
    found.save(lambda: {"weights": torch.zeros(10)}, step=1, progress=0, parting=False)
    for seconds in (1.25, 1.5, 0.5):
        found.stepped(seconds, [1.0, 1.0, 5.0])
    assert found.said() is None
    going_on.set()
    found.close()
    found.stepped(2.0, [1.0])  # it ended meanwhile
    found.stepped(9.0, [1.0])
    said = found.said()
    assert said is not None
    assert said.slowed == 0.75 * SECOND, "of the steps that are known when it is published"
    assert said.stall < said.slowed


@pytest.mark.parametrize("named", [True, False])
def test_a_disk_that_stays_full_ends_training_with_an_error_where_its_script_keeps_checkpoints(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], named: bool
) -> None:
    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(publishing, "write", full)
    monkeypatch.setenv("POISE_CHECKPOINTS", str(tmp_path))
    model, optimizer, data = keeping.parts()
    run = Session(model, optimizer, data, batch=600, checkpoint=tmp_path if named else None)

    def train() -> None:
        with run:
            for images, labels in run:
                run.step(torch.nn.functional.cross_entropy(model(images), labels))

    if named:
        with pytest.raises(Fault, match="its last checkpoint could not be written") as told:
            train()
        record = told.value.record
        assert (record.code, record.need, record.have) == ("E219", "the checkpoint of step 3", "the newest one is none")
        assert record.hint == f"df -h {tmp_path}"
    else:
        train()
    assert "the checkpoint of step 3 was not written: No space left" in capsys.readouterr().err
    assert run.steps == 3


def test_weights_that_are_not_finite_end_training_and_replace_no_checkpoint(tmp_path: Path) -> None:
    model, optimizer, data = keeping.parts()
    run = Session(model, optimizer, data, batch=600, epochs=4, checkpoint=tmp_path, every=2)
    with pytest.raises(Fault, match="the weights are not finite") as told, run:
        for images, labels in run:
            loss = torch.nn.functional.cross_entropy(model(images), labels)
            run.step(loss * float("nan") if run.steps == 4 else loss)
    record = told.value.record
    assert (record.code, record.field) == ("E220", "step 6") and "4 of 4 tensors" in record.have
    assert record.need == "finite weights, as in the checkpoint of step 4"
    assert run.steps == 6 and max(listed(tmp_path)) == 4
    assert all(one.isfinite().all() for one in load(tmp_path).state["model"].values())


def test_a_frozen_mask_may_be_infinite(tmp_path: Path) -> None:
    model, optimizer, data = keeping.parts()
    model.register_buffer("mask", torch.full((2,), -torch.inf))
    frozen = torch.nn.Parameter(torch.full((2,), torch.inf), requires_grad=False)
    model.register_parameter("frozen", frozen)
    optimizer.add_param_group({"params": [frozen]})
    with Session(model, optimizer, data, batch=600, checkpoint=tmp_path) as run:
        for images, labels in run:
            run.step(torch.nn.functional.cross_entropy(model(images), labels))
    assert load(tmp_path).step == 3


def test_objects_that_only_the_checkpoint_or_only_the_session_has_are_reported(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def train(epochs: int, also: str = "", *, scheduled: bool = False) -> str:
        model, optimizer, data = keeping.parts()
        scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 40) if scheduled else None
        others = {also: torch.nn.Linear(2, 2)} if also else None
        options: dict[str, Any] = {"batch": 600, "epochs": epochs, "checkpoint": tmp_path, "also": others}
        with Session(model, optimizer, data, scheduler=scheduler, **options) as run:
            for images, labels in run:
                run.step(torch.nn.functional.cross_entropy(model(images), labels))
            told = run.training().restored
        return told + capsys.readouterr().err

    assert "`" not in train(1, "ema")
    assert "`" not in train(2, "ema"), "both have it"
    told = train(3, scheduled=True)
    for part in ("it has no state of `scheduler`", "its `ema` is not used, and later ones lack it"):
        assert told.count(part) == 2, "in `poise show` and on standard error"
    assert "its `scheduler` is not used" in train(4)


def test_damaged_checkpoints_are_told(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    keeping.train(checkpoint=tmp_path, every=20)
    capsys.readouterr()

    def damage(step: int) -> None:
        shard = folder_of(tmp_path, step) / shard_file(0)
        shard.write_bytes(shard.read_bytes()[:-1])

    damage(58)
    keeping.train(checkpoint=tmp_path, every=20)
    told = capsys.readouterr().err
    assert told.startswith("poise: training goes on from the checkpoint of step 40, of ")
    assert "that of step 58 was passed over: " in told
    for step in listed(tmp_path):
        damage(step)
    began = keeping.train(checkpoint=tmp_path, every=20)
    assert (
        "poise: training begins anew: no checkpoint was restored; that of step 58 was passed" in capsys.readouterr().err
    )
    assert began["restored"].startswith("no checkpoint was restored; that of step 58 was passed over: ")


@pytest.mark.parametrize("every", [-1, "soon", "5 parsecs"])
def test_an_interval_that_is_none_is_refused(tmp_path: Path, every: Any) -> None:
    model, optimizer, data = keeping.parts()
    with pytest.raises(Misused) as refused:
        Session(model, optimizer, data, checkpoint=tmp_path, every=every)
    assert refused.value.record.field == "every"


def test_a_folder_that_cannot_be_used_is_refused(tmp_path: Path) -> None:
    model, optimizer, data = keeping.parts()
    (tmp_path / "file").write_text("")
    for name in ("file", "file/in/it"):
        with pytest.raises(Misused) as told, Session(model, optimizer, data, checkpoint=tmp_path / name):
            pass
        assert told.value.record.message == "checkpoints cannot be kept there: it is no folder"
        assert told.value.record.hint == 'poise.Session(..., checkpoint="another folder")'
    other = Checkpoints(tmp_path / "other")
    other.save({"weights": torch.zeros(3)}, step=1)
    other.close()
    with pytest.raises(Misused), Session(model, optimizer, data, checkpoint=tmp_path / "other"):
        pass


@pytest.mark.parametrize(("number", "hint"), [(errno.EROFS, "poise.Session("), (errno.ENOSPC, "df -h ")])
def test_what_can_be_done_about_a_folder_that_cannot_be_made_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int, hint: str
) -> None:
    def refused(path: Path, **_: Any) -> None:
        raise OSError(number, os.strerror(number), str(path))

    model, optimizer, data = keeping.parts()
    monkeypatch.setattr(Path, "mkdir", refused)
    monkeypatch.setenv("POISE_CHECKPOINTS", str(tmp_path / "one"))
    with pytest.raises(Misused) as told, Session(model, optimizer, data):
        pass
    assert os.strerror(number) in str(told.value)
    assert told.value.record.field == "POISE_CHECKPOINTS"
    assert told.value.record.hint.startswith(hint)


def test_a_checkpoint_of_another_model_is_refused(tmp_path: Path) -> None:
    keeping.train(checkpoint=tmp_path)
    _, _, data = keeping.parts()
    other = torch.nn.Linear(64, 10)
    with (
        pytest.raises(Misused) as refused,
        Session(other, torch.optim.Adam(other.parameters()), data, checkpoint=tmp_path),
    ):
        pass
    assert "Missing key" in refused.value.record.have or "Unexpected key" in refused.value.record.have


def test_what_is_drawn_at_random_goes_on_where_it_was(tmp_path: Path) -> None:
    """Alone and in a gang of two, dropout and all: the weights are those of who was not disturbed."""
    whole = keeping.draws_on(tmp_path / "whole", seed=1)
    assert keeping.draws_on(tmp_path / "parts", seed=1, until=9) != whole
    assert keeping.draws_on(tmp_path / "parts", seed=2) == whole
    assert keeping.draws_on(tmp_path / "others", seed=2) != whole
    done = run(tmp_path, keeping.__file__, str(tmp_path), "drawn")
    assert done.returncode == 0, done.stderr
    whole, again = (json.loads((tmp_path / f"drawn{epoch}.0").read_text()) for epoch in (1, 3))
    assert again == whole


def test_the_best_by_its_score_stays(tmp_path: Path) -> None:
    model, optimizer, data = keeping.parts()
    scores = iter([0.3, 0.9, 0.5, 0.1])
    keep = Keep(last=1, best=1)
    with Session(model, optimizer, data, batch=600, epochs=4, checkpoint=tmp_path, every=1000, keep=keep) as run:
        for _ in run.epochs():
            for images, labels in run:
                run.step(torch.nn.functional.cross_entropy(model(images), labels))
            run.score(next(scores))
        with pytest.raises(Misused, match="score"):
            run.score(float("nan"))
    assert listed(tmp_path) == [7, 12]  # scored after step 6, and the last
    assert [load(tmp_path, step).score for step in (7, 12)] == [0.9, 0.1]
    model.load_state_dict(load(str(tmp_path), "best").state["model"])
    assert load(str(tmp_path), "best").step == 7
    shard = folder_of(tmp_path, 7) / shard_file(0)
    shard.write_bytes(shard.read_bytes()[:-1])
    assert load(tmp_path, "best").step == 12, "the best that is whole"
    assert "that of step 7 was passed over" in load(tmp_path, "best").note


@pytest.mark.parametrize("which", ["best", "worst", 5])
def test_a_checkpoint_that_is_not_there_is_told(tmp_path: Path, which: Any) -> None:
    with pytest.raises(NotFound):
        load(tmp_path, which)
    keeping.train(checkpoint=tmp_path)
    with pytest.raises(NotFound) as refused:
        load(tmp_path, which)
    assert refused.value.record.hint
    assert ("run.score" in refused.value.record.hint) == (which == "best")


def test_a_plan_for_the_learning_rate_that_is_too_short_is_told(tmp_path: Path) -> None:
    """Restored with more epochs, before a step is made; and else where it ends."""

    def run(epochs: int, steps: int, folder: Path) -> None:
        model, optimizer, data = keeping.parts()
        scheduler = torch.optim.lr_scheduler.OneCycleLR(optimizer, 0.1, total_steps=steps)
        with Session(model, optimizer, data, scheduler=scheduler, batch=600, epochs=epochs, checkpoint=folder) as run:
            for images, labels in run:
                run.step(torch.nn.functional.cross_entropy(model(images), labels))

    run(1, 3, tmp_path / "one")
    with pytest.raises(Misused, match="a plan for fewer steps") as refused:
        run(2, 6, tmp_path / "one")
    assert (refused.value.record.need, refused.value.record.have) == ("6 steps", "3 steps")
    with pytest.raises(Misused, match="was made for fewer steps") as refused:
        run(2, 3, tmp_path / "other")
    assert refused.value.record.need == "6 steps"


def test_a_learning_rate_that_follows_the_loss_goes_on_within_a_pass(tmp_path: Path) -> None:
    """Given up in the middle of the second pass and gone on with, it has the mean loss of that whole pass."""

    def best(folder: Path, until: int) -> float:
        model, optimizer, data = keeping.parts()
        scheduler = torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer)
        options: dict[str, Any] = {"batch": 600, "epochs": 2, "checkpoint": folder, "every": 1}
        with Session(model, optimizer, data, scheduler=scheduler, **options) as run:
            for images, labels in run:
                run.step(torch.nn.functional.cross_entropy(model(images), labels))
                if run.steps == until:
                    break
        return float(scheduler.best)

    whole = best(tmp_path / "whole", -1)
    assert best(tmp_path / "parts", 4) != whole
    assert best(tmp_path / "parts", -1) == pytest.approx(whole, rel=1e-5)


@pytest.mark.parametrize("wrong", [{"keep": 3}, {"memory": "2GiB"}])
def test_what_is_of_another_type_is_refused_at_once(wrong: dict[str, Any]) -> None:
    model, optimizer, data = keeping.parts()
    with pytest.raises(Misused) as refused:
        Session(model, optimizer, data, **wrong)
    [(name, value)] = wrong.items()
    assert refused.value.record.field == name
    assert f"`{name}`" in str(refused.value)
    assert repr(value) in str(refused.value)
    assert [note.split(":")[0] for note in refused.value.__notes__] == ["need", "hint"]
