"""Three changed lines: what a script sees of its session, alone and in gangs that change."""

import os
import signal
import threading
import time
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import msgspec
import numpy as np
import pytest
import torch
from torch import nn
from torch.utils.data import (
    BatchSampler,
    DataLoader,
    IterableDataset,
    RandomSampler,
    SequentialSampler,
    TensorDataset,
    WeightedRandomSampler,
)

import poise
from poise.model.training import Training
from poise.units import MILLISECOND
from poise_train.restoring import listed
from poise_train.session import REGROUP_SECONDS
from train.gangs import Workers, until

STEPS = 4 * 16
"""Of four passes over 1,000 samples in steps of 64."""


@pytest.fixture
def workers(tmp_path: Path) -> Iterator[Workers]:
    gang = Workers(tmp_path, batch=64, epochs=4, pause=0.01)
    yield gang
    gang.end()


@cache
def undisturbed() -> Any:
    """What one worker comes to alone."""
    with TemporaryDirectory() as folder:
        gang = Workers(Path(folder), batch=64, epochs=4)
        gang.start("a", env={"POISE_GANG_DIR": ""})
        assert gang.wait("a") == [0], gang.said("a")
        return gang.answers()[0]


def close_to_undisturbed(answer: Any) -> bool:
    """A sample more or less in one step would show in the second digit."""
    return answer["steps"] == STEPS and np.allclose(answer["weights"], undisturbed()["weights"], atol=2e-4)


def test_a_plain_script_learns() -> None:
    assert undisturbed()["accuracy"] > 0.8
    assert undisturbed() | {"weights": 0, "pid": 0, "accuracy": 0} == {
        "rank": 0, "world": 1, "steps": STEPS, "samples": 4000, "epoch": 4, "weights": 0, "pid": 0, "accuracy": 0,
        "routes": [""],
    }  # fmt: skip


def test_three_workers_come_to_what_one_comes_to(workers: Workers) -> None:
    workers.start("a", "b", "c", orders=False)
    assert workers.wait("a", "b", "c") == [0, 0, 0], workers.said("a")
    assert [answer["world"] for answer in workers.answers()] == [3, 3, 3]
    assert all(close_to_undisturbed(answer) for answer in workers.answers())


def test_a_gang_grows_and_shrinks_between_steps_and_comes_to_the_same(workers: Workers) -> None:
    workers.options["lasting"] = 6  # till all have come
    workers.start("a")
    workers.after("a", 5)
    workers.become("a", "b", "c", "d")
    workers.after("d", 15)
    workers.become("a", "d")
    assert workers.wait("b", "c") == [143, 143]
    workers.hurry()  # not before: in a hurry the last steps are made before anybody is told to leave
    assert workers.wait("a", "d") == [0, 0], workers.said("a")
    assert all(close_to_undisturbed(answer) for answer in workers.answers())
    sizes = [line[2] for line in workers.steps("a")]
    assert [size for size, before in zip(sizes, [0, *sizes], strict=False) if size != before] == [1, 4, 2]


def test_the_worker_that_leads_may_be_the_one_that_leaves(workers: Workers) -> None:
    workers.options["lasting"] = 6
    workers.start("a", "b")
    workers.after("a", 5)
    workers.become("b", "c")
    workers.after("c", 5)
    workers.hurry()
    assert workers.wait("a", "b", "c") == [143, 0, 0], workers.said("b")
    assert all(close_to_undisturbed(answer) for answer in workers.answers())


def test_what_is_left_of_a_gang_goes_on_from_memory(workers: Workers) -> None:
    workers.start("a", "b", "c")
    workers.after("a", 8)
    workers.kill("a")
    workers.become("b", "c")
    workers.after("b", 20)
    workers.kill("c")
    workers.become("b", "d")
    assert workers.wait("b", "d") == [0, 0], workers.said("b")
    assert all(close_to_undisturbed(answer) for answer in workers.answers())


def test_a_gang_on_two_nodes_adds_up_inside_them_first_and_comes_to_the_same(tmp_path: Path) -> None:
    gang = Workers(tmp_path, batch=64, epochs=4, pause=0.01, nodes=2)
    try:
        gang.start("a", "b", "c", "d")  # a and c are on a node, and b and d
        gang.after("a", 8)
        gang.kill("b")  # which leads the other node
        gang.become("a", "c", "d")
        gang.after("a", 20)
        gang.kill("a")
        gang.become("c", "d")
        assert gang.wait("c", "d") == [0, 0], gang.said("c") + gang.said("d")
        assert all(close_to_undisturbed(answer) for answer in gang.answers())
        assert [answer["routes"] for answer in gang.answers()] == [["levels", ""], ["levels", ""]]
    finally:
        gang.end()


