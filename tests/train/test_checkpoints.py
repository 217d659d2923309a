"""Checkpoints of a gang: what is restored is what was saved, whole and of one step, or it is not restored."""

import os
import random
import resource
import tempfile
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch", reason="needs poise-scheduler[torch]")

import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import poise
from poise.errors import Conflict, InputError, Misused, NotFound, PoiseError, StoreDamaged
from poise.units import MILLISECOND, SECOND
from poise_train import durable, fence, load, pieces, publishing, restoring
from poise_train.checkpoints import Checkpoints
from poise_train.model.checkpoints import Manifest, seal, unseal
from poise_train.policy.checkpoints import Keep
from poise_train.trees import DTYPES
from train.gangs import run

torch.set_num_threads(1)

ALL = Keep(last=100, best=0)
PATIENCE = 300 * MILLISECOND
WAIT = 30.0
"""Seconds that a test waits for another thread at most."""


def state(step: int) -> dict[str, Any]:
    """All of it tells of which step it is; tensors of several types, sizes and shapes."""
    return {
        "model": {
            "wide": torch.full((50, 7), float(step)),
            "bias": torch.full((3,), float(step), dtype=torch.bfloat16),
        },
        "seen": torch.tensor(step),
        "mask": torch.full((11,), step % 2 == 0),
        "position": (step, [f"step {step}"], {0: step / 3}),
    }


def assert_same(one: Any, other: Any) -> None:
    assert type(one) is type(other)
    if isinstance(one, torch.Tensor):
        assert (one.dtype, one.shape) == (other.dtype, other.shape)
        flat = (each.contiguous().reshape(-1).view(torch.uint8) for each in (one, other))
        assert torch.equal(*flat)  # bit by bit: numbers that are none are kept too
    elif isinstance(one, dict):
        assert list(one) == list(other)
        for key in one:
            assert_same(one[key], other[key])
    elif isinstance(one, list | tuple):
        assert len(one) == len(other)
        for left, right in zip(one, other, strict=True):
            assert_same(left, right)
    else:
        assert one == other or (one != one and other != other)


def gang(folder: Path, world: int, **options: Any) -> list[Checkpoints]:
    return [Checkpoints(folder, rank=rank, world=world, **options) for rank in range(world)]


def save(folder: Path, *steps: int, world: int = 1, keep: Keep = ALL) -> None:
    workers = gang(folder, world, keep=keep)
    for step in steps:
        for one in workers:
            one.save(state(step), step=step)
        for one in workers:
            one.wait()
    for one in workers:
        one.close()


def restored(folder: Path) -> restoring.Restored:
    checkpoints = Checkpoints(folder)
    found = checkpoints.restore()
    checkpoints.close()
    assert found is not None
    return found


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir() if not path.name.startswith("fence"))


# --- what it is for --------------------------------------------------------------------------------------------------


class Digits:
    """A small network that learns to read scikit-learn's digits: step `n` always takes the same of them."""

    def __init__(self) -> None:
        from sklearn.datasets import load_digits

        images, labels = load_digits(return_X_y=True)
        self.images, self.labels = torch.tensor(images).float() / 16, torch.tensor(labels)
        torch.manual_seed(3)
        layers = (torch.nn.Linear(64, 32), torch.nn.BatchNorm1d(32), torch.nn.ReLU(), torch.nn.Dropout(0.1))
        self.model = torch.nn.Sequential(*layers, torch.nn.Linear(32, 10))
        self.optimizer = torch.optim.Adam(self.model.parameters(), 1e-2)
        self.step = 0

    def train(self, steps: int) -> list[float]:
        losses = []
        for _ in range(steps):
            some = [(self.step * 64 + at) % len(self.images) for at in range(64)]
            loss = torch.nn.functional.cross_entropy(self.model(self.images[some]), self.labels[some])
            self.optimizer.zero_grad()
            loss.backward()
            self.optimizer.step()
            self.step += 1
            losses.append(loss.item())
        return losses

    def state(self) -> dict[str, Any]:
        return {
            "model": self.model.state_dict(),
            "optimizer": self.optimizer.state_dict(),
            "random": torch.get_rng_state(),
            "python": random.getstate(),
            "step": self.step,
        }

    def go_on(self, state: dict[str, Any]) -> None:
        self.model.load_state_dict(state["model"])
        self.optimizer.load_state_dict(state["optimizer"])
        torch.set_rng_state(state["random"])
        random.setstate(state["python"])
        self.step = state["step"]


def test_training_goes_on_as_if_nothing_had_been(tmp_path: Path) -> None:
    pytest.importorskip("sklearn")
    undisturbed = Digits()
    undisturbed.train(20)
    checkpoints = Checkpoints(tmp_path)
    checkpoints.save(undisturbed.state(), step=20, optimizer=undisturbed.optimizer)
    losses = undisturbed.train(15)  # while it is being copied and written
    drawn = random.getstate()
    checkpoints.close()
    other = Digits()
    other.go_on(restored(tmp_path).state)
    assert other.train(15) == losses
    random.setstate(load(tmp_path).state["python"])
    assert random.getstate() == drawn


