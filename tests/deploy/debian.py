"""Debian's own Prometheus and Alertmanager, as `make servers` unpacks them."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent.parent
DEPLOY = ROOT / "deploy"
RULES = DEPLOY / "prometheus" / "poise-rules.yml"


def program(name: str) -> str:
    """Where a program is; the test is skipped where it is not there."""
    found = Path(sys.prefix) / "debian/usr/bin" / name
    if not found.exists():
        pytest.skip(f"{name} is not there: `make servers` fetches it from Debian's packages")
    return str(found)


def promtool(*arguments: str | os.PathLike[str], given: bytes = b"") -> str:
    """What it says; the test fails where it does not succeed."""
    done = subprocess.run([program("promtool"), *arguments], input=given, capture_output=True, check=False)
    said = (done.stdout + done.stderr).decode()
    if done.returncode:
        pytest.fail(said, pytrace=False)
    return said
