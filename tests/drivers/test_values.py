"""Values come back as they were, whatever they are, and files go when nobody needs them."""

import math
import os
import sys
from collections import OrderedDict
from pathlib import Path
from typing import Any

import numpy
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as some

from poise.drivers import functions, values
from poise.drivers.tidy import remove_abandoned
from poise.errors import CallFailed, NotFound
from poise.model.calls import INLINE, Function

PLAIN = some.recursive(
    some.none() | some.booleans() | some.integers() | some.floats(allow_nan=False) | some.text() | some.binary(),
    lambda inner: some.lists(inner) | some.dictionaries(some.text(), inner) | some.tuples(inner, inner),
    max_leaves=12,
)


def again(value: Any, folder: Path = Path("/nonexistent")) -> Any:
    return values.decode(values.encode(value, folder))


def same_type(one: Any, other: Any) -> bool:
    if type(one) is not type(other):
        return False
    if isinstance(one, list | tuple):
        return all(map(same_type, one, other))
    return all(same_type(one[key], other[key]) for key in one) if isinstance(one, dict) else True


@settings(suppress_health_check=[HealthCheck.too_slow])  # a busy machine draws slowly
@given(PLAIN)
def test_whatever_it_is_it_comes_back_as_it_was(value: Any) -> None:
    found = again(value)
    assert found == value and same_type(found, value)


@pytest.mark.parametrize(
    "value",
    [2**64, -(2**63) - 1, {1: 2}, {(1, 2): 3}, {1, 2}, OrderedDict(a=1), "\ud800", 1 + 2j, range(3), Path("/x")],
)
def test_what_msgpack_would_change_is_pickled(value: Any) -> None:
    found = again(value)
    assert found == value and type(found) is type(value)


def test_not_a_number_comes_back() -> None:
    assert math.isnan(again(float("nan")))


@pytest.mark.parametrize("kind", ["float32", "int8", "complex128", "<M8[ns]", "bool", "U5"])
def test_arrays_travel_as_they_are(kind: str) -> None:
    array = numpy.zeros((3, 4), dtype=kind)[:, ::2]
    found = again(array)
    assert found.dtype == array.dtype and numpy.array_equal(found, array) and found.flags.writeable
    assert values.encode(array, Path("/nonexistent")).encoding == "a"


def test_large_values_are_files_that_only_their_owner_reads(tmp_path: Path) -> None:
    value = values.encode(b"x" * (INLINE + 1), tmp_path / "values")
    assert value.data == b"" and Path(value.file).stat().st_mode & 0o077 == 0
    assert values.decode(value) == b"x" * (INLINE + 1)
    values.discard(value)
    with pytest.raises(NotFound):
        values.decode(value)


def test_functions_are_found_by_name_and_held_to_their_source(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "own_module.py").write_text("def f(x):\n    return x + 1\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    import own_module  # type: ignore[import-not-found]

    told = functions.reference(own_module.f, tmp_path)
    assert (told.module, told.name) == ("own_module", "f") and told.source
    assert functions.load(told)(1) == 2
    other = Function(told.name, told.module, source="0000")
    with pytest.raises(CallFailed, match="has changed"):
        functions.load(other)
    with pytest.raises(CallFailed, match="is not in"):
        functions.load(Function("g", "own_module"))
    with pytest.raises(CallFailed, match="cannot be loaded"):
        functions.load(Function("g", "no_such_module_at_all"))
    del sys.modules["own_module"]


def test_functions_without_a_name_travel_by_value(tmp_path: Path) -> None:
    captured = 3
    told = functions.reference(lambda x: x + captured, tmp_path)
    assert told.code.encoding and functions.load(told)(1) == 4


class Picky(Exception):
    def __init__(self, one: int, two: int) -> None:
        super().__init__(f"{one} and {two}")


def test_exceptions_keep_their_type_or_at_least_their_text(tmp_path: Path) -> None:
    def failed(error: BaseException) -> Exception:
        try:
            raise error
        except BaseException as caught:
            return functions.decode_failure(functions.encode_failure(caught, tmp_path))

    found = failed(KeyError("a"))
    assert type(found) is KeyError and "KeyError" in str(found.__cause__)
    picky = failed(Picky(1, 2))  # it can be pickled, and not be read again
    assert isinstance(picky, CallFailed) and "Picky: 1 and 2" in str(picky)
    assert isinstance(failed(SystemExit(3)), CallFailed)


def test_only_what_is_over_and_old_is_tidied_away(tmp_path: Path) -> None:
    for name in ("j1", "j2", "j3"):
        (tmp_path / name).mkdir()
    for name in ("j1", "j2"):
        os.utime(tmp_path / name, (0, 0))
    remove_abandoned(tmp_path, {"j1"}, 60.0)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["j1", "j3"]
    remove_abandoned(tmp_path / "none", set(), 60.0)