SCALARS = (
    st.none()
    | st.booleans()
    | st.integers(-(2**200), 2**200)
    | st.floats(allow_nan=True)
    | st.text(st.characters(exclude_categories=["Cs"]))
    | st.binary()
)


@st.composite
def tensors(draw: st.DrawFn) -> torch.Tensor:
    dtype = draw(st.sampled_from(sorted(DTYPES.values(), key=str)))
    shape = draw(st.lists(st.integers(0, 5), max_size=3))
    count = torch.empty(shape).numel() * dtype.itemsize
    content = draw(st.binary(min_size=count, max_size=count))
    if dtype == torch.bool:
        content = bytes(byte % 2 for byte in content)
    made = (
        torch.frombuffer(bytearray(content), dtype=dtype).reshape(shape) if count else torch.empty(shape, dtype=dtype)
    )
    return made.transpose(0, -1) if made.dim() > 1 and draw(st.booleans()) else made


STATES = st.recursive(
    SCALARS | tensors(),
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.lists(inner, max_size=3).map(tuple)
        | st.dictionaries(st.text("abc. []'", max_size=3) | st.integers() | st.booleans(), inner, max_size=4)
    ),
    max_leaves=12,
)


@settings(max_examples=40, deadline=None, derandomize=True)
@given(st.dictionaries(st.text("abc.", max_size=2), STATES, max_size=4), STATES, st.integers(1, 4))
def test_whatever_can_be_saved_comes_back(state: dict[str, Any], own: Any, world: int) -> None:
    with tempfile.TemporaryDirectory() as folder:
        workers = gang(Path(folder), world)
        for rank, one in enumerate(workers):
            one.save(state, step=5, own=[rank, own])
        for one in workers:
            one.close()
        found = load(Path(folder))
        assert_same(found.state, state)
        assert_same(found.own, tuple([rank, own] for rank in range(world)))


def test_what_is_at_two_places_is_written_once_and_is_one_tensor_again(tmp_path: Path) -> None:
    shared = torch.arange(1000.0)
    save_one(tmp_path, {"words": shared, "out": shared, "view": shared[:500]})
    found = load(tmp_path).state
    assert found["words"] is found["out"]
    assert torch.equal(found["view"], shared[:500])
    assert (tmp_path / "step-1" / "shard-0.safetensors").stat().st_size < 7000


def save_one(folder: Path, state: dict[str, Any]) -> None:
    checkpoints = Checkpoints(folder)
    checkpoints.save(state, step=1)
    checkpoints.close()


def test_other_programs_can_read_the_tensors(tmp_path: Path) -> None:
    from safetensors.torch import load_file

    save(tmp_path, 4, world=2)
    parts = [load_file(tmp_path / "step-4" / f"shard-{rank}.safetensors") for rank in range(2)]
    assert_same(parts[0]["model.wide[0:26]"], torch.full((26, 7), 4.0))
    assert_same(parts[1]["model.wide[26:50]"], torch.full((24, 7), 4.0))
    assert_same(parts[1]["model.bias"], state(4)["model"]["bias"])


class Strange:
    pass


@pytest.mark.parametrize(
    ("value", "place"),
    [
        (Strange(), "state[a][1]"),
        ({1, 2}, "state[a][1]"),
        (print, "state[a][1]"),
        (torch.zeros(3).numpy(), "state[a][1]"),
        ({"b": torch.zeros(2, dtype=torch.complex128)}, "state[a][1][b]"),
        ({"b": torch.eye(2).to_sparse()}, "state[a][1][b]"),
        ({"b": torch.zeros(2, device="meta")}, "state[a][1][b]"),
        ({frozenset(): 1}, "state[a][1]"),
    ],
    ids=lambda value: type(value).__name__ if not isinstance(value, str) else value,
)
def test_what_is_neither_tensors_nor_plain_is_refused_when_it_is_saved(tmp_path: Path, value: Any, place: str) -> None:
    checkpoints = Checkpoints(tmp_path)
    with pytest.raises(InputError) as refused:
        checkpoints.save({"a": [0, value]}, step=1)
    assert refused.value.record.field == place
    assert refused.value.record.need
    checkpoints.save({"a": [0, 1]}, step=1)  # nothing is held by the one that was refused
    checkpoints.close()
    assert load(tmp_path).state == {"a": [0, 1]}


def test_a_state_that_holds_itself_is_refused(tmp_path: Path) -> None:
    endless: dict[str, Any] = {}
    endless["again"] = endless
    with pytest.raises(InputError):
        Checkpoints(tmp_path).save(endless, step=1)


# --- gangs -----------------------------------------------------------------------------------------------------------


