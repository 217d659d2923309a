"""`poise_train.smaller.smaller` with ONNX files: int8 of a file beside the file as it is."""

import logging
from pathlib import Path
from typing import Any

import numpy as np
import pytest

onnx = pytest.importorskip("onnx", reason="needs poise-scheduler[onnx]")
pytest.importorskip("onnxruntime", reason="needs poise-scheduler[onnx]")

from poise.errors import InputError  # noqa: E402
from poise_train.smaller import Way, smaller  # noqa: E402

SHORT: dict[str, Any] = {"batches": (1, 8), "seconds": 0.0}


@pytest.fixture
def file(tmp_path: Path) -> Path:
    """An embedding of 500 words, their mean, and two layers."""
    from onnx import TensorProto, helper, numpy_helper

    draw = np.random.default_rng(0)

    def weights(name: str, *shape: int) -> Any:
        return numpy_helper.from_array(draw.normal(0, 0.1, shape).astype(np.float32), name)

    nodes = [
        helper.make_node("Gather", ["table", "words"], ["rows"]),
        helper.make_node("ReduceMean", ["rows", "axis"], ["mean"], keepdims=0),
        helper.make_node("MatMul", ["mean", "first"], ["wide"]),
        helper.make_node("Relu", ["wide"], ["positive"]),
        helper.make_node("Gemm", ["positive", "second", "bias"], ["scores"]),
    ]
    kept = [weights("table", 500, 64), weights("first", 64, 128), weights("second", 128, 10), weights("bias", 10)]
    kept.append(numpy_helper.from_array(np.array([1]), "axis"))
    words = helper.make_tensor_value_info("words", TensorProto.INT64, ["n", 6])
    scores = helper.make_tensor_value_info("scores", TensorProto.FLOAT, ["n", 10])
    graph = helper.make_graph(nodes, "scores", [words], [scores], kept)
    made = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=9)
    path = tmp_path / "scores.onnx"
    onnx.save(made, path)
    return path


WORDS = np.random.default_rng(1).integers(0, 500, (200, 6))
FP32_BYTES = 4 * (500 * 64 + 64 * 128 + 128 * 10 + 10) + 8


def test_a_file_in_int8_beside_the_file_as_it_is(file: Path, capfd: pytest.CaptureFixture[str]) -> None:
    session, report = smaller(file, WORDS, asked="int8", kept=0.9, **SHORT)
    whole, int8 = report.measured
    assert (whole.weights, report.taken) == (FP32_BYTES, "int8")
    assert 0.25 < int8.weights / whole.weights < 0.3
    assert 0 < int8.mean < int8.largest < 0.2
    assert int8.kept > 0.9
    as_it_is = smaller(str(file), {"words": WORDS}, asked="fp32", **SHORT).model
    told = [[one.run(None, {"words": WORDS[at : at + 8]})[0] for at in range(0, 200, 8)] for one in (as_it_is, session)]
    before, after = (np.concatenate(one).argmax(1) for one in told)
    assert np.mean(before == after) == int8.kept
    assert "asked for" in capfd.readouterr().err
    assert list(file.parent.iterdir()) == [file]


def test_what_the_quantiser_logs_leaves_logging_as_it_was(file: Path, capfd: pytest.CaptureFixture[str]) -> None:
    before = list(logging.getLogger().handlers)
    smaller(file, (WORDS,), asked="int8", **SHORT)
    assert logging.getLogger().handlers == before
    assert "WARNING" not in capfd.readouterr().err


def test_a_way_of_ones_own_writes_another_file(file: Path) -> None:
    def halved(path: Path, to: Path) -> None:
        made = onnx.load(path)
        for one in made.graph.initializer:
            if one.name in ("second", "bias"):
                one.CopyFrom(onnx.numpy_helper.from_array(onnx.numpy_helper.to_array(one) / 2, one.name))
        onnx.save(made, to)

    found = smaller(file, WORDS, candidates=[Way("halved", halved)], **SHORT).report.measured[1]
    assert found.weights == FP32_BYTES
    assert (found.largest, found.mean, found.kept) == pytest.approx((0.5, 0.5, 1.0))


def test_precisions_of_modules_are_none_of_files(file: Path) -> None:
    report = smaller(file, WORDS, asked="bf16", **SHORT).report
    assert report.taken == "fp32"
    assert report.why == ["fp32 stays", "bf16 does not work: ValueError: there is none for such models"]


def test_a_file_that_is_not_there_or_is_no_model(tmp_path: Path) -> None:
    (tmp_path / "text.onnx").write_text("no model")
    for name in ("none.onnx", "text.onnx"):
        with pytest.raises(InputError) as refused:
            smaller(tmp_path / name, WORDS)
        assert refused.value.record.field == str(tmp_path / name)