def test_who_leads_after_another_tells_what_that_one_knew(workers: Workers, tmp_path: Path) -> None:
    """What was restored, and the newest checkpoint: before it has made one itself, whether it was there then or not."""
    workers.options |= {"checkpoint": str(tmp_path / "checkpoints"), "every": 1000}
    (tmp_path / "before").mkdir()
    before = Workers(tmp_path / "before", **workers.options)
    before.start("a")
    before.after("a", 5)
    before.ask_to_end("a")
    assert before.wait("a") == [143], before.said("a")
    [step] = listed(tmp_path / "checkpoints")

    workers.options["pause"] = 3.0  # for so long its first word can be read
    workers.start("b", "c")
    workers.after("c", step + 1)
    known = until(lambda: (told := _told(workers, "b")).checkpoint and told)
    assert (known.checkpoint.step, known.checkpoint.kept) == (step, 1)
    assert known.safe == 1_000_000 * 64 * step // 4000
    assert known.restored.startswith(f"the checkpoint of step {step}, of ")
    workers.kill("b")
    workers.become("c")
    until(lambda: _told(workers, "c").world == 1)
    now = _told(workers, "c")
    assert (now.restored, now.checkpoint, now.safe) == (known.restored, known.checkpoint, known.safe)

    workers.become("c", "d")
    until(lambda: _told(workers, "d").world == 2)
    until(lambda: _told(workers, "c").safe > now.safe)
    workers.kill("c")
    there = max(listed(tmp_path / "checkpoints"))
    workers.become("d")
    until(lambda: _told(workers, "d").world == 1)
    joined = _told(workers, "d")
    assert joined.checkpoint is not None
    assert (joined.checkpoint.step, joined.restored) == (there, known.restored)
    assert joined.safe == 1_000_000 * 64 * there // 4000
    workers.hurry()
    assert workers.wait("d") == [0], workers.said("d")


def _told(workers: Workers, name: str) -> Training:
    path = workers.folder / f"{name}.report"
    return msgspec.json.decode(path.read_bytes(), type=Training) if path.exists() else Training(step=0)


def test_who_is_alone_now_waits_for_nobody(tmp_path: Path) -> None:
    gang = Workers(tmp_path, batch=64, epochs=12, pause=0.01, slow=0.1)
    try:
        gang.start("a", "b")
        gang.after("a", 4)
        gang.become("a")
        gang.after("a", 100)
        told = until(lambda: (said := _told(gang, "a")).step >= 100 and said)
        assert 0 < told.compute <= told.step_time < 100 * MILLISECOND
    finally:
        gang.end()


def test_orders_that_come_while_a_gang_is_being_formed_are_followed(workers: Workers) -> None:
    workers.start("a", "b")
    workers.after("a", 5)
    workers.become("a", "b", "c")
    workers.kill("c")  # before it has met the others
    workers.become("a", "b")
    assert workers.wait("a", "b") == [0, 0], workers.said("a")
    assert all(close_to_undisturbed(answer) for answer in workers.answers())


def test_who_comes_when_training_is_over_leaves_as_if_it_had_been_there(workers: Workers) -> None:
    workers.start("a")
    assert workers.wait("a") == [0]
    workers.become("a", "b")
    assert workers.wait("b") == [0], workers.said("b")
    assert len(workers.answers()) == 1


def test_without_orders_a_lost_worker_ends_the_others_with_a_reason(workers: Workers) -> None:
    workers.options["regroup"] = 1.0
    workers.start("a", "b", orders=False)
    workers.after("a", 3)
    workers.kill("b")
    assert workers.wait("a") == [1]
    assert "a worker of the gang was lost" in workers.said("a")


