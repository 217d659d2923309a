"""Training where memory is short: real allocations fail, and what is learned is the same."""

import gc
import itertools
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="needs poise-scheduler[torch]")

from safetensors.torch import load_file  # noqa: E402
from torch import nn  # noqa: E402

from poise.drivers import memory  # noqa: E402
from poise.errors import MemoryShort  # noqa: E402
from poise_train.batch import Before, Fitting, is_short  # noqa: E402
from poise_train.memory import Budget  # noqa: E402
from train import memory_script  # noqa: E402
from train.gangs import run  # noqa: E402

MIB = 1 << 20
SCRIPT = Path(memory_script.__file__)
ALONE = {
    "model": "form=plain,micro=256,free=100,dropout=0.1,normalise=1",
    "function": "form=closure,micro=256,free=100,dropout=0.1,normalise=1",
    "backward": "form=late,micro=256,free=70,dropout=0.1",
    "found": "form=plain,budget=150",
}
GANG = "form=late,micro=128,rank=0", "form=late,micro=128,rank=1,left=7"


@pytest.fixture(scope="module", autouse=True)
def one_thread() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="module")
def out(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("cases")
    done = run(folder, SCRIPT, str(folder), *ALONE.values(), *GANG)
    assert done.returncode == 0, done.stderr
    return folder


def report(out: Path, case: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((out / f"{case}.json").read_text())
    return found


@pytest.mark.parametrize("where", ["model", "function", "backward"])
def test_a_step_that_runs_out_of_memory_is_made_again_exactly(out: Path, where: str) -> None:
    """Weights, statistics of normalisation and dropout are, to the last bit, those of a plain loop that had taken the
    smaller micro-batches from the start of that step.
    """
    case = ALONE[where]
    how = report(out, case)
    assert how["tried"][0] == 256, "as it was asked to"
    assert all(sum(sizes) == 256 for sizes in how["steps"]), "the effective batch stays"
    assert 256 not in how["steps"][-1], "which was too much"
    assert len(how["tried"]) > sum(map(len, how["steps"]))
    found = load_file(out / f"{case}.safetensors")
    wanted = memory_script.plain(case, how["steps"]).state_dict()
    for name, value in wanted.items():
        assert torch.equal(found[name], value), name


def test_the_largest_micro_batch_that_fits_is_found(out: Path) -> None:
    how = report(out, ALONE["found"])
    assert how["tried"][0] == 64, "it begins with few"
    assert how["steps"][-1][0] > 64
    assert how["batch"] * how["accumulation"] >= how["effective"] == 256
    assert 0 < how["memory"] <= how["budget"]


def test_others_wait_for_a_worker_that_makes_its_part_again(out: Path) -> None:
    """One of two is left with less memory in the third step, when a part of its gradients is on its way already."""
    untouched, pressed = (report(out, case) for case in GANG)
    assert untouched["steps"] == [[128]] * 4
    assert pressed["steps"][:2] == [[128]] * 2
    assert pressed["out"], "it was short"
    assert max(pressed["out"]) < 2, "of its two buckets, as malloc will have it"
    assert max(pressed["steps"][-1]) < 128
    assert all(sum(sizes) == 128 for sizes in pressed["steps"])
    one, two = (load_file(out / f"{case}.safetensors") for case in GANG)
    undisturbed = memory_script.plain(GANG[0], [[256]] * 4).state_dict()
    for name, value in undisturbed.items():
        assert torch.equal(one[name], two[name]), name
        torch.testing.assert_close(one[name], value, rtol=1e-4, atol=1e-6)


class Given:
    """A memory whose counts are given."""

    def __init__(self, free: int) -> None:
        self.now = self.most = 0
        self.room = free

    def held(self) -> int:
        return self.now

    def peak(self) -> int:
        return self.most

    def forget(self) -> None:
        self.most = self.now

    def free(self) -> int:
        return self.room - self.now

    def give_back(self) -> None:
        pass


def steps(fitting: Fitting, memory: Given, count: int, each: int = MIB) -> list[int]:
    """The sizes of micro-batches, of so many steps."""
    sizes = []
    for _ in range(count):
        sizes.append(fitting.batch)
        fitting.begin(fitting.batch)
        memory.most = max(memory.most, memory.now + fitting.batch * each)
        fitting.end(fitting.batch)
        fitting.adapt()
    return sizes


def test_micro_batches_follow_what_is_free() -> None:
    memory = Given(1000 * MIB)
    clock = itertools.count(0.0, 0.4)
    fitting = Fitting(nn.Linear(4, 4), memory, 512, now=lambda: next(clock))
    assert steps(fitting, memory, 6) == [64, 64, 128, 256, 512, 512]
    memory.room -= 800 * MIB  # somebody else has taken it
    assert steps(fitting, memory, 2)[-1] <= 160
    memory.room += 800 * MIB
    assert steps(fitting, memory, 6)[-1] == 512


def test_looks_become_rarer_and_what_a_process_keeps_for_itself_is_not_missed() -> None:
    """A look costs a part of a step, for all that was given back has to be asked for again."""
    memory, looks, second = Given(1000 * MIB), list[int](), 0

    def give_back() -> None:
        memory.now = 0
        looks.append(second)

    memory.give_back = give_back  # type: ignore[method-assign]
    fitting = Fitting(nn.Linear(4, 4), memory, 64, now=lambda: second)
    for second in range(120):  # noqa: B007 - the clock
        assert steps(fitting, memory, 1, each=10 * MIB) == [64]
        memory.now = 640 * MIB  # what it has asked for once stays with the process
    assert len(looks) <= 9
    memory.room -= 500 * MIB  # somebody else has taken it
    second = 121
    steps(fitting, memory, 1, each=10 * MIB)
    assert fitting.batch < 50


def test_a_model_with_batch_normalisation_is_computed_as_it_was_asked_to() -> None:
    memory = Given(1000 * MIB)
    fitting = Fitting(nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4)), memory, 512)
    assert steps(fitting, memory, 4) == [512] * 4
    fitting.resize(100)
    assert fitting.batch == 100


