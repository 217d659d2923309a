"""Measure how fast a session is there: the first prompt of `poise shell`, and an answer of a suspended one.

    python benchmarks/sessions.py [--rounds 20] [--json]

The control plane runs already. A prompt is timed from the start of the command line to the first prompt of a shell in a
terminal, and compared with the same shell in a terminal without Poise. An answer of a suspended session is timed from
the key to what the shell echoes. With podman in the PATH and `--image`, a command in a container of an image that is on
the node is compared with the same command without one.
"""

import argparse
import contextlib
import os
import pty
import select
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from time import perf_counter, sleep

import harness
from harness import Figure

PROMPT_SECONDS, IMAGE_SECONDS = 2.0, 0.5
POISE = str(Path(sys.executable).parent / "poise")
SHELL = ["sh", "-i"]
PATIENCE = 60.0


class Screen:
    """A command in a terminal of its own."""

    def __init__(self, command: Sequence[str], **variables: str) -> None:
        self.seen = b""
        self.begun = perf_counter()
        self.mine, theirs = pty.openpty()
        env = os.environ | {"PS1": "ready> ", "TERM": "vt100"} | variables
        ends = {"stdin": theirs, "stdout": theirs, "stderr": theirs}
        self.process = subprocess.Popen(command, env=env, start_new_session=True, **ends)  # type: ignore[call-overload]
        os.close(theirs)

    def until(self, text: bytes) -> float:
        """Return the instant at which the terminal shows this text."""
        while text not in self.seen:
            if not select.select([self.mine], [], [], PATIENCE)[0]:
                raise RuntimeError(f"the terminal shows only {self.seen!r}")
            self.seen += os.read(self.mine, 65536)
        self.seen = self.seen.partition(text)[2]
        return perf_counter()

    def close(self) -> None:
        with contextlib.suppress(OSError):
            os.write(self.mine, b"exit\r")
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.process.wait(5)
        with contextlib.suppress(OSError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()
        os.close(self.mine)


@contextlib.contextmanager
def screen(command: Sequence[str], **variables: str) -> Iterator[Screen]:
    made = Screen(command, **variables)
    try:
        yield made
    finally:
        made.close()


def prompt(command: Sequence[str], **variables: str) -> float:
    """Return the seconds until the first prompt."""
    with screen(command, **variables) as shown:
        return shown.until(b"ready> ") - shown.begun


def woken(**variables: str) -> float:
    """Return the seconds from a key to its echo, in a session that is suspended."""
    command = [POISE, "shell", "-g", "0", "--idle", "1s", "--env", "PS1=ready> ", "--", *SHELL]
    with screen(command, **variables) as shown:
        shown.until(b"ready> ")
        shown.until(b"press a key")
        sleep(0.2)
        begun = perf_counter()
        os.write(shown.mine, b"echo $((6 * 7))\r")
        return shown.until(b"42") - begun


def ran(command: Sequence[str], **variables: str) -> float:
    begun = perf_counter()
    subprocess.run(command, env=os.environ | variables, check=True, capture_output=True)
    return perf_counter() - begun


def measured(rounds: int, image: str) -> list[Figure]:
    prompts, bare, keys, inside, outside = (list[float]() for _ in range(5))
    with harness.own_fleet(warm=harness.SLOTS) as fleet:
        home = {"POISE_HOME": str(fleet.home.root)}
        opened = [POISE, "shell", "-g", "0", "--env", "PS1=ready> ", "--", *SHELL]
        for number in range(rounds):
            prompts.append(prompt(opened, **home))
            bare.append(prompt(SHELL))
            if number < rounds // 4:
                keys.append(woken(**home))
            if image:
                inside.append(ran([POISE, "run", "--image", image, "--", "sh", "-c", ":"], **home))
                outside.append(ran([POISE, "run", "--", "sh", "-c", ":"], **home))
    figures = [
        Figure(name="prompt of poise shell", unit="s", values=prompts, limit=PROMPT_SECONDS),
        Figure(name="prompt of the shell alone", unit="s", values=bare),
        Figure(name="answer of a suspended session", unit="s", values=keys),
    ]
    if image:
        figures += [
            Figure(name="command in a container", unit="s", values=inside, limit=IMAGE_SECONDS),
            Figure(name="command without one", unit="s", values=outside),
        ]
    return figures


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--image", default="", help="an image on this node; podman must be in the PATH")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    return harness.program(lambda: measured(options.rounds, options.image), as_json=options.json)


if __name__ == "__main__":
    sys.exit(main())