def test_what_three_have_saved_one_two_and_five_restore(tmp_path: Path) -> None:
    save(tmp_path, 7, world=3)
    shards = [(tmp_path / "step-7" / f"shard-{rank}.safetensors").stat().st_size for rank in range(3)]
    assert max(shards) - min(shards) < 400  # a row, and what the heads differ by
    for world, step in ((1, 8), (2, 9), (5, 10)):
        workers = gang(tmp_path, world)
        first = workers[0].restore()
        assert first is not None
        for found in (first, *(one.load(first.step) for one in workers[1:])):
            assert found.step == step - 1
            assert_same(found.state, state(step - 1))
        for one in workers:
            one.save(state(step), step=step)
        for one in workers:
            one.close()
    assert_same(restored(tmp_path).state, state(10))


def test_more_workers_than_rows(tmp_path: Path) -> None:
    save(tmp_path, 3, world=8)
    assert_same(load(tmp_path).state, state(3))


def test_without_the_part_of_one_there_is_no_checkpoint(tmp_path: Path) -> None:
    told: list[str] = []
    first, second, third = gang(tmp_path, 3, patience=PATIENCE, tell=told.append)
    for one in (first, second):
        one.save(state(1), step=1)
    first.wait()
    assert told == ["the checkpoint of step 1 was not written: no part came from worker 2"]
    assert names(tmp_path) == []
    for one in (first, second, third):
        one.save(state(2), step=2)
    for one in (first, second, third):
        one.close()
    assert names(tmp_path) == ["step-2"]
    assert first.published() is not None
    assert second.published() is None


def test_a_gang_that_has_lost_a_worker_need_not_wait_for_it(tmp_path: Path) -> None:
    told: list[str] = []
    first, second = gang(tmp_path, 2, patience=3600 * SECOND, tell=told.append)
    first.save(state(1), step=1)
    first.close(patience=0)
    second.close()
    assert "worker 1" in told[0]
    assert names(tmp_path) == []


def test_workers_whose_states_differ_in_shape_publish_nothing(tmp_path: Path) -> None:
    told: list[str] = []
    first, second = gang(tmp_path, 2, tell=told.append)
    first.save({"a": torch.zeros(100), "b": torch.zeros(100)}, step=1)
    second.save({"a": torch.zeros(100), "c": torch.zeros(100)}, step=1)
    first.close()
    second.close()
    assert "the state of worker 1 is not like that of worker 0" in told[0]
    assert names(tmp_path) == []


def test_a_worker_that_cannot_write_says_so_and_nobody_waits_for_it(tmp_path: Path, cannot_write: Any) -> None:
    told: list[str] = []
    first, second = gang(tmp_path, 2, patience=3600 * SECOND, tell=told.append)
    cannot_write("shard-1.safetensors")
    for one in (first, second):
        one.save(state(1), step=1)
    first.close()
    second.close()
    assert sorted(told) == [
        "the checkpoint of step 1 was not written: No space left on device (shard-1.safetensors)",
        "the checkpoint of step 1 was not written: worker 1: No space left on device (shard-1.safetensors)",
    ]


@pytest.fixture
def cannot_write(monkeypatch: pytest.MonkeyPatch) -> Callable[[str], None]:
    def arrange(name: str) -> None:
        def opened(path: Any, flags: int, *rest: Any, **options: Any) -> int:
            if Path(path).name == name and flags & os.O_CREAT:
                raise OSError(28, os.strerror(28), str(path))
            return real(path, flags, *rest, **options)

        real = os.open
        monkeypatch.setattr(os, "open", opened)

    return arrange


# --- beside training -------------------------------------------------------------------------------------------------


