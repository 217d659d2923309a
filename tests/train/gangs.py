"""Real workers as Poise starts them, without Poise: what its agent does for a gang is done here by hand.

They are forked off a process that has imported PyTorch already, which costs more than all that they do.
"""

import json
import multiprocessing
import os
import runpy
import signal
import sys
import time
from collections.abc import Callable, Sequence
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from poise.model.training import Orders

HERE = Path(__file__).parent
PATIENCE = 120.0

os.environ.setdefault("OMP_NUM_THREADS", "1")
FORKING = multiprocessing.get_context("forkserver")
FORKING.set_forkserver_preload(["sklearn.datasets", "torch._dynamo", "poise_train", "poise_train.split"])


def until(what: Callable[[], Any], seconds: float = PATIENCE) -> Any:
    """What it says, once it says something."""
    end = time.monotonic() + seconds
    while not (said := what()):
        assert time.monotonic() < end, "waited in vain"
        time.sleep(0.02)
    return said


def work(script: str, env: dict[str, str], err: str, out: str = "", arguments: Sequence[str] = ()) -> None:
    """What a worker does: it runs the script, or a module if it is no file, as if by itself."""
    for name in [name for name in os.environ if name.startswith("POISE_")]:
        del os.environ[name]
    os.environ.update(env)
    for path, stream in ((err, sys.stderr), (out, sys.stdout)):
        if path:
            os.dup2(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC), stream.fileno())
    sys.argv = [script, *arguments]
    if script.endswith(".py"):
        sys.path[0] = str(Path(script).parent)
        runpy.run_path(script, run_name="__main__")
    else:
        runpy.run_module(script, run_name="__main__", alter_sys=True)


class Ran(NamedTuple):
    """How a script has ended that ran by itself."""

    returncode: int | None
    stdout: str
    stderr: str


def run(folder: Path, script: Path | str, *arguments: str, patience: float = PATIENCE, **env: str) -> Ran:
    """`python script arguments…`, waited for; it finds PyTorch imported, which takes five seconds of CPU."""
    out, err = folder / "ran.out", folder / "ran.err"
    process = FORKING.Process(target=work, args=(str(script), env, str(err), str(out), arguments))
    process.start()
    process.join(patience)
    if process.exitcode is None:
        process.kill()
        process.join()
    return Ran(process.exitcode, out.read_text(), err.read_text())


class Workers:
    """The workers of one gang. Each is known by a name that outlives its rank."""

    def __init__(self, folder: Path, script: Path = HERE / "digits.py", **options: Any) -> None:
        self.folder, self.script, self.options = folder, script, options
        self.processes: dict[str, BaseProcess] = {}
        self.generation = 0
        (folder / "gang").mkdir(exist_ok=True)

    def start(self, *names: str, orders: bool = True, env: dict[str, str] | None = None) -> None:
        """The gang as it begins; with `orders` it may be told otherwise later."""
        for rank, name in enumerate(names):
            self._start(name, rank, len(names), orders, env or {})

    def become(self, *names: str, env: dict[str, str] | None = None) -> None:
        """From now on the gang is made of these, in the order of their ranks; who is new is started."""
        self.generation += 1
        for rank, name in enumerate(names):
            self._tell(name, Orders(generation=self.generation, world=len(names), rank=rank))
        for name, process in self.processes.items():
            if name not in names and process.exitcode is None:
                self._tell(name, Orders(generation=self.generation, world=len(names), rank=-1))
        for rank, name in enumerate(names):
            if name not in self.processes:
                self._start(name, rank, len(names), True, env or {})

    def kill(self, name: str) -> None:
        self.processes[name].kill()
        self.processes[name].join()

    def steps(self, name: str) -> list[list[float]]:
        """What a worker has written down: step, rank, world, time, loss."""
        path = self.folder / f"out.{self.processes[name].pid}.steps"
        return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []

    def after(self, name: str, steps: int) -> None:
        """Until a worker has made so many steps."""

        def there() -> bool:
            assert self.processes[name].exitcode is None or self.steps(name), self.said(name)
            return bool(self.steps(name)) and self.steps(name)[-1][0] >= steps

        until(there)

    def hurry(self) -> None:
        """What they pause for has happened."""
        (self.folder / "hurry").touch()

    def ask_to_end(self, name: str) -> None:
        os.kill(self.processes[name].pid or 0, signal.SIGTERM)

    def wait(self, *names: str) -> list[int | None]:
        """Their exit codes."""
        for name in names:
            self.processes[name].join(PATIENCE)
        return [self.processes[name].exitcode for name in names]

    def answers(self) -> list[dict[str, Any]]:
        return [json.loads(path.read_text()) for path in sorted(self.folder.glob("out.*.json"))]

    def said(self, name: str) -> str:
        return (self.folder / f"{name}.err").read_text()

    def end(self) -> None:
        for process in self.processes.values():
            if process.exitcode is None:
                process.kill()
            process.join()

    def _start(self, name: str, rank: int, world: int, orders: bool, env: dict[str, str]) -> None:
        given = {
            "OPTIONS": json.dumps(self.options),
            "OUT": str(self.folder / "out"),
            "SEED": str(len(self.processes)),
            "POISE_GANG_DIR": str(self.folder / "gang"),
            "POISE_RANK": str(rank),
            "POISE_WORLD_SIZE": str(world),
            "POISE_REPORT": str(self.folder / f"{name}.report"),
            **({"POISE_ORDERS": str(self.folder / f"{name}.orders")} if orders else {}),
            **env,
        }
        args = (str(self.script), given, str(self.folder / f"{name}.err"))
        self.processes[name] = FORKING.Process(target=work, args=args)
        self.processes[name].start()

    def _tell(self, name: str, orders: Orders) -> None:
        path = self.folder / f"{name}.orders"
        path.with_suffix(".new").write_bytes(msgspec.json.encode(orders))
        path.with_suffix(".new").replace(path)
