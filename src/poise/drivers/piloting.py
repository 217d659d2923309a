"""The substrate-independent part of a pilot: it keeps one agent alive on this machine.

The agent ends with the pilot's process. Its commands continue under the next agent of that node.
"""

import logging
import os
import subprocess
import sys
import threading
import time
from pathlib import Path

import msgspec

from poise.drivers.devices import Part
from poise.ports import Contact

STOP_SECONDS = 10.0
DISMISS_SECONDS = 30.0
PAUSES = (0.1, 5.0)
"""Restart delays of an agent in seconds: the first and the longest."""

STEADY_SECONDS = 10.0

STILL_RUNS = 5
"""Exit code of an agent whose commands still run."""

_log = logging.getLogger("poise.pilot")


class AgentKeeper:
    """Keeps the agent of a node alive from its creation on. The node's files are in the folder `root`; it offers
    `part`. Environment variables with a prefix in `hidden` are not passed on.
    """

    def __init__(self, root: Path, name: str, part: Part, contact: Contact, hidden: tuple[str, ...] = ()) -> None:
        self._root = root
        self._name = name
        self._part = part
        self._contact = contact
        self._hidden = hidden
        self._agent: subprocess.Popen[bytes] | None = None
        self._code = 0
        self._for_good = False
        self._leaving = ""
        self._knows = False  # the present agent knows that it must leave
        self._over = threading.Event()
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._keep, name="poise-agent", daemon=True)
        self._thread.start()

    def tell(self, contact: Contact) -> None:
        """Update the address of the control plane. The agent is restarted only if that has changed: the token of a new
        leader is for the next agent, and the current token remains valid.
        """
        moved, self._contact = contact.address != self._contact.address, contact
        if moved and self._agent is not None:
            self._agent.terminate()

    def offer(self, part: Part) -> None:
        """Change what the node offers: restart the agent, while its commands continue."""
        self._part = part
        if self._agent is not None:
            self._agent.terminate()

    def begin_anew(self) -> None:
        """Kill an unresponsive agent, so that a new one starts. It may hang, so it gets no SIGTERM."""
        if self._agent is not None:
            self._agent.kill()

    def end(self) -> bool:
        """End the agent, unless commands of its node still run. Return whether it has ended."""
        if not self._thread.is_alive():
            return True
        self._ended.clear()
        self._over.set()
        if self._agent is not None:
            self._agent.terminate()
        return self._ended.wait(STOP_SECONDS) and self._code != STILL_RUNS

    def leave(self, why: str, within: float) -> None:
        """End the agent for good. Before that, for at most `within` seconds, it stops the commands of its node and
        reports how they ended; those that do not end well by themselves count as lost, for the reason `why`.
        """
        self._leaving, until = why, time.monotonic() + within
        while self._thread.is_alive() and time.monotonic() < until:
            if not self._knows and self._agent is not None:
                self._agent.terminate()  # the next one knows
            self._thread.join(PAUSES[0])
        self.stop()

    def stop(self) -> None:
        """End the agent for good, even if commands of its node still run."""
        self._for_good = True
        self.end()

    def _keep(self) -> None:
        pause = PAUSES[0]
        while not self._over.wait(pause):
            begun, leaving = time.monotonic(), self._leaving
            self._knows = bool(leaving)
            try:
                self._agent = self._start(leaving)
                self._code = self._agent.wait()
            except OSError as error:  # a full disk or too many processes: retry
                _log.warning("the agent of %s cannot be started: %s", self._name, error)
            self._ended.set()
            if self._over.is_set() and (self._for_good or self._code != STILL_RUNS):
                return
            if leaving and not self._code:
                return
            self._over.clear()
            steady = self._leaving or time.monotonic() - begun > STEADY_SECONDS
            pause = PAUSES[0] if steady else min(PAUSES[1], pause * 2)
        self._ended.set()

    def _start(self, leaving: str) -> "subprocess.Popen[bytes]":
        environment = {name: value for name, value in os.environ.items() if not name.startswith(self._hidden)}
        program = [sys.executable, "-m", "poise.agent", str(self._root), "--name", self._name, "--attended"]
        offer = ["--part", msgspec.json.encode(self._part).decode(), "--connect", self._contact.address]
        if leaving:
            offer += ["--leave", leaving]
        self._root.mkdir(mode=0o700, parents=True, exist_ok=True)
        with (self._root / "poise.log").open("ab") as messages:
            return subprocess.Popen(  # noqa: S603 — our own program
                [*program, *offer],
                stdin=subprocess.PIPE,  # it ends with this process, which ends the agent
                stdout=messages,
                stderr=messages,
                env=environment | {"POISE_TOKEN": self._contact.token},
                cwd="/",
            )


def dismiss(root: Path, name: str) -> bool:
    """End the keepers of a node without an agent. Return whether none is left."""
    return _run_once(root, "--name", name, "--dismiss")


def retire(root: Path) -> bool:
    """End the commands and keepers of a node without an agent. Return whether none is left."""
    return _run_once(root, "--retire", str(root / "node"))


def _run_once(root: Path, *options: str) -> bool:
    if not (root / "node").exists():
        return True
    with (root / "poise.log").open("ab") as messages:
        program = [sys.executable, "-m", "poise.agent", str(root), *options]
        done = subprocess.run(  # noqa: S603 — our own program
            program, check=False, stdin=subprocess.DEVNULL, stdout=messages, stderr=messages, timeout=DISMISS_SECONDS
        )
    return done.returncode == 0
