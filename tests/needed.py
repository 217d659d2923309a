"""Packages that a file of tests needs: looked for, and not imported by every process that collects the tests."""

from importlib.util import find_spec

import pytest


def needs(package: str, extra: str) -> None:
    """Skip the whole file where a package is not installed; `extra` is what of Poise brings it."""
    if find_spec(package) is None:
        pytest.skip(f"needs poise-scheduler[{extra}]", allow_module_level=True)
