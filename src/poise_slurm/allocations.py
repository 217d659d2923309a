"""Files of allocations, in the home: the keeper of the agents and the pilots communicate through them.

A home on a cluster is on a filesystem that all its machines share. Each allocation has a folder, named by its tag:

    asked.json           the request; written before `sbatch`, so that an unknown allocation starts nothing
    job                  its id in Slurm, once known
    state-RANK-RUN.json  state that the pilot on a node of the allocation reports; RUN counts how often Slurm has
                         requeued the job
    orders-RANK-RUN.json orders to that pilot; only this user can read them

Orders are levels, not events: a pilot or a keeper that comes late reads everything that matters. Only the orders
contain the token of the node, so that nobody else finds it in `scontrol show job` or in a script.
"""

import contextlib
import re
import shutil
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import TypeVar

import msgspec

from poise.decoding import json_decoder
from poise.drivers.whole import write_whole
from poise.ports import Contact
from poise_slurm.shapes import Shape

T = TypeVar("T")

_STATE = re.compile(r"state-(\d+)-(\d+)\.json")


class Asked(msgspec.Struct, frozen=True, kw_only=True):
    """The request for an allocation, and its time (seconds since 1970)."""

    shape: Shape
    at: float
    drain: int


class Orders(msgspec.Struct, frozen=True, kw_only=True):
    """Orders to a pilot: serve as `node` with this contact, until `until` (seconds since 1970). `restarts`, `released`
    and `asks` count the orders to start another agent, to end unless commands run, and to answer. With `leave` the
    pilot ends all commands and leaves.
    """

    node: str
    contact: Contact
    until: float
    restarts: int = 0
    released: int = 0
    asks: int = 0
    leave: bool = False


class State(msgspec.Struct, frozen=True, kw_only=True):
    """State of a pilot: its `host`, by Slurm's name, and its job `job`; its CPUs, MiB of memory and devices; and the
    time at which Slurm will end it, as far as it knows (seconds since 1970). `begun`: its agent was started. `kept` is
    the number of the order to end that it has declined because commands run, `answers` that of the last order to
    answer. `warned`: Slurm has announced the end. `ended`: nothing of it is left.
    """

    host: str
    job: str
    cpus: int
    memory: int
    devices: tuple[str, ...]
    until: float
    begun: bool = False
    kept: int = 0
    answers: int = 0
    warned: bool = False
    ended: bool = False


class Allocation:
    """The folder of one allocation."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.tag = folder.name

    def asked(self) -> Asked | None:
        """Return the request; None if it has been forgotten."""
        return _read(self.folder / "asked.json", Asked)

    def job(self) -> str:
        try:
            return (self.folder / "job").read_text()
        except OSError:
            return ""

    def set_job(self, job: str) -> None:
        write_whole(self.folder / "job", job.encode())

    def orders(self, rank: int, run: int) -> Orders | None:
        return _read(self.folder / f"orders-{rank}-{run}.json", Orders)

    def order(self, rank: int, run: int, orders: Orders) -> None:
        write_whole(self.folder / f"orders-{rank}-{run}.json", msgspec.json.encode(orders), mode=0o600)

    def say(self, rank: int, run: int, state: State) -> None:
        write_whole(self.folder / f"state-{rank}-{run}.json", msgspec.json.encode(state), mode=0o600)

    def states(self) -> dict[int, tuple[int, State]]:
        """Return the newest run and its state, by rank."""
        found: dict[int, tuple[int, State]] = {}
        with contextlib.suppress(OSError):
            for path in self.folder.iterdir():
                match = _STATE.fullmatch(path.name)
                if match is None:
                    continue
                rank, run = int(match[1]), int(match[2])
                if run >= found.get(rank, (0, None))[0] and (state := _read(path, State)) is not None:
                    found[rank] = run, state
        return found

    def said(self) -> str:
        """Return the last line of output of its script."""
        try:
            lines = (self.folder / "pilot.log").read_text(errors="replace").split("\n")
        except OSError:
            return "it has written nothing"
        return next((line.strip()[:300] for line in reversed(lines) if line.strip()), "it has written nothing")

    def forget(self) -> None:
        """Delete the files, the request first, so that an allocation that starts late starts nothing."""
        (self.folder / "asked.json").unlink(missing_ok=True)
        shutil.rmtree(self.folder, ignore_errors=True)


def new_allocation(folder: Path, shape: Shape, now: float, drain: int) -> Allocation:
    """Record a new allocation that is about to be requested."""
    made = Allocation(folder / uuid.uuid4().hex)
    made.folder.mkdir(mode=0o700, parents=True)
    asked = Asked(shape=shape, at=now, drain=drain)
    write_whole(made.folder / "asked.json", msgspec.json.encode(asked), mode=0o600)
    return made


def known_allocations(folder: Path) -> Iterator[Allocation]:
    """Yield all allocations that were requested and not forgotten."""
    if folder.exists():
        for path in sorted(folder.iterdir()):
            if path.is_dir():
                yield Allocation(path)


def _read(path: Path, kind: type[T]) -> T | None:
    try:
        return json_decoder(kind).decode(path.read_bytes())
    except (OSError, msgspec.MsgspecError):
        return None