class Held:
    """Stops a function in other threads than this one until it is told to go on."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, owner: Any, name: str) -> None:
        self.began, self.go_on = threading.Event(), threading.Event()
        real = getattr(owner, name)
        me = threading.current_thread()

        def held(*arguments: Any, **options: Any) -> Any:
            if threading.current_thread() is not me:
                self.began.set()
                assert self.go_on.wait(WAIT)
            return real(*arguments, **options)

        monkeypatch.setattr(owner, name, held)


def test_training_goes_on_while_it_is_written_and_a_third_one_waits(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    disk = Held(monkeypatch, os, "fsync")
    checkpoints = Checkpoints(tmp_path, keep=ALL)
    weights = torch.zeros(1000)
    for step in (1, 2):  # one is written, one waits; neither sees what comes after it
        weights.fill_(step)
        checkpoints.save({"weights": weights}, step=step)
    weights.fill_(3)
    assert disk.began.wait(WAIT)
    assert names(tmp_path) == ["step-1.1.0.0000000000000000.partial"]
    third = threading.Thread(target=checkpoints.save, args=({"weights": weights},), kwargs={"step": 3})
    third.start()
    third.join(0.2)
    assert third.is_alive()
    disk.go_on.set()
    third.join(WAIT)
    checkpoints.close()
    assert names(tmp_path) == ["step-1", "step-2", "step-3"]
    for step in (1, 2, 3):
        assert_same(load(tmp_path, step).state, {"weights": torch.full((1000,), float(step))})


def trained(count: int) -> tuple[torch.nn.Linear, torch.optim.Optimizer, Callable[[], None]]:
    model = torch.nn.Linear(count, 100, bias=False)
    optimizer = torch.optim.SGD(model.parameters(), 0.1, momentum=0.9)

    def step() -> None:
        model.weight.grad = torch.ones_like(model.weight)
        optimizer.step()

    step()
    return model, optimizer, step


def test_what_the_optimizer_changes_is_copied_beside_training_and_its_step_waits_for_that(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    copying = Held(monkeypatch, torch.Tensor, "copy_")
    model, optimizer, step = trained(1000)
    before = model.weight.detach().clone()
    momentum = optimizer.state[model.weight]["momentum_buffer"].clone()
    checkpoints = Checkpoints(tmp_path)
    checkpoints.save({"model": model.state_dict(), "o": optimizer.state_dict()}, step=1, optimizer=optimizer)
    assert copying.began.wait(WAIT)  # not in this thread, which is here already
    threading.Timer(0.2, copying.go_on.set).start()
    step()
    assert copying.go_on.is_set()
    assert not torch.equal(model.weight, before)
    checkpoints.wait()
    saved = checkpoints.published()
    assert saved is not None
    assert saved.stall > 100 * MILLISECOND
    checkpoints.close()
    found = load(tmp_path).state
    assert torch.equal(found["model"]["weight"], before)
    assert torch.equal(found["o"]["state"][0]["momentum_buffer"], momentum)


def test_what_is_changed_by_others_while_it_is_copied_is_noticed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    told: list[str] = []
    with monkeypatch.context() as patch:
        copying = Held(patch, torch.Tensor, "copy_")
        model, optimizer, _ = trained(10)
        checkpoints = Checkpoints(tmp_path, tell=told.append)
        checkpoints.save({"model": model.state_dict()}, step=1, optimizer=optimizer)
        assert copying.began.wait(WAIT)
        with torch.no_grad():
            model.weight.clamp_(-0.01, 0.01)
        copying.go_on.set()
        checkpoints.wait()
    assert told == [
        "the checkpoint of step 1 was not written: model.weight was changed while it was copied, and not by the "
        "optimizer's step"
    ]
    checkpoints.save({"model": model.state_dict()}, step=2, optimizer=optimizer)
    with torch.no_grad():  # from now on all is copied at once
        model.weight.zero_()
    checkpoints.close()
    assert load(tmp_path).state["model"]["weight"].abs().sum() > 0


def test_memory_for_copies_is_used_again(tmp_path: Path) -> None:
    checkpoints = Checkpoints(tmp_path)
    places = set()
    for step in range(5):
        checkpoints.save(state(step), step=step)
        checkpoints.wait()
        places.add(checkpoints._spare[-1]._memory.data_ptr())
    checkpoints.close()
    assert len(places) == 1


def test_the_same_step_is_saved_once(tmp_path: Path) -> None:
    save(tmp_path, 4)
    checkpoints = Checkpoints(tmp_path)
    assert checkpoints.restore() is not None
    checkpoints.save(state(4), step=4)
    checkpoints.close()
    assert checkpoints.published() is None
    with pytest.raises(Conflict):
        checkpoints.save(state(5), step=5)


def test_what_is_published_is_told(tmp_path: Path) -> None:
    checkpoints = Checkpoints(tmp_path)
    for step in (1, 2):
        checkpoints.save(state(step), step=step)
        checkpoints.wait()
    saved = checkpoints.published()
    checkpoints.close()
    assert saved is not None
    size = sum(path.stat().st_size for path in (tmp_path / "step-2").glob("shard-*"))
    assert (saved.step, saved.kept, saved.bytes) == (2, 2, size)
    assert 0 < saved.stall <= saved.took


# --- faults ----------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def killed() -> Iterator[Path]:
    """What processes have left that were killed while they saved, see killed.py."""
    memory = Path("/dev/shm")  # noqa: S108  nothing there survives a crash of the machine, and none is tried here
    with tempfile.TemporaryDirectory(dir=memory if memory.is_dir() else None) as name:
        with tempfile.TemporaryDirectory() as streams:
            done = run(Path(streams), Path(__file__).with_name("killed.py"), name, patience=600.0)  # some hundred saves
        assert done.returncode == 0, done.stderr
        yield Path(name)


@pytest.mark.parametrize("how", ["points", "moments"])
def test_killed_anywhere_it_leaves_whole_checkpoints_of_one_step_only(killed: Path, how: str) -> None:
    tries = sorted((killed / how).iterdir(), key=lambda path: int(path.name))
    newest, unfinished = set(), 0
    for folder in tries:
        steps = restoring.listed(folder)
        for step in steps:  # S9: what is listed is whole
            found = load(folder, step).state
            told = {int(found["done"]), found["at"]}
            told |= {
                int(one) - number for number, name in enumerate(found["model"]) for one in found["model"][name].unique()
            }
            assert told == {step}
        assert steps, "step 1 had been published"
        unfinished += any("partial" in name for name in names(folder))
        newest.add(max(steps, default=0))
        first, second = gang(folder, 2, epoch=2, keep=Keep(last=1, best=0))  # whoever comes next goes on
        assert (first.restore() is not None) == bool(steps)
        step = max(steps, default=0) + 1
        for one in (first, second):
            one.save(state(step), step=step)
        for one in (first, second):
            one.close()
        assert names(folder) == [f"step-{step}"]
    assert unfinished > 1
    assert how == "moments" or newest == {1, 2, 3}


def files(folder: Path) -> list[Path]:
    return sorted(path for path in folder.rglob("*") if path.is_file())


def test_every_byte_counts(tmp_path: Path) -> None:
    small = {"weights": torch.arange(40.0), "position": (3, "step", 0.5)}
    first, second = gang(tmp_path, 2)
    for one in (first, second):
        one.save(small, step=2)
    for one in (first, second):
        one.close()
    for path in files(tmp_path / "step-2"):
        content = bytearray(path.read_bytes())
        for at in range(len(content)):
            content[at] ^= 1 << at % 8
            path.write_bytes(content)
            with pytest.raises(StoreDamaged):
                load(tmp_path, 2)
            content[at] ^= 1 << at % 8
        path.write_bytes(content)
    assert_same(load(tmp_path, 2).state, small)


def cut_short(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-1])


def emptied(path: Path) -> None:
    path.write_bytes(b"")


def lengthened(path: Path) -> None:
    path.write_bytes(path.read_bytes() + b"\0")


def of_another(path: Path) -> None:
    path.write_bytes((path.parent.parent / "step-1" / path.name).read_bytes())


@pytest.mark.parametrize("harm", [Path.unlink, cut_short, emptied, lengthened, of_another])
@pytest.mark.parametrize("name", ["manifest.json", "shard-0.safetensors", "shard-1.safetensors"])
def test_what_is_damaged_is_passed_over_and_set_aside_and_told(
    tmp_path: Path, harm: Callable[[Path], None], name: str
) -> None:
    save(tmp_path, 1, 2, world=2)
    harm(tmp_path / "step-2" / name)
    with pytest.raises(StoreDamaged) as damaged:
        load(tmp_path, 2)
    assert damaged.value.record.code == "E210"
    assert load(tmp_path).step == 1
    assert names(tmp_path) == ["step-1", "step-2"]  # who only reads changes nothing
    found = restored(tmp_path)
    assert_same(found.state, state(1))
    assert "that of step 2 was passed over: " in found.note
    assert name in found.note or "manifest" in found.note
    assert names(tmp_path) == ["step-1", "step-2.damaged"]
    save(tmp_path, 2)
    assert names(tmp_path) == ["step-1", "step-2"]


def test_the_newest_that_is_whole_is_found_behind_several_that_are_not(tmp_path: Path) -> None:
    save(tmp_path, 1, 2, 3, 4)
    cut_short(tmp_path / "step-4" / "manifest.json")
    (tmp_path / "step-3" / "shard-0.safetensors").unlink()
    (tmp_path / "step-5.1.0.0000000000000000.partial").mkdir()
    found = restored(tmp_path)
    assert found.step == 2
    assert [f"step {step}" in found.note for step in (5, 4, 3, 2, 1)] == [True] * 4 + [False]
    assert "never finished" in found.note


def test_if_none_is_whole_nothing_is_restored_and_it_is_told(tmp_path: Path) -> None:
    told: list[str] = []
    assert Checkpoints(tmp_path, tell=told.append).restore() is None
    assert told == []
    with pytest.raises(NotFound):
        load(tmp_path)
    save(tmp_path, 1)
    emptied(tmp_path / "step-1" / "shard-0.safetensors")
    assert Checkpoints(tmp_path, tell=told.append).restore() is None
    assert "step 1 was passed over: shard-0.safetensors has 0 bytes" in told[0]


def test_what_cannot_be_read_today_is_not_set_aside(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    save(tmp_path, 1, 2)

    def unreadable(path: Path, *arguments: Any) -> None:
        if "step-2" in str(path):
            raise OSError(5, "Input/output error", str(path))
        real(path, *arguments)

    real = pieces.read
    with monkeypatch.context() as patch:
        patch.setattr(restoring, "read", unreadable)
        found = restored(tmp_path)
    assert found.step == 1
    assert "Input/output error" in found.note
    assert restored(tmp_path).step == 2


def resealed(path: Path, change: Callable[[Manifest], Manifest]) -> None:
    path.write_bytes(seal(change(unseal(path.read_bytes()))))


@pytest.mark.parametrize(
    "change",
    [
        {"step": 3},
        {"shards": []},
    ],
    ids=str,
)
def test_a_manifest_that_says_what_none_of_ours_says_is_refused(tmp_path: Path, change: dict[str, Any]) -> None:
    import msgspec

    save(tmp_path, 1, 2)
    if "tree" in change:
        change = {"tree": msgspec.Raw(change["tree"])}
    resealed(tmp_path / "step-2" / "manifest.json", lambda one: msgspec.structs.replace(one, **change))
    assert restored(tmp_path).step == 1


@pytest.mark.parametrize(
    "change",
    [{"tree": b'{"object": "os.system"}'}, {"tree": b'{"tensor": 99}'}, {"format": 2}, {"format": 2, "poise": "9.1"}],
    ids=str,
)
def test_what_another_version_wrote_is_neither_passed_over_nor_removed(tmp_path: Path, change: dict[str, Any]) -> None:
    import msgspec

    save(tmp_path, 1, 2)
    if "tree" in change:
        change = {"tree": msgspec.Raw(change["tree"])}
    resealed(tmp_path / "step-2" / "manifest.json", lambda one: msgspec.structs.replace(one, **change))
    checkpoints = Checkpoints(tmp_path, keep=Keep(last=1, best=0))
    with pytest.raises(Misused, match="the checkpoint of step 2 cannot be read: it was written by another ver") as told:
        checkpoints.restore()
    versions = {True: "Poise 9.1", False: f"Poise {poise.__version__}"}
    assert told.value.record.need == versions["poise" in change]
    assert told.value.record.have.startswith(f"Poise {poise.__version__}, which reads format 1")
    assert "pip install" in told.value.record.hint
    assert names(tmp_path) == ["step-1", "step-2"]
    if "format" in change:
        checkpoints.save(state(3), step=3)  # whoever goes on without looking
    checkpoints.close()
    assert "step-2" in names(tmp_path)


def test_a_disk_that_is_full_costs_the_checkpoint_and_not_the_training(tmp_path: Path) -> None:
    save(tmp_path, 1)
    told: list[str] = []
    checkpoints = Checkpoints(tmp_path, keep=ALL, tell=told.append)
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1_000_000, hard))  # the system refuses to write more into a file
    try:
        checkpoints.save({"weights": torch.zeros(1_000_000)}, step=2)
        checkpoints.wait()
        assert names(tmp_path) == ["step-1"]  # what there was of it makes room
        assert told == ["the checkpoint of step 2 was not written: File too large"]
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    checkpoints.save({"weights": torch.zeros(1_000_000)}, step=3)
    checkpoints.close()
    assert names(tmp_path) == ["step-1", "step-3"]


@pytest.mark.parametrize("name", ["shard-0.json.draft", "manifest.json.draft"])
def test_a_disk_that_is_full_later_too(tmp_path: Path, name: str, cannot_write: Callable[[str], None]) -> None:
    told: list[str] = []
    checkpoints = Checkpoints(tmp_path, tell=told.append)
    cannot_write(name)
    checkpoints.save(state(1), step=1)
    checkpoints.close()
    assert f"No space left on device ({name})" in told[0]
    assert names(tmp_path) == []


def test_what_was_not_to_be_expected_is_raised_by_the_next_call(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*_: Any) -> None:
        raise ZeroDivisionError("a mistake of ours")

    told: list[str] = []
    checkpoints = Checkpoints(tmp_path, tell=told.append)
    with monkeypatch.context() as patch:
        patch.setattr(publishing, "write", broken)
        checkpoints.save(state(1), step=1)
        with pytest.raises(ZeroDivisionError):
            checkpoints.wait()
    assert "a mistake of ours" in told[0]
    checkpoints.save(state(2), step=2)
    checkpoints.close()
    assert names(tmp_path) == ["step-2"]


def test_everything_is_on_the_disk_before_it_has_its_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What no process can be killed to show: the power fails."""
    calls: list[tuple[str, str]] = []

    def told(name: str, path_of: Callable[..., str]) -> None:
        real = getattr(os, name)

        def telling(*arguments: Any, **options: Any) -> Any:
            calls.append((name, path_of(*arguments)))
            return real(*arguments, **options)

        monkeypatch.setattr(os, name, telling)

    def named(file: int, *_: Any) -> str:
        return str(Path(f"/proc/self/fd/{file}").readlink())

    told("write", named)
    told("fsync", named)
    told("rename", lambda source, target: f"{source} -> {target}")
    save(tmp_path, 1, world=2)
    partial, whole = str(tmp_path / "step-1.1.0.0000000000000000.partial"), str(tmp_path / "step-1")
    published = calls.index(("rename", f"{partial} -> {whole}"))
    written = {path for call, path in calls[:published] if call == "write"}
    assert {Path(path).name for path in written} >= {
        "shard-0.safetensors",
        "shard-1.safetensors",
        "manifest.json.draft",
    }
    for path in written:
        last_write = max(at for at, call in enumerate(calls) if call == ("write", path))
        assert last_write < calls.index(("fsync", path)) < published
    assert ("rename", f"{partial}/manifest.json.draft -> {partial}/manifest.json") in calls[:published]
    assert ("fsync", partial) in calls[published - 1 : published]
    assert calls[published + 1] == ("fsync", str(tmp_path))


