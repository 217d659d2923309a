"""An actor that keeps an agent on a machine of a Ray cluster, and a task that ends keepers without one."""

import logging
import os
import subprocess
import sys
import threading
import time
from pathlib import Path

import msgspec
import ray

from poise.drivers.devices import Part
from poise.ports import Contact

ANSWER_SECONDS = 30.0
"""What an actor may take to answer: its process may only just be starting."""

STOP_SECONDS = 10.0
PAUSES = (0.1, 5.0)
"""Seconds before an agent that ended is started again: at first, and at most."""

STEADY_SECONDS = 10.0

STILL_RUNS = 5
"""What an agent ends with whose commands go on."""

OTHERS = ("RAY_", "CUDA_VISIBLE_DEVICES", "OMP_NUM_THREADS")
"""Variables that are Ray's, and not the machine's."""

_log = logging.getLogger("poise.ray")


class AgentKeeper:
    """The actor: one agent, kept alive for as long as the actor is."""

    def __init__(self, home: str, name: str, cpu: float, memory: float, contact: Contact) -> None:
        self._root, self._name = root_of(home, name), name
        devices = ray.get_runtime_context().get_accelerator_ids().get("GPU", [])
        self._part = Part(cpu=round(cpu * 1000), memory=int(memory), devices=tuple(map(str, devices)))
        self._contact = contact
        self._agent: subprocess.Popen[bytes] | None = None
        self._code = 0
        self._over = threading.Event()
        self._ended = threading.Event()
        threading.Thread(target=self._keep, name="poise-agent", daemon=True).start()

    def tell(self, contact: Contact) -> None:
        """Where the control plane is now. The agent is started again only if that has moved: the token of another
        control plane that leads now is for the next agent, and that of this one is still good.
        """
        moved, self._contact = contact.address != self._contact.address, contact
        if moved and self._agent is not None:
            self._agent.terminate()

    def begin_anew(self) -> None:
        """Another agent in the place of this one, which nobody hears: it may hang, so it is not asked."""
        if self._agent is not None:
            self._agent.kill()

    def end(self) -> bool:
        """End the agent, unless commands of its node go on; whether it has ended."""
        self._ended.clear()
        self._over.set()
        if self._agent is not None:
            self._agent.terminate()
        return self._ended.wait(STOP_SECONDS) and self._code != STILL_RUNS

    def _keep(self) -> None:
        pause = PAUSES[0]
        while not self._over.wait(pause):
            begun = time.monotonic()
            try:
                self._agent = self._start()
                self._code = self._agent.wait()
            except OSError as error:  # a full disk, too many processes: it is tried again
                _log.warning("the agent of %s cannot be started: %s", self._name, error)
            self._ended.set()
            if self._over.is_set() and self._code != STILL_RUNS:
                return
            self._over.clear()
            pause = PAUSES[0] if time.monotonic() - begun > STEADY_SECONDS else min(PAUSES[1], pause * 2)
        self._ended.set()

    def _start(self) -> "subprocess.Popen[bytes]":
        root, contact = self._root, self._contact
        environment = {name: value for name, value in os.environ.items() if not name.startswith(OTHERS)}
        part = msgspec.json.encode(self._part).decode()
        program = [sys.executable, "-m", "poise.agent", str(root), "--name", self._name, "--part", part]
        root.mkdir(mode=0o700, parents=True, exist_ok=True)
        with (root / "poise.log").open("ab") as messages:
            return subprocess.Popen(  # noqa: S603 — our own program
                [*program, "--connect", contact.address, "--attended"],
                stdin=subprocess.PIPE,  # it ends with this process, and so the agent does
                stdout=messages,
                stderr=messages,
                env=environment | {"POISE_TOKEN": contact.token},
                cwd="/",
            )


def root_of(home: str, name: str) -> Path:
    """Where a node of this home lives on its machine."""
    return Path(os.environ.get("POISE_HOME") or "~/.poise").expanduser() / "on-ray" / home / name


def dismiss(home: str, name: str) -> bool:
    """On a machine that has no agent: end the keepers of this node; whether none is left."""
    root = root_of(home, name)
    if not (root / "node").exists():
        return True
    with (root / "poise.log").open("ab") as messages:
        program = [sys.executable, "-m", "poise.agent", str(root), "--name", name, "--dismiss"]
        done = subprocess.run(  # noqa: S603 — our own program
            program, check=False, stdin=subprocess.DEVNULL, stdout=messages, stderr=messages, timeout=ANSWER_SECONDS
        )
    return done.returncode == 0