@pytest.mark.parametrize("how", ["break", "exit"])
def test_who_leaves_training_alone_ends_the_others_with_a_reason(tmp_path: Path, how: str) -> None:
    gang = Workers(tmp_path, batch=64, epochs=4, pause=0.01, leaves=how)
    try:
        gang.start("a", "b", "c")
        began = time.monotonic()
        assert gang.wait("a", "b", "c") == [1, 0, 1], gang.said("a")
        assert "another worker has left training" in gang.said("a")
        assert "leave the loop on a condition that is equal on all workers" in gang.said("a")
        assert time.monotonic() - began < REGROUP_SECONDS  # nobody waits for orders that will not come
    finally:
        gang.end()


def test_asked_to_end_all_workers_end_after_the_same_step(workers: Workers, tmp_path: Path) -> None:
    workers.options |= {"checkpoint": str(tmp_path / "checkpoints"), "every": 1000}
    workers.start("a", "b")
    workers.after("a", 5)
    workers.ask_to_end("b")
    assert workers.wait("a", "b") == [143, 143]
    last = workers.steps("a")[-1][0]
    assert last == workers.steps("b")[-1][0]
    [step] = listed(tmp_path / "checkpoints")
    said = _told(workers, "a")
    assert said.checkpoint is not None, "its last word is of the checkpoint that it ended with"
    assert (said.step, said.checkpoint.step, said.safe) == (step, step, said.progress)
    assert step >= last


def test_who_waits_for_a_worker_that_hangs_is_not_taken_for_it(workers: Workers) -> None:
    def pace(name: str) -> int:
        return msgspec.json.decode((workers.folder / f"{name}.report").read_bytes(), type=Training).step_time

    workers.options |= {"long": 0.5, "epochs": 20}
    workers.start("a", "b")
    workers.after("a", 100)
    os.kill(workers.processes["b"].pid or 0, signal.SIGSTOP)
    until(lambda: pace("a") == 0)
    os.kill(workers.processes["b"].pid or 0, signal.SIGCONT)
    assert workers.wait("a", "b") == [0, 0], "it goes on"


def test_worker_0_tells_how_it_gets_on(workers: Workers) -> None:
    workers.start("a", "b")
    assert workers.wait("a", "b") == [0, 0]
    told = msgspec.json.decode((workers.folder / "a.report").read_bytes(), type=Training)
    assert (told.step, told.samples, told.progress, told.world) == (STEPS, 4000, 1_000_000, 2)
    assert (told.batch, told.accumulation, told.effective, told.resizes) == (32, 1, 64, True)
    assert told.goodput > 0
    last = [workers.steps(name)[-1] for name in ("a", "b")]
    assert told.loss == pytest.approx(sum(line[4] for line in last) / 2, rel=1e-5), "of all workers"
    weights = 64 * 32 + 32 + 32 * 10 + 10
    assert told.sent == told.plain == 4 * weights, "of one worker in one step: a ring of two sends each gradient once"


def test_a_session_that_cannot_begin_leaves_the_process_as_it_was(tmp_path: Path) -> None:
    model, optimizer, data = _line()
    (tmp_path / "file").write_text("")
    before = signal.getsignal(signal.SIGTERM)
    threads = threading.active_count()
    with pytest.raises(poise.Misused), poise.Session(model, optimizer, data, checkpoint=tmp_path / "file"):
        pass
    assert signal.getsignal(signal.SIGTERM) is before
    assert threading.active_count() == threads
    with poise.Session(model, optimizer, data, batch=4) as run:
        assert len(_train(run, model)) == 3


def test_a_worker_that_cannot_begin_ends_with_its_own_error(workers: Workers) -> None:
    (workers.folder / "file").write_text("")
    workers.options |= {"checkpoint": str(workers.folder / "file"), "regroup": 1.0}
    workers.start("a", "b", orders=False)
    assert workers.wait("a", "b") == [1, 1]
    assert "checkpoints cannot be kept there" in workers.said("a")
    assert "a worker of the gang was lost" in workers.said("b")
    assert "terminate called" not in workers.said("a") + workers.said("b")


# --- one process: what a script may do ---------------------------------------------------------------------------


def _line(samples: int = 12) -> tuple[nn.Module, torch.optim.Optimizer, TensorDataset]:
    model = nn.Linear(1, 1)
    inputs = torch.arange(float(samples)).unsqueeze(1)
    return model, torch.optim.SGD(model.parameters(), lr=1e-3), TensorDataset(inputs, 2 * inputs)


def _train(run: poise.Session, model: nn.Module) -> list[int]:
    """How many samples each batch had."""
    sizes = []
    for x, y in run:
        run.step(nn.functional.mse_loss(model(x), y))
        sizes.append(len(x))
    return sizes