# --- epochs ----------------------------------------------------------------------------------------------------------


def test_an_older_epoch_publishes_nothing_once_a_newer_one_has_begun(tmp_path: Path) -> None:
    old = Checkpoints(tmp_path, epoch=3, keep=ALL, tell=print)
    old.save(state(1), step=1)
    old.wait()
    new = Checkpoints(tmp_path, epoch=4, keep=ALL)
    old.save(state(2), step=2)
    with pytest.raises(Conflict) as refused:
        old.close()
    assert (refused.value.record.need, refused.value.record.have) == ("at least epoch 4, turn 2", "epoch 3, turn 1")
    new.save(state(2), step=2)
    new.close()
    assert unseal((tmp_path / "step-2" / "manifest.json").read_bytes()).epoch == 4
    with pytest.raises(Conflict):
        Checkpoints(tmp_path, epoch=3)
    with pytest.raises(Conflict):
        Checkpoints(tmp_path, rank=1, world=2, epoch=3).save(state(3), step=3)


def test_of_one_epoch_only_what_began_last_publishes(tmp_path: Path) -> None:
    told: list[str] = []
    first = Checkpoints(tmp_path, tell=told.append)
    second = Checkpoints(tmp_path)
    first.save(state(1), step=1)
    with pytest.raises(Conflict):
        first.wait()
    assert "a newer attempt has begun" in told[0]
    second.save(state(1), step=1)
    second.close()
    assert names(tmp_path) == ["step-1"]


