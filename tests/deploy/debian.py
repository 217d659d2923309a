"""Debian's own Prometheus and Alertmanager, as `make servers` unpacks them."""

import os
import shlex
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


def alertmanager() -> list[str]:
    """What its command begins with. Debian's reads templates at a fixed place; a mount shows them there if need be."""
    found = program("prometheus-alertmanager")
    if Path("/usr/share/prometheus/alertmanager").exists():
        return [found]
    apart = ["unshare", *(() if os.geteuid() == 0 else ("--map-root-user",)), "--mount", "sh", "-c"]
    share = Path(sys.prefix) / "debian/usr/share"
    inside = [*apart, f'mount --bind {shlex.quote(str(share))} /usr/share && exec "$@"', "sh"]
    if subprocess.run([*inside, "true"], capture_output=True, check=False).returncode:
        pytest.skip("Alertmanager's templates are not installed, and no mount shows them: needs namespaces")
    return [*inside, found]


def promtool(*arguments: str | os.PathLike[str], given: bytes = b"") -> str:
    """What it says; the test fails where it does not succeed."""
    done = subprocess.run([program("promtool"), *arguments], input=given, capture_output=True, check=False)
    said = (done.stdout + done.stderr).decode()
    if done.returncode:
        pytest.fail(said, pytrace=False)
    return said