def test_micro_batches_are_accumulated_into_steps() -> None:
    model, optimizer, data = _line()
    with poise.Session(model, optimizer, data, batch=6, micro=4) as run:
        assert _train(run, model) == [3, 3, 3, 3]
        assert (run.steps, run.samples) == (2, 12)


def test_accumulated_gradients_are_those_of_the_whole_step() -> None:
    torch.manual_seed(1)
    weights = []
    for micro in (0, 1, 5):
        model, optimizer, data = _line()
        nn.init.constant_(model.weight, 0.5)  # type: ignore[arg-type]
        nn.init.constant_(model.bias, 0.1)  # type: ignore[arg-type]
        with poise.Session(model, optimizer, data, batch=8, micro=micro) as run:
            _train(run, model)
        weights.append(next(model.parameters()).item())
    assert weights[1:] == pytest.approx(weights[:1] * 2, rel=1e-5)


def test_a_data_loader_says_the_batch_and_the_order() -> None:
    model, optimizer, data = _line()
    with poise.Session(model, optimizer, DataLoader(data, batch_size=5)) as run:
        assert [x.flatten().tolist() for x, y in _and_step(run, model)] == [
            [0, 1, 2, 3, 4], [5, 6, 7, 8, 9], [10, 11],
        ]  # fmt: skip
    with poise.Session(model, optimizer, DataLoader(data, batch_size=5, shuffle=True)) as run:
        seen = torch.cat([x for x, y in _and_step(run, model)]).flatten().tolist()
    assert seen != sorted(seen) == list(range(12))


def _and_step(run: poise.Session, model: nn.Module) -> Iterator[Any]:
    for x, y in run:
        yield x, y
        run.step(nn.functional.mse_loss(model(x), y))


def test_passes_may_be_made_one_by_one() -> None:
    model, optimizer, data = _line()
    with poise.Session(model, optimizer, data, batch=4) as run:
        assert [(epoch, len(_train(run, model))) for epoch in run.epochs(3)] == [(0, 3), (1, 3), (2, 3)]


def test_a_loss_may_be_a_function() -> None:
    model, optimizer, data = _line()
    with poise.Session(model, optimizer, data, batch=4) as run:
        for x, y in run:
            run.step(lambda x=x, y=y: nn.functional.mse_loss(model(x), y))
        assert run.steps == 3


def test_a_scheduler_steps_once_per_step_and_gradients_are_clipped() -> None:
    model, optimizer, data = _line()
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 1, 0.5)
    with poise.Session(model, optimizer, data, batch=6, micro=2, scheduler=scheduler, clip=1e-9) as run:
        before = [one.clone() for one in model.parameters()]
        _train(run, model)
    assert optimizer.param_groups[0]["lr"] == pytest.approx(1e-3 / 4)
    assert all(torch.allclose(a, b) for a, b in zip(before, model.parameters(), strict=True))


def test_a_scheduler_that_goes_by_the_loss_is_given_that_of_each_pass() -> None:
    model, optimizer, data = _line()
    scheduler = torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer, factor=0.5, patience=0, threshold=0.999)
    seen: list[float] = []
    with poise.Session(model, optimizer, data, batch=5, epochs=2, scheduler=scheduler) as run:
        for epoch in run.epochs():
            for x, y in run:
                loss = nn.functional.mse_loss(model(x), y)
                seen.append(float(loss.detach()) * len(x))
                run.step(loss)
            assert run.samples == 12 * (epoch + 1)
            assert scheduler.best == pytest.approx(sum(seen[:3]) / 12)
            assert optimizer.param_groups[0]["lr"] == pytest.approx(1e-3 / 2**epoch)


def test_workers_come_to_one_learning_rate_by_the_loss(workers: Workers, tmp_path: Path) -> None:
    (tmp_path / "alone").mkdir()
    workers.options |= {"plateau": True, "lasting": 6}
    alone = Workers(tmp_path / "alone", **workers.options | {"pause": 0.0})
    alone.start("a", env={"POISE_GANG_DIR": ""})
    workers.start("a", "b")
    workers.after("a", 21)  # in the second pass
    workers.become("a", "b", "c")
    workers.after("c", 21)
    workers.hurry()
    assert workers.wait("a", "b", "c") == [0, 0, 0], workers.said("a")
    assert alone.wait("a") == [0], alone.said("a")
    [whole] = alone.answers()
    assert [answer["best"] for answer in workers.answers()] == [pytest.approx(whole["best"], rel=1e-4)] * 3


