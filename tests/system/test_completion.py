"""Completion in real shells, typed into a terminal, with the names of a control plane that runs."""

import os
import pty
import resource
import select
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from system.living import Living

SHELLS = {
    "bash": (["bash", "--norc", "--noprofile", "-i"], "source poise.bash\n"),
    "zsh": (["zsh", "-f", "-i"], "autoload -U compinit && compinit -u -d ./dump && source poise.zsh\n"),
    "fish": (["fish", "--no-config", "-i"], "source poise.fish\n"),
}
SHOWN_WITHIN = 15.0

QUICK = 10
"""Times what a Python that does nothing takes: in so long a shell is to have its answer, some 150 ms."""


class Typed:
    """A shell in a terminal."""

    def __init__(self, living: Living, command: list[str]) -> None:
        folder = str(Path(sys.executable).parent)
        environment = living.environment(
            TERM="dumb", PS1="$ ", HOME=str(living.work), PYTHONPATH=os.pathsep.join(sys.path)
        )
        environment["PATH"] = f"{folder}{os.pathsep}{os.environ['PATH']}"
        self.pid, self.terminal = pty.fork()
        if self.pid == 0:
            os.chdir(living.work)
            os.execvpe(command[0], command, environment)  # noqa: S606 — a shell, as a user has it
        self.seen = ""

    def type(self, text: str, until: str) -> None:
        """Type, and read until this is shown."""
        os.write(self.terminal, text.encode())
        deadline = time.monotonic() + SHOWN_WITHIN
        self.seen = ""
        while until not in self.seen:
            if not select.select([self.terminal], [], [], max(0.0, deadline - time.monotonic()))[0]:
                raise AssertionError(f"`{until}` was not shown, but {self.seen!r}")
            self.seen += os.read(self.terminal, 65536).decode("utf-8", "replace").replace("\a", "")

    def close(self) -> None:
        os.close(self.terminal)
        os.kill(self.pid, signal.SIGKILL)
        os.waitpid(self.pid, 0)


@pytest.fixture(scope="module")
def busy(shared: Living) -> Living:
    shared.file("graph.yaml", "kind: graph\nname: training\ntasks: {fetch: {run: 'true'}, fit: {run: 'true'}}\n")
    shared.poise("submit", "graph.yaml")
    return shared


@pytest.mark.parametrize("shell", SHELLS)
def test_tab_completes_commands_names_and_tasks(busy: Living, shell: str) -> None:
    command, setup = SHELLS[shell]
    if shutil.which(command[0]) is None:
        pytest.skip(f"{shell} is not installed")
    (busy.work / f"poise.{shell}").write_bytes(busy.poise("completion", shell).out)
    typed = Typed(busy, command)
    try:
        typed.type(f"{setup}echo re''ady\n", "ready")
        typed.type("poise expl\t", "explain")
        typed.type("train\t", "training")
        typed.type("\x15poise show training.fe\t", "training.fetch")
        typed.type("\x15poise submit --priority ur\t", "urgent")
        typed.type("\x15poise submit gr\t", "graph.yaml")
    finally:
        typed.close()


def test_an_answer_is_quick(busy: Living) -> None:
    """In CPU time, beside a Python that does nothing, the better of several each: whatever else the machine does."""
    took, bare = [], []
    for _ in range(8):
        began = spent()
        subprocess.run([sys.executable, "-c", "pass"], check=True)
        bare.append(spent() - began)
        began = spent()
        done = busy.poise("__complete", "poise", "show", "train")
        took.append(spent() - began)
        assert done == (0, b"training\n", "")
    assert min(took) < QUICK * min(bare), f"{min(took) * 1000:.0f} ms against {min(bare) * 1000:.0f} ms"


def spent() -> float:
    """Seconds of CPU that processes which have ended took."""
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    return usage.ru_utime + usage.ru_stime


def test_nothing_is_imported_that_takes_long() -> None:
    code = "import sys; from poise.cli.main import main; main(['__complete', 'poise', 'show', '']); print(*sys.modules)"
    environment = {**os.environ, "POISE_HOME": "/nonexistent"}
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, env=environment)
    assert not set(done.stdout.split()) & {"click", "asyncio", "rich", "yaml", "numpy", "http.client", "ssl"}