def test_another_training_takes_a_folder_over_whatever_its_epoch(tmp_path: Path) -> None:
    """For good: neither what still runs of the one before, nor a later attempt of it, comes back."""
    old = Checkpoints(tmp_path, epoch=7, training=1, keep=ALL, tell=lambda _: None)
    old.save(state(1), step=1)
    old.wait()
    new = Checkpoints(tmp_path, epoch=1, training=2, keep=ALL)
    assert new.restore() is not None
    old.save(state(2), step=2)
    with pytest.raises(Conflict, match="another training has begun"):
        old.wait()
    for epoch in (7, 8):
        with pytest.raises(Conflict, match="another training has begun"):
            Checkpoints(tmp_path, epoch=epoch, training=1)
    new.save(state(3), step=3)
    new.close()
    again = Checkpoints(tmp_path, epoch=2, training=2, keep=ALL)
    assert names(tmp_path) == ["step-1", "step-3"]
    with pytest.raises(Conflict, match="a newer attempt has begun"):
        Checkpoints(tmp_path, epoch=1, training=2)
    again.close()


def test_no_part_of_one_training_gets_into_a_checkpoint_of_another(tmp_path: Path) -> None:
    """Worker 1 of the one before comes to save when the other has begun, in the same epoch."""
    told: list[str] = []
    Checkpoints(tmp_path, world=2, training=1)
    left = Checkpoints(tmp_path, rank=1, world=2, training=1)
    first, second = gang(tmp_path, 2, training=2, patience=PATIENCE, tell=told.append)
    first.save(state(1), step=1)
    with pytest.raises(Conflict, match="another training has begun"):
        left.save(state(1), step=1)
    first.wait()
    assert told == ["the checkpoint of step 1 was not written: no part came from worker 1"]
    for one in (first, second):
        one.save(state(2), step=2)
    for one in (first, second):
        one.close()
    assert names(tmp_path) == ["step-2"]


