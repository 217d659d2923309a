"""Runs measurements in a separate process, and stores them: one small file for each device and driver.

The separate process isolates the caller from faults of libraries. It may take at most `LONGEST` seconds for each
device.
"""

import hashlib
import logging
import os
import re
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Literal

import msgspec

from poise.decoding import json_decoder
from poise.drivers.bench import Report
from poise.drivers.whole import write_whole
from poise.errors import Fault
from poise.model.measured import Measured

LONGEST = 300.0

_log = logging.getLogger("poise.devices")


def measure(
    what: Literal["processor", "accelerators"], visible: Mapping[str, str], *, devices: int = 1, quick: bool = False
) -> list[Report]:
    """Measure each device, in order. `visible` are variables that hide other devices. Raises `Fault`."""
    command = [sys.executable, "-m", "poise.drivers.bench", what, *(["--quick"] if quick else [])]
    try:
        done = subprocess.run(  # noqa: S603 — our own program
            command, env={**os.environ, **visible}, stdin=subprocess.DEVNULL, capture_output=True, check=False,
            timeout=LONGEST * devices,
        )  # fmt: skip
    except subprocess.TimeoutExpired:
        raise Fault("the measurement takes too long", need=f"at most {LONGEST * devices:g} s", hint="--quick") from None
    if done.returncode:
        why = done.stderr.decode(errors="replace").strip().splitlines()
        raise Fault("measuring failed", have=why[-1][:200] if why else f"exit code {done.returncode}")
    return [json_decoder(Report).decode(line) for line in done.stdout.splitlines()]


def save_measured(folder: Path, measured: Measured) -> Path:
    """Store a measurement, replacing one of the same device and driver."""
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    path = profile_path(folder, measured.device, measured.driver)
    write_whole(path, msgspec.json.format(msgspec.json.encode(measured)))
    return path


def load_measured(folder: Path, device: str, driver: str) -> Measured | None:
    """Return the measurement of a device with a driver; None if there is none or its file is damaged."""
    path = profile_path(folder, device, driver)
    try:
        found = json_decoder(Measured).decode(path.read_bytes())
    except FileNotFoundError:
        return None
    except (OSError, msgspec.MsgspecError) as error:
        _log.debug("`%s` is left out: %s", path, error)
        return None
    return found if (found.device, found.driver) == (device, driver) else None


def profile_path(folder: Path, device: str, driver: str) -> Path:
    """Return a path with a readable name that is unique to this device and driver."""
    name = re.sub(r"[^A-Za-z0-9.]+", "-", f"{device} {driver}").strip("-.")[:80]
    digest = hashlib.sha256(b"\0".join((device.encode(), driver.encode()))).hexdigest()[:8]
    return folder / f"{name}-{digest}.json"
