"""Measures every candidate beside the original model: bytes of weights, answers, time and memory.

Candidates are timed in turn, so that other load on the machine slows them all; reports contain the median. Memory is
that of the process, whose peak mark Linux resets on request.
"""

import contextlib
import ctypes
import statistics
from collections.abc import Callable, Iterator, Mapping, Sequence
from time import perf_counter, perf_counter_ns
from typing import Any, NamedTuple, Protocol

import msgspec
import numpy as np
from numpy.typing import NDArray

from poise.drivers import memory
from poise.errors import InputError
from poise.model.precision import AS_IT_IS, Measured
from poise_train.smaller.agreement import Agreement

LEAST_TIMES = 3
"""Minimum number of timings per batch size, however long they take."""

MOST_TIMES = 100
"""Maximum number of timings per batch size."""

LONGEST = 300
"""Maximum length of an error message of a library, in characters."""


class Way(NamedTuple):
    """A candidate: its name, and the function that makes it. For modules the function changes and returns a copy; for
    files it takes the path and the path to write. Its exception is reported as the reason for a failure.
    """

    name: str
    make: Callable[..., Any]


class Runner(Protocol):
    """A model in one precision, ready to answer."""

    @property
    def model(self) -> Any:
        """The model for the user."""

    @property
    def weights(self) -> int:
        """The size of the weights in bytes."""

    def answer(self, batch: Any) -> list[NDArray[Any]]:
        """Return all outputs, in host memory."""

    def peak(self, batch: Any) -> int:
        """Return the peak growth of memory while it answers the batch, in bytes."""


class Family(Protocol):
    """Makes candidates of one kind of model."""

    @property
    def ways(self) -> Sequence[Way]: ...

    def as_it_is(self) -> Runner: ...

    def made(self, way: Way) -> Runner: ...


def measure(
    family: Family, ways: Sequence[Way], inputs: Any, by: Agreement, sizes: Sequence[int], seconds: float
) -> tuple[list[Measured], dict[str, Any]]:
    """Measure the original model and each candidate. Return the measurements, and the working models by name."""
    largest = max(sizes)
    count = _count(inputs)
    batches = {size: _rows(inputs, [at % count for at in range(size)]) for size in sizes}
    base = family.as_it_is()
    reference = _outputs(base, inputs, count, largest)
    runners = {AS_IT_IS: base}
    found = {AS_IT_IS: Measured(name=AS_IT_IS, weights=base.weights, peak=base.peak(batches[largest]))}
    for way in ways:
        try:
            runner = family.made(way)
            outputs = _outputs(runner, inputs, count, largest)
            wrong = _wrong(reference, outputs)
            peak = runner.peak(batches[largest])
        except Exception as error:  # the libraries raise many kinds of exceptions
            wrong = " ".join(f"{type(error).__name__}: {error}".split())[:LONGEST]
        if wrong:
            found[way.name] = Measured(name=way.name, failed=wrong)
            continue
        most, mean = _difference(reference, outputs)
        kept = by(reference[0], outputs[0])
        runners[way.name] = runner
        found[way.name] = Measured(name=way.name, weights=runner.weights, peak=peak, largest=most, mean=mean, kept=kept)
    for name, takes in _timed(runners, batches, seconds).items():
        found[name] = msgspec.structs.replace(found[name], takes=takes)
    return list(found.values()), {name: runner.model for name, runner in runners.items()}


@contextlib.contextmanager
def growth() -> Iterator[Callable[[], int]]:
    """Yield a function that returns the process's peak memory growth in the block, in bytes; 0 if it is unknown."""
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None).malloc_trim(0)  # else freed memory is reused, and nothing grows
    memory.forget_peak()
    began = memory.resident()
    yield lambda: max(0, memory.peak() - began)


def _timed(runners: Mapping[str, Runner], batches: Mapping[int, Any], seconds: float) -> dict[str, dict[int, int]]:
    took: dict[str, dict[int, list[int]]] = {name: {size: [] for size in batches} for name in runners}
    warm = batches[min(batches)]
    began = perf_counter()
    for turn in range(MOST_TIMES):
        if turn >= LEAST_TIMES and perf_counter() - began > seconds:
            break
        for name, runner in runners.items():
            runner.answer(warm)  # refill the caches after the previous runner
            for size, batch in batches.items():
                start = perf_counter_ns()
                runner.answer(batch)
                took[name][size].append(perf_counter_ns() - start)
    return {name: {size: int(statistics.median(each)) for size, each in of.items()} for name, of in took.items()}


def _outputs(runner: Runner, inputs: Any, count: int, largest: int) -> list[NDArray[Any]]:
    """Return the outputs for all inputs, computed in batches of the largest size."""
    answers = [
        runner.answer(_rows(inputs, list(range(at, min(at + largest, count))))) for at in range(0, count, largest)
    ]
    return [np.concatenate(parts) for parts in zip(*answers, strict=True)]


def _wrong(reference: Sequence[NDArray[Any]], outputs: Sequence[NDArray[Any]]) -> str:
    if [one.shape for one in outputs] != [one.shape for one in reference]:
        return "its outputs have another shape"
    finite = all(np.isfinite(one).all() for one in outputs) or not all(np.isfinite(one).all() for one in reference)
    return "" if finite else "numbers in its outputs are not finite"


def _difference(reference: Sequence[NDArray[Any]], outputs: Sequence[NDArray[Any]]) -> tuple[float, float]:
    """Return the largest difference over the largest number of the reference, and the mean difference over its mean."""
    before = np.concatenate([one.ravel() for one in reference]).astype(np.float64)
    apart = np.abs(np.concatenate([one.ravel() for one in outputs]).astype(np.float64) - before)
    size = np.abs(before)
    return _over(apart.max(initial=0), size.max(initial=0)), _over(apart.mean(), size.mean())


def _over(part: float, whole: float) -> float:
    return float(part / whole) if whole else float(part)


def _rows(inputs: Any, picked: list[int]) -> Any:
    if isinstance(inputs, Mapping):
        return {name: _rows(one, picked) for name, one in inputs.items()}
    if isinstance(inputs, tuple | list):
        return tuple(_rows(one, picked) for one in inputs)
    return inputs[picked]


def _count(inputs: Any) -> int:
    """Return the number of inputs. Raises `InputError` if tensors have different numbers of rows, or none."""
    counts = {len(one) for one in _leaves(inputs)}
    if len(counts) != 1 or counts == {0}:
        raise InputError(
            "tensors or arrays need one row per input",
            field="inputs",
            have=" and ".join(map(str, sorted(counts))) + " rows",
        )
    return counts.pop()


def _leaves(inputs: Any) -> Iterator[Any]:
    if isinstance(inputs, Mapping | tuple | list):
        for one in inputs.values() if isinstance(inputs, Mapping) else inputs:
            yield from _leaves(one)
    else:
        yield inputs


__all__ = ["Family", "Runner", "Way", "growth", "measure"]
