"""Converts ONNX files to int8 for ONNX Runtime: weights are stored in int8, inputs are converted batch by batch."""

import contextlib
import logging
import math
import os
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import onnx
import onnxruntime
from numpy.typing import NDArray
from onnxruntime import quantization

from poise.errors import InputError
from poise_train.smaller.measure import Way, growth


class Files:
    """Makes candidates of one file."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self.ways = (Way("int8", int8),)

    def as_it_is(self) -> "Running":
        if not self._path.is_file():
            raise InputError("no such file", field=str(self._path))
        try:
            return Running(self._path)
        except Exception as error:  # the runtime's exceptions have no other common class
            raise InputError("ONNX Runtime cannot load this model", field=str(self._path), have=str(error)) from error

    def made(self, way: Way) -> "Running":
        with tempfile.TemporaryDirectory(prefix="poise-") as folder:
            path = Path(folder) / self._path.name
            way.make(self._path, path)
            return Running(path)


class Running:
    """Runs one session, on OMP_NUM_THREADS threads like PyTorch."""

    def __init__(self, path: Path) -> None:
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = int(os.environ.get("OMP_NUM_THREADS") or 0)  # 0: one per core
        self.model = onnxruntime.InferenceSession(str(path), options, providers=onnxruntime.get_available_providers())
        self.weights = _bytes(path)
        self._names = [one.name for one in self.model.get_inputs()]

    def answer(self, batch: Any) -> list[NDArray[Any]]:
        if not isinstance(batch, Mapping):
            values = batch if isinstance(batch, tuple) else (batch,)
            batch = dict(zip(self._names, values, strict=True))
        answers: list[NDArray[Any]] = self.model.run(None, batch)
        return answers

    def peak(self, batch: Any) -> int:
        with growth() as grown:
            self.answer(batch)
            return grown()


def int8(path: Path, to: Path) -> None:
    with _unlogged():
        quantization.quantize_dynamic(path, to, per_channel=True, weight_type=quantization.QuantType.QInt8)


def _bytes(path: Path) -> int:
    """Return the bytes of all weights, inside the file or external."""
    kept = onnx.load(path, load_external_data=False).graph.initializer
    return sum(math.prod(one.dims) * onnx.helper.tensor_dtype_to_np_dtype(one.data_type).itemsize for one in kept)


@contextlib.contextmanager
def _unlogged() -> Iterator[None]:
    """Suppress the quantiser's messages to the root logger, which would configure logging in the user's process."""
    root, nowhere = logging.getLogger(), logging.NullHandler()
    before, root.handlers = root.handlers, [nowhere]
    try:
        yield
    finally:
        root.handlers = before


__all__ = ["Files"]
