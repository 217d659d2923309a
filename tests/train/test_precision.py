"""Training in 16 bits: where it pays, with the same loop, and in a gang with workers that compute in fp32."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="needs poise-scheduler[torch]")

from safetensors.torch import load_file  # noqa: E402
from torch import nn  # noqa: E402
from torch.utils.data import TensorDataset  # noqa: E402

import poise  # noqa: E402
from poise.errors import InputError  # noqa: E402
from poise_train.model.phases import Pace, PhaseRules  # noqa: E402
from poise_train.policy.precision import worth_training_in  # noqa: E402
from poise_train.precision import Precision, chosen, finite, largest_product, rates_of  # noqa: E402
from train import memory_script  # noqa: E402
from train.gangs import run  # noqa: E402

CPU = torch.device("cpu")


@pytest.fixture(scope="module", autouse=True)
def one_thread() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="module")
def digits() -> tuple[Any, Any]:
    _, _, data = memory_script.made({})
    images, labels = data.tensors
    return images, labels


def trained(digits: tuple[Any, Any], precision: str, scale: float = 1.0) -> tuple[nn.Module, "poise.Session"]:
    """A perceptron, three passes over three quarters of the digits."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 10))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.2, momentum=0.9)
    images, labels = digits
    with poise.Session(
        model, optimizer, TensorDataset(images[:1344], labels[:1344]), batch=64, epochs=3, precision=precision
    ) as run:
        run._precision.scale *= scale
        for inputs, targets in run:
            answer = model(inputs)
            assert answer.dtype == torch.float32, "losses are worked out in fp32"
            run.step(nn.functional.cross_entropy(answer, targets))
    return model, run


def accuracy(model: nn.Module, digits: tuple[Any, Any]) -> float:
    images, labels = digits
    with torch.inference_mode():
        return float((model(images[1344:]).argmax(1) == labels[1344:]).double().mean())


@pytest.mark.parametrize("precision", ["bf16", "fp16"])
def test_a_loop_trains_in_16_bits_as_it_is(digits: tuple[Any, Any], precision: str) -> None:
    reference, run = trained(digits, "fp32")
    assert run.training().precision == "fp32"
    model, run = trained(digits, precision)
    assert run.training().precision == precision
    assert run.steps == 63
    assert all(one.dtype == torch.float32 for one in model.parameters())
    assert not all(torch.equal(a, b) for a, b in zip(model.parameters(), reference.parameters(), strict=True))
    assert accuracy(reference, digits) > 0.85
    assert abs(accuracy(model, digits) - accuracy(reference, digits)) < 0.03
    assert "forward" not in vars(model), "the model is as it was"


def test_steps_that_overflow_are_made_again_with_smaller_losses(digits: tuple[Any, Any]) -> None:
    """No sample is left out: the weights come out as if the losses had had the right size from the start."""
    wanted, _ = trained(digits, "fp16", scale=2.0**-8)
    model, run = trained(digits, "fp16", scale=2.0**20)
    assert run._precision.scale < 2.0**36
    assert (run.steps, run.samples) == (63, 3 * 1344)
    assert abs(accuracy(model, digits) - accuracy(wanted, digits)) < 0.02


def test_a_loss_that_is_no_number_changes_no_weight(digits: tuple[Any, Any]) -> None:
    images, labels = digits
    model = nn.Linear(64, 10)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    tries = 0
    with poise.Session(model, optimizer, TensorDataset(images[:128], labels[:128]), batch=64, precision="fp16") as run:
        for inputs, targets in run:
            tries += 1
            loss = nn.functional.cross_entropy(model(inputs), targets)
            run.step(loss * float("nan") if run.steps == 0 else loss)
    assert run.steps == 2
    assert tries == 2 + 16, "the first is made again down to a scale of 1, and then left out"
    assert all(bool(one.isfinite().all()) for one in model.parameters())


@pytest.mark.slow
def test_workers_of_one_gang_may_compute_each_in_its_own(tmp_path: Path) -> None:
    """One in fp16 with losses that are far too large at first, the other in fp32: both make the same steps again, and
    both have the same weights, which are those of one process in fp32 to within what 16 bits are good for.
    """
    cases = ["form=plain,micro=128,precision=fp16,scale=1e9,rank=0", "form=plain,micro=128,precision=fp32,rank=1"]
    done = run(tmp_path, memory_script.__file__, str(tmp_path), *cases)
    assert done.returncode == 0, done.stderr
    half, full = (json.loads((tmp_path / f"{case}.json").read_text()) for case in cases)
    assert (half["precision"], full["precision"]) == ("fp16", "fp32")
    assert half["scale"] < 1e9 * 2**16
    assert len(half["tried"]) == len(full["tried"]) > 4, "some were made again"
    one, two = (load_file(tmp_path / f"{case}.safetensors") for case in cases)
    alone = memory_script.plain(cases[1], [[256]] * 4).state_dict()
    for name, value in alone.items():
        assert torch.equal(one[name], two[name]), name
        torch.testing.assert_close(one[name], value, rtol=0.02, atol=2e-3)


