"""`poise_train.smaller.smaller` with PyTorch modules: what is measured is so, and what is taken answers as before."""

import copy
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import msgspec
import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="needs poise-scheduler[torch]")

from torch import nn  # noqa: E402

from poise.errors import InputError  # noqa: E402
from poise_train.policy.precision import choose  # noqa: E402
from poise_train.smaller import Measured, Report, Way, accuracy, neighbours, pruned, smaller, top1  # noqa: E402

SHORT: dict[str, Any] = {"batches": (1, 8), "seconds": 0.0}


@pytest.fixture(scope="module", autouse=True)
def one_thread() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="module")
def points() -> tuple[Any, Any, Any]:
    """A trained classifier of points in ten clouds, points that it was not trained with, and their clouds."""
    torch.manual_seed(0)
    labels = torch.arange(1800) % 10
    inputs = torch.randn(10, 64)[labels] + 0.8 * torch.randn(1800, 64)
    model = nn.Sequential(
        nn.Linear(64, 256), nn.ReLU(), nn.Linear(256, 256), nn.ReLU(), nn.Dropout(0.1), nn.Linear(256, 10)
    )
    for _ in range(30):
        loss = nn.functional.cross_entropy(model(inputs[:1300]), labels[:1300])
        weights = list(model.parameters())
        with torch.no_grad():
            for one, slope in zip(weights, torch.autograd.grad(loss, weights), strict=True):
                one.sub_(0.3 * slope)
    return model.eval(), inputs[1300:], labels[1300:].numpy()


def by_name(report: Report) -> dict[str, Measured]:
    return {one.name: one for one in report.measured}


def test_each_precision_is_measured_before_one_is_used(points: Any, capfd: pytest.CaptureFixture[str]) -> None:
    model, inputs, labels = points
    taken, report = smaller(model, inputs, by=accuracy(labels), **SHORT)
    assert [one.name for one in report.measured] == ["fp32", "int8", "bf16", "fp16", "mixed"]
    found = by_name(report)
    weights = 64 * 256 + 256 * 256 + 256 * 10
    biases = 256 + 256 + 10
    assert found["fp32"].weights == found["mixed"].weights == 4 * (weights + biases)
    assert found["bf16"].weights == 2 * (weights + biases)
    assert found["int8"].weights == pytest.approx(weights + (4 + 8) * biases, abs=100)  # and a scale for each unit
    assert all(list(one.takes) == [1, 8] and min(one.takes.values()) > 0 for one in report.measured)
    assert all(one.kept > 0.98 and 0 < one.mean < 0.05 and 0 < one.largest < 0.05 for one in report.measured[1:])
    assert (report.taken, report.why) == msgspec.structs.astuple(choose(report.measured, "auto", 0.95))
    assert report.by == "accuracy"
    with torch.inference_mode():
        answers = taken(inputs)
    assert answers.dtype == torch.float32
    assert np.mean(answers.argmax(-1).numpy() == labels) > 0.9
    said = capfd.readouterr().err
    assert said.startswith("poise: precision: auto is asked for, 95.0% must be kept\n")
    assert all(f"poise: {line}\n" in said for line in report.why)
    assert msgspec.json.decode(msgspec.json.encode(report), type=Report) == report