def test_a_folder_remembers_trainings_that_were_overtaken_but_not_all_of_them(tmp_path: Path) -> None:
    for training in range(1, fence.REMEMBERED + 10):
        Checkpoints(tmp_path, epoch=1, training=training).close()
    assert len(list(tmp_path.glob("fence-*"))) == fence.REMEMBERED + 1
    with pytest.raises(Conflict):
        Checkpoints(tmp_path, epoch=2, training=fence.REMEMBERED)


@pytest.mark.parametrize("last_call", ["rename", "unlink"])
def test_not_even_if_it_has_looked_before_the_newer_one_began(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, last_call: str
) -> None:
    """It stands still after its last look at the fence, just before it gives the checkpoint its name; and earlier."""
    reached, go_on = threading.Event(), threading.Event()
    real: Any = getattr(os, last_call)

    def held(source: Any, *rest: Any, **options: Any) -> None:
        if threading.current_thread() is not threading.main_thread() and (
            last_call == "unlink" or Path(rest[0]).name == "step-1"
        ):
            reached.set()
            assert go_on.wait(WAIT)
        real(source, *rest, **options)

    old = Checkpoints(tmp_path, epoch=3, tell=lambda _: None)
    monkeypatch.setattr(os, last_call, held)
    old.save(state(1), step=1)
    assert reached.wait(WAIT)
    new = Checkpoints(tmp_path, epoch=4)
    assert new.restore() is None
    go_on.set()
    with pytest.raises(Conflict):
        old.close()
    assert names(tmp_path) == []


def test_who_only_reads_fences_nobody(tmp_path: Path) -> None:
    checkpoints = Checkpoints(tmp_path)
    checkpoints.save(state(1), step=1)
    checkpoints.wait()
    assert load(tmp_path).step == 1
    checkpoints.save(state(2), step=2)
    checkpoints.close()
    assert load(tmp_path).step == 2


