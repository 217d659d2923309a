"""Where measurements are kept: one small file a device and driver, in the home's folder `profiles`."""

import hashlib
import logging
import re
from pathlib import Path

import msgspec

from poise.model.measured import Measured

_log = logging.getLogger("poise.devices")


def save_measured(folder: Path, measured: Measured) -> Path:
    """Replaces what was measured of the same device under the same driver."""
    folder.mkdir(mode=0o700, exist_ok=True)
    path = profile_path(folder, measured.device, measured.driver)
    draft = path.with_suffix(".new")
    draft.write_bytes(msgspec.json.format(msgspec.json.encode(measured)))
    draft.replace(path)
    return path


def load_measured(folder: Path, device: str, driver: str) -> Measured | None:
    """What was measured of a device under a driver; none where nothing was, and of a file that is damaged."""
    path = profile_path(folder, device, driver)
    try:
        found = msgspec.json.decode(path.read_bytes(), type=Measured)
    except FileNotFoundError:
        return None
    except (OSError, msgspec.MsgspecError) as error:
        _log.debug("`%s` is left out: %s", path, error)
        return None
    return found if (found.device, found.driver) == (device, driver) else None


def profile_path(folder: Path, device: str, driver: str) -> Path:
    """A name that people can read, and that no other device or driver has."""
    name = re.sub(r"[^A-Za-z0-9.]+", "-", f"{device} {driver}").strip("-.")[:80]
    digest = hashlib.sha256(b"\0".join((device.encode(), driver.encode()))).hexdigest()[:8]
    return folder / f"{name}-{digest}.json"