def test_the_replica_is_told_which_by_its_environment(points: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    model, inputs, _ = points
    monkeypatch.setenv("POISE_PRECISION", "int8")
    monkeypatch.setenv("POISE_SERVICE_BATCH", "4")
    taken, report = smaller(model, inputs, seconds=0.0)
    assert report.asked == report.taken == "int8"
    assert [one.name for one in report.measured] == ["fp32", "int8"]
    assert sorted(report.measured[0].takes) == [1, 4]
    assert top1(*(np.asarray(each(inputs).detach()) for each in (model, taken))) > 0.98
    assert smaller(model, inputs, asked="fp32", seconds=0.0).report.taken == "fp32"


def test_what_keeps_too_little_is_not_taken(points: Any) -> None:
    model, inputs, labels = points
    found = smaller(model, inputs, candidates=[pruned(0.97)], asked="pruned-97%", by=accuracy(labels), **SHORT)
    assert found.report.measured[1].kept < 0.95
    assert found.report.taken == "fp32" and found.model is model
    assert found.report.why[1].startswith("pruned-97%: ")


def test_units_are_taken_out_for_good_and_zeros_alone_save_nothing(points: Any) -> None:
    model, inputs, _ = points
    report = smaller(model, inputs, candidates=[pruned(0.5), pruned(0.25, rows=True)], **SHORT).report
    whole, zeros, rows = report.measured
    assert zeros.weights == whole.weights
    assert rows.weights == 4 * (64 * 192 + 192 * 192 + 192 * 10 + 192 + 192 + 10)
    assert rows.kept > 0.5


def test_what_is_taken_out_is_what_was_zero() -> None:
    torch.manual_seed(1)
    first = nn.Conv2d(1, 8, 3)
    layers = nn.Sequential(first, nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(8, 4, 3), nn.Flatten())
    with torch.no_grad():
        for weights in first.parameters():
            weights[[1, 3, 4, 6]] = 0
    inputs = torch.rand(5, 1, 12, 12)
    found = smaller(layers, inputs, candidates=[pruned(0.5, rows=True)], asked="pruned-rows-50%", **SHORT)
    assert found.model[0].weight.shape[0] == found.model[0].out_channels == 4
    assert found.report.measured[1].largest < 1e-6


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")
def test_an_encoder_with_its_fast_path_several_inputs_and_embeddings() -> None:
    class Encoder(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.words = nn.Embedding(100, 32)
            layer = nn.TransformerEncoderLayer(32, 4, 64, batch_first=True)
            self.encoder = nn.TransformerEncoder(layer, 2)

        def forward(self, words: Any, mask: Any) -> dict[str, Any]:
            states = self.encoder(self.words(words), src_key_padding_mask=mask)
            return {"mean": states.masked_fill(mask[..., None], 0).sum(1)}

    torch.manual_seed(2)
    words = torch.randint(0, 100, (20, 6))
    mask = torch.arange(6)[None] >= torch.randint(2, 7, (20, 1))
    given = {"words": words, "mask": mask}
    report = smaller(Encoder(), given, candidates=["int8", "bf16"], by=neighbours, **SHORT).report
    assert [one.failed for one in report.measured] == ["", "", ""]
    assert all(one.kept > 0.7 for one in report.measured)
    attention = 2 * 4 * 3 * 32 * (32 + 1)  # three products in one parameter of each layer, which stays in fp32
    assert attention < by_name(report)["int8"].weights < attention + 0.5 * by_name(report)["fp32"].weights
    assert smaller(Encoder(), (words, mask), candidates=["int8"], **SHORT).report.measured[1].failed == ""


def test_recurrent_layers_are_weighed_where_they_are_packed() -> None:
    class Last(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layers = nn.LSTM(16, 64, batch_first=True)

        def forward(self, inputs: Any) -> Any:
            return self.layers(inputs)[0][:, -1]

    whole, int8 = smaller(Last(), torch.rand(9, 5, 16), candidates=["int8"], **SHORT).report.measured
    assert whole.weights == 4 * (4 * 64 * (16 + 64) + 2 * 4 * 64)
    assert 0.25 * whole.weights < int8.weights < 0.35 * whole.weights


def test_a_candidate_that_does_not_work_is_told_with_what_it_said() -> None:
    def raises(_: Any) -> Any:
        raise RuntimeError("no kernel\n  for that")

    def wider(module: Any) -> Any:
        return nn.Sequential(module, nn.Linear(2, 3))

    def endless(module: Any) -> Any:
        nn.init.constant_(module.weight, float("inf"))
        return module

    ways = [Way("raises", raises), Way("wider", wider), Way("endless", endless), pruned(0.5, rows=True)]
    given = nn.Linear(4, 2)
    before = copy.deepcopy(given.state_dict())
    found = smaller(given, torch.rand(3, 4), candidates=ways, **SHORT)
    assert found.report.taken == "fp32"
    assert [one.failed for one in found.report.measured[1:4]] == [
        "RuntimeError: no kernel for that",
        "its outputs have another shape",
        "numbers in its outputs are not finite",
    ]
    assert "no two layers" in found.report.measured[4].failed
    assert all(torch.equal(given.state_dict()[name], value) for name, value in before.items())


@pytest.mark.parametrize(
    ("given", "where"),
    [
        ({"inputs": torch.rand(0, 4)}, "inputs"),
        ({"inputs": (torch.rand(3, 4), torch.rand(2, 4))}, "inputs"),
        ({"model": nn.Linear(4, 2).half()}, "model"),
        ({"model": "no.onnx"}, "no.onnx"),
        ({"model": 3}, "model"),
        ({"asked": "int9"}, "asked"),
        ({"candidates": ["int9"]}, "candidates"),
        ({"kept": 95}, "kept"),
        ({"batches": (0, 4)}, "batches"),
        ({"by": accuracy([1, 0])}, "labels"),
    ],
)
def test_what_cannot_be_measured_is_refused(given: dict[str, Any], where: str) -> None:
    asked: dict[str, Any] = {"model": nn.Linear(4, 2), "inputs": torch.rand(3, 4), "candidates": []} | given
    with pytest.raises(InputError) as refused:
        smaller(asked.pop("model"), asked.pop("inputs"), **asked)
    assert refused.value.record.field == where


def test_what_a_candidate_needs_while_it_answers_is_its_peak() -> None:
    class Wide(nn.Module):
        def forward(self, inputs: Any) -> Any:
            return inputs.repeat(1, 1_000_000).sum(1, keepdim=True)  # 64 x 4 MB at once

    measured = smaller(Wide(), torch.rand(64, 1), asked="fp32", batches=(64,), seconds=0.0).report.measured
    assert 0.9 < measured[0].peak / (64 * 4_000_000) < 1.5  # the kernel counts pages by processor, and adds up late


def test_neither_library_is_imported_before_it_is_needed_nor_anything_of_the_control_plane() -> None:
    program = "import sys, poise_train.smaller; print(*sys.modules)"
    told = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True).stdout.split()
    assert not {"torch", "onnx", "onnxruntime", "uvicorn", "aiohttp", "poise.control", "poise.kernel"} & {*told}