def test_what_does_not_fit_one_by_one_does_not_fit() -> None:
    fitting = Fitting(nn.Linear(4, 4), Given(MIB), 4, most=1)
    with pytest.raises(MemoryShort) as failed:
        fitting.short(1)
    assert failed.value.record.code == "E209"
    assert "checkpoint" in failed.value.record.hint


def test_a_failed_allocation_is_told_from_other_errors() -> None:
    with pytest.raises(RuntimeError) as failed:
        torch.empty(1 << 50, dtype=torch.uint8)
    assert is_short(failed.value)
    assert is_short(MemoryError())
    with pytest.raises(RuntimeError) as failed:
        torch.ones(2, 3) @ torch.ones(2, 3)
    assert not is_short(failed.value)


def test_buffers_and_random_numbers_are_as_before() -> None:
    model = nn.Sequential(nn.BatchNorm1d(8), nn.Dropout(0.5))
    before = Before(model)
    for _ in range(3):
        before.keep()
        kept = {name: one.clone() for name, one in model.named_buffers()}
        first = model(torch.randn(16, 8))
        assert not torch.equal(model[0].running_mean, kept["0.running_mean"])
        before.put_back()
        assert all(torch.equal(one, kept[name]) for name, one in model.named_buffers())
        assert torch.equal(model(torch.randn(16, 8)), first)


def test_the_peak_of_a_session_is_kept_when_that_of_a_micro_batch_is_asked_for() -> None:
    budget = Budget(torch.device("cpu"))
    gc.collect()  # what other tests have left goes now, not in between
    budget.give_back()
    budget.forget()
    before = memory.resident()
    held = torch.ones(64 * MIB, dtype=torch.uint8)
    del held
    budget.give_back()
    budget.forget()
    assert budget.most >= before + 60 * MIB
    assert budget.peak() < before + 60 * MIB