@pytest.mark.parametrize(
    ("rates", "name"),
    [
        ({"fp32": 67, "tf32": 494.5, "bf16": 989.5, "fp16": 989.5}, "bf16"),
        ({"fp32": 15.7, "fp16": 125}, "fp16"),
        ({"fp32": 35.6, "bf16": 71, "fp16": 71}, "bf16"),
        ({"fp32": 1.0, "bf16": 1.2}, "fp32"),
        ({"fp32": 1.0, "bf16": 0.2}, "fp32"),
        ({"fp32": 1.0}, "fp32"),
        ({"fp16": 256}, "fp32"),
        ({}, "fp32"),
    ],
)
def test_16_bits_are_used_where_they_pay(rates: dict[str, float], name: str) -> None:
    assert worth_training_in(rates)[0] == name


def test_a_processor_is_tried_with_the_largest_product_of_the_model() -> None:
    model = nn.Sequential(nn.Embedding(100_000, 64), nn.Conv1d(3, 8, 5), nn.Linear(64, 300))
    assert largest_product(model) == (300, 64)
    assert largest_product(nn.Linear(10_000, 5000)) == (2048, 2048)
    state = torch.get_rng_state()
    rates, by = rates_of(CPU, model)
    assert torch.equal(torch.get_rng_state(), state)
    assert rates["fp32"] > 0
    assert ("bf16" in rates) == torch.ops.mkldnn._is_mkldnn_bf16_supported()
    assert by == "measured with a layer of 64 to 300"
    assert rates_of(CPU, nn.Embedding(10, 10))[0] == {}
    precision = chosen("auto", CPU, nn.Embedding(10, 10))
    assert (precision.name, precision.why) == ("fp32", "nothing is known of others (nothing is known of cpu)")


def test_a_precision_that_is_none_is_refused() -> None:
    model = nn.Linear(2, 2)
    with pytest.raises(InputError) as refused:
        poise.Session(model, torch.optim.SGD(model.parameters()), TensorDataset(torch.zeros(4, 2)), precision="half")
    assert refused.value.record.need == "auto, fp32, bf16, fp16"


def test_losses_are_scaled_up_again_after_many_steps_that_were_fine() -> None:
    precision = Precision("fp16", CPU, "")
    assert not precision.accepts(False)
    assert precision.scale == 2.0**15
    for _ in range(2000):
        assert precision.accepts(True)
    assert precision.scale == 2.0**16
    other = Precision("fp16", CPU, "")
    other.restore(precision.state() | {"epoch": 1})
    assert other.scale == precision.scale
    assert Precision("bf16", CPU, "").state() == {}


def test_what_is_no_number_is_found() -> None:
    fine = torch.tensor(np.linspace(-1e30, 1e30, 1000), dtype=torch.float32)
    assert finite([fine, fine]) and finite([])
    for bad in (float("inf"), float("-inf"), float("nan")):
        assert not finite([fine, torch.tensor([1.0, bad])])
    assert not finite([torch.tensor([float("inf"), float("-inf")])])


def test_a_precision_that_was_chosen_follows_the_phase_of_the_training(
    digits: tuple[Any, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    rates = {"fp32": 1.0, "bf16": 2.0}
    monkeypatch.setattr("poise_train.precision.rates_of", lambda device, model: (rates, "the test"))
    rules = PhaseRules(convergence=Pace(precision="fp32"))
    seen: dict[str, set[str]] = {}
    for asked in ("auto", "bf16"):
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 10))
        optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
        data = TensorDataset(*digits)
        with poise.Session(model, optimizer, data, batch=64, epochs=12, precision=asked, phases=rules) as run:
            for x, y in run:
                seen.setdefault(f"{asked} {run.watch.phase or 'initial'}", set()).add(run.precision)
                run.step(nn.functional.cross_entropy(model(x), y))
    assert seen["auto initial"] == {"bf16"}
    assert seen["auto convergence"] == {"fp32"}
    assert seen["bf16 convergence"] == {"bf16"}, "what was asked for by name stays"
    with pytest.raises(InputError):
        poise.Session(model, optimizer, data, phases=PhaseRules(tuning=Pace(precision="fp12")))
