"""Substrates are found by name: those that ship with Poise, and those of installed packages."""

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from drivers.test_plugins import install
from poise.drivers import substrates
from poise.drivers.substrates import driver_of
from poise.errors import InputError

THEIRS = """
def check(argument): pass
def is_local(argument): return True
def connect(argument, home, folder): raise NotImplementedError
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    monkeypatch.syspath_prepend(tmp_path)
    yield tmp_path
    sys.modules.pop("their_substrate", None)


def offer(folder: Path, name: str, code: str) -> None:
    install(folder, {substrates.GROUP: {name: "their_substrate"}})
    (folder / "their_substrate.py").write_text(code)


def test_one_of_an_installed_package_is_found_by_its_name(folder: Path) -> None:
    offer(folder, "bare", THEIRS)
    assert driver_of("bare").is_local("")


def test_an_unknown_one_is_an_error_that_names_those_that_are_installed(folder: Path) -> None:
    offer(folder, "bare", THEIRS)
    with pytest.raises(InputError) as refused:
        driver_of("bear")
    record = refused.value.record
    assert (record.field, record.have, record.need) == ("--on", "bear", "bare, kubernetes, ray, slurm")
    assert "did you mean `bare`?" in record.hint


@pytest.mark.parametrize(
    ("name", "code", "problem"),
    [
        ("bare", "1 / 0", "ZeroDivisionError"),
        ("bare", "def check(argument): pass", "it has no is_local, connect"),
        ("logs", THEIRS, "a home has a file of that name"),
    ],
)
def test_one_that_cannot_be_used_says_why_and_whose_it_is(name: str, code: str, problem: str, folder: Path) -> None:
    offer(folder, name, code)
    with pytest.raises(InputError) as refused:
        driver_of(name)
    assert problem in str(refused.value)
    assert "others 1.0" in str(refused.value)
    assert name in refused.value.record.have