def test_a_worker_without_worker_0_is_told_that_they_do_not_see_the_same_folder(tmp_path: Path) -> None:
    with pytest.raises(Conflict) as refused:
        Checkpoints(tmp_path / "elsewhere", rank=1, world=2, patience=PATIENCE).save(state(1), step=1)
    assert "all 2 workers" in refused.value.record.need


# --- what is kept ----------------------------------------------------------------------------------------------------


def test_the_last_the_best_and_some_for_good_are_kept(tmp_path: Path) -> None:
    checkpoints = Checkpoints(tmp_path, keep=Keep(last=2, best=1, every=30))
    for step, score in ((10, 0.2), (20, 0.9), (30, 0.3), (40, None), (50, 0.4), (60, 0.1), (70, 0.5)):
        checkpoints.save(state(step), step=step, score=score)
    checkpoints.close()
    assert restoring.listed(tmp_path) == [20, 30, 60, 70]
    other = Checkpoints(tmp_path, keep=Keep(last=1, best=1))  # another attempt knows the scores too
    other.save(state(80), step=80, score=0.1)
    other.close()
    assert restoring.listed(tmp_path) == [20, 80]


def test_what_was_restored_stays_until_all_have_gone_on_from_it(tmp_path: Path) -> None:
    save(tmp_path, 1, 2, 3)
    cut_short(tmp_path / "step-3" / "manifest.json")
    first, second = gang(tmp_path, 2, keep=Keep(last=1, best=0), patience=PATIENCE, tell=lambda _: None)
    found = first.restore()
    assert found is not None
    assert found.step == 2
    first.save(state(3), step=3)
    first.wait()  # the other has not written its part: it may be reading
    assert second.load(2).step == 2
    for one in (first, second):
        one.save(state(4), step=4)
    for one in (first, second):
        one.close()
    assert names(tmp_path) == ["step-4"]


def test_what_cannot_be_removed_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(folder: Path) -> None:
        raise OSError(13, "Permission denied", str(folder))

    told: list[str] = []
    checkpoints = Checkpoints(tmp_path, keep=Keep(last=1, best=0), tell=told.append)
    checkpoints.save(state(1), step=1)
    checkpoints.wait()
    monkeypatch.setattr(durable, "clear", refused)
    checkpoints.save(state(2), step=2)
    checkpoints.close()
    assert told == ["an old checkpoint cannot be removed: Permission denied (step-1)"]
    assert load(tmp_path).step == 2


def test_what_cannot_be_removed_keeps_nothing_else(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real = durable.clear

    def refused(folder: Path) -> None:
        if folder.name in ("step-1", "step-1.cleared"):
            raise OSError(13, "Permission denied", str(folder))
        real(folder)

    told: list[str] = []
    monkeypatch.setattr(durable, "clear", refused)
    checkpoints = Checkpoints(tmp_path, keep=Keep(last=1, best=0), tell=told.append)
    for step in range(1, 6):
        checkpoints.save(state(step), step=step)
        checkpoints.wait()
    checkpoints.close()
    assert names(tmp_path) == ["step-1", "step-5"]
    assert told == ["an old checkpoint cannot be removed: Permission denied (step-1)"]


def test_what_has_no_name_of_ours_is_nothing_of_ours(tmp_path: Path) -> None:
    """Files, links and folders that look nearly like checkpoints and fences."""
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "elsewhere" / "thesis.txt").write_text("years of work")
    for name in ("step-007", "step-٣", "step-x.damaged", "step-3.0.0.partial", "step-", "fence-٣.1.0000000000000000"):
        (tmp_path / name).mkdir()
    for name in ("step-5", "fence-x", "fence-0.zz"):
        (tmp_path / name).write_text("a note")
    before = names(tmp_path)
    (tmp_path / "step-50").symlink_to(tmp_path / "elsewhere")
    (tmp_path / "step-9").symlink_to(tmp_path / "nowhere")
    told: list[str] = []
    checkpoints = Checkpoints(tmp_path, keep=Keep(last=1, best=0), tell=told.append)
    assert checkpoints.restore() is None
    why = "training begins anew: no checkpoint was restored; that of step 50 was passed over: its manifest is missing"
    assert told == [why]
    for step in (51, 52):
        checkpoints.save(state(step), step=step)
    checkpoints.close()
    assert names(tmp_path) == sorted([*before, "step-9", "step-52"])
    assert (tmp_path / "elsewhere" / "thesis.txt").read_text() == "years of work"
    assert len(told) == 1


def test_every_error_can_be_acted_on(tmp_path: Path) -> None:
    errors: list[PoiseError] = []
    for attempt in (lambda: load(tmp_path), lambda: Checkpoints(tmp_path).save({"a": {1}}, step=1)):
        with pytest.raises(PoiseError) as raised:
            attempt()
        errors.append(raised.value)
    assert all(error.record.hint and error.record.field and error.record.have for error in errors)