@pytest.mark.parametrize("mode", ["max", ""])
def test_a_scheduler_that_cannot_be_stepped_is_refused_at_once(mode: Any) -> None:
    model, optimizer, data = _line()
    scheduler: Any = torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer, mode) if mode else model
    with pytest.raises(poise.Misused) as refused:
        poise.Session(model, optimizer, data, scheduler=scheduler)
    assert refused.value.record.field == "scheduler"


FOUR = TensorDataset(torch.zeros(4, 1))


class _Stream(IterableDataset[Any]):
    def __iter__(self) -> Iterator[Any]:
        yield torch.zeros(1)


@pytest.mark.parametrize(
    ("data", "options", "what"),
    [
        (_Stream(), {}, "stream"),
        (TensorDataset(torch.zeros(0, 1)), {}, "no data"),
        (FOUR, {"batch": -1}, "`batch` is out of range"),
        (FOUR, {"epochs": 1.5}, "`epochs` is out of range"),
        (FOUR, {"scaling": "cubic"}, "scaling"),
        (DataLoader(FOUR, sampler=WeightedRandomSampler([1.0] * 4, 4)), {}, "an order and in batches of its own"),
        (DataLoader(FOUR, batch_size=None), {}, "batch_size=None"),
        (DataLoader(FOUR, batch_sampler=BatchSampler(SequentialSampler(range(2)), 2, True)), {}, "batch_sampler="),
        (DataLoader(FOUR, sampler=RandomSampler(FOUR, replacement=True)), {}, "replacement=True"),
        (DataLoader(FOUR, sampler=RandomSampler(FOUR, num_samples=2)), {}, "num_samples=2"),
        (FOUR, {"seed": -1}, "`seed` is out of range"),
        (FOUR, {"seed": None}, "`seed` is out of range"),
        (FOUR, {"clip": -1.0}, "`clip` is out of range"),
        (FOUR, {"clip": float("nan")}, "`clip` is out of range"),
        (FOUR, {"clip": "1"}, "`clip` is out of range"),
        (FOUR, {"shuffle": "no"}, "`shuffle` is of another kind"),
        (FOUR, {"every": None}, "`every` is of another kind"),
        (FOUR, {"every": 2.5}, "`every` is of another kind"),
        (FOUR, {"checkpoint": 5}, "`checkpoint` is of another kind"),
        (FOUR, {"phases": "auto"}, "`phases` is of another kind"),
        (FOUR, {"exchange": None}, "`exchange` is of another kind"),
        (FOUR, {"also": [nn.Linear(1, 1)]}, "`also` is of another kind"),
        (FOUR, {"also": {"x": 3}}, "no state to keep"),
        (FOUR, {"also": {"model": nn.Linear(1, 1)}}, "this name is taken"),
        (FOUR, {"also": {"place": nn.Linear(1, 1)}}, "this name is taken"),
    ],
)
def test_what_it_cannot_follow_is_told_at_once(data: Any, options: dict[str, Any], what: str) -> None:
    model, optimizer, _ = _line()
    with pytest.raises(poise.Misused, match=what):
        poise.Session(model, optimizer, data, **options)


def test_a_model_and_an_optimizer_are_what_they_are_called() -> None:
    model, optimizer, data = _line()
    others = nn.Linear(1, 1)
    for one, other, what in (
        (None, optimizer, "`model` is of another kind"),
        (model, None, "`optimizer` is of another kind"),
        (optimizer, model, "`model` is of another kind"),
        (model, torch.optim.LBFGS(model.parameters()), "works out gradients itself"),
        (model, torch.optim.SGD([*model.parameters(), *others.parameters()], lr=0.1), "2 of 4 are of neither"),
        (nn.ReLU(), torch.optim.SGD([nn.Parameter(torch.zeros(1))], lr=0.1), "1 of 1 are of neither"),
    ):
        with pytest.raises(poise.Misused, match=what):
            poise.Session(one, other, data)


