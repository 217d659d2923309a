"""A Ray cluster on this machine only, which outlives the process that started it."""

import contextlib
import os
import secrets
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import msgspec

from poise.decoding import json_decoder
from poise.errors import Fault, InputError, extra

LOOK_SECONDS = 0.1
START_SECONDS = 60.0
END_SECONDS = 20.0


class Started(msgspec.Struct, frozen=True):
    """A cluster that was started here: its process and its folder."""

    pid: int
    folder: str


class OwnRay:
    """The cluster whose record, secret and messages are in a folder."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._kept = folder / "started.json"

    def start(self) -> str:
        """Return its address. Start it if it does not run."""
        secret = self._folder / "auth"
        os.environ["RAY_AUTH_MODE"], os.environ["RAY_AUTH_TOKEN_PATH"] = "token", str(secret)
        if not secret.exists():
            secret.write_text(secrets.token_hex(32))
        with contextlib.suppress(FileNotFoundError):
            started = self._started()
            if _is_ray(started.pid):
                return _address_in(Path(started.folder))
        folder = tempfile.mkdtemp(prefix="poise-ray-")  # its sockets have long names, and a home may have one too
        program = [str(Path(sys.executable).with_name("ray")), "start", "--head", "--block", "--port", "0"]
        quiet = ["--include-dashboard=false", "--disable-usage-stats", "--node-name", os.uname().nodename]
        try:
            with (self._folder / "ray.log").open("ab") as messages:
                head = subprocess.Popen(  # noqa: S603 — the program beside our Python
                    [*program, *quiet, "--temp-dir", folder],
                    stdin=subprocess.DEVNULL,
                    stdout=messages,
                    stderr=messages,
                    start_new_session=True,
                    env={name: value for name, value in os.environ.items() if name != "RAY_ADDRESS"},
                )
        except OSError as error:
            raise InputError(f"Ray cannot be started: {error}", hint=extra("ray")) from None
        self._kept.write_bytes(msgspec.json.encode(Started(head.pid, folder)))
        try:
            return _address_in(Path(folder))
        except SystemExit:  # stopped while it was still starting
            self.end()
            raise

    def end(self) -> None:
        started = self._started()
        if _is_ray(started.pid):
            os.kill(started.pid, signal.SIGTERM)
            deadline = time.monotonic() + END_SECONDS
            while _is_ray(started.pid) and time.monotonic() < deadline:
                time.sleep(LOOK_SECONDS)
        shutil.rmtree(started.folder, ignore_errors=True)
        self._kept.unlink()

    def _started(self) -> Started:
        return json_decoder(Started).decode(self._kept.read_bytes())


def _address_in(folder: Path) -> str:
    deadline = time.monotonic() + START_SECONDS
    while time.monotonic() < deadline:
        with contextlib.suppress(FileNotFoundError):
            if address := (folder / "ray_current_cluster").read_text().strip():
                return address
        time.sleep(LOOK_SECONDS)
    raise Fault("Ray does not start", field=str(folder), hint="`tail ray/ray.log` in the home")


def _is_ray(pid: int) -> bool:
    """Whether this process is the one that was started; process ids are reused."""
    with contextlib.suppress(ChildProcessError):  # another object of this class started it
        os.waitpid(pid, os.WNOHANG)
    try:
        return b"--head" in Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return False
