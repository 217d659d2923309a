"""`--on ray[:ADDRESS]`: the machines of a Ray cluster. Without an address, a Ray on this machine only is started."""

import os
import signal
from importlib.util import find_spec
from pathlib import Path

from poise.errors import InputError, extra
from poise.ports import Substrate


def check(argument: str) -> None:
    """Raise `InputError` if Ray is not installed."""
    if find_spec("ray") is None:
        raise InputError("Ray is not installed", field="--on", have=f"ray:{argument}", hint=extra("ray"))


def is_local(argument: str) -> bool:
    """Whether this is a Ray on this machine only."""
    return not argument


def connect(argument: str, home: str, folder: str) -> Substrate:
    """Connect to a Ray cluster, or start one here. Raises `Fault` with a hint for the user."""
    from poise_ray.own import OwnRay

    own = None if argument else OwnRay(Path(folder))
    address = own.start() if own is not None else argument
    signal.pthread_sigmask(
        signal.SIG_BLOCK, (signal.SIGTERM, signal.SIGINT)
    )  # Ray has handlers of its own, and threads
    file = Path("~/.ray/auth_token").expanduser()
    if {"RAY_AUTH_TOKEN", "RAY_AUTH_TOKEN_PATH"} & os.environ.keys() or file.exists():
        os.environ.setdefault("RAY_AUTH_MODE", "token")  # as the head of a cluster sets it; nodes that join do not
    from poise_ray.cluster import RayCluster  # slow to import: after checks that may fail without it

    return RayCluster(address, home, own)