@pytest.mark.parametrize(
    ("loss", "what"),
    [
        (1.0, "`loss` is of another kind"),
        (None, "`loss` is of another kind"),
        (torch.zeros(2, requires_grad=True), "no single number"),
        (torch.zeros(()), "this loss has no gradient"),
    ],
)
def test_a_loss_that_nothing_can_be_learned_from_is_told(loss: Any, what: str) -> None:
    model, optimizer, data = _line()
    with poise.Session(model, optimizer, data) as run, pytest.raises(poise.Misused, match=what):
        next(iter(run))
        run.step(loss)


def test_what_is_left_over_from_a_plain_loop_is_told() -> None:
    model, optimizer, data = _line()
    run = poise.Session(model, optimizer, data, batch=6, micro=2)
    with pytest.raises(poise.Misused, match="training has not begun"):
        next(iter(run))
    with run, pytest.raises(poise.Misused, match="gradients were cleared"):
        for x, y in run:
            optimizer.zero_grad()
            run.step((model(x) - y).square().mean())
    model, optimizer, data = _line()
    with (
        poise.Session(model, optimizer, data) as run,
        pytest.raises(poise.Misused, match="the session steps the optimizer"),
    ):
        for x, y in run:
            run.step((model(x) - y).square().mean())
            optimizer.step()
    optimizer.step()  # the session is over
    with poise.Session(model, optimizer, data, batch=6) as run:  # one micro-batch a step: nothing is lost
        for x, y in run:
            optimizer.zero_grad()
            run.step((model(x) - y).square().mean())


def test_a_last_batch_that_is_not_full_is_dropped_where_the_loader_drops_it() -> None:
    model, optimizer, data = _line(10)
    with poise.Session(model, optimizer, DataLoader(data, batch_size=4, drop_last=True), epochs=2) as run:
        assert _train(run, model) == [4, 4, 4, 4]
    assert run.training().progress == 1_000_000


@pytest.mark.parametrize(
    ("changed", "what"), [({"seed": 1}, "seed 0"), ({"shuffle": False}, "shuffle 1"), ({"samples": 9}, "samples 12")]
)
def test_a_pass_is_not_gone_on_with_in_another_order(tmp_path: Path, changed: dict[str, Any], what: str) -> None:
    model, optimizer, data = _line()
    options: dict[str, Any] = {"batch": 4, "epochs": 2, "checkpoint": tmp_path, "every": 1}
    with pytest.raises(ZeroDivisionError), poise.Session(model, optimizer, data, **options) as run:
        for x, y in run:
            run.step((model(x) - y).square().mean())
            if run.steps == 2:
                raise ZeroDivisionError
    options["every"] = 100
    model, optimizer, data = _line(changed.pop("samples", 12))
    with (
        pytest.raises(poise.Misused, match=f"started in another order(.|\n)*need: {what}"),
        poise.Session(model, optimizer, data, **options, **changed),
    ):
        pass


def test_another_optimizer_is_told_before_it_steps(tmp_path: Path) -> None:
    model, optimizer, data = _line()
    with poise.Session(model, optimizer, data, checkpoint=tmp_path) as run:
        _train(run, model)
    other = torch.optim.Adam(model.parameters())
    with (
        pytest.raises(poise.Misused, match=r"another model or optimizer.*Adam\nneed: SGD"),
        poise.Session(model, other, data, checkpoint=tmp_path, epochs=2),
    ):
        pass


def test_sparse_gradients_are_looked_at_as_well() -> None:
    model = nn.Embedding(10, 1, sparse=True)
    data = TensorDataset(torch.arange(10))
    with poise.Session(model, torch.optim.SGD(model.parameters(), lr=1.0), data, batch=5) as run:
        for (x,) in run:
            run.step(model(x).mean())
    assert run.steps == 2


def test_a_loop_that_forgets_to_step_or_steps_twice_is_told() -> None:
    model, optimizer, data = _line()
    with poise.Session(model, optimizer, data, batch=4) as run, pytest.raises(poise.Misused, match="no step was made"):
        for _ in run:
            pass
    with poise.Session(model, optimizer, data, batch=4) as run, pytest.raises(poise.Misused, match="once for each"):
        for x, y in run:
            run.step(nn.functional.mse_loss(model(x), y))
            run.step(nn.functional.mse_loss(model(x), y))
    with poise.Session(model, optimizer, data, batch=4) as run, pytest.raises(poise.Misused, match="no single number"):
        for x, y in run:
            run.step((model(x) - y) ** 2)
