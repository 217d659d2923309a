"""A real training of digits goes through its phases, and goes on in its phase after a restart."""

import io
import json
import math
import time
from functools import cache
from pathlib import Path
from typing import Any

import msgspec
import pytest
import torch
from sklearn.datasets import load_digits
from torch import nn
from torch.nn import functional
from torch.utils.data import TensorDataset

import poise
from poise.model.training import REPORT, Phase, Training
from poise_train.model.phases import Pace, PhaseRules
from poise_train.trees import Taken, put_together
from poise_train.watch import Watch, norm_of
from train.gangs import HERE, Workers

PASSES, SAMPLES, BATCH = 12, 1600, 64
STEPS = PASSES * SAMPLES // BATCH


class Digits:
    """A small network on digits, from one seed, and its session."""

    def __init__(self, **options: Any) -> None:
        torch.set_num_threads(1)
        torch.manual_seed(0)
        read = load_digits()
        inputs = torch.tensor(read.data[:SAMPLES] / 16, dtype=torch.float32)
        self.data = TensorDataset(inputs, torch.tensor(read.target[:SAMPLES]))
        self.model = nn.Sequential(nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 10))
        self.optimizer = torch.optim.Adam(self.model.parameters(), lr=1e-2)
        self.run = poise.Session(self.model, self.optimizer, self.data, batch=BATCH, epochs=PASSES, **options)
        self.phases: list[tuple[int, Phase]] = []

    def train(self, until: int = STEPS) -> "Digits":
        """As a script does; `phases` notes when they change."""
        with self.run as run:
            for inputs, labels in run:
                run.step(functional.cross_entropy(self.model(inputs), labels))
                if not self.phases or self.phases[-1][1] != run.watch.phase:
                    self.phases.append((run.steps, run.watch.phase))
                if run.steps == until:
                    break
        return self


@cache
def undisturbed() -> Digits:
    return Digits().train()


def test_training_goes_through_its_phases() -> None:
    digits = undisturbed()
    assert [phase for _, phase in digits.phases] == ["initial", "convergence", "fine-tuning"]
    assert digits.run.steps == STEPS
    assert digits.run.training().phase == "fine-tuning"
    assert digits.run.watch.precision == "fp32"


def test_what_is_told_of_it_names_the_phase(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(REPORT, str(tmp_path / "report"))
    Digits().train(until=1)
    assert msgspec.json.decode((tmp_path / "report").read_bytes(), type=Training).phase == "initial"


def test_a_restart_goes_on_in_its_phase_as_if_there_had_been_none() -> None:
    """The state goes through what checkpoints and other workers get it by. It stops behind a step that was looked at:
    the losses since then are not kept.
    """
    whole = undisturbed()
    (_, _), (converges, _), (level, _) = whole.phases
    stop = (converges + level) // 2 // 4 * 4 + 1
    taken = Taken()
    tree = taken.tree(Digits().train(until=stop).run._state())
    stored = io.BytesIO()
    torch.save(taken.tensors, stored)
    stored.seek(0)

    second = Digits()
    tree = msgspec.json.decode(msgspec.json.encode(tree))
    second.run._load(put_together(tree, torch.load(stored, weights_only=True)))
    assert second.run.watch.phase == "convergence"
    second.train()
    assert second.phases == [(stop + 1, "convergence"), (level, "fine-tuning")]
    assert second.run.watch.state_dict() == whole.run.watch.state_dict()


def test_all_workers_of_a_gang_see_the_same_and_one_that_comes_new_does_too(tmp_path: Path) -> None:
    workers = Workers(tmp_path, HERE / "watched.py", batch=BATCH, epochs=4, pause=0.005)
    try:
        workers.start("a", "b")
        workers.after("b", 25)
        workers.become("a", "c")
        assert workers.wait("a", "c") == [0, 0], workers.said("c")
        one, other = workers.answers()
        assert one == other
        assert (one["born"], one["seen"]) == (0, 96)
    finally:
        workers.end()


def test_it_watches_by_the_rules_it_is_given_and_not_at_all_without() -> None:
    own = Digits(phases=PhaseRules(tuning=Pace(look=50, precision="bf16"))).train()
    assert own.run.watch.precision == "bf16"
    assert own.run.watch.pace.look == 50
    none = Digits(phases=None).train(until=40)
    assert (none.run.watch.phase, none.run.training().phase, none.run.watch.precision) == ("", "", "")
    assert not any(none.run.watch.due(step) for step in range(100))


def test_the_norm_is_of_what_the_optimizer_gets() -> None:
    digits = Digits(clip=0.5)
    digits.train(until=1)
    seen = digits.run.watch.state_dict()["norms"]
    alone = Digits()
    with alone.run:
        first = next(iter(alone.run))
    functional.cross_entropy(alone.model(first[0]), first[1]).backward()
    gradients = [one.grad for one in alone.model.parameters() if one.grad is not None]
    assert list(seen) == [pytest.approx(float(torch.cat([one.flatten() for one in gradients]).norm()), rel=1e-5)]
    assert float(norm_of(gradients)) == pytest.approx(seen[0], rel=1e-5)
    assert float(norm_of([])) == 0.0


def test_a_state_that_another_version_wrote_begins_anew() -> None:
    watch = Watch(PhaseRules())
    watch.note(0, 1.0, 0.1)
    watch.see([1.0], norm=1.0)
    kept = json.loads(json.dumps(watch.state_dict()))
    other = Watch(PhaseRules())
    other.load_state_dict(kept)
    assert other.state_dict() == watch.state_dict()
    other.load_state_dict({**kept, "phase": "asleep"})
    assert other.phase == ""


def test_a_loss_that_is_no_number_is_passed_over() -> None:
    watch = Watch(PhaseRules())
    for step in range(40):
        watch.note(step, math.nan if step % 2 else 1 / (1 + step), 0.1)
        watch.see(watch.losses(), norm=math.inf)
    assert watch.phase == "initial"
    assert "nan" not in json.dumps(watch.state_dict()).lower()


def test_each_step_is_seen_once_however_often_it_is_made() -> None:
    often, once = Watch(PhaseRules()), Watch(PhaseRules())
    for step in range(8):
        often.note(step, 99.0, 0.1)  # made again: its gradients have overflowed
        for watch in (often, once):
            watch.note(step, torch.tensor(1 / (1 + step)), 0.1)
    assert often.losses() == once.losses() == pytest.approx([1 / (1 + step) for step in range(8)])
    for watch in (often, once):
        watch.see(watch.losses(), norm=1.0)
    assert often.state_dict() == once.state_dict()
    assert often.state_dict()["seen"] == 7 and not often.losses()


def test_looking_is_cheap() -> None:
    """Not a figure, only that nobody makes it a hundred times slower: a look costs well below a millisecond."""
    watch, spent = Watch(PhaseRules()), []
    for step in range(1000):
        began = time.perf_counter()
        watch.note(step, 1 / (1 + step), 0.1)
        watch.see(watch.losses(), norm=1.0, total=1000)
        spent.append(time.perf_counter() - began)
    assert sorted(spent)[500] < 1e-3
